"""Tests of `ovkgp.inference.tasks.solvers.primal`."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from scipy.linalg import solve_sylvester
from scipy.optimize import minimize
from task_cases import (
    GAMMA_T,
    GAMMA_X,
    LOSSES,
    NAMES,
    M,
    N,
    case,
    dense_gram,
    gauss,
    inputs,
    loss_on,
    own_nodes,
    rbf,
    targets,
)
from tqdm import tqdm

from ovkgp import losses
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.features import ORFF, ORFFKernel
from ovkgp.functional.factors import FeatureFactor, KernelFactor, LevelFactor
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers import admm, primal
from ovkgp.inference.tasks.solvers.admm import ADMM, make_ridge_step
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.primal import AugmentedLagrangian, Curvature, solve_primal
from ovkgp.inference.tasks.solvers.square import mask_measure, solve_square
from ovkgp.kernels import FunctionValuedKernel
from ovkgp.losses import CurveEnvelope, IntegralLoss, Pinball, SmoothedPinball, TaskMeasure, gauss_legendre, grid

ROWS = torch.linspace(0.0, 2.0, N).double()
OBSERVED = normal(N, M, seed=4) > -0.5
OBSERVED[0] = False
SHAPES = {
    "shared": case,
    "weighted rows": lambda name: case(name, row_weights=ROWS),
    "holes": lambda name: replace(case(name), loss=loss_on(name, mask_measure(gauss_legendre(M), OBSERVED))),
    "own nodes": lambda name: case(name, own_nodes()),
    "own nodes, holes": lambda name: replace(
        case(name, own_nodes(N, M)), loss=loss_on(name, mask_measure(own_nodes(N, M), OBSERVED))
    ),
    "one node": lambda name: case(name, TaskMeasure([0.4])),
    "one node a row": lambda name: case(name, own_nodes(N, 1)),
    "one row": lambda name: case(name, num_rows=1),
    "small lam": lambda name: case(name, lam=1e-6),
}


# --- the gap --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_gap_closes_for_every_loss_and_shape(name, shape):
    problem = SHAPES[shape](name)
    found = solve_primal(problem)
    assert found.report.converged
    assert 0 <= found.gap <= 1e-6 * found.objective
    assert found.objective == pytest.approx(problem.objective(found.weights).item(), rel=1e-12)
    assert found.objective - problem.dual_objective(found.dual).item() <= found.gap + 1e-14


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "small lam"])
@pytest.mark.parametrize("name", ["pinball", "hinge", "curve_huber_2", "curve_insensitive_1"])
def test_solve_primal_agrees_with_solve_dual(name, shape):
    problem = SHAPES[shape](name)
    one, other = solve_primal(problem), solve_dual(problem)
    assert one.objective == pytest.approx(other.objective, rel=2e-6)
    # J is λ-strongly convex: ‖W − W'‖² ≤ (2/λ)(gap + gap'), twice
    assert (one.weights - other.weights).square().sum() <= 4 / problem.lam * (one.gap + other.gap + 1e-15)


@pytest.mark.parametrize("name", ["pinball", "smoothed_hinge", "curve_huber_2"])
def test_solve_primal_uses_the_dual_if_no_ridge_step_fits(name, monkeypatch):
    monkeypatch.setattr(admm, "DENSE_COORDINATES", 10)
    problem = case(name, own_nodes())
    found = solve_primal(problem)
    assert found.gap <= 1e-6 * found.objective
    assert found.objective == pytest.approx(solve_dual(problem).objective, rel=2e-6)


@pytest.mark.parametrize(("max_ratio", "rounds"), [(0.0, [80, 2420]), (math.inf, [80])])
def test_solve_primal_runs_more_rounds_before_expensive_newton_steps(max_ratio, rounds, monkeypatch):
    budgets, run = [], ADMM.run
    monkeypatch.setattr(primal, "MAX_NEWTON_COST_RATIO", max_ratio)
    monkeypatch.setattr(primal, "DENSE_COORDINATES", 1)
    monkeypatch.setattr(ADMM, "run", lambda self, budget, bar: budgets.append(budget) or run(self, budget, bar))
    found = solve_primal(case("hinge", lam=1e-5), tolerance=1e-9)
    assert budgets == rounds
    assert found.gap <= 1e-9 * found.objective


def test_smooth_losses_have_the_solution_of_lbfgs():
    """An optimiser of SciPy's that knows nothing of gaps."""
    for name in ("smoothed_pinball", "pinball_envelope", "smoothed_hinge", "log_cosh", "curve_huber_inf"):
        problem = case(name)

        def objective(w, problem=problem):
            W = torch.from_numpy(w).view(problem.shape).requires_grad_()
            value = problem.objective(W)
            return value.item(), torch.autograd.grad(value, W)[0].flatten().numpy()

        options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000}
        best = minimize(objective, np.zeros(math.prod(problem.shape)), jac=True, method="L-BFGS-B", options=options)
        found = solve_primal(problem, tolerance=1e-10)
        assert found.objective == pytest.approx(best.fun, rel=1e-9)
        np.testing.assert_allclose(found.weights.flatten(), best.x, atol=2e-4)


# --- the double representer theorem, and features ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pinball", "huber", "curve_insensitive_2"])
def test_solution_is_unchanged_by_more_atoms(name):
    """B-12: the optimum over a strictly larger span is the same function."""
    base, measure = case(name), gauss_legendre(M)
    x, more_x = inputs(), torch.tensor([-1.0, 0.55, 1.7, 4.0]).double()
    nodes, more_nodes = measure.nodes, torch.tensor([-0.2, 0.45, 1.3]).double()
    phi = KernelFactor(rbf(GAMMA_X), torch.cat([x, more_x])[:, None], cutoff=1e-14)
    psi = KernelFactor(rbf(GAMMA_T), torch.cat([nodes, more_nodes])[:, None], cutoff=1e-14)
    rich = TaskProblem(phi(x[:, None]), psi(nodes[:, None]), targets(name), loss_on(name, measure), base.lam)
    one, other = solve_primal(base, tolerance=1e-10), solve_primal(rich, tolerance=1e-10)
    assert rich.shape[0] > base.shape[0] and rich.shape[1] > base.shape[1]
    assert other.objective == pytest.approx(one.objective, rel=1e-8)
    torch.testing.assert_close(rich.values(other.weights), base.values(one.weights), rtol=0, atol=2e-4)
    # the part of h outside of the span of the data, which has no influence on the loss, is 0
    outside = other.weights - rich.dual_weights(other.dual)
    assert outside.norm() < 1e-3 * other.weights.norm()


@pytest.mark.parametrize("name", ["pinball", "hinge", "curve_huber_2"])
def test_random_features_are_the_kernel_of_the_features(name):
    """Double ORFF = the double representer with k̃_X k̃_Θ = the dual: exactly, as functions."""
    x, measure, lam = inputs(), gauss_legendre(M), 0.02
    maps = [ORFF(rbf(gamma), 15, num_dims=1, random_state=0).double() for gamma in (GAMMA_X, GAMMA_T)]
    phi, psi = map(FeatureFactor, maps)
    anchored = KernelFactor(ORFFKernel(maps[0]), x[:, None]), KernelFactor(ORFFKernel(maps[1]), measure.nodes[:, None])
    at, levels = torch.linspace(-1, 4, 9).double()[:, None], torch.linspace(0, 1, 5).double()
    curves, objectives = [], []
    for (left, right), solve in (((phi, psi), solve_primal), (anchored, solve_primal), (anchored, solve_dual)):
        rows = left(x[:, None]), right(measure.nodes[:, None])
        found = solve(TaskProblem(*rows, targets(name), loss_on(name, measure), lam), tolerance=1e-9, max_iter=50_000)
        curves.append(TaskFunction(left, right, found.weights)(at, levels))
        objectives.append(found.objective)
    assert objectives == pytest.approx([objectives[0]] * 3, rel=1e-8)
    for other in curves[1:]:
        torch.testing.assert_close(other, curves[0], rtol=0, atol=1e-3)


def test_random_features_converge_to_the_kernel_solution():
    """The limit D → ∞, at the rate D^(−1/2): a hundred times as many features, a tenth of the error (LT-85, 86)."""
    exact, points = case("pinball"), (inputs(), gauss_legendre(M).nodes)
    H = exact.values(solve_primal(exact, tolerance=1e-8).weights)

    def error(size, seed):
        maps = [ORFF(rbf(gamma), size, num_dims=1, random_state=seed).double() for gamma in (GAMMA_X, GAMMA_T)]
        rows = [FeatureFactor(each)(at[:, None]) for each, at in zip(maps, points, strict=True)]
        # as few coordinates as there are points, by a rotation
        phi, psi = (torch.linalg.qr(each.T).R.T if size > N else each for each in rows)
        problem = replace(exact, inputs=phi, tasks=psi)
        return (problem.values(solve_primal(problem).weights) - H).square().mean().item()

    few, many = (np.sqrt(np.mean([error(size, seed) for seed in range(6)])) for size in (20, 2000))
    assert 0.05 * few < many < 0.2 * few


# --- the Gaussian process ---------------------------------------------------------------------------------------------------


def test_square_loss_is_the_mean_of_the_gaussian_process():
    """G-01, the row λnm of the table of λ: 1e-8 by the closed form, and as near as the gap says by the iterations."""
    nodes = torch.linspace(0, 1, M).double()
    problem = case("square", TaskMeasure(nodes))
    gp = OperatorValuedGP(
        FunctionValuedKernel(rbf(GAMMA_X), rbf(GAMMA_T), tasks=nodes), mean="zero", noise=problem.lam * N * M
    )
    x = inputs()[:, None]
    mean = gp.condition(x, targets("square")).predict(x, "none").mean
    dense = dense_gram(problem)
    by_hand = dense @ np.linalg.solve(dense + problem.lam * N * M * np.eye(N * M), targets("square").numpy().ravel())
    np.testing.assert_allclose(mean.flatten(), by_hand, atol=1e-8)
    assert (problem.values(solve_square(problem).weights) - mean).abs().max() < 1e-8
    for solve in (solve_primal, solve_dual):
        assert (problem.values(solve(problem, tolerance=1e-14).weights) - mean).abs().max() < 1e-6


def test_square_loss_solves_the_sylvester_equation():
    """B-07: K_X α K_Θ + λnm α = λnm Y, with SciPy; α is the dual variable (LT-81)."""
    problem = case("square", TaskMeasure(torch.linspace(0, 1, M).double()))
    K_X, K_T = (problem.inputs @ problem.inputs.T).numpy(), (problem.tasks @ problem.tasks.T).numpy()
    ridge = problem.lam * N * M
    inverse = np.linalg.inv(K_T)
    alpha = solve_sylvester(K_X, ridge * inverse, ridge * problem.targets.numpy() @ inverse)
    np.testing.assert_allclose(solve_square(problem).dual, alpha, atol=1e-8)
    np.testing.assert_allclose(solve_primal(problem, tolerance=1e-14).dual, alpha, atol=1e-6)
    np.testing.assert_allclose(solve_dual(problem, tolerance=1e-14).dual, alpha, atol=1e-6)


SMOOTH = ["square", "smoothed_pinball", "pinball_envelope", "smoothed_hinge", "huber", "insensitive", "log_cosh"]
SMOOTH_CURVES = ["curve_huber_2", "curve_insensitive_inf", "curve_envelope"]


@pytest.mark.parametrize("name", SMOOTH + SMOOTH_CURVES)
def test_solution_is_the_mode_of_the_posterior(name):
    """LT §6.0: the gradient of log N(h | 0, K) + Σ −w_ij ℓ, w = η/(nλ), is zero there, by automatic differentiation.

    In function space: h = (1/λn) K α̃ on the pairs, with the log prior −½ hᵀK⁻¹h = −½ aᵀKa.
    """
    problem = case(name)
    found = solve_primal(problem, tolerance=1e-14)
    K, n = torch.from_numpy(dense_gram(problem)), problem.num_rows
    a = ((problem.entry_weights * found.dual).flatten() / (problem.lam * n)).requires_grad_()

    def log_joint(a):
        h = (K @ a).view(n, -1)
        return -a @ K @ a / 2 - problem.loss.value(h, problem.targets).sum() / (n * problem.lam)

    (gradient,) = torch.autograd.grad(log_joint(a), a)
    (prior,) = torch.autograd.grad(-a @ K @ a / 2, a)
    assert prior.abs().max() > 0.1
    assert gradient.abs().max() < 2e-6 * prior.abs().max()
    # and it is a maximum
    moved = [log_joint((a + 0.1 * normal(N * M, seed=seed)).detach()) for seed in range(5)]
    assert all(value < log_joint(a) for value in moved)


@pytest.mark.parametrize("name", SMOOTH)
def test_representer_weights_are_the_score(name):
    """G-03: α η/(λn) = ∇_h log p(y | h) at the mode, for every likelihood."""
    problem = case(name)
    found = solve_primal(problem, tolerance=1e-14)
    H = problem.values(found.weights).requires_grad_()
    log_likelihood = -problem.loss.value(H, problem.targets).sum() / (N * problem.lam)
    (score,) = torch.autograd.grad(log_likelihood, H)
    representer = problem.entry_weights * found.dual / (problem.lam * N)
    torch.testing.assert_close(representer, score, rtol=0, atol=1e-5 * score.abs().max().item())
    torch.testing.assert_close(problem.adjoint(representer), found.weights, rtol=0, atol=1e-6)


def test_smoothed_pinball_solution_converges_to_the_dual_solution():
    """G-04: the distance falls in proportion to κ."""
    problem = case("pinball")
    H = problem.values(solve_primal(problem, tolerance=1e-12).weights)
    errors = []
    for kappa in (1e-2, 1e-3, 1e-4):
        smooth = replace(problem, loss=IntegralLoss(SmoothedPinball(kappa), problem.loss.measure))
        error = problem.values(solve_primal(smooth, tolerance=1e-12).weights) - H
        errors.append(error.square().mean().sqrt().item())
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.3)
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.3)
    assert errors[1] <= 1e-3


def test_solution_is_unchanged_by_scaling_lam_and_row_weights():
    """G-18: λ' and all weights of the loss times λ'/λ leave the posterior, J/λ, as it is."""
    problem = case("pinball")
    warmer = replace(problem, lam=5 * problem.lam, row_weights=torch.full((N,), 5.0).double())
    W = normal(*problem.shape, seed=3)
    assert (warmer.objective(W) / warmer.lam).item() == pytest.approx((problem.objective(W) / problem.lam).item())
    one, other = (solve_primal(each, tolerance=1e-10) for each in (problem, warmer))
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-4)


def test_lam_of_the_stability_bounds_is_half():
    """G-11: (1/n) Σ L + λ_s‖h‖² without a ½, minimised as it is written by SciPy, is the problem with λ = 2 λ_s."""
    lam_s = 0.01
    problem = case("smoothed_pinball", lam=2 * lam_s)

    def stability(w):
        W = torch.from_numpy(w).view(problem.shape).requires_grad_()
        value = problem.risk(problem.values(W)) + lam_s * W.square().sum()
        return value.item(), torch.autograd.grad(value, W)[0].flatten().numpy()

    options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000}
    best = minimize(stability, np.zeros(math.prod(problem.shape)), jac=True, method="L-BFGS-B", options=options)
    found = solve_primal(problem, tolerance=1e-12)
    assert found.objective == pytest.approx(best.fun, rel=1e-9)
    np.testing.assert_allclose(found.weights.flatten(), best.x, atol=1e-4)


# --- tasks ------------------------------------------------------------------------------------------------------------------


def test_independent_levels_equal_separate_fits():
    """G-14: IND = tasks with the identity for a Gram matrix; each level then has 1/m of the loss."""
    x, y, levels = inputs(), targets("pinball"), torch.tensor([0.1, 0.5, 0.8]).double()
    phi = KernelFactor(rbf(GAMMA_X), x[:, None])
    joint = TaskProblem(
        phi(x[:, None]), LevelFactor(levels)(levels), y, IntegralLoss(Pinball(), TaskMeasure(levels)), 0.02
    )
    H = joint.values(solve_primal(joint, tolerance=1e-11).weights)
    for j, level in enumerate(levels):
        alone = IntegralLoss(Pinball(), TaskMeasure([level.item()]))
        single = TaskProblem(joint.inputs, torch.ones(1, 1).double(), y, alone, 3 * 0.02)
        values = single.values(solve_primal(single, tolerance=1e-11).weights)
        torch.testing.assert_close(H[:, [j]], values, rtol=0, atol=1e-4)


def test_joint_levels_are_tasks_with_the_kernel_between_them():
    """G-14: JQR with B_jl = exp(−γ(θ_j − θ_l)²) is the continuum with its nodes at the levels."""
    levels = torch.tensor([0.1, 0.5, 0.8]).double()
    continuum = case("pinball", TaskMeasure(levels))
    factor = LevelFactor(levels, torch.from_numpy(gauss(GAMMA_T, levels, levels)))
    joint = replace(continuum, tasks=factor(levels))
    one, other = (solve_primal(each, tolerance=1e-10) for each in (continuum, joint))
    torch.testing.assert_close(continuum.values(one.weights), joint.values(other.weights), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_solve_primal_is_unchanged_by_a_repeated_node_with_half_its_weight(name):
    """G-08, for the mode."""
    measure = gauss_legendre(M)
    once = case(name)
    twice = TaskProblem(
        once.inputs,
        once.tasks.repeat(2, 1),
        once.targets if once.targets.shape[1] == 1 else once.targets.repeat(1, 2),
        loss_on(name, TaskMeasure(measure.nodes.repeat(2), measure.weights.repeat(2) / 2)),
        once.lam,
    )
    one, other = (solve_primal(each, tolerance=1e-9) for each in (once, twice))
    assert other.objective == pytest.approx(one.objective, rel=2e-9)
    torch.testing.assert_close(other.weights, one.weights, rtol=0, atol=2e-3)
    # and J itself is the same function of W
    W = normal(*once.shape, seed=5)
    assert twice.objective(W).item() == pytest.approx(once.objective(W).item(), rel=1e-12)


@pytest.mark.parametrize("name", ["pinball", "hinge", "curve_huber_2", "curve_insensitive_inf"])
def test_weights_of_rows_are_copies_of_rows(name):
    """Twice the weight is the row twice; n counts rows with their weights."""
    counts = torch.arange(N) % 3
    weighted = case(name, row_weights=counts.double() * (N / counts.sum().double()))
    rows = torch.repeat_interleave(torch.arange(N), counts)
    copied = replace(weighted, inputs=weighted.inputs[rows], targets=weighted.targets[rows], row_weights=None)
    one, other = (solve_primal(each, tolerance=1e-9) for each in (weighted, copied))
    assert other.objective == pytest.approx(one.objective, rel=2e-9)
    torch.testing.assert_close(other.weights, one.weights, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["pinball", "huber", "hinge", "curve_huber_2"])
def test_masked_entries_are_absent(name):
    """A hole in every row at the same node is a measure without that node."""
    mask = torch.ones(N, M, dtype=torch.bool)
    mask[:, 2] = False
    keep = [j for j in range(M) if j != 2]
    full, measure = case(name), gauss_legendre(M)
    masked = replace(full, loss=loss_on(name, mask_measure(measure, mask, "per_sample")))
    fewer = replace(
        full,
        tasks=full.tasks[keep],
        targets=full.targets if full.targets.shape[1] == 1 else full.targets[:, keep],
        loss=loss_on(name, TaskMeasure(measure.nodes[keep], measure.weights[keep] / measure.weights[keep].sum())),
    )
    one, other = (solve_primal(each, tolerance=1e-9) for each in (masked, fewer))
    assert other.objective == pytest.approx(one.objective, rel=2e-9)
    torch.testing.assert_close(other.weights, one.weights, rtol=0, atol=2e-3)
    assert (one.dual[:, 2] == 0).all()


# --- smoothing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [1e-1, 1e-2, 1e-3, 1e-4])
def test_smoothing_bias_is_bounded(kappa):
    """B-31: F_κ ≤ F ≤ F_κ + κ/2, and ‖h_κ − h_0‖ ≤ √(κ/λ)."""
    problem = case("pinball")
    exact = solve_primal(problem, tolerance=1e-9)
    loss = IntegralLoss(SmoothedPinball(kappa), problem.loss.measure)
    smooth = solve_primal(replace(problem, loss=loss), tolerance=1e-9)
    assert smooth.objective * (1 - 1e-8) <= exact.objective <= (smooth.objective + kappa / 2) * (1 + 1e-8)
    assert (smooth.weights - exact.weights).norm().item() <= math.sqrt(kappa / problem.lam)


def test_large_kappa_is_expectile_regression():
    """B-32: with the loss rescaled by κ, the fixed point of weighted least squares with weights θ and 1 − θ."""
    problem, kappa = case("pinball"), 1e4
    loss = IntegralLoss(SmoothedPinball(kappa), problem.loss.measure)
    smooth = replace(problem, loss=loss, lam=problem.lam / kappa)
    found = smooth.values(solve_primal(smooth, tolerance=1e-12).weights)
    levels, K = problem.loss.nodes.numpy(), dense_gram(problem)
    y, eta = np.repeat(problem.targets.numpy(), M), np.tile(problem.loss.weights.numpy(), N)
    h = np.zeros(N * M)
    for _ in range(100):
        w = eta * np.where(y > h, np.tile(levels, N), 1 - np.tile(levels, N))
        h = K @ np.linalg.solve(K + np.diag(problem.lam * N / w), y)
    np.testing.assert_allclose(found.flatten(), h, atol=1e-5)


def test_quantiles_have_the_sign_of_their_level():
    """τ = .8 of exponential data lies above four fifths of them (with a constant input, and λ small)."""
    y = torch.from_numpy(np.random.default_rng(0).exponential(size=(500, 1)))
    levels = torch.tensor([0.2, 0.5, 0.8]).double()
    loss = IntegralLoss(Pinball(), TaskMeasure(levels))
    problem = TaskProblem(torch.ones(500, 1).double(), torch.eye(3).double(), y, loss, 1e-6)
    curves = problem.values(solve_primal(problem).weights)[0]
    assert (y <= curves).double().mean(0).tolist() == pytest.approx([0.2, 0.5, 0.8], abs=0.005)
    np.testing.assert_allclose(curves, np.quantile(y, levels), atol=0.02)


# --- initial points, convergence and invalid input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pinball", "curve_huber_2"])
def test_solve_primal_takes_no_steps_from_the_solution(name):
    problem = case(name)
    cold = solve_primal(problem, tolerance=1e-9)
    warm = solve_primal(problem, init=cold.weights, init_dual=cold.dual, tolerance=1e-8)
    assert warm.report.iterations == 0
    assert torch.equal(warm.weights, cold.weights)


def test_zero_solution_is_exact():
    problem = replace(case("insensitive"), targets=torch.full((N, M), 0.1).double())
    found = solve_primal(problem)
    assert found.objective == found.gap == 0.0
    assert found.report.converged and (found.weights == 0).all()


@pytest.mark.parametrize("step", ["admm", "newton"])
def test_solve_primal_keeps_the_best_after_an_interrupt(step, monkeypatch):
    problem, calls = case("hinge", lam=1e-5), []
    owner, method = {"admm": (ADMM, "_advance"), "newton": (AugmentedLagrangian, "_curvature")}[step]
    ordinary = getattr(owner, method)

    def interrupt(self, *arguments):
        calls.append(1)
        if len(calls) > 15 or step == "newton":
            raise KeyboardInterrupt
        return ordinary(self, *arguments)

    monkeypatch.setattr(owner, method, interrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        found = solve_primal(problem, tolerance=1e-10)
    assert found.report.interrupted and not found.report.converged
    assert found.objective == pytest.approx(problem.objective(found.weights).item(), rel=1e-12)
    assert found.objective < problem.objective(0 * found.weights).item()
    assert found.gap == pytest.approx(found.objective - problem.dual_objective(found.dual).item(), rel=1e-9)


def test_solve_primal_warns_without_convergence():
    with pytest.warns(FitWarning, match="max_iter"):
        found = solve_primal(case("pinball", lam=1e-5), max_iter=15)
    assert found.report.iterations == 15 and not found.report.converged


def test_solve_primal_rejects_invalid_options():
    problem = case("pinball")
    with pytest.raises(InputError, match="init must"):
        solve_primal(problem, init=torch.zeros(2, 2))
    with pytest.raises(InputError, match="init_dual"):
        solve_primal(problem, init_dual=torch.full((N, M), torch.inf))
    with pytest.raises(OptionError, match="tolerance"):
        solve_primal(problem, tolerance=-1.0)
    with pytest.raises(OptionError, match="max_iter"):
        solve_primal(problem, max_iter=0)


def test_cases_cover_every_loss():
    """New losses must be added to the cases; the one-class loss has a separate solver."""
    names = {name for name in losses.__all__ if isinstance(getattr(losses, name), type)}
    entrywise = {name for name in names if issubclass(getattr(losses, name), losses.Loss)} - {
        "Loss",
        "Envelope",
        "OneClass",
    }
    assert {type(loss).__name__ for loss in LOSSES.values()} == entrywise


BAR = tqdm(disable=True)


def rough(problem, rounds=10, tolerance=1e-6) -> ADMM:
    """Return the state of ADMM after a few rounds."""
    certificate = Certificate(problem, tolerance)
    slopes = certificate.evaluate_at(certificate.weights)
    state = ADMM(make_ridge_step(problem), certificate, slopes, problem.values(certificate.weights))
    state.run(rounds, BAR)
    return state


def lagrangian_at(name, nodes=None, kappa=0.3):
    state = rough(case(name, nodes))
    found = AugmentedLagrangian(state, state.certificate)
    found.kappa = kappa
    return found, 0.1 * normal(*found.problem.shape, seed=1)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_augmented_lagrangian_is_the_envelope_at_shifted_values(name, nodes):
    """F(W) = (1/n) Σ s [e_κ(H + κS)] + (λ/2)‖W‖², and its gradient that of automatic differentiation (LT-11)."""
    found, W = lagrangian_at(name, nodes)
    problem, kappa = found.problem, found.kappa
    envelope = CurveEnvelope(problem.loss, kappa)
    W = W.requires_grad_()
    value = problem.risk(problem.values(W) + kappa * found.slopes, envelope) + problem.lam / 2 * W.square().sum()
    (gradient,) = torch.autograd.grad(value, W)
    point = found._evaluate(W.detach())
    assert point.value == pytest.approx(value.item(), rel=1e-10)
    torch.testing.assert_close(point.gradient, gradient, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_augmented_lagrangian_curvature_matches_gradient_differences(name, nodes):
    found, W = lagrangian_at(name, nodes)
    direction, step = normal(*W.shape, seed=2), 1e-6
    point = found._evaluate(W)
    product = found._curvature(point).apply(direction)
    difference = (found._evaluate(W + step * direction).gradient - point.gradient) / step
    # a kink between the two points affects one side only
    torch.testing.assert_close(product, difference, rtol=1e-2, atol=2e-2 * product.abs().max().item())


@pytest.mark.parametrize("name", ["curve_insensitive_1", "curve_huber_inf", "curve_huber_2"])
def test_curvatures_of_coupled_losses_are_positive(name):
    """Differences across a kink are not, and a Newton system without a factor would be the end."""
    found, W = lagrangian_at(name)
    blocks = found._curvature(found._evaluate(10 * W)).blocks
    assert torch.linalg.eigvalsh(blocks).min() >= -1e-12 * blocks.abs().max()
    tiny = solve_primal(case(name, lam=1e-7))
    assert tiny.gap <= 1e-6 * tiny.objective


@pytest.mark.parametrize("name", NAMES)
def test_augmented_lagrangian_converges_in_few_newton_steps(name):
    problem = case(name, lam=1e-3)
    state = rough(problem, rounds=30, tolerance=1e-11)
    certificate = state.certificate
    certificate.steps = 0
    AugmentedLagrangian(state, certificate).run(BAR)
    assert certificate.is_done
    assert certificate.steps <= 60
    assert certificate.gap <= 1e-11 * certificate.objective


def test_newton_cost_grows_with_the_entries_on_a_kink():
    costs = []
    for lam in (1.0, 1e-2, 1e-5):
        state = rough(case("pinball", lam=lam), rounds=100, tolerance=1e-12)
        costs.append(AugmentedLagrangian(state, state.certificate).newton_cost())
    assert 0 <= costs[0] < costs[1] < costs[2]


def test_augmented_lagrangian_supports_missing_entries_and_row_weights():
    measure = mask_measure(gauss_legendre(M), normal(N, M, seed=4) > -0.5)
    problem = replace(
        case("pinball"), loss=loss_on("pinball", measure), row_weights=torch.linspace(0.1, 2.0, N).double()
    )
    solution = solve_primal(problem, tolerance=1e-11)
    assert solution.gap <= 1e-11 * solution.objective


def test_line_search_rejects_steps_without_descent():
    found, W = lagrangian_at("huber")
    point = found._evaluate(W)
    assert found._line_search(point, point.gradient) is None  # uphill
    down = found._line_search(point, -point.gradient)
    assert down.value < point.value


def test_newton_steps_stop_at_the_limit_of_steps():
    state = rough(case("pinball", lam=1e-4), rounds=10, tolerance=1e-12)
    certificate = state.certificate
    certificate.max_iter = certificate.steps + 3
    AugmentedLagrangian(state, certificate).run(BAR)
    assert certificate.steps == certificate.max_iter
    assert not certificate.is_done


def test_augmented_lagrangian_reports_rounding():
    """A tolerance beyond float64: it gives up rather than turn in circles."""
    state = rough(case("log_cosh"), rounds=30, tolerance=1e-18)
    certificate = state.certificate
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AugmentedLagrangian(state, certificate).run(BAR)
    assert certificate.stuck or certificate.is_done
    assert certificate.gap <= 1e-13 * certificate.objective


def test_newton_step_does_not_depend_on_coordinates():
    """A Newton step in the diagonal coordinates is that of the problem's own."""
    problem = replace(case("square"), row_weights=torch.linspace(0.1, 2.0, N).double())
    state = rough(problem)
    found = AugmentedLagrangian(state, state.certificate)
    point = found._evaluate(found.weights)
    step = state.step.from_coordinates(found._curvature(point).solve(point.gradient, found.gram))
    own = Curvature(problem, found._curvature(point).entries)
    torch.testing.assert_close(own.apply(step), state.step.from_coordinates(point.gradient), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("lam", [1e-6, 1e-8])
def test_newton_step_is_damped_if_too_long(lam):
    """Few coordinates, many rows and hardly a penalty: where no entry bends, λ is the whole Hessian."""
    rng = np.random.default_rng(0)
    x, weights = rng.uniform(-1, 1, 200), torch.from_numpy(rng.exponential(size=200))
    inputs = torch.from_numpy(np.stack([np.ones(200), x], 1))
    y, loss = torch.from_numpy(x + rng.standard_normal(200))[:, None], IntegralLoss(Pinball(), grid([0.25, 0.5, 0.75]))
    solution = solve_primal(TaskProblem(inputs, torch.eye(3).double(), y, loss, lam, weights))
    assert solution.report.converged and solution.gap <= 1e-6 * solution.objective


STRATEGIES = ["_solve_active", "_solve_matrix", "_solve_cg"]


def problem_with(nodes=None, inputs=5, tasks=3, lam=0.2):
    problem = case("square", nodes, lam=lam)
    shape = problem.tasks.shape[:-1]
    return replace(problem, inputs=normal(N, inputs, seed=1), tasks=normal(*shape, tasks, seed=2))


def dense(problem, blocks):
    """λI + Σ φφᵀ ⊗ B."""
    matrix = problem.lam * np.eye(np.prod(problem.shape))
    for row, block in zip(problem.inputs.numpy(), blocks.numpy(), strict=True):
        matrix += np.kron(np.outer(row, row), block)
    return matrix


def blocks_of(problem, entries):
    tasks = problem.tasks.expand(*entries.shape, -1).numpy()
    return torch.from_numpy(np.einsum("ij,ijc,ijd->icd", entries.numpy(), tasks, tasks))


def curvature_of(problem, fraction=0.4):
    entries = normal(*problem.entry_weights.shape, seed=3).abs()
    return torch.where(entries < fraction, entries, 0.0)


@pytest.fixture
def exact_gradients(monkeypatch):
    """Conjugate gradients stop early, as a Newton step may; here they go on."""
    monkeypatch.setattr(primal, "CG_TOLERANCE", 1e-13)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_curvature_methods_solve_the_dense_system(strategy, nodes, exact_gradients):
    problem, R = problem_with(nodes), normal(5, 3, seed=4)
    entries = curvature_of(problem)
    expected = np.linalg.solve(dense(problem, blocks_of(problem, entries)), R.numpy().ravel()).reshape(5, 3)
    found = getattr(Curvature(problem, entries), strategy)(R, None)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_curvature_methods_support_blocks(strategy, exact_gradients):
    problem, R, root = problem_with(), normal(5, 3, seed=4), normal(N, 3, 2, seed=5)
    blocks = root @ root.mT
    expected = np.linalg.solve(dense(problem, blocks), R.numpy().ravel()).reshape(5, 3)
    found = getattr(Curvature(problem, None, blocks), strategy)(R, None)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_curvature_damping_adds_to_the_ridge(strategy, exact_gradients):
    problem, R = problem_with(), normal(5, 3, seed=4)
    entries = curvature_of(problem)
    stiffer = dense(problem, blocks_of(problem, entries)) + 0.7 * np.eye(15)
    expected = np.linalg.solve(stiffer, R.numpy().ravel()).reshape(5, 3)
    found = getattr(Curvature(problem, entries, damping=0.7), strategy)(R, None)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_curvature_cost_is_that_of_the_cheapest_method():
    problem = problem_with()
    few, many = (Curvature(problem, curvature_of(problem, fraction)) for fraction in (0.05, 3.0))
    k = int((few.entries > 0).sum())
    assert few.cost == k**3 / 3 + 2 * k**2 * 8
    assert many.cost == N * 15**2 + 15**3 / 3


def test_curvature_product_equals_dense_product():
    problem, D = problem_with(), normal(5, 3, seed=6)
    entries = curvature_of(problem)
    expected = dense(problem, blocks_of(problem, entries)) @ D.numpy().ravel()
    np.testing.assert_allclose(Curvature(problem, entries).apply(D).flatten(), expected, atol=1e-11)


def test_curvature_preconditioner_saves_steps(monkeypatch):
    """Coordinates of a kernel on its anchors: the curvature of equal entries is divided away in one step."""
    problem = case("square", lam=1e-4)
    R, gram = (
        normal(*problem.shape, seed=7),
        torch.outer(problem.inputs.square().sum(0), (problem.loss.weights[:, None] * problem.tasks.square()).sum(0))
        / N,
    )
    curvature, counts = Curvature(problem, 3.0 * problem.entry_weights / N), []
    monkeypatch.setattr(primal, "CG_TOLERANCE", 1e-8)
    apply = curvature.apply
    monkeypatch.setattr(curvature, "apply", lambda D: counts.append(1) or apply(D))
    unpreconditioned = curvature._solve_cg(R, None)
    num_products = len(counts)
    divided = curvature._solve_cg(R, gram)
    assert (apply(divided) - R).norm() < 1e-6 * R.norm()
    assert (apply(unpreconditioned) - R).norm() < 1e-6 * R.norm()
    assert len(counts) - num_products < num_products / 2


@pytest.mark.parametrize("active", [0, 1, 40])
def test_curvature_solve_is_exact(active):
    problem, R = problem_with(), normal(5, 3, seed=4)
    entries = torch.zeros_like(problem.entry_weights)
    entries.view(-1)[:active] = 0.7
    expected = np.linalg.solve(dense(problem, blocks_of(problem, entries)), R.numpy().ravel()).reshape(5, 3)
    np.testing.assert_allclose(Curvature(problem, entries).solve(R), expected, atol=1e-9)


def test_curvature_solve_uses_the_cheapest_method(monkeypatch):
    """Few active entries: their system; many of them and few coordinates: the matrix; too many of both: products."""
    taken = []
    for name in STRATEGIES:
        monkeypatch.setattr(Curvature, name, lambda self, right, gram, name=name: taken.append(name) or right)
    problem, R = problem_with(), normal(5, 3, seed=4)
    Curvature(problem, curvature_of(problem, 0.05)).solve(R)
    Curvature(problem, torch.ones_like(problem.entry_weights)).solve(R)
    monkeypatch.setattr(primal, "MAX_MATRIX_SIZE", 10)
    Curvature(problem, torch.ones_like(problem.entry_weights)).solve(R)
    assert taken == STRATEGIES
