"""`KernelCurveRegressor`, local averages of curves (KE, BO-56)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from linear_operator import to_dense

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import BASE_KERNEL, median_distance
from ovkgp.estimators.common.options import POSITIVE, POSITIVES, one_of, restore_on_error
from ovkgp.estimators.common.task_options import task_kernel
from ovkgp.estimators.functional.base import FUNCTIONAL_ATTRIBUTES, FunctionalRegressor
from ovkgp.estimators.functional.curve_problem import to_tensor
from ovkgp.estimators.storage.storage import storable
from ovkgp.functional import FunctionalData
from ovkgp.kernels.evaluation import evaluate_kernel

LENGTHSCALE_FACTORS = np.geomspace(0.05, 2.0, 15)  # candidates over the median distance


@storable(*FUNCTIONAL_ATTRIBUTES, "lengthscale_", "X_", "curves_", optional=("path_",))
class KernelCurveRegressor(FunctionalRegressor):
    """Nadaraya–Watson estimate: the average of the training curves, weighted by a kernel between inputs (KE, BO-56).

    Parameters
    ----------
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Kernel of the weights.
    lengthscale : "auto", "median", float or list of float, default="auto"
        Lengthscale of a kernel by name, or candidates of which the one of smallest leave-one-curve-out error is chosen. "auto": 15
        candidates between 1/20 and twice the median distance between inputs.
    fit_intercept : bool, default=False
        Whether to average the curves minus their mean curve, which gives the same weights.

    Attributes
    ----------
    lengthscale_ : float or None
        Chosen lengthscale.
    path_ : ndarray of shape (k,)
        Leave-one-curve-out errors of the candidates.
    grid_, domain_, mean_curve_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        Default grid, domain, mean curve, names and numbers of columns.

    Notes
    -----
    There are no bands. Curves with gaps are interpolated linearly. Far from all training inputs, where all weights vanish, the
    prediction is the curve of the nearest input. Complexity: O(n) kernel evaluations per prediction, O(k n² m) to compare k lengthscales.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> X, grid = np.linspace(0, 1, 40)[:, None], np.linspace(0, 1, 30)
    >>> Y = np.sin(2 * np.pi * (grid + X))
    >>> model = ovkgp.KernelCurveRegressor(lengthscale=[0.01, 0.1, 1.0]).fit(X, Y, grid)
    >>> model.lengthscale_
    0.01
    """

    has_predictive = False
    reported = (("lengthscale_", "lengthscale"),)
    description = Description(
        "local averages of curves",
        "The prediction is the average of the training curves, weighted by a kernel between inputs.",
        "y(x) = Σ_i k(x, x_i) y_i / Σ_i k(x, x_i)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": BASE_KERNEL,
        "lengthscale": [one_of("auto", "median"), POSITIVE, POSITIVES],
        "fit_intercept": ["boolean"],
    }

    def __init__(self, kernel="rbf", lengthscale="auto", fit_intercept=False):
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.fit_intercept = fit_intercept

    def fit(self, X, y, grid=None) -> KernelCurveRegressor:
        """Fit the model.

        Parameters
        ----------
        X, y, grid
            As for `KernelProjectionRegressor.fit`.

        Returns
        -------
        self : KernelCurveRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            self.X_, data = self._enter_curves(X, y, grid)
            if not data.is_complete:
                data = data.resample(self.grid_, extrapolate=True)
            self.curves_ = data.values
            candidates = self.lengthscale
            if isinstance(candidates, str) and candidates == "auto":
                is_given = not isinstance(self.kernel, str)
                candidates = "median" if is_given else median_distance(self.X_) * LENGTHSCALE_FACTORS
            if np.ndim(candidates):
                candidates = np.asarray(candidates, dtype=float)
                self.path_ = np.array([self._loo_error(one) for one in candidates])
                self.lengthscale_ = float(candidates[np.argmin(self.path_)])
            else:
                self.lengthscale_ = candidates
                kernel = self._make_kernel()
                self.lengthscale_ = float(kernel.lengthscale.mean()) if kernel.has_lengthscale else None
        return self

    def _make_kernel(self):
        return task_kernel(self.kernel, self.lengthscale_, to_tensor(self.X_))

    def _loo_error(self, lengthscale: float) -> float:
        self.lengthscale_ = lengthscale
        weights = self._kernel_values(self.X_)
        np.fill_diagonal(weights, 0.0)
        return float(np.mean(np.square(self._average(weights, self.X_, hold_out=True) - self.curves_)))

    def _kernel_values(self, X: np.ndarray) -> np.ndarray:
        return to_dense(evaluate_kernel(self._make_kernel(), to_tensor(X), to_tensor(self.X_))).numpy().copy()

    def _average(self, weights: np.ndarray, X: np.ndarray, hold_out: bool = False) -> np.ndarray:
        """Return weighted averages of the curves; the nearest curve where all weights vanish."""
        total = weights.sum(1, keepdims=True)
        vanish = total[:, 0] < np.finfo(float).tiny
        if vanish.any():
            distances = np.square(X[vanish, None] - self.X_).sum(-1)
            if hold_out:
                distances[np.arange(vanish.sum()), np.flatnonzero(vanish)] = np.inf
            weights[vanish, np.argmin(distances, 1)] = 1.0
            total = weights.sum(1, keepdims=True)
        return weights @ self.curves_ / total

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, None]:
        curves = FunctionalData(self._average(self._kernel_values(X), X), self.grid_, self.domain_)
        if np.array_equal(points, self._check_grid(None)):
            return curves.values, None
        return curves.resample(points, extrapolate=True).values, None
