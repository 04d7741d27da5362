"""Quadratic penalties: products and roots against dense matrices, and what is no penalty is refused."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import sparse

from ovkgp.exceptions import InputError
from ovkgp.kernels import neighbor_laplacian
from ovkgp.kernels import penalties as module
from ovkgp.kernels.penalties import Penalty, blockwise_product


def laplacian(n=9):
    return neighbor_laplacian(np.random.default_rng(0).normal(size=(n, 2)), 2)


def full(n=9, rank=None):
    root = np.random.default_rng(1).normal(size=(n, n if rank is None else rank))
    return root @ root.T


FORMS = {
    "array": lambda M: M,
    "float32": lambda M: M.astype(np.float32),
    "list": lambda M: M.tolist(),
    "tensor": torch.from_numpy,
    "torch sparse": lambda M: torch.from_numpy(M).to_sparse(),
    "torch csr": lambda M: torch.from_numpy(M).to_sparse_csr(),
    "csr": sparse.csr_matrix,
    "coo": sparse.coo_array,
    "dia": sparse.dia_array,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("matrix", ["laplacian", "full"])
def test_products_are_those_of_the_kronecker_product(form, matrix):
    M = laplacian(20).toarray() if matrix == "laplacian" else full(20)
    penalty = Penalty(FORMS[form](M))
    assert penalty.is_sparse == (matrix == "laplacian" and form not in ("array", "float32", "list", "tensor"))
    tolerance = 1e-6 if form == "float32" else 1e-12
    np.testing.assert_allclose(penalty.to_dense().numpy(), M, rtol=tolerance, atol=tolerance)
    columns = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0)).double()
    expected = np.kron(penalty.to_dense().numpy(), np.eye(3)) @ columns.numpy()
    np.testing.assert_allclose((penalty @ columns).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("rank", [0, 3, 9])
def test_root_or_inverse_gives_back_the_matrix(rank):
    M = full(rank=rank)
    penalty, eye = Penalty(M), torch.eye(18).double()
    projection = penalty.project(eye)
    assert len(projection) == 2 * rank
    noise = penalty.noise(projection @ projection.mT)
    found = projection.mT @ torch.linalg.solve(noise, projection)
    np.testing.assert_allclose(found.numpy(), np.kron(M, np.eye(2)), atol=1e-10)


def test_an_ill_conditioned_matrix_is_not_inverted():
    values = np.logspace(-9, 0, 6)
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    penalty = Penalty((q * values) @ q.T)
    projection = penalty.project(torch.eye(6).double())
    assert torch.equal(penalty.noise(projection), torch.eye(6).double())
    np.testing.assert_allclose((projection.mT @ projection).numpy(), (q * values) @ q.T, atol=1e-15)


def test_some_rows_of_a_sparse_penalty():
    M = laplacian(20)
    reached, rows = Penalty(M).rows(4, 9, torch.zeros(1).double())
    np.testing.assert_array_equal(rows.to_dense().numpy(), M.toarray()[4:9][:, reached.numpy()])
    assert not np.delete(M.toarray()[4:9], reached.numpy(), axis=1).any()


def test_gradients_pass_through_a_sparse_product():
    matrix = Penalty(laplacian(20))
    assert matrix.is_sparse
    columns = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: matrix @ v, columns)


def test_rectangular_blocks():
    A, V = torch.randn(2, 3).double(), torch.randn(5, 6, 4).double()
    expected = torch.kron(A, torch.eye(2).double()) @ V
    torch.testing.assert_close(blockwise_product(A, V), expected)
    torch.testing.assert_close(blockwise_product(A.to_sparse(), V), expected)


@pytest.mark.parametrize("large", [False, True])
def test_negative_eigenvalues_are_found_at_any_size(large, monkeypatch):
    if large:
        monkeypatch.setattr(module, "DENSE_SIZE", 5)
    path = sparse.diags_array([np.full(39, -1.0), np.full(39, -1.0)], offsets=[-1, 1])
    singular = path + 2 * np.cos(np.pi / 41) * sparse.eye_array(40)  # smallest eigenvalue 0, not diagonally dominant
    assert Penalty(singular).size == 40
    with pytest.raises(InputError, match=r"negative eigenvalue, -0\.0"):
        Penalty(singular - 1e-2 * sparse.eye_array(40))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), r"square matrix.*got shape \(2, 3\)"),
        (np.zeros((0, 0)), r"got shape \(0, 0\)"),
        (np.zeros(4), r"got shape \(4,\)"),
        ([[1.0, np.nan], [np.nan, 1.0]], "NaN or infinity"),
        (sparse.csr_array(np.diag([1.0, np.inf, 1, 1, 1])), "NaN or infinity"),
        ([[1.0, 0.5], [0.4, 1.0]], "not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "negative eigenvalue, -1"),
        ([[-1.0]], "negative eigenvalue"),
        ([[1j]], "complex"),
        ("laplacian", "real numbers|square"),
        (None, "square"),
    ],
)
def test_what_is_no_penalty_is_refused(matrix, message):
    with pytest.raises(InputError, match=message):
        Penalty(matrix)


def test_asymmetry_by_rounding_is_removed():
    M = full()
    off = M.copy()
    off[0, 1] += 1e-12
    assert torch.equal(Penalty(off).to_dense(), Penalty(off).to_dense().mT)


def test_copies_pickles_dtypes_and_states():
    penalty = Penalty(laplacian(20))
    eye = torch.eye(20).double()
    projection = penalty.project(eye)
    for twin in (deepcopy(penalty), pickle.loads(pickle.dumps(penalty))):
        assert torch.equal(twin.project(eye), projection)
    assert penalty.float().values.dtype == torch.float32 and penalty.indices.dtype == torch.int64
    torch.testing.assert_close((penalty @ eye).float(), penalty.to_dense(), atol=1e-6, rtol=1e-6)
    penalty.double().load_state_dict({"values": 4 * penalty.values, "indices": penalty.indices})
    found = penalty.project(eye)  # a root of the new matrix, not the one that is remembered
    torch.testing.assert_close(found.mT @ found, 4 * (projection.mT @ projection), atol=1e-5, rtol=1e-5)
