"""Models of time for forecasts: terms of a kernel (level, trend, seasons, short-term deviations), and their selection by evidence.

A structure is a sum of independent processes ⊗ outputs. Structures are compared by log p(Y) − ½ k log N for k trained parameters and N
observed entries (BIC), on the last rows of the series.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from numbers import Real

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, MaternKernel, ScaleKernel
from scipy.signal import lombscargle
from torch import Tensor

from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FactorizationError, FitWarning, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.training.priors import PriorRegistry, log_normal
from ovkgp.kernels import DecomposableKernel, IntegratedBrownianKernel, SeasonalKernel
from ovkgp.kernels.records import make_scalar_kernel

TRENDS = ("none", "linear", "matern", "integrated")  # from the simplest to the most flexible
RESIDUALS = ("matern12", "matern32")  # candidates of kernel="auto"
CALENDAR = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 30.436875, "quarter": 91.310625, "year": 365.2425}
"""Periods in days."""
CANDIDATE_PERIODS = ("day", "week", "year")
MAX_HARMONICS, MIN_STEPS_PER_PERIOD, MIN_PERIODS = 6, 3, 2
LEVEL_VARIANCE, SLOPE_VARIANCE = 10.0, 10.0  # in standardized units; the slope is that over the whole series
MAX_SELECTION_ROWS = 500  # last rows on which structures are compared
MAX_SELECTION_OUTPUTS = 3  # outputs that select the structure of a coupled model
MAX_DETECTED_PERIODS, MAX_FREQUENCIES = 2, 5000
MIN_PEAK_POWER = 0.1  # fraction of the variance that a sine of a detected period explains
MAX_ITERATIONS, MAX_SELECTION_ITERATIONS = 200, 40
TOLERANCE, SELECTION_TOLERANCE = 1e-5, 1e-4  # of the training, per observed entry
MIN_GAIN = 1.0  # of the criterion, for which a term is added


@storable_record
@dataclass(frozen=True)
class Season:
    """Season of a model of time.

    Parameters
    ----------
    period : float
        Period in units of the times, days for dates.
    harmonics : int
        Number of harmonics.
    changes : bool, default=False
        Whether the season changes over time.
    is_trained : bool, default=False
        Whether the period is trained.
    """

    period: float
    harmonics: int
    changes: bool = False
    is_trained: bool = False


@storable_record
@dataclass(frozen=True)
class Structure:
    """Terms of a model of time.

    Parameters
    ----------
    trend : {"none", "linear", "matern", "integrated"}
        Trend.
    residual : str or None
        Name of the kernel of short-term deviations, "object" for a kernel object.
    seasons : tuple of Season, default=()
        Seasons.
    """

    trend: str
    residual: str | None
    seasons: tuple[Season, ...] = ()


@dataclass(frozen=True)
class TimeScale:
    """Times as the model sees them, (t − origin) / span, and the typical distance of two stamps in units of the times."""

    origin: float
    span: float
    step: float

    @classmethod
    def of(cls, times: np.ndarray, step: float | None = None) -> TimeScale:
        """Return the scale of times (T,); the step of irregular ones is the median of their distances."""
        distinct = np.unique(times)
        if len(distinct) == 1:
            return cls(float(distinct[0]), 1.0, 1.0)
        step = float(np.median(np.diff(distinct))) if step is None else step
        return cls(float(distinct[0]), float(distinct[-1] - distinct[0]), step)

    def inputs(self, times: np.ndarray) -> np.ndarray:
        """Return scaled times (T, 1)."""
        return ((np.asarray(times, dtype=np.float64) - self.origin) / self.span)[:, None]


def make_season(period: float, scale: TimeScale, **options) -> Season:
    """Make a season with as many harmonics as the distance of the stamps resolves."""
    return Season(float(period), int(np.clip(round(period / scale.step) // 2, 1, MAX_HARMONICS)), **options)


def is_period_list(seasonal) -> bool:
    """Whether a value is a number, name or duration, or a list of these."""
    values = [seasonal] if np.ndim(seasonal) == 0 else seasonal
    kinds = str | Real | timedelta | np.timedelta64
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in values)


def read_periods(seasonal, scale: TimeScale, has_dates: bool, is_regular: bool) -> tuple[Season, ...]:
    """Return the seasons of the option `seasonal`, a period or a list of them."""
    values = [seasonal] if np.ndim(seasonal) == 0 else list(seasonal)
    periods = [_read_period(value, scale, has_dates, is_regular) for value in values]
    for value, period in zip(values, periods, strict=True):
        if period < 2 * scale.step * (1 - 1e-6):
            raise OptionError(
                f"seasonal must have periods of at least two steps, got {value!r}, which is {period / scale.step:.3g} steps. Remove it, or use stamps that are closer."
            )
    return tuple(make_season(period, scale) for period in periods)


def _read_period(value, scale: TimeScale, has_dates: bool, is_regular: bool) -> float:
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        if not (math.isfinite(value) and value > 0):
            raise OptionError(f"seasonal must have positive periods, got {value!r}.")
        return float(value) * (scale.step if is_regular else 1.0)
    if not has_dates:
        raise OptionError(
            f"seasonal must be a number of steps for a series without dates, got {value!r}. Use an index of dates."
        )
    if value in CALENDAR:
        return CALENDAR[value]
    try:
        return float(pd.Timedelta(value) / pd.Timedelta(days=1))
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"seasonal must be a number of steps, one of {', '.join(map(repr, CALENDAR))}, or a duration such as '12h', got {value!r}."
        ) from error


def candidate_seasons(times: np.ndarray, values: np.ndarray, scale: TimeScale, has_dates: bool) -> tuple[Season, ...]:
    """Return the calendar periods that dates resolve, or the periods of the largest peaks of the spectrum of values (T,)."""
    if has_dates:
        periods = [CALENDAR[name] for name in CANDIDATE_PERIODS]
        return tuple(make_season(period, scale) for period in periods if _is_resolved(period, scale))
    return tuple(make_season(period, scale, is_trained=True) for period in detect_periods(times, values, scale))


def _is_resolved(period: float, scale: TimeScale) -> bool:
    return MIN_STEPS_PER_PERIOD * scale.step <= period * 1.001 and MIN_PERIODS * period <= scale.span + scale.step


def detect_periods(times: np.ndarray, values: np.ndarray, scale: TimeScale) -> list[float]:
    """Return up to two periods by the peaks of the Lomb–Scargle spectrum of values (T,) without their linear trend.

    Periods of which an earlier one is a multiple are omitted: harmonics of a season have them too.
    """
    observed = np.isfinite(values)
    t, y = (times[observed] - scale.origin) / scale.span, values[observed]
    num_steps = scale.span / scale.step
    if len(y) < 4 * MIN_STEPS_PER_PERIOD or num_steps < MIN_PERIODS * MIN_STEPS_PER_PERIOD:
        return []
    y = y - np.polyval(np.polyfit(t, y, 1), t)
    highest = num_steps / MIN_STEPS_PER_PERIOD  # cycles of the whole series
    frequencies = np.linspace(MIN_PERIODS, highest, min(MAX_FREQUENCIES, max(2, int(4 * highest))))
    found: list[float] = []
    for _ in range(4 * MAX_DETECTED_PERIODS):
        if len(found) == MAX_DETECTED_PERIODS or not y.std() > 0:
            break
        power = lombscargle(t, y, 2 * np.pi * frequencies, normalize=True)
        best = int(power.argmax())
        if power[best] < MIN_PEAK_POWER:
            break
        frequency = frequencies[best]
        if not any(abs(frequency / known - round(frequency / known)) < 0.5 / known for known in found):
            found.append(frequency)
        harmonics = np.column_stack(
            [np.cos(2 * np.pi * frequency * t), np.sin(2 * np.pi * frequency * t), np.ones_like(t)]
        )
        y = y - harmonics @ np.linalg.lstsq(harmonics, y, rcond=None)[0]
    return [scale.span / frequency for frequency in found]


# Kernels of a structure.


def make_terms(
    structure: Structure, scale: TimeScale, num_exog: int, effect: str, kernel: Kernel | None
) -> dict[str, Kernel]:
    """Make the scalar kernels of the terms by name, with priors on the parameters of which the defaults are too narrow.

    A kernel object replaces the residual. With exogenous columns, the first column is time.
    """
    columns = {"active_dims": [0]} if num_exog else {}
    level, slope = ConstantKernel(**columns), LinearKernel(**columns)
    level.constant, slope.variance = torch.tensor(LEVEL_VARIANCE), SLOPE_VARIANCE
    terms = {"level": (level if structure.trend == "none" else level + slope).requires_grad_(False)}
    if structure.trend == "integrated":
        terms["trend"] = IntegratedBrownianKernel(0.0, 1.0, **columns)
    elif structure.trend == "matern":
        terms["trend"] = _matern(2.5, 0.5, 1.0, columns)
    if kernel is not None:
        terms["residual"] = deepcopy(kernel)
        if num_exog:
            terms["residual"].active_dims = torch.tensor([0])
    elif structure.residual is not None:
        terms["residual"] = make_scalar_kernel(structure.residual)
        if num_exog:
            terms["residual"].active_dims = torch.tensor([0])
        step = scale.step / scale.span
        _set_lengthscale(terms["residual"], math.sqrt(2 * step), 1.5)
    for index, season in enumerate(structure.seasons):
        part = SeasonalKernel(season.period / scale.span, season.harmonics, **columns)
        part.raw_period_length.requires_grad_(season.is_trained)
        if season.is_trained:  # near the peak of the spectrum
            PriorRegistry(part).add(part, "raw_period_length", log_normal(part.period_length.detach().log(), 0.02))
        if season.changes:
            part = part * _matern(1.5, max(1.0, 5 * season.period / scale.span), 1.0, columns)
        terms[f"season {index}"] = part
    if num_exog:
        dims = list(range(1, num_exog + 1))
        terms["exog"] = LinearKernel(ard_num_dims=num_exog, active_dims=dims)
        if effect == "smooth":
            terms["smooth exog"] = MaternKernel(nu=2.5, ard_num_dims=num_exog, active_dims=dims)
    return {name: term.double() for name, term in terms.items()}


def _matern(nu: float, lengthscale: float, log_std: float, columns: dict) -> MaternKernel:
    return _set_lengthscale(MaternKernel(nu=nu, **columns), lengthscale, log_std)


def _set_lengthscale(kernel: Kernel, lengthscale: float, log_std: float) -> Kernel:
    """Set a lengthscale, and center its prior there."""
    kernel.lengthscale = lengthscale
    PriorRegistry(kernel).add(kernel, "raw_lengthscale", log_normal(torch.tensor(math.log(lengthscale)), log_std))
    return kernel


INITIAL_SCALES = {"trend": 0.1, "residual": 0.3, "exog": 0.3, "smooth exog": 0.1}  # variances; 0.3 for seasons


def join_terms(terms: dict[str, Kernel], num_outputs: int, rank: int) -> Kernel:
    """Return the sum of the terms ⊗ outputs."""
    parts = []
    for name, term in terms.items():
        if name == "level":
            parts.append(term if num_outputs == 1 else DecomposableKernel(term, output_matrix=torch.eye(num_outputs)))
            continue
        if num_outputs == 1 and name == "exog":
            part = term  # with one variance per column
        elif num_outputs == 1:
            part = ScaleKernel(term)
            part.outputscale = INITIAL_SCALES.get(name, 0.3)
            PriorRegistry(part).add(part, "raw_outputscale", log_normal(torch.tensor(math.log(0.1)), 2.0))
        else:
            part = DecomposableKernel(term, num_outputs=num_outputs, rank=min(rank, num_outputs))
            matrix = part.output_module
            matrix.loadings.data *= math.sqrt(INITIAL_SCALES.get(name, 0.3))
            matrix.diagonal = torch.full((num_outputs,), 0.1 * INITIAL_SCALES.get(name, 0.3))
            PriorRegistry(matrix).add(matrix, "raw_diagonal", log_normal(torch.tensor(math.log(0.03)), 2.0))
        parts.append(part)
    return (parts[0] if len(parts) == 1 else AdditiveKernel(*parts)).double()


# Training and selection.


@storable_record
@dataclass
class SeriesModel:
    """Trained model of some outputs: their indices, its structure, kernel, noise variances (p,) and the criterion of its structure."""

    outputs: list[int]
    structure: Structure
    terms: list[str]
    kernel: Kernel
    noise: Tensor
    log_evidence: float
    criterion: float

    def gp(self) -> OperatorValuedGP:
        """Return the model with fixed noise."""
        return OperatorValuedGP(self.kernel, mean="zero", noise=self.noise)


@dataclass
class Problem:
    """Inputs X (T, 1 + number of exogenous columns), outputs Y (T, p) in standardized units, and options of the model."""

    X: np.ndarray
    Y: np.ndarray
    scale: TimeScale
    effect: str = "linear"
    kernel: Kernel | None = None
    rank: int = 1
    verbose: int = 0

    def last_rows(self, count: int) -> Problem:
        """Keep the last rows with observed outputs."""
        rows = np.flatnonzero(np.isfinite(self.Y).any(1))[-count:]
        return replace(self, X=self.X[rows], Y=self.Y[rows])

    def columns(self, outputs: Sequence[int]) -> Problem:
        """Keep some outputs, on the rows where one of them is observed."""
        rows = np.isfinite(self.Y[:, outputs]).any(1)
        return replace(self, X=self.X[rows], Y=self.Y[rows][:, outputs])


def train(
    problem: Problem,
    structure: Structure,
    outputs: Sequence[int],
    start: SeriesModel | None = None,
    is_final: bool = True,
) -> SeriesModel:
    """Train a model at the mode of its hyperparameters, from the values of another model where terms agree."""
    p, num_exog = problem.Y.shape[1], problem.X.shape[1] - 1
    terms = make_terms(structure, problem.scale, num_exog, problem.effect, problem.kernel)
    gp = OperatorValuedGP(join_terms(terms, p, problem.rank), mean="zero", noise="per_output")
    X, Y = torch.from_numpy(problem.X), torch.from_numpy(problem.Y)
    data = gp.observe(X, Y)
    gp.register_priors(data)
    gp.noise_model.set(torch.full((p,), 0.1))
    if start is not None:
        _copy_values(gp, list(terms), start)
    elif structure.residual is not None and problem.kernel is None:
        _set_best_start(gp, list(terms).index("residual"), problem.scale, X, Y)
    options = {"max_iter": MAX_ITERATIONS, "tolerance": TOLERANCE}
    if not is_final:
        options = {"max_iter": MAX_SELECTION_ITERATIONS, "tolerance": SELECTION_TOLERANCE}
    with warnings.catch_warnings():
        if not is_final:  # the selected model is trained again
            warnings.filterwarnings("ignore", "training stopped", FitWarning)
        gp.fit(X, Y, init="current", training_rows=None, verbose=problem.verbose, **options)
    evidence = gp.fit_report_.log_evidence
    size = sum(parameter.numel() for parameter in gp.kernel.parameters() if parameter.requires_grad)
    criterion = evidence - size * math.log(max(data.num_observed, 2)) / 2
    return SeriesModel(list(outputs), structure, list(terms), gp.kernel, gp.noise.detach().clone(), evidence, criterion)


def _parts(kernel: Kernel, count: int) -> list[Kernel]:
    return [kernel] if count == 1 else list(kernel.kernels)


@torch.no_grad()
def _copy_values(gp: OperatorValuedGP, names: list[str], start: SeriesModel) -> None:
    """Copy the parameters of the terms of the same name; those of a season that did not change, into one that does."""
    known = dict(zip(start.terms, _parts(start.kernel, len(start.terms)), strict=True))
    for name, part in zip(names, _parts(gp.kernel, len(names)), strict=True):
        if name not in known or name == "level":
            continue
        values = {key.replace("kernels.0.", ""): value for key, value in known[name].named_parameters()}
        for key, parameter in part.named_parameters():
            value = values.get(key.replace("kernels.0.", ""))
            if value is not None and value.shape == parameter.shape:
                parameter.copy_(value)
    if start.noise.shape == gp.noise.shape:
        gp.noise_model.set(start.noise)


@torch.no_grad()
def _set_best_start(gp: OperatorValuedGP, index: int, scale: TimeScale, X: Tensor, Y: Tensor) -> None:
    """Set the lengthscale of the residual and the noise to the best of a few values."""
    kernel, step, scores = gp.kernel.kernels[index].base_kernel, scale.step / scale.span, []
    pairs = list(itertools.product((2 * step, math.sqrt(step), 0.2), (0.01, 0.2)))
    for lengthscale, noise in pairs:
        kernel.lengthscale = lengthscale
        gp.noise_model.set(torch.full((gp.num_outputs,), noise))
        scores.append(float(gp.log_evidence(X, Y)))
    lengthscale, noise = pairs[int(np.argmax(scores))]
    kernel.lengthscale = lengthscale
    gp.noise_model.set(torch.full((gp.num_outputs,), noise))


def select_structure(
    problem: Problem,
    trends: Sequence[str],
    residuals: Sequence[str | None],
    seasons: tuple[Season, ...],
    candidates: Sequence[Season],
    output: int,
) -> SeriesModel:
    """Select the terms of a model of one output, one after another, by the criterion on its last rows."""
    problem = problem.columns([output]).last_rows(MAX_SELECTION_ROWS)
    best = train(problem, Structure(trends[0], residuals[0], seasons), [output], is_final=False)

    def try_structure(structure: Structure) -> None:
        nonlocal best
        try:
            found = train(problem, structure, [output], best, is_final=False)
        except FactorizationError:  # numerically singular: the simpler structure stays
            return
        if found.criterion > best.criterion + MIN_GAIN:
            best = found

    for season in candidates:
        try_structure(replace(best.structure, seasons=(*best.structure.seasons, season)))
    for index, season in enumerate(best.structure.seasons):
        changed = (*best.structure.seasons[:index], replace(season, changes=True), *best.structure.seasons[index + 1 :])
        try_structure(replace(best.structure, seasons=changed))
    for residual in residuals[1:]:
        try_structure(replace(best.structure, residual=residual))
    for trend in trends[1:]:
        try_structure(replace(best.structure, trend=trend))
    return best


def merge_structures(found: Sequence[Structure]) -> Structure:
    """Return the structure of coupled outputs: the most flexible trend, the most frequent residual, and all seasons."""
    seasons: dict[tuple, Season] = {}
    for season in (season for structure in found for season in structure.seasons):
        key = season.period, season.harmonics
        seasons[key] = replace(season, changes=season.changes or (key in seasons and seasons[key].changes))
    residual = Counter(structure.residual for structure in found).most_common(1)[0][0]
    return Structure(max((part.trend for part in found), key=TRENDS.index), residual, tuple(seasons.values()))
