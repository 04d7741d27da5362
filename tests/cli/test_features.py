"""``ovkgp features``: three answers to one question, from numbers or from a table."""

import math

import matplotlib.image
import numpy as np
import pytest
from cli_cases import assert_one_sentence, invoke, succeed, write_waves

from ovkgp.cli import feature_counts
from ovkgp.cli.feature_counts import FeatureProblem, needed
from ovkgp.features.bounds import required_features, suggest_features


@pytest.fixture
def quick(monkeypatch):
    """The same with less work."""
    monkeypatch.setattr(feature_counts, "SIZES", (10, 30, 100))
    monkeypatch.setattr(feature_counts, "REPEATS", 2)


USUAL = {"kernel": "rbf", "structure": "decomposable", "lengthscale": 1.0, "diameter": None, "error": 0.1}


def problem(rows=None, dims=None, outputs=None, **more):
    return FeatureProblem.of(rows, dims, outputs, **(USUAL | more))


def test_three_answers(quick):
    said = succeed("features", "--rows", 40_000, "--dims", 3, "--outputs", 5)
    assert said.startswith("40,000 rows, 3 inputs, 5 outputs; decomposable rbf kernel, lengthscale 1, diameter 3.46")
    assert "rule of thumb  200" in said and suggest_features(40_000) == 200
    assert f"{problem(40_000, 3, '5').guarantee():,}" in said
    assert "relative error (mean of 2 maps)" in said and "\n100  " in said


def test_the_guarantee_is_that_of_the_kernel():
    asked = problem(dims=2, lengthscale=0.5, diameter=3.0, error=0.2, outputs="1")
    assert asked.guarantee() == required_features(asked.make(1), 0.2, 0.05, 3.0)
    # of a curl-free kernel at lengthscale 1/2, ‖K(x, x)‖ is 4: errors are parts of that
    field = problem(dims=2, structure="curl_free", lengthscale=0.5, diameter=3.0, error=0.2)
    assert field.num_outputs == 2
    assert field.guarantee() == required_features(field.make(2), 0.8, 0.05, 3.0)


def test_no_guarantee_is_known(quick):
    assert "none is known" in succeed("features", "--kernel", "matern12")
    assert math.isinf(problem(kernel="matern12").guarantee())


def test_measured_errors_fall_and_say_how_many():
    errors = problem(dims=2).measure(seed=0)
    assert errors[0] > 3 * errors[-1]
    found = needed(errors, 0.1)
    assert 30 < found < 1000  # between sizes whose errors lie on both sides of it
    assert errors[0] > 0.1 > errors[-1]


def test_the_seed_decides(quick):
    first, again, other = (succeed("features", "--seed", seed) for seed in (0, 0, 1))
    assert first == again != other


def test_a_picture(quick, tmp_path):
    said = succeed("features", "--structure", "divergence_free", "--plot", tmp_path / "errors.png")
    assert "Picture written to" in said
    image = matplotlib.image.imread(tmp_path / "errors.png")
    assert image.shape[0] > 300 and np.std(image) > 0.01


def test_from_a_table(quick, tmp_path):
    table = write_waves(tmp_path)
    assert succeed("features", table, "--inputs", "a,b", "--outputs", "u,v").startswith("30 rows, 2 inputs, 2 outputs")
    assert "3 outputs" in succeed("features", table, "--inputs", "a,b", "--outputs", "3")
    assert "diameter 5\n" in succeed("features", table, "--inputs", "a,b", "--diameter", 5)
    assert "1 output;" in succeed("features", table, "--inputs", "a,b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernel", "rbff"], "--kernel must be one of"),
        (["--structure", "swirl"], "--structure must be one of decomposable, curl_free, divergence_free"),
        (["--structure", "curl_free", "--dims", "3", "--outputs", "2"], "as many outputs as inputs, 3"),
        (["--outputs", "u,v"], "--outputs must be a number of outputs"),
        (["--outputs", "0"], "at least 1"),
        (["--lengthscale", "0"], "--lengthscale must be a positive number"),
        (["--error", "-1"], "--error must be a positive number"),
        (["--seed", "-1"], "--seed must lie between"),
        (["--inputs", "a"], "--inputs goes with a table"),
        (["--plot", "errors.txt"], "--plot must end in"),
        (["TABLE"], "name the input columns of the table with --inputs"),
        (["TABLE", "--inputs", "a,c"], "has no column 'c'"),
        (["TABLE", "--inputs", "a", "--rows", "7"], "--rows is taken from the table"),
        (["none.csv", "--inputs", "a"], "there is no file"),
    ],
)
def test_what_is_wrong(tmp_path, arguments, words):
    table = write_waves(tmp_path)
    assert_one_sentence(invoke("features", *[table if word == "TABLE" else word for word in arguments]), words)


@pytest.mark.parametrize("option", ["--rows", "--dims"])
def test_numbers_below_one_are_usage_errors(option):
    result = invoke("features", option, "0")
    assert result.exit_code == 2 and result.output.splitlines()[-1].startswith("Error: ")
