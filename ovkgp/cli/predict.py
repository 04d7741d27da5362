"""``ovkgp predict``: what a model says of the inputs in a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import Data, Debug, Model, Quiet, Separator, SkipBadRows, names
from ovkgp.cli.errors import one_sentence


def predict_command(
    context: typer.Context,
    model: Model,
    data: Data,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The table to write: .csv, .tsv or .parquet.", show_default=False
        ),
    ],
    quantiles: Annotated[
        str | None,
        typer.Option(
            metavar="LEVELS",
            help="Quantiles of each output, such as 0.1,0.9; by default 0.05,0.5,0.95.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Add NAME_low and NAME_high, the central interval that holds this share of new observations. Quantile models "
            "calibrate it on rows left out, and add it for 0.9 in any case.",
            show_default=False,
        ),
    ] = None,
    latent: Annotated[
        bool, typer.Option("--latent", help="Of the function behind the observations, without their noise.")
    ] = False,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="COSTS", help="For cost-sensitive models: the costs at which a class is chosen.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="ID,…", help="Other columns of DATA to copy.", show_default=False)
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="a,b", help="The input columns, where the model was fitted without names.", show_default=False
        ),
    ] = None,
    separator: Separator = ",",
    skip_bad_rows: SkipBadRows = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the outputs for every row of a table.

    The table of predictions has the columns that were kept, the inputs, and for each output NAME_mean, NAME_sd and NAME_q05, NAME_q50,
    NAME_q95; a quantile model has NAME_q05 …, NAME_low and NAME_high; a classifier NAME_class and NAME_decision; level sets
    have inlier and level. It is read and written in chunks, so that it may be larger than memory.

    Examples:

    \b
    ovkgp predict currents.ovkgp places.csv --out currents.csv
    ovkgp predict soil.ovkgp places.parquet --out soil.parquet --quantiles 0.1,0.9 --keep site
    ovkgp predict engel.ovkgp incomes.csv --out food.csv --level 0.8
    ovkgp predict screening.ovkgp patients.csv --out risk.csv --costs=-0.5,0,0.5 --keep patient
    """
    with one_sentence(context, debug):
        from ovkgp.cli.arguments import number, numbers, output_file
        from ovkgp.cli.tables import SUFFIXES
        from ovkgp.files import Snapshot

        path = output_file(out, SUFFIXES, sources=[model, data])
        levels = None if quantiles is None else numbers(quantiles, "--quantiles", 0, 1)
        share = None if level is None else number(level, "--level", 0, 1)
        prices = None if costs is None else numbers(costs, "--costs")
        Snapshot.of(data)  # there, and readable, before the model is loaded
        import ovkgp
        from ovkgp.cli.prediction_columns import PredictionRequest
        from ovkgp.cli.prediction_job import InputFile, predict_file

        verbose = int(not quiet and sys.stderr.isatty())
        source = InputFile(Path(data).expanduser(), inputs, names(keep) or (), not skip_bad_rows, separator, verbose)
        count = predict_file(ovkgp.load(model), source, path, PredictionRequest(levels, share, latent, prices))
        if not quiet:
            typer.echo(f"{count} {'row' if count == 1 else 'rows'} of predictions written to {path}.")
