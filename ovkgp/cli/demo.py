"""Work of ``ovkgp demo``: fit and compare five models, sample the hyperparameters of the best, write figure, report and data."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from ovkgp.cli.arguments import report_unwritable
from ovkgp.cli.demo_figure import currents_figure
from ovkgp.cli.demo_models import (
    INTERVAL_LEVEL,
    KERNELS,
    NUM_OTHER_SETS,
    SAMPLING,
    OceanData,
    Trial,
    compare_with_second,
    evaluate_bayesian,
    evaluate_model,
    sampler_diagnostics,
    score_other_sets,
    select_best,
)
from ovkgp.cli.errors import InterruptCounter
from ovkgp.estimators.common.formatting import format_percent
from ovkgp.exceptions import OptionError
from ovkgp.plotting import write_report

FIGURE, REPORT, DATA = FILES = ("currents.png", "report.html", "drifters.csv")
NUM_STEPS = 10  # five models, other data, the Bayesian fit, figure, report, and moving the files to the output folder
DOTS_PER_INCH = 110
COLUMNS = ("\nmodel", "log\nevidence", "\nLOO", "RMSE\n(m/s)", "log\ndensity", "90 %\ncoverage", "\nseconds")
CAPTION = "Ground truth and fully Bayesian posterior: the current, and its two Helmholtz parts over their scalars. Gray is the standard deviation; contours below zero are dashed."


def run(out: Path, seed: int, interrupts: InterruptCounter) -> None:
    """Fit and compare the models, write `FILES` into the folder `out`, and print the results."""
    for name in FILES:
        if (out / name).is_dir():  # before any work is done
            raise OptionError(f"Cannot write '{out / name}', which is a folder. Use another folder for --out.")
    console = Console()
    with progress_steps(console, interrupts) as step:
        result = compute_results(seed, step)
        write_files(result, out, step)
    try:
        print_results(result, out, console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{', '.join(FILES)} were written to '{out}'") from None


@contextmanager
def progress_steps(console: Console, interrupts: InterruptCounter) -> Iterator[Callable[[str], None]]:
    """Show one line of progress in a terminal; yield a function that is called with the name of each step."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("", total=NUM_STEPS, completed=-1)

    def step(name: str) -> None:
        if interrupts.count:  # an estimator or an import may have caught the KeyboardInterrupt
            raise KeyboardInterrupt
        progress.update(task, advance=1, description=name)

    with progress:
        yield step


@dataclass(frozen=True)
class DemoResult:
    """Data and ground truth, trained models by name, name of the best one, its fully Bayesian fit, and its scores on other data.

    `others` (NUM_OTHER_SETS, 3) are RMSE, log density and coverage.
    """

    ocean: OceanData
    trials: dict[str, Trial]
    best: str
    bayesian: Trial
    others: np.ndarray


def compute_results(seed: int, step: Callable[[str], None]) -> DemoResult:
    """Train and score all models; `step` is called with the name of each step."""
    ocean, trials = OceanData.generate(seed), {}
    with use_one_thread():
        for name in KERNELS:
            step(f"Training: {name}")
            trials[name] = evaluate_model(name, ocean, seed)
        best = select_best(trials)
        step(f"Scores on {NUM_OTHER_SETS} other data sets: {best}")
        others = score_other_sets(best, seed)
        transitions = SAMPLING["chains"] * (SAMPLING["tune"] + SAMPLING["draws"])
        step(f"Fully Bayesian: {best}, {transitions} transitions of NUTS")
        return DemoResult(ocean, trials, best, evaluate_bayesian(best, ocean, seed), others)


def use_one_thread() -> threadpool_limits:
    """Limit torch, NumPy and SciPy to one thread: two are slower on small matrices, many times so on a busy machine."""
    return threadpool_limits(limits=1)


def write_files(result: DemoResult, out: Path, step: Callable[[str], None]) -> None:
    """Write `FILES` to a temporary folder, and move them into `out` once all are complete."""
    with report_unwritable(out), tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out) as folder:
        unfinished = Path(folder)
        with use_one_thread():
            step("Drawing")
            figure = draw_figure(result)
            figure.savefig(unfinished / FIGURE, dpi=DOTS_PER_INCH, format="png")
            step("Writing the report")
            write_demo_report(result, figure, unfinished / REPORT)
        result.ocean.X.join(result.ocean.Y).to_csv(unfinished / DATA, index=False, float_format="%.4f")
        step("Done")
        for name in FILES:
            (unfinished / name).replace(out / name)


def draw_figure(result: DemoResult) -> Figure:
    """Draw the figure of the fully Bayesian model."""
    parts = result.bayesian if result.best == "Helmholtz" else result.trials["Helmholtz"]
    return currents_figure(result.ocean, f"{result.best}, NUTS", result.bayesian.model, parts.model)


def write_demo_report(result: DemoResult, figure: Figure, path: Path) -> None:
    """Write the report on the fully Bayesian model, with the comparison that selected it."""
    title = f"Ocean currents from drifters: {result.best} model, fully Bayesian"
    units = "Positions are in km, currents in m/s; the data are simulated, so the ground truth is known."
    found = (*findings(result.trials, result.bayesian), describe_coverage(result.best, result.others))
    notes = [units, *found, *score_sentences(result.trials), *legend(result.ocean)]
    write_report(result.bayesian.model, path, title=title, notes=notes, extra_figures=[(CAPTION, figure)])


def print_results(result: DemoResult, out: Path, console: Console) -> None:
    """Print the table, its interpretation, and the paths of the files."""
    console.print(score_table(result.trials, result.bayesian, result.others))
    coverage = describe_coverage(result.best, result.others)
    for sentence in (*findings(result.trials, result.bayesian), coverage, ""):
        console.print(sentence, highlight=False)
    for sentence in (*legend(result.ocean), ""):
        console.print(sentence, highlight=False, style="dim")
    for name, kind in zip(FILES, ("figure", "report", "data"), strict=True):
        console.print(f"{kind:8}{out / name}", soft_wrap=True, highlight=False, markup=False)


def score_table(trials: dict[str, Trial], bayesian: Trial, others: np.ndarray) -> Table:
    """Make a table of all models, the best one marked, and below them its fully Bayesian fit and its mean scores on other data."""
    table = Table(title="Five models of an ocean current", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if "model" in column else "right", no_wrap=True)
    best = select_best(trials)
    for name, trial in trials.items():
        is_best = name == best
        table.add_row(f"{name} ←" if is_best else name, *score_cells(trial), style="bold" if is_best else None)
    table.add_section()
    table.add_row("← with NUTS", *score_cells(bayesian))
    rmse, log_density, coverage = others.mean(0)
    scores = f"{rmse:.3f}", f"{log_density:.2f}", format_percent(coverage)
    table.add_row(f"← {len(others)} other sets", "–", "–", *scores, "–")
    return table


def score_cells(trial: Trial) -> list[str]:
    """Format the scores of a model in the order of `COLUMNS`."""
    evidence = "–" if trial.log_evidence is None else f"{trial.log_evidence:.1f}"
    scores = f"{trial.elpd_loo:.1f}", f"{trial.rmse:.3f}", f"{trial.log_density:.2f}", format_percent(trial.coverage)
    return [evidence, *scores, f"{trial.seconds:.1f}"]


def score_sentences(trials: dict[str, Trial]) -> list[str]:
    """Format the scores of each model as a sentence, without the seconds, which differ between runs."""
    template = "{}: log evidence {}, LOO {}, RMSE {} m/s, log density {}, coverage {}."
    return [template.format(name, *score_cells(trial)) for name, trial in trials.items()]


def legend(ocean: OceanData) -> list[str]:
    """Explain the columns of the table."""
    return [
        f"Evidence and LOO use only the data, {ocean.num_measured} components measured at {len(ocean.X)} positions. LOO is the "
        "sum of the log densities of each component given all others; with NUTS it averages over the hyperparameters, "
        "otherwise it uses those trained on all components, which is slightly optimistic.",
        f"The other scores use the ground truth at {len(ocean.points)} grid points: the error of the mean, the log density of "
        "held-out noisy measurements (mean per component), and the coverage of the "
        f"{format_percent(INTERVAL_LEVEL)} intervals for the current.",
    ]


def findings(trials: dict[str, Trial], bayesian: Trial) -> list[str]:
    """Describe the results in sentences."""
    return [_describe_selection(trials), _describe_check(trials), _describe_sampling(bayesian)]


def describe_coverage(best: str, others: np.ndarray) -> str:
    """Describe the coverage of the best model on other data sets in a sentence, with the standard error of its mean."""
    coverages = others[:, 2]
    mean, error, low, high = (100 * value for value in (*_mean_and_error(coverages), coverages.min(), coverages.max()))
    return (
        "The coverage of one data set says little, since errors at neighboring points are alike: on "
        f"{len(coverages)} others, the {format_percent(INTERVAL_LEVEL)} intervals of {best} cover {mean:.1f} ± {error:.1f} % on "
        f"average, from {low:.0f} to {high:.0f} %."
    )


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return values.mean(), values.std(ddof=1) / math.sqrt(len(values))


def _describe_selection(trials: dict[str, Trial]) -> str:
    best, (second, difference, error) = select_best(trials), compare_with_second(trials)
    first, follower = rank_models(trials, "log_evidence")[:2]
    margin = trials[first].log_evidence - trials[follower].log_evidence
    agreement = "so does the evidence" if first == best else f"the evidence selects {first}"
    selection = f"LOO selects {best}, {difference:.1f} ± {error:.1f} above {second}"
    return f"{selection}; {agreement}, {margin:.1f} above {follower}."


def _describe_check(trials: dict[str, Trial]) -> str:
    best, nearest = select_best(trials), rank_models(trials, "rmse")[-1]
    likeliest = rank_models(trials, "log_density")[0]
    if best == nearest == likeliest:
        return f"Against the ground truth, {best} also has the smallest error and the largest log density."
    return f"Against the ground truth, {nearest} has the smallest error and {likeliest} the largest log density."


def _describe_sampling(bayesian: Trial) -> str:
    found = sampler_diagnostics(bayesian)
    chains, draws, divergences = (int(found[name]) for name in ("chains", "draws", "num_divergences"))
    return (
        f"NUTS ran {chains} chains of {draws} draws: R̂ at most {found['rhat_max']:.2f}, effective sample size at least "
        f"{found['ess_min']:.0f}, {divergences or 'no'} divergences{_describe_pareto_k(bayesian, chains * draws)}."
    )


def _describe_pareto_k(bayesian: Trial, num_draws: int) -> str:
    """Describe a Pareto k̂ of LOO above the threshold of Vehtari et al. (2024)."""
    if bayesian.khat <= min(1 - 1 / math.log10(num_draws), 0.7):
        return ""
    return f"; with a Pareto k̂ of {bayesian.khat:.2f}, LOO is only approximate for this number of draws"


def rank_models(trials: dict[str, Trial], score: str) -> list[str]:
    """Return the names of the models, the largest score first."""
    return sorted(trials, key=lambda name: getattr(trials[name], score), reverse=True)
