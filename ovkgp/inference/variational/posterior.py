"""The posterior of a variational model: f(x) = m(x) + Φ(x) w + residual, with w ~ q = N(μ, S).

    E f = m + Φ μ,     Cov f = Φ S Φᵀ + K − Φ Φᵀ (the residual, with inducing points; nothing with a feature map).

A new observation follows the likelihood averaged over this Gaussian. Random functions have the residual of a prior draw
(Matheron's rule): f = m + f̃ + Φ (w − w̃).
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.features import FeatureMap
from ovkgp.inference.algebra.dense import psd_root
from ovkgp.inference.likelihoods import Likelihood, LikelihoodPrediction
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ProcessPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, FunctionDraws, Process, draw_normal, spawn_seeds
from ovkgp.inference.posteriors.prediction import FORMS, Prediction, check_form
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.rows import Rows, make_rows


class VariationalPosterior(ProcessPosterior):
    """Posterior of a process under q(w), for a feature map Φ (with a residual if `InducingPoints`).

    `output_noise` (p, p) is the covariance of a Gaussian likelihood, else None; `elbo` replaces the log evidence.
    """

    no_residuals = (
        "Whitened residuals are not supported with a variational posterior. Condition an OperatorValuedGP on X and Y."
    )

    def __init__(
        self,
        process: Process,
        feature_map: FeatureMap,
        q: WeightGaussian,
        mean: OutputMean,
        likelihood: Likelihood,
        output_noise: Tensor | None,
        num_dims: int,
        variance_floor: VarianceFloor | None = None,
        elbo: float = float("nan"),
    ):
        super().__init__(process, mean, output_noise, num_dims)
        self.feature_map, self.q, self.likelihood, self.variance_floor = feature_map, q, likelihood, variance_floor
        self.log_evidence = elbo

    @property
    def weights(self) -> Tensor:
        """E w (r,), in the basis of the feature map."""
        return self._to_feature_basis(self.q.mean.unsqueeze(-1)).squeeze(-1)

    def for_process(self, process: Process) -> VariationalPosterior:
        """Return the posterior of another process with the same weights."""
        parts = process, self.feature_map, self.q, self.mean, self.likelihood, self.output_noise, self.num_dims
        return VariationalPosterior(*parts, elbo=self.log_evidence)

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // (self.q.num_weights * (1 if form == "none" else self.num_outputs))

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        rows = self._rows(X)
        if form == "none":
            return self.prior_mean(X) + rows.times(self.q.mean), None
        if form == "full":
            mean, covariance = rows.times(self.q.mean), self.q.joint_covariance(rows)
        else:
            mean, covariance = self.q.marginals(rows, form)
        if isinstance(self.feature_map, InducingPoints):
            covariance = covariance + self.feature_map.residual(X, form, self._other_process())
        if self.variance_floor is not None:
            covariance = self.variance_floor.lift(X, covariance, form)
        return self.prior_mean(X) + mean, covariance

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """Predict the latent f, or with `noise` a new observation (a `LikelihoodPrediction` if it is not Gaussian)."""
        if not noise or self.noise is not None or not self.process.is_observed:
            return super().predict(X, cov, noise)
        form = max(check_form(cov), self.likelihood.predicts_from, key=FORMS.index)
        return LikelihoodPrediction(super().predict(X, form), self.likelihood)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, p) at the points X (m, d), of f or, with `noise`, of y. Complexity: O((m·p)³)."""
        if not noise or self.noise is not None or not self.process.is_observed:
            return super().sample(X, k, noise=noise, random_state=random_state)
        for_function, for_noise = spawn_seeds(random_state, 2)
        values = super().sample(X, k, random_state=for_function)
        return self.likelihood.draw(values, torch.Generator().manual_seed(for_noise))

    @torch.no_grad()
    def row_log_densities(self, data: Observations, k: int, random_state=None) -> Tensor:
        """Compute log p(y_i | f_i) (k, n) of each row at k draws of f_i from its marginal distribution. O(k n p²)."""
        found = self.predict(data.X, "output")
        mean, root = found.mean, psd_root(found.cov)  # singular if the output matrix is
        scores = draw_normal((k, *mean.shape), as_seed(random_state), mean)
        density = self.likelihood.log_density(data.Y, mean + (root @ scores.unsqueeze(-1)).squeeze(-1), data.noise)
        return density if density.dim() == 2 else density.sum(-1)

    @torch.no_grad()
    def sample_functions(self, k: int = 1, *, random_state=None, num_frequencies: int = 2000) -> FunctionDraws:
        """Draw k random functions; with inducing points, the residual's prior has `num_frequencies` random features."""
        k, seed = check_integer("k", k), as_seed(random_state)
        for_weights, for_prior = spawn_seeds(seed, 2)
        weights = self._to_feature_basis(self.q.draw(k, torch.Generator().manual_seed(for_weights)))
        prior = None
        if isinstance(self.feature_map, InducingPoints):
            prior, prior_weights = self.feature_map.prior_draws(k, for_prior, num_frequencies, self._other_process())
            weights = weights - prior_weights

        @torch.no_grad()
        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = self._features(X) @ weights[:, index]
            values = values if prior is None else values + prior(X, index)
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        return FunctionDraws(evaluate, k, self.num_dims)

    def _check_fourier_features(self) -> None:
        if not isinstance(self.feature_map, InducingPoints):  # these have the covariance with any process
            super()._check_fourier_features()

    def _features(self, X: Tensor) -> LinearOperator:
        other = self._other_process()
        if other is not None and isinstance(self.feature_map, InducingPoints):
            return self.feature_map.features_of(other, X)
        return self.process.features(self.feature_map, X)

    def _rows(self, X: Tensor) -> Rows:
        return make_rows(self._features(X), self.num_outputs).rotate(self.q.basis)

    def _other_process(self) -> Process | None:
        return None if self.process.is_observed else self.process

    def _to_feature_basis(self, columns: Tensor) -> Tensor:
        """Transform weights (r, k) from the basis of q to that of the feature map."""
        basis = self.q.basis
        if len(basis) < 2:
            return basis[0] @ columns if basis else columns
        U, V = basis
        return torch.einsum("mi,bj,ijk->mbk", U, V, columns.unflatten(0, (-1, len(V)))).flatten(0, 1)
