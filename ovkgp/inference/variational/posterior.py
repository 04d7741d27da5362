"""The posterior of a variational model: f(x) = m(x) + Φ(x) w + residual, with w ~ q = N(μ, S).

    E f = m + Φ μ,     Cov f = Φ S Φᵀ + K − Φ Φᵀ (the residual, with inducing points; nothing with a feature map).

A new observation is the likelihood's mixture over this Gaussian. Random functions carry the residual of a prior draw
(Matheron's rule): f = m + f̃ + Φ (w − w̃).
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.features import FeatureMap
from ovkgp.inference.likelihoods import Likelihood, LikelihoodPrediction
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.posteriors.exact import ProcessPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, FunctionDraws, Process, seeds
from ovkgp.inference.posteriors.prediction import FORMS, Prediction, check_form
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.rows import Rows, rows_of


class VariationalPosterior(ProcessPosterior):
    """The posterior of a process under q.

    Args:
        process: what is predicted.
        feature_map: Φ; `InducingPoints` have a residual.
        q: the weights.
        mean: the prior mean of the observed process.
        likelihood: p(y | f) of a new observation.
        output_noise: Σ (p, p) of a new observation where the likelihood is Gaussian; None otherwise.
        num_dims: d.
        guard: a floor under the variance of a feature map (`ovkgp.inference.posteriors.weight_posterior`).
        elbo: the bound, which stands for the log evidence.

    Cost of m standard deviations: O(m M² p) for a full q and Φ = φ ⊗ B, O(m M q) for mean field, O(m p r²) for other maps.
    """

    def __init__(
        self,
        process: Process,
        feature_map: FeatureMap,
        q: WeightGaussian,
        mean: OutputMean,
        likelihood: Likelihood,
        output_noise: Tensor | None,
        num_dims: int,
        guard: VarianceFloor | None = None,
        elbo: float = float("nan"),
    ):
        super().__init__(process, mean, output_noise, num_dims)
        self.feature_map, self.q, self.likelihood, self.guard = feature_map, q, likelihood, guard
        self.log_evidence = elbo

    @property
    def weights(self) -> Tensor:
        """E w (r,), in the basis of the feature map."""
        columns = self.q.mean.unsqueeze(-1)
        return self._given_basis(columns).squeeze(-1)

    def of(self, process: Process) -> VariationalPosterior:
        """The posterior of another process made of the same weights."""
        parts = process, self.feature_map, self.q, self.mean, self.likelihood, self.output_noise, self.num_dims
        return VariationalPosterior(*parts, elbo=self.log_evidence)

    def rows_at_once(self, form: str) -> int:
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
        return self.prior_mean(X) + mean, covariance if self.guard is None else self.guard.lift(X, covariance, form)

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """The posterior at the points X (m, d).

        Args:
            X, cov: as for every posterior.
            noise: describe a new observation instead of the latent f(x). Where the likelihood is not Gaussian that is a
                `LikelihoodPrediction`: E[y], and quantiles of the mixture.
        """
        if not noise or self.noise is not None or not self.process.is_observed:
            return super().predict(X, cov, noise)
        form = max(check_form(cov), self.likelihood.predicts_from, key=FORMS.index)
        return LikelihoodPrediction(super().predict(X, form), self.likelihood)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """k joint draws at the points X (m, d), (k, m, p), of f or, with `noise`, of y. O((m·p)³)."""
        if not noise or self.noise is not None or not self.process.is_observed:
            return super().sample(X, k, noise=noise, random_state=random_state)
        for_function, for_noise = seeds(random_state, 2)
        values = super().sample(X, k, random_state=for_function)
        return self.likelihood.draw(values, torch.Generator().manual_seed(for_noise))

    @torch.no_grad()
    def sample_functions(self, k: int = 1, *, random_state=None, num_frequencies: int = 2000) -> FunctionDraws:
        """k random functions; with inducing points `num_frequencies` random features stand for the residual's prior."""
        k, seed = check_integer("the number of draws", k), as_seed(random_state)
        for_weights, for_prior = seeds(seed, 2)
        weights = self._given_basis(self.q.draw(k, torch.Generator().manual_seed(for_weights)))
        prior = None
        if isinstance(self.feature_map, InducingPoints):
            prior, theirs = self.feature_map.prior_draws(k, for_prior, num_frequencies, self._other_process())
            weights = weights - theirs

        @torch.no_grad()
        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = self._features(X) @ weights[:, index]
            values = values if prior is None else values + prior(X, index)
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        return FunctionDraws(evaluate, k, self.num_dims)

    def _check_fourier_features(self) -> None:
        if not isinstance(self.feature_map, InducingPoints):  # which know the covariance with any process
            super()._check_fourier_features()

    def _features(self, X: Tensor) -> LinearOperator:
        other = self._other_process()
        if other is not None and isinstance(self.feature_map, InducingPoints):
            return self.feature_map.features_of(other, X)
        return self.process.features(self.feature_map, X)

    def _rows(self, X: Tensor) -> Rows:
        return rows_of(self._features(X), self.num_outputs).rotated(self.q.basis)

    def _other_process(self) -> Process | None:
        return None if self.process.is_observed else self.process

    def _given_basis(self, columns: Tensor) -> Tensor:
        """Weights (r, k) from the basis of q to that of the feature map."""
        basis = self.q.basis
        if len(basis) < 2:
            return basis[0] @ columns if basis else columns
        U, V = basis
        return torch.einsum("mi,bj,ijk->mbk", U, V, columns.unflatten(0, (-1, len(V)))).flatten(0, 1)
