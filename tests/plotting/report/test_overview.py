"""Tests of `ovkgp.plotting.report.overview`."""

import numpy as np
import pandas as pd
import pytest
from plot_cases import assessment

import ovkgp
from ovkgp.plotting.report.evaluation_data import collect_rows, predict_held_out
from ovkgp.plotting.report.overview import (
    MAX_COLUMNS,
    make_default_title,
    summarize_columns,
    summarize_data,
    write_overview,
)


def test_summarize_data_matches_columns(coupled, time_series):
    X, Y = time_series
    found = summarize_data(coupled, collect_rows(coupled))
    for column, name in zip(found.outputs, ["u", "v", "w"], strict=True):
        values = Y[name]
        assert column.name == name and column.count == values.count()
        assert column.missing == pytest.approx(values.isna().mean())
        wanted = values.min(), values.mean(), values.max(), values.std()
        assert (column.low, column.mean, column.high, column.sd) == pytest.approx(wanted)
    assert found.inputs[0].mean == pytest.approx(X["time"].mean())
    assert (
        "30 rows stored by the model" in found.sentence
        and f"{Y.count().sum()} entries observed of 90" in found.sentence
    )
    assert not found.hint


def test_summarize_data_reports_given_rows(features, time_series):
    assert "30 rows given to this report" in summarize_data(features, collect_rows(features, *time_series)).sentence


def test_summarize_data_without_rows_reports_counts_and_hint(features, time_series):
    found = summarize_data(features, None)
    assert [column.count for column in found.outputs] == time_series[1].count().tolist()
    assert found.inputs[0].count is None and found.inputs[0].mean is None
    assert "X=X, Y=Y" in found.hint and "--data" in found.hint


def test_num_entries_counts_observed_entries(coupled, ridge, quantiles, time_series):
    observed = int(time_series[1].count().sum())
    assert coupled.describe().num_entries == ridge.describe().num_entries == observed
    assert quantiles.describe().num_entries is None


def test_summarize_columns_supports_empty_column_and_single_entry():
    empty, single = summarize_columns(np.array([[np.nan, 2.0], [np.nan, np.nan]]), ["a", "b"])
    assert (empty.count, empty.missing, empty.mean) == (0, 1.0, None)
    assert (single.count, single.mean, single.sd) == (1, 2.0, None)


def test_summarize_columns_removes_rounding_errors():
    (column,) = summarize_columns(np.array([[1.1e-16], [1.0], [2.0]]), ["x"])
    assert column.low == 0.0


def test_summarize_data_counts_classes(trees):
    model, _, _ = trees
    found = summarize_data(model, collect_rows(model))
    assert found.classes == (("ash", 10), ("birch", 10), ("cedar", 10)) and not found.outputs
    assert "3 classes" in found.sentence


def test_summarize_data_of_level_sets_has_inputs_only(levels):
    model = levels[0]
    found = summarize_data(model, collect_rows(model))
    assert len(found.inputs) == 2 and not found.outputs and "no outputs" in found.sentence


def test_summarize_data_reports_omitted_columns():
    X = np.random.default_rng(0).normal(size=(8, MAX_COLUMNS + 5))
    model = ovkgp.OVKRidge(lam=1.0).fit(X, X[:, :1])
    found = summarize_data(model, collect_rows(model))
    assert len(found.inputs) == MAX_COLUMNS and "5 further inputs" in found.omitted


def write(model, assessments=(), num_warnings=0):
    rows = collect_rows(model)
    return write_overview(model, "A model", rows, predict_held_out(model, rows), assessments, num_warnings)


def test_default_title_has_column_names(coupled, quantiles, trees, levels, styles):
    assert make_default_title(coupled) == "u, v and w over time"
    assert make_default_title(quantiles) == "1 output over 2 inputs"
    assert make_default_title(trees[0]) == "3 classes over 2 inputs"
    X, kinds = pd.DataFrame(trees[1], columns=["height", "girth"]), pd.Series(trees[2], name="tree")
    assert make_default_title(ovkgp.SimplexClassifier().fit(X, kinds)) == "tree (3 classes) over height and girth"
    rain = ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=0.1).fit(X, pd.Series(trees[1][:, 0], name="rain"))
    assert make_default_title(rain) == "rain over height and girth"
    assert make_default_title(levels[0]) == "Level sets over 2 inputs"
    assert make_default_title(styles[0]) == "6 outputs over 1 input"


def test_overview_reports_fit_accuracy_and_coverage(ridge, time_series):
    text = write(ridge, (assessment(60, 60),), 2)
    assert f"A model, fitted to 1 input, 3 outputs and {time_series[1].count().sum()} observed entries." in text
    explained = predict_held_out(ridge, collect_rows(ridge)).explained
    assert f"{100 * explained[0]:.0f} % (u)" in text and text.endswith("See the 2 warnings below.")
    assert assessment(60, 60).sentence in text


def test_overview_counts_warnings(levels):
    assert write(levels[0], num_warnings=1).endswith("See the warning below.")
    assert write(levels[0]) == "A model, fitted to 2 inputs and 40 rows. There are no warnings."


def test_overview_of_many_outputs_names_worst_and_best():
    X = np.linspace(0, 6, 30)[:, None]
    Y = np.sin(X + np.arange(6))
    one, many = (ovkgp.OVKRidge(lam=0.01).fit(X, part) for part in (Y[:, :1], Y))
    assert "Leave-one-row-out explained variance: " in write(one) and "(output" not in write(one)
    assert write(many).count("(output") == 2  # the worst and the best


def test_overview_of_useless_model_reports_none():
    X = np.linspace(0, 6, 30)[:, None]
    model = ovkgp.OVKRidge(lam=1e-6, lengthscale=0.01).fit(X, np.random.default_rng(0).normal(size=(30, 1)))
    assert "explained variance: none." in write(model)


def test_overview_of_classifiers_reports_accuracy(trees, costs):
    model, X, labels = trees
    assert f"Accuracy on the training rows: {100 * np.mean(model.predict(X) == labels):.0f} %." in write(model)
    model, X, labels = costs
    assert f": {model.roc_curve(X, labels).area:.3g}." in write(model)
