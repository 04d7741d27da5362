"""``ovkgp models``: which recipes there are, and what they say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ovkgp.cli.arguments import Debug
from ovkgp.cli.errors import one_sentence

if TYPE_CHECKING:
    from rich.table import Table

    from ovkgp.recipes import Recipe

WIDE = 120
"""Columns of a terminal from which the estimators have a column of their own."""


def models_command(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print the file of this recipe.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """List the recipes, or print the file of one.

    Copy it, edit it, and fit it by the name of your file.

    Examples:

    \b
    ovkgp models
    ovkgp models multitask > mine.toml
    ovkgp fit mine.toml table.csv --inputs a,b --outputs u,v --out model.ovkgp
    """
    with one_sentence(context, debug):
        if name is None:
            _print_table()
            return
        from ovkgp.recipes import recipe_path

        typer.echo(recipe_path(name).read_text(encoding="utf-8"), nl=False)


def _print_table() -> None:
    from rich.console import Console

    from ovkgp.recipes import list_recipes, load_recipe

    console = Console(highlight=False)
    console.print(recipe_table([load_recipe(name) for name in list_recipes()], is_wide=console.width >= WIDE))
    console.print("\n`ovkgp models NAME` prints the file of a recipe, with its options.", markup=False)


def recipe_table(recipes: Iterable[Recipe], is_wide: bool) -> Table:
    """Name, purpose and estimator; the estimator behind the purpose where there is little room."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("purpose" if is_wide else "purpose (estimator)")
    if is_wide:
        table.add_column("estimator", no_wrap=True)
    for recipe in recipes:
        cells = (recipe.purpose, recipe.estimator)
        table.add_row(recipe.name, *(cells if is_wide else [f"{recipe.purpose} ({recipe.estimator})"]))
    return table
