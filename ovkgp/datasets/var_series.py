"""Synthetic vector autoregressions of five series (BT-95, 96)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import toeplitz

from ovkgp.checks import as_seed, check_integer, check_one_of
from ovkgp.exceptions import OptionError

NUM_SERIES, NUM_LINKS = 5, 5  # series, and random coefficients between different series
NUM_UNUSED_ROWS = 1000


class _Setting(NamedTuple):
    """Function g, diagonal of W, standard deviation of its other coefficients, C by the name of the noise, and κ."""

    function: Callable[[np.ndarray], np.ndarray]
    diagonal: float
    covariance: dict[str, np.ndarray]
    noise_scale: float = 1.0


def _toeplitz(value: float) -> np.ndarray:
    return toeplitz(value ** np.arange(NUM_SERIES))


SETTINGS = {
    "linear": _Setting(lambda x: x, 0.9, {"white": 0.9 * np.eye(NUM_SERIES), "toeplitz": _toeplitz(0.9)}),
    "exponential": _Setting(
        lambda x: np.exp(-10 * x**2), 0.5, {"white": 0.09 * np.eye(NUM_SERIES), "toeplitz": _toeplitz(0.09)}, 0.1
    ),
    "sine": _Setting(
        lambda x: np.sin(-x), 0.9, {"white": 0.009 * np.eye(NUM_SERIES), "toeplitz": 0.1 * _toeplitz(0.9)}
    ),
}


def make_var_series(
    num_rows=1000, setting="linear", noise="white", *, link_scale=0.3, random_state=0, return_coefficients=False
):
    """Generate five series x_t = Wᵀ g(x_{t−1}) + κ ε_t with ε_t ~ N(0, C), the settings of Tables 8.1 and 8.2 of the thesis.

    W has a constant diagonal and at most five other coefficients, which are normal.

    Parameters
    ----------
    num_rows : int, default=1000
        Number of rows.
    setting : {"linear", "exponential", "sine"}, default="linear"
        g(x) is x, exp(−10 x²) or sin(−x), elementwise; the diagonal of W is 0.9, 0.5 or 0.9.
    noise : {"white", "toeplitz"}, default="white"
        Whether the noise of different series is independent, or has the covariance of a Toeplitz matrix v^|i − j|.
    link_scale : float, default=0.3
        Standard deviation of the coefficients of W between different series; 0.5 in Table 8.2.
    random_state : int, RandomState instance or None, default=0
        Seed of NumPy's legacy generator. 0 gives the data of the tables.
    return_coefficients : bool, default=False
        Whether to return W too.

    Returns
    -------
    series : ndarray of shape (num_rows, 5)
        Series.
    W : ndarray of shape (5, 5)
        Only if requested. W[b, a] is the coefficient of series b in series a.

    Raises
    ------
    OptionError
        If the series diverge, which the linear setting does for some seeds and large `link_scale`.

    Notes
    -----
    As printed, x_{t+1} = A exp(x_t), the second setting diverges within seven steps (BT-E-37). C is a covariance.

    References
    ----------
    BT-95, 96, BT-E-37.

    Examples
    --------
    >>> from ovkgp.datasets import make_var_series
    >>> make_var_series(100, "sine", "toeplitz").shape
    (100, 5)
    """
    num_rows = check_integer("num_rows", num_rows)
    chosen = SETTINGS[check_one_of("setting", setting, tuple(SETTINGS))]
    covariance = chosen.covariance[check_one_of("noise", noise, ("white", "toeplitz"))]
    is_legacy = isinstance(random_state, np.random.RandomState)
    rng = random_state if is_legacy else np.random.RandomState(as_seed(random_state))
    W = chosen.diagonal * np.eye(NUM_SERIES)
    for _ in range(NUM_LINKS):
        row, column = rng.randint(NUM_SERIES), rng.randint(NUM_SERIES)
        while row == column:
            row, column = rng.randint(NUM_SERIES), rng.randint(NUM_SERIES)
        W[row, column] = rng.normal(0, link_scale)
    zero, series = np.zeros(NUM_SERIES), np.empty((num_rows, NUM_SERIES))
    series[0] = rng.multivariate_normal(zero, covariance)
    rng.randn(NUM_UNUSED_ROWS, NUM_SERIES)  # the code of the thesis draws them, for any number of rows
    for t in range(1, num_rows):
        drawn = rng.multivariate_normal(zero, covariance)
        series[t] = W.T @ chosen.function(series[t - 1]) + chosen.noise_scale * drawn
    if not np.isfinite(series).all():
        raise OptionError(
            f"link_scale={link_scale:g} makes the series diverge. Reduce it, or use another random_state."
        )
    return (series, W) if return_coefficients else series
