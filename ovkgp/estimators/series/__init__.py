"""Forecasters of several series at once, backtests, and tables of windows for regressors."""

from ovkgp.estimators.series.backtest import backtest, compare_backtests, score_backtest
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.forecast_windows import ForecastWindows
from ovkgp.estimators.series.hsic_selector import HSICSelector
from ovkgp.estimators.series.persistence import PersistenceForecaster, PersistenceRegressor
from ovkgp.estimators.series.power_curve import PowerCurve
from ovkgp.estimators.series.rolling_splits import RollingSplits, rolling_splits
from ovkgp.estimators.series.series_data import SeriesFormat as SeriesFormat
from ovkgp.estimators.series.series_data import read_series as read_series

__all__ = [
    "Forecast",
    "ForecastWindows",
    "HSICSelector",
    "PersistenceForecaster",
    "PersistenceRegressor",
    "PowerCurve",
    "RollingSplits",
    "backtest",
    "compare_backtests",
    "rolling_splits",
    "score_backtest",
]
