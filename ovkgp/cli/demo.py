"""``ovkgp demo``: five models of an ocean current whose truth is known, the best one chosen and fitted the Bayesian way.

This module is light: it shows progress while the rest is loaded. Ctrl-C ends the demo between two steps at the latest, since a
regressor that is interrupted keeps what it has and returns; files are written at the end, all or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ovkgp.cli.interrupts import Interrupts
from ovkgp.exceptions import OptionError

PICTURE, REPORT, DATA = FILES = ("currents.png", "report.html", "drifters.csv")
NUM_STEPS = 10
"""Loading, five models, the Bayesian fit, the picture, the report, and moving all files to their places."""


def run(out: Path, seed: int) -> None:
    """Fit and compare the models, write `FILES` into the folder `out`, and print what was found."""
    require_places(out)
    console = Console()
    with steps(console) as step:
        step("Loading")
        from ovkgp.cli.demo_work import show, work, write

        found = work(seed, step)
        write(found, out, step)
    try:
        show(found, out, console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{', '.join(FILES)} were written to '{out}'") from None


def require_places(out: Path) -> None:
    """Refuse a folder in which a result could not be put, before any work is done."""
    for name in FILES:
        if (out / name).is_dir():
            raise OptionError(f"cannot write '{out / name}', which is a folder: choose another folder with --out.")


class Steps:
    """Called at the beginning of each step with what it does: shows it, and ends where Ctrl-C was pressed in the one before."""

    def __init__(self, progress: Progress, interrupts: Interrupts):
        self.progress, self.interrupts = progress, interrupts
        self.task = progress.add_task("", total=NUM_STEPS, completed=-1)

    def __call__(self, name: str) -> None:
        if self.interrupts.count:  # and an estimator has kept it to itself
            raise KeyboardInterrupt
        self.progress.update(self.task, advance=1, description=name)


@contextmanager
def steps(console: Console) -> Iterator[Steps]:
    """One line of progress with the name of the step, where somebody watches."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    interrupts = Interrupts()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with progress, interrupts.listening():
        yield Steps(progress, interrupts)
