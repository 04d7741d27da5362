"""``ovkgp predict``: predictions for the inputs of a table, written to a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import Debug, Model, ModelInputs, Quiet, Separator, SkipBadRows, argument, option, parse_names
from ovkgp.cli.errors import report_errors
from ovkgp.exceptions import OptionError


def predict_command(
    context: typer.Context,
    model: Model,
    out: Annotated[str, option("FILE", "The table to write: .csv, .tsv or .parquet.", "--out", "-o")],
    data: Annotated[
        str | None, argument("[DATA]", "A CSV, TSV or Parquet file with a header; omitted with a --grid of inputs.")
    ] = None,
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
            "Instead of DATA: the points of each input, such as east=0:100:50,north=0:60:30,depth=5, whose combinations are "
            "predicted. For curves: the points of the curve, as first:last:number, comma-separated numbers or a file of "
            "numbers (default: the grid of the fit).",
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
    """Predict the outputs for the rows of a table or a grid.

    The table written has the columns of --keep, the inputs, and for each output NAME_mean, NAME_std, NAME_q05, NAME_q50,
    NAME_q95. Quantile models write NAME_q05, …, NAME_low, NAME_high; classifiers NAME_class and NAME_decision; level sets
    inlier and level. Curve models write these columns for each point of the grid. Tables are read and written in chunks and may be larger than memory.

    Examples:

    \b
    ovkgp predict currents.ovkgp points.csv --out currents.csv
    ovkgp predict currents.ovkgp --grid east=0:100:50,north=0:60:30 --out map.csv
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

        path = check_output_file(out, WRITABLE_SUFFIXES, sources=[model, *([] if data is None else [data])])
        has_input_grid = grid is not None and "=" in grid and not Path(grid).expanduser().is_file()
        check_source(data, has_input_grid, keep, skip_bad_rows)
        request = (
            None if quantiles is None else parse_numbers(quantiles, "--quantiles", 0, 1),
            None if level is None else parse_number(level, "--level", 0, 1),
            latent,
            None if costs is None else parse_numbers(costs, "--costs"),
            None if grid is None or has_input_grid else tuple(parse_grid(grid).tolist()),
            simultaneous,
        )
        if not has_input_grid:
            Snapshot.of(data)  # checks that the file is readable before the model is loaded
        import ovkgp
        from ovkgp.cli.prediction_job import predict_file, predict_grid
        from ovkgp.estimators.common.prediction_columns import PredictionRequest

        estimator, request = ovkgp.load(model), PredictionRequest(*request)
        if has_input_grid:
            count = predict_grid(estimator, grid, path, request, inputs=inputs)
        else:
            options = {"strict": not skip_bad_rows, "separator": separator, "inputs": inputs}
            options |= {"keep": parse_names(keep) or (), "verbose": int(not quiet and sys.stderr.isatty())}
            count = predict_file(estimator, Path(data).expanduser(), path, request, **options)
        if not quiet:
            typer.echo(f"{count} {'row' if count == 1 else 'rows'} of predictions written to {path}.")


def check_source(data: str | None, has_input_grid: bool, keep: str | None, skip_bad_rows: bool) -> None:
    """Check that there is either a table or a grid of inputs."""
    if data is None and not has_input_grid:
        raise OptionError("DATA is missing. Name a table, or predict on a grid: --grid NAME=first:last:number,….")
    if has_input_grid and data is not None:
        raise OptionError(f"DATA and a --grid of inputs cannot both be given, got {data}. Remove one.")
    if has_input_grid and (keep is not None or skip_bad_rows):
        raise OptionError("--keep and --skip-bad-rows need DATA. Remove them.")
