"""Output matrices, noise and means as plain functions: values of the modules, derivatives by central differences."""

import numpy as np
import pytest
import torch
from gp_cases import Waves

from ovkgp.inference.model.mean_noise import OutputNoise, PolynomialMean, WrappedMean
from ovkgp.inference.model.observations import observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.numpy_values import NotPlain, PlainVector, plain_mean, plain_noise, plain_outputs
from ovkgp.kernels import FreeMatrix, FullMatrix, KnownMatrix, MeanRegularizedMatrix, OutputMatrix

MATRICES = {
    "free": lambda: FreeMatrix(3, 2),
    "full": lambda: FullMatrix(3),
    "coupled": lambda: MeanRegularizedMatrix(3, 0.3),
    "known": lambda: KnownMatrix(torch.eye(3)),
}


def assert_derivatives(function, theta, by_value):
    """`function` gives a value and its way back; the derivatives of ⟨by_value, value⟩ must agree."""
    _, back = function(theta)
    out, h = np.zeros(len(theta)), 1e-6
    back(by_value, out)
    steps = h * np.eye(len(theta))
    found = [np.vdot(by_value, function(theta + e)[0] - function(theta - e)[0]) / (2 * h) for e in steps]
    np.testing.assert_allclose(out, found, rtol=1e-7, atol=1e-9)


def away(module, seed=0):
    vector = ParameterVector(module)
    vector.set(vector.get() + 0.3 * np.random.default_rng(seed).standard_normal(len(vector)))
    plain = PlainVector(vector)
    return plain, plain.values(vector.get())[0]


@pytest.mark.parametrize("name", MATRICES)
def test_output_matrices(name):
    module = MATRICES[name]().double()
    plain, theta = away(module)
    piece = plain_outputs(module, plain)
    np.testing.assert_allclose(piece.matrix(theta)[0], module().detach(), rtol=1e-12)
    assert_derivatives(piece.matrix, theta, np.random.default_rng(1).standard_normal((3, 3)))


@pytest.mark.parametrize("kind", ("shared", "per_output", "full"))
def test_noise(kind):
    module = OutputNoise(kind, 3)
    plain, theta = away(module)
    piece = plain_noise(module, plain)
    np.testing.assert_allclose(piece.matrix(theta)[0], module.matrix().detach(), rtol=1e-12)
    assert_derivatives(piece.matrix, theta, np.random.default_rng(1).standard_normal((3, 3)))
    if kind != "full":
        one = plain_noise(module, plain, 1)
        np.testing.assert_allclose(one.variances(theta)[0], module.matrix().detach()[1, 1:2], rtol=1e-12)
        assert_derivatives(one.variances, theta, np.array([0.7]))


@pytest.mark.parametrize("index", (None, 1))
@pytest.mark.parametrize("degree", (-1, 0, 1))
def test_means(degree, index):
    X = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = observations(X, torch.zeros(6, 3), 3)
    mean = PolynomialMean(3, degree)
    mean.see(2)
    plain, theta = away(mean)
    piece = plain_mean(mean, data, plain, index)
    columns = slice(None) if index is None else [index]
    expected = mean(X).detach()[:, columns].numpy()
    np.testing.assert_allclose(np.broadcast_to(piece.values(theta), expected.shape), expected, rtol=1e-12, atol=1e-14)
    by_value = np.random.default_rng(1).standard_normal(expected.shape)
    assert_derivatives(lambda t: (piece.values(t) + np.zeros(expected.shape), piece.back), theta, by_value)


class OwnMatrix(OutputMatrix):
    """A trained matrix of the user's own."""

    def __init__(self):
        super().__init__(num_outputs=2)
        self.register_parameter("raw", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))

    def forward(self):
        return torch.diag(self.raw.exp())


def test_what_is_trained_and_in_no_table_is_not_plain():
    plain = PlainVector(ParameterVector(torch.nn.Module()))
    with pytest.raises(NotPlain, match="OwnMatrix"):
        plain_outputs(OwnMatrix(), plain)
    data = observations(torch.zeros(2, 1), torch.zeros(2, 3), 3)
    with pytest.raises(NotPlain, match="WrappedMean"):
        plain_mean(WrappedMean(Waves(3), 3), data, plain)
    frozen = OwnMatrix().requires_grad_(False)
    np.testing.assert_allclose(plain_outputs(frozen, plain).matrix(np.zeros(0))[0], np.e * np.eye(2), rtol=1e-12)
