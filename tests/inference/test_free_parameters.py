"""Which parameters are inferred: those on which the evidence depends, and which somebody reads."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.free_parameters import freeze_unused, read_entries
from ovkgp.inference.training.log_posterior import named_values
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel


def data(p=2, n=30):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.standard_normal((n, 2)))
    return X, X[:, :1] + torch.from_numpy(rng.standard_normal((n, p)))


def trained(gp):
    return {name.rpartition(".")[2] for name, parameter in gp.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    "known, expected", ((False, {"raw_lengthscale", "constant", "log_scale"}), (True, {"raw_lengthscale", "constant"}))
)
def test_a_noise_that_is_not_used_is_frozen(known, expected):
    X, Y = data(1)
    gp = OperatorValuedGP(RBFKernel())
    freeze_unused(gp, gp.evidence(X, Y, torch.ones_like(Y) if known else None))
    assert trained(gp) == expected


def test_statistics_freeze_what_would_make_others_and_change_nothing():
    X, Y = data()
    for mean, noise, missing, expected in (
        ("constant", "per_output", False, {"raw_outputscale", "loadings", "raw_diagonal", "constant", "log_scale"}),
        ("constant", "full", True, {"constant"}),
    ):
        kernel = ScaleKernel(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2))
        gp = OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 5, random_state=0))
        statistics = gp.statistics(X, _holes(Y, missing))
        before = {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}
        freeze_unused(gp, gp.evidence(statistics), is_gathered=True)
        assert trained(gp) == expected
        assert all(torch.equal(parameter, before[name]) for name, parameter in gp.named_parameters())


def _holes(Y, missing):
    Y = Y.clone()
    if missing:
        Y[3, 1] = torch.nan
    return Y


def test_inducing_points_are_no_hyperparameters():
    X, Y = data()
    gp = VariationalGP(DecomposableKernel(RBFKernel(), num_outputs=2), inducing=5, learn_inducing=True)
    freeze_unused(gp, gp.evidence(X, Y))
    assert "points" not in trained(gp) and "raw_lengthscale" in trained(gp)


def test_entries_that_nobody_reads():
    X, Y = data()
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), "zero", "full")
    vector = ParameterVector(gp)
    before = vector.get()
    read = read_entries(vector, gp.evidence(X, Y), lambda: named_values(gp))
    names = [name for entry in vector.entries for name in [entry.name] * entry.parameter.numel()]
    unread = [name for name, is_read in zip(names, read, strict=True) if not is_read]
    assert unread == ["noise_model.lower"] * 3 and np.array_equal(vector.get(), before)
    # a lengthscale that one row says nothing about is read all the same
    alone = OperatorValuedGP(RBFKernel(), "zero", 0.1)
    assert read_entries(ParameterVector(alone), alone.evidence(X[:1], Y[:1, :1]), lambda: named_values(alone)).all()
