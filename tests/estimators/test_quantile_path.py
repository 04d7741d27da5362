"""λ by cross-validation: the losses are those of refits, and the path ends where it should."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles import model as quantile_path
from ovkgp.estimators.quantiles.kernel import LearnedKernel
from ovkgp.estimators.quantiles.model import EXPONENTS, QuantilePath, quantile_model, rows_of, task_side
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.inference.tasks.solvers.primal import solve_primal


def model_and_side(n=60, weights=None):
    X, y, _ = make_sine_quantiles(n, random_state=0)
    rows = QuantileRows.of(X, y, weights)
    rows = rows.scaled(rows.scaling(scale_inputs=True))
    options = InfiniteQuantileRegressor(lengthscale=0.5)
    return quantile_model(options, rows, LearnedKernel(0.5), 0), task_side(options, 5, 0)


def test_losses_are_those_of_refits_to_the_other_rows(monkeypatch):
    monkeypatch.setattr(quantile_path, "TOLERANCE", 1e-7)
    monkeypatch.setattr(quantile_path, "MAX_ITER", 5000)
    model, side = model_and_side()
    problem, folds = model.problem(side, 1e-3), model.rows.folds(4, 0)
    path = quantile_path.quantile_path(problem, folds)
    for k in (0, 3):
        total = 0.0
        for fold in folds:
            kept = np.setdiff1d(np.arange(60), fold)
            # a model of its own, whose coordinates know nothing of the rows left out
            own = quantile_model(InfiniteQuantileRegressor(), model.rows.at(kept), LearnedKernel(0.5), 0)
            own = replace(own, offset=model.offset)
            weights = solve_primal(own.problem(side, path.lams[k] * 60 / len(kept)), tolerance=1e-7).weights
            left = model.rows.at(fold)
            H = own.inputs(torch.from_numpy(left.X)) @ weights @ side.rows.T + model.offset(side.measure.nodes)
            residuals = torch.from_numpy(left.y)[:, None] - H
            nodes = side.measure.nodes
            losses = torch.maximum(nodes * residuals, (nodes - 1) * residuals) @ side.measure.weights
            total += losses.sum().item()
        assert path.losses[k] == pytest.approx(total / 60, rel=1e-4)


def test_the_path_ends_once_the_loss_has_risen_twice_below_the_guess():
    model, side = model_and_side(100)
    path = quantile_path.quantile_path(model.problem(side, model.scales.lam(100)), model.rows.folds(5, 0))
    best = int(path.losses.argmin())
    assert len(path.lams) == len(EXPONENTS) or len(path.lams) - 1 - best >= 2
    assert (np.diff(path.lams) < 0).all()
    assert path.best == path.lams[best]


def test_flat_losses_above_the_guess_do_not_end_the_path():
    # a guess far too large: all curves are the prior's for a long while
    model, side = model_and_side(40)
    path = quantile_path.quantile_path(model.problem(side, 3.0), model.rows.folds(4, 0))
    assert path.lams[-1] < 3.0
    assert path.best < 1.0


def test_noise_that_is_not_gaussian_is_seen_where_inputs_say_nothing():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 2)), rng.exponential(size=200)
    model = InfiniteQuantileRegressor(random_state=0).fit(X, y)
    levels = np.array([0.1, 0.5, 0.9])
    error = np.abs(model.predict(X, levels).mean(0) - np.quantile(y, levels))
    assert error.max() < 0.2  # Gaussian quantiles are off by .4 at the lowest


def test_rows_of_a_problem_keep_their_weights():
    model, side = model_and_side(20, weights=np.arange(1.0, 21.0))
    problem = model.problem(side, 0.1)
    part = rows_of(problem, np.array([3, 7]), 0.2)
    assert part.lam == 0.2
    assert torch.equal(part.row_weights, problem.row_weights[[3, 7]])
    assert torch.equal(part.inputs, problem.inputs[[3, 7]])


def test_the_best_lam_is_that_of_least_loss():
    assert QuantilePath(np.array([1.0, 0.1, 0.01]), np.array([3.0, 1.0, 2.0])).best == 0.1
