"""Outputs that share nothing are trained one by one, to the optimum of all together."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import observations
from ovkgp.inference.training.initialization import log_prior, register_default_priors, register_noise_prior
from ovkgp.inference.training.maximize import can_train_apart, train_apart
from ovkgp.kernels import DecomposableKernel, IndependentKernel


def table():
    generator = torch.Generator().manual_seed(0)
    X = 6 * torch.rand(50, 1, generator=generator, dtype=torch.float64)
    Y = torch.cat([X.sin(), 3 * (2 * X).cos() + 10], 1) + 0.1 * torch.randn(50, 2, generator=generator)
    Y[::4, 0] = torch.nan
    return X, Y


def independent():
    return IndependentKernel([ScaleKernel(RBFKernel()) for _ in range(2)])


def model(mean="constant", noise="per_output", priors=True):
    gp = OperatorValuedGP(independent(), mean=mean, noise=noise)
    if priors:
        register_default_priors(gp.kernel, 1)
        register_noise_prior(gp.noise_model)
    return gp


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("noise", ["per_output", [0.01, 0.02]])
def test_the_optimum_is_that_of_all_together(mean, noise):
    X, Y = table()
    together, apart = model(mean, noise), model(mean, noise)
    together.fit(X, Y, start="data", tolerance=1e-9)
    apart.observe(X, Y, None)
    train_apart(apart, observations(X, Y, 2), tolerance=1e-9)
    values = [(gp.log_evidence(X, Y) + log_prior(gp)).item() for gp in (together, apart)]
    assert values[1] == pytest.approx(values[0], rel=1e-6)


def test_who_can_be_trained_apart():
    assert can_train_apart(model())
    assert not can_train_apart(model(noise="shared"))
    assert not can_train_apart(model(noise="full"))
    assert not can_train_apart(OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2)))
    kernel = independent()
    assert not can_train_apart(OperatorValuedGP(kernel, features=ORFF(kernel, 5, num_dims=1, random_state=0)))


def test_fit_trains_apart_first():
    X, Y = table()
    gp = model().fit(X, Y)
    assert gp.fit_report_.num_rows == 50  # the report is that of the last look at all outputs together
    assert gp.fit_report_.converged and gp.fit_report_.iterations < 15
