"""Feature maps as GPyTorch kernels that stay low-rank in training and prediction.

Predictions use the r weights: with C = I + Φᵀ N⁻¹ Φ, mean m_* + Φ_* C⁻¹ Φᵀ N⁻¹ (y − m) and covariance Φ_* C⁻¹ Φ_*ᵀ.
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

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features.covariance import (
    DenseCapacitance,
    FeatureCovariance,
    FeatureCrossCovariance,
    KroneckerCapacitance,
    NoisyFeatureCovariance,
)
from ovkgp.features.feature_map import FeatureMap
from ovkgp.kernels import OperatorValuedKernel


class ORFFKernel(OperatorValuedKernel):
    """Kernel Φ(x) Φ(z)ᵀ of a feature map, for GPyTorch models.

    It works in an `ExactGP` with a Gaussian or multitask Gaussian likelihood of any rank, scaled by a `ScaleKernel`,
    and in sums with other `ORFFKernel`s (see `FeatureSumKernel` for sums of scaled ones; a sum with a kernel that is
    not low-rank is dense). Mean and variance condition on the observed outputs only; NaN marks a missing one.

    Parameters
    ----------
    orff : FeatureMap
        `ORFF` or another feature map. Its kernel's hyperparameters are those of this kernel.

    Notes
    -----
    Complexity of the marginal likelihood and its gradient, with M = 2D scalar features: O(n M² + M³ + p³) time
    for a decomposable kernel, O(n M² + r³) with r = `orff.num_features` for the others; memory O(n M + r²). No np × np
    matrix is formed unless there are fewer observations than features. If n·p is not much larger than M, the exact
    kernel is as fast and does not underestimate the variance far from the data.

    Examples
    --------
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
            raise KernelTypeError(f"orff must be a feature map such as ORFF(kernel), got {type(orff).__name__}.")
        self.orff = orff

    @property
    def num_outputs(self) -> int:
        return self.orff.num_outputs

    @property
    def is_stationary(self) -> bool:
        return self.orff.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        dtype = torch.promote_types(x1.dtype, x2.dtype)
        x1, x2, same = x1.to(dtype), x2.to(dtype), _are_same(x1, x2)
        left = self.orff(x1)
        if diag:
            return left.squared_rows() if same else left.squared_rows(self.orff(x2))
        if same:
            return FeatureCovariance(left)
        return FeatureCrossCovariance(left, DeferredFeatures(x2, self.orff, left.shape[-1]))

    def __add__(self, other: Kernel) -> Kernel:
        return FeatureSumKernel(self) + other

    def prediction_strategy(self, train_inputs, train_prior_dist, train_labels, likelihood):
        return FeaturePredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)


class DeferredFeatures(LinearOperator):
    """Φ(X), computed at the first product: prediction in weight space never needs it for the training points."""

    def __init__(self, X: Tensor, feature_map: FeatureMap, num_columns: int, scale: float | Tensor = 1.0):
        super().__init__(X, feature_map=feature_map, num_columns=num_columns, scale=scale)
        self.X, self.feature_map, self.num_columns, self.scale = X, feature_map, num_columns, scale
        self._versions = self._parameter_versions()

    def _parameter_versions(self) -> list[int]:
        return [parameter._version for parameter in self.feature_map.parameters()]

    @cached(name="features")
    def evaluate_kernel(self) -> LinearOperator:
        if self._versions != self._parameter_versions():
            raise OptionError("The hyperparameters changed since this covariance was computed. Call the kernel again.")
        return self.feature_map(self.X)._mul_constant(self.scale)

    def representation(self) -> tuple[Tensor, ...]:
        return self.evaluate_kernel().representation()

    def representation_tree(self):
        return self.evaluate_kernel().representation_tree()

    @property
    def num_outputs(self) -> int:
        return self.evaluate_kernel().num_outputs

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
        return DeferredFeatures(self.X, self.feature_map, self.num_columns, self.scale * other)

    def to(self, *args, **kwargs) -> LinearOperator:
        return self.evaluate_kernel().to(*args, **kwargs)  # never the map, which belongs to the user

    def type(self, dtype: torch.dtype) -> LinearOperator:
        return self.evaluate_kernel().type(dtype)

    def to_dense(self) -> Tensor:
        return self.evaluate_kernel().to_dense()


class FeatureSumKernel(AdditiveKernel):
    """Sum of `ORFFKernel`s: one low-rank kernel with all their features.

    ``orff_kernel + orff_kernel`` makes one. Pass scaled terms to the class, ``FeatureSumKernel(ScaleKernel(a),
    ScaleKernel(b))``: ``ScaleKernel(a) + ScaleKernel(b)`` is GPyTorch's `AdditiveKernel`, which gives the same
    predictions through the same Woodbury solves, but forms the (m·p) × (n·p) matrix between test and training points.

    Parameters
    ----------
    *kernels : Kernel
        `ORFFKernel`s, scaled or not.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
    >>> from ovkgp.features import ORFF, FeatureSumKernel, ORFFKernel
    >>> smooth = ORFFKernel(ORFF(RBFKernel(ard_num_dims=2), 50, random_state=0))
    >>> rough = ORFFKernel(ORFF(MaternKernel(ard_num_dims=2), 50, random_state=1))
    >>> FeatureSumKernel(ScaleKernel(smooth), ScaleKernel(rough))(torch.randn(4, 2)).shape
    torch.Size([4, 4])
    """

    def __add__(self, other: Kernel) -> Kernel:
        kernels = [*self.kernels, *(other.kernels if isinstance(other, AdditiveKernel) else [other])]
        is_low_rank = isinstance(other, ORFFKernel | FeatureSumKernel)
        return FeatureSumKernel(*kernels) if is_low_rank else AdditiveKernel(*kernels)

    def prediction_strategy(self, train_inputs, train_prior_dist, train_labels, likelihood):
        return FeaturePredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)


def _are_same(x1: Tensor, x2: Tensor) -> bool:
    """Return whether two inputs may share their features: never if a gradient distinguishes them."""
    if x1 is x2:
        return True
    tracked = torch.is_grad_enabled() and (x1.requires_grad or x2.requires_grad)
    return not tracked and torch.equal(x1, x2)


class FeaturePredictionStrategy(DefaultPredictionStrategy):
    """Exact prediction in weight space; covariances that are not low-rank use GPyTorch's default."""

    @property
    @cached(name="noisy_features")
    def noisy(self) -> NoisyFeatureCovariance | None:
        """Return the training covariance if it is Φ Φᵀ + N, else None."""
        covariance = self.lik_train_train_covar.evaluate_kernel()
        if not isinstance(covariance, NoisyFeatureCovariance):
            return None
        return covariance.detach() if settings.detach_test_caches.on() else covariance

    @property
    def uses_weight_space(self) -> bool:
        """Whether to predict in weight space: there are fewer features than observations, or missing observations."""
        return self.noisy is not None and (not self.noisy.is_wide or bool(self.train_labels.isnan().any()))

    @property
    @cached(name="weight_posterior")
    def weight_posterior(self) -> tuple[Tensor, DenseCapacitance | KroneckerCapacitance]:
        """Return the mean C⁻¹ Φᵀ N⁻¹ (y − m), (..., r, 1), of the weights, and the inverse C of their covariance."""
        residual = (self.train_labels - self.train_prior_dist.loc).unsqueeze(-1)
        observed = ~residual.isnan()
        if observed.all():
            return self.noisy.weights(residual), self.noisy.capacitance
        return self.noisy.observed_weights(residual, observed)

    def exact_prediction(self, test_mean: Tensor, test_test_covar, test_train_covar):
        prior = to_linear_operator(test_test_covar).evaluate_kernel()
        if not self.uses_weight_space or not isinstance(prior, FeatureCovariance):
            return super().exact_prediction(test_mean, test_test_covar, test_train_covar)
        weights, capacitance = self.weight_posterior
        features = prior.root
        mean = test_mean + features._matmul(weights).squeeze(-1)
        if settings.skip_posterior_variances.on():
            return mean, ZeroLinearOperator(*test_test_covar.shape)
        return mean, RootLinearOperator(capacitance.posterior_root(features))
