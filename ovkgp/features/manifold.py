"""Manifold regularization in weight space (BT-112, Algorithm 6).

A penalty on the values of f = Φθ is one on the weights, θᵀ M̃ θ with M̃ = I + s Φ(X)ᵀ M Φ(X): the prior N(0, M̃⁻¹).
With M̃ = L Lᵀ the features Φ_M(x) = Φ(x) L⁻ᵀ have weights N(0, I) again, and Φ_M Φ_Mᵀ is the kernel of `ManifoldKernel`
made from Φ Φᵀ (ID-7). A combination V of latent outputs multiplies the rows of Φ_M (BT-115).
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
from ovkgp.features.operators import FEATURE_CHUNK_ENTRIES, FeatureOperator
from ovkgp.kernels import DecomposableKernel, ManifoldKernel
from ovkgp.kernels.manifold.kernel import combine_rows
from ovkgp.kernels.manifold.module_cache import ModuleCache
from ovkgp.kernels.manifold.penalties import Penalty, multiply_blockwise


class WeightPrior(NamedTuple):
    """Cholesky factor L of M̃ (..., r, r), or if `separable`, of the part (..., M, M) before ⊗ I."""

    chol: Tensor
    separable: bool


class ManifoldFeatures(FeatureMap):
    """Features Φ_M = Φ L⁻ᵀ of a `ManifoldKernel`, from those of its base kernel.

    For a sparse penalty (n, n), such as a graph Laplacian L, only φᵀLφ is needed of the n points, with M scalar
    features per point; Φ_M = (φ C⁻ᵀ) ⊗ B stays separable if Φ = φ ⊗ B with BᵀB a multiple of the identity (one factor
    column, the identity, the simplex code). No matrix with n·p rows and columns is formed.

    Parameters
    ----------
    features : FeatureMap
        Feature map Φ of the base kernel, such as `ORFF(kernel.base_kernel)`.
    kernel : ManifoldKernel
        Kernel with its points, penalty and strength; `features.kernel` must be its base kernel.

    Raises
    ------
    OptionError
        If the feature map belongs to another kernel.

    Notes
    -----
    Complexity: once per set of hyperparameters O(nnz(L)·M + n M² + r³) time for r features, M³ for r³ if Φ_M
    stays separable, and memory for one chunk of rows (n M if a gradient is required); a dense penalty adds O(n² M).
    Then O(m p r²) for m points, or O(m M²).

    Examples
    --------
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
            raise KernelTypeError(f"kernel must be a ManifoldKernel, got {type(kernel).__name__}.")
        if not isinstance(features, FeatureMap):
            raise KernelTypeError(
                f"features must be a feature map such as ORFF(kernel), got {type(features).__name__}."
            )
        if features.kernel is not kernel.base_kernel:
            raise OptionError(
                "features must be a feature map of kernel.base_kernel, got one of another kernel. Use ManifoldFeatures(ORFF(kernel.base_kernel), kernel)."
            )
        self.features, self.kernel = features, kernel
        self._cache = ModuleCache()

    @property
    def num_outputs(self) -> int:
        """Number p of outputs."""
        V = self.kernel.combination
        return self.features.num_outputs if V is None else len(V)

    @property
    def num_features(self) -> int:
        """Number of columns of Φ_M, that of Φ."""
        return self.features.num_features

    def over(self, kernel: ManifoldKernel) -> ManifoldFeatures:
        other = super().over(kernel)
        other.features, other._cache = self.features.over(kernel.base_kernel), ModuleCache()
        return other

    def forward(self, X: Tensor) -> LinearOperator:
        """Return Φ_M(X), of size (n·p) × num_features, for X (..., n, d)."""
        X = self.check(X)
        Phi, V = self.features(X), self.kernel.combination
        if not self.kernel.is_penalized and V is None:
            return Phi
        prior = self._weight_prior(X)
        if prior.separable:
            factor = Phi.factor if V is None else V.to(Phi.factor) @ Phi.factor
            return FeatureOperator(_whiten(Phi.features, prior.chol), factor, num_outputs=factor.shape[-2])
        rows = to_dense(Phi) if V is None else combine_rows(V, to_dense(Phi))
        features = _whiten(rows, prior.chol)
        return FeatureOperator(features, torch.ones(1, 1).to(features), num_outputs=1)

    def _weight_prior(self, like: Tensor) -> WeightPrior:
        key = like.dtype, like.device, self.features.num_features
        return self._cache.get_or_compute([self], key, lambda: self._compute_prior(self.kernel.X.to(like)))

    def _compute_prior(self, X: Tensor) -> WeightPrior:
        penalty, strength, probe = self.kernel.penalty, self.kernel.strength, self.features(X[:1])
        if not _needs_only_scalar_gram(probe, penalty, len(X)):
            return WeightPrior(_factorize(strength, _gram_by_columns(self.features(X), penalty)), False)
        gram, scale = self._scalar_gram(X), _find_common_scale(probe, self.kernel.base_kernel)
        if scale is not None:
            return WeightPrior(_factorize(strength.to(scale) * scale, gram), True)
        eye = torch.eye(probe.num_outputs, dtype=X.dtype, device=X.device)
        return WeightPrior(_factorize(strength, probe.gram_from_scalar_features(probe, gram, eye)), False)

    def _scalar_gram(self, X: Tensor) -> Tensor:
        """Return φᵀ M φ (..., M, M), a chunk of points at a time for a sparse M with one row per point."""
        penalty, num_points = self.kernel.penalty, len(X)
        scalar_features = _stack_scalar_features(self.features(X[:1]))
        size = max(FEATURE_CHUNK_ENTRIES // (scalar_features.shape[-1] * scalar_features.shape[-2]), 1)
        if size >= num_points or not penalty.is_sparse or penalty.size != num_points:
            scalar_features = _stack_scalar_features(self.features(X))
            return scalar_features.mT @ (penalty @ scalar_features)
        total = 0.0
        for start in range(0, num_points, size):
            stop = min(start + size, num_points)
            reached, rows = penalty.rows(start, stop, X)
            tied = multiply_blockwise(rows, _stack_scalar_features(self.features(X[reached])))
            total = total + _stack_scalar_features(self.features(X[start:stop])).mT @ tied
        return total


def _whiten(features: Tensor, chol: Tensor) -> Tensor:
    """Return φ C⁻ᵀ."""
    return torch.linalg.solve_triangular(chol, features.mT, upper=False).mT


def _factorize(strength: Tensor, gram: Tensor) -> Tensor:
    """Return the Cholesky factor of I + s G."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    try:
        return psd_safe_cholesky(eye + strength.to(gram)[..., None, None] * (gram + gram.mT) / 2)
    except (NanError, NotPSDError) as error:
        raise FactorizationError(
            f"Factorization of the prior precision of the weights failed at strength {strength.tolist()} ({error}). Try a smaller strength or penalty, or double precision."
        ) from error


def _needs_only_scalar_gram(probe: LinearOperator, penalty: Penalty, num_points: int) -> bool:
    """Return whether Φᵀ M Φ follows from φᵀ M φ: Φ is scalar features times factors, and M acts on the rows of φ."""
    parts = getattr(probe, "parts", (probe,))
    if not all(isinstance(part, FeatureOperator) and part.num_outputs == probe.num_outputs for part in parts):
        return False
    return penalty.size in (num_points, num_points * _stack_scalar_features(probe).shape[-2])


def _find_common_scale(probe: LinearOperator, kernel: Kernel) -> Tensor | None:
    """Return t if Φ = φ ⊗ B with BᵀB = t I, so that M̃ = (I + s t φᵀMφ) ⊗ I; else None."""
    if not isinstance(probe, FeatureOperator) or not probe.is_separable:
        return None
    inner = probe.factor.mT @ probe.factor
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(-1)
    if inner.shape[-1] == 1:
        return scale
    rest = inner.detach() - torch.diag_embed(scale.detach().unsqueeze(-1).expand(inner.shape[:-1]))
    is_alike = bool(rest.abs().amax() <= 1e-12 * scale.abs().amax())
    return scale if is_alike and _has_fixed_shape(kernel) else None


def _has_fixed_shape(kernel: Kernel) -> bool:
    """Return whether hyperparameters can only scale the output matrix, so that gradients keep its form."""
    while isinstance(kernel, ScaleKernel):
        kernel = kernel.base_kernel
    return isinstance(kernel, DecomposableKernel) and not list(kernel.output_module.parameters())


def _stack_scalar_features(Phi: LinearOperator) -> Tensor:
    """Concatenate the scalar features of all parts, (..., rows, M)."""
    parts = [part.features for part in getattr(Phi, "parts", (Phi,))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _gram_by_columns(Phi: LinearOperator, penalty: Penalty) -> Tensor:
    """Return Φᵀ M Φ (..., r, r) for any Φ and M, some columns of Φ at a time: O(n p r²) and the products with M."""
    rows, r = Phi.shape[-2:]
    eye = torch.eye(r, dtype=Phi.dtype, device=Phi.device).expand(*Phi.batch_shape, r, r)
    parts = [Phi.mT @ (penalty @ (Phi @ some)) for some in eye.split(max(FEATURE_CHUNK_ENTRIES // rows, 1), -1)]
    return torch.cat(parts, -1)
