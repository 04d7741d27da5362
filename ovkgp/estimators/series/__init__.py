"""Forecasters of several series at once."""

from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import SeriesFormat as SeriesFormat
from ovkgp.estimators.series.series_data import read_series as read_series

__all__ = ["Forecast"]
