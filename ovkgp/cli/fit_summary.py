"""What ``ovkgp fit`` says at the end: the model in words, and what to do with it."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ovkgp.cli.fitting import Fitted
from ovkgp.cli.launching import is_first_rank


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
