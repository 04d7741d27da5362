"""Scores of a table of criticism against direct computations."""

import numpy as np
import pytest
from scipy.stats import norm

import ovkgp
from ovkgp.criticism import coverage, criticize
from ovkgp.criticism.prediction_checks import Predictions, check_predictions, check_structure
from ovkgp.metrics import scorers

rng = np.random.default_rng(0)
X = rng.uniform(0, 6, (60, 1))
Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])]) + 0.3 * rng.normal(size=(60, 2))
NEW_X = rng.uniform(0, 6, (40, 1))
NEW_Y = np.column_stack([np.sin(NEW_X[:, 0]), np.cos(NEW_X[:, 0])]) + 0.3 * rng.normal(size=(40, 2))
NEW_Y[3, 1] = np.nan


@pytest.fixture(scope="module")
def model():
    return ovkgp.GPRegressor("independent", hyperparameters="evidence", random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def table(model):
    return criticize(model, NEW_X, NEW_Y, random_state=0)


def test_scores_are_those_of_the_predictions(model, table):
    mean, std = model.predict(NEW_X, return_std=True)
    z = (NEW_Y - mean) / std
    assert table["log score"].statistic == pytest.approx(np.nanmean(norm.logpdf(z) - np.log(std), axis=0).mean())
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert table["CRPS"].statistic == pytest.approx(np.nanmean(crps, axis=0).mean())
    assert table["energy score"].statistic == pytest.approx(-scorers["neg_energy_score"](model, NEW_X, NEW_Y))


def test_reference_scores_are_those_of_the_moments_of_the_outputs(table):
    center, scale = np.nanmean(NEW_Y, axis=0), np.nanstd(NEW_Y, axis=0)
    reference = np.nanmean(norm.logpdf((NEW_Y - center) / scale) - np.log(scale), axis=0).mean()
    assert f"Without inputs: {reference:.4g}" in table["log score"].conclusion
    assert table["log score"].recommendation == ""


def test_coverage_is_that_of_its_function(model, table):
    expected = coverage(model, NEW_X, NEW_Y, [0.9])
    assert table["coverage of output 1"].statistic == expected.observed[0, 1]
    assert "of 39 observations" in table["coverage of output 1"].conclusion


def test_poor_predictions_have_advice(model):
    worse = criticize(model, NEW_X, NEW_Y + 3, random_state=0)
    assert "worse than the mean and variance" in worse["log score"].recommendation
    assert "worse than the mean and variance" in worse["CRPS"].recommendation
    assert "Recalibrate" in worse["coverage of output 0"].recommendation


def test_checks_without_predictions_state_the_reason(model):
    checks = check_predictions(model, Predictions(reason="no predictions"), None, ["a", "b"])
    assert {check.conclusion for check in checks} == {"no predictions"}
    assert not any(check.applies for check in checks)


def test_rank_of_the_output_matrix_counts_large_eigenvalues():
    import gpytorch

    matrix = np.outer([1, 2, 3], [1, 2, 3]) + 1e-4 * np.eye(3)
    kernel = ovkgp.kernels.DecomposableKernel(gpytorch.kernels.RBFKernel(), output_matrix=matrix)
    three = np.column_stack([Y, Y[:, 0]])
    model = ovkgp.GPRegressor(kernel, noise=0.1, hyperparameters="fixed", random_state=0).fit(X, three)
    rank, features = check_structure(model, 3)
    assert rank.statistic == 1
    assert rank.conclusion == "1 of 3 directions account for 99% of the prior variance."
    assert not features.applies


def test_independent_outputs_have_no_rank(table):
    check = table["rank of the output matrix"]
    assert not check.applies and check.conclusion == "the kernel has independent outputs"


def test_rank_above_the_needed_one_has_advice():
    four = np.column_stack([Y[:, 0], 2 * Y[:, 0], -Y[:, 0], Y[:, 0]]) + 1e-3 * rng.normal(size=(60, 4))
    options = {"hyperparameters": "evidence", "random_state": 0}
    model = ovkgp.GPRegressor("decomposable", rank=3, **options).fit(X, four)
    rank = check_structure(model, 4)[0]
    assert rank.recommendation == f"rank={rank.statistic:.0f} is enough."
    assert rank.statistic < 3
