"""Three eigendecompositions against the dense matrix."""

import numpy as np
import pytest
import torch

from ovkgp.exceptions import OptionError
from ovkgp.inference.tasks.functional_ridge_grid import GridSolver, grid_log_density, rotate

N, M, P = 5, 4, 3


def covariance(rng, size, rank=None):
    root = rng.standard_normal((size, rank or size))
    return torch.from_numpy(root @ root.T)


def parts(rank=2):
    rng = np.random.default_rng(0)
    matrices = covariance(rng, N), covariance(rng, M), covariance(rng, P, rank)
    return *matrices, torch.tensor(0.4).double(), torch.from_numpy(rng.standard_normal((N, M, P)))


def dense(K, T, A, noise):
    return torch.kron(torch.kron(K, T), A) + noise * torch.eye(N * M * P)


def test_rotating_is_a_kronecker_product():
    rng = np.random.default_rng(1)
    F, S, T = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, N), (6, M), (3, P)))
    Y = parts()[-1]
    assert torch.allclose(rotate(Y, F, S, T).flatten(), torch.kron(torch.kron(F, S), T) @ Y.flatten())


def test_the_density_and_its_gradient_are_those_of_the_dense_matrix():
    inputs = [part.clone().requires_grad_() for part in parts(rank=3)]
    value = grid_log_density(*inputs)
    K, T, A, noise, Y = copies = [part.clone().requires_grad_() for part in parts(rank=3)]
    law = torch.distributions.MultivariateNormal(torch.zeros(N * M * P).double(), dense(K, T, A, noise))
    expected = law.log_prob(Y.flatten())
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    value.backward()
    expected.backward()
    for mine, theirs in zip(inputs, copies, strict=True):
        grad = theirs.grad if theirs.grad.dim() != 2 else (theirs.grad + theirs.grad.T) / 2
        assert torch.allclose(mine.grad, grad, atol=1e-9)


def test_second_derivatives_are_refused():
    inputs = [part.requires_grad_() for part in parts()]
    (slope,) = torch.autograd.grad(grid_log_density(*parts()[:3], inputs[3], inputs[4]), inputs[3])
    assert slope.isfinite()
    with pytest.raises(OptionError, match="first derivatives"):
        torch.autograd.grad(grid_log_density(*inputs), inputs[3], create_graph=True)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_solver_is_the_inverse(rank):
    K, T, A, noise, Y = parts(rank)
    solver, inverse = GridSolver(K, T, A, noise, Y), torch.linalg.inv(dense(K, T, A, noise))
    assert solver.alpha.shape == (N * M, P)
    assert torch.allclose(solver.alpha.flatten(), inverse @ Y.flatten(), atol=1e-9)
    rhs = torch.from_numpy(np.random.default_rng(2).standard_normal((N * M * P, 3)))
    assert torch.allclose(solver.solve(rhs), inverse @ rhs, atol=1e-9)
    assert torch.allclose(solver.inverse_diagonal().flatten(), inverse.diagonal(), atol=1e-9)
    again = GridSolver.from_tensors(solver.tensors())
    assert torch.equal(again.solve(rhs), solver.solve(rhs)) and again.log_density == solver.log_density


def test_equal_eigenvalues_of_the_output_matrix_are_found_as_one():
    """A projection has two, whatever rounding does to them, so that k variances cost two products."""
    rng = np.random.default_rng(3)
    Q, _ = np.linalg.qr(rng.standard_normal((9, 4)))
    K, T, _, noise, _ = parts()
    solver = GridSolver(K, T, torch.from_numpy(Q @ Q.T), noise, torch.zeros(N, M, 9).double())
    levels, place = solver.levels()
    assert torch.allclose(levels, torch.tensor([0.0, 1.0]).double(), atol=1e-10)
    assert int((place == 1).sum()) == 4
