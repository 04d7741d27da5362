"""Candidate models of a mixture, on standardized data: independent outputs, coupled ones, and vector fields.

An independent candidate gives every output its own Gaussian process with mean zero and the kernel

    k(x, z) = 1 + v x·z/d + s² κ(|x − z|/ℓ),

where the constant 1 is the prior variance of the mean, and the linear term is optional. Its hyperparameters are averaged over draws
around their mode where rows are few. A coupled candidate is an `OperatorValuedGP`, averaged likewise but for its output matrices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ScaleKernel
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from ovkgp.inference.algebra.dense import gaussian_log_density
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations, validate_inputs
from ovkgp.inference.model.row_sample import NUM_FOLDS
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.posterior import FunctionDraws, Posterior
from ovkgp.inference.posteriors.prediction import Prediction, normal_cdf
from ovkgp.inference.stacking.model_draws import average_over_draws, condition_on_weighted_draws
from ovkgp.inference.stacking.output_draws import Draws, OutputProblem
from ovkgp.inference.stacking.output_posterior import IndependentMixture, OutputPosterior
from ovkgp.inference.training.initialization import (
    load_raw_state,
    raw_state,
    register_default_priors,
    register_noise_prior,
)
from ovkgp.inference.training.maximize import prefix_failures
from ovkgp.inference.training.priors import DEFAULT_PRIORS, WIDE_PRIORS, PriorSettings
from ovkgp.kernels import DecomposableKernel, HelmholtzKernel, IndependentKernel
from ovkgp.kernels.records import make_scalar_kernel

MAX_FOLD_ROWS = 600  # with more rows, leave-one-out at the mode gives mixtures that are as good, for less time
FOLD_EVALUATIONS, SCREENING_EVALUATIONS = 5, 2
"""Evaluations of the search from the mode of all rows, for each fold: for weights, and to screen candidates."""
COUPLED_ENTRIES = 800  # observed entries on which a coupled candidate is trained if its kernel is not separable


@dataclass(frozen=True)
class IndependentCandidate:
    """Kernel of a candidate: name of κ, whether each column has its own lengthscale, the linear term, and its priors."""

    name: str
    base: str
    has_lengthscales: bool
    is_linear: bool
    priors: PriorSettings = DEFAULT_PRIORS

    def make_kernel(self, num_dims: int) -> Kernel:
        """Make the scalar kernel for standardized data."""
        constant = ConstantKernel().double()
        constant.constant = torch.ones(1, dtype=torch.float64)
        constant.raw_constant.requires_grad_(False)
        base = make_scalar_kernel(self.base, num_dims if self.has_lengthscales else None)
        terms = [constant, *([LinearKernel()] if self.is_linear else []), ScaleKernel(base)]
        return AdditiveKernel(*terms).double()

    def make_gp(self, num_dims: int, num_outputs: int) -> OperatorValuedGP:
        """Make the model of all outputs, with priors."""
        kernel = IndependentKernel([self.make_kernel(num_dims) for _ in range(num_outputs)])
        gp = OperatorValuedGP(kernel, mean="zero", noise="per_output")
        register_default_priors(gp.kernel, num_dims, None, self.priors)
        register_noise_prior(gp.noise_model, None, self.priors)
        return gp

    def begin(self, data: Observations, restarts: int = 1) -> IndependentFit:
        """Return the training of all outputs, which may `screen` before it is completed."""
        return IndependentFit(self, data, restarts)

    def train(self, data: Observations, *, average: bool = True, restarts: int = 1) -> FittedCandidate:
        """Train every output, with draws around the mode if `average` and they are affordable."""
        return self.begin(data, restarts).train(average=average)

    def condition(self, data: Observations, state: list[Draws]) -> IndependentMixture:
        """Condition every output at given draws."""
        return IndependentFit(self, data).restore(state)


def default_candidates(base: str | None = None) -> tuple[IndependentCandidate, ...]:
    """Return the candidates of independent outputs; with `base`, all have this kernel."""
    smooth, rough, wide = (base, base, base) if base else ("matern52", "matern32", "rq")
    return (
        IndependentCandidate(f"linear + {smooth}", smooth, has_lengthscales=False, is_linear=True),
        IndependentCandidate(f"{rough}, ARD", rough, has_lengthscales=True, is_linear=False),
        IndependentCandidate(f"linear + {wide}, ARD", wide, has_lengthscales=True, is_linear=True, priors=WIDE_PRIORS),
    )


@dataclass
class FittedCandidate:
    """A trained candidate.

    `make_gp` makes the model at the mode, `log_density` (n, p) are the log densities of the entries given the other rows, and
    `scores` (n, p) their standardized residuals, NaN where missing. `khat` is the largest k̂ of the outputs, and `rough_outputs` are
    those whose draws were replaced by the mode.
    """

    name: str
    make_gp: Callable[[], OperatorValuedGP]
    posterior: Posterior
    log_density: np.ndarray
    scores: np.ndarray
    report: FitReport
    khat: float | None = None
    rough_outputs: tuple[int, ...] = ()


class IndependentFit:
    """Training of candidates of independent outputs on standardized data X (n, d), Y (n, p) with NaN if missing."""

    def __init__(self, candidate: IndependentCandidate, data: Observations, restarts: int = 1):
        self.candidate, self.data, self.restarts, self.problems, self.first = candidate, data, restarts, {}, {}

    def outputs(self):
        """Yield the problem, the values (n_a,), the known noise (n_a,) or None, and the rows of each output."""
        data = self.data
        for a in range(data.num_outputs):
            rows = data.observed[:, a]
            key = rows.numpy().tobytes()
            if key not in self.problems:
                self.problems[key] = OutputProblem(self.candidate, data.X[rows], data.noise is not None)
            known = None if data.noise is None else data.noise[rows, a].numpy()
            yield self.problems[key], data.Y[rows, a].numpy(), known, rows.numpy()

    @property
    def has_subset(self) -> bool:
        """Whether the training of an output begins on a subset of its rows."""
        return any(problem.subset is not None for problem, *_ in self.outputs())

    def screen(self) -> np.ndarray:
        """Train every output on a subset of its rows; return log densities (n, p) given other folds, NaN for other rows."""
        log_density = np.full(self.data.Y.shape, np.nan)
        for a, (problem, y, known, rows) in enumerate(self.outputs()):
            if problem.subset is not None:
                with prefix_failures(a):
                    first = problem.search_subset(y, known, self.restarts)
                    own = first.problem, first.y, first.known, first.draws
                    density = _fold_density(*own, SCREENING_EVALUATIONS)
                log_density[np.flatnonzero(rows)[first.rows], a] = density
                self.first[a] = first
        return log_density

    def train(self, *, average: bool = True, has_folds: bool = True) -> FittedCandidate:
        """Train and condition every output, with draws around the mode if `average` and they are affordable.

        Otherwise held-out densities are those of folds, or leave-one-out at the mode if there are many rows or not `has_folds`.
        """
        found = []
        for problem, y, known, rows in self.outputs():
            average = average and not any(draws.interrupted for *_, draws in found)
            with prefix_failures(len(found)):
                first = self.first.get(len(found))
                draws = problem.draw(y, known, average=average, restarts=self.restarts, first=first)
            found.append((problem, y, known, rows, draws))
        shape = self.data.Y.shape
        log_density, scores = np.full(shape, np.nan), np.full(shape, np.nan)
        parts = []
        for a, (problem, y, known, rows, draws) in enumerate(found):
            part = OutputPosterior(problem, y, known, draws)
            found[a] = (*found[a][:-1], part.draws)  # without the factors, which the posterior holds
            uses_folds = has_folds and len(draws.weights) == 1 and draws.metric is not None and len(y) <= MAX_FOLD_ROWS
            density = _fold_density(problem, y, known, draws) if uses_folds else part.held_out_density()
            log_density[rows, a], scores[rows, a] = density, part.held_out_scores()
            parts.append(part)
        posterior, runs = IndependentMixture(parts), [draws for *_, draws in found]
        about = {
            "khat": max((run.khat for run in runs if run.khat is not None), default=None),
            "rough_outputs": tuple(a for a, run in enumerate(runs) if run.is_rough),
        }
        make_gp, report = partial(self._mode, found), _join_reports(runs)
        return FittedCandidate(self.candidate.name, make_gp, posterior, log_density, scores, report, **about)

    def restore(self, draws: list[Draws]) -> IndependentMixture:
        """Condition every output at given draws."""
        pairs = zip(self.outputs(), draws, strict=True)
        return IndependentMixture([OutputPosterior(*one[:3], own) for one, own in pairs])

    def _mode(self, found) -> OperatorValuedGP:
        """Return the model of all outputs at the modes."""
        gp = self.candidate.make_gp(self.data.X.shape[1], self.data.num_outputs)
        for a, (problem, _, known, _, draws) in enumerate(found):
            problem.set_kernel(gp.kernel.kernels[a], problem.parameters.theta(draws.mode))
            with torch.no_grad():
                gp.noise_model.log_scale[a] = draws.mode[-1] if known is None else 0.5 * math.log(known.mean())
        return gp


def _join_reports(runs: list[Draws]) -> FitReport:
    """Report the searches for the modes of all outputs."""
    converged = all(run.converged for run in runs)
    bounds = []
    for a, run in enumerate(runs):
        for path, index, side in run.active_bounds:
            part, _, rest = path.partition(".")
            bounds.append((path, a, side) if part == "noise_model" else (f"kernel.kernels.{a}.{rest}", index, side))
    return FitReport(
        objective=math.fsum(run.log_posterior for run in runs),
        converged=converged,
        messages=("converged",) if converged else ("stopped without converging", "the best parameters so far are kept"),
        iterations=sum(run.iterations for run in runs),
        evaluations=sum(run.evaluations for run in runs),
        gradient_norm=max(run.gradient_norm for run in runs),
        interrupted=any(run.interrupted for run in runs),
        active_bounds=tuple(bounds),
    )


def _fold_density(
    problem: OutputProblem,
    y: np.ndarray,
    known: np.ndarray | None,
    draws: Draws,
    max_evaluations: int = FOLD_EVALUATIONS,
) -> np.ndarray:
    """Return the log density (n,) of each entry given the other folds, with the hyperparameters trained again on these.

    With fewer than two rows per fold, or after an interrupted search, these are leave-one-out densities at the mode.
    """
    n = len(y)
    if n < 2 * NUM_FOLDS or draws.metric is None:
        return OutputPosterior(problem, y, known, draws).held_out_density()
    density = np.empty(n)
    for (kept, left), part in problem.folds:
        own_known = None if known is None else known[kept]
        own = part.draw_from(draws.mode, draws.metric, y[kept], own_known, max_evaluations)
        posterior = OutputPosterior(part, y[kept], own_known, own)
        mean, variance = posterior.moments(torch.from_numpy(problem.X[left]), "diag", noise=known is None)
        variance = variance[0].numpy() + (0.0 if known is None else known[left])
        density[left] = gaussian_log_density((y[left] - mean[0].numpy()) ** 2 / variance, np.log(variance))
    return density


@dataclass(frozen=True)
class CoupledCandidate:
    """Coupled outputs: one separable kernel ("icm"), the sum of `rank` of rank one ("lmc"), or a vector field ("helmholtz").

    The first two have a full noise covariance: with a diagonal one, correlated noise would be taken for a correlated signal. The
    inputs of a field have one common unit, and so have its outputs: standardized columns are multiplied by `input_scale` and
    `output_scale`, if these are given.
    """

    name: str
    structure: str
    base: str
    rank: int = 2
    input_scale: tuple[float, ...] | None = None
    output_scale: tuple[float, ...] | None = None

    def make_gp(self, num_dims: int, num_outputs: int) -> OperatorValuedGP:
        """Make the model with default priors."""
        if self.structure == "helmholtz":
            kernel = HelmholtzKernel(make_scalar_kernel(self.base), num_dims=num_dims)
        else:
            rank = min(self.rank, num_outputs)
            count, each = (1, rank) if self.structure == "icm" else (max(rank, 2), 1)
            bases = [make_scalar_kernel(self.base, num_dims) for _ in range(count)]
            terms = [DecomposableKernel(base, num_outputs, each) for base in bases]
            kernel = terms[0] if count == 1 else AdditiveKernel(*terms)
        noise = "per_output" if self.structure == "helmholtz" else "full"
        gp = OperatorValuedGP(kernel, mean="constant", noise=noise)
        register_default_priors(gp.kernel, num_dims)
        register_noise_prior(gp.noise_model)
        return gp

    def train(self, data: Observations, *, average: bool = True, restarts: int = 1) -> FittedCandidate:
        """Train the model, on a subset of the rows if its kernel matrix is large, and condition it on all."""
        gp, own = self.make_gp(data.X.shape[1], data.num_outputs), self.scale(data)
        is_separable = self.structure == "icm" and data.is_complete and data.noise is None
        rows = None if is_separable else max(int(COUPLED_ENTRIES / data.num_observed * data.num_rows), 2)
        with warnings.catch_warnings():  # of points that the optimizer rejects
            warnings.simplefilter("ignore", NumericalWarning)
            gp.fit(own.X, own.Y, own.noise, training_rows=rows, restarts=restarts, random_state=0)
            report, mixture = gp.fit_report_, None
            if average and not report.interrupted and report.num_rows == data.num_rows:
                mixture = average_over_draws(gp, own)
            if mixture is None:
                posterior = self.condition(data, raw_state(gp))
            else:
                posterior = CoupledMixture(self, gp, mixture, data)
            log_density, scores = posterior.leave_rows_out(data)
        return FittedCandidate(self.name, lambda: gp, posterior, log_density, scores, report)

    def condition(
        self, data: Observations, state: dict[str, Tensor] | CoupledState
    ) -> CoupledPosterior | CoupledMixture:
        """Condition the model at given raw parameters or draws."""
        mode, *draws = (state,) if isinstance(state, dict) else state
        gp, own = self.make_gp(data.X.shape[1], data.num_outputs), self.scale(data)
        load_raw_state(gp, mode)
        if not draws:
            return CoupledPosterior(self, gp, gp.condition(own.X, own.Y, None, own.noise), state, data)
        return CoupledMixture(self, gp, condition_on_weighted_draws(gp, own, *draws), data)

    def scale(self, data: Observations) -> Observations:
        """Return data in the units of the model."""
        if self.output_scale is None:
            return data
        by_output = torch.tensor(self.output_scale, dtype=torch.float64)
        noise = None if data.noise is None else data.noise * by_output.square()
        return Observations(self.scale_inputs(data.X), data.Y * by_output, noise)

    def scale_inputs(self, X: Tensor) -> Tensor:
        """Return inputs in the units of the model."""
        return X if self.input_scale is None else X * torch.tensor(self.input_scale, dtype=torch.float64)


CoupledState = tuple[dict[str, Tensor], dict[str, Tensor], np.ndarray]
"""Raw parameters of a coupled candidate at its mode, draws of some of them (S, *shape), and the weights (S,) of these."""


class CoupledPosterior(Posterior):
    """Posterior of a coupled candidate in standardized units, and the model and raw parameters from which it was computed."""

    def __init__(
        self,
        candidate: CoupledCandidate,
        gp: OperatorValuedGP,
        posterior: Posterior,
        state: dict[str, Tensor],
        data: Observations,
    ):
        self.candidate, self.gp, self.posterior, self.state = candidate, gp, posterior, state
        self.num_outputs, self.num_dims = posterior.num_outputs, posterior.num_dims
        scale = (1.0,) * self.num_outputs if candidate.output_scale is None else candidate.output_scale
        self.scale = torch.tensor(scale, dtype=torch.float64)
        self.noise = posterior.noise / torch.outer(self.scale, self.scale)
        self.log_evidence = posterior.log_evidence + float(data.observed.sum(0).double() @ self.scale.log())

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        X = self.candidate.scale_inputs(validate_inputs(X, self.num_dims).double())
        found = self.posterior.predict(X, cov, noise)
        covariance = None if found.form == "none" else self._rescale(found._covariance, found.form)
        return Prediction(found.mean / self.scale, covariance, found.form)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        prediction = self.predict(X, form)
        return prediction.mean, prediction._covariance

    def _rescale(self, covariance: Tensor, form: str) -> Tensor:
        if form == "diag":
            return covariance / self.scale.square()
        scale = self.scale if form == "output" else self.scale.repeat(len(covariance) // self.num_outputs)
        return covariance / torch.outer(scale, scale)

    def max_chunk_rows(self, form: str) -> int:
        return self.posterior.max_chunk_rows(form)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        draws = self.posterior.sample_functions(k, random_state=random_state)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            return draws._evaluate(self.candidate.scale_inputs(X), index) / self.scale

        def evaluate_pairs(X: Tensor, index: Tensor) -> Tensor:
            return draws._evaluate_pairs(self.candidate.scale_inputs(X), index) / self.scale

        return FunctionDraws(evaluate, k, self.num_dims, lambda: self.noise, evaluate_pairs)

    def leave_groups_out(self, data: Observations, groups: Tensor) -> Tensor:
        """Predict each entry from the rows of other groups (n,): mean, standard deviation and P(y′ ≤ y), (3, n, p)."""
        own, is_by_row = self.candidate.scale(data), int(groups.max()) + 1 == data.num_rows
        labels = "rows" if is_by_row else groups.numpy()
        mean, std, *_ = self.gp.leave_one_out(own.X, own.Y, own.noise, groups=labels)
        mean, std = mean / self.scale, std / self.scale
        return torch.stack([mean, std, normal_cdf(data.Y, mean, std)])

    def leave_rows_out(self, data: Observations) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and standardized residuals (n, p) of the entries given the other rows."""
        mean, std, _ = self.leave_groups_out(data, torch.arange(data.num_rows))
        return normal_log_density(data.Y, mean, std).numpy(), ((data.Y - mean) / std).numpy()


class CoupledMixture(MixturePosterior):
    """Posterior of a coupled candidate averaged over draws of the hyperparameters of `gp`, which is at the mode."""

    def __init__(
        self, candidate: CoupledCandidate, gp: OperatorValuedGP, mixture: MixturePosterior, data: Observations
    ):
        self.candidate, self.gp, self.draws = candidate, gp, mixture.parts
        super().__init__([CoupledPosterior(candidate, gp, part, {}, data) for part in self.draws], mixture.weights)

    @property
    def state(self) -> CoupledState:
        """Raw parameters, their draws and weights, from which the posterior can be computed again."""
        return raw_state(self.gp), self.draws.raw, self.weights

    def models(self) -> Iterator[OperatorValuedGP]:
        """Yield the model at each draw; the next one replaces its values."""
        return map(self.draws.set_draw, range(len(self)))

    def leave_groups_out(self, data: Observations, groups: Tensor) -> Tensor:
        """Predict each entry from the rows of other groups (n,): mean, standard deviation and P(y′ ≤ y), (3, n, p).

        The draws are weighted by w_s / p(y_i | y_−i, θ_s), with y_i the entries of the group, truncated at S^(−½).
        """
        means, deviations, weights = self._leave_out(data, groups)
        weights = weights.clamp_max(len(self) ** -0.5)
        weights = weights / weights.sum(0)
        mean = (weights * means).sum(0)
        variance = (weights * (deviations.square() + (means - mean).square())).sum(0)
        return torch.stack([mean, variance.sqrt(), (weights * normal_cdf(data.Y, means, deviations)).sum(0)])

    def leave_rows_out(self, data: Observations) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and standardized residuals (n, p) of the entries given the other rows, averaged over the draws."""
        means, deviations, weights = self._leave_out(data, torch.arange(data.num_rows))
        log_density = (weights.log() + normal_log_density(data.Y, means, deviations)).logsumexp(0)
        return log_density.numpy(), (weights * (data.Y - means) / deviations).sum(0).numpy()

    @torch.no_grad()
    def _leave_out(self, data: Observations, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and standard deviations (S, n, p) of entries given other groups, and weights (S, n, 1) of the draws."""
        own, scale = self.candidate.scale(data), self.parts[0].scale
        is_by_row = int(groups.max()) + 1 == data.num_rows
        labels = "rows" if is_by_row else groups.numpy()
        found = [gp.leave_one_out(own.X, own.Y, own.noise, groups=labels) for gp in self.models()]
        means, deviations, log_density = (torch.stack(parts) for parts in list(zip(*found, strict=True))[:3])
        log_density = log_density[:, groups]
        log_weights = torch.from_numpy(np.log(self.weights)).unsqueeze(-1) - log_density
        return means / scale, deviations / scale, log_weights.softmax(0).unsqueeze(-1)


def normal_log_density(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Compute the elementwise log density of y under independent normal distributions."""
    return gaussian_log_density(((y - mean) / std).square(), 2 * std.log())
