"""Where a search looks next: scrambled Sobol points first, then the largest expected improvement under a GP (LT-106).

Every proposal is a function of the seed and of what was found so far, and of nothing else, so that a search which was killed and
resumed makes the same steps as one that was not. The surrogate (Matérn-5/2, ARD) and log EI are optuna's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ovkgp.estimators.search_spaces import Dimension, Point
from ovkgp.exceptions import MissingExtraError
from ovkgp.features.noise import sobol_points


@contextmanager
def quiet_optuna() -> Iterator:
    """optuna, imported at its first use and silent inside the block; how loud it was before is restored.

    Raises:
        MissingExtraError: it is not installed.

    Example:
        >>> from ovkgp.estimators.search_proposals import quiet_optuna
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
        >>> from ovkgp.estimators.search_proposals import sobol_point
        >>> from ovkgp.estimators.search_spaces import make_space
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
        >>> from ovkgp.estimators.search_proposals import propose
        >>> from ovkgp.estimators.search_spaces import make_space
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
