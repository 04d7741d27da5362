"""Coordinates of a scalar kernel: rows φ(x) with φ(x)ᵀφ(z) = k(x, z), in which the norm of the RKHS is Euclidean.

`KernelFactor` is exact on its anchors (the double representer theorem, LT-83): with the eigenpairs K = V S Vᵀ of the anchors
φ(x) = k(x, anchors) V S^{−1/2}. `FeatureFactor` takes random features (LT-85, 86), `LevelFactor` has coordinates for finitely many
tasks (LT-03). A factor of the tasks also gives slopes, ∂φ/∂θ, for penalties on the derivative of a curve (LT-43).
"""

from __future__ import annotations

from typing import Protocol

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import FactorisationError, InputError, OptionError, SmoothnessError
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
        >>> from ovkgp.inference.task_learning.factors import KernelFactor
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
        >>> from ovkgp.inference.task_learning.factors import FeatureFactor
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
        >>> from ovkgp.inference.task_learning.factors import LevelFactor
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
        raise FactorisationError("a kernel that is zero on all its points has no coordinates: look at its outputscale.")
    if bool(values[0] < -1e-6 * values[-1]):
        raise FactorisationError(
            f"this Gram matrix is not positive semi-definite: its eigenvalues go from {values[0].item():.3g} to "
            f"{values[-1].item():.3g}."
        )
    keep = values > cutoff * values[-1]
    roots = values[keep].sqrt()
    return vectors[:, keep] / roots, vectors[:, keep] * roots
