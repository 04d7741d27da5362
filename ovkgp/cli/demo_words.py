"""What ``ovkgp demo`` says: a table of all models, what was found, and how far it holds. Nothing here is known beforehand."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ovkgp.cli.demo_models import LEVEL, Sea, Trial, chosen, lead, mixing

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
