"""Tests of `ovkgp.plotting.report.overview`."""

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.plotting.report.calibration import judged
from ovkgp.plotting.report.evaluation_data import predicted, report_rows
from ovkgp.plotting.report.overview import MAX_COLUMNS, columns, data_summary, default_title, num_entries, verdict


def test_columns_are_those_of_the_data(coupled, scalar_features):
    X, Y = scalar_features
    found = data_summary(coupled, report_rows(coupled))
    for column, name in zip(found.outputs, ["u", "v", "w"], strict=True):
        values = Y[name]
        assert column.name == name and column.count == values.count()
        assert column.missing == pytest.approx(values.isna().mean())
        wanted = values.min(), values.mean(), values.max(), values.std()
        assert (column.low, column.mean, column.high, column.sd) == pytest.approx(wanted)
    assert found.inputs[0].mean == pytest.approx(X["time"].mean())
    assert (
        "30 rows kept by the model" in found.sentence and f"{Y.count().sum()} entries observed of 90" in found.sentence
    )
    assert not found.hint


def test_given_rows_are_said_to_be_given(features, scalar_features):
    assert "30 rows given to this report" in data_summary(features, report_rows(features, *scalar_features)).sentence


def test_without_rows_the_model_knows_counts_and_the_page_says_how_to_get_more(features, scalar_features):
    found = data_summary(features, None)
    assert [column.count for column in found.outputs] == scalar_features[1].count().tolist()
    assert found.inputs[0].count is None and found.inputs[0].mean is None
    assert "X=X, Y=Y" in found.hint and "--data" in found.hint


def test_entries_are_counted_by_the_estimators_that_count(coupled, ridge, quantiles, scalar_features):
    observed = int(scalar_features[1].count().sum())
    assert num_entries(coupled) == num_entries(ridge) == observed
    assert num_entries(quantiles) is None


def test_a_column_that_nobody_observed_and_a_single_entry():
    empty, single = columns(np.array([[np.nan, 2.0], [np.nan, np.nan]]), ["a", "b"])
    assert (empty.count, empty.missing, empty.mean) == (0, 1.0, None)
    assert (single.count, single.mean, single.sd) == (1, 2.0, None)


def test_rounding_of_a_scaling_is_no_number():
    (column,) = columns(np.array([[1.1e-16], [1.0], [2.0]]), ["x"])
    assert column.low == 0.0


def test_classes_are_counted(trees):
    model, _, _ = trees
    found = data_summary(model, report_rows(model))
    assert found.classes == (("ash", 10), ("birch", 10), ("cedar", 10)) and not found.outputs
    assert "3 classes" in found.sentence


def test_level_sets_have_inputs_only(levels):
    model = levels[0]
    found = data_summary(model, report_rows(model))
    assert len(found.inputs) == 2 and not found.outputs and "no outputs" in found.sentence


def test_a_long_table_says_what_it_leaves_out():
    X = np.random.default_rng(0).normal(size=(8, MAX_COLUMNS + 5))
    model = ovkgp.OVKRidge(lam=1.0).fit(X, X[:, :1])
    found = data_summary(model, report_rows(model))
    assert len(found.inputs) == MAX_COLUMNS and "5 further inputs" in found.left_off


def of(model, judgements=(), num_warnings=0):
    rows = report_rows(model)
    return verdict(model, "A model", rows, predicted(model, rows), judgements, num_warnings)


def test_a_title_has_the_names_of_columns(coupled, quantiles, trees, levels, styles):
    assert default_title(coupled) == "u, v and w over time"
    assert default_title(quantiles) == "1 output over 2 inputs"
    assert default_title(trees[0]) == "3 classes over 2 inputs"
    X, kinds = pd.DataFrame(trees[1], columns=["height", "girth"]), pd.Series(trees[2], name="tree")
    assert default_title(ovkgp.SimplexClassifier().fit(X, kinds)) == "tree (3 classes) over height and girth"
    rain = ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=0.1).fit(X, pd.Series(trees[1][:, 0], name="rain"))
    assert default_title(rain) == "rain over height and girth"
    assert default_title(levels[0]) == "Level sets over 2 inputs"
    assert default_title(styles[0]) == "6 outputs over 1 input"


def test_the_first_paragraph_says_what_how_well_and_whether_to_trust_it(ridge, scalar_features):
    text = of(ridge, (judged(60, 60),), 2)
    assert f"A model, fitted to 1 input, 3 outputs and {scalar_features[1].count().sum()} observed entries." in text
    explained = predicted(ridge, report_rows(ridge)).explained
    assert f"{100 * explained[0]:.0f} % ('u')" in text and text.endswith("Read the 2 warnings below.")
    assert judged(60, 60).sentence in text


def test_one_warning_and_none(levels):
    assert of(levels[0], num_warnings=1).endswith("Read the warning below.")
    assert of(levels[0]) == "A model, fitted to 2 inputs and 40 rows. There are no warnings."


def test_one_output_and_many():
    X = np.linspace(0, 6, 30)[:, None]
    Y = np.sin(X + np.arange(6))
    one, many = (ovkgp.OVKRidge(lam=0.01).fit(X, part) for part in (Y[:, :1], Y))
    assert "% of their variance explained" in of(one) and "('" not in of(one)
    assert of(many).count("('output") == 2  # the least and the most


def test_a_model_that_explains_nothing_says_none():
    X = np.linspace(0, 6, 30)[:, None]
    model = ovkgp.OVKRidge(lam=1e-6, lengthscale=0.01).fit(X, np.random.default_rng(0).normal(size=(30, 1)))
    assert "none of their variance explained" in of(model)


def test_classifiers_count_what_they_get_right(trees, costs):
    model, X, labels = trees
    assert f"{100 * np.mean(model.predict(X) == labels):.0f} % are assigned" in of(model)
    model, X, labels = costs
    assert f"is {model.roc_curve(X, labels).area:.3g}." in of(model)
