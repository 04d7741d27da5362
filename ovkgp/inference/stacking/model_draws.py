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
from ovkgp.inference.posteriors.exact import IndependentPosterior
from ovkgp.inference.posteriors.mixture import ConditionedDraws, MixturePosterior
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.stacking.output_draws import (
    MAX_FACTOR_BYTES,
    MAX_LAPLACE_SIZE,
    MIN_DRAWS,
    difference_hessian,
    draw_around_mode,
    importance_weights,
    prior_scales,
)
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.initialization import initialize
from ovkgp.inference.training.lbfgs import FAILURES
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.inference.training.maximize import can_train_independently, copy_output, output_gp
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector
from ovkgp.inference.training.priors import make_prior_terms
from ovkgp.kernels import OutputMatrix

NUM_DRAWS = 16  # number of draws that predictions average over
NUM_OUTPUT_DRAWS = 32  # number of draws of an independent output, from which as many are resampled


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
            self.scales = prior_scales(self.terms, self.numpy_vector)

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
    size = data.num_observed if strategy == "dense" else data.num_rows
    if strategy == "kronecker_missing":
        size = max(size, data.num_missing)
    if strategy not in ("kronecker", "kronecker_missing", "dense", "independent") or MIN_DRAWS * 8 * size**2 > MAX_FACTOR_BYTES:
        return None
    count = NUM_DRAWS if NUM_DRAWS * 8 * size**2 <= MAX_FACTOR_BYTES else MIN_DRAWS
    template = _copy_without_priors(gp)
    given = {"X": data.X, "Y": data.Y, "noise": data.noise, "variance": variance, "num_landmarks": 0}
    condition = partial(OperatorValuedGP.condition, **given)
    draw = _draw_outputs if can_train_independently(gp) else _draw_jointly
    try:
        return draw(gp, data, size, count, template, condition)
    except FAILURES:
        return None


def _draw_jointly(gp, data: Observations, size: int, count: int, template, condition) -> MixturePosterior | None:
    around = ModeNeighborhood(gp, data)
    if not 0 < size * len(around) <= MAX_LAPLACE_SIZE:
        return None
    points, scores, at_mode = around.draw(count)
    draws = ConditionedDraws(template, around.vector.states(points), condition, cached=())
    posteriors = [_condition_or_none(draws, index) for index in range(count)]
    values = np.array(
        [
            -np.inf if posterior is None else posterior.log_evidence + around.log_prior(u)
            for u, posterior in zip(points, posteriors, strict=True)
        ]
    )
    weights = importance_weights(values, scores, at_mode)
    if weights is None:
        return None
    kept = np.flatnonzero(weights)
    raw = {name: value[kept] for name, value in draws.raw.items()}
    draws = ConditionedDraws(template, raw, condition, cached=[posteriors[i] for i in kept])
    return MixturePosterior(draws, weights[kept] / weights[kept].sum())


def _condition_or_none(draws: ConditionedDraws, index: int) -> Posterior | None:
    try:
        return draws.condition_at(index)
    except FactorizationError:
        return None


@torch.no_grad()
def _draw_outputs(gp, data: Observations, size: int, count: int, template, condition) -> MixturePosterior | None:
    """Draw each output separately; the mode stands for one whose draws are bad."""
    rng, states, is_drawn = np.random.default_rng(0), [], False
    for a in range(gp.num_outputs):
        alone = output_gp(gp, a)
        with torch.enable_grad():
            around = ModeNeighborhood(alone, data.output(a))
            chosen = np.repeat(around.mode[None], count, 0)
            if 0 < data.num_rows * len(around) <= MAX_LAPLACE_SIZE:
                points, scores, at_mode = around.draw(NUM_OUTPUT_DRAWS)
                weights = importance_weights(np.array([around.value(u) for u in points]), scores, at_mode)
                if weights is not None:
                    is_drawn, chosen = True, points[resample(weights, count, rng)]
        states.append((_copy_without_priors(alone), around.vector.states(chosen)))
    if not is_drawn:
        return None
    whole, rows = deepcopy(template), []
    for index in range(count):
        for a, (alone, raw) in enumerate(states):
            parameters = dict(alone.named_parameters())
            for name, values in raw.items():
                parameters[name].copy_(values[index])
            copy_output(whole, alone, a)
        rows.append({name: value.detach().clone() for name, value in whole.named_parameters() if value.requires_grad})
    raw = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return MixturePosterior(ConditionedDraws(template, raw, condition))


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
    return copy


def _freeze_matrices(gp: OperatorValuedGP) -> None:
    """Fix output matrices and the correlations of a full noise."""
    for module in gp.modules():
        if isinstance(module, OutputMatrix):
            module.requires_grad_(False)
    if gp.noise_model.is_trained and gp.noise_model.kind == "full":
        gp.noise_model.lower.requires_grad_(False)
