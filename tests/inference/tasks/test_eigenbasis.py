"""Tests of `ovkgp.inference.tasks.eigenbasis`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.linalg import solve_sylvester

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.eigenbasis import (
    EigenFactor,
    feature_eigenpairs,
    functional_ridge,
    laplace_eigenpairs,
    ridge_coefficients,
    sampled_eigenpairs,
    uniform_moments,
)
from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import Coordinates, IntegralLoss, Square, TaskMeasure, gauss_legendre

FINE = gauss_legendre(400)
N, LAM = 10, 2e-3


def orthonormality(pairs, measure=FINE):
    values = pairs.functions(measure.nodes)
    return ((values * measure.weights[:, None]).T @ values - torch.eye(len(pairs))).abs().max().item()


def rbf(gamma):
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(1 / math.sqrt(2 * gamma), dtype=torch.float64)
    return kernel


def test_lt_e_15_the_eigenfunctions_of_the_laplace_kernel_are_orthonormal():
    pairs = laplace_eigenpairs(20)
    assert orthonormality(pairs) < 1e-12
    roots = (2 / pairs.values - 1).sqrt()
    assert torch.allclose(roots[:4], torch.tensor([1.30654, 3.67319, 6.58462, 9.63168]).double(), atol=1e-5)
    assert torch.allclose(1 / roots.tan(), (roots - 1 / roots) / 2, atol=1e-8)


@pytest.mark.parametrize("lengthscale", [0.2, 1.0, 5.0])
def test_laplace_pairs_are_those_of_the_operator_at_any_lengthscale(lengthscale):
    pairs, t = laplace_eigenpairs(6, lengthscale), 0.37
    low, high = gauss_legendre(100, 0, t), gauss_legendre(100, t, 1)  # the kernel has a kink at t
    image = sum(
        width * (rule.weights * (-(rule.nodes - t).abs() / lengthscale).exp()) @ pairs.functions(rule.nodes)
        for width, rule in ((t, low), (1 - t, high))
    )
    at = torch.tensor([t], dtype=torch.float64)
    assert torch.allclose(image, pairs.values * pairs.functions(at)[0], atol=1e-12)
    assert orthonormality(pairs) < 1e-10


def test_mercers_sum_of_the_laplace_kernel_converges():
    """LT B-09: Σλ = 1, tail 2/(π²N), error of the kernel 5e-4 with 400 pairs, and twice that at the ends of the interval."""
    pairs = laplace_eigenpairs(400)
    t = torch.linspace(0, 1, 41).double()
    rows = EigenFactor(pairs)(t[:, None])
    error = (rows @ rows.T - (-(t[:, None] - t).abs()).exp()).abs()
    assert error[1:-1, 1:-1].max() < 5.5e-4 and error.max() < 1.1e-3
    assert 1 - pairs.values.sum().item() == pytest.approx(2 / (math.pi**2 * 400), rel=0.01)


def test_sampled_pairs_are_orthonormal_for_their_measure_and_extend_by_the_kernel():
    """LT-22 with weights."""
    measure, kernel = gauss_legendre(12), rbf(3.0)
    pairs = sampled_eigenpairs(kernel, measure).first(6)
    assert orthonormality(pairs, measure) < 1e-9
    t = torch.tensor([0.123, 0.77]).double()
    image = (kernel(t[:, None], measure.nodes[:, None]).to_dense() * measure.weights) @ pairs.functions(measure.nodes)
    assert torch.allclose(image, pairs.values * pairs.functions(t), atol=1e-10)


def test_sampled_pairs_of_uniform_weights_are_eigenvalues_over_m():
    nodes = torch.rand(15, generator=torch.Generator().manual_seed(0)).double()
    K = rbf(20.0)(nodes[:, None]).to_dense()
    values, vectors = torch.linalg.eigh(K)
    pairs = sampled_eigenpairs(rbf(20.0), TaskMeasure(nodes))
    assert torch.allclose(pairs.values[:5], values.flip(0)[:5] / 15)
    first = pairs.functions(nodes)[:, 0].abs()
    assert torch.allclose(first, math.sqrt(15) * vectors[:, -1].abs(), atol=1e-8)


def test_sampled_pairs_approach_those_of_the_operator():
    exact = laplace_eigenpairs(3).values
    from ovkgp.kernels import LaplaceKernel

    kernel = LaplaceKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(1.0, dtype=torch.float64)
    sampled = sampled_eigenpairs(kernel, gauss_legendre(200)).values[:3]
    assert torch.allclose(sampled, exact, atol=1e-4)


def test_moments_of_fourier_features_equal_their_closed_form():
    """LT B-10."""
    frequencies = torch.tensor([0.0, 0.3, 2.0, 2.0, -5.0]).double()
    angles = FINE.nodes[:, None] * frequencies
    F = torch.cat([angles.cos(), angles.sin()], 1)
    assert torch.allclose(uniform_moments(frequencies), (F * FINE.weights[:, None]).T @ F, atol=1e-12)


@pytest.mark.parametrize("measure", [None, gauss_legendre(30, 0.2, 0.9)])
def test_lt_e_16_eigenpairs_of_fourier_features(measure):
    """T̃ψ = λψ for k̃ = FᵀF/D, with ψ = Fᵀa/√e and λ = e/D."""
    frequencies = 4 * torch.randn(7, generator=torch.Generator().manual_seed(0)).double()
    pairs, rule = feature_eigenpairs(frequencies, measure), FINE if measure is None else measure
    t = torch.tensor([0.25, 0.6]).double()
    kernel = torch.cos((t[:, None, None] - rule.nodes[:, None]) * frequencies).mean(-1)
    image = (kernel * rule.weights) @ pairs.functions(rule.nodes)
    assert torch.allclose(image, pairs.values * pairs.functions(t), atol=1e-10)
    assert orthonormality(pairs, rule) < 1e-4  # the smallest eigenvalues are at the cutoff, 1e-10 of the largest
    assert orthonormality(pairs.first(4), rule) < 1e-9
    rows = EigenFactor(pairs)(t[:, None])
    assert torch.allclose(rows @ rows.T, torch.cos((t[:, None, None] - t[:, None]) * frequencies).mean(-1), atol=1e-8)


def test_lt_e_13_the_norm_is_that_of_the_square_root_of_the_operator():
    """k(·, t) is in H with norm k(t, t), though it is not in the image of T: Σ c²/λ² diverges, Σ c²/λ does not."""
    t = torch.tensor([0.3]).double()
    norms, images = [], []
    for count in (100, 400, 1600):
        pairs = laplace_eigenpairs(count)
        c = pairs.values * pairs.functions(t)[0]  # ⟨k(·, t), ψ_j⟩
        norms.append(pairs.squared_norm(c).item())
        images.append((c / pairs.values).square().sum().item())  # ‖f‖² for k(·, t) = T f
    assert norms[2] == pytest.approx(1.0, abs=1e-3) and abs(norms[2] - 1) < abs(norms[0] - 1)
    assert images[2] > 3.5 * images[1] > 12 * images[0]


def test_squared_norm_of_sections_is_the_quadratic_form_of_the_kernel():
    """‖Σ a_i k(·, t_i)‖² = aᵀKa."""
    pairs = sampled_eigenpairs(rbf(3.0), gauss_legendre(25))
    t, a = torch.tensor([0.1, 0.5, 0.8]).double(), torch.tensor([1.0, -2.0, 0.5]).double()
    c = a @ (pairs.values * pairs.functions(t))
    assert pairs.squared_norm(c).item() == pytest.approx((a @ rbf(3.0)(t[:, None]).to_dense() @ a).item(), rel=1e-6)


@pytest.mark.parametrize(
    "pairs", [laplace_eigenpairs(5), feature_eigenpairs([1.0, 3.0]), sampled_eigenpairs(rbf(3.0), gauss_legendre(6))]
)
def test_slopes_are_derivatives(pairs):
    factor, t, step = EigenFactor(pairs), torch.tensor([[0.2], [0.7]]).double(), 1e-6
    differences = (factor(t + step) - factor(t - step)) / (2 * step)
    assert torch.allclose(factor.slopes(t), differences, atol=1e-6)


def test_eigenpairs_reject_invalid_arguments():
    with pytest.raises(InputError, match="curves"):
        laplace_eigenpairs(3).coefficients(torch.zeros(4, 5).double(), gauss_legendre(6))
    with pytest.raises(InputError, match="measure"):
        sampled_eigenpairs(rbf(1.0), TaskMeasure(np.zeros((2, 3))))
    with pytest.raises(InputError, match="lengthscale"):
        laplace_eigenpairs(3, lengthscale=-1.0)


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


def test_sampled_eigenfunctions_require_no_gradient_and_do_not_follow_the_kernel():
    kernel, tasks = rbf(3.0), torch.linspace(0, 1, 7, dtype=torch.float64)
    assert any(parameter.requires_grad for parameter in kernel.requires_grad_(True).parameters())
    pairs = sampled_eigenpairs(kernel, gauss_legendre(25))
    before = pairs.functions(tasks)
    assert not before.requires_grad and not pairs.values.requires_grad
    kernel.lengthscale = 0.1
    assert torch.equal(pairs.functions(tasks), before)


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
