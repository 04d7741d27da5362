"""Classical tests of multivariate normality: Henze–Zirkler, energy distance and random projections (KT-79..81)."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, ndtr
from scipy.stats import lognorm, poisson

from ovkgp.checks import as_seed, check_integer, check_one_of, check_probability
from ovkgp.criticism.results import HypothesisTest
from ovkgp.criticism.sample_tests.gaussianity import NULLS, check_replicates, fit_gaussian
from ovkgp.criticism.sample_tests.samples import as_rows, coordinates_of_rows, squared_distances
from ovkgp.exceptions import OptionError

MAX_LOGNORMAL_COLUMNS = 10  # the log-normal approximation was made for few columns; it loses the level above


def henze_zirkler(data, *, pvalue="auto", num_replicates=1000, alpha=0.05, random_state=None) -> HypothesisTest:
    """Test multivariate normality with the statistic of Henze and Zirkler.

    Parameters
    ----------
    data : array-like of shape (n, d)
        Independent rows.
    pvalue : {"auto", "lognormal", "simulation"}, default="auto"
        Distribution under the null hypothesis: the log-normal approximation of the authors, or simulated normal samples.
        "auto" is "lognormal" for up to 10 columns.
    num_replicates : int, default=1000
        Number of simulated samples. Ignored for the log-normal approximation.
    alpha : float, default=0.05
        Level.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the simulation.

    Returns
    -------
    HypothesisTest
        If the covariance of the sample is singular, the statistic is 4n by convention and the hypothesis is rejected.

    Notes
    -----
    The statistic is that of `gaussianity_test` for whitened rows and the scale β²/2, β = ((2d + 1)n/4)^{1/(d+4)}/√2. It weights the
    distance of characteristic functions with the density of N(0, β² I) (KT-E-08). The log-normal approximation loses its level
    for many columns: at d = 100 it rejects always or never. Complexity: O(n² d), for each sample.

    References
    ----------
    KT-79

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import henze_zirkler
    >>> henze_zirkler(np.random.default_rng(0).normal(size=(100, 2))).rejected
    False
    """
    rows, alpha = as_rows(data), check_probability("alpha", alpha)
    check_one_of("pvalue", pvalue, ("auto", "lognormal", "simulation"))
    name, null = "Henze–Zirkler test", NULLS["full"]
    n, d = rows.shape
    whitened = whiten(rows)
    if pvalue == "auto":
        pvalue = "lognormal" if d <= MAX_LOGNORMAL_COLUMNS else "simulation"
    if whitened is None:
        return HypothesisTest(name, 4.0 * n, 0.0, 0.0, f"{null}, which is not singular", None, alpha)
    statistic = _henze_zirkler_statistic(whitened)
    if pvalue == "simulation":
        replicates = _simulate(_henze_zirkler_statistic, rows.shape, num_replicates, alpha, random_state)
        return HypothesisTest.from_replicates(name, statistic, replicates, null, alpha)
    location, deviation = _lognormal_parameters(n, d)
    distribution = lognorm(deviation, scale=math.exp(location))
    p, critical = float(distribution.sf(statistic)), float(distribution.isf(alpha))
    return HypothesisTest(name, statistic, p, critical, null, None, alpha)


def energy_normality_test(data, *, num_replicates=500, alpha=0.05, random_state=None) -> HypothesisTest:
    """Test multivariate normality with the energy distance between the whitened rows and the standard normal distribution.

    Parameters
    ----------
    data : array-like of shape (n, d)
        Independent rows with n > d.
    num_replicates : int, default=500
        Number of simulated normal samples.
    alpha : float, default=0.05
        Level.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the simulation.

    Returns
    -------
    HypothesisTest
        `statistic` is n (2 E‖x − Z‖ − E‖Z − Z′‖ − mean of ‖x_i − x_j‖) (KT-E-09).

    Notes
    -----
    E‖a − Z‖ is a Poisson mixture of means of chi distributions. Complexity: O(n² d), for each sample.

    References
    ----------
    KT-80

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import energy_normality_test
    >>> energy_normality_test(np.random.default_rng(0).exponential(size=(60, 2)), num_replicates=99, random_state=0).rejected
    True
    """
    rows, alpha = as_rows(data), check_probability("alpha", alpha)
    whitened = whiten(rows)
    if whitened is None:
        raise OptionError("The covariance of data is singular. Drop dependent columns, or use gaussianity_test.")
    replicates = _simulate(_energy_statistic, rows.shape, num_replicates, alpha, random_state)
    statistic = _energy_statistic(whitened)
    return HypothesisTest.from_replicates("energy test of normality", statistic, replicates, NULLS["full"], alpha)


def random_projection_test(
    data=None,
    *,
    gram=None,
    null="full",
    mean=None,
    covariance=None,
    num_projections=5,
    num_replicates=1000,
    alpha=0.05,
    random_state=None,
) -> HypothesisTest:
    """Test Gaussianity of projections on random directions with the Kolmogorov–Smirnov statistic.

    Parameters
    ----------
    data, gram, null, mean, covariance
        As for `gaussianity_test`; `null` is one of its four names.
    num_projections : int, default=5
        Number of directions, drawn from the Gaussian distribution fitted to the sample.
    num_replicates : int, default=1000
        Number of replicates of the parametric bootstrap.
    alpha : float, default=0.05
        Level.
    random_state : int, RandomState, Generator or None, default=None
        Seed of directions and replicates.

    Returns
    -------
    HypothesisTest
        `statistic` is √n times the largest distance of distribution functions over all directions.

    Notes
    -----
    Complexity: O(n num_projections (num_projections + log n)) for each replicate. Replicates estimate the mean and variance of each
    projection again if they are estimated from the sample.

    References
    ----------
    KT-81

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import random_projection_test
    >>> random_projection_test(np.random.default_rng(0).normal(size=(100, 3)), num_replicates=99, random_state=0).rejected
    False
    """
    check_one_of("null", null, NULLS)
    alpha, num_replicates = check_probability("alpha", alpha), check_replicates(num_replicates, alpha)
    number = check_integer("num_projections", num_projections)
    rng = np.random.default_rng(as_seed(random_state))
    model = fit_gaussian(data, gram, null, mean, covariance)
    directions = np.sqrt(model.eigenvalues)[:, None] * rng.normal(size=(len(model.eigenvalues), number))
    root = np.sqrt(model.eigenvalues)[:, None] * directions  # projections of the model are N(0, rootᵀ root)
    # a factor with min(q, num_projections) rows has the same Gram matrix
    root = np.linalg.qr(root, mode="r")
    deviations = np.sqrt((root**2).sum(0))

    def compute(projections: np.ndarray) -> float:
        if model.estimates_mean:
            projections = projections - projections.mean(0)
        scales = np.sqrt((projections**2).mean(0)) if model.estimates_covariance else deviations
        return _largest_ks_distance(projections / scales)

    statistic = compute(model.coordinates @ directions)
    n = len(model.coordinates)
    replicates = np.array([compute(rng.normal(size=(n, len(root))) @ root) for _ in range(num_replicates)])
    return HypothesisTest.from_replicates(
        "random-projection test of normality", statistic, replicates, NULLS[null], alpha
    )


def whiten(rows: np.ndarray) -> np.ndarray | None:
    """Return rows (n, d) with mean 0 and covariance I (with 1/n), or None if their covariance is singular."""
    if len(rows) <= rows.shape[1]:
        return None
    coordinates, eigenvalues = coordinates_of_rows(rows - rows.mean(0))
    if not eigenvalues[-1] > 1e-12 * eigenvalues[0]:
        return None
    return coordinates / np.sqrt(eigenvalues)


def henze_zirkler_scale(n: int, d: int) -> float:
    """Compute β = ((2d + 1)n/4)^{1/(d+4)}/√2."""
    return ((2 * d + 1) * n / 4) ** (1 / (d + 4)) / math.sqrt(2)


def _simulate(compute, shape: tuple[int, int], num_replicates: int, alpha: float, random_state) -> np.ndarray:
    """Compute a statistic of whitened rows for standard normal samples; it does not depend on mean and covariance."""
    rng = np.random.default_rng(as_seed(random_state))
    return np.array([compute(whiten(rng.normal(size=shape))) for _ in range(check_replicates(num_replicates, alpha))])


def _henze_zirkler_statistic(whitened: np.ndarray) -> float:
    """Compute the statistic of whitened rows (n, d)."""
    n, d = whitened.shape
    square = henze_zirkler_scale(n, d) ** 2
    pairs = np.exp(-square / 2 * squared_distances(whitened, whitened)).sum() / n
    single = np.exp(-square / (2 * (1 + square)) * (whitened**2).sum(1)).sum()
    return float(pairs - 2 * (1 + square) ** (-d / 2) * single + n * (1 + 2 * square) ** (-d / 2))


def _lognormal_parameters(n: int, d: int) -> tuple[float, float]:
    """Compute the mean and standard deviation of the logarithm of the statistic."""
    s = henze_zirkler_scale(n, d) ** 2
    a, w = 1 + 2 * s, (1 + s) * (1 + 3 * s)
    mean = 1 - a ** (-d / 2) * (1 + d * s / a + d * (d + 2) * s**2 / (2 * a**2))
    variance = 2 * (1 + 4 * s) ** (-d / 2)
    variance += 2 * a ** (-d) * (1 + 2 * d * s**2 / a**2 + 3 * d * (d + 2) * s**4 / (4 * a**4))
    variance -= 4 * w ** (-d / 2) * (1 + 3 * d * s**2 / (2 * w) + d * (d + 2) * s**4 / (2 * w**2))
    location = 0.5 * math.log(mean**4 / (variance + mean**2))
    return location, math.sqrt(math.log1p(variance / mean**2))


def _energy_statistic(whitened: np.ndarray) -> float:
    """Compute the energy statistic of whitened rows (n, d)."""
    n, d = whitened.shape
    to_normal = expected_distance((whitened**2).sum(1), d).mean()
    between_normals = 2 * math.exp(gammaln((d + 1) / 2) - gammaln(d / 2))
    pairs = np.sqrt(squared_distances(whitened, whitened)).mean()
    return float(n * (2 * to_normal - between_normals - pairs))


def expected_distance(squares: np.ndarray, d: int) -> np.ndarray:
    """Compute E‖a − Z‖ (n,) for Z ~ N(0, I_d) and ‖a‖² = `squares` (n,), also for many dimensions."""
    # ‖a − Z‖² is a Poisson(‖a‖²/2) mixture of χ²_{d+2k}; hyp1f1 overflows at d = 100
    largest = squares.max() / 2
    k = np.arange(math.ceil(largest + 12 * math.sqrt(largest) + 40))
    means = math.sqrt(2) * np.exp(gammaln((d + 1) / 2 + k) - gammaln(d / 2 + k))
    return poisson.pmf(k, squares[:, None] / 2) @ means


def _largest_ks_distance(standardized: np.ndarray) -> float:
    """Compute √n times the largest distance of the columns' empirical distribution functions from that of N(0, 1)."""
    n = len(standardized)
    values = ndtr(np.sort(standardized, axis=0))
    steps = np.arange(1, n + 1)[:, None] / n
    return float(math.sqrt(n) * max((steps - values).max(), (values - steps + 1 / n).max()))
