"""Tests of `ovkgp.plotting.report.evaluation_data`."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ovkgp
from ovkgp import estimators
from ovkgp.criticism import training_data
from ovkgp.exceptions import InputError
from ovkgp.plotting.report.calibration import assess_calibration
from ovkgp.plotting.report.evaluation_data import (
    collect_rows,
    column_means,
    column_stds,
    find_training_rows,
    format_output_name,
    get_training_rows,
    predict_held_out,
)


def test_column_statistics_ignore_missing_entries():
    Y = np.random.default_rng(0).normal(5.0, 3.0, (20, 3))
    Y[::3, 1], Y[:, 2] = np.nan, np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = column_means(Y), column_stds(Y)
    np.testing.assert_allclose(found[0], [*np.nanmean(Y[:, :2], 0), 0.0])
    np.testing.assert_allclose(found[1], [*np.nanstd(Y[:, :2], 0), 0.0])


@pytest.mark.parametrize("name", [name for name in estimators.__all__ if name[0].isupper() and name != "BayesSearchCV"])
def test_collect_rows_rejects_unfitted_estimator(name):
    with pytest.raises(NotFittedError):
        collect_rows(getattr(ovkgp, name)())


@pytest.mark.parametrize("stranger", [Ridge(), make_pipeline(StandardScaler(), ovkgp.GPRegressor()), "model", None])
def test_collect_rows_rejects_other_estimators(stranger):
    with pytest.raises(InputError, match=r"GPRegressor.*got"):
        collect_rows(stranger)


def test_format_output_name_uses_name_or_number(coupled):
    assert format_output_name(coupled, "w") == "Output 'w'"
    assert format_output_name(ovkgp.OVKRidge().fit(np.eye(2), np.eye(2)), "output 1") == "Output 1"


def test_predict_held_out_uses_leave_one_out_of_stored_rows(ridge, time_series):
    X, Y = time_series
    found = predict_held_out(ridge, collect_rows(ridge))
    assert found.is_leave_one_out and found.preface == ""
    # without the row, with the same kernel, noise and intercept
    without = Y.copy()
    without.iloc[3] = np.nan
    offset = ridge.scaling_.output_offset
    same = ovkgp.OVKRidge(ridge.gp_.kernel, lam=ridge.lam_).fit(X, without - offset)
    assert found.distribution.mean[3, 0] == pytest.approx(same.predict(X.iloc[[3]])[0, 0] + offset[0], rel=1e-6)


def test_predict_held_out_uses_given_rows(ridge, features):
    X, Y = np.linspace(0, 6, 7)[:, None], np.ones((7, 3))
    for model in (ridge, features):
        rows = collect_rows(model, X, Y)
        found = predict_held_out(model, rows)
        assert not found.is_leave_one_out and found.rows[0] is rows.X
        np.testing.assert_allclose(found.distribution.mean, model.predict(rows.X))
    assert (
        "If these are training rows" in found.caveat and not predict_held_out(ridge, collect_rows(ridge, X, Y)).caveat
    )


def test_find_training_rows_recognizes_shuffled_rows(ridge, time_series):
    X, Y = time_series
    shuffled = collect_rows(ridge, X[::-1], Y[::-1])
    assert find_training_rows(ridge, shuffled).all()
    found = predict_held_out(ridge, shuffled)
    assert found.is_leave_one_out and "are the training rows" in found.preface
    assert not find_training_rows(ridge, collect_rows(ridge, X, Y + 1.0)).any()


def test_find_training_rows_recognizes_rows_with_emptied_cells(ridge, time_series):
    X, Y = time_series
    emptied = Y.copy()
    emptied.iloc[:, 0] = np.nan
    emptied.iloc[::2, 1] = np.nan
    observed = emptied.notna().any(axis=1)
    assert (find_training_rows(ridge, collect_rows(ridge, X, emptied)) == observed).all()
    assert not find_training_rows(ridge, collect_rows(ridge, X, emptied + 1)).any()


def test_predict_held_out_excludes_training_rows():
    X = np.linspace(0, 6, 78)[:, None]
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * np.random.default_rng(0).normal(size=(78, 2))
    model = ovkgp.OVKRidge(lam=0.01).fit(X[:40], Y[:40])
    rows = collect_rows(model, X, Y + 50.0 * (np.arange(78) >= 40)[:, None])
    found = predict_held_out(model, rows)
    assert (
        find_training_rows(model, rows).sum() == 40
        and found.distribution.Y.shape == (38, 2)
        and (found.explained < 0).all()
    )
    assert found.preface == "40 of the 78 given rows are training rows and were excluded."
    assert found.rows_name == "the other 38 given rows" and not found.caveat
    np.testing.assert_array_equal(found.rows[0], X[40:])
    overall = assess_calibration(model, rows, found).assessments[0]
    assert overall.covered == 0 and overall.total == 76 and overall.is_consistent is False


def test_predict_held_out_ignores_rows_without_observations(ridge, time_series):
    X, Y = (np.asarray(part) for part in time_series)
    rows = collect_rows(ridge, np.vstack([X, [[3.0]]]), np.vstack([Y, [[np.nan] * 3]]))
    found = predict_held_out(ridge, rows)
    assert found.is_leave_one_out and found.preface == "The given rows with observations are the training rows."


def test_predict_held_out_warns_of_training_rows_without_leave_one_out(quantiles):
    X, y = training_data(quantiles)
    assert "are the training rows" in predict_held_out(quantiles, collect_rows(quantiles, X, y)).caveat
    found = predict_held_out(quantiles, collect_rows(quantiles, np.vstack([X[:1], X + 0.01]), np.vstack([y[:1], y])))
    assert found.distribution.Y.shape == (40, 1) and not found.caveat
    assert found.preface == "1 of the 41 given rows is a training row and was excluded."


def test_explained_variance_matches_formula(ridge):
    found = predict_held_out(ridge, collect_rows(ridge))
    for a in range(3):
        observed = np.isfinite(found.distribution.Y[:, a])
        y, mean = found.distribution.Y[observed, a], found.distribution.mean[observed, a]
        assert found.explained[a] == pytest.approx(1 - ((y - mean) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_explained_variance_of_constant_output_is_nan():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.hstack([X, np.ones_like(X)]))
    explained = predict_held_out(model, collect_rows(model)).explained
    assert np.isfinite(explained[0]) and np.isnan(explained[1])


def test_predict_held_out_returns_none_without_rows_or_distributions(features, quantiles, trees, levels, mixed):
    for model in (features, mixed):
        assert predict_held_out(model, None) is None
    for model in (quantiles, trees[0], levels[0]):
        assert predict_held_out(model, collect_rows(model)) is None
    X = np.linspace(0, 6, 4)[:, None]
    assert predict_held_out(features, collect_rows(features, X, np.full((4, 3), np.nan))) is None


def test_predict_held_out_supports_quantile_regressor(quantiles):
    X = np.random.default_rng(1).uniform(0, 3, (8, 2))
    found = predict_held_out(quantiles, collect_rows(quantiles, X, np.sin(X[:, 0])))
    assert found.distribution.pit().shape == (8, 1)


def test_collect_rows_returns_stored_rows_of_exact_model(coupled, time_series):
    X, Y = time_series
    rows = collect_rows(coupled)
    assert not rows.is_given and list(rows.X.columns) == ["time"]
    np.testing.assert_allclose(rows.inputs, X, atol=1e-12)
    np.testing.assert_allclose(rows.Y, Y, atol=1e-9)


def test_collect_rows_of_feature_model_returns_none(features):
    assert collect_rows(features) is None


def test_collect_rows_adds_names_to_arrays_without_warning(coupled, time_series):
    X, Y = (table.to_numpy() for table in time_series)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = collect_rows(coupled, X, Y)
    assert rows.is_given and list(rows.X.columns) == ["time"]


@pytest.mark.parametrize("given", [{"X": np.zeros((3, 1))}, {"Y": np.zeros((3, 3))}])
def test_collect_rows_rejects_x_without_y(coupled, given):
    with pytest.raises(InputError, match="together"):
        collect_rows(coupled, **given)


@pytest.mark.parametrize(
    ("X", "Y", "text"),
    [
        (pd.DataFrame({"hour": [1.0, 2.0]}), np.zeros((2, 3)), "hour"),
        (np.zeros((2, 2)), np.zeros((2, 3)), "X"),
        (np.zeros((2, 1)), np.zeros((2, 2)), "columns"),
        (np.zeros((2, 1)), np.zeros((3, 3)), "samples"),
        (np.zeros((2, 1)), pd.DataFrame(np.zeros((2, 3)), columns=["u", "w", "v"]), "order|columns"),
        (np.array([[np.nan], [0.0]]), np.zeros((2, 3)), "NaN"),
        (np.array([["a"], ["b"]]), np.zeros((2, 3)), "must hold numbers, got the text 'a'"),
    ],
)
def test_collect_rows_rejects_other_columns(coupled, X, Y, text):
    with pytest.raises(InputError, match=text):
        collect_rows(coupled, X, Y)


def test_training_rows_of_classifiers_match_data(trees, costs):
    for model, X, labels in (trees, costs):
        rows = get_training_rows(model)
        pairs = {(tuple(np.round(x, 9)), label) for x, label in zip(rows.inputs, rows.Y, strict=True)}
        assert pairs == {(tuple(np.round(x, 9)), label) for x, label in zip(X, labels, strict=True)}


def test_training_rows_of_one_hot_classifier_match_labels(trees):
    _, X, labels = trees
    model = ovkgp.SimplexClassifier(lam=0.1, coding="one_hot").fit(X, labels)
    assert (labels == get_training_rows(model).Y).all()


def test_collect_rows_rejects_unknown_labels(trees):
    model, X, labels = trees
    with pytest.raises(InputError, match="'oak'"):
        collect_rows(model, X[:2], ["oak", "ash"])
    with pytest.raises(InputError, match="one label per row"):
        collect_rows(model, X[:2], labels)
    assert collect_rows(model, X, pd.DataFrame({"kind": labels})).Y.shape == (30,)


def test_rows_of_level_sets_have_no_outputs(levels):
    model, X = levels
    assert collect_rows(model, X).Y is None
    twice = ovkgp.InfiniteOneClassSVM(num_tasks=6).fit(np.vstack([X, X[:5]]))
    assert len(get_training_rows(twice).X) == 45


def test_training_rows_of_tasks_are_flattened(styles):
    model, X, Y = styles
    rows = get_training_rows(model)
    np.testing.assert_allclose(rows.inputs, X)
    np.testing.assert_allclose(rows.Y, Y.reshape(12, 6), atol=1e-12)
    assert collect_rows(model, X, Y).Y.shape == (12, 6)


def test_collect_rows_of_target_has_one_column(quantiles):
    X = np.zeros((4, 2))
    assert collect_rows(quantiles, X, pd.Series(np.arange(4.0))).Y.shape == (4, 1)
    with pytest.raises(InputError, match="one number per row"):
        collect_rows(quantiles, X, np.zeros((4, 2)))


def test_training_rows_of_constrained_features_are_none():
    X = np.linspace(0, 1, 10)[:, None]
    assert get_training_rows(ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)) is None
