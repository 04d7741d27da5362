"""Tests of `ovkgp.inference.tasks.mixed_norm`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from scipy.optimize import minimize
from task_cases import GAMMA_T, GAMMA_X, M, N, case, gauss, inputs, rbf

from ovkgp.exceptions import FactorizationError, InputError
from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.mixed_norm import mixed_coordinates, mixed_norm, section_norms
from ovkgp.inference.tasks.one_class import OneClassProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import IntegralLoss, SmoothedPinball, TaskMeasure, gauss_legendre

MEASURE = gauss_legendre(M)


def expansion(seed=0):
    """α, and W = Φᵀ α Ψ with the rows of the tasks."""
    problem, alpha = case("square"), normal(N, M, seed=seed)
    return problem, alpha, problem.adjoint(alpha)


def test_value_is_the_sum_of_the_norms_of_the_sections():
    """h(·)(θ_j) = Σ_i (αK_Θ)_ij k_X(·, x_i), whose squared norm is a quadratic form of K_X."""
    problem, alpha, W = expansion()
    K_X = gauss(GAMMA_X, inputs(), inputs())
    sections = alpha.numpy() @ gauss(GAMMA_T, MEASURE.nodes, MEASURE.nodes)
    norms = np.einsum("ij,ik,kj->j", sections, K_X, sections)
    np.testing.assert_allclose(section_norms(W, problem.tasks), norms, rtol=1e-9)
    value = 0.5 * (MEASURE.weights.numpy() * norms).sum()
    assert mixed_norm(W, problem.tasks, MEASURE.weights).item() == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_sections_are_bounded_by_the_norm(seed):
    """B-24, LT-117: ‖h(·)(θ)‖² ≤ k_Θ(θ, θ) ‖h‖², at any θ; Ω ≤ ½ ∫ k_Θ(θ, θ) dμ ‖h‖²."""
    problem, _, W = expansion(seed)
    psi = KernelFactor(rbf(GAMMA_T), MEASURE.nodes[:, None], cutoff=1e-14)
    anywhere, square = psi(torch.linspace(-1, 2, 50).double()), W.square().sum()
    assert (section_norms(W, anywhere) <= square).all()
    assert mixed_norm(W, problem.tasks, MEASURE.weights) <= square / 2
    assert section_norms(W, anywhere).max() > 0.1 * square  # not far from it


@pytest.mark.parametrize("seed", range(5))
def test_sections_bound_the_norm(seed):
    """B-25, LT-118: Σ_j ‖h(·)(θ_j)‖² ≥ λ_min(K_Θ) ‖h‖² for h in the span of the nodes, and = for the last eigenvector."""
    problem, alpha, W = expansion(seed)
    values, vectors = np.linalg.eigh(gauss(GAMMA_T, MEASURE.nodes, MEASURE.nodes))
    assert section_norms(W, problem.tasks).sum().item() >= values[0] * W.square().sum().item() * (1 - 1e-6)
    extreme = problem.adjoint(alpha[:, :1] * torch.from_numpy(vectors[:, 0]))
    ratio = section_norms(extreme, problem.tasks).sum() / extreme.square().sum()
    assert ratio.item() == pytest.approx(values[0], rel=1e-3)


def test_mixed_norm_is_the_penalty_of_the_one_class_problem():
    """w_j = W ψ_j: with thresholds below all values nothing is short, and P − Σ η (−t) is Ω."""
    problem, _, W = expansion()
    one_class = OneClassProblem(problem.inputs, MEASURE)
    sections = W @ problem.tasks.T
    t = torch.full((M,), problem.values(W).min().item() - 1.0).double()
    penalty = one_class.objective(sections, t) + (MEASURE.weights * t).sum()
    assert penalty.item() == pytest.approx(mixed_norm(W, problem.tasks, MEASURE.weights).item(), rel=1e-10)


def test_gradient_is_the_weights_times_the_moments_of_the_tasks():
    problem, _, W = expansion()
    W = W.requires_grad_()
    (gradient,) = torch.autograd.grad(mixed_norm(W, problem.tasks, MEASURE.weights), W)
    moments = problem.tasks.T @ (MEASURE.weights[:, None] * problem.tasks)
    torch.testing.assert_close(gradient, W.detach() @ moments)


def mixed_problem():
    """Quantiles with the mixed penalty, and the problem they come from."""
    base = replace(case("pinball"), loss=IntegralLoss(SmoothedPinball(0.1), MEASURE))
    C = mixed_coordinates(base.tasks, MEASURE.weights)
    return base, C, replace(base, tasks=base.tasks @ C)


def test_mixed_coordinates_work_with_every_solver():
    """min (1/n) Σ L + λ Ω, against SciPy on the objective as it is written."""
    base, C, mixed = mixed_problem()

    def objective(w):
        W = torch.from_numpy(w).view(base.shape).requires_grad_()
        value = base.risk(base.values(W)) + base.lam * mixed_norm(W, base.tasks, MEASURE.weights)
        return value.item(), torch.autograd.grad(value, W)[0].flatten().numpy()

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 10_000}
    best = minimize(objective, np.zeros(math.prod(base.shape)), jac=True, method="L-BFGS-B", options=options)
    found = solve_primal(mixed, tolerance=1e-9)
    W = found.weights @ C.T
    assert objective(W.numpy().ravel())[0] == pytest.approx(found.objective, rel=1e-9)
    assert found.objective == pytest.approx(best.fun, rel=1e-5)
    assert found.objective <= best.fun * (1 + 1e-9)


def test_mixed_coordinates_learn_tasks_independently():
    """LT §2.11: the penalty does not see k_Θ."""
    base, _, mixed = mixed_problem()
    H = mixed.values(solve_primal(mixed, tolerance=1e-11).weights)
    for j in (0, M - 1):
        alone = IntegralLoss(SmoothedPinball(0.1), TaskMeasure([MEASURE.nodes[j].item()]))
        single = replace(base, tasks=torch.ones(1, 1).double(), loss=alone)
        torch.testing.assert_close(
            H[:, [j]], single.values(solve_primal(single, tolerance=1e-11).weights), rtol=0, atol=1e-4
        )


def test_mixed_norm_rejects_invalid_shapes():
    with pytest.raises(InputError, match="weights"):
        section_norms(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(InputError, match="measure_weights"):
        mixed_norm(torch.ones(2, 3), torch.ones(4, 3), torch.ones(3))
    with pytest.raises(FactorizationError, match="zero"):
        mixed_coordinates(torch.zeros(4, 3), torch.ones(4))
