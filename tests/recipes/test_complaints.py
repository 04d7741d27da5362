"""What is wrong with a recipe is said in one sentence: the file, the line, what was given, what is allowed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import OptionError
from ovkgp.recipes import load_recipe
from ovkgp.recipes.schemas import SCHEMAS, Place, checked_document

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
