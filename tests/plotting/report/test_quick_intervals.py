import warnings

import numpy as np
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.plotting.report import parameters as quick_intervals
from ovkgp.plotting.report.parameters import DRAWS, local_draws, point_values


def test_draws_are_around_the_trained_values_in_the_units_of_the_data(coupled):
    found, trained = local_draws(coupled), point_values(coupled)
    assert set(found.values) == set(trained)
    middle = np.median(found.values["noise"][0], axis=0)
    assert found.values["noise"].shape == (1, DRAWS, 3)
    np.testing.assert_array_less(np.abs(np.log(middle / trained["noise"])), np.log(4.0))


def test_neither_the_model_nor_the_warnings_of_python_see_it(coupled):
    before = {name: value.clone() for name, value in coupled.gp_.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_draws(coupled)
    assert all(bool((value == before[name]).all()) for name, value in coupled.gp_.state_dict().items())


def test_it_is_made_only_where_it_is_cheap_and_makes_sense(coupled, features, chains, mixed, monkeypatch):
    assert local_draws(features) is None and local_draws(chains) is None and local_draws(mixed) is None
    monkeypatch.setattr(quick_intervals, "MOST_ENTRIES", 10)
    assert local_draws(coupled) is None


def test_values_that_were_fixed_have_none():
    X = np.linspace(0, 1, 8)[:, None]
    kernel = ovkgp.kernels.DecomposableKernel(RBFKernel(), num_outputs=1)
    assert local_draws(ovkgp.GPRegressor(kernel, hyperparameters="fixed").fit(X, X)) is None


def test_rough_and_flat_approximations_are_said_to_be():
    notes = quick_intervals._notes({"khat": 0.9, "num_flat": 1})
    assert "k̂ = 0.9" in notes[0] and "open" in notes[1]
    assert quick_intervals._notes({"khat": 0.5, "num_flat": 0}) == ()
