"""``ovkgp report``: a page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import Debug, Model, Outputs, Quiet, Separator, SkipBadRows, Task, names
from ovkgp.cli.errors import one_sentence


def report_command(
    context: typer.Context,
    model: Model,
    out: Annotated[str, typer.Option("--out", "-o", metavar="HTML", help="Where the page goes.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="A table to judge the model by, best one that it has not seen.", show_default=False
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.", show_default=False)] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="a,b", help="The input columns, where the model was fitted without names.", show_default=False
        ),
    ] = None,
    outputs: Outputs = None,
    task: Task = None,
    separator: Separator = ",",
    skip_bad_rows: SkipBadRows = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a report on a model, as one HTML file.

    It has tables, plots and warnings in plain words. Without --data it is about the rows that the model keeps; with it, about those in the file, whose columns have the names
    that the model was fitted with.

    Examples:

    \b
    ovkgp report currents.ovkgp --out currents.html
    ovkgp report currents.ovkgp --data new_drifters.csv --out check.html --title "Currents in May"
    """
    with one_sentence(context, debug):
        from ovkgp.cli.arguments import output_file
        from ovkgp.files import Snapshot

        path = output_file(out, (".html", ".htm"), sources=[model] if data is None else [model, data])
        if data is not None:
            Snapshot.of(data)  # there, and readable, before the model is loaded
        import ovkgp
        from ovkgp.cli.prediction_job import read_known
        from ovkgp.plotting import write_report

        estimator = ovkgp.load(model)
        X, Y = None, None
        if data is not None:
            columns = inputs, names(outputs), task
            X, Y = read_known(estimator, Path(data).expanduser(), *columns, not skip_bad_rows, separator)
        write_report(estimator, path, X=X, Y=Y, title=title)
        if not quiet:
            typer.echo(f"Report written to {path}.")
