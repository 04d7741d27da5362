"""How does a scikit-learn user get it? Estimators whose predictions come with their uncertainty."""

from ovkgp.estimators.bayes_search import BayesSearchCV
from ovkgp.estimators.compare_kernels import compare_kernels
from ovkgp.estimators.constrained_orff import ConstrainedORFF
from ovkgp.estimators.gp_regressor import GPRegressor
from ovkgp.estimators.infinite_cost_sensitive_classifier import InfiniteCostSensitiveClassifier
from ovkgp.estimators.infinite_one_class_svm import InfiniteOneClassSVM
from ovkgp.estimators.infinite_quantile_regressor import InfiniteQuantileRegressor
from ovkgp.estimators.manifold_ridge import ManifoldRidge
from ovkgp.estimators.onorma import ONORMA
from ovkgp.estimators.orff_ridge import ORFFRidge
from ovkgp.estimators.ovk_ridge import OVKRidge
from ovkgp.estimators.simplex_classifier import SimplexClassifier
from ovkgp.estimators.storage import load
from ovkgp.estimators.vector_task_regressor import VectorTaskRegressor

__all__ = [
    "ONORMA",
    "BayesSearchCV",
    "ConstrainedORFF",
    "GPRegressor",
    "InfiniteCostSensitiveClassifier",
    "InfiniteOneClassSVM",
    "InfiniteQuantileRegressor",
    "ManifoldRidge",
    "ORFFRidge",
    "OVKRidge",
    "SimplexClassifier",
    "VectorTaskRegressor",
    "compare_kernels",
    "load",
]
