"""Where the recipes are: beside this module in an installed package, in the folder `models` of the repository otherwise."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ovkgp.exceptions import OptionError

SUFFIX = ".toml"
INSTALLED = Path(__file__).parent / "models"
"""Where a wheel puts the recipes."""
REPOSITORY = Path(__file__).parents[2] / "models"
"""Where an editable install finds them."""


def recipe_folder() -> Path:
    """The folder of the recipes that come with the package."""
    for folder in (INSTALLED, REPOSITORY):
        if folder.is_dir():
            return folder
    raise OptionError(
        f"the recipes are not installed: there is neither {INSTALLED} nor {REPOSITORY}. Install the package again, or give "
        "the path of a TOML file."
    )


def list_recipes() -> tuple[str, ...]:
    """The names of the recipes that come with the package, sorted.

    Example:
        >>> from ovkgp.recipes import list_recipes
        >>> "multitask" in list_recipes()
        True
    """
    return tuple(sorted(path.stem for path in recipe_folder().glob(f"*{SUFFIX}")))


def recipe_path(name: str) -> Path:
    """The file of a recipe that comes with the package, to be copied and edited.

    Args:
        name: one of `list_recipes`.

    Raises:
        OptionError: there is no such recipe; the message has the nearest name, and all names.

    Example:
        >>> from ovkgp.recipes import recipe_path
        >>> recipe_path("multitask").name
        'multitask.toml'
    """
    names = list_recipes()
    if name not in names:
        raise OptionError(f"there is no recipe {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}.")
    return recipe_folder() / f"{name}{SUFFIX}"


def did_you_mean(given, names) -> str:
    """ " (did you mean 'name'?)" where one of the names is near to what was given, else "".

    Example:
        >>> from ovkgp.recipes.finding import did_you_mean
        >>> did_you_mean("rnak", ["rank", "noise"]), did_you_mean("x", ["rank"])
        (" (did you mean 'rank'?)", '')
    """
    near = get_close_matches(str(given).lower(), [str(name) for name in names], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
