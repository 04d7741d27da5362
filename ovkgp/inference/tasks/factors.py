"""Coordinates of a task kernel in which the derivative in the task has an atom of its own: rows ψ(θ) and ψ'(θ).

A penalty on ∂_θ h(x)(θ̃) puts functions ∂_2 k(·, θ̃) beside the k(·, θ) of the nodes into the solution (Thm 5.27, LT-98). The
coordinates below span both: with the Gram matrix of values and derivatives (LT-43)

    G = [[k, ∂_2 k], [∂_1 k, ∂_1 ∂_2 k]] = B Bᵀ,     ψ(θ) = [k(θ, nodes), ∂_2 k(θ, slope nodes)] B^{−ᵀ}.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Protocol

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, OptionError, SmoothnessError
from ovkgp.features.feature_map import FeatureMap
from ovkgp.kernels import lag_jet

CUTOFF = 1e-12
"""Eigenvalues below this part of the largest are dropped: float64 knows no more of them."""
SAME_LEVEL = 1e-7
"""Levels that differ by no more are the same; float32 rounds at 6e-8."""


class Factor(Protocol):
    """φ: points (k, d), or (k,) where d = 1, to rows (k, r)."""

    def __call__(self, points: Tensor) -> Tensor: ...

    def slopes(self, points: Tensor) -> Tensor:
        """∂φ/∂θ (k, r) at points (k, 1) or (k,)."""
        ...

    def left_out(self, points: Tensor) -> Tensor:
        """k(x, x) − ‖φ(x)‖² ≥ 0, (k,): what the prior has beside the coordinates, far from the anchors all of it."""
        ...


class KernelFactor:
    """φ(x) = k(x, anchors) V S^{−1/2}.

    Points given twice, a constant kernel, or one point alone only make the rank r small: φ(x)ᵀφ(z) is the kernel's projection on the
    anchors in any case, and the kernel itself where x or z is an anchor.

    Args:
        kernel: a scalar GPyTorch kernel; its hyperparameters are read at every call and must not change afterwards.
        anchors: (n, d).
        cutoff: eigenvalues below this part of the largest are dropped.

    Cost: O(n³) once, O(k n r) a call.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.tasks.factors import KernelFactor
        >>> X = torch.linspace(0, 9, 4, dtype=torch.float64).unsqueeze(-1)
        >>> phi = KernelFactor(RBFKernel().double(), X)
        >>> phi(X).shape, bool(torch.allclose(phi(X) @ phi(X).T, phi.kernel(X).to_dense()))
        (torch.Size([4, 4]), True)
    """

    def __init__(self, kernel: Kernel, anchors: Tensor, cutoff: float = CUTOFF):
        if not 0 <= cutoff < 1:
            raise OptionError(f"cutoff is a part of the largest eigenvalue, at least 0 and below 1; got {cutoff}.")
        self.kernel, self.anchors = kernel, as_points(anchors)
        self.projection, self.anchor_rows = _eigen_rows(self._gram(self.anchors), cutoff)

    def _gram(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return to_dense(self.kernel(points, self.anchors)).double()

    def __call__(self, points: Tensor) -> Tensor:
        """φ (k, r) at points (k, d); φ(anchors) is also kept as `anchor_rows`."""
        points = as_points(points)
        self._require_columns(points)
        return self._gram(points) @ self.projection

    def slopes(self, points: Tensor) -> Tensor:
        """∂φ/∂θ (k, r) at tasks θ (k, 1) or (k,), by the closed form of the kernel's derivative (LT-43).

        Raises:
            SmoothnessError: the kernel has a kink, such as Laplace's, or no known derivative.
        """
        points = as_points(points)
        self._require_columns(points)
        if self.anchors.shape[-1] != 1:
            raise InputError(f"slopes are along one coordinate; these points have {self.anchors.shape[-1]}.")
        with torch.no_grad():
            lag = points.unsqueeze(-2) - self.anchors.unsqueeze(-3)
            return lag_jet(self.kernel, lag).gradient.squeeze(-1).double() @ self.projection

    def left_out(self, points: Tensor) -> Tensor:
        """k(x, x) − ‖φ(x)‖² (k,), 0 at the anchors."""
        points = as_points(points)
        with torch.no_grad():
            whole = self.kernel(points, diag=True).double()
        return (whole - self(points).square().sum(-1)).clamp_min(0.0)

    def _require_columns(self, points: Tensor) -> None:
        if points.shape[-1] != self.anchors.shape[-1]:
            raise InputError(f"expected points with {self.anchors.shape[-1]} columns, got {points.shape[-1]}.")


class FeatureFactor:
    """φ from a feature map of a scalar kernel, such as `ORFF`: a function that needs no anchors (LT-86).

    Args:
        features: the map; one output.

    Cost: that of the map, O(k D d) for D frequencies; slopes by one forward derivative, the same again.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.tasks.factors import FeatureFactor
        >>> psi = FeatureFactor(ORFF(RBFKernel(ard_num_dims=1), 10, random_state=0))
        >>> tasks = torch.linspace(0, 1, 5, dtype=torch.float64)
        >>> psi(tasks).shape, psi.slopes(tasks).shape
        (torch.Size([5, 20]), torch.Size([5, 20]))
    """

    def __init__(self, features: FeatureMap):
        if features.num_outputs != 1:
            raise OptionError(
                f"coordinates are those of a scalar kernel; this feature map has {features.num_outputs} outputs. Take "
                "features of its scalar part."
            )
        self.features = features

    def __call__(self, points: Tensor) -> Tensor:
        """φ (k, r) at points (k, d)."""
        with torch.no_grad():
            return to_dense(self.features(as_points(points)))

    def slopes(self, points: Tensor) -> Tensor:
        """∂φ/∂θ (k, r) at tasks θ (k, 1) or (k,), by differentiating the features."""
        points = as_points(points)
        if points.shape[-1] != 1:
            raise InputError(f"slopes are along one coordinate; these points have {points.shape[-1]}.")
        with torch.enable_grad():
            moved = points.detach().clone().requires_grad_()
            rows = to_dense(self.features(moved))
            # a row depends on its own point only: the product with a probe, differentiated in the probe, is ∂φ itself
            probe = torch.ones_like(rows, requires_grad=True)
            (pulled,) = torch.autograd.grad(rows, moved, probe, create_graph=True)
            (slopes,) = torch.autograd.grad(pulled.sum(), probe)
        return slopes.detach()

    def left_out(self, points: Tensor) -> Tensor:
        """Nothing, (k,): the features are the kernel."""
        return as_points(points).new_zeros(len(points))


class LevelFactor:
    """The tasks `levels` (m,) with a Gram matrix of their own: k_Θ(θ_i, θ_j) = B_ij; the identity leaves them independent (LT-03).

    Args:
        levels: (m,), all different.
        gram: B (m, m), symmetric and positive semi-definite; None for the identity.

    Cost: O(m³) once, O(k m) a call.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.factors import LevelFactor
        >>> psi = LevelFactor(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
        >>> (psi(torch.tensor([0.5, 0.1])) @ psi(psi.levels).T).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """

    def __init__(self, levels: Tensor, gram: Tensor | None = None):
        self.levels = as_points(levels).squeeze(-1)
        if self.levels.dim() != 1 or bool((self.levels.sort().values.diff() <= SAME_LEVEL).any()):
            raise InputError(f"levels must be a vector of different numbers, got {levels.tolist()}.")
        size = len(self.levels)
        gram = torch.eye(size, dtype=torch.float64) if gram is None else gram.double()
        if gram.shape != (size, size) or not bool(torch.isfinite(gram).all()) or not torch.allclose(gram, gram.mT):
            raise InputError(
                f"gram must be a finite symmetric ({size}, {size}) matrix for {size} levels; got {tuple(gram.shape)}."
            )
        self.level_rows = _eigen_rows(gram, CUTOFF)[1]

    def __call__(self, points: Tensor) -> Tensor:
        """ψ (k, q) at some of the levels."""
        distance = (as_points(points) - self.levels).abs()
        if bool((distance.amin(-1) > SAME_LEVEL).any()):
            raise InputError(
                f"only the levels {self.levels.tolist()} were learned; for all levels take a kernel on the tasks."
            )
        return self.level_rows[distance.argmin(-1)]

    def slopes(self, points: Tensor) -> Tensor:
        """There are none: raises SmoothnessError."""
        raise SmoothnessError(
            "finitely many levels have no derivative in the level: take a smooth kernel on the tasks, such as RBFKernel."
        )

    def left_out(self, points: Tensor) -> Tensor:
        """Nothing, (k,)."""
        return as_points(points).new_zeros(len(points))


def as_points(points: Tensor) -> Tensor:
    """Finite float64 points (k, d); a vector is one column."""
    return FeatureMap.check(points, "points").double()


def _eigen_rows(gram: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """V S^{−1/2} and V S^{1/2}, (n, r), of the eigenvalues above the cutoff."""
    values, vectors = torch.linalg.eigh(gram)
    if not bool(values[-1] > 0):
        raise FactorizationError("a kernel that is zero on all its points has no coordinates: look at its outputscale.")
    if bool(values[0] < -1e-6 * values[-1]):
        raise FactorizationError(
            f"this Gram matrix is not positive semi-definite: its eigenvalues go from {values[0].item():.3g} to "
            f"{values[-1].item():.3g}."
        )
    keep = values > cutoff * values[-1]
    roots = values[keep].sqrt()
    return vectors[:, keep] / roots, vectors[:, keep] * roots


def derivative_task_factor(kernel: Kernel, nodes: Tensor, slope_nodes: Tensor | None = None) -> DerivativeTaskFactor:
    """The coordinates of a task kernel on nodes and on derivatives at slope nodes.

    Args:
        kernel: a stationary scalar kernel with second derivatives, such as `RBFKernel` or `MaternKernel(nu=2.5)`; it is copied.
        nodes: θ (m,), where the loss looks at values.
        slope_nodes: θ̃ (m̃,), where a penalty looks at derivatives; None are the nodes, an empty tensor leaves derivatives out.

    Cost: O((m + m̃)³) once.

    Raises:
        SmoothnessError: the kernel has a kink at zero lag (Laplace, Matérn ½).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.tasks.factors import derivative_task_factor
        >>> factor = derivative_task_factor(RBFKernel(), torch.tensor([0.2, 0.5, 0.8]), torch.tensor([0.4]))
        >>> rows = factor(torch.tensor([[0.2], [0.8]]))
        >>> rows.shape, torch.allclose(rows @ rows.T, RBFKernel()(torch.tensor([[0.2], [0.8]])).to_dense().double())
        (torch.Size([2, 4]), True)
        >>> factor.slopes(torch.tensor([[0.4]])).shape
        torch.Size([1, 4])
    """
    return DerivativeTaskFactor(
        deepcopy(kernel).double().requires_grad_(False),
        _levels("nodes", nodes),
        _levels("slope_nodes", nodes if slope_nodes is None else slope_nodes),
    )


class DerivativeTaskFactor:
    """ψ and ψ' of a task kernel; `derivative_task_factor` makes one.

    Args:
        kernel: in float64; not changed afterwards.
        nodes, slope_nodes: θ (m,) and θ̃ (m̃,).

    Attributes:
        gram: G (m + m̃, m + m̃).
        projection: B^{−ᵀ} (m + m̃, q); eigenvalues of the scaled G below 1e-12 of the largest are dropped.

    Cost: O(k (m + m̃) q) for k rows or slopes.
    """

    def __init__(self, kernel: Kernel, nodes: Tensor, slope_nodes: Tensor):
        self.kernel, self.nodes, self.slope_nodes = kernel, nodes, slope_nodes
        self.gram = torch.cat([self._atoms(nodes), self._slope_atoms(slope_nodes)])
        # values and slopes have different units: without them the cutoff would favour one
        units = self.gram.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(self.gram / units / units[:, None])
        keep = values > CUTOFF * values[-1]
        self.projection = vectors[:, keep] / values[keep].sqrt() / units[:, None]

    def __call__(self, points: Tensor) -> Tensor:
        """ψ(θ), (k, q), for points (k, 1)."""
        return self._atoms(_levels("tasks", points)) @ self.projection

    def slopes(self, points: Tensor) -> Tensor:
        """ψ'(θ), (k, q), for points (k, 1)."""
        return self._slope_atoms(_levels("tasks", points)) @ self.projection

    def left_out(self, points: Tensor) -> Tensor:
        """k(θ, θ) − ‖ψ(θ)‖² (k,), 0 at the nodes."""
        with torch.no_grad():
            whole = self.kernel(_levels("tasks", points)[:, None], diag=True)
        return (whole - self(points).square().sum(-1)).clamp_min(0.0)

    def _atoms(self, tasks: Tensor) -> Tensor:
        """k(θ, nodes) and ∂_2 k(θ, slope nodes)."""
        value, slope, _ = self._jet(tasks)
        return torch.cat([value[:, : len(self.nodes)], -slope[:, len(self.nodes) :]], -1)

    def _slope_atoms(self, tasks: Tensor) -> Tensor:
        """∂_1 k(θ, nodes) and ∂_1 ∂_2 k(θ, slope nodes)."""
        _, slope, bend = self._jet(tasks)
        return torch.cat([slope[:, : len(self.nodes)], -bend[:, len(self.nodes) :]], -1)

    def _jet(self, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k and its two derivatives in the lag, against all nodes, each (k, m + m̃)."""
        lag = tasks[:, None] - torch.cat([self.nodes, self.slope_nodes])
        with torch.no_grad():
            jet = lag_jet(self.kernel, lag.unsqueeze(-1))
        return jet.value, jet.gradient[..., 0], jet.hessian[..., 0, 0]


def _levels(name: str, points: Tensor) -> Tensor:
    """Points (k,) or (k, 1) as float64 (k,)."""
    points = torch.as_tensor(points, dtype=torch.float64)
    if points.dim() == 2 and points.shape[1] == 1:
        points = points[:, 0]
    if points.dim() != 1 or not bool(torch.isfinite(points).all()):
        raise InputError(f"{name} must be finite numbers of shape (k,) or (k, 1), got {tuple(points.shape)}.")
    return points
