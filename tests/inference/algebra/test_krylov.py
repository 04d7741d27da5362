"""Minimization of quadratics by products: both methods, and a warning if they do not converge."""

import warnings

import pytest
import torch

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.algebra.krylov import Quadratic, minimize_quadratic


def problem(condition=1e4, size=30, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q
    C = scale * Q * torch.logspace(0, torch.log10(torch.tensor(condition)).item(), size).double() @ Q.mT
    b = torch.randn(size, generator=generator).double()

    def apply(V):
        return torch.einsum("ij,jka->ika", C, V)

    scales = C.diagonal().rsqrt()[:, None, None]
    quadratic = Quadratic(apply, lambda V: V * scales**2, lambda V: V * scales, lambda V: V * scales, scale * condition)
    return quadratic, b, torch.linalg.solve(C, b)


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_minimize_quadratic_reaches_solution(method, scale):
    quadratic, b, expected = problem(scale=scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = minimize_quadratic(quadratic, b[:, None, None], method, 1e-11, 5000).solution
    torch.testing.assert_close(x.flatten(), expected, rtol=0, atol=1e-7 * expected.abs().max().item())


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
def test_minimize_quadratic_warns_after_too_few_iterations(method):
    quadratic, b, _ = problem()
    with pytest.warns(FitWarning, match=rf'solver="{method}" stopped.* max_iter'):
        minimize_quadratic(quadratic, b[:, None, None], method, 1e-11, 3)


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
def test_minimize_quadratic_of_zero_is_zero(method):
    quadratic, b, _ = problem()
    assert not bool(minimize_quadratic(quadratic, 0 * b[:, None, None], method, 1e-9, 10).solution.any())


def test_minimize_quadratic_rejects_nan():
    quadratic = Quadratic(lambda V: V * torch.nan, lambda V: V, lambda V: V, lambda V: V, 1.0)
    with pytest.raises(FactorizationError, match="NaN"):
        minimize_quadratic(quadratic, torch.ones(3, 1, 1).double(), "cg", 1e-9, 5)


def test_minimize_quadratic_shows_progress_if_verbose(capsys):
    quadratic, b, _ = problem()
    minimize_quadratic(quadratic, b[:, None, None], "cg", 1e-9, 100, verbose=1)
    assert "product" in capsys.readouterr().err
    minimize_quadratic(quadratic, b[:, None, None], "cg", 1e-9, 100)
    assert capsys.readouterr().err == ""
