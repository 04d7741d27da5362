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
from ovkgp.criticism import kept_rows
from ovkgp.exceptions import InputError
from ovkgp.plotting.report.calibration import calibration
from ovkgp.plotting.report.evaluation_data import (
    KINDS,
    are_of_fit,
    called,
    class_name,
    kept,
    kind_of,
    means,
    predicted,
    report_rows,
    spreads,
)


def test_gaps_are_passed_over_and_empty_columns_are_zero():
    Y = np.random.default_rng(0).normal(5.0, 3.0, (20, 3))
    Y[::3, 1], Y[:, 2] = np.nan, np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = means(Y), spreads(Y)
    np.testing.assert_allclose(found[0], [*np.nanmean(Y[:, :2], 0), 0.0])
    np.testing.assert_allclose(found[1], [*np.nanstd(Y[:, :2], 0), 0.0])


@pytest.mark.parametrize("name", KINDS)
def test_an_estimator_that_is_not_fitted_is_refused(name):
    with pytest.raises(NotFittedError):
        kind_of(getattr(ovkgp, name)())


@pytest.mark.parametrize("stranger", [Ridge(), make_pipeline(StandardScaler(), ovkgp.GPRegressor()), "model", None])
def test_strangers_are_refused_and_the_estimators_named(stranger):
    with pytest.raises(InputError, match=r"GPRegressor.*got"):
        kind_of(stranger)


def test_a_class_that_extends_one_of_ours_is_known():
    class Mine(ovkgp.OVKRidge):
        pass

    assert class_name(Mine()) == "OVKRidge"


def test_outputs_are_called_by_name_or_by_number(coupled):
    assert called(coupled, "w") == "Output 'w'"
    assert called(ovkgp.OVKRidge().fit(np.eye(2), np.eye(2)), "output 1") == "Output 1"


def test_kept_entries_are_left_out_one_at_a_time(ridge, scalar_features):
    X, Y = scalar_features
    found = predicted(ridge, report_rows(ridge))
    assert found.rows == (None, None) and found.how == "Left out one at a time"
    # without the entry, with the same kernel, noise and intercept
    without = Y.copy()
    without.iloc[3, 0] = np.nan
    offset = ridge.scaling_.output_offset
    same = ovkgp.OVKRidge(ridge.gp_.kernel, lam=ridge.lam_).fit(X, without - offset)
    assert found.distribution.mean[3, 0] == pytest.approx(same.predict(X.iloc[[3]])[0, 0] + offset[0], rel=1e-6)


def test_rows_given_are_predicted(ridge, features):
    X, Y = np.linspace(0, 6, 7)[:, None], np.ones((7, 3))
    for model in (ridge, features):
        rows = report_rows(model, X, Y)
        found = predicted(model, rows)
        assert found.how == "On the rows given" and found.rows[0] is rows.X
        np.testing.assert_allclose(found.distribution.mean, model.predict(rows.X))
    assert (
        "If these rows are those of the fit" in found.caution and not predicted(ridge, report_rows(ridge, X, Y)).caution
    )


def test_rows_of_the_fit_are_recognised_and_left_out(ridge, scalar_features):
    X, Y = scalar_features
    shuffled = report_rows(ridge, X[::-1], Y[::-1])
    assert are_of_fit(ridge, shuffled).all()
    found = predicted(ridge, shuffled)
    assert found.rows == (None, None) and "are those of the fit" in found.how
    assert not are_of_fit(ridge, report_rows(ridge, X, Y + 1.0)).any()


def test_rows_of_the_fit_are_recognised_where_cells_were_emptied(ridge, scalar_features):
    X, Y = scalar_features
    emptied = Y.copy()
    emptied.iloc[:, 0] = np.nan
    emptied.iloc[::2, 1] = np.nan
    observed = emptied.notna().any(axis=1)
    assert (are_of_fit(ridge, report_rows(ridge, X, emptied)) == observed).all()
    assert not are_of_fit(ridge, report_rows(ridge, X, emptied + 1)).any()


def test_fresh_rows_are_judged_without_the_rows_of_the_fit_among_them():
    X = np.linspace(0, 6, 78)[:, None]
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * np.random.default_rng(0).normal(size=(78, 2))
    model = ovkgp.OVKRidge(lam=0.01).fit(X[:40], Y[:40])
    rows = report_rows(model, X, Y + 50.0 * (np.arange(78) >= 40)[:, None])
    found = predicted(model, rows)
    assert are_of_fit(model, rows).sum() == 40 and found.distribution.Y.shape == (38, 2) and (found.explained < 0).all()
    assert found.how == "Of the 78 rows given, 40 were rows of the fit and are left out. On the other 38 rows"
    assert found.which == "the other 38 rows given" and not found.caution
    np.testing.assert_array_equal(found.rows[0], X[40:])
    overall = calibration(model, rows, found).judgements[0]
    assert overall.held == 0 and overall.total == 76 and overall.is_good is False


def test_rows_without_observations_are_not_fresh(ridge, scalar_features):
    X, Y = (np.asarray(part) for part in scalar_features)
    rows = report_rows(ridge, np.vstack([X, [[3.0]]]), np.vstack([Y, [[np.nan] * 3]]))
    found = predicted(ridge, rows)
    assert found.rows == (None, None) and found.how.startswith("The rows given that have observations are those of the")


def test_rows_of_the_fit_that_cannot_be_left_out_are_recognised_too(quantiles):
    X, y = kept_rows(quantiles)
    assert "are those of the fit" in predicted(quantiles, report_rows(quantiles, X, y)).caution
    found = predicted(quantiles, report_rows(quantiles, np.vstack([X[:1], X + 0.01]), np.vstack([y[:1], y])))
    assert found.distribution.Y.shape == (40, 1) and not found.caution
    assert found.how == "Of the 41 rows given, 1 was a row of the fit and is left out. On the other 40 rows"


def test_the_share_that_is_explained(ridge):
    found = predicted(ridge, report_rows(ridge))
    for a in range(3):
        observed = np.isfinite(found.distribution.Y[:, a])
        y, mean = found.distribution.Y[observed, a], found.distribution.mean[observed, a]
        assert found.explained[a] == pytest.approx(1 - ((y - mean) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_a_constant_output_has_no_share():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.hstack([X, np.ones_like(X)]))
    explained = predicted(model, report_rows(model)).explained
    assert np.isfinite(explained[0]) and np.isnan(explained[1])


def test_nothing_can_be_said_without_rows_or_laws(features, quantiles, trees, levels, mixed):
    for model in (features, mixed):
        assert predicted(model, None) is None
    for model in (quantiles, trees[0], levels[0]):
        assert predicted(model, report_rows(model)) is None
    X = np.linspace(0, 6, 4)[:, None]
    assert predicted(features, report_rows(features, X, np.full((4, 3), np.nan))) is None


def test_quantiles_are_judged_on_rows_given(quantiles):
    X = np.random.default_rng(1).uniform(0, 3, (8, 2))
    found = predicted(quantiles, report_rows(quantiles, X, np.sin(X[:, 0])))
    assert found.distribution.pit().shape == (8, 1)


def test_an_exact_model_gives_back_its_rows(coupled, scalar_features):
    X, Y = scalar_features
    rows = report_rows(coupled)
    assert not rows.is_given and list(rows.X.columns) == ["time"]
    np.testing.assert_allclose(rows.inputs, X, atol=1e-12)
    np.testing.assert_allclose(rows.Y, Y, atol=1e-9)


def test_a_model_with_features_has_none(features):
    assert report_rows(features) is None


def test_arrays_for_a_model_with_names_do_not_warn(coupled, scalar_features):
    X, Y = (table.to_numpy() for table in scalar_features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = report_rows(coupled, X, Y)
    assert rows.is_given and list(rows.X.columns) == ["time"]


@pytest.mark.parametrize("given", [{"X": np.zeros((3, 1))}, {"Y": np.zeros((3, 3))}])
def test_one_without_the_other_is_refused(coupled, given):
    with pytest.raises(InputError, match="together"):
        report_rows(coupled, **given)


@pytest.mark.parametrize(
    ("X", "Y", "words"),
    [
        (pd.DataFrame({"hour": [1.0, 2.0]}), np.zeros((2, 3)), "hour"),
        (np.zeros((2, 2)), np.zeros((2, 3)), "X is not as it was at the fit"),
        (np.zeros((2, 1)), np.zeros((2, 2)), "2 columns"),
        (np.zeros((2, 1)), np.zeros((3, 3)), "Y is not as it was at the fit"),
        (np.zeros((2, 1)), pd.DataFrame(np.zeros((2, 3)), columns=["u", "w", "v"]), "in this order"),
        (np.array([[np.nan], [0.0]]), np.zeros((2, 3)), "NaN"),
        (np.array([["a"], ["b"]]), np.zeros((2, 3)), "X is not as it was at the fit"),
    ],
)
def test_other_columns_than_those_of_the_fit_are_refused(coupled, X, Y, words):
    with pytest.raises(InputError, match=words):
        report_rows(coupled, X, Y)


def test_labels_are_kept_by_both_classifiers(trees, costs):
    for model, X, labels in (trees, costs):
        rows = kept(model)
        pairs = {(tuple(np.round(x, 9)), label) for x, label in zip(rows.inputs, rows.Y, strict=True)}
        assert pairs == {(tuple(np.round(x, 9)), label) for x, label in zip(X, labels, strict=True)}


def test_one_hot_labels_are_kept_too(trees):
    _, X, labels = trees
    model = ovkgp.SimplexClassifier(lam=0.1, coding="one_hot").fit(X, labels)
    assert (labels == kept(model).Y).all()


def test_labels_that_the_model_does_not_know_are_refused(trees):
    model, X, labels = trees
    with pytest.raises(InputError, match="'oak'"):
        report_rows(model, X[:2], ["oak", "ash"])
    with pytest.raises(InputError, match="a label for each row"):
        report_rows(model, X[:2], labels)
    assert report_rows(model, X, pd.DataFrame({"kind": labels})).Y.shape == (30,)


def test_level_sets_need_no_outputs_and_keep_copies_of_rows(levels):
    model, X = levels
    assert report_rows(model, X).Y is None
    twice = ovkgp.InfiniteOneClassSVM(num_tasks=6).fit(np.vstack([X, X[:5]]))
    assert len(kept(twice).X) == 45


def test_tasks_are_kept_side_by_side(styles):
    model, X, Y = styles
    rows = kept(model)
    np.testing.assert_allclose(rows.inputs, X)
    np.testing.assert_allclose(rows.Y, Y.reshape(12, 6), atol=1e-12)
    assert report_rows(model, X, Y).Y.shape == (12, 6)


def test_a_target_has_one_column(quantiles):
    X = np.zeros((4, 2))
    assert report_rows(quantiles, X, pd.Series(np.arange(4.0))).Y.shape == (4, 1)
    with pytest.raises(InputError, match="one number for each row"):
        report_rows(quantiles, X, np.zeros((4, 2)))


def test_weights_without_a_posterior_keep_nothing():
    X = np.linspace(0, 1, 10)[:, None]
    assert kept(ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)) is None
