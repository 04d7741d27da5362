"""Eigenpairs of integral operators of kernels, in closed form, from a quadrature rule and of random features.

The operator is T f(t) = ∫ k(t, s) f(s) dμ(s). With T ψ_j = λ_j ψ_j, orthonormal in L²(μ), k = Σ λ_j ψ_j ψ_j (Mercer), so √λ_j ψ_j(t)
are coordinates of the kernel, and ‖f‖²_H = Σ ⟨f, ψ_j⟩²/λ_j: f is in the RKHS if f = T^½ g with g in L² (LT-E-13), not only if f = T g
(LT-21, 22, 24, 25; BO-13..15).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from linear_operator import to_dense
from scipy.optimize import brentq
from torch import Tensor

from ovkgp.checks import check_integer, check_one_of, check_positive
from ovkgp.exceptions import FactorizationError, InputError, KernelTypeError, SmoothnessError
from ovkgp.functional.dictionary import Dictionary
from ovkgp.functional.factors import Factor
from ovkgp.functional.operators import EIGENFUNCTION_CUTOFF
from ovkgp.functional.quadrature import as_domain, gauss_rule, product_rule
from ovkgp.kernels import LaplaceKernel, lag_jet
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.protocol import check_scalar_kernel
from ovkgp.losses import TaskMeasure

PANEL_NODES = 10  # number of Gauss–Legendre nodes per panel of the quadrature of sampled eigenfunctions
METHODS = ("auto", "exact", "sampled")


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues λ_1 ≥ λ_2 ≥ … > 0 (m,) and eigenfunctions.

    `functions(tasks, order=0)` maps tasks (k,), or (k, b) if b > 1, to ψ_j(θ_k) or its derivatives, (k, m).
    """

    values: Tensor
    functions: Callable[..., Tensor]

    def __len__(self) -> int:
        return len(self.values)

    def first(self, num_pairs: int) -> Eigenpairs:
        """Return the pairs of the largest eigenvalues: the truncation T_m of T (LT-89)."""
        count = check_integer("num_pairs", num_pairs)
        return Eigenpairs(self.values[:count], FirstFunctions(self.functions, count))

    def coefficients(self, curves: Tensor, measure: TaskMeasure) -> Tensor:
        """Return R_ij = ⟨y_i, ψ_j⟩ (n, m) of curves (n, k) at the k nodes of a measure. O(n k m)."""
        if curves.shape[-1] != len(measure):
            raise InputError(
                f"curves must have {len(measure)} values, one per node of the measure, got {curves.shape[-1]}."
            )
        return (curves * measure.weights) @ self.functions(measure.nodes)

    def squared_norm(self, coefficients: Tensor) -> Tensor:
        """Return ‖f‖²_H = Σ_j c_j²/λ_j of f = Σ c_j ψ_j, for c (…, m) (LT-25)."""
        return (coefficients.square() / self.values).sum(-1)


class EigenFactor(Factor):
    """Coordinates √λ_j ψ_j(θ) of the kernel Σ_j λ_j ψ_j ψ_j, as a `Factor`."""

    def __init__(self, pairs: Eigenpairs):
        self.pairs = pairs

    def __call__(self, points: Tensor) -> Tensor:
        return self.pairs.functions(_as_tasks(points)) * self.pairs.values.sqrt()

    def slopes(self, points: Tensor) -> Tensor:
        """Return ∂_θ of the rows, (k, m)."""
        return self.pairs.functions(_as_tasks(points), 1) * self.pairs.values.sqrt()


@dataclass(frozen=True)
class FirstFunctions:
    """The first of several eigenfunctions."""

    functions: Callable[..., Tensor]
    count: int

    def __call__(self, tasks: Tensor, order: int = 0) -> Tensor:
        return self.functions(tasks, order)[:, : self.count]


@dataclass(frozen=True)
class SampledFunctions:
    """ψ(θ) = k(θ, nodes) P for nodes (m, b) and P (m, r); derivatives up to the second in one dimension."""

    kernel: Kernel
    nodes: Tensor
    projection: Tensor

    def __call__(self, tasks: Tensor, order: int = 0) -> Tensor:
        points = tasks.unsqueeze(-1) if tasks.dim() == 1 else tasks
        if order == 0:
            return to_dense(evaluate_kernel(self.kernel, points, self.nodes)) @ self.projection
        if self.nodes.shape[1] != 1 or order > 2:
            raise SmoothnessError(
                f"Derivatives of sampled eigenfunctions are available up to order 2 in one dimension, got order {order} in {self.nodes.shape[1]} dimension(s)."
            )
        with torch.no_grad():
            jet = lag_jet(self.kernel, (points - self.nodes.T).unsqueeze(-1))
        return (jet.gradient[..., 0] if order == 1 else jet.hessian[..., 0, 0]).double() @ self.projection


@dataclass(frozen=True)
class LaplaceFunctions:
    """ψ_j(θ) = (c_j cos c_jθ + γ sin c_jθ)/norm_j for roots c (m,), a rate γ and norms (m,)."""

    roots: Tensor
    rate: float
    norms: Tensor

    def __call__(self, tasks: Tensor, order: int = 0) -> Tensor:
        angles = tasks.unsqueeze(-1) * self.roots + order * math.pi / 2  # each derivative advances the phase by π/2
        return self.roots**order * (self.roots * angles.cos() + self.rate * angles.sin()) / self.norms


@dataclass(frozen=True)
class FeatureFunctions:
    """ψ(θ) = F(θ)ᵀP of F = (cos ω_iᵀθ, sin ω_iᵀθ) for frequencies (D,), or (D, b) in R^b, and P (2D, r)."""

    frequencies: Tensor
    projection: Tensor

    def __call__(self, tasks: Tensor, order: int = 0) -> Tensor:
        if self.frequencies.dim() == 2:
            if order:
                raise SmoothnessError("Derivatives of eigenfunctions of features are available in one dimension only.")
            angles = tasks @ self.frequencies.mT
            return torch.cat([angles.cos(), angles.sin()], -1) @ self.projection
        angles = tasks.unsqueeze(-1) * self.frequencies + order * math.pi / 2
        rows = torch.cat([angles.cos(), angles.sin()], -1) * self.frequencies.repeat(2) ** order
        return rows @ self.projection


@dataclass(frozen=True)
class HermiteFunctions:
    """ψ_l(θ) = e^{−(c − a)θ²} H_l(√(2c) θ)/norm_l for l < count, under N(0, σ²) with a = 1/(4σ²)."""

    count: int
    a: float
    c: float

    def __call__(self, tasks: Tensor, order: int = 0) -> Tensor:
        e, rows = self.c - self.a, self._rows(tasks)
        degrees = torch.arange(self.count, dtype=torch.float64)
        total = torch.zeros_like(rows)
        for r in range(order + 1):  # Leibniz: r derivatives of the polynomial, order − r of the Gaussian factor
            weight = (2 * self.c) ** (r / 2) * math.comb(order, r) * 2 ** (r / 2)
            falling = torch.exp((torch.lgamma(degrees + 1) - torch.lgamma((degrees - r).clamp_min(0) + 1)) / 2)
            shifted = torch.nn.functional.pad(rows, (r, 0))[:, : self.count]
            gaussian = (-math.sqrt(e)) ** (order - r) * _hermite(order - r, math.sqrt(e) * tasks)
            total = total + weight * gaussian.unsqueeze(-1) * falling * shifted
        return total

    def _rows(self, tasks: Tensor) -> Tensor:
        """Return ψ_l by the recurrence of Hermite polynomials, normalized at each step."""
        x = math.sqrt(2 * self.c) * tasks
        rows = [(self.c / self.a) ** 0.25 * torch.exp((self.a - self.c) * tasks.square())]
        for l in range(1, self.count):
            previous = rows[-2] if l > 1 else torch.zeros_like(x)
            rows.append(math.sqrt(2 / l) * x * rows[-1] - math.sqrt((l - 1) / l) * previous)
        return torch.stack(rows, -1)


def _hermite(degree: int, x: Tensor) -> Tensor:
    """Return the physicists' Hermite polynomial of a degree."""
    low, high = torch.ones_like(x), 2 * x
    if degree == 0:
        return low
    for l in range(1, degree):
        low, high = high, 2 * x * high - 2 * l * low
    return high


class Eigenfunctions(Dictionary):
    """Eigenfunctions of the integral operator T f(t) = ∫ k(t, s) f(s) ds on a domain, orthonormal in L².

    Parameters
    ----------
    kernel : Kernel or Dictionary
        Scalar kernel k. A dictionary φ stands for the kernel φ(t)ᵀφ(s), such as that of `RandomFourier` features, whose eigenpairs
        follow from its Gram matrix.
    num_functions : int or None, default=20
        Number d of eigenpairs, at most. If None, all that a quadrature rule or a dictionary gives.
    domain : array-like of shape (2,) or (b, 2) or None, default=None
        Domain. If None, [0, 1], or that of the dictionary.
    method : {"auto", "exact", "sampled"}, default="auto"
        "exact": closed form, for `LaplaceKernel` and Matérn-1/2 in one dimension. "sampled": eigenvectors of the Gram matrix on a
        quadrature rule, extended by the kernel (Nyström). "auto": "exact" where it is available. Ignored for a dictionary.
    num_nodes : int or None, default=None
        Number of quadrature nodes per dimension of "sampled". If None, 200 in one dimension and 20 in several.

    Attributes
    ----------
    eigenvalues : ndarray of shape (d,)
        Eigenvalues λ_1 ≥ λ_2 ≥ … > 0; k(t, s) = Σ λ_l φ_l(t) φ_l(s).
    trace : float
        Sum of all eigenvalues, ∫ k(t, t) dt; `trace − eigenvalues.sum()` is the integrated variance that truncation removes.

    Notes
    -----
    ‖f‖² in the RKHS of k is Σ ⟨f, φ_l⟩²/λ_l (BO-17). Complexity: "exact" O(d), "sampled" O(m³) for m nodes; O(k d) and O(k m d) for k
    points.

    References
    ----------
    BO-14, BO-15, BO-41, LT-21, LT-22, LT-24

    Examples
    --------
    >>> import torch
    >>> from ovkgp.functional import Eigenfunctions
    >>> from ovkgp.kernels import LaplaceKernel
    >>> kernel = LaplaceKernel().double()
    >>> kernel.lengthscale = torch.tensor(1.0).double()
    >>> Eigenfunctions(kernel, 4).eigenvalues.round(6).tolist()
    [0.738811, 0.138004, 0.045088, 0.021329]
    """

    def __init__(
        self, kernel, num_functions: int | None = 20, domain=None, method: str = "auto", num_nodes: int | None = None
    ):
        check_one_of("method", method, METHODS)
        given = kernel.domain if isinstance(kernel, Dictionary) else (0.0, 1.0)
        self.domain = as_domain(given if domain is None else domain)
        self.low, self.width = 0.0, 1.0  # the pairs are functions of (t − low)/width
        count = None if num_functions is None else check_integer("num_functions", num_functions)
        if isinstance(kernel, Dictionary):
            pairs, self.trace = self._pairs_of_dictionary(kernel)
        elif method == "exact" or (method == "auto" and len(self.domain) == 1 and _laplace_parameters(kernel)):
            pairs, self.trace = self._exact_pairs(kernel, count)
        else:
            pairs, self.trace = self._sampled_pairs(kernel, num_nodes)
        self.pairs = pairs if count is None else pairs.first(count)
        self.eigenvalues = self.pairs.values.numpy()

    def _pairs_of_dictionary(self, dictionary: Dictionary) -> tuple[Eigenpairs, float]:
        if not np.allclose(dictionary.domain, self.domain):
            raise InputError("domain must be that of the dictionary. Omit it.")
        values, vectors = _decreasing_eigenpairs(torch.from_numpy(dictionary.gram()), EIGENFUNCTION_CUTOFF)
        functions = DictionaryFunctions(dictionary, (vectors / values.sqrt()).numpy())
        return Eigenpairs(values, functions), float(values.sum())

    def _exact_pairs(self, kernel: Kernel, count: int | None) -> tuple[Eigenpairs, float]:
        found = _laplace_parameters(kernel)
        if found is None or len(self.domain) > 1:
            raise KernelTypeError(
                f'method="exact" is available for LaplaceKernel and Matérn-1/2 kernels in one dimension, got {type(kernel).__name__}. Use method="sampled".'
            )
        lengthscale, scale = found
        self.low, self.width = self.domain[0, 0], self.volume
        pairs = laplace_eigenpairs(20 if count is None else count, lengthscale / self.width)
        functions = pairs.functions
        functions = LaplaceFunctions(functions.roots, functions.rate, functions.norms * math.sqrt(self.width))
        return Eigenpairs(pairs.values * scale * self.width, functions), scale * self.volume

    def _sampled_pairs(self, kernel: Kernel, num_nodes: int | None) -> tuple[Eigenpairs, float]:
        num_nodes = check_integer("num_nodes", (200 if self.num_dims == 1 else 20) if num_nodes is None else num_nodes)
        panels = max(1, num_nodes // PANEL_NODES)
        rules = [gauss_rule(np.linspace(*ends, panels + 1), -(-num_nodes // panels)) for ends in self.domain]
        nodes, weights = (torch.from_numpy(a) for a in product_rule(rules))
        kernel = deepcopy(kernel).double()
        with torch.no_grad():
            trace = float(evaluate_kernel(kernel, nodes, diag=True).double() @ weights)
        return _sample_eigenpairs(kernel, nodes, weights, EIGENFUNCTION_CUTOFF), trace

    @property
    def num_functions(self) -> int:
        return len(self.eigenvalues)

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        u = torch.from_numpy((points - self.low) / self.width)
        if self.num_dims == 1:
            return (self.pairs.functions(u[:, 0], order[0]) / self.width ** order[0]).numpy()
        if any(order) and not isinstance(self.pairs.functions, DictionaryFunctions):
            raise SmoothnessError("Derivatives of sampled eigenfunctions are available in one dimension only.")
        return (self.pairs.functions(u, order) if any(order) else self.pairs.functions(u)).numpy()

    def as_factor(self, output_matrix=None):
        """Return coordinates √λ_l φ_l(t) of the kernel, or Φ(t) B^½ for a matrix B (d, d) or its diagonal (d,)."""
        return super().as_factor(self.eigenvalues if output_matrix is None else output_matrix)


class GaussianEigenfunctions(Dictionary):
    """Eigenfunctions of the Gaussian kernel exp(−(t − s)²/(2ℓ²)) under a normal distribution, orthonormal in L²(N(mean, std²)).

    Parameters
    ----------
    num_functions : int
        Number d of eigenpairs.
    lengthscale : float, default=1.0
        Lengthscale ℓ of the kernel.
    mean, std : float, default=0.0 and 1.0
        Mean and standard deviation of the distribution of points.

    Attributes
    ----------
    eigenvalues : ndarray of shape (d,)
        Eigenvalues λ_1 > λ_2 > …, which sum to 1 in total.

    Notes
    -----
    Integrals (`gram`, `roughness`, `inner`) are with respect to the normal distribution. The domain is mean ± 12 std.

    References
    ----------
    BO-14

    Examples
    --------
    >>> from ovkgp.functional import GaussianEigenfunctions
    >>> GaussianEigenfunctions(3).eigenvalues.round(6).tolist()
    [0.618034, 0.236068, 0.09017]
    """

    def __init__(self, num_functions: int, lengthscale: float = 1.0, mean: float = 0.0, std: float = 1.0):
        self.mean, self.std = float(mean), check_positive("std", std)
        self.pairs = gaussian_eigenpairs(num_functions, lengthscale, std)
        self.eigenvalues = self.pairs.values.numpy()
        self.domain = as_domain((self.mean - 12 * self.std, self.mean + 12 * self.std))

    @property
    def num_functions(self) -> int:
        return len(self.eigenvalues)

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        return self.pairs.functions(torch.from_numpy(points[:, 0] - self.mean), order[0]).numpy()

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """Return quadrature nodes and weights of the normal distribution."""
        nodes, weights = super().rule()
        return nodes, weights * self._density(nodes[:, 0])

    def _weights(self, points: np.ndarray, rule: str) -> np.ndarray:
        return super()._weights(points, rule) * self._density(np.ravel(points))

    def _density(self, t: np.ndarray) -> np.ndarray:
        return np.exp(-(((t - self.mean) / self.std) ** 2) / 2) / (self.std * math.sqrt(2 * math.pi))

    def as_factor(self, output_matrix=None):
        """Return coordinates √λ_l φ_l(t) of the kernel, or Φ(t) B^½ for a matrix B (d, d) or its diagonal (d,)."""
        return super().as_factor(self.eigenvalues if output_matrix is None else output_matrix)


@dataclass(frozen=True)
class DictionaryFunctions:
    """ψ = φᵀP for a dictionary φ and P (d, r)."""

    dictionary: Dictionary
    projection: np.ndarray

    def __call__(self, tasks: Tensor, order=0) -> Tensor:
        rows = self.dictionary(tasks) if order == 0 else self.dictionary.derivative(tasks, order)
        return torch.from_numpy(rows @ self.projection)


def _laplace_parameters(kernel: Kernel) -> tuple[float, float] | None:
    """Return lengthscale and scale of a kernel scale·exp(−|t − s|/ℓ) of one variable, None for other kernels."""
    scale = 1.0
    while isinstance(kernel, ScaleKernel):
        scale, kernel = scale * kernel.outputscale.item(), kernel.base_kernel
    is_laplace = isinstance(kernel, LaplaceKernel) or (isinstance(kernel, MaternKernel) and kernel.nu == 0.5)
    if not is_laplace or kernel.active_dims is not None or kernel.lengthscale.numel() != 1:
        return None
    return kernel.lengthscale.item(), scale


def sampled_eigenpairs(kernel: Kernel, measure: TaskMeasure, cutoff: float = EIGENFUNCTION_CUTOFF) -> Eigenpairs:
    """Compute the eigenpairs of T for μ = Σ_j η_j δ_{θ_j}, the Nyström approximation of any other μ (LT-22).

    D^½ K D^½ = U λ Uᵀ with D = diag(η); ψ_j is D^{−½} U_j at the nodes and ψ_j(θ) = (1/λ_j) Σ_l η_l k(θ, θ_l) ψ_j(θ_l)
    elsewhere. Nodes without weight are omitted. Complexity: O(m³) once, O(k m²) for k tasks.
    """
    if not measure.is_shared:
        raise InputError("measure must have nodes of shape (m,) or (m, b), shared by all rows.")
    return _sample_eigenpairs(kernel, measure.points, measure.weights, cutoff)


def _sample_eigenpairs(kernel: Kernel, nodes: Tensor, weights: Tensor, cutoff: float) -> Eigenpairs:
    """Compute the eigenpairs for nodes (m, b) and weights (m,)."""
    check_scalar_kernel(kernel, "task kernel")
    kernel = deepcopy(kernel).requires_grad_(False)  # functions belong to the values, which are not differentiable
    keep = weights > 0
    nodes, roots = nodes[keep], weights[keep].sqrt()
    with torch.no_grad():
        gram = to_dense(evaluate_kernel(kernel, nodes))
    values, vectors = _decreasing_eigenpairs(roots.unsqueeze(-1) * gram * roots, cutoff)
    return Eigenpairs(values, SampledFunctions(kernel, nodes, roots.unsqueeze(-1) * vectors / values))


def laplace_eigenpairs(num_pairs: int, lengthscale: float = 1.0) -> Eigenpairs:
    """Compute the exact eigenpairs of exp(−|θ − θ'|/ℓ) under the uniform measure on [0, 1] (LT-21).

    With γ = 1/ℓ and c_j the root of cot c = ½ (c/γ − γ/c) between (j − 1)π and jπ,

        λ_j = 2γ/(c_j² + γ²),      ψ_j(θ) = (c_j cos c_jθ + γ sin c_jθ) / √((c_j² + γ²)/2 + γ),

    where the source, with ℓ = 1, omits the normalization (LT-E-15). Complexity: O(m) once, O(k m) for k tasks.
    """
    if not 0 < lengthscale < math.inf:
        raise InputError(f"lengthscale must be a positive number, got {lengthscale!r}.")
    rate = 1 / lengthscale
    ends = np.pi * np.arange(check_integer("num_pairs", num_pairs) + 1.0)
    ends[0] = 1e-9 * min(rate, 1.0)  # zero is a root without an eigenfunction

    def excess(c: float) -> float:
        return 2 * rate * c * np.cos(c) - (c * c - rate * rate) * np.sin(c)

    roots = [brentq(excess, low, high, xtol=1e-14) for low, high in pairwise(ends)]
    c = torch.tensor(roots, dtype=torch.float64)
    norms = ((c.square() + rate**2) / 2 + rate).sqrt()
    return Eigenpairs(2 * rate / (c.square() + rate**2), LaplaceFunctions(c, rate, norms))


def gaussian_eigenpairs(num_pairs: int, lengthscale: float = 1.0, std: float = 1.0) -> Eigenpairs:
    """Compute the exact eigenpairs of exp(−(θ − θ')²/(2ℓ²)) under N(0, σ²) (BO-14).

    With γ = 1/(2ℓ²), a = 1/(4σ²), c = √(a² + 2aγ) and A = a + γ + c: λ_l = √(2a/A) (γ/A)^l and ψ_l(θ) ∝ e^{−(c − a)θ²} H_l(√(2c) θ) for
    l = 0, 1, …, divided by their norms (a/c)^¼ √(2^l l!), which the source omits. Complexity: O(k m) for k tasks.
    """
    gamma, a = 1 / (2 * check_positive("lengthscale", lengthscale) ** 2), 1 / (4 * check_positive("std", std) ** 2)
    c = math.sqrt(a * a + 2 * a * gamma)
    total = a + gamma + c
    powers = torch.arange(check_integer("num_pairs", num_pairs), dtype=torch.float64)
    return Eigenpairs(math.sqrt(2 * a / total) * (gamma / total) ** powers, HermiteFunctions(num_pairs, a, c))


def feature_eigenpairs(
    frequencies: Tensor, measure: TaskMeasure | None = None, cutoff: float = EIGENFUNCTION_CUTOFF
) -> Eigenpairs:
    """Compute the eigenpairs of T for the random Fourier features F/√D, F(θ) = (cos ω_iᵀθ, sin ω_iᵀθ) (LT-24, LT-E-16).

    With ∫ F Fᵀ dμ = V e Vᵀ: λ_j = e_j/D and ψ_j = Fᵀ V_j/√e_j, for frequencies ω (D,), or (D, b) for tasks in R^b. If
    `measure` is None, μ is uniform on [0, 1]^b and the integral is in closed form. Complexity: O(D³ + D² b) once,
    O(k D²) for k tasks.
    """
    frequencies = torch.as_tensor(frequencies).double()
    frequencies = frequencies.flatten() if frequencies.dim() != 2 or frequencies.shape[1] == 1 else frequencies
    num_dims = 1 if frequencies.dim() == 1 else frequencies.shape[1]
    if measure is not None and measure.num_dims != num_dims:
        raise InputError(
            f"measure must have tasks in R^{num_dims}, as many dimensions as frequencies has columns, got num_dims={measure.num_dims}."
        )
    if measure is None:
        moments = uniform_moments(frequencies)
    else:
        F = FeatureFunctions(frequencies, torch.eye(2 * len(frequencies), dtype=torch.float64))(measure.nodes)
        moments = (F * measure.weights.unsqueeze(-1)).mT @ F
    values, vectors = _decreasing_eigenpairs(moments, cutoff)
    return Eigenpairs(values / len(frequencies), FeatureFunctions(frequencies, vectors / values.sqrt()))


def _decreasing_eigenpairs(matrix: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """Return eigenvalues above a fraction of the largest, decreasing, and eigenvectors of a symmetric matrix."""
    if not bool(torch.isfinite(matrix).all()):
        raise FactorizationError("A Gram matrix has values that are not finite. Check the kernel.")
    values, vectors = (torch.from_numpy(a) for a in np.linalg.eigh(matrix.detach().double().numpy()))
    order = values.argsort(descending=True)
    order = order[values[order] > cutoff * values.max()]
    return values[order], vectors[:, order]


def uniform_moments(frequencies: Tensor) -> Tensor:
    """Return ∫ F Fᵀ dθ (2D, 2D) over [0, 1]^b of F = (cos ω_iᵀθ, sin ω_iᵀθ), for ω (D,) or (D, b), in closed form."""
    columns = frequencies.unsqueeze(-1) if frequencies.dim() == 1 else frequencies
    less, more = columns.unsqueeze(1) - columns, columns.unsqueeze(1) + columns
    (cos_less, sin_less), (cos_more, sin_more) = _integrate_cos_sin(less), _integrate_cos_sin(more)
    cosines, sines = (cos_less + cos_more) / 2, (cos_less - cos_more) / 2
    mixed = (sin_more + sin_less) / 2  # ∫ sin ω_iᵀθ cos ω_jᵀθ
    return torch.cat([torch.cat([cosines, mixed.mT], 1), torch.cat([mixed, sines], 1)])


def _integrate_cos_sin(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return ∫ cos zᵀθ and ∫ sin zᵀθ over [0, 1]^b for z (…, b): real and imaginary parts of Π_j e^{i z_j/2} sinc(z_j/2)."""
    size, phase = torch.sinc(z / (2 * math.pi)).prod(-1), z.sum(-1) / 2
    return size * phase.cos(), size * phase.sin()


def _as_tasks(points: Tensor) -> Tensor:
    """Return points (k, 1) or (k,) as tasks (k,), and points (k, b) as they are."""
    return points.flatten() if points.dim() == 1 or points.shape[-1] == 1 else points
