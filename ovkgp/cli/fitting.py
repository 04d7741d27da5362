"""From a recipe and a table to a model file: whole in memory, in chunks, or on several processes.

whole      read the table, `estimator.fit(X, Y)`
stream     `estimator.fit_stream(chunks)`, for estimators on random features and files that are large
torchrun   the same, with the rows of the file divided among the processes; rank 0 writes the model
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovkgp.cli.abilities import has_checkpoints, why_whole
from ovkgp.cli.checkpoint_files import CheckpointFiles
from ovkgp.cli.errors import system_words
from ovkgp.cli.interrupts import Interrupts
from ovkgp.cli.launching import is_first_rank, is_launched
from ovkgp.cli.tables import TableFile, target_of
from ovkgp.exceptions import OptionError
from ovkgp.recipes import Recipe

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import BaseEstimator

    from ovkgp.inference.distributed import Ranks

LARGE_FILE = 256 * 2**20
"""Bytes from which a file is read in chunks where the model can learn from chunks."""


@dataclass(frozen=True)
class Fitted:
    """What came of a fit.

    Args:
        estimator: the fitted model.
        seconds: how long reading and learning took.
        interrupted: whether Ctrl-C ended it early.
        checkpoint: the file from which it can be resumed, or None.
    """

    estimator: BaseEstimator
    seconds: float
    interrupted: bool
    checkpoint: Path | None


@dataclass(frozen=True)
class FitJob:
    """A recipe, a table, and where the model goes.

    Args:
        recipe: with its options set.
        table: the file.
        out: of the model.
        seed: replaces the recipe's random_state; None leaves it.
        stream: read the table in chunks; None decides by the size of the file.
        resume: go on from the checkpoint.
        verbose: 1 shows progress.
    """

    recipe: Recipe
    table: TableFile
    out: Path
    seed: int | None = None
    stream: bool | None = None
    resume: bool = False
    verbose: int = 0

    def run(self) -> Fitted:
        """Learn, write the model, and take the checkpoint away where the fit came to its end."""
        if is_first_rank():
            self.check()
        files, before = CheckpointFiles(self.out), _stamp(self.out)
        try:
            return self._run(files)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(files.kept(is_written=_stamp(self.out) != before)) from None

    def _run(self, files: CheckpointFiles) -> Fitted:
        interrupts, began = Interrupts(), time.monotonic()
        with _ranks() as ranks:
            with interrupts.listening():
                estimator = self._learn(ranks, files)
            stopped = interrupts.count > 0 or was_interrupted(estimator)
            if ranks.rank == 0:
                self._save(estimator, files)
                if not stopped:
                    files.remove()
        checkpoint = files.path if stopped and files.present else None
        return Fitted(estimator, time.monotonic() - began, stopped, checkpoint)

    def _save(self, estimator: BaseEstimator, files: CheckpointFiles) -> None:
        try:
            plain(estimator).save(self.out)
        except OSError as error:
            if not files.present:
                raise
            raise OptionError(
                f"{system_words(error)} The training is kept in '{files.path}': once '{self.out}' can be written, the same "
                "command with --resume makes the model from it."
            ) from error

    def check(self) -> None:
        """Refuse what cannot be done, before anything slow begins."""
        target, recipe = target_of(self.recipe.estimator), self.recipe
        self.table.require_target(target, self._who)
        self.table.look(target)
        if self._streams():
            self._require_stream()
        if self.resume:
            self._require_checkpoints(recipe.options)
            CheckpointFiles(self.out).require()

    def _require_checkpoints(self, options: Mapping[str, Any]) -> None:
        if not has_checkpoints(self.recipe.estimator, options):
            raise OptionError(f"{self._who} keeps no checkpoints, and cannot be resumed: leave --resume out.")

    def _learn(self, ranks: Ranks, files: CheckpointFiles) -> BaseEstimator:
        streams = self._streams()
        X, Y = (None, self._no_rows()) if streams else self.table.read(target_of(self.recipe.estimator))
        estimator = self._prepared(self.recipe.build(Y, X), ranks)
        options, known = {}, estimator.get_params(deep=False)
        if self.resume:
            self._require_checkpoints(known)  # once more: a likelihood by values is known only now
        if has_checkpoints(self.recipe.estimator, known):
            if not self.resume:
                ranks.first(files.clear, "looking for a checkpoint")
            options["checkpoint"] = files.path
        if streams:
            rows = replace(self.table, verbose=0).stream()  # the estimator shows progress itself
            return estimator.fit_stream(rows.shard(ranks.rank, ranks.size), **options)
        return calibrated(estimator.fit(X, Y, **options), X)

    @property
    def _who(self) -> str:
        return f"recipe {self.recipe.name} ({self.recipe.estimator})"

    def _streams(self) -> bool:
        """Whether the table is read in chunks."""
        if self.stream is not None or is_launched():
            return bool(self.stream) or is_launched()
        is_large = self.table.path.stat().st_size > LARGE_FILE
        return is_large and self.table.task is None and why_whole(self.recipe) is None

    def _no_rows(self) -> pd.DataFrame:
        """Outputs of which only the names are known, for options that depend on them."""
        import pandas as pd

        return pd.DataFrame([[float("nan")] * len(self.table.outputs)], columns=list(self.table.outputs))

    def _prepared(self, estimator: BaseEstimator, ranks: Ranks) -> BaseEstimator:
        """With the seed and the progress asked for."""
        known = estimator.get_params(deep=False)
        options = {"verbose": int(self.verbose and ranks.rank == 0)}
        if self.seed is not None or known.get("random_state", 0) is None:
            options["random_state"] = self.seed or 0
        if ranks.size > 1:
            options["distributed"] = True
        return estimator.set_params(**{name: value for name, value in options.items() if name in known})

    def _require_stream(self) -> None:
        how = "torchrun divides the rows" if is_launched() else "--stream reads a table in chunks"
        if self.table.task:
            raise OptionError(f"{how}, and a long table with --task is read whole: leave one of them out.")
        if why := why_whole(self.recipe):
            raise OptionError(f"{how}, and {self._who} needs all rows at once: {why}.")


def was_interrupted(estimator: BaseEstimator) -> bool:
    """Whether an estimator says of itself that Ctrl-C ended its training."""
    report = getattr(estimator, "fit_report_", None)
    return report is not None and report.interrupted


def calibrated(estimator: BaseEstimator, X: pd.DataFrame) -> BaseEstimator:
    """A quantile regressor with the fits that calibrate its intervals, so that the file has them and nobody waits later."""
    is_wanted = getattr(estimator, "coupling", None) == "infinite" and hasattr(estimator, "predict_interval")
    if is_wanted and not was_interrupted(estimator):
        with suppress(KeyboardInterrupt):  # which was counted: the model itself is there
            estimator.predict_interval(X[:1])
    return estimator


def plain(estimator: BaseEstimator) -> BaseEstimator:
    """The estimator without what belongs to this run: progress bars and processes."""
    quiet = {"verbose": 0, "distributed": False}
    return estimator.set_params(**{name: value for name, value in quiet.items() if name in estimator.get_params()})


def _ranks() -> AbstractContextManager[Ranks]:
    if is_launched():
        from ovkgp.inference.distributed import process_group

        return process_group()
    from ovkgp.inference.distributed import Ranks

    return nullcontext(Ranks.alone())


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written anew; None where there is none."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None
