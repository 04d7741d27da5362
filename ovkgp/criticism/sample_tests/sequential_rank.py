"""Number of components of a Gaussian sample: kernel tests of increasing rank of the covariance, until one is not rejected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ovkgp.checks import as_seed, check_integer, check_one_of, check_probability
from ovkgp.criticism.results import HypothesisTest
from ovkgp.criticism.sample_tests.gaussianity import choose_scale, fit_gaussian, run_test, truncate
from ovkgp.criticism.sample_tests.samples import EIGENVALUE_TOLERANCE
from ovkgp.exceptions import OptionError

REPLICATES_PER_REJECTION = 20  # replicates expected beyond the critical value


@dataclass(frozen=True, repr=False)
class CovarianceRank:
    """Result of `covariance_rank`.

    Attributes
    ----------
    rank : int or None
        Smallest rank that is not rejected. None if all tested ranks are rejected.
    tests : tuple of HypothesisTest
        Tests of ranks `start`, `start` + 1, …
    start : int
        First tested rank.
    alpha : float
        Level of each test.
    eigenvalues : ndarray of shape (q,)
        Eigenvalues of the empirical covariance, decreasing.
    """

    rank: int | None
    tests: tuple[HypothesisTest, ...]
    start: int
    alpha: float
    eigenvalues: np.ndarray

    @property
    def pvalues(self) -> np.ndarray:
        """p-values of the tests, in order of increasing rank."""
        return np.array([test.pvalue for test in self.tests])

    @property
    def conclusion(self) -> str:
        """Result as a sentence."""
        if self.rank is not None:
            return f"The rank of the covariance is {self.rank}: the smallest that is not rejected at level {self.alpha:.3g}."
        largest = self.start + len(self.tests) - 1
        return (
            f"The rank of the covariance is > {largest}, or the sample is not Gaussian: all ranks from {self.start} to "
            f"{largest} are rejected at level {self.alpha:.3g}."
        )

    def __repr__(self) -> str:
        rank = f"> {self.start + len(self.tests) - 1}" if self.rank is None else str(self.rank)
        return f"CovarianceRank(rank {rank}; {len(self.tests)} tests from rank {self.start} at level {self.alpha:.3g})"


def covariance_rank(
    data=None,
    *,
    gram=None,
    start=1,
    max_rank=None,
    alpha="schedule",
    kernel="gaussian",
    scale="median",
    method="multiplier",
    num_replicates=None,
    derivative_at="projected",
    random_state=None,
) -> CovarianceRank:
    """Estimate the rank of the covariance of a Gaussian sample: latent outputs, eigenfunctions, principal components.

    Parameters
    ----------
    data : array-like of shape (n, d) or None, default=None
        Independent observations without noise.
    gram : array-like of shape (n, n) or None, default=None
        Inner products ⟨Y_i, Y_j⟩ of the observations, instead of `data`.
    start : int, default=1
        First tested rank.
    max_rank : int or None, default=None
        Last tested rank. If None, that of the empirical covariance.
    alpha : float or "schedule", default="schedule"
        Level of each test, the probability of a rank that is too large. "schedule" decreases with the number of rows:
        exp(−n^.45/8), .196 for 300 rows and .061 for 1000.
    kernel, scale, derivative_at, random_state
        As for `gaussianity_test`.
    method : {"multiplier", "exact", "parametric"}, default="multiplier"
        As for `gaussianity_test`.
    num_replicates : int or None, default=None
        Number of replicates of each test. If None, 20/alpha.

    Returns
    -------
    CovarianceRank
        `rank` is None, and the result is "> r", if every rank up to `max_rank` = r is rejected.

    Notes
    -----
    The probability of a rank that is too large is at most `alpha`; one that is too small occurs if a test of a smaller rank has no
    power. If observations have noise, no low rank is true, and every rank is rejected for sufficiently many rows;
    choose a small `alpha` then. A sample that is not Gaussian is rejected for each rank.

    Complexity: O(n² q + n² num_replicates) for each rank.

    References
    ----------
    KT-84..87

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import covariance_rank
    >>> rng = np.random.default_rng(0)
    >>> latent, mixing = rng.normal(size=(300, 2)), rng.normal(size=(2, 5))
    >>> found = covariance_rank(latent @ mixing, random_state=0)
    >>> found
    CovarianceRank(rank 2; 2 tests from rank 1 at level 0.196)
    """
    check_one_of("method", method, ("multiplier", "exact", "parametric"))
    full = fit_gaussian(data, gram, "full", derivative_at=derivative_at)
    alpha = schedule_level(len(full.coordinates)) if alpha == "schedule" else check_probability("alpha", alpha)
    rng = np.random.default_rng(as_seed(random_state))
    full = full.scaled(factor := choose_scale(full, kernel, scale, rng))
    limit = int((full.eigenvalues > EIGENVALUE_TOLERANCE * full.eigenvalues[0]).sum())
    start = check_integer("start", start)
    max_rank = limit if max_rank is None else check_integer("max_rank", max_rank)
    if not start <= max_rank <= limit:
        raise OptionError(f"Expected start ≤ max_rank ≤ {limit} (the rank of the sample), got {start} and {max_rank}.")
    number = math.ceil(REPLICATES_PER_REJECTION / alpha) if num_replicates is None else num_replicates
    tests: list[HypothesisTest] = []
    for rank in range(start, max_rank + 1):
        model = truncate(full, rank, derivative_at)
        tests.append(run_test(model, kernel, method, number, alpha, 0, rng))
        if not tests[-1].rejected:
            return CovarianceRank(rank, tuple(tests), start, alpha, full.eigenvalues / factor)
    return CovarianceRank(None, tuple(tests), start, alpha, full.eigenvalues / factor)


def schedule_level(num_rows: int) -> float:
    """Compute the level exp(−n^.45/8) (KT-85)."""
    return math.exp(-0.125 * num_rows**0.45)
