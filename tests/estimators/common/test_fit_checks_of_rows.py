"""Tests of `ovkgp.estimators.common.fit_checks.warn_about_rows`."""

import warnings

import numpy as np
import pytest

import ovkgp
from ovkgp.exceptions import FitWarning

rng = np.random.default_rng(0)
X = rng.uniform(0, 1, (15, 2))
C = X[:, :1] * np.sin(3 * np.linspace(0, 1, 6)) + X[:, 1:] + 0.05 * rng.standard_normal((15, 6))
ESTIMATORS = {
    "gp": (ovkgp.FunctionGPRegressor(output_basis="kernel", kernel="rbf", deviations=False), C),
    "curve ridge": (ovkgp.FunctionalRidge(), C),
    "averages": (ovkgp.KernelCurveRegressor(), C),
    "ridge": (ovkgp.OVKRidge(), C),
    "tasks": (ovkgp.VectorTaskRegressor(tasks=[0.0, 1.0]), np.stack([C, 2 * C], 1)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_row_and_copies_of_rows_are_reported(name):
    estimator, Y = ESTIMATORS[name]
    with pytest.warns(FitWarning, match="only one training row"):
        estimator.fit(X[:1], Y[:1])
    with pytest.warns(FitWarning, match="30 rows of 45 are exact copies"):
        estimator.fit(np.repeat(X, 3, 0), np.repeat(Y, 3, 0))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        estimator.fit(X, Y)
    assert not [one for one in found if "row" in str(one.message)]


def test_copies_of_all_rows_are_fitted_with_a_warning():
    """The search for the hyperparameters ended with a raw LinAlgError."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 2))
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.05 * rng.standard_normal(40)
    with pytest.warns(FitWarning, match="40 rows of 80 are exact copies"):
        model = ovkgp.GPRegressor(random_state=0).fit(np.r_[X, X], np.r_[y, y])
    np.testing.assert_allclose(model.predict(X), y, atol=0.01)
