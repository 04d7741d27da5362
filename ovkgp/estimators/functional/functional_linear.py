"""`FunctionalLinearRegressor`, linear models with functional inputs or outputs, and bands of their coefficient functions (BO-54).

    y(t) = a(t) + ∫ β(s, t) x(s) ds + ε(t),     β ~ GP(0, v k_S(s, s') k_T(t, t'))

is linear in β, so that its posterior is Gaussian. With coordinates ψ_S, ψ_T of both kernels, β(s, t) = ψ_S(s)ᵀ W ψ_T(t) and W ~ N(0, I),
and the inputs of the regression are ∫ ψ_S(s) x_i(s) ds; vectors x are their own coordinates, with one coefficient function each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_probability
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import BASE_KERNEL
from ovkgp.estimators.common.options import POSITIVE, one_of, restore_on_error
from ovkgp.estimators.common.task_options import task_kernel
from ovkgp.estimators.functional.base import FUNCTIONAL_ATTRIBUTES, FUNCTIONAL_CONSTRAINTS, FunctionalRegressor
from ovkgp.estimators.functional.basis_ridge import (
    CurveCoordinates,
    empirical_coordinates,
)
from ovkgp.estimators.functional.curve_problem import factor_rows, to_tensor
from ovkgp.estimators.storage.storage import storable
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.functional.factors import KernelFactor
from ovkgp.functional.quadrature import as_points, quadrature_weights

LENGTHSCALE_FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.8)  # candidates, as fractions of the domain
NOISE_RATIOS = np.geomspace(1e-6, 1e3, 28)  # candidates of σ², relative to the prior variance of fitted values
MAX_ANCHORS = 60  # number of points that span coefficient functions


@storable_record
@dataclass(frozen=True, eq=False)
class LinearWeights:
    """Posterior of W in the eigenbasis A of the inputs: mean (r, ρ), variances (r, ρ), and eigenvalues (r,)."""

    vectors: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


class _Candidate(NamedTuple):
    """Coordinates of both kernels, noise σ², scale s² and log evidence."""

    inputs: KernelFactor | None
    outputs: CurveCoordinates
    noise: float
    scale: float
    log_evidence: float


@storable(
    *FUNCTIONAL_ATTRIBUTES,
    *("input_factor_", "coordinates_", "weights_", "noise_", "scale_", "log_evidence_", "input_lengthscale_"),
    *("output_lengthscale_", "_input_mean", "_input_scale", "_points_per_curve"),
)
class FunctionalLinearRegressor(FunctionalRegressor):
    """Linear model between curves, vectors and numbers, with bands of its coefficient functions.

    The kind of the model follows from the data: curves on curves, y(t) = a(t) + ∫ β(s, t) x(s) ds, if X are curves; curves on vectors,
    y(t) = a(t) + Σ_j β_j(t) x_j, if X is a table and `inputs="vector"`; numbers on curves, y = a + ∫ β(s) x(s) ds, if y is (n,).

    Parameters
    ----------
    inputs : {"auto", "curve", "vector"}, default="auto"
        Whether rows of X are curves, on equidistant points of [0, 1] unless they are `FunctionalData`, or vectors. "auto": curves if X
        are `FunctionalData`.
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="matern52"
        Kernel of β along s and t.
    input_lengthscale, output_lengthscale : "evidence" or float, default="evidence"
        Lengthscales of β along s and t, in the units of the grids. "evidence" chooses among fractions of the domain.
    noise : "evidence" or float, default="evidence"
        Noise σ² relative to the prior, in an orthonormal basis of the outputs. "evidence" chooses it together with the lengthscales.
    quadrature, fit_intercept
        As for `KernelProjectionRegressor`. The inputs are centered too.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (p, m), (c, m), (p,) or (c,)
        Posterior mean and standard deviation of β at the input grid of p points, or for c columns, and at `grid_`.
    input_grid_ : ndarray of shape (p,) or None
        Points of the input curves.
    input_lengthscale_, output_lengthscale_, noise_, scale_, log_evidence_ : float
        Lengthscales, σ², the scale s² of prior and noise, and the log density of the observed values.
    grid_, domain_, mean_curve_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        Default grid, domain, mean curve, names and numbers of columns.

    Notes
    -----
    Bands are those of the posterior: their coverage of a fixed β is nominal on average over the domain, not at each point; it is lower
    where β bends sharply. Curves y with gaps are interpolated linearly. Complexity: O(n r² + r³ + m³) per pair of lengthscales, for r
    input coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.functional import FunctionalData
    >>> rng = np.random.default_rng(0)
    >>> s = np.linspace(0, 1, 40)
    >>> X = FunctionalData(rng.standard_normal((80, 6)) @ np.cos(np.pi * np.arange(6)[:, None] * s), s)
    >>> y = X.values @ np.sin(np.pi * s) / 40 + 0.05 * rng.standard_normal(80)
    >>> model = ovkgp.FunctionalLinearRegressor().fit(X, y)
    >>> lower, upper = model.coefficient_interval(0.9)
    >>> lower.shape
    (40,)
    """

    description = Description(
        "functional linear regression",
        "The model is linear in the input, with coefficient functions that are Gaussian processes.",
        "y(t) = a(t) + ∫ β(s, t) x(s) ds,   β ~ GP(0, s^2 k_S k_T)",
    )
    reported = (("scale_", "scale of prior and noise s²"), ("input_lengthscale_", "lengthscale of the inputs"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **FUNCTIONAL_CONSTRAINTS,
        "inputs": [one_of("auto", "curve", "vector")],
        "kernel": BASE_KERNEL,
        "input_lengthscale": [one_of("evidence"), POSITIVE],
        "output_lengthscale": [one_of("evidence"), POSITIVE],
        "noise": [one_of("evidence"), POSITIVE],
    }

    def __init__(
        self,
        inputs="auto",
        kernel="matern52",
        input_lengthscale="evidence",
        output_lengthscale="evidence",
        noise="evidence",
        quadrature="mean",
        fit_intercept=True,
    ):
        self.inputs = inputs
        self.kernel = kernel
        self.input_lengthscale = input_lengthscale
        self.output_lengthscale = output_lengthscale
        self.noise = noise
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept

    def fit(self, X, y, grid=None) -> FunctionalLinearRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, c) or FunctionalData
            Input vectors or curves.
        y : array-like of shape (n, m) or (n,), or FunctionalData
            Output curves or numbers.
        grid : array-like of shape (m,) or None, default=None
            Points of the output curves. If None, those of `y`, or equidistant points on [0, 1].

        Returns
        -------
        self : FunctionalLinearRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, data = self._enter_curves(X, y, grid)
            if len(data) < 2:
                raise InputError("X must have at least 2 rows, got 1 sample. Add observations.")
            if not data.is_complete:
                data = data.resample(self.grid_, extrapolate=True)
            if self.inputs == "vector":
                self._input_grid = self._input_domain = None
            elif self.inputs == "curve" and self._input_grid is None:
                self._input_grid, self._input_domain = np.linspace(0.0, 1.0, X.shape[1]), np.array([[0.0, 1.0]])
            if self._input_grid is not None and self._input_grid.ndim > 1:
                raise InputError("X must be curves on an interval, got several dimensions. Pass a table of features.")
            self._input_mean = X.mean(0) if self.fit_intercept else np.zeros(X.shape[1])
            std = X.std(0) if self._input_grid is None else np.ones(X.shape[1])
            self._input_scale = np.where(std > 0, std, 1.0)
            if np.allclose(X, self._input_mean, rtol=1e-12, atol=0):
                raise InputError("X must vary between rows, got equal rows. Add rows with other inputs.")
            self._points_per_curve = float(data.num_points)
            best = max(self._candidates(X, data), key=lambda one: one.log_evidence)
            self.input_factor_, self.coordinates_ = best.inputs, best.outputs
            self.noise_, self.scale_, self.log_evidence_ = best.noise, best.scale, best.log_evidence
            lengthscales = (
                None if one is None else one.kernel.lengthscale for one in (best.inputs, best.outputs.factor)
            )
            found = (None if one is None else float(one.detach().mean()) for one in lengthscales)
            self.input_lengthscale_, self.output_lengthscale_ = found
            self.weights_ = self._posterior(self._features(X), self._project(data)[0])
        return self

    def _candidates(self, X: np.ndarray, data: FunctionalData):
        """Yield a candidate per pair of lengthscales, each with its best noise."""
        for input_factor in self._factors(self._input_grid, self._input_domain, self.input_lengthscale, "input"):
            self.input_factor_ = input_factor
            U = self._features(X)
            s, A = np.linalg.eigh(U.T @ U)
            keep = s > 1e-12 * max(s[-1], 1e-300)
            left = U @ A[:, keep] / np.sqrt(s[keep])
            grid = data.grid if data.num_points > 1 else None
            for output_factor in self._factors(grid, data.domain, self.output_lengthscale, "output"):
                points = _columns(data.grid)
                factor = output_factor or KernelFactor(task_kernel("rbf", 1.0, to_tensor(points)), to_tensor(points))
                self.coordinates_ = empirical_coordinates(factor, points, data.weights(self.quadrature))
                yield self._best_noise(s[keep], left, input_factor, data)

    def _factors(self, grid, domain, lengthscale, role: str) -> list[KernelFactor | None]:
        """Return coordinates of the kernel for each candidate lengthscale; None without a grid."""
        if grid is None:
            return [None]
        if grid.ndim > 1:
            raise InputError("y must be curves on an interval, got several dimensions. Use FunctionalRidge.")
        if not isinstance(self.kernel, str):
            lengthscales = [1.0]
        elif isinstance(lengthscale, str):
            lengthscales = [fraction * float(np.ptp(domain)) for fraction in LENGTHSCALE_FRACTIONS]
        else:
            lengthscales = [float(lengthscale)]
        anchors = grid if len(grid) <= MAX_ANCHORS else np.linspace(grid[0], grid[-1], MAX_ANCHORS)
        points = to_tensor(anchors[:, None])
        return [KernelFactor(task_kernel(self.kernel, one, points, role), points, cutoff=1e-8) for one in lengthscales]

    def _features(self, X: np.ndarray) -> np.ndarray:
        """Return the coordinates ∫ ψ_S x of centered inputs, (n, r)."""
        centered = (X - self._input_mean) / self._input_scale
        if self.input_factor_ is None:
            return centered
        weights = quadrature_weights(self._input_grid, self._input_domain, "trapezoid") * float(
            np.ptp(self._input_domain)
        )
        return (centered * weights) @ factor_rows(self.input_factor_, self._input_grid[:, None])

    def _project(self, data: FunctionalData) -> tuple[np.ndarray, float]:
        """Return coordinates z (n, ρ) of the outputs, and Σ η y² outside of the basis."""
        weights = data.weights(self.quadrature)
        Z = (data.values * weights) @ self.coordinates_.rows(_columns(data.grid))
        return Z, max(float((np.square(data.values) @ weights).sum() - np.square(Z).sum()), 0.0)

    def _best_noise(self, s: np.ndarray, left: np.ndarray, input_factor, data: FunctionalData) -> _Candidate:
        """Return the noise of largest evidence, with the best scale, for inputs with singular values √s and vectors (n, r)."""
        Z, outside = self._project(data)
        t, free = self.coordinates_.variances, len(Z) - int(self.fit_intercept)
        rotated = np.square(left.T @ Z)
        rest = np.clip(np.square(Z).sum(0) - rotated.sum(0), 0.0, None).sum() + outside
        signal, count = max(float(s.max()) * t.max() / len(Z), 1e-300), free * data.num_points
        noises = [float(self.noise)] if not isinstance(self.noise, str) else signal * NOISE_RATIOS
        best = None
        for c in noises:
            values = np.outer(s, t) + c
            quadratic = (rotated / values).sum() + rest / c
            logdet = np.log(values).sum() + (count - values.size) * np.log(c)
            scale = max(quadratic / count, 1e-300)
            jacobian = free * np.log(data.weights(self.quadrature)).sum() / 2
            evidence = jacobian - (logdet + count * (1 + np.log(2 * np.pi * scale))) / 2
            if best is None or evidence > best.log_evidence:
                best = _Candidate(input_factor, self.coordinates_, float(c), float(scale), float(evidence))
        return best

    def _posterior(self, U: np.ndarray, Z: np.ndarray) -> LinearWeights:
        """Return the posterior of W, in the eigenbasis of UᵀU."""
        s, A = np.linalg.eigh(U.T @ U)
        t = self.coordinates_.variances
        values = np.outer(s.clip(0), t) + self.noise_
        mean = (A.T @ U.T @ Z) * np.sqrt(t) / values
        return LinearWeights(A, mean, self.noise_ / values)

    def _combine(self, rows: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return mean and covariance of φᵀ W ψ(t) for φ (k, r) at points (m, b)."""
        left = rows @ self.weights_.vectors
        right = self.coordinates_.rows(points) * np.sqrt(self.coordinates_.variances)
        mean = left @ self.weights_.mean @ right.T
        if form == "none":
            return mean, None
        inner = np.square(left) @ self.weights_.variance  # (k, ρ)
        if form == "diag":
            return mean, self.scale_ * inner @ np.square(right).T
        return mean, self.scale_ * np.einsum("mr,kr,lr->kml", right, inner, right)

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        return self._combine(self._features(X), points, form)

    def _noise_variance(self, points: np.ndarray) -> float:
        return self.scale_ * self.noise_ * self._points_per_curve

    def _draw_remainders(self, k: int, seed: int):
        noise = np.random.default_rng(seed).standard_normal((k, *self.weights_.mean.shape))
        W = self.weights_.mean + np.sqrt(self.scale_ * self.weights_.variance) * noise

        def evaluate(X: np.ndarray, points: np.ndarray) -> np.ndarray:
            right = self.coordinates_.rows(points) * np.sqrt(self.coordinates_.variances)
            return (self._features(X) @ self.weights_.vectors) @ W @ right.T

        return evaluate

    def coefficients(self, input_grid=None, grid=None, return_std=False):
        """Evaluate the coefficient function β.

        Parameters
        ----------
        input_grid : array-like of shape (k,) or None, default=None
            Points s of the input curves. If None, those of the fit. Not supported for vectors.
        grid : array-like of shape (m,) or None, default=None
            Points t. If None, `grid_`.
        return_std : bool, default=False
            Whether to return the standard deviation.

        Returns
        -------
        mean : ndarray of shape (k, m), or (k,) if y was one-dimensional
            Posterior mean of β(s, t), or of β_j(t) of the columns j of X.
        std : ndarray of the same shape
            Only if `return_std`.
        """
        check_is_fitted(self)
        rows = self._coefficient_rows(input_grid)
        mean, variance = self._combine(rows, self._check_grid(grid), "diag")
        mean, std = (self._flat_at(one, grid) for one in (mean, np.sqrt(variance)))
        return (mean, std) if return_std else mean

    def coefficient_interval(self, level=0.95, input_grid=None, grid=None):
        """Return pointwise bands of the coefficient function.

        Parameters
        ----------
        level : float, default=0.95
            Probability of the bands.
        input_grid, grid
            As for `coefficients`.

        Returns
        -------
        lower, upper : ndarray of shape (k, m), or (k,) if y was one-dimensional
            Ends of the bands.
        """
        mean, std = self.coefficients(input_grid, grid, return_std=True)
        half = norm.ppf((1 + check_probability("level", level)) / 2) * std
        return mean - half, mean + half

    def _coefficient_rows(self, input_grid) -> np.ndarray:
        if self.input_factor_ is None:
            if input_grid is not None:
                raise OptionError("input_grid is not supported for vectors as inputs. Remove it.")
            return np.diag(1 / self._input_scale)
        points = as_points(self._input_grid if input_grid is None else input_grid, self._input_domain, "input_grid")
        return factor_rows(self.input_factor_, points)

    @property
    def input_grid_(self) -> np.ndarray | None:
        """Points of the input curves; None for vectors."""
        return self._input_grid

    @property
    def coef_(self) -> np.ndarray:
        """Posterior mean of β on both grids."""
        return self.coefficients()

    @property
    def coef_std_(self) -> np.ndarray:
        """Standard deviation of β on both grids."""
        return self.coefficients(return_std=True)[1]


def _columns(points: np.ndarray) -> np.ndarray:
    return points[:, None] if points.ndim == 1 else points
