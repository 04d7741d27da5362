import warnings

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.plotting.report.evaluation_data import kept, report_rows


def test_an_exact_model_gives_back_its_rows(coupled, waves):
    X, Y = waves
    rows = report_rows(coupled)
    assert not rows.is_given and list(rows.X.columns) == ["time"]
    np.testing.assert_allclose(rows.inputs, X, atol=1e-12)
    np.testing.assert_allclose(rows.Y, Y, atol=1e-9)


def test_a_model_with_features_has_none(features):
    assert report_rows(features) is None


def test_arrays_for_a_model_with_names_do_not_warn(coupled, waves):
    X, Y = (table.to_numpy() for table in waves)
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
