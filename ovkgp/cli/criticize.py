"""``ovkgp criticize``: a table of tests and scores of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ovkgp.cli.arguments import Data, Debug, Model, ModelInputs, Outputs, Quiet, Separator, option, parse_names
from ovkgp.cli.errors import report_errors


def criticize_command(
    context: typer.Context,
    model: Model,
    data: Data,
    extra: Annotated[
        str | None, option("a,b", "Columns that are no inputs; residuals are tested for dependence on each of them.")
    ] = None,
    groups: Annotated[
        str | None, option("COLUMN", "A column of labels: rows of the fit with the same label are held out together.")
    ] = None,
    alpha: Annotated[
        str, typer.Option(metavar="LEVEL", help="Probability that any test rejects a right model.")
    ] = "0.05",
    out: Annotated[
        str | None, option("FILE", "Write the table to this file: .csv, .tsv or .parquet.", "--out", "-o")
    ] = None,
    inputs: ModelInputs = None,
    outputs: Outputs = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    separator: Separator = ",",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check whether a model is right.

    The table has tests of residuals, calibration, scores and recommendations. DATA holds rows that were held out of the fit, or the rows of the fit. p-values are corrected for the number of tests.

    Examples:

    \b
    ovkgp criticize currents.ovkgp new_drifters.csv
    ovkgp criticize currents.ovkgp drifters.csv --extra depth,season --groups buoy --out checks.csv
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_output_file, check_seed, parse_number
        from ovkgp.cli.tables import WRITABLE_SUFFIXES
        from ovkgp.files import Snapshot

        path = None if out is None else check_output_file(out, WRITABLE_SUFFIXES, sources=[model, data])
        level = parse_number(alpha, "--alpha", 0, 1)
        check_seed(seed)
        Snapshot.of(data)  # checks that the file is readable before the model is loaded
        import ovkgp
        from ovkgp.cli.prediction_job import read_criticism_data
        from ovkgp.criticism import criticize

        estimator = ovkgp.load(model)
        names = inputs, parse_names(outputs), parse_names(extra) or (), groups
        X, Y, columns, labels = read_criticism_data(estimator, Path(data).expanduser(), *names, separator)
        table = criticize(estimator, X, Y, extra=columns, groups=labels, alpha=level, random_state=seed)
        if path is not None:
            import pyarrow as pa

            from ovkgp.cli.tables import write_tables

            write_tables(path, iter([pa.Table.from_pandas(table.to_frame(), preserve_index=False)]))
        if not quiet:
            typer.echo(str(table))
