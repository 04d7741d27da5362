"""Forecasters of several series at once."""

from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.gp_forecaster import GPForecaster
from ovkgp.estimators.series.series_data import SeriesFormat as SeriesFormat
from ovkgp.estimators.series.series_data import read_series as read_series
from ovkgp.estimators.series.time_structure import Season, Structure

__all__ = ["Forecast", "GPForecaster", "Season", "Structure"]
