"""Mixture of candidate models as one posterior: training, weights, and predictions of held-out rows."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import FitWarning
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.prediction import normal_cdf
from ovkgp.inference.stacking.candidates import (
    Candidate,
    FittedCandidate,
    IndependentFit,
    residual_correlation,
    stacking_weights,
)
from ovkgp.inference.stacking.output_draws import Draws
from ovkgp.inference.stacking.output_posterior import IndependentMixture, OutputPosterior

MIN_WEIGHT = 0.01  # candidates with a smaller weight are dropped


@dataclass(frozen=True)
class CandidateScore:
    """Weight of a candidate, its mean log density per held-out entry, and the standard error of that mean."""

    weight: float
    log_density: float
    standard_error: float


class StackPosterior(MixturePosterior):
    """Weighted mixture of candidates of independent outputs, given the same data.

    `candidates` and `draws` (of each candidate and output) are what a file needs to compute it again.
    """

    no_residuals = OutputPosterior.no_residuals

    def __init__(
        self,
        parts: Sequence[IndependentMixture],
        weights: np.ndarray,
        candidates: Sequence[Candidate],
        data: Observations,
        correlation: np.ndarray,
    ):
        super().__init__(parts, weights)
        self.candidates, self.data, self.correlation = list(candidates), data, correlation
        for part in parts:
            part.correlation = torch.from_numpy(correlation) if self.num_outputs > 1 else None

    @classmethod
    def of_draws(
        cls,
        candidates: Sequence[Candidate],
        draws: Sequence[list[Draws]],
        weights: np.ndarray,
        data: Observations,
        correlation: np.ndarray,
    ) -> StackPosterior:
        """Condition candidates at given draws of each output."""
        pairs = zip(candidates, draws, strict=True)
        parts = [IndependentFit(candidate, data).restore(own) for candidate, own in pairs]
        return cls(parts, weights, candidates, data, correlation)

    @property
    def draws(self) -> list[list[Draws]]:
        """Draws of each candidate and output."""
        return [[part.draws for part in mixture.parts] for mixture in self.parts]

    def held_out(self, Y: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predict each entry from the rows of other groups, (n,): mean, standard deviation and P(y′ ≤ y), all (n, p).

        The draws of each output are weighted by w_s / p(y_i | y_−i, θ_s), with y_i the entries of the group.
        """
        found = [torch.full((3, *Y.shape), math.nan, dtype=torch.float64) for _ in self.parts]
        for mixture, values in zip(self.parts, found, strict=True):
            for a, part in enumerate(mixture.parts):
                rows = torch.isfinite(Y[:, a])
                values[:, rows, a] = _held_out_output(part, groups[rows].unique(return_inverse=True)[1])
        weights = torch.from_numpy(self.weights)[:, None, None]
        means, deviations, cdf = torch.stack(found).unbind(1)
        mean = (weights * means).sum(0)
        variance = (weights * (deviations.square() + (means - mean).square())).sum(0)
        return mean, variance.sqrt(), (weights * cdf).sum(0)


def _held_out_output(part: OutputPosterior, groups: Tensor) -> Tensor:
    """Return means, standard deviations and P(y′ ≤ y) of one output, (3, n)."""
    y = torch.from_numpy(part.y)
    if int(groups.max()) + 1 == len(y):
        mean, std, log_density = part.leave_one_out
    else:
        data = Observations(torch.from_numpy(part.problem.X), y.unsqueeze(-1))
        by_draw = []
        for alpha, chol in zip(part.alpha, part.chol, strict=True):
            inverse = torch.cholesky_inverse(chol)
            blocks = lambda rows, inverse=inverse: inverse[rows.unsqueeze(-1), rows.unsqueeze(-2)]  # noqa: E731
            by_draw.append(LeaveGroupOut.from_groups(data, alpha.unsqueeze(-1), groups, blocks))
        mean, std = (torch.stack([getattr(one, name)[:, 0] for one in by_draw]) for name in ("mean", "std"))
        log_density = torch.stack([one.log_density for one in by_draw])[:, groups]
    weights = (torch.from_numpy(np.log(part.weights)).unsqueeze(-1) - log_density).softmax(0)
    weights = weights.clamp_max(max(len(mean) ** -0.5, 1 / len(mean)))
    weights = weights / weights.sum(0)
    center = (weights * mean).sum(0)
    variance = (weights * (std.square() + (mean - center).square())).sum(0)
    return torch.stack([center, variance.sqrt(), (weights * normal_cdf(y, mean, std)).sum(0)])


@dataclass(frozen=True)
class FittedStack:
    """A trained mixture: posterior, the model of the heaviest candidate at its mode, scores of all candidates, and a report."""

    posterior: StackPosterior
    gp: OperatorValuedGP
    scores: dict[str, CandidateScore]


def fit_stack(
    candidates: Sequence[Candidate], data: Observations, *, average: bool = True, verbose: int = 0
) -> FittedStack:
    """Train candidates on standardized data, and mix them with the weights of `stacking_weights`.

    If `average`, the hyperparameters of each output are averaged over draws around their mode, where these are affordable. Ctrl-C
    keeps the candidates so far. Complexity: about 50 to 100 factorizations O(n³) per candidate and output.
    """
    began, fits = time.monotonic(), []
    for candidate in tqdm(candidates, disable=not verbose, unit="candidate", desc="training"):
        fits.append(IndependentFit(candidate, data).train(average=average))
        if fits[-1].interrupted:
            break
    densities = np.stack([fit.log_density for fit in fits], -1)  # (n, p, K)
    weights = stacking_weights(np.nansum(densities, 1))
    scores = {fit.name: _score(fit, weight) for fit, weight in zip(fits, weights, strict=True)}
    correlation = residual_correlation(np.tensordot(np.stack([fit.scores for fit in fits], -1), weights, 1))
    kept = np.flatnonzero(weights >= MIN_WEIGHT)
    parts = [fits[i].posterior for i in kept]
    own = weights[kept] / weights[kept].sum()
    posterior = StackPosterior(parts, own, [candidates[i] for i in kept], data, correlation)
    best = fits[int(np.argmax(weights))]
    gp = best.make_gp()
    gp.fit_report_ = _report(best, fits, data, time.monotonic() - began)
    if gp.fit_report_.interrupted:
        warnings.warn(f"Training {gp.fit_report_.message}.", FitWarning, stacklevel=2)
    return FittedStack(posterior, gp, scores)


def _score(fit: FittedCandidate, weight: float) -> CandidateScore:
    values = fit.log_density[np.isfinite(fit.log_density)]
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return CandidateScore(float(weight), float(values.mean()), float(error))


def _report(best: FittedCandidate, fits: list[FittedCandidate], data: Observations, seconds: float) -> FitReport:
    """Report the training of the heaviest candidate, and the work of all."""
    runs, interrupted = best.draws, any(fit.interrupted for fit in fits)
    converged = all(run.converged for run in runs) and not interrupted
    messages = ("converged",) if converged else ("stopped without converging", "the best parameters so far are kept")
    messages = ("was interrupted: the parameters are the best so far",) if interrupted else messages
    bounds = (
        (f"noise_model.{path.rpartition('.')[2]}", a, side)
        if path.startswith("noise_model")
        else (f"kernel.kernels.{a}.{path[7:]}", index, side)
        for a, run in enumerate(runs)
        for path, index, side in run.active_bounds
    )
    report = FitReport(
        objective=sum(run.log_posterior for run in runs),
        converged=converged,
        messages=messages,
        iterations=sum(run.iterations for fit in fits for run in fit.draws),
        evaluations=sum(run.evaluations for fit in fits for run in fit.draws),
        interrupted=interrupted,
        seconds=seconds,
        active_bounds=tuple(bounds),
    )
    report.num_rows, report.num_observed = data.num_rows, data.num_observed
    report.log_evidence = best.posterior.log_evidence
    return report
