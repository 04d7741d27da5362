"""Tests of `ovkgp.inference.tasks.eigenbasis`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.linalg import solve_sylvester

from ovkgp.functional.eigenfunctions import EigenFactor, laplace_eigenpairs, sampled_eigenpairs
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.eigenbasis import functional_ridge, ridge_coefficients
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import Coordinates, CurveHuber, IntegralLoss, Square, gauss_legendre

N, LAM = 10, 2e-3


@pytest.fixture
def curves():
    rng = np.random.default_rng(0)
    X, measure = torch.from_numpy(rng.uniform(0, 3, (N, 1))), gauss_legendre(14)
    Y = torch.sin(X + 3 * measure.nodes) + 0.1 * torch.from_numpy(rng.standard_normal((N, 14)))
    kernel = RBFKernel().double().requires_grad_(False)
    return X, Y, measure, KernelFactor(kernel, X, cutoff=0.0)


def test_lt_e_01_the_coefficients_of_the_eigenbasis(curves):
    """α = V [λn/(λn + σ_i λ_j) (VᵀR)_ij] solves (K ⊗ Λ + λn) α = λn R; the printed 1/(λ + σ_i λ_j) does not."""
    X, Y, measure, factor = curves
    pairs = laplace_eigenpairs(8)
    R, K = pairs.coefficients(Y, measure), factor.kernel(X).to_dense()
    alpha = ridge_coefficients(K, torch.diag(pairs.values), R, LAM * N).dual
    sigma, V = torch.linalg.eigh(K)
    products = sigma[:, None] * pairs.values
    assert torch.allclose(alpha, V @ (LAM * N / (LAM * N + products) * (V.T @ R)), atol=1e-12)
    left = K @ alpha * pairs.values + LAM * N * alpha
    assert torch.allclose(left, LAM * N * R, atol=1e-12)
    printed = V @ ((V.T @ R) / (LAM + products))
    assert (K @ printed * pairs.values + LAM * N * printed - LAM * N * R).abs().max() > 0.01
    h = functional_ridge(factor, pairs, R, LAM)
    t = torch.tensor([0.1, 0.45]).double()
    expected = K @ (alpha * pairs.values) @ pairs.functions(t).T / (LAM * N)
    assert torch.allclose(h(X, t), expected, atol=1e-10)


def test_functional_ridge_is_the_square_problem_on_coordinates(curves):
    _, Y, measure, factor = curves
    pairs = laplace_eigenpairs(8)
    R = pairs.coefficients(Y, measure)
    loss = IntegralLoss(Square(), Coordinates(len(pairs)))
    solution = solve_square(TaskProblem(factor.anchor_rows, torch.diag(pairs.values.sqrt()), R, loss, LAM))
    assert torch.allclose(functional_ridge(factor, pairs, R, LAM).weights, solution.weights, atol=1e-12)


def test_all_sampled_eigenpairs_give_the_ridge_at_the_nodes(curves):
    """LT B-07: the full eigenbasis of the sampled measure is the sampled problem itself."""
    X, Y, measure, factor = curves
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.1
    pairs = sampled_eigenpairs(kernel, measure, cutoff=0.0)
    h = functional_ridge(factor, pairs, pairs.coefficients(Y, measure), LAM)
    tasks = KernelFactor(kernel, measure.nodes[:, None], cutoff=0.0)
    loss = IntegralLoss(Square(), measure)
    sampled = solve_square(TaskProblem(factor.anchor_rows, tasks.anchor_rows, Y, loss, LAM))
    t = torch.linspace(0, 1, 7).double()
    assert torch.allclose(h(X, t), TaskFunction(factor, tasks, sampled.weights)(X, t), atol=1e-8)


def test_truncated_basis_gives_the_ridge_of_the_truncated_kernel(curves):
    """LT B-08: k_X Σ_{j ≤ m} λ_j ψ_j ψ_j, by a dense solve at the nodes of a fine rule."""
    X, Y, measure, factor = curves
    pairs = laplace_eigenpairs(200).first(3)
    h = functional_ridge(factor, pairs, pairs.coefficients(Y, measure), LAM)
    Psi, K = EigenFactor(pairs)(measure.nodes[:, None]), factor.kernel(X).to_dense()
    # orthonormal under this rule to rounding, as 14 nodes integrate the products of the first three functions
    C = torch.kron(K, Psi @ Psi.T) + torch.diag((LAM * N / measure.weights).repeat(N))
    t = torch.tensor([0.2, 0.9]).double()
    cross = torch.kron(K, EigenFactor(pairs)(t[:, None]) @ Psi.T)
    expected = (cross @ torch.linalg.solve(C, Y.flatten())).reshape(N, 2)
    assert torch.allclose(h(X, t), expected, atol=1e-8)


def test_functional_ridge_ignores_components_outside_the_basis(curves):
    _, Y, measure, _ = curves
    pairs = laplace_eigenpairs(3)
    other = laplace_eigenpairs(6).functions(measure.nodes)[:, 4]
    R = pairs.coefficients(Y, measure)
    assert torch.allclose(pairs.coefficients(Y + other, measure), R, atol=1e-8)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ridge_coefficients_solve_the_sylvester_equation(rank):
    """LT-81: KαA + cα = cY, A singular or not; SciPy's solver where A has an inverse."""
    rng = np.random.default_rng(rank)
    root, B, Y = rng.standard_normal((8, 8)), rng.standard_normal((3, rank)), rng.standard_normal((8, 3))
    K, A, c = root @ root.T, B @ B.T, 0.7
    alpha = ridge_coefficients(*map(torch.from_numpy, (K, A, Y)), c).dual.numpy()
    assert np.abs(K @ alpha @ A + c * alpha - c * Y).max() < 1e-10
    if rank == 3:
        inverse = np.linalg.inv(A)
        assert np.abs(alpha - solve_sylvester(K, c * inverse, c * Y @ inverse)).max() < 1e-8


def test_lt_e_38_dual_and_representer_coefficients_differ_by_the_ridge():
    """α_dual = λnm α_rep; the dual ones are the residuals Y − h."""
    rng = np.random.default_rng(0)
    root, Y = rng.standard_normal((6, 6)), torch.from_numpy(rng.standard_normal((6, 2)))
    K, A, ridge = torch.from_numpy(root @ root.T), torch.eye(2).double(), 2.5
    representer, dual = ridge_coefficients(K, A, Y, ridge)
    assert torch.allclose(dual, ridge * representer)
    assert torch.allclose(dual, Y - K @ representer @ A, atol=1e-10)
    assert not torch.allclose(dual, representer)


def test_lt_e_39_another_output_matrix_with_the_same_function():
    """LT B-30: rows α ↦ α A₁ A₂⁻¹, not α A₂⁻¹ A₁."""
    rng = np.random.default_rng(1)
    roots = rng.standard_normal((3, 4, 4))
    K, A1, A2 = (torch.from_numpy(root @ root.T + 0.5 * np.eye(4)) for root in roots)
    a = ridge_coefficients(K, A1, torch.from_numpy(rng.standard_normal((4, 4))), 0.3).representer
    h = K @ a @ A1
    inverse = torch.linalg.inv(A2)
    assert torch.allclose(K @ (a @ A1 @ inverse) @ A2, h, atol=1e-8)
    assert (K @ (a @ inverse @ A1) @ A2 - h).abs().max() > 1e-2


def test_bo_58_dual_functions_stay_in_a_stable_span_of_the_curves(curves):
    """FKR-HUB with exact eigenfunctions: if span{y_i} is stable under T, α = Ω Y with n² scalars Ω, for the Huber loss of norms (p = 2)."""
    _, Y, measure, factor = curves
    pairs = laplace_eigenpairs(8)
    R = pairs.coefficients(Y, measure)
    R[:, [0, 3, 4, 6, 7]] = 0.0  # the span of three eigenfunctions
    tasks = torch.diag(pairs.values.sqrt())
    problem = TaskProblem(factor.anchor_rows, tasks, R, CurveHuber(0.04, 2, Coordinates(8)), LAM)
    found = solve_dual(problem, tolerance=1e-10)
    assert found.gap <= 1e-6 * found.objective
    omega = torch.linalg.lstsq(R.T, found.dual.T).solution.T  # (n, n)
    torch.testing.assert_close(omega @ R, found.dual, atol=1e-10, rtol=0)
    residuals = R - problem.values(found.weights)
    sizes = residuals.norm(dim=1, keepdim=True)
    assert 0 < int((sizes > 0.04).sum()) < N
    torch.testing.assert_close(found.dual, residuals * (0.04 / sizes).clamp_max(1.0), atol=1e-4, rtol=0)
    # a curve outside the span adds its own direction
    R[0, 0] = 0.5
    other = solve_dual(TaskProblem(factor.anchor_rows, tasks, R, problem.loss, LAM), tolerance=1e-10)
    assert other.dual[:, 0].abs().max() > 1e-3
