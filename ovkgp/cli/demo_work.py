"""The work of ``ovkgp demo``, step by step: fit, choose, draw hyperparameters, and write picture, report and data."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from threadpoolctl import threadpool_limits

from ovkgp.cli.demo import DATA, FILES, PICTURE, REPORT
from ovkgp.cli.demo_figure import currents_figure
from ovkgp.cli.demo_models import KERNELS, SAMPLING, Sea, Trial, chosen, try_bayesian, try_model
from ovkgp.cli.demo_words import findings, legend, score_table, scores_in_words
from ovkgp.cli.inputs import reason
from ovkgp.exceptions import OptionError
from ovkgp.plotting import write_report

DOTS = 110
"""Dots an inch of the picture."""
CAPTION = (
    "The truth, and what the fully Bayesian model says of it: the current, and its two parts over the scalars behind them. "
    "Grey is the standard deviation; contours below zero are dashed."
)


@dataclass(frozen=True)
class Found:
    """What came out: data and truth, the trained models by name, the chosen one, and its fully Bayesian fit."""

    sea: Sea
    trials: dict[str, Trial]
    best: str
    bayesian: Trial

    @property
    def with_parts(self) -> Trial:
        """The fit whose Helmholtz parts are shown."""
        return self.bayesian if self.best == "Helmholtz" else self.trials["Helmholtz"]


def work(seed: int, step: Callable[[str], None]) -> Found:
    """Everything that is to be computed; `step` is told what begins."""
    sea, trials = Sea.of(seed), {}
    with one_thread():
        for name in KERNELS:
            step(f"Training: {name}")
            trials[name] = try_model(name, sea, seed)
        best = chosen(trials)
        transitions = SAMPLING["chains"] * (SAMPLING["tune"] + SAMPLING["draws"])
        step(f"Fully Bayesian: {best}, {transitions} transitions of NUTS")
        return Found(sea, trials, best, try_bayesian(best, sea, seed))


def one_thread() -> threadpool_limits:
    """A context in which torch, NumPy and SciPy use one thread each.

    Matrices this small are not worth two, which wait for each other wherever something else runs too: many times slower then.
    """
    return threadpool_limits(limits=1)


def write(found: Found, out: Path, step: Callable[[str], None]) -> None:
    """Write `FILES` beside their places, and move them there once all are whole."""
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=out))
        try:
            with one_thread():
                step("Drawing")
                figure = draw(found)
                figure.savefig(unfinished / PICTURE, dpi=DOTS, format="png")
                step("Writing the report")
                report(found, figure, unfinished / REPORT)
            found.sea.X.join(found.sea.Y).to_csv(unfinished / DATA, index=False, float_format="%.4f")
            step("Done")
            for name in FILES:
                (unfinished / name).replace(out / name)
        finally:
            shutil.rmtree(unfinished)
    except OSError as error:
        raise OptionError(f"cannot write into '{out}' ({reason(error)}): choose another folder with --out.") from error


def draw(found: Found) -> Figure:
    """The picture of the fully Bayesian model."""
    return currents_figure(found.sea, f"{found.best}, NUTS", found.bayesian.model, found.with_parts.model)


def report(found: Found, figure: Figure, path: Path) -> None:
    """One page about the fully Bayesian model, with the comparison that led to it."""
    title = f"Ocean currents from drifters: {found.best} model, fully Bayesian"
    units = "Positions are in km, currents in m/s; the data were made, and their truth is known."
    notes = [units, *findings(found.trials, found.bayesian), *scores_in_words(found.trials), *legend(found.sea)]
    write_report(found.bayesian.model, path, title=title, notes=notes, extra_figures=[(CAPTION, figure)])


def show(found: Found, out: Path, console: Console) -> None:
    """Print the table, what it means, and where the files are."""
    console.print(score_table(found.trials, found.bayesian))
    for sentence in (*findings(found.trials, found.bayesian), ""):
        console.print(sentence, highlight=False)
    for sentence in (*legend(found.sea), ""):
        console.print(sentence, highlight=False, style="dim")
    for name, words in zip(FILES, ("picture", "report", "data"), strict=True):
        console.print(f"{words:8}{out / name}", soft_wrap=True, highlight=False, markup=False)
