"""``ovkgp models``: the list of recipes, or the file of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ovkgp.cli.arguments import Debug, argument
from ovkgp.cli.errors import report_errors

if TYPE_CHECKING:
    from rich.table import Table

    from ovkgp.recipes import Recipe

MIN_WIDE_COLUMNS = 120  # terminal width from which the estimators have a separate column


def models_command(
    context: typer.Context,
    name: Annotated[str | None, argument("NAME", "Print the file of this recipe.")] = None,
    debug: Debug = False,
) -> None:
    """List the recipes, or print the file of one.

    Copy the file, edit it, and pass its path to `ovkgp fit`.

    Examples:

    \b
    ovkgp models
    ovkgp models multitask > mine.toml
    ovkgp fit mine.toml table.csv --inputs a,b --outputs u,v --out model.ovkgp
    """
    with report_errors(context, debug):
        if name is None:
            _print_table()
            return
        from ovkgp.recipes import recipe_path

        typer.echo(recipe_path(name).read_text(encoding="utf-8"), nl=False)


def _print_table() -> None:
    from rich.console import Console

    from ovkgp.recipes import list_recipes, load_recipe

    console = Console(highlight=False)
    console.print(
        recipe_table([load_recipe(name) for name in list_recipes()], is_wide=console.width >= MIN_WIDE_COLUMNS)
    )
    console.print("\n`ovkgp models NAME` prints the file of a recipe with its options.", markup=False)


def recipe_table(recipes: Iterable[Recipe], is_wide: bool) -> Table:
    """Make a table of name, purpose and estimator; a narrow one has the estimator in parentheses after the purpose."""
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
