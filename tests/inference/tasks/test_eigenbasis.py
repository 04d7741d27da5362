"""Tests of `ovkgp.inference.tasks.eigenbasis`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.eigenbasis import (
    EigenFactor,
    feature_eigenpairs,
    laplace_eigenpairs,
    sampled_eigenpairs,
    uniform_moments,
)
from ovkgp.losses import TaskMeasure, gauss_legendre

FINE = gauss_legendre(400)


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
def test_the_laplace_pairs_are_those_of_the_operator_at_any_lengthscale(lengthscale):
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


def test_the_moments_of_fourier_features_in_closed_form():
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


def test_squared_norm_of_a_combination_of_sections():
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
