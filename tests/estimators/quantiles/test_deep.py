"""A learned input kernel: what a network finds, and that it stays as trained."""

import numpy as np
import pytest
import torch

from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.common.task_options import input_factor
from ovkgp.estimators.quantiles.deep import DeepFactor
from ovkgp.exceptions import InputError

LEVELS = np.array([0.1, 0.5, 0.9])


def one_direction(n, seed, d=8):
    """y depends on one direction of d."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    direction = np.random.default_rng(99).standard_normal(d)
    t = X @ direction / np.linalg.norm(direction)
    return X, np.sin(1.5 * t) + 0.1 * rng.standard_normal(n)


def projection(d=8, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Linear(d, 1)


def deep(**options):
    given = {"feature_extractor": projection(), "extractor_epochs": 80, "lam": 1e-3, "num_frequencies": 30}
    return InfiniteQuantileRegressor(random_state=0, **{**given, **options})


def test_a_network_learns_a_direction_that_the_plain_kernel_does_not_find():
    X, y = one_direction(150, 0)
    test = one_direction(500, 1)
    found = deep(extractor_rate=3e-2).fit(X, y)
    plain = InfiniteQuantileRegressor(lengthscale="median", lam=1e-3, random_state=0).fit(X, y)
    ours, theirs = (model.pinball_loss(*test, LEVELS).sum() for model in (found, plain))
    assert ours < 0.5 * theirs
    weights = found.function_.inputs.factor.network.weight[0].numpy()
    direction = np.random.default_rng(99).standard_normal(8)
    cosine = abs(weights @ direction) / np.linalg.norm(weights) / np.linalg.norm(direction)
    assert cosine > 0.97


def test_the_network_given_is_not_touched():
    network = projection()
    before = network.weight.clone()
    deep(feature_extractor=network, extractor_epochs=3).fit(*one_direction(40, 0))
    assert torch.equal(network.weight, before)
    assert network.weight.dtype == torch.float32


def test_without_epochs_of_use_the_weights_are_solved_for_the_network_as_it_is():
    X, y = one_direction(40, 0)
    model = deep(extractor_epochs=1, extractor_rate=1e-12).fit(X, y)
    network = model.function_.inputs.factor.network
    torch.testing.assert_close(network.weight, projection().weight.double(), atol=1e-9, rtol=0)
    assert model.fit_report_.converged


def test_the_same_seed_gives_the_same_model():
    X, y = one_direction(40, 0)
    first, second = (deep(extractor_epochs=5).fit(X, y).predict(X, LEVELS) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_global_random_state_is_left_alone():
    X, y = one_direction(40, 0)
    model = deep(feature_extractor=torch.nn.Sequential(torch.nn.Dropout(0.1), projection()), extractor_epochs=2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model.fit(X, y)
    assert torch.equal(torch.rand(3), expected)


def test_a_network_of_another_shape_is_refused():
    with pytest.raises(InputError, match="feature_extractor must map"):
        deep(feature_extractor=torch.nn.Sequential(projection(), torch.nn.Flatten(0))).fit(*one_direction(20, 0))


def test_a_deep_factor_is_another_factor_after_a_network():
    network = projection().double()
    X = torch.from_numpy(one_direction(6, 0)[0])
    factor = input_factor(network(X).detach(), lengthscale=1.0)
    phi = DeepFactor(network, factor)
    torch.testing.assert_close(phi(X), factor(network(X).detach()))
    assert not phi(X).requires_grad
