"""Tests of `ovkgp.inference.tasks.solvers.square`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.linalg import solve_sylvester
from scipy.optimize import minimize

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.functional.factors import FeatureFactor, KernelFactor
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers import square
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import mask_measure, ridge_weights, solve_square
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel
from ovkgp.losses import IntegralLoss, Pinball, Square, TaskMeasure, gauss_legendre

N, M, LAM = 12, 5, 3e-3


def rbf(gamma):
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(1 / np.sqrt(2 * gamma), dtype=torch.float64)
    return kernel


def gauss(gamma, a, b):
    return np.exp(-gamma * (np.asarray(a)[:, None] - np.asarray(b)[None]) ** 2)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.uniform(0, 3, N), rng.standard_normal((N, M)), rng.uniform(0, 3, 4), rng.uniform(0, 1, 3)


def factors(x, nodes):
    return (
        KernelFactor(rbf(0.7), torch.from_numpy(x)[:, None], cutoff=0.0),
        KernelFactor(rbf(4.0), torch.as_tensor(np.unique(nodes))[:, None], cutoff=0.0),
    )


def fitted(x, Y, measure, lam=LAM, row_weights=None):
    """h, and the solution, of the ridge problem with exact kernels."""
    inputs, tasks = factors(x, measure.nodes.numpy())
    Psi = tasks(measure.nodes.reshape(-1, 1)).reshape(*measure.nodes.shape, -1)
    problem = TaskProblem(
        inputs.anchor_rows, Psi, torch.from_numpy(Y), IntegralLoss(Square(), measure), lam, row_weights
    )
    solution = solve_square(problem)
    return TaskFunction(inputs, tasks, solution.weights), solution


def oracle(x, theta, y, noise, xs, thetas):
    """K_*(K + diag(noise))⁻¹y on rows (x_k, θ_k)."""
    K = gauss(0.7, x, x) * gauss(4.0, theta, theta)
    a = np.linalg.solve(K + np.diag(noise), y)
    return np.einsum("sk,tk,k->st", gauss(0.7, xs, x), gauss(4.0, thetas, theta), a)


def close(h, expected, xs, thetas, tolerance=1e-8):
    got = h(torch.from_numpy(xs)[:, None], torch.from_numpy(thetas)).numpy()
    assert np.abs(got - expected).max() < tolerance


@pytest.mark.parametrize("measure", [gauss_legendre(M), TaskMeasure(torch.linspace(0, 1, M))])
def test_shared_nodes_are_the_mean_of_a_process_with_noise_lam_n_over_eta(data, measure):
    x, Y, xs, thetas = data
    h, solution = fitted(x, Y, measure)
    noise = np.tile(LAM * N / measure.weights.numpy(), N)
    close(h, oracle(np.repeat(x, M), np.tile(measure.nodes, N), Y.ravel(), noise, xs, thetas), xs, thetas)
    assert abs(solution.gap) < 1e-12 * solution.objective


def test_solve_square_equals_the_icm_process(data):
    """The row λnm of the λ table: G-01 for scalar outputs."""
    x, Y, xs, _ = data
    nodes = torch.linspace(0, 1, M).double()
    h, _ = fitted(x, Y, TaskMeasure(nodes))
    gp = OperatorValuedGP(FunctionValuedKernel(rbf(0.7), rbf(4.0), tasks=nodes), mean="zero", noise=LAM * N * M)
    mean = gp.condition(x[:, None], Y).predict(xs[:, None], "none").mean
    assert (h(torch.from_numpy(xs)[:, None], nodes) - mean).abs().max() < 1e-8


@pytest.mark.parametrize(
    ("data_weight", "penalty", "noise"),
    [
        (lambda n, m: 1 / (n * m), 1.0, lambda lam, n, m: lam * n * m),  # sampled curves
        (lambda n, m: 1 / n, 1.0, lambda lam, n, m: lam * n),  # scalar ridge, full curves
        (lambda n, m: 2 / n, 1.0, lambda lam, n, m: lam * n / 2),  # Problem 4.2 as printed, without its ½
        (lambda n, m: 1 / (n * m), 2.0, lambda lam, n, m: 2 * lam * n * m),  # stability, λ‖h‖²
    ],
)
def test_lambda_table_agrees_with_direct_minimization(data, data_weight, penalty, noise):
    """(w Σ ½ r² + p λ/2 ‖h‖²) is minimised with L-BFGS; the process has the noise of the table."""
    x, Y, xs, _ = data
    m = 2
    theta, Y = np.array([0.2, 0.9]), Y[:, :m]
    K = np.kron(gauss(0.7, x, x), gauss(4.0, theta, theta))
    L, w = np.linalg.cholesky(K + 1e-13 * np.eye(len(K))), data_weight(N, m)

    def objective(u):
        r = Y.ravel() - L @ u
        return 0.5 * w * r @ r + 0.5 * penalty * LAM * u @ u, -w * L.T @ r + penalty * LAM * u

    u = minimize(objective, np.zeros(len(K)), jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-12}).x
    expected = (np.kron(gauss(0.7, xs, x), gauss(4.0, theta, theta)) @ np.linalg.solve(L.T, u)).reshape(-1, m)
    close(fitted(x, Y, TaskMeasure(theta), noise(LAM, N, m) / (N * m))[0], expected, xs, theta, 1e-5)


def test_scalar_ridge_is_one_task(data):
    """LT-28: m = 1."""
    x, Y, xs, _ = data
    h, _ = fitted(x, Y[:, :1], TaskMeasure([0.5]))
    expected = gauss(0.7, xs, x) @ np.linalg.solve(gauss(0.7, x, x) + LAM * N * np.eye(N), Y[:, :1])
    close(h, expected, xs, np.array([0.5]))


def test_lt_e_20_separate_nodes_use_the_node_of_the_pair(data):
    x, Y, xs, thetas = data
    nodes = np.random.default_rng(1).uniform(0, 1, (N, M))
    h, solution = fitted(x, Y, TaskMeasure(nodes))
    expected = oracle(np.repeat(x, M), nodes.ravel(), Y.ravel(), np.full(N * M, LAM * N * M), xs, thetas)
    close(h, expected, xs, thetas, 1e-7)
    assert abs(solution.gap) < 1e-9 * solution.objective


@pytest.mark.parametrize("normalization", ["fixed", "pooled", "per_sample"])
def test_masking_is_deleting_rows(data, normalization):
    """LT B-29, with the three normalisations of the noise."""
    x, Y, xs, thetas = data
    mask = np.random.default_rng(2).uniform(size=(N, M)) < 0.7
    mask[3] = False
    measure = TaskMeasure(torch.linspace(0, 1, M))
    Y = np.where(mask, Y, np.nan)
    h, solution = fitted(x, Y, mask_measure(measure, torch.from_numpy(mask), normalization))
    rows, nodes = np.nonzero(mask)
    noise = {
        "fixed": np.full(len(rows), LAM * N * M),
        "pooled": np.full(len(rows), LAM * mask.sum()),
        "per_sample": LAM * N * mask.sum(1)[rows],
    }[normalization]
    expected = oracle(x[rows], measure.nodes.numpy()[nodes], Y[mask], noise.astype(float), xs, thetas)
    close(h, expected, xs, thetas, 1e-10)
    assert bool((solution.dual[~torch.from_numpy(mask)] == 0).all())


def test_conjugate_gradients_agree_with_the_dense_solution(data, monkeypatch):
    x, Y, xs, thetas = data
    mask = np.random.default_rng(2).uniform(size=(N, M)) < 0.6
    tasks = mask_measure(TaskMeasure(torch.linspace(0, 1, M)), torch.from_numpy(mask), "per_sample")
    dense, _ = fitted(x, np.where(mask, Y, np.nan), tasks)
    monkeypatch.setattr(square, "MAX_DENSE_ENTRIES", 0)
    products, solution = fitted(x, np.where(mask, Y, np.nan), tasks)
    points = torch.from_numpy(xs)[:, None], torch.from_numpy(thetas)
    assert (dense(*points) - products(*points)).abs().max() < 1e-7
    assert solution.report.iterations > 0 and solution.report.converged


def test_conjugate_gradients_support_separate_nodes_per_row(data, monkeypatch):
    x, Y, xs, thetas = data
    measure = TaskMeasure(np.random.default_rng(1).uniform(0, 1, (N, M)))
    dense, _ = fitted(x, Y, measure)
    monkeypatch.setattr(square, "MAX_DENSE_ENTRIES", 0)
    products, _ = fitted(x, Y, measure)
    points = torch.from_numpy(xs)[:, None], torch.from_numpy(thetas)
    assert (dense(*points) - products(*points)).abs().max() < 1e-6


def test_one_target_for_all_tasks_is_expanded(data):
    x, Y, xs, thetas = data
    h, _ = fitted(x, Y[:, :1], gauss_legendre(M))
    points = torch.from_numpy(xs)[:, None], torch.from_numpy(thetas)
    close(h, fitted(x, np.repeat(Y[:, :1], M, 1), gauss_legendre(M))[0](*points).numpy(), xs, thetas, 1e-12)


def test_row_weights_are_copies_of_rows(data):
    x, Y, xs, thetas = data
    measure, times = gauss_legendre(M), np.array([1, 2, 3] * 4)
    h, _ = fitted(x, Y, measure, LAM, torch.from_numpy(times).double())
    rows = np.repeat(np.arange(N), times)
    noise = np.tile(LAM * N / measure.weights.numpy(), len(rows))
    expected = oracle(np.repeat(x[rows], M), np.tile(measure.nodes, len(rows)), Y[rows].ravel(), noise, xs, thetas)
    close(h, expected, xs, thetas)


def test_solve_square_is_unchanged_by_a_repeated_node_with_half_its_weight(data):
    x, Y, xs, thetas = data
    measure = gauss_legendre(M)
    twice = TaskMeasure(measure.nodes.repeat(2), measure.weights.repeat(2) / 2)
    h, _ = fitted(x, Y, measure)
    close(
        fitted(x, np.hstack([Y, Y]), twice)[0],
        h(torch.from_numpy(xs)[:, None], torch.from_numpy(thetas)).numpy(),
        xs,
        thetas,
    )


def test_ridge_weights_agree_with_sylvester_and_a_dense_kron(data):
    """LT B-07: ΦᵀΦ W ΨᵀΨ + c W = ΦᵀYΨ, on either side of n < r and m < q."""
    rng = np.random.default_rng(3)
    for n, r, m, q in ((9, 4, 6, 3), (4, 9, 3, 6), (9, 4, 3, 6)):
        Phi, Psi, Y = rng.standard_normal((n, r)), rng.standard_normal((m, q)), rng.standard_normal((n, m))
        W = ridge_weights(*map(torch.from_numpy, (Phi, Psi, Y)), 0.3).numpy()
        F = np.kron(Phi, Psi)
        dense = np.linalg.solve(F.T @ F + 0.3 * np.eye(r * q), F.T @ Y.ravel()).reshape(r, q)
        assert np.abs(W - dense).max() < 1e-10
        if q <= m:
            inverse = np.linalg.inv(Psi.T @ Psi)
            sylvester = solve_sylvester(Phi.T @ Phi, 0.3 * inverse, Phi.T @ Y @ Psi @ inverse)
            assert np.abs(W - sylvester).max() < 1e-10


@pytest.mark.parametrize("solve", [solve_primal, solve_dual])
def test_iterative_solvers_find_the_closed_form(data, solve):
    """LT B-07: the same objective and the same function."""
    x, Y, _, _ = data
    inputs, tasks = factors(x, np.linspace(0, 1, M))
    loss = IntegralLoss(Square(), TaskMeasure(torch.linspace(0, 1, M)))
    problem = TaskProblem(inputs.anchor_rows, tasks.anchor_rows, torch.from_numpy(Y), loss, 0.05)
    exact, found = solve_square(problem), solve(problem, tolerance=1e-10)
    assert found.objective == pytest.approx(exact.objective, rel=1e-8)
    assert torch.allclose(problem.values(found.weights), problem.values(exact.weights), atol=1e-4)


def test_lt_e_06_random_features_carry_their_factor_once(data):
    """φ̃ᵀφ̃ has diagonal 1: no further 1/√D; and the double ORFF ridge is the process with k̃_X k̃_Θ."""
    x, Y, xs, thetas = data
    factor = FeatureFactor(ORFF(rbf(0.7), 30, num_dims=1, random_state=0).double())
    over_tasks = FeatureFactor(ORFF(rbf(4.0), 20, num_dims=1, random_state=1).double())
    Phi, nodes = factor(torch.from_numpy(x)[:, None]), torch.linspace(0, 1, M).double()
    assert torch.allclose(Phi.square().sum(1), torch.ones(N).double(), atol=1e-10)
    Psi = over_tasks(nodes[:, None])
    loss = IntegralLoss(Square(), TaskMeasure(nodes))
    W = solve_square(TaskProblem(Phi, Psi, torch.from_numpy(Y), loss, LAM)).weights
    h = TaskFunction(factor, over_tasks, W)
    K = np.kron(Phi @ Phi.T, Psi @ Psi.T)
    cross = np.kron(
        factor(torch.from_numpy(xs)[:, None]) @ Phi.T, over_tasks(torch.from_numpy(thetas)[:, None]) @ Psi.T
    )
    expected = (cross @ np.linalg.solve(K + LAM * N * M * np.eye(N * M), Y.ravel())).reshape(len(xs), -1)
    close(h, expected, xs, thetas)


def test_lt_e_26_the_weights_of_vector_outputs_are_2d_by_2d_times_s(data):
    """β is 2D_X × (2D_Θ s), so that ⟨φ(x), β (ψ(θ) ⊗ B)⟩ is a vector with covariance k̃_X k̃_Θ A."""
    x, _, _, _ = data
    s, rng = 3, np.random.default_rng(4)
    Y = rng.standard_normal((N, M, s))
    root = rng.standard_normal((s, 2))
    A = root @ root.T + 0.1 * np.eye(s)
    B = torch.from_numpy(np.linalg.cholesky(A))
    Phi = FeatureFactor(ORFF(rbf(0.7), 8, num_dims=1, random_state=0).double())(torch.from_numpy(x)[:, None])
    Psi = FeatureFactor(ORFF(rbf(4.0), 6, num_dims=1, random_state=1).double())(
        torch.linspace(0, 1, M).double()[:, None]
    )
    tasks = torch.kron(Psi, B)  # (m·s, 2D·s), task-major
    beta = ridge_weights(Phi, tasks, torch.from_numpy(Y).flatten(1), LAM * N * M)
    assert beta.shape == (16, 12 * s)
    C = np.kron(np.kron(Phi @ Phi.T, Psi @ Psi.T), A)
    expected = C @ np.linalg.solve(C + LAM * N * M * np.eye(len(C)), Y.ravel())
    assert np.abs((Phi @ beta @ tasks.T).numpy().ravel() - expected).max() < 1e-9


def test_lt_e_22_pairs_are_listed_row_by_row():
    """Row m(i − 1) + j is (x_i, θ_j), the order of kron(K_X, K_Θ)."""
    from ovkgp.inference.tasks.functional_ridge_grid import make_pairs

    X, tasks = torch.rand(3, 2).double(), torch.rand(4, 1).double()
    rows = make_pairs(X, tasks)
    assert all(torch.equal(rows[4 * i + j], torch.cat([X[i], tasks[j]])) for i in range(3) for j in range(4))
    kernel = FunctionValuedKernel(rbf(0.7), rbf(4.0))
    kron = torch.kron(rbf(0.7)(X).to_dense(), rbf(4.0)(tasks).to_dense())
    assert torch.allclose(kernel(rows).to_dense(), kron)


def test_solve_square_rejects_other_losses_and_missing_targets(data):
    x, Y, _, _ = data
    inputs, tasks = factors(x, np.linspace(0, 1, M))
    parts = inputs.anchor_rows, tasks.anchor_rows, torch.from_numpy(Y)
    measure = TaskMeasure(torch.linspace(0, 1, M))
    with pytest.raises(OptionError, match="solve_primal"):
        solve_square(TaskProblem(*parts, IntegralLoss(Pinball(), measure), LAM))
    parts[2][0, 0] = torch.nan
    with pytest.raises(InputError, match="targets"):
        solve_square(TaskProblem(*parts, IntegralLoss(Square(), measure), LAM))


def test_vector_outputs_on_pairs_are_the_sylvester_solution(data):
    """G-01 with A: the package's process on pairs, order (i, j, u), against the dense matrix."""
    x, _, xs, thetas = data
    rng = np.random.default_rng(5)
    Y, root = rng.standard_normal((N * M, 2)), rng.standard_normal((2, 1))
    A = root @ root.T  # singular
    theta = np.tile(np.linspace(0, 1, M), N)
    rows = np.column_stack([np.repeat(x, M), theta])
    kernel = DecomposableKernel(FunctionValuedKernel(rbf(0.7), rbf(4.0)), output_matrix=torch.from_numpy(A))
    gp = OperatorValuedGP(kernel, mean="zero", noise=LAM * N * M)
    K = np.kron(gauss(0.7, rows[:, 0], rows[:, 0]) * gauss(4.0, theta, theta), A)
    a = np.linalg.solve(K + LAM * N * M * np.eye(len(K)), Y.ravel())
    points = np.column_stack([xs[:3], thetas])
    cross = np.kron(gauss(0.7, points[:, 0], rows[:, 0]) * gauss(4.0, thetas, theta), A)
    mean = gp.condition(rows, Y).predict(points, "none").mean.numpy()
    assert np.abs(mean.ravel() - cross @ a).max() < 1e-8


OBSERVED = torch.tensor([[True, True, False], [False, False, True], [False, False, False]])


def test_mask_measure_weights_of_the_three_normalizations():
    uniform = TaskMeasure([0.0, 0.5, 1.0])
    n, m, total = 3, 3, 3
    noise = {
        kind: n / mask_measure(uniform, OBSERVED, kind).weights[OBSERVED] for kind in ("fixed", "pooled", "per_sample")
    }
    assert torch.allclose(noise["fixed"], torch.full((3,), float(n * m)).double())
    assert torch.allclose(noise["pooled"], torch.full((3,), float(total)).double())
    assert torch.allclose(noise["per_sample"], n * torch.tensor([2.0, 2.0, 1.0]).double())


@pytest.mark.parametrize("normalization", ["fixed", "pooled", "per_sample"])
def test_mask_measure_equals_the_measure_if_complete(normalization):
    measure = gauss_legendre(4)
    found = mask_measure(measure, torch.ones(5, 4, dtype=torch.bool), normalization)
    assert torch.allclose(found.weights, measure.weights.expand(5, 4), atol=1e-15)
    assert found.is_shared and len(found) == 4


def test_mask_measure_rejects_invalid_arguments():
    with pytest.raises(InputError, match="observed"):
        mask_measure(gauss_legendre(3), torch.zeros(3, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="observed"):
        mask_measure(gauss_legendre(4), OBSERVED)
    with pytest.raises(OptionError, match="normalization"):
        mask_measure(gauss_legendre(3), OBSERVED, "mean")
