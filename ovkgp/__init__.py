"""Gaussian processes with operator-valued kernels.

scikit-learn users start with ``ovkgp.GPRegressor``, or with a predefined model from ``ovkgp.load_recipe``.
``ovkgp.plotting`` draws predictions, ``ovkgp.kernels`` holds the covariances, ``ovkgp.features`` their random features,
``ovkgp.inference`` evidence and posteriors, ``ovkgp.metrics`` scores, and ``ovkgp.exceptions`` the errors. Subpackages are loaded at their first
use: ``import ovkgp`` alone loads neither torch nor matplotlib. Codes such as BT-27 in the docstrings refer to the
literature, see ``docs/references.md``.

Examples
--------
>>> import ovkgp
>>> ovkgp.exceptions.InputError.__name__
'InputError'
"""

from __future__ import annotations

from ovkgp.lazy import lazy_names, silence_gpytorch_import

__version__ = "0.1.0"

silence_gpytorch_import()

_SUBPACKAGES = ("criticism", "datasets", "estimators", "exceptions", "features", "functional", "inference", "kernels")
_SUBPACKAGES += ("losses", "metrics", "plotting", "recipes")
_NAMES = {  # Top-level names and the subpackages that define them
    "BayesSearchCV": "estimators",
    "ConstrainedORFF": "estimators",
    "FeatureProjectionRegressor": "estimators",
    "FunctionalData": "functional",
    "FunctionalLinearRegressor": "estimators",
    "FunctionalRidge": "estimators",
    "FunctionGPRegressor": "estimators",
    "GPRegressor": "estimators",
    "InfiniteCostSensitiveClassifier": "estimators",
    "InfiniteOneClassSVM": "estimators",
    "InfiniteQuantileRegressor": "estimators",
    "KernelAdditiveRegressor": "estimators",
    "KernelCurveRegressor": "estimators",
    "KernelPCADetector": "estimators",
    "KernelProjectionRegressor": "estimators",
    "ManifoldRidge": "estimators",
    "ONORMA": "estimators",
    "OneClassForest": "estimators",
    "ORFFRidge": "estimators",
    "OVKRidge": "estimators",
    "RandomProjectionDetector": "estimators",
    "RobustFunctionalRegressor": "estimators",
    "SimplexClassifier": "estimators",
    "TripleBasisRegressor": "estimators",
    "VectorTaskRegressor": "estimators",
    "compare_kernels": "estimators",
    "load": "estimators",
    "load_recipe": "recipes",
    "roth_distance": "estimators",
    "to_long": "inference",
    "to_wide": "inference",
}

__all__ = ["__version__", *_NAMES, *_SUBPACKAGES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES, _SUBPACKAGES)
