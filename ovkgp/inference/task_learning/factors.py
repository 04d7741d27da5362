"""Coordinates of a scalar kernel: rows φ(x) with φ(x)ᵀφ(z) = k(x, z), in which the norm of the RKHS is Euclidean.

`KernelFactor` is exact on its anchors (the double representer theorem, LT-83): with the eigenpairs K = V S Vᵀ of the anchors
φ(x) = k(x, anchors) V S^{−1/2}. `FeatureFactor` takes random features. `LevelFactor` has a coordinate for each of finitely many tasks.
"""

from __future__ import annotations

from typing import Protocol

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.features.feature_map import FeatureMap

CUTOFF = 1e-12
"""Eigenvalues below this part of the largest are dropped."""


class Factor(Protocol):
    """φ: points (k, d) → rows (k, r)."""

    def __call__(self, points: Tensor) -> Tensor: ...


class KernelFactor:
    """φ(x) = k(x, anchors) V S^{−1/2}.

    Args:
        kernel: a scalar GPyTorch kernel; its hyperparameters are read at every call and must not change afterwards.
        anchors: (n, d).
        cutoff: eigenvalues below this part of the largest are dropped.

    Cost: O(n³) once, O(k n r) a call.
    """

    def __init__(self, kernel: Kernel, anchors: Tensor, cutoff: float = CUTOFF):
        self.kernel, self.anchors = kernel, anchors
        with torch.no_grad():
            values, vectors = torch.linalg.eigh(to_dense(kernel(anchors)))
        keep = values > cutoff * values[-1]
        self.projection = vectors[:, keep] / values[keep].sqrt()
        self.anchor_rows = vectors[:, keep] * values[keep].sqrt()
        """φ(anchors), (n, r)."""

    def __call__(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return to_dense(self.kernel(points, self.anchors)) @ self.projection


class FeatureFactor:
    """φ from a feature map of a scalar kernel, such as `ORFF`."""

    def __init__(self, features: FeatureMap):
        self.features = features

    def __call__(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return to_dense(self.features(points))


class LevelFactor:
    """The tasks `levels` (m,) with a Gram matrix of their own: k_Θ(θ_i, θ_j) = B_ij (LT-03); the identity leaves them independent."""

    def __init__(self, levels: Tensor, gram: Tensor | None = None):
        self.levels = levels
        gram = torch.eye(len(levels), dtype=levels.dtype) if gram is None else gram
        values, vectors = torch.linalg.eigh(gram)
        keep = values > CUTOFF * values[-1]
        self.level_rows = vectors[:, keep] * values[keep].sqrt()

    def __call__(self, points: Tensor) -> Tensor:
        distance = (points.reshape(-1, 1) - self.levels).abs()
        nearest = distance.argmin(-1)
        if bool((distance.amin(-1) > 1e-9).any()):
            from ovkgp.exceptions import InputError

            raise InputError(f"only the levels {self.levels.tolist()} were learned.")
        return self.level_rows[nearest]
