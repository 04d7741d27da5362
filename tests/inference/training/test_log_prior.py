"""Priors as plain functions, against torch's densities of the raw parameters and central differences."""

import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior

from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.training.initialization import register_noise_prior
from ovkgp.inference.training.log_prior import numpy_priors, raw_log_prior
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector
from ovkgp.kernels import FreeMatrix, FullMatrix


def exact(*numbers):
    return [torch.tensor(number, dtype=torch.float64) for number in numbers]


def lengths():
    return RBFKernel(lengthscale_prior=LogNormalPrior(*exact(0.3, 0.8)), ard_num_dims=3)


def loadings():
    matrix = FreeMatrix(3, 2)
    matrix.register_prior("loadings_prior", NormalPrior(*exact(0.2, 1.5)), "loadings")
    return matrix


def noise():
    module = OutputNoise("per_output", 3)
    register_noise_prior(module)
    return module


def covariance(module):
    loc = torch.tensor([0.1, -0.4, 0.9], dtype=torch.float64)
    register_covariance_prior(module, CovariancePrior(loc, 0.7, 1.7))
    return module


def uniform():
    inside = {"lengthscale_constraint": Interval(0.5, 2.0), "lengthscale_prior": UniformPrior(*exact(0.25, 4.0))}
    return RBFKernel(**inside)


MODULES = {
    "log-normal": lengths,
    "normal": loadings,
    "variances": noise,
    "matrix": lambda: covariance(FullMatrix(3)),
    "full noise": lambda: covariance(OutputNoise("full", 3)),
    "uniform": uniform,
    "none": RBFKernel,
    "two": lambda: ScaleKernel(lengths(), outputscale_prior=NormalPrior(*exact(1.0, 2.0))),
}


@pytest.mark.parametrize("name", MODULES)
def test_density_of_u_is_that_of_torch(name):
    module = MODULES[name]().double()
    vector = ParameterVector(module)
    plain, u = NumpyVector(vector), np.linspace(-0.8, 0.7, len(vector))
    if name == "full noise":  # its upper triangle is not read
        u[3:] = np.tril(u[3:].reshape(3, 3), -1).ravel()
    vector.set(u)
    terms = numpy_priors(module, plain)

    def density(u):
        theta, slope, log_slope, by_slope = plain.values(u)
        out = np.zeros_like(theta)
        value = sum(term(theta, out) for term in terms) + log_slope
        return value, out * slope + by_slope

    flat = [not any(True for _ in module.named_priors())] * len(vector.entries)
    if name == "normal":
        flat = [False, True]
    expected = raw_log_prior(module).item() + vector.log_slopes(flat)[0]
    value, gradient = density(u)
    assert value == pytest.approx(expected, rel=1e-10)
    found = [(density(u + 1e-5 * e)[0] - density(u - 1e-5 * e)[0]) / 2e-5 for e in np.eye(len(u))]
    np.testing.assert_allclose(gradient, found, rtol=1e-6, atol=1e-8)


def test_other_priors_are_not_plain():
    escaping = RBFKernel(lengthscale_prior=UniformPrior(*exact(0.25, 4.0)))
    function = RBFKernel()
    function.register_prior(
        "square_prior", LogNormalPrior(*exact(0.0, 1.0)), lambda module: module.lengthscale.square()
    )
    unit = RBFKernel()  # at a lengthscale of one a prior on its inverse looks like one on itself
    unit.lengthscale = 1.0
    unit.register_prior("inverse_prior", NormalPrior(*exact(1.0, 0.5)), lambda module: 1 / module.lengthscale)
    at_zero = OutputNoise("per_output", 2)  # and exp(s) like exp(2s)
    at_zero.log_scale.data.zero_()
    at_zero.register_prior("std_prior", LogNormalPrior(*exact(0.0, 1.0)), lambda module: module.log_scale.exp())
    for module in (unit, at_zero, RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)), escaping, function):
        with pytest.raises(NoAnalyticForm):
            numpy_priors(module, NumpyVector(ParameterVector(module.double())))
