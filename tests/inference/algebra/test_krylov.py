"""Least points of quadratics by products: two methods, one answer, and a word when they do not arrive."""

import warnings

import pytest
import torch

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.algebra.krylov import Quadratic, least_point


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
def test_both_methods_reach_the_solution(method, scale):
    quadratic, b, expected = problem(scale=scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = least_point(quadratic, b[:, None, None], method, 1e-11, 5000).solution
    torch.testing.assert_close(x.flatten(), expected, rtol=0, atol=1e-7 * expected.abs().max().item())


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
def test_too_few_iterations_are_a_warning_with_the_residual_and_advice(method):
    quadratic, b, _ = problem()
    with pytest.warns(FitWarning, match=rf'solver="{method}" stopped at a relative residual of .* max_iter'):
        least_point(quadratic, b[:, None, None], method, 1e-11, 3)


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
def test_zero_has_the_solution_zero(method):
    quadratic, b, _ = problem()
    assert not bool(least_point(quadratic, 0 * b[:, None, None], method, 1e-9, 10).solution.any())


def test_nan_is_an_error():
    quadratic = Quadratic(lambda V: V * torch.nan, lambda V: V, lambda V: V, lambda V: V, 1.0)
    with pytest.raises(FactorizationError, match="NaN"):
        least_point(quadratic, torch.ones(3, 1, 1).double(), "cg", 1e-9, 5)


def test_progress_is_shown_when_asked_for(capsys):
    quadratic, b, _ = problem()
    least_point(quadratic, b[:, None, None], "cg", 1e-9, 100, verbose=1)
    assert "product" in capsys.readouterr().err
    least_point(quadratic, b[:, None, None], "cg", 1e-9, 100)
    assert capsys.readouterr().err == ""
