"""A fingerprint of estimators, options and data: equal for what is equal, in every process, so that work on disk is not resumed with
something else.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

from ovkgp.estimators.selection.search_space import Dimension, Point, quiet_optuna
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.training.checkpoints import check_writable

NAME = "ovkgp-bayes-search"
"""Of the study in its file."""


@dataclass(frozen=True)
class Trial:
    """A point that was tried.

    Args:
        point: where.
        score: the mean over the folds of the score that is maximised; not finite for a failure.
        results: a list with a number for each fold: fit_time, score_time, test_…, and perhaps train_….
        error: why it failed, or "".
    """

    point: Point
    score: float
    results: dict[str, list[float]] = field(default_factory=dict)
    error: str = ""


class SearchJournal:
    """The trials of one search.

    Args:
        path: of the file; None keeps everything in memory.
        space: the search space.
        fingerprint: what the search is about, a short text for each aspect.
        seed: of the search; that of the file counts where there is one.
        is_fixed: whether the user chose the seed, which must then be that of the file.

    Raises:
        InputError: the file cannot be written, or is not a journal.
        OptionError: it belongs to another search.

    Example:
        >>> import os, tempfile
        >>> from ovkgp.estimators.selection.study_journal import SearchJournal, Trial
        >>> from ovkgp.estimators.selection.search_space import make_space
        >>> space = make_space({"alpha": (0.1, 10.0)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "search.journal")
        ...     SearchJournal(path, space, {"data": "a"}, seed=0).add(Trial({"alpha": 1.5}, -0.2))
        ...     SearchJournal(path, space, {"data": "a"}, seed=0).trials[0].point
        {'alpha': 1.5}
    """

    def __init__(
        self,
        path: str | os.PathLike | None,
        space: Mapping[str, Dimension],
        fingerprint: Mapping[str, str],
        seed: int,
        is_fixed: bool = True,
    ):
        self.space, self.seed, self.trials = space, seed, []
        self._study = None
        if path is None:
            return
        path = check_writable(path)
        _mend(path)
        with quiet_optuna() as optuna:
            self._study = _open(optuna, path)
            kept = self._study.user_attrs
            if "seed" not in kept:
                self._study.set_user_attr("fingerprint", dict(fingerprint))
                self._study.set_user_attr("seed", seed)
                return
            _require_same(path, fingerprint, kept.get("fingerprint", {}))
            self._take_seed(path, kept["seed"], is_fixed)
            self.trials = [_from_optuna(trial) for trial in self._study.get_trials(deepcopy=False)]

    def _take_seed(self, path: Path, seed: int, is_fixed: bool) -> None:
        if is_fixed and seed != self.seed:
            raise OptionError(
                f"the study {path} was begun with another random_state: give the same whole number, or None to go on with "
                "that of the study; or give another path to begin anew."
            )
        self.seed = seed

    def add(self, trial: Trial) -> None:
        """Remember a trial; on disk before this returns."""
        self.trials.append(trial)
        if self._study is None:
            return
        with quiet_optuna() as optuna:
            is_good = math.isfinite(trial.score)
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.COMPLETE if is_good else optuna.trial.TrialState.FAIL,
                    params=trial.point,
                    distributions={name: dimension.distribution() for name, dimension in self.space.items()},
                    value=trial.score if is_good else None,
                    user_attrs={"results": trial.results, "error": trial.error},
                )
            )


def _open(optuna, path: Path):
    """The study in a file whose lines are known to be JSON."""
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        storage = optuna.storages.JournalStorage(backend)
        if NAME in optuna.get_all_study_names(storage):
            return optuna.load_study(study_name=NAME, storage=storage)
        return optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise InputError(_not_a_journal(path, f"{type(error).__name__}: {error}")) from error


def _mend(path: Path) -> None:
    """Refuse a file that is not a journal, and drop a last line that a killed process left half written."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole, _, rest = content.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            is_record = isinstance(json.loads(line), dict)
        except ValueError:
            is_record = False
        if not is_record:
            raise InputError(_not_a_journal(path, f"line {number} is not a record"))
    if rest:
        if not whole and not rest.startswith(b"{"):
            raise InputError(_not_a_journal(path, "it has no record"))
        with open(path, "r+b") as file:
            file.truncate(len(content) - len(rest))


def _not_a_journal(path: Path, why: str) -> str:
    return f"{path} is not a study file of a search, or is damaged ({why}). Give the path of another file, or remove this one."


def _require_same(path: Path, given: Mapping[str, str], kept: Mapping[str, str]) -> None:
    if other := [aspect for aspect in given if given[aspect] != kept.get(aspect)]:
        raise OptionError(
            f"the study {path} belongs to another search (not the same: {', '.join(other)}). Give the path of a new file, or go on "
            "with what the study was begun with (folds that are shuffled need a whole number as the random_state of cv)."
        )


def _from_optuna(trial) -> Trial:
    score = math.nan if trial.value is None else trial.value
    return Trial(dict(trial.params), score, trial.user_attrs.get("results", {}), trial.user_attrs.get("error", ""))


def fingerprint(value: Any) -> str:
    """A short text that is the same for equal values in every process: parameters of estimators, arrays, tensors, frames,
    modules by what they hold, everything else by its `repr`.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> from ovkgp.estimators.selection.study_journal import fingerprint
        >>> fingerprint(Ridge(alpha=1.0)) == fingerprint(Ridge(alpha=1.0)), fingerprint(Ridge(2.0)) == fingerprint(Ridge())
        (True, False)
    """
    return joblib.hash(_described(value))


def _described(value: Any) -> Any:
    if hasattr(value, "get_params") and not isinstance(value, type):
        return type(value).__qualname__, _described(value.get_params(deep=False))
    if isinstance(value, torch.nn.Module):
        return repr(value), _described(dict(value.state_dict()))
    if isinstance(value, Mapping):
        return sorted((str(name), _described(entry)) for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return [_described(entry) for entry in value]
    if torch.is_tensor(value):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, joblib.hash(np.ascontiguousarray(value))
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return [str(name) for name in value.columns], joblib.hash(value.to_numpy())
    if hasattr(value, "tocsr"):
        matrix = value.tocsr()
        return matrix.shape, _described([matrix.data, matrix.indices, matrix.indptr])
    if isinstance(value, np.ndarray) or hasattr(value, "to_numpy"):
        return joblib.hash(np.asarray(value))
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
