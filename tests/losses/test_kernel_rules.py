"""Tests of `ovkgp.losses.kernel_rules`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.integrate import quad

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.losses import gauss_legendre, gaussian_embedding, kernel_quadrature, kernel_rule


def gaussian_gram(nodes, lengthscale):
    return torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * lengthscale**2))


def test_gaussian_embedding_matches_numerical_integral():
    nodes = torch.tensor([0.0, 0.3, 0.95], dtype=torch.float64)
    z, total = gaussian_embedding(nodes, 0.2)
    for node, value in zip(nodes.tolist(), z.tolist(), strict=True):
        assert value == pytest.approx(quad(lambda t, node=node: np.exp(-((t - node) ** 2) / 0.08), 0, 1)[0], abs=1e-10)
    inner = lambda s: gaussian_embedding(torch.tensor([s], dtype=torch.float64), 0.2)[0].item()  # noqa: E731
    assert total == pytest.approx(quad(inner, 0, 1)[0], abs=1e-10)


def test_kernel_rule_is_bayesian_quadrature():
    """G-17: weights and squared error give the posterior mean and variance of ∫f for a GP observed at the nodes."""
    nodes = torch.tensor([0.1, 0.35, 0.6, 0.9], dtype=torch.float64)
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    rule = kernel_rule(gaussian_gram(nodes, 0.3), *gaussian_embedding(nodes, 0.3))
    fine = gauss_legendre(60)
    for j in range(4):
        y = torch.eye(4, dtype=torch.float64)[:, j : j + 1]
        gp = OperatorValuedGP(kernel, mean="zero", noise=1e-12)
        predicted = gp.condition(nodes[:, None], y).predict(fine.nodes[:, None], "full")
        assert rule.weights[j].item() == pytest.approx(fine.integral(predicted.mean[:, 0]).item(), abs=1e-6)
    variance = (fine.weights @ predicted.cov @ fine.weights).item()
    assert rule.error**2 == pytest.approx(variance, abs=1e-8)


def test_kernel_rule_error_bounds_functions_of_the_unit_ball():
    nodes, fine = torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64), gauss_legendre(80)
    rule = kernel_rule(gaussian_gram(nodes, 0.3), *gaussian_embedding(nodes, 0.3))
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        centers = torch.rand(6, generator=rng, dtype=torch.float64)
        gram = gaussian_gram(centers, 0.3)
        a = torch.randn(6, generator=rng, dtype=torch.float64)
        a = a / (a @ gram @ a).sqrt()

        def f(t, a=a, centers=centers):
            return torch.exp(-((t[:, None] - centers) ** 2) / 0.18) @ a

        assert abs(fine.integral(f(fine.nodes)) - rule.weights @ f(nodes)).item() <= rule.error * (1 + 1e-9)


def test_kernel_quadrature_rejects_or_clips_negative_weights():
    nodes = torch.linspace(0.3, 0.4, 5, dtype=torch.float64)
    gram, z = gaussian_gram(nodes, 0.05), gaussian_embedding(nodes, 0.05)[0]
    assert bool((kernel_rule(gram, z, 1.0).weights < 0).any())
    with pytest.raises(InputError, match="not convex"):
        kernel_quadrature(nodes, gram, z)
    assert bool((kernel_quadrature(nodes, gram, z, negative="clip").weights >= 0).all())


def test_kernel_rule_rejects_gram_of_another_size():
    with pytest.raises(InputError, match="gram"):
        kernel_rule(torch.eye(3), torch.ones(2), 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gaussian_embedding(torch.ones(1), -1.0),
        lambda: kernel_quadrature([0.5], torch.eye(1), torch.ones(1), negative="hope"),
    ],
)
def test_kernel_quadrature_rejects_invalid_options(make):
    with pytest.raises(OptionError):
        make()
