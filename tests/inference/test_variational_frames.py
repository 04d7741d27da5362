"""Frames of low-rank families, against dense matrices."""

import pytest
import torch

from ovkgp.inference.variational.families import leading_frame, unit_frame


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def precision(r, seed=0):
    """Of a few strong correlations, in coordinates of very different scales."""
    common, scales = normal(r, 3, seed=seed), (2 * normal(r, seed=seed + 1)).exp()
    return (torch.eye(r) + common @ common.mT) * scales.outer(scales).sqrt()


def losses(C):
    """(λ − 1 − log λ) / 2 of the correlations of C, the largest first."""
    scale = C.diagonal().rsqrt()
    values = torch.linalg.eigvalsh(C * scale.outer(scale))
    return ((values - 1 - values.log()) / 2).sort(descending=True).values


def lost(C, frame):
    """The divergence from the best Gaussian with a block and a diagonal in the frame to that with the precision C."""
    T = frame.outward(torch.eye(len(C)).double())
    diagonal, block = frame.restricted(C.diagonal(), C @ frame.probes)
    outside = diagonal.index_fill(0, frame.index, 1.0)
    return (outside.log().sum() + torch.logdet(block) - torch.logdet(T.mT @ C @ T)) / 2


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_coordinates_are_those_of_a_reflection_that_takes_units_to_directions(rank):
    C, eye = precision(9), torch.eye(9).double()
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank)
    H = frame.reflected(eye)
    torch.testing.assert_close(H @ H.mT, eye)
    torch.testing.assert_close(H[:, frame.index], -frame.directions)
    torch.testing.assert_close(frame.outward(eye), torch.diag(C.diagonal().rsqrt()) @ H)
    x = normal(9, seed=5)
    torch.testing.assert_close(frame.outward(frame.inward(x)), x)
    torch.testing.assert_close(frame.pulled(x), frame.outward(eye).mT @ x)
    torch.testing.assert_close(frame.outward(normal(9, 2)), frame.outward(eye) @ normal(9, 2))


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_matrices_are_restricted_and_spread_as_dense_ones(rank):
    C, M = precision(9), precision(9, seed=7)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank)
    T = frame.outward(torch.eye(9).double())
    diagonal, block = frame.restricted(M.diagonal(), M @ frame.probes)
    wanted, outside = T.mT @ M @ T, [i for i in range(9) if i not in frame.index.tolist()]
    torch.testing.assert_close(diagonal[outside], wanted.diagonal()[outside])
    torch.testing.assert_close(block, wanted[frame.index][:, frame.index])
    inner = torch.diag(diagonal.index_fill(0, frame.index, 0.0))
    inner[frame.index.unsqueeze(-1), frame.index] = block
    H = frame.reflected(torch.eye(9).double())
    plain, factor, core = frame.spread(diagonal.index_fill(0, frame.index, 0.0), block)
    torch.testing.assert_close(torch.diag(plain) + factor @ core @ factor.mT, H @ inner @ H)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_what_is_lost_is_at_most_what_the_other_eigenvectors_would_lose(rank):
    C = precision(30)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank)
    assert lost(C, frame) <= losses(C)[rank:].sum() + 1e-6
    assert lost(C, unit_frame(30, rank)) > lost(C, frame) + 0.5  # the block on as many coordinates as they are
    torch.testing.assert_close((C.diagonal().log().sum() - torch.logdet(C)) / 2, losses(C).sum())  # of mean field


def test_directions_of_small_variance_and_of_large_variance_are_both_found():
    correlations = torch.eye(40).double()
    correlations[0, 1] = correlations[1, 0] = 0.999  # eigenvalues 1.999 and 0.001
    frame = leading_frame(lambda columns: correlations @ columns, correlations.diagonal(), 1)
    torch.testing.assert_close(frame.directions[:2].flatten().abs(), torch.tensor([0.5, 0.5]).double().sqrt())
    assert frame.directions[0] * frame.directions[1] < 0
