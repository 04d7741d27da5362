"""Graphs on the rows of a table, and their Laplacians, as penalties for `ManifoldKernel` (BT-111, BT-114).

    fᵀ L f = ½ Σ_ik W_ik (f_i − f_k)²,    L = diag(W1) − W,

so that a function with a small penalty varies little between points that the graph ties together.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components, laplacian
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError


class ModuleCache:
    """One value computed from modules.

    A copy of the modules (`deepcopy`) copies what is remembered with them; a pickle forgets it.

    Cost: O(number of parameters) a look; memory for a copy of the parameters.

    Example:
        >>> import torch
        >>> from ovkgp.kernels.penalties import ModuleCache
        >>> layer, memory = torch.nn.Linear(2, 2), ModuleCache()
        >>> with torch.no_grad():
        ...     first = memory.of([layer], "norm", lambda: layer.weight.norm())
        ...     again = memory.of([layer], "norm", lambda: layer.weight.norm())
        >>> first is again
        True
    """

    def __init__(self):
        self._modules: list[torch.nn.Module] = []
        self._parameters: list[Tensor] = []
        self._buffers: list[tuple[Tensor, int]] = []
        self._key: Any = None
        self._value: Any = None

    def of(self, modules: list[torch.nn.Module], key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, or what it gave before where nothing has changed since.

        Args:
            modules: all that the value depends on.
            key: what else it depends on, such as a dtype; compared by `==`.
            make: a function without arguments.
        """
        parts = [part for module in modules for part in module.modules()]
        parameters = [tensor for part in parts for tensor in part.parameters(recurse=False)]
        buffers = [tensor for part in parts for tensor in part.buffers(recurse=False)]
        if _is_tracked(parameters + buffers):
            return make()
        if not self._knows(parts, parameters, buffers, key):
            self._value = make()
            self._modules, self._key = parts, key
            self._parameters = [tensor.detach().clone() for tensor in parameters]
            self._buffers = [(tensor, tensor._version) for tensor in buffers]
        return self._value

    def _knows(self, parts: list, parameters: list[Tensor], buffers: list[Tensor], key: Any) -> bool:
        if not self._modules or key != self._key or [*map(id, parts)] != [*map(id, self._modules)]:
            return False
        if [(id(tensor), tensor._version) for tensor in buffers] != [(id(t), v) for t, v in self._buffers]:
            return False
        return len(parameters) == len(self._parameters) and all(map(_are_alike, parameters, self._parameters))

    def __deepcopy__(self, memo: dict) -> ModuleCache:
        copy = ModuleCache()
        copy._modules, copy._parameters, buffers, copy._key, copy._value = deepcopy(
            (self._modules, self._parameters, [tensor for tensor, _ in self._buffers], self._key, self._value), memo
        )
        unchanged = all(tensor._version == version for tensor, version in self._buffers)
        copy._buffers = [(tensor, tensor._version if unchanged else -1) for tensor in buffers]
        return copy

    def __reduce__(self):
        return ModuleCache, ()


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


def _is_tracked(tensors: list[Tensor]) -> bool:
    """Whether somebody differentiates, batches over or otherwise looks into these tensors."""
    if torch.is_inference_mode_enabled() or torch._C._are_functorch_transforms_active():
        return True
    if any(tensor.is_inference() for tensor in tensors):  # they have no version
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


TOLERANCE = {"float64": 1e-8, "float32": 1e-4}
"""How far from symmetric, and how far below zero, relative to the largest row sum, M may be by rounding."""

DENSE_SIZE = 2000
"""Up to this size the eigenvalues of M are all computed to see that none is negative; beyond, the smallest by Lanczos
iterations, which may miss one that is above about −1e-5 of the largest row sum."""

DENSE_SHARE = 0.25
"""A sparse matrix with more than this share of its entries stored is kept dense."""

WELL_CONDITIONED = 1e-6
"""M is inverted, rather than taken a root of, where its smallest eigenvalue is at least this part of its largest."""


class Penalty(torch.nn.Module):
    """M, symmetric and positive semi-definite, with products by M ⊗ I_q for any q, and a root.

    Args:
        matrix: (s, s), a NumPy array, a torch tensor (dense or sparse) or a SciPy sparse matrix. Kept in float64.

    Cost: O(stored entries) memory; a product with k columns of s·q rows O(stored entries · q k); the root O(s³), once,
    when it is first asked for. The check for negative eigenvalues costs O(s²) for a diagonally dominant matrix, such as
    a graph Laplacian, and O(s³) or a few hundred products for another.

    Raises:
        InputError: the matrix is not square, finite, symmetric and positive semi-definite.

    Example:
        >>> import torch
        >>> from ovkgp.kernels.penalties import Penalty
        >>> penalty = Penalty([[1.0, -1.0], [-1.0, 1.0]])  # (f_1 − f_2)²
        >>> (penalty @ torch.tensor([[3.0], [1.0]]).double()).flatten().tolist()
        [2.0, -2.0]
    """

    values: Tensor
    """The stored entries, (s, s) or (nnz,)."""
    indices: Tensor | None
    """Their places (2, nnz), row by row; None for a dense matrix."""

    def __init__(self, matrix):
        super().__init__()
        matrix = _checked(matrix)
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
        """Whether only the entries that are not zero are kept."""
        return self.indices is not None

    def __matmul__(self, columns: Tensor) -> Tensor:
        """(M ⊗ I_q) columns, for columns (..., s·q, k)."""
        if not self.is_sparse:
            return blockwise_product(self.values.to(columns), columns)
        return blockwise_product(self._sparse(self.values, self.indices, (self.size, self.size), columns), columns)

    def rows(self, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Some rows of a sparse M: the columns J that they reach (j,), and the sparse matrix of size (stop − start, j)."""
        first, last = torch.searchsorted(self.indices[0], torch.tensor([start, stop]).to(self.indices)).tolist()
        reached, places = self.indices[1, first:last].unique(return_inverse=True)
        indices = torch.stack([self.indices[0, first:last] - start, places])
        return reached, self._sparse(self.values[first:last], indices, (stop - start, len(reached)), like)

    def project(self, columns: Tensor) -> Tensor:
        """(Rᵀ ⊗ I_q) columns (..., r·q, k) for a root M = R Rᵀ with r = rank M; the columns where M has full rank."""
        root = self._factors()[0]
        return columns if root is None else blockwise_product(root.mT.to(columns), columns)

    def noise(self, like: Tensor) -> Tensor:
        """The covariance N of pseudo-observations of `project`: it makes Pᵀ N⁻¹ P = M ⊗ I_q; identity, or M⁻¹ ⊗ I_q."""
        inverse = self._factors()[1]
        if inverse is None:
            return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
        eye = torch.eye(like.shape[-1] // self.size, dtype=like.dtype, device=like.device)
        return torch.kron(inverse.to(like), eye)

    def to_dense(self) -> Tensor:
        """M (s, s)."""
        if not self.is_sparse:
            return self.values
        return torch.zeros(self.size, self.size).to(self.values).index_put((*self.indices,), self.values)

    def extra_repr(self) -> str:
        return f"size={self.size}, sparse={self.is_sparse}"

    @staticmethod
    def _sparse(values: Tensor, indices: Tensor, size: tuple[int, int], like: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(indices, values.to(like), size, is_coalesced=True, check_invariants=False)

    def _factors(self) -> tuple[Tensor | None, Tensor | None]:
        """R (s, r) and None, or None and M⁻¹ where M is well conditioned."""
        return self._root.of([self], None, self._compute_factors)

    def _compute_factors(self) -> tuple[Tensor | None, Tensor | None]:
        values, vectors = torch.linalg.eigh(self.to_dense().double())
        if values[0] > WELL_CONDITIONED * values[-1]:
            return None, (vectors / values) @ vectors.mT
        kept = values > self.size * torch.finfo(values.dtype).eps * values[-1]
        return vectors[:, kept] * values[kept].sqrt(), None


def blockwise_product(matrix: Tensor, columns: Tensor) -> Tensor:
    """(A ⊗ I_q) columns, for A (r, s), dense or sparse, and columns (..., s·q, k): (..., r·q, k)."""
    blocks = columns.unflatten(-2, (matrix.shape[1], -1))  # (..., s, q, k)
    if not matrix.is_sparse:
        return (matrix @ blocks.flatten(-2)).unflatten(-1, blocks.shape[-2:]).flatten(-3, -2)
    front = blocks.movedim(-3, 0)  # a sparse matrix multiplies one dense matrix, and no batch of them
    product = torch.sparse.mm(matrix, front.flatten(1))
    return product.unflatten(1, front.shape[1:]).movedim(0, -3).flatten(-3, -2)


def _checked(matrix) -> np.ndarray | sparse.csr_array:
    """The matrix in float64, exactly symmetric; raises unless it is a penalty."""
    matrix = _read(matrix)
    if np.iscomplexobj(matrix):
        raise InputError("a penalty is a matrix of real numbers; this one is complex.")
    tolerance = TOLERANCE["float32" if matrix.dtype == np.float32 else "float64"]
    matrix = matrix.astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InputError(f"a penalty is a square matrix, (n, n) or (n·p, n·p); got shape {matrix.shape}.")
    if not np.isfinite(matrix.data if sparse.issparse(matrix) else matrix).all():
        raise InputError("the penalty holds NaN or infinity.")
    size = abs(matrix).sum(1).max()
    if abs(matrix - matrix.T).max() > tolerance * size:
        raise InputError("the penalty is not symmetric; use (M + M.T) / 2 if that is what you mean.")
    matrix = (matrix + matrix.T) / 2
    if (smallest := _smallest_eigenvalue(matrix, size)) < -tolerance * size:
        raise InputError(
            f"the penalty has a negative eigenvalue, {smallest:.3g}, and would reward what it is to punish; give a positive "
            "semi-definite matrix, such as the Laplacian of a graph with non-negative weights."
        )
    return matrix


def _read(matrix) -> np.ndarray | sparse.csr_array:
    if torch.is_tensor(matrix):
        matrix = matrix.detach().cpu()
        if matrix.layout != torch.strided:
            coo = matrix.to_sparse_coo().coalesce()
            matrix = sparse.coo_array((coo.values().numpy(), tuple(coo.indices().numpy())), shape=tuple(coo.shape))
    if sparse.issparse(matrix):
        matrix = sparse.csr_array(matrix, copy=True)
        matrix.sum_duplicates()
        return matrix.toarray() if matrix.nnz > DENSE_SHARE * np.prod(matrix.shape) else matrix
    try:
        matrix = np.asarray(matrix)
        return matrix if matrix.dtype.kind in "fiubc" else matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a penalty is a matrix of real numbers, got {type(matrix).__name__} ({error}).") from error


def _smallest_eigenvalue(matrix: np.ndarray | sparse.csr_array, size: float) -> float:
    """The smallest eigenvalue, or 0 where Gershgorin's circles show that none is negative."""
    diagonal = matrix.diagonal()
    others = abs(matrix).sum(1) - abs(diagonal)
    if (diagonal - others >= -1e-12 * size).all():
        return 0.0
    if matrix.shape[0] <= DENSE_SIZE:
        return float(np.linalg.eigvalsh(matrix.toarray() if sparse.issparse(matrix) else matrix)[0])
    # the largest eigenvalue of size·I − M is far from zero, where a relative tolerance is of use
    shifted = size * sparse.eye_array(matrix.shape[0], format="csr") - matrix
    start = np.random.default_rng(0).standard_normal(matrix.shape[0])
    return size - float(eigsh(shifted, k=1, which="LA", v0=start, tol=1e-4, return_eigenvectors=False)[0])


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
    if (num_clusters := check_integer("num_clusters", num_clusters)) > len(X):
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
    n, k = len(X), min(check_integer("num_neighbors", num_neighbors), len(X) - 1)
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
