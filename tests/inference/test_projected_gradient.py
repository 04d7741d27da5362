"""Accelerated projected gradients: the optimality conditions, an independent solver, and an objective that never grows."""

import os
import signal
from itertools import pairwise

import numpy as np
import pytest
import torch
from ball_cases import psd, vector
from scipy.optimize import minimize

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.ridge.ball_constraints import BallQuadratic, Balls, gap_of, minimise_in_balls

GROUPS = torch.arange(12).view(2, 6).T.contiguous()


def quadratic(rank=None, factorise=True):
    A = psd(12, 0, rank) / 12
    return BallQuadratic.of(A, A @ vector(12), float(vector(12) @ A @ vector(12)) + 1.0, factorise=factorise)


@pytest.mark.parametrize("factorise", [True, False])
@pytest.mark.parametrize("radius", [0.01, 0.3, 1.0])
def test_the_optimality_conditions_hold(radius, factorise):
    """∇F_j = −μ_j θ_j with μ_j ≥ 0 where θ_j is on its sphere, and ∇F_j = 0 where it is inside."""
    found, balls = quadratic(factorise=factorise), Balls(GROUPS, radius)
    weights, report = minimise_in_balls(found, balls, tolerance=1e-13)
    norms = balls.norms(weights)
    assert report.converged and (norms <= radius * (1 + 1e-12)).all() and (norms > radius * (1 - 1e-6)).any()
    gradient = (found.apply(weights) - found.moment)[GROUPS]
    multipliers = -(gradient * weights[GROUPS]).sum(1) / norms.square()
    inside = norms < radius * (1 - 1e-6)
    assert (multipliers[~inside] > 0).all()
    multipliers[inside] = 0
    torch.testing.assert_close(gradient, -multipliers[:, None] * weights[GROUPS], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_an_independent_solver_agrees(radius):
    found = quadratic()
    A = torch.stack([found.apply(e) for e in torch.eye(12, dtype=torch.float64)]).numpy()
    v = found.moment.numpy()
    constraints = [
        {"type": "ineq", "fun": lambda w, g=g: radius**2 - np.square(w[g]).sum(), "jac": lambda w, g=g: _slope(w, g)}
        for g in GROUPS.numpy()
    ]
    other = minimize(
        lambda w: w @ A @ w / 2 - v @ w,
        np.zeros(12),
        jac=lambda w: A @ w - v,
        method="SLSQP",
        constraints=constraints,
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    weights, report = minimise_in_balls(found, Balls(GROUPS, radius), tolerance=1e-12)
    assert other.success and report.objective == pytest.approx(other.fun + found.square / 2, rel=1e-8)
    np.testing.assert_allclose(weights, other.x, atol=1e-4)


def _slope(w, group):
    slope = np.zeros(12)
    slope[group] = -2 * w[group]
    return slope


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("radius", [0.05, 0.5, 50.0])
def test_the_objective_never_grows_and_the_gap_bounds_the_rest(radius, rank):
    found, balls = quadratic(rank), Balls(GROUPS, radius)
    best = minimise_in_balls(found, balls, tolerance=1e-13, max_iter=100_000)[1].objective
    for max_iter in (1, 5, 50):
        weights, report = minimise_in_balls(found, balls, tolerance=1e-13, max_iter=max_iter)
        history = [found.square / 2, *report.history]
        assert all(later <= earlier + 1e-15 * found.square for earlier, later in pairwise(history))
        assert report.iterations <= max_iter and report.objective == history[-1]
        assert report.objective - best <= gap_of(found, balls, weights, found.apply(weights)) + 1e-12


def test_large_balls_give_least_squares():
    found = quadratic()
    weights, report = minimise_in_balls(found, Balls(GROUPS, 1e3), tolerance=1e-9, max_iter=200_000)
    assert report.converged
    torch.testing.assert_close(weights, vector(12), atol=1e-4, rtol=1e-4)


def test_from_zero_large_balls_give_the_least_norm():
    """Without active balls the steps stay in the range of A: of all solutions the limit is the shortest."""
    found = quadratic(rank=4)
    weights, _ = minimise_in_balls(found, Balls(GROUPS, 1e3), tolerance=1e-10, max_iter=200_000)
    A = torch.stack([found.apply(e) for e in torch.eye(12, dtype=torch.float64)])
    torch.testing.assert_close(weights, torch.linalg.pinv(A, rtol=1e-10) @ found.moment, atol=1e-5, rtol=1e-5)


def test_a_curvature_that_was_taken_too_small_is_noticed(monkeypatch):
    found, balls = quadratic(), Balls(GROUPS, 0.3)
    exact = minimise_in_balls(found, balls, tolerance=1e-12)[1].objective
    curvature = BallQuadratic.curvature
    monkeypatch.setattr(BallQuadratic, "curvature", lambda self: curvature(self) / 50)
    report = minimise_in_balls(found, balls, tolerance=1e-12)[1]
    assert report.failures > 0 and report.converged and report.objective == pytest.approx(exact, rel=1e-10)


def test_a_start_at_the_solution_takes_no_step():
    found, balls = quadratic(), Balls(GROUPS, 0.3)
    weights, _ = minimise_in_balls(found, balls, tolerance=1e-10)
    again, report = minimise_in_balls(found, balls, start=weights, tolerance=1e-9)
    assert report.converged and report.iterations == 0 and torch.equal(again, weights)


def test_without_outputs_zero_is_the_answer():
    nothing = BallQuadratic.of(psd(12, 0), torch.zeros(12, dtype=torch.float64), 0.0)
    weights, report = minimise_in_balls(nothing, Balls(GROUPS, 1.0))
    assert report.converged and not weights.any()


def test_what_stopped_it_is_said():
    found, balls = quadratic(), Balls(GROUPS, 1.0)
    assert "raise max_iter" in minimise_in_balls(found, balls, max_iter=2)[1].message
    report = minimise_in_balls(found, balls)[1]
    assert report.converged and report.message == "converged"


def test_ctrl_c_keeps_the_weights():
    found, balls, calls = quadratic(), Balls(GROUPS, 1.0), []

    def apply(weights):
        calls.append(1)
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return found.apply(weights)

    interrupted = BallQuadratic(apply, found.moment, found.square, found.spectrum)
    weights, report = minimise_in_balls(interrupted, balls, tolerance=1e-13)
    assert report.interrupted and not report.converged and 0 < report.iterations < 6
    assert found.value(weights, found.apply(weights)) == pytest.approx(report.objective)


def test_bad_arguments_are_refused():
    found = quadratic()
    for tolerance in (0.0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="tolerance"):
            minimise_in_balls(found, Balls(GROUPS, 1.0), tolerance=tolerance)
    with pytest.raises(OptionError, match="max_iter"):
        minimise_in_balls(found, Balls(GROUPS, 1.0), max_iter=0)
    with pytest.raises(InputError, match="start"):
        minimise_in_balls(found, Balls(GROUPS, 1.0), start=torch.ones(12, dtype=torch.float64))
