"""The schemas of recipes say what the estimators say: the same options, the same defaults, the same words."""

import inspect
from typing import Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

import ovkgp
from ovkgp.estimators.common import named_kernels as structures
from ovkgp.estimators.common import options, task_options
from ovkgp.estimators.common import options as conventions
from ovkgp.estimators.common.named_kernels import RIDGE_KERNELS
from ovkgp.estimators.quantiles import options as quantile_options
from ovkgp.estimators.regression.hyperparameters import MIXTURE_DRAWS, sampler_options
from ovkgp.estimators.ridge import base as ridge
from ovkgp.estimators.ridge import simplex_classifier
from ovkgp.estimators.tasks import cost_sensitive as infinite_cost_sensitive_classifier
from ovkgp.estimators.tasks import cost_sensitive as infinite_cost_sensitive_classifier_costs
from ovkgp.estimators.tasks import one_class as infinite_one_class_svm
from ovkgp.estimators.tasks import vector_tasks as vector_task_regressor
from ovkgp.inference import sample_hyperparameters
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.ridge.solvers import SOLVERS
from ovkgp.inference.sampling.svi import GUIDES
from ovkgp.inference.tasks.solvers.square import NORMALISATIONS
from ovkgp.recipes.options import (
    CostOptions,
    GPOptions,
    LevelSetOptions,
    OneLikelihood,
    ORFFRidgeOptions,
    OVKRidgeOptions,
    QuantileOptions,
    Sampling,
    SimplexOptions,
    VectorTaskOptions,
    allowed_words,
)
from ovkgp.recipes.schemas import SCHEMAS

OBJECTS = {"feature_extractor", "extractor_epochs", "extractor_rate"}
"""Options that speak of a torch module, which no file can hold."""
TASK_KERNELS = tuple(task_options.TASK_KERNELS)
ALL_CONVENTIONS = tuple(conventions.CONVENTIONS)
EXACT_SOLVERS = tuple(solver for solver in SOLVERS if solver != "doubly_sgd")


def constructor(name):
    parameters = inspect.signature(getattr(ovkgp, name).__init__).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name != "self"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_options_and_defaults_are_those_of_the_constructor(name):
    schema = {name: field.default for name, field in SCHEMAS[name].model_fields.items()}
    expected = {name: value for name, value in constructor(name).items() if name not in OBJECTS}
    assert schema == expected


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_defaults_are_allowed(name):
    schema = SCHEMAS[name]
    defaults = {name: field.default for name, field in schema.model_fields.items()}
    assert schema.model_validate(defaults).model_dump() == defaults


def test_the_sampler_has_these_options():
    defaults = inspect.signature(sample_hyperparameters).parameters
    expected = {name: defaults[name].default for name in sampler_options()} | {"max_draws": MIXTURE_DRAWS}
    assert {name: field.default for name, field in Sampling.model_fields.items()} == expected


@pytest.mark.parametrize(
    ("schema", "option", "words"),
    [
        (GPOptions, "kernel", ("auto", *structures.STRUCTURES)),
        (GPOptions, "base_kernel", structures.BASES),
        (GPOptions, "approximation", options.APPROXIMATIONS),
        (GPOptions, "hyperparameters", options.HYPERPARAMETERS),
        (GPOptions, "variance", VARIANCES),
        (GPOptions, "likelihood", (*LIKELIHOODS, "by_values")),
        (Sampling, "guide", GUIDES),
        (OVKRidgeOptions, "kernel", RIDGE_KERNELS),
        (OVKRidgeOptions, "base_kernel", structures.BASES),
        (OVKRidgeOptions, "convention", ALL_CONVENTIONS),
        (OVKRidgeOptions, "solver", EXACT_SOLVERS),
        (OVKRidgeOptions, "selection", ridge.SELECTIONS),
        (OVKRidgeOptions, "scale", ridge.SCALES),
        (ORFFRidgeOptions, "solver", SOLVERS),
        (ORFFRidgeOptions, "variance", VARIANCES),
        (SimplexOptions, "coding", simplex_classifier.CODINGS),
        (SimplexOptions, "convention", ALL_CONVENTIONS),
        (SimplexOptions, "base_kernel", structures.BASES),
        (SimplexOptions, "solver", EXACT_SOLVERS),
        (QuantileOptions, "kernel", TASK_KERNELS),
        (QuantileOptions, "task_kernel", TASK_KERNELS),
        (QuantileOptions, "trend", ("auto", *quantile_options.TRENDS)),
        (QuantileOptions, "convention", quantile_options.CONVENTIONS),
        (QuantileOptions, "coupling", quantile_options.COUPLINGS),
        (QuantileOptions, "measure", task_options.MEASURES),
        (QuantileOptions, "loss", quantile_options.LOSSES),
        (QuantileOptions, "noncrossing", quantile_options.NONCROSSING),
        (QuantileOptions, "uncertainty", quantile_options.UNCERTAINTIES),
        (QuantileOptions, "prior_mean", quantile_options.PRIOR_MEANS),
        (CostOptions, "costs", infinite_cost_sensitive_classifier_costs.ENDS),
        (CostOptions, "kernel", TASK_KERNELS),
        (CostOptions, "task_kernel", TASK_KERNELS),
        (CostOptions, "convention", quantile_options.CONVENTIONS),
        (CostOptions, "coupling", infinite_cost_sensitive_classifier.COUPLINGS),
        (CostOptions, "measure", task_options.MEASURES),
        (LevelSetOptions, "kernel", TASK_KERNELS),
        (LevelSetOptions, "task_kernel", TASK_KERNELS),
        (LevelSetOptions, "threshold_kernel", TASK_KERNELS),
        (LevelSetOptions, "lengthscale", infinite_one_class_svm.KERNELS["kernel"]),
        (LevelSetOptions, "task_lengthscale", infinite_one_class_svm.KERNELS["task_kernel"]),
        (LevelSetOptions, "density", infinite_one_class_svm.DENSITIES),
        (LevelSetOptions, "measure", task_options.MEASURES),
        (VectorTaskOptions, "kernel", TASK_KERNELS),
        (VectorTaskOptions, "task_kernel", TASK_KERNELS),
        (VectorTaskOptions, "convention", ALL_CONVENTIONS),
        (VectorTaskOptions, "normalisation", NORMALISATIONS),
        (VectorTaskOptions, "scale", vector_task_regressor.SCALES),
        (VectorTaskOptions, "hyperparameters", vector_task_regressor.LEARNING),
    ],
)
def test_words_are_those_of_the_library(schema, option, words):
    assert set(allowed_words(schema.model_fields[option])) == set(words)


def test_a_single_output_may_have_any_likelihood_but_softmax():
    assert get_origin(OneLikelihood) is Literal
    assert {*get_args(OneLikelihood), "softmax"} == set(LIKELIHOODS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_refuse_what_they_do_not_know(name):
    with pytest.raises(ValidationError):
        SCHEMAS[name].model_validate({"unknown": 1})
