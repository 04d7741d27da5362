"""Intervals of data that were drawn from the family of the model have their nominal coverage."""

import numpy as np
import pytest
import torch

import ovkgp
from ovkgp.inference.stacking.candidates import default_candidates

LEVEL, MIN_COVERAGE, MAX_COVERAGE = 0.9, 0.88, 0.92
NUM_SETS = 200


@pytest.fixture
def checks(benchmark_of):
    return benchmark_of("defaults_checks")


def coverage(lower, upper, truth):
    return np.mean((lower.reshape(truth.shape) <= truth) & (truth <= upper.reshape(truth.shape)))


def draw_set(checks, case, number):
    """Return training and test rows of one of the 24 cases: n = 24, 40, 60; 0 or 40 % missing; p = 1, 2, 4 or a field."""
    _, n, missing, draw = case
    rng = np.random.default_rng([n, int(10 * missing), number])
    X, Y = draw(n, rng)
    return X[:n], checks.remove_outputs(Y[:n], missing, rng), X[n:], Y[n:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_default_intervals_of_simulated_families_have_nominal_coverage(checks, record_property):
    cases = list(checks._cases())
    found = []
    for number in range(NUM_SETS):
        X, Y, X_test, Y_test = draw_set(checks, cases[number % len(cases)], number)
        lower, upper = ovkgp.GPRegressor(random_state=0).fit(X, Y).predict_interval(X_test, LEVEL)
        found.append(coverage(lower, upper, Y_test))
    record_property("coverage", float(np.mean(found)))
    assert MIN_COVERAGE <= np.mean(found) <= MAX_COVERAGE


def draw_from_priors(candidate, n, seed):
    """Draw a function and noisy observations of it, with hyperparameters from the priors of a candidate."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    X = torch.from_numpy(rng.standard_normal((n + 50, 1)))
    gp = candidate.make_gp(1, 1)
    for _, module, prior, _, setting in gp.named_priors():
        scores = torch.randn(prior.loc.shape, generator=generator, dtype=torch.float64)
        setting(module, (prior.loc + prior.scale * scores).exp())
    with torch.no_grad():
        K = gp.kernel.kernels[0](X).to_dense() + 1e-8 * torch.eye(len(X), dtype=torch.float64)
        F = torch.linalg.cholesky(K) @ torch.randn(len(X), 1, generator=generator, dtype=torch.float64)
        Y = F + gp.noise.sqrt() * torch.randn(F.shape, generator=generator, dtype=torch.float64)
    return (one.numpy() for one in (X, F, Y))


def latent_coverage(seed, n=25):
    """Compute the coverage of intervals of latent values of a candidate with draws, in the units of its priors."""
    candidate = default_candidates()[seed % 3]
    X, F, Y = draw_from_priors(candidate, n, seed)
    data = ovkgp.inference.model.observations.Observations(torch.from_numpy(X[:n]), torch.from_numpy(Y[:n]))
    posterior = candidate.train(data).posterior
    lower, upper = posterior.predict(torch.from_numpy(X[n:]), noise=False).interval(LEVEL)
    return coverage(lower.numpy(), upper.numpy(), F[n:])


@pytest.mark.slow
def test_latent_intervals_with_truth_from_the_priors_have_nominal_coverage(record_property):
    found = [latent_coverage(seed) for seed in range(NUM_SETS)]
    record_property("coverage", float(np.mean(found)))
    assert MIN_COVERAGE <= np.mean(found) <= MAX_COVERAGE


def test_latent_intervals_contain_most_values():
    assert np.mean([latent_coverage(seed) for seed in range(6)]) > 0.7
