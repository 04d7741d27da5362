"""Tests of `ovkgp.features.spectral.radial`."""

import torch

from ovkgp.features.spectral.radial import gamma_quantile


def test_gamma_quantiles_are_twice_differentiable():
    """Also where second derivatives are asked of a rational quadratic kernel's α."""
    shape = torch.tensor([0.4, 1.3, 7.0], dtype=torch.float64, requires_grad=True)
    uniforms = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gamma_quantile, (shape, uniforms))
    assert torch.autograd.gradgradcheck(gamma_quantile, (shape, uniforms), atol=1e-4)
