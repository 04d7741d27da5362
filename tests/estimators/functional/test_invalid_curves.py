"""Dates, durations, complex numbers and three-dimensional arrays as curves: every estimator of curves rejects them."""

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.functional import FunctionalData, as_functional_data

rng = np.random.default_rng(0)
X = rng.uniform(0, 1, (12, 2))
GRID = np.linspace(0, 1, 6)
C = X[:, :1] * np.sin(3 * GRID) + X[:, 1:] + 0.05 * rng.standard_normal((12, 6))
DATES = np.datetime64("2024-01-01") + np.round(10 * C).astype("timedelta64[D]")
ESTIMATORS = {
    "gp": ovkgp.FunctionGPRegressor(output_basis="kernel", kernel="rbf", deviations=False),
    "ridge": ovkgp.FunctionalRidge(),
    "averages": ovkgp.KernelCurveRegressor(),
}
INVALID = {
    "dates": DATES,
    "lists of dates": DATES.tolist(),
    "frame of dates": pd.DataFrame(DATES),
    "one column of dates": pd.DataFrame(C).assign(a=DATES[:, 0]),
    "zoned dates": pd.DataFrame(DATES).apply(lambda column: column.dt.tz_localize("UTC")),
    "durations": DATES - DATES[0, 0],
    "complex": C + 1j,
}


@pytest.mark.parametrize("kind", INVALID)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_curves_that_are_not_real_numbers_are_rejected(name, kind):
    """Days since the earliest date of each column would have another origin at each point."""
    estimator = ESTIMATORS[name]
    with pytest.raises(InputError, match=r"number|omplex"):
        estimator.fit(X, INVALID[kind])
    estimator.fit(X, C)
    with pytest.raises(InputError, match=r"number|omplex"):
        estimator.score(X, INVALID[kind])


@pytest.mark.parametrize("kind", ["dates", "durations", "complex"])
def test_functional_data_holds_real_numbers_only(kind):
    with pytest.raises(InputError, match=kind):
        FunctionalData(INVALID[kind], GRID)
    with pytest.raises(InputError, match=kind):
        as_functional_data(pd.DataFrame(INVALID[kind], columns=GRID))


def test_grids_are_numbers_or_dates():
    with pytest.raises(InputError, match="complex"):
        FunctionalData(C, INVALID["complex"][0])
    days = np.array("2020-01-01", "M8[s]") + np.arange(C.shape[1]).astype("m8[D]")
    np.testing.assert_array_equal(FunctionalData(C, days).grid, 18262 + np.arange(C.shape[1]))


def test_dates_of_flat_outputs_and_partial_curves_are_rejected():
    with pytest.raises(InputError, match="dates"):
        ESTIMATORS["gp"].fit(X, pd.Series(DATES[:, 0]))
    model = ESTIMATORS["gp"].fit(X, C)
    with pytest.raises(InputError, match="dates"):
        model.complete(X, DATES)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_arrays_with_three_dimensions_are_no_inputs(name):
    with pytest.raises(InputError, match="dim 3"):
        ESTIMATORS[name].fit(C[:, :, None], C)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_frame_without_column_names_has_the_grid_of_the_array(name):
    """Columns 0, 1, … of pandas are no points of a domain."""
    estimator = ESTIMATORS[name]
    expected = estimator.fit(X, C).predict(X)
    names, grid = estimator.output_names_, estimator.grid_
    estimator.fit(pd.DataFrame(X), pd.DataFrame(C))
    np.testing.assert_array_equal(estimator.grid_, grid)
    assert estimator.output_names_ == names
    np.testing.assert_allclose(estimator.predict(pd.DataFrame(X)), expected, rtol=1e-10)
    np.testing.assert_array_equal(as_functional_data(pd.DataFrame(C)).grid, grid)
    named = pd.DataFrame(C, columns=[0, 1, 2, 3, 4, 6])
    np.testing.assert_array_equal(estimator.fit(X, named).grid_, named.columns)
