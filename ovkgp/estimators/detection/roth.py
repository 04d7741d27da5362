"""Mahalanobis distances of inputs in the space of a fitted kernel, and their reference distribution (KT-37).

For the Gram matrix K of n rows, noise δ and A = (K + δI)⁻¹, the squared distance of k_x from the mean of the rows under their
covariance plus δ/n is

    D(x) = (n/δ) (k(x, x) − k_xᵀ A k_x) + (t(x)² − 2 t(x) + s²)/(1 − s²),   t(x) = k_xᵀ A 1,   s² = mean_i t(x_i).

The first term is n/δ times the posterior variance, and t the posterior mean with all targets 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from linear_operator import to_dense
from scipy.stats import chi2, linregress
from scipy.stats import t as student_t
from torch import Tensor

from ovkgp.checks import check_estimator, check_probability
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.validation import input_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels.evaluation import evaluate_kernel

CHUNK_ENTRIES = 1 << 22  # number of kernel values that are computed together
MIN_ROWS = 3  # of a line with a prediction band


@dataclass(frozen=True, eq=False)
class RothDistances:
    """Squared distances of m points from the training rows, for each of p outputs, with their reference distribution.

    Attributes
    ----------
    distance : ndarray of shape (m, p)
        D(x); larger for points that are further from the training rows.
    df : ndarray of shape (p,)
        Effective degrees of freedom tr K(K + δI)⁻¹ of the reference distribution χ²(df).
    pvalue : ndarray of shape (m, p)
        Probability of a larger distance under χ²(df).
    qq : tuple of ndarray of shape (n, 4)
        QQ plot of the training rows for each output, in the order of their distances: quantile of χ²(df) at (i − ½)/n, distance,
        fitted line, and upper end of the prediction band around it.
    threshold : ndarray of shape (p,)
        Smallest distance of a training row above the band and the median; if there is none, the largest value of the band.
    is_outlier : ndarray of shape (m, p)
        Whether the distance is at least the threshold.
    """

    distance: np.ndarray
    df: np.ndarray
    pvalue: np.ndarray
    qq: tuple[np.ndarray, ...]
    threshold: np.ndarray
    is_outlier: np.ndarray


def roth_distance(estimator: Estimator, X=None, *, training=None, alpha: float = 0.05) -> RothDistances:
    """Compute the distance of inputs from the training rows in the space of the kernel of a fitted Gaussian process (KT-37).

    Each output has its kernel and its noise variance δ. Outliers are found in a QQ plot of the distances of the training rows
    against χ², where a line is fitted. The embedded rows of a Gaussian kernel are not Gaussian, so the level of the flags is not
    guaranteed: `RandomProjectionDetector` has p-values.

    Parameters
    ----------
    estimator : Estimator
        Fitted estimator with `gp_`, an `OperatorValuedGP`, such as `GPRegressor` or `OVKRidge`. That of `kernel="auto"` is the
        candidate of largest weight, at the mode of its hyperparameters.
    X : array-like of shape (m, d), optional
        Points. If None, the training rows.
    training : array-like of shape (n, d), optional
        Training rows, for a model that does not store them.
    alpha : float, default=0.05
        Level of the prediction band around the line.

    Returns
    -------
    RothDistances

    Notes
    -----
    With missing outputs, the training rows of an output are those where it is observed. Complexity: O(n³) per output, with M
    features O(n M²).

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X = np.r_[rng.normal(size=(60, 1)), [[6.0]]]
    >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X[:, 0]))
    >>> found = ovkgp.roth_distance(model)
    >>> int(found.distance.argmax()), bool(found.is_outlier[60, 0])
    (60, True)
    """
    check_estimator(estimator)
    alpha = check_probability("alpha", alpha)
    gp = getattr(estimator, "gp_", None)
    if not isinstance(gp, OperatorValuedGP):
        raise OptionError(
            f"{estimator.class_name} has no Gaussian process with Gaussian noise. Use GPRegressor, OVKRidge or ORFFRidge."
        )
    rows, observed = _training_rows(estimator, training)
    points = rows if X is None else estimator.scaling_.inputs(input_table(estimator, X, reset=False))
    noise = gp.noise.detach()
    noise = (noise.diagonal() if noise.dim() == 2 else noise.expand(gp.num_outputs)).numpy()
    if not (noise > 0).all():
        raise OptionError("noise must be positive for a distance. Fit with a positive noise variance.")
    found = []
    with torch.no_grad():
        for a in range(gp.num_outputs):
            distance, own, df = _distances(gp, rows[observed[:, a]], points, a, float(noise[a]))
            qq, threshold = _fit_line(own, df, alpha)
            found.append((distance, df, chi2.sf(distance, df), qq, threshold, distance >= threshold))
    distance, df, pvalue, qq, threshold, is_outlier = zip(*found, strict=True)
    columns = (np.stack(column, -1) for column in (distance, df, pvalue, threshold, is_outlier))
    distance, df, pvalue, threshold, is_outlier = columns
    return RothDistances(distance, df, pvalue, qq, threshold, is_outlier)


def _training_rows(estimator, training) -> tuple[Tensor, np.ndarray]:
    """Return the scaled training rows (n, d), and which outputs (n, p) are observed there."""
    p = estimator.gp_.num_outputs
    if training is not None:
        rows = estimator.scaling_.inputs(input_table(estimator, training, reset=False))
        return rows, np.ones((len(rows), p), dtype=bool)
    stored = estimator.training_data()
    if stored is None:
        raise InputError(f"{estimator.class_name} stores no training rows. Pass them: training=X.")
    X, Y = stored
    return estimator.scaling_.inputs(X), np.isfinite(np.reshape(Y, (len(X), p)))


def _distances(gp: OperatorValuedGP, rows: Tensor, points: Tensor, output: int, noise: float):
    """Return the distances of the points (m,) and of the rows (n,), and the degrees of freedom."""
    n = len(rows)
    if n < MIN_ROWS:
        raise InputError(f"Each output needs at least {MIN_ROWS} training rows, got {n} for output {output}.")
    moments = _feature_moments if gp.features is not None else _dense_moments
    predict = moments(gp, rows, output, noise)
    variance, mean = predict(rows)
    s2 = mean.mean()

    def distance(var: np.ndarray, t: np.ndarray) -> np.ndarray:
        return n / noise * var + (t**2 - 2 * t + s2) / (1 - s2)

    own = distance(variance, mean)
    return own if points is rows else distance(*predict(points)), own, variance.sum() / noise


Moments = Callable[[Tensor], tuple[np.ndarray, np.ndarray]]


def _dense_moments(gp: OperatorValuedGP, rows: Tensor, output: int, noise: float) -> Moments:
    """Return the function of points (m, d) that computes the posterior variances, and means with all targets 1."""
    chol = torch.linalg.cholesky(_block(gp, rows, rows, output) + noise * torch.eye(len(rows), dtype=torch.float64))
    weights = torch.cholesky_solve(torch.ones(len(rows), 1, dtype=torch.float64), chol)

    def predict(points: Tensor) -> tuple[np.ndarray, np.ndarray]:
        columns = _block(gp, points, rows, output)
        solved = torch.linalg.solve_triangular(chol, columns.mT, upper=False)
        prior = to_dense(evaluate_kernel(gp.kernel, points, diag=True))[output :: gp.num_outputs]
        variance = (prior - solved.square().sum(0)).clamp_min(0.0)
        return variance.numpy(), (columns @ weights)[:, 0].numpy()

    return predict


def _block(gp: OperatorValuedGP, points: Tensor, rows: Tensor, output: int) -> Tensor:
    """Return the kernel (m, n) of one output."""
    p = gp.num_outputs
    parts = points.split(max(1, CHUNK_ENTRIES // (len(rows) * p**2)))
    return torch.cat([to_dense(evaluate_kernel(gp.kernel, part, rows))[output::p, output::p] for part in parts])


def _feature_moments(gp: OperatorValuedGP, rows: Tensor, output: int, noise: float) -> Moments:
    """Return the same for the kernel of a feature map."""

    def features(points: Tensor) -> Tensor:
        return to_dense(gp.features(points))[output :: gp.num_outputs]

    Phi = features(rows)
    chol = torch.linalg.cholesky(Phi.mT @ Phi + noise * torch.eye(Phi.shape[1], dtype=torch.float64))
    weights = torch.cholesky_solve(Phi.sum(0)[:, None], chol)

    def predict(points: Tensor) -> tuple[np.ndarray, np.ndarray]:
        phi = features(points)
        variance = noise * torch.linalg.solve_triangular(chol, phi.mT, upper=False).square().sum(0)
        return variance.numpy(), (phi @ weights)[:, 0].numpy()

    return predict


def _fit_line(own: np.ndarray, df: float, alpha: float) -> tuple[np.ndarray, float]:
    """Fit a line to the QQ plot of distances (n,) against χ²(df); return the columns of the plot (n, 4) and the threshold."""
    n, distance = len(own), np.sort(own)
    quantile = chi2.ppf((np.arange(n) + 0.5) / n, df)
    fit = linregress(quantile, distance)
    line, deviation = fit.intercept + fit.slope * quantile, quantile - quantile.mean()
    std = np.sqrt(np.square(distance - line).sum() / (n - 2))
    band = student_t.ppf(1 - alpha / 2, n - 2) * std * np.sqrt(1 + 1 / n + deviation**2 / np.square(deviation).sum())
    upper = line + band
    is_above = (distance > upper) & (np.arange(n) >= n // 2)
    threshold = distance[is_above][0] if is_above.any() else upper.max()
    return np.stack([quantile, distance, line, upper], 1), float(threshold)
