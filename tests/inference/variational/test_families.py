"""Tests of `ovkgp.inference.variational.families`."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.variational.families import WeightGaussian, family_rank, leading_frame, prior_weights, unit_frame
from ovkgp.inference.variational.rows import DenseRows, KroneckerRows


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_q(r=6, rank=2, seed=0):
    root = normal(rank, rank, seed=seed)
    chol = torch.linalg.cholesky(root @ root.mT + torch.eye(rank)) if rank else root
    precision = 0.5 + normal(r, seed=seed + 2).square()
    return WeightGaussian(normal(r, seed=seed + 1), precision, chol, frame=random_frame(r, rank, seed))


def random_frame(r, rank, seed=0):
    root = normal(r, r, seed=seed + 3)
    C = root @ root.mT + torch.eye(r)
    return leading_frame(lambda columns: C @ columns, C.diagonal(), rank) if 0 < rank < r else None


def precision_matrix(q):
    """S⁻¹ in the basis."""
    whole = torch.diag(q.precision)
    whole[q.index.unsqueeze(-1), q.index] = q.chol @ q.chol.mT
    if q.frame is None:
        return whole
    inward = torch.linalg.inv(q.frame.to_weights(torch.eye(q.num_weights).double()))
    return inward.mT @ whole @ inward


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_weight_gaussian_equals_the_dense_gaussian(rank):
    q, rows = random_q(rank=rank), DenseRows(normal(5, 2, 6, seed=7))
    S = torch.linalg.inv(precision_matrix(q))
    prior = MultivariateNormal(torch.zeros(6).double(), torch.eye(6).double())
    torch.testing.assert_close(q.divergence, kl_divergence(MultivariateNormal(q.mean, S), prior))
    mean, blocks = q.marginals(rows, "output")
    torch.testing.assert_close(mean, rows.dense() @ q.mean)
    torch.testing.assert_close(blocks, rows.dense() @ S @ rows.dense().mT)
    torch.testing.assert_close(q.marginals(rows, "diag")[1], blocks.diagonal(dim1=-2, dim2=-1))
    flat = rows.dense().flatten(0, 1)
    torch.testing.assert_close(q.joint_covariance(rows), flat @ S @ flat.mT)
    torch.testing.assert_close(q.solve(q.mean), S @ q.mean)


@pytest.mark.parametrize("rank", [0, 2, 6])
def test_weight_gaussian_draws_have_its_mean_and_covariance(rank):
    q = random_q(rank=rank)
    draws = q.draw(200_000, torch.Generator().manual_seed(0))
    S = torch.linalg.inv(precision_matrix(q))
    scale = S.diagonal().sqrt()
    assert ((draws.mean(1) - q.mean) / scale).abs().max() < 5 / 200_000**0.5
    assert ((torch.cov(draws) - S) / scale.outer(scale)).abs().max() < 8 / 200_000**0.5


def test_move_precision_mixes_precisions_and_rejects_indefinite_ones():
    q = random_q(rank=2)
    target, block = torch.full((6,), 3.0).double(), 3 * torch.eye(2).double()
    moved = q.move_precision(target, block, 0.25)
    inward = torch.linalg.inv(q.frame.to_weights(torch.eye(6).double()))
    torch.testing.assert_close(precision_matrix(moved), 0.75 * precision_matrix(q) + 0.25 * 3 * inward.mT @ inward)
    with pytest.raises(FactorizationError, match="positive definite"):
        q.move_precision(target, -100 * block, 0.9)
    with pytest.raises(FactorizationError, match="positive definite"):
        q.move_precision(-100 * target, block, 0.9)


def test_rotate_keeps_the_mean_and_the_diagonal_of_the_precision():
    q = random_q(rank=0)
    U, V = (torch.linalg.qr(normal(k, k, seed=k))[0] for k in (3, 2))
    rotated = q.rotate((U, V))
    whole = torch.kron(U, V)
    torch.testing.assert_close(whole @ rotated.mean, q.mean)
    torch.testing.assert_close(rotated.precision, (whole.mT @ precision_matrix(q) @ whole).diagonal())
    back = rotated.rotate((torch.eye(3).double(), torch.eye(2).double()))
    torch.testing.assert_close(back.mean, q.mean)
    rows = KroneckerRows(normal(4, 3, seed=5), normal(2, 2, seed=6))
    torch.testing.assert_close(rotated.marginals(rows.rotate((U, V)), "diag")[0], rows.times(q.mean))


def test_rotate_to_another_frame_keeps_the_mean_and_the_restricted_diagonal():
    q, R, frame = random_q(rank=2), torch.linalg.qr(normal(6, 6))[0], random_frame(6, 2, seed=9)
    rotated, outward = q.rotate((R,), frame), frame.to_weights(torch.eye(6).double())
    torch.testing.assert_close(R @ rotated.mean, q.mean)
    diagonal = torch.diag(R.square().mT @ precision_matrix(q).diagonal())
    wanted, found = outward.mT @ diagonal @ outward, outward.mT @ precision_matrix(rotated) @ outward
    torch.testing.assert_close(found[frame.index][:, frame.index], wanted[frame.index][:, frame.index])
    torch.testing.assert_close(found.diagonal(), wanted.diagonal())


def test_family_rank_of_each_family():
    assert family_rank("full", None, 7) == 7 and family_rank("mean_field", None, 7) == 0
    assert family_rank("low_rank", 3, 7) == 3 and family_rank("low_rank", 30, 7) == 7
    assert family_rank("auto", None, 1500) == 1500 and family_rank("auto", None, 1501) == 0
    assert prior_weights(4, 2).divergence == 0
    with pytest.raises(OptionError, match="family"):
        family_rank("diagonal", None, 7)
    with pytest.raises(OptionError, match="rank"):
        family_rank("full", 3, 7)
    with pytest.raises(OptionError, match="rank"):
        family_rank("low_rank", None, 7)


def precision(r, seed=0):
    """A precision with a few strong correlations, in coordinates of very different scales."""
    common, scales = normal(r, 3, seed=seed), (2 * normal(r, seed=seed + 1)).exp()
    return (torch.eye(r) + common @ common.mT) * scales.outer(scales).sqrt()


def losses(C):
    """(λ − 1 − log λ) / 2 of the correlations of C, the largest first."""
    scale = C.diagonal().rsqrt()
    values = torch.linalg.eigvalsh(C * scale.outer(scale))
    return ((values - 1 - values.log()) / 2).sort(descending=True).values


def lost(C, frame):
    """The divergence from the best Gaussian with a block and a diagonal in the frame to that with the precision C."""
    T = frame.to_weights(torch.eye(len(C)).double())
    diagonal, block = frame.restrict(C.diagonal(), C @ frame.probes)
    outside = diagonal.index_fill(0, frame.index, 1.0)
    return (outside.log().sum() + torch.logdet(block) - torch.logdet(T.mT @ C @ T)) / 2


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_frame_coordinates_are_a_reflection_of_unit_vectors_to_directions(rank):
    C, eye = precision(9), torch.eye(9).double()
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank)
    H = frame.reflect(eye)
    torch.testing.assert_close(H @ H.mT, eye)
    torch.testing.assert_close(H[:, frame.index], -frame.directions)
    torch.testing.assert_close(frame.to_weights(eye), torch.diag(C.diagonal().rsqrt()) @ H)
    x = normal(9, seed=5)
    torch.testing.assert_close(frame.to_weights(frame.from_weights(x)), x)
    torch.testing.assert_close(frame.pull_gradient(x), frame.to_weights(eye).mT @ x)
    torch.testing.assert_close(frame.to_weights(normal(9, 2)), frame.to_weights(eye) @ normal(9, 2))


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_frame_restrict_and_expand_equal_dense_products(rank):
    C, M = precision(9), precision(9, seed=7)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank)
    T = frame.to_weights(torch.eye(9).double())
    diagonal, block = frame.restrict(M.diagonal(), M @ frame.probes)
    wanted, outside = T.mT @ M @ T, [i for i in range(9) if i not in frame.index.tolist()]
    torch.testing.assert_close(diagonal[outside], wanted.diagonal()[outside])
    torch.testing.assert_close(block, wanted[frame.index][:, frame.index])
    inner = torch.diag(diagonal.index_fill(0, frame.index, 0.0))
    inner[frame.index.unsqueeze(-1), frame.index] = block
    H = frame.reflect(torch.eye(9).double())
    expanded, factor, core = frame.expand(diagonal.index_fill(0, frame.index, 0.0), block)
    torch.testing.assert_close(torch.diag(expanded) + factor @ core @ factor.mT, H @ inner @ H)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_leading_frame_loses_at_most_as_much_as_the_other_eigenvectors(rank):
    C = precision(30)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank)
    assert lost(C, frame) <= losses(C)[rank:].sum() + 1e-6
    assert lost(C, unit_frame(30, rank)) > lost(C, frame) + 0.5  # the block on as many coordinates as they are
    torch.testing.assert_close((C.diagonal().log().sum() - torch.logdet(C)) / 2, losses(C).sum())  # of mean field


def test_leading_frame_finds_directions_of_small_and_large_variance():
    correlations = torch.eye(40).double()
    correlations[0, 1] = correlations[1, 0] = 0.999  # eigenvalues 1.999 and 0.001
    frame = leading_frame(lambda columns: correlations @ columns, correlations.diagonal(), 1)
    torch.testing.assert_close(frame.directions[:2].flatten().abs(), torch.tensor([0.5, 0.5]).double().sqrt())
    assert frame.directions[0] * frame.directions[1] < 0
