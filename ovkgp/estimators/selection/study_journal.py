"""Journal of a search: its trials in a file, and fingerprints of estimators, options and data that a resumed search must match."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

from ovkgp.estimators.selection.search_space import Dimension, Point, silence_optuna
from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import check_path

STUDY_NAME = "ovkgp-bayes-search"


@dataclass(frozen=True)
class Trial:
    """Evaluated point: mean score over the folds (not finite if it failed), results per fold, and the error message or ""."""

    point: Point
    score: float
    results: dict[str, list[float]] = field(default_factory=dict)
    error: str = ""


class SearchJournal:
    """Trials of one search, in the file `path` or, if it is None, in memory only.

    `fingerprint` is a hash per aspect of the search; all must equal those in the file. `seed` is replaced by that of the file, and
    must equal it if `is_fixed` (the user chose it).
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
        path = check_path("study", path)
        _drop_incomplete_line(path)
        with silence_optuna() as optuna:
            self._study = _open_study(optuna, path)
            stored = self._study.user_attrs
            if "seed" not in stored:
                self._study.set_user_attr("fingerprint", dict(fingerprint))
                self._study.set_user_attr("checksum", _checksum(dict(fingerprint), seed))
                self._study.set_user_attr("seed", seed)
                return
            self._check_contents(path)
            _check_fingerprint(path, fingerprint, stored.get("fingerprint", {}))
            if is_fixed and seed != stored["seed"]:
                raise OptionError(
                    f"random_state must be that of the study {path}, got another random_state. Pass the same integer, pass None to use that of the study, or choose another path."
                )
            self.seed = stored["seed"]
            self.trials = [_from_optuna(trial) for trial in self._study.get_trials(deepcopy=False)]

    def _check_contents(self, path: Path) -> None:
        """Check the checksums; that of a trial includes that of the one before it."""
        stored = self._study.user_attrs
        if stored.get("checksum") != _checksum(stored.get("fingerprint"), stored["seed"]):
            raise InputError(_describe_damage(path, "its contents do not match its checksum"))
        before = stored["checksum"]
        for number, trial in enumerate(self._study.get_trials(deepcopy=False)):
            before = _checksum(_from_optuna(trial), before)
            if trial.user_attrs.get("checksum") != before:
                raise InputError(_describe_damage(path, f"trial {number} does not match its checksum"))
        self._checksum = before

    def add(self, trial: Trial) -> None:
        """Add a trial, and write it to disk before returning."""
        self.trials.append(trial)
        if self._study is None:
            return
        with silence_optuna() as optuna:
            is_good = math.isfinite(trial.score)
            new = optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE if is_good else optuna.trial.TrialState.FAIL,
                params=trial.point,
                distributions={name: dimension.to_optuna() for name, dimension in self.space.items()},
                value=trial.score if is_good else None,
                user_attrs={"results": trial.results, "error": trial.error},
            )
            before = getattr(self, "_checksum", self._study.user_attrs["checksum"])
            self._checksum = _checksum(_from_optuna(new), before)
            new.set_user_attr("checksum", self._checksum)
            self._study.add_trial(new)


def _open_study(optuna, path: Path):
    """Load or create the study in a file whose lines are known to be JSON."""
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        storage = optuna.storages.JournalStorage(backend)
        if STUDY_NAME in optuna.get_all_study_names(storage):
            return optuna.load_study(study_name=STUDY_NAME, storage=storage)
        return optuna.create_study(study_name=STUDY_NAME, storage=storage, direction="maximize")
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise InputError(_describe_damage(path, f"{type(error).__name__}: {error}")) from error


def _drop_incomplete_line(path: Path) -> None:
    """Check that the file is a journal, and drop a last line that a killed process did not finish."""
    if not path.exists():
        return
    content = path.read_bytes()
    complete, _, rest = content.rpartition(b"\n")
    for number, line in enumerate(complete.split(b"\n") if complete else [], start=1):
        try:
            is_record = isinstance(json.loads(line), dict)
        except ValueError:
            is_record = False
        if not is_record:
            raise InputError(_describe_damage(path, f"line {number} is not a record"))
    if rest:
        if not complete and not rest.startswith(b"{"):
            raise InputError(_describe_damage(path, "it has no record"))
        with open(path, "r+b") as file:
            file.truncate(len(content) - len(rest))


def _describe_damage(path: Path, reason: str) -> str:
    return f"{path} is not a study file of a search, or is damaged ({reason}). Choose another path or remove the file."


def _check_fingerprint(path: Path, given: Mapping[str, str], stored: Mapping[str, str]) -> None:
    if different := [aspect for aspect in given if given[aspect] != stored.get(aspect)]:
        raise OptionError(
            f"The study {path} belongs to another search (not the same: {', '.join(different)}). Choose another path, or use the "
            "estimator, options and data of the study (for shuffled folds, an integer as random_state of cv)."
        )


def _checksum(*contents) -> str:
    """Return the SHA-256 of values, the same before and after they were stored as JSON."""

    def plain(value):
        if isinstance(value, Trial):
            return plain([value.point, value.score, value.results, value.error])
        if isinstance(value, Mapping):
            return sorted([str(key), plain(entry)] for key, entry in value.items())
        if isinstance(value, list | tuple | np.ndarray):
            return [plain(entry) for entry in value]
        return repr(float(value)) if isinstance(value, Real) else str(value)

    return hashlib.sha256(json.dumps(plain(contents)).encode()).hexdigest()


def _from_optuna(trial) -> Trial:
    score = math.nan if trial.value is None else trial.value
    return Trial(dict(trial.params), score, trial.user_attrs.get("results", {}), trial.user_attrs.get("error", ""))


def compute_fingerprint(value: Any) -> str:
    """Return a hash that is the same for equal values in every process.

    Estimators, arrays, tensors, frames and modules are hashed by their content, everything else by `repr`.
    """
    return joblib.hash(_describe(value))


def _describe(value: Any) -> Any:
    if hasattr(value, "get_params") and not isinstance(value, type):
        return type(value).__qualname__, _describe(value.get_params(deep=False))
    if isinstance(value, torch.nn.Module):
        return repr(value), _describe(dict(value.state_dict()))
    if isinstance(value, Mapping):
        return sorted((str(name), _describe(entry)) for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return [_describe(entry) for entry in value]
    if torch.is_tensor(value):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, joblib.hash(np.ascontiguousarray(value))
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return [str(name) for name in value.columns], joblib.hash(value.to_numpy())
    if hasattr(value, "tocsr"):
        matrix = value.tocsr()
        return matrix.shape, _describe([matrix.data, matrix.indices, matrix.indptr])
    if isinstance(value, np.ndarray) or hasattr(value, "to_numpy"):
        return joblib.hash(np.asarray(value))
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
