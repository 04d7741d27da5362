"""Posteriors in weight space, N(m + Φ_* θ̂, Φ_* C⁻¹ Φ_*ᵀ), and the floor that bounds their variance from below.

With finitely many features variances far from the data are underestimated; `VarianceFloor` raises them to those of the
exact kernel given the function at landmarks.
"""

from __future__ import annotations

from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.features import FeatureMap
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.algebra.dense import gram_in_form, kronecker_in_form, safe_cholesky
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import choose_landmarks
from ovkgp.inference.posteriors.exact import ProcessPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, PAIR_ROWS, FunctionDraws, Process, prior_covariance
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

NUGGET = 1e-6  # fraction of the prior variance added to K(Z, Z) at the landmarks, which is singular for smooth kernels

MAX_LANDMARK_ENTRIES = 3000
"""Observed entries at the landmarks that are used if the kernel is not a scalar kernel times a matrix."""


class VarianceFloor:
    """Covariance of the exact kernel given the function at landmarks Z (k, d) with observed outputs (k, p)."""

    def __init__(self, kernel: Kernel, landmarks: Tensor, observed: Tensor):
        self.kernel, self.num_outputs = kernel, observed.shape[1]
        parts = components(kernel)
        self.is_separable = parts is not None and len(parts) == 1 and bool(observed.all())
        if self.is_separable:
            ((self.scalar, self.output_matrix),) = parts
            self.landmarks, self.entries = landmarks, slice(None)
        else:
            enough = int((observed.sum(1).cumsum(0) <= max(MAX_LANDMARK_ENTRIES, self.num_outputs)).sum())
            self.landmarks, self.entries = landmarks[:enough], observed[:enough].flatten()

    @cached_property
    def chol(self) -> Tensor:
        """Cholesky factor of K(Z, Z), computed with the first variance."""
        with torch.no_grad():
            gram = self._cross(self.landmarks)[self.entries]
            return safe_cholesky(gram + NUGGET * gram.diagonal().mean() * torch.eye(len(gram)).to(gram))

    def _cross(self, X: Tensor) -> Tensor:
        kernel = self.scalar if self.is_separable else self.kernel
        return to_dense(evaluate_kernel(kernel, X, self.landmarks))[:, self.entries]

    def covariance(self, X: Tensor, form: str) -> Tensor:
        """Compute the conditional covariance at X (m, d), in the given form."""
        half = torch.linalg.solve_triangular(self.chol, self._cross(X).mT, upper=False)  # (k, m) or (entries, m·p)
        if not self.is_separable:
            prior = prior_covariance(self.kernel, X, self.num_outputs, form)
            return prior - gram_in_form(half.mT, form, self.num_outputs)
        scalar_form = "full" if form == "full" else "diag"
        residual = prior_covariance(self.scalar, X, 1, scalar_form) - gram_in_form(half.mT, scalar_form, 1)
        return kronecker_in_form(residual, self.output_matrix, form)

    def lift(self, X: Tensor, covariance: Tensor, form: str) -> Tensor:
        """Raise the diagonal of `covariance` to the floor."""
        floor = self.covariance(X, form)
        if form == "diag":
            return torch.maximum(covariance, floor)
        # add the floor's own covariance, scaled to the missing variances: positive semi-definite and smooth
        variance, minimum = (c.diagonal(dim1=-2, dim2=-1) for c in (covariance, floor))
        missing = (minimum - variance).clamp_min(0) / minimum.clamp_min(torch.finfo(minimum.dtype).tiny)
        weight = torch.where(missing > 0, torch.where(missing > 0, missing, 1.0).sqrt(), 0.0)  # no slope of √ at zero
        return covariance + weight.unsqueeze(-1) * floor * weight.unsqueeze(-2)


def make_variance_floor(kernel: Kernel, data: Observations, num_landmarks: int = 1000) -> VarianceFloor:
    """Make the variance floor of a kernel from landmarks chosen from data."""
    found = choose_landmarks(data, num_landmarks)
    return VarianceFloor(kernel, found.X, found.observed)


class WeightPosterior(ProcessPosterior):
    """Posterior of a process with finitely many features, from the posterior `system` of the weights of `feature_map`.

    `variance_floor`, if not None, bounds the variance from below, except that of function draws.
    """

    def __init__(
        self,
        process: Process,
        feature_map: FeatureMap,
        system,
        mean: OutputMean,
        output_noise: Tensor,
        num_dims: int,
        variance_floor: VarianceFloor | None = None,
        statistics=None,
    ):
        super().__init__(process, mean, output_noise, num_dims)
        self.feature_map, self.system = feature_map, system
        self.variance_floor, self.statistics = variance_floor, statistics
        self.log_evidence = float(system.log_density)

    @property
    def weights(self) -> Tensor:
        """Posterior mean of the weights (r,)."""
        return self.system.weights

    def noise_path(self, multipliers) -> Tensor:
        """Compute log p(Y) with the noise multiplied by each of `multipliers` (k,), by one eigendecomposition (BT-76)."""
        return self.system.path(multipliers)

    def path_weights(self, multiplier: float) -> Tensor:
        """Compute the posterior mean of the weights (r,) with the noise multiplied by a number."""
        return self.system.path_weights(multiplier)

    def for_process(self, process: Process) -> WeightPosterior:
        """Return the posterior of another process with the same weights, without variance floor."""
        return WeightPosterior(process, self.feature_map, self.system, self.mean, self.output_noise, self.num_dims)

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // (self.system.num_features * (1 if form == "none" else self.num_outputs))

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        features = self.process.features(self.feature_map, X)
        mean = self.prior_mean(X) + (features @ self.weights).unflatten(-1, (-1, self.num_outputs))
        if form == "none":
            return mean, None
        covariance = self.system.variance(features, form, num_outputs=self.num_outputs)
        return mean, covariance if self.variance_floor is None else self.variance_floor.lift(X, covariance, form)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        k = check_integer("the number of draws", k)
        generator = torch.Generator().manual_seed(as_seed(random_state))
        weights = self.system.draw(k, generator)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = self.process.features(self.feature_map, X) @ weights[index].mT
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        def evaluate_pairs(X: Tensor, index: Tensor) -> Tensor:
            parts = zip(X.split(PAIR_ROWS), index.split(PAIR_ROWS), strict=True)
            return torch.cat([self._multiply_pairs(x, weights[own]) for x, own in parts])

        return FunctionDraws(evaluate, k, self.num_dims, self.draw_noise, evaluate_pairs)

    def _multiply_pairs(self, X: Tensor, weights: Tensor) -> Tensor:
        """Compute m(x_i) + Φ(x_i) θ_i (m, p) for weights θ (m, r)."""
        features = self.process.features(self.feature_map, X)
        if type(features) is FeatureOperator and features.is_separable:
            blocks = weights.unflatten(-1, (features.features.shape[-1], -1))  # (m, M, q)
            values = (features.features.unsqueeze(-2) @ blocks).squeeze(-2) @ features.factor.mT
        else:
            values = (features @ weights.mT).unflatten(0, (len(X), -1)).diagonal(dim1=0, dim2=2).mT
        return self.prior_mean(X) + values
