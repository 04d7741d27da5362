"""Which ready model do I take? Recipes in TOML, read and checked, and made into estimators.

`load_recipe("vector_field")` takes one of those that come with the package (`list_recipes`), `load_recipe("mine.toml")` a
file of your own. Reading and listing loads no torch: that comes with the first `build` or `fit`.

Example:
    >>> from ovkgp.recipes import list_recipes, load_recipe
    >>> "vector_field" in list_recipes()
    True
    >>> load_recipe("vector_field").estimator
    'GPRegressor'
"""

from importlib import import_module

_NAMES = {
    "Recipe": "recipe",
    "list_recipes": "finding",
    "load_recipe": "recipe",
    "recipe_path": "finding",
}
"""What is offered, and the module in which it lives."""

__all__ = [*_NAMES]


def __getattr__(name: str):
    """Load a name from its module at its first use (PEP 562)."""
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
