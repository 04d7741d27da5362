"""Simulated vector autoregressions of the thesis."""

import numpy as np
import pytest

from ovkgp.datasets import make_var_series
from ovkgp.exceptions import OptionError

FUNCTIONS = {
    "linear": (lambda x: x, 0.9),
    "exponential": (lambda x: np.exp(-10 * x**2), 0.5),
    "sine": (lambda x: np.sin(-x), 0.9),
}


@pytest.mark.parametrize("setting", FUNCTIONS)
@pytest.mark.parametrize("noise", ["white", "toeplitz"])
def test_series_follow_the_stated_model(setting, noise):
    series, W = make_var_series(4000, setting, noise, return_coefficients=True)
    function, diagonal = FUNCTIONS[setting]
    assert (np.diag(W) == diagonal).all() and 0 < (W[~np.eye(5, dtype=bool)] != 0).sum() <= 5
    covariance = np.cov((series[1:] - function(series[:-1]) @ W).T)
    lags = np.abs(np.subtract.outer(range(5), range(5)))
    expected = {
        ("linear", "white"): 0.9 * np.eye(5),
        ("linear", "toeplitz"): 0.9**lags,
        ("exponential", "white"): 0.0009 * np.eye(5),
        ("exponential", "toeplitz"): 0.01 * 0.09**lags,
        ("sine", "white"): 0.009 * np.eye(5),
        ("sine", "toeplitz"): 0.1 * 0.9**lags,
    }[setting, noise]
    np.testing.assert_allclose(covariance, expected, atol=0.08 * expected.max())


def test_bt_e_37_printed_exponential_setting_diverges():
    """x_{t+1} = A exp(x_t) grows beyond all numbers within seven steps; with exp(−10 x²) the series stay below 2."""
    series, W = make_var_series(200, "exponential", return_coefficients=True)
    x = series[0]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(7):
            x = W.T @ np.exp(x)
    assert not np.isfinite(x).all() and np.abs(series).max() < 2


def test_series_begin_alike_for_any_length_and_depend_on_the_seed():
    np.testing.assert_array_equal(make_var_series(50, "sine"), make_var_series(90, "sine")[:50])
    assert (make_var_series(50, random_state=1) != make_var_series(50)).all()
    generator = np.random.RandomState(0)
    np.testing.assert_array_equal(make_var_series(50, random_state=generator), make_var_series(50))


def test_series_reject_invalid_options():
    with pytest.raises(OptionError, match="setting"):
        make_var_series(10, "cosine")
    with pytest.raises(OptionError, match="noise"):
        make_var_series(10, noise="pink")
    with np.errstate(all="ignore"), pytest.raises(OptionError, match="diverge"):
        make_var_series(3000, link_scale=50.0)
