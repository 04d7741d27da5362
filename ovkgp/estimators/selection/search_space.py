"""Search spaces, and the next point of a search: scrambled Sobol points, then maximal expected improvement under a GP (LT-106).

A proposal depends on the seed and on the trials so far only, so that a resumed search takes the same steps as an uninterrupted one. The
surrogate (Matérn-5/2, ARD) and log EI are optuna's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, product
from numbers import Integral, Real
from typing import Any

import numpy as np

from ovkgp.exceptions import MissingExtraError, OptionError
from ovkgp.features.spectral.base_samples import sobol_points

EXPECTED_FORMS = '(low, high), (low, high, "log"), a list of choices, or an optuna distribution'
Point = dict[str, float | int]
MAX_SOBOL_STEPS = 32  # Sobol points tried before the points of a finite space in order


@dataclass(frozen=True)
class Dimension:
    """Values of one parameter: the interval [low, high], or indices of choices.

    `kind` is "float", "int" or "choice"; `step` is the distance of neighbors, None if continuous.
    """

    kind: str
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple = ()

    @property
    def num_values(self) -> float:
        """Number of values, infinite if continuous."""
        return math.inf if self.step is None else math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def value(self, index: int) -> float | int:
        """Return a value by its index."""
        value = self.low + self.step * index
        return float(value) if self.kind == "float" else int(value)

    def index(self, value: float | int) -> int:
        """Return the index of a value."""
        return round((value - self.low) / self.step)

    def quantile(self, u: float) -> float | int:
        """Return the u-quantile of the (log-)uniform distribution, u in (0, 1)."""
        if self.step is not None and not self.log:
            value = self.value(min(int(u * self.num_values), self.num_values - 1))
        elif self.kind == "int":  # on a log scale: each integer has the mass of its unit interval
            value = round(_interpolate(self.low - 0.5, self.high + 0.5, u, log=True))
        else:
            value = _interpolate(self.low, self.high, u, self.log)
        value = min(max(value, self.low), self.high)
        return float(value) if self.kind == "float" else int(value)

    def decode(self, value: float | int) -> Any:
        """Return the parameter of the estimator at `value`."""
        return self.choices[value] if self.kind == "choice" else value

    def to_optuna(self):
        """Return the equivalent optuna distribution."""
        from optuna import distributions  # an optional extra

        if self.kind == "choice":
            return distributions.CategoricalDistribution(tuple(range(len(self.choices))))
        if self.kind == "int":
            return distributions.IntDistribution(self.low, self.high, log=self.log, step=self.step)
        return distributions.FloatDistribution(self.low, self.high, log=self.log, step=self.step)


def _interpolate(low: float, high: float, u: float, log: bool) -> float:
    if log:
        return math.exp(_interpolate(math.log(low), math.log(high), u, log=False))
    return low + u * (high - low)


def make_space(search_spaces: Mapping[str, Any]) -> dict[str, Dimension]:
    """Validate `search_spaces` and return its dimensions sorted by name, so that the order of the keys has no effect."""
    if not isinstance(search_spaces, Mapping) or not search_spaces:
        raise OptionError(
            f"search_spaces must be a dictionary with at least one parameter, such as {{'alpha': (0.01, 10.0, 'log')}}, got {search_spaces!r}."
        )
    if unnamed := [name for name in search_spaces if not isinstance(name, str)]:
        raise OptionError(f"The keys of search_spaces must be parameter names, got {unnamed[0]!r}.")
    return {name: _parse_dimension(name, search_spaces[name]) for name in sorted(search_spaces)}


def _parse_dimension(name: str, given: Any) -> Dimension:
    if type(given).__module__.startswith("optuna."):
        return _from_optuna(name, given)
    if isinstance(given, (list, np.ndarray)):
        if len(given) == 0:
            raise OptionError(f"search_spaces[{name!r}] must have at least one choice, got an empty list.")
        return _make_choice(tuple(given.tolist() if isinstance(given, np.ndarray) else given))
    if not isinstance(given, tuple) or len(given) not in (2, 3) or not all(_is_number(end) for end in given[:2]):
        raise OptionError(f"search_spaces[{name!r}] must be {EXPECTED_FORMS}, got {given!r}. Pass choices as a list.")
    if len(given) == 3 and given[2] not in ("log", "uniform"):
        raise OptionError(f'The third entry of search_spaces[{name!r}] must be "log" or "uniform", got {given[2]!r}.')
    return _make_range(name, *given[:2], log=len(given) == 3 and given[2] == "log")


def _make_range(name: str, low: float, high: float, log: bool) -> Dimension:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(
            f"search_spaces[{name!r}] must have finite bounds with low < high, got low = {low} and high = {high}. Set constant parameters on the estimator."
        )
    if log and low <= 0:
        raise OptionError(f"The lower bound of search_spaces[{name!r}] must be positive on a log scale, got {low}.")
    if isinstance(low, Integral) and isinstance(high, Integral):
        return Dimension("int", int(low), int(high), log, step=1)
    return Dimension("float", float(low), float(high), log)


def _make_choice(choices: tuple) -> Dimension:
    return Dimension("choice", 0, len(choices) - 1, step=1, choices=choices)


def _from_optuna(name: str, given: Any) -> Dimension:
    kinds = {"FloatDistribution": "float", "IntDistribution": "int"}
    if hasattr(given, "choices"):
        return _make_choice(tuple(given.choices))
    if type(given).__name__ not in kinds:
        raise OptionError(f"search_spaces[{name!r}] must be {EXPECTED_FORMS}, got {given!r}.")
    return Dimension(kinds[type(given).__name__], given.low, given.high, given.log, given.step)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def decode_point(space: Mapping[str, Dimension], point: Point) -> dict[str, Any]:
    """Return the parameters of the estimator at a point."""
    return {name: dimension.decode(point[name]) for name, dimension in space.items()}


def check_parameters(estimator, space: Mapping[str, Dimension]) -> None:
    """Check that the estimator has all parameters of `space`."""
    known = estimator.get_params(deep=True)
    for name in space:
        # A nested estimator that is itself searched may have other parameters.
        owners = [name.rsplit("__", cut)[0] for cut in range(1, name.count("__") + 1)]
        if name not in known and not any(owner in space for owner in owners):
            raise OptionError(
                f"{type(estimator).__name__} has no parameter {name!r}. Use one of {', '.join(sorted(known))}."
            )


@contextmanager
def silence_optuna() -> Iterator:
    """Import optuna, silence it inside the block, and restore its verbosity."""
    try:
        import optuna  # an optional extra
    except ImportError as error:
        raise MissingExtraError(
            "BayesSearchCV needs optuna, which is not installed. Run `pip install ovkgp[search]`."
        ) from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def propose(
    space: Mapping[str, Dimension], points: Sequence[Point], scores: Sequence[float], n_startup: int, seed: int
) -> Point:
    """Return the next point to evaluate: a Sobol point for the first `n_startup`, or while fewer than two trials have succeeded.

    A score that is not finite is a failure. The surrogate uses the worst score so far for it: without it, the point would be proposed
    again. In a finite space, a point that was evaluated is replaced by another one. Complexity: O(n³) for n trials.
    """
    number, scores = len(points), np.asarray(scores, dtype=float)
    good = np.isfinite(scores)
    if number < n_startup or good.sum() < 2:
        point = compute_sobol_point(space, number, seed)
    else:
        values = np.where(good, scores, scores[good].min())
        proposal_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        point = _maximize_expected_improvement(space, points, values.tolist(), proposal_seed)
    return point if math.isinf(count_points(space)) else _avoid_evaluated(space, point, points, seed)


def count_points(space: Mapping[str, Dimension]) -> float:
    """Return the number of points of a space, infinite if a dimension is continuous."""
    return math.prod(dimension.num_values for dimension in space.values())


def _avoid_evaluated(space: Mapping[str, Dimension], point: Point, points: Sequence[Point], seed: int) -> Point:
    """Return the point, or another one of a finite space if it is among `points`: the next Sobol point, or the first in order."""

    def index(point: Point) -> tuple[int, ...]:
        return tuple(dimension.index(point[name]) for name, dimension in space.items())

    evaluated = {index(one) for one in points}
    following = (compute_sobol_point(space, len(points) + k, seed) for k in range(1, MAX_SOBOL_STEPS))
    ordered = (
        {name: dimension.value(i) for (name, dimension), i in zip(space.items(), indices, strict=True)}
        for indices in product(*(range(dimension.num_values) for dimension in space.values()))
    )
    return next(one for one in chain([point], following, ordered) if index(one) not in evaluated)


def compute_sobol_point(space: Mapping[str, Dimension], number: int, seed: int) -> Point:
    """Return point `number` (from 0) of the scrambled Sobol sequence of `seed`."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    uniforms = sobol_points(number + 1, len(space), rng)[-1]
    return {name: dimension.quantile(u) for (name, dimension), u in zip(space.items(), uniforms, strict=True)}


def _maximize_expected_improvement(
    space: Mapping[str, Dimension], points: Sequence[Point], values: list[float], seed: int
) -> Point:
    with silence_optuna() as optuna:
        distributions = {name: dimension.to_optuna() for name, dimension in space.items()}
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(
            [
                optuna.trial.create_trial(params=point, distributions=distributions, value=value)
                for point, value in zip(points, values, strict=True)
            ]
        )
        return study.ask(distributions).params
