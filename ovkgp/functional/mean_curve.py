"""Mean curves of functional data: pointwise where all curves share a complete grid, otherwise a smooth spline under a mixed model.

With gaps, the average of the few curves observed at a point follows *which* curves these are. The mean μ is therefore estimated together with
smooth deviations of the curves, y_i(t) = μ(t) + Φ(t) a_i + ε with a_i ~ N(0, C): generalized least squares for μ, and the EM algorithm for C
and the noise. Both are splines; deviations have few, so that C is estimated well.

A robust mean is the pointwise median of complete curves. With gaps it is the mixed model of the values without outliers: those that are far
from a smooth median, relative to a smooth median of the absolute deviations, and the rest of curves of which these are the most.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import BSpline, LinearNDInterpolator, NearestNDInterpolator
from scipy.linalg import solve
from scipy.sparse import csr_array

from ovkgp.exceptions import InputError
from ovkgp.functional.quadrature import as_points

SPLINE_DEGREE = 3
MAX_SPLINES = 25  # number of B-splines of a mean curve in one dimension
MAX_SPLINES_PER_DIMENSION = 8  # if there are several dimensions
LOG_PENALTIES = np.linspace(
    -8, 4, 25
)  # candidates of generalized cross validation, relative to the scale of the design
NUM_DEVIATION_SPLINES = 6  # of the deviation of a curve from the mean, in one dimension
NUM_ITERATIONS = 50  # maximum number of iterations of the EM algorithm
MAX_DEVIATION = 3.0  # of regular values from the smooth median, in robust standard deviations
NUM_MEDIAN_ITERATIONS = 30  # of reweighted least squares for a smooth median
MEDIAN_WIDTH = 1e-2  # of the absolute deviations, in their median, below which their weights are constant
NORMAL_MAD = 1.482602218505602  # standard deviation of a normal distribution over its median absolute deviation


class MeanCurve:
    """Mean of functional data, a function of points.

    Parameters
    ----------
    domain : ndarray of shape (b, 2)
        Domain of the curves.
    grid : ndarray of shape (m, b) or None
        Grid of a pointwise mean, interpolated linearly between its points. If None, the mean is a spline.
    coefficients : ndarray of shape (m, q) or (d, q)
        Values on the grid, or coefficients of the splines.
    knots : list of ndarray or None
        Knots of the splines in each dimension.
    """

    def __init__(
        self, domain: np.ndarray, grid: np.ndarray | None, coefficients: np.ndarray, knots: list | None = None
    ):
        self.domain, self.grid, self.coefficients, self.knots = domain, grid, coefficients, knots

    def __call__(self, points, derivative: int = 0) -> np.ndarray:
        """Return the mean at points (k,) or (k, b), of shape (k, q), or its first derivative on a one-dimensional domain."""
        points = as_points(points, self.domain)
        if derivative:
            return self._slopes(points[:, 0])
        if self.knots is not None:
            return _spline_rows(points, self.knots) @ self.coefficients
        if points.shape[1] == 1:
            return np.stack([np.interp(points[:, 0], self.grid[:, 0], c) for c in self.coefficients.T], 1)
        if len(self.grid) == 1:  # constant
            return np.repeat(self.coefficients, len(points), axis=0)
        check_spread(self.grid)
        values = LinearNDInterpolator(self.grid, self.coefficients)(points)
        outside = np.isnan(values).any(1)
        if outside.any():
            values[outside] = NearestNDInterpolator(self.grid, self.coefficients)(points[outside])
        return values

    def _slopes(self, at: np.ndarray) -> np.ndarray:
        if self.knots is not None:
            return BSpline(self.knots[0], self.coefficients, SPLINE_DEGREE)(at, 1)
        grid = self.grid[:, 0]
        if len(grid) == 1:
            return np.zeros((len(at), self.coefficients.shape[1]))
        slopes = np.diff(self.coefficients, axis=0) / np.diff(grid)[:, None]
        return slopes[np.clip(np.searchsorted(grid, at) - 1, 0, len(slopes) - 1)]


def check_spread(points: np.ndarray) -> None:
    """Check that points (m, b) with m > b are not all on a line or a hyperplane, on which they have no linear interpolant."""
    b = points.shape[1]
    if len(points) > b and np.linalg.matrix_rank(points - points[0]) < b:
        raise InputError(
            f"grid must have points that span R^{b} to be interpolated, got points on a line or a plane. Pass coordinates along it as a grid of fewer dimensions."
        )


def fit_mean_curve(
    domain: np.ndarray,
    curve: np.ndarray,
    points: np.ndarray,
    values: np.ndarray,
    max_splines: int | None = None,
    is_robust: bool = False,
) -> MeanCurve:
    """Fit a mean and deviations of curves to observations: curve index (N,), points (N, b), values (N, q), NaN if missing.

    The mean has at most `max_splines` splines per dimension; None is 25, or 8 if there are several dimensions. The penalty on differences of coefficients of the mean is chosen by
    generalized cross validation. If `is_robust`, outlying values and curves do not count. Complexity: O(N r² + n r² (r + d) + d³) per
    iteration, for n curves and d and r splines of the mean and of deviations.
    """
    num_dims = len(domain)
    distinct = [len(np.unique(column)) for column in points.T]
    most = max_splines or (MAX_SPLINES if num_dims == 1 else MAX_SPLINES_PER_DIMENSION)
    counts = [int(np.clip(count // 2, SPLINE_DEGREE + 1, most)) for count in distinct]
    knots = [
        clamp_knots(place_knots(column, ends, count - SPLINE_DEGREE + 1))
        for column, ends, count in zip(points.T, domain, counts, strict=True)
    ]
    rows, penalty = _spline_rows(points, knots), _difference_penalty(counts)
    deviations = _deviation_rows(points, domain, len(np.unique(curve)))
    columns = []
    for column in values.T:
        keep = ~np.isnan(column)
        if is_robust:
            keep[keep] = _find_regular(rows[keep], column[keep], curve[keep], penalty)
        columns.append(_fit_mixed_model(rows[keep], deviations[keep], column[keep], curve[keep], penalty))
    return MeanCurve(domain, None, np.stack(columns, 1), knots)


def _find_regular(rows: csr_array, values: np.ndarray, curve: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Return whether values are near a smooth median, (N,), False for all values of a curve of which most are not.

    At least half of the values and one curve are kept, as distances are relative to a smooth median of them.
    """
    distances = np.abs(values - rows @ _fit_median(rows, values, penalty))
    middle = np.median(distances)
    if middle == 0:
        return np.ones(len(values), dtype=bool)
    scales = np.maximum(rows @ _fit_median(rows, distances, penalty), middle / 3)
    is_near = distances <= MAX_DEVIATION * NORMAL_MAD * scales
    _, curve = np.unique(curve, return_inverse=True)
    shares = np.bincount(curve, is_near) / np.bincount(curve)
    regular = is_near & (shares[curve] > 0.5)
    return regular if regular.any() else is_near


def _fit_median(rows: csr_array, values: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Return the coefficients of a smooth median, by least squares with weights 1/|r| from the median of all values."""
    center = np.median(values)
    shifted, coefficients = values - center, np.zeros(rows.shape[1])
    for _ in range(NUM_MEDIAN_ITERATIONS):
        distances = np.abs(shifted - rows @ coefficients)
        width = MEDIAN_WIDTH * np.median(distances)
        if width == 0:
            break
        weights = width / np.maximum(distances, width)
        weighted = rows.multiply(weights[:, None]).tocsr()
        gram, moment = (weighted.T @ rows).toarray(), weighted.T @ shifted
        previous = coefficients
        coefficients = _penalized_fit(gram, moment, weights @ shifted**2, len(values), penalty)
        if np.abs(coefficients - previous).max() < 1e-3 * np.median(distances):
            break
    return coefficients + center  # splines sum to 1


def _deviation_rows(points: np.ndarray, domain: np.ndarray, num_curves: int) -> np.ndarray:
    """Return splines (N, r) of the deviations of curves from their mean, or ones if there are few curves or many dimensions."""
    distinct = min(len(np.unique(column)) for column in points.T)
    count = NUM_DEVIATION_SPLINES if len(domain) == 1 else SPLINE_DEGREE + 1
    if len(domain) > 2 or num_curves < 3 * count ** len(domain) or distinct < 2 * count:
        return np.ones((len(points), 1))
    breakpoints = [place_knots(c, ends, count - SPLINE_DEGREE + 1) for c, ends in zip(points.T, domain, strict=True)]
    return _spline_rows(points, [clamp_knots(one) for one in breakpoints]).toarray()


def _fit_mixed_model(
    rows: csr_array, deviations: np.ndarray, values: np.ndarray, curve: np.ndarray, penalty
) -> np.ndarray:
    """Return the coefficients of the mean, from statistics per curve: Φ_iᵀΦ_i, Φ_iᵀR_i and Φ_iᵀy_i."""
    _, curve = np.unique(curve, return_inverse=True)
    num_curves, center = curve.max() + 1, values.mean()
    values = values - center
    count, variance = len(values), max(values.var(), np.finfo(float).tiny)
    members = csr_array((np.ones(count), (curve, np.arange(count))), shape=(num_curves, count))
    A, B, u = [], [], []  # (n, r, r), (n, r, d), (n, r)
    for phi in deviations.T:
        A.append(members @ (phi[:, None] * deviations))
        B.append((members @ rows.multiply(phi[:, None]).tocsr()).toarray())
        u.append(members @ (phi * values))
    A, B, u = (np.stack(parts, 1) for parts in (A, B, u))
    gram, moment, total = (rows.T @ rows).toarray(), rows.T @ values, values @ values
    if num_curves == 1:
        return _penalized_fit(gram, moment, total, count, penalty) + center
    C, noise = variance * np.eye(A.shape[1]), 0.1 * variance
    coefficients = np.zeros(rows.shape[1])
    for _ in range(NUM_ITERATIONS):
        previous = coefficients
        inverse = np.linalg.inv(A + noise * np.linalg.inv(C))  # (ΦᵀΦ + σ²C⁻¹)⁻¹
        weighted = inverse @ B
        coefficients = _penalized_fit(
            gram - np.einsum("nrd,nre->de", B, weighted),
            moment - np.einsum("nrd,nr->d", weighted, u),
            total - np.einsum("nr,nrs,ns->", u, inverse, u),
            count,
            penalty,
        )
        residuals = u - B @ coefficients
        a = np.einsum("nrs,ns->nr", inverse, residuals)
        # ‖y − Rc − Φa‖², and the traces of the conditional covariances σ² inverse
        error = total - 2 * coefficients @ moment + coefficients @ gram @ coefficients
        error += np.einsum("nr,nrs,ns->", a, A, a) - 2 * np.sum(a * residuals)
        C = np.einsum("nr,ns->rs", a, a) / num_curves + noise * inverse.mean(0)
        C = C + 1e-8 * variance * np.eye(len(C))
        noise = max((error + noise * np.einsum("nrs,nsr->", inverse, A)) / count, 1e-6 * variance)
        if np.abs(coefficients - previous).max() < 1e-3 * np.sqrt(variance):
            break
    return coefficients + center  # splines sum to 1


def _penalized_fit(gram: np.ndarray, moment: np.ndarray, total: float, count: int, penalty: np.ndarray) -> np.ndarray:
    """Return the minimizer of cᵀGc − 2cᵀb + yᵀy + λ cᵀPc, with λ by generalized cross validation for `count` observations."""
    scale = np.trace(gram) / np.trace(penalty)
    tiny = 1e-10 * np.trace(gram) / len(gram) * np.eye(len(gram))
    best, best_score = np.zeros(len(gram)), np.inf
    for penalty_weight in scale * 10.0**LOG_PENALTIES:
        found = solve(gram + penalty_weight * penalty + tiny, np.column_stack([moment, gram]), assume_a="pos")
        coefficients, freedom = found[:, 0], np.trace(found[:, 1:])
        left = count - freedom
        error = max(total - 2 * coefficients @ moment + coefficients @ gram @ coefficients, 0.0)
        if left > 0 and (score := error / left**2) < best_score:
            best, best_score = coefficients, score
    return best


def place_knots(points: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    """Return `count` breakpoints at quantiles of the distinct points, from one end to the other: equidistant for equidistant points."""
    knots = np.quantile(np.unique(points), np.linspace(0, 1, count))
    return np.concatenate([ends[:1], knots[1:-1], ends[1:]])


def clamp_knots(breakpoints: np.ndarray) -> np.ndarray:
    """Return the knots of cubic splines, with the ends repeated."""
    low, high = (np.repeat(end, SPLINE_DEGREE) for end in breakpoints[[0, -1]])
    return np.concatenate([low, breakpoints, high])


def _spline_rows(points: np.ndarray, knots: list[np.ndarray]) -> csr_array:
    """Return the products of B-splines at points (k, b), (k, d), sparse."""
    first, *rest = (BSpline.design_matrix(column, t, SPLINE_DEGREE) for column, t in zip(points.T, knots, strict=True))
    rows = csr_array(first)
    for factor in rest:
        dense = rows.toarray()[:, :, None] * factor.toarray()[:, None, :]
        rows = csr_array(dense.reshape(len(points), -1))
    return rows


def _difference_penalty(counts: list[int]) -> np.ndarray:
    """Return the sum over dimensions of Gram matrices of second differences of coefficients.

    They are 0 for linear functions if knots are equidistant; otherwise the differences are relative to the density of the knots, so that
    the mean may vary more where points are dense.
    """
    total = np.zeros((1, 1))
    for count in counts:
        knots = clamp_knots(np.linspace(0, 1, count - SPLINE_DEGREE + 1))
        nodes = np.convolve(knots[1:-1], np.full(SPLINE_DEGREE, 1 / SPLINE_DEGREE), "valid")  # coefficients of u ↦ u
        slopes = np.diff(np.eye(count), axis=0) / np.diff(nodes)[:, None] * np.diff(nodes).mean()
        differences = np.diff(slopes, axis=0)
        total = np.kron(total, np.eye(count)) + np.kron(np.eye(len(total)), differences.T @ differences)
    return total
