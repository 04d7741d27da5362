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

from importlib import import_module

__version__ = "0.1.0"

_SUBPACKAGES = ("criticism", "datasets", "estimators", "exceptions", "features", "inference", "kernels", "losses")
_SUBPACKAGES += ("plotting", "recipes")
_NAMES = {
    "BayesSearchCV": "ovkgp.estimators",
    "ConstrainedORFF": "ovkgp.estimators",
    "GPRegressor": "ovkgp.estimators",
    "InfiniteCostSensitiveClassifier": "ovkgp.estimators",
    "InfiniteOneClassSVM": "ovkgp.estimators",
    "InfiniteQuantileRegressor": "ovkgp.estimators",
    "ManifoldRidge": "ovkgp.estimators",
    "ONORMA": "ovkgp.estimators",
    "ORFFRidge": "ovkgp.estimators",
    "OVKRidge": "ovkgp.estimators",
    "SimplexClassifier": "ovkgp.estimators",
    "VectorTaskRegressor": "ovkgp.estimators",
    "compare_kernels": "ovkgp.estimators",
    "load": "ovkgp.estimators",
    "load_recipe": "ovkgp.recipes",
    "to_long": "ovkgp.inference",
    "to_wide": "ovkgp.inference",
}
"""What is offered at the top, and where it lives."""

__all__ = ["__version__", *_NAMES, *_SUBPACKAGES]


def __getattr__(name: str):
    """Load a subpackage, or a name from one, at its first use (PEP 562)."""
    if name in _SUBPACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
