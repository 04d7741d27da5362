"""Tests of `ovkgp.inference.tasks.functional_ridge_grid`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.tasks.functional_ridge_grid import (
    GridSolver,
    PairKernelParts,
    condition_on_grid,
    grid_log_density,
    make_pairs,
    rotate,
    train_on_grid,
)
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel

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


def test_grid_log_density_and_gradient_equal_dense_algebra():
    inputs = [part.clone().requires_grad_() for part in parts(rank=3)]
    value = grid_log_density(*inputs)
    K, T, A, noise, Y = copies = [part.clone().requires_grad_() for part in parts(rank=3)]
    distribution = torch.distributions.MultivariateNormal(torch.zeros(N * M * P).double(), dense(K, T, A, noise))
    expected = distribution.log_prob(Y.flatten())
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    value.backward()
    expected.backward()
    for mine, theirs in zip(inputs, copies, strict=True):
        grad = theirs.grad if theirs.grad.dim() != 2 else (theirs.grad + theirs.grad.T) / 2
        assert torch.allclose(mine.grad, grad, atol=1e-9)


def test_grid_log_density_rejects_second_derivatives():
    inputs = [part.requires_grad_() for part in parts()]
    (slope,) = torch.autograd.grad(grid_log_density(*parts()[:3], inputs[3], inputs[4]), inputs[3])
    assert slope.isfinite()
    with pytest.raises(OptionError, match="first derivatives"):
        torch.autograd.grad(grid_log_density(*inputs), inputs[3], create_graph=True)


@pytest.mark.parametrize("rank", [1, 3])
def test_grid_solver_is_the_inverse(rank):
    K, T, A, noise, Y = parts(rank)
    solver, inverse = GridSolver(K, T, A, noise, Y), torch.linalg.inv(dense(K, T, A, noise))
    assert solver.alpha.shape == (N * M, P)
    assert torch.allclose(solver.alpha.flatten(), inverse @ Y.flatten(), atol=1e-9)
    rhs = torch.from_numpy(np.random.default_rng(2).standard_normal((N * M * P, 3)))
    assert torch.allclose(solver.solve(rhs), inverse @ rhs, atol=1e-9)
    assert torch.allclose(solver.inverse_diagonal().flatten(), inverse.diagonal(), atol=1e-9)


def test_distinct_eigenvalues_merge_equal_ones():
    """A projection has two, whatever rounding does to them, so that k variances cost two products."""
    rng = np.random.default_rng(3)
    Q, _ = np.linalg.qr(rng.standard_normal((9, 4)))
    K, T, _, noise, _ = parts()
    solver = GridSolver(K, T, torch.from_numpy(Q @ Q.T), noise, torch.zeros(N, M, 9).double())
    levels, index = solver.distinct_eigenvalues()
    assert torch.allclose(levels, torch.tensor([0.0, 1.0]).double(), atol=1e-10)
    assert int((index == 1).sum()) == 4


FUNCTIONAL_RIDGE_POSTERIOR_N, FUNCTIONAL_RIDGE_POSTERIOR_M, D, Q, FUNCTIONAL_RIDGE_POSTERIOR_P = 7, 4, 3, 2, 3


def model(rank=2, noise=0.2, scale=1.7):
    root = torch.from_numpy(np.random.default_rng(1).standard_normal((FUNCTIONAL_RIDGE_POSTERIOR_P, rank)))
    inner = DecomposableKernel(
        FunctionValuedKernel(RBFKernel(), RBFKernel(ard_num_dims=Q)), output_matrix=root @ root.T
    )
    kernel = ScaleKernel(inner).double()
    kernel.outputscale = scale
    return OperatorValuedGP(kernel, mean="zero", noise=noise)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, tasks = (
        torch.from_numpy(rng.standard_normal((FUNCTIONAL_RIDGE_POSTERIOR_N, D))),
        torch.from_numpy(rng.standard_normal((FUNCTIONAL_RIDGE_POSTERIOR_M, Q))),
    )
    points = torch.from_numpy(rng.standard_normal((5, D + Q)))
    return (
        X,
        tasks,
        torch.from_numpy(
            rng.standard_normal(
                (FUNCTIONAL_RIDGE_POSTERIOR_N, FUNCTIONAL_RIDGE_POSTERIOR_M, FUNCTIONAL_RIDGE_POSTERIOR_P)
            )
        ),
        points,
    )


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_condition_on_grid_equals_the_dense_posterior(data, rank, form):
    """G-02: the Kronecker route and the dense one agree to 1e-8."""
    X, tasks, Y, points = data
    gp = model(rank)
    gp.strategy = "dense"
    fast, slow = condition_on_grid(gp, X, tasks, Y), gp.condition(make_pairs(X, tasks), Y.flatten(0, 1))
    got, expected = fast.predict(points, form), slow.predict(points, form)
    assert torch.allclose(got.mean, expected.mean, atol=1e-8)
    name = "std" if form == "diag" else "cov"
    assert torch.allclose(getattr(got, name), getattr(expected, name), atol=1e-8)
    assert fast.log_evidence == pytest.approx(slow.log_evidence, rel=1e-10)


def test_on_grid_equals_prediction_at_pairs(data):
    X, tasks, Y, points = data
    posterior = condition_on_grid(model(), X, tasks, Y)
    inputs, others = points[:, :D], points[:3, D:]
    mean, variance = posterior.on_grid(inputs, others, "diag")
    expected = posterior.predict(make_pairs(inputs, others))
    assert torch.allclose(mean.flatten(0, 1), expected.mean, atol=1e-12)
    assert torch.allclose(variance.flatten(0, 1), expected.std.square(), atol=1e-12)


def test_draws_have_the_posterior_mean_and_variance(data):
    X, tasks, Y, points = data
    posterior = condition_on_grid(model(), X, tasks, Y)
    draws, expected = posterior.sample_functions(600, random_state=0)(points), posterior.predict(points)
    assert torch.allclose(draws.mean(0), expected.mean, atol=5 * expected.std.max().item() / 600**0.5 + 0.02)
    assert torch.allclose(draws.std(0), expected.std, rtol=0.2, atol=0.03)


def test_train_on_grid_reaches_the_evidence_of_the_dense_model(data):
    X, tasks, _, _ = data
    rng = np.random.default_rng(2)
    F = np.sin(X.numpy() @ rng.standard_normal((D, 1)))[:, None] * np.cos(tasks.numpy() @ rng.standard_normal((Q, 1)))
    Y = torch.from_numpy(
        F * np.array([1.0, -0.5, 0.3])
        + 0.1
        * rng.standard_normal(
            (FUNCTIONAL_RIDGE_POSTERIOR_N, FUNCTIONAL_RIDGE_POSTERIOR_M, FUNCTIONAL_RIDGE_POSTERIOR_P)
        )
    )
    gp, other = model(3, "shared"), model(3, "shared")
    report = train_on_grid(gp, X, tasks, Y)
    other.fit(make_pairs(X, tasks), Y.flatten(0, 1), init="current")
    assert report.converged
    assert report.log_evidence == pytest.approx(other.fit_report_.log_evidence, abs=0.05)
    assert gp.log_evidence(make_pairs(X, tasks), Y.flatten(0, 1)).item() == pytest.approx(report.log_evidence, rel=1e-8)


def test_large_grid_needs_little_memory():
    """BO C-40 with n = 400, m = 50, p = 20: the covariance of the pairs alone would take 3 GB; here nothing larger than n × m × p is made."""
    rng = np.random.default_rng(0)
    X, tasks = torch.from_numpy(rng.standard_normal((400, D))), torch.from_numpy(rng.standard_normal((50, Q)))
    kernel = DecomposableKernel(
        FunctionValuedKernel(RBFKernel(), RBFKernel(ard_num_dims=Q)), output_matrix=torch.eye(20)
    )
    gp = OperatorValuedGP(kernel, mean="zero", noise=0.1)
    posterior = condition_on_grid(gp, X, tasks, torch.from_numpy(rng.standard_normal((400, 50, 20))))
    assert max(tensor.numel() for tensor in vars(posterior.solver).values()) == 400 * 50 * 20
    mean, variance = posterior.on_grid(X[:3], tasks[:2], "diag")
    assert mean.shape == variance.shape == (3, 2, 20)


def test_grid_rejects_other_kernels_and_noises(data):
    X, tasks, Y, _ = data
    with pytest.raises(KernelTypeError, match="FunctionValuedKernel"):
        PairKernelParts(RBFKernel())
    with pytest.raises(InputError, match="noise"):
        condition_on_grid(model(noise="per_output"), X, tasks, Y)
