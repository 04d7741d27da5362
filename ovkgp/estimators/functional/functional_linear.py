"""`FunctionalLinearRegressor`, linear models with functional inputs or outputs, and bands of their coefficient functions (BO-54).

    y(t) = a(t) + ∫ β(s, t) x(s) ds + ε(t),     β ~ GP(0, v k_S(s, s') k_T(t, t'))

is linear in β, so that its posterior is Gaussian. With coordinates ψ_S, ψ_T of both kernels, β(s, t) = ψ_S(s)ᵀ W ψ_T(t) and W ~ N(0, I),
and the inputs of the regression are ∫ ψ_S(s) x_i(s) ds; vectors x are their own coordinates, with one coefficient function each.
Estimation errors of W = A⁻¹ Σ_i g_i, with the scores g_i of the curves, have the covariance A⁻¹ (s² I + Σ_i cov(g_i)) A⁻¹, where
cov(g_i) follows from the residual curves, so that errors may be correlated along a curve.
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
from ovkgp.estimators.functional.coordinates import CurveCoordinates, empirical_coordinates, project_curves
from ovkgp.estimators.functional.curve_problem import as_columns, factor_rows, to_tensor
from ovkgp.estimators.storage.storage import storable
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.functional.factors import KernelFactor
from ovkgp.functional.mean_curve import MeanCurve
from ovkgp.functional.quadrature import as_points, quadrature_weights
from ovkgp.scales import mean_and_std

LENGTHSCALE_FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.8)  # candidates, as fractions of the domain
NOISE_RATIOS = np.geomspace(1e-6, 1e3, 28)  # candidates of σ², relative to the prior variance of fitted values
MAX_ANCHORS = 60  # number of points that span coefficient functions
MAX_COEFFICIENTS = 900  # number of coefficients that curves with gaps determine together
MAX_COMPARED_COEFFICIENTS = 400  # while lengthscales are compared
INTERCEPT_FACTOR = 100.0  # prior variance of the intercept function over that of the inputs' effect


@storable_record
@dataclass(frozen=True, eq=False)
class LinearWeights:
    """Estimate of W in an eigenbasis of the inputs, `vectors` (c, r): mean (r, ρ), and the sum of three covariances of errors.

    Errors have independent variances `variance` (r, ρ), covariances `blocks` (r, ρ, ρ) of coordinates of the same row, and
    `joint` (a, b, q) times its transpose for rows `rows` (a,) and columns `columns` (b,).
    """

    vectors: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    blocks: np.ndarray | None = None
    joint: np.ndarray | None = None
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None


class _Candidate(NamedTuple):
    """Coordinates of both kernels, noise σ², scale s² and log evidence."""

    inputs: KernelFactor | None
    outputs: CurveCoordinates
    noise: float
    scale: float
    log_evidence: float


class _EntrySystem(NamedTuple):
    """Normal equations of W from observed values: eigenvectors of the inputs, kept rows and columns, curves, and spectrum."""

    vectors: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    size: np.ndarray
    curves: list
    values: np.ndarray
    Q: np.ndarray
    rotated: np.ndarray
    total: float
    count: int
    signal: float


@storable(
    *FUNCTIONAL_ATTRIBUTES,
    *("input_factor_", "coordinates_", "weights_", "noise_", "scale_", "log_evidence_", "input_lengthscale_"),
    *("output_lengthscale_", "_input_mean", "_input_scale", "_points_per_curve", "_intercept_scale", "mean_error_"),
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
    residuals : {"curves", "white"}, default="curves"
        Errors of the bands. "curves": residual curves may be smooth; their covariance is estimated. "white": independent errors with
        the same variance at all points, so that bands are those of the posterior. Numbers as outputs are "white".
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
    The coverage of a fixed β is nominal on average over the domain, not at each point; it is lower where β bends sharply. Bands of
    predictions include the error of the intercept function. Curves with gaps or at different points use their observed values only.
    Complexity: O(n r² + r³ + m³) per pair of lengthscales, for r input coordinates,
    and O(n d² + d³) with d ≤ 900 coefficients (400 to compare lengthscales) for curves with gaps.

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
        "residuals": [one_of("curves", "white")],
    }

    def __init__(
        self,
        inputs="auto",
        kernel="matern52",
        input_lengthscale="evidence",
        output_lengthscale="evidence",
        noise="evidence",
        residuals="curves",
        quadrature="mean",
        fit_intercept=True,
    ):
        self.inputs = inputs
        self.kernel = kernel
        self.input_lengthscale = input_lengthscale
        self.output_lengthscale = output_lengthscale
        self.noise = noise
        self.residuals = residuals
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
            observed, data = data, data if data.is_complete else data.resample(self.grid_, extrapolate=True)
            if self.inputs == "vector":
                self._input_grid = self._input_domain = None
            elif self.inputs == "curve" and self._input_grid is None:
                self._input_grid, self._input_domain = np.linspace(0.0, 1.0, X.shape[1]), np.array([[0.0, 1.0]])
            if self._input_grid is not None and self._input_grid.ndim > 1:
                raise InputError("X must be curves on an interval, got several dimensions. Pass a table of features.")
            mean, std = mean_and_std(X)
            self._input_mean = mean if self.fit_intercept else np.zeros(X.shape[1])
            self._input_scale = np.where((std > 0) & (self._input_grid is None), std, 1.0)
            if np.allclose(X, self._input_mean, rtol=1e-12, atol=0):
                raise InputError("X must vary between rows, got equal rows. Add rows with other inputs.")
            self._intercept_scale = 0.0
            best = max(self._candidates(X, data, observed), key=lambda one: one.log_evidence)
            self.input_factor_, self.coordinates_ = best.inputs, best.outputs
            self.noise_, self.scale_, self.log_evidence_ = best.noise, best.scale, best.log_evidence
            lengthscales = (
                None if one is None else one.kernel.lengthscale for one in (best.inputs, best.outputs.factor)
            )
            found = (None if one is None else float(one.detach().mean()) for one in lengthscales)
            self.input_lengthscale_, self.output_lengthscale_ = found
            is_white = self.residuals == "white" or data.num_points == 1
            if observed.is_complete:
                self.weights_ = self._fit_complete(self._features(X), data, is_white)
            else:
                self.weights_ = self._fit_entries(X, observed, is_white)
        return self

    def _candidates(self, X: np.ndarray, data: FunctionalData, observed: FunctionalData):
        """Yield a candidate per pair of lengthscales, each with its best noise, from complete curves or the observed values."""
        for input_factor in self._factors(self._input_grid, self._input_domain, self.input_lengthscale, "input"):
            self.input_factor_ = input_factor
            U = self._features(X)
            s, A = np.linalg.eigh(U.T @ U)
            keep = s > 1e-12 * max(s[-1], 1e-300)
            left = U @ A[:, keep] / np.sqrt(s[keep])
            grid = data.grid if data.num_points > 1 else None
            for output_factor in self._factors(grid, data.domain, self.output_lengthscale, "output"):
                points = as_columns(data.grid)
                factor = output_factor or KernelFactor(task_kernel("rbf", 1.0, to_tensor(points)), to_tensor(points))
                self.coordinates_ = empirical_coordinates(factor, points, data.weights(self.quadrature))
                if observed.is_complete:
                    yield self._best_noise(s[keep], left, input_factor, data)
                else:
                    system = self._collect_entries(X, observed, MAX_COMPARED_COEFFICIENTS)
                    yield _Candidate(input_factor, self.coordinates_, *self._noise_of_entries(system))

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

    def _best_noise(self, s: np.ndarray, left: np.ndarray, input_factor, data: FunctionalData) -> _Candidate:
        """Return the noise of largest evidence, with the best scale, for inputs with singular values √s and vectors (n, r)."""
        projected = project_curves(self.coordinates_, data, self.quadrature)
        Z, outside, t, free = (
            projected.Z,
            projected.outside,
            self.coordinates_.variances,
            len(data) - int(self.fit_intercept),
        )
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

    def _fit_complete(self, U: np.ndarray, data: FunctionalData, is_white: bool) -> LinearWeights:
        """Return the estimate of W from complete curves, in the eigenbasis of UᵀU, and set the error of the mean curve."""
        Z, points = project_curves(self.coordinates_, data, self.quadrature).Z, as_columns(data.grid)
        eta = data.weights(self.quadrature)
        s, A = np.linalg.eigh(U.T @ U)
        s, t, c = s.clip(0), self.coordinates_.variances, self.noise_
        values = np.outer(s, t) + c
        mean = (A.T @ U.T @ Z) * np.sqrt(t) / values
        self.mean_error_, count = None, len(Z)
        if is_white:
            roots = np.diag(np.sqrt(self.scale_ * c / eta / count))
            found = LinearWeights(A, mean, self.scale_ * c / values)
        else:
            fitted = U @ A @ (mean * np.sqrt(t))
            left = np.maximum(
                count - int(self.fit_intercept) - (np.outer(s, t) / values).sum(0), 1.0
            )  # degrees of freedom
            scaled = (Z - fitted) / np.sqrt(left) * np.sqrt(t)
            blocks = (scaled.T @ scaled) * (s[:, None, None] / (values[:, :, None] * values[:, None, :]))
            found = LinearWeights(A, mean, self.scale_ * (c / values) ** 2, blocks)
            residuals = data.values - fitted @ self.coordinates_.rows(points).T
            roots = residuals.T / np.sqrt(count * max(count - 1 - (s * t[0] / (s * t[0] + c)).sum(), 1.0))
        if self.fit_intercept:
            self.mean_error_ = MeanCurve(data.domain, points, roots)
        return found

    def _collect_entries(self, X: np.ndarray, data: FunctionalData, max_coefficients: int) -> _EntrySystem:
        """Collect the normal equations of the coefficients of largest prior variance, from the observed values of each curve.

        The intercept is a further row of W with a wide prior.
        """
        U, t = self._features(X), self.coordinates_.variances
        s, A = np.linalg.eigh(U.T @ U)
        V, vectors, signal = U @ A, A, max(float(s[-1]) * t.max() / len(U), 1e-300)
        self._intercept_scale = 0.0
        if self.fit_intercept:
            self._intercept_scale = float(np.sqrt(INTERCEPT_FACTOR * max(s[-1], 1e-300) / len(U)))
            V = np.column_stack([V, np.full(len(U), self._intercept_scale)])
            vectors = np.block([[A, np.zeros((len(A), 1))], [np.zeros((1, A.shape[1])), np.ones((1, 1))]])
        size, rows, columns = np.square(V).sum(0), None, None
        for threshold in 10.0 ** np.arange(-8, 1, 0.25):
            rows, columns = (np.flatnonzero(one >= threshold * one.max()) for one in (size, t))
            if len(rows) * len(columns) <= max_coefficients:
                break
        V, roots = V[:, rows], np.sqrt(t[columns])
        gram, total, count, curves = np.zeros((len(rows), len(columns)) * 2), 0.0, 0, []
        for v, (points, values) in zip(V, data.curves(), strict=True):
            eta = quadrature_weights(points, data.domain, self.quadrature) * len(points) / self._points_per_curve
            H = self.coordinates_.rows(points)[:, columns] * roots * np.sqrt(eta)[:, None]
            y = values[:, 0] * np.sqrt(eta)
            gram += np.outer(v, v)[:, None, :, None] * (H.T @ H)[None, :, None, :]
            curves.append((v, H, y))
            total, count = total + y @ y, count + len(y)
        moment = sum(np.outer(v, H.T @ y) for v, H, y in curves).ravel()
        values, Q = np.linalg.eigh(gram.reshape(len(moment), -1))
        return _EntrySystem(vectors, rows, columns, size, curves, values.clip(0), Q, Q.T @ moment, total, count, signal)

    def _fit_entries(self, X: np.ndarray, data: FunctionalData, is_white: bool) -> LinearWeights:
        """Return the estimate of W from curves with gaps or at different points, and set noise and scale.

        Coefficients of small prior variance keep their prior.
        """
        self.mean_error_, system = None, self._collect_entries(X, data, MAX_COEFFICIENTS)
        self.noise_, self.scale_, self.log_evidence_ = self._noise_of_entries(system)
        t, c, size, Q = self.coordinates_.variances, self.noise_, system.size, system.Q
        kept, shape = np.ix_(system.rows, system.columns), (len(system.rows), len(system.columns))
        W = (Q @ (system.rotated / (system.values + c))).reshape(shape)
        mean, variance = np.zeros((len(size), len(t))), np.full((len(size), len(t)), self.scale_)
        mean[kept], variance[kept] = W, 0.0
        if is_white:
            joint = np.sqrt(self.scale_) * Q * np.sqrt(c / (system.values + c))
        else:
            inverse = (Q * (c / (system.values + c))) @ Q.T  # A⁻¹
            scores = np.stack([np.outer(v, H.T @ (y - H @ (v @ W))).ravel() for v, H, y in system.curves], 1) / c
            signal = size[system.rows] * t.max()
            left = max(len(X) - (signal / (signal + c)).sum(), 1.0)  # degrees of freedom
            joint = np.column_stack([np.sqrt(self.scale_) * inverse, np.sqrt(len(X) / left) * inverse @ scores])
        return LinearWeights(
            system.vectors, mean, variance, None, joint.reshape(*shape, -1), system.rows, system.columns
        )

    def _noise_of_entries(self, system: _EntrySystem) -> tuple[float, float, float]:
        """Return the noise of largest evidence, its scale and log evidence."""
        values, count = system.values, system.count
        noises, best = system.signal * NOISE_RATIOS if isinstance(self.noise, str) else [float(self.noise)], None
        for c in noises:
            quadratic = max(system.total - (np.square(system.rotated) / (values + c)).sum(), 1e-300) / c
            scale = max(quadratic / count, 1e-300)
            logdet = np.log1p(values / c).sum() + count * np.log(c)
            evidence = -(logdet + count * (1 + np.log(2 * np.pi * scale * self._points_per_curve))) / 2
            if best is None or evidence > best[2]:
                best = float(c), float(scale), float(evidence)
        return best

    def _rotate(self, rows: np.ndarray, intercept: float) -> np.ndarray:
        """Return inputs (k, r) in the eigenbasis, with an intercept."""
        if self._intercept_scale:
            rows = np.column_stack([rows, np.full(len(rows), intercept * self._intercept_scale)])
        return rows @ self.weights_.vectors

    def _combine(self, left: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return mean and covariance of φᵀ W ψ(t) for φ (k, r) in the eigenbasis at points (m, b)."""
        found = self.weights_
        right = self.coordinates_.rows(points) * np.sqrt(self.coordinates_.variances)
        mean = left @ found.mean @ right.T
        if form == "none":
            return mean, None
        inner, is_diagonal = np.square(left) @ found.variance, form == "diag"  # (k, ρ)
        covariance = inner @ np.square(right).T if is_diagonal else (right * inner[:, None]) @ right.T
        if found.blocks is not None:
            inner = np.tensordot(np.square(left), found.blocks, 1)  # (k, ρ, ρ)
            half = right @ inner
            covariance = covariance + ((half * right).sum(-1) if is_diagonal else half @ right.T)
        if found.joint is not None:
            for i, row in enumerate(left[:, found.rows]):
                half = right[:, found.columns] @ np.tensordot(row, found.joint, 1)  # (m, q)
                covariance[i] += np.square(half).sum(1) if is_diagonal else half @ half.T
        return mean, covariance

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        mean, covariance = self._combine(self._rotate(self._features(X), 1.0), points, form)
        if form != "none" and self.mean_error_ is not None:
            roots = self.mean_error_(points)
            covariance = covariance + (np.square(roots).sum(1) if form == "diag" else roots @ roots.T)
        return mean, covariance

    def _noise_variance(self, points: np.ndarray) -> float:
        return self.scale_ * self.noise_ * self._points_per_curve

    def _draw_remainders(self, k: int, seed: int):
        rng, found = np.random.default_rng(seed), self.weights_
        W = found.mean + np.sqrt(found.variance) * rng.standard_normal((k, *found.mean.shape))
        if found.blocks is not None:
            values, vectors = np.linalg.eigh(found.blocks)
            roots = vectors * np.sqrt(values.clip(0))[:, None]
            W = W + np.einsum("jlq,kjq->kjl", roots, rng.standard_normal((k, *found.mean.shape)), optimize=True)
        if found.joint is not None:
            draws = np.tensordot(rng.standard_normal((k, found.joint.shape[-1])), found.joint, (1, 2))
            W[:, found.rows[:, None], found.columns] += draws
        shifts = None if self.mean_error_ is None else rng.standard_normal((k, self.mean_error_.coefficients.shape[1]))

        def evaluate(X: np.ndarray, points: np.ndarray) -> np.ndarray:
            right = self.coordinates_.rows(points) * np.sqrt(self.coordinates_.variances)
            curves = self._rotate(self._features(X), 1.0) @ W @ right.T
            return curves if shifts is None else curves + (shifts @ self.mean_error_(points).T)[:, None]

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
        rows = self._rotate(self._coefficient_rows(input_grid), 0.0)
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

    def largest_lengthscale(self) -> float:
        """Return the largest scale of an input, in which the model is linear."""
        return float(np.max(self._input_scale))

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
