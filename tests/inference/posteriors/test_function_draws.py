"""Functions of which each is evaluated at its own row, and the noise that belongs to them."""

import numpy as np
import pytest
import torch
from gp_cases import Problem

import ovkgp
from ovkgp.exceptions import OptionError

CASES = {
    "exact": dict(name="icm, rank 2", noise="matrix", missing=0.0),
    "dense": dict(name="helmholtz", noise="vector"),
    "features": dict(name="icm, rank 2", noise="matrix", missing=0.0, features="orff", n=40),
    "independent": dict(name="independent", noise="vector"),
}
K = 70  # more than a block of pairs


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(30, 3))
    Y = np.column_stack([np.sin(4 * X[:, 0]), X.sum(1)]) + 0.1 * rng.normal(size=(30, 2))
    return X, Y


def check_pairs(draws, test):
    index = torch.from_numpy(np.random.default_rng(1).integers(K, size=90))
    X = test[torch.from_numpy(np.random.default_rng(2).integers(len(test), size=90))]
    whole = draws(X)
    expected = torch.stack([whole[s, i] for i, s in enumerate(index.tolist())])
    torch.testing.assert_close(draws.evaluate_pairs(X, index), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_pairs_are_values_of_the_functions(case):
    problem = Problem(**CASES[case])
    posterior = problem.condition()
    draws = posterior.sample_functions(K, random_state=0)
    check_pairs(draws, problem.test)
    torch.testing.assert_close(draws.noise, posterior.noise.expand(K, -1, -1))


@pytest.mark.parametrize(
    "options", [{}, {"kernel": "decomposable"}, {"kernel": "independent", "noise": "per_output"}], ids=str
)
def test_pairs_of_mixtures_are_values_of_the_functions(regression, options):
    model = ovkgp.GPRegressor(**options, random_state=0).fit(*regression)
    draws = model.posterior_.sample_functions(K, random_state=0)
    check_pairs(draws, model.scaling_.inputs(regression[0]))
    assert draws.noise.shape == (K, 2, 2) and bool((torch.linalg.eigvalsh(draws.noise) > 0).all())
    # draws of the hyperparameters have different noise, of which that of the posterior is the average
    assert len(draws.noise.unique(dim=0)) > 1
    average = draws.noise.diagonal(dim1=-2, dim2=-1).mean(0)
    torch.testing.assert_close(average, model.posterior_.noise.diagonal(), rtol=0.1, atol=0)


def test_stack_noise_has_the_correlation_of_new_observations(regression):
    X, Y = regression
    Y = Y + 0.2 * np.random.default_rng(3).normal(size=(30, 1))
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    noise = model.posterior_.sample_functions(50, random_state=0).noise
    correlation = noise[:, 0, 1] / (noise[:, 0, 0] * noise[:, 1, 1]).sqrt()
    expected = torch.full((50,), float(model.posterior_.correlation[0, 1]), dtype=torch.float64)
    assert expected[0] > 0.3
    torch.testing.assert_close(correlation, expected)


def test_functions_of_a_process_without_observations_have_no_noise():
    problem = Problem("curl-free", "float")
    draws = problem.condition().potential().sample_functions(2, random_state=0)
    with pytest.raises(OptionError, match="no Gaussian noise"):
        _ = draws.noise
