"""The adapter to sktime: its own checks, agreement with the forecaster, updates, evaluation and splitters."""

import doctest
import importlib
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.estimators.series import PersistenceForecaster, backtest
from ovkgp.exceptions import MissingExtraError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def adapter():
    pytest.importorskip("sktime")
    return importlib.import_module("ovkgp.bridges.sktime")


def make_series(T=60, columns=("a", "b")):
    rng = np.random.default_rng(0)
    index = pd.period_range("2020-01", periods=T, freq="M")
    return pd.DataFrame(rng.normal(size=(T, len(columns))).cumsum(0), index=index, columns=list(columns))


def test_missing_sktime_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sktime", None)
    monkeypatch.setitem(sys.modules, "sktime.forecasting.base", None)
    monkeypatch.delitem(sys.modules, "ovkgp.bridges.sktime", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'ovkgp\[sktime\]'"):
        importlib.import_module("ovkgp.bridges.sktime")


@pytest.mark.slow
def test_adapter_passes_sktime_checks(adapter):
    from sktime.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(adapter.SktimeForecaster, verbose=False)
    assert len(found) > 500
    assert {name: result for name, result in found.items() if result != "PASSED"} == {}


def test_docstring_runs(adapter):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert doctest.testmod(adapter).failed == 0


def test_adapter_forecasts_as_the_forecaster(adapter):
    series, forecaster = make_series(), PersistenceForecaster(season=2)
    adapted = adapter.SktimeForecaster(forecaster, random_state=3).fit(series)
    expected = PersistenceForecaster(season=2).fit(series).forecast(4, level=0.8, random_state=3)
    pd.testing.assert_frame_equal(adapted.predict(fh=[1, 4]), expected.mean.iloc[[0, 3]], check_freq=False)
    intervals = adapted.predict_interval(fh=[2, 4], coverage=0.8)
    np.testing.assert_allclose(intervals["b", 0.8, "lower"], expected.lower["b"].iloc[[1, 3]])
    np.testing.assert_allclose(intervals["a", 0.8, "upper"], expected.upper["a"].iloc[[1, 3]])
    np.testing.assert_allclose(adapted.predict_var(fh=[4]), expected.std.iloc[[3]] ** 2)
    assert not hasattr(forecaster, "series_format_")


def test_update_appends_rows(adapter):
    series = make_series()
    adapted = adapter.SktimeForecaster().fit(series[:40])
    before = adapted.predict(fh=[3, 4])
    adapted.update(series[40:42], update_params=False)
    # forecasts of the same months, since the rows are not used yet
    pd.testing.assert_frame_equal(adapted.predict(fh=[1, 2]), before)
    adapted.update(series[30:50])  # overlapping rows are not appended again
    adapted.update(series[50:55])
    expected = PersistenceForecaster().fit(series[:55]).forecast(2, random_state=0)
    np.testing.assert_allclose(adapted.predict(fh=[1, 2]), expected.mean)
    np.testing.assert_allclose(adapted.predict_var(fh=[1, 2]), expected.std**2)


@pytest.mark.parametrize("strategy", ["refit", "update"])
def test_evaluation_of_sktime_agrees_with_backtest(adapter, strategy):
    from sktime.forecasting.model_evaluation import evaluate
    from sktime.split import ExpandingWindowSplitter

    series = make_series(columns=["a"])["a"]
    cv = ExpandingWindowSplitter(fh=[1, 3], initial_window=50, step_length=2)
    theirs = evaluate(adapter.SktimeForecaster(), cv, series, strategy=strategy, return_data=True)
    ours = backtest(PersistenceForecaster(), series, cv, strategy=strategy, n_samples=50)
    assert ours["horizon"].unique().tolist() == [1, 3] and ours["fold"].nunique() == len(theirs)
    np.testing.assert_allclose(ours["mean"], np.concatenate([part.to_numpy().ravel() for part in theirs["y_pred"]]))


def test_splitters_of_sktime_work_on_arrays(adapter):
    from sktime.split import SlidingWindowSplitter

    values = make_series().to_numpy()
    found = backtest(
        ovkgp.PersistenceForecaster(), values, SlidingWindowSplitter(fh=[2], window_length=30), n_samples=50
    )
    assert found["origin"].tolist()[:4] == [30, 30, 31, 31] and set(found["horizon"]) == {2}
