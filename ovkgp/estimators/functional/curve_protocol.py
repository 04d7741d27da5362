"""Protocol of the estimators of curves: what reports and commands know of them besides `Estimator`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from ovkgp.estimators.common.validation import as_inputs
from ovkgp.estimators.functional.curve_tables import read_curves
from ovkgp.exceptions import InputError, ModelFileError, OvkgpError
from ovkgp.functional import Dictionary, FunctionalData
from ovkgp.metrics import r2_score

MAX_SCORED_ROWS = 100  # curves of which values at all their points are predicted at once


class BasisFunctions(NamedTuple):
    """Functions in which curves are expanded: their kind, points (m, b) and values (m, k)."""

    name: str
    points: np.ndarray
    values: np.ndarray


class CurveDraws(Sequence):
    """Random functions x ↦ y(·) of a fitted estimator: `draws(X, grid)` evaluates all, `draws[i](X, grid)` one of them.

    `evaluate(X, grid, index)` returns the values (j, n, m) of functions with indices (j,), the same functions at every call.
    """

    def __init__(self, evaluate: Callable, num_draws: int):
        self._evaluate, self._num_draws = evaluate, num_draws

    def __len__(self) -> int:
        return self._num_draws

    def __call__(self, X, grid=None) -> np.ndarray:
        return self._evaluate(X, grid, np.arange(self._num_draws))

    def __getitem__(self, index: int) -> Callable:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}.")
        return lambda X, grid=None: self._evaluate(X, grid, np.array([index % len(self)]))[0]


class CurveEstimator:
    """Mixin of estimators whose outputs are curves at the points `grid_`."""

    has_curves: ClassVar[bool] = True

    def score(self, X, y, sample_weight=None) -> float:
        """Return R² over all observed values: 1 minus their squared errors divided by those of their mean.

        Parameters
        ----------
        X : array-like of shape (k, d) or FunctionalData
            Inputs.
        y : array-like of shape (k, m) or (k, m, q) or (k,), or FunctionalData
            Curves, NaN where missing. The points of functional data and of columns may differ from those of the fit.
        sample_weight : array-like of shape (k,) or None, default=None
            Weights of the curves.

        Returns
        -------
        float
            R².
        """
        X = self._check_inputs(X)
        values, points = read_curves(self, y, None, len(X), self._num_channels())
        predicted = np.full(values.shape, np.nan)
        for rows in np.array_split(np.arange(len(X)), -(-len(X) // MAX_SCORED_ROWS)):
            used = np.flatnonzero(~np.isnan(values[rows]).all((0, 2)))
            predicted[np.ix_(rows, used)] = self._predict_mean(X[rows], points[used])
        known = ~np.isnan(values).ravel()
        weights = None if sample_weight is None else np.repeat(np.asarray(sample_weight), values[0].size)[known]
        return r2_score(values.ravel()[known], predicted.ravel()[known], sample_weight=weights)

    def _check_inputs(self, X):
        """Check inputs of a prediction and return them as rows that `_predict_mean` takes."""
        raise NotImplementedError

    def _predict_mean(self, X, points: np.ndarray) -> np.ndarray:
        """Return the mean (k, g, q) at checked inputs (k, …) and points (g, b)."""
        raise NotImplementedError

    def _num_channels(self) -> int:
        """Return the number q of channels."""
        return 1

    def _outputs(self, Y, X: np.ndarray | None) -> np.ndarray:
        """Check further curves and return them on `grid_`, (n, m·q), NaN where missing."""
        values, points = read_curves(self, Y, None, len(Y if X is None else X), self._num_channels())
        grid = self.grid_[:, None] if self.grid_.ndim == 1 else self.grid_
        index = {tuple(point): i for i, point in enumerate(grid)}
        if any(tuple(point) not in index for point in points):
            raise InputError("Y must have values at points of the grid of the fit. Pass the columns of the fit.")
        table = np.full((len(values), *values.shape[2:], len(grid)), np.nan)
        table[..., [index[tuple(point)] for point in points]] = values.swapaxes(1, 2)
        return table.swapaxes(1, 2).reshape(len(values), -1)

    def training_curves(self) -> tuple[np.ndarray | FunctionalData, FunctionalData] | None:
        """Return the inputs of the fit, as `predict` takes them, and its curves; None if they are not stored.

        Returns
        -------
        X, curves : ndarray or FunctionalData, and FunctionalData
            Training data, or None instead of both.
        """
        return None

    def check_loaded(self) -> None:
        """Check the attributes that were read from a model file: their types and sizes must suffice for predictions."""
        try:
            X, curves = self.training_curves()
            inputs = as_inputs(self, X[:1]) if isinstance(X, np.ndarray) else X[:1]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self.predict(inputs, return_std=True)[0] if self.has_predictive else self.predict(inputs)
            self.summary(), self.list_parameters(), self.basis_functions(), self.outlier_scores(), self.training_data()
            flags = self._is_flat, self._has_names
            is_right = (
                len(X) == len(curves)
                and np.size(found) == self.n_outputs_ == len(self.output_names_)
                and all(isinstance(name, str) for name in self.output_names_)
                and all(isinstance(flag, bool) for flag in flags)
            )
        except OvkgpError as error:
            raise ModelFileError(f"The file does not describe a fitted model: {error}") from error
        if not is_right:
            raise ModelFileError("The file does not describe a fitted model: its attributes have other types or sizes.")

    def basis_functions(self) -> BasisFunctions | None:
        """Return the functions in which predictions are expanded; None if there is no finite basis.

        Returns
        -------
        BasisFunctions or None
            Name, points and values of the functions.
        """
        dictionary = getattr(self, "dictionary_", None)
        if dictionary is None:
            dictionary = getattr(getattr(getattr(self, "coordinates_", None), "factor", None), "dictionary", None)
        return None if dictionary is None else self._evaluate_basis(dictionary)

    def _evaluate_basis(self, dictionary: Dictionary) -> BasisFunctions:
        points = self.grid_[:, None] if self.grid_.ndim == 1 else self.grid_
        if points.shape[1] == 1:
            points = np.linspace(*self.domain_[0], 200)[:, None]
        name = "eigenfunctions" if "Eigen" in type(dictionary).__name__ else "functions of the dictionary"
        name = "principal components" if "Principal" in type(dictionary).__name__ else name
        return BasisFunctions(name, points, dictionary(points))

    def outlier_scores(self) -> np.ndarray | None:
        """Return scores (n,) in [0, 1] of the training curves, large for outliers; None if there are none.

        Returns
        -------
        ndarray of shape (n,) or None
            Scores.
        """
        return getattr(self, "outlier_scores_", None)

    def model_weights(self) -> dict[str, float]:
        """Return the weights of the models of a mixture by name, empty if there is one model.

        Returns
        -------
        dict of str to float
            Weights, which sum to one.
        """
        return {}
