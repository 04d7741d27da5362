"""Forecasters of several series at once, and backtests."""

from ovkgp.estimators.series.backtest import RollingSplits, backtest, compare_backtests, rolling_splits, score_backtest
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.persistence import PersistenceForecaster, PersistenceRegressor
from ovkgp.estimators.series.series_data import SeriesFormat as SeriesFormat
from ovkgp.estimators.series.series_data import read_series as read_series

__all__ = [
    "Forecast",
    "PersistenceForecaster",
    "PersistenceRegressor",
    "RollingSplits",
    "backtest",
    "compare_backtests",
    "rolling_splits",
    "score_backtest",
]
