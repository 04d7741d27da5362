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

from __future__ import annotations

from ovkgp.lazy import lazy_names

_NAMES = {
    "Recipe": "recipe",
    "list_recipes": "toml_reader",
    "load_recipe": "recipe",
    "recipe_path": "toml_reader",
}
"""What is offered, and the module in which it lives."""

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
