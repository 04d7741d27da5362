"""Manifold regularisation in weight space: features whose weights keep to a manifold (BT-112, Algorithm 6).

The penalty on the values of f = Φθ is one on the weights, θᵀ M̃ θ with M̃ = I + s Φ(X)ᵀ M Φ(X): the prior N(0, M̃⁻¹). With
M̃ = L Lᵀ the features Φ_M(x) = Φ(x) L⁻ᵀ have weights N(0, I) again, and Φ_M Φ_Mᵀ is the kernel of `ManifoldKernel` made from
Φ Φᵀ (ID-7).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import LinearOperator, to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from ovkgp.exceptions import FactorizationError, KernelTypeError, OptionError
from ovkgp.features.feature_map import FeatureMap
from ovkgp.features.operators import FeatureOperator
from ovkgp.kernels import DecomposableKernel, ManifoldKernel
from ovkgp.kernels.penalties import ModuleCache, Penalty, blockwise_product

CHUNK_ENTRIES = 4_000_000
"""About how many features of the penalised points are in memory at a time (32 MB)."""


class WeightPrior(NamedTuple):
    """The Cholesky factor L of M̃ (..., r, r); of the part (..., M, M) before ⊗ I where it is `separable`."""

    chol: Tensor
    separable: bool


class ManifoldFeatures(FeatureMap):
    """Φ_M = Φ L⁻ᵀ, the features of a `ManifoldKernel` from those of its base kernel.

    Args:
        features: Φ, a feature map of the base kernel, such as `ORFF(kernel.base_kernel)`.
        kernel: the `ManifoldKernel`, with its points, penalty and strength; `features.kernel` must be its base kernel.

    For a sparse penalty (n, n), such as a graph Laplacian L, only φᵀLφ is needed of the n points, with M scalar features a
    point; Φ_M = (φ C⁻ᵀ) ⊗ B stays separable where Φ = φ ⊗ B with BᵀB a multiple of the identity (one factor column, the
    identity, the simplex code). No matrix with n·p rows and columns is formed.

    Cost: once for given hyperparameters O(nnz(L)·M + n M² + r³) time for r features, M³ for r³ where Φ_M stays separable,
    and memory for one chunk of rows (n M where a gradient is wanted); a dense penalty adds O(n² M). Then O(m p r²) for
    m points, or O(m M²).

    Raises:
        OptionError: the feature map belongs to another kernel.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF, ManifoldFeatures
        >>> from ovkgp.kernels import ManifoldKernel, neighbor_laplacian
        >>> X = torch.rand(40, 2)
        >>> kernel = ManifoldKernel(RBFKernel(ard_num_dims=2), X, neighbor_laplacian(X), strength=0.5)
        >>> features = ManifoldFeatures(ORFF(kernel.base_kernel, num_frequencies=20, random_state=0), kernel)
        >>> features(X[:5]).shape
        torch.Size([5, 40])
    """

    def __init__(self, features: FeatureMap, kernel: ManifoldKernel):
        super().__init__()
        if not isinstance(kernel, ManifoldKernel):
            raise KernelTypeError(f"ManifoldFeatures belong to a ManifoldKernel, got {type(kernel).__name__}.")
        if not isinstance(features, FeatureMap):
            raise KernelTypeError(f"expected a feature map such as ORFF(kernel), got {type(features).__name__}.")
        if features.kernel is not kernel.base_kernel:
            raise OptionError(
                "the feature map belongs to another kernel; make it from the base kernel: "
                "ManifoldFeatures(ORFF(kernel.base_kernel), kernel)."
            )
        self.features, self.kernel = features, kernel
        self._memory = ModuleCache()

    @property
    def num_outputs(self) -> int:
        """p."""
        return self.features.num_outputs

    @property
    def num_features(self) -> int:
        """The number of columns of Φ_M, that of Φ."""
        return self.features.num_features

    def over(self, kernel: ManifoldKernel) -> ManifoldFeatures:
        other = super().over(kernel)
        other.features, other._memory = self.features.over(kernel.base_kernel), ModuleCache()
        return other

    def forward(self, X: Tensor) -> LinearOperator:
        """Φ_M(X), of size (n·p) × num_features, for X (..., n, d)."""
        X = self.check(X)
        Phi = self.features(X)
        if not self.kernel.is_penalised:
            return Phi
        prior = self._weight_prior(X)
        if prior.separable:
            return FeatureOperator(_whitened(Phi.features, prior.chol), Phi.factor, num_outputs=Phi.num_outputs)
        features = _whitened(to_dense(Phi), prior.chol)
        return FeatureOperator(features, torch.ones(1, 1).to(features), num_outputs=1)

    def _weight_prior(self, like: Tensor) -> WeightPrior:
        key = like.dtype, like.device, self.features.num_features
        return self._memory.of([self], key, lambda: self._compute_prior(self.kernel.X.to(like)))

    def _compute_prior(self, X: Tensor) -> WeightPrior:
        penalty, strength, probe = self.kernel.penalty, self.kernel.strength, self.features(X[:1])
        if not _has_scalar_size(probe, penalty, len(X)):
            return WeightPrior(_factor(strength, _gram_by_columns(self.features(X), penalty)), False)
        gram, scale = self._scalar_gram(X), _common_scale(probe, self.kernel.base_kernel)
        if scale is not None:
            return WeightPrior(_factor(strength.to(scale) * scale, gram), True)
        eye = torch.eye(probe.num_outputs, dtype=X.dtype, device=X.device)
        return WeightPrior(_factor(strength, probe.gram_from_scalar_features(probe, gram, eye)), False)

    def _scalar_gram(self, X: Tensor) -> Tensor:
        """φᵀ M φ (..., M, M), a chunk of points at a time for a sparse M with a row a point."""
        penalty, num_points = self.kernel.penalty, len(X)
        scalar_features = _waves(self.features(X[:1]))
        size = max(CHUNK_ENTRIES // (scalar_features.shape[-1] * scalar_features.shape[-2]), 1)
        if size >= num_points or not penalty.is_sparse or penalty.size != num_points:
            scalar_features = _waves(self.features(X))
            return scalar_features.mT @ (penalty @ scalar_features)
        total = 0.0
        for start in range(0, num_points, size):
            stop = min(start + size, num_points)
            reached, rows = penalty.rows(start, stop, X)
            tied = blockwise_product(rows, _waves(self.features(X[reached])))
            total = total + _waves(self.features(X[start:stop])).mT @ tied
        return total


def _whitened(features: Tensor, chol: Tensor) -> Tensor:
    """φ C⁻ᵀ."""
    return torch.linalg.solve_triangular(chol, features.mT, upper=False).mT


def _factor(strength: Tensor, gram: Tensor) -> Tensor:
    """The Cholesky factor of I + s G."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    try:
        return psd_safe_cholesky(eye + strength.to(gram)[..., None, None] * (gram + gram.mT) / 2)
    except (NanError, NotPSDError) as error:
        raise FactorizationError(
            f"the prior precision of the weights could not be factorised at strength {strength.tolist()} ({error}): take a "
            "smaller strength or penalty, or double precision."
        ) from error


def _has_scalar_size(probe: LinearOperator, penalty: Penalty, num_points: int) -> bool:
    """Whether Φᵀ M Φ follows from φᵀ M φ: Φ is scalar features times factors, and M acts on the rows of the features."""
    parts = getattr(probe, "parts", (probe,))
    if not all(isinstance(part, FeatureOperator) and part.num_outputs == probe.num_outputs for part in parts):
        return False
    return penalty.size in (num_points, num_points * _waves(probe).shape[-2])


def _common_scale(probe: LinearOperator, kernel: Kernel) -> Tensor | None:
    """t where Φ = φ ⊗ B with BᵀB = t I, so that M̃ = (I + s t φᵀMφ) ⊗ I; None elsewhere."""
    if not isinstance(probe, FeatureOperator) or not probe.is_separable:
        return None
    inner = probe.factor.mT @ probe.factor
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(-1)
    if inner.shape[-1] == 1:
        return scale
    rest = inner.detach() - torch.diag_embed(scale.detach().unsqueeze(-1).expand(inner.shape[:-1]))
    is_alike = bool(rest.abs().amax() <= 1e-12 * scale.abs().amax())
    return scale if is_alike and _keeps_its_shape(kernel) else None


def _keeps_its_shape(kernel: Kernel) -> bool:
    """Whether hyperparameters can but scale the output matrix: else the gradient would leave the form that it has here."""
    while isinstance(kernel, ScaleKernel):
        kernel = kernel.base_kernel
    return isinstance(kernel, DecomposableKernel) and not list(kernel.output_module.parameters())


def _waves(Phi: LinearOperator) -> Tensor:
    """The scalar features of all parts side by side, (..., rows, M)."""
    parts = [part.features for part in getattr(Phi, "parts", (Phi,))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _gram_by_columns(Phi: LinearOperator, penalty: Penalty) -> Tensor:
    """Φᵀ M Φ (..., r, r) for any Φ and M, some columns of Φ at a time. O(n p r²) and the products with M."""
    rows, r = Phi.shape[-2:]
    eye = torch.eye(r, dtype=Phi.dtype, device=Phi.device).expand(*Phi.batch_shape, r, r)
    parts = [Phi.mT @ (penalty @ (Phi @ some)) for some in eye.split(max(CHUNK_ENTRIES // rows, 1), -1)]
    return torch.cat(parts, -1)
