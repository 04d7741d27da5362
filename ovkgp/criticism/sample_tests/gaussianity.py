"""Kernel test of Gaussianity, in R^d and in Hilbert spaces of functions.

The statistic is n Δ², where Δ is the distance between the mean embedding of the sample and that of the Gaussian distribution fitted
to it (a maximum mean discrepancy). Its distribution under the null hypothesis is that of zᵀGz/n for centered normal multipliers z,
where G is the Gram matrix of the influence of single observations on the difference of both embeddings (KT-67..78, 94..96).
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.linalg import eigh, eigvalsh
from scipy.stats import norm

from ovkgp.checks import as_numbers, as_seed, check_integer, check_one_of, check_positive, check_probability
from ovkgp.criticism.results import HypothesisTest
from ovkgp.criticism.sample_tests.gaussian_embeddings import KERNELS, GaussianModel
from ovkgp.criticism.sample_tests.samples import (
    MIN_ROWS,
    as_gram,
    as_rows,
    center_gram,
    check_one_source,
    coordinates_of_gram,
    coordinates_of_rows,
    is_median,
    median_squared_distance,
)
from ovkgp.criticism.sample_tests.weighted_chi2 import weighted_chi2_isf, weighted_chi2_sf
from ovkgp.exceptions import InputError, OptionError

NULLS = {
    "full": "the observations are Gaussian with unknown mean and covariance",
    "known": "the observations are Gaussian with the given mean and covariance",
    "known_mean": "the observations are Gaussian with the given mean and unknown covariance",
    "known_covariance": "the observations are Gaussian with unknown mean and the given covariance",
}
METHODS = ("multiplier", "exact", "parametric", "features")
MAX_EXPONENTIAL_EIGENVALUE = 0.5  # E k(Y, Y) of the exponential kernel is finite below
MIN_KERNEL_VARIATION = 1e-4  # 1 − k of typical pairs; the statistic is of its third power and lost to rounding below
MIN_NEIGHBORS = (
    0.1  # n E k² of two observations; no sample of a simulation was rejected below, and .01 of Gaussian ones at 1
)
CHUNK_COLUMNS = 1000  # of multipliers in one product


def gaussianity_test(
    data=None,
    *,
    gram=None,
    null="full",
    mean=None,
    covariance=None,
    kernel="gaussian",
    scale="median",
    method="multiplier",
    num_replicates=1000,
    alpha=0.05,
    derivative_at="projected",
    num_features=500,
    random_state=None,
) -> HypothesisTest:
    """Test whether observations are Gaussian: rows of numbers, or elements of a Hilbert space with given inner products.

    Parameters
    ----------
    data : array-like of shape (n, d) or (n,), or None, default=None
        Independent observations, at least 10: whitened residuals, draws of a posterior, coefficients of curves.
    gram : array-like of shape (n, n) or None, default=None
        Inner products ⟨Y_i, Y_j⟩ of the observations, instead of `data`: of curves, or a kernel matrix, which tests the
        embedded data. With `null="known_mean"` those of Y_i − m.
    null : {"full", "known", "known_mean", "known_covariance"} or int, default="full"
        Null hypothesis: Gaussian with unknown mean and covariance, or with one or both of them known; an integer r is the
        hypothesis of a covariance of rank r.
    mean : array-like of shape (d,) or None, default=None
        Known mean. If None, 0. Ignored unless the null hypothesis has a known mean.
    covariance : array-like of shape (d, d) or None, default=None
        Known covariance. If None, the identity matrix. Ignored unless the null hypothesis has a known covariance.
    kernel : {"gaussian", "exponential"}, default="gaussian"
        exp(−scale ‖x − y‖²), or exp(scale ⟨x, y⟩) about the mean, which requires scale · λ_max(covariance) < ½.
    scale : float or "median", default="median"
        Scale of the kernel. "median" is one over the median of ‖Y_i − Y_j‖², for the exponential kernel at most 1/(8 λ_max).
    method : {"multiplier", "exact", "parametric", "features"}, default="multiplier"
        Distribution under the null hypothesis. "multiplier": multiplier bootstrap, O(n²) per replicate. "exact": the
        distribution of the multiplier bootstrap, a weighted sum of chi-squares, without simulation. "parametric": a new
        sample is drawn and fitted in each replicate. "features": the multiplier bootstrap with random Fourier
        features, O(n · num_features) per replicate, for many rows.
    num_replicates : int, default=1000
        Number of replicates. Ignored if `method="exact"`.
    alpha : float, default=0.05
        Level.
    derivative_at : {"projected", "empirical"}, default="projected"
        Covariance at which the truncation to rank r is differentiated: the truncated one, or the empirical one, which is less
        powerful and diverges for close eigenvalues. Ignored unless `null` is an integer.
    num_features : int, default=500
        Number of random frequencies. Ignored unless `method="features"`.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the replicates.

    Returns
    -------
    HypothesisTest
        `statistic` is n Δ².

    Raises
    ------
    InputError
        If the data are not finite, have fewer than 10 rows or no variance, or the Gram matrix is not symmetric and
        positive semi-definite.
    OptionError
        If the scale makes the kernel constant or diagonal on the sample, or is too large for the exponential kernel.

    See Also
    --------
    gaussianity_power : Power of the test for a given number of rows.
    covariance_rank : Number of components of a Gaussian sample.

    Notes
    -----
    Observations must be independent: residuals of a Gaussian process are whitened first. The level is approximate for fewer
    than about 100 rows. If mean and covariance were themselves estimated from the data, "known" is not valid; "full" is.

    Complexity: O(n² q + n q²) with q = min(n, d), plus the replicates. "exact" is O(n³), "parametric" O(num_replicates · n² q).

    The multiplier bootstrap without the derivative of the fitted parameters would never reject; its derivative is centered at
    the mean of the sample (KT-E-03).

    References
    ----------
    KT-67..78, KT-94, KT-95

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import gaussianity_test
    >>> rng = np.random.default_rng(0)
    >>> gaussianity_test(rng.normal(size=(200, 2)), method="exact").rejected
    False
    >>> gaussianity_test(rng.exponential(size=(200, 2)), random_state=0)
    HypothesisTest(kernel test of Gaussianity: statistic ..., critical value ..., p = 0.000999; rejected at level 0.05)
    """
    check_one_of("method", method, METHODS)
    alpha = check_probability("alpha", alpha)
    rng = np.random.default_rng(as_seed(random_state))
    model = fit_gaussian(data, gram, null, mean, covariance, derivative_at)
    model = model.scaled(choose_scale(model, kernel, scale, rng))
    return run_test(model, kernel, method, num_replicates, alpha, num_features, rng)


def gaussianity_power(
    data=None,
    *,
    gram=None,
    num_rows=None,
    null="full",
    mean=None,
    covariance=None,
    kernel="gaussian",
    scale="median",
    alpha=0.05,
    derivative_at="projected",
    random_state=None,
) -> float:
    """Estimate the power of `gaussianity_test` for `num_rows` rows of the distribution of a given sample.

    Parameters
    ----------
    data, gram, null, mean, covariance, kernel, scale, alpha, derivative_at, random_state
        As for `gaussianity_test`. The more rows the sample has, the more accurate the estimate.
    num_rows : int or None, default=None
        Number of rows of the planned test. If None, those of the sample.

    Returns
    -------
    float
        Probability of rejection, at least `alpha`.

    Notes
    -----
    nΔ² is approximately normal under the alternative, with mean n Δ² + t, t the mean under the null hypothesis, and standard
    deviation 2 √n sd(f), f_i = ⟨μ − N, influence of observation i⟩. Δ² is estimated without the bias t/n. The approximation is accurate to
    about .06; the error of Δ², estimated from the given rows, comes in addition.
    Complexity: O(n³) for n rows of the sample.

    References
    ----------
    KT-96

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import gaussianity_power
    >>> pilot = np.random.default_rng(0).exponential(size=(300, 1))
    >>> bool(gaussianity_power(pilot, num_rows=20) < gaussianity_power(pilot, num_rows=100))
    True
    """
    alpha = check_probability("alpha", alpha)
    rng = np.random.default_rng(as_seed(random_state))
    model = fit_gaussian(data, gram, null, mean, covariance, derivative_at)
    model = model.scaled(choose_scale(model, kernel, scale, rng))
    number = len(model.coordinates)
    planned = number if num_rows is None else check_integer("num_rows", num_rows, MIN_ROWS)
    kernel = KERNELS[kernel]
    Kb, N, (at_rows, inner, along) = kernel.gram(model), kernel.embedding(model), kernel.derivatives(model)
    eigenvalues = eigvalsh(center_gram(Kb - at_rows - at_rows.T + inner)) / number
    critical, bias = weighted_chi2_isf(alpha, np.maximum(eigenvalues, 0.0)), eigenvalues.sum()
    statistic = number * (Kb.mean() - 2 * N.mean() + kernel.squared_norm(model))
    distance = max((statistic - bias) / number, 0.0)
    influences = (Kb.mean(0) - at_rows.mean(0)) - (N - along)
    deviation = 2 * influences.std() / math.sqrt(planned)
    return max(float(norm.sf(((critical - bias) / planned - distance) / deviation)), alpha)


def fit_gaussian(data, gram, null, mean=None, covariance=None, derivative_at="projected") -> GaussianModel:
    """Fit the Gaussian distributions of a null hypothesis to a sample; options are those of `gaussianity_test`."""
    check_one_source(data, gram)
    check_one_of("derivative_at", derivative_at, ("projected", "empirical"))
    rank = None
    if not isinstance(null, str):
        null, rank = "full", check_integer("null, the rank of the covariance,", null)
    check_one_of("null", null, NULLS)
    if gram is not None:
        if null in ("known", "known_covariance") or mean is not None or covariance is not None:
            raise OptionError(f"null={null!r}, mean and covariance need data, got gram. Pass the rows as data.")
        G = as_gram(gram)
        model = GaussianModel(*coordinates_of_gram(G if null == "known_mean" else center_gram(G)), null)
    else:
        model = fit_rows(as_rows(data), null, *_known_moments(null, mean, covariance, np.shape(data)))
    if not len(model.eigenvalues) or not model.eigenvalues[0] > 0 or not model.coordinates.any():
        raise InputError("The observations have no variance: all of them are equal. Pass observations that differ.")
    return model if rank is None else truncate(model, rank, derivative_at)


def fit_rows(rows: np.ndarray, null: str, mean=0.0, covariance: np.ndarray | None = None) -> GaussianModel:
    """Fit a Gaussian distribution to rows (n, d) and rotate them to the eigenvectors of its covariance."""
    deviations = rows - (mean if null in ("known", "known_mean") else rows.mean(0))
    if null in ("full", "known_mean"):
        return GaussianModel(*coordinates_of_rows(deviations), null)
    eigenvalues, vectors = eigh(covariance)
    return GaussianModel(deviations @ vectors[:, ::-1], np.maximum(eigenvalues[::-1], 0.0), null)


def truncate(model: GaussianModel, rank: int, derivative_at: str) -> GaussianModel:
    """Truncate the covariance; raise if its derivative at the empirical covariance does not exist."""
    values = model.eigenvalues
    if derivative_at == "empirical" and rank < len(values) and values[rank - 1] - values[rank] <= 1e-6 * values[0]:
        raise OptionError(
            f"derivative_at='empirical' needs distinct eigenvalues {rank} and {rank + 1} of the covariance, "
            f"got {values[rank - 1]:.6g} and {values[rank]:.6g}. Use derivative_at='projected'."
        )
    return model.truncated(rank, derivative_at)


def _known_moments(null: str, mean, covariance, shape: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Validate the mean (d,) and covariance (d, d) of a null hypothesis; by default 0 and the identity matrix."""
    d = shape[1] if len(shape) > 1 else 1
    mean = np.zeros(d) if mean is None else as_numbers(mean, "mean").ravel()
    covariance = np.eye(d) if covariance is None else np.atleast_2d(as_numbers(covariance, "covariance"))
    if mean.shape != (d,) or not np.isfinite(mean).all():
        raise InputError(f"mean must be {d} finite numbers (one per column of data), got shape {mean.shape}.")
    if covariance.shape != (d, d):
        raise InputError(f"covariance has shape {covariance.shape}, expected {(d, d)}.")
    covariance = as_gram(covariance, "covariance", minimum=1)
    smallest, largest = eigvalsh(covariance)[[0, -1]]
    if null in ("known", "known_covariance") and smallest < -1e-8 * abs(largest):
        raise InputError(f"covariance must be positive semi-definite, got an eigenvalue of {smallest:.3g}.")
    return mean, covariance


def choose_scale(model: GaussianModel, kernel: str, scale, rng: np.random.Generator) -> float:
    """Return the scale of the kernel; raise if the statistic would be meaningless for it."""
    check_one_of("kernel", kernel, KERNELS)
    largest = model.eigenvalues[0]
    squares = median_squared_distance(model.coordinates, rng)
    if is_median(scale):
        if squares == 0:
            raise InputError("More than half of all pairs of observations are equal. Pass `scale` as a number.")
        scale = 1 / squares if kernel == "gaussian" else min(1 / squares, MAX_EXPONENTIAL_EIGENVALUE / 4 / largest)
    scale = check_positive("scale", scale)
    if kernel == "exponential" and scale * largest >= MAX_EXPONENTIAL_EIGENVALUE:
        raise OptionError(
            f"scale must be below {MAX_EXPONENTIAL_EIGENVALUE / largest:.4g} = 0.5/λ_max for the exponential kernel, got "
            f"{scale:.4g}: its second moment is infinite. Use scale='median' or kernel='gaussian'."
        )
    typical = squares or 2 * np.square(model.coordinates).sum(1).mean()  # most pairs may be equal
    if scale * typical < MIN_KERNEL_VARIATION and scale * largest < MIN_KERNEL_VARIATION:
        raise OptionError(
            f"scale is too small, got {scale:.4g}: the kernel is constant on the sample up to rounding errors. "
            f"Use scale={1 / typical:.4g}."
        )
    if kernel == "gaussian":
        _check_not_diagonal(model, scale, typical, rng)
    return scale


def _check_not_diagonal(model: GaussianModel, scale: float, typical: float, rng: np.random.Generator) -> None:
    """Raise or warn if the kernel is nearly zero between different observations, so that the test loses level and power."""
    rows, number = model.coordinates, len(model.coordinates)
    if number > 1000:
        rows = rows[rng.choice(number, 1000, replace=False)]
    Kb = KERNELS["gaussian"].gram(GaussianModel(np.sqrt(scale) * rows, model.eigenvalues))
    # n E k² compares the random part of the statistic with that of the diagonal of its replicates
    neighbors = number * ((Kb**2).sum() - len(Kb)) / (len(Kb) * (len(Kb) - 1))
    reason = f"got {scale:.4g}: the kernel between different observations is close to 0"
    advice = f"Use scale={1 / typical:.4g}."
    if neighbors < MIN_NEIGHBORS:
        raise OptionError(f"scale is too large, {reason}, and the test would never reject. {advice}")
    if neighbors < 1:
        warnings.warn(f"scale is large, {reason}, and the test rejects less often than it may. {advice}", stacklevel=4)


def run_test(
    model: GaussianModel, kernel: str, method: str, num_replicates: int, alpha: float, num_features: int, rng
) -> HypothesisTest:
    """Test a fitted model in units in which the kernel has scale 1."""
    name, null = "kernel test of Gaussianity", describe_null(model)
    if method != "exact":
        num_replicates = check_replicates(num_replicates, alpha)
    if method == "features":
        if kernel != "gaussian":
            raise OptionError(f"method='features' needs kernel='gaussian', got {kernel!r}. Use method='multiplier'.")
        statistic, replicates = _bootstrap_features(
            model, check_integer("num_features", num_features), num_replicates, rng
        )
        return HypothesisTest.from_replicates(name, statistic, replicates, null, alpha)
    statistic = compute_statistic(model, kernel)
    if method == "parametric":
        replicates = _bootstrap_parametric(model, kernel, num_replicates, rng)
        return HypothesisTest.from_replicates(name, statistic, replicates, null, alpha)
    G = influence_gram(model, kernel)
    if method == "multiplier":
        replicates = multiplier_replicates(G, num_replicates, rng)
        return HypothesisTest.from_replicates(name, statistic, replicates, null, alpha)
    weights = np.maximum(eigvalsh(center_gram(G)), 0.0) / len(G)
    pvalue, critical = weighted_chi2_sf(statistic, weights), weighted_chi2_isf(alpha, weights)
    return HypothesisTest(name, statistic, pvalue, critical, null, None, alpha)


def check_replicates(number: int, alpha: float) -> int:
    """Return the number of replicates; raise if they are too few to reject at level `alpha`."""
    number = check_integer("num_replicates", number)
    if (number + 1) * alpha < 1 - 1e-9:
        least = math.ceil(1 / alpha - 1 - 1e-9)
        raise OptionError(f"num_replicates must be at least {least} for alpha={alpha:g}, got {number}.")
    return number


def describe_null(model: GaussianModel) -> str:
    """Describe the null hypothesis of a model as a clause."""
    if model.rank is not None:
        return f"the observations are Gaussian with a covariance of rank {model.rank}"
    return NULLS[model.null]


def compute_statistic(model: GaussianModel, kernel: str) -> float:
    """Compute n Δ² = n (mean of k(Y_i, Y_j) − 2 mean of N(Y_i) + ‖N‖²)."""
    forms = KERNELS[kernel]
    square = forms.gram(model).mean() - 2 * forms.embedding(model).mean() + forms.squared_norm(model)
    return float(len(model.coordinates) * square)


def influence_gram(model: GaussianModel, kernel: str) -> np.ndarray:
    """Compute the inner products G (n, n) of the influences k(Y_i, ·) − DN_i, up to terms that centering removes."""
    at_rows, inner, _ = KERNELS[kernel].derivatives(model)
    inner += KERNELS[kernel].gram(model)
    inner -= at_rows
    inner -= at_rows.T
    return inner


def multiplier_replicates(G: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw zᵀGz/n (number,) for centered standard normal z."""
    replicates = []
    for first in range(0, number, CHUNK_COLUMNS):
        Z = rng.normal(size=(len(G), min(CHUNK_COLUMNS, number - first)))
        Z -= Z.mean(0)
        replicates.append(np.einsum("ij,ij->j", Z, G @ Z) / len(G))
    return np.concatenate(replicates)


def _bootstrap_parametric(model: GaussianModel, kernel: str, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw samples of the fitted distribution, fit the null hypothesis to each, and compute its statistic."""
    deviations, covariance = np.sqrt(model.eigenvalues), np.diag(model.eigenvalues)
    replicates = np.empty(number)
    for index in range(number):
        drawn = fit_rows(rng.normal(size=model.coordinates.shape) * deviations, model.null, 0.0, covariance)
        if model.rank is not None:
            drawn = drawn.truncated(model.rank)
        replicates[index] = compute_statistic(drawn, kernel)
    return replicates


def _bootstrap_features(
    model: GaussianModel, num_features: int, number: int, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Compute the statistic and multiplier replicates with random Fourier features of the kernel exp(−‖x − y‖²)."""
    if model.rank is not None and model.derivative_at == "empirical":
        raise OptionError("method='features' needs derivative_at='projected', got 'empirical'.")
    C = model.coordinates
    frequencies = math.sqrt(2) * rng.normal(size=(C.shape[1], num_features))
    phases = C @ frequencies
    embedded = np.exp(-(frequencies**2).T @ model.eigenvalues / 2)
    influences = np.exp(1j * phases)
    difference = influences.mean(0) - embedded
    if model.estimates_mean:
        influences -= embedded * 1j * phases
    if model.estimates_covariance:
        squares = phases**2
        if model.rank is not None:
            squares -= (C[:, model.rank :] @ frequencies[model.rank :]) ** 2
        influences += embedded * squares / 2
    influences -= influences.mean(0)
    features = np.hstack([influences.real, influences.imag]).T / math.sqrt(num_features * len(C))
    replicates = []
    for first in range(0, number, CHUNK_COLUMNS):
        Z = rng.normal(size=(len(C), min(CHUNK_COLUMNS, number - first)))
        replicates.append(((features @ Z) ** 2).sum(0))
    return float(len(C) * np.mean(np.abs(difference) ** 2)), np.concatenate(replicates)
