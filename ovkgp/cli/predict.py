"""``ovkgp predict``: predictions for the inputs of a table, written to a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import Data, Debug, Model, ModelInputs, Quiet, Separator, SkipBadRows, option, parse_names
from ovkgp.cli.errors import report_errors


def predict_command(
    context: typer.Context,
    model: Model,
    data: Data,
    out: Annotated[str, option("FILE", "The table to write: .csv, .tsv or .parquet.", "--out", "-o")],
    quantiles: Annotated[
        str | None, option("LEVELS", "Quantiles of each output, such as 0.1,0.9 (default: 0.05,0.5,0.95).")
    ] = None,
    level: Annotated[
        str | None,
        option(
            "FRACTION",
            "Add the central interval NAME_low, NAME_high that contains this fraction of new observations. Quantile "
            "models calibrate it by cross-validation, and add it at level 0.9 by default.",
        ),
    ] = None,
    latent: Annotated[
        bool, typer.Option("--latent", help="Predict the latent function, without observation noise.")
    ] = False,
    costs: Annotated[
        str | None, option("COSTS", "For cost-sensitive models: the costs at which to predict the class.")
    ] = None,
    grid: Annotated[
        str | None,
        option(
            "GRID",
            "For curves: the points at which to predict, as first:last:number, comma-separated numbers or a file of numbers "
            "(default: the grid of the fit).",
        ),
    ] = None,
    simultaneous: Annotated[
        bool,
        typer.Option(
            "--simultaneous",
            help="For curves: make NAME_low, NAME_high a band that contains this fraction of whole curves (default level: 0.9).",
        ),
    ] = False,
    keep: Annotated[str | None, option("ID,…", "Other columns of DATA to copy.")] = None,
    inputs: ModelInputs = None,
    separator: Separator = ",",
    skip_bad_rows: SkipBadRows = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the outputs for every row of a table.

    The table written has the columns of --keep, the inputs, and for each output NAME_mean, NAME_std, NAME_q05, NAME_q50,
    NAME_q95. Quantile models write NAME_q05, …, NAME_low, NAME_high; classifiers NAME_class and NAME_decision; level sets
    inlier and level. Curve models write these columns for each point of the grid. Tables are read and written in chunks and may be larger than memory.

    Examples:

    \b
    ovkgp predict currents.ovkgp points.csv --out currents.csv
    ovkgp predict soil.ovkgp points.parquet --out soil.parquet --quantiles 0.1,0.9 --keep site
    ovkgp predict engel.ovkgp incomes.csv --out food.csv --level 0.8
    ovkgp predict growth.ovkgp plants.csv --out growth.csv --grid 0:30:61 --level 0.9 --simultaneous
    ovkgp predict screening.ovkgp patients.csv --out risk.csv --costs=-0.5,0,0.5 --keep patient
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_output_file, parse_number, parse_numbers
        from ovkgp.cli.curve_grids import parse_grid
        from ovkgp.cli.tables import WRITABLE_SUFFIXES
        from ovkgp.files import Snapshot

        path = check_output_file(out, WRITABLE_SUFFIXES, sources=[model, data])
        request = (
            None if quantiles is None else parse_numbers(quantiles, "--quantiles", 0, 1),
            None if level is None else parse_number(level, "--level", 0, 1),
            latent,
            None if costs is None else parse_numbers(costs, "--costs"),
            None if grid is None else tuple(parse_grid(grid).tolist()),
            simultaneous,
        )
        Snapshot.of(data)  # checks that the file is readable before the model is loaded
        import ovkgp
        from ovkgp.cli.prediction_job import predict_file
        from ovkgp.estimators.common.prediction_columns import PredictionRequest

        options = {"strict": not skip_bad_rows, "separator": separator}
        options |= {
            "inputs": inputs,
            "keep": parse_names(keep) or (),
            "verbose": int(not quiet and sys.stderr.isatty()),
        }
        source = Path(data).expanduser()
        count = predict_file(ovkgp.load(model), source, path, PredictionRequest(*request), **options)
        if not quiet:
            typer.echo(f"{count} {'row' if count == 1 else 'rows'} of predictions written to {path}.")
