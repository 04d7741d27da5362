"""Tests of `ovkgp.estimators.common.fit_checks`."""

import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.estimators.common.fit_checks import _effective_ranks, _neighbor_ratio, list_fit_problems
from ovkgp.exceptions import FitWarning

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 5, (40, 2))
Y = np.c_[np.sin(X[:, 0]), X[:, 1]] + 0.1 * RNG.standard_normal((40, 2))


def test_good_fit_has_no_problems():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert list_fit_problems(model) == [] and "note" not in model.summary()


def test_copied_rows_are_reported_everywhere():
    with pytest.warns(FitWarning, match="40 rows of 80 are exact copies"):
        model = ovkgp.GPRegressor("independent", random_state=0).fit(np.r_[X, X], np.r_[Y, Y])
    assert "note: 40 rows of 80 are exact copies" in model.summary()
    assert any("exact copies" in text for text in model.list_problems())


def test_repeated_labels_are_not_copies():
    levels = RNG.integers(0, 2, (60, 2)).astype(float)
    model = ovkgp.GPRegressor(noise=0.1, random_state=0).fit(levels, RNG.integers(0, 3, 60).astype(float))
    assert not any("copies" in text for text in model.list_problems())


def test_signal_that_is_taken_for_noise_is_reported():
    x = np.linspace(0, 1, 200)[:, None]
    y = np.sin(8 * x[:, 0]) + 0.05 * np.random.default_rng(0).standard_normal(200)
    model = ovkgp.GPRegressor("independent", random_state=0).fit(x, y)
    assert model.list_problems() == []
    model.noise_ = np.array([[np.var(y)]])  # as if training had ended at a bad optimum
    assert any("explained as noise" in text for text in model.list_problems())


@pytest.mark.parametrize(("smooth", "expected"), [(True, 0.0), (False, 1.0)])
def test_neighbor_ratio_is_small_for_functions_and_one_for_noise(smooth, expected):
    x = np.linspace(0, 1, 400)[:, None]
    y = np.sin(5 * x[:, 0]) if smooth else np.random.default_rng(1).standard_normal(400)
    assert _neighbor_ratio(x, y) == pytest.approx(expected, abs=0.2)


# --- few rows, features, copied outputs, priors that do not fit ------------------------------------------------------


def problems(text, model):
    return [problem for problem in model.list_problems() if text in problem]


@pytest.mark.parametrize(("num_rows", "fires"), [(7, True), (30, False)])
def test_fewer_rows_than_hyperparameters_are_reported(num_rows, fires):
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((num_rows, 6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ovkgp.GPRegressor("independent", random_state=0).fit(inputs, inputs[:, :2] + 0.1)
    assert bool(problems("hyperparameters and only 7 observed values of an output", model)) is fires
    assert any("priors determine most of them" in str(one.message) for one in caught) is fires
    assert ("priors determine most of them" in model.summary()) is fires


@pytest.mark.parametrize("kernel", ["auto", "decomposable"])
def test_one_training_row_is_reported(kernel):
    with pytest.warns(FitWarning, match="only one training row"):
        model = ovkgp.GPRegressor(kernel, random_state=0).fit(X[:1], Y[:1])
    assert problems("only one training row", model)
    two = ovkgp.GPRegressor(kernel, random_state=0).fit(X[:2], Y[:2])
    assert not problems("only one training row", two)


@pytest.mark.parametrize("approximation", ["orff", "nystrom"])
@pytest.mark.parametrize("kernel", ["independent", pytest.param("decomposable", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("periods", "fires"), [(2, False), (25, True)])
def test_features_that_cannot_resolve_the_lengthscale_are_reported(approximation, kernel, periods, fires):
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=600))[:, None]
    targets = np.hstack([np.sin(2 * np.pi * periods * x), np.cos(2 * np.pi * periods * x)])
    targets += 0.1 * rng.standard_normal(targets.shape)
    options = {"approximation": approximation, "num_frequencies": 40, "random_state": 0}
    model = ovkgp.GPRegressor(kernel, **options).fit(x, targets)
    assert bool(problems("too short for", model)) is fires


def test_effective_rank_counts_distant_groups_of_rows():
    groups = torch.arange(8.0, dtype=torch.float64).repeat_interleave(40).unsqueeze(-1)
    rank = _effective_ranks(RBFKernel().double().initialize(lengthscale=0.01), groups, 1)[0]
    assert rank == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(("kernel", "fires"), [("decomposable", True), ("independent", False)])
def test_copied_outputs_of_coupled_models_are_reported(kernel, fires):
    copies = np.c_[Y[:, 0], 3 - 2 * Y[:, 0]]
    model = ovkgp.GPRegressor(kernel, random_state=0).fit(X, copies)
    assert bool(problems("exact multiples", model)) is fires
    assert not problems("exact multiples", ovkgp.GPRegressor("decomposable", random_state=0).fit(X, Y))


@pytest.mark.parametrize(("kernel", "fires"), [("divergence_free", True), ("curl_free", False), ("auto", False)])
def test_prior_that_leaves_outputs_to_the_noise_is_reported(kernel, fires):
    rng = np.random.default_rng(0)
    points = rng.uniform(-2, 2, (120, 2))
    gradient = np.c_[2 * points[:, 0], 2 * points[:, 1]]  # of |x|², which has no divergence-free part
    model = ovkgp.GPRegressor(kernel, random_state=0).fit(points, gradient + 0.05 * rng.standard_normal((120, 2)))
    assert bool(problems("cannot represent", model) or problems("explained as noise", model)) is fires
