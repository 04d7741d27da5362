"""``ovkgp forecast``: forecasts of the steps after a series, written to a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ovkgp.cli.arguments import Debug, Model, Quiet, Separator, option
from ovkgp.cli.errors import report_errors

if TYPE_CHECKING:
    import pandas as pd

    from ovkgp.estimators.series import Forecast


def forecast_command(
    context: typer.Context,
    model: Model,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Number of steps after the series.", min=1, show_default=False)
    ],
    out: Annotated[str, option("FILE", "The table to write: .csv, .tsv or .parquet.", "--out", "-o")],
    level: Annotated[
        float, typer.Option(metavar="FRACTION", help="Probability of the intervals NAME_low, NAME_high.")
    ] = 0.9,
    future: Annotated[
        str | None, option("FILE", "A table with the future values of the exogenous columns, one row per step.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the sample paths.")] = 0,
    separator: Separator = ",",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Forecast a series that `ovkgp fit forecast` was fitted to.

    The table written has one row per step: the stamp, and NAME_mean, NAME_std, NAME_low and NAME_high of new observations of
    each output.

    Examples:

    \b
    ovkgp fit forecast sales.csv --inputs month --outputs north,south --out sales.ovkgp
    ovkgp forecast sales.ovkgp --steps 12 --out forecast.csv
    ovkgp fit forecast load.csv --inputs hour,holiday --outputs load --out load.ovkgp
    ovkgp forecast load.ovkgp --steps 24 --future tomorrow.csv --level 0.8 --out forecast.csv
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_output_file, check_seed
        from ovkgp.cli.tables import WRITABLE_SUFFIXES, TableFile, write_tables
        from ovkgp.exceptions import OptionError

        path = check_output_file(out, WRITABLE_SUFFIXES, sources=[model, *([future] if future else [])])
        check_seed(seed)
        import pyarrow as pa

        import ovkgp

        estimator = ovkgp.load(model)
        if estimator.kind != "series":
            raise OptionError(
                f"'{model}' holds a {estimator.class_name}, which does not forecast series. Use ovkgp predict, or fit the recipe forecast."
            )
        options = {"level": level, "random_state": seed}
        if future is not None:
            names = tuple(getattr(estimator, "exog_names_", None) or ())
            if not names:
                raise OptionError(f"--future is not supported by '{model}', which has no exogenous columns. Remove it.")
            options["exog"] = TableFile(Path(future).expanduser(), names, None, separator=separator).read("none")[0]
        forecast = estimator.forecast(steps, **options)
        table = pa.Table.from_pandas(make_table(forecast), preserve_index=False)
        count = write_tables(path, iter([table]))
        if not quiet:
            typer.echo(f"{count} {'step' if count == 1 else 'steps'} of forecasts written to {path}.")


def make_table(forecast: Forecast) -> pd.DataFrame:
    """Return one row per step: its stamp or number, and mean, std, low and high of each output."""
    import numpy as np
    import pandas as pd

    stamps = forecast.stamps
    if stamps is None:
        columns = {"step": np.arange(1, len(forecast) + 1)}
    else:
        columns = {stamps.name or "stamp": stamps.to_timestamp() if stamps.dtype.kind == "O" else stamps}
    parts = {"mean": forecast.mean, "std": forecast.std, "low": forecast.lower, "high": forecast.upper}
    arrays = {name: np.asarray(part).reshape(len(forecast), -1) for name, part in parts.items()}
    for j, output in enumerate(forecast.output_names):
        columns |= {f"{output}_{name}": values[:, j] for name, values in arrays.items()}
    return pd.DataFrame(columns)
