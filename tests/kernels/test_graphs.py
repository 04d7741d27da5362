"""Graph Laplacians against loops over pairs of points, and on data that make neighbours awkward."""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.datasets import make_moons

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import cluster_laplacian, neighbor_laplacian
from ovkgp.kernels import graph_laplacian as weights_laplacian


def points(n, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def slow_weights(X, k, weights):
    """W by loops: an edge where either point is among the k nearest of the other."""
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
def test_laplacian_equals_the_loops(weights, k):
    X = points(12)
    W = slow_weights(X, k, weights)
    found = neighbor_laplacian(X, k, weights=weights)
    assert sparse.issparse(found) and found.shape == (12, 12)
    np.testing.assert_allclose(found.toarray(), np.diag(W.sum(1)) - W, atol=1e-14)
    np.testing.assert_allclose(found.toarray(), weights_laplacian(torch.from_numpy(W)).numpy(), atol=1e-14)


def test_normalised_laplacian_divides_by_the_degrees():
    X = points(12)
    W = slow_weights(X, 3, "heat")
    scale = 1 / np.sqrt(W.sum(1))
    found = neighbor_laplacian(X, 3, normalised=True).toarray()
    np.testing.assert_allclose(found, np.eye(12) - scale[:, None] * W * scale, atol=1e-14)
    values = np.linalg.eigvalsh(found)
    assert values[0] > -1e-14 and values[-1] <= 2


@pytest.mark.parametrize("normalised", [False, True])
def test_quadratic_form_is_the_sum_over_edges(normalised):
    X, f = points(30), np.random.default_rng(1).normal(size=30)
    W = slow_weights(X, 5, "heat")
    g = f / np.sqrt(W.sum(1)) if normalised else f
    L = neighbor_laplacian(X, 5, normalised=normalised)
    assert f @ (L @ f) == pytest.approx((W * (g[:, None] - g) ** 2).sum() / 2)


def test_symmetric_though_being_a_neighbour_is_not():
    X = np.array([[0.0], [1.0], [1.1], [1.2]])  # the first is nobody's nearest neighbour
    L = neighbor_laplacian(X, 1, weights="binary").toarray()
    assert np.array_equal(L, L.T) and L[0, 1] == -1


def test_duplicates_are_tied_with_weight_one():
    X = np.repeat(points(3), 2, axis=0)
    L = neighbor_laplacian(X, 1).toarray()
    expected = np.kron(np.eye(3), [[1.0, -1.0], [-1.0, 1.0]])
    np.testing.assert_allclose(L, expected)
    every = neighbor_laplacian(np.ones((4, 2)), 3).toarray()  # all points at one place
    np.testing.assert_allclose(every, 4 * np.eye(4) - 1)


def test_few_points():
    assert neighbor_laplacian([[1.0, 2.0]]).toarray().tolist() == [[0.0]]
    assert cluster_laplacian([[1.0, 2.0]], 1).tolist() == [[0.0]]
    two = neighbor_laplacian([[0.0], [3.0]], 10).toarray()  # fewer points than neighbours asked for
    np.testing.assert_allclose(two, np.exp(-0.5) * np.array([[1, -1], [-1, 1]]))
    np.testing.assert_allclose(neighbor_laplacian(points(5), 99).toarray(), neighbor_laplacian(points(5), 4).toarray())


def test_arrays_tensors_and_columns_are_alike():
    X = points(8, 1)
    expected = neighbor_laplacian(X, 3).toarray()
    for given in (torch.from_numpy(X), X[:, 0], X.tolist()):
        np.testing.assert_array_equal(neighbor_laplacian(given, 3).toarray(), expected)


@pytest.mark.parametrize(("noise", "num_parts"), [(0.04, 1), (0.0, 2)])
def test_bt_114_clusters_of_two_moons_are_the_moons(noise, num_parts):
    """Both where spectral clustering has to cut the graph and where it has fallen into the two moons already."""
    X, labels = make_moons(120, noise=noise, random_state=0)
    graph = neighbor_laplacian(X, 8)
    assert connected_components(graph, directed=False)[0] == num_parts
    C = (labels[:, None] == labels).astype(float)
    L = cluster_laplacian(X, 2, num_neighbors=8, random_state=0)
    np.testing.assert_array_equal(L, np.diag(C.sum(1)) - C)


def test_bt_114_penalty_draws_each_cluster_to_its_mean():
    X = np.concatenate([points(5), points(7) + 50])
    L, f = cluster_laplacian(X, 2, num_neighbors=4), points(12, 1)[:, 0]
    parts = f[:5], f[5:]
    assert f @ L @ f == pytest.approx(sum(len(part) ** 2 * part.var() for part in parts))


def test_clusters_repeat_with_the_random_state():
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
        ({"num_neighbors": 2.5}, OptionError, "whole number"),
        ({"weights": "cosine"}, OptionError, "'heat', 'binary', got 'cosine'"),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        neighbor_laplacian(**{"X": points(4), **options})


def test_more_clusters_than_points():
    with pytest.raises(OptionError, match="at most the number of points, 4; got 5"):
        cluster_laplacian(points(4), 5)
