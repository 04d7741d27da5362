"""Tests of `ovkgp.inference.tasks.problem`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import (
    GAMMA_T,
    GAMMA_X,
    NAMES,
    M,
    N,
    case,
    dense_gram,
    dense_norm,
    dense_values,
    gauss,
    loss_on,
    own_nodes,
    rbf,
)

from ovkgp.exceptions import InputError, OptionError, SmoothnessError
from ovkgp.features import ORFF
from ovkgp.functional.factors import FeatureFactor, KernelFactor, LevelFactor
from ovkgp.inference.tasks.noncrossing import join_problems
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import mask_measure, solve_square
from ovkgp.losses import Huber, IntegralLoss, Pinball, Square, gauss_legendre, monte_carlo

ROWS = torch.linspace(0.2, 2.0, N).double()
SHAPES = {"shared": None, "own": own_nodes()}


def weights_of(problem, seed=5):
    return normal(*problem.shape, seed=seed)


def feasible_dual(problem, seed=6, scale=2.0):
    """−A is a slope of the loss; A is random, not far from what a fit may give."""
    slopes = normal(*problem.entry_weights.shape, seed=seed, scale=scale)
    return -problem.loss.nearest_slope(slopes, problem.targets)


@pytest.mark.parametrize("nodes", SHAPES)
def test_values_and_adjoint_equal_the_sums_over_all_pairs(nodes):
    problem = case("pinball", SHAPES[nodes])
    n, m = problem.entry_weights.shape
    W, E = weights_of(problem), normal(n, m, seed=7)
    tasks = problem.tasks.expand(n, m, -1).numpy()
    H = np.array([[problem.inputs[i].numpy() @ W.numpy() @ tasks[i, j] for j in range(m)] for i in range(n)])
    np.testing.assert_allclose(problem.values(W), H, atol=1e-12)
    assert (E * problem.values(W)).sum().item() == pytest.approx((problem.adjoint(E) * W).sum().item(), rel=1e-10)


@pytest.mark.parametrize("nodes", SHAPES)
def test_objective_and_dual_equal_section_2_8(nodes):
    """P and D with K, ω and α̃ = ω ∘ α written out, for Huber: ℓ*(−α) = ½ α² − α y."""
    problem = replace(case("huber", SHAPES[nodes]), row_weights=ROWS)
    A, y, omega = feasible_dual(problem), problem.targets.numpy(), problem.entry_weights.numpy()
    H, square = dense_values(problem, A), dense_norm(problem, A)
    r, kappa = np.abs(y - H), problem.loss.loss.kappa
    risk = (omega * np.where(r <= kappa, r**2 / 2, kappa * (r - kappa / 2))).sum() / N
    conjugate = (omega * (A.numpy() ** 2 / 2 - A.numpy() * y)).sum() / N
    assert problem.objective(problem.dual_weights(A)).item() == pytest.approx(risk + problem.lam / 2 * square, rel=1e-8)
    assert problem.dual_objective(A).item() == pytest.approx(-conjugate - problem.lam / 2 * square, rel=1e-8)
    np.testing.assert_allclose(problem.values(problem.dual_weights(A)), H, atol=1e-8)


@pytest.mark.parametrize("nodes", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_dual_is_below_the_objective_everywhere(name, nodes):
    """Weak duality, for weights and dual variables that have nothing to do with each other."""
    problem = replace(case(name, SHAPES[nodes]), row_weights=ROWS)
    for seed in range(5):
        dual = problem.dual_objective(feasible_dual(problem, seed, scale=0.3)).item()
        assert np.isfinite(dual)
        for W in (torch.zeros(problem.shape).double(), 0.1 * weights_of(problem, seed)):
            assert dual <= problem.objective(W).item() + 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_gap_is_the_mean_of_fenchel_and_young(name):
    """P − D = (1/n) Σ s [L(H) + L*(−A) + ⟨A, H⟩] at the primal point of A (B-04)."""
    problem = replace(case(name), row_weights=ROWS)
    A = feasible_dual(problem, scale=0.3)
    W = problem.dual_weights(A)
    H = problem.values(W)
    loss, y = problem.loss, problem.targets
    terms = loss.value(H, y) + loss.conjugate(-A, y) + (loss.weights * A * H).sum(-1)
    gap = problem.objective(W) - problem.dual_objective(A)
    assert (terms >= -1e-12).all()
    assert gap.item() == pytest.approx((ROWS * terms).sum().item() / N, abs=1e-10)


def test_dual_is_minus_infinity_if_infeasible():
    problem = case("pinball")
    assert problem.dual_objective(torch.full((N, M), 1.5).double()).item() == -np.inf


def test_lt_e_03_the_sign_of_the_linear_term_of_the_dual():
    """−L*(−α) has + ⟨α, y⟩ where the source prints its negative; with that sign the gap stays open."""
    problem = case("pinball")
    found = solve_dual(problem, tolerance=1e-8)
    linear = (problem.entry_weights * found.dual * problem.targets).sum().item() / N
    norm = problem.lam / 2 * problem.dual_weights(found.dual).square().sum().item()
    assert found.objective - (linear - norm) <= 1e-8 * found.objective
    assert found.objective - (-linear - norm) > 0.5 * found.objective


@pytest.mark.parametrize("nodes", SHAPES)
@pytest.mark.parametrize("name", ["square", "smoothed_pinball", "log_cosh", "curve_huber_2", "curve_insensitive_1"])
def test_lt_e_24_gradients_carry_the_weight_over_n(name, nodes):
    """∂J = (1/n) Φᵀ(ω ∘ slopes)Ψ + λW, against automatic differentiation of the objective."""
    problem = replace(case(name, SHAPES[nodes]), row_weights=ROWS)
    W = weights_of(problem).requires_grad_()
    (gradient,) = torch.autograd.grad(problem.objective(W), W)
    slopes = problem.loss.derivative(problem.values(W.detach()), problem.targets)
    formula = problem.adjoint(problem.entry_weights * slopes) / N + problem.lam * W.detach()
    torch.testing.assert_close(gradient, formula, rtol=1e-9, atol=1e-11)
    # as printed, without η/n, it is another direction altogether
    assert (gradient - problem.adjoint(slopes) - problem.lam * W.detach()).norm() > gradient.norm()


def test_norms_of_coefficients_expansion_and_weights_agree():
    """B-13: Tr(K_X α K_Θ αᵀ), the norm of the expansion in the product kernel, and that of the weights."""
    problem = case("square")
    alpha = normal(N, M, seed=8).numpy()
    K_X, K_T = problem.inputs @ problem.inputs.T, problem.tasks @ problem.tasks.T
    trace = np.trace(K_X.numpy() @ alpha @ K_T.numpy() @ alpha.T)
    expansion = alpha.ravel() @ dense_gram(problem) @ alpha.ravel()
    weights = problem.adjoint(torch.from_numpy(alpha)).square().sum().item()
    assert trace == pytest.approx(expansion, rel=1e-10)
    assert weights == pytest.approx(expansion, rel=1e-10)


# --- entries and rows that count for nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pinball", "huber", "curve_huber_2", "curve_insensitive_inf"])
def test_missing_targets_may_be_nan(name):
    base = case(name)
    mask = normal(N, M, seed=9) > -0.3
    targets = base.targets.expand(N, M).clone()
    loss = loss_on(name, mask_measure(gauss_legendre(M), mask))
    known = replace(base, targets=targets, loss=loss)
    unknown = replace(base, targets=torch.where(mask, targets, torch.nan), loss=loss)
    W, A = weights_of(known), feasible_dual(known)
    assert unknown.objective(W).item() == pytest.approx(known.objective(W).item(), rel=1e-14)
    assert unknown.dual_objective(A).item() == pytest.approx(known.dual_objective(A).item(), rel=1e-14)
    assert torch.isfinite(unknown.objective(W))


def test_rows_without_weight_count_only_in_n():
    base = case("pinball")
    weights = torch.ones(N).double()
    weights[3] = 0.0
    targets = base.targets.clone()
    targets[3] = torch.nan
    problem, W = replace(base, targets=targets, row_weights=weights), weights_of(base)
    rest = [i for i in range(N) if i != 3]
    fewer = replace(base, inputs=base.inputs[rest], targets=base.targets[rest], row_weights=None)
    penalty = base.lam / 2 * W.square().sum()
    assert (problem.objective(W) - penalty).item() == pytest.approx(
        (fewer.objective(W) - penalty).item() * (N - 1) / N, rel=1e-12
    )


# --- bad inputs -----------------------------------------------------------------------------------------------------------

LOSS = IntegralLoss(Pinball(), gauss_legendre(3))
GOOD = {
    "inputs": torch.eye(4).double(),
    "tasks": torch.eye(3).double(),
    "targets": torch.ones(4, 1).double(),
    "loss": LOSS,
    "lam": 0.1,
}
NAN = torch.full((4, 4), torch.nan).double()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"lam": 0.0}, OptionError, "lam"),
        ({"lam": -1.0}, OptionError, "lam"),
        ({"lam": float("nan")}, OptionError, "lam"),
        ({"lam": "1"}, OptionError, "lam"),
        ({"inputs": NAN}, InputError, "inputs"),
        ({"inputs": torch.ones(4).double()}, InputError, "inputs"),
        ({"inputs": torch.ones(0, 2).double()}, InputError, "inputs"),
        ({"tasks": NAN[:3]}, InputError, "tasks"),
        ({"tasks": torch.ones(2, 3).double()}, InputError, "tasks"),
        ({"tasks": torch.ones(2, 3, 3).double()}, InputError, "tasks"),
        ({"targets": torch.ones(4).double()}, InputError, r"\(4, 3\) or \(4, 1\)"),
        ({"targets": torch.ones(4, 2).double()}, InputError, r"got \(4, 2\)"),
        ({"targets": NAN[:, :1]}, InputError, "targets"),
        ({"targets": NAN[:, :3]}, InputError, "targets"),
        ({"row_weights": torch.ones(3).double()}, InputError, "row_weights"),
        ({"row_weights": -torch.ones(4).double()}, InputError, "row_weights"),
        ({"row_weights": NAN[0]}, InputError, "row_weights"),
        ({"loss": IntegralLoss(Pinball(), own_nodes(5, 3))}, InputError, "nodes"),
    ],
)
def test_task_problem_rejects_invalid_arguments(change, error, match):
    with pytest.raises(error, match=match):
        TaskProblem(**{**GOOD, **change})


def test_task_problem_converts_float32_to_float64():
    problem = TaskProblem(**{**GOOD, "inputs": torch.eye(4), "targets": torch.ones(4, 1), "lam": 1})
    assert problem.inputs.dtype == problem.targets.dtype == torch.float64
    assert problem.shape == (4, 3)
    assert problem.is_shared
    assert replace(problem, loss=IntegralLoss(Huber(1.0), gauss_legendre(3))).num_rows == 4


def test_task_problem_accepts_finite_numbers_whose_sum_overflows():
    large = torch.full((4, 4), 1e308, dtype=torch.float64)
    assert TaskProblem(**{**GOOD, "inputs": large}).shape == (4, 3)
    infinite = torch.tensor([[torch.inf], [-torch.inf], [1.0], [1.0]]).double()
    with pytest.raises(InputError, match="inputs"):
        TaskProblem(**{**GOOD, "inputs": infinite})


X, NODES = torch.linspace(0, 2, 6).double(), torch.tensor([0.1, 0.4, 0.8]).double()
AT, LEVELS = torch.tensor([-0.3, 0.77, 1.2, 5.0]).double(), torch.tensor([0.0, 0.33]).double()
ALPHA = normal(6, 3, seed=0)


def offset(tasks):
    return tasks**3 - 2


def expansion(b=offset) -> TaskFunction:
    """Σ_ij α_ij k_X(·, x_i) k_Θ(·, θ_j) in coordinates, W = Φᵀ α Ψ (LT-83)."""
    phi = KernelFactor(rbf(GAMMA_X), X[:, None], cutoff=0.0)
    psi = KernelFactor(rbf(GAMMA_T), NODES[:, None], cutoff=0.0)
    return TaskFunction(phi, psi, phi.anchor_rows.T @ ALPHA @ psi.anchor_rows, b)


def test_values_are_the_double_sum_of_kernels():
    expected = gauss(GAMMA_X, AT, X) @ ALPHA.numpy() @ gauss(GAMMA_T, NODES, LEVELS) + offset(LEVELS).numpy()
    np.testing.assert_allclose(expansion()(AT[:, None], LEVELS), expected, atol=1e-9)


def test_slopes_are_those_of_the_double_sum_and_of_the_offset():
    """∂_θ k_Θ(θ, θ_j) = −2γ (θ − θ_j) k_Θ (LT-43)."""
    kernel = -2 * GAMMA_T * (LEVELS[:, None] - NODES).numpy() * gauss(GAMMA_T, LEVELS, NODES)
    expected = gauss(GAMMA_X, AT, X) @ ALPHA.numpy() @ kernel.T + 3 * LEVELS.numpy() ** 2
    np.testing.assert_allclose(expansion().slopes(AT[:, None], LEVELS), expected, atol=1e-8)


@pytest.mark.parametrize("b", [None, lambda tasks: torch.ones(1).double()], ids=["no offset", "a constant"])
def test_constant_offset_has_no_slope(b):
    h = expansion() if b is None else expansion(b)
    base = TaskFunction(h.inputs, h.tasks, h.weights)
    reference = expansion(lambda tasks: torch.zeros_like(tasks))
    torch.testing.assert_close(base.slopes(AT[:, None], LEVELS), reference.slopes(AT[:, None], LEVELS))
    if b is not None:
        torch.testing.assert_close(h.slopes(AT[:, None], LEVELS), reference.slopes(AT[:, None], LEVELS))


def test_slopes_on_features_are_differences_of_values():
    phi = FeatureFactor(ORFF(rbf(GAMMA_X), 10, num_dims=1, random_state=0).double())
    psi = FeatureFactor(ORFF(rbf(GAMMA_T), 8, num_dims=1, random_state=1).double())
    h, step = TaskFunction(phi, psi, normal(20, 16, seed=1), offset), 1e-6
    differences = (h(AT[:, None], LEVELS + step) - h(AT[:, None], LEVELS - step)) / (2 * step)
    torch.testing.assert_close(h.slopes(AT[:, None], LEVELS), differences, rtol=1e-6, atol=1e-7)


def test_norm_is_that_of_the_product_kernel():
    """B-13: ‖h − b‖² = Tr(K_X α K_Θ αᵀ) = ‖W‖²."""
    square = np.trace(gauss(GAMMA_X, X, X) @ ALPHA.numpy() @ gauss(GAMMA_T, NODES, NODES) @ ALPHA.numpy().T)
    assert expansion().norm() ** 2 == pytest.approx(square, rel=1e-10)


def test_values_are_bounded_by_the_norm():
    """|h(x)(θ)| ≤ √(k_X k_Θ) ‖h‖, the reproducing property."""
    h = expansion(lambda tasks: torch.zeros_like(tasks))
    assert h(AT[:, None], LEVELS).abs().max().item() <= h.norm()


def test_finitely_many_levels_have_values_and_no_slopes():
    h = TaskFunction(KernelFactor(rbf(GAMMA_X), X[:, None]), LevelFactor(NODES), normal(6, 3, seed=2))
    assert h(AT[:, None], NODES[[1]]).shape == (4, 1)
    with pytest.raises(SmoothnessError):
        h.slopes(AT[:, None], NODES)


@pytest.mark.parametrize("tasks", [0.5, torch.tensor(0.5), torch.ones(2, 1, 1)])
def test_task_function_rejects_tasks_of_other_shapes(tasks):
    with pytest.raises(InputError, match="tasks"):
        expansion()(X[:, None], tasks)


# --- tasks in R^b (LT-70..72) -----------------------------------------------------------------------------------------

PLANE = gauss_legendre(3, num_dims=2)
CENTERS = monte_carlo(4, num_rows=5, num_dims=2, random_state=0)


def plane_case(measure, lam=0.01, loss=None):
    """Square loss of functions of θ in R² with Gaussian kernels on x in R and θ; return the factors and the problem."""
    x = torch.linspace(0, 2, 5, dtype=torch.float64)[:, None]
    phi = KernelFactor(rbf(GAMMA_X), x, cutoff=1e-14)
    psi = KernelFactor(rbf(GAMMA_T), measure.points.reshape(-1, 2), cutoff=1e-14)
    tasks = psi(measure.points.reshape(-1, 2)).reshape(*measure.weights.shape, -1)
    y = torch.sin(x + 3 * measure.points[..., 0]) * measure.points[..., 1] + normal(5, len(measure), seed=3, scale=0.1)
    return phi, psi, TaskProblem(phi.anchor_rows, tasks, y, loss or IntegralLoss(Square(), measure), lam)


def dense_plane_ridge(x, measure, y, lam, at, tasks):
    """(K + λn/η)⁻¹y of the pairs (x_i, θ_ij), with kernels written out, at points x* (k,) and tasks (l, 2)."""
    n, m = y.shape
    rows, nodes = np.repeat(x, m), measure.points.expand(n, m, 2).reshape(-1, 2).numpy()

    def kernel(a, s, b, t):
        return gauss(GAMMA_X, a, b) * np.exp(-GAMMA_T * ((s[:, None] - t[None]) ** 2).sum(-1))

    K = kernel(rows, nodes, rows, nodes)
    noise = lam * n / measure.weights.expand(n, m).reshape(-1).numpy()
    alpha = np.linalg.solve(K + np.diag(noise), y.reshape(-1))
    points, thetas = np.repeat(at, len(tasks)), np.tile(tasks, (len(at), 1))
    return (kernel(points, thetas, rows, nodes) @ alpha).reshape(len(at), len(tasks))


@pytest.mark.parametrize("measure", [PLANE, CENTERS], ids=["shared", "own"])
def test_task_problem_in_the_plane_equals_a_dense_solve(measure):
    """LT-81 with θ in R²: product rule of Gauss–Legendre, and random nodes of each row (LT-70)."""
    phi, psi, problem = plane_case(measure)
    found = solve_square(problem)
    at, tasks = np.array([0.3, 1.7]), np.array([[0.1, 0.9], [0.5, 0.4], [0.8, 0.2]])
    h = TaskFunction(phi, psi, found.weights)(torch.from_numpy(at)[:, None], torch.from_numpy(tasks))
    expected = dense_plane_ridge(phi.anchors[:, 0].numpy(), measure, problem.targets.numpy(), 0.01, at, tasks)
    np.testing.assert_allclose(h, expected, atol=1e-8)
    assert abs(found.gap) <= 1e-10 * found.objective


def test_task_problem_in_the_plane_has_the_solvers_of_one_dimension():
    """Huber loss on tasks in R²: dual and primal solvers agree, with gaps below 1e-6."""
    problem = plane_case(PLANE, loss=IntegralLoss(Huber(0.2), PLANE))[2]
    dual, primal = solve_dual(problem, tolerance=1e-8), solve_primal(problem, tolerance=1e-8)
    assert max(found.gap / found.objective for found in (dual, primal)) <= 1e-6
    torch.testing.assert_close(problem.values(dual.weights), problem.values(primal.weights), atol=1e-4, rtol=0)
    assert (dual.dual.abs() > 0.2 - 1e-9).any()


def test_missing_entries_in_the_plane_are_deleted_rows():
    """LT-75: a masked measure on R² equals the dense solve without the missing pairs."""
    problem = plane_case(PLANE)[2]
    observed = torch.rand(5, 9, generator=torch.Generator().manual_seed(1)) > 0.3
    masked = mask_measure(PLANE, observed)
    assert masked.num_dims == 2 and masked.is_shared and len(masked) == 9
    targets = torch.where(observed, problem.targets, torch.nan)
    found = solve_square(replace(problem, loss=IntegralLoss(Square(), masked), targets=targets))
    keep = observed.flatten().numpy()
    K = dense_gram(problem)[np.ix_(keep, keep)]
    noise = 0.01 * 5 / PLANE.weights.expand(5, 9).flatten().numpy()[keep]
    alpha = np.linalg.solve(K + np.diag(noise), problem.targets.flatten().numpy()[keep])
    expected = dense_gram(problem)[:, keep] @ alpha
    np.testing.assert_allclose(problem.values(found.weights).flatten(), expected, atol=1e-8)


def test_task_function_in_the_plane_has_variance_and_offset_and_no_slopes():
    phi, psi, problem = plane_case(PLANE)
    h = TaskFunction(phi, psi, solve_square(problem).weights, lambda tasks: tasks.sum(-1))
    x, tasks = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([[0.2, 0.7]], dtype=torch.float64)
    centered = TaskFunction(phi, psi, h.weights)
    assert (h(x, tasks) - centered(x, tasks)).item() == pytest.approx(0.9, abs=1e-12)
    row = (phi(x).square().sum() * psi(tasks).square().sum()).item()
    assert h.residual_variance(x, tasks).item() == pytest.approx(1 - row, abs=1e-10)
    with pytest.raises(InputError, match="one dimension"):
        h.slopes(x, tasks)
    with pytest.raises(InputError, match="columns"):
        h(x, torch.zeros(3, 3).double())


def test_noncrossing_rejects_tasks_in_the_plane():
    """Monotone curves need an ordered set of tasks."""
    problem = plane_case(PLANE)[2]
    with pytest.raises(InputError, match="one dimension"):
        join_problems([problem, problem])


def test_tasks_in_one_dimension_may_have_one_column():
    h = expansion()
    torch.testing.assert_close(h(AT[:, None], LEVELS[:, None]), h(AT[:, None], LEVELS), rtol=0, atol=0)


def test_lt_e_21_lt_e_25_risk_is_the_mean_over_rows_of_half_the_square():
    """(1/n) Σ_i Σ_j η_j ½ r_ij²: with ½ (LT-E-21), and repeating all rows changes nothing, due to 1/n (LT-E-25)."""
    problem = case("square")
    H, y = normal(N, M, seed=3), problem.targets
    expected = (problem.loss.weights * (H - y).square()).sum().item() / (2 * N)
    assert problem.risk(H).item() == pytest.approx(expected, rel=1e-12)
    twice = TaskProblem(problem.inputs.repeat(2, 1), problem.tasks, y.repeat(2, 1), problem.loss, problem.lam)
    assert twice.risk(H.repeat(2, 1)).item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(solve_square(twice).weights, solve_square(problem).weights, atol=1e-9, rtol=0)
