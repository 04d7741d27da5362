"""``ovkgp features``: the number of random features needed."""

from __future__ import annotations

from typing import Annotated

import typer

from ovkgp.cli.arguments import Debug, Separator, argument, option
from ovkgp.cli.errors import report_errors
from ovkgp.exceptions import OptionError


def features_command(
    context: typer.Context,
    data: Annotated[str | None, argument("DATA", "A table that provides rows, inputs and diameter.")] = None,
    rows: Annotated[int | None, option("N", "Number of rows (default: 10000).", min=1)] = None,
    dims: Annotated[int | None, option("N", "Number of inputs (default: 2).", min=1)] = None,
    inputs: Annotated[str | None, option("a,b", "With DATA: the input columns.")] = None,
    outputs: Annotated[
        str | None,
        option("P", "Number of outputs, or with DATA their columns (default: 1; for a field, the number of inputs)."),
    ] = None,
    kernel: Annotated[
        str, typer.Option(metavar="NAME", help="rbf, matern52, matern32, matern12, rq or laplace.")
    ] = "rbf",
    structure: Annotated[
        str, typer.Option(metavar="NAME", help="decomposable, curl_free or divergence_free.")
    ] = "decomposable",
    lengthscale: Annotated[
        float, typer.Option(metavar="LENGTH", help="In units of the inputs; with DATA, in their standard deviations.")
    ] = 1.0,
    diameter: Annotated[
        float | None,
        option("LENGTH", "Largest distance between two inputs (default: that of DATA, or of a cube of side 2).", min=0),
    ] = None,
    error: Annotated[
        float,
        typer.Option(
            metavar="FRACTION", help="Acceptable error of the kernel, as a fraction of its value at zero distance."
        ),
    ] = 0.1,
    plot: Annotated[str | None, option("PNG", "Plot the measured errors to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    separator: Separator = ",",
    debug: Debug = False,
) -> None:
    """Estimate the number of random features needed.

    Prints a rule of thumb, a measured estimate and a theoretical guarantee for D, the option num_frequencies. Smooth kernels,
    short distances and few inputs need few features.

    Examples:

    \b
    ovkgp features --rows 100000 --dims 3
    ovkgp features --dims 2 --structure curl_free --kernel matern52 --error 0.05 --plot errors.png
    ovkgp features table.csv --inputs east,north --outputs u,v --lengthscale 0.5
    """
    with report_errors(context, debug):
        from ovkgp.cli.arguments import check_output_file, check_seed

        path = None if plot is None else check_output_file(plot, (".png", ".pdf", ".svg"), option="--plot")
        check_seed(seed)
        if data is not None:
            from ovkgp.cli.feature_counts import measure_extent

            reject_options("is taken from the table", rows=rows, dims=dims)
            rows, dims, count, diagonal = measure_extent(data, inputs, outputs, separator)
            outputs, diameter = None if count is None else str(count), diagonal if diameter is None else diameter
        else:
            reject_options("needs a table", inputs=inputs)
        from ovkgp.cli.feature_counts import FeatureProblem, print_feature_counts

        problem = FeatureProblem.from_options(rows, dims, outputs, kernel, structure, lengthscale, diameter, error)
        print_feature_counts(problem, seed, path)


def reject_options(reason: str, **options) -> None:
    """Raise if one of the options was set."""
    for name, value in options.items():
        if value is not None:
            raise OptionError(f"--{name} {reason}. Remove the option.")
