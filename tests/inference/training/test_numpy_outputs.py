"""Tests of `ovkgp.inference.training.numpy_outputs`."""

import numpy as np
import pytest
import torch
from gp_cases import CosSinFeatures
from numpy_cases import assert_derivatives, away

from ovkgp.inference.model.mean_noise import OutputNoise, PolynomialMean, WrappedMean
from ovkgp.inference.model.observations import validate_observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.numpy_outputs import make_mean_node, make_noise_node, make_output_node
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector
from ovkgp.kernels import FreeMatrix, FullMatrix, KnownMatrix, MeanRegularizedMatrix, OutputMatrix

MATRICES = {
    "free": lambda: FreeMatrix(3, 2),
    "full": lambda: FullMatrix(3),
    "coupled": lambda: MeanRegularizedMatrix(3, 0.3),
    "known": lambda: KnownMatrix(torch.eye(3)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_output_nodes_match_torch(name):
    module = MATRICES[name]().double()
    values, theta = away(module)
    node = make_output_node(module, values)
    np.testing.assert_allclose(node.matrix(theta)[0], module().detach(), rtol=1e-12)
    assert_derivatives(node.matrix, theta, np.random.default_rng(1).standard_normal((3, 3)))


@pytest.mark.parametrize("kind", ("shared", "per_output", "full"))
def test_noise_nodes_match_torch(kind):
    module = OutputNoise(kind, 3)
    values, theta = away(module)
    node = make_noise_node(module, values)
    np.testing.assert_allclose(node.matrix(theta)[0], module.matrix().detach(), rtol=1e-12)
    assert_derivatives(node.matrix, theta, np.random.default_rng(1).standard_normal((3, 3)))
    if kind != "full":
        one = make_noise_node(module, values, 1)
        np.testing.assert_allclose(one.variances(theta)[0], module.matrix().detach()[1, 1:2], rtol=1e-12)
        assert_derivatives(one.variances, theta, np.array([0.7]))


@pytest.mark.parametrize("index", (None, 1))
@pytest.mark.parametrize("degree", (-1, 0, 1))
def test_mean_nodes_match_torch(degree, index):
    X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = validate_observations(X, torch.zeros(6, 3), 3)
    mean = PolynomialMean(3, degree)
    mean.set_num_dims(2)
    values, theta = away(mean)
    node = make_mean_node(mean, data, values, index)
    columns = slice(None) if index is None else [index]
    expected = mean(X).detach()[:, columns].numpy()
    np.testing.assert_allclose(np.broadcast_to(node.values(theta), expected.shape), expected, rtol=1e-12, atol=1e-14)
    by_value = np.random.default_rng(1).standard_normal(expected.shape)
    assert_derivatives(lambda t: (node.values(t) + np.zeros(expected.shape), node.backward), theta, by_value)


class OwnMatrix(OutputMatrix):
    """A trained matrix of the user's own."""

    def __init__(self):
        super().__init__(num_outputs=2)
        self.register_parameter("raw", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))

    def forward(self):
        return torch.diag(self.raw.exp())


def test_nodes_reject_unknown_trained_modules():
    values = NumpyVector(ParameterVector(torch.nn.Module()))
    with pytest.raises(NoAnalyticForm, match="OwnMatrix"):
        make_output_node(OwnMatrix(), values)
    data = validate_observations(torch.zeros(2, 1), torch.zeros(2, 3), 3)
    with pytest.raises(NoAnalyticForm, match="WrappedMean"):
        make_mean_node(WrappedMean(CosSinFeatures(3), 3), data, values)
    frozen = OwnMatrix().requires_grad_(False)
    np.testing.assert_allclose(make_output_node(frozen, values).matrix(np.zeros(0))[0], np.e * np.eye(2), rtol=1e-12)
