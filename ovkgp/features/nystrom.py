"""Nyström features of a kernel from landmarks (BT-07), for scalar and operator-valued kernels.

    Φ(x) = K(x, Z) V L⁻ᵀ,   V Vᵀ ≈ I, L Lᵀ = Vᵀ K(Z, Z) V,      Φ(x) Φ(z)ᵀ = K(x, Z) K(Z, Z)† K(Z, z)

Unlike random features they are exact at the landmarks; the posterior mean of the GP is that of the subset of regressors
with the landmarks as inducing points.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.feature_map import FeatureMap
from ovkgp.features.operators import FeatureOperator
from ovkgp.kernels import components, num_outputs
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.outputs.matrices import leading_subspace, thin_root


class Nystrom(FeatureMap):
    """Nyström features of any kernel.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        Any kernel; its parameters are shared, not copied.
    landmarks : Tensor of shape (m, d)
        Landmarks Z. Directions of K(Z, Z) with eigenvalues below 1e-10 of the largest are dropped, so duplicates are
        allowed.

    Notes
    -----
    Complexity: O(m³) to build and O(n m²) to compute features for a separable kernel with one component (Φ is
    then a Kronecker product); otherwise m and n are multiplied by p.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import Nystrom
    >>> from ovkgp.kernels import DecomposableKernel
    >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
    >>> Nystrom(kernel, torch.randn(6, 1))(torch.randn(9, 1)).shape[0]
    18
    """

    def __init__(self, kernel: Kernel, landmarks: Tensor):
        super().__init__()
        landmarks = self.check(landmarks, "landmarks")
        if landmarks.dim() != 2 or len(landmarks) == 0:
            raise InputError(f"landmarks must be a non-empty (m, d) tensor, got shape {tuple(landmarks.shape)}.")
        self.kernel = kernel
        self.register_buffer("landmarks", landmarks.detach().clone())

    @property
    def num_outputs(self) -> int:
        """Number p of outputs."""
        return self.kernel.num_outputs_per_input(self.landmarks, self.landmarks)

    @property
    def num_features(self) -> int:
        """Number of columns of Φ at the current hyperparameters, at most m·p."""
        return self(self.landmarks[:1]).shape[-1]

    def forward(self, X: Tensor) -> LinearOperator:
        """Return Φ(X), of size (n·p) × num_features, for X (..., n, d)."""
        X = self.check(X)
        if X.shape[-1] != self.landmarks.shape[-1]:
            raise InputError(f"X has {X.shape[-1]} columns, expected {self.landmarks.shape[-1]} as the landmarks have.")
        parts = components(self.kernel)
        if parts is not None and len(parts) == 1 and num_outputs(self.kernel) > 1:
            (scalar, matrix) = parts[0]
            return FeatureOperator(self._scores(scalar, X), thin_root(matrix.to(X)), num_outputs=matrix.shape[-1])
        features = self._scores(self.kernel, X)
        return FeatureOperator(features, torch.ones(1, 1).to(features), num_outputs=1)

    def _scores(self, kernel: Kernel, X: Tensor) -> Tensor:
        landmarks = self.landmarks.to(X)
        vectors, chol = leading_subspace(to_dense(evaluate_kernel(kernel, landmarks)))
        projected = to_dense(evaluate_kernel(kernel, X, landmarks)) @ vectors
        return torch.linalg.solve_triangular(chol, projected.mT, upper=False).mT
