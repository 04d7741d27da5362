"""`VectorAutoregressor`, vector autoregression with operator-valued kernels: linear VAR, OKVAR and ORFFVAR (BT-90..98)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.named_kernels import ALIASES, BASE_KERNEL, RIDGE_KERNELS, STRUCTURES, name_structure
from ovkgp.estimators.common.options import (
    CONVENTIONS,
    LAM,
    POSITIVE,
    RANDOM_STATE,
    VERBOSE,
    integer,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.summary import Hyperparameter, Summary, pluralize
from ovkgp.estimators.regression.gp_regressor import GPRegressor
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.lagged_pairs import Pairs, lagged_inputs, make_pairs, replace_pairs
from ovkgp.estimators.series.paths import sample_paths
from ovkgp.estimators.series.series_data import (
    Series,
    SeriesFormat,
    StampedTableMixin,
    read_continuation,
    read_series,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.ridge.solvers import SOLVERS
from ovkgp.kernels import DecomposableKernel, OutputMatrix
from ovkgp.metrics import r2_score

MAX_EXACT_PAIRS = 1000  # number of pairs up to which a ridge estimate with approximation="auto" is exact
MAX_RELEVANCE_ROWS = 200  # number of pairs at which the derivatives of `relevance_` are averaged
RELEVANCE_STEP = 1e-4  # of the differences, in standard deviations of a series


@storable(
    *("n_features_in_", "output_names_", "_format", "_values", "_times", "scaling_"),
    parts=("regressor_",),
)
class VectorAutoregressor(StampedTableMixin, Estimator):
    """Vector autoregression x_t = h(x_{t−1}, …, x_{t−p}) + ε_t of several series, with h linear or a Gaussian process.

    Parameters
    ----------
    lags : int, default=1
        Number of earlier rows that a row depends on.
    kernel : {"auto", "linear", "independent", "decomposable", "lmc"} or Kernel, default="auto"
        Kernel of h on the lagged rows, (x_{t−1}, …, x_{t−lags}). "linear" is the linear VAR, with a normal prior on its coefficients;
        the others are those of `GPRegressor`, or, with `lam`, "auto", "independent" and "decomposable" of `OVKRidge`. A kernel object
        has lags·p inputs and is used in the units of the series.
    base_kernel : str or Kernel, default="auto"
        Scalar kernel of the kernels by name, other than "linear". With `lam`, "auto" is "rbf".
    approximation : {"auto", "exact", "orff", "nystrom"}, default="auto"
        "orff" uses random features (ORFFVAR). With `lam`, "auto" is exact (OKVAR) up to 1000 pairs. A linear VAR always has finitely many
        features, which are exact.
    num_frequencies : int or "auto", default="auto"
        Number of random frequencies or landmarks; "auto" is 500.
    lam : float, list of float or None, default=None
        λ of the ridge estimate Σ‖x_t − h‖²/(2σ²) + ½‖h‖², where `convention` gives σ², or candidates among which leave-one-out selects.
        If None, kernel and noise are trained by a `GPRegressor`.
    convention : str, default="var"
        Meaning of `lam`. "var" is σ² = (N − 1)λ for a series of N rows, or λ times the number of pairs in general. The others are those of
        `OVKRidge`, with pairs as rows.
    lengthscale : "median" or float, default="median"
        Lengthscale of a base kernel by name, with `lam`.
    output_matrix : array-like of shape (p, p), OutputMatrix or None, default=None
        Output matrix of "auto", "decomposable" or "linear", with `lam`.
    scale : {"evidence", "given"}, default="evidence"
        With `lam`, "evidence" multiplies prior and noise by the factor of the largest evidence, so that intervals are calibrated; the
        mean does not change. "given" keeps the noise σ² of the convention.
    fit_intercept : bool, default=True
        Whether the ridge estimate has an intercept. Trained models always have one.
    hyperparameters : {"auto", "evidence", "fixed", "laplace", "svi", "nuts"}, default="auto"
        Training of the hyperparameters, as for `GPRegressor`. Ignored with `lam`.
    noise : {"auto", "shared", "per_output", "full"}, default="auto"
        Noise covariance of a trained model. "auto" is "per_output" for kernels "auto" and "independent", and "full" otherwise; the
        mixture of "auto" estimates the correlation of new observations separately. Ignored with `lam`.
    solver : str, default="auto"
        Solver of the ridge estimate, as for `ORFFRidge`; "doubly_sgd" is the doubly stochastic gradient descent (Algorithm 4).
    random_state : int, RandomState instance or None, default=None
        Seed of random features and training.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    regressor_ : GPRegressor, OVKRidge or ORFFRidge
        Fitted regressor of the next row on the lagged rows.
    noise_ : ndarray of shape (p, p)
        Noise covariance of a new row, in the units of the series.
    relevance_ : ndarray of shape (p, p)
        Root mean square of the derivative of the mean of output a with respect to the lagged values of series b, summed over lags, in
        standard deviations of both (Granger-style: 0 if b does not help to predict a).
    num_pairs_ : int
        Number of pairs of lagged rows and next row.
    scaling_ : Scaling
        Offset and scale of the series in a trained linear VAR; other regressors have their own scaling.
    output_names_, n_features_in_
        Names and number of series.

    Notes
    -----
    A pair needs all its lagged values; missing values of the next row are missing outputs. Pairs never contain rows of two series.
    Forecasts propagate one random function along each path (ID-13), so that errors of the function persist along a path and are not
    averaged out, as they would be with fresh draws at each step.

    Complexity: that of the regressor. `update` adds and subtracts statistics of fixed size for a linear VAR and random features,
    in O(M² + M³) for M features; the exact kernel is factorized again.

    References
    ----------
    BT-90..98, BT-E-36..38, ID-13.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> series = ovkgp.datasets.make_var_series(300, "linear", random_state=0)
    >>> model = ovkgp.VectorAutoregressor(kernel="linear", random_state=0).fit(series[:280])
    >>> forecast = model.forecast(5, random_state=0)
    >>> forecast.mean.shape, forecast.paths.shape
    ((5, 5), (1000, 5, 5))
    >>> model.update(series[280:]).forecast(1).mean.shape
    (1, 5)
    """

    description = Description(
        "vector autoregression",
        "Each row of the series is a function of the rows before it plus noise. The function is linear or a Gaussian process.",
        "x_t = h(x_{t-1}, …, x_{t-p}) + ε_t",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "lags": [integer()],
        "kernel": [one_of("auto", "linear", *STRUCTURES, *ALIASES), Kernel],
        "base_kernel": [one_of("auto"), *BASE_KERNEL],
        "approximation": [one_of("auto", "exact", "orff", "nystrom")],
        "num_frequencies": [one_of("auto"), integer()],
        "lam": [*LAM, None],
        "convention": [one_of(*CONVENTIONS)],
        "lengthscale": [one_of("median"), POSITIVE],
        "output_matrix": ["array-like", OutputMatrix, None],
        "scale": [one_of("evidence", "given")],
        "fit_intercept": ["boolean"],
        "hyperparameters": [one_of("auto", "evidence", "fixed", "laplace", "svi", "nuts")],
        "noise": [one_of("auto", "shared", "per_output", "full")],
        "solver": [one_of(*SOLVERS)],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
    }

    def __init__(
        self,
        lags=1,
        kernel="auto",
        base_kernel="auto",
        approximation="auto",
        num_frequencies="auto",
        lam=None,
        convention="var",
        lengthscale="median",
        output_matrix=None,
        scale="evidence",
        fit_intercept=True,
        hyperparameters="auto",
        noise="auto",
        solver="auto",
        random_state=None,
        verbose=0,
    ):
        self.lags = lags
        self.kernel = kernel
        self.base_kernel = base_kernel
        self.approximation = approximation
        self.num_frequencies = num_frequencies
        self.lam = lam
        self.convention = convention
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.scale = scale
        self.fit_intercept = fit_intercept
        self.hyperparameters = hyperparameters
        self.noise = noise
        self.solver = solver
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, series, groups=None) -> VectorAutoregressor:
        """Fit the model to one series or to several.

        Parameters
        ----------
        series : array-like of shape (T, p) or (T,), DataFrame, Series, or list of these
            Series, NaN where missing. A frame is sorted by its index of dates, periods or numbers, which must be equally spaced up to
            gaps.
        groups : array-like of shape (T,) or None, default=None
            Label of the series that each row belongs to, if a table holds several.

        Returns
        -------
        self : VectorAutoregressor
            Fitted estimator.

        Raises
        ------
        InputError
            If stamps are duplicate or irregular, or no row follows `lags` complete rows.
        """
        with restore_on_error(self):
            self.check_options()
            data = read_series(series, groups, regular=True)
            self._format, self.output_names_ = data.format, data.format.labels
            self.n_features_in_ = data.format.num_outputs
            self._values = [part.values for part in data.parts]
            self._times = [part.times for part in data.parts]
            self.scaling_ = self._make_scaling(data.values)
            pairs = self._check_pairs(self._pairs(self._values))
            self.regressor_ = self._make_regressor(len(pairs)).fit(*self._frames(pairs))
        return self

    def _make_scaling(self, values: np.ndarray) -> Scaling:
        """Return the scaling of the series for a trained linear VAR, whose kernel object is not scaled by `GPRegressor`."""
        if self.kernel == "linear" and self.lam is None:
            return Scaling.of(values, values, scale_inputs=True, shared=False)
        return Scaling.none(values.shape[1], values.shape[1])

    def _make_regressor(self, num_pairs: int) -> PosteriorRegressor:
        """Make the regressor that the options specify."""
        seed = as_seed(self.random_state)
        return self._make_trained(seed) if self.lam is None else self._make_ridge(num_pairs, seed)

    def _make_trained(self, seed: int) -> GPRegressor:
        kernel, approximation = self.kernel, self.approximation
        if kernel == "linear":
            kernel, approximation = self._linear_kernel(per_input=True), "nystrom"
        noise = "per_output" if name_structure(self.kernel) in ("auto", "independent") else "full"
        return GPRegressor(
            kernel=kernel,
            base_kernel=self.base_kernel,
            approximation=approximation,
            num_frequencies=self.num_frequencies,
            noise=noise if self.noise == "auto" else self.noise,
            hyperparameters=self.hyperparameters,
            variance="features",  # of which the paths are draws
            random_state=seed,
            verbose=self.verbose,
        )

    def _make_ridge(self, num_pairs: int, seed: int) -> OVKRidge | ORFFRidge:
        options = {
            "lam": self.lam,
            # rows are pairs, of which a series of N rows has N − 1
            "convention": "mean" if self.convention == "var" else self.convention,
            "scale": self.scale,
            "solver": self.solver,
            "verbose": self.verbose,
        }
        features = {"random_state": seed, "variance": "features"}
        if self.kernel == "linear":
            return ORFFRidge(kernel=self._linear_kernel(per_input=False), **options, **features)
        options |= {
            "kernel": self.kernel,
            "base_kernel": "rbf" if self.base_kernel == "auto" else self.base_kernel,
            "lengthscale": self.lengthscale,
            "output_matrix": self.output_matrix,
            "fit_intercept": self.fit_intercept,
        }
        is_exact = num_pairs <= MAX_EXACT_PAIRS if self.approximation == "auto" else self.approximation == "exact"
        if is_exact and self.solver != "doubly_sgd":
            return OVKRidge(**options)
        number = 500 if self.num_frequencies == "auto" else self.num_frequencies
        return ORFFRidge(num_frequencies=number, **options, **features)

    def _linear_kernel(self, per_input: bool) -> Kernel:
        """Make the kernel 1 + Σ_j v_j x_j z_j, without 1 if there is no intercept, times the output matrix."""
        p = self.n_features_in_
        kernel = LinearKernel(ard_num_dims=self.lags * p if per_input else None).double()
        kernel.variance = torch.ones_like(kernel.variance)
        if self.fit_intercept or self.lam is None:
            constant = ConstantKernel().double()
            constant.constant = torch.ones_like(constant.constant)
            kernel = AdditiveKernel(constant, kernel)
        matrix = torch.eye(p, dtype=torch.float64) if self.output_matrix is None else self.output_matrix
        return DecomposableKernel(kernel, output_matrix=torch.as_tensor(matrix) if np.ndim(matrix) == 2 else matrix)

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        if self.lam is None:
            return
        if isinstance(self.kernel, str) and self.kernel not in ("linear", *RIDGE_KERNELS, *ALIASES):
            raise OptionError(
                f'kernel={self.kernel!r} is not supported with lam. Use kernel="decomposable" or lam=None.'
            )
        if self.approximation == "nystrom":
            raise OptionError('approximation="nystrom" is not supported with lam. Use "orff" or "exact".')

    def _pairs(self, parts: list[np.ndarray]) -> Pairs:
        """Return the pairs of series in the units of the regressor."""
        return make_pairs([self.scaling_.outputs(values).numpy() for values in parts], self.lags)

    def _check_pairs(self, pairs: Pairs) -> Pairs:
        if not len(pairs):
            rows = max(len(values) for values in self._values)
            raise InputError(
                f"series must have a row with an observed value after {pluralize(self.lags, 'complete row')}, got {pluralize(rows, 'row')} without one. Reduce lags, or pass a longer series."
            )
        if missing := [
            name for name, column in zip(self.output_names_, pairs.Y.T, strict=True) if np.isnan(column).all()
        ]:
            raise InputError(
                f"series has no observed value of {missing[0]!r} after {pluralize(self.lags, 'complete row')}. Drop the column, or reduce lags."
            )
        return pairs

    def _frames(self, pairs: Pairs) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the pairs with the names of the series and their lags."""
        return pd.DataFrame(pairs.X, columns=self.input_labels()), pd.DataFrame(pairs.Y, columns=self.output_names_)

    @property
    def num_pairs_(self) -> int:
        """Number of pairs of lagged rows and next row."""
        return len(self._pairs(self._values))

    @property
    def noise_(self) -> np.ndarray:
        """Noise covariance (p, p) of a new row, in the units of the series."""
        check_is_fitted(self, "regressor_")
        regressor = self.regressor_
        return self.scaling_.cov(torch.from_numpy(regressor.scaling_.cov(regressor.posterior_.noise)))

    def predict(self, history=None, return_std=False):
        """Predict each row of a series from the rows before it, and the row after its end.

        Parameters
        ----------
        history : array-like of shape (T, p), DataFrame, Series or None, default=None
            One series, NaN where missing. If None, the fitted one.
        return_std : bool, default=False
            Whether to return the standard deviation of new observations.

        Returns
        -------
        mean : ndarray, DataFrame or Series of shape (T + 1, p)
            Means of rows 0, …, T in the form of the series; NaN where one of the `lags` rows before is incomplete.
        std : ndarray, DataFrame or Series of shape (T + 1, p)
            Only if requested.
        """
        part, form = self._history(history)
        values, stamps = part.values, part.stamps
        X = lagged_inputs(self.scaling_.outputs(values).numpy(), self.lags)
        kept = np.isfinite(X).all(1)
        found = np.full((2, len(values) + 1, self.n_features_in_), np.nan)
        if kept.any():
            regressor, rows = self.regressor_, np.flatnonzero(kept) + len(values) + 1 - len(X)
            inputs = regressor.scaling_.inputs(X[kept])
            prediction = regressor.posterior_.predict(inputs, "diag" if return_std else "none", noise=True)
            found[0, rows] = self._original(regressor.scaling_.mean(prediction.mean))
            if return_std:
                found[1, rows] = regressor.scaling_.std(prediction.std) * self.scaling_.output_scale
        if stamps is not None:
            stamps = stamps.append(form.future_stamps(stamps[-1], 1)).rename(form.index_name)
        tables = [form.table(values, stamps) for values in found]
        return tuple(tables) if return_std else tables[0]

    def forecast(self, steps, history=None, *, n_samples=1000, level=0.9, random_state=None) -> Forecast:
        """Forecast new observations of the steps after the end of a series, by joint paths.

        Parameters
        ----------
        steps : int
            Number of steps.
        history : array-like of shape (T, p), DataFrame, Series or None, default=None
            Series that the forecast continues. If None, the fitted one. If its last rows are incomplete, they are simulated given
            their observed values. The function is that of the fitted series in any case.
        n_samples : int, default=1000
            Number of paths.
        level : float, default=0.9
            Probability of the intervals.
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        Forecast
            Paths, means, intervals and quantiles, with future stamps if the series has stamps.
        """
        part, form = self._history(history)
        steps, count = check_integer("steps", steps), check_integer("n_samples", n_samples)
        values = self.scaling_.outputs(part.values).numpy()
        paths = sample_paths(self.regressor_, values, self.lags, steps, count, random_state)
        last = None if part.stamps is None else part.stamps[-1]
        return Forecast.from_paths(self._original(paths), form, last, level=level)

    def score(self, series, groups=None) -> float:
        """Return R² of the predictions of each row from the rows before it, over observed entries, averaged over the outputs.

        Parameters
        ----------
        series, groups
            As for `fit`.

        Returns
        -------
        float
            Mean R².
        """
        check_is_fitted(self, "regressor_")
        pairs = self._pairs([part.values for part in self._read(series, groups).parts])
        regressor = self.regressor_
        mean = regressor.posterior_.predict(regressor.scaling_.inputs(pairs.X), "none").mean
        return r2_score(pairs.Y, regressor.scaling_.mean(mean))

    def update(self, series, drop=0) -> VectorAutoregressor:
        """Append rows that continue the fitted series, and forget its oldest rows, with hyperparameters and scaling fixed.

        The posterior is that given the new pairs exactly. With `lam`, σ² follows from the new number of pairs.

        Parameters
        ----------
        series : array-like of shape (k, p), DataFrame or Series
            New rows. Stamps must be after those of the fitted series; steps between them are missing.
        drop : int, default=0
            Number of rows, the oldest of the fitted series, to forget.

        Returns
        -------
        self : VectorAutoregressor
            Updated estimator.
        """
        with restore_on_error(self):
            earlier = self._only_series()
            drop, values = check_integer("drop", drop, 0), earlier.values
            part = read_continuation(series, earlier, self._format)
            whole = np.concatenate([values, part.values])
            if drop > len(whole) - self.lags - 1:
                raise InputError(
                    f"drop must be at most {max(len(whole) - self.lags - 1, 0)}, which leaves one row after {pluralize(self.lags, 'lagged row')}, got {drop}."
                )
            added = self._pairs([np.concatenate([values[-self.lags :], part.values])])
            removed = self._pairs([whole[: drop + self.lags]])
            self._values = [whole[drop:]]
            self._times = [np.concatenate([earlier.times, part.times])[drop:]]
            pairs = self._check_pairs(self._pairs(self._values))
            self.regressor_ = replace_pairs(self.regressor_, pairs, added, removed)
        return self

    def partial_fit(self, series, groups=None) -> VectorAutoregressor:
        """Add further series, with hyperparameters and scaling fixed; the first call is `fit`.

        Rows that continue the fitted series are passed to `update`.

        Parameters
        ----------
        series, groups
            As for `fit`.

        Returns
        -------
        self : VectorAutoregressor
            Fitted estimator.
        """
        if not hasattr(self, "regressor_"):
            return self.fit(series, groups)
        with restore_on_error(self):
            data = self._read(series, groups)
            own = [part.values for part in data.parts]
            self._values = [*self._values, *own]
            self._times = [*self._times, *(part.times for part in data.parts)]
            nothing = self._pairs([np.empty((0, self.n_features_in_))])
            self.regressor_ = replace_pairs(self.regressor_, self._pairs(self._values), self._pairs(own), nothing)
        return self

    def _read(self, series, groups, name: str = "series"):
        check_is_fitted(self, "regressor_")
        return read_series(series, groups, regular=True, fitted=self._format, name=name)

    def _only_series(self) -> Series:
        """Return the fitted series, of which there must be one."""
        check_is_fitted(self, "regressor_")
        if len(self._values) > 1:
            raise InputError(
                f"The model was fitted to {len(self._values)} series, which no single one continues. Pass the history to forecast, or add series with partial_fit."
            )
        return Series(self._values[0], self._format.stamps(self._times[0]), self._times[0])

    def _history(self, history) -> tuple[Series, SeriesFormat]:
        """Return a series, by default the fitted one, and its format."""
        if history is None:
            return self._only_series(), self._format
        data = self._read(history, None, "history")
        return data.only("history"), data.format

    def _original(self, values: np.ndarray) -> np.ndarray:
        """Return values (…, p) of the regressor in the units of the series."""
        return values * self.scaling_.output_scale + self.scaling_.output_offset

    @property
    def relevance_(self) -> np.ndarray:
        """Root mean square derivative of output a with respect to series b, (p, p), in standard deviations of both."""
        check_is_fitted(self, "regressor_")
        p, regressor = self.n_features_in_, self.regressor_
        pairs = self._pairs(self._values)
        X = pairs.X[:: -(-len(pairs) // MAX_RELEVANCE_ROWS)]
        std = np.nanstd(pairs.Y, 0)
        squares = np.zeros((p, p))
        for column in range(X.shape[1]):
            step = np.zeros(X.shape[1])
            step[column] = RELEVANCE_STEP * std[column % p]
            if not step[column]:
                continue
            ends = (regressor.scaling_.inputs(X + sign * step) for sign in (-1, 1))
            low, high = (regressor.scaling_.mean(regressor.posterior_.predict(end, "none").mean) for end in ends)
            squares[:, column % p] += np.square((high - low) / (2 * RELEVANCE_STEP)).mean(0)
        return np.sqrt(squares) / np.where(std > 0, std, 1.0)[:, None]

    def input_labels(self) -> list[str]:
        """Return the names of the lagged values, (lags·p,), in the order of the inputs of `regressor_`."""
        return [f"{name} (lag {lag})" for lag in range(1, self.lags + 1) for name in self.output_names_]

    def list_parameters(self) -> list[Hyperparameter]:
        """List the hyperparameters of `regressor_`."""
        check_is_fitted(self, "regressor_")
        return self.regressor_.list_parameters()

    def list_problems(self) -> list[str]:
        """List problems of the fit of `regressor_`."""
        return self.regressor_.list_problems()

    def summary(self) -> Summary:
        """Return a text with the series and the summary of `regressor_`.

        Returns
        -------
        Summary
            Text, also as rows of a table.
        """
        check_is_fitted(self, "regressor_")
        rows, count = sum(map(len, self._values)), len(self._values)
        lines = [
            f"VectorAutoregressor: {pluralize(self.lags, 'lag')}, {pluralize(count, 'series') if count > 1 else 'one series'}",
            f"  series         {pluralize(rows, 'row')} of {', '.join(map(str, self.output_names_))}; {pluralize(self.num_pairs_, 'pair')}",
        ]
        return Summary("\n".join([*lines, str(self.regressor_.summary())]))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
