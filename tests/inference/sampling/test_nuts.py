"""Chains on densities whose moments are known."""

import numpy as np
import pytest
from sampler_cases import Gaussian, GlobalState, KnownDensity, banana, bimodal, correlated, funnel, half_plane
from scipy.stats import kstest, norm, truncnorm

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling import nuts
from ovkgp.inference.sampling.diagnostics import effective_size
from ovkgp.inference.sampling.nuts import (
    Chain,
    State,
    StepSize,
    is_turning,
    leapfrog,
    make_trajectory,
    needs_mass_adaptation,
    sample_nuts,
    truncate_to_equal_length,
)


@pytest.fixture(autouse=True)
def one_worker(monkeypatch):
    """Run chains one after another even on a busy machine, since some tests count evaluations."""
    monkeypatch.setattr(nuts, "count_workers", lambda chains, seconds: 1)


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


# --- integrator and trajectories ------------------------------------------------------------------------------------


def state_of(density, z, r):
    return State(np.asarray(z, dtype=float), np.asarray(r, dtype=float), *density(np.asarray(z, dtype=float)))


def test_leapfrog_is_reversible():
    density = funnel()
    begin = state = state_of(density, [0.3, -0.4, 0.8, 0.1], [1.0, -0.5, 0.2, 0.7])
    for step in [0.1] * 25 + [-0.1] * 25:
        state = leapfrog(density, state, step)
    for name in ("z", "r", "gradient"):
        np.testing.assert_allclose(getattr(state, name), getattr(begin, name), atol=1e-12)


def test_leapfrog_preserves_volume():
    density, size, change = banana(), 2, 1e-5

    def move(point):
        state = state_of(density, point[:size], point[size:])
        for _ in range(5):
            state = leapfrog(density, state, 0.2)
        return np.concatenate([state.z, state.r])

    at = np.array([0.4, -0.2, 0.9, -1.1])
    columns = [(move(at + change * e) - move(at - change * e)) / (2 * change) for e in np.eye(4)]
    assert np.linalg.det(np.array(columns)) == pytest.approx(1.0, abs=1e-8)  # the error of central differences


def test_leapfrog_error_is_of_second_order():
    density = correlated()
    begin = state_of(density, density.mean + 0.5, [1.0, -0.5, 0.3])
    errors = []
    for count in (200, 400):
        state = begin
        for _ in range(count):
            state = leapfrog(density, state, 0.4 / count)
        errors.append(abs(state.energy - begin.energy))
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.05)


def test_trajectory_has_consistent_statistics():
    density, rng = Gaussian(np.zeros(3), np.eye(3)), np.random.default_rng(0)
    state = state_of(density, density.mean, np.zeros(3))
    for _ in range(20):
        tree, energy = make_trajectory(density, state, 0.1, rng)
        assert 1 <= tree.n_steps <= 2**10 - 1 and 0 < tree.acceptance <= tree.n_steps
        assert tree.proposal.energy == pytest.approx(energy, abs=0.05)  # conserved up to O(step²)
        assert tree.turning and not tree.diverging
        state = tree.proposal


def test_is_turning_by_either_end():
    forward, backward = np.array([1.0, 0.1]), np.array([-1.0, 0.1])
    assert not is_turning(forward, forward, forward)
    assert is_turning(forward, backward, forward) and is_turning(forward, forward, backward)


def test_step_size_reaches_target_acceptance():
    step = StepSize(1.0, 0.8)
    for _ in range(2000):
        step.update(float(np.exp(-step.value)))  # crosses 0.8 at −log 0.8
    assert step.average == pytest.approx(-np.log(0.8), rel=0.05)


# --- densities with known moments -----------------------------------------------------------------------------------
# Means are compared with 4 Monte Carlo standard errors: 1 of 16 000 correct comparisons fails, and seeds are fixed.


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_nuts_draws_have_quantiles_of_scaled_gaussian(scale):
    covariance = scale**2 * np.array([[1.0, 0.95], [0.95, 1.0]])
    sampled = sample_nuts(Gaussian(scale * np.array([3.0, -2.0]), covariance), 500, 200, 2, [1, 2])
    for i in range(2):
        for level in (0.05, 0.5, 0.95):
            below = sampled.u[..., i] < norm(scale * [3.0, -2.0][i], scale).ppf(level)
            assert standard_errors(below.astype(float), level) < 4


def test_nuts_samples_one_variable():
    sampled = sample_nuts(Gaussian([2.0], [[9.0]]), 1000, 100, 2, [1, 2])
    assert kstest(sampled.flat[::5, 0], norm(2, 3).cdf).pvalue > 1e-3


def test_nuts_samples_funnel():
    sampled = sample_nuts(funnel(), 1500, 500, 2, [1, 2], target_accept=0.9)
    v = sampled.u[..., 0]
    assert standard_errors(v, 0.0) < 4 and standard_errors(v**2, 1.0) < 4
    assert standard_errors((v < -1).astype(float), norm.cdf(-1)) < 4  # its narrow part
    scaled = sampled.u[..., 1] * np.exp(-v / 2)
    assert standard_errors(scaled**2, 1.0) < 4


@pytest.mark.slow
def test_nuts_reports_divergences_of_narrow_funnel():
    sampled = sample_nuts(funnel(width=3.0), 300, 300, 2, [1, 2])
    assert sampled.stats["diverging"].sum() > 5


def test_nuts_samples_banana():
    sampled = sample_nuts(banana(), 1500, 500, 2, [3, 4])
    a, b = sampled.u[..., 0], sampled.u[..., 1]
    assert standard_errors(a, 0.0) < 4 and standard_errors(a**2, 1.0) < 4
    assert standard_errors(b, 0.5) < 4 and standard_errors((b - 0.5) ** 2, 0.59) < 4


def test_nuts_visits_both_modes():
    sampled = sample_nuts(bimodal(), 1500, 500, 4, [1, 2, 3, 4])
    u = sampled.u[..., 0]
    assert standard_errors(u, 0.3 * 2 - 0.7 * 2) < 4 and standard_errors(u**2, 5.0) < 4
    assert standard_errors((u > 0).astype(float), 0.3 * norm.cdf(2) + 0.7 * norm.cdf(-2)) < 4


def test_nuts_transitions_keep_joint_distribution():
    """Geweke (2004): θ drawn given data by one transition, and data given θ, in turn, keep the prior N(0, I) of θ."""
    rng, precision, theta, kept = np.random.default_rng(0), 4.0, np.zeros(2), []
    for seed in range(1500):
        y = theta + rng.standard_normal(2) / np.sqrt(precision)
        posterior = Gaussian(precision * y / (1 + precision), np.eye(2) / (1 + precision))
        state = state_of(posterior, theta, np.zeros(2))
        tree, _ = make_trajectory(posterior, state, 0.6, np.random.default_rng(seed))  # 1.3 standard deviations
        theta = tree.proposal.z
        kept.append(theta)
    kept = np.array(kept)[None]
    for i in range(2):
        assert standard_errors(kept[..., i], 0.0) < 4 and standard_errors(kept[..., i] ** 2, 1.0) < 4


# --- adaptation of the mass -----------------------------------------------------------------------------------------


def count_changes(density, monkeypatch, tune=500):
    """Return how often the coordinates of a chain change."""
    count, rescale = [0], Chain._rescale

    def counted(self, window):
        count[0] += 1
        rescale(self, window)

    monkeypatch.setattr(Chain, "_rescale", counted)
    sampled = sample_nuts(density, 100, tune, 1, [1])
    return count[0], sampled


def test_mass_is_kept_where_laplace_fits(monkeypatch):
    density = correlated()
    assert count_changes(density, monkeypatch)[0] == 0
    few = density.evaluations
    sample_nuts(density, 100, 100, 1, [1])
    assert density.evaluations - few == few  # the warm-up ends when the first window fits


def test_mass_is_adapted_where_laplace_does_not_fit(monkeypatch):
    def function(u):  # a narrow peak with a tenth of the mass of a wide Gaussian: the curvature is that of the peak
        logs = np.array([np.log(0.1 / 0.15**2), 0.0]) - (u @ u) * np.array([1 / 0.15**2, 1.0]) / 2
        value = np.logaddexp(*logs)
        return value, -u * (np.exp(logs - value) @ np.array([1 / 0.15**2, 1.0]))

    changes, sampled = count_changes(KnownDensity(function, [0.01, 0.01]), monkeypatch)
    assert changes >= 2
    assert sampled.flat.std() == pytest.approx(np.sqrt((0.1 * 0.15**2 + 1) / 1.1), rel=0.25)


def test_needs_mass_adaptation_by_variance_energy_and_divergences():
    rng = np.random.default_rng(0)

    def window(scale=1.0, energy=None, diverging=0):
        energies = rng.standard_normal(70) if energy is None else energy
        return [
            nuts.Transition(scale * rng.standard_normal(2), None, 0.0, energies[i], 0.8, 3, 1.0, i < diverging)
            for i in range(70)
        ]

    assert not needs_mass_adaptation(window())
    assert needs_mass_adaptation(window(scale=3.0)) and needs_mass_adaptation(window(scale=0.3))
    assert needs_mass_adaptation(window(energy=np.linspace(0, 5, 70)))  # a slow walk in energy
    assert not needs_mass_adaptation(window(diverging=3)) and needs_mass_adaptation(window(diverging=4))
