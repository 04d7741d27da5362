"""What ``ovkgp fit`` says at the end: the model in words, and what to do with it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ovkgp.cli.errors import Interrupts, is_first_rank, is_launched, note, system_words
from ovkgp.cli.tables import TableFile, target_of
from ovkgp.exceptions import OptionError
from ovkgp.recipes import Recipe

GAUSSIAN = ("gaussian", "by_values")
"""Likelihoods that are Gaussian, or may turn out so when the outputs are read."""


def has_checkpoints(estimator: str, options: Mapping[str, Any]) -> bool:
    """Whether a fit keeps its progress in a file: that of a `GPRegressor` that climbs an evidence.

    Example:
        >>> has_checkpoints("GPRegressor", {"rank": 3}), has_checkpoints("GPRegressor", {"likelihood": "poisson"})
        (True, False)
    """
    likelihood = options.get("likelihood", "gaussian")
    may_be_gaussian = isinstance(likelihood, str) and likelihood in GAUSSIAN
    has_evidence = options.get("approximation") != "variational"  # which climbs a bound instead
    climbs = options.get("hyperparameters") != "fixed"
    return estimator == "GPRegressor" and may_be_gaussian and has_evidence and climbs


def why_whole(recipe: Recipe) -> str | None:
    """Why a recipe needs all rows at once; None where it learns from chunks."""
    options = recipe.options
    if recipe.estimator == "ORFFRidge":
        return None if options.get("solver", "auto") == "auto" else "only solver=auto works on statistics of the rows"
    if recipe.estimator != "GPRegressor":
        return "only GPRegressor and ORFFRidge learn from chunks"
    if options.get("approximation", "auto") in ("exact", "variational"):
        return "chunks need a feature map, such as --set approximation=orff"
    if options.get("likelihood", "gaussian") != "gaussian":
        return "chunks are for Gaussian noise"
    if options.get("hyperparameters", "evidence") not in ("evidence", "fixed"):
        return "draws of hyperparameters look at all rows; --set hyperparameters=evidence does not"
    return None


CANDIDATES = ("independent", "decomposable")
"""The structures that kernel="auto" compares; the progress of each has the ending of its name."""


class CheckpointFiles:
    """The checkpoint of the fit that ends in a model file.

    Args:
        model: where the model goes.
    """

    def __init__(self, model: Path):
        self.model, self.path = model, model.with_name(f"{model.name}.training")

    @property
    def present(self) -> list[Path]:
        """Those that are there."""
        every = [self.path, *(self.path.with_name(f"{self.path.name}.{name}") for name in CANDIDATES)]
        return [path for path in every if path.is_file()]

    def require(self) -> None:
        """See that there is something to resume."""
        if not self.present:
            raise OptionError(
                f"there is nothing to resume: no interrupted fit with this --out has left a file '{self.path}'. Leave --resume "
                "out to begin."
            )

    def kept(self, is_written: bool) -> str:
        """What is on disk when Ctrl-C ends a fit, in words.

        Args:
            is_written: whether the model is.

        Example:
            >>> CheckpointFiles(Path("soil.ovkgp")).kept(is_written=True)
            "the model was written to 'soil.ovkgp'"
        """
        words = [f"the model was written to '{self.model}'"] if is_written else []
        if self.present:
            words += [f"the training so far is in '{self.path}': the same command with --resume goes on from there"]
        return ", and ".join(words) or "nothing was written"

    def clear(self) -> None:
        """Begin anew: a checkpoint of an earlier fit is taken away."""
        if self.present:
            note(f"the checkpoint '{self.path}' of an earlier fit is replaced; --resume would have gone on from it.")
            self.remove()

    def remove(self) -> None:
        """Take them away, when the fit is done."""
        for path in self.present:
            path.unlink(missing_ok=True)


if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import BaseEstimator

    from ovkgp.inference.statistics.distributed import Ranks

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
        self.table.check_target(target, self._who)
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
        from ovkgp.inference.statistics.distributed import process_group

        return process_group()
    from ovkgp.inference.statistics.distributed import Ranks

    return nullcontext(Ranks.alone())


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written anew; None where there is none."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def show(fitted: Fitted, path: Path, data: str, quiet: bool) -> None:
    """Print the summary of a model, how long it took, where it is, and the next commands.

    Args:
        fitted: the model.
        path: where it is.
        data: the table it was fitted to, with the options that a shell needs to read it.
        quiet: print nothing.
    """
    if quiet or not is_first_rank():
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if hasattr(fitted.estimator, "summary"):
        console.print(str(fitted.estimator.summary()))
    else:
        console.print(facts_table(fitted.estimator))
    console.print(f"\nModel written to {path} ({fitted.seconds:.1f} s).")
    if not fitted.interrupted:
        model = shlex.quote(str(path))
        console.print("Next:")
        console.print(f"  ovkgp predict {model} NEW.csv --out predictions.csv")
        console.print(f"  ovkgp report {model} --data {data} --out report.html")


def facts_table(estimator) -> Table:
    """The facts about an estimator that has no summary of its own."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts(estimator).items():
        table.add_row(name, value)
    return table


def facts(estimator) -> dict[str, str]:
    """What a fitted estimator says of itself, by name.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> facts(ovkgp.OVKRidge(lam=0.1).fit(np.eye(4), np.ones(4)))["estimator"]
        'OVKRidge'
    """
    found = {"estimator": type(estimator).__name__, "inputs": ", ".join(_inputs(estimator))}
    if hasattr(estimator, "output_names_"):
        found["outputs"] = _shortened(estimator.output_names_)
    if hasattr(estimator, "classes_"):
        found["classes"] = _shortened(estimator.classes_)
    report = getattr(estimator, "fit_report_", None)
    if report is not None:
        found["rows"] = str(report.num_rows)
        found["training"] = report.message
    for name, words in {
        "lam_": "λ",
        "gap_": "duality gap",
        "nesting_rate_": "nested curves",
        "missing_": "missing",
    }.items():
        if hasattr(estimator, name):
            found[words] = f"{getattr(estimator, name):.4g}"
    return found


def _inputs(estimator) -> list[str]:
    return [str(name) for name in getattr(estimator, "feature_names_in_", range(estimator.n_features_in_))]


def _shortened(names, most: int = 12) -> str:
    listed = ", ".join(map(str, names[:most]))
    return f"{listed}, … ({len(names)} in all)" if len(names) > most else listed
