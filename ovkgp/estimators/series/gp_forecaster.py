"""`GPForecaster`: forecasts and gap filling of one or several series by a Gaussian process of time.

The model is a sum of independent processes of time ⊗ outputs: a level with a trend, seasons, short-term deviations, and effects of
exogenous columns. Without exogenous columns it is Markov, and the state-space strategy updates forecasts in O(1) per new row.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed, check_integer, check_probability
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.options import Rule, integer, names_in, one_of
from ovkgp.estimators.common.summary import Summary, pluralize
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import Series, index_by_stamps, read_series, select_exog, split_exog
from ovkgp.estimators.series.time_structure import (
    CALENDAR,
    RESIDUALS,
    TRENDS,
    Problem,
    SeriesModel,
    Structure,
    TimeScale,
    candidate_seasons,
    is_period_list,
    merge_structures,
    read_periods,
    select_structure,
    train,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.records import named_kernels

AUTO_TRENDS = ("linear", "integrated", "none")
MAX_COUPLED_OUTPUTS = 6  # outputs that coupled="auto" models jointly
MAX_SELECTION_OUTPUTS = 3  # outputs that select the structure of a coupled model
STEPS_PER_MEAN = 60  # months differ in length; 60 steps are 12 weeks of business days, or 5 years of months
MIN_ROWS = 3  # with an observed output


@storable(
    "format_",
    "times_",
    "values_",
    "exog_values_",
    "exog_names_",
    "center_",
    "scale_",
    "exog_center_",
    "exog_scale_",
    "time_origin_",
    "time_span_",
    "models_",
    "output_names_",
    finish=lambda estimator: estimator._condition(),
)
class GPForecaster(Estimator):
    """Forecasts, and fills gaps of, one or several series by a Gaussian process of time.

    Terms are selected on the last 500 rows by log evidence minus ½ log N per hyperparameter. Stamps may be irregular, and values may be
    missing.

    Parameters
    ----------
    trend : {"auto", None, "linear", "matern", "integrated"}, default="auto"
        Trend of the series: None is a constant level, "linear" a level with a slope, and in addition a stationary Matérn-5/2 process or integrated
        Brownian motion, whose slope changes. "auto" selects among "linear", "integrated" and None.
    seasonal : "auto", None, or a period or list of periods, default="auto"
        Periods: a number of steps (of a regular series; otherwise in units of the index, days for dates), a name such as "day", "week" or
        "year", or a duration such as "12h". "auto" selects among the day, week and year of a series with dates, where at least two are
        observed, and the largest peaks of the spectrum of other series. It also selects whether a season changes over time.
    kernel : "auto", None, str or gpytorch.kernels.Kernel, default="auto"
        Kernel of short-term deviations, by name ("matern12", "matern32", "rbf", …) or as a scalar kernel of one column, time as a
        fraction of the length of the series. "auto" selects between "matern12" and "matern32".
    coupled : bool or "auto", default="auto"
        Whether outputs are modeled jointly, with a matrix between outputs per term, instead of one by one. "auto" couples two to six.
    rank : int, default=2
        Rank of the matrices between outputs, besides a diagonal, at most the number of outputs.
    exog : list of str or None, default=None
        Columns of the series that are inputs, such as temperatures or indicators of holidays. Their future values are an argument of
        `forecast`.
    exog_effect : {"linear", "smooth"}, default="linear"
        Effect of the exogenous columns: linear, or linear plus a Matérn-5/2 process.
    transform : {None, "log"}, default=None
        Transform of the outputs. "log" is for positive series; means and intervals are in original units.
    training_rows : int or None, default=2000
        Maximum number of last rows on which hyperparameters are trained. Forecasts are always conditioned on all rows.
    verbose : int, default=0
        If 1, progress bars are shown.

    Attributes
    ----------
    models_ : list of SeriesModel
        Trained models: one of all outputs, or one per output.
    structures_ : dict of str to Structure
        Terms of the model of each output.
    output_names_ : list of str
        Names of the outputs.
    format_ : SeriesFormat
        Columns and index of the series.

    Raises
    ------
    InputError
        If an output has fewer than 3 observed values, values are not positive with `transform="log"`, or exogenous values are missing.

    Notes
    -----
    Level and slope have fixed wide priors; other hyperparameters are at the mode of evidence and priors. Complexity: O(n s³) time and
    O(n s²) memory per evaluation of the evidence, s being the number of entries of the state; O(N³) for N observed entries with exogenous
    columns or a kernel that is not Markov, or if N is at most 1000.

    References
    ----------
    Särkkä, Solin and Hartikainen (2013), Spatiotemporal learning via infinite-dimensional Bayesian filtering and smoothing.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from ovkgp.estimators.series.gp_forecaster import GPForecaster
    >>> months = pd.date_range("2015-01-01", periods=60, freq="MS", name="month")
    >>> angle = 2 * np.pi * np.arange(60) / 12
    >>> noise = 0.1 * np.random.default_rng(0).normal(size=60)
    >>> sales = pd.Series(5 + 0.05 * np.arange(60) + np.sin(angle) + noise, index=months, name="sales")
    >>> model = GPForecaster(trend="linear", kernel="matern12", seasonal="year").fit(sales)
    >>> forecast = model.forecast(12, n_samples=200, random_state=0)
    >>> forecast
    Forecast(steps=12, outputs=['sales'], stamps=2020-01-01 00:00:00 to 2020-12-01 00:00:00, n_samples=200, level=0.9)
    >>> bool((forecast.mean - (5 + 0.05 * np.arange(60, 72) + np.sin(angle[:12]))).abs().max() < 0.3)
    True
    """

    kind = "series"
    description = Description(
        "Gaussian process of time",
        "Each series is a sum of independent Gaussian processes of time: a level with a trend, seasons, short-term deviations and noise.",
        "y(t) = level + trend(t) + Σ_j season_j(t) + f(t) + ε",
    )

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "trend": [one_of("auto", *TRENDS[1:]), None],
        "seasonal": [
            Rule('"auto", a period or a list of periods', is_period_list, lambda: ("auto", *CALENDAR)),
            None,
        ],
        "kernel": [one_of("auto"), names_in(named_kernels), None, Kernel],
        "coupled": [bool, one_of("auto")],
        "rank": [integer()],
        "exog": [
            None,
            Rule("a list of column names", lambda value: not isinstance(value, str) and len(list(value)) > 0),
        ],
        "exog_effect": [one_of("linear", "smooth")],
        "transform": [None, one_of("log")],
        "training_rows": [None, integer(10)],
        "verbose": [integer(0)],
    }

    def __init__(
        self,
        trend="auto",
        seasonal="auto",
        kernel="auto",
        coupled="auto",
        rank=2,
        exog=None,
        exog_effect="linear",
        transform=None,
        training_rows=2000,
        verbose=0,
    ):
        self.trend = trend
        self.seasonal = seasonal
        self.kernel = kernel
        self.coupled = coupled
        self.rank = rank
        self.exog = exog
        self.exog_effect = exog_effect
        self.transform = transform
        self.training_rows = training_rows
        self.verbose = verbose

    def fit(self, series, groups=None) -> GPForecaster:
        """Select the terms of the model and train it on one series.

        Parameters
        ----------
        series : array-like of shape (T, p) or (T,), DataFrame or Series
            Outputs, NaN where missing, and exogenous columns. The index may hold dates, periods or numbers, unsorted, irregular or equal
            (readings at the same time); without index, rows are equally spaced.
        groups : None
            Not supported; several series are fitted one by one.

        Returns
        -------
        GPForecaster
            The estimator itself.
        """
        self.check_options()
        if groups is not None:
            raise OptionError(
                "groups is not supported by GPForecaster, whose input is the time of one series. Fit one forecaster per series, or pass simultaneous series as columns of one frame."
            )
        self.exog_names_ = None if self.exog is None else [str(name) for name in self.exog]
        part, self.exog_values_ = self._read(series, "series", is_fit=True)
        self.times_, self.values_, self.output_names_ = part.times, part.values, self.format_.labels
        values = self._transformed(part.values)
        self._check_rows(values)
        self._set_scales(values)
        scaled = (values - self.center_) / self.scale_
        scale = TimeScale.of(part.times, self._step())
        self.time_origin_, self.time_span_ = scale.origin, scale.span
        kernel = self.kernel if isinstance(self.kernel, Kernel) else None
        problem = Problem(
            self._inputs(part.times, self.exog_values_),
            scaled,
            scale,
            self.exog_effect,
            kernel,
            self.rank,
            self.verbose,
        )
        self.models_ = [self._train(problem, outputs) for outputs in self._output_groups()]
        self._condition()
        return self

    def fit_table(self, X, Y) -> GPForecaster:
        """Fit to a table: the first column of X holds the stamps, the others are exogenous.

        Parameters
        ----------
        X : DataFrame of shape (T, 1 + q)
            Dates or numbers, and exogenous columns.
        Y : DataFrame of shape (T, p)
            Outputs, NaN where missing.

        Returns
        -------
        GPForecaster
            The estimator itself.
        """
        exog = [str(name) for name in pd.DataFrame(X).columns[1:]] or None
        return self.set_params(exog=exog).fit(index_by_stamps(X, Y))

    @property
    def input_names(self) -> list[str]:
        """Raise OptionError: a forecaster predicts the steps after its series, not rows of a table."""
        raise OptionError(
            "GPForecaster does not predict rows of a table, so that reports and criticism of such predictions are not supported. Use forecast and Forecast.score, or `ovkgp forecast MODEL`."
        )

    def _step(self) -> float | None:
        """Return the mean distance of the rows of a regular series; None if it is irregular."""
        form, last = self.format_, self.times_[-1]
        if not form.is_regular:
            return None
        if form.kind == "position":
            return 1.0
        stamps = form.future_stamps(self._stamp(last), STEPS_PER_MEAN)
        return float(form.times(stamps)[-1] - last) / STEPS_PER_MEAN

    def _output_groups(self) -> list[list[int]]:
        """Return the outputs of each model."""
        p = self.format_.num_outputs
        is_coupled = p <= MAX_COUPLED_OUTPUTS if self.coupled == "auto" else self.coupled
        return [list(range(p))] if is_coupled else [[j] for j in range(p)]

    def _train(self, problem: Problem, outputs: list[int]) -> SeriesModel:
        """Select the structure of some outputs and train their model."""
        trends = AUTO_TRENDS if self.trend == "auto" else (self.trend or "none",)
        residuals = RESIDUALS if isinstance(self.kernel, str) and self.kernel == "auto" else (self.kernel,)
        residuals = ("object",) if problem.kernel is not None else residuals
        counts = np.isfinite(problem.Y[:, outputs]).sum(0)
        chosen = [outputs[j] for j in np.argsort(-counts, kind="stable")[:MAX_SELECTION_OUTPUTS]]
        found = []
        for output in chosen:
            seasons, candidates = self._seasons(problem, output)
            found.append(select_structure(problem, trends, residuals, seasons, candidates, output))
        structure = found[0].structure if len(outputs) == 1 else merge_structures([part.structure for part in found])
        rows = problem.columns(outputs)
        rows = rows if self.training_rows is None else rows.last_rows(self.training_rows)
        return train(rows, structure, outputs, found[0])

    def _seasons(self, problem: Problem, output: int) -> tuple[tuple, tuple]:
        """Return the given seasons, and the candidates of an output."""
        if self.seasonal is None:
            return (), ()
        has_dates = self.format_.kind in ("date", "period")
        if isinstance(self.seasonal, str) and self.seasonal == "auto":
            return (), candidate_seasons(self.times_, problem.Y[:, output], problem.scale, has_dates)
        return read_periods(self.seasonal, problem.scale, has_dates, self.format_.is_regular), ()

    # Conversion of series.

    def _read(self, series, name: str, is_fit: bool = False) -> tuple[Series, np.ndarray | None]:
        """Read a series and its exogenous columns, which are sorted alike."""
        exog = None
        if self.exog_names_ is not None:
            series, exog = split_exog(series, self.exog_names_, name)
        read = read_series(series, regular=False, fitted=None if is_fit else self.format_, name=name)
        if is_fit:
            self.format_ = read.format
        return read.only(name), exog

    def _transformed(self, values: np.ndarray) -> np.ndarray:
        """Return transformed values (T, p)."""
        if self.transform is None:
            return values
        smallest = values[np.isfinite(values)].min(initial=np.inf)
        if smallest <= 0:
            raise InputError(
                f'series must be positive with transform="log", got {smallest:.6g}. Use transform=None, or add a constant.'
            )
        return np.log(values)

    def _check_rows(self, values: np.ndarray) -> None:
        counts = np.isfinite(values).sum(0)
        if counts.min() < MIN_ROWS:
            name = self.output_names_[int(counts.argmin())]
            raise InputError(
                f"series must have at least {MIN_ROWS} observed values per output, got {counts.min()} of {name!r}. Drop the column or add data."
            )

    def _set_scales(self, values: np.ndarray) -> None:
        """Set the mean and standard deviation of outputs and exogenous columns; 1 for constant ones."""
        self.center_, std = np.nanmean(values, 0), np.nanstd(values, 0)
        self.scale_ = np.where(std > 1e-12 * np.abs(self.center_), std, 1.0)
        self.exog_center_ = self.exog_scale_ = None
        if self.exog_values_ is not None:
            self.exog_center_, std = self.exog_values_.mean(0), self.exog_values_.std(0)
            self.exog_scale_ = np.where(std > 1e-12 * np.abs(self.exog_center_), std, 1.0)

    def _inputs(self, times: np.ndarray, exog: np.ndarray | None) -> np.ndarray:
        """Return the inputs (T, 1 + q) of the models."""
        scaled = TimeScale(self.time_origin_, self.time_span_, 1.0).inputs(times)
        return scaled if exog is None else np.hstack([scaled, (exog - self.exog_center_) / self.exog_scale_])

    # Posteriors.

    def _condition(self) -> None:
        """Condition all models on the stored rows."""
        self._gps = [model.gp() for model in self.models_]
        self._posteriors = self._condition_on(self.times_, self.values_, self.exog_values_)

    def _condition_on(self, times: np.ndarray, values: np.ndarray, exog: np.ndarray | None) -> list:
        X = self._inputs(times, exog)
        Y = (self._transformed(values) - self.center_) / self.scale_
        pairs = zip(self._gps, self.models_, strict=True)
        return [gp.condition(X, Y[:, model.outputs]) for gp, model in pairs]

    def update(self, series, drop: int = 0) -> GPForecaster:
        """Append rows that continue the series, and forget the oldest ones; hyperparameters and scales stay.

        Forecasts equal those of a model that is conditioned again on the remaining rows.

        Parameters
        ----------
        series : array-like of shape (T, p) or (T,), DataFrame or Series
            Further rows, not earlier than the last one, with the columns of the fit. Rows without index follow the last row.
        drop : int, default=0
            Number of the oldest rows that are dropped, at most those that are stored.

        Returns
        -------
        GPForecaster
            The estimator itself.

        Notes
        -----
        Complexity: O(s³) per row for a state of s entries, besides a copy of the data; O(N²) per row with a dense factor. If rows are
        dropped, that of one conditioning on the remaining rows.
        """
        check_is_fitted(self)
        part, exog = self._read(series, "series")
        times = part.times if self.format_.kind != "position" else self.times_[-1] + 1 + part.times
        if len(times) and times[0] < self.times_[-1]:
            raise InputError(
                f"series must continue the fitted one, which ends at {self._stamp(self.times_[-1])}, got a row at {self._stamp(times[0])}. Fit again with all rows."
            )
        drop = check_integer("drop", drop, 0)
        if drop >= len(self.times_) + len(times):
            raise InputError(f"drop must leave at least one row, got {drop} of {len(self.times_) + len(times)}.")
        Y = (self._transformed(part.values) - self.center_) / self.scale_
        earlier = (self._transformed(self.values_[:drop]) - self.center_) / self.scale_
        inputs, posteriors = self._inputs(times, exog), []
        joined = [
            None if old is None else np.concatenate([old, new])[drop:]
            for old, new in ((self.times_, times), (self.values_, part.values), (self.exog_values_, exog))
        ]
        if not all(np.isfinite(joined[1][:, model.outputs]).any() for model in self.models_):
            raise InputError(f"drop must leave an observed value of each output, got {drop}.")
        if drop > len(self.times_):
            posteriors = self._condition_on(*joined)
        else:
            for gp, model, posterior in zip(self._gps, self.models_, self._posteriors, strict=True):
                num_stored = int(np.isfinite(earlier[:, model.outputs]).any(1).sum())
                posteriors.append(gp.update(posterior, inputs, Y[:, model.outputs], drop=num_stored))
        self.times_, self.values_, self.exog_values_ = joined
        self._posteriors = posteriors
        return self

    def _stamp(self, time: float):
        stamps = self.format_.stamps(np.array([time]))
        return time if stamps is None else stamps[0]

    # Predictions.

    def forecast(
        self, steps, history=None, *, exog=None, n_samples: int = 1000, level: float = 0.9, random_state=None
    ) -> Forecast:
        """Forecast new observations after the end of the series, as joint paths.

        Parameters
        ----------
        steps : int or Index
            Number of steps, or the future stamps, which are required if the stamps of the series are irregular.
        history : array-like, DataFrame or Series, default=None
            Series that is forecast instead of the fitted one, with its columns, at the hyperparameters of the fit.
        exog : DataFrame or array-like of shape (steps, q), default=None
            Future values of the exogenous columns. Required if the model has such columns.
        n_samples : int, default=1000
            Number of paths.
        level : float, default=0.9
            Probability of the intervals.
        random_state : int, numpy.random.Generator or None, default=None
            Seed of the paths.

        Returns
        -------
        Forecast
            Mean, intervals and paths. Without a transform, mean and intervals are in closed form.

        Notes
        -----
        Complexity: O(steps s² n_samples) for the state-space strategy, independent of the length of the series.
        """
        check_is_fitted(self)
        check_probability("level", level)
        posteriors, times = self._posteriors, self.times_
        if history is not None:
            part, past = self._read(history, "history")
            times, posteriors = part.times, self._condition_on(part.times, part.values, past)
        stamps, future = self._future_times(steps, times)
        inputs = self._inputs(future, self._future_exog(exog, stamps, len(future)))
        draws, mean, std = self._predict(posteriors, inputs, check_integer("n_samples", n_samples, 2), random_state)
        return self._forecast(draws, mean, std, stamps, level)

    def _future_times(self, steps, times: np.ndarray) -> tuple[pd.Index | None, np.ndarray]:
        """Return future stamps and times."""
        form, last = self.format_, times[-1]
        if isinstance(steps, pd.Index | np.ndarray | list):
            if form.kind == "position":
                raise InputError("steps must be a number for a series without an index.")
            index = pd.Index(steps)
            blank = pd.DataFrame(np.zeros((len(index), form.num_outputs)), index=index, columns=form.names)
            part = read_series(blank, regular=False, fitted=form, name="steps").only("steps")
            if len(part) == 0 or part.times[0] < last:
                raise InputError(f"steps must be stamps after the last row, {self._stamp(last)}.")
            return part.stamps, part.times
        count = check_integer("steps", steps)
        if form.kind == "position":
            return None, last + np.arange(1, count + 1)
        stamps = form.future_stamps(self._stamp(last), count)
        return stamps, form.times(stamps)

    def _future_exog(self, exog, stamps: pd.Index | None, count: int) -> np.ndarray | None:
        """Return future exogenous values (steps, q)."""
        if self.exog_names_ is None:
            if exog is not None:
                raise InputError("exog must be None for a model without exogenous columns.")
            return None
        if exog is None:
            raise InputError(
                f"exog must have the future values of {self.exog_names_} at the {count} forecast steps. Pass a DataFrame with these columns."
            )
        if isinstance(exog, pd.DataFrame):
            if stamps is not None and stamps.isin(exog.index).all() and exog.index.is_unique:
                exog = exog.loc[stamps]
            exog = select_exog(exog, self.exog_names_, "exog")
        exog = np.asarray(exog, dtype=np.float64)
        exog = exog[:, None] if exog.ndim == 1 else exog
        if exog.shape != (count, len(self.exog_names_)) or not np.isfinite(exog).all():
            raise InputError(
                f"exog must have {count} rows of finite values in {len(self.exog_names_)} columns, one per forecast step, got shape {exog.shape}."
            )
        return exog

    def _predict(self, posteriors, inputs: np.ndarray, n_samples: int, random_state) -> tuple[np.ndarray, ...]:
        """Return draws (n_samples, m, p) of new observations, their mean (m, p) and standard deviation, transformed."""
        rng, m, p = np.random.default_rng(as_seed(random_state)), len(inputs), self.format_.num_outputs
        draws, mean, std = np.empty((n_samples, m, p)), np.empty((m, p)), np.empty((m, p))
        for model, posterior in zip(self.models_, posteriors, strict=True):
            with torch.no_grad():
                found = posterior.predict(inputs, noise=True)
                paths = posterior.sample(inputs, n_samples, noise=True, random_state=rng)
            mean[:, model.outputs], std[:, model.outputs] = found.mean.numpy(), found.std.numpy()
            draws[:, :, model.outputs] = paths.numpy()
        return self.center_ + self.scale_ * draws, self.center_ + self.scale_ * mean, self.scale_ * std

    def _forecast(self, draws, mean, std, stamps: pd.Index | None, level: float, observed=None) -> Forecast:
        """Return a forecast in original units; `observed` (m, p) are known values, NaN elsewhere."""
        if self.transform == "log":
            draws, mean = np.exp(draws), np.exp(mean + std**2 / 2)
            std = None if observed is None else mean * np.sqrt(np.expm1(std**2))
        if observed is not None:
            is_known = np.isfinite(observed)
            draws, mean = np.where(is_known, observed, draws), np.where(is_known, observed, mean)
            std = None if self.transform == "log" else np.where(is_known, 0.0, std)
        return Forecast(draws, self.format_, stamps, level=level, mean=mean, std=std)

    def impute(self, series=None, *, n_samples: int = 100, level: float = 0.9, random_state=None) -> Forecast:
        """Fill the gaps of a series, given all its observed values, earlier and later ones.

        Rows that the index of a regular series skips are inserted.

        Parameters
        ----------
        series : array-like, DataFrame or Series, default=None
            Series with the columns of the fit. If None, the fitted series.
        n_samples : int, default=100
            Number of joint draws.
        level, random_state
            As for `forecast`.

        Returns
        -------
        Forecast
            `mean` is the series without gaps, `std` is zero at observed values, and `paths` are joint draws of the missing ones.
        """
        check_is_fitted(self)
        check_probability("level", level)
        times, values, exog, posteriors = self.times_, self.values_, self.exog_values_, self._posteriors
        if series is not None:
            part, exog = self._read(series, "series")
            times, values = part.times, part.values
            posteriors = self._condition_on(times, values, exog)
        stamps = self.format_.stamps(times)
        if exog is None and stamps is not None and self.format_.is_regular and stamps.is_unique:
            table = pd.DataFrame(values, index=stamps, columns=self.format_.names)
            full = read_series(table, regular=True, fitted=self.format_).only()
            times, values, stamps = full.times, full.values, full.stamps
        gaps = np.flatnonzero(~np.isfinite(values).all(1))
        n_samples = check_integer("n_samples", n_samples, 2)
        draws, mean, std = np.empty((n_samples, *values.shape)), np.zeros(values.shape), np.zeros(values.shape)
        if len(gaps):
            inputs = self._inputs(times[gaps], None if exog is None else exog[gaps])
            draws[:, gaps], mean[gaps], std[gaps] = self._predict(posteriors, inputs, n_samples, random_state)
        observed = np.where(np.isfinite(values), values, np.nan)
        return self._forecast(draws, mean, std, stamps, level, observed)

    @property
    def structures_(self) -> dict[str, Structure]:
        """Terms of the model of each output."""
        check_is_fitted(self)
        return {self.output_names_[j]: model.structure for model in self.models_ for j in model.outputs}

    def summary(self) -> Summary:
        """Return a text with the size, the terms and the noise of the model.

        Returns
        -------
        Summary
            Text.
        """
        check_is_fitted(self)
        first, last = (self._stamp(time) for time in self.times_[[0, -1]])
        lines = [
            f"{self.class_name}: {len(self.times_)} rows from {first} to {last}, {pluralize(len(self.output_names_), 'output')}"
        ]
        for model in self.models_:
            names, structure = [self.output_names_[j] for j in model.outputs], model.structure
            terms = [f"trend {structure.trend!r}"]
            if structure.residual is not None:
                terms.append("kernel object" if structure.residual == "object" else f"kernel {structure.residual!r}")
            for season in structure.seasons:
                kind = "changing " if season.changes else ""
                terms.append(
                    f"{kind}season of period {season.period:.6g} with {pluralize(season.harmonics, 'harmonic')}"
                )
            if self.exog_names_ is not None:
                terms.append(f"{self.exog_effect} effect of {', '.join(self.exog_names_)}")
            deviations = model.noise.sqrt().numpy() * self.scale_[model.outputs]
            noise = ", ".join(f"{value:.4g}" for value in deviations)
            lines.append(
                f"{', '.join(names)}: {'; '.join(terms)}; noise std {noise}; log evidence {model.log_evidence:.2f}"
            )
        return Summary("\n".join(lines))
