"""Tests of `ovkgp.inference.ridge.weight_products`."""

import numpy as np
import pytest
import torch
from gp_cases import NOISES, Problem, close
from linear_operator import to_dense
from pairwise import pairwise

from ovkgp.inference.ridge.weight_products import WeightProducts


def setting(name, noise, missing, chunk_rows):
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
    problem, products = setting(name, noise, missing, chunk_rows)
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
    _, products = setting("curl-free", "matrix", 0.3, 4)
    with torch.no_grad():
        A = products.matrix()
        draws = products.noise_draws(20_000, torch.Generator().manual_seed(0))
        torch.testing.assert_close(draws @ draws.mT / 20_000, A, rtol=0, atol=0.03 * A.diagonal().max().item())


def test_chunks_are_evaluated_again_unless_one_holds_all_rows():
    _, products = setting("curl-free", "float", 0.0, 4)
    assert [rows for _, _, rows in products.chunks()] == [slice(0, 4), slice(4, 8), slice(8, 11)]
    assert next(products.chunks())[0] is not next(products.chunks())[0]
    _, whole = setting("curl-free", "float", 0.0, None)
    assert next(whole.chunks())[0] is next(whole.chunks())[0]
