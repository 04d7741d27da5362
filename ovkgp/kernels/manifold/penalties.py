"""Quadratic penalties fᵀ M f of `ManifoldKernel`, and graph Laplacians as such penalties (BT-111, BT-114).

    fᵀ L f = ½ Σ_ik W_ik (f_i − f_k)²,    L = diag(W1) − W,

is small if a function varies little between the points that a graph with weights W connects.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components, laplacian
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ovkgp.checks import check_integer, check_one_of
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.manifold.module_cache import ModuleCache

RELATIVE_TOLERANCES = {"float64": 1e-8, "float32": 1e-4}
"""Largest asymmetry and negative eigenvalue of M, relative to the largest row sum, that count as rounding."""

MAX_DENSE_SIZE = 2000
"""Size of M up to which all eigenvalues are computed to find a negative one; for larger M, Lanczos iterations find the
smallest, and may miss one above about −1e-5 of the largest row sum."""

MAX_SPARSE_FRACTION = 0.25  # a sparse matrix with a larger fraction of stored entries is converted to a dense one

MIN_INVERSE_CONDITION = 1e-6
"""M is inverted, rather than factorized, if its smallest eigenvalue is at least this fraction of its largest."""

WEIGHTS = ("heat", "binary")
MAX_RELATIVE_SIZE = 1e100  # largest size of points relative to the median, so that squares do not overflow


def neighbor_laplacian(
    X, num_neighbors: int = 10, *, weights: str = "heat", normalized: bool = False
) -> sparse.csr_array:
    """Compute the Laplacian of the graph that connects each point with its nearest neighbors.

    Parameters
    ----------
    X : array-like of shape (n, d)
        The points.
    num_neighbors : int, default=10
        Number of neighbors of each point. If it exceeds n − 1, all other points are neighbors.
    weights : {"heat", "binary"}, default="heat"
        Weights exp(−‖x_i − x_k‖² / 2h²), with h the median positive distance between neighbors, or 1.
    normalized : bool, default=False
        Whether to return I − D^{−½} W D^{−½}, with eigenvalues in [0, 2], instead of D − W, where D are the degrees.

    Returns
    -------
    scipy.sparse.csr_array of shape (n, n)
        Symmetric positive semi-definite matrix.

    Notes
    -----
    Complexity: O(n log n) time in few dimensions, at most O(n² d); O(n · num_neighbors) memory.

    Examples
    --------
    >>> from ovkgp.kernels import neighbor_laplacian
    >>> neighbor_laplacian([[0.0], [1.0], [3.0]], num_neighbors=1, weights="binary").toarray()
    array([[ 1., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  1.]])
    """
    graph = _neighbor_graph(_validate_points(X), num_neighbors, weights)
    return sparse.csr_array(laplacian(graph, normed=bool(normalized)))


def cluster_laplacian(X, num_clusters: int, *, num_neighbors: int = 10, random_state=None) -> np.ndarray:
    """Compute the Laplacian of the graph that connects all points of the same spectral cluster.

    The penalty Σ_c m_c Σ_{i in c} (f_i − f̄_c)², with m_c the size of cluster c, shrinks each cluster towards its mean.
    Its eigenvalues are 0 and the m_c: divide it by n to keep the strength independent of the number of points.

    Parameters
    ----------
    X : array-like of shape (n, d)
        The points.
    num_clusters : int
        Number of clusters, at most n.
    num_neighbors : int, default=10
        Number of neighbors in the graph that is clustered. If the graph has `num_clusters` connected components, they
        are the clusters. If it has more, scikit-learn warns: increase `num_neighbors`.
    random_state : int, RandomState or None, default=None
        Seed or random number generator of scikit-learn.

    Returns
    -------
    ndarray of shape (n, n)
        Symmetric positive semi-definite matrix.

    Notes
    -----
    The "inverse Laplacian" of BT-114 is `numpy.linalg.pinv` of this matrix.
    Complexity: that of `sklearn.cluster.SpectralClustering` on a sparse graph, and O(n²) memory.

    References
    ----------
    BT-114

    Examples
    --------
    >>> from ovkgp.kernels import cluster_laplacian
    >>> cluster_laplacian([[0.0], [0.1], [5.0], [5.1]], num_clusters=2, num_neighbors=1)
    array([[ 1., -1.,  0.,  0.],
           [-1.,  1.,  0.,  0.],
           [ 0.,  0.,  1., -1.],
           [ 0.,  0., -1.,  1.]])
    """
    X = _validate_points(X)
    if (num_clusters := check_integer("num_clusters", num_clusters)) > len(X):
        raise OptionError(f"num_clusters must be at most the number of points, {len(X)}, got {num_clusters}.")
    labels = _find_clusters(_neighbor_graph(X, num_neighbors, "binary"), num_clusters, random_state)
    same_cluster = labels[:, None] == labels
    matrix = np.where(same_cluster, -1.0, 0.0)
    np.fill_diagonal(matrix, same_cluster.sum(1) - 1.0)
    return matrix


def _find_clusters(graph: sparse.csr_array, num_clusters: int, random_state) -> np.ndarray:
    from sklearn.cluster import SpectralClustering  # slow to import and rarely needed

    count, labels = connected_components(graph, directed=False)
    if count == num_clusters:
        return labels
    if num_clusters == graph.shape[0]:
        return np.arange(num_clusters)
    clustering = SpectralClustering(num_clusters, affinity="precomputed", random_state=random_state)
    return clustering.fit(graph).labels_


def _neighbor_graph(X: np.ndarray, num_neighbors: int, weights: str) -> sparse.csr_array:
    """Return the weights W (n, n), symmetric with zero diagonal."""
    from sklearn.neighbors import NearestNeighbors  # slow to import and rarely needed

    check_one_of("weights", weights, WEIGHTS)
    n, k = len(X), min(check_integer("num_neighbors", num_neighbors), len(X) - 1)
    if k == 0:
        return sparse.csr_array((n, n))
    distances, neighbors = NearestNeighbors(n_neighbors=k).fit(_squarable(X)).kneighbors()  # excludes the point itself
    values = np.ones(n * k) if weights == "binary" else _heat_weights(distances.ravel())
    indices = np.repeat(np.arange(n), k).astype(np.int32), neighbors.ravel().astype(np.int32)
    graph = sparse.csr_array((values, indices), shape=(n, n))
    return graph.maximum(graph.T).tocsr()


def _squarable(X: np.ndarray) -> np.ndarray:
    """Return points whose squared distances neither overflow nor underflow: those beyond 1e100 times the others are moved closer."""
    size, sizes = np.abs(X).max(), np.abs(X[X != 0])
    typical = np.median(sizes) if len(sizes) else 0.0
    size = typical if size / MAX_RELATIVE_SIZE > typical else size
    with np.errstate(over="ignore"):
        scaled = np.ldexp(X, -np.frexp(size)[1])  # exact
    return np.clip(scaled, -MAX_RELATIVE_SIZE, MAX_RELATIVE_SIZE)


def _heat_weights(distances: np.ndarray) -> np.ndarray:
    positive = distances[distances > 0]
    scale = np.median(positive) if len(positive) else 1.0
    return np.exp(-np.square(distances / scale) / 2)


def _validate_points(X) -> np.ndarray:
    try:
        X = np.asarray(X.detach().cpu() if torch.is_tensor(X) else X)
        X = X.astype(np.float64, casting="unsafe" if X.dtype == object else "same_kind")
    except (TypeError, ValueError) as error:
        raise InputError(f"X must be an (n, d) array of numbers, got {type(X).__name__} ({error}).") from error
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or 0 in X.shape:
        raise InputError(f"X must be a non-empty (n, d) array, got shape {X.shape}.")
    if not np.isfinite(X).all():
        raise InputError("X must be finite, got NaN or infinity.")
    return X


class Penalty(torch.nn.Module):
    """Symmetric positive semi-definite matrix M (s, s) in float64, with products by M ⊗ I_q for any q, and a root."""

    values: Tensor
    """Stored entries, (s, s) or (nnz,)."""
    indices: Tensor | None
    """Row and column indices (2, nnz) of the stored entries, sorted by row; None for a dense matrix."""

    def __init__(self, matrix):
        super().__init__()
        matrix = _validate_matrix(matrix)
        self.size = matrix.shape[0]
        if sparse.issparse(matrix):
            matrix = matrix.tocoo()
            self.register_buffer("values", torch.from_numpy(matrix.data.copy()))
            self.register_buffer("indices", torch.from_numpy(np.stack([matrix.row, matrix.col]).astype(np.int64)))
        else:
            self.register_buffer("values", torch.from_numpy(matrix))
            self.register_buffer("indices", None)
        self._root = ModuleCache()

    @property
    def is_sparse(self) -> bool:
        """Whether only the nonzero entries are stored."""
        return self.indices is not None

    def __matmul__(self, columns: Tensor) -> Tensor:
        """Return (M ⊗ I_q) columns for columns (..., s·q, k)."""
        if not self.is_sparse:
            return multiply_blockwise(self.values.to(columns), columns)
        return multiply_blockwise(self._sparse(self.values, self.indices, (self.size, self.size), columns), columns)

    def rows(self, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices (j,) of the nonzero columns of rows of a sparse M, and their entries (stop − start, j)."""
        first, last = torch.searchsorted(self.indices[0], torch.tensor([start, stop]).to(self.indices)).tolist()
        columns, positions = self.indices[1, first:last].unique(return_inverse=True)
        indices = torch.stack([self.indices[0, first:last] - start, positions])
        return columns, self._sparse(self.values[first:last], indices, (stop - start, len(columns)), like)

    def project(self, columns: Tensor) -> Tensor:
        """Return (Rᵀ ⊗ I_q) columns (..., r·q, k) for a root M = R Rᵀ of rank r; the columns if M is inverted."""
        root = self._factors()[0]
        return columns if root is None else multiply_blockwise(root.mT.to(columns), columns)

    def noise(self, like: Tensor) -> Tensor:
        """Return the noise N of the pseudo-observations P of `project`, I or M⁻¹ ⊗ I_q, with Pᵀ N⁻¹ P = M ⊗ I_q."""
        inverse = self._factors()[1]
        if inverse is None:
            return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
        eye = torch.eye(like.shape[-1] // self.size, dtype=like.dtype, device=like.device)
        return torch.kron(inverse.to(like), eye)

    def to_dense(self) -> Tensor:
        """Return M (s, s)."""
        if not self.is_sparse:
            return self.values
        return torch.zeros(self.size, self.size).to(self.values).index_put((*self.indices,), self.values)

    def extra_repr(self) -> str:
        return f"size={self.size}, sparse={self.is_sparse}"

    @staticmethod
    def _sparse(values: Tensor, indices: Tensor, size: tuple[int, int], like: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(indices, values.to(like), size, is_coalesced=True, check_invariants=False)

    def _factors(self) -> tuple[Tensor | None, Tensor | None]:
        """Return R (s, r) and None, or None and M⁻¹ if M is well conditioned."""
        return self._root.get_or_compute([self], None, self._compute_factors)

    def _compute_factors(self) -> tuple[Tensor | None, Tensor | None]:
        values, vectors = torch.linalg.eigh(self.to_dense().double())
        if values[0] > MIN_INVERSE_CONDITION * values[-1]:
            return None, (vectors / values) @ vectors.mT
        kept = values > self.size * torch.finfo(values.dtype).eps * values[-1]
        return vectors[:, kept] * values[kept].sqrt(), None


def multiply_blockwise(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return (A ⊗ I_q) columns, (..., r·q, k), for a dense or sparse A (r, s) and columns (..., s·q, k)."""
    blocks = columns.unflatten(-2, (matrix.shape[1], -1))  # (..., s, q, k)
    if not matrix.is_sparse:
        return (matrix @ blocks.flatten(-2)).unflatten(-1, blocks.shape[-2:]).flatten(-3, -2)
    front = blocks.movedim(-3, 0)  # sparse products do not support batches
    product = torch.sparse.mm(matrix, front.flatten(1))
    return product.unflatten(1, front.shape[1:]).movedim(0, -3).flatten(-3, -2)


def _validate_matrix(matrix) -> np.ndarray | sparse.csr_array:
    """Return the matrix in float64 and exactly symmetric; raise unless it is positive semi-definite."""
    matrix = _convert_matrix(matrix)
    if np.iscomplexobj(matrix):
        raise InputError("penalty must be a matrix of real numbers, got complex numbers.")
    tolerance = RELATIVE_TOLERANCES["float32" if matrix.dtype == np.float32 else "float64"]
    matrix = matrix.astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InputError(f"penalty must be a square matrix, (n, n) or (n·p, n·p), got shape {matrix.shape}.")
    if not np.isfinite(matrix.data if sparse.issparse(matrix) else matrix).all():
        raise InputError("penalty must be finite, got NaN or infinity.")
    size = abs(matrix).sum(1).max()
    if abs(matrix - matrix.T).max() > tolerance * size:
        raise InputError("penalty must be symmetric. Use (M + M.T) / 2 if that is intended.")
    matrix = (matrix + matrix.T) / 2
    if (smallest := _smallest_eigenvalue(matrix, size)) < -tolerance * size:
        raise InputError(
            f"penalty must be positive semi-definite, got the negative eigenvalue {smallest:.3g}. Use a positive semi-definite matrix, such as the Laplacian of a graph with nonnegative weights."
        )
    return matrix


def _convert_matrix(matrix) -> np.ndarray | sparse.csr_array:
    if torch.is_tensor(matrix):
        matrix = matrix.detach().cpu()
        if matrix.layout != torch.strided:
            coo = matrix.to_sparse_coo().coalesce()
            matrix = sparse.coo_array((coo.values().numpy(), tuple(coo.indices().numpy())), shape=tuple(coo.shape))
    if sparse.issparse(matrix):
        matrix = sparse.csr_array(matrix, copy=True)
        matrix.sum_duplicates()
        return matrix.toarray() if matrix.nnz > MAX_SPARSE_FRACTION * np.prod(matrix.shape) else matrix
    try:
        matrix = np.asarray(matrix)
        return matrix if matrix.dtype.kind in "fiubc" else matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"penalty must be a matrix of real numbers, got {type(matrix).__name__} ({error}).") from error


def _smallest_eigenvalue(matrix: np.ndarray | sparse.csr_array, size: float) -> float:
    """Return the smallest eigenvalue, or 0 if Gershgorin's circles show that none is negative."""
    diagonal = matrix.diagonal()
    others = abs(matrix).sum(1) - abs(diagonal)
    if (diagonal - others >= -1e-12 * size).all():
        return 0.0
    if matrix.shape[0] <= MAX_DENSE_SIZE:
        return float(np.linalg.eigvalsh(matrix.toarray() if sparse.issparse(matrix) else matrix)[0])
    # the largest eigenvalue of size·I − M is far from zero, so that a relative tolerance is meaningful
    shifted = size * sparse.eye_array(matrix.shape[0], format="csr") - matrix
    v0 = np.random.default_rng(0).standard_normal(matrix.shape[0])
    return size - float(eigsh(shifted, k=1, which="LA", v0=v0, tol=1e-4, return_eigenvectors=False)[0])
