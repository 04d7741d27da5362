"""Tests of `ovkgp.inference.tasks.solvers.dual`."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from loss_cases import normal
from task_cases import LOSSES, NAMES, M, N, case, dense_gram, dense_values, loss_on, own_nodes

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.functional.eigenfunctions import laplace_eigenpairs
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.dual import lipschitz_constant, solve_dual
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import mask_measure, solve_square
from ovkgp.losses import Coordinates, CurveHuber, CurveInsensitive, IntegralLoss, Pinball, TaskMeasure, gauss_legendre

OBSERVED = normal(N, M, seed=4) > -0.5


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_gap_closes_for_every_loss(name, nodes):
    """B-04: at most 1e-6 of the objective, with a feasible A whose primal point is W."""
    problem = case(name, nodes)
    found = solve_dual(problem)
    assert found.report.converged
    assert 0 <= found.gap <= 1e-6 * found.objective
    assert found.objective == problem.objective(found.weights).item()
    assert found.objective - problem.dual_objective(found.dual).item() == pytest.approx(found.gap, abs=1e-14)
    np.testing.assert_allclose(
        problem.values(problem.dual_weights(found.dual)), dense_values(problem, found.dual), atol=1e-7
    )


@pytest.mark.parametrize("name", NAMES)
def test_gap_is_never_negative_during_iterations(name, monkeypatch):
    """B-04: J(W) ≥ D(A) at every look, not only for the best of each."""
    pairs, evaluate = [], Certificate.evaluate

    def spy(self, weights, slopes, H=None):
        dual = -self.problem.loss.nearest_slope(slopes, self.problem.targets)
        pairs.append((self.problem.objective(weights).item(), self.problem.dual_objective(dual).item()))
        return evaluate(self, weights, slopes, H)

    monkeypatch.setattr(Certificate, "evaluate", spy)
    solve_dual(case(name, lam=3e-3))
    assert len(pairs) > 2
    assert all(lower <= objective + 1e-12 for objective, lower in pairs)
    assert all(np.isfinite(lower) for _, lower in pairs)


def test_report_counts_iterations_and_history_decreases():
    report = solve_dual(case("pinball")).report
    assert report.iterations > 10 and report.num_observed == N * M
    assert all(after <= before for before, after in itertools.pairwise(report.history))


# --- fixed points -----------------------------------------------------------------------------------------------------------


def residuals(problem):
    found = solve_dual(problem, tolerance=1e-16, max_iter=4000)
    H = problem.values(found.weights)
    return found.dual, problem.targets - H, H


@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")  # the last digits are rounding
@pytest.mark.parametrize("name", ["huber", "insensitive", "curve_huber_2", "curve_insensitive_2", "square"])
def test_dual_is_the_slope_at_the_residual(name):
    """B-05: clip(r, ±κ), ST(r, ε), row projection, BST; a recomputed from the residuals of W."""
    problem = case(name)
    A, r, _ = residuals(problem)
    norms = (problem.loss.weights * r.square()).sum(-1, keepdim=True).sqrt()
    expected = {
        "square": r,
        "huber": r.clamp(-0.4, 0.4),
        "insensitive": r.sign() * (r.abs() - 0.3).clamp(min=0),
        "curve_huber_2": r * (0.5 / norms).clamp(max=1),
        "curve_insensitive_2": r * (1 - 0.4 / norms).clamp(min=0),
    }[name]
    assert (A - expected).abs().max() < 1e-7
    sizes = {"huber": r.abs(), "insensitive": r.abs()}.get(name, norms)
    threshold = {"huber": 0.4, "insensitive": 0.3, "curve_huber_2": 0.5, "curve_insensitive_2": 0.4}.get(name, 0.0)
    assert name == "square" or 0 < int((sizes > threshold).sum()) < sizes.numel()  # both sides of the threshold occur


@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_dual_of_the_pinball_loss_is_the_level_above_and_the_level_less_one_below():
    """B-05: θ where y is above the curve, θ − 1 where it is below, between them on the curve."""
    problem = case("pinball")
    A, r, _ = residuals(problem)
    levels = problem.loss.nodes.expand_as(A)
    above, below = r > 1e-4, r < -1e-4
    assert int(above.sum()) > 5 and int(below.sum()) > 5 and int((~(above | below)).sum()) > 5
    assert (A - levels)[above].abs().max() < 1e-7
    assert (A - levels + 1)[below].abs().max() < 1e-7
    assert ((levels - 1 - 1e-12 <= A) & (levels + 1e-12 >= A)).all()


@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
@pytest.mark.parametrize("name", ["hinge", "hinge_unit"])
def test_dual_of_the_hinge_is_the_cost_within_the_margin(name):
    """B-05: αy = c where y h < 1, 0 where y h > 1, with c = c(θ) for y = 1 and 1 − c(θ) for y = −1."""
    problem = case(name)
    A, _, H = residuals(problem)
    y = problem.targets
    unit = problem.loss.nodes if name == "hinge_unit" else (problem.loss.nodes + 1) / 2
    cost = torch.where(y > 0, unit, 1 - unit)
    margin = y * H
    assert ((A * y) - cost)[margin < 1 - 1e-4].abs().max() < 1e-7
    beyond = margin > 1 + 1e-4
    assert int(beyond.sum()) > 0 and (A * y)[beyond].abs().max() < 1e-7


def test_lt_e_05_the_steps_project_on_the_interval_of_each_level():
    """[θ_j − 1, θ_j], with step 1/C; as printed, step 1 and [θ_{j−1}, θ_j], the dual cannot come down to θ_j − 1."""
    problem = case("pinball")
    found, levels = solve_dual(problem, tolerance=1e-8), problem.loss.nodes
    printed = torch.cat([levels.new_zeros(1), levels[:-1]])
    assert ((found.dual >= levels - 1) & (found.dual <= levels)).all()
    assert (found.dual < printed - 0.1).any()
    A, C = torch.zeros(N, M).double(), lipschitz_constant(problem)
    for _ in range(3000):
        A = (A + (problem.targets - problem.values(problem.dual_weights(A))) / C).clamp(levels - 1, levels)
    assert problem.dual_objective(A).item() == pytest.approx(found.objective, rel=1e-3)
    B = torch.zeros(N, M).double()
    for _ in range(3000):
        B = torch.minimum(torch.maximum(B + problem.targets - problem.values(problem.dual_weights(B)), printed), levels)
    assert problem.dual_objective(B).item() < 0.8 * found.objective


# --- limits -----------------------------------------------------------------------------------------------------------------


def test_large_lam_gives_zero():
    """B-06: h → 0, at the rate 1/λ."""
    for name in NAMES:
        found = solve_dual(case(name, lam=1e6))
        assert case(name, lam=1e6).values(found.weights).abs().max() < 1e-5


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_zero_epsilon_gives_the_ridge_solution(p):
    """B-06, LT-97: ε = 0, from the ridge's own dual variable."""
    problem = case("square")
    ridge = solve_square(problem)
    loss = CurveInsensitive(0.0, p, problem.loss.measure)
    found = solve_dual(replace(problem, loss=loss), init=ridge.dual, tolerance=1e-12)
    assert found.report.iterations == 0
    torch.testing.assert_close(found.weights, ridge.weights, rtol=0, atol=1e-8)


# --- the step size ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["shared", "own", "holes"])
def test_lipschitz_constant_is_the_norm_of_the_dense_operator(make):
    """B-34, LT-96: the norm of A ↦ H(A) in L²(ω), that of √ω K √ω / (λn)."""
    problem = replace(
        case("huber", own_nodes() if make == "own" else None), row_weights=torch.linspace(0.2, 2.0, N).double()
    )
    if make == "holes":
        problem = replace(problem, loss=loss_on("huber", mask_measure(gauss_legendre(M), OBSERVED)))
    root = problem.entry_weights.numpy().ravel() ** 0.5
    norm = np.linalg.eigvalsh(root[:, None] * dense_gram(problem) * root)[-1] / (problem.lam * N)
    constant = lipschitz_constant(problem)
    assert norm * (1 - 1e-9) <= constant <= 1.021 * norm
    if make == "shared":
        assert constant == pytest.approx(norm, rel=1e-9)


@pytest.mark.parametrize("name", ["huber", "pinball", "curve_insensitive_2"])
def test_steps_of_one_over_c_never_lower_the_dual(name):
    """B-34: plain proximal gradient steps; with more than twice the step a crafted case diverges."""
    problem = case(name)
    C, A, values = lipschitz_constant(problem), torch.zeros(N, M).double(), []
    for _ in range(60):
        H = problem.values(problem.dual_weights(A))
        A = -problem.loss.conjugate_prox(H / C - A, problem.targets, 1 / C)
        values.append(problem.dual_objective(A).item())
    assert all(after >= before - 1e-14 for before, after in itertools.pairwise(values))


def test_steps_beyond_two_over_c_diverge():
    """B-34: one row, one node, a quadratic dual; |1 − γC| > 1."""
    one = torch.ones(1, 1).double()
    problem = TaskProblem(one, one, one, IntegralLoss(Pinball(), TaskMeasure([0.5])), lam=0.5)
    C = lipschitz_constant(problem)
    for step, diverges in ((1.9 / C, False), (2.1 / C, True)):
        a = torch.tensor([[0.1]]).double()
        for _ in range(200):
            a = a + step * (0.1 - problem.values(problem.dual_weights(a)))
        assert (a.abs().item() > 10) == diverges


# --- sparsity, initial points, interruptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["insensitive", "curve_insensitive_inf", "curve_insensitive_2"])
def test_dual_zeros_are_exact(name):
    dual = solve_dual(case(name)).dual
    zeros = (dual == 0).all(-1) if name == "curve_insensitive_2" else dual == 0
    assert 0 < int(zeros.sum()) < zeros.numel()


@pytest.mark.parametrize("name", ["huber", "pinball", "curve_insensitive_2"])
def test_solve_dual_takes_no_steps_from_the_solution(name):
    problem = case(name)
    cold = solve_dual(problem, tolerance=1e-8)
    warm = solve_dual(problem, init=cold.dual, tolerance=1e-7)
    assert cold.report.iterations > 0
    assert warm.report.iterations == 0


def test_solve_dual_accepts_an_infeasible_initial_point():
    """LT-97: the ridge's dual variable, for a Huber that cuts it."""
    ridge = solve_square(case("square"))
    found = solve_dual(case("huber"), init=ridge.dual)
    assert ridge.dual.abs().max() > LOSSES["huber"].kappa
    assert found.gap <= 1e-6 * found.objective


def test_solve_dual_takes_few_steps():
    """Measured: 40 steps for Huber, 180 for the pinball loss at λ = 0.02; plain gradient steps take thousands."""
    assert solve_dual(case("huber")).report.iterations <= 100
    assert solve_dual(case("pinball")).report.iterations <= 500


def test_solve_dual_warns_without_convergence():
    with pytest.warns(FitWarning, match="max_iter"):
        found = solve_dual(case("pinball", lam=1e-4), max_iter=7)
    assert found.report.iterations == 7 and not found.report.converged


def test_solve_dual_keeps_the_best_after_an_interrupt(monkeypatch):
    problem, steps, prox = case("pinball", lam=1e-4), [], IntegralLoss.conjugate_prox

    def interrupt(self, *arguments):
        steps.append(1)
        if len(steps) > 25:
            raise KeyboardInterrupt
        return prox(self, *arguments)

    monkeypatch.setattr(IntegralLoss, "conjugate_prox", interrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        found = solve_dual(problem)
    assert found.report.interrupted and found.report.iterations == 25
    assert found.objective == problem.objective(found.weights).item() < problem.objective(0 * found.weights).item()
    assert np.isfinite(problem.dual_objective(found.dual).item())


def test_solve_dual_rejects_invalid_options():
    problem = case("pinball")
    with pytest.raises(InputError, match="init"):
        solve_dual(problem, init=torch.zeros(N, 1))
    with pytest.raises(InputError, match="init"):
        solve_dual(problem, init=torch.full((N, M), torch.nan))
    with pytest.raises(OptionError, match="tolerance"):
        solve_dual(problem, tolerance=0.0)
    with pytest.raises(OptionError, match="max_iter"):
        solve_dual(problem, max_iter=-1)


def test_solution_is_that_of_the_primal_solver():
    for name in NAMES:
        problem = case(name)
        one, other = solve_dual(problem, tolerance=1e-8), solve_primal(problem, tolerance=1e-8)
        assert one.objective == pytest.approx(other.objective, rel=2e-8)
        assert (one.weights - other.weights).square().sum().item() <= 4 * (one.gap + other.gap + 1e-15) / problem.lam


@pytest.mark.parametrize("make", [CurveHuber, CurveInsensitive])
@pytest.mark.parametrize("p", [1.25, 1.5, 3])
def test_lt_62_gap_closes_for_norms_of_other_orders(make, p):
    """LT-62, BO-71, BO-72: dual and primal solvers with L^p norms other than 1, 2 and ∞."""
    problem = replace(case("square"), loss=make(0.3, p, gauss_legendre(M)))
    dual, primal = solve_dual(problem, tolerance=1e-7), solve_primal(problem, tolerance=1e-7)
    for found in (dual, primal):
        assert -1e-12 <= found.gap <= 1e-6 * found.objective
    torch.testing.assert_close(problem.values(dual.weights), problem.values(primal.weights), atol=2e-3, rtol=0)
    slopes = -problem.loss.derivative(problem.values(dual.weights), problem.targets)
    torch.testing.assert_close(slopes, dual.dual, atol=1e-3, rtol=0)


def test_bo_58_dual_functions_stay_in_a_stable_span_of_the_curves():
    """FKR-HUB with exact eigenfunctions: if span{y_i} is stable under T, α = Ω Y with n² scalars Ω, for the Huber loss of norms (p = 2)."""
    rng, pairs, num_rows = np.random.default_rng(0), laplace_eigenpairs(8), 10
    X, measure = torch.from_numpy(rng.uniform(0, 3, (num_rows, 1))), gauss_legendre(14)
    Y = torch.sin(X + 3 * measure.nodes) + 0.1 * torch.from_numpy(rng.standard_normal((num_rows, 14)))
    R = pairs.coefficients(Y, measure)
    R[:, [0, 3, 4, 6, 7]] = 0.0  # the span of three eigenfunctions
    rows = KernelFactor(RBFKernel().double().requires_grad_(False), X, cutoff=0.0).anchor_rows
    tasks = torch.diag(pairs.values.sqrt())
    problem = TaskProblem(rows, tasks, R, CurveHuber(0.04, 2, Coordinates(8)), 2e-3)
    found = solve_dual(problem, tolerance=1e-10)
    assert found.gap <= 1e-6 * found.objective
    omega = torch.linalg.lstsq(R.T, found.dual.T).solution.T  # (n, n)
    torch.testing.assert_close(omega @ R, found.dual, atol=1e-10, rtol=0)
    residuals = R - problem.values(found.weights)
    sizes = residuals.norm(dim=1, keepdim=True)
    assert 0 < int((sizes > 0.04).sum()) < num_rows
    torch.testing.assert_close(found.dual, residuals * (0.04 / sizes).clamp_max(1.0), atol=1e-4, rtol=0)
    # a curve outside the span adds its own direction
    R[0, 0] = 0.5
    other = solve_dual(replace(problem, targets=R), tolerance=1e-10)
    assert other.dual[:, 0].abs().max() > 1e-3
