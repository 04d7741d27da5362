"""Forecasters of several series at once."""

from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import SeriesFormat, read_series

__all__ = ["Forecast", "SeriesFormat", "read_series"]
