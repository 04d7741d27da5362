"""Minimization of quadratics by products: both methods, a warning if they do not converge, and a sketch."""

import warnings

import pytest
import torch

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.algebra.krylov import Quadratic, SketchedPreconditioner, minimize_quadratic


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
    with pytest.warns(FitWarning, match=rf'solver="{method}" stopped.*closed_form'):
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


def smooth(size=40, decay=0.6):
    Q = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0)).double()).Q
    return Q * (1e6 * decay ** torch.arange(size).double()) @ Q.mT


def preconditioned(A, rank):
    """Eigenvalues of P̂^{-½} C P̂^{-½}."""
    C = A + torch.eye(len(A)).double()
    P = SketchedPreconditioner(lambda V: C @ V, len(A), rank=rank, like=A)
    root = P.power(torch.eye(len(A)).double().unsqueeze(-1), 0.5).squeeze(-1)
    inverse = P.power(torch.eye(len(A)).double().unsqueeze(-1), 1.0).squeeze(-1)
    torch.testing.assert_close(root @ root.mT, inverse, rtol=0, atol=1e-12)
    return torch.linalg.eigvalsh(root @ C @ root)


def test_full_sketch_equals_inverse():
    values = preconditioned(smooth(), 40)
    assert values.min() > 1 - 1e-6 and values.max() < 1 + 1e-6


def test_sketch_of_leading_directions_bounds_condition_number():
    values = preconditioned(smooth(), 20)
    assert values.max() / values.min() < 100  # that of C is 1e6


def test_exhaustive_sketch_has_tail_one():
    A = torch.diag(torch.tensor([1e5, 3.0] + [0.0] * 8)).double()
    values = preconditioned(A, 5)
    assert values.min() > 1 - 1e-6 and values.max() < 1 + 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_sketch_is_reproducible_without_global_state(seed):
    A = smooth()
    before = torch.get_rng_state()
    one, other = (SketchedPreconditioner(lambda V: V + A @ V, 40, rank=7, seed=seed, like=A) for _ in range(2))
    assert torch.equal(one.vectors, other.vectors) and torch.equal(before, torch.get_rng_state())
