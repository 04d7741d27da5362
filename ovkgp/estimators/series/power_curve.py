"""`PowerCurve`, the median output of the nearest inputs, such as the power of a wind farm as a function of the wind speed (BO-134)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.base import TableRegressor
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.options import integer, restore_on_error
from ovkgp.estimators.common.validation import check_size, input_table

MAX_NEIGHBORS = 1 << 22  # number of neighbors that are found together


class PowerCurve(TableRegressor):
    """Median of the outputs of the nearest training rows (BO-134).

    With the wind speed as input and the power of a wind farm as output it is the power curve that maps forecasts of speed to
    forecasts of power. Outliers, such as turbines that stand still, hardly affect a median.

    Parameters
    ----------
    num_neighbors : int, default=250
        Number of training rows; at most all rows with an observed output.

    Attributes
    ----------
    n_features_in_, feature_names_in_, n_outputs_, output_names_, num_rows_
        Numbers and names of columns, and number of rows.

    Notes
    -----
    Distances are Euclidean in the units of X. Complexity: O(n log n) for the fit and O(k + log n) per predicted row and output, for few
    columns.

    References
    ----------
    BO-134

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.estimators.series import PowerCurve
    >>> speed = np.linspace(0, 20, 2000)
    >>> curve = PowerCurve(num_neighbors=51).fit(speed[:, None], np.clip(speed, 3, 13) ** 3)
    >>> curve.predict([[1.0], [18.0]])
    array([  27., 2197.])
    """

    description = Description(
        "median of the nearest neighbors",
        "Each output is predicted by the median of the training rows whose inputs are nearest.",
        "f(x) = median {y_i : i ∈ N_k(x)}",
    )
    reported = (("num_neighbors", "number of neighbors"),)
    _parameter_constraints: ClassVar[dict[str, list]] = {"num_neighbors": [integer()]}

    def __init__(self, num_neighbors=250):
        self.num_neighbors = num_neighbors

    def fit(self, X, y) -> PowerCurve:
        """Store the rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs, such as wind speeds (n, 1).
        y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing.

        Returns
        -------
        self : PowerCurve
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, Y = self._enter(X, y)
            check_size([X], "X")
            self.num_rows_ = len(Y)
            observed = [~np.isnan(column) for column in Y.T]
            self._outputs_observed = [column[rows] for column, rows in zip(Y.T, observed, strict=True)]
            self._neighbors = [NearestNeighbors().fit(X[rows]) for rows in observed]
        return self

    def predict(self, X) -> np.ndarray:
        """Predict at X.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, p), or (m,) if y was one-dimensional
            Medians.
        """
        check_is_fitted(self)
        X = input_table(self, X, reset=False)
        columns = [self._predict_output(X, a) for a in range(self.n_outputs_)]
        return self._flat(np.stack(columns, 1).astype(np.float64))

    def _predict_output(self, X: np.ndarray, a: int) -> np.ndarray:
        values, neighbors = self._outputs_observed[a], self._neighbors[a]
        number = min(self.num_neighbors, len(values))
        parts = np.array_split(X, max(1, len(X) * number // MAX_NEIGHBORS))
        return np.concatenate(
            [np.median(values[neighbors.kneighbors(part, number, return_distance=False)], 1) for part in parts]
        )
