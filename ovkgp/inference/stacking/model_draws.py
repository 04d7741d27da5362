"""Posterior of a trained `OperatorValuedGP` averaged over weighted draws of its hyperparameters around their mode.

The draws and weights are those of `output_draws`. Output matrices, their loadings and noise correlations keep their values at the
mode, since loadings are known only up to a rotation. Outputs that share no parameter have separate draws, which are resampled by
their weights and combined at random.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.posteriors.mixture import ConditionedDraws, MixturePosterior
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.stacking.output_draws import (
    MAX_FACTOR_BYTES,
    MAX_LAPLACE_SIZE,
    difference_hessian,
    draw_around_mode,
    importance_weights,
)
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.initialization import initialize, load_raw_state, raw_state
from ovkgp.inference.training.lbfgs import FAILURES
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.inference.training.maximize import can_train_independently, copy_output, output_gp
from ovkgp.inference.training.numpy_density import EXACT_STRATEGIES
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector
from ovkgp.inference.training.priors import NormalPriorTerms, make_prior_terms
from ovkgp.kernels import OutputMatrix

NUM_DRAWS = 8  # draws that predictions average over, of which each costs a copy of the model and a factorization
NUM_OUTPUT_DRAWS = 32  # weighted draws of an independent output, from which those are resampled


class ModeNeighborhood:
    """Log density of the hyperparameters that are drawn, and draws around the present ones of `gp`, which are at the mode."""

    def __init__(self, gp: OperatorValuedGP, data: Observations):
        self.gp, self.data = deepcopy(gp), data
        _freeze_matrices(self.gp)
        initialization = initialize(self.gp, data)
        self.vector = ParameterVector(self.gp, initialization.bounds, initialization.scales)
        evidence = self.gp.evidence(data.X, data.Y, data.noise)
        self.density = LogDensity(self.gp, evidence, data, self.vector, jacobian=False)
        self.mode, self.terms, self.scales = self.vector.get(), None, np.ones(len(self.vector))
        with suppress(NoAnalyticForm):
            self.numpy_vector = NumpyVector(self.vector)
            self.terms = make_prior_terms(self.gp, self.numpy_vector, jacobian=False)
            self.scales = _prior_scales(self.terms, self.numpy_vector)

    def __len__(self) -> int:
        return len(self.vector)

    def draw(self, num_draws: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Return draws (S, k), their normal scores (S, k), and the log density at the mode."""
        at_mode, _ = self.density(self.mode)
        hessian = difference_hessian(self.density, self.mode)
        return *draw_around_mode(self.mode, hessian, self.scales, self.vector.bounds, num_draws), at_mode

    def log_prior(self, u: np.ndarray) -> float:
        """Return the log density of u (k,) under the priors."""
        if self.terms is None:
            self.vector.set(u)
            return float(torch.as_tensor(self.density.prior()).detach())
        theta = self.numpy_vector.values(u)[0]
        return float(sum(term(theta, np.zeros_like(theta)) for term in self.terms))

    def value(self, u: np.ndarray) -> float:
        """Return the log density at u (k,); −∞ if it cannot be evaluated."""
        density = self.density.numpy_density
        if density is not None and density.priors is not None and hasattr(density.evidence, "value"):
            return density.value(u)
        try:
            value = self.density(u)[0]
        except FAILURES:
            return -np.inf
        return value if np.isfinite(value) else -np.inf


def average_over_draws(gp: OperatorValuedGP, data: Observations, variance: str = "features") -> MixturePosterior | None:
    """Return the posterior averaged over draws around the hyperparameters of `gp`, which are at their mode.

    None if the draws are unaffordable, far below the mode, or there is nothing to draw. Complexity: a gradient of the evidence per
    variable, and one conditioning per draw.
    """
    strategy = select_strategy(gp.model, data, gp.strategy).name
    size = max(data.num_rows, data.num_missing if strategy == "kronecker_missing" else 0)
    size = data.num_observed if strategy == "dense" else size  # rows of the largest matrix
    if strategy not in EXACT_STRATEGIES or 8 * NUM_DRAWS * size**2 > MAX_FACTOR_BYTES:
        return None
    draw = _draw_outputs if can_train_independently(gp) else _draw_jointly
    try:
        return draw(Conditioning(gp, data, variance), size)
    except FAILURES:
        return None


def condition_on_weighted_draws(
    gp: OperatorValuedGP, data: Observations, raw: dict[str, Tensor], weights: np.ndarray
) -> MixturePosterior:
    """Condition a model at given draws (S, *shape) of its raw parameters with weights (S,)."""
    conditioning = Conditioning(gp, data, "features")
    return MixturePosterior(ConditionedDraws(conditioning.template, raw, conditioning.again), weights)


class Conditioning:
    """Posteriors of a model at draws of its raw parameters, without the copies and checks of `OperatorValuedGP.condition`."""

    def __init__(self, gp: OperatorValuedGP, data: Observations, variance: str):
        self.gp, self.data, self.template = gp, data.clone(), _copy_without_priors(gp)
        given = {"X": self.data.X, "Y": self.data.Y, "noise": self.data.noise, "variance": variance, "num_landmarks": 0}
        self.again = partial(OperatorValuedGP.condition, **given)  # for models that were loaded

    @torch.no_grad()
    def condition(self, raw: dict[str, Tensor], index: int) -> Posterior | None:
        """Return the posterior at one draw; None if its covariance cannot be factorized."""
        model = deepcopy(self.template)
        parameters = dict(model.named_parameters())
        for name, values in raw.items():
            parameters[name].copy_(values[index])
        try:
            posterior = select_strategy(model.model, self.data, model.strategy).condition(model.model, self.data, 0)
        except FactorizationError:
            return None
        posterior.forget_data()
        return posterior

    def mixture(self, raw: dict[str, Tensor], posteriors: list[Posterior], weights=None) -> MixturePosterior:
        """Return the mixture of the posteriors at draws."""
        return MixturePosterior(ConditionedDraws(self.template, raw, self.again, posteriors), weights)


def _draw_jointly(conditioning: Conditioning, size: int) -> MixturePosterior | None:
    around = ModeNeighborhood(conditioning.gp, conditioning.data)
    if not 0 < size * len(around) <= MAX_LAPLACE_SIZE:
        return None
    points, scores, at_mode = around.draw(NUM_DRAWS)
    raw = around.vector.states(points)
    posteriors = [conditioning.condition(raw, index) for index in range(NUM_DRAWS)]
    evidences = [-np.inf if posterior is None else posterior.log_evidence for posterior in posteriors]
    weights = importance_weights(np.add(evidences, [around.log_prior(u) for u in points]), scores, at_mode)
    if weights is None:
        return None
    kept = np.flatnonzero(weights)
    raw = {name: values[kept] for name, values in raw.items()}
    return conditioning.mixture(raw, [posteriors[i] for i in kept], weights[kept] / weights[kept].sum())


def _draw_outputs(conditioning: Conditioning, size: int) -> MixturePosterior | None:
    """Draw each output separately; the mode replaces draws that are bad."""
    gp, rng, states, is_drawn = conditioning.gp, np.random.default_rng(0), [], False
    for a in range(gp.num_outputs):
        alone = output_gp(gp, a)
        around = ModeNeighborhood(alone, conditioning.data.output(a))
        chosen = np.repeat(around.mode[None], NUM_DRAWS, 0)
        if 0 < size * len(around) <= MAX_LAPLACE_SIZE:
            points, scores, at_mode = around.draw(NUM_OUTPUT_DRAWS)
            weights = importance_weights(np.array([around.value(u) for u in points]), scores, at_mode)
            if weights is not None:
                is_drawn, chosen = True, points[resample(weights, NUM_DRAWS, rng)]
        states.append((_copy_without_priors(alone), around.vector.states(chosen)))
    if not is_drawn:
        return None
    whole, rows = deepcopy(conditioning.template), []
    for index in range(NUM_DRAWS):
        for a, (alone, raw) in enumerate(states):
            load_raw_state(alone, raw_state(alone) | {name: values[index] for name, values in raw.items()})
            copy_output(whole, alone, a)
        rows.append(raw_state(whole))
    raw = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    posteriors = [conditioning.condition(raw, index) for index in range(NUM_DRAWS)]
    return None if None in posteriors else conditioning.mixture(raw, posteriors)


def resample(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices (count,) of equally weighted draws, by systematic resampling in a random order."""
    index = np.searchsorted(np.cumsum(weights), (np.arange(count) + 0.5) / count)
    return rng.permutation(np.minimum(index, len(weights) - 1))


def _copy_without_priors(gp: OperatorValuedGP) -> OperatorValuedGP:
    """Copy a model without its priors, which make further copies slow."""
    copy = deepcopy(gp)
    for module in [*copy.modules()]:
        for name in [*getattr(module, "_priors", {})]:
            del module._priors[name], module._modules[name]
    return copy.requires_grad_(False)


def _freeze_matrices(gp: OperatorValuedGP) -> None:
    """Fix output matrices and the correlations of a full noise."""
    for module in gp.modules():
        if isinstance(module, OutputMatrix):
            module.requires_grad_(False)
    if gp.noise_model.is_trained and gp.noise_model.kind == "full":
        gp.noise_model.lower.requires_grad_(False)


def _prior_scales(priors: list, vector: NumpyVector) -> np.ndarray:
    """Return the prior standard deviation of each variable u (k,); 1 if it has no normal prior."""
    scales = np.ones(len(vector.is_log))
    for term in priors:
        if isinstance(term, NormalPriorTerms):
            scales[term.indices] = term.scale / np.where(term.is_log, 1.0, term.factor * vector.size[term.indices])
    return scales[vector.kept]
