"""Estimators with a scikit-learn interface, whose predictions have uncertainties."""

from __future__ import annotations

from ovkgp.estimators.detection.kernel_pca import KernelPCADetector
from ovkgp.estimators.detection.one_class_forest import OneClassForest
from ovkgp.estimators.detection.random_projection import RandomProjectionDetector
from ovkgp.estimators.detection.roth import roth_distance
from ovkgp.estimators.functional.feature_projection import FeatureProjectionRegressor
from ovkgp.estimators.functional.function_gp import FunctionGPRegressor
from ovkgp.estimators.functional.functional_linear import FunctionalLinearRegressor
from ovkgp.estimators.functional.functional_ridge import FunctionalRidge
from ovkgp.estimators.functional.kernel_curve import KernelCurveRegressor
from ovkgp.estimators.functional.kernel_projection import KernelProjectionRegressor
from ovkgp.estimators.functional.robust import RobustFunctionalRegressor
from ovkgp.estimators.functional.triple_basis import KernelAdditiveRegressor, TripleBasisRegressor
from ovkgp.estimators.quantiles.regressor import InfiniteQuantileRegressor
from ovkgp.estimators.regression.gp_regressor import GPRegressor
from ovkgp.estimators.ridge.constrained_orff import ConstrainedORFF
from ovkgp.estimators.ridge.manifold_ridge import ManifoldRidge
from ovkgp.estimators.ridge.onorma import ONORMA
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.ridge.simplex_classifier import SimplexClassifier
from ovkgp.estimators.selection.bayes_search import BayesSearchCV
from ovkgp.estimators.selection.compare_kernels import compare_kernels
from ovkgp.estimators.storage.storage import load
from ovkgp.estimators.tasks.cost_sensitive import InfiniteCostSensitiveClassifier
from ovkgp.estimators.tasks.one_class import InfiniteOneClassSVM
from ovkgp.estimators.tasks.vector_tasks import VectorTaskRegressor

__all__ = [
    "ONORMA",
    "BayesSearchCV",
    "ConstrainedORFF",
    "FeatureProjectionRegressor",
    "FunctionGPRegressor",
    "FunctionalLinearRegressor",
    "FunctionalRidge",
    "GPRegressor",
    "InfiniteCostSensitiveClassifier",
    "InfiniteOneClassSVM",
    "InfiniteQuantileRegressor",
    "KernelAdditiveRegressor",
    "KernelCurveRegressor",
    "KernelPCADetector",
    "KernelProjectionRegressor",
    "ManifoldRidge",
    "ORFFRidge",
    "OVKRidge",
    "OneClassForest",
    "RandomProjectionDetector",
    "RobustFunctionalRegressor",
    "SimplexClassifier",
    "TripleBasisRegressor",
    "VectorTaskRegressor",
    "compare_kernels",
    "load",
    "roth_distance",
]
