"""Discrete measures on tasks: random and quasi-random samples, and quadrature rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import qmc, uniform
from sklearn.utils import check_random_state
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

MAX_SUM_ERROR = 1e-6  # largest difference from 1 of the sum of the given weights, which are then divided by their sum


@dataclass(frozen=True)
class TaskMeasure:
    """Discrete probability measure on tasks.

    With nodes shared by all rows, matrices are Kronecker products. Nodes per row are meant for samples of the tasks.

    Parameters
    ----------
    nodes : array-like of shape (m,) or (n, m)
        Tasks θ, shared by all rows or per row. Stored in float64.
    weights : array-like of the shape of `nodes` or None, default=None
        Weights η ≥ 0 with sum 1 over the last axis. If None, all nodes have the same weight.

    Examples
    --------
    >>> from ovkgp.losses import TaskMeasure
    >>> len(TaskMeasure([0.1, 0.5, 0.9])), TaskMeasure([0.25, 0.75]).weights.tolist()
    (3, [0.5, 0.5])
    """

    nodes: Tensor
    weights: Tensor | None = None

    def __post_init__(self):
        nodes = torch.as_tensor(self.nodes, dtype=torch.float64)
        if nodes.dim() not in (1, 2) or nodes.numel() == 0 or not bool(torch.isfinite(nodes).all()):
            raise InputError(f"nodes must be finite, not empty and of shape (m,) or (n, m), got {tuple(nodes.shape)}.")
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "weights", self._normalize_weights())

    def _normalize_weights(self) -> Tensor:
        if self.weights is None:
            return torch.full_like(self.nodes, 1 / len(self))
        weights = torch.as_tensor(self.weights, dtype=torch.float64)
        if weights.shape != self.nodes.shape:
            raise InputError(f"weights has shape {tuple(weights.shape)}, expected {tuple(self.nodes.shape)}.")
        total = weights.sum(-1, keepdim=True)
        if not bool((weights >= 0).all()):
            raise InputError("weights must be at least 0; a loss with negative weights is not convex.")
        if not bool(((total - 1).abs() <= MAX_SUM_ERROR).all()):
            raise InputError(f"weights must sum to 1, got {total.flatten()[0].item():.6g}. Divide them by their sum.")
        return weights / total

    def __len__(self) -> int:
        """Return the number m of nodes."""
        return self.nodes.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows share the nodes."""
        return self.nodes.dim() == 1

    def integral(self, values: Tensor) -> Tensor:
        """Return Σ_j η_j f_j over the last axis of values f (..., m)."""
        return (self.weights * values).sum(-1)


@dataclass(frozen=True)
class Coordinates:
    """Counting measure on the coordinates of curves in an orthonormal basis: ⟨a, b⟩ = Σ_j a_j b_j.

    Only losses that depend on a curve through its norm (p = 2) are the same for coordinates as for curves.

    Parameters
    ----------
    num_coordinates : int
        Number m of coordinates.

    References
    ----------
    LT-89

    Examples
    --------
    >>> from ovkgp.losses import Coordinates
    >>> Coordinates(3).weights.tolist()
    [1.0, 1.0, 1.0]
    """

    num_coordinates: int
    is_shared = True

    def __len__(self) -> int:
        return self.num_coordinates

    @property
    def nodes(self) -> Tensor:
        """Indices 0, 1, … of the coordinates."""
        return torch.arange(self.num_coordinates, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        return torch.ones(self.num_coordinates, dtype=torch.float64)


class Truncated:
    """Distribution restricted to [low, high], with `pdf`, `cdf`, `ppf` and `support` as in SciPy.

    Parameters
    ----------
    distribution : frozen scipy.stats distribution
        Distribution to restrict.
    low, high : float
        Ends of the interval, which must have positive mass.

    References
    ----------
    LT-74

    Examples
    --------
    >>> from scipy.stats import beta
    >>> from ovkgp.losses import Truncated
    >>> distribution = Truncated(beta(2, 1), 0.5, 1.0)  # density 2θ above ½, divided by its mass ¾
    >>> round(float(distribution.pdf(0.9)), 6), float(distribution.pdf(0.4)), distribution.support()
    (2.4, 0.0, (0.5, 1.0))
    """

    def __init__(self, distribution, low: float, high: float):
        self.distribution, self.low, self.high = distribution, float(low), float(high)
        self._below = float(distribution.cdf(low))
        self._mass = float(distribution.cdf(high)) - self._below
        if not (self.low < self.high and self._mass > 0):
            raise OptionError(f"distribution must have positive mass on [low, high], got none on [{low}, {high}].")

    def pdf(self, x) -> np.ndarray:
        return np.where((x >= self.low) & (x <= self.high), self.distribution.pdf(x) / self._mass, 0.0)

    def cdf(self, x) -> np.ndarray:
        return np.clip((self.distribution.cdf(x) - self._below) / self._mass, 0.0, 1.0)

    def ppf(self, u) -> np.ndarray:
        return np.clip(self.distribution.ppf(self._below + self._mass * np.asarray(u)), self.low, self.high)

    def support(self) -> tuple[float, float]:
        return self.low, self.high


def monte_carlo(num_nodes: int, distribution=None, *, num_rows: int | None = None, random_state=None) -> TaskMeasure:
    """Draw independent nodes with equal weights.

    Parameters
    ----------
    num_nodes : int
        Number of nodes.
    distribution : frozen scipy.stats distribution or None, default=None
        Distribution of the nodes. If None, uniform on [0, 1].
    num_rows : int or None, default=None
        Number of rows with separate nodes; one node per row already gives a consistent estimate. If None, all rows
        share the nodes.
    random_state : int, Generator, RandomState or None, default=None
        Seed or random number generator.

    Returns
    -------
    TaskMeasure
        Nodes of shape (num_nodes,) or (num_rows, num_nodes).

    References
    ----------
    LT-70

    Examples
    --------
    >>> from ovkgp.losses import monte_carlo
    >>> monte_carlo(1, num_rows=50, random_state=0).nodes.shape
    torch.Size([50, 1])
    """
    shape = (_check_count(num_nodes),)
    if num_rows is not None:
        shape = (_check_count(num_rows, "num_rows"), *shape)
    uniforms = np.random.default_rng(_draw_seed(random_state)).uniform(size=shape)
    return TaskMeasure(_map_to_distribution(uniforms, distribution))


def sobol(num_nodes: int, distribution=None, *, scramble: bool = True, random_state=None) -> TaskMeasure:
    """Map a Sobol sequence through the quantile function of a distribution, with equal weights.

    Parameters
    ----------
    num_nodes : int
        Number of nodes.
    distribution : frozen scipy.stats distribution or None, default=None
        Distribution of the nodes. If None, uniform on [0, 1].
    scramble : bool, default=True
        Whether to scramble the sequence. If False, its first point 0 is omitted, since its quantile may be infinite.
    random_state : int, Generator, RandomState or None, default=None
        Seed or random number generator of the scrambling.

    Returns
    -------
    TaskMeasure
        Nodes of shape (num_nodes,).

    References
    ----------
    LT-71

    Examples
    --------
    >>> from ovkgp.losses import sobol
    >>> sorted(sobol(3, scramble=False).nodes.tolist())
    [0.25, 0.5, 0.75]
    """
    engine = qmc.Sobol(d=1, scramble=scramble, rng=np.random.default_rng(_draw_seed(random_state)))
    first = 0 if scramble else 1
    # SciPy warns unless the size is a power of 2; the first points are the same
    size = 2 ** int(np.ceil(np.log2(_check_count(num_nodes) + first)))
    return TaskMeasure(_map_to_distribution(engine.random(size)[first : first + num_nodes, 0], distribution))


def gauss_legendre(
    num_nodes: int, low: float | None = None, high: float | None = None, distribution=None
) -> TaskMeasure:
    """Return the Gauss–Legendre rule on [low, high], weighted by the density of a distribution.

    Parameters
    ----------
    num_nodes : int
        Number m of nodes.
    low, high : float or None, default=None
        Ends of the interval. If None, those of the support of `distribution`, or 0 and 1.
    distribution : frozen scipy.stats distribution or None, default=None
        Distribution of the tasks. If None, uniform on [low, high]; polynomials of degree 2m − 1 are then integrated
        exactly.

    Returns
    -------
    TaskMeasure
        Nodes and weights of shape (num_nodes,).

    References
    ----------
    LT-72

    Examples
    --------
    >>> from scipy.stats import beta
    >>> from ovkgp.losses import gauss_legendre
    >>> measure = gauss_legendre(5, distribution=beta(2, 1))
    >>> round(measure.integral(measure.nodes).item(), 12)  # the mean of the distribution with density 2θ
    0.666666666667
    """
    ends = (0.0, 1.0) if distribution is None else distribution.support()
    low, high = (end if given is None else float(given) for given, end in zip((low, high), ends, strict=True))
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise OptionError(f"[low, high] must be a bounded interval, got [{low}, {high}]. Truncate the distribution.")
    points, weights = np.polynomial.legendre.leggauss(_check_count(num_nodes))
    nodes = low + (high - low) * (points + 1) / 2
    return grid(nodes, weights / 2 if distribution is None else weights * distribution.pdf(nodes))


def grid(nodes, weights=None, *, density: Callable | None = None, proposal: Callable | None = None) -> TaskMeasure:
    """Return a measure on given nodes, with weights proportional to weights · density(θ) / proposal(θ).

    Parameters
    ----------
    nodes : array-like of shape (m,) or (n, m)
        Tasks θ.
    weights : array-like of the shape of `nodes` or None, default=None
        Weights, up to a constant factor. If None, all are equal.
    density : callable or None, default=None
        Density of the target measure, up to a constant factor. If None, 1.
    proposal : callable or None, default=None
        Density from which the nodes were drawn, up to a constant factor. If None, 1.

    Returns
    -------
    TaskMeasure
        The nodes with normalized weights.

    References
    ----------
    LT-73

    Examples
    --------
    >>> from ovkgp.losses import grid
    >>> grid([0.25, 0.75], density=lambda t: 2 * t).weights.tolist()
    [0.25, 0.75]
    """
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    weights = torch.ones_like(nodes) if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    for function, power in ((density, 1), (proposal, -1)):
        if function is not None:
            weights = weights * torch.as_tensor(np.asarray(function(nodes.numpy())), dtype=torch.float64) ** power
    total = weights.sum(-1, keepdim=True)
    if not bool((torch.isfinite(weights) & (total > 0)).all()):
        raise InputError("weights must be finite and have a positive sum.")
    return TaskMeasure(nodes, weights / total)


def trapezoid(nodes, low: float = 0.0, high: float = 1.0) -> TaskMeasure:
    """Return the trapezoidal rule, which integrates linear splines that are constant beyond the outer nodes.

    Parameters
    ----------
    nodes : array-like of shape (m,)
        Strictly increasing tasks in [low, high].
    low, high : float, default=0.0 and 1.0
        Ends of the interval.

    Returns
    -------
    TaskMeasure
        The nodes with weights that sum to 1.

    References
    ----------
    LT-E-27

    Examples
    --------
    >>> from ovkgp.losses import trapezoid
    >>> [round(w, 6) for w in trapezoid([0.1, 0.5, 0.7]).weights.tolist()]
    [0.3, 0.3, 0.4]
    """
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    inside = nodes.dim() == 1 and len(nodes) > 0 and bool(((nodes >= low) & (nodes <= high)).all())
    if not inside or not bool((nodes.diff() > 0).all()):
        raise InputError(f"nodes must be a strictly increasing vector in [{low}, {high}].")
    # node j represents the points nearer to it than to its neighbors
    edges = torch.cat([nodes.new_tensor([low]), (nodes[1:] + nodes[:-1]) / 2, nodes.new_tensor([high])])
    return TaskMeasure(nodes, edges.diff() / (high - low))


def star_discrepancy(measure: TaskMeasure) -> float:
    """Compute the star discrepancy D* = sup_t |Σ_{θ_j ≤ t} η_j − t| from the uniform distribution on [0, 1].

    Parameters
    ----------
    measure : TaskMeasure
        Measure with shared nodes.

    Returns
    -------
    float
        D*; for equal weights 1/(2m) + max_i |θ_(i) − (2i−1)/(2m)|.

    Notes
    -----
    The error of the rule is at most D* times the variation of the function (Koksma–Hlawka). Complexity: O(m log m).

    References
    ----------
    LT-115

    Examples
    --------
    >>> from ovkgp.losses import sobol, star_discrepancy
    >>> round(star_discrepancy(sobol(20, scramble=False)), 12)
    0.075
    """
    if not measure.is_shared:
        raise InputError("measure must have nodes shared by all rows, got nodes per row.")
    nodes, order = measure.nodes.sort()
    after = measure.weights[order].cumsum(0)
    before = after - measure.weights[order]
    jumps = torch.cat([(nodes - before).abs(), (after - nodes).abs()])
    return jumps.max().item()


def _map_to_distribution(uniforms: np.ndarray, distribution) -> Tensor:
    """Map uniform numbers through the quantile function."""
    distribution = uniform() if distribution is None else distribution
    return torch.from_numpy(np.asarray(distribution.ppf(uniforms), dtype=np.float64))


def _draw_seed(random_state) -> int:
    """Draw a seed; unlike `as_seed`, an int seeds the draw."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return int(check_random_state(random_state).randint(2**31))


def _check_count(number: int, name: str = "num_nodes") -> int:
    """Return a count as an int; unlike `check_integer`, accept 8.0 and reject True."""
    if isinstance(number, bool) or int(number) != number or number < 1:
        raise OptionError(f"{name} must be an integer and at least 1, got {number!r}.")
    return int(number)
