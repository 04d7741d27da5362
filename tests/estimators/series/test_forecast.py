"""Forecasts: moments, intervals, tidy frames and scores."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from ovkgp import metrics
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import SeriesFormat, read_series
from ovkgp.exceptions import InputError, OptionError

PATHS = np.random.default_rng(0).normal([1.0, -2.0], [1.0, 3.0], size=(500, 4, 2))
INDEX = pd.date_range("2020-01-31", periods=9, freq="ME", name="month")


@pytest.fixture
def dated():
    table = pd.DataFrame(np.zeros((5, 2)), index=INDEX[:5], columns=["gdp", "rate"])
    form = read_series(table, regular=True).format
    return Forecast.from_paths(PATHS, form, INDEX[4], level=0.8)


def test_forecast_has_the_form_of_the_series(dated):
    assert dated.mean.index.equals(INDEX[5:]) and list(dated.mean.columns) == ["gdp", "rate"]
    np.testing.assert_allclose(dated.mean, PATHS.mean(0))
    np.testing.assert_allclose(dated.std, PATHS.std(0, ddof=1))
    np.testing.assert_allclose(dated.lower, np.quantile(PATHS, 0.1, axis=0))
    np.testing.assert_allclose(dated.upper, np.quantile(PATHS, 0.9, axis=0))
    np.testing.assert_allclose(dated.quantile(0.5), np.median(PATHS, 0))
    assert len(dated) == 4 and "2020-06-30" in repr(dated) and "n_samples=500" in repr(dated)


def test_forecast_of_arrays_has_arrays():
    forecast = Forecast.from_paths(PATHS, SeriesFormat(2))
    assert isinstance(forecast.mean, np.ndarray) and forecast.mean.shape == (4, 2)
    assert "stamp" not in forecast.to_frame()
    assert Forecast.from_paths(PATHS[..., :1], SeriesFormat(1, is_flat=True)).upper.shape == (4,)


def test_forecast_uses_given_moments():
    mean, std = np.arange(8.0).reshape(4, 2), np.full((4, 2), 2.0)
    forecast = Forecast(None, SeriesFormat(2), None, level=0.9, mean=mean, std=std)
    np.testing.assert_allclose(forecast.upper, mean + norm.ppf(0.95) * std)
    np.testing.assert_allclose(forecast.quantile(0.1), mean + norm.ppf(0.1) * std)
    assert "n_samples" not in repr(forecast)
    with pytest.raises(OptionError, match="two paths"):
        forecast.score(mean)
    with pytest.raises(InputError, match="paths must be given"):
        Forecast(None, SeriesFormat(2), None, mean=mean)


def test_forecast_to_frame_is_tidy(dated):
    table = dated.to_frame()
    assert list(table) == ["step", "stamp", "output", "mean", "std", "lower", "upper"] and len(table) == 8
    row = table[(table["output"] == "rate") & (table["step"] == 2)].iloc[0]
    assert row["stamp"] == INDEX[6] and row["mean"] == dated.mean.loc[INDEX[6], "rate"]
    assert row["lower"] == dated.lower.loc[INDEX[6], "rate"]


def test_forecast_score_agrees_with_metrics(dated):
    actual = pd.DataFrame(PATHS[0] * 2, index=INDEX[5:], columns=["gdp", "rate"])
    actual.iloc[1, 0] = np.nan
    draws = np.moveaxis(PATHS, 0, -1)
    found = dated.score(actual.iloc[::-1])
    assert found["rmse"] == metrics.root_mean_squared_error(actual, PATHS.mean(0))
    assert found["crps"] == metrics.crps_from_draws(actual, draws)
    assert found["energy_score"] == metrics.energy_score(actual, draws)
    assert found["coverage"] == metrics.coverage(actual, dated.lower, dated.upper)
    # rows outside of the forecast are ignored, those not passed count as missing
    longer = pd.concat([actual.iloc[:2], pd.DataFrame(0.0, index=INDEX[:3], columns=actual.columns)])
    partial = actual.copy()
    partial.iloc[2:] = np.nan
    assert dated.score(longer) == dated.score(partial)


def test_forecast_rejects_invalid_arguments(dated):
    with pytest.raises(OptionError, match="q must lie strictly between 0 and 1"):
        dated.quantile(1.0)
    with pytest.raises(OptionError, match="level"):
        Forecast(PATHS, SeriesFormat(2), None, level=90)
    with pytest.raises(InputError, match="no stamp of the forecast"):
        dated.score(pd.DataFrame(np.zeros((2, 2)), index=INDEX[:2], columns=["gdp", "rate"]))
    with pytest.raises(InputError, match="4 rows, one per step, got 3"):
        dated.score(np.zeros((3, 2)))
