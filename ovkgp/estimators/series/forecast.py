"""`Forecast`, the joint predictive distribution of the next steps of a series as sample paths, with means and intervals."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd
from scipy.stats import norm

from ovkgp.checks import check_probability
from ovkgp.estimators.series.series_data import SeriesFormat, read_series
from ovkgp.exceptions import InputError, OptionError
from ovkgp.metrics import coverage, crps_from_draws, energy_score, root_mean_squared_error


class Forecast:
    """Predictive distribution of new observations at the next steps of a series.

    `mean`, `std`, `lower` and `upper` have the form of the series: frames with future stamps and column names, or arrays.

    Parameters
    ----------
    paths : ndarray of shape (n_samples, steps, p) or None
        Joint draws. May be None if mean and standard deviation are given.
    form : SeriesFormat
        Columns and index of the series.
    stamps : Index or None
        Future stamps, None for series without an index.
    level : float, default=0.9
        Probability of the intervals.
    mean, std : ndarray of shape (steps, p) or None, default=None
        Moments of a Gaussian distribution in closed form. If both are given, intervals and quantiles are computed from them, and from
        the paths otherwise.

    Attributes
    ----------
    paths : ndarray of shape (n_samples, steps, p) or None
        Joint draws of all steps and outputs.
    level : float
        Probability of the intervals.
    stamps : Index or None
        Future stamps.
    output_names : list of str
        Column names; "y", or "y0", … without names.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.estimators.series.forecast import Forecast
    >>> from ovkgp.estimators.series.series_data import SeriesFormat
    >>> paths = np.random.default_rng(0).normal(size=(1000, 3, 2))
    >>> forecast = Forecast(paths, SeriesFormat(2), None, level=0.9)
    >>> forecast
    Forecast(steps=3, outputs=['y0', 'y1'], n_samples=1000, level=0.9)
    >>> forecast.mean.shape, forecast.quantile(0.5).shape
    ((3, 2), (3, 2))
    """

    def __init__(
        self,
        paths: np.ndarray | None,
        form: SeriesFormat,
        stamps: pd.Index | None,
        *,
        level: float = 0.9,
        mean: np.ndarray | None = None,
        std: np.ndarray | None = None,
    ):
        if paths is None and (mean is None or std is None):
            raise InputError("paths must be given if mean or std is None.")
        self.paths, self.stamps, self._format = paths, stamps, form
        self.level = check_probability("level", level)
        self._moments = (mean, std) if mean is not None and std is not None else None
        self._mean = paths.mean(0) if mean is None else np.asarray(mean, dtype=np.float64)

    @classmethod
    def from_paths(
        cls, paths, form: SeriesFormat, last=None, *, level: float = 0.9, mean=None, std=None, stamps=None
    ) -> Forecast:
        """Make a forecast of the steps that follow the stamp `last`.

        Parameters
        ----------
        paths : ndarray of shape (n_samples, steps, p)
            Joint draws.
        form : SeriesFormat
            Columns and index of the series.
        last : stamp or None, default=None
            Last stamp of the series. Ignored for series without an index.
        level, mean, std
            As for the constructor.
        stamps : Index or None, default=None
            Future stamps. If None, they continue the index of the series.

        Returns
        -------
        Forecast
            Forecast with future stamps.
        """
        paths = np.asarray(paths, dtype=np.float64)
        if stamps is None:
            stamps = form.future_stamps(last, paths.shape[1])
        return cls(paths, form, stamps, level=level, mean=mean, std=std)

    def __len__(self) -> int:
        return len(self._mean)

    def __repr__(self) -> str:
        facts = [f"steps={len(self)}", f"outputs={self.output_names}"]
        if self.stamps is not None:
            facts.append(f"stamps={self.stamps[0]} to {self.stamps[-1]}")
        if self.paths is not None:
            facts.append(f"n_samples={len(self.paths)}")
        return f"Forecast({', '.join(facts)}, level={self.level:g})"

    @property
    def output_names(self) -> list[str]:
        """Column names; "y", or "y0", … without names."""
        return self._format.labels

    @property
    def mean(self):
        """Mean of each step and output."""
        return self._table(self._mean)

    @property
    def std(self):
        """Standard deviation of each step and output, including the noise."""
        return self._table(self._std)

    @property
    def lower(self):
        """Lower ends of the central intervals of probability `level`."""
        return self.quantile((1 - self.level) / 2)

    @property
    def upper(self):
        """Upper ends of the central intervals of probability `level`."""
        return self.quantile((1 + self.level) / 2)

    def quantile(self, q):
        """Return a quantile of each step and output.

        Parameters
        ----------
        q : float
            Level strictly between 0 and 1.

        Returns
        -------
        DataFrame, Series or ndarray
            Quantiles, in the form of the series.
        """
        return self._table(self._quantile(check_probability("q", q)))

    def to_frame(self) -> pd.DataFrame:
        """Return the forecast as a tidy frame.

        Returns
        -------
        DataFrame
            One row per step and output, with the columns step, stamp (if there are stamps), output, mean, std, lower and upper.
        """
        steps, p = self._mean.shape
        columns = {"step": np.repeat(np.arange(1, steps + 1), p)}
        if self.stamps is not None:
            columns["stamp"] = self.stamps.repeat(p)
        columns["output"] = np.tile(self.output_names, steps)
        ends = (self._quantile((1 + sign * self.level) / 2) for sign in (-1, 1))
        for name, values in zip(("mean", "std", "lower", "upper"), (self._mean, self._std, *ends), strict=True):
            columns[name] = values.ravel()
        return pd.DataFrame(columns)

    def score(self, actual) -> dict[str, float]:
        """Compare the forecast with what was observed.

        Parameters
        ----------
        actual : array-like of shape (steps, p) or (steps,)
            Observations of the forecast steps, NaN where missing. Rows of a frame are matched by their stamps.

        Returns
        -------
        dict of str to float
            "rmse" of the mean, "crps" and "coverage" of the intervals, averaged over steps and outputs, and "energy_score" of the
            joint draws of each step, averaged over steps.
        """
        if self.paths is None or len(self.paths) < 2:
            raise OptionError("score requires at least two paths. Forecast with n_samples of at least 2.")
        observed = self._observations(actual)
        draws = np.moveaxis(self.paths, 0, -1)
        ends = (self._quantile((1 + sign * self.level) / 2) for sign in (-1, 1))
        return {
            "rmse": root_mean_squared_error(observed, self._mean),
            "crps": crps_from_draws(observed, draws),
            "coverage": coverage(observed, *ends),
            "energy_score": energy_score(observed, draws),
        }

    def _observations(self, actual) -> np.ndarray:
        """Return observations (steps, p), of a frame those at the stamps of the forecast."""
        form = self._format
        part = read_series(actual, regular=False, fitted=form, name="actual").only("actual")
        if part.stamps is None or self.stamps is None:
            if len(part) != len(self):
                raise InputError(f"actual must have {len(self)} rows, one per step, got {len(part)}.")
            return part.values
        found = np.full(self._mean.shape, np.nan)
        rows = self.stamps.get_indexer(part.stamps)
        if not (rows >= 0).any():
            raise InputError(
                f"actual has no stamp of the forecast, {self.stamps[0]} to {self.stamps[-1]}, got {part.stamps[0]} to {part.stamps[-1]}."
            )
        found[rows[rows >= 0]] = part.values[rows >= 0]
        return found

    @cached_property
    def _std(self) -> np.ndarray:
        if self._moments is not None:
            return np.asarray(self._moments[1], dtype=np.float64)
        return self.paths.std(0, ddof=1) if len(self.paths) > 1 else np.full(self._mean.shape, np.nan)

    def _quantile(self, q: float) -> np.ndarray:
        if self._moments is not None:
            return self._mean + norm.ppf(q) * self._std
        return np.quantile(self.paths, q, axis=0)

    def _table(self, values: np.ndarray):
        return self._format.table(values, self.stamps)
