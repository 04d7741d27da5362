"""The work of ``ovkgp demo``, step by step: fit, choose, draw hyperparameters, and write picture, report and data."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from ovkgp.cli.arguments import reason
from ovkgp.cli.demo_figure import currents_figure
from ovkgp.cli.demo_models import KERNELS, LEVEL, SAMPLING, Sea, Trial, chosen, lead, mixing, try_bayesian, try_model
from ovkgp.cli.errors import Interrupts
from ovkgp.exceptions import OptionError
from ovkgp.plotting import write_report

COLUMNS = ("\nmodel", "log\nevidence", "\nLOO", "RMSE\n(m/s)", "log\ndensity", "90 %\ncoverage", "\nseconds")


def score_table(trials: dict[str, Trial], bayesian: Trial) -> Table:
    """All models, the chosen one marked, and below them its fully Bayesian fit."""
    table = Table(title="Five models of an ocean current", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if "model" in column else "right", no_wrap=True)
    best = chosen(trials)
    for name, trial in trials.items():
        is_best = name == best
        table.add_row(f"{name} ←" if is_best else name, *cells(trial), style="bold" if is_best else None)
    table.add_section()
    table.add_row("← with NUTS", *cells(bayesian))
    return table


def cells(trial: Trial) -> list[str]:
    """The scores of a model as text, in the order of `COLUMNS`."""
    evidence = "–" if trial.log_evidence is None else f"{trial.log_evidence:.1f}"
    scores = f"{trial.elpd_loo:.1f}", f"{trial.rmse:.3f}", f"{trial.log_density:.2f}", _percent(trial.coverage)
    return [evidence, *scores, f"{trial.seconds:.1f}"]


def scores_in_words(trials: dict[str, Trial]) -> list[str]:
    """The same as sentences, for where there is no table."""
    words = "{}: log evidence {}, LOO {}, RMSE {} m/s, log density {}, coverage {}."
    return [
        words.format(name, *cells(trial)) for name, trial in trials.items()
    ]  # without the seconds, which no run repeats


def legend(sea: Sea) -> list[str]:
    """What the columns are."""
    return [
        f"Evidence and LOO need the data alone, {sea.num_measured} components measured at {len(sea.X)} places. LOO is the sum of "
        "the log densities of each component given all others; with NUTS it averages over the hyperparameters, and otherwise "
        "takes those trained on all components, which flatters a little.",
        f"The rest is measured against the truth at {len(sea.points)} points of a grid, which no model saw: the error of the mean, "
        "the log density of fresh noisy measurements (the mean of a component), and how much of the current itself lies "
        f"in its {_percent(LEVEL)} intervals.",
    ]


def findings(trials: dict[str, Trial], bayesian: Trial) -> list[str]:
    """What came out, in sentences."""
    return [_choice(trials), _check(trials), _sampled(bayesian)]


def _choice(trials: dict[str, Trial]) -> str:
    best, (second, difference, error) = chosen(trials), lead(trials)
    first, follower = ranking(trials, "log_evidence")[:2]
    margin = trials[first].log_evidence - trials[follower].log_evidence
    agreed = "so does the evidence" if first == best else f"the evidence would choose {first}"
    said = f"LOO chooses {best}, {difference:.1f} ± {error:.1f} above {second}"
    return f"{said}; {agreed}, {margin:.1f} above {follower}."


def _check(trials: dict[str, Trial]) -> str:
    best, nearest, surest = chosen(trials), ranking(trials, "rmse")[-1], ranking(trials, "log_density")[0]
    if best == nearest == surest:
        return f"Against the truth {best} is the best of them too, in error and in log density."
    return f"Against the truth the smallest error is that of {nearest}, the largest log density that of {surest}."


def _sampled(bayesian: Trial) -> str:
    found = mixing(bayesian)
    chains, draws, divergences = (int(found[name]) for name in ("chains", "draws", "num_divergences"))
    return (
        f"NUTS drew {chains} chains of {draws}: R̂ is at most {found['rhat_max']:.2f}, they are worth at least "
        f"{found['ess_min']:.0f} independent draws, and {divergences or 'none'} diverged{_doubt(bayesian, chains * draws)}."
    )


def _doubt(bayesian: Trial, num_draws: int) -> str:
    """What to think of LOO by importance sampling, by the threshold of Vehtari et al. (2024)."""
    if bayesian.khat <= min(1 - 1 / math.log10(num_draws), 0.7):
        return ""
    return f"; a Pareto shape of {bayesian.khat:.2f} says that so few draws tell LOO only roughly"


def ranking(trials: dict[str, Trial], score: str) -> list[str]:
    """The names of the models, the largest score first."""
    return sorted(trials, key=lambda name: getattr(trials[name], score), reverse=True)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


PICTURE, REPORT, DATA = FILES = ("currents.png", "report.html", "drifters.csv")
NUM_STEPS = 10
"""Loading, five models, the Bayesian fit, the picture, the report, and moving all files to their places."""


def run(out: Path, seed: int) -> None:
    """Fit and compare the models, write `FILES` into the folder `out`, and print what was found."""
    check_places(out)
    console = Console()
    with steps(console) as step:
        step("Loading")
        from ovkgp.cli.demo import show, work, write

        found = work(seed, step)
        write(found, out, step)
    try:
        show(found, out, console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{', '.join(FILES)} were written to '{out}'") from None


def check_places(out: Path) -> None:
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
