"""Tests of `ovkgp.recipes.schemas`, and of errors about options, which name the line in the file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovkgp
from ovkgp import estimators
from ovkgp.exceptions import OptionError
from ovkgp.recipes import Recipe, load_recipe
from ovkgp.recipes.schemas import SourceLocation, replace_none_strings, validate_document

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
        load_recipe(path).check_options()
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
        ('training_rows = "some"', "training_rows must be an integer of at least 1 or 'none', got 'some'."),
        ("distributed = 1", "distributed must be a boolean, got 1."),
        (
            "random_state = -1",
            "random_state must be an integer of at least 0 and at most 4294967295, a RandomState, a Generator or 'none', got -1.",
        ),
        (
            "verbose = 1979-05-27",
            "verbose must be an integer of at least 0 or a boolean, got datetime.date(1979, 5, 27).",
        ),
        (
            "noise = -1.0",
            "noise must be one of 'shared', 'per_output', 'full', a positive number or an array, got -1.0.",
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
    expected = "mine.toml, line 9: 'rnak' is not an option of GPRegressor (did you mean 'rank'?). Allowed are approximation, base_kernel, "
    assert message.startswith(expected)


def test_first_invalid_line_of_the_tables_is_reported(tmp_path):
    text = "[model]\nestimators = 'OVKRidge'\nestimator = 3\n[recipe]\ntitle = 4"
    assert error_message(tmp_path, text, start="").startswith("mine.toml, line 2: 'estimators' is not a key of model ")


def test_misspelled_estimator_error_suggests_name(tmp_path):
    start = '[model]\nestimator = "GPRegresor"\n'
    message = error_message(tmp_path, "", start)
    assert message.startswith("mine.toml, line 2: estimator must be one of ConstrainedORFF, ")
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
            "mine.toml, line 1: 'modle' is not a key of a recipe (did you mean 'model'?). Allowed are recipe, model.",
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "drawz = 3",
            "sampling must have options among draws, tune, chains, guide, batch_size, target_accept, prior_draws, "
            "log_likelihood, posterior_predictive, max_draws, got 'drawz' (did you mean 'draws'?).",
        ),
        ("draws = 0", "draws must be an integer of at least 1, got 0."),
        ("target_accept = 1.0", "target_accept must be a number between 0 and 1, got 1.0."),
    ],
)
def test_nested_table_is_validated(tmp_path, text, message):
    table = f"[model.options]\nhyperparameters = 'nuts'\n[model.options.sampling]\n{text}"
    line = 8 if message.startswith("sampling") else 9
    assert error_message(tmp_path, table) == f"mine.toml, line {line}: {message}"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (
            "[model.options]\nrank = 2\nsampling = {draws = 3}",
            8,
            "sampling is not supported with hyperparameters='auto'",
        ),
        (
            "[model.options]\nlikelihood = 'poisson'\napproximation = 'exact'",
            8,
            "approximation='exact' is not supported with a 'poisson' likelihood",
        ),
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
        (
            "[model.options]\nhyperparameters = 'svi'\nsampling = {draws = 0}",
            8,
            "draws must be an integer of at least 1",
        ),
        ("[model.graph]\nedges = 'chain'", 6, "exactly one of mean_variance and ridge"),
        ("[model.graph]\nedges = 'chain'\nridge = 1\nmean_variance = 1", 8, "exactly one of mean_variance and ridge"),
        ("[model.graph]\nridge = 1", 6, "edges is missing; it must be 'chain', 'complete' or a list of edges"),
        ("[model.graph]\nridge = 1\nedges = [\n['a'],\n]", 8, "edges must be 'chain', 'complete' or a list of edges"),
        ("[model.graph]\nridge = 1\nedges = [['a', 'b', -1]]", 8, "edges must be"),
    ],
)
def test_incompatible_options_are_rejected(tmp_path, text, line, part):
    assert error_message(tmp_path, text).startswith(f"mine.toml, line {line}: {part}")


def test_likelihood_table_is_validated(tmp_path):
    table = "[model.options]\n[model.options.likelihood]\nvisits = 'poisson'\nprice = 'cauchy'"
    message = error_message(tmp_path, table)
    assert message.startswith("mine.toml, line 7: likelihood must be one of 'gaussian', 'student_t', ")
    assert message.endswith("got ['poisson', 'cauchy'].")


def test_words_for_none_are_replaced_in_all_tables():
    values = {"options": {"training_rows": "all", "rank": "all", "sampling": {"batch_size": "none"}}, "graph": None}
    expected = {"options": {"training_rows": None, "rank": "all", "sampling": {"batch_size": None}}, "graph": None}
    assert replace_none_strings(values) == expected


NAMES = [name for name in estimators.__all__ if hasattr(getattr(estimators, name), "check_options")]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.just("none")
TREES = st.recursive(
    LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3)
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_value_is_accepted_or_rejected_in_one_line(data):
    name = data.draw(st.sampled_from(NAMES))
    options = st.sampled_from(getattr(ovkgp, name)._get_param_names()) | st.text(max_size=5)
    model = {"estimator": name, "options": data.draw(st.dictionaries(options, TREES, max_size=2) | TREES)}
    if data.draw(st.booleans()):
        keys = st.sampled_from(["edges", "ridge", "mean_variance", "x"])
        model["graph"] = data.draw(st.dictionaries(keys, TREES, max_size=3) | TREES)
    try:
        found = validate_document({"model": model}, SourceLocation("Recipe mine"))
        Recipe(name="mine", **found).check_options()
    except OptionError as error:
        assert str(error).startswith("Recipe mine: ") and str(error).endswith(".")
