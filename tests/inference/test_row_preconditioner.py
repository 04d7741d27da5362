"""N + L Lᵀ, with L from the rows of the kernel, against dense matrices."""

import numpy as np
import pytest
import torch
from gp_cases import NOISES, Problem, close

from ovkgp.inference.algebra.preconditioners import pivoted_cholesky
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.ridge.products import KernelProducts, KernelRows, LowRankPreconditioner
from ovkgp.inference.strategies.exact import noise_of_rows


def setting(name="curl-free", noise="matrix", missing=0.3, chunk_rows=4):
    problem = Problem(name, noise, missing, n=12, level=1e-2)
    model, data = problem.gp.frozen().model, Observations(problem.X, problem.Y, problem.known)
    with torch.no_grad():
        C = KernelProducts(model.kernel, data.X, noise_of_rows(model, data), data.seen, chunk_rows)
    return problem, C, KernelRows(model.kernel, data.X, data.seen)


@pytest.mark.parametrize("name", ["curl-free", "lmc"])
def test_rows_make_the_pivoted_factor_of_the_dense_matrix(name):
    problem, _, rows = setting(name)
    oracle = problem.oracle()
    K = torch.from_numpy(np.where(np.outer(oracle.seen, oracle.seen), oracle.K, 0.0))
    close(rows.diagonal(), K.diagonal())
    factor = pivoted_cholesky(rows, 30, 1e-9)
    close(factor @ factor.mT, K, 1e-6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_preconditioner_and_its_root(noise, missing):
    problem, C, rows = setting("curl-free", noise, missing)
    factor = pivoted_cholesky(rows, 6, 0.0)
    P, oracle = LowRankPreconditioner(C, factor), problem.oracle()
    index = np.ix_(oracle.seen, oracle.seen)
    dense = (oracle.N + (factor @ factor.mT).numpy())[index]
    V = C.stacked(torch.randn(len(factor), 2, generator=torch.Generator().manual_seed(0)).double())
    close(C.flat(P.solve(V))[oracle.seen], np.linalg.solve(dense, C.flat(V)[oracle.seen].numpy()))
    close(P.half(P.half_transposed(V)), P.solve(V))
    W = torch.randn_like(V) * C.seen.unsqueeze(1)
    assert (P.half(V) * W).sum().item() == pytest.approx((V * P.half_transposed(W)).sum().item())
