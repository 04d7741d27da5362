"""Tests of `ovkgp.recipes.schemas`."""

import inspect
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from ovkgp.exceptions import OptionError
from ovkgp.inference import sample_hyperparameters
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.ridge.solvers import SOLVERS
from ovkgp.inference.sampling.svi import GUIDES
from ovkgp.inference.tasks.solvers.square import NORMALISATIONS
from ovkgp.recipes import load_recipe
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
from ovkgp.recipes.schemas import SCHEMAS, Place, checked_document

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


START = """[recipe]
title = "mine"

[model]
estimator = "GPRegressor"
"""


def complaint(tmp_path, text, start=START):
    """The sentence about a file, without its folder."""
    path = tmp_path / "mine.toml"
    path.write_text(start + text, encoding="utf-8")
    with pytest.raises(OptionError) as caught:
        load_recipe(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}") and sentence.endswith(".") and "\n" not in sentence
    return sentence.removeprefix(f"{tmp_path}").lstrip("/\\")


OPTIONS = """
[model.options]
base_kernel = "rbf"
{}
"""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('rank = "two"', "rank must be a whole number, at least 1; got 'two'."),
        ("rank = 0", "rank must be a whole number, at least 1; got 0."),
        ("rank = true", "rank must be a whole number, at least 1; got True."),
        ("rank = 2.0", "rank must be a whole number, at least 1; got 2.0."),
        (
            'variance = "guraded"',
            "variance must be one of 'features', 'guarded'; got 'guraded' (did you mean 'guarded'?).",
        ),
        ('num_frequencies = "many"', "num_frequencies must be 'auto' or a whole number, at least 1; got 'many'."),
        ('training_rows = "some"', "training_rows must be a whole number, at least 1 or 'all'; got 'some'."),
        ("distributed = 1", "distributed must be true or false; got 1."),
        ("random_state = -1", "random_state must be a whole number from 0 to 2³² − 1 or 'none'; got -1."),
        ("verbose = 1979-05-27", "verbose must be 0 or 1; got datetime.date(1979, 5, 27)."),
        (
            "noise = -1.0",
            "noise must be 'shared', 'per_output', 'full', a positive number, a list of positive numbers or a list of rows of "
            "numbers; got -1.0.",
        ),
    ],
)
def test_a_wrong_value_is_answered_by_what_is_allowed(tmp_path, line, sentence):
    assert complaint(tmp_path, OPTIONS.format(line)) == f"mine.toml, line 9: {sentence}"


def test_numbers_that_are_none(tmp_path):
    for number in ("inf", "nan"):
        assert "a positive number" in complaint(tmp_path, OPTIONS.format(f"noise = {number}"))


def test_a_misspelt_option(tmp_path):
    sentence = complaint(tmp_path, OPTIONS.format("rnak = 2"))
    start = "mine.toml, line 9: 'rnak' is not an option of GPRegressor (did you mean 'rank'?); there are kernel, base_kernel, rank, "
    assert sentence.startswith(start)


def test_the_first_line_that_is_wrong_comes_first(tmp_path):
    text = OPTIONS.format('variance = 3\nnoise = "no"\nkernel = "x"\nzzz = 1')
    assert complaint(tmp_path, text).startswith("mine.toml, line 9: variance ")


def test_a_misspelt_estimator(tmp_path):
    start = '[model]\nestimator = "GPRegresor"\n'
    sentence = complaint(tmp_path, "", start)
    assert sentence.startswith(
        "mine.toml, line 2: estimator must be one of GPRegressor, InfiniteCostSensitiveClassifier"
    )
    assert sentence.endswith("got 'GPRegresor' (did you mean 'GPRegressor'?).")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "mine.toml: model is missing; it must be a table with estimator, options, graph."),
        ("[model]", "mine.toml, line 1: estimator is missing; it must be a text in quotes."),
        ("model = 3", "mine.toml, line 1: model must be a table with estimator, options, graph; got 3."),
        ("[[model]]", "mine.toml, line 1: model must be a table with estimator, options, graph; got [{}]."),
        (
            "[modle]\n[model]\nestimator = 'OVKRidge'",
            "mine.toml, line 1: 'modle' is not a table or key of a recipe (did you mean 'model'?); there are recipe, model.",
        ),
        (
            "[model]\nestimator = 'OVKRidge'\noption = {}",
            "mine.toml, line 3: 'option' is not a key of model (did you mean 'options'?); there are estimator, options, graph.",
        ),
        (
            "[model]\nestimator = 'OVKRidge'\noptions = 'many'",
            "mine.toml, line 3: options must be a table; got 'many'.",
        ),
        (
            "[recipe]\ntitle = 3\n[model]\nestimator = 'OVKRidge'",
            "mine.toml, line 2: title must be a text in quotes; got 3.",
        ),
        (
            "[model]\nestimator = 'OVKRidge'\n[model.graph]\nedges = 'chain'",
            "mine.toml, line 3: a graph between outputs is for GPRegressor, not for OVKRidge.",
        ),
    ],
)
def test_tables_that_are_missing_or_wrong(tmp_path, text, sentence):
    assert complaint(tmp_path, text, start="") == sentence


def test_an_entry_of_a_long_array_has_its_own_line(tmp_path):
    start = '[model]\nestimator = "VectorTaskRegressor"\n[model.options]\ntasks = [\n  [0, 0],\n  [0, "one"],\n]\n'
    sentence = complaint(tmp_path, "", start)
    assert sentence.startswith(
        "mine.toml, line 6: tasks must be a list of numbers, a list of rows of numbers or 'none'; got [["
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "drawz = 3",
            "'drawz' is not a key of sampling (did you mean 'draws'?); there are draws, tune, chains, guide, batch_size, "
            "target_accept, prior_draws, log_likelihood, posterior_predictive, max_draws.",
        ),
        ("draws = 0", "draws must be a whole number, at least 1; got 0."),
        ("target_accept = 1.0", "target_accept must be a number between 0 and 1; got 1.0."),
    ],
)
def test_a_table_within_the_options(tmp_path, text, sentence):
    table = f"[model.options]\nhyperparameters = 'nuts'\n[model.options.sampling]\n{text}"
    assert complaint(tmp_path, table) == f"mine.toml, line 9: {sentence}"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("[model.options]\nrank = 2\nsampling = {draws = 3}", 8, "sampling is for hyperparameters = 'laplace'"),
        ("[model.options]\nlikelihood = 'poisson'\napproximation = 'exact'", 8, "approximation = 'exact' is for the"),
        (
            "[model.options]\nrank = 2\n[model.graph]\nedges = 'chain'\nridge = 0.1",
            7,
            "rank cannot be set beside a graph",
        ),
        (
            "[model.options]\nkernel = 'lmc'\n[model.graph]\nedges = 'chain'\nridge = 1",
            7,
            "kernel cannot be set beside",
        ),
        ("[model.graph]\nedges = 'chain'", 6, "give mean_variance or ridge, one of the two"),
        (
            "[model.graph]\nedges = 'chain'\nridge = 1\nmean_variance = 1",
            8,
            "give mean_variance or ridge, one of the two",
        ),
        ("[model.graph]\nridge = 1", 6, "edges is missing; it must be 'chain', 'complete' or a list of edges"),
        ("[model.graph]\nridge = 1\nedges = [\n['a'],\n]", 9, "edges must be 'chain', 'complete' or a list of edges"),
        ("[model.graph]\nridge = 1\nedges = [['a', 'b', -1]]", 8, "edges must be"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, text, line, part):
    assert complaint(tmp_path, text).startswith(f"mine.toml, line {line}: {part}")


def test_likelihoods_of_columns(tmp_path):
    table = "[model.options]\n[model.options.likelihood]\nvisits = 'poisson'\nprice = 'cauchy'"
    sentence = complaint(tmp_path, table)
    assert sentence.startswith("mine.toml, line 9: likelihood must be 'gaussian', 'student_t', ")
    assert sentence.endswith("got {'price': 'cauchy', 'visits': 'poisson'}.")


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.just("none")
TREES = st.recursive(
    LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3)
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_value_of_any_option_is_taken_or_refused_in_one_sentence(data):
    name = data.draw(st.sampled_from(sorted(SCHEMAS)))
    options = st.sampled_from(sorted(SCHEMAS[name].model_fields)) | st.text(max_size=5)
    model = {"estimator": name, "options": data.draw(st.dictionaries(options, TREES, max_size=2) | TREES)}
    if data.draw(st.booleans()):
        keys = st.sampled_from(["edges", "ridge", "mean_variance", "x"])
        model["graph"] = data.draw(st.dictionaries(keys, TREES, max_size=3) | TREES)
    try:
        checked_document({"model": model}, Place("mine.toml"))
    except OptionError as error:
        assert str(error).startswith("mine.toml: ") and str(error).endswith(".")
