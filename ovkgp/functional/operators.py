"""Integral operators of operator-valued kernels, T f(x) = ∫ K(x, z) f(z) dμ(z) on functions with values in R^p, and their eigenpairs (LT-35).

For a separable kernel K = k A, T = A ⊗ T_k: its eigenvalues are products of those of A and of T_k, and its eigenfunctions are eigenfunctions
of T_k times eigenvectors of A.
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError
from ovkgp.functional.quadrature import as_array
from ovkgp.kernels import components, num_outputs
from ovkgp.kernels.evaluation import evaluate_kernel

EIGENFUNCTION_CUTOFF = 1e-10  # eigenvalues below this fraction of the largest are dropped


class VectorEigenpairs(NamedTuple):
    """Eigenvalues (r,), decreasing, and the values of the orthonormal eigenfunctions at the nodes, (m, p, r)."""

    values: np.ndarray
    functions: np.ndarray


class IntegralOperator:
    """Integral operator of an operator-valued kernel under a discrete measure Σ_i η_i δ_{x_i}.

    Parameters
    ----------
    kernel : Kernel
        Scalar or operator-valued kernel with p outputs; its hyperparameters are copied.
    nodes : array-like of shape (m, d) or (m,)
        Points x of the measure.
    weights : array-like of shape (m,) or None, default=None
        Positive weights η. If None, 1/m.

    Notes
    -----
    T is self-adjoint, positive and compact on L²(μ, R^p), with trace Σ_i η_i tr K(x_i, x_i). Complexity: O(k m p²) to apply it at k points;
    eigenpairs O(m³ + p³) if the kernel is separable with one component, O(m³ p³) otherwise.

    References
    ----------
    LT-35, BO-13

    Examples
    --------
    >>> import numpy as np, torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.functional import IntegralOperator
    >>> from ovkgp.kernels import DecomposableKernel
    >>> kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.tensor([[2.0, 0.5], [0.5, 1.0]]))
    >>> operator = IntegralOperator(kernel, np.linspace(0, 1, 20))
    >>> round(operator.trace, 6), operator.eigenpairs(3).functions.shape
    (3.0, (20, 2, 3))
    """

    def __init__(self, kernel: Kernel, nodes, weights=None):
        points = as_array(nodes, "nodes")
        self.nodes = points[:, None] if points.ndim == 1 else points
        if self.nodes.ndim != 2 or not self.nodes.size or not np.isfinite(self.nodes).all():
            raise InputError(f"nodes must be finite and have shape (m, d) or (m,), got {points.shape}.")
        self.weights = (
            np.full(len(self.nodes), 1 / len(self.nodes)) if weights is None else as_array(weights, "weights")
        )
        if self.weights.shape != (len(self.nodes),) or not (self.weights > 0).all():
            raise InputError(f"weights must be {len(self.nodes)} positive numbers, got shape {self.weights.shape}.")
        self.kernel = deepcopy(kernel).double().requires_grad_(False)
        self.num_outputs = num_outputs(self.kernel)

    def __call__(self, values, points=None) -> np.ndarray:
        """Return T f at points (k, d), or at the nodes, of shape (k, p), for the values of f at the nodes, (m, p)."""
        values = as_array(values, "values")
        if values.shape != (len(self.nodes), self.num_outputs):
            raise InputError(f"values has shape {values.shape}, expected ({len(self.nodes)}, {self.num_outputs}).")
        points = self.nodes if points is None else as_array(points, "points").reshape(-1, self.nodes.shape[1])
        image = self._matrix(points) @ (self.weights[:, None] * values).ravel()
        return image.reshape(len(points), self.num_outputs)

    @property
    def trace(self) -> float:
        """Sum of all eigenvalues, Σ_i η_i tr K(x_i, x_i)."""
        diagonal = evaluate_kernel(self.kernel, torch.from_numpy(self.nodes), diag=True).double().numpy()
        return float(self.weights @ diagonal.reshape(len(self.nodes), -1).sum(1))

    def eigenpairs(self, num_pairs: int | None = None) -> VectorEigenpairs:
        """Compute the eigenpairs T ψ = λ ψ with Σ_i η_i ψ_r(x_i)ᵀψ_s(x_i) = δ_rs.

        Parameters
        ----------
        num_pairs : int or None, default=None
            Number of pairs, at most. If None, all above 1e-10 of the largest eigenvalue.

        Returns
        -------
        VectorEigenpairs
            Eigenvalues (r,) and eigenfunctions at the nodes (m, p, r).
        """
        parts = components(self.kernel)
        roots = np.sqrt(self.weights)
        if parts is not None and len(parts) == 1:
            scalar, matrix = parts[0]
            K = to_dense(evaluate_kernel(scalar, torch.from_numpy(self.nodes))).double().numpy()
            s, U = np.linalg.eigh(roots[:, None] * K * roots)
            a, V = np.linalg.eigh(to_dense(matrix).double().numpy())
            values, order = _order(np.outer(s, a).ravel(), num_pairs)
            i, j = np.divmod(order, len(a))
            return VectorEigenpairs(values, np.einsum("mr,pr->mpr", U[:, i] / roots[:, None], V[:, j]))
        wide = np.repeat(roots, self.num_outputs)
        found, U = np.linalg.eigh(wide[:, None] * self._matrix(self.nodes) * wide)
        values, order = _order(found, num_pairs)
        return VectorEigenpairs(values, (U[:, order] / wide[:, None]).reshape(len(self.nodes), self.num_outputs, -1))

    def extend(self, pairs: VectorEigenpairs, points) -> np.ndarray:
        """Return the eigenfunctions ψ = T ψ/λ at points (k, d), of shape (k, p, r).

        Parameters
        ----------
        pairs : VectorEigenpairs
            Eigenpairs (λ, ψ) at the nodes.
        points : array-like of shape (k, d)
            Points.

        Returns
        -------
        ndarray of shape (k, p, r)
            Values of the eigenfunctions.
        """
        images = [self(pairs.functions[..., r], points) / pairs.values[r] for r in range(len(pairs.values))]
        return np.stack(images, -1)

    def _matrix(self, points: np.ndarray) -> np.ndarray:
        """Return K(points, nodes), (k·p, m·p)."""
        matrix = evaluate_kernel(self.kernel, torch.from_numpy(points), torch.from_numpy(self.nodes))
        return to_dense(matrix).double().numpy()


def _order(values: np.ndarray, num_pairs: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues, decreasing, and their indices."""
    order = np.argsort(values)[::-1]
    order = order[values[order] > EIGENFUNCTION_CUTOFF * values.max()]
    order = order if num_pairs is None else order[: check_integer("num_pairs", num_pairs)]
    return values[order], order
