"""The prior mean of quantile curves, and signal and noise in coordinates against a dense Gaussian process."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ovkgp.estimators.quantiles.kernel import LARGEST_GUESS, NOISES, GaussianQuantiles, GaussianScales, gaussian_scales


def test_the_offset_has_the_quantiles_of_gaussian_noise():
    levels = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    np.testing.assert_allclose(GaussianQuantiles(0.7)(levels), stats.norm(0, 0.7).ppf(levels), atol=1e-12)


def test_the_slopes_of_the_offset_are_its_derivative():
    levels = torch.linspace(0.02, 0.98, 13, dtype=torch.float64).requires_grad_()
    offset = GaussianQuantiles(1.3)
    (slopes,) = torch.autograd.grad(offset(levels).sum(), levels)
    torch.testing.assert_close(offset.slopes(levels.detach()), slopes, rtol=1e-10, atol=0)


def coordinates(n=40, r=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(n, r, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return Phi, Phi @ torch.randn(r, generator=generator, dtype=torch.float64) + 0.5 * noise


def dense_log_evidence(Phi, y, signal, noise):
    covariance = signal * Phi @ Phi.T + noise * torch.eye(len(y), dtype=torch.float64)
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).item()


def test_signal_and_noise_have_the_largest_dense_evidence():
    Phi, y = coordinates()
    found = gaussian_scales(Phi, y, torch.ones(len(y), dtype=torch.float64))
    best = dense_log_evidence(Phi, y, found.signal, found.noise)
    for c in NOISES[::4].tolist():
        # at a given ratio c the best signal is the mean of the whitened squares
        whitened = torch.linalg.solve(Phi @ Phi.T + c * torch.eye(len(y), dtype=torch.float64), y)
        signal = (y @ whitened).item() / len(y)
        assert dense_log_evidence(Phi, y, signal, c * signal) <= best + 1e-9
    for factor in (0.9, 1.1):
        assert dense_log_evidence(Phi, y, factor * found.signal, factor * found.noise) < best


def test_weights_of_rows_are_copies_of_rows():
    Phi, y = coordinates()
    copies = torch.tensor([2] * 10 + [1] * 30)
    weighted = gaussian_scales(Phi, y, copies.double())
    repeated = gaussian_scales(
        Phi.repeat_interleave(copies, 0), y.repeat_interleave(copies), torch.ones(50, dtype=torch.float64)
    )
    assert weighted.signal == pytest.approx(repeated.signal, rel=1e-9)
    assert weighted.noise == pytest.approx(repeated.noise, rel=1e-9)


def test_the_first_lam_balances_the_curvature_of_the_loss_and_the_prior():
    scales = GaussianScales(signal=2.0, noise=0.04)
    assert scales.residual_scale == pytest.approx(0.2)
    assert scales.lam(100) == pytest.approx(0.3 * 0.2 / (100 * 2.0))
    # 0.3/σ is the mean over the levels of the density of Gaussian noise at its quantiles
    levels = np.arange(0.5, 1000) / 1000
    assert stats.norm.pdf(stats.norm.ppf(levels)).mean() == pytest.approx(1 / (2 * math.sqrt(math.pi)), rel=1e-3)


def test_without_a_signal_the_first_lam_is_bounded():
    assert GaussianScales(signal=1e-12, noise=1.0).lam(50) == LARGEST_GUESS
