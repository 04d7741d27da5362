"""Tests of `ovkgp.inference.ridge.primal_dual`."""

import warnings

import numpy as np
import pytest
import torch
from gp_cases import Problem
from gpytorch.kernels import RBFKernel
from linear_operator import to_dense
from linear_operator.utils.warnings import NumericalWarning

from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, primal_dual_residual
from ovkgp.inference.ridge import primal_dual


def figure_6_1(lam):
    """N = 50, x ~ U(−1, 1), y = sin 10x + 2x² + ½ N(0, 1), lengthscale 0.3, D = 50."""
    generator = torch.Generator().manual_seed(0)
    X = 2 * torch.rand(50, 1, generator=generator).double() - 1
    Y = (10 * X).sin() + 2 * X**2 + 0.5 * torch.randn(50, 1, generator=generator).double()
    kernel = RBFKernel(ard_num_dims=1)
    kernel.lengthscale = 0.3
    return OperatorValuedGP(kernel, "zero", lam, features=ORFF(kernel, 50, random_state=0)), X, Y


@pytest.mark.parametrize("name", ["icm, rank 2", "curl-free", "divergence-free", "lmc"])
@pytest.mark.parametrize("noise", ["float", "matrix", "known"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_bt_69_primal_and_dual_solutions_agree(name, noise, missing):
    problem = Problem(name, noise, missing, features="orff", n=20, level=0.1, num_frequencies=15)
    found = primal_dual_residual(problem.gp, problem.X, problem.Y, problem.known)
    assert found.relative < 1e-11
    assert len(found.residual) == problem.gp.features.num_features


def test_primal_dual_residual_flags_numerically_zero_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # jitter, at 1e-18
        found = [primal_dual_residual(*figure_6_1(lam)).relative for lam in (1e-2, 1e-10, 1e-18)]
    assert found[0] < 1e-12 and found[1] < 1e-3 and found[2] > 0.05


def test_without_noise_the_solutions_of_least_norm_are_equal():
    gp, X, Y = figure_6_1(1.0)
    Phi, y = to_dense(gp.features(X)).detach().numpy(), Y.numpy().ravel()
    primal = np.linalg.pinv(Phi.T @ Phi, rcond=1e-9, hermitian=True) @ Phi.T @ y
    dual = Phi.T @ np.linalg.pinv(Phi @ Phi.T, rcond=1e-9, hermitian=True) @ y
    np.testing.assert_allclose(primal, dual, rtol=0, atol=1e-4 * np.abs(dual).max())


def test_primal_dual_residual_uses_conjugate_gradients_beyond_the_dense_limit(monkeypatch):
    monkeypatch.setattr(primal_dual, "MAX_DENSE_ENTRIES", 10)
    problem = Problem("curl-free", "matrix", 0.3, features="orff", n=20, level=0.1, num_frequencies=15)
    assert primal_dual_residual(problem.gp, problem.X, problem.Y).relative < 1e-9


def test_primal_dual_residual_rejects_models_without_features():
    problem = Problem("curl-free")
    with pytest.raises(OptionError, match="feature map"):
        primal_dual_residual(problem.gp, problem.X, problem.Y)
