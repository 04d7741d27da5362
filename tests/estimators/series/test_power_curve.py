"""Power curves: medians of nearest neighbors, outliers, missing outputs and scikit-learn's checks."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.datasets import make_wind_farm
from ovkgp.estimators.series.power_curve import PowerCurve
from ovkgp.exceptions import OptionError


@parametrize_with_checks([PowerCurve(num_neighbors=5)])
def test_power_curve_passes_scikit_learn_checks(estimator, check):
    check(estimator)


def test_power_curve_is_the_median_of_neighbors_bo_134():
    rng = np.random.default_rng(0)
    X, Y, points = rng.normal(size=(80, 2)), rng.normal(size=(80, 3)), rng.normal(size=(9, 2))
    Y[::5, 1] = np.nan
    found = PowerCurve(num_neighbors=7).fit(X, Y).predict(points)
    for i, point in enumerate(points):
        for a in range(3):
            rows = np.flatnonzero(~np.isnan(Y[:, a]))
            nearest = rows[np.argsort(np.linalg.norm(X[rows] - point, axis=1))[:7]]
            assert found[i, a] == np.median(Y[nearest, a])
    # at most all rows
    np.testing.assert_allclose(PowerCurve(num_neighbors=500).fit(X, Y[:, 0]).predict(points), np.median(Y[:, 0]))


def test_power_curve_ignores_outliers():
    farm = make_wind_farm(8000, random_state=0).measured
    speed, power = farm[["speed"]], farm["power"].copy()
    clean = PowerCurve().fit(speed, power)
    power[np.random.default_rng(0).random(8000) < 0.1] = 0.0  # turbines that stand still
    disturbed = PowerCurve().fit(speed, power)
    # where neighbors are close; a mean would change by a tenth, up to 90 kW
    at = speed[speed["speed"].between(4, 10)]
    assert np.abs(disturbed.predict(at) - clean.predict(at)).max() < 30


def test_power_curve_rejects_invalid_options():
    with pytest.raises(OptionError, match="num_neighbors"):
        PowerCurve(num_neighbors=0).fit([[1.0], [2.0]], [1.0, 2.0])
