"""Tests of `ovkgp.estimators.common.fit_checks`."""

import warnings
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators.common.fit_checks import _effective_ranks, _neighbor_ratio, list_copied_rows, list_fit_problems
from ovkgp.exceptions import FitWarning
from ovkgp.inference.stacking import output_draws

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
@pytest.mark.slow
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


# --- training, and one list for fit, summary and report ---------------------------------------------------------------


@pytest.fixture(scope="module")
def good():
    return ovkgp.GPRegressor("decomposable", random_state=0).fit(X, Y)


def change(model, attribute, **values):
    """Copy of a model with a changed report or score."""
    other = copy(model)
    setattr(other, attribute, replace(getattr(model, attribute), **values))
    return other


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"interrupted": True, "converged": False}, "interrupted"),
        (
            {"converged": False, "messages": ("stopped after 9 iterations", "more")},
            "converge (stopped after 9 iterations)",
        ),
    ],
)
def test_training_that_ended_early_is_listed(good, values, text):
    assert good.list_problems() == []
    (found,) = change(good, "fit_report_", **values).list_problems()
    assert text in found and ovkgp.OVKRidge(lam=0.1).fit(X, Y).list_problems() == []


def test_training_of_a_mixture_that_did_not_converge_is_reported_everywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(output_draws, "MAX_ITERATIONS", 2)
    with pytest.warns(FitWarning, match="did not converge"):
        model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert "note: Training of the candidate" in model.summary()
    model.save(tmp_path / "model.ovkgp")
    assert problems("did not converge", ovkgp.load(tmp_path / "model.ovkgp"))


def test_active_bounds_of_every_heavy_candidate_are_listed():
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    others = [*model.candidates_][1:]
    bounds = (("noise_model.log_scale", 1, "lower"),)
    for weight, fires in [(0.06, True), (0.04, False)]:
        changed = copy(model)
        score = model.candidates_[others[0]]
        score = replace(score, weight=weight, report=replace(score.report, active_bounds=bounds))
        changed.candidates_ = model.candidates_ | {others[0]: score}
        assert bool(problems(f"noise std (y1) is at its lower bound in the candidate '{others[0]}'", changed)) is fires


def test_single_model_warns_once_of_training_without_convergence():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ovkgp.GPRegressor(likelihood="student_t", random_state=0, restarts=1)
        model.fit(np.r_[X[:8], X[:8]], np.r_[Y[:8], Y[:8]])
    assert sum("converg" in str(one.message) for one in caught) <= 1
    assert any("exact copies" in str(one.message) for one in caught)  # also with other likelihoods


@pytest.mark.parametrize(
    ("num_rows", "copies", "fires"), [(100, 4, False), (100, 5, True), (400, 9, False), (400, 10, True)]
)
def test_copied_rows_are_reported_from_five_percent_or_ten(num_rows, copies, fires):
    rows = np.random.default_rng(0).standard_normal((num_rows - copies, 2))
    rows = np.r_[rows, rows[:copies]]
    assert bool(list_copied_rows(rows, rows[:, :1])) is fires


def test_copied_rows_of_quantile_regression_are_reported(tmp_path):
    x, y, _ = make_sine_quantiles(60, random_state=0)
    options = {"lengthscale": 0.5, "lam": 1e-3, "trend": None, "calibrate": False, "random_state": 0}
    with pytest.warns(FitWarning, match="60 rows of 120 are exact copies"):
        model = ovkgp.InfiniteQuantileRegressor(**options).fit(np.r_[x, x], np.r_[y, y])
    model.save(tmp_path / "model.ovkgp")
    assert "exact copies" in ovkgp.load(tmp_path / "model.ovkgp").summary()
    weighted = ovkgp.InfiniteQuantileRegressor(**options).fit(x, y, sample_weight=np.full(60, 2.0))
    assert weighted.list_problems() == []


def test_few_rows_per_input_are_noted_without_constant_inputs():
    inputs = np.random.default_rng(0).normal(size=(12, 10))
    assert "12 rows for 10 inputs" in ovkgp.OVKRidge(lam=0.1).fit(inputs, inputs[:, 0]).summary()
    inputs[:, 4:] = 1.0
    assert not problems("may be too few", ovkgp.OVKRidge(lam=0.1).fit(inputs, inputs[:, 0]))
    assert not problems("may be too few", ovkgp.InfiniteOneClassSVM(num_tasks=4).fit(inputs))  # without outputs


def test_outputs_without_signal_are_noted_without_warning():
    y = np.random.default_rng(0).standard_normal(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ovkgp.GPRegressor("independent", random_state=0).fit(X, y)
    model.noise_ = np.array([[np.var(y)]])
    assert problems("attributed to noise", model) and not problems("explained as noise", model)
    fixed = ovkgp.GPRegressor("independent", noise=2.0, random_state=0).fit(X, y)
    assert not problems("attributed to noise", fixed)


def test_draws_that_were_replaced_by_the_mode_are_noted(monkeypatch):
    monkeypatch.setattr(output_draws, "MAX_DROP_FACTOR", 0.0)
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert problems("only its mode is used", model) and "note: The posterior of the hyperparameters" in model.summary()
    assert all(score.rough_outputs == (0, 1) for score in model.candidates_.values() if score.khat is not None)
    assert any(np.isfinite(score.khat) for score in model.candidates_.values() if score.khat is not None)
