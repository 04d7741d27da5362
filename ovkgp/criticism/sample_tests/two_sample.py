"""Permutation tests of two samples (maximum mean discrepancy) and of independence (HSIC), with several bandwidths at once.

All permutations are columns of one matrix, so that replicates of both statistics are quadratic forms in one matrix product. Statistics
of several bandwidths are standardized over the observed and all permuted values, and the largest is the statistic: the observed one is
exchangeable with the permuted ones if the null hypothesis is true, so that the level is exact (KT-24, 25).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import eigh

from ovkgp.checks import as_numbers, as_seed, check_integer, check_probability
from ovkgp.criticism.results import HypothesisTest
from ovkgp.criticism.sample_tests.gaussianity import check_replicates
from ovkgp.criticism.sample_tests.samples import (
    as_gram,
    as_rows,
    center_gram,
    is_median,
    median_squared_distance,
    squared_distances,
)
from ovkgp.exceptions import InputError, OptionError

DEFAULT_FACTORS = (0.0625, 0.25, 1.0, 4.0, 16.0)  # of the scale 1/median of squared distances
NEGLIGIBLE_TRACE = 1e-6  # relative trace of the part of a Gram matrix that its factors omit
MAX_ENTRIES = 20_000_000  # of permuted factors in one product
SECONDS_RATIO = 60.0  # time of one gathered entry of a matrix over that of one entry of a product


def mmd(
    X,
    Y,
    *,
    kernel="gaussian",
    scale="median",
    num_features=None,
    num_permutations=1000,
    alpha=0.05,
    random_state=None,
) -> HypothesisTest:
    """Test whether two samples have the same distribution, with the maximum mean discrepancy.

    Parameters
    ----------
    X, Y : array-like of shape (n, d) and (m, d), or (n,) and (m,)
        Samples with independent rows.
    kernel : {"gaussian"}, callable or GPyTorch kernel, default="gaussian"
        exp(−scale ‖x − y‖²), or a function that returns the matrix (n, m) of kernel values between rows of two arrays.
    scale : "median", float or array-like of shape (k,), default="median"
        Scales of the Gaussian kernel. "median" is 1/16, 1/4, 1, 4 and 16 times one over the median squared distance in the pooled sample.
        Ignored for other kernels.
    num_features : int or None, default=None
        Number of random Fourier frequencies that replace the kernel matrix, for many rows. If None, the kernel is exact.
    num_permutations : int, default=1000
        Number of permutations of the pooled sample.
    alpha : float, default=0.05
        Level.
    random_state : int, RandomState, Generator or None, default=None
        Seed of permutations and features.

    Returns
    -------
    HypothesisTest
        `statistic` is the squared discrepancy ‖μ_X − μ_Y‖² (biased) for one scale, and its largest standardized value for several.

    Notes
    -----
    Complexity: O(k (n + m)² num_permutations), or O(k (n + m) num_features num_permutations).

    References
    ----------
    KT-24, KT-28

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import mmd
    >>> rng = np.random.default_rng(0)
    >>> mmd(rng.normal(size=(60, 2)), rng.normal(size=(80, 2)), random_state=0).rejected
    False
    >>> mmd(rng.normal(size=(60, 2)), rng.standard_cauchy(size=(80, 2)), random_state=0).rejected
    True
    """
    X, Y = as_rows(X, "X", minimum=2), as_rows(Y, "Y", minimum=2)
    if X.shape[1] != Y.shape[1]:
        raise InputError(f"X and Y must have the same columns, got {X.shape[1]} and {Y.shape[1]}.")
    alpha, number = check_probability("alpha", alpha), check_replicates(num_permutations, alpha)
    rng = np.random.default_rng(as_seed(random_state))
    pooled, n = np.concatenate([X, Y]), len(X)
    weights = np.empty((len(pooled), number + 1))
    weights[:, 0] = np.repeat([1 / n, -1 / len(Y)], [n, len(Y)])
    weights[:, 1:] = rng.permuted(np.broadcast_to(weights[:, :1], (len(pooled), number)), axis=0)
    if num_features is not None and callable(kernel):
        raise OptionError("num_features needs kernel='gaussian'. Leave num_features=None.")
    statistics = []
    for value in _list_scales(kernel, scale, pooled, rng):
        if num_features is None:
            statistics.append(np.einsum("ij,ij->j", weights, _kernel_matrix(kernel, value, pooled) @ weights))
        else:
            features = _random_features(value, pooled, check_integer("num_features", num_features), rng)
            statistics.append(((features.T @ weights) ** 2).sum(0))
    name = "two-sample test (maximum mean discrepancy)"
    return _compare_permutations(name, statistics, "both samples have the same distribution", alpha)


def hsic(
    X=None,
    Y=None,
    *,
    gram_x=None,
    gram_y=None,
    kernel="gaussian",
    scale="median",
    num_permutations=1000,
    alpha=0.05,
    random_state=None,
) -> HypothesisTest:
    """Test whether the rows of two tables are independent, with the Hilbert–Schmidt independence criterion.

    Parameters
    ----------
    X, Y : array-like of shape (n, d) and (n, p), or (n,), or None, default=None
        Tables whose rows belong together: residuals and inputs, or two outputs.
    gram_x, gram_y : array-like of shape (n, n) or None, default=None
        Kernel matrices, instead of X and Y.
    kernel : {"gaussian"}, callable or GPyTorch kernel, or a pair of them, default="gaussian"
        As for `mmd`; a pair has one for X and one for Y.
    scale : "median", float or array-like of shape (k,), default="median"
        As for `mmd`; both tables have the same number of scales.
    num_permutations : int, default=1000
        Number of permutations of the rows of Y.
    alpha : float, default=0.05
        Level.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the permutations.

    Returns
    -------
    HypothesisTest
        `statistic` is tr(K H L H)/n² for one scale, and its largest standardized value for several.

    Notes
    -----
    The criterion tends to 0 if and only if X and Y are independent (KT-E-30). Permutations are evaluated with factors of the
    centered kernel matrices, of which a relative trace of at most 1e-6 is omitted. Complexity:
    O(k n³ + k n r_x r_y num_permutations) for factors of ranks r, or O(k n² num_permutations) if the ranks are high.

    References
    ----------
    KT-25, KT-26

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import hsic
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=100)
    >>> hsic(x, rng.normal(size=100), random_state=0).rejected
    False
    >>> hsic(x, x**2 + rng.normal(size=100), random_state=0).rejected
    True
    """
    alpha, number = check_probability("alpha", alpha), check_replicates(num_permutations, alpha)
    rng = np.random.default_rng(as_seed(random_state))
    kernels = kernel if isinstance(kernel, tuple | list) else (kernel, kernel)
    first, second = (
        _list_grams(data, gram, name, one, scale, rng)
        for data, gram, name, one in zip((X, Y), (gram_x, gram_y), ("X", "Y"), kernels, strict=True)
    )
    n = len(first[0])
    if len(second[0]) != n:
        raise InputError(f"X and Y must have the same number of rows, got {n} and {len(second[0])}.")
    permutations = rng.permuted(np.broadcast_to(np.arange(n), (number, n)), axis=1)
    permutations = np.concatenate([np.arange(n)[None], permutations])
    # a matrix without scales is combined with each scale of the other
    pairs = [(first[i % len(first)], second[i % len(second)]) for i in range(max(len(first), len(second)))]
    statistics = [_permuted_traces(center_gram(K), center_gram(L), permutations) / n**2 for K, L in pairs]
    return _compare_permutations("independence test (HSIC)", statistics, "both tables are independent", alpha)


def _compare_permutations(name: str, statistics: list[np.ndarray], null: str, alpha: float) -> HypothesisTest:
    """Compare the first value of each statistic (B + 1,) with the others, which are those of permutations."""
    values = np.array(statistics)
    # permutations that change nothing but the order of summation give equal values
    values = values.round(13 - math.ceil(math.log10(max(np.abs(values).max(), 1e-300))))
    if len(values) > 1:
        deviations = values.std(1, keepdims=True)
        values = (values - values.mean(1, keepdims=True)) / np.where(deviations > 0, deviations, 1.0)
    combined = values.max(0)
    return HypothesisTest.from_replicates(name, combined[0], combined[1:], null, alpha)


def _list_scales(kernel, scale, rows: np.ndarray, rng: np.random.Generator) -> list[float | None]:
    """List the scales of the Gaussian kernel; None is the only one of a function."""
    if callable(kernel):
        return [None]
    if kernel != "gaussian":
        raise OptionError(f"kernel must be 'gaussian' or callable, got {kernel!r}.")
    if is_median(scale):
        squares = median_squared_distance(rows, rng)
        if squares == 0:
            raise InputError("More than half of all pairs of rows are equal. Pass `scale` as a number.")
        return [factor / squares for factor in DEFAULT_FACTORS]
    scales = np.atleast_1d(as_numbers(scale, "scale")).ravel()
    if not len(scales) or not (np.isfinite(scales).all() and (scales > 0).all()):
        raise OptionError(f"scale must be 'median' or positive numbers, got {scale!r}.")
    return scales.tolist()


def _kernel_matrix(kernel, scale: float | None, rows: np.ndarray) -> np.ndarray:
    """Compute exp(−scale ‖x − y‖²) between rows, or the values of a kernel function."""
    return _evaluate(kernel, rows) if scale is None else np.exp(-scale * squared_distances(rows, rows))


def _random_features(scale: float, rows: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw random Fourier features (n, 2 · number) whose products approximate exp(−scale ‖x − y‖²)."""
    phases = rows @ (math.sqrt(2 * scale) * rng.normal(size=(rows.shape[1], number)))
    return np.hstack([np.cos(phases), np.sin(phases)]) / math.sqrt(number)


def _list_grams(data, gram, name: str, kernel, scale, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the Gram matrix that was passed, or those of rows for each scale."""
    if (data is None) == (gram is None):
        raise OptionError(f"Exactly one of {name} and gram_{name.lower()} is expected.")
    if gram is not None:
        return [as_gram(gram, f"gram_{name.lower()}")]
    rows = as_rows(data, name)
    return [_kernel_matrix(kernel, value, rows) for value in _list_scales(kernel, scale, rows, rng)]


def _evaluate(kernel, rows: np.ndarray) -> np.ndarray:
    """Evaluate a callable kernel, whose result may be an array, a tensor or a linear operator."""
    if isinstance(kernel, torch.nn.Module):
        points = torch.as_tensor(rows, dtype=next((p.dtype for p in kernel.parameters()), torch.float64))
        values = kernel(points, points).to_dense()
    else:
        values = kernel(rows, rows)
    matrix = as_gram(values, "the matrix of `kernel`", minimum=2)
    if len(matrix) != len(rows):
        raise InputError(f"kernel must return a matrix of shape {(len(rows),) * 2}, got {matrix.shape}.")
    return matrix


def _permuted_traces(K: np.ndarray, L: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """Compute Σ_ij K_ij L_π(i)π(j) (B,) of centered matrices (n, n) for permutations (B, n)."""
    U, V = _factorize(K), _factorize(L)
    n = len(K)
    if U.shape[1] * V.shape[1] > SECONDS_RATIO * n:
        return np.array([np.einsum("ij,ij->", K, L[np.ix_(order, order)]) for order in permutations])
    traces = []
    for block in np.array_split(permutations, math.ceil(V.shape[1] * permutations.size / MAX_ENTRIES)):
        products = U.T @ V[block.T].reshape(n, -1)  # (r_x, B · r_y)
        traces.append((products**2).reshape(-1, len(block), V.shape[1]).sum((0, 2)))
    return np.concatenate(traces)


def _factorize(gram: np.ndarray) -> np.ndarray:
    """Return U (n, r) with U Uᵀ equal to the matrix up to a negligible part of its trace: its leading eigenvectors."""
    eigenvalues, vectors = eigh(gram)
    eigenvalues = np.maximum(eigenvalues[::-1], 0.0)
    remaining = eigenvalues.sum() - eigenvalues.cumsum()
    rank = max(1, int((remaining > NEGLIGIBLE_TRACE * eigenvalues.sum()).sum()) + 1)
    return vectors[:, ::-1][:, :rank] * np.sqrt(eigenvalues[:rank])
