"""Corruptions of curves for experiments on robustness: outlying points and curves, permuted labels and missing points (BO-102, LT-130).

Each function returns a corrupted copy of curves Y (n, m) and the mask of what was changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_nonnegative, check_one_of, check_positive
from ovkgp.datasets.curves import draw_paths
from ovkgp.exceptions import InputError, OptionError

OUTLIER_LENGTHSCALES = (0.01, 0.05, 1.0, 4.0)  # of the processes of `add_outlying_curves`


def corrupt_points(
    Y: ArrayLike,
    fraction: float,
    *,
    curve_fraction: float = 1.0,
    kind: str = "range",
    scale: float = 1.0,
    random_state=None,
) -> tuple[np.ndarray, np.ndarray]:
    """Replace or perturb a fraction of the points of curves: local outliers.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves.
    fraction : float
        Fraction of the points of a corrupted curve that change, in [0, 1]: its nearest number of points is drawn without replacement.
    curve_fraction : float, default=1.0
        Fraction τ of corrupted curves; ⌊τn⌋ are drawn.
    kind : {"range", "symmetric", "additive"}, default="range"
        "range": new values uniform between the smallest and the largest value of Y. "symmetric": uniform on [−b, b] with b = max |Y| (type 3).
        "additive": normal errors with standard deviation `scale` are added.
    scale : float, default=1.0
        Standard deviation of "additive" errors.
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    corrupted : ndarray of shape (n, m)
        Corrupted curves.
    mask : ndarray of bool of shape (n, m)
        Changed points.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.datasets import corrupt_points
    >>> corrupted, mask = corrupt_points(np.zeros((10, 20)) + np.arange(20), 0.1, random_state=0)
    >>> int(mask.sum()), bool((corrupted[~mask] == (np.zeros((10, 20)) + np.arange(20))[~mask]).all())
    (20, True)
    """
    Y, rng = _check_curves(Y), np.random.default_rng(as_seed(random_state))
    check_one_of("kind", kind, ("range", "symmetric", "additive"))
    mask = _draw_points(Y, fraction, _draw_rows(len(Y), curve_fraction, rng), rng)
    if kind == "additive":
        new = Y + check_positive("scale", scale) * rng.standard_normal(Y.shape)
    else:
        low, high = (np.nanmin(Y), np.nanmax(Y)) if kind == "range" else np.nanmax(np.abs(Y)) * np.array([-1.0, 1.0])
        new = rng.uniform(low, high, Y.shape)
    return np.where(mask, new, Y), mask


def drop_points(Y: ArrayLike, fraction: float, *, random_state=None) -> tuple[np.ndarray, np.ndarray]:
    """Mark a fraction of the points of each curve as missing (NaN); at least one point of a curve stays.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves.
    fraction : float
        Fraction of missing points, in [0, 1].
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    corrupted : ndarray of shape (n, m)
        Curves with missing points.
    mask : ndarray of bool of shape (n, m)
        Missing points.
    """
    Y, rng = _check_curves(Y), np.random.default_rng(as_seed(random_state))
    count = min(round(_check_fraction("fraction", fraction) * Y.shape[1]), Y.shape[1] - 1)
    mask = np.argsort(rng.uniform(size=Y.shape), axis=1) < count
    return np.where(mask, np.nan, Y), mask


def permute_curves(Y: ArrayLike, fraction: float, *, random_state=None) -> tuple[np.ndarray, np.ndarray]:
    """Permute a fraction of the curves among themselves at random: wrong labels.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves.
    fraction : float
        Fraction τ of the curves; ⌊τn⌋ are drawn.
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    corrupted : ndarray of shape (n, m)
        Corrupted curves.
    mask : ndarray of bool of shape (n,)
        Permuted curves.
    """
    Y, rng = _check_curves(Y), np.random.default_rng(as_seed(random_state))
    rows, corrupted = _draw_rows(len(Y), fraction, rng), Y.copy()
    corrupted[rows] = Y[rng.permutation(rows)]
    return corrupted, _as_mask(rows, len(Y))


def negate_curves(
    Y: ArrayLike, fraction: float, *, scale: float = 1.0, shift: bool = True, random_state=None
) -> tuple[np.ndarray, np.ndarray]:
    """Replace a fraction of the curves by negative ones: global outliers.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves.
    fraction : float
        Fraction τ of the curves; ⌊τn⌋ are drawn.
    scale : float, default=1.0
        Factor s of the negative curves.
    shift : bool, default=True
        Whether a curve becomes −s times the next of the drawn ones, cyclically (type 1), or −s times itself (LT-130).
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    corrupted : ndarray of shape (n, m)
        Corrupted curves.
    mask : ndarray of bool of shape (n,)
        Changed curves.
    """
    Y, rng = _check_curves(Y), np.random.default_rng(as_seed(random_state))
    rows, corrupted = _draw_rows(len(Y), fraction, rng), Y.copy()
    corrupted[rows] = -check_positive("scale", scale) * Y[np.roll(rows, -1) if shift else rows]
    return corrupted, _as_mask(rows, len(Y))


def add_outlying_curves(
    Y: ArrayLike,
    fraction: float,
    intensity: float,
    *,
    mode: str = "add",
    lengthscales=OUTLIER_LENGTHSCALES,
    random_state=None,
) -> tuple[np.ndarray, np.ndarray]:
    """Add to a fraction of the curves, or replace them by, mixtures of other Gaussian processes: global outliers of type 2.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves on an equidistant grid.
    fraction : float
        Fraction τ of the curves; ⌊τn⌋ are drawn.
    intensity : float
        Coefficients are uniform on [−intensity/2, intensity/2].
    mode : {"add", "replace"}, default="add"
        Whether the mixtures are added to the curves or replace them; the source states both (BO-E-44).
    lengthscales : sequence of float, default=(0.01, 0.05, 1.0, 4.0)
        Lengthscales of the processes on a grid of [0, 1].
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    corrupted : ndarray of shape (n, m)
        Corrupted curves.
    mask : ndarray of bool of shape (n,)
        Changed curves.
    """
    Y, rng = _check_curves(Y), np.random.default_rng(as_seed(random_state))
    check_one_of("mode", mode, ("add", "replace"))
    rows, corrupted = _draw_rows(len(Y), fraction, rng), Y.copy()
    paths = draw_paths(np.linspace(0, 1, Y.shape[1]), np.array(lengthscales, dtype=float), rng)
    half = check_nonnegative("intensity", intensity) / 2
    outliers = rng.uniform(-half, half, (len(rows), len(paths))) @ paths
    corrupted[rows] = outliers + (Y[rows] if mode == "add" else 0.0)
    return corrupted, _as_mask(rows, len(Y))


def _check_curves(Y: ArrayLike) -> np.ndarray:
    Y = np.array(np.asarray(Y), dtype=np.float64)
    if Y.ndim != 2 or not Y.size:
        raise InputError(f"Y has shape {Y.shape}, expected (n, m), one row per curve.")
    return Y


def _check_fraction(name: str, value: float) -> float:
    value = check_nonnegative(name, value)
    if value > 1:
        raise OptionError(f"{name} must lie in [0, 1], got {value}.")
    return value


def _draw_rows(count: int, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Draw ⌊fraction · count⌋ rows without replacement."""
    number = int(np.floor(_check_fraction("fraction", fraction) * count + 1e-9))
    return rng.choice(count, number, replace=False)


def _draw_points(Y: np.ndarray, fraction: float, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the mask (n, m) of the nearest number of points of each given row."""
    count, mask = round(_check_fraction("fraction", fraction) * Y.shape[1]), np.zeros(Y.shape, dtype=bool)
    mask[rows] = np.argsort(rng.uniform(size=(len(rows), Y.shape[1])), axis=1) < count
    return mask


def _as_mask(rows: np.ndarray, count: int) -> np.ndarray:
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return mask
