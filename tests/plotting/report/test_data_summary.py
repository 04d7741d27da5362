import numpy as np
import pytest

import ovkgp
from ovkgp.plotting.report.evaluation_data import report_rows
from ovkgp.plotting.report.overview import MOST_COLUMNS, columns, data_summary, num_entries


def test_columns_are_those_of_the_data(coupled, waves):
    X, Y = waves
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


def test_given_rows_are_said_to_be_given(features, waves):
    assert "30 rows given to this report" in data_summary(features, report_rows(features, *waves)).sentence


def test_without_rows_the_model_knows_counts_and_the_page_says_how_to_get_more(features, waves):
    found = data_summary(features, None)
    assert [column.count for column in found.outputs] == waves[1].count().tolist()
    assert found.inputs[0].count is None and found.inputs[0].mean is None
    assert "X=X, Y=Y" in found.hint and "--data" in found.hint


def test_entries_are_counted_by_the_estimators_that_count(coupled, ridge, quantiles, waves):
    seen = int(waves[1].count().sum())
    assert num_entries(coupled) == num_entries(ridge) == seen
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
    X = np.random.default_rng(0).normal(size=(8, MOST_COLUMNS + 5))
    model = ovkgp.OVKRidge(lam=1.0).fit(X, X[:, :1])
    found = data_summary(model, report_rows(model))
    assert len(found.inputs) == MOST_COLUMNS and "5 further inputs" in found.left_off
