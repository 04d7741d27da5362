"""Coordinates φ of scalar kernels with φ(x)ᵀφ(z) = k(x, z): of a Gram matrix, of random features, of finitely many
levels, or of a task kernel together with its derivatives (LT-43, LT-86, LT-98).

`mixed_coordinates` are those in which ‖W‖² is the mixed regularizer of L²(μ) and the RKHS of the inputs, a separate
penalty for the function of each task (LT-64).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, OptionError, SmoothnessError
from ovkgp.features.feature_map import FeatureMap
from ovkgp.kernels import lag_jet
from ovkgp.kernels.evaluation import evaluate_kernel

FACTOR_CUTOFF = 1e-12
"""Eigenvalues below this fraction of the largest are dropped, as they are below the precision of float64."""
LEVEL_TOLERANCE = 1e-7  # levels with a smaller difference are considered equal; float32 rounds at 6e-8


class Factor(ABC):
    """Coordinates φ: points (k, d), or (k,) if d = 1, to rows (k, r)."""

    @abstractmethod
    def __call__(self, points: Tensor) -> Tensor:
        """Return φ (k, r)."""

    @abstractmethod
    def slopes(self, points: Tensor) -> Tensor:
        """Return ∂φ/∂θ (k, r) at points (k, 1) or (k,); raise SmoothnessError if there are none.

        Parameters
        ----------
        points : Tensor of shape (k, 1) or (k,)
            Points.

        Returns
        -------
        Tensor of shape (k, r)
            Derivatives of φ.
        """

    def residual_variance(self, points: Tensor) -> Tensor:
        """Return k(x, x) − ‖φ(x)‖² ≥ 0, (k,): the prior variance outside the span, 0 if φ defines the kernel.

        Parameters
        ----------
        points : Tensor of shape (k, d), or (k,) if d = 1
            Points.

        Returns
        -------
        Tensor of shape (k,)
            Variances.
        """
        return as_points(points).new_zeros(len(points))


class KernelFactor(Factor):
    """φ(x) = k(x, anchors) V S^{−1/2} for a scalar kernel and anchors (n, d), whose rows are `anchor_rows`.

    φ(x)ᵀφ(z) is the projection of the kernel on the anchors, and the kernel itself if x or z is an anchor. Repeated
    points or a constant kernel reduce the rank r. Hyperparameters of the kernel are read at each call and must not
    change. Eigenvalues below `cutoff` times the largest are dropped. Complexity: O(n³) once, O(k n r) per call.
    """

    def __init__(self, kernel: Kernel, anchors: Tensor, cutoff: float = FACTOR_CUTOFF):
        if not 0 <= cutoff < 1:
            raise OptionError(f"cutoff must be at least 0 and below 1, got {cutoff}.")
        self.kernel, self.anchors = kernel, as_points(anchors)
        self.projection, self.anchor_rows = _decompose_gram(self._gram(self.anchors), cutoff)

    def _gram(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return to_dense(evaluate_kernel(self.kernel, points, self.anchors)).double()

    def __call__(self, points: Tensor) -> Tensor:
        points = as_points(points)
        self._check_columns(points)
        return self._gram(points) @ self.projection

    def slopes(self, points: Tensor) -> Tensor:
        """Return ∂φ/∂θ (k, r) in closed form (LT-43)."""
        points = as_points(points)
        self._check_columns(points)
        if self.anchors.shape[-1] != 1:
            raise InputError(f"slopes requires points with one column, got {self.anchors.shape[-1]}.")
        with torch.no_grad():
            lag = points.unsqueeze(-2) - self.anchors.unsqueeze(-3)
            return lag_jet(self.kernel, lag).gradient.squeeze(-1).double() @ self.projection

    def residual_variance(self, points: Tensor) -> Tensor:
        points = as_points(points)
        with torch.no_grad():
            total = evaluate_kernel(self.kernel, points, diag=True).double()
        return (total - self(points).square().sum(-1)).clamp_min(0.0)

    def _check_columns(self, points: Tensor) -> None:
        if points.shape[-1] != self.anchors.shape[-1]:
            raise InputError(f"points must have {self.anchors.shape[-1]} columns, got {points.shape[-1]}.")


class FeatureFactor(Factor):
    """φ from a feature map of a scalar kernel, such as `ORFF`, which needs no anchors (LT-86).

    Complexity: that of the map, O(k D d) for D frequencies, also for slopes.
    """

    def __init__(self, features: FeatureMap):
        if features.num_outputs != 1:
            raise OptionError(
                f"features must be a feature map of a scalar kernel, got one with {features.num_outputs} outputs. Use features of its scalar part."
            )
        self.features = features

    def __call__(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return to_dense(self.features(as_points(points)))

    def slopes(self, points: Tensor) -> Tensor:
        points = as_points(points)
        if points.shape[-1] != 1:
            raise InputError(f"slopes requires points with one column, got {points.shape[-1]}.")
        with torch.enable_grad():
            variable = points.detach().clone().requires_grad_()
            rows = to_dense(self.features(variable))
            # a row depends on its point only: differentiating the product with a probe in the probe gives ∂φ
            probe = torch.ones_like(rows, requires_grad=True)
            (pulled,) = torch.autograd.grad(rows, variable, probe, create_graph=True)
            (slopes,) = torch.autograd.grad(pulled.sum(), probe)
        return slopes.detach()


class LevelFactor(Factor):
    """Coordinates of distinct `levels` (m,) with the Gram matrix B (m, m); the identity makes them independent (LT-03).

    Complexity: O(m³) once, O(k m) per call.
    """

    def __init__(self, levels: Tensor, gram: Tensor | None = None):
        self.levels = as_points(levels).squeeze(-1)
        if self.levels.dim() != 1 or bool((self.levels.sort().values.diff() <= LEVEL_TOLERANCE).any()):
            raise InputError(f"levels must be a vector of different numbers, got {levels.tolist()}.")
        size = len(self.levels)
        gram = torch.eye(size, dtype=torch.float64) if gram is None else gram.double()
        if gram.shape != (size, size) or not bool(torch.isfinite(gram).all()) or not torch.allclose(gram, gram.mT):
            raise InputError(
                f"gram must be a finite symmetric matrix of shape ({size}, {size}) for {size} levels, got {tuple(gram.shape)}."
            )
        self.level_rows = _decompose_gram(gram, FACTOR_CUTOFF)[1]

    def __call__(self, points: Tensor) -> Tensor:
        distance = (as_points(points) - self.levels).abs()
        if bool((distance.amin(-1) > LEVEL_TOLERANCE).any()):
            raise InputError(
                f"Predictions are available at the learned levels {self.levels.tolist()} only. Use a kernel on the tasks for all levels."
            )
        return self.level_rows[distance.argmin(-1)]

    def slopes(self, points: Tensor) -> Tensor:
        raise SmoothnessError(
            "Derivatives in the level are not supported with finitely many levels. Use a smooth kernel on the tasks, such as RBFKernel."
        )


class DerivativeTaskFactor(Factor):
    """Coordinates ψ and slopes ψ' of a task kernel, from the Gram matrix G of values and derivatives (LT-43).

        G = [[k, ∂_2 k], [∂_1 k, ∂_1 ∂_2 k]] = B Bᵀ,     ψ(θ) = [k(θ, nodes), ∂_2 k(θ, slope nodes)] B^{−ᵀ}

    A penalty on ∂_θ h(x)(θ̃) adds functions ∂_2 k(·, θ̃) to the k(·, θ) of the nodes in the solution (Thm 5.27, LT-98);
    the coordinates span both. The kernel is copied; it must be stationary with second derivatives. If `slope_nodes`
    (m̃,) is None, they are the nodes (m,); an empty tensor omits derivatives. `projection` is B^{−ᵀ} (m + m̃, q).
    Complexity: O((m + m̃)³) once, O(k (m + m̃) q) for k rows or slopes.
    """

    def __init__(self, kernel: Kernel, nodes: Tensor, slope_nodes: Tensor | None = None):
        self.kernel, self.nodes = deepcopy(kernel).double().requires_grad_(False), _check_levels("nodes", nodes)
        self.slope_nodes = self.nodes if slope_nodes is None else _check_levels("slope_nodes", slope_nodes)
        self.gram = torch.cat([self._atoms(self.nodes), self._slope_atoms(self.slope_nodes)])
        # values and slopes have different units, which the cutoff must not depend on
        units = self.gram.diagonal().sqrt()
        scaled = self.gram / units / units[:, None]
        self.projection = _decompose_gram(scaled, FACTOR_CUTOFF)[0] / units[:, None]

    def __call__(self, points: Tensor) -> Tensor:
        return self._atoms(_check_levels("tasks", points)) @ self.projection

    def slopes(self, points: Tensor) -> Tensor:
        return self._slope_atoms(_check_levels("tasks", points)) @ self.projection

    def residual_variance(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            total = self.kernel(_check_levels("tasks", points)[:, None], diag=True)
        return (total - self(points).square().sum(-1)).clamp_min(0.0)

    def _atoms(self, tasks: Tensor) -> Tensor:
        """Return k(θ, nodes) and ∂_2 k(θ, slope nodes)."""
        value, slope, _ = self._jet(tasks)
        return torch.cat([value[:, : len(self.nodes)], -slope[:, len(self.nodes) :]], -1)

    def _slope_atoms(self, tasks: Tensor) -> Tensor:
        """Return ∂_1 k(θ, nodes) and ∂_1 ∂_2 k(θ, slope nodes)."""
        _, slope, curvature = self._jet(tasks)
        return torch.cat([slope[:, : len(self.nodes)], -curvature[:, len(self.nodes) :]], -1)

    def _jet(self, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return k and its two derivatives in the lag, against all nodes, each (k, m + m̃)."""
        lag = tasks[:, None] - torch.cat([self.nodes, self.slope_nodes])
        with torch.no_grad():
            jet = lag_jet(self.kernel, lag.unsqueeze(-1))
        return jet.value, jet.gradient[..., 0], jet.hessian[..., 0, 0]


def as_points(points: Tensor) -> Tensor:
    """Return finite float64 points (k, d); a vector becomes one column."""
    return FeatureMap.check(points, "points").double()


def _decompose_gram(gram: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """Return V S^{−1/2} and V S^{1/2}, (n, r), for the eigenvalues above the cutoff."""
    values, vectors = torch.linalg.eigh(gram)
    if not bool(values[-1] > 0):
        raise FactorizationError("The kernel is zero at all points. Check its outputscale.")
    if bool(values[0] < -1e-6 * values[-1]):
        raise FactorizationError(
            f"The Gram matrix must be positive semi-definite, got eigenvalues from {values[0].item():.3g} to {values[-1].item():.3g}."
        )
    keep = values > cutoff * values[-1]
    roots = values[keep].sqrt()
    return vectors[:, keep] / roots, vectors[:, keep] * roots


def _check_levels(name: str, points: Tensor) -> Tensor:
    """Return points (k,) or (k, 1) as float64 (k,)."""
    points = torch.as_tensor(points, dtype=torch.float64)
    if points.dim() == 2 and points.shape[1] == 1:
        points = points[:, 0]
    if points.dim() != 1 or not bool(torch.isfinite(points).all()):
        raise InputError(f"{name} must be finite numbers of shape (k,) or (k, 1), got {tuple(points.shape)}.")
    return points


def section_norms(weights: Tensor, tasks: Tensor) -> Tensor:
    """Return ‖h(·)(θ_j)‖² = ‖W ψ_j‖², (m,), in the RKHS of the inputs, for W (r, q) and Ψ (m, q). O(r q m)."""
    if weights.dim() != 2 or tasks.dim() != 2 or weights.shape[1] != tasks.shape[1]:
        raise InputError(
            f"weights must have shape (r, q) and tasks (m, q) with the same q, got {tuple(weights.shape)} and {tuple(tasks.shape)}."
        )
    return (weights @ tasks.T).square().sum(0)


def mixed_norm(weights: Tensor, tasks: Tensor, measure_weights: Tensor) -> Tensor:
    """Return Ω(h) = ½ Σ_j η_j ‖W ψ_j‖², differentiable, for W (r, q), Ψ (m, q) at the nodes and η (m,). O(r q m).

    λ_min(K_Θ) min_j η_j ‖h‖² ≤ 2 Ω(h) ≤ Σ_j η_j k_Θ(θ_j, θ_j) ‖h‖² (LT-117, LT-118), the former for h in the span of
    the nodes. Ω does not couple tasks: k_Θ only interpolates between the nodes.
    """
    norms = section_norms(weights, tasks)
    if measure_weights.shape != norms.shape:
        raise InputError(f"measure_weights must have shape ({len(norms)},), got {tuple(measure_weights.shape)}.")
    return (measure_weights * norms).sum() / 2


def mixed_coordinates(tasks: Tensor, measure_weights: Tensor) -> Tensor:
    """Return C (q, k) such that with task coordinates Ψ C the regularizer is Ω(h) = ½ ‖V‖², W = V Cᵀ.

    A `TaskProblem` with the tasks Ψ C has the penalty (λ/2) Σ_j η_j ‖h(·)(θ_j)‖², for every solver. C = U S^(−1/2) from
    the eigenpairs ΨᵀηΨ = U S Uᵀ above a cutoff; functions of the tasks that vanish at all nodes have no penalty and are
    omitted. O(m q² + q³).
    """
    gram = (measure_weights[:, None] * tasks).T @ tasks
    if not bool(gram.diagonal().max() > 0):
        raise FactorizationError(
            "The task coordinates are zero at all nodes with positive weight. Check the task kernel and the measure."
        )
    return _decompose_gram(gram, FACTOR_CUTOFF)[0]
