"""Tests of `ovkgp.plotting.forecasts`."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ovkgp.estimators.series import Forecast
from ovkgp.estimators.series.series_data import SeriesFormat, read_series
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_forecast

pytestmark = pytest.mark.filterwarnings("error")


def make_series(kind="date"):
    index = pd.date_range("2001-01-01", periods=30, freq="MS", name="month")
    index = index.to_period("M") if kind == "period" else index.tz_localize("UTC") if kind == "zoned" else index
    return pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) ** 2}, index=index)


def make_forecast(series, paths=50):
    read = read_series(series, regular=False)
    draws = np.random.default_rng(0).normal(size=(paths, 6, read.format.num_outputs))
    last = None if read.only().stamps is None else read.only().stamps[-1]
    return Forecast.from_paths(draws, read.format, last)


@pytest.mark.parametrize("kind", ["date", "period", "zoned"])
def test_plot_forecast_draws_fans_paths_and_series(kind):
    series = make_series(kind)
    forecast = make_forecast(series.iloc[:24])
    first, second = plot_forecast(forecast, series.iloc[:24], series.iloc[24:], paths=3)
    assert [axes.get_ylabel() for axes in (first, second)] == ["a", "b"] and first.get_xlabel() == "month"
    assert len(first.collections) == 2 and len(first.get_lines()) == 3 + 1 + 1 + 1
    mean, observed, later = first.get_lines()[3:]
    np.testing.assert_array_equal(mean.get_ydata(), forecast.mean["a"])
    np.testing.assert_array_equal(observed.get_ydata(), series["a"].iloc[:24])
    np.testing.assert_array_equal(mean.get_xdata(), later.get_xdata())
    band = first.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == forecast.quantile(0.05)["a"].min() and band.max() == forecast.quantile(0.95)["a"].max()
    first.figure.canvas.draw()


def test_plot_forecast_without_index_follows_the_history():
    forecast = make_forecast(np.arange(20.0))
    axes = plot_forecast(forecast, np.arange(20.0), levels=(0.8,), ax=Figure().subplots())
    assert list(axes.get_lines()[0].get_xdata()) == list(range(20, 26)) and len(axes.collections) == 1
    axes = plot_forecast(forecast, start=3, output=0, ax=Figure().subplots())
    assert list(axes.get_lines()[0].get_xdata()) == list(range(3, 9))


def test_skipped_rows_interrupt_the_line_of_the_history():
    series = make_series()
    forecast = make_forecast(series)
    axes = plot_forecast(forecast, series.drop(series.index[[4, 5]]), output="b", ax=Figure().subplots())
    assert list(np.flatnonzero(np.isnan(axes.get_lines()[1].get_ydata()))) == [4, 5]


def test_plot_forecast_rejects_unknown_outputs_and_too_many_paths():
    forecast = make_forecast(make_series())
    with pytest.raises(InputError, match="output"):
        plot_forecast(forecast, output="c", ax=Figure().subplots())
    with pytest.raises(OptionError, match="paths"):
        plot_forecast(forecast, paths=1000)
    assert SeriesFormat(1).labels == ["y"]
