"""Data of any finite size: results are those of ordinary units, or an error says which values are too large or too small."""

import warnings

import numpy as np
import pytest

import ovkgp
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.functional import FunctionalData
from ovkgp.metrics import r2_score, root_mean_squared_error

rng = np.random.default_rng(1)
X = rng.uniform(0, 1, (40, 2))
Y = np.c_[np.sin(4 * X[:, 0]) + X[:, 1], np.cos(3 * X[:, 1]) - X[:, 0]] + 0.05 * rng.standard_normal((40, 2))
GRID = np.linspace(0, 1, 9)
C = np.sin(3 * GRID) * X[:, :1] + GRID * X[:, 1:] + 0.05 * rng.standard_normal((40, 9)) + 1
P = rng.uniform(0, 1, (7, 2))

CURVE_GP = ovkgp.FunctionGPRegressor(output_basis="kernel", kernel="rbf", deviations=False)
CURVE_ESTIMATORS = {
    "projection": ovkgp.KernelProjectionRegressor(),
    "ridge": ovkgp.FunctionalRidge(),
    "robust": ovkgp.RobustFunctionalRegressor(max_iter=500, tolerance=1e-4),
    "linear": ovkgp.FunctionalLinearRegressor(),
    "additive": ovkgp.KernelAdditiveRegressor(value_lengthscale=0.5),
    "averages": ovkgp.KernelCurveRegressor(),
}


def assert_close(found, expected, rtol):
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * np.abs(expected).max())


def fit_silently(estimator, *data, **options):
    """Fit without any RuntimeWarning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return estimator.fit(*data, **options)


@pytest.fixture(scope="module")
def auto_predictions():
    return ovkgp.GPRegressor(random_state=0).fit(X[:15], Y[:15]).predict(P)


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-200])
def test_default_regressor_is_equivariant_at_extreme_outputs(factor, auto_predictions):
    model = fit_silently(ovkgp.GPRegressor(random_state=0), X[:15], factor * Y[:15])
    assert_close(model.predict(P) / factor, auto_predictions, 1e-7)


@pytest.mark.parametrize("factor", [1e155, 1e-200])
def test_default_regressor_is_equivariant_at_extreme_inputs(factor, auto_predictions):
    model = fit_silently(ovkgp.GPRegressor(random_state=0), factor * X[:15], Y[:15])
    assert_close(model.predict(factor * P), auto_predictions, 1e-7)


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-160])
def test_scores_are_equivariant_at_extreme_outputs(factor):
    mean = Y + 0.1
    assert r2_score(factor * Y, factor * mean) == pytest.approx(r2_score(Y, mean))
    assert root_mean_squared_error(factor * Y, factor * mean) == pytest.approx(0.1 * factor)


DISTANT = {
    "exact": (ovkgp.OVKRidge(lam=0.01), Y),
    "features": (ovkgp.ORFFRidge(lam=0.01, num_frequencies=100, random_state=0), Y),
    "manifold": (ovkgp.ManifoldRidge(num_neighbors=3, lam=0.01, random_state=0), Y),
    "online": (ovkgp.ONORMA(), Y),
    "constrained": (ovkgp.ConstrainedORFF(num_frequencies=100, random_state=0), Y),
    "vector tasks": (ovkgp.VectorTaskRegressor(tasks=[0.0, 1.0]), np.stack([Y, Y], 1)),
    "projection": (ovkgp.KernelProjectionRegressor(), C),
    "robust": (ovkgp.RobustFunctionalRegressor(max_iter=500, tolerance=1e-4), C),
}


@pytest.mark.parametrize("value", [1e154, 1e200, 1e300])
@pytest.mark.parametrize("name", DISTANT)
def test_one_distant_training_row_does_not_set_the_lengthscale(name, value):
    """The row at 1e9 neither: all distances between it and other rows are above the median."""
    estimator, target = DISTANT[name]
    inputs = X.copy()
    inputs[3] = 1e9
    expected = fit_silently(estimator, inputs, target).predict(X[4:10])
    inputs[3] = value
    found = fit_silently(estimator, inputs, target).predict(X[4:10])
    assert_close(found, expected, 0.05 if name in ("features", "constrained") else 1e-9)  # features are not local


WITH_COLUMN_SCALES = {
    "regressor": (ovkgp.GPRegressor("independent", hyperparameters="fixed"), Y),
    "quantiles": (ovkgp.InfiniteQuantileRegressor(lam=1e-3, num_tasks=4, random_state=0), Y[:, 0]),
    "costs": (ovkgp.InfiniteCostSensitiveClassifier(random_state=0), (Y[:, 0] > 1).astype(int)),
}


@pytest.mark.parametrize("value", [1e9, 1e200])
@pytest.mark.parametrize("name", WITH_COLUMN_SCALES)
def test_row_that_sets_the_scale_of_an_input_is_named(name, value):
    estimator, target = WITH_COLUMN_SCALES[name]
    inputs = X.copy()
    inputs[3, 1] = value
    with pytest.warns(FitWarning, match="'input 1' has the value .* in row 3"):
        estimator.fit(inputs, target)


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-160, 1e-300])
def test_function_gp_is_equivariant_at_extreme_units(factor):
    expected = CURVE_GP.fit(X, C).predict(P, return_std=True)
    of_curves = [values / factor for values in fit_silently(CURVE_GP, X, factor * C).predict(P, return_std=True)]
    of_inputs = fit_silently(CURVE_GP, factor * X, C).predict(factor * P, return_std=True)
    for found in (of_curves, of_inputs):
        for values, reference in zip(found, expected, strict=True):
            assert_close(values, reference, 1e-6)


def test_shared_kernel_accepts_equal_curves():
    model = ovkgp.FunctionGPRegressor(output_basis="shared").fit(X, np.ones_like(C))
    np.testing.assert_allclose(model.predict(P), 1.0)


def test_distant_input_curve_is_named():
    """Before, the whole batch failed with an error that blamed the noise."""
    curves = X[:, :1] * np.sin(3 * GRID) + X[:, 1:] * GRID
    model = CURVE_GP.fit(FunctionalData(curves, GRID), C)
    batch = curves[:4].copy()
    batch[2] = 1e300
    with pytest.raises(InputError, match="row 2"):
        model.predict(FunctionalData(batch, GRID))


@pytest.mark.parametrize("estimator", [CURVE_GP, ovkgp.FunctionalLinearRegressor()], ids=["gp", "linear"])
def test_reach_of_curve_estimators_is_in_original_units(estimator):
    expected = estimator.fit(X, C).predict(P)
    assert_close(estimator.fit(1e150 * X, C).predict(1e150 * P), expected, 1e-8)


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-155, 1e-300])
@pytest.mark.parametrize("name", CURVE_ESTIMATORS)
def test_curves_whose_squares_are_not_representable_are_rejected(name, factor):
    with pytest.raises(InputError, match="largest absolute value of y"):
        CURVE_ESTIMATORS[name].fit(X, factor * C)


@pytest.mark.parametrize("factor", [1e155, 1e-155])
@pytest.mark.parametrize("estimator", [ovkgp.OVKRidge(loss="huber"), ovkgp.ORFFRidge(loss="huber", num_frequencies=20)])
def test_losses_in_units_of_outputs_reject_extreme_ones(estimator, factor):
    with pytest.raises(InputError, match="largest absolute value of Y"):
        estimator.fit(X, factor * Y)


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-160, 1e-300])
@pytest.mark.parametrize("name", CURVE_ESTIMATORS)
def test_extreme_grids_change_nothing_or_are_rejected(name, factor):
    if name == "additive":  # its lengthscale is in the units of the grid
        with pytest.raises(InputError, match="grid"):
            CURVE_ESTIMATORS[name].fit(X, C, grid=factor * GRID)
        return
    expected = CURVE_ESTIMATORS[name].fit(X, C, grid=GRID).predict(P)
    assert_close(fit_silently(CURVE_ESTIMATORS[name], X, C, grid=factor * GRID).predict(P), expected, 1e-8)


@pytest.mark.parametrize("factor", [1e155, 1e-155, 1e-300])
def test_linear_regressor_of_curves_is_equivariant_at_extreme_inputs(factor):
    linear = CURVE_ESTIMATORS["linear"]
    expected = linear.fit(X, C).predict(P)
    assert_close(fit_silently(linear, factor * X, C).predict(factor * P), expected, 1e-8)
