"""Residuals of single entries, matching of rows, and missing entries."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri
from scipy.stats import kstest

import ovkgp
from ovkgp.criticism.residuals import Residuals, is_ordered_by, match_rows, residuals_of_entries
from ovkgp.exceptions import OptionError

rng = np.random.default_rng(0)
X = rng.uniform(0, 6, (60, 1))
f = np.sin(X[:, 0])


def test_rows_are_matched_up_to_rounding_and_each_once():
    Y = rng.normal(size=(60, 2))
    Y[3, 1] = np.nan
    order = rng.permutation(60)
    found = match_rows(X[order] * (1 + 1e-13), Y[order], (X, Y))
    np.testing.assert_array_equal(found, order)
    changed = Y[order].copy()
    changed[0] += 0.1
    assert match_rows(X[order], changed, (X, Y))[0] == -1
    twice = np.repeat([[1.0]], 3, axis=0)
    np.testing.assert_array_equal(match_rows(twice, twice, (twice[:2], twice[:2])), [0, 1, -1])


def test_order_of_rows_is_recognized():
    time, place = np.arange(50.0) ** 2, rng.normal(size=50)
    np.testing.assert_array_equal(is_ordered_by(np.column_stack([time, -time, place, np.ones(50)])), [1, 1, 0, 0])


def test_missing_entries_are_filled_by_standard_normal_draws():
    values = np.where(rng.uniform(size=(2000, 2)) < 0.5, np.nan, 5.0)
    filled = Residuals(np.zeros((2000, 1)), values, np.arange(2000), "", False, True, True).fill(0).values
    assert (filled[np.isfinite(values)] == 5).all()
    assert kstest(filled[np.isnan(values)], "norm").pvalue > 0.01


def test_entries_of_gaussian_predictions_have_standardized_errors():
    new, y = rng.uniform(0, 6, (30, 1)), rng.normal(size=30)
    model = ovkgp.OVKRidge(lam=0.1).fit(X, f + 0.3 * rng.normal(size=60))
    found = residuals_of_entries(model, new, y)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(found.values[:, 0], (y - mean) / std, rtol=1e-8)
    assert found.is_held_out
    assert not found.is_joint


def test_counts_have_randomized_transforms():
    rate = np.exp(1 + f)
    counts = rng.poisson(rate).astype(float)
    options = {"likelihood": "poisson", "num_frequencies": 20, "random_state": 0}
    model = ovkgp.GPRegressor("independent", **options).fit(X, counts)
    new = rng.uniform(0, 6, (150, 1))
    new_counts = rng.poisson(np.exp(1 + np.sin(new[:, 0]))).astype(float)
    found = model.normal_residuals(new, new_counts)
    assert len(np.unique(found.values)) == 150  # ties of counts are broken
    assert kstest(found.values[:, 0], "norm").pvalue > 0.01
    entries = model.predictive(new).at(new_counts[:, None])
    assert (found.values >= ndtri(entries.below) - 1e-9).all()
    assert (found.values <= ndtri(entries.upto) + 1e-9).all()


def test_labels_have_randomized_transforms_of_their_order():
    labels = np.array(["a", "b", "c"])[np.digitize(f + 0.3 * rng.normal(size=60), [-0.4, 0.4])]
    model = ovkgp.SimplexClassifier(lam=0.01, random_state=0).fit(X, labels)
    found = model.normal_residuals()
    cumulative = np.column_stack([np.zeros(60), model.predict_proba(X).cumsum(1)])
    index = np.searchsorted(model.classes_, labels)
    low, high = cumulative[np.arange(60), index], cumulative[np.arange(60), index + 1].clip(max=1.0)
    with np.errstate(divide="ignore"):
        assert (found.values[:, 0] >= ndtri(low) - 1e-6).all()
        assert (found.values[:, 0] <= ndtri(high) + 1e-6).all()
    with pytest.raises(OptionError, match="one of the classes"):
        model.normal_residuals(X[:2], ["a", "d"])


def test_labels_of_held_out_frames_keep_column_names(recwarn):
    table, labels = pd.DataFrame(X, columns=["time"]), f > 0
    model = ovkgp.SimplexClassifier(lam=0.01, random_state=0).fit(table, labels)
    found = model.normal_residuals(table.iloc[:20], labels[:20])
    assert len(found.values) == 20
    assert not [warning for warning in recwarn if "feature names" in str(warning.message)]


def test_estimators_without_distributions_raise():
    with pytest.raises(OptionError, match="no outputs"):
        ovkgp.InfiniteOneClassSVM(random_state=0).fit(X).normal_residuals()
    with pytest.raises(OptionError, match="no predictive distributions"):
        ovkgp.ConstrainedORFF(num_frequencies=10, random_state=0).fit(X, f).normal_residuals()
    with pytest.raises(OptionError, match="stores no training rows"):
        ovkgp.ORFFRidge(lam=0.1, num_frequencies=10, random_state=0).fit(X, f).normal_residuals()
    labels = np.where(f > 0, 1, -1)
    with pytest.raises(OptionError, match="predicts no probabilities"):
        ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, labels).normal_residuals()
