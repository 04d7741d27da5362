"""Gaussians trained by Pyro, on densities for which the best one is known."""

import numpy as np
import pyro
import pytest
import torch
from sampler_cases import Gaussian, GlobalState, KnownDensity, correlated, half_plane

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.sampling import svi as autoguides
from ovkgp.inference.sampling.draws import draw_inside
from ovkgp.inference.sampling.laplace import local_gaussian
from ovkgp.inference.sampling.svi import sample_svi


def test_the_multivariate_guide_finds_a_gaussian():
    density = correlated()
    sampled = sample_svi(density, 2000, "multivariate", seed=0)
    deviations = np.sqrt(np.diag(density.covariance))
    assert (np.abs(sampled.flat.mean(0) - density.mean) < 0.15 * deviations).all()
    np.testing.assert_allclose(sampled.flat.std(0), deviations, rtol=0.1)
    np.testing.assert_allclose(
        np.corrcoef(sampled.flat.T), density.covariance / np.outer(deviations, deviations), atol=0.08
    )
    assert sampled.attrs["elbo"] == pytest.approx(0.0, abs=0.02)  # log of the normaliser, 1
    assert sampled.attrs["khat"] < 0.7


def test_the_normal_guide_finds_the_conditional_spreads():
    # the independent Gaussian nearest to N(m, S) has the variances 1 / (S⁻¹)_ii
    density = Gaussian([1.0, -2.0], [[1.0, 0.8], [0.8, 1.0]])
    with pytest.warns(FitWarning, match="k̂"):
        sampled = sample_svi(density, 2000, "normal", seed=0)
    np.testing.assert_allclose(sampled.flat.std(0), [0.6, 0.6], rtol=0.1)
    np.testing.assert_allclose(sampled.flat.mean(0), density.mean, atol=0.1)
    assert abs(np.corrcoef(sampled.flat.T)[0, 1]) < 0.1
    assert sampled.attrs["elbo"] == pytest.approx(np.log(0.6), abs=0.05)  # −KL = ½ log det of the correlations


def test_the_low_rank_guide_finds_a_direction_plus_a_diagonal():
    direction = np.array([1.0, -2.0, 0.5, 1.0])
    density = Gaussian(np.zeros(4), np.diag([0.5, 0.3, 0.4, 0.2]) + np.outer(direction, direction))
    sampled = sample_svi(density, 2000, "low_rank", seed=0)
    np.testing.assert_allclose(np.cov(sampled.flat.T), density.covariance, atol=0.15 * density.covariance.max())
    assert sampled.attrs["elbo"] > -0.1


def test_the_multivariate_bound_is_the_best_and_none_exceeds_the_normaliser():
    density = correlated()
    found = {guide: sample_svi(density, 1000, guide, seed=1).attrs for guide in ("normal", "multivariate")}
    assert found["normal"]["elbo"] + 0.1 < found["multivariate"]["elbo"] < 0.05


def test_a_skewed_density_moves_the_guide_away_from_the_mode():
    # e^u ~ Gamma(2, 1): the best Gaussian in u has mean log 2 − s²/2 and variance s² = 1/2
    def function(u):
        return float(2 * u[0] - np.exp(u[0])), 2 - np.exp(u)

    sampled = sample_svi(KnownDensity(function, [0.0]), 4000, "multivariate", seed=0)
    assert sampled.flat.std() == pytest.approx(np.sqrt(0.5), rel=0.1)
    assert sampled.flat.mean() == pytest.approx(np.log(2) - 0.25, abs=0.06)


def test_a_place_that_cannot_be_evaluated_draws_the_guide_back():
    density = half_plane()
    sampled = sample_svi(density, 500, "multivariate", seed=0)
    assert density.failures > 0 and np.isfinite(sampled.flat).all()
    assert sampled.u.shape == (1, 500, 2) and sampled.u[..., 0].min() >= -0.5
    assert np.isfinite(sampled.stats["lp"]).all() and 0 < sampled.attrs["num_failed_draws"] < 50


def test_shapes_and_densities():
    density = correlated()
    sampled = sample_svi(density, 30, "multivariate", seed=0)
    assert sampled.u.shape == (1, 30, 3) and sampled.attrs["guide"] == "multivariate" and sampled.attrs["steps"] > 100
    np.testing.assert_allclose(sampled.stats["lp"][0], [density(u)[0] for u in sampled.flat])


def test_an_unknown_guide_is_refused():
    with pytest.raises(OptionError, match="guide must be one of"):
        sample_svi(correlated(), 10, "flow", seed=0)


def test_ctrl_c_keeps_the_guide_as_it_is():
    with pytest.warns(FitWarning, match="interrupted"):
        sampled = sample_svi(correlated(interrupt_at=500), 100, "multivariate", seed=0)
    assert sampled.attrs["interrupted"] == 1 and sampled.u.shape == (1, 100, 3)


def test_ctrl_c_while_draws_are_checked_keeps_those_so_far():
    local = autoguides.coordinates(local_gaussian(correlated()), "normal")
    with pytest.warns(FitWarning, match="training q was interrupted"):
        draw, _ = autoguides.fitted_guide(correlated(interrupt_at=100), local, "normal", seed=0)
    with pytest.warns(FitWarning, match="kept 20 of 50 draws"):
        inside = draw_inside(correlated(interrupt_at=21), draw, 50)
    assert inside.u.shape == (20, 3) and inside.interrupted
    with pytest.raises(KeyboardInterrupt):
        draw_inside(correlated(interrupt_at=1), draw, 50)


def test_the_same_seed_gives_the_same_draws():
    first, again = (sample_svi(correlated(interrupt_at=400), 20, "low_rank", seed=3).u for _ in range(2))
    assert (first == again).all()


def test_global_state_is_left_alone():
    pyro.get_param_store()["mine"] = torch.ones(2)
    before = GlobalState()
    sample_svi(correlated(interrupt_at=300), 10, "multivariate", seed=0)
    assert GlobalState() == before
    del pyro.get_param_store()["mine"]
