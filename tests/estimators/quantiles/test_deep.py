"""Tests of `ovkgp.estimators.quantiles.deep`."""

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


def test_network_learns_a_direction_that_the_kernel_alone_does_not():
    X, y = one_direction(150, 0)
    test = one_direction(500, 1)
    found = deep(extractor_rate=3e-2).fit(X, y)
    shallow = InfiniteQuantileRegressor(lengthscale="median", lam=1e-3, random_state=0).fit(X, y)
    ours, theirs = (model.pinball_loss(*test, LEVELS).sum() for model in (found, shallow))
    assert ours < 0.5 * theirs
    weights = found.function_.inputs.factor.network.weight[0].numpy()
    direction = np.random.default_rng(99).standard_normal(8)
    cosine = abs(weights @ direction) / np.linalg.norm(weights) / np.linalg.norm(direction)
    assert cosine > 0.97


def test_fit_does_not_modify_the_given_network():
    network = projection()
    before = network.weight.clone()
    deep(feature_extractor=network, extractor_epochs=3).fit(*one_direction(40, 0))
    assert torch.equal(network.weight, before)
    assert network.weight.dtype == torch.float32


def test_weights_are_solved_for_an_untrained_network():
    X, y = one_direction(40, 0)
    model = deep(extractor_epochs=1, extractor_rate=1e-12).fit(X, y)
    network = model.function_.inputs.factor.network
    torch.testing.assert_close(network.weight, projection().weight.double(), atol=1e-9, rtol=0)
    assert model.fit_report_.converged


def test_fit_is_reproducible_with_a_seed():
    X, y = one_direction(40, 0)
    first, second = (deep(extractor_epochs=5).fit(X, y).predict(X, LEVELS) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_fit_keeps_the_global_random_state():
    X, y = one_direction(40, 0)
    model = deep(feature_extractor=torch.nn.Sequential(torch.nn.Dropout(0.1), projection()), extractor_epochs=2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model.fit(X, y)
    assert torch.equal(torch.rand(3), expected)


def test_network_of_wrong_output_shape_raises():
    with pytest.raises(InputError, match="feature_extractor"):
        deep(feature_extractor=torch.nn.Sequential(projection(), torch.nn.Flatten(0))).fit(*one_direction(20, 0))


def test_deep_factor_applies_the_network_first():
    network = projection().double()
    X = torch.from_numpy(one_direction(6, 0)[0])
    factor = input_factor(network(X).detach(), lengthscale=1.0)
    phi = DeepFactor(network, factor)
    torch.testing.assert_close(phi(X), factor(network(X).detach()))
    assert not phi(X).requires_grad
