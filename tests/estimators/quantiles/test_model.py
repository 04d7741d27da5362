"""Tests of `ovkgp.estimators.quantiles.model`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles import model as quantile_model
from ovkgp.estimators.quantiles.kernel import GaussianQuantiles, KernelProportions, LearnedKernel, learn_kernel
from ovkgp.estimators.quantiles.model import (
    LAM_EXPONENTS,
    QuantilePath,
    build_quantile_model,
    compute_lam_path,
    finite_levels,
    make_task_side,
    select_kernel,
    select_rows,
)
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import Pinball, SmoothedPinball


def scaled_rows(n=30):
    X, y, _ = make_sine_quantiles(n, random_state=0)
    rows = QuantileRows.of(X, y)
    return rows.scaled(rows.scaling(scale_inputs=True))


def test_infinite_coupling_uses_the_kernel_between_all_nodes():
    side = make_task_side(InfiniteQuantileRegressor(task_lengthscale=0.4), 6, 0)
    nodes = side.measure.nodes
    expected = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.4**2))
    torch.testing.assert_close(side.rows @ side.rows.T, expected, rtol=0, atol=1e-9)


def test_joint_coupling_uses_the_kernel_between_its_levels():
    side = make_task_side(InfiniteQuantileRegressor(coupling="joint", levels=[0.2, 0.8]), 6, 0)
    assert side.measure.nodes.tolist() == [0.2, 0.8]
    assert (side.rows @ side.rows.T)[0, 1].item() == pytest.approx(np.exp(-(0.6**2) / (2 * 0.3**2)))


def test_independent_coupling_has_no_covariance_between_levels():
    side = make_task_side(InfiniteQuantileRegressor(coupling="independent"), 6, 0)
    torch.testing.assert_close(side.rows @ side.rows.T, torch.eye(5, dtype=torch.float64))


def test_finite_levels_are_sorted_and_distinct():
    assert finite_levels(InfiniteQuantileRegressor(coupling="joint", levels=[0.9, 0.1, 0.9])).tolist() == [0.1, 0.9]


def test_exact_coordinates_reproduce_kernel_and_intercept():
    rows = scaled_rows()
    model = build_quantile_model(InfiniteQuantileRegressor(), rows, LearnedKernel(0.7), 0)
    X = torch.from_numpy(rows.X)
    expected = 1 + torch.exp(-(torch.cdist(X, X) ** 2) / (2 * 0.7**2))
    torch.testing.assert_close(model.Phi @ model.Phi.T, expected, rtol=0, atol=1e-8)
    assert model.lengthscale == pytest.approx(0.7)


def test_exact_coordinates_reproduce_trend_proportions():
    rows = scaled_rows()
    learned = LearnedKernel(0.7, KernelProportions(0.25, 0.75))
    model = build_quantile_model(InfiniteQuantileRegressor(intercept=False), rows, learned, 0)
    X = torch.from_numpy(rows.X)
    expected = 0.25 * torch.exp(-(torch.cdist(X, X) ** 2) / (2 * 0.7**2)) + 0.75 * X @ X.T
    torch.testing.assert_close(model.Phi @ model.Phi.T, expected, rtol=0, atol=1e-8)


def test_prior_mean_is_gaussian_quantiles_or_zero():
    rows = scaled_rows()
    model = build_quantile_model(InfiniteQuantileRegressor(), rows, LearnedKernel(0.7), 0)
    assert isinstance(model.offset, GaussianQuantiles)
    assert model.offset.scale == model.residual_scale > 0
    none = build_quantile_model(InfiniteQuantileRegressor(prior_mean="zero"), rows, LearnedKernel(0.7), 0)
    levels = torch.tensor([0.1, 0.9], dtype=torch.float64)
    assert torch.equal(none.offset(levels), torch.zeros_like(levels))


def test_problem_targets_exclude_the_prior_mean():
    rows, options = scaled_rows(), InfiniteQuantileRegressor()
    model, side = build_quantile_model(options, rows, LearnedKernel(0.7), 0), make_task_side(options, 4, 0)
    problem = model.problem(side, 0.1)
    expected = torch.from_numpy(rows.y)[:, None] - model.offset(side.measure.nodes)
    torch.testing.assert_close(problem.targets, expected)
    assert isinstance(problem.loss.loss, Pinball)


def test_smoothed_loss_uses_kappa():
    options = InfiniteQuantileRegressor(loss="smoothed_pinball", kappa=0.2)
    loss = build_quantile_model(options, scaled_rows(), LearnedKernel(0.7), 0).loss
    assert isinstance(loss, SmoothedPinball)
    assert loss.kappa == 0.2


def test_constant_target_has_no_scales():
    rows = QuantileRows.of(np.arange(5.0)[:, None], np.full(5, 3.0))
    model = build_quantile_model(InfiniteQuantileRegressor(), rows, select_kernel(InfiniteQuantileRegressor(), rows), 0)
    assert model.scales is None
    assert model.residual_scale == 0


def test_penalty_uses_rows_and_all_nodes():
    options = InfiniteQuantileRegressor(noncrossing="penalty")
    model = build_quantile_model(options, scaled_rows(), LearnedKernel(0.7), 0)
    side = make_task_side(options, 5, 0)
    penalty = model.penalty(side, 2.0)
    assert penalty.inputs.shape[0] == 30
    assert penalty.slopes.shape[0] == 5
    torch.testing.assert_close(penalty.offset_slopes, model.offset.slopes(side.measure.nodes))


@pytest.mark.parametrize(
    ("options", "linear", "quadratic"),
    [
        ({}, True, False),
        ({"trend": None}, False, False),
        ({"trend": "quadratic"}, True, True),
        ({"lengthscale": 0.5}, False, False),
        ({"lengthscale": 0.5, "trend": "linear"}, True, False),
        ({"lengthscale": "median", "trend": "linear"}, True, False),
    ],
)
def test_select_kernel_learns_the_requested_trend(options, linear, quadratic):
    learned = select_kernel(InfiniteQuantileRegressor(**options), scaled_rows())
    assert (learned.proportions.linear > 0, learned.proportions.quadratic > 0) == (linear, quadratic)


def test_select_kernel_reuses_a_learned_kernel():
    known = learn_kernel(scaled_rows(), "rbf", "linear")
    assert select_kernel(InfiniteQuantileRegressor(lengthscale=known), scaled_rows(20)) is known
    X, y, _ = make_sine_quantiles(30, random_state=0)
    again = InfiniteQuantileRegressor(lengthscale=known, lam=1e-3, random_state=0).fit(X, y)
    trained = InfiniteQuantileRegressor(lam=1e-3, random_state=0).fit(X, y)
    np.testing.assert_allclose(again.predict(X), trained.predict(X), rtol=1e-9)


def test_select_kernel_keeps_a_kernel_object():
    assert select_kernel(InfiniteQuantileRegressor(kernel=RBFKernel()), scaled_rows()).lengthscale is None


def test_curves_extrapolate_the_trend():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (80, 1))
    y = 3 * X[:, 0] + 0.1 * rng.standard_normal(80)
    far = np.array([[3.0]])
    with_trend = InfiniteQuantileRegressor(random_state=0).fit(X, y).predict(far)[0]
    without = InfiniteQuantileRegressor(trend=None, lengthscale=0.5, random_state=0).fit(X, y).predict(far)[0]
    assert abs(with_trend - 9) < 0.8
    assert abs(without - 9) > 4


def model_and_side(n=60, weights=None):
    X, y, _ = make_sine_quantiles(n, random_state=0)
    rows = QuantileRows.of(X, y, weights)
    rows = rows.scaled(rows.scaling(scale_inputs=True))
    options = InfiniteQuantileRegressor(lengthscale=0.5)
    return build_quantile_model(options, rows, LearnedKernel(0.5), 0), make_task_side(options, 5, 0)


def test_path_losses_equal_those_of_separate_refits(monkeypatch):
    monkeypatch.setattr(quantile_model, "PATH_TOLERANCE", 1e-7)
    monkeypatch.setattr(quantile_model, "PATH_MAX_ITER", 5000)
    model, side = model_and_side()
    problem, folds = model.problem(side, 1e-3), model.rows.folds(4, 0)
    path = compute_lam_path(problem, folds)
    for k in (0, 3):
        total = 0.0
        for fold in folds:
            kept = np.setdiff1d(np.arange(60), fold)
            # a separate model, whose coordinates do not depend on the held-out rows
            own = build_quantile_model(InfiniteQuantileRegressor(), model.rows.select(kept), LearnedKernel(0.5), 0)
            own = replace(own, offset=model.offset)
            weights = solve_primal(own.problem(side, path.lams[k] * 60 / len(kept)), tolerance=1e-7).weights
            left = model.rows.select(fold)
            H = own.inputs(torch.from_numpy(left.X)) @ weights @ side.rows.T + model.offset(side.measure.nodes)
            residuals = torch.from_numpy(left.y)[:, None] - H
            nodes = side.measure.nodes
            losses = torch.maximum(nodes * residuals, (nodes - 1) * residuals) @ side.measure.weights
            total += losses.sum().item()
        assert path.losses[k] == pytest.approx(total / 60, rel=1e-4)


def test_path_ends_after_two_rises_below_the_initial_lam():
    model, side = model_and_side(100)
    path = compute_lam_path(model.problem(side, model.scales.lam(100)), model.rows.folds(5, 0))
    best = int(path.losses.argmin())
    assert len(path.lams) == len(LAM_EXPONENTS) or len(path.lams) - 1 - best >= 2
    assert (np.diff(path.lams) < 0).all()
    assert path.best == path.lams[best]


def test_path_continues_above_the_initial_lam():
    # an initial λ far too large: all curves are those of the prior for a long while
    model, side = model_and_side(40)
    path = compute_lam_path(model.problem(side, 3.0), model.rows.folds(4, 0))
    assert path.lams[-1] < 3.0
    assert path.best < 1.0


def test_non_gaussian_noise_is_learned_without_informative_inputs():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 2)), rng.exponential(size=200)
    model = InfiniteQuantileRegressor(random_state=0).fit(X, y)
    levels = np.array([0.1, 0.5, 0.9])
    error = np.abs(model.predict(X, levels).mean(0) - np.quantile(y, levels))
    assert error.max() < 0.2  # Gaussian quantiles are off by .4 at the lowest


def test_curves_of_selected_rows_equal_the_function():
    rows, index, levels = scaled_rows(), np.array([3, 8, 9]), torch.tensor([0.2, 0.7], dtype=torch.float64)
    options = InfiniteQuantileRegressor()
    model, side = build_quantile_model(options, rows, LearnedKernel(0.7), 0), make_task_side(options, 6, 0)
    weights = torch.randn(model.Phi.shape[1], side.rows.shape[1], dtype=torch.float64)
    expected = model.function(side, weights)(torch.from_numpy(rows.X[index]), levels)
    for part in (model.select(index), replace(model, Phi=None).select(index)):
        torch.testing.assert_close(part.curves(side, weights, levels), expected, rtol=1e-6, atol=1e-6)


def test_sample_has_few_rows_and_their_coordinates(monkeypatch):
    model = build_quantile_model(InfiniteQuantileRegressor(), scaled_rows(), LearnedKernel(0.7), 0)
    assert model.sample() is model
    monkeypatch.setattr(quantile_model, "MAX_SELECTION_ROWS", 10)
    stored, computed = model.sample(), replace(model, Phi=None).sample()
    assert len(stored.rows) == 10
    torch.testing.assert_close(stored.Phi, computed.Phi, rtol=1e-6, atol=1e-6)


def test_projected_coordinates_are_the_nystrom_kernel(monkeypatch):
    monkeypatch.setattr(quantile_model, "MAX_EXACT_ROWS", 20)
    monkeypatch.setattr(quantile_model, "NUM_LANDMARKS", 8)
    rows = scaled_rows()
    model = build_quantile_model(InfiniteQuantileRegressor(intercept=False), rows, LearnedKernel(0.7), 0)
    X, anchors = rows.X, model.inputs.anchors.numpy()
    assert anchors.shape == (8, 1)
    gram = lambda A, B: np.exp(-((A[:, None, 0] - B[:, 0]) ** 2) / (2 * 0.7**2))  # noqa: E731
    expected = gram(X, anchors) @ np.linalg.pinv(gram(anchors, anchors), rcond=1e-7, hermitian=True) @ gram(anchors, X)
    np.testing.assert_allclose(model.Phi @ model.Phi.T, expected, atol=1e-8)


def test_select_rows_keeps_weights():
    model, side = model_and_side(20, weights=np.arange(1.0, 21.0))
    problem = model.problem(side, 0.1)
    part = select_rows(problem, np.array([3, 7]), 0.2)
    assert part.lam == 0.2
    assert torch.equal(part.row_weights, problem.row_weights[[3, 7]])
    assert torch.equal(part.inputs, problem.inputs[[3, 7]])


def test_path_best_minimizes_the_loss():
    assert QuantilePath(np.array([1.0, 0.1, 0.01]), np.array([3.0, 1.0, 2.0])).best == 0.1
