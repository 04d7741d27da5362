from copy import copy

import numpy as np
import pandas as pd

import ovkgp
from ovkgp.plotting.report.fit_warnings import NEAR_FLOOR, idle_inputs, noise_levels, starving_features, wide_errors


def with_noise(model, share):
    """The same model with noise that is a share of the variance of each output."""
    other = copy(model)
    other.noise_ = np.diag(share * np.nanvar(model.posterior_.data.Y.numpy(), axis=0) * model.scaling_.output_scale**2)
    return other


def test_an_input_that_says_nothing_is_found_and_one_that_matters_is_not():
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.uniform(0, 1, (40, 2)), columns=["wind", "moon"])
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(6 * X["wind"]) + 0.1 * rng.normal(size=40))
    (found,) = idle_inputs(model, None)
    assert "Input 'moon' hardly matters" in found and "wind" not in found


def test_a_straight_line_has_a_long_lengthscale_and_matters():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 2))
    model = ovkgp.GPRegressor("independent", random_state=0).fit(
        X, 3 * X[:, 0] + 2 * X[:, 1] + 0.01 * rng.normal(size=40)
    )
    assert model.gp_.kernel.kernels[0].base_kernel.lengthscale.min() > 2  # in standard deviations
    assert not [*idle_inputs(model, None)]


def test_noise_at_its_floor_and_noise_that_is_all(coupled):
    assert not [*noise_levels(coupled, None)]
    floor = [*noise_levels(with_noise(coupled, NEAR_FLOOR / 2), None)]
    assert len(floor) == 3 and "Output 'u': the noise is at its floor" in floor[0]
    all_noise = [*noise_levels(with_noise(coupled, 0.95), None)]
    assert len(all_noise) == 3 and "taken for noise" in all_noise[2]


def test_noise_that_was_given_is_not_judged():
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.GPRegressor("independent", noise=1e-9, random_state=0).fit(X, np.sin(9 * X))
    assert not [*noise_levels(model, None)]


def test_features_without_a_guard_starve(features, coupled):
    assert not [*starving_features(features, None)] and not [*starving_features(coupled, None)]
    X = np.linspace(0, 1, 10)[:, None]
    bare = ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, variance="features", random_state=0).fit(X, X)
    assert 'variance="guarded"' in next(iter(starving_features(bare, None)))


def test_a_budget_that_was_full():
    X = np.linspace(0, 1, 10)[:, None]
    assert "budget" in next(iter(wide_errors(ovkgp.ONORMA(budget=3).fit(X, X), None)))
    assert not [*wide_errors(ovkgp.ONORMA(budget=50).fit(X, X), None)]
