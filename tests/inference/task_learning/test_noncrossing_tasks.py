import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from noncrossing_cases import GAMMA_T, gaussian_blocks, rbf
from scipy.stats import norm

from ovkgp.exceptions import InputError, SmoothnessError
from ovkgp.inference.tasks.factors import derivative_task_factor
from ovkgp.kernels import LaplaceKernel

NODES = torch.tensor([0.1, 0.35, 0.6, 0.9], dtype=torch.float64)
SLOPES = torch.tensor([0.2, 0.6, 0.75], dtype=torch.float64)


def test_gram_has_the_blocks_of_lt_43_and_is_positive():
    factor = derivative_task_factor(rbf(GAMMA_T), NODES, SLOPES)
    k, second = gaussian_blocks(NODES, NODES)[0], gaussian_blocks(NODES, SLOPES)[2]
    dense = np.block([[k, second], [second.T, gaussian_blocks(SLOPES, SLOPES)[3]]])
    assert np.allclose(factor.gram, dense, atol=1e-14)
    assert np.linalg.eigvalsh(factor.gram.numpy()).min() > 0


def test_rows_and_slopes_reproduce_kernel_and_derivatives_on_the_span():
    factor = derivative_task_factor(rbf(GAMMA_T), NODES, SLOPES)
    points = torch.linspace(0, 1, 7, dtype=torch.float64)
    k, first, second, both = gaussian_blocks(points, NODES)[:2] + gaussian_blocks(points, SLOPES)[2:]
    assert np.allclose(factor(points) @ factor(NODES).T, k, atol=1e-9)
    assert np.allclose(factor.slopes(points) @ factor(NODES).T, first, atol=1e-9)
    assert np.allclose(factor(points) @ factor.slopes(SLOPES).T, second, atol=1e-9)
    assert np.allclose(factor.slopes(points) @ factor.slopes(SLOPES).T, both, atol=1e-8)


@pytest.mark.parametrize("kernel", [rbf(GAMMA_T), ScaleKernel(MaternKernel(nu=2.5)).double()])
def test_derivative_of_the_function_is_the_bottom_rows_of_the_gram(kernel):
    """B-14: ∂_θ h = ⟨h, ∂_2 k⟩ = bottom rows of G c, against central differences of the function."""
    factor = derivative_task_factor(kernel, NODES, SLOPES)
    c = torch.tensor([0.4, -1.0, 0.3, 0.8, 0.5, -0.7, 0.2], dtype=torch.float64)
    weights = torch.cat([factor(NODES), factor.slopes(SLOPES)]).T @ c
    step = 1e-5
    differences = (factor(SLOPES + step) - factor(SLOPES - step)) @ weights / (2 * step)
    assert torch.allclose(factor.slopes(SLOPES) @ weights, (factor.gram @ c)[4:], atol=1e-9)
    assert torch.allclose(differences, (factor.gram @ c)[4:], atol=1e-8)
    assert torch.isclose(weights @ weights, c @ factor.gram @ c, rtol=1e-10)


def test_derivative_of_the_function_by_autograd():
    factor = derivative_task_factor(rbf(GAMMA_T), NODES, SLOPES)
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
    factor = derivative_task_factor(rbf(GAMMA_T), theta, SLOPES)
    psi = factor(theta)
    weights = torch.linalg.solve(psi.T @ psi + noise * torch.eye(psi.shape[1]), psi.T @ y)
    alpha = np.linalg.solve(gaussian_blocks(theta, theta)[0] + noise * np.eye(8), y.numpy())
    joint = gaussian_blocks(SLOPES, theta)[1] @ alpha  # cov(∂_θ h, y) cov(y)⁻¹ y
    point = SLOPES.clone().requires_grad_()
    mean = (-GAMMA_T * (point[:, None] - theta) ** 2).exp() @ torch.from_numpy(alpha)
    (slope,) = torch.autograd.grad(mean.sum(), point)
    assert np.allclose(joint, slope, atol=1e-10)
    assert np.allclose(factor.slopes(SLOPES) @ weights, joint, atol=1e-7)


def test_g_12_monotone_data_without_noise_leave_no_chance_of_a_fall():
    chances = []
    for count in (3, 6, 12):
        theta = torch.linspace(0, 1, count, dtype=torch.float64)
        factor = derivative_task_factor(rbf(GAMMA_T), theta, SLOPES)
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
    factor = derivative_task_factor(kernel, [0.2, 0.8])
    before = factor(NODES)
    kernel.lengthscale = 9.0
    assert before.dtype == torch.float64
    assert torch.equal(factor(NODES), before)
    assert torch.equal(factor(NODES[:, None]), before)


def test_levels_given_twice_are_dropped_by_the_cutoff():
    twice = derivative_task_factor(rbf(GAMMA_T), NODES.repeat(2), SLOPES.repeat(2))
    once = derivative_task_factor(rbf(GAMMA_T), NODES, SLOPES)
    assert twice.projection.shape[1] == once.projection.shape[1] == 7
    assert torch.allclose(twice(SLOPES) @ twice(NODES).T, once(SLOPES) @ once(NODES).T, atol=1e-9)


@pytest.mark.parametrize("kernel", [LaplaceKernel(), MaternKernel(nu=0.5)])
def test_kernels_with_a_kink_are_rejected(kernel):
    with pytest.raises(SmoothnessError, match="RBFKernel"):
        derivative_task_factor(kernel, NODES, SLOPES)


@pytest.mark.parametrize("nodes", [torch.tensor([0.1, torch.nan]), torch.zeros(2, 2)])
def test_bad_levels_are_input_errors(nodes):
    with pytest.raises(InputError, match="nodes"):
        derivative_task_factor(RBFKernel(), nodes)
