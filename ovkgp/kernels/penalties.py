"""Quadratic penalties on the values of a function, Σ_ik ⟨f(x_i), M_ik f(x_k)⟩ with M symmetric and positive semi-definite.

M is (n, n), one number M_ik for each pair of points and the same for every output (M ⊗ I_p), or (n·p, n·p), data-major. It
may be sparse, as graph Laplacians are, and is then never made dense by a product.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.kernels.remembered import Remembered

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
        self._root = Remembered()

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
