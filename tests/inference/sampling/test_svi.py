"""Tests of `ovkgp.inference.sampling.svi`."""

import numpy as np
import pyro
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sampler_cases import Gaussian, GlobalState, KnownDensity, correlated, half_plane

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling import svi
from ovkgp.inference.sampling.diagnostics import draw_where_finite
from ovkgp.inference.sampling.laplace import find_laplace_approximation
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.sampling.svi import BatchDensity, sample_svi
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational import gp as variational_gp
from ovkgp.inference.variational import training as variational_training
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel


@pytest.mark.slow
def test_multivariate_guide_finds_gaussian():
    density = correlated()
    sampled = sample_svi(density, 2000, "multivariate", seed=0)
    deviations = np.sqrt(np.diag(density.covariance))
    assert (np.abs(sampled.flat.mean(0) - density.mean) < 0.15 * deviations).all()
    np.testing.assert_allclose(sampled.flat.std(0), deviations, rtol=0.1)
    np.testing.assert_allclose(
        np.corrcoef(sampled.flat.T), density.covariance / np.outer(deviations, deviations), atol=0.08
    )
    assert sampled.attrs["elbo"] == pytest.approx(0.0, abs=0.02)  # log of the normalizer, 1
    assert sampled.attrs["khat"] < 0.7


@pytest.mark.slow
def test_normal_guide_finds_conditional_stds():
    # the independent Gaussian nearest to N(m, S) has the variances 1 / (S⁻¹)_ii
    density = Gaussian([1.0, -2.0], [[1.0, 0.8], [0.8, 1.0]])
    with pytest.warns(FitWarning, match="k̂"):
        sampled = sample_svi(density, 2000, "normal", seed=0)
    np.testing.assert_allclose(sampled.flat.std(0), [0.6, 0.6], rtol=0.1)
    np.testing.assert_allclose(sampled.flat.mean(0), density.mean, atol=0.1)
    assert abs(np.corrcoef(sampled.flat.T)[0, 1]) < 0.1
    assert sampled.attrs["elbo"] == pytest.approx(np.log(0.6), abs=0.05)  # −KL = ½ log det of the correlations


@pytest.mark.slow
def test_low_rank_guide_finds_direction_plus_diagonal():
    direction = np.array([1.0, -2.0, 0.5, 1.0])
    density = Gaussian(np.zeros(4), np.diag([0.5, 0.3, 0.4, 0.2]) + np.outer(direction, direction))
    sampled = sample_svi(density, 2000, "low_rank", seed=0)
    np.testing.assert_allclose(np.cov(sampled.flat.T), density.covariance, atol=0.15 * density.covariance.max())
    assert sampled.attrs["elbo"] > -0.1


@pytest.mark.slow
def test_multivariate_bound_is_best_and_below_normalizer():
    density = correlated()
    found = {guide: sample_svi(density, 1000, guide, seed=1).attrs for guide in ("normal", "multivariate")}
    assert found["normal"]["elbo"] + 0.1 < found["multivariate"]["elbo"] < 0.05


@pytest.mark.slow
def test_skewed_density_moves_guide_from_mode():
    # e^u ~ Gamma(2, 1): the best Gaussian in u has mean log 2 − s²/2 and variance s² = 1/2
    def function(u):
        return float(2 * u[0] - np.exp(u[0])), 2 - np.exp(u)

    sampled = sample_svi(KnownDensity(function, [0.0]), 4000, "multivariate", seed=0)
    assert sampled.flat.std() == pytest.approx(np.sqrt(0.5), rel=0.1)
    assert sampled.flat.mean() == pytest.approx(np.log(2) - 0.25, abs=0.06)


@pytest.mark.slow
def test_failures_draw_guide_back():
    density = half_plane()
    sampled = sample_svi(density, 500, "multivariate", seed=0)
    assert density.failures > 0 and np.isfinite(sampled.flat).all()
    assert sampled.u.shape == (1, 500, 2) and sampled.u[..., 0].min() >= -0.5
    assert np.isfinite(sampled.stats["lp"]).all() and 0 < sampled.attrs["num_failed_draws"] < 50


def test_svi_draws_have_shapes_and_densities():
    density = correlated()
    sampled = sample_svi(density, 30, "multivariate", seed=0)
    assert sampled.u.shape == (1, 30, 3) and sampled.attrs["guide"] == "multivariate" and sampled.attrs["steps"] > 100
    np.testing.assert_allclose(sampled.stats["lp"][0], [density(u)[0] for u in sampled.flat])


def test_svi_rejects_unknown_guide():
    with pytest.raises(OptionError, match="guide must be one of"):
        sample_svi(correlated(), 10, "flow", seed=0)


def test_interrupt_keeps_present_guide():
    with pytest.warns(FitWarning, match="interrupted"):
        sampled = sample_svi(correlated(interrupt_at=500), 100, "multivariate", seed=0)
    assert sampled.attrs["interrupted"] == 1 and sampled.u.shape == (1, 100, 3)


def test_interrupt_during_checks_keeps_draws():
    laplace = svi.guide_coordinates(find_laplace_approximation(correlated()), "normal")
    with pytest.warns(FitWarning, match="Training of q was interrupted"):
        draw, _ = svi.fit_guide(correlated(interrupt_at=100), laplace, "normal", seed=0)
    with pytest.warns(FitWarning, match="20 of 50 draws"):
        inside = draw_where_finite(correlated(interrupt_at=21), draw, 50)
    assert inside.u.shape == (20, 3) and inside.interrupted
    with pytest.raises(KeyboardInterrupt):
        draw_where_finite(correlated(interrupt_at=1), draw, 50)


def test_draws_are_reproducible():
    first, again = (sample_svi(correlated(interrupt_at=400), 20, "low_rank", seed=3).u for _ in range(2))
    assert (first == again).all()


def test_global_state_is_unchanged():
    pyro.get_param_store()["mine"] = torch.ones(2)
    before = GlobalState()
    sample_svi(correlated(interrupt_at=300), 10, "multivariate", seed=0)
    assert GlobalState() == before
    del pyro.get_param_store()["mine"]


def problem(n=60, likelihood="gaussian"):
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 6, n, dtype=torch.float64).unsqueeze(-1)
    Y = torch.cat([X.sin(), X.cos()], -1) + 0.2 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=1)
    features = ORFF(kernel, 10, num_dims=1, random_state=0)
    return VariationalGP(kernel, likelihood, features=features), X, Y


def batch_density(batch_size=20):
    gp, X, Y = problem()
    density = LogPosterior(gp, X, Y)
    density.gp.fit_variational_distribution(X, Y)
    return BatchDensity(density, density.gp.observe(X, Y), batch_size, seed=0)


def test_batch_estimates_average_to_full_estimate():
    batches = batch_density()
    u = batches.log_posterior.initial_point() + 0.1
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(3)).split(20)
    parts = [batches.estimate(u, batches.data.rows(part)) for part in rows]
    value, gradient = batches.estimate(u, batches.data)
    assert np.mean([part[0] for part in parts]) == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(np.mean([part[1] for part in parts], 0), gradient, rtol=1e-8, atol=1e-8)


def test_batch_estimate_of_all_rows_is_collapsed_density():
    batches = batch_density()
    u = batches.log_posterior.initial_point()
    value, gradient = batches.estimate(u, batches.data)
    expected, slope = batches.log_posterior(u)
    assert value == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-5)  # the envelope theorem


def test_batch_density_uses_new_rows_and_moves_weights():
    batches = batch_density()
    u = batches.log_posterior.initial_point()
    before = batches.gp.q_
    first, second = batches(u)[0], batches(u)[0]
    assert first != second and batches.gp.q_ is not before


@pytest.fixture
def _short(monkeypatch):
    """Fewer steps than a user takes."""
    monkeypatch.setattr(variational_gp, "DEFAULT_BATCH_STEPS", 400)
    monkeypatch.setattr(svi, "NUM_HALVINGS", 3)
    monkeypatch.setattr(svi, "MAX_WINDOWS_PER_STEP_SIZE", 3)


@pytest.mark.slow
def test_batch_svi_center_is_collapsed_mode_with_smaller_std(_short):
    gp, X, Y = problem()
    before, state = {name: value.clone() for name, value in gp.state_dict().items()}, GlobalState()
    options = {"draws": 200, "random_state": 0, "prior_draws": 5, "posterior_predictive": False}
    data = sample_hyperparameters(gp, X, Y, "svi", batch_size=20, **options)
    assert GlobalState() == state and all(torch.equal(before[name], value) for name, value in gp.state_dict().items())
    with torch.no_grad():  # the search for the mode begins at the center
        for name, values in data["unconstrained_posterior"].items():
            gp.get_parameter(name).copy_(torch.as_tensor(values.mean(("chain", "draw")).values))
    exact = sample_hyperparameters(gp, X, Y, "laplace", **options)
    for name in ("lengthscale", "noise"):
        ours, theirs = (np.log(one["posterior"][name].values) for one in (data, exact))
        assert (np.abs(ours.mean((0, 1)) - theirs.mean((0, 1))) < 2 * theirs.std((0, 1))).all()
        assert (ours.std((0, 1)) < 1.3 * theirs.std((0, 1))).all()
    attrs = data["posterior"].attrs
    assert attrs["batch_size"] == 20 and "khat" not in attrs


def test_batch_svi_supports_other_likelihoods():
    gp, X, Y = problem(likelihood="student_t")
    density = LogPosterior(gp, X, Y)
    density.gp.fit_variational_distribution(X, Y)
    batches = BatchDensity(density, density.gp.observe(X, Y), 20, seed=0)
    value, gradient = batches(density.initial_point())
    assert np.isfinite(value) and np.isfinite(gradient).all() and len(gradient) == len(density)
    assert {"scale", "df"} <= set(density.variables(density.initial_point()))


def test_interrupt_during_search_for_center_is_raised(monkeypatch):
    gp, X, Y = problem()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(variational_training.BatchTraining, "take_natural_step", interrupted)
    with pytest.warns(FitWarning, match="interrupted"), pytest.raises(KeyboardInterrupt, match="before the first draw"):
        sample_hyperparameters(gp, X, Y, "svi", batch_size=20, random_state=0)


def test_batch_size_requires_svi_and_variational_model():
    gp, X, Y = problem()
    with pytest.raises(OptionError, match="batch_size"):
        sample_hyperparameters(gp, X, Y, "laplace", batch_size=10)
    with pytest.raises(OptionError, match="batch_size"):
        sample_hyperparameters(OperatorValuedGP(gp.kernel), X, Y, "svi", batch_size=10)
    with pytest.raises(OptionError, match="batch_size must be at least 1"):
        sample_hyperparameters(gp, X, Y, "svi", batch_size=0)
