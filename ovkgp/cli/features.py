"""``ovkgp features``: how many random features do I need?"""

from __future__ import annotations

from typing import Annotated

import typer

from ovkgp.cli.arguments import Debug, Separator
from ovkgp.cli.errors import one_sentence
from ovkgp.exceptions import OptionError


def features_command(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="A table to take rows, inputs and diameter from.", show_default=False),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many rows; 10000 by default.", show_default=False)
    ] = None,
    dims: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many inputs; 2 by default.", show_default=False)
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="a,b", help="With DATA: the columns of the inputs.", show_default=False)
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="How many outputs, or with DATA their columns; 1, or for a field as many as inputs.",
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[str, typer.Option(metavar="NAME", help="rbf, matern52, matern32, matern12 or rq.")] = "rbf",
    structure: Annotated[
        str, typer.Option(metavar="NAME", help="decomposable, curl_free or divergence_free.")
    ] = "decomposable",
    lengthscale: Annotated[
        float,
        typer.Option(metavar="LENGTH", help="In the units of the inputs; with DATA, in their standard deviations."),
    ] = 1.0,
    diameter: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="LENGTH",
            help="The largest distance between two inputs; that of a box of side 2, or of DATA.",
            show_default=False,
        ),
    ] = None,
    error: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="The largest error of the kernel that you accept, as a part of its value at 0."
        ),
    ] = 0.1,
    plot: Annotated[
        str | None, typer.Option(metavar="PNG", help="Draw the measured errors into this file.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the measurements.")] = 0,
    separator: Separator = ",",
    debug: Debug = False,
) -> None:
    """Say how many random features are enough.

    By a rule of thumb, measured, and by a guarantee. The number is the D of num_frequencies. Few are enough for smooth kernels, short distances and few inputs.

    Examples:

    \b
    ovkgp features --rows 100000 --dims 3
    ovkgp features --dims 2 --structure curl_free --kernel matern52 --error 0.05 --plot errors.png
    ovkgp features table.csv --inputs east,north --outputs u,v --lengthscale 0.5
    """
    with one_sentence(context, debug):
        from ovkgp.cli.arguments import check_seed, output_file

        path = None if plot is None else output_file(plot, (".png", ".pdf", ".svg"), option="--plot")
        check_seed(seed)
        if data is not None:
            from ovkgp.cli.feature_counts import box_of

            refuse("is taken from the table", rows=rows, dims=dims)
            rows, dims, count, diagonal = box_of(data, inputs, outputs, separator)
            outputs, diameter = None if count is None else str(count), diagonal if diameter is None else diameter
        else:
            refuse("goes with a table", inputs=inputs)
        from ovkgp.cli.feature_counts import FeatureProblem, show

        problem = FeatureProblem.of(
            rows,
            dims,
            outputs,
            kernel=kernel,
            structure=structure,
            lengthscale=lengthscale,
            diameter=diameter,
            error=error,
        )
        show(problem, seed, path)


def refuse(why: str, **options) -> None:
    """Refuse options that were given."""
    for name, value in options.items():
        if value is not None:
            raise OptionError(f"--{name} {why}: leave it out.")
