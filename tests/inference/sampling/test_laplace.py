"""The Gaussian at the mode."""

import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.priors import UniformPrior
from sampler_cases import Gaussian, KnownDensity, correlated, half_plane
from scipy.stats import norm

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling.laplace import find_laplace_approximation, sample_laplace, variable_names
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.kernels import DecomposableKernel


def test_laplace_is_exact_for_gaussian():
    density = correlated()
    laplace = find_laplace_approximation(density)
    np.testing.assert_allclose(laplace.mode, density.mean, atol=1e-6)
    np.testing.assert_allclose(laplace.root @ laplace.root.T, density.covariance, rtol=1e-6)
    assert laplace.log_evidence == pytest.approx(0.0, abs=1e-6)  # the density is normalized
    assert laplace.flat == ()


def test_log_q_is_density_of_u():
    density = correlated()
    laplace = find_laplace_approximation(density)
    z = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(laplace.log_q(z), [density(u)[0] for u in laplace.u(z)], rtol=1e-5)


def test_whitened_density_is_differentiable_once():
    density = correlated()
    laplace = find_laplace_approximation(density)
    z = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: laplace.value(density, z), z, eps=1e-5)
    with torch.no_grad():
        assert laplace.value(density, z).item() == pytest.approx(density(laplace.u(z.numpy()))[0], rel=1e-12)


def test_laplace_evidence_of_gamma_density_is_stirling():
    shape = 9.0  # π(u) = exp(a u − e^u) integrates to Γ(a); Laplace in u is Stirling's formula

    def function(u):
        return float(shape * u[0] - np.exp(u[0])), shape - np.exp(u)

    laplace = find_laplace_approximation(KnownDensity(function, [1.0]))
    stirling = shape * np.log(shape) - shape + np.log(2 * np.pi / shape) / 2
    assert laplace.log_evidence == pytest.approx(stirling, abs=1e-6)


def test_laplace_draws_have_moments_of_gaussian():
    density = correlated()
    sampled = sample_laplace(density, 4000, seed=1)
    assert sampled.u.shape == (1, 4000, 3)
    error = np.sqrt(np.diag(density.covariance) / 4000)
    assert (np.abs(sampled.flat.mean(0) - density.mean) < 4 * error).all()
    np.testing.assert_allclose(
        np.cov(sampled.flat.T), density.covariance, atol=0.12 * np.diag(density.covariance).max()
    )
    np.testing.assert_allclose(sampled.stats["lp"][0, :5], [density(u)[0] for u in sampled.u[0, :5]])


def test_exact_approximation_has_small_khat():
    sampled = sample_laplace(correlated(), 500, seed=1)
    assert sampled.attrs["khat"] <= 0.7
    assert sampled.attrs["elbo"] == pytest.approx(0.0, abs=1e-5)
    assert sampled.attrs["mode_converged"] == 1


def test_laplace_warns_of_poor_approximation():
    def function(u):  # 0.3 N(0, 0.2²) + 0.7 N(0, 1): the Gaussian at the mode sees the spike alone
        parts = np.array([0.3 / 0.2, 0.7]) * np.exp(-(u[0] ** 2) / 2 / np.array([0.04, 1.0]))
        return float(np.log(parts.sum())), -u * (parts @ [25.0, 1.0]) / parts.sum()

    with pytest.warns(FitWarning, match="k̂"):
        sampled = sample_laplace(KnownDensity(function, [0.1]), 2000, seed=0)
    assert sampled.attrs["khat"] > 0.7


def test_laplace_warns_of_flat_direction():
    def function(u):  # depends on the difference of the last two variables only
        slope = np.array([-u[0], u[2] - u[1], u[1] - u[2]])
        return -(u[0] ** 2 + (u[1] - u[2]) ** 2) / 2, slope

    density = KnownDensity(function, [0.1, 0.4, 0.2])
    with pytest.warns(FitWarning, match=r"0\.71 rest\[0\].*0\.71 rest\[1\]"):
        sampled = sample_laplace(density, 1000, seed=0)
    assert sampled.attrs["num_flat"] == 1
    along = sampled.flat @ np.array([0, 1, 1]) / np.sqrt(2)
    assert along.std() == pytest.approx(1.0, abs=0.1)


def test_failed_draws_are_replaced_and_counted():
    with pytest.warns(FitWarning, match="k̂"):  # of the tail
        sampled = sample_laplace(InputSlice(), 1000, seed=0)
    assert sampled.u.shape == (1, 1000, 2) and sampled.u[..., 0].max() <= 0.5
    assert np.isfinite(sampled.stats["lp"]).all()
    assert sampled.attrs["num_failed_draws"] == pytest.approx(1000 * 0.31 / 0.69, rel=0.15)


def test_truncated_gaussian_has_small_khat():
    """q restricted to where there is a density is π itself, so that the bound is the normalizer, log Φ(0.5)."""
    sampled = sample_laplace(half_plane(), 4000, seed=0)
    assert sampled.attrs["khat"] < 0.5
    assert sampled.attrs["elbo"] == pytest.approx(np.log(2 * np.pi * norm.cdf(0.5)), abs=0.03)


def test_draws_fail_without_density():
    def function(u):  # a needle between walls
        return (-np.inf, u) if np.abs(u).max() > 1e-3 else (-(u @ u) / 2, -u)

    with pytest.raises(FactorizationError, match=r"Only .* draws"):
        sample_laplace(KnownDensity(function, [0.0, 0.0]), 50, seed=0)


def test_interrupt_keeps_checked_draws():
    density = correlated()
    before = find_laplace_approximation(density) and density.evaluations
    with pytest.warns(FitWarning, match="29 of 100 draws"):
        sampled = sample_laplace(correlated(interrupt_at=before + 30), 100, seed=0)
    assert sampled.u.shape == (1, 29, 3) and sampled.attrs["interrupted"] == 1
    assert (sampled.u == sample_laplace(correlated(), 100, seed=0).u[:, :29]).all()
    with pytest.raises(KeyboardInterrupt):
        sample_laplace(correlated(interrupt_at=before + 1), 100, seed=0)


def test_laplace_warns_without_convergence():
    class Unfinished(Gaussian):
        def mode(self):
            return super().mode()._replace(converged=False)

    with pytest.warns(FitWarning, match="did not converge"):
        sample_laplace(Unfinished([2.0], [[0.25]]), 50, seed=0)


@pytest.mark.parametrize("method", ["laplace", "nuts"])
def test_laplace_at_edge_of_uniform_prior(method):
    X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
    gp = OperatorValuedGP(RBFKernel(lengthscale_prior=UniformPrior(0.5, 1.5)), mean="zero", noise=0.04)
    gp.kernel.lengthscale = 1.0
    Y = X.sin() + 0.1 * torch.cos(40 * X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        options = {"draws": 60, "tune": 60, "chains": 1, "random_state": 0}
        data = sample_hyperparameters(gp, X, Y, method, **options)
    values = data["posterior"]["lengthscale"].values
    assert values.size == 60 and 0.5 <= values.min() < values.max() <= 1.5 and values.mean() > 1.2


class InputSlice(KnownDensity):
    """N(0, I) below 0.5 with a tail that q does not have, and nothing above."""

    def __init__(self):
        super().__init__(self.density, [0.1, 0.1])

    def density(self, u):
        if u[0] > 0.5:
            return -np.inf, u
        scale = np.log1p(u @ u)
        return -scale / 2, -u / (1 + u @ u)


def test_draws_are_reproducible():
    first, again, other = (sample_laplace(correlated(), 20, seed=seed).u for seed in (3, 3, 4))
    assert (first == again).all() and (first != other).any()


def test_variable_names_follow_raw_parameters():
    assert variable_names(correlated()) == ["scale", "rest[0]", "rest[1]"]


def test_laplace_of_one_variable():
    sampled = sample_laplace(Gaussian([2.0], [[0.25]]), 2000, seed=0)
    assert sampled.flat.mean() == pytest.approx(2.0, abs=0.05) and sampled.flat.std() == pytest.approx(0.5, abs=0.05)


def test_mode_next_to_edge_is_found():
    assert find_laplace_approximation(half_plane()).mode == pytest.approx(np.zeros(2), abs=1e-6)


def test_variable_names_omit_fixed_entries():
    X = torch.linspace(0, 6, 12, dtype=torch.float64).unsqueeze(-1)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2, rank=2), mean="zero", noise="full")
    log_posterior = LogPosterior(gp, X, torch.cat([X.sin(), X.cos()], -1))
    names = variable_names(log_posterior)
    assert len(names) == len(log_posterior)
    assert "noise_model.lower[1, 0]" in names and "noise_model.lower[0, 1]" not in names
    assert "kernel.output_module.loadings[0, 1]" not in names  # triangular: a rotation means nothing
