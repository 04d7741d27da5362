"""Graphs on the rows of a table, and their Laplacians, as penalties for `ManifoldKernel` (BT-111, BT-114).

    fᵀ L f = ½ Σ_ik W_ik (f_i − f_k)²,    L = diag(W1) − W,

so that a function with a small penalty varies little between points that the graph ties together.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components, laplacian

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.checks import whole_number

WEIGHTS = ("heat", "binary")


def neighbor_laplacian(
    X, num_neighbors: int = 10, *, weights: str = "heat", normalised: bool = False
) -> sparse.csr_array:
    """The Laplacian of the graph of nearest neighbours, sparse (n, n), symmetric and positive semi-definite.

    Two points are tied where either is among the nearest neighbours of the other.

    Args:
        X: the points (n, d), an array or a tensor.
        num_neighbors: of each point; all other points where there are no more than that.
        weights: "heat" for exp(−‖x_i − x_k‖² / 2h²), h the median distance between neighbours that are apart; "binary" for 1.
        normalised: I − D^{−½} W D^{−½} in place of D − W, D the degrees, with eigenvalues between 0 and 2.

    Cost: O(n log n) time in few dimensions, at most O(n² d), for the search; O(n · num_neighbors) memory.

    Example:
        >>> from ovkgp.kernels import neighbor_laplacian
        >>> neighbor_laplacian([[0.0], [1.0], [3.0]], num_neighbors=1, weights="binary").toarray()
        array([[ 1., -1.,  0.],
               [-1.,  2., -1.],
               [ 0., -1.,  1.]])
    """
    graph = _neighbor_graph(_rows(X), num_neighbors, weights)
    return sparse.csr_array(laplacian(graph, normed=bool(normalised)))


def cluster_laplacian(X, num_clusters: int, *, num_neighbors: int = 10, random_state=None) -> np.ndarray:
    """The Laplacian of C, C_ik = 1 where x_i and x_k are in the same spectral cluster and 0 elsewhere, (n, n) (BT-114).

    The penalty is Σ_c m_c Σ_{i in c} (f_i − f̄_c)², m_c the size of cluster c: each cluster is drawn to its mean. Its
    eigenvalues are 0 and the m_c, so divide it by n to keep one strength for all sizes of data. (The thesis writes of an
    "inverse Laplacian" of C: that is `numpy.linalg.pinv` of this matrix.)

    Args:
        X: the points (n, d), an array or a tensor.
        num_clusters: at most n.
        num_neighbors: of the graph of neighbours that is clustered. Where it falls into `num_clusters` parts that are not
            connected, those are the clusters; where it falls into more, scikit-learn warns: take more neighbours.
        random_state: as in scikit-learn.

    Cost: that of scikit-learn's `SpectralClustering` on a sparse graph, and O(n²) memory for the dense result.

    Example:
        >>> from ovkgp.kernels import cluster_laplacian
        >>> cluster_laplacian([[0.0], [0.1], [5.0], [5.1]], num_clusters=2, num_neighbors=1)
        array([[ 1., -1.,  0.,  0.],
               [-1.,  1.,  0.,  0.],
               [ 0.,  0.,  1., -1.],
               [ 0.,  0., -1.,  1.]])
    """
    X = _rows(X)
    if (num_clusters := whole_number("num_clusters", num_clusters)) > len(X):
        raise OptionError(f"num_clusters must be at most the number of points, {len(X)}; got {num_clusters}.")
    labels = _clusters(_neighbor_graph(X, num_neighbors, "binary"), num_clusters, random_state)
    together = labels[:, None] == labels
    matrix = np.where(together, -1.0, 0.0)
    np.fill_diagonal(matrix, together.sum(1) - 1.0)
    return matrix


def _clusters(graph: sparse.csr_array, num_clusters: int, random_state) -> np.ndarray:
    from sklearn.cluster import SpectralClustering  # slow to load, and most users of kernels need none of it

    count, labels = connected_components(graph, directed=False)
    if count == num_clusters:
        return labels
    if num_clusters == graph.shape[0]:
        return np.arange(num_clusters)
    clustering = SpectralClustering(num_clusters, affinity="precomputed", random_state=random_state)
    return clustering.fit(graph).labels_


def _neighbor_graph(X: np.ndarray, num_neighbors: int, weights: str) -> sparse.csr_array:
    """The weights W (n, n), symmetric, without loops."""
    from sklearn.neighbors import NearestNeighbors  # slow to load, and most users of kernels need none of it

    if weights not in WEIGHTS:
        raise OptionError(f"weights must be one of {', '.join(map(repr, WEIGHTS))}, got {weights!r}.")
    n, k = len(X), min(whole_number("num_neighbors", num_neighbors), len(X) - 1)
    if k == 0:
        return sparse.csr_array((n, n))
    distances, neighbors = NearestNeighbors(n_neighbors=k).fit(X).kneighbors()  # no point is its own neighbour
    values = np.ones(n * k) if weights == "binary" else _heat(distances.ravel())
    places = np.repeat(np.arange(n), k), neighbors.ravel()
    graph = sparse.csr_array((values, tuple(place.astype(np.int32) for place in places)), shape=(n, n))
    return graph.maximum(graph.T).tocsr()


def _heat(distances: np.ndarray) -> np.ndarray:
    apart = distances[distances > 0]
    scale = np.median(apart) if len(apart) else 1.0
    return np.exp(-np.square(distances / scale) / 2)


def _rows(X) -> np.ndarray:
    try:
        X = np.asarray(X.detach().cpu() if torch.is_tensor(X) else X)
        X = X.astype(np.float64, casting="unsafe" if X.dtype == object else "same_kind")
    except (TypeError, ValueError) as error:
        raise InputError(f"X must be an (n, d) array of numbers, got {type(X).__name__} ({error}).") from error
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or 0 in X.shape:
        raise InputError(f"X must be a non-empty (n, d) array, got shape {X.shape}.")
    if not np.isfinite(X).all():
        raise InputError("X holds NaN or infinity; inputs must be finite.")
    return X
