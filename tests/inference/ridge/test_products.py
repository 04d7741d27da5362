"""Tests of `ovkgp.inference.ridge.products`."""

import pickle

import numpy as np
import pytest
import torch
from gp_cases import NOISES, Problem, close
from linear_operator import to_dense
from pairwise import pairwise

from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra.kronecker_sum import pivoted_cholesky
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.ridge.products import (
    KernelProducts,
    KernelRows,
    LowRankPreconditioner,
    MatrixFreeSystem,
    ProductSolver,
    WeightProducts,
)
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.strategies.exact import row_noise


def setting(name="curl-free", noise="matrix", missing=0.3, chunk_rows=4):
    problem = Problem(name, noise, missing, n=12, level=1e-2)
    model, data = problem.gp.frozen().model, Observations(problem.X, problem.Y, problem.known)
    with torch.no_grad():
        C = KernelProducts(model.kernel, data.X, row_noise(model, data), data.observed, chunk_rows)
        residuals = data.Y - model.mean(data.X)
    return problem, C, KernelRows(model.kernel, data.X, data.observed), residuals


@pytest.mark.parametrize(
    ("name", "noise", "missing", "chunk_rows"),
    pairwise(
        name=["curl-free", "helmholtz", "delays", "lmc", "scalar"],
        noise=NOISES,
        missing=[0.0, 0.3],
        chunk_rows=[None, 5],
    ),
)
def test_kernel_products_and_norm_bound_agree_with_a_dense_matrix(name, noise, missing, chunk_rows):
    problem, C, _, _ = setting(name, noise, missing, chunk_rows)
    oracle = problem.oracle()
    dense = np.where(np.outer(oracle.observed, oracle.observed), oracle.K + oracle.N, 0.0)
    V = np.random.default_rng(0).standard_normal((len(dense), 3))
    close(C.flatten(C.apply(C.stack(torch.from_numpy(V)))), dense @ V)
    assert np.linalg.eigvalsh(oracle.C)[-1] <= C.norm_bound()


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
def test_product_solver_equals_the_dense_oracle(method):
    problem, C, rows, residuals = setting()
    solver, oracle = ProductSolver(C, rows, residuals, method), problem.oracle()
    close(solver.alpha.flatten(), oracle.coefficients, 1e-7)
    inverse = np.zeros_like(oracle.K)
    inverse[np.ix_(oracle.observed, oracle.observed)] = np.linalg.inv(oracle.C)
    close(solver.solve(torch.eye(len(inverse)).double()), inverse, 1e-7)
    close(solver.inverse_diagonal().flatten(), inverse.diagonal(), 1e-7)
    cross = problem.prior_covariance(problem.test, problem.X)
    close(solver.explained(torch.from_numpy(cross), "full"), cross @ inverse @ cross.T, 1e-7)
    assert torch.isnan(solver.log_density)


def systems(name="curl-free", noise="matrix", missing=0.3, chunk_rows=None):
    problem = Problem(name, noise, missing, features="orff", n=20, level=1e-2, num_frequencies=15)
    model, data = problem.gp.frozen().model, problem.gp.observe(problem.X, problem.Y, problem.known)
    products = WeightProducts(model.features, model.mean, model.noise, data, chunk_rows)
    exact = solve_ridge(problem.gp, problem.X, problem.Y, problem.known, solver="closed_form").system
    with torch.no_grad():
        return problem, MatrixFreeSystem(products), exact, model.features(problem.test)


@pytest.mark.parametrize("name", ["icm, rank 2", "lmc", "curl-free", "delays"])
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_matrix_free_system_equals_the_dense_system(name, chunk_rows):
    problem, system, exact, Phi = systems(name, chunk_rows=chunk_rows)
    close(system.weights, exact.weights, 1e-7)
    for form in ("diag", "output", "full"):
        close(system.variance(Phi, form, problem.num_outputs), exact.variance(Phi, form, problem.num_outputs), 1e-7)
    assert system.num_features == len(exact.weights)


def test_draws_have_the_mean_and_covariance_of_the_posterior():
    problem, system, exact, Phi = systems(noise="known")
    draws = system.draw(20_000, torch.Generator().manual_seed(0))
    values = draws @ Phi.to_dense().mT
    covariance = exact.variance(Phi, "full", problem.num_outputs)
    scale = covariance.diagonal().max().item()
    torch.testing.assert_close(values.mT.cov(), covariance, rtol=0, atol=0.05 * scale)
    torch.testing.assert_close(values.mean(0), Phi @ exact.weights, rtol=0, atol=5 * (scale / 20_000) ** 0.5)
    again = system.draw(3, torch.Generator().manual_seed(5))
    assert torch.equal(again, system.draw(3, torch.Generator().manual_seed(5)))


def test_matrix_free_system_has_no_log_density_and_rejects_paths():
    _, system, _, _ = systems()
    assert torch.isnan(system.log_density)
    for request in (lambda: system.path([1.0]), lambda: system.path_weights(2.0)):
        with pytest.raises(OptionError, match='solver="closed_form"'):
            request()


def test_matrix_free_system_pickles():
    _, system, _, Phi = systems()
    again = pickle.loads(pickle.dumps(system))
    assert torch.equal(again.variance(Phi), system.variance(Phi))


@pytest.mark.parametrize("name", ["curl-free", "lmc"])
def test_kernel_rows_give_the_pivoted_factor_of_the_dense_matrix(name):
    problem, _, rows, _ = setting(name)
    oracle = problem.oracle()
    K = torch.from_numpy(np.where(np.outer(oracle.observed, oracle.observed), oracle.K, 0.0))
    close(rows.diagonal(), K.diagonal())
    factor = pivoted_cholesky(rows, 30, 1e-9)
    close(factor @ factor.mT, K, 1e-6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_low_rank_preconditioner_equals_dense_inverse_and_root(noise, missing):
    problem, C, rows, _ = setting("curl-free", noise, missing)
    factor = pivoted_cholesky(rows, 6, 0.0)
    P, oracle = LowRankPreconditioner(C, factor), problem.oracle()
    index = np.ix_(oracle.observed, oracle.observed)
    dense = (oracle.N + (factor @ factor.mT).numpy())[index]
    V = C.stack(torch.randn(len(factor), 2, generator=torch.Generator().manual_seed(0)).double())
    close(C.flatten(P.solve(V))[oracle.observed], np.linalg.solve(dense, C.flatten(V)[oracle.observed].numpy()))
    close(P.half(P.half_transposed(V)), P.solve(V))
    W = torch.randn_like(V) * C.observed.unsqueeze(1)
    assert (P.half(V) * W).sum().item() == pytest.approx((V * P.half_transposed(W)).sum().item())


# --- products with features -------------------------------------------------------------------------------------------


def feature_setting(name, noise, missing, chunk_rows):
    problem = Problem(name, noise, missing, features="orff", n=11)
    model = problem.gp.frozen().model
    data = problem.gp.observe(problem.X, problem.Y, problem.known)
    return problem, WeightProducts(model.features, model.mean, model.noise, data, chunk_rows)


@pytest.mark.parametrize(
    ("name", "noise", "missing", "chunk_rows"),
    pairwise(
        name=["icm, rank 2", "lmc", "curl-free", "delays"], noise=NOISES, missing=[0.0, 0.3], chunk_rows=[None, 4]
    ),
)
def test_weight_products_agree_with_dense_matrices(name, noise, missing, chunk_rows):
    problem, products = feature_setting(name, noise, missing, chunk_rows)
    oracle = problem.oracle()
    Phi = to_dense(problem.gp.features(problem.X)).detach().numpy()[oracle.observed]
    N = oracle.N[np.ix_(oracle.observed, oracle.observed)]
    A, v = Phi.T @ np.linalg.solve(N, Phi), Phi.T @ np.linalg.solve(N, oracle.residual)
    V = np.random.default_rng(0).standard_normal((len(v), 3))
    with torch.no_grad():
        close(products.matrix(), A)
        close(products.moment().squeeze(-1), v)
        close(products.apply(torch.from_numpy(V)), V + A @ V)
        forward = products.forward(torch.from_numpy(V[:, 0]))
        close(products.adjoint(forward), A @ V[:, 0])
        columns = products.forward(torch.from_numpy(V))
        close(products.adjoint_columns(columns), A @ V)
        assert products.trace == pytest.approx(np.trace(A))
        assert products.targets().square().sum().item() == pytest.approx(
            oracle.residual @ np.linalg.solve(N, oracle.residual)
        )
        assert not bool(forward[~products.data.observed].any())


def test_noise_draws_have_the_covariance_of_the_moment():
    _, products = feature_setting("curl-free", "matrix", 0.3, 4)
    with torch.no_grad():
        A = products.matrix()
        draws = products.noise_draws(20_000, torch.Generator().manual_seed(0))
        torch.testing.assert_close(draws @ draws.mT / 20_000, A, rtol=0, atol=0.03 * A.diagonal().max().item())


def test_chunks_are_evaluated_again_unless_one_holds_all_rows():
    _, products = feature_setting("curl-free", "float", 0.0, 4)
    assert [rows for _, _, rows in products.chunks()] == [slice(0, 4), slice(4, 8), slice(8, 11)]
    assert next(products.chunks())[0] is not next(products.chunks())[0]
    _, whole = feature_setting("curl-free", "float", 0.0, None)
    assert next(whole.chunks())[0] is next(whole.chunks())[0]
