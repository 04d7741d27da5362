"""Work of ``ovkgp fit``: read the table, fit the recipe, keep a checkpoint, write the model and print a summary."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ovkgp.cli.curve_grids import find_grid
from ovkgp.cli.errors import InterruptCounter, describe_os_error, is_first_rank, is_launched, print_note
from ovkgp.cli.tables import TableFile
from ovkgp.exceptions import OptionError
from ovkgp.files import Snapshot
from ovkgp.recipes import Recipe

if TYPE_CHECKING:
    import numpy as np
    from sklearn.base import BaseEstimator

    from ovkgp.inference.statistics.distributed import Ranks

CANDIDATES = ("independent", "decomposable")
"""The kernels that kernel="auto" compares; the checkpoint of each ends with its name."""
STREAMING_THRESHOLD_BYTES = 256 * 2**20  # file size above which a table is read in chunks if the model supports it


@dataclass(frozen=True)
class FitResult:
    """Fitted estimator, seconds of reading and fitting, whether Ctrl-C ended the fit, and the checkpoint to resume from."""

    estimator: BaseEstimator
    seconds: float
    interrupted: bool
    checkpoint: Path | None


@dataclass(frozen=True)
class FitJob:
    """Fit of a recipe to a table, written to the model file `out`.

    `seed` replaces the recipe's random_state unless None; `stream` None decides by the size of the file. `grid` is --grid, the
    points of the outputs of a curve.
    """

    recipe: Recipe
    table: TableFile
    out: Path
    seed: int | None = None
    stream: bool | None = None
    resume: bool = False
    verbose: int = 0
    grid: str | None = None

    def run(self) -> FitResult:
        """Fit, write the model, and remove the checkpoint if the fit was not interrupted."""
        if is_first_rank():
            self.check()
        files, before = CheckpointFiles(self.out), _file_stamp(self.out)
        try:
            return self._run(files)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(files.describe(is_written=_file_stamp(self.out) != before)) from None

    def check(self) -> None:
        """Raise if the options do not fit together, before anything slow begins."""
        Snapshot.of(self.table.path)  # checks that the file is readable before the estimator is loaded
        self.recipe.check_options()
        kind = self.recipe.estimator_class.kind
        self.table.check_target(kind, self._label)
        self.table.check_columns(kind)
        self._check_grid()
        if self._is_streamed():
            self._check_streamable()
        if self.resume:
            self._check_resumable(self.recipe.options)
            CheckpointFiles(self.out).check_present()

    def _run(self, files: CheckpointFiles) -> FitResult:
        interrupts, began = InterruptCounter(), time.monotonic()
        with _process_ranks() as ranks:
            with interrupts.listen():
                estimator = self._fit(ranks, files)
            stopped = interrupts.count > 0 or was_interrupted(estimator)
            if ranks.rank == 0:
                self._save(estimator, files)
                if not stopped:
                    files.remove()
        checkpoint = files.path if stopped and files.present else None
        return FitResult(estimator, time.monotonic() - began, stopped, checkpoint)

    def _fit(self, ranks: Ranks, files: CheckpointFiles) -> BaseEstimator:
        import pandas as pd

        is_streamed = self._is_streamed()
        if is_streamed:  # a row of missing outputs, for options that depend on their names
            X, Y = None, pd.DataFrame(index=[0], columns=list(self.table.outputs), dtype=float)
        else:
            X, Y = self.table.read(self.recipe.estimator_class.kind)
        estimator = self._set_run_options(self.recipe.build(Y, X), ranks)
        options, known = {}, estimator.get_params(deep=False)
        if self.resume:
            self._check_resumable(known)  # again: a likelihood chosen by values is known only now
        if estimator.has_checkpoints(known):
            if not self.resume:
                ranks.run_on_first(files.clear, "looking for a checkpoint")
            options["checkpoint"] = files.path
        if is_streamed:
            rows = replace(self.table, verbose=0).stream()  # the estimator shows progress itself
            return estimator.fit_stream(rows.shard(ranks.rank, ranks.size), **options)
        if estimator.kind == "series":
            return estimator.fit_table(X, Y)
        if estimator.has_curves:
            options["grid"] = self._find_grid(Y.columns)
        return estimator.fit(X, Y, **options)

    def _check_grid(self) -> None:
        if self.recipe.estimator_class.has_curves:
            if self.table.task is None:
                self._find_grid(self.table.outputs, quiet=True)
        elif self.grid is not None:
            raise OptionError(f"--grid is not supported by {self._label}, whose outputs are no curves. Remove it.")

    def _find_grid(self, columns: Iterable[str], quiet: bool = False) -> np.ndarray:
        """Return the points (m,) of the output columns of a curve."""
        row = self.table.read_grid_row() if self.table.has_grid_row else None
        return find_grid(self.grid, list(columns), row, quiet)

    def _set_run_options(self, estimator: BaseEstimator, ranks: Ranks) -> BaseEstimator:
        """Set seed, progress and distribution of this run, if the estimator has them."""
        options = {"verbose": int(self.verbose and ranks.rank == 0)}
        if self.seed is not None or estimator.get_params(deep=False).get("random_state", 0) is None:
            options["random_state"] = self.seed or 0
        if ranks.size > 1:
            options["distributed"] = True
        return set_known_params(estimator, **options)

    def _save(self, estimator: BaseEstimator, files: CheckpointFiles) -> None:
        try:
            set_known_params(estimator, verbose=0, distributed=False).save(self.out)  # options of this run only
        except OSError as error:
            if not files.present:
                raise
            raise OptionError(
                f"{describe_os_error(error)} The training is stored in '{files.path}'. Once '{self.out}' can be written, run the same command with --resume."
            ) from error

    @property
    def _label(self) -> str:
        return f"Recipe {self.recipe.name} ({self.recipe.estimator})"

    def _is_streamed(self) -> bool:
        if self.stream is not None or is_launched():
            return bool(self.stream) or is_launched()
        is_large = self.table.path.stat().st_size > STREAMING_THRESHOLD_BYTES
        return is_large and self.table.task is None and self._reason_not_streamable() is None

    def _reason_not_streamable(self) -> str | None:
        return self.recipe.estimator_class.reason_not_streamable(self.recipe.options)

    def _check_resumable(self, options: Mapping[str, Any]) -> None:
        if not self.recipe.estimator_class.has_checkpoints(options):
            raise OptionError(f"{self._label} does not support --resume. Remove the option.")

    def _check_streamable(self) -> None:
        option = "torchrun" if is_launched() else "--stream"
        if self.table.task:
            raise OptionError(f"{option} is not supported with --task. Remove one of them.")
        if reason := self._reason_not_streamable():
            raise OptionError(f"{self._label} does not support {option}: {reason}.")


class CheckpointFiles:
    """Checkpoints of the fit that writes the file `model`."""

    def __init__(self, model: Path):
        self.model, self.path = model, model.with_name(f"{model.name}.training")

    @property
    def present(self) -> list[Path]:
        """Existing checkpoints."""
        every = [self.path, *(self.path.with_name(f"{self.path.name}.{name}") for name in CANDIDATES)]
        return [path for path in every if path.is_file()]

    def check_present(self) -> None:
        """Raise if there is no checkpoint to resume from."""
        if not self.present:
            raise OptionError(
                f"--resume found no checkpoint '{self.path}' of an interrupted fit with this --out. Remove the option."
            )

    def describe(self, is_written: bool) -> str:
        """Describe the files that Ctrl-C leaves; `is_written` if the model is one of them."""
        parts = [f"the model was written to '{self.model}'"] if is_written else []
        if self.present:
            parts += [f"the training so far is in '{self.path}': the same command with --resume continues from it"]
        return ", and ".join(parts) or "nothing was written"

    def clear(self) -> None:
        """Remove the checkpoints of an earlier fit, with a note."""
        if self.present:
            print_note(f"The checkpoint '{self.path}' of an earlier fit is replaced; --resume would have continued it.")
            self.remove()

    def remove(self) -> None:
        """Remove the checkpoints."""
        for path in self.present:
            path.unlink(missing_ok=True)


def was_interrupted(estimator: BaseEstimator) -> bool:
    """Whether the estimator reports that Ctrl-C ended its training."""
    return estimator.fit_report is not None and estimator.fit_report.interrupted


def set_known_params(estimator: BaseEstimator, **options) -> BaseEstimator:
    """Set those of the options that the estimator has."""
    known = estimator.get_params(deep=False)
    return estimator.set_params(**{name: value for name, value in options.items() if name in known})


def _process_ranks() -> AbstractContextManager[Ranks]:
    if is_launched():
        from ovkgp.inference.statistics.distributed import process_group

        return process_group()
    from ovkgp.inference.statistics.distributed import Ranks

    return nullcontext(Ranks.single_process())


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Return inode and time of a file, which change when it is replaced; None if it does not exist."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def print_fit_summary(result: FitResult, path: Path, data: str, quiet: bool) -> None:
    """Print the summary of a model, the time, its path and the next commands; `data` is the table with its read options."""
    if quiet or not is_first_rank():
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(str(result.estimator.summary()))
    console.print(f"\nModel written to {path} ({result.seconds:.1f} s).")
    if not result.interrupted:
        model = shlex.quote(str(path))
        console.print("Next:")
        if result.estimator.kind == "series":
            console.print(f"  ovkgp forecast {model} --steps 12 --out forecast.csv")
            return
        console.print(f"  ovkgp predict {model} NEW.csv --out predictions.csv")
        console.print(f"  ovkgp report {model} --data {data} --out report.html")
