"""``ovkgp report``: an HTML report on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import (
    Debug,
    Model,
    ModelInputs,
    Outputs,
    Quiet,
    Separator,
    SkipBadRows,
    Task,
    option,
    parse_names,
)
from ovkgp.cli.errors import report_errors
from ovkgp.exceptions import OptionError


def report_command(
    context: typer.Context,
    model: Model,
    out: Annotated[str, option("HTML", "The HTML file to write.", "--out", "-o")],
    data: Annotated[str | None, option("DATA", "A table to evaluate the model on, preferably held-out data.")] = None,
    title: Annotated[str | None, option(None, "Title of the report.")] = None,
    inputs: ModelInputs = None,
    outputs: Outputs = None,
    task: Task = None,
    groups: Annotated[
        str | None,
        option("COLUMN", "A column of --data, the training rows: rows with the same label are held out together."),
    ] = None,
    grid: Annotated[
        str | None, option("row", "For curves: `row` if the first row of --data holds the grid and is not data.")
    ] = None,
    criticize: Annotated[
        bool, typer.Option("--criticize", help="Include the tests and scores of `ovkgp criticize`.")
    ] = False,
    separator: Separator = ",",
    skip_bad_rows: SkipBadRows = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a report on a model, as one HTML file.

    It has tables, plots and warnings. With --data the model is evaluated on that table, whose columns must have the names
    that the model was fitted with; otherwise on the training rows stored in the model, each predicted from all others. With
    --groups the table is that of the fit, and all rows with the same label (a track, a station) are predicted from the others.

    Examples:

    \b
    ovkgp report currents.ovkgp --out currents.html
    ovkgp report currents.ovkgp --data new_drifters.csv --out check.html --title "Currents in May"
    ovkgp report currents.ovkgp --data drifters.csv --groups buoy --out tracks.html
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_output_file
        from ovkgp.cli.curve_grids import GRID_ROW
        from ovkgp.files import Snapshot

        path = check_output_file(out, (".html", ".htm"), sources=[model] if data is None else [model, data])
        if groups is not None and data is None:
            raise OptionError("--groups needs the table of the fit. Name it with --data.")
        if grid not in (None, GRID_ROW) or (grid is not None and data is None):
            raise OptionError(
                f"--grid must be {GRID_ROW!r}, with --data, got {grid!r}. Curves are compared on the grid of the fit."
            )
        if data is not None:
            Snapshot.of(data)  # checks that the file is readable before the model is loaded
        import ovkgp
        from ovkgp.cli.prediction_job import read_evaluation_data
        from ovkgp.plotting import write_report

        estimator = ovkgp.load(model)
        X, Y, labels = None, None, None
        if data is not None:
            columns = inputs, parse_names(outputs), task
            options = not skip_bad_rows, separator, groups, grid == GRID_ROW
            X, Y, labels = read_evaluation_data(estimator, Path(data).expanduser(), *columns, *options)
        table = {}
        if criticize:
            from ovkgp import criticism

            table["criticism"] = criticism.criticize(estimator, X, Y, groups=labels, random_state=0)
        write_report(estimator, path, X=X, Y=Y, groups=labels, title=title, **table)
        if not quiet:
            typer.echo(f"Report written to {path}.")
