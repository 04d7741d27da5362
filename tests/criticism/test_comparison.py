"""Comparison of two models: means and standard errors by hand, groups, scores and invalid arguments."""

import numpy as np
import pytest
from scipy.stats import norm

import ovkgp
from ovkgp.criticism import Comparison, compare
from ovkgp.exceptions import InputError, OptionError

rng = np.random.default_rng(0)
X = rng.uniform(0, 6, (40, 1))
NEW_X = rng.uniform(0, 6, (30, 1))


def draw_outputs(X):
    return np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])]) + 0.3 * rng.normal(size=(len(X), 2))


Y, NEW_Y = draw_outputs(X), draw_outputs(NEW_X)
NEW_Y[4, 0] = np.nan
NEW_Y[7] = np.nan


@pytest.fixture(scope="module")
def models():
    return [ovkgp.OVKRidge(lam=lam).fit(X, Y) for lam in (0.09, 1e-4)]


def score_by_hand(model, name):
    mean, std = model.predict(NEW_X, return_std=True)
    z = (NEW_Y - mean) / std
    if name == "squared_error":
        return (NEW_Y - mean) ** 2
    if name == "crps":
        return std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    return norm.logpdf(z) - np.log(std)


@pytest.mark.parametrize("score", ["log_density", "crps", "squared_error"])
def test_difference_and_standard_error_are_those_by_hand(models, score):
    found = compare(*models, NEW_X, NEW_Y, score=score)
    first, second = (score_by_hand(model, score) for model in models)
    assert found.first == pytest.approx(np.nanmean(first))
    assert found.second == pytest.approx(np.nanmean(second))
    assert found.difference == pytest.approx(np.nanmean(first - second))
    rows = np.delete(first - second, 7, axis=0)
    counts, sums = np.isfinite(rows).sum(1), np.nansum(rows, 1)
    deviations = (sums - found.difference * counts) / counts.mean()  # of a ratio of sums
    assert found.num_units == 29
    assert found.standard_error == pytest.approx(np.sqrt((deviations**2).sum() / 28 / 29))


def test_standard_error_of_complete_rows_is_that_of_row_means(models):
    found = compare(*models, NEW_X[8:], NEW_Y[8:])
    rows = (score_by_hand(models[0], "log_density") - score_by_hand(models[1], "log_density"))[8:].mean(1)
    assert found.standard_error == pytest.approx(rows.std(ddof=1) / np.sqrt(22))
    assert found.pvalue == pytest.approx(2 * norm.sf(abs(rows.mean()) / found.standard_error))
    low, high = found.interval(0.9)
    assert (high - low) / 2 == pytest.approx(norm.ppf(0.95) * found.standard_error)
    assert (high + low) / 2 == pytest.approx(found.difference)


def test_groups_are_the_units_of_the_standard_error(models):
    found = compare(*models, NEW_X[8:], NEW_Y[8:], groups=np.repeat(np.arange(11), 2))
    rows = (score_by_hand(models[0], "log_density") - score_by_hand(models[1], "log_density"))[8:].mean(1)
    pairs = rows.reshape(11, 2).mean(1)
    assert found.num_units == 11
    assert found.standard_error == pytest.approx(pairs.std(ddof=1) / np.sqrt(11))


def test_standard_error_matches_the_variation_over_test_sets(models):
    inputs = rng.uniform(0, 6, (200, 50, 1))
    found = [compare(*models, one, draw_outputs(one), score="squared_error") for one in inputs]
    deviation = np.std([one.difference for one in found])
    assert np.mean([one.standard_error for one in found]) == pytest.approx(deviation, rel=0.15)


def test_better_depends_on_the_score(models):
    assert compare(*models, NEW_X, NEW_Y).better == "first"
    assert compare(*models, NEW_X, NEW_Y, score="crps").better == "first"
    assert compare(*models[::-1], NEW_X, NEW_Y).better == "second"
    same = compare(models[0], models[0], NEW_X, NEW_Y)
    assert (same.difference, same.standard_error, same.pvalue) == (0, 0, 1)
    assert same.better == "neither"


def test_crps_of_other_distributions_is_the_integral_of_pinball_losses():
    model = ovkgp.InfiniteQuantileRegressor(lam=1e-2, num_tasks=5, random_state=0).fit(X, Y[:, 0])
    normal = ovkgp.OVKRidge(lam=0.09).fit(X, Y[:, 0])
    found = compare(model, normal, NEW_X[8:], NEW_Y[8:, 0], score="crps")
    draws = model.predictive(NEW_X[8:])
    levels = (np.arange(2000) + 0.5) / 2000
    quantiles = np.array([draws.quantile(level)[:, 0] for level in levels[::20]])
    gaps = NEW_Y[8:, 0] - quantiles
    pinball = np.maximum(levels[::20, None] * gaps, (levels[::20, None] - 1) * gaps)
    assert found.first == pytest.approx(2 * pinball.mean(), rel=0.02)


def test_comparison_rejects_invalid_arguments(models):
    with pytest.raises(InputError, match="at least 2 rows"):
        compare(*models, NEW_X[:1], NEW_Y[:1])
    with pytest.raises(InputError, match="groups has shape"):
        compare(*models, NEW_X, NEW_Y, groups=[1, 2])
    with pytest.raises(OptionError, match="score"):
        compare(*models, NEW_X, NEW_Y, score="accuracy")
    with pytest.raises(InputError, match="2 columns"):
        compare(models[0], ovkgp.OVKRidge(lam=0.1).fit(X, Y[:, 0]), NEW_X, NEW_Y[:, 0])
    with pytest.raises(OptionError, match="no predictive distributions"):
        compare(models[0], ovkgp.ConstrainedORFF(num_frequencies=9, random_state=0).fit(X, Y), NEW_X, NEW_Y)


def test_comparison_describes_itself():
    found = Comparison("crps", 0.4, 0.5, -0.1, 0.02, 30, np.zeros(30))
    assert repr(found) == ("Comparison(crps: 0.4 − 0.5 = -0.1 ± 0.02, 30 rows or groups, p = 5.7e-07; better: first)")
