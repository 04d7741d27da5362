"""Tests of `ovkgp.recipes.schemas`."""

import inspect
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import ovkgp
from ovkgp.estimators.common import named_kernels, options, task_options
from ovkgp.estimators.common.named_kernels import RIDGE_KERNELS
from ovkgp.estimators.quantiles import options as quantile_options
from ovkgp.estimators.regression.hyperparameters import MIXTURE_DRAWS, sampler_options
from ovkgp.estimators.ridge import base as ridge_base
from ovkgp.estimators.ridge import simplex_classifier
from ovkgp.estimators.tasks import cost_sensitive, one_class, vector_tasks
from ovkgp.exceptions import OptionError
from ovkgp.inference import sample_hyperparameters
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.ridge.solvers import SOLVERS
from ovkgp.inference.sampling.svi import GUIDES
from ovkgp.inference.tasks.solvers.square import NORMALIZATIONS
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
    allowed_strings,
)
from ovkgp.recipes.schemas import SCHEMAS, SourceLocation, validate_document

OBJECTS = {"feature_extractor", "extractor_epochs", "extractor_rate"}
"""Options that refer to a torch module, which TOML cannot express."""
TASK_KERNELS = tuple(task_options.TASK_KERNELS)
ALL_CONVENTIONS = tuple(options.CONVENTIONS)
EXACT_SOLVERS = tuple(solver for solver in SOLVERS if solver != "doubly_sgd")


def constructor(name):
    parameters = inspect.signature(getattr(ovkgp, name).__init__).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name != "self"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_equals_constructor_defaults(name):
    schema = {name: field.default for name, field in SCHEMAS[name].model_fields.items()}
    expected = {name: value for name, value in constructor(name).items() if name not in OBJECTS}
    assert schema == expected


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_accepts_defaults(name):
    schema = SCHEMAS[name]
    defaults = {name: field.default for name, field in schema.model_fields.items()}
    assert schema.model_validate(defaults).model_dump() == defaults


def test_sampling_schema_equals_sampler_options():
    defaults = inspect.signature(sample_hyperparameters).parameters
    expected = {name: defaults[name].default for name in sampler_options()} | {"max_draws": MIXTURE_DRAWS}
    assert {name: field.default for name, field in Sampling.model_fields.items()} == expected


@pytest.mark.parametrize(
    ("schema", "option", "allowed"),
    [
        (GPOptions, "kernel", ("auto", *named_kernels.STRUCTURES)),
        (GPOptions, "base_kernel", named_kernels.BASES),
        (GPOptions, "approximation", options.APPROXIMATIONS),
        (GPOptions, "hyperparameters", options.HYPERPARAMETERS),
        (GPOptions, "variance", VARIANCES),
        (GPOptions, "likelihood", (*LIKELIHOODS, "by_values")),
        (Sampling, "guide", GUIDES),
        (OVKRidgeOptions, "kernel", RIDGE_KERNELS),
        (OVKRidgeOptions, "base_kernel", named_kernels.BASES),
        (OVKRidgeOptions, "convention", ALL_CONVENTIONS),
        (OVKRidgeOptions, "solver", EXACT_SOLVERS),
        (OVKRidgeOptions, "selection", ridge_base.SELECTIONS),
        (OVKRidgeOptions, "scale", ridge_base.SCALES),
        (ORFFRidgeOptions, "solver", SOLVERS),
        (ORFFRidgeOptions, "variance", VARIANCES),
        (SimplexOptions, "coding", simplex_classifier.CODINGS),
        (SimplexOptions, "convention", ALL_CONVENTIONS),
        (SimplexOptions, "base_kernel", named_kernels.BASES),
        (SimplexOptions, "solver", EXACT_SOLVERS),
        (QuantileOptions, "kernel", TASK_KERNELS),
        (QuantileOptions, "task_kernel", TASK_KERNELS),
        (QuantileOptions, "trend", ("auto", *quantile_options.TRENDS)),
        (QuantileOptions, "convention", task_options.TASK_CONVENTIONS),
        (QuantileOptions, "coupling", quantile_options.COUPLINGS),
        (QuantileOptions, "measure", task_options.MEASURES),
        (QuantileOptions, "loss", quantile_options.LOSSES),
        (QuantileOptions, "noncrossing", quantile_options.NONCROSSING),
        (QuantileOptions, "uncertainty", quantile_options.UNCERTAINTIES),
        (QuantileOptions, "prior_mean", quantile_options.PRIOR_MEANS),
        (CostOptions, "costs", cost_sensitive.ENDS),
        (CostOptions, "kernel", TASK_KERNELS),
        (CostOptions, "task_kernel", TASK_KERNELS),
        (CostOptions, "convention", task_options.TASK_CONVENTIONS),
        (CostOptions, "coupling", cost_sensitive.COUPLINGS),
        (CostOptions, "measure", task_options.MEASURES),
        (LevelSetOptions, "kernel", TASK_KERNELS),
        (LevelSetOptions, "task_kernel", TASK_KERNELS),
        (LevelSetOptions, "threshold_kernel", TASK_KERNELS),
        (LevelSetOptions, "lengthscale", one_class.KERNELS["kernel"]),
        (LevelSetOptions, "task_lengthscale", one_class.KERNELS["task_kernel"]),
        (LevelSetOptions, "density", one_class.DENSITIES),
        (LevelSetOptions, "measure", task_options.MEASURES),
        (VectorTaskOptions, "kernel", TASK_KERNELS),
        (VectorTaskOptions, "task_kernel", TASK_KERNELS),
        (VectorTaskOptions, "convention", ALL_CONVENTIONS),
        (VectorTaskOptions, "normalization", NORMALIZATIONS),
        (VectorTaskOptions, "scale", vector_tasks.SCALES),
        (VectorTaskOptions, "hyperparameters", vector_tasks.LEARNING),
    ],
)
def test_allowed_strings_equal_those_of_library(schema, option, allowed):
    assert set(allowed_strings(schema.model_fields[option])) == set(allowed)


def test_single_output_likelihoods_exclude_softmax():
    assert get_origin(OneLikelihood) is Literal
    assert {*get_args(OneLikelihood), "softmax"} == set(LIKELIHOODS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_rejects_unknown_options(name):
    with pytest.raises(ValidationError):
        SCHEMAS[name].model_validate({"unknown": 1})


START = """[recipe]
title = "mine"

[model]
estimator = "GPRegressor"
"""


def error_message(tmp_path, text, start=START):
    """Return the error about a file, without its folder."""
    path = tmp_path / "mine.toml"
    path.write_text(start + text, encoding="utf-8")
    with pytest.raises(OptionError) as caught:
        load_recipe(path)
    message = str(caught.value)
    assert message.startswith(f"{path}") and message.endswith(".") and "\n" not in message
    return message.removeprefix(f"{tmp_path}").lstrip("/\\")


OPTIONS = """
[model.options]
base_kernel = "rbf"
{}
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('rank = "two"', "rank must be an integer of at least 1, got 'two'."),
        ("rank = 0", "rank must be an integer of at least 1, got 0."),
        ("rank = true", "rank must be an integer of at least 1, got True."),
        ("rank = 2.0", "rank must be an integer of at least 1, got 2.0."),
        (
            'variance = "guraded"',
            "variance must be one of 'features', 'guarded', got 'guraded' (did you mean 'guarded'?).",
        ),
        ('num_frequencies = "many"', "num_frequencies must be 'auto' or an integer of at least 1, got 'many'."),
        ('training_rows = "some"', "training_rows must be an integer of at least 1 or 'all', got 'some'."),
        ("distributed = 1", "distributed must be true or false, got 1."),
        ("random_state = -1", "random_state must be an integer from 0 to 2³² − 1 or 'none', got -1."),
        ("verbose = 1979-05-27", "verbose must be 0 or 1, got datetime.date(1979, 5, 27)."),
        (
            "noise = -1.0",
            "noise must be 'shared', 'per_output', 'full', a positive number, a list of positive numbers or a list of rows of "
            "numbers, got -1.0.",
        ),
    ],
)
def test_invalid_value_error_names_allowed_values(tmp_path, line, message):
    assert error_message(tmp_path, OPTIONS.format(line)) == f"mine.toml, line 9: {message}"


def test_infinite_numbers_are_rejected(tmp_path):
    for number in ("inf", "nan"):
        assert "a positive number" in error_message(tmp_path, OPTIONS.format(f"noise = {number}"))


def test_misspelled_option_error_suggests_name(tmp_path):
    message = error_message(tmp_path, OPTIONS.format("rnak = 2"))
    expected = "mine.toml, line 9: 'rnak' is not an option of GPRegressor (did you mean 'rank'?). Allowed are kernel, base_kernel, rank, "
    assert message.startswith(expected)


def test_first_invalid_line_is_reported(tmp_path):
    text = OPTIONS.format('variance = 3\nnoise = "no"\nkernel = "x"\nzzz = 1')
    assert error_message(tmp_path, text).startswith("mine.toml, line 9: variance ")


def test_misspelled_estimator_error_suggests_name(tmp_path):
    start = '[model]\nestimator = "GPRegresor"\n'
    message = error_message(tmp_path, "", start)
    assert message.startswith(
        "mine.toml, line 2: estimator must be one of GPRegressor, InfiniteCostSensitiveClassifier"
    )
    assert message.endswith("got 'GPRegresor' (did you mean 'GPRegressor'?).")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.toml: model is missing; it must be a table with estimator, options, graph."),
        ("[model]", "mine.toml, line 1: estimator is missing; it must be a string in quotes."),
        ("model = 3", "mine.toml, line 1: model must be a table with estimator, options, graph, got 3."),
        ("[[model]]", "mine.toml, line 1: model must be a table with estimator, options, graph, got [{}]."),
        (
            "[modle]\n[model]\nestimator = 'OVKRidge'",
            "mine.toml, line 1: 'modle' is not a table or key of a recipe (did you mean 'model'?). Allowed are recipe, model.",
        ),
        (
            "[model]\nestimator = 'OVKRidge'\noption = {}",
            "mine.toml, line 3: 'option' is not a key of model (did you mean 'options'?). Allowed are estimator, options, graph.",
        ),
        (
            "[model]\nestimator = 'OVKRidge'\noptions = 'many'",
            "mine.toml, line 3: options must be a table, got 'many'.",
        ),
        (
            "[recipe]\ntitle = 3\n[model]\nestimator = 'OVKRidge'",
            "mine.toml, line 2: title must be a string in quotes, got 3.",
        ),
        (
            "[model]\nestimator = 'OVKRidge'\n[model.graph]\nedges = 'chain'",
            "mine.toml, line 3: graph is only supported by GPRegressor, not by OVKRidge.",
        ),
    ],
)
def test_missing_or_invalid_tables_are_rejected(tmp_path, text, message):
    assert error_message(tmp_path, text, start="") == message


def test_array_entry_error_names_its_line(tmp_path):
    start = '[model]\nestimator = "VectorTaskRegressor"\n[model.options]\ntasks = [\n  [0, 0],\n  [0, "one"],\n]\n'
    message = error_message(tmp_path, "", start)
    assert message.startswith(
        "mine.toml, line 6: tasks must be a list of numbers, a list of rows of numbers or 'none', got [["
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "drawz = 3",
            "'drawz' is not a key of sampling (did you mean 'draws'?). Allowed are draws, tune, chains, guide, batch_size, "
            "target_accept, prior_draws, log_likelihood, posterior_predictive, max_draws.",
        ),
        ("draws = 0", "draws must be an integer of at least 1, got 0."),
        ("target_accept = 1.0", "target_accept must be a number between 0 and 1, got 1.0."),
    ],
)
def test_nested_table_is_validated(tmp_path, text, message):
    table = f"[model.options]\nhyperparameters = 'nuts'\n[model.options.sampling]\n{text}"
    assert error_message(tmp_path, table) == f"mine.toml, line 9: {message}"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("[model.options]\nrank = 2\nsampling = {draws = 3}", 8, "sampling must be 'none' unless hyperparameters"),
        ("[model.options]\nlikelihood = 'poisson'\napproximation = 'exact'", 8, "approximation must be 'auto'"),
        (
            "[model.options]\nrank = 2\n[model.graph]\nedges = 'chain'\nridge = 0.1",
            7,
            "rank is not supported with a graph",
        ),
        (
            "[model.options]\nkernel = 'lmc'\n[model.graph]\nedges = 'chain'\nridge = 1",
            7,
            "kernel is not supported with a graph",
        ),
        ("[model.graph]\nedges = 'chain'", 6, "exactly one of mean_variance and ridge"),
        ("[model.graph]\nedges = 'chain'\nridge = 1\nmean_variance = 1", 8, "exactly one of mean_variance and ridge"),
        ("[model.graph]\nridge = 1", 6, "edges is missing; it must be 'chain', 'complete' or a list of edges"),
        ("[model.graph]\nridge = 1\nedges = [\n['a'],\n]", 9, "edges must be 'chain', 'complete' or a list of edges"),
        ("[model.graph]\nridge = 1\nedges = [['a', 'b', -1]]", 8, "edges must be"),
    ],
)
def test_incompatible_options_are_rejected(tmp_path, text, line, part):
    assert error_message(tmp_path, text).startswith(f"mine.toml, line {line}: {part}")


def test_likelihood_table_is_validated(tmp_path):
    table = "[model.options]\n[model.options.likelihood]\nvisits = 'poisson'\nprice = 'cauchy'"
    message = error_message(tmp_path, table)
    assert message.startswith("mine.toml, line 9: likelihood must be 'gaussian', 'student_t', ")
    assert message.endswith("got {'price': 'cauchy', 'visits': 'poisson'}.")


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.just("none")
TREES = st.recursive(
    LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3)
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_value_is_accepted_or_rejected_in_one_line(data):
    name = data.draw(st.sampled_from(sorted(SCHEMAS)))
    options = st.sampled_from(sorted(SCHEMAS[name].model_fields)) | st.text(max_size=5)
    model = {"estimator": name, "options": data.draw(st.dictionaries(options, TREES, max_size=2) | TREES)}
    if data.draw(st.booleans()):
        keys = st.sampled_from(["edges", "ridge", "mean_variance", "x"])
        model["graph"] = data.draw(st.dictionaries(keys, TREES, max_size=3) | TREES)
    try:
        validate_document({"model": model}, SourceLocation("mine.toml"))
    except OptionError as error:
        assert str(error).startswith("mine.toml: ") and str(error).endswith(".")
