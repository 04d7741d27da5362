"""A feature map as a GPyTorch kernel that stays low-rank in training *and* in prediction.

`ORFFKernel` returns Φ Φᵀ as an operator; a Gaussian likelihood's noise turns it into a Woodbury solver
(`covariance`), and its prediction strategy works with the r weights: with C = I + Φᵀ N⁻¹ Φ,

    mean  m_* + Φ_* C⁻¹ Φᵀ N⁻¹ (y − m),      covariance  Φ_* C⁻¹ Φ_*ᵀ.
"""

from __future__ import annotations

import torch
from gpytorch import settings
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from gpytorch.utils.memoize import cached
from linear_operator import LinearOperator, to_linear_operator
from linear_operator.operators import RootLinearOperator, ZeroLinearOperator
from torch import Tensor

from ovkgp.exceptions import KernelTypeError
from ovkgp.features.covariance import FeatureCovariance, FeatureCrossCovariance, NoisyFeatureCovariance
from ovkgp.features.feature_map import FeatureMap
from ovkgp.kernels import OperatorValuedKernel


class ORFFKernel(OperatorValuedKernel):
    """The kernel Φ(x) Φ(z)ᵀ of a feature map, for GPyTorch models.

    Args:
        orff: an `ORFF` or any other `FeatureMap`. Its kernel's hyperparameters are this kernel's.

    Works in an `ExactGP` with a Gaussian or multitask Gaussian likelihood of any rank, scaled by a `ScaleKernel`, and
    in sums with other `ORFFKernel`s. (A sum with a kernel that is not low-rank is dense, as it must be.)

    Cost of the marginal likelihood and its gradient: O(n M² + r³) time and O(n M + r²) memory with M = 2D scalar
    features and r = M · rank weights; no np × np matrix is formed.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.features import ORFF, ORFFKernel
        >>> from ovkgp.kernels import DecomposableKernel
        >>> kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
        >>> ORFFKernel(ORFF(kernel, num_frequencies=50, random_state=0))(torch.randn(4, 2)).shape
        torch.Size([12, 12])
    """

    def __init__(self, orff: FeatureMap):
        super().__init__()
        if not isinstance(orff, FeatureMap):
            raise KernelTypeError(f"ORFFKernel wraps a feature map such as ORFF(kernel), got {type(orff).__name__}.")
        self.orff = orff

    @property
    def num_outputs(self) -> int:
        return self.orff.num_outputs

    @property
    def is_stationary(self) -> bool:
        return self.orff.kernel is not None and self.orff.kernel.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        left = self.orff(x1)
        same = x1 is x2 or torch.equal(x1, x2)
        if diag:
            return left.squared_rows() if same else left.squared_rows(self.orff(x2))
        return FeatureCovariance(left) if same else FeatureCrossCovariance(left, DeferredFeatures(x2, self.orff))

    def __add__(self, other: Kernel) -> Kernel:
        return FeatureSumKernel(self, other) if isinstance(other, ORFFKernel) else super().__add__(other)

    def prediction_strategy(self, train_inputs, train_prior_dist, train_labels, likelihood):
        return FeaturePredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)


class DeferredFeatures(LinearOperator):
    """Φ(X), computed when somebody multiplies by it: prediction in weight space never does for the training points."""

    def __init__(self, X: Tensor, feature_map: FeatureMap, scale: float | Tensor = 1.0):
        super().__init__(X, feature_map=feature_map, scale=scale)
        self.X, self.feature_map, self.scale = X, feature_map, scale

    @cached(name="features")
    def evaluate_kernel(self) -> LinearOperator:
        return self.feature_map(self.X)._mul_constant(self.scale)

    def representation(self) -> tuple[Tensor, ...]:
        return self.evaluate_kernel().representation()

    def representation_tree(self):
        return self.evaluate_kernel().representation_tree()

    @property
    def num_outputs(self) -> int:
        return self.evaluate_kernel().num_outputs

    @property
    def num_columns(self) -> int:
        return self.feature_map.num_features

    def _size(self) -> torch.Size:
        batch = torch.broadcast_shapes(self.X.shape[:-2], self.feature_map.batch_shape)
        return torch.Size((*batch, self.X.shape[-2] * self.feature_map.num_outputs, self.num_columns))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.evaluate_kernel().mT

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.evaluate_kernel()._matmul(rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self.evaluate_kernel()._t_matmul(rhs)

    def _mul_constant(self, other: float | Tensor) -> DeferredFeatures:
        return DeferredFeatures(self.X, self.feature_map, self.scale * other)

    def to_dense(self) -> Tensor:
        return self.evaluate_kernel().to_dense()


class FeatureSumKernel(AdditiveKernel):
    """The sum of `ORFFKernel`s: one low-rank kernel with all their features.

    It predicts in weight space; a GPyTorch `AdditiveKernel` of them gives the same answer through Woodbury solves, but
    forms the (m·p) × (n·p) matrix between test and training points.
    """

    def __add__(self, other: Kernel) -> Kernel:
        if isinstance(other, ORFFKernel | FeatureSumKernel):
            return FeatureSumKernel(*self.kernels, *(other.kernels if isinstance(other, AdditiveKernel) else [other]))
        return super().__add__(other)

    def prediction_strategy(self, train_inputs, train_prior_dist, train_labels, likelihood):
        return FeaturePredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)


class FeaturePredictionStrategy(DefaultPredictionStrategy):
    """Exact prediction in weight space; anything that is not low-rank is left to GPyTorch's default."""

    @property
    @cached(name="noisy_features")
    def noisy(self) -> NoisyFeatureCovariance | None:
        """The training covariance, where it is Φ Φᵀ + N with fewer features than observations."""
        covariance = self.lik_train_train_covar.evaluate_kernel()
        is_thin = isinstance(covariance, NoisyFeatureCovariance) and not covariance.is_wide
        if not is_thin or self.train_labels.isnan().any():
            return None
        return covariance.detach() if settings.detach_test_caches.on() else covariance

    @property
    @cached(name="weight_mean")
    def weight_mean(self) -> Tensor:
        """C⁻¹ Φᵀ N⁻¹ (y − m), (..., r, 1)."""
        residual = (self.train_labels - self.train_prior_dist.loc).unsqueeze(-1)
        return self.noisy.weights(residual)

    def exact_prediction(self, test_mean: Tensor, test_test_covar, test_train_covar):
        prior = to_linear_operator(test_test_covar).evaluate_kernel()
        if self.noisy is None or not isinstance(prior, FeatureCovariance):
            return super().exact_prediction(test_mean, test_test_covar, test_train_covar)
        features = prior.root
        mean = test_mean + features._matmul(self.weight_mean).squeeze(-1)
        if settings.skip_posterior_variances.on():
            return mean, ZeroLinearOperator(*test_test_covar.shape)
        chol = self.noisy.capacitance_chol
        eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device)
        inverse_root = torch.linalg.solve_triangular(chol, eye, upper=False).mT
        return mean, RootLinearOperator(features._matmul(inverse_root))
