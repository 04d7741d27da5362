"""`FunctionalRegressor`, base class of the estimators whose outputs are curves: data, predictions on any grid, bands and draws.

A subclass fits curves that are centered by a mean curve μ, and predicts mean and covariance of the remainder at any points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed, check_integer, check_probability
from ovkgp.criticism.predictive_distributions import PredictiveDistribution
from ovkgp.estimators.common.base import INPUT_ATTRIBUTES, TableRegressor
from ovkgp.estimators.common.fit_checks import warn_about_rows
from ovkgp.estimators.common.options import one_of
from ovkgp.estimators.common.prediction_columns import DEFAULT_INTERVAL_LEVEL, PredictionColumns, PredictionRequest
from ovkgp.estimators.common.validation import check_size, input_table
from ovkgp.estimators.functional.curve_protocol import CurveDraws, CurveEstimator
from ovkgp.estimators.functional.curve_tables import curve_table, default_grid, enter_curves
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData, as_functional_data
from ovkgp.functional.conversion import has_points
from ovkgp.functional.mean_curve import MeanCurve
from ovkgp.functional.point_names import name_points
from ovkgp.functional.quadrature import RULES, as_points

NUM_BAND_DRAWS = 4000  # number of draws of the largest deviation of a simultaneous band
FUNCTIONAL_ATTRIBUTES = (
    *("n_features_in_", "n_outputs_", "output_names_", "_is_flat", "_has_names"),
    *("grid_", "domain_", "mean_curve_", "num_curves_", "_input_grid", "_input_domain"),
    *("_training_inputs", "_training_curves"),
)
"""Fitted attributes of every functional regressor, for model files."""
FUNCTIONAL_CONSTRAINTS = {
    "fit_intercept": ["boolean"],
    "quadrature": [one_of(*RULES)],
}


class FunctionalRegressor(CurveEstimator, TableRegressor):
    """Base class of regressors x ↦ y(·), with curves y observed on a common grid, with gaps, or at different points.

    Subclasses define `_predict_remainder(X, points, form)`, and `_noise_variance(points)` and `_draw_remainders(k, seed)` if they
    have a predictive distribution.
    """

    has_predictive: ClassVar[bool] = True
    std_advice: ClassVar[str] = "Use KernelProjectionRegressor or FunctionalRidge."

    def predict(self, X, grid=None, return_std=False, noise=True):
        """Predict curves.

        Parameters
        ----------
        X : array-like of shape (k, d) or FunctionalData
            Inputs.
        grid : array-like of shape (m,) or (m, b), or None, default=None
            Points of the domain at which to predict. If None, `grid_`.
        return_std : bool, default=False
            Whether to return the standard deviation.
        noise : bool, default=True
            Whether the standard deviation is that of a new observation, or of the latent curve.

        Returns
        -------
        mean : ndarray of shape (k, m), or (k,) if y was one-dimensional
            Predicted curves.
        std : ndarray of the same shape
            Only if `return_std`.
        """
        X, points = self._check_inputs(X), self._check_grid(grid)
        mean, variance = self._predict_centered(X, points, "diag" if return_std else "none")
        mean = self._flat_at(mean + self.mean_curve_(points)[:, 0], grid)
        if not return_std:
            return mean
        return mean, self._flat_at(np.sqrt(variance + self._noise_variance(points) * bool(noise)), grid)

    def predict_interval(self, X, level=0.9, simultaneous=False, grid=None, noise=True, random_state=0):
        """Predict bands around the curves.

        Parameters
        ----------
        X, grid, noise
            As for `predict`.
        level : float, default=0.9
            Probability that the band contains the value at a point or, if `simultaneous`, the values at all points.
        simultaneous : bool, default=False
            Whether the band contains the whole curve on the grid with probability `level`. It is a multiple of the standard
            deviation: the quantile of the largest standardized deviation, estimated with 4000 draws.
        random_state : int, RandomState instance or None, default=0
            Seed of the draws from which simultaneous bands are computed.

        Returns
        -------
        lower, upper : ndarray of shape (k, m), or (k,) if y was one-dimensional
            Ends of the bands.
        """
        level = check_probability("level", level)
        X, points = self._check_inputs(X), self._check_grid(grid)
        mean, covariance = self._predict_centered(X, points, "output" if simultaneous else "diag")
        extra = np.broadcast_to(self._noise_variance(points), len(points)) * bool(noise)
        mean = mean + self.mean_curve_(points)[:, 0]
        if simultaneous:
            covariance = covariance + np.diag(extra)
            variance = np.diagonal(covariance, axis1=1, axis2=2)
            seed = as_seed(random_state)
            factor = np.array([largest_deviation(one, level, seed) for one in covariance])[:, None]
        else:
            variance, factor = covariance + extra, norm.ppf((1 + level) / 2)
        half = factor * np.sqrt(variance)
        return self._flat_at(mean - half, grid), self._flat_at(mean + half, grid)

    def sample_functions(self, k=1, random_state=None) -> CurveDraws:
        """Sample latent curves from the posterior.

        Parameters
        ----------
        k : int, default=1
            Number of functions x ↦ y(·).
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        CurveDraws
            `draws(X, grid)` is (k, n, m) and `draws[i](X, grid)` is (n, m), the same functions at every call.
        """
        check_is_fitted(self)
        self._check_has_std()
        draw = self._draw_remainders(check_integer("k", k), as_seed(random_state))

        def evaluate(X, grid, index):
            X, points = self._check_inputs(X), self._check_grid(grid)
            return draw(X, points)[index] + self.mean_curve_(points)[:, 0]

        return CurveDraws(evaluate, k)

    def sample_y(self, X, n_samples=1, grid=None, noise=True, random_state=0) -> np.ndarray:
        """Sample whole curves jointly at all rows of X.

        Parameters
        ----------
        X, grid, noise
            As for `predict`.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed.

        Returns
        -------
        ndarray of shape (k, m, n_samples), or (k, n_samples) if y was one-dimensional
            Draws.
        """
        seed = as_seed(random_state)
        values = self.sample_functions(check_integer("n_samples", n_samples), seed)(X, grid)
        if noise:
            std = np.sqrt(self._noise_variance(self._check_grid(grid)))
            values = values + std * np.random.default_rng([seed, 1]).standard_normal(values.shape)
        return self._flat_at(np.moveaxis(values, 0, -1), grid)

    def predictive(self, X) -> PredictiveDistribution:
        """Return the Gaussian distributions of new observations on `grid_`."""
        mean, std = self.predict(X, return_std=True)
        mean, std = (values.reshape(len(values), -1) for values in (mean, std))

        def cdf(Y: np.ndarray) -> np.ndarray:
            return norm.cdf(Y, mean, std)

        return PredictiveDistribution(mean, std, cdf, cdf, True, lambda Y: norm.logpdf(Y, mean, std))

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict mean, standard deviation and quantiles at each point of `grid_` or of another grid."""
        if not self.has_predictive:
            request.reject_options("this regressor", "quantiles", "level", "latent", "costs", "simultaneous")
            mean = np.reshape(self.predict(X, request.grid), (len(X), -1))
            return {f"{name}_mean": mean[:, j] for j, name in enumerate(self._point_names(request.grid))}
        request.reject_options("a regressor", "costs")
        options, names = {"grid": request.grid, "noise": not request.latent}, self._point_names(request.grid)
        found = self.predict(X, return_std=True, **options)
        mean, std = (values.reshape(len(values), -1) for values in found)
        pointwise = request.for_pointwise_columns()
        deviates = norm.ppf(pointwise.levels).reshape(-1, 1, 1)
        columns = pointwise.name_columns(names, mean, std, mean + deviates * std)
        if not request.simultaneous:
            return columns
        ends = self.predict_interval(X, request.level or DEFAULT_INTERVAL_LEVEL, simultaneous=True, **options)
        return request.add_band(columns, names, *(end.reshape(len(mean), -1) for end in ends))

    def _point_names(self, grid) -> list[str]:
        """Return the names of the points of a grid: the columns of the fit, or names in their style."""
        if grid is None:
            return self.output_names_
        return name_points(self.output_names_ if self._has_names else None, self._check_grid(grid))

    def training_curves(self) -> tuple[np.ndarray, FunctionalData]:
        """Return the inputs (n, d) and the curves of the fit."""
        check_is_fitted(self)
        return self._training_inputs, self._training_curves

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the training rows X (n, d) and Y (n, m); None if curves were observed at different points."""
        X, curves = self.training_curves()
        return None if curves.is_ragged else (X, curves.values)

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return mean (k, m) and, for form "diag" or "output", variance (k, m) or covariance (k, m, m) of y − μ without noise."""
        raise NotImplementedError

    def _noise_variance(self, points: np.ndarray) -> float | np.ndarray:
        """Return the noise variance of a new observation at points (m, b)."""
        raise NotImplementedError

    def _draw_remainders(self, k: int, seed: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return k random functions y − μ as a map of X (n, d) and points (m, b) to (k, n, m)."""
        raise NotImplementedError

    def _predict_mean(self, X: np.ndarray, points: np.ndarray) -> np.ndarray:
        mean = self._predict_centered(X, points, "none")[0] + self.mean_curve_(points)[:, 0]
        return mean[..., None]

    def _predict_centered(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        if form != "none":
            self._check_has_std()
        return self._predict_remainder(X, points, form)

    def _check_has_std(self) -> None:
        if not self.has_predictive:
            raise OptionError(f"{type(self).__name__} has no predictive distribution here. {self.std_advice}")

    def _enter_curves(self, X, y, grid, has_robust_mean: bool = False) -> tuple[np.ndarray, FunctionalData]:
        """Check X and y, store their columns and grids, and return X (n, d) and the curves minus their mean."""
        X = self._enter_inputs(X)
        data, names, self._is_flat = enter_curves(y, grid, len(X))
        if data.num_channels > 1:
            raise InputError(
                f"y must have one channel, got {data.num_channels}. Fit one estimator per channel, or use FunctionGPRegressor."
            )
        if data.has_channels:
            values = [v[:, 0] for v in data.values] if data.is_ragged else data.values[..., 0]
            data = FunctionalData(values, data.grid, data.domain)
        if not data.is_ragged:
            warn_about_rows(X, data.values)
        check_size(data.values if data.is_ragged else [data.values], "y")
        for fitted in [name for name in vars(self) if name.endswith("_") and name not in INPUT_ATTRIBUTES]:
            delattr(self, fitted)
        self.grid_, self.domain_, self.num_curves_ = default_grid(data), data.domain, len(data)
        self.n_outputs_, self._has_names = len(self.grid_), names is not None
        self.output_names_ = names or [f"y{j}" for j in range(self.n_outputs_)]
        self._training_inputs, self._training_curves = X, data
        self._points_per_curve = float(np.mean(data.counts))
        self.mean_curve_ = data.fit_mean(has_robust_mean) if self.fit_intercept else zero_curve(data.domain)
        return X, data.center(self.mean_curve_)[0]

    def _enter_inputs(self, X) -> np.ndarray:
        """Check inputs (n, d), or curves, which are interpolated linearly on a common grid."""
        self._input_grid = self._input_domain = None
        if has_points(X):
            curves = as_functional_data(X)
            self._input_grid, self._input_domain = curves.union_grid, curves.domain
            X = curve_table(curves, self._input_grid)
        return input_table(self, X, reset=True)

    def _check_inputs(self, X) -> np.ndarray:
        check_is_fitted(self)
        if has_points(X):
            if self._input_grid is None:
                raise InputError("X must be a table of inputs as in fit, got curves with a grid. Pass their values.")
            curves = as_functional_data(X)
            as_points(curves.union_grid, self._input_domain, "Points of X")
            X = curve_table(curves, self._input_grid)
        return input_table(self, X, reset=False)

    def _check_grid(self, grid) -> np.ndarray:
        return as_points(self.grid_ if grid is None else grid, self.domain_, "grid")

    def _flat_at(self, values: np.ndarray, grid) -> np.ndarray:
        return values[:, 0] if self._is_flat and grid is None else values


def largest_deviation(covariance: np.ndarray, level: float, seed: int = 0) -> float:
    """Return the quantile of max_s |z_s| / std_s for z ~ N(0, covariance (m, m)), from draws."""
    std = np.sqrt(np.diagonal(covariance))
    keep = std > 0
    if not keep.any():
        return 0.0
    correlation = (covariance / np.outer(np.where(keep, std, 1), np.where(keep, std, 1)))[np.ix_(keep, keep)]
    values, vectors = np.linalg.eigh(correlation)
    # the symmetric root does not depend on the signs and the rotation of eigenvectors, which are arbitrary
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    draws = np.random.default_rng(seed).standard_normal((NUM_BAND_DRAWS, len(root))) @ root
    return float(np.quantile(np.abs(draws).max(1), level))


def zero_curve(domain: np.ndarray) -> MeanCurve:
    """Return the mean curve 0."""
    return MeanCurve(domain, domain.T[:1], np.zeros((1, 1)))
