"""Options that several commands share, with their help."""

from __future__ import annotations

import csv
from typing import Annotated

import typer

Data = Annotated[
    str, typer.Argument(metavar="DATA", help="A CSV, TSV or Parquet file with a header.", show_default=False)
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model file that `ovkgp fit` wrote.", show_default=False)]
Outputs = Annotated[
    str | None,
    typer.Option(metavar="u,v", help="The columns to learn; an empty cell is a missing output.", show_default=False),
]
Separator = Annotated[str, typer.Option(metavar="CHAR", help="Between the fields of a text table; of a .tsv, a tab.")]
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read, and count them; else stop at the first."),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="A long table, one observation a row: the column that names the output which --outputs holds a value of.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and notes only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def names(text: str | None) -> tuple[str, ...] | None:
    """The names in a text with commas between them; one that has a comma itself stands in double quotes.

    Example:
        >>> names("east, north"), names('"Cd (mg, kg)",Ni')
        (('east', 'north'), ('Cd (mg, kg)', 'Ni'))
    """
    if text is None:
        return None
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""]))
