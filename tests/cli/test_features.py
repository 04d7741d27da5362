"""``ovkgp features``: three feature counts, from numbers or from a table."""

import math

import matplotlib.image
import numpy as np
import pytest
from cli_cases import assert_error, invoke, succeed, write_table

from ovkgp.cli import feature_counts
from ovkgp.cli.feature_counts import FREQUENCY_COUNTS, FeatureProblem, estimate_count
from ovkgp.features.bounds import required_features, suggest_features


@pytest.fixture
def quick(monkeypatch):
    """Reduce the work."""
    monkeypatch.setattr(feature_counts, "FREQUENCY_COUNTS", (10, 30, 100))
    monkeypatch.setattr(feature_counts, "NUM_REPEATS", 2)


DEFAULTS = {"kernel": "rbf", "structure": "decomposable", "lengthscale": 1.0, "diameter": None, "error": 0.1}


def problem(rows=None, dims=None, outputs=None, **more):
    return FeatureProblem.from_options(rows, dims, outputs, **(DEFAULTS | more))


def test_features_command_prints_three_counts(quick):
    output = succeed("features", "--rows", 40_000, "--dims", 3, "--outputs", 5)
    assert output.startswith("40,000 rows, 3 inputs, 5 outputs; decomposable rbf kernel, lengthscale 1, diameter 3.46")
    assert "rule of thumb  200" in output and suggest_features(40_000) == 200
    assert f"{problem(40_000, 3, '5').guaranteed_count():,}" in output
    assert "relative error (mean of 2 maps)" in output and "\n100  " in output


def test_guaranteed_count_equals_required_features():
    requested = problem(dims=2, lengthscale=0.5, diameter=3.0, error=0.2, outputs="1")
    assert requested.guaranteed_count() == required_features(requested.make_kernel(1), 0.2, 0.05, 3.0)
    # for a curl-free kernel with lengthscale 1/2, ‖K(x, x)‖ is 4, and errors are fractions of it
    field = problem(dims=2, structure="curl_free", lengthscale=0.5, diameter=3.0, error=0.2)
    assert field.num_outputs == 2
    assert field.guaranteed_count() == required_features(field.make_kernel(2), 0.8, 0.05, 3.0)


def test_features_command_reports_unknown_guarantee(quick):
    assert "none is known" in succeed("features", "--kernel", "matern12")
    assert math.isinf(problem(kernel="matern12").guaranteed_count())


def test_measured_errors_decrease_and_determine_count():
    errors = problem(dims=2).measure_errors(seed=0)
    assert errors[0] > 3 * errors[-1]
    found = estimate_count(errors, 0.1)
    assert 30 < found < 1000  # between counts whose errors are above and below it
    assert errors[0] > 0.1 > errors[-1]


def test_estimate_count_extrapolates_with_square_root_rate():
    assert estimate_count([count**-0.5 for count in FREQUENCY_COUNTS], 0.1) == 100


def test_features_command_depends_on_seed(quick):
    first, again, other = (succeed("features", "--seed", seed) for seed in (0, 0, 1))
    assert first == again != other


def test_features_command_writes_figure(quick, tmp_path):
    output = succeed("features", "--structure", "divergence_free", "--plot", tmp_path / "errors.png")
    assert "Figure written to" in output
    image = matplotlib.image.imread(tmp_path / "errors.png")
    assert image.shape[0] > 300 and np.std(image) > 0.01


def test_features_command_reads_table(quick, tmp_path):
    table = write_table(tmp_path)
    assert succeed("features", table, "--inputs", "a,b", "--outputs", "u,v").startswith("30 rows, 2 inputs, 2 outputs")
    assert "3 outputs" in succeed("features", table, "--inputs", "a,b", "--outputs", "3")
    assert "diameter 5\n" in succeed("features", table, "--inputs", "a,b", "--diameter", 5)
    assert "1 output;" in succeed("features", table, "--inputs", "a,b")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kernel", "rbff"], "--kernel"),
        (["--structure", "swirl"], "'decomposable', 'curl_free', 'divergence_free'"),
        (["--structure", "curl_free", "--dims", "3", "--outputs", "2"], "the number of inputs, 3"),
        (["--outputs", "u,v"], "--outputs"),
        (["--outputs", "0"], "at least 1"),
        (["--lengthscale", "0"], "--lengthscale"),
        (["--error", "-1"], "--error"),
        (["--seed", "-1"], "--seed"),
        (["--inputs", "a"], "--inputs needs a table"),
        (["--plot", "errors.txt"], "--plot"),
        (["TABLE"], "--inputs is missing"),
        (["TABLE", "--inputs", "a,c"], "'c'"),
        (["TABLE", "--inputs", "a", "--rows", "7"], "--rows is taken from the table"),
        (["none.csv", "--inputs", "a"], "none.csv"),
    ],
)
def test_features_command_rejects_invalid_options(tmp_path, arguments, text):
    table = write_table(tmp_path)
    assert_error(invoke("features", *[table if word == "TABLE" else word for word in arguments]), text)


@pytest.mark.parametrize("option", ["--rows", "--dims"])
def test_features_command_rejects_counts_below_one(option):
    result = invoke("features", option, "0")
    assert result.exit_code == 2 and result.output.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--lengthscale", "1e-300"], "--lengthscale must be from"),
        (["--diameter", "1e300"], "--lengthscale must be from"),
        (["--rows", "1000000000000", "--dims", "1000000"], "--dims must be at most 1000"),
        (["--dims", "30", "--structure", "curl_free"], "--dims must be at most 20 for a curl_free kernel"),
        (["--outputs", "100000"], "--outputs must be at most 1000"),
        (["--error", "1e-300"], "--error must be from 1e-06 to 10"),
    ],
)
def test_features_command_rejects_sizes_that_cannot_be_computed(options, text):
    assert_error(invoke("features", *options), text)
