"""Small fitted models for the tests of plots and calibration, each made once."""

import warnings
from functools import cache

import numpy as np
import pandas as pd

import ovkgp
from ovkgp.criticism.calibration import binomial_band
from ovkgp.datasets import make_sine_quantiles
from ovkgp.exceptions import FitWarning
from ovkgp.plotting.report.calibration import CONSISTENCY_PROBABILITY, assess_coverage


def table(num_rows: int = 30, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One input and two outputs with column names; some entries are missing."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(10, 16, num_rows))
    Y = np.column_stack([100 + 20 * np.sin(t), np.cos(t)]) + rng.normal(size=(num_rows, 2)) * [2.0, 0.1]
    Y[3:8, 0] = np.nan
    Y[20:24, 1] = np.nan
    return pd.DataFrame({"hour of the day": t}), pd.DataFrame(Y, columns=["price in $", "_load"])


@cache
def two_outputs():
    """An ICM with the exact kernel, fitted to the table; nothing is trained, here and below, to save time."""
    return ovkgp.GPRegressor("decomposable", hyperparameters="fixed").fit(*table())


@cache
def one_output():
    """A one-dimensional y in an array."""
    X, Y = table()
    return ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X.to_numpy()[8:], Y.to_numpy()[8:, 0])


@cache
def drawn():
    """Draws of the hyperparameters, over which predictions average; too few to be good ones."""
    sampling = {"draws": 60, "max_draws": 10, "prior_draws": 0, "posterior_predictive": False, "log_likelihood": False}
    options = {
        "rank": 1,
        "base_kernel": "rbf",
        "noise": [4.0, 0.01],
        "hyperparameters": "laplace",
        "sampling": sampling,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ovkgp.GPRegressor("decomposable", random_state=0, **options).fit(*table())


@cache
def featured():
    """Random features, which store no rows."""
    options = {"approximation": "orff", "num_frequencies": 40, "hyperparameters": "fixed", "random_state": 0}
    return ovkgp.GPRegressor("decomposable", **options).fit(*table())


def mixed_table(num_rows: int = 40, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A label, a count and a number."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 6, num_rows))
    label = rng.random(num_rows) < 1 / (1 + np.exp(-3 * np.sin(t)))
    return t[:, None], np.column_stack(
        [label, rng.poisson(np.exp(1 + np.sin(t))), np.cos(t) + 0.1 * rng.normal(size=len(t))]
    )


@cache
def mixed():
    """A separate likelihood per output."""
    likelihood = ["bernoulli", "poisson", "gaussian"]
    options = {"likelihood": likelihood, "num_frequencies": 8, "hyperparameters": "fixed", "random_state": 0}
    return ovkgp.GPRegressor("decomposable", **options).fit(*mixed_table())


def field_table(num_rows: int = 40, seed: int = 2) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A drifting eddy far from the origin, with some components missing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform([300.0, -20.0], [500.0, 180.0], (num_rows, 2))
    Y = truth(X) + 0.05 * rng.normal(size=X.shape)
    Y[::7, 0] = np.nan
    return pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])


def truth(X: np.ndarray) -> np.ndarray:
    """The eddy of `field_table`: (m, 2)."""
    z = (np.asarray(X) - [400.0, 80.0]) / 60
    return 3 * np.column_stack([-z[:, 1], z[:, 0]]) * np.exp(-np.sum(z**2, axis=1, keepdims=True) / 2) + [0.5, -0.2]


@cache
def field(kernel: str = "helmholtz"):
    """A vector field in the plane."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a curl-free field cannot represent an eddy
        return ovkgp.GPRegressor(kernel, hyperparameters="fixed").fit(*field_table())


@cache
def quantile_model():
    """All quantiles of one output."""
    X, y, _ = make_sine_quantiles(60, random_state=0)
    model = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-2, tol=1e-2, random_state=0)
    return model.fit(pd.DataFrame(X, columns=["age"]), pd.Series(y, name="wage"))


def assessment(covered, total, level=0.9, name=""):
    """Assess the coverage of intervals of one level."""
    levels = np.array([level])
    band = binomial_band(total, levels, CONSISTENCY_PROBABILITY, simultaneous=True)
    return assess_coverage(np.array([covered]), total, levels, band, level, name)
