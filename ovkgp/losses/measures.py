"""Discrete measures on tasks θ in R^b, their products, and distributions of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

MAX_PRODUCT_NODES = 10_000_000  # largest number of nodes of a product of measures
MAX_SUM_ERROR = 1e-6  # largest difference from 1 of the sum of the given weights, which are then divided by their sum


@dataclass(frozen=True)
class TaskMeasure:
    """Discrete probability measure on tasks.

    With nodes shared by all rows, matrices are Kronecker products. Nodes per row are meant for samples of the tasks.

    Parameters
    ----------
    nodes : array-like of shape (m,) or (n, m), or (m, b) or (n, m, b) if b > 1
        Tasks θ, shared by all rows or per row. Stored in float64.
    weights : array-like of shape (m,) or (n, m) or None, default=None
        Weights η ≥ 0 with sum 1 over the last axis. If None, all nodes have the same weight.
    num_dims : int, default=1
        Dimension b of a task. If 1, nodes have no axis for it.

    References
    ----------
    LT-70, LT-73

    Examples
    --------
    >>> from ovkgp.losses import TaskMeasure
    >>> len(TaskMeasure([0.1, 0.5, 0.9])), TaskMeasure([0.25, 0.75]).weights.tolist()
    (3, [0.5, 0.5])
    >>> len(TaskMeasure([[0.1, 0.2], [0.5, 0.4], [0.9, 0.6]], num_dims=2))  # three tasks in R²
    3
    """

    nodes: Tensor
    weights: Tensor | None = None
    num_dims: int = 1

    def __post_init__(self):
        object.__setattr__(self, "num_dims", check_count(self.num_dims, "num_dims"))
        nodes = torch.as_tensor(self.nodes, dtype=torch.float64)
        b = self.num_dims
        dims = nodes.dim() if b == 1 else nodes.dim() - 1
        if dims not in (1, 2) or nodes.numel() == 0 or not bool(torch.isfinite(nodes).all()):
            raise InputError(
                f"nodes must be finite, not empty and of shape {_describe_shapes(b)} for tasks in R^{b}, got {tuple(nodes.shape)}. Set num_dims to the dimension of a task."
            )
        if b > 1 and nodes.shape[-1] != b:
            raise InputError(f"nodes has shape {tuple(nodes.shape)}, expected {_describe_shapes(b)}.")
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "weights", self._normalize_weights())

    def _normalize_weights(self) -> Tensor:
        shape = self.points.shape[:-1]
        if self.weights is None:
            return self.nodes.new_full(shape, 1 / shape[-1])
        weights = torch.as_tensor(self.weights, dtype=torch.float64)
        if weights.shape != shape:
            advice = " Set num_dims for tasks in R^b." if weights.shape == self.nodes.shape[:-1] else ""
            raise InputError(f"weights has shape {tuple(weights.shape)}, expected {tuple(shape)}.{advice}")
        total = weights.sum(-1, keepdim=True)
        if not bool((weights >= 0).all()):
            raise InputError("weights must be at least 0; a loss with negative weights is not convex.")
        if not bool(((total - 1).abs() <= MAX_SUM_ERROR).all()):
            raise InputError(f"weights must sum to 1, got {total.flatten()[0].item():.6g}. Divide them by their sum.")
        return weights / total

    def __len__(self) -> int:
        """Return the number m of nodes."""
        return self.points.shape[-2]

    @property
    def is_shared(self) -> bool:
        """Whether all rows share the nodes."""
        return self.points.dim() == 2

    @property
    def points(self) -> Tensor:
        """Nodes with an axis for their coordinates also if b = 1, (m, b) or (n, m, b), as kernels expect them."""
        return self.nodes.unsqueeze(-1) if self.num_dims == 1 else self.nodes

    def integral(self, values: Tensor) -> Tensor:
        """Return Σ_j η_j f_j over the last axis of values f (..., m).

        Parameters
        ----------
        values : Tensor of shape (..., m)
            Values at the nodes.

        Returns
        -------
        Tensor of shape (...)
            Integrals.
        """
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
    num_dims = 1

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
        """Compute the density.

        Parameters
        ----------
        x : array-like
            Points.

        Returns
        -------
        ndarray of the same shape
            Densities, 0 outside of the interval.
        """
        return np.where((x >= self.low) & (x <= self.high), self.distribution.pdf(x) / self._mass, 0.0)

    def cdf(self, x) -> np.ndarray:
        """Compute the distribution function.

        Parameters
        ----------
        x : array-like
            Points.

        Returns
        -------
        ndarray of the same shape
            Probabilities.
        """
        return np.clip((self.distribution.cdf(x) - self._below) / self._mass, 0.0, 1.0)

    def ppf(self, u) -> np.ndarray:
        """Compute quantiles.

        Parameters
        ----------
        u : array-like
            Probabilities.

        Returns
        -------
        ndarray of the same shape
            Points of the interval.
        """
        return np.clip(self.distribution.ppf(self._below + self._mass * np.asarray(u)), self.low, self.high)

    def support(self) -> tuple[float, float]:
        """Return the ends of the interval.

        Returns
        -------
        low, high : float
            Ends.
        """
        return self.low, self.high


def product_measure(*measures: TaskMeasure) -> TaskMeasure:
    """Return the product of measures, with the tasks (θ_1, θ_2, …) and the products of their weights.

    Parameters
    ----------
    *measures : TaskMeasure
        Measures with shared nodes, in any dimensions.

    Returns
    -------
    TaskMeasure
        Nodes of shape (m_1 m_2 …, b_1 + b_2 + …), the last measure varying fastest.

    Notes
    -----
    Complexity: O(m b) for m nodes in all, which grow exponentially with the number of measures; `sobol` does not.

    References
    ----------
    LT-72

    Examples
    --------
    >>> from ovkgp.losses import gauss_legendre, product_measure, trapezoid
    >>> measure = product_measure(gauss_legendre(3), trapezoid([0.0, 0.5, 1.0]))
    >>> measure.nodes.shape, round(measure.integral(measure.nodes.prod(-1)).item(), 12)  # ∫∫ s t ds dt
    (torch.Size([9, 2]), 0.25)
    """
    if not measures or not all(isinstance(measure, TaskMeasure) and measure.is_shared for measure in measures):
        raise InputError("measures must be task measures with nodes shared by all rows.")
    count = math.prod(map(len, measures))
    if count > MAX_PRODUCT_NODES:
        raise OptionError(
            f"The product must have at most {MAX_PRODUCT_NODES} nodes, got {count}. Use fewer nodes per coordinate, or sobol."
        )
    index = torch.cartesian_prod(*(torch.arange(len(measure)) for measure in measures)).reshape(count, -1)
    nodes = torch.cat([measure.points[column] for measure, column in zip(measures, index.T, strict=True)], -1)
    weights = torch.stack([measure.weights[column] for measure, column in zip(measures, index.T, strict=True)]).prod(0)
    return TaskMeasure(nodes.squeeze(-1), weights, nodes.shape[-1])


def grid(
    nodes, weights=None, *, density: Callable | None = None, proposal: Callable | None = None, num_dims: int = 1
) -> TaskMeasure:
    """Return a measure on given nodes, with weights proportional to weights · density(θ) / proposal(θ).

    Parameters
    ----------
    nodes : array-like of shape (m,) or (n, m), or (m, b) or (n, m, b) if b > 1
        Tasks θ.
    weights : array-like of shape (m,) or (n, m) or None, default=None
        Weights, up to a constant factor. If None, all are equal.
    density : callable or None, default=None
        Density of the target measure at the nodes, up to a constant factor. If None, 1.
    proposal : callable or None, default=None
        Density from which the nodes were drawn, up to a constant factor. If None, 1.
    num_dims : int, default=1
        Dimension b of a task.

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
    equal = TaskMeasure(nodes, num_dims=num_dims)
    nodes = equal.nodes
    weights = torch.ones_like(equal.weights) if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    for function, power in ((density, 1), (proposal, -1)):
        if function is not None:
            values = torch.as_tensor(np.asarray(function(nodes.numpy())), dtype=torch.float64)
            if values.shape != equal.weights.shape:
                raise InputError(
                    f"density and proposal must return shape {tuple(equal.weights.shape)}, one number per node, got {tuple(values.shape)}."
                )
            weights = weights * values**power
    total = weights.sum(-1, keepdim=True)
    if not bool((torch.isfinite(weights) & (total > 0)).all()):
        raise InputError("weights must be finite and have a positive sum.")
    return TaskMeasure(nodes, weights / total, num_dims)


def star_discrepancy(measure: TaskMeasure) -> float:
    """Compute the star discrepancy D* = sup_t |Σ_{θ_j ≤ t} η_j − t| from the uniform distribution on [0, 1].

    Parameters
    ----------
    measure : TaskMeasure
        Measure with shared nodes in one dimension.

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
    if measure.num_dims != 1:
        raise InputError(
            f"The star discrepancy requires tasks in one dimension, got num_dims={measure.num_dims}. Use scipy.stats.qmc.discrepancy."
        )
    nodes, order = measure.nodes.sort()
    after = measure.weights[order].cumsum(0)
    before = after - measure.weights[order]
    jumps = torch.cat([(nodes - before).abs(), (after - nodes).abs()])
    return jumps.max().item()


def _describe_shapes(num_dims: int) -> str:
    """Return the shapes of nodes in R^b for messages."""
    return "(m,) or (n, m)" if num_dims == 1 else f"(m, {num_dims}) or (n, m, {num_dims})"


def check_count(number: int, name: str = "num_nodes") -> int:
    """Return a count as an int; unlike `check_integer`, accept 8.0 and reject True."""
    if isinstance(number, bool) or int(number) != number or number < 1:
        raise OptionError(f"{name} must be an integer and at least 1, got {number!r}.")
    return int(number)
