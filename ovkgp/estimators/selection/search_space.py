"""Where a search looks next: scrambled Sobol points first, then the largest expected improvement under a GP (LT-106).

Every proposal is a function of the seed and of what was found so far, and of nothing else, so that a search which was killed and
resumed makes the same steps as one that was not. The surrogate (Matérn-5/2, ARD) and log EI are optuna's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from ovkgp.exceptions import MissingExtraError, OptionError
from ovkgp.features.spectral.base_samples import sobol_points

FORMS = '(low, high), (low, high, "log"), a list of choices, or a distribution of optuna'
Point = dict[str, float | int]


@dataclass(frozen=True)
class Dimension:
    """One parameter and the values it may take.

    Args:
        kind: "float", "int" or "choice".
        low, high: the ends, both included.
        log: whether all ratios, rather than all differences, are alike.
        step: the distance between neighbours; None for a continuum.
        choices: of a "choice".

    Example:
        >>> from ovkgp.estimators.selection.search_space import Dimension
        >>> alpha = Dimension("float", 0.01, 100.0, log=True)
        >>> round(alpha.at(0.5), 12)
        1.0
    """

    kind: str
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple = ()

    def at(self, u: float) -> float | int:
        """The point at u in (0, 1): the u-quantile of the (log-)uniform law."""
        if self.step is not None and not self.log:
            number = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            value = self.low + self.step * min(int(u * number), number - 1)
        elif self.kind == "int":  # on a log scale: each whole number has the mass of its own unit interval
            value = round(_between(self.low - 0.5, self.high + 0.5, u, log=True))
        else:
            value = _between(self.low, self.high, u, self.log)
        value = min(max(value, self.low), self.high)
        return float(value) if self.kind == "float" else int(value)

    def decode(self, value: float | int) -> Any:
        """What the estimator takes at a point."""
        return self.choices[value] if self.kind == "choice" else value

    def distribution(self):
        """The same for optuna."""
        from optuna import distributions  # an optional extra

        if self.kind == "choice":
            return distributions.CategoricalDistribution(tuple(range(len(self.choices))))
        if self.kind == "int":
            return distributions.IntDistribution(self.low, self.high, log=self.log, step=self.step)
        return distributions.FloatDistribution(self.low, self.high, log=self.log, step=self.step)


def _between(low: float, high: float, u: float, log: bool) -> float:
    if log:
        return math.exp(_between(math.log(low), math.log(high), u, log=False))
    return low + u * (high - low)


def make_space(search_spaces: Mapping[str, Any]) -> dict[str, Dimension]:
    """A checked search space, in the order of the names (so that a dictionary written otherwise is the same search).

    Args:
        search_spaces: for each parameter (low, high) – whole numbers where both are, else floats –, (low, high, "log"), a
            list of choices, or a distribution of optuna.

    Raises:
        OptionError: a space is none of these, or has nothing in it.

    Example:
        >>> from ovkgp.estimators.selection.search_space import make_space
        >>> space = make_space({"alpha": (1e-3, 1e3, "log"), "degree": (1, 5), "solver": ["svd", "lsqr"]})
        >>> [(name, dimension.kind) for name, dimension in space.items()]
        [('alpha', 'float'), ('degree', 'int'), ('solver', 'choice')]
    """
    if not isinstance(search_spaces, Mapping) or not search_spaces:
        raise OptionError(
            f"search_spaces must be a dictionary with at least one parameter, such as {{'alpha': (0.01, 10.0, 'log')}}; got "
            f"{search_spaces!r}."
        )
    if unnamed := [name for name in search_spaces if not isinstance(name, str)]:
        raise OptionError(f"search_spaces has names of parameters as keys, got {unnamed[0]!r}.")
    return {name: _dimension(name, search_spaces[name]) for name in sorted(search_spaces)}


def _dimension(name: str, given: Any) -> Dimension:
    if type(given).__module__.startswith("optuna."):
        return _from_optuna(name, given)
    if isinstance(given, (list, np.ndarray)):
        if len(given) == 0:
            raise OptionError(f"search_spaces[{name!r}] is a list without choices.")
        return _choice(tuple(given.tolist() if isinstance(given, np.ndarray) else given))
    if not isinstance(given, tuple) or len(given) not in (2, 3) or not all(_is_number(end) for end in given[:2]):
        raise OptionError(f"search_spaces[{name!r}] must be {FORMS}; got {given!r}. Choices go into a list.")
    if len(given) == 3 and given[2] not in ("log", "uniform"):
        raise OptionError(f'the third entry of search_spaces[{name!r}] must be "log" or "uniform", got {given[2]!r}.')
    return _range(name, *given[:2], log=len(given) == 3 and given[2] == "log")


def _range(name: str, low: float, high: float, log: bool) -> Dimension:
    is_whole = all(isinstance(end, Integral) for end in (low, high))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(
            f"search_spaces[{name!r}] must have finite ends with low < high, got low = {low} and high = {high}. What does not "
            "vary is set on the estimator."
        )
    if log and low <= 0:
        raise OptionError(f"search_spaces[{name!r}] is on a log scale, where low must be positive; got {low}.")
    if is_whole:
        return Dimension("int", int(low), int(high), log, step=1)
    return Dimension("float", float(low), float(high), log)


def _choice(choices: tuple) -> Dimension:
    return Dimension("choice", 0, len(choices) - 1, step=1, choices=choices)


def _from_optuna(name: str, given: Any) -> Dimension:
    kinds = {"FloatDistribution": "float", "IntDistribution": "int"}
    if hasattr(given, "choices"):
        return _choice(tuple(given.choices))
    if type(given).__name__ not in kinds:
        raise OptionError(f"search_spaces[{name!r}] must be {FORMS}; got {given!r}.")
    return Dimension(kinds[type(given).__name__], given.low, given.high, given.log, given.step)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def parameters(space: Mapping[str, Dimension], point: Point) -> dict[str, Any]:
    """The parameters of the estimator at a point.

    Example:
        >>> from ovkgp.estimators.selection.search_space import make_space, parameters
        >>> parameters(make_space({"solver": ["svd", "lsqr"]}), {"solver": 1})
        {'solver': 'lsqr'}
    """
    return {name: dimension.decode(point[name]) for name, dimension in space.items()}


def check_parameters(estimator, space: Mapping[str, Dimension]) -> None:
    """Refuse a space with a name that the estimator does not have.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> from ovkgp.estimators.selection.search_space import make_space, check_parameters
        >>> check_parameters(Ridge(), make_space({"alpha": (0.1, 1.0)}))
    """
    known = estimator.get_params(deep=True)
    for name in space:
        # A part that is itself searched for may bring parameters of its own.
        owners = [name.rsplit("__", cut)[0] for cut in range(1, name.count("__") + 1)]
        if name not in known and not any(owner in space for owner in owners):
            raise OptionError(
                f"{type(estimator).__name__} has no parameter {name!r} to search; it has {', '.join(sorted(known))}."
            )


@contextmanager
def quiet_optuna() -> Iterator:
    """optuna, imported at its first use and silent inside the block; how loud it was before is restored.

    Raises:
        MissingExtraError: it is not installed.

    Example:
        >>> from ovkgp.estimators.selection.search_space import quiet_optuna
        >>> with quiet_optuna() as optuna:
        ...     optuna.logging.get_verbosity() == optuna.logging.ERROR
        True
    """
    try:
        import optuna  # an optional extra
    except ImportError as error:
        raise MissingExtraError(
            "BayesSearchCV needs optuna, which is not installed: pip install ovkgp[search]."
        ) from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def sobol_point(space: Mapping[str, Dimension], number: int, seed: int) -> Point:
    """The Sobol point of this number, counted from 0, of the sequence of a seed.

    Cost: O(number · d), for which a search has no need to remember where it is.

    Example:
        >>> from ovkgp.estimators.selection.search_space import sobol_point
        >>> from ovkgp.estimators.selection.search_space import make_space
        >>> space = make_space({"degree": (1, 4)})
        >>> sorted(sobol_point(space, number, seed=0)["degree"] for number in range(4))
        [1, 2, 3, 4]
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    uniforms = sobol_points(number + 1, len(space), rng)[-1]
    return {name: dimension.at(u) for (name, dimension), u in zip(space.items(), uniforms, strict=True)}


def propose(
    space: Mapping[str, Dimension], points: Sequence[Point], scores: Sequence[float], n_startup: int, seed: int
) -> Point:
    """The next point to try.

    Args:
        space: the search space.
        points, scores: what was tried and how good it was (larger is better), in order; a score that is not finite is a
            failure, and taken by the surrogate as the worst score so far: left out, it would be proposed again.
        n_startup: how many Sobol points come first; there are more while fewer than two trials have succeeded.
        seed: of the search.

    Cost: O(n³) for n trials, a fraction of a second.

    Example:
        >>> from ovkgp.estimators.selection.search_space import propose
        >>> from ovkgp.estimators.selection.search_space import make_space
        >>> space = make_space({"x": (-1.0, 1.0)})
        >>> points = [{"x": x} for x in (-0.9, -0.5, 0.0, 0.5, 0.9)]
        >>> scores = [-((point["x"] - 0.2) ** 2) for point in points]
        >>> abs(propose(space, points, scores, n_startup=5, seed=0)["x"] - 0.2) < 0.2
        True
    """
    number, scores = len(points), np.asarray(scores, dtype=float)
    good = np.isfinite(scores)
    if number < n_startup or good.sum() < 2:
        return sobol_point(space, number, seed)
    values = np.where(good, scores, scores[good].min())
    return _improvement(
        space, points, values.tolist(), int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    )


def _improvement(space: Mapping[str, Dimension], points: Sequence[Point], values: list[float], seed: int) -> Point:
    with quiet_optuna() as optuna:
        distributions = {name: dimension.distribution() for name, dimension in space.items()}
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(
            [
                optuna.trial.create_trial(params=point, distributions=distributions, value=value)
                for point, value in zip(points, values, strict=True)
            ]
        )
        return study.ask(distributions).params
