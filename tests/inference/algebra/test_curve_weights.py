"""Tests of `ovkgp.inference.algebra.curve_weights` against dense matrices."""

import pytest
import torch

from ovkgp.inference.algebra.curve_weights import CurveWeights, MatrixInformation, TableInformation

N, A, B, M = 9, 4, 3, 6


def make_weights(kind, max_weights=100):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, precisions = draw(N, A), draw(N, M).abs() * (draw(N, M) > -0.5)
    functions = draw(M, B) if kind == "grid" else draw(N, M, B)
    matrices = functions.mT @ (precisions.unsqueeze(-1) * functions)  # (n, b, b)
    information = MatrixInformation(matrices) if kind == "matrices" else TableInformation(functions, precisions)
    S = torch.eye(A * B, dtype=torch.float64)
    for row, matrix in zip(inputs, matrices, strict=True):
        S += torch.kron(torch.outer(row, row), matrix)
    return CurveWeights(inputs, information, max_weights), S, draw


@pytest.mark.parametrize("kind", ["grid", "table", "matrices"])
def test_curve_weights_equal_dense_algebra(kind):
    found, S, draw = make_weights(kind)
    assert found.has_all
    W = draw(A, 2, B)
    columns = W.transpose(1, 2).flatten(0, 1)  # (a·b, 2)
    torch.testing.assert_close(found.multiply(W).transpose(1, 2).flatten(0, 1), S @ columns)
    solved = torch.linalg.solve(S, columns)
    for precondition in (None, lambda V: V / found.diagonal.unsqueeze(1)):
        solution, _ = found.solve(W, precondition)
        torch.testing.assert_close(solution.transpose(1, 2).flatten(0, 1), solved, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.log_determinant, torch.logdet(S))
    psi, phi = draw(5, A), draw(7, B)
    Z = torch.kron(psi, phi)
    expected = Z @ (torch.eye(A * B, dtype=torch.float64) - torch.linalg.inv(S)) @ Z.mT
    torch.testing.assert_close(found.explained(psi, phi, "full"), expected)
    blocks = torch.stack([expected[i * 7 : i * 7 + 7, i * 7 : i * 7 + 7] for i in range(5)])
    torch.testing.assert_close(found.explained(psi, phi, "output"), blocks)
    torch.testing.assert_close(found.explained(psi, phi, "diag"), blocks.diagonal(dim1=1, dim2=2))


def test_dropped_weights_keep_their_prior_variance():
    found, S, draw = make_weights("grid", max_weights=5)
    assert not found.has_all
    kept = found.kept.flatten()
    inner = torch.zeros_like(S)
    own = S[kept][:, kept]
    inner[torch.outer(kept, kept)] = (torch.eye(len(own)).double() - torch.linalg.inv(own)).flatten()
    psi, phi = draw(5, A), draw(7, B)
    Z = torch.kron(psi, phi)
    torch.testing.assert_close(found.explained(psi, phi, "full"), Z @ inner @ Z.mT)
    expected = torch.logdet(own) + S.diagonal()[~kept].log().sum()
    torch.testing.assert_close(found.log_determinant, expected)
