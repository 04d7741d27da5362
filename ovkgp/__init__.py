"""Gaussian processes with operator-valued kernels.

``ovkgp.GPRegressor`` is the door for scikit-learn users, and ``ovkgp.load_recipe`` takes a ready model.
``ovkgp.plotting`` draws what they find. ``ovkgp.kernels`` holds the covariances, ``ovkgp.features`` their
random features, ``ovkgp.inference`` evidence and posteriors, and ``ovkgp.exceptions`` the errors raised on purpose. Each is loaded when it is first used:
``import ovkgp`` alone loads neither torch nor matplotlib. Codes such as BT-27 in the docstrings
point to the literature: see ``docs/references.md``.

Example:
    >>> import ovkgp
    >>> ovkgp.exceptions.InputError.__name__
    'InputError'
"""

from __future__ import annotations

from ovkgp.lazy import lazy_names

__version__ = "0.1.0"

_SUBPACKAGES = ("criticism", "datasets", "estimators", "exceptions", "features", "inference", "kernels", "losses")
_SUBPACKAGES += ("plotting", "recipes")
_NAMES = {
    "BayesSearchCV": "estimators",
    "ConstrainedORFF": "estimators",
    "GPRegressor": "estimators",
    "InfiniteCostSensitiveClassifier": "estimators",
    "InfiniteOneClassSVM": "estimators",
    "InfiniteQuantileRegressor": "estimators",
    "ManifoldRidge": "estimators",
    "ONORMA": "estimators",
    "ORFFRidge": "estimators",
    "OVKRidge": "estimators",
    "SimplexClassifier": "estimators",
    "VectorTaskRegressor": "estimators",
    "compare_kernels": "estimators",
    "load": "estimators",
    "load_recipe": "recipes",
    "to_long": "inference",
    "to_wide": "inference",
}
"""What is offered at the top, and where it lives."""

__all__ = ["__version__", *_NAMES, *_SUBPACKAGES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES, _SUBPACKAGES)
