"""Scores of a table of criticism against direct computations; level of predictive checks, and the errors that each finds."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

import ovkgp
from ovkgp.criticism import coverage, criticize
from ovkgp.criticism.prediction_checks import (
    REPLICATE_NAMES,
    Predictions,
    check_predictions,
    check_replicates,
    check_structure,
)
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


INPUTS = rng.uniform(0, 6, (300, 1))
RATE = np.exp(np.sin(INPUTS[:, 0]) + 1)


def counting_model(draw=lambda rate, generator: generator.poisson(rate), rate=RATE):
    """Stand-in for a fitted model of counts with known rates."""

    def sample_y(rows, number, random_state):
        generator = np.random.default_rng(random_state)
        return np.stack([draw(rate[: len(rows)], generator) for _ in range(number)], -1)

    return SimpleNamespace(
        kind="table",
        has_posterior=True,
        has_predictive=True,
        check_rows=lambda rows, Y: (rows, np.reshape(Y, (len(rows), -1)).astype(float)),
        predictive=lambda rows: SimpleNamespace(mean=rate[: len(rows), None], std=np.sqrt(rate[: len(rows), None])),
        sample_y=sample_y,
    )


def checks_of(y, seed=0):
    checks = check_replicates(counting_model(), INPUTS, y, np.arange(300), 199, 0.05, seed)
    return dict(zip(REPLICATE_NAMES, checks, strict=True))


def test_statistics_are_those_of_the_observations():
    y = rng.poisson(RATE)
    found = checks_of(y)
    errors = (y - RATE) / np.sqrt(RATE)
    assert found[REPLICATE_NAMES[0]].statistic == pytest.approx(np.mean(errors**2))
    assert found[REPLICATE_NAMES[1]].statistic == pytest.approx(np.abs(errors).max())
    assert found[REPLICATE_NAMES[2]].statistic == pytest.approx(np.mean(y == 0))


def test_p_values_of_the_right_model_are_at_most_uniform():
    pvalues = np.array([[check.pvalue for check in checks_of(rng.poisson(RATE), seed).values()] for seed in range(100)])
    assert ((pvalues <= 0.1).mean(0) <= 0.18).all()  # .1 + 2.7 standard errors
    assert ((pvalues <= 0.5).mean(0) >= 0.25).all()


@pytest.mark.parametrize(
    ("y", "name"),
    [
        (rng.negative_binomial(2, 2 / (2 + RATE)), REPLICATE_NAMES[0]),
        (np.where(np.arange(300) == 7, 60, rng.poisson(RATE)), REPLICATE_NAMES[1]),
        (rng.poisson(RATE) * (rng.uniform(size=300) < 0.8), REPLICATE_NAMES[2]),
        (RATE.round(), REPLICATE_NAMES[0]),  # too little variation
    ],
    ids=["overdispersed", "outlier", "zeros", "underdispersed"],
)
def test_wrong_counts_are_found(y, name):
    assert checks_of(y)[name].pvalue <= 0.01


def test_continuous_outputs_have_no_frequency_of_the_smallest_value():
    model = counting_model(lambda rate, generator: rate + np.sqrt(rate) * generator.normal(size=len(rate)))
    y = RATE + np.sqrt(RATE) * rng.normal(size=300)
    y[:5] = np.nan
    last = check_replicates(model, INPUTS, y, np.arange(300), 199, 0.05, 0)[-1]
    assert not last.applies and last.conclusion == "outputs are continuous"


def test_probabilities_that_are_too_certain_are_found():
    probability = 1 / (1 + np.exp(-2 * np.sin(INPUTS[:, 0])))
    labels = np.where(rng.uniform(size=300) < probability, "b", "a")
    for factor, is_right in ((1.0, True), (4.0, False)):
        one = 1 / (1 + np.exp(-2 * factor * np.sin(INPUTS[:, 0])))
        model = SimpleNamespace(
            kind="labels",
            classes_=np.array(["a", "b"]),
            predict_proba=lambda rows, one=one: np.column_stack([1 - one, one])[: len(rows)],
        )
        score, frequencies = check_replicates(model, INPUTS, labels, np.arange(300), 199, 0.05, 0)
        assert (score.pvalue > 0.05) == is_right
        assert score.statistic == pytest.approx(np.log(np.where(labels == "b", one, 1 - one)).mean())
        assert not is_right or frequencies.pvalue > 0.05


def test_table_has_predictive_checks_or_the_reason():
    """For models whose residuals are those of single entries; a quantile regressor draws no observations."""
    y = rng.poisson(RATE)
    options = {"likelihood": "poisson", "hyperparameters": "evidence", "num_frequencies": 8, "random_state": 0}
    model = ovkgp.GPRegressor("independent", **options).fit(INPUTS[:100], y[:100])
    table = criticize(model, INPUTS[200:], y[200:], random_state=0)
    assert all(table[name].pvalue > 0.001 for name in REPLICATE_NAMES)
    overdispersed = rng.negative_binomial(1, 1 / (1 + RATE[200:]))
    assert criticize(model, INPUTS[200:], overdispersed, random_state=0)[REPLICATE_NAMES[0]].rejected
    quantiles = ovkgp.InfiniteQuantileRegressor(num_tasks=5, random_state=0).fit(INPUTS[:60], RATE[:60])
    reason = criticize(quantiles, random_state=0)["predictive checks"]
    assert not reason.applies and reason.conclusion == "the model draws no observations"


def test_random_part_of_transforms_depends_on_the_seed():
    """With the same uniform numbers in every data set, dependence of these on the order would be found in each."""
    labels = np.where(np.sin(INPUTS[:60, 0]) + 0.5 * rng.normal(size=60) > 0, "b", "a")
    model = ovkgp.SimplexClassifier(random_state=0).fit(INPUTS[:60], labels)
    first, again, other = (model.normal_residuals(random_state=seed).values for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
