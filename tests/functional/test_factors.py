"""Tests of `ovkgp.functional.factors`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import ConstantKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from loss_cases import normal
from noncrossing_cases import gaussian_blocks
from scipy.optimize import minimize
from scipy.stats import norm
from task_cases import GAMMA_T, GAMMA_X, M, N, case, gauss, inputs, rbf

from ovkgp.exceptions import FactorizationError, InputError, OptionError, SmoothnessError
from ovkgp.features import ORFF, ORFFKernel
from ovkgp.functional.factors import (
    DerivativeTaskFactor,
    FeatureFactor,
    KernelFactor,
    LevelFactor,
    mixed_coordinates,
    mixed_norm,
    section_norms,
)
from ovkgp.inference.tasks.one_class import OneClassProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.kernels import DecomposableKernel, LaplaceKernel
from ovkgp.losses import IntegralLoss, SmoothedPinball, TaskMeasure, gauss_legendre

ANCHORS, OTHERS = normal(7, 2, seed=0), normal(5, 2, seed=1)
MEASURE = gauss_legendre(M)


def gram(kernel, a, b):
    return kernel(a, b).to_dense().detach()


def features(kernel, num_frequencies=20, num_dims=1):
    return FeatureFactor(ORFF(kernel, num_frequencies, num_dims=num_dims, random_state=0).double())


# --- a kernel on its anchors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [rbf(0.5), MaternKernel(nu=1.5).double(), LaplaceKernel().double()])
def test_rows_reproduce_the_kernel_between_anchors_and_any_point(kernel):
    phi = KernelFactor(kernel, ANCHORS)
    torch.testing.assert_close(phi.anchor_rows, phi(ANCHORS), atol=1e-8, rtol=0)
    torch.testing.assert_close(phi(ANCHORS) @ phi(ANCHORS).T, gram(kernel, ANCHORS, ANCHORS), atol=1e-10, rtol=0)
    torch.testing.assert_close(phi(OTHERS) @ phi(ANCHORS).T, gram(kernel, OTHERS, ANCHORS), atol=1e-10, rtol=0)


def test_kernel_factor_is_the_projection_on_the_anchors():
    """φ(x)ᵀφ(z) = k(x, X) K⁻¹ k(X, z), which is never more than the kernel on the diagonal."""
    kernel = rbf(0.5)
    rows = KernelFactor(kernel, ANCHORS)(OTHERS)
    cross, K = gram(kernel, OTHERS, ANCHORS).numpy(), gram(kernel, ANCHORS, ANCHORS).numpy()
    np.testing.assert_allclose(rows @ rows.T, cross @ np.linalg.solve(K, cross.T), atol=1e-9)
    assert (rows.square().sum(-1) <= 1 + 1e-12).all()


def test_kernel_factor_drops_repeated_points():
    kernel = rbf(0.5)
    once, twice = KernelFactor(kernel, ANCHORS), KernelFactor(kernel, torch.cat([ANCHORS, ANCHORS]))
    assert twice(OTHERS).shape == once(OTHERS).shape == (5, 7)
    torch.testing.assert_close(twice(OTHERS) @ twice(OTHERS).T, once(OTHERS) @ once(OTHERS).T, atol=1e-8, rtol=0)


def test_constant_kernel_and_single_point_have_one_coordinate():
    constant = ConstantKernel().double()
    constant.constant = torch.tensor(4.0).double()
    phi = KernelFactor(constant, ANCHORS)
    torch.testing.assert_close(phi(OTHERS).abs(), torch.full((5, 1), 2.0).double())
    one = KernelFactor(rbf(0.5), ANCHORS[:1])
    torch.testing.assert_close(one(OTHERS).abs(), gram(rbf(0.5), OTHERS, ANCHORS[:1]))


def test_cutoff_drops_small_eigenvalues_only():
    points = torch.linspace(0, 1, 30).double()
    values = torch.linalg.eigvalsh(gram(rbf(1.0), points[:, None], points[:, None]))
    rough = KernelFactor(rbf(1.0), points, cutoff=1e-3)
    assert rough(points).shape[1] == int((values > 1e-3 * values[-1]).sum())
    error = rough(points) @ rough(points).T - gram(rbf(1.0), points[:, None], points[:, None])
    assert error.abs().max() <= 1e-3 * values[-1]


@pytest.mark.parametrize("kernel", [rbf(3.0), MaternKernel(nu=2.5).double(), PeriodicKernel().double()])
def test_slopes_of_a_kernel_are_differences_of_its_rows(kernel):
    tasks = torch.linspace(0.05, 0.95, 6).double()
    psi, points, step = KernelFactor(kernel, tasks), torch.tensor([0.05, 0.3, 0.77]).double(), 1e-6
    differences = (psi(points + step) - psi(points - step)) / (2 * step)
    # the rows of small eigenvalues are steep, and k(θ, anchors) has the rounding of 1
    torch.testing.assert_close(psi.slopes(points), differences, rtol=1e-6, atol=1e-6 * psi.projection.abs().max())


def test_kernel_with_a_kink_has_no_slopes():
    with pytest.raises(SmoothnessError):
        KernelFactor(LaplaceKernel().double(), torch.rand(4).double()).slopes(torch.rand(2).double())


def test_kernel_factor_rejects_invalid_kernels_and_points():
    phi = KernelFactor(rbf(1.0), ANCHORS)
    with pytest.raises(InputError, match="2 columns"):
        phi(torch.rand(3).double())
    with pytest.raises(InputError, match="NaN"):
        phi(torch.full((2, 2), torch.nan))
    with pytest.raises(InputError, match="one column"):
        phi.slopes(OTHERS)
    with pytest.raises(OptionError, match="cutoff"):
        KernelFactor(rbf(1.0), ANCHORS, cutoff=1.0)
    zero = ConstantKernel().double()
    zero.initialize(raw_constant=torch.tensor(-1e4).double())
    with pytest.raises(FactorizationError, match="outputscale"):
        KernelFactor(zero, ANCHORS)
    with pytest.raises(FactorizationError, match="positive semi-definite"):
        KernelFactor(_Indefinite(), ANCHORS)


class _Indefinite(RBFKernel):
    """The negative squared distance, which is only conditionally positive."""

    def forward(self, x1, x2, **params):
        return -self.covar_dist(x1, x2, square_dist=True)


# --- features -------------------------------------------------------------------------------------------------------------


def test_features_are_coordinates_of_their_kernel():
    """φ̃ᵀφ̃ is the kernel of the features, everywhere; the factor of that kernel has the same Gram matrix on its anchors."""
    phi = features(rbf(0.5), num_dims=2)
    kernel = ORFFKernel(phi.features)
    again = KernelFactor(kernel, ANCHORS)
    torch.testing.assert_close(phi(OTHERS) @ phi(ANCHORS).T, gram(kernel, OTHERS, ANCHORS))
    torch.testing.assert_close(again(OTHERS) @ again(ANCHORS).T, phi(OTHERS) @ phi(ANCHORS).T, atol=1e-10, rtol=0)


def test_many_features_approximate_the_kernel():
    phi = features(rbf(0.5), num_frequencies=20_000, num_dims=2)
    assert (phi(OTHERS) @ phi(ANCHORS).T - gram(rbf(0.5), OTHERS, ANCHORS)).abs().max() < 0.03


def test_slopes_of_features_are_differences_of_their_rows():
    psi, points, step = features(rbf(3.0)), torch.linspace(0, 1, 4).double(), 1e-6
    differences = (psi(points + step) - psi(points - step)) / (2 * step)
    torch.testing.assert_close(psi.slopes(points), differences, rtol=1e-7, atol=1e-8)


def test_bt_e_32_slopes_carry_the_factor_of_the_features():
    """‖∂φ/∂θ‖² is a mean over frequencies, ∂∂'k(θ, θ) = 2γ for many; without the 1/√D of the features, D times that."""
    slopes = features(rbf(3.0), num_frequencies=20_000).slopes(torch.tensor([0.2, 0.9]).double())
    assert slopes.square().sum(-1).tolist() == pytest.approx([6.0, 6.0], rel=0.05)


def test_feature_factor_rejects_invalid_features():
    with pytest.raises(OptionError, match="scalar kernel"):
        FeatureFactor(ORFF(DecomposableKernel(RBFKernel(ard_num_dims=1), num_outputs=2), 5))
    with pytest.raises(InputError, match="one column"):
        features(rbf(1.0), num_dims=2).slopes(OTHERS)


# --- finitely many levels -------------------------------------------------------------------------------------------------


def test_levels_have_the_gram_matrix_they_are_given():
    levels, root = torch.tensor([0.9, 0.1, 0.5]).double(), normal(3, 2, seed=2)
    for matrix in (None, root @ root.T):
        psi = LevelFactor(levels, matrix)
        expected = torch.eye(3).double() if matrix is None else matrix
        torch.testing.assert_close(psi(levels) @ psi(levels).T, expected)
        torch.testing.assert_close(psi(levels[[2, 2]]) @ psi(levels[:1]).T, expected[[2, 2]][:, :1])


def test_level_factor_rejects_unlearned_levels():
    psi = LevelFactor(torch.tensor([0.1, 0.5]).double())
    assert psi(torch.tensor([0.1])).shape == (1, 2)  # float32, which rounds
    with pytest.raises(InputError, match="levels"):
        psi(torch.tensor([0.3]).double())
    with pytest.raises(SmoothnessError, match="RBFKernel"):
        psi.slopes(torch.tensor([0.1]).double())


@pytest.mark.parametrize(
    ("levels", "matrix", "match"),
    [
        ([0.1, 0.1], None, "different"),
        ([0.1, 0.5], torch.eye(3), "symmetric"),
        ([0.1, 0.5], torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        ([0.1, 0.5], torch.full((2, 2), torch.nan), "finite"),
    ],
)
def test_level_factor_rejects_invalid_levels(levels, matrix, match):
    with pytest.raises(InputError, match=match):
        LevelFactor(torch.tensor(levels).double(), matrix)


def test_level_factor_rejects_an_indefinite_matrix():
    with pytest.raises(FactorizationError, match="positive semi-definite"):
        LevelFactor(torch.tensor([0.1, 0.5]).double(), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


NODES = torch.tensor([0.1, 0.35, 0.6, 0.9], dtype=torch.float64)
SLOPES = torch.tensor([0.2, 0.6, 0.75], dtype=torch.float64)


def test_gram_has_the_blocks_of_lt_43_and_is_positive():
    factor = DerivativeTaskFactor(rbf(GAMMA_T), NODES, SLOPES)
    k, second = gaussian_blocks(NODES, NODES)[0], gaussian_blocks(NODES, SLOPES)[2]
    dense = np.block([[k, second], [second.T, gaussian_blocks(SLOPES, SLOPES)[3]]])
    assert np.allclose(factor.gram, dense, atol=1e-14)
    assert np.linalg.eigvalsh(factor.gram.numpy()).min() > 0


def test_rows_and_slopes_reproduce_kernel_and_derivatives_on_the_span():
    factor = DerivativeTaskFactor(rbf(GAMMA_T), NODES, SLOPES)
    points = torch.linspace(0, 1, 7, dtype=torch.float64)
    k, first, second, both = gaussian_blocks(points, NODES)[:2] + gaussian_blocks(points, SLOPES)[2:]
    assert np.allclose(factor(points) @ factor(NODES).T, k, atol=1e-9)
    assert np.allclose(factor.slopes(points) @ factor(NODES).T, first, atol=1e-9)
    assert np.allclose(factor(points) @ factor.slopes(SLOPES).T, second, atol=1e-9)
    assert np.allclose(factor.slopes(points) @ factor.slopes(SLOPES).T, both, atol=1e-8)


@pytest.mark.parametrize("kernel", [rbf(GAMMA_T), ScaleKernel(MaternKernel(nu=2.5)).double()])
def test_derivative_of_the_function_is_the_bottom_rows_of_the_gram(kernel):
    """B-14: ∂_θ h = ⟨h, ∂_2 k⟩ = bottom rows of G c, against central differences of the function."""
    factor = DerivativeTaskFactor(kernel, NODES, SLOPES)
    c = torch.tensor([0.4, -1.0, 0.3, 0.8, 0.5, -0.7, 0.2], dtype=torch.float64)
    weights = torch.cat([factor(NODES), factor.slopes(SLOPES)]).T @ c
    step = 1e-5
    differences = (factor(SLOPES + step) - factor(SLOPES - step)) @ weights / (2 * step)
    assert torch.allclose(factor.slopes(SLOPES) @ weights, (factor.gram @ c)[4:], atol=1e-9)
    assert torch.allclose(differences, (factor.gram @ c)[4:], atol=1e-8)
    assert torch.isclose(weights @ weights, c @ factor.gram @ c, rtol=1e-10)


def test_derivative_of_the_function_by_autograd():
    factor = DerivativeTaskFactor(rbf(GAMMA_T), NODES, SLOPES)
    c = torch.tensor([0.4, -1.0, 0.3, 0.8, 0.5, -0.7, 0.2], dtype=torch.float64)
    weights = torch.cat([factor(NODES), factor.slopes(SLOPES)]).T @ c
    theta = torch.linspace(0, 1, 9, dtype=torch.float64, requires_grad=True)
    to_nodes, to_slopes = theta[:, None] - NODES, theta[:, None] - SLOPES
    atoms = [(-GAMMA_T * to_nodes**2).exp(), 2 * GAMMA_T * to_slopes * (-GAMMA_T * to_slopes**2).exp()]
    h = torch.cat(atoms, -1) @ c
    (slope,) = torch.autograd.grad(h.sum(), theta)
    assert torch.allclose(factor(theta.detach()) @ weights, h, atol=1e-9)
    assert torch.allclose(factor.slopes(theta.detach()) @ weights, slope, atol=1e-8)


def test_g_12_posterior_mean_of_the_slope_is_the_slope_of_the_posterior_mean():
    theta = torch.linspace(0.05, 0.95, 8, dtype=torch.float64)
    y, noise = (3 * theta).exp() / 5, 0.01
    factor = DerivativeTaskFactor(rbf(GAMMA_T), theta, SLOPES)
    psi = factor(theta)
    weights = torch.linalg.solve(psi.T @ psi + noise * torch.eye(psi.shape[1]), psi.T @ y)
    alpha = np.linalg.solve(gaussian_blocks(theta, theta)[0] + noise * np.eye(8), y.numpy())
    joint = gaussian_blocks(SLOPES, theta)[1] @ alpha  # cov(∂_θ h, y) cov(y)⁻¹ y
    point = SLOPES.clone().requires_grad_()
    mean = (-GAMMA_T * (point[:, None] - theta) ** 2).exp() @ torch.from_numpy(alpha)
    (slope,) = torch.autograd.grad(mean.sum(), point)
    assert np.allclose(joint, slope, atol=1e-10)
    assert np.allclose(factor.slopes(SLOPES) @ weights, joint, atol=1e-7)


def test_g_12_probability_of_a_negative_slope_vanishes_with_monotone_data():
    chances = []
    for count in (3, 6, 12):
        theta = torch.linspace(0, 1, count, dtype=torch.float64)
        factor = DerivativeTaskFactor(rbf(GAMMA_T), theta, SLOPES)
        psi, rows = factor(theta), factor.slopes(SLOPES)
        precision = torch.eye(psi.shape[1], dtype=torch.float64) + psi.T @ psi / 1e-8
        mean = rows @ torch.linalg.solve(precision, psi.T @ (2 * theta) / 1e-8)
        std = (rows * torch.linalg.solve(precision, rows.T).T).sum(-1).clamp_min(1e-300).sqrt()
        chances.append(norm.cdf(-mean / std).max())
    assert chances[0] > chances[1] > chances[2] or chances[2] == 0
    assert chances[0] > 1e-4
    assert chances[-1] < 1e-12


def test_kernel_is_copied_and_single_precision_becomes_double():
    kernel = RBFKernel()
    factor = DerivativeTaskFactor(kernel, [0.2, 0.8])
    before = factor(NODES)
    kernel.lengthscale = 9.0
    assert before.dtype == torch.float64
    assert torch.equal(factor(NODES), before)
    assert torch.equal(factor(NODES[:, None]), before)


def test_derivative_factor_drops_repeated_levels():
    twice = DerivativeTaskFactor(rbf(GAMMA_T), NODES.repeat(2), SLOPES.repeat(2))
    once = DerivativeTaskFactor(rbf(GAMMA_T), NODES, SLOPES)
    assert twice.projection.shape[1] == once.projection.shape[1] == 7
    assert torch.allclose(twice(SLOPES) @ twice(NODES).T, once(SLOPES) @ once(NODES).T, atol=1e-9)


@pytest.mark.parametrize("kernel", [LaplaceKernel(), MaternKernel(nu=0.5)])
def test_kernels_with_a_kink_are_rejected(kernel):
    with pytest.raises(SmoothnessError, match="RBFKernel"):
        DerivativeTaskFactor(kernel, NODES, SLOPES)


@pytest.mark.parametrize("nodes", [torch.tensor([0.1, torch.nan]), torch.zeros(2, 2)])
def test_derivative_factor_rejects_invalid_levels(nodes):
    with pytest.raises(InputError, match="nodes"):
        DerivativeTaskFactor(RBFKernel(), nodes)


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
