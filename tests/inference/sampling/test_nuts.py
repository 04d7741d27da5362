"""Chains on densities whose moments are known."""

import numpy as np
import pytest
from sampler_cases import Gaussian, GlobalState, KnownDensity, correlated, half_plane
from scipy.stats import truncnorm

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling.diagnostics import effective_size
from ovkgp.inference.sampling.nuts import truncate_to_equal_length, sample_nuts


def standard_errors(values, expected):
    """Return the error of the mean of draws (chains, draws) in Monte Carlo standard errors."""
    return abs(values.mean() - expected) / (values.std() / np.sqrt(effective_size(values)))


def test_nuts_draws_have_moments_of_gaussian():
    density = correlated()
    sampled = sample_nuts(density, 300, 200, 2, [1, 2])
    assert sampled.u.shape == (2, 300, 3)
    for i in range(3):
        values = sampled.u[..., i]
        assert standard_errors(values, density.mean[i]) < 4
        assert standard_errors((values - density.mean[i]) ** 2, density.covariance[i, i]) < 4
    assert sampled.attrs == {"interrupted": 0, "mode_converged": 1}


def test_nuts_records_statistics_of_each_draw():
    density = correlated()
    sampled = sample_nuts(density, 50, 50, 2, [1, 2])
    stats = sampled.stats
    assert set(stats) == {"lp", "energy", "acceptance_rate", "n_steps", "step_size", "diverging"}
    np.testing.assert_allclose(stats["lp"].ravel(), [density(u)[0] for u in sampled.flat], rtol=1e-10)
    assert not stats["diverging"].any() and stats["diverging"].dtype == bool
    assert ((stats["acceptance_rate"] > 0) & (stats["acceptance_rate"] <= 1)).all()
    assert (stats["n_steps"] >= 1).all()
    assert (stats["step_size"] == stats["step_size"][:, :1]).all()  # fixed after the warm-up
    # energy = kinetic (χ² with 3 degrees of freedom, halved) + potential of the draw before
    kinetic = stats["energy"][:, 1:] + stats["lp"][:, :-1]
    assert (kinetic > 0).all() and kinetic.mean() == pytest.approx(1.5, abs=0.6)


def test_nuts_rejects_and_counts_failures():
    density = half_plane()
    sampled = sample_nuts(density, 400, 200, 2, [1, 2])
    assert (sampled.flat[:, 0] >= -0.5).all()
    assert density.failures > 0
    assert sampled.stats["diverging"].any()
    assert standard_errors(sampled.u[..., 0], truncnorm(-0.5, np.inf).mean()) < 4
    assert standard_errors(sampled.u[..., 1], 0.0) < 4


def test_nuts_moves_with_short_warm_up():
    sampled = sample_nuts(correlated(), 100, 20, 1, [1])
    assert not sampled.stats["diverging"].any() and len(np.unique(sampled.flat[:, 0])) > 80


def test_nuts_fails_without_initial_point():
    class Hole(Gaussian):
        def __call__(self, u):
            return super().__call__(u) if np.abs(u - self.mean).max() < 1e-2 else (-np.inf, 0 * u)

    with pytest.raises(FactorizationError, match="No initial point"):
        sample_nuts(Hole(np.zeros(2), np.eye(2)), 5, 5, 1, [0])


def test_nuts_is_reproducible_and_chains_differ():
    first, again = (sample_nuts(correlated(), 20, 20, 2, [3, 4]) for _ in range(2))
    assert (first.u == again.u).all()
    assert all((first.stats[name] == again.stats[name]).all() for name in first.stats)
    assert (first.u[0] != first.u[1]).all()


def test_global_state_is_unchanged():
    import pyro
    import torch

    pyro.get_param_store()["mine"] = torch.ones(2)
    before = GlobalState()
    sample_nuts(correlated(), 5, 5, 1, [0])
    assert GlobalState() == before
    with pytest.raises(KeyboardInterrupt):
        sample_nuts(correlated(interrupt_at=20), 5, 50, 1, [0])
    assert GlobalState() == before
    del pyro.get_param_store()["mine"]


def evaluations_of(draws, tune, seeds):
    """Return the total number of evaluations."""
    density = correlated()
    sample_nuts(density, draws, tune, len(seeds), seeds)
    return density.evaluations


def test_interrupted_first_chain_keeps_draws():
    at = evaluations_of(40, 20, [1]) - 30
    with pytest.warns(FitWarning, match="interrupted; 1 of 3 chains"):
        sampled = sample_nuts(correlated(interrupt_at=at), 40, 20, 3, [1, 2, 3])
    assert sampled.attrs["interrupted"] == 1
    assert len(sampled.u) == 1 and 20 <= sampled.u.shape[1] < 40
    whole = sample_nuts(correlated(), 40, 20, 3, [1, 2, 3])
    assert (sampled.u[0] == whole.u[0, : sampled.u.shape[1]]).all()


def test_interrupted_later_chain_keeps_complete_chains():
    at = evaluations_of(30, 20, [1]) + 40  # in the warm-up of the second chain
    with pytest.warns(FitWarning, match="1 of 2 chains with 30 of 30 draws"):
        sampled = sample_nuts(correlated(interrupt_at=at), 30, 20, 2, [1, 2])
    assert sampled.u.shape == (1, 30, 3)
    at = evaluations_of(30, 20, [1, 2]) - 12  # near the end of the second
    with pytest.warns(FitWarning, match="2 of 2 chains"):
        sampled = sample_nuts(correlated(interrupt_at=at), 30, 20, 2, [1, 2])
    assert len(sampled.u) == 2 and 15 < sampled.u.shape[1] < 30


def test_interrupt_before_first_draw_is_raised():
    with pytest.raises(KeyboardInterrupt, match="before the first draw"):
        sample_nuts(correlated(interrupt_at=60), 50, 50, 2, [1, 2])


@pytest.mark.parametrize(
    "lengths, kept",
    [([3], (1, 3)), ([0], None), ([10, 0], (1, 10)), ([10, 4], (1, 10)), ([10, 6], (2, 6)), ([10, 10, 7], (3, 7))],
)
def test_truncation_keeps_most_draws(lengths, kept):
    block = truncate_to_equal_length([list(range(length)) for length in lengths])
    assert (len(block), len(block[0])) == kept if kept else block == []


def test_nuts_samples_skewed_density():
    def function(u):  # e^u ~ Gamma(2, 1)
        return float(2 * u[0] - np.exp(u[0])), 2 - np.exp(u)

    sampled = sample_nuts(KnownDensity(function, [0.0]), 500, 200, 2, [5, 6])
    assert standard_errors(np.exp(sampled.u[..., 0]), 2.0) < 4
