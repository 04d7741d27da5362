"""Posteriors in weight space: mean m + Φ_* θ̂ and covariance Φ_* C⁻¹ Φ_*ᵀ, from statistics alone; no data are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.features import FeatureMap
from ovkgp.features.noise import as_seed
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.guard import VarianceGuard
from ovkgp.inference.means import OutputMean
from ovkgp.inference.posterior import CHUNK_ENTRIES
from ovkgp.inference.process_posterior import ProcessPosterior
from ovkgp.inference.processes import Process
from ovkgp.kernels.checks import whole_number


class WeightPosterior(ProcessPosterior):
    """The posterior of a process with finitely many features.

    Args:
        process: what is predicted.
        feature_map: Φ, the features of the observed process.
        system: the posterior of the weights.
        mean: the prior mean; used where the process is the observed one.
        output_noise: Σ (p, p) of a new observation.
        num_dims: d.
        guard: lifts the variance where features starve it, or None for the bare variance.

    Function draws are draws of the weights, and have the bare variance.
    """

    def __init__(
        self,
        process: Process,
        feature_map: FeatureMap,
        system,
        mean: OutputMean,
        output_noise: Tensor,
        num_dims: int,
        guard: VarianceGuard | None = None,
    ):
        super().__init__(process, mean, output_noise, num_dims)
        self.feature_map, self.system = feature_map, system
        self.guard = guard
        self.log_evidence = float(system.log_density)

    @property
    def weights(self) -> Tensor:
        """The posterior mean of the weights (r,)."""
        return self.system.weights

    def noise_path(self, multipliers) -> Tensor:
        """log p(Y) with the noise multiplied by each of `multipliers` (k,), from one eigendecomposition (BT-76)."""
        return self.system.path(multipliers)

    def path_weights(self, multiplier: float) -> Tensor:
        """The posterior mean of the weights (r,) with the noise multiplied by a number: a point of the same path."""
        return self.system.path_weights(multiplier)

    def of(self, process: Process) -> WeightPosterior:
        """The posterior of another process made of the same weights, with the bare variance of the features."""
        return WeightPosterior(process, self.feature_map, self.system, self.mean, self.output_noise, self.num_dims)

    def rows_at_once(self, form: str) -> int:
        return CHUNK_ENTRIES // (self.system.num_features * (1 if form == "none" else self.num_outputs))

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        features = self.process.features(self.feature_map, X)
        mean = self.prior_mean(X) + (features @ self.weights).unflatten(-1, (-1, self.num_outputs))
        if form == "none":
            return mean, None
        covariance = self.system.variance(features, form, num_outputs=self.num_outputs)
        return mean, covariance if self.guard is None else self.guard.lift(X, covariance, form)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        k = whole_number("the number of draws", k)
        generator = torch.Generator().manual_seed(as_seed(random_state))
        weights = self.system.draw(k, generator)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = self.process.features(self.feature_map, X) @ weights[index].mT
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        return FunctionDraws(evaluate, k, self.num_dims)
