"""Forecasters of several series at once, backtests, and tables of windows for regressors."""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
