"""Tests of `ovkgp.inference.ridge.ball_constraints`."""

import os
import signal
from itertools import pairwise

import numpy as np
import pytest
import torch
from ball_cases import psd, vector
from gpytorch.kernels import RBFKernel
from scipy.optimize import minimize

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.features.operators import stack_features
from ovkgp.inference.ridge.ball_constraints import (
    CURVATURE_MARGIN,
    BallQuadratic,
    Balls,
    Spectrum,
    admm_initial_point,
    duality_gap,
    frequency_groups,
    minimize_in_balls,
)
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel, HelmholtzKernel, IndependentKernel


def test_ball_quadratic_of_a_kronecker_product_equals_its_matrix():
    S, T, v = psd(4, 0), psd(3, 1), vector(12)
    fast, slow = BallQuadratic.from_matrix((S, T), v, 2.0), BallQuadratic.from_matrix(torch.kron(S, T), v, 2.0)
    w = vector(12, 6)
    torch.testing.assert_close(fast.apply(w), torch.kron(S, T) @ w)
    assert fast.value(w, fast.apply(w)) == pytest.approx(float(w @ torch.kron(S, T) @ w) / 2 - float(v @ w) + 1.0)
    assert fast.curvature() == pytest.approx(slow.curvature())


def test_spectrum_diagonalizes_the_kronecker_product():
    S, T, w = psd(4, 0, rank=2), psd(3, 1), vector(12)
    spectrum = Spectrum.from_factors(S, T)
    torch.testing.assert_close(
        spectrum.from_eigenbasis(spectrum.values * spectrum.to_eigenbasis(w)), torch.kron(S, T) @ w
    )
    torch.testing.assert_close(spectrum.from_eigenbasis(spectrum.to_eigenbasis(w)), w)
    assert (spectrum.values >= 0).all()


@pytest.mark.parametrize("rank", [None, 3])
def test_least_norm_is_the_shortest_solution(rank):
    A = psd(8, 0, rank)
    found = BallQuadratic.from_matrix(A, A @ vector(8), 1.0)
    torch.testing.assert_close(found.least_norm(), torch.linalg.pinv(A, rtol=1e-12) @ A @ vector(8))


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_curvature_is_the_largest_eigenvalue(size):
    A = psd(size, 0)
    found = BallQuadratic.from_matrix(A, vector(size), 1.0, factorize=False)
    exact = float(torch.linalg.eigvalsh(A)[-1])
    assert found.spectrum is None
    assert exact <= found.curvature() <= (CURVATURE_MARGIN + 1e-3 if size > 2 else 2**0.5) * exact


def test_ball_quadratic_rejects_sizes_that_do_not_match():
    with pytest.raises(InputError, match="moment"):
        BallQuadratic.from_matrix(psd(4, 0), vector(3), 1.0)


BALLS = [Balls(torch.arange(12).view(6, 2), radius) for radius in (1e-3, 0.1, 1.0, 100.0)]


def quadratic(rank=None, scale=1.0):
    A = psd(12, 0, rank)
    return BallQuadratic.from_matrix(A, scale * A @ vector(12), scale**2 * float(vector(12) @ A @ vector(12)) + 1.0)


@pytest.mark.parametrize("balls", BALLS, ids=lambda balls: f"{balls.radius}")
@pytest.mark.parametrize("rank", [None, 5])
def test_admm_gap_meets_the_tolerance_and_bounds_the_excess(balls, rank):
    found = quadratic(rank)
    initial, steps = admm_initial_point(found, balls, tolerance=1e-9)
    assert (balls.norms(initial) <= balls.radius * (1 + 1e-12)).all() and steps < 3000
    product = found.apply(initial)
    gap = duality_gap(found, balls, initial, product)
    assert -1e-12 <= gap <= 1e-9 * found.square / 2
    rough, _ = admm_initial_point(found, balls, tolerance=1e-2)
    excess = found.value(rough, found.apply(rough)) - found.value(initial, product)
    assert -1e-9 * found.square <= excess <= duality_gap(found, balls, rough, found.apply(rough)) + 1e-9 * found.square


def test_admm_agrees_with_projected_gradients():
    found, balls = quadratic(), BALLS[2]
    initial, _ = admm_initial_point(found, balls, tolerance=1e-12)
    weights, report = minimize_in_balls(found, balls, tolerance=1e-12)
    torch.testing.assert_close(initial, weights, rtol=1e-4, atol=1e-5)
    assert report.objective == pytest.approx(found.value(initial, found.apply(initial)), rel=1e-10)


def test_admm_after_one_step_is_no_worse_than_zero():
    found = quadratic()
    initial, steps = admm_initial_point(found, BALLS[1], max_iter=1)
    assert steps == 1 and found.value(initial, found.apply(initial)) <= found.square / 2


def test_admm_returns_zero_for_a_zero_quadratic():
    zero = BallQuadratic.from_matrix(torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), 1.0)
    initial, steps = admm_initial_point(zero, Balls(torch.arange(4).view(2, 2), 1.0))
    assert steps == 1 and not initial.any()


GROUPS = torch.tensor([[0, 3], [1, 4], [2, 5]])


def test_project_gives_the_nearest_point():
    point = 2 * torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    balls = Balls(GROUPS, radius=1.0)
    constraints = [{"type": "ineq", "fun": lambda w, g=g: 1 - np.square(w[g]).sum()} for g in GROUPS.numpy()]
    found = minimize(lambda w: np.square(w - point.numpy()).sum(), np.zeros(6), method="SLSQP", constraints=constraints)
    np.testing.assert_allclose(balls.project(point), found.x, atol=1e-5)


def test_project_keeps_points_inside_and_is_idempotent():
    balls, inside = Balls(GROUPS, radius=1.0), torch.full((6,), 0.5, dtype=torch.float64)
    assert torch.equal(balls.project(inside), inside)
    assert torch.equal(balls.project(torch.zeros(6)), torch.zeros(6))
    once = balls.project(10 * inside)
    torch.testing.assert_close(balls.norms(once), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(balls.project(once), once)


def test_support_is_the_largest_inner_product():
    generator = torch.Generator().manual_seed(0)
    balls, direction = Balls(GROUPS, radius=0.7), torch.randn(6, generator=generator, dtype=torch.float64)
    best = balls.project(1e9 * direction)
    assert balls.support(direction) == pytest.approx(float(direction @ best))
    others = [balls.project(torch.randn(6, generator=generator, dtype=torch.float64)) for _ in range(100)]
    assert max(float(direction @ other) for other in others) <= balls.support(direction)


@pytest.mark.parametrize(
    "kernel",
    [
        RBFKernel(ard_num_dims=3),
        DecomposableKernel(RBFKernel(ard_num_dims=3), num_outputs=4, rank=2),
        CurlFreeKernel(RBFKernel(), num_dims=3),
        DivergenceFreeKernel(RBFKernel(), num_dims=3),
        HelmholtzKernel(RBFKernel(), num_dims=3),
        IndependentKernel.copies(RBFKernel(ard_num_dims=3), 2),
        DecomposableKernel(RBFKernel(ard_num_dims=3), num_outputs=3, rank=1) + CurlFreeKernel(RBFKernel(), num_dims=3),
    ],
    ids=["scalar", "decomposable", "curl-free", "divergence-free", "helmholtz", "independent", "sum"],
)
def test_frequency_groups_are_the_columns_of_a_frequency(kernel):
    """The noise of frequency j is changed, in all terms: the columns of Φ that change are those of group j."""
    orff = ORFF(kernel, 5, num_dims=3, random_state=0).double().requires_grad_(False)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before, groups = orff(X).to_dense(), frequency_groups(orff(X[:1]))
    assert sorted(groups.flatten().tolist()) == list(range(orff.num_features)) and len(groups) == 5
    for name, noise in list(orff.named_buffers()):
        if name.startswith("raw_frequencies"):
            noise[2] += 0.5
    changed = (orff(X).to_dense() != before).any(0).nonzero().flatten()
    assert set(changed.tolist()) == set(groups[2].tolist())


def test_frequency_groups_reject_terms_with_different_numbers_of_frequencies():
    X = torch.zeros(1, 1, dtype=torch.float64)
    parts = [ORFF(RBFKernel(ard_num_dims=1), D, random_state=0)(X) for D in (3, 4)]
    with pytest.raises(InputError, match="frequencies"):
        frequency_groups(stack_features(*parts))


GROUPS_OF_TWO = torch.arange(12).view(2, 6).T.contiguous()


def scaled_quadratic(rank=None, factorize=True):
    A = psd(12, 0, rank) / 12
    return BallQuadratic.from_matrix(A, A @ vector(12), float(vector(12) @ A @ vector(12)) + 1.0, factorize=factorize)


@pytest.mark.parametrize("factorize", [True, False])
@pytest.mark.parametrize("radius", [0.01, 0.3, 1.0])
def test_minimize_in_balls_meets_the_optimality_conditions(radius, factorize):
    """∇F_j = −μ_j θ_j with μ_j ≥ 0 where θ_j is on its sphere, and ∇F_j = 0 where it is inside."""
    found, balls = scaled_quadratic(factorize=factorize), Balls(GROUPS_OF_TWO, radius)
    weights, report = minimize_in_balls(found, balls, tolerance=1e-13)
    norms = balls.norms(weights)
    assert report.converged and (norms <= radius * (1 + 1e-12)).all() and (norms > radius * (1 - 1e-6)).any()
    gradient = (found.apply(weights) - found.moment)[GROUPS_OF_TWO]
    multipliers = -(gradient * weights[GROUPS_OF_TWO]).sum(1) / norms.square()
    inside = norms < radius * (1 - 1e-6)
    assert (multipliers[~inside] > 0).all()
    multipliers[inside] = 0
    torch.testing.assert_close(gradient, -multipliers[:, None] * weights[GROUPS_OF_TWO], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_minimize_in_balls_agrees_with_slsqp(radius):
    found = scaled_quadratic()
    A = torch.stack([found.apply(e) for e in torch.eye(12, dtype=torch.float64)]).numpy()
    v = found.moment.numpy()
    constraints = [
        {"type": "ineq", "fun": lambda w, g=g: radius**2 - np.square(w[g]).sum(), "jac": lambda w, g=g: _slope(w, g)}
        for g in GROUPS_OF_TWO.numpy()
    ]
    other = minimize(
        lambda w: w @ A @ w / 2 - v @ w,
        np.zeros(12),
        jac=lambda w: A @ w - v,
        method="SLSQP",
        constraints=constraints,
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    weights, report = minimize_in_balls(found, Balls(GROUPS_OF_TWO, radius), tolerance=1e-12)
    assert other.success and report.objective == pytest.approx(other.fun + found.square / 2, rel=1e-8)
    np.testing.assert_allclose(weights, other.x, atol=1e-4)


def _slope(w, group):
    slope = np.zeros(12)
    slope[group] = -2 * w[group]
    return slope


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("radius", [0.05, 0.5, 50.0])
def test_minimize_in_balls_never_raises_the_objective_and_gap_bounds_the_excess(radius, rank):
    found, balls = scaled_quadratic(rank), Balls(GROUPS_OF_TWO, radius)
    best = minimize_in_balls(found, balls, tolerance=1e-13, max_iter=100_000)[1].objective
    for max_iter in (1, 5, 50):
        weights, report = minimize_in_balls(found, balls, tolerance=1e-13, max_iter=max_iter)
        history = [found.square / 2, *report.history]
        assert all(later <= earlier + 1e-15 * found.square for earlier, later in pairwise(history))
        assert report.iterations <= max_iter and report.objective == history[-1]
        assert report.objective - best <= duality_gap(found, balls, weights, found.apply(weights)) + 1e-12


def test_minimize_in_balls_gives_least_squares_in_large_balls():
    found = scaled_quadratic()
    weights, report = minimize_in_balls(found, Balls(GROUPS_OF_TWO, 1e3), tolerance=1e-9, max_iter=200_000)
    assert report.converged
    torch.testing.assert_close(weights, vector(12), atol=1e-4, rtol=1e-4)


def test_minimize_in_balls_gives_the_least_norm_from_zero():
    """Without active balls the steps stay in the range of A: of all solutions the limit is the shortest."""
    found = scaled_quadratic(rank=4)
    weights, _ = minimize_in_balls(found, Balls(GROUPS_OF_TWO, 1e3), tolerance=1e-10, max_iter=200_000)
    A = torch.stack([found.apply(e) for e in torch.eye(12, dtype=torch.float64)])
    torch.testing.assert_close(weights, torch.linalg.pinv(A, rtol=1e-10) @ found.moment, atol=1e-5, rtol=1e-5)


def test_minimize_in_balls_corrects_a_curvature_that_is_too_small(monkeypatch):
    found, balls = scaled_quadratic(), Balls(GROUPS_OF_TWO, 0.3)
    exact = minimize_in_balls(found, balls, tolerance=1e-12)[1].objective
    curvature = BallQuadratic.curvature
    monkeypatch.setattr(BallQuadratic, "curvature", lambda self: curvature(self) / 50)
    report = minimize_in_balls(found, balls, tolerance=1e-12)[1]
    assert report.failures > 0 and report.converged and report.objective == pytest.approx(exact, rel=1e-10)


def test_minimize_in_balls_takes_no_step_from_the_solution():
    found, balls = scaled_quadratic(), Balls(GROUPS_OF_TWO, 0.3)
    weights, _ = minimize_in_balls(found, balls, tolerance=1e-10)
    again, report = minimize_in_balls(found, balls, init=weights, tolerance=1e-9)
    assert report.converged and report.iterations == 0 and torch.equal(again, weights)


def test_minimize_in_balls_gives_zero_without_outputs():
    nothing = BallQuadratic.from_matrix(psd(12, 0), torch.zeros(12, dtype=torch.float64), 0.0)
    weights, report = minimize_in_balls(nothing, Balls(GROUPS_OF_TWO, 1.0))
    assert report.converged and not weights.any()


def test_minimize_in_balls_reports_its_stopping_criterion():
    found, balls = scaled_quadratic(), Balls(GROUPS_OF_TWO, 1.0)
    assert "max_iter" in minimize_in_balls(found, balls, max_iter=2)[1].message
    report = minimize_in_balls(found, balls)[1]
    assert report.converged and report.message == "converged"


def test_gradient_norm_is_that_of_the_gradient_inside_the_balls_and_zero_at_the_solution():
    found = scaled_quadratic()
    weights, report = minimize_in_balls(found, Balls(GROUPS_OF_TWO, 1e3), max_iter=3)
    gradient = found.apply(weights) - found.moment
    assert report.gradient_norm == pytest.approx(float(gradient.norm() / found.moment.norm()), rel=1e-6)
    report = minimize_in_balls(found, Balls(GROUPS_OF_TWO, 0.3), tolerance=1e-13)[1]
    assert report.converged and report.gradient_norm < 1e-5  # the gradient itself does not vanish on a sphere


def test_minimize_in_balls_keeps_the_weights_after_ctrl_c():
    found, balls, calls = scaled_quadratic(), Balls(GROUPS_OF_TWO, 1.0), []

    def apply(weights):
        calls.append(1)
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return found.apply(weights)

    interrupted = BallQuadratic(apply, found.moment, found.square, found.spectrum)
    weights, report = minimize_in_balls(interrupted, balls, tolerance=1e-13)
    assert report.interrupted and not report.converged and 0 < report.iterations < 6
    assert found.value(weights, found.apply(weights)) == pytest.approx(report.objective)


def test_minimize_in_balls_rejects_an_initial_point_outside_the_balls():
    with pytest.raises(InputError, match="init"):
        minimize_in_balls(scaled_quadratic(), Balls(GROUPS_OF_TWO, 1.0), init=torch.ones(12, dtype=torch.float64))
