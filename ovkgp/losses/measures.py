"""Weights from a kernel: the rule with the least worst-case error on the unit ball of its RKHS (LT-27).

    w = K⁻¹ z,   z_j = ∫ k(θ_j, θ) dμ(θ),      error² = ∬ k dμ dμ − zᵀ K⁻¹ z

The same numbers are Bayesian quadrature: the posterior mean and variance of ∫ f dμ when f ~ GP(0, k) is known at the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import qmc, uniform
from sklearn.utils import check_random_state
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

SUM_ERROR = 1e-6
"""How far from 1 weights may sum by rounding of the caller's; they are then divided by their sum."""


@dataclass(frozen=True)
class TaskMeasure:
    """A probability measure on nodes.

    Args:
        nodes: θ, (m,) shared by all rows, or (n, m), one set a row. Anything that torch can read; kept as float64.
        weights: η ≥ 0 of the same shape, with sum 1 over the last axis; None weighs all nodes alike.

    Shared nodes keep every matrix a Kronecker product; nodes of their own for each row are for samples of the tasks.

    Example:
        >>> from ovkgp.losses import TaskMeasure
        >>> len(TaskMeasure([0.1, 0.5, 0.9])), TaskMeasure([0.25, 0.75]).weights.tolist()
        (3, [0.5, 0.5])
    """

    nodes: Tensor
    weights: Tensor | None = None

    def __post_init__(self):
        nodes = torch.as_tensor(self.nodes, dtype=torch.float64)
        if nodes.dim() not in (1, 2) or nodes.numel() == 0 or not bool(torch.isfinite(nodes).all()):
            raise InputError(f"nodes must be finite, of shape (m,) or (n, m), and not empty; got {tuple(nodes.shape)}.")
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "weights", self._probabilities())

    def _probabilities(self) -> Tensor:
        if self.weights is None:
            return torch.full_like(self.nodes, 1 / len(self))
        weights = torch.as_tensor(self.weights, dtype=torch.float64)
        if weights.shape != self.nodes.shape:
            raise InputError(
                f"nodes are {tuple(self.nodes.shape)}, their weights {tuple(weights.shape)}: give one each."
            )
        total = weights.sum(-1, keepdim=True)
        if not bool((weights >= 0).all()):
            raise InputError("weights must be 0 or more: with a negative one a loss would no longer be convex.")
        if not bool(((total - 1).abs() <= SUM_ERROR).all()):
            raise InputError(f"weights must sum to 1, got {total.flatten()[0].item():.6g}: divide them by their sum.")
        return weights / total

    def __len__(self) -> int:
        """m."""
        return self.nodes.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.nodes.dim() == 1

    def integral(self, values: Tensor) -> Tensor:
        """Σ_j η_j f_j over the last axis of values (…, m)."""
        return (self.weights * values).sum(-1)


@dataclass(frozen=True)
class Coordinates:
    """In place of a measure: m coordinates in an orthonormal basis, each with weight 1, so that ⟨a, b⟩ = Σ_j a_j b_j (LT-89).

    Only losses that see a curve through its norm, p = 2, mean the same on coordinates as on curves.

    Example:
        >>> from ovkgp.losses.measures import Coordinates
        >>> Coordinates(3).weights.tolist()
        [1.0, 1.0, 1.0]
    """

    num_coordinates: int
    is_shared = True

    def __len__(self) -> int:
        return self.num_coordinates

    @property
    def nodes(self) -> Tensor:
        """0, 1, …: the coordinates' numbers."""
        return torch.arange(self.num_coordinates, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        return torch.ones(self.num_coordinates, dtype=torch.float64)


class Truncated:
    """A law restricted to [low, high] (LT-74): ppf and pdf as in SciPy.

    Example:
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
            raise OptionError(f"the law has no mass on [{low}, {high}].")

    def pdf(self, x) -> np.ndarray:
        return np.where((x >= self.low) & (x <= self.high), self.distribution.pdf(x) / self._mass, 0.0)

    def cdf(self, x) -> np.ndarray:
        return np.clip((self.distribution.cdf(x) - self._below) / self._mass, 0.0, 1.0)

    def ppf(self, u) -> np.ndarray:
        return np.clip(self.distribution.ppf(self._below + self._mass * np.asarray(u)), self.low, self.high)

    def support(self) -> tuple[float, float]:
        return self.low, self.high


def monte_carlo(num_nodes: int, distribution=None, *, num_rows: int | None = None, random_state=None) -> TaskMeasure:
    """Independent draws of the law, equally weighted; one set for all rows, or one each for `num_rows` rows (LT-70).

    A single node a row is enough for a consistent estimate as the rows grow in number.

    Example:
        >>> from ovkgp.losses import monte_carlo
        >>> monte_carlo(1, num_rows=50, random_state=0).nodes.shape
        torch.Size([50, 1])
    """
    shape = (_count(num_nodes),) if num_rows is None else (_count(num_rows, "num_rows"), _count(num_nodes))
    uniforms = np.random.default_rng(_seed(random_state)).uniform(size=shape)
    return TaskMeasure(_spread(uniforms, distribution))


def sobol(num_nodes: int, distribution=None, *, scramble: bool = True, random_state=None) -> TaskMeasure:
    """A Sobol sequence mapped through the quantile function of the law, equally weighted (LT-71).

    Without scrambling the first point, 0, is left out: it is an end of the law, which may be infinite.

    Example:
        >>> from ovkgp.losses import sobol
        >>> sorted(sobol(3, scramble=False).nodes.tolist())
        [0.25, 0.5, 0.75]
    """
    engine = qmc.Sobol(d=1, scramble=scramble, rng=np.random.default_rng(_seed(random_state)))
    first = 0 if scramble else 1
    size = 2 ** int(
        np.ceil(np.log2(_count(num_nodes) + first))
    )  # SciPy warns about other sizes; the first points are the same
    return TaskMeasure(_spread(engine.random(size)[first : first + num_nodes, 0], distribution))


def gauss_legendre(
    num_nodes: int, low: float | None = None, high: float | None = None, distribution=None
) -> TaskMeasure:
    """The Gauss–Legendre rule on [low, high], by default the law's support, weighted by the law's density (LT-72).

    Without a law the measure is uniform on [low, high], by default [0, 1], and polynomials of degree 2m − 1 are integrated exactly.

    Example:
        >>> from scipy.stats import beta
        >>> from ovkgp.losses import gauss_legendre
        >>> measure = gauss_legendre(5, distribution=beta(2, 1))
        >>> round(measure.integral(measure.nodes).item(), 12)  # the mean of the distribution with density 2θ
        0.666666666667
    """
    ends = (0.0, 1.0) if distribution is None else distribution.support()
    low, high = (end if given is None else float(given) for given, end in zip((low, high), ends, strict=True))
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise OptionError(f"the rule needs a bounded interval, got [{low}, {high}]: truncate the law.")
    points, weights = np.polynomial.legendre.leggauss(_count(num_nodes))
    nodes = low + (high - low) * (points + 1) / 2
    return grid(nodes, weights / 2 if distribution is None else weights * distribution.pdf(nodes))


def grid(nodes, weights=None, *, density: Callable | None = None, proposal: Callable | None = None) -> TaskMeasure:
    """Given nodes, (m,) or (n, m), with weights in any unit, or weights ∝ density(θ) / proposal(θ) (LT-73).

    Args:
        nodes: θ.
        weights: of the nodes; equal where None.
        density: of the measure that is wanted; nodes are re-weighted to it.
        proposal: the density with which the nodes were drawn; uniform where None.

    Example:
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
        raise InputError("the weights of the nodes must be finite with a positive sum.")
    return TaskMeasure(nodes, weights / total)


def trapezoid(nodes, low: float = 0.0, high: float = 1.0) -> TaskMeasure:
    """Weights that integrate the linear spline through the nodes, constant beyond the outer ones: they sum to 1 (LT-E-27).

    Example:
        >>> from ovkgp.losses import trapezoid
        >>> [round(w, 6) for w in trapezoid([0.1, 0.5, 0.7]).weights.tolist()]
        [0.3, 0.3, 0.4]
    """
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    inside = nodes.dim() == 1 and len(nodes) > 0 and bool(((nodes >= low) & (nodes <= high)).all())
    if not inside or not bool((nodes.diff() > 0).all()):
        raise InputError(f"the nodes of a spline must grow strictly and lie in [{low}, {high}].")
    # node j stands for what is nearer to it than to its neighbours
    edges = torch.cat([nodes.new_tensor([low]), (nodes[1:] + nodes[:-1]) / 2, nodes.new_tensor([high])])
    return TaskMeasure(nodes, edges.diff() / (high - low))


def star_discrepancy(measure: TaskMeasure) -> float:
    """D* = sup_t |Σ_{θ_j ≤ t} η_j − t|, the distance from the uniform law on [0, 1]; 1/(2m) + max_i |θ_(i) − (2i−1)/(2m)| for equal weights.

    It bounds the error of the rule by D* times the variation of the function (Koksma and Hlawka, LT-115). Cost O(m log m).

    Example:
        >>> from ovkgp.losses import sobol, star_discrepancy
        >>> round(star_discrepancy(sobol(20, scramble=False)), 12)
        0.075
    """
    if not measure.is_shared:
        raise InputError("the discrepancy is that of one set of nodes, and each row has its own.")
    nodes, order = measure.nodes.sort()
    after = measure.weights[order].cumsum(0)
    before = after - measure.weights[order]
    jumps = torch.cat([(nodes - before).abs(), (after - nodes).abs()])
    return jumps.max().item()


def _spread(uniforms: np.ndarray, distribution) -> Tensor:
    return torch.from_numpy(
        np.asarray((uniform() if distribution is None else distribution).ppf(uniforms), dtype=np.float64)
    )


def _seed(random_state) -> int:
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return int(check_random_state(random_state).randint(2**31))


def _count(number: int, name: str = "num_nodes") -> int:
    if isinstance(number, bool) or int(number) != number or number < 1:
        raise OptionError(f"{name} must be a whole number, 1 or more; got {number!r}.")
    return int(number)


CUTOFF = 1e-12
"""Eigenvalues of K below this part of the largest are dropped: neighbouring nodes make K nearly singular."""


class KernelRule(NamedTuple):
    """Raw weights w (m,), which may be negative and need not sum to 1, and the worst-case error."""

    weights: Tensor
    error: float


def kernel_rule(gram: Tensor, embedding: Tensor, total: float) -> KernelRule:
    """The raw rule.

    Args:
        gram: K (m, m), of the nodes.
        embedding: z (m,).
        total: ∬ k dμ dμ.

    Cost: O(m³).

    Example:
        >>> import torch
        >>> from ovkgp.losses import gaussian_embedding, kernel_rule
        >>> nodes = torch.linspace(0.05, 0.95, 8).double()
        >>> gram = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.3**2))
        >>> rule = kernel_rule(gram, *gaussian_embedding(nodes, 0.3))
        >>> abs((rule.weights * nodes**2).sum().item() - 1 / 3) < 1e-4
        True
    """
    if gram.dim() != 2 or gram.shape != (len(embedding), len(embedding)):
        raise InputError(f"the Gram matrix is {tuple(gram.shape)} for {len(embedding)} nodes.")
    values, vectors = torch.linalg.eigh(gram)
    keep = values > CUTOFF * values[-1]
    scores = vectors[:, keep].T @ embedding / values[keep].sqrt()
    weights = vectors[:, keep] @ (scores / values[keep].sqrt())
    return KernelRule(weights, math.sqrt(max(0.0, total - scores.square().sum().item())))


def kernel_quadrature(nodes, gram: Tensor, embedding: Tensor, *, negative: str = "refuse") -> TaskMeasure:
    """A task measure with the weights of `kernel_rule`, divided by their sum.

    Args:
        nodes: θ (m,).
        gram, embedding: as for `kernel_rule`.
        negative: what to do about weights below zero, with which a loss would not be convex: "refuse", or "clip" to 0.

    Example:
        >>> import torch
        >>> from ovkgp.losses import gaussian_embedding, kernel_quadrature
        >>> nodes = torch.tensor([0.2, 0.5, 0.8]).double()
        >>> gram = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.3**2))
        >>> kernel_quadrature(nodes, gram, gaussian_embedding(nodes, 0.3)[0]).weights.sum().item()
        1.0
    """
    if negative not in ("refuse", "clip"):
        raise OptionError(f'negative must be "refuse" or "clip", got {negative!r}.')
    weights = kernel_rule(gram, embedding, 0.0).weights
    if bool((weights < 0).any()) and negative == "refuse":
        raise InputError(
            f"{int((weights < 0).sum())} weight(s) of the kernel rule are negative, with which a loss is not convex: take fewer "
            f'nodes, a shorter lengthscale, or negative="clip".'
        )
    weights = weights.clamp(min=0)
    if not bool(weights.sum() > 0):
        raise InputError(
            "the weights of the kernel rule sum to nothing: z must be the embedding of a probability measure."
        )
    return TaskMeasure(nodes, weights / weights.sum())


def gaussian_embedding(nodes: Tensor, lengthscale: float) -> tuple[Tensor, float]:
    """z (m,) and ∬ k for exp(−δ²/(2ℓ²)) and the uniform measure on [0, 1].

    z_j = ½ √(π/γ) [erf(√γ θ_j) + erf(√γ (1 − θ_j))] with γ = 1/(2ℓ²), and ∬ k = √(π/γ) erf(√γ) + (e^{−γ} − 1)/γ.

    Example:
        >>> import torch
        >>> from ovkgp.losses import gaussian_embedding
        >>> z, total = gaussian_embedding(torch.tensor([0.5]).double(), 100.0)  # almost constant
        >>> round(z.item(), 4), round(total, 4)
        (1.0, 1.0)
    """
    if not (math.isfinite(lengthscale) and lengthscale > 0):
        raise OptionError(f"lengthscale must be a finite number above 0, got {lengthscale}.")
    nodes, gamma = torch.as_tensor(nodes, dtype=torch.float64), 1 / (2 * lengthscale**2)
    root = math.sqrt(gamma)
    ends = torch.erf(root * nodes) + torch.erf(root * (1 - nodes))
    total = math.sqrt(math.pi / gamma) * math.erf(root) + math.expm1(-gamma) / gamma
    return math.sqrt(math.pi / gamma) / 2 * ends, total
