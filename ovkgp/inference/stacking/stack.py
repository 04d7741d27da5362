"""Mixture of candidate models as one posterior: training, weights, and predictions of held-out rows.

The mixture Σ_k w_k p_k(y) has the weights that maximize the density of held-out rows, with one pseudo-count per candidate
("stacking", Yao et al. 2018),

    Σ_i log Σ_k w_k p_k(y_i | y_−i) + Σ_k log w_k,

where the density of a row is the product of the marginal densities of its observed outputs.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from scipy.special import logsumexp
from threadpoolctl import ThreadpoolController
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import FitWarning
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import draw_random_rows
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.stacking.candidates import (
    CoupledCandidate,
    CoupledMixture,
    CoupledPosterior,
    FittedCandidate,
    IndependentCandidate,
    IndependentFit,
)
from ovkgp.inference.stacking.model_draws import resample
from ovkgp.inference.stacking.output_posterior import IndependentMixture, OutputPosterior
from ovkgp.inference.training.log_posterior import named_values
from ovkgp.inference.training.numpy_density import MAX_SCIPY_ROWS

NUM_WEIGHT_STEPS = 200  # steps of expectation maximization
MAX_RESIDUAL = 4.0  # standardized residuals are clipped at this size before their correlation is computed
MAX_COMPARED_ROWS, NUM_SCREENING_ROWS = 1000, 500
"""With more rows, screened candidates are dropped, coupled ones are screened on a subset of this size."""
MIN_SCREENED_WEIGHT, MIN_AVERAGED_WEIGHT = 0.1, 0.05
"""Weights on the subset of candidates that are trained on all rows, and that are averaged over draws."""
MIN_WEIGHT = 0.01  # candidates with a smaller weight are dropped


@dataclass(frozen=True)
class CandidateScore:
    """Weight of a candidate, its mean log density per held-out entry, and the standard error of that mean.

    A weight of 0 is that of a candidate that was screened out on a subset of the rows. `report` is that of its training on all rows,
    `khat` the largest Pareto k̂ of the weights of its draws over the outputs, if there are enough draws, and `rough_outputs` are the
    outputs whose draws were replaced by the mode, since they lie far below it.
    """

    weight: float
    log_density: float
    standard_error: float
    report: FitReport | None = None
    khat: float | None = None
    rough_outputs: tuple[int, ...] = ()


class StackPosterior(MixturePosterior):
    """Weighted mixture of candidates given the same data; `candidates` and `states` are what a file needs to compute it again."""

    no_residuals = OutputPosterior.no_residuals

    def __init__(
        self,
        parts: Sequence[IndependentMixture | CoupledPosterior | CoupledMixture],
        weights: np.ndarray,
        candidates: Sequence[IndependentCandidate | CoupledCandidate],
        data: Observations,
        correlation: np.ndarray,
    ):
        super().__init__(parts, weights)
        self.candidates, self.data, self.correlation = list(candidates), data, correlation
        for part in parts:
            if isinstance(part, IndependentMixture) and self.num_outputs > 1:
                part.correlation = torch.from_numpy(correlation)

    @classmethod
    def of_states(cls, candidates, states, weights: np.ndarray, data: Observations, correlation) -> StackPosterior:
        """Condition candidates at stored hyperparameters."""
        parts = [candidate.condition(data, state) for candidate, state in zip(candidates, states, strict=True)]
        return cls(parts, weights, candidates, data, correlation)

    @property
    def states(self) -> list:
        """Hyperparameters of each candidate."""
        return [part.state for part in self.parts]

    @property
    def num_draws(self) -> int:
        """Largest number of draws of the hyperparameters of an output."""
        states = [state for part in self.parts if isinstance(part, IndependentMixture) for state in part.state]
        return max((len(state.weights) for state in states), default=1)

    def named_draws(self) -> dict[str, dict[str, np.ndarray]]:
        """Return draws (1, S, *shape) of the hyperparameters of each candidate by name, in standardized units.

        Draws are resampled by their weights, and S is the largest number of those of independent outputs; a coupled candidate without
        draws has S times its mode. Vector fields, which have other units, are omitted.
        """
        count, found = self.num_draws, {}
        for candidate, part in zip(self.candidates, self.parts, strict=True):
            if isinstance(part, IndependentMixture):
                models = _resample(candidate, part, count)
            elif candidate.input_scale is not None:
                continue
            elif isinstance(part, CoupledMixture):
                index = resample(part.weights, count, np.random.default_rng(0))
                models = (part.draws.set_draw(i) for i in index)
            else:
                models = [part.gp] * count
            rows = [named_values(gp) for gp in models]
            found[candidate.name] = {name: np.stack([row[name] for row in rows])[None] for name in rows[0]}
        return found

    def row_log_densities(self) -> np.ndarray:
        """Return log Σ_k w_k Π_a p_k(y_ia | y_−i, θ_ks) (S, n) of the rows at the draws of `named_draws`."""
        data, found = self.data, []
        for part in self.parts:
            if isinstance(part, IndependentMixture):
                values = np.zeros((self.num_draws, data.num_rows))
                for a, (output, index) in enumerate(
                    zip(part.parts, _resample_draws(part, self.num_draws), strict=True)
                ):
                    values[:, data.observed[:, a].numpy()] += output.leave_one_out.log_density.numpy()[index]
            else:
                mean, std, _ = part.leave_groups_out(data, torch.arange(data.num_rows))
                values = torch.distributions.Normal(mean, std, validate_args=False).log_prob(data.Y)
                values = np.tile(values.nansum(1).numpy(), (self.num_draws, 1))
            found.append(values)
        return logsumexp(found, axis=0, b=self.weights[:, None, None])

    def leave_groups_out(self, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predict each entry from the rows of other groups (n,): mean, standard deviation and P(y′ ≤ y), all (n, p)."""
        weights = torch.from_numpy(self.weights)[:, None, None]
        found = torch.stack([part.leave_groups_out(self.data, groups) for part in self.parts])
        means, deviations, cdf = found.unbind(1)
        mean = (weights * means).sum(0)
        variance = (weights * (deviations.square() + (means - mean).square())).sum(0)
        return mean, variance.sqrt(), (weights * cdf).sum(0)


def _resample_draws(part: IndependentMixture, count: int) -> Iterator[np.ndarray]:
    """Yield the indices (count,) of equally weighted draws of each output: systematic resampling in a random order."""
    rng = np.random.default_rng(0)
    for output in part.parts:
        yield resample(output.weights, count, rng)


@torch.no_grad()
def _resample(candidate: IndependentCandidate, part: IndependentMixture, count: int) -> Iterator[OperatorValuedGP]:
    """Yield a model at `count` equally weighted draws in turn."""
    gp, columns = candidate.make_gp(part.num_dims, part.num_outputs), []
    for output, index in zip(part.parts, _resample_draws(part, count), strict=True):
        columns.append([(output.problem.kernel_at(output.thetas[i]), output.noise_variances[i]) for i in index])
    for row in zip(*columns, strict=True):
        for kernel, (own, _) in zip(gp.kernel.kernels, row, strict=True):
            kernel.load_state_dict(own.state_dict(), strict=False)
        gp.noise_model.log_scale.copy_(0.5 * torch.tensor([noise for _, noise in row]).log())
        yield gp


@dataclass(frozen=True)
class FittedStack:
    """A trained mixture: posterior, scores of all candidates, and the model of one of them at its mode, with a report.

    That candidate is the heaviest one in the units of the data; a vector field has other units.
    """

    posterior: StackPosterior
    name: str
    gp: OperatorValuedGP
    scores: dict[str, CandidateScore]


def fit_stack(
    candidates: Sequence[IndependentCandidate | CoupledCandidate],
    data: Observations,
    *,
    average: bool = True,
    restarts: int = 1,
    verbose: int = 0,
) -> FittedStack:
    """Train candidates on standardized data, and mix them with the weights of `stacking_weights`.

    If `average`, the hyperparameters of each output are averaged over draws around their mode, where these are affordable. Each
    candidate is trained by at least `restarts` optimization runs per output. Ctrl-C keeps the candidates so far.

    If training begins on a subset of the rows, candidates of independent outputs are compared there by folds. Those with a
    weight below `MIN_AVERAGED_WEIGHT` remain in the mixture at their mode, since they widen its tails; beyond `MAX_COMPARED_ROWS` rows,
    those below `MIN_SCREENED_WEIGHT` are dropped. Complexity: about 50 to 100 factorizations O(n³) per candidate and
    output, and about 10 for many rows.
    """
    if data.num_rows <= MAX_SCIPY_ROWS:
        with _blas_libraries().limit(limits=1, user_api="blas"):
            return _fit(candidates, data, average, restarts, verbose)
    return _fit(candidates, data, average, restarts, verbose)


@cache
def _blas_libraries() -> ThreadpoolController:
    """Return the loaded libraries; several threads are slower on small matrices, many times so on a busy machine."""
    return ThreadpoolController()


def _fit(
    candidates: Sequence[IndependentCandidate | CoupledCandidate],
    data: Observations,
    average: bool,
    restarts: int,
    verbose: int,
) -> FittedStack:
    began, fits, screened = time.monotonic(), [], {}
    is_coupled = any(isinstance(one, CoupledCandidate) for one in candidates)
    if data.num_rows > MAX_COMPARED_ROWS and is_coupled:
        rows = torch.from_numpy(draw_random_rows(data.observed.numpy(), NUM_SCREENING_ROWS, 0))
        screened = fit_stack(candidates, data.rows(rows), average=False, restarts=restarts, verbose=verbose).scores
        candidates = [one for one in candidates if screened[one.name].weight >= MIN_SCREENED_WEIGHT]
    trainings = {one.name: one.begin(data, restarts) for one in candidates if isinstance(one, IndependentCandidate)}
    is_light = set()  # names of candidates with a small weight, which are not averaged over draws
    if len(trainings) > 1 and any(training.has_subset for training in trainings.values()):
        found = _screen(trainings)
        if data.num_rows > MAX_COMPARED_ROWS:
            candidates = [
                one for one in candidates if one.name not in found or found[one.name].weight >= MIN_SCREENED_WEIGHT
            ]
            screened = found | screened
        is_light = {name for name, score in found.items() if score.weight < MIN_AVERAGED_WEIGHT}
    for candidate in tqdm(candidates, disable=not verbose, unit="candidate", desc="training"):
        if candidate.name in trainings:
            is_full = candidate.name not in is_light
            fit = trainings[candidate.name].train(average=average and is_full, has_folds=is_full)
        else:
            fit = candidate.train(data, average=average, restarts=restarts)
        fits.append(fit)
        if fits[-1].report.interrupted:
            break
    densities = np.stack([fit.log_density for fit in fits], -1)  # (n, p, K)
    weights = stacking_weights(np.nansum(densities, 1))
    scores = {name: replace(score, weight=0.0) for name, score in screened.items()}
    for fit, weight in zip(fits, weights, strict=True):
        about = {"report": fit.report, "khat": fit.khat, "rough_outputs": fit.rough_outputs}
        scores[fit.name] = replace(_score(fit.log_density, weight), **about)
    correlation = residual_correlation(np.tensordot(np.stack([fit.scores for fit in fits], -1), weights, 1))
    kept = np.flatnonzero(weights >= MIN_WEIGHT)
    parts = [fits[i].posterior for i in kept]
    own = weights[kept] / weights[kept].sum()
    posterior = StackPosterior(parts, own, [candidates[i] for i in kept], data, correlation)
    in_units = [fit for fit, one in zip(fits, candidates, strict=False) if getattr(one, "input_scale", None) is None]
    best = max(in_units, key=lambda fit: scores[fit.name].weight)
    gp = best.make_gp()
    gp.fit_report_ = _report(best, fits, data, time.monotonic() - began)
    if gp.fit_report_.interrupted:
        warnings.warn(f"Training {gp.fit_report_.message}.", FitWarning, stacklevel=2)
    return FittedStack(posterior, best.name, gp, scores)


def _screen(trainings: dict[str, IndependentFit]) -> dict[str, CandidateScore]:
    """Score candidates by their densities of folds on a common subset of the rows."""
    densities = [training.screen() for training in trainings.values()]
    stacked = np.stack(densities, -1)  # (n, p, K)
    weights = stacking_weights(np.nansum(stacked[np.isfinite(stacked).any((1, 2))], 1))
    return {name: _score(density, weight) for name, density, weight in zip(trainings, densities, weights, strict=True)}


def _score(log_density: np.ndarray, weight: float) -> CandidateScore:
    values = log_density[np.isfinite(log_density)]
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return CandidateScore(float(weight), float(values.mean()), float(error))


def _report(best: FittedCandidate, fits: list[FittedCandidate], data: Observations, seconds: float) -> FitReport:
    """Report the training of one candidate, and the work of all."""
    interrupted, report = any(fit.report.interrupted for fit in fits), best.report
    messages = ("was interrupted: the parameters are the best so far",) if interrupted else report.messages
    return replace(
        report,
        converged=report.converged and not interrupted,
        messages=messages,
        iterations=sum(fit.report.iterations for fit in fits),
        evaluations=sum(fit.report.evaluations for fit in fits),
        failures=sum(fit.report.failures for fit in fits),
        interrupted=interrupted,
        seconds=seconds,
        num_rows=data.num_rows,
        num_observed=data.num_observed,
        log_evidence=best.posterior.log_evidence,
    )


def stacking_weights(log_density: np.ndarray) -> np.ndarray:
    """Return the weights (K,) that maximize Σ_i log Σ_k w_k p_ik + Σ_k log w_k for log p (n, K), by expectation maximization."""
    densities = np.exp(log_density - log_density.max(1, keepdims=True))
    n, count = densities.shape
    weights = np.full(count, 1 / count)
    for _ in range(NUM_WEIGHT_STEPS):
        weights = (weights * ((1 / (densities @ weights)) @ densities) + 1) / (n + count)
    return weights


def residual_correlation(scores: np.ndarray) -> np.ndarray:
    """Return the correlation (p, p) of standardized residuals (n, p), NaN if missing, shrunk to I by p / (n + p)."""
    n, p = scores.shape
    observed = np.isfinite(scores)
    clipped = np.where(observed, np.clip(np.nan_to_num(scores), -MAX_RESIDUAL, MAX_RESIDUAL), 0.0)
    counts = observed.T.astype(float) @ observed
    covariance = clipped.T @ clipped / np.maximum(counts, 1)
    std = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(np.where(std > 0, std, 1.0), np.where(std > 0, std, 1.0))
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    if values[0] < 0:  # from entries that were observed at different rows
        correlation = (vectors * np.maximum(values, 0.0)) @ vectors.T
        std = np.sqrt(np.diag(correlation))
        correlation /= np.outer(std, std)
    shrinkage = p / (n + p)
    return (1 - shrinkage) * correlation + shrinkage * np.eye(p)
