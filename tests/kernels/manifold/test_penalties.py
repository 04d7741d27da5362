"""Tests of `ovkgp.kernels.manifold.penalties`."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.datasets import make_moons

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import cluster_laplacian, neighbor_laplacian
from ovkgp.kernels import graph_laplacian as weights_laplacian
from ovkgp.kernels.manifold import penalties as module
from ovkgp.kernels.manifold.penalties import Penalty, multiply_blockwise


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
def test_penalty_product_matches_kronecker_product(form, matrix):
    M = laplacian(20).toarray() if matrix == "laplacian" else full(20)
    penalty = Penalty(FORMS[form](M))
    assert penalty.is_sparse == (matrix == "laplacian" and form not in ("array", "float32", "list", "tensor"))
    tolerance = 1e-6 if form == "float32" else 1e-12
    np.testing.assert_allclose(penalty.to_dense().numpy(), M, rtol=tolerance, atol=tolerance)
    columns = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0)).double()
    expected = np.kron(penalty.to_dense().numpy(), np.eye(3)) @ columns.numpy()
    np.testing.assert_allclose((penalty @ columns).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("rank", [0, 3, 9])
def test_penalty_root_or_inverse_reproduces_matrix(rank):
    M = full(rank=rank)
    penalty, eye = Penalty(M), torch.eye(18).double()
    projection = penalty.project(eye)
    assert len(projection) == 2 * rank
    noise = penalty.noise(projection @ projection.mT)
    found = projection.mT @ torch.linalg.solve(noise, projection)
    np.testing.assert_allclose(found.numpy(), np.kron(M, np.eye(2)), atol=1e-10)


def test_penalty_does_not_invert_ill_conditioned_matrix():
    values = np.logspace(-9, 0, 6)
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    penalty = Penalty((q * values) @ q.T)
    projection = penalty.project(torch.eye(6).double())
    assert torch.equal(penalty.noise(projection), torch.eye(6).double())
    np.testing.assert_allclose((projection.mT @ projection).numpy(), (q * values) @ q.T, atol=1e-15)


def test_penalty_rows_of_sparse_matrix():
    M = laplacian(20)
    reached, rows = Penalty(M).rows(4, 9, torch.zeros(1).double())
    np.testing.assert_array_equal(rows.to_dense().numpy(), M.toarray()[4:9][:, reached.numpy()])
    assert not np.delete(M.toarray()[4:9], reached.numpy(), axis=1).any()


def test_penalty_sparse_product_is_differentiable():
    matrix = Penalty(laplacian(20))
    assert matrix.is_sparse
    columns = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: matrix @ v, columns)


def test_multiply_blockwise_with_rectangular_matrix():
    A, V = torch.randn(2, 3).double(), torch.randn(5, 6, 4).double()
    expected = torch.kron(A, torch.eye(2).double()) @ V
    torch.testing.assert_close(multiply_blockwise(A, V), expected)
    torch.testing.assert_close(multiply_blockwise(A.to_sparse(), V), expected)


@pytest.mark.parametrize("large", [False, True])
def test_penalty_rejects_negative_eigenvalues_of_any_size(large, monkeypatch):
    if large:
        monkeypatch.setattr(module, "MAX_DENSE_SIZE", 5)
    path = sparse.diags_array([np.full(39, -1.0), np.full(39, -1.0)], offsets=[-1, 1])
    singular = path + 2 * np.cos(np.pi / 41) * sparse.eye_array(40)  # smallest eigenvalue 0, not diagonally dominant
    assert Penalty(singular).size == 40
    with pytest.raises(InputError, match=r"negative eigenvalue -0\.0"):
        Penalty(singular - 1e-2 * sparse.eye_array(40))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), r"square matrix.*got shape \(2, 3\)"),
        (np.zeros((0, 0)), r"got shape \(0, 0\)"),
        (np.zeros(4), r"got shape \(4,\)"),
        ([[1.0, np.nan], [np.nan, 1.0]], "NaN or infinity"),
        (sparse.csr_array(np.diag([1.0, np.inf, 1, 1, 1])), "NaN or infinity"),
        ([[1.0, 0.5], [0.4, 1.0]], "must be symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "negative eigenvalue -1"),
        ([[-1.0]], "negative eigenvalue"),
        ([[1j]], "complex"),
        ("laplacian", "real numbers|square"),
        (None, "square"),
    ],
)
def test_penalty_rejects_invalid_matrix(matrix, message):
    with pytest.raises(InputError, match=message):
        Penalty(matrix)


def test_penalty_removes_asymmetry_by_rounding():
    M = full()
    off = M.copy()
    off[0, 1] += 1e-12
    assert torch.equal(Penalty(off).to_dense(), Penalty(off).to_dense().mT)


def test_penalty_copies_pickles_dtypes_and_states():
    penalty = Penalty(laplacian(20))
    eye = torch.eye(20).double()
    projection = penalty.project(eye)
    for twin in (deepcopy(penalty), pickle.loads(pickle.dumps(penalty))):
        assert torch.equal(twin.project(eye), projection)
    assert penalty.float().values.dtype == torch.float32 and penalty.indices.dtype == torch.int64
    torch.testing.assert_close((penalty @ eye).float(), penalty.to_dense(), atol=1e-6, rtol=1e-6)
    penalty.double().load_state_dict({"values": 4 * penalty.values, "indices": penalty.indices})
    found = penalty.project(eye)  # a root of the new matrix, not the cached one
    torch.testing.assert_close(found.mT @ found, 4 * (projection.mT @ projection), atol=1e-5, rtol=1e-5)


def points(n, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def slow_weights(X, k, weights):
    """Compute W by loops: an edge connects two points if either is among the k nearest of the other."""
    n = len(X)
    distances = np.linalg.norm(X[:, None] - X, axis=-1)
    edges, lengths = np.zeros((n, n), bool), []
    for i in range(n):
        order = [j for j in np.argsort(distances[i], kind="stable") if j != i][:k]
        edges[i, order] = True
        lengths += [distances[i, j] for j in order]
    values = np.ones((n, n)) if weights == "binary" else np.exp(-(distances**2) / (2 * np.median(lengths) ** 2))
    return np.where(edges | edges.T, values, 0.0)


@pytest.mark.parametrize("weights", ["heat", "binary"])
@pytest.mark.parametrize("k", [1, 4, 11])
def test_neighbor_laplacian_matches_loops(weights, k):
    X = points(12)
    W = slow_weights(X, k, weights)
    found = neighbor_laplacian(X, k, weights=weights)
    assert sparse.issparse(found) and found.shape == (12, 12)
    np.testing.assert_allclose(found.toarray(), np.diag(W.sum(1)) - W, atol=1e-14)
    np.testing.assert_allclose(found.toarray(), weights_laplacian(torch.from_numpy(W)).numpy(), atol=1e-14)


def test_normalized_laplacian_divides_by_degrees():
    X = points(12)
    W = slow_weights(X, 3, "heat")
    scale = 1 / np.sqrt(W.sum(1))
    found = neighbor_laplacian(X, 3, normalized=True).toarray()
    np.testing.assert_allclose(found, np.eye(12) - scale[:, None] * W * scale, atol=1e-14)
    values = np.linalg.eigvalsh(found)
    assert values[0] > -1e-14 and values[-1] <= 2


@pytest.mark.parametrize("normalized", [False, True])
def test_neighbor_laplacian_quadratic_form_is_sum_over_edges(normalized):
    X, f = points(30), np.random.default_rng(1).normal(size=30)
    W = slow_weights(X, 5, "heat")
    g = f / np.sqrt(W.sum(1)) if normalized else f
    L = neighbor_laplacian(X, 5, normalized=normalized)
    assert f @ (L @ f) == pytest.approx((W * (g[:, None] - g) ** 2).sum() / 2)


def test_neighbor_laplacian_is_symmetric():
    X = np.array([[0.0], [1.0], [1.1], [1.2]])  # the first is not the nearest neighbor of any point
    L = neighbor_laplacian(X, 1, weights="binary").toarray()
    assert np.array_equal(L, L.T) and L[0, 1] == -1


def test_neighbor_laplacian_connects_duplicates_with_weight_one():
    X = np.repeat(points(3), 2, axis=0)
    L = neighbor_laplacian(X, 1).toarray()
    expected = np.kron(np.eye(3), [[1.0, -1.0], [-1.0, 1.0]])
    np.testing.assert_allclose(L, expected)
    every = neighbor_laplacian(np.ones((4, 2)), 3).toarray()  # all points are equal
    np.testing.assert_allclose(every, 4 * np.eye(4) - 1)


def test_neighbor_laplacian_of_few_points():
    assert neighbor_laplacian([[1.0, 2.0]]).toarray().tolist() == [[0.0]]
    assert cluster_laplacian([[1.0, 2.0]], 1).tolist() == [[0.0]]
    two = neighbor_laplacian([[0.0], [3.0]], 10).toarray()  # fewer points than neighbors
    np.testing.assert_allclose(two, np.exp(-0.5) * np.array([[1, -1], [-1, 1]]))
    np.testing.assert_allclose(neighbor_laplacian(points(5), 99).toarray(), neighbor_laplacian(points(5), 4).toarray())


def test_neighbor_laplacian_accepts_arrays_tensors_and_columns():
    X = points(8, 1)
    expected = neighbor_laplacian(X, 3).toarray()
    for given in (torch.from_numpy(X), X[:, 0], X.tolist()):
        np.testing.assert_array_equal(neighbor_laplacian(given, 3).toarray(), expected)


@pytest.mark.parametrize(("noise", "num_parts"), [(0.04, 1), (0.0, 2)])
def test_bt_114_cluster_laplacian_finds_two_moons(noise, num_parts):
    """Clustering must cut the graph, or the moons are its connected components."""
    X, labels = make_moons(120, noise=noise, random_state=0)
    graph = neighbor_laplacian(X, 8)
    assert connected_components(graph, directed=False)[0] == num_parts
    C = (labels[:, None] == labels).astype(float)
    L = cluster_laplacian(X, 2, num_neighbors=8, random_state=0)
    np.testing.assert_array_equal(L, np.diag(C.sum(1)) - C)


def test_bt_114_cluster_laplacian_penalizes_deviations_from_cluster_means():
    X = np.concatenate([points(5), points(7) + 50])
    L, f = cluster_laplacian(X, 2, num_neighbors=4), points(12, 1)[:, 0]
    parts = f[:5], f[5:]
    assert f @ L @ f == pytest.approx(sum(len(part) ** 2 * part.var() for part in parts))


def test_cluster_laplacian_is_reproducible():
    X = points(40)
    first, again = (cluster_laplacian(X, 3, num_neighbors=8, random_state=3) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.array_equal(cluster_laplacian(X, 40), np.zeros((40, 40)))  # every point its own cluster


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"X": [[np.nan]]}, InputError, "NaN or infinity"),
        ({"X": np.zeros((0, 2))}, InputError, r"non-empty \(n, d\) array, got shape \(0, 2\)"),
        ({"X": np.zeros((2, 2, 2))}, InputError, r"got shape \(2, 2, 2\)"),
        ({"X": [["a"]]}, InputError, "array of numbers"),
        ({"X": np.array([[1j]])}, InputError, "array of numbers"),
        ({"num_neighbors": 0}, OptionError, "num_neighbors must be at least 1"),
        ({"num_neighbors": 2.5}, OptionError, "num_neighbors"),
        ({"weights": "cosine"}, OptionError, "weights"),
    ],
)
def test_neighbor_laplacian_rejects_invalid_arguments(options, error, message):
    with pytest.raises(error, match=message):
        neighbor_laplacian(**{"X": points(4), **options})


def test_cluster_laplacian_rejects_more_clusters_than_points():
    with pytest.raises(OptionError, match="num_clusters"):
        cluster_laplacian(points(4), 5)


@pytest.mark.filterwarnings("error:overflow")
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e306])
def test_graphs_do_not_depend_on_the_unit_of_the_inputs(scale):
    X = np.random.default_rng(0).normal(size=(30, 2))
    expected, found = (neighbor_laplacian(Z, 3).toarray() for Z in (X, X * scale))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    clusters = [cluster_laplacian(Z, 2, num_neighbors=3, random_state=0) for Z in (X, X * scale)]
    np.testing.assert_array_equal(*clusters)
