"""K + N of any kernel by rows, and its solver, against dense matrices."""

import numpy as np
import pytest
import torch
from gp_cases import NOISES, Problem, close

from ovkgp.exceptions import OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.ridge.products import KernelProducts, KernelRows, ProductSolver
from ovkgp.inference.strategies.exact import noise_of_rows


def setting(name="curl-free", noise="matrix", missing=0.3, chunk_rows=4):
    problem = Problem(name, noise, missing, n=12, level=1e-2)
    model, data = problem.gp.frozen().model, Observations(problem.X, problem.Y, problem.known)
    with torch.no_grad():
        C = KernelProducts(model.kernel, data.X, noise_of_rows(model, data), data.seen, chunk_rows)
        residuals = data.Y - model.mean(data.X)
    return problem, C, KernelRows(model.kernel, data.X, data.seen), residuals


@pytest.mark.parametrize("name", ["curl-free", "helmholtz", "delays", "lmc", "scalar"])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("chunk_rows", [None, 5])
def test_products_and_bound_against_a_dense_matrix(name, noise, missing, chunk_rows):
    problem, C, _, _ = setting(name, noise, missing, chunk_rows)
    oracle = problem.oracle()
    dense = np.where(np.outer(oracle.seen, oracle.seen), oracle.K + oracle.N, 0.0)
    V = np.random.default_rng(0).standard_normal((len(dense), 3))
    close(C.matmul(torch.from_numpy(V)), dense @ V)
    assert np.linalg.eigvalsh(oracle.C)[-1] <= C.norm_bound()


@pytest.mark.parametrize("method", ["cg", "lbfgs"])
def test_the_solver_knows_what_a_dense_one_knows(method):
    problem, C, rows, residuals = setting()
    solver, oracle = ProductSolver(C, rows, residuals, method), problem.oracle()
    close(solver.alpha.flatten(), oracle.coefficients, 1e-7)
    inverse = np.zeros_like(oracle.K)
    inverse[np.ix_(oracle.seen, oracle.seen)] = np.linalg.inv(oracle.C)
    close(solver.solve(torch.eye(len(inverse)).double()), inverse, 1e-7)
    close(solver.inverse_diagonal().flatten(), inverse.diagonal(), 1e-7)
    cross = problem.prior_covariance(problem.test, problem.X)
    close(solver.explained(torch.from_numpy(cross), "full"), cross @ inverse @ cross.T, 1e-7)
    assert torch.isnan(solver.log_density)
    with pytest.raises(OptionError, match='solver="closed_form"'):
        solver.tensors()
