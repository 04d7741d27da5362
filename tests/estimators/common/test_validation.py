"""Tests of `ovkgp.estimators.common.validation`: finite inputs, huge inputs and memory layouts, for every estimator."""

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.exceptions import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(25, 2))
Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 1])])
ESTIMATORS = {
    "exact": lambda: ovkgp.GPRegressor("decomposable", random_state=0),
    "independent": lambda: ovkgp.GPRegressor("independent", random_state=0),
    "helmholtz": lambda: ovkgp.GPRegressor("helmholtz", random_state=0),
    "features": lambda: ovkgp.GPRegressor("icm", approximation="orff", num_frequencies=20, random_state=0),
    "nystrom": lambda: ovkgp.GPRegressor("icm", approximation="nystrom", num_frequencies=10, random_state=0),
    "OVKRidge": lambda: ovkgp.OVKRidge(lam=0.1),
    "ORFFRidge": lambda: ovkgp.ORFFRidge(lam=0.1, num_frequencies=20, random_state=0),
    "ManifoldRidge": lambda: ovkgp.ManifoldRidge(num_neighbors=3, num_frequencies=20, random_state=0),
    "ONORMA": lambda: ovkgp.ONORMA(),
    "constrained": lambda: ovkgp.ConstrainedORFF(num_frequencies=20, random_state=0),
    "quantiles": lambda: ovkgp.InfiniteQuantileRegressor(lam=1e-3, num_tasks=5, random_state=0),
    "one class": lambda: ovkgp.InfiniteOneClassSVM(num_tasks=5, random_state=0),
    "cost": lambda: ovkgp.InfiniteCostSensitiveClassifier(num_tasks=5, random_state=0),
    "simplex": lambda: ovkgp.SimplexClassifier(random_state=0),
    "tasks": lambda: ovkgp.VectorTaskRegressor(),
}


def fit(name, X=X):
    target = {"quantiles": Y[:, 0], "cost": Y[:, 0] > 0, "simplex": Y[:, 0] > 0}.get(name, Y)
    return ESTIMATORS[name]().fit(X, target)


def predictions(model):
    """Return the methods that predict at X."""
    found = [model.predict]
    if hasattr(model, "sample_y"):
        found += [lambda X: model.predict(X, return_std=True)[1], lambda X: model.predict(X, return_cov=True)[1]]
        found += [lambda X: model.predict(X, return_cov="full")[1], lambda X: model.sample_y(X, 2)]
        found += [lambda X: np.stack(model.predict_interval(X)), model.sample_functions(2, random_state=0)]
    return found + [
        getattr(model, n) for n in ("predict_proba", "decision_function", "level_score") if hasattr(model, n)
    ]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_huge_inputs_raise_instead_of_nan(name):
    model = fit(name)
    for predict in predictions(model):
        assert np.isfinite(np.asarray(predict(X[:2]), dtype=float)).all()
        for value in (1e155, 1e300, -1.7e308):
            with pytest.raises(
                InputError, match=r"within 1e\+100 lengthscales of the origin, got .* in row 1, column 0"
            ):
                predict(np.array([[0.5, 0.5], [value, 0.0]]))


@pytest.mark.parametrize("name", sorted(ESTIMATORS.keys() - {"ManifoldRidge"}))
@pytest.mark.parametrize("scale", [1e155, 1e-155])
@pytest.mark.slow
def test_units_of_any_size_predict_the_same(name, scale):
    if name == "quantiles":
        pytest.skip("its lengthscales are optimized to a tolerance")
    model, scaled = fit(name), fit(name, scale * X)
    np.testing.assert_allclose(
        np.asarray(scaled.predict(scale * X), float), np.asarray(model.predict(X), float), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", ESTIMATORS)
def test_missing_inputs_are_named_by_row_and_column(name):
    model, frame = fit(name, pd.DataFrame(X, columns=["east", "depth"])), pd.DataFrame(X, columns=["east", "depth"])
    for value, text in ((np.nan, "NaN"), (np.inf, "infinity")):
        frame.iloc[4, 1] = value
        with pytest.raises(InputError, match=rf"got {text} in row 4, column 'depth'"):
            model.predict(frame)
        with pytest.raises(InputError, match=rf"got {text} in row 4, column 'depth'"):
            fit(name, frame)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.slow
def test_memory_layout_does_not_change_the_fit(name):
    model, other = fit(name), fit(name, np.asfortranarray(X))
    np.testing.assert_array_equal(other.predict(np.asfortranarray(X)), model.predict(X))
    reversed_view = np.ascontiguousarray(X[::-1])[::-1]
    np.testing.assert_array_equal(fit(name, reversed_view).predict(X), model.predict(X))
