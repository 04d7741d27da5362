"""Ready-made models: recipes in TOML that are read and built into estimators, which check the options.

`load_recipe("vector_field")` loads a recipe of the package (see `list_recipes`), `load_recipe("mine.toml")` a custom file.
Only `build` and `fit` load torch.

Examples
--------
>>> from ovkgp.recipes import list_recipes, load_recipe
>>> "vector_field" in list_recipes()
True
>>> load_recipe("vector_field").estimator
'GPRegressor'
"""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
