"""Joint calibration of whitened residuals: pre-ranks of rows, Mahalanobis distance, and errors ordered by scale or by pivots.

Rows z of residuals are N(0, I) if the model is right. Their pre-ranks are the location Σ_a z_a / √p, the scale Σ_a z_a² and the
dependence Σ_{a<b} z_a z_b; the probability integral transforms of each are uniform. In the eigenbasis of the covariance of all
entries, e_j = v_jᵀ (y − m) / √w_j belongs to smooth variation for large eigenvalues w_j and to noise for small ones, so that a
kernel of the wrong smoothness shows in E e_j² as a function of j. If hyperparameters were trained on the same rows, replicates of the null
hypothesis are fitted in the same way: standardized, and projected on the directions that training leaves free.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack, solve_triangular
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, f

from ovkgp.checks import as_numbers, check_one_of
from ovkgp.criticism.residuals import JointErrors
from ovkgp.criticism.results import HypothesisTest
from ovkgp.exceptions import FactorizationError, InputError

PRERANKS = ("location", "scale", "dependence")
NUM_REFERENCE_DRAWS = 100_000  # of the distribution of the dependence pre-rank
MIN_PROBABILITY = 1e-12  # transforms are kept this far from 0 and 1
MIN_DIRECTION = 1e-6  # singular values below are directions that do not differ


def prerank_pit(residuals, prerank: str = "location", random_state: int = 0) -> np.ndarray:
    """Compute probability integral transforms of pre-ranks of the rows of whitened residuals.

    They are uniform if the rows are N(0, I). Of "location", transforms near 0 and 1 mean outputs whose errors go together; of
    "scale", large ones mean overconfidence; of "dependence", large ones mean omitted positive correlation.

    Parameters
    ----------
    residuals : array-like of shape (n, p)
        Residuals, p at least 2, without missing entries.
    prerank : {"location", "scale", "dependence"}, default="location"
        Function of a row: Σ_a z_a / √p, Σ_a z_a², or Σ_{a<b} z_a z_b.
    random_state : int, default=0
        Seed of the draws from which the distribution of the dependence is computed.

    Returns
    -------
    ndarray of shape (n,)
        Transforms in [0, 1].

    References
    ----------
    Gneiting et al. (2008), "Assessing probabilistic forecasts of multivariate quantities"; Allen, Ziegel & Ginsbourger (2023),
    "Assessing the calibration of multivariate probabilistic forecasts".

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import prerank_pit
    >>> z = np.random.default_rng(0).normal(size=(1000, 2))
    >>> bool(abs(prerank_pit(z, "scale").mean() - 0.5) < 0.03)
    True
    """
    check_one_of("prerank", prerank, PRERANKS)
    return _make_prerank(prerank, _check_rows(residuals).shape[1], random_state)(_check_rows(residuals))


def _check_rows(residuals) -> np.ndarray:
    rows = as_numbers(residuals, "residuals")
    if rows.ndim != 2 or rows.shape[1] < 2 or not len(rows):
        raise InputError(f"residuals has shape {rows.shape}, expected (n, p) with at least 2 outputs.")
    if not np.isfinite(rows).all():
        raise InputError("residuals must be finite, got NaN or infinity. Drop rows with missing entries.")
    return rows


def _make_prerank(prerank: str, p: int, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from rows (..., p) to the transforms (...) of their pre-rank."""
    if prerank == "location":
        return lambda rows: ndtr(rows.sum(-1) / np.sqrt(p))
    if prerank == "scale":
        return lambda rows: chi2.cdf(np.square(rows).sum(-1), p)
    draws = np.sort(_dependence(np.random.default_rng(seed).standard_normal((NUM_REFERENCE_DRAWS, p))))
    return lambda rows: (np.searchsorted(draws, _dependence(rows)) + 0.5) / (len(draws) + 1)


def _dependence(rows: np.ndarray) -> np.ndarray:
    """Return Σ_{a<b} z_a z_b."""
    return (np.square(rows.sum(-1)) - np.square(rows).sum(-1)) / 2


def prerank_test(residuals: np.ndarray, prerank: str, **options) -> HypothesisTest:
    """Test the pre-ranks of rows (n, p) for uniform transforms; `options` are those of `_test_uniformity`."""
    transform = _make_prerank(prerank, residuals.shape[1], 0)
    null = f"the {prerank} of rows is calibrated"
    return _test_uniformity(residuals, transform, f"{prerank} of rows", null, **options)


def marginal_test(residuals: np.ndarray, name: str, *, is_known: bool = True, **options) -> HypothesisTest:
    """Test the residuals (n,) of one output for a normal distribution; `options` are those of `_test_uniformity`."""
    null = f"residuals of {name} are {'standard normal' if is_known else 'normal'}"
    texts = f"distribution of {name}", null
    return _test_uniformity(residuals[:, None], lambda z: ndtr(z[..., 0]), *texts, is_known=is_known, **options)


def _test_uniformity(
    rows: np.ndarray,
    transform: Callable[[np.ndarray], np.ndarray],
    name: str,
    null: str,
    *,
    is_known: bool = True,
    num_replicates: int = 1000,
    alpha: float = 0.05,
    random_state: int = 0,
) -> HypothesisTest:
    """Compare the Anderson–Darling statistic of transforms of rows (n, p) with those of simulated standard normal rows.

    Unless means and variances are known, observed and simulated rows are standardized.
    """
    rng = np.random.default_rng(random_state)

    def statistic(z: np.ndarray) -> float:
        return _anderson_darling(transform(z if is_known else (z - z.mean(0)) / z.std(0)))

    replicates = np.array([statistic(rng.standard_normal(rows.shape)) for _ in range(num_replicates)])
    return HypothesisTest.from_replicates(name, statistic(rows), replicates, null, alpha)


def _anderson_darling(u: np.ndarray) -> float:
    """Return the Anderson–Darling distance of u (n,) to the uniform distribution."""
    u = np.sort(u).clip(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    n = len(u)
    return float(-n - np.mean((2 * np.arange(1, n + 1) - 1) * (np.log(u) + np.log1p(-u[::-1]))))


def mahalanobis_test(residuals: np.ndarray, num_trained: int | None = None, alpha: float = 0.05) -> HypothesisTest:
    """Test the mean square of whitened residuals (N,), two-sided: a χ²_N/N, or F if the variance was trained on other entries.

    Parameters
    ----------
    residuals : ndarray of shape (N,)
        Whitened residuals of entries that hyperparameters were not trained on.
    num_trained : int or None, default=None
        Number of entries that hyperparameters were trained on. If None, they are known.
    alpha : float, default=0.05
        Level.

    Returns
    -------
    HypothesisTest
        `statistic` is the mean square: above 1 if the model is overconfident, below 1 if it is underconfident. `critical_value` is
        the upper one of two.

    References
    ----------
    Bastos & O'Hagan (2009), "Diagnostics for Gaussian process emulators".
    """
    residuals = residuals[np.isfinite(residuals)]
    count = len(residuals)
    statistic = float(np.square(residuals).mean())
    known = chi2(count, scale=1 / count) if num_trained is None else f(count, num_trained)
    pvalue = min(1.0, 2 * min(known.cdf(statistic), known.sf(statistic)))
    null = "predicted variances are right on average"
    return HypothesisTest("Mahalanobis distance", statistic, pvalue, float(known.isf(alpha / 2)), null, None, alpha)


def pivoted_cholesky_errors(errors, covariance) -> tuple[np.ndarray, np.ndarray]:
    """Compute errors that are independent standard normal if the model is right, in the order of their conditional variances.

    Each pivot is the entry of largest variance given the entries before. Large early errors mean a wrong variance or mean, large
    late ones a wrong correlation or noise.

    Parameters
    ----------
    errors : array-like of shape (N,)
        Errors y − m.
    covariance : array-like of shape (N, N)
        Their covariance, positive definite.

    Returns
    -------
    values : ndarray of shape (N,)
        Errors L⁻¹ (y − m) in the order of the pivots.
    order : ndarray of shape (N,)
        Index of each pivot.

    Notes
    -----
    Complexity: O(N³).

    References
    ----------
    Bastos & O'Hagan (2009), "Diagnostics for Gaussian process emulators", section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import pivoted_cholesky_errors
    >>> values, order = pivoted_cholesky_errors([1.0, 4.0], [[1.0, 0.0], [0.0, 4.0]])
    >>> values.tolist(), order.tolist()
    ([2.0, 1.0], [1, 0])
    """
    errors, covariance = as_numbers(errors, "errors"), as_numbers(covariance, "covariance")
    if errors.ndim != 1 or covariance.shape != (len(errors),) * 2:
        raise InputError(
            f"covariance has shape {covariance.shape}, expected (N, N) for errors of shape (N,), got {errors.shape}."
        )
    factor, pivots, rank, info = lapack.dpstrf(covariance, lower=1)
    if info < 0 or rank < len(errors):
        raise FactorizationError(f"covariance has rank {rank}, expected {len(errors)}. Add noise to its diagonal.")
    order = pivots - 1
    return solve_triangular(np.tril(factor), errors[order], lower=True), order


def pivoted_cholesky_test(joint: JointErrors, *, is_known: bool = True, alpha: float = 0.05) -> HypothesisTest:
    """Test the largest pivoted Cholesky error; errors of trained models are divided by their root mean square."""
    values, _ = pivoted_cholesky_errors(joint.errors, joint.covariance)
    if not is_known:
        values = values / np.sqrt(np.square(values).mean())
    largest, count = float(np.abs(values).max()), len(values)
    pvalue = float(-np.expm1(count * np.log1p(-2 * ndtr(-largest))))
    critical = float(-ndtri(-np.expm1(np.log1p(-alpha) / count) / 2))
    return HypothesisTest("pivoted Cholesky errors", largest, pvalue, critical, "no error is too large", None, alpha)


def spectral_errors(joint: JointErrors) -> tuple[np.ndarray, np.ndarray]:
    """Return e_j = v_jᵀ (y − m) / √w_j (N,) in the order of decreasing eigenvalues w, and orthonormal directions (N, k) of training.

    The squares e² − 1 of trained models are orthogonal to the directions v_jᵀ (∂C/∂θ) v_j / w_j.
    """
    values, vectors = np.linalg.eigh(joint.covariance)
    values, vectors = values[::-1].clip(values.max() * 1e-12), vectors[:, ::-1]
    errors = vectors.T @ joint.errors / np.sqrt(values)
    slopes = [((derivative @ vectors) * vectors).sum(0) / values for derivative in joint.derivatives]
    slopes = np.array([slope / np.linalg.norm(slope) for slope in slopes if slope.any()]).reshape(-1, len(errors))
    if not len(slopes):
        return errors, np.zeros((len(errors), 0))
    directions, sizes, _ = np.linalg.svd(slopes.T, full_matrices=False)
    return errors, directions[:, sizes > MIN_DIRECTION]


def spectral_test(
    joint: JointErrors, *, num_replicates: int = 1000, alpha: float = 0.05, random_state=0
) -> HypothesisTest:
    """Test whether E e_j² = 1 at all scales of variation: the kernel has the right smoothness, range and signal-to-noise ratio.

    The statistic is Σ_k S_k² / (k (N − k)/N) of the cumulative sums S_k of e_j² − 1, minus their projection on the directions of training.
    """
    errors, directions = spectral_errors(joint)
    rng, number = np.random.default_rng(random_state), len(errors)
    k = np.arange(1, number)
    weights = number / (k * (number - k))

    def statistic(values: np.ndarray) -> np.ndarray:
        excess = np.square(values) - 1
        excess = excess - (excess @ directions) @ directions.T
        excess = excess - excess.mean(-1, keepdims=True)  # the overall variance is tested by the Mahalanobis distance
        return np.square(excess.cumsum(-1)[..., :-1]) @ weights

    replicates = statistic(rng.standard_normal((num_replicates, number)))
    null = "the variance of residuals is right at all scales of variation"
    return HypothesisTest.from_replicates("scales of variation", statistic(errors), replicates, null, alpha)
