"""Rows of features, against the dense Φ that they never form."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.features import ORFF
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.rows import BlockRows, DenseRows, KroneckerRows, entries_per_row, make_rows
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, IndependentKernel

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def curvatures(n, p):
    """Weights of likelihoods: equal rows, per entry, with negative ones, between outputs."""
    root = normal(n, p, p)
    symmetric = root + root.mT
    return {"equal": torch.rand(p).double().expand(n, p), "entries": normal(n, p).abs(), "negative": normal(n, p),
            "outputs": root @ root.mT, "indefinite": symmetric}  # fmt: skip


@pytest.fixture(params=["kronecker", "narrow", "dense", "blocks"])
def rows(request):
    if request.param == "dense":
        return DenseRows(normal(7, 3, 10))
    if request.param == "blocks":
        return BlockRows(normal(3, 7, 4))
    return KroneckerRows(normal(7, 5), normal(3, 2 if request.param == "kronecker" else 1))


@pytest.mark.parametrize("kind", ["equal", "entries", "negative", "outputs", "indefinite"])
def test_rows_gram_equals_that_of_dense_features(rows, kind):
    weight = curvatures(7, 3)[kind]
    between = weight if weight.dim() == 3 else torch.diag_embed(weight)
    wanted = torch.einsum("npr,npq,nqs->rs", rows.dense(), between, rows.dense())
    torch.testing.assert_close(rows.gram(weight), wanted)
    torch.testing.assert_close(rows.diagonal_gram(weight), wanted.diagonal())


def test_rows_products_equal_those_of_dense_features(rows):
    weights, values = normal(rows.num_weights), normal(7, 3)
    torch.testing.assert_close(rows.times(weights), rows.dense() @ weights)
    torch.testing.assert_close(rows.adjoint(values), torch.einsum("npr,np->r", rows.dense(), values))


def test_rows_covariances_equal_those_of_dense_features(rows):
    root = normal(rows.num_weights, rows.num_weights)
    covariance, variances = root @ root.mT, normal(rows.num_weights).square()
    for S, found in ((covariance, rows.quadratic), (torch.diag(variances), rows.diagonal_quadratic)):
        wanted = rows.dense() @ S @ rows.dense().mT
        argument = S if found == rows.quadratic else variances
        torch.testing.assert_close(found(argument, "output"), wanted)
        torch.testing.assert_close(found(argument, "diag"), wanted.diagonal(dim1=-2, dim2=-1))


def test_rows_products_of_several_columns_equal_those_of_each(rows):
    weights, values = normal(rows.num_weights, 4), normal(7, 3, 4)
    torch.testing.assert_close(rows.times(weights), torch.stack([rows.times(w) for w in weights.mT], -1))
    torch.testing.assert_close(rows.adjoint(values), torch.stack([rows.adjoint(v) for v in values.unbind(-1)], -1))


def test_rows_rotate_to_other_bases(rows):
    weight = torch.eye(3).double()
    basis = rows.compute_eigenbasis(weight, rows.basis_gram(weight.expand(7, 3, 3)))
    whole = basis[0] if len(basis) == 1 else torch.kron(*(part.contiguous() for part in basis))
    torch.testing.assert_close(rows.rotate(basis).dense(), rows.dense() @ whole)
    torch.testing.assert_close(whole.mT @ whole, torch.eye(rows.num_weights).double())
    torch.testing.assert_close(rows.rotate((whole,)).dense(), rows.dense() @ whole)
    assert rows.rotate(()) is rows


def test_bt_76_eigenbasis_makes_the_gram_of_a_decomposable_map_diagonal():
    rows = KroneckerRows(normal(20, 6), normal(3, 2))
    root = normal(3, 3)
    weight = root @ root.mT
    rotated = rows.rotate(rows.compute_eigenbasis(weight, rows.basis_gram(weight.expand(20, 3, 3)))).gram(
        weight.expand(20, 3, 3)
    )
    assert (rotated - torch.diag(rotated.diagonal())).abs().max() < 1e-12 * rotated.abs().max()


def test_rows_basis_gram_is_weighted_by_curvature():
    """The Gram of the scalar features has the weights tr(Bᵀ W_i B), whichever form W has."""
    rows, entries = KroneckerRows(normal(20, 6), normal(3, 2)), normal(20, 3).square()
    sizes = torch.einsum("np,pb->n", entries, rows.factor.square())
    wanted = rows.scalar_features.mT * sizes @ rows.scalar_features
    torch.testing.assert_close(rows.basis_gram(entries), wanted)
    torch.testing.assert_close(rows.basis_gram(torch.diag_embed(entries)), wanted)
    root = normal(20, 3, 3)
    coupled = root @ root.mT
    sizes = torch.stack([(rows.factor.mT @ one @ rows.factor).trace() for one in coupled])
    torch.testing.assert_close(rows.basis_gram(coupled), rows.scalar_features.mT * sizes @ rows.scalar_features)


def test_make_rows_keeps_the_structure_of_feature_maps():
    X = normal(4, 2)
    decomposable = ORFF(DecomposableKernel(RBFKernel(ard_num_dims=2), 3).double(), 5, random_state=0)(X)
    curl_free = ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)).double(), 5, random_state=0)(X)
    kronecker, dense = make_rows(decomposable, 3), make_rows(curl_free, 2)
    assert isinstance(kronecker, KroneckerRows) and isinstance(dense, DenseRows)
    torch.testing.assert_close(kronecker.dense().flatten(0, 1), decomposable.to_dense())
    torch.testing.assert_close(dense.dense().flatten(0, 1), curl_free.to_dense())
    assert entries_per_row(kronecker) == 10 + 9 and entries_per_row(dense) == 2 * 10


def test_make_rows_of_independent_outputs_are_blocks():
    kernel = IndependentKernel([RBFKernel(), RBFKernel(), RBFKernel()]).double()
    for part, level in zip(kernel.kernels, (0.3, 1.0, 2.0), strict=True):
        part.lengthscale = level
    X = normal(8, 2)
    for features in (InducingPoints(kernel, normal(4, 2)), ORFF(kernel, 6, num_dims=2, random_state=0)):
        Phi = features(X)
        rows = make_rows(Phi, 3)
        assert isinstance(rows, BlockRows) and entries_per_row(rows) == rows.num_weights
        torch.testing.assert_close(rows.dense().flatten(0, 1), Phi.to_dense())


def test_make_rows_of_terms_that_share_outputs_are_dense():
    kernel = (DecomposableKernel(RBFKernel(), 2, rank=1) + DecomposableKernel(RBFKernel(), 2, rank=1)).double()
    rows = make_rows(InducingPoints(kernel, normal(4, 2))(normal(5, 2)), 2)
    assert type(rows) is DenseRows
