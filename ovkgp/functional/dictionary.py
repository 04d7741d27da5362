"""Dictionaries: finitely many functions φ_1, …, φ_d on a domain, in which curves are expanded (BO-31, 32, 46).

A dictionary evaluates its functions and their derivatives, and has their Gram matrix G = (∫ φ_l φ_r dt), the roughness
matrices (∫ φ_l^(s) φ_r^(s) dt), and projections of functional data. Integrals are with respect to Lebesgue measure on the domain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import factorial, prod

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from ovkgp.checks import check_integer, check_one_of
from ovkgp.exceptions import InputError, SmoothnessError
from ovkgp.functional.conversion import as_functional_data
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.factors import Factor
from ovkgp.functional.quadrature import as_array, as_domain, as_points, gauss_rule, product_rule, quadrature_weights

RANK_TOLERANCE = 1e-10
"""Eigenvalues of a Gram matrix below this fraction of the largest are considered 0."""
NUM_NODES = 400  # number of quadrature nodes of integrals without breakpoints, in one dimension
NUM_NODES_PER_DIMENSION = 60  # if there are several dimensions
PANEL_NODES = 20  # number of Gauss–Legendre nodes per panel


class Dictionary(ABC):
    """Functions φ_1, …, φ_d on a domain in R^b.

    Subclasses set `domain` in their constructor and define `num_functions` and `_evaluate`; closed forms of `gram` and
    `roughness` replace the quadrature of this class.

    Attributes
    ----------
    domain : ndarray of shape (b, 2)
        Ends of the domain in each dimension.
    """

    domain: np.ndarray

    @property
    @abstractmethod
    def num_functions(self) -> int:
        """Number d of functions."""

    @abstractmethod
    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        """Return derivatives of the functions, `order` times in each dimension, at points (k, b) of the domain: (k, d)."""

    @property
    def num_dims(self) -> int:
        """Dimension b of the domain."""
        return len(self.domain)

    @property
    def volume(self) -> float:
        """Length, area or volume of the domain."""
        return float(np.prod(self.domain[:, 1] - self.domain[:, 0]))

    def __len__(self) -> int:
        return self.num_functions

    def __repr__(self) -> str:
        ends = " × ".join(f"[{low:g}, {high:g}]" for low, high in self.domain)
        return f"{type(self).__name__}({self.num_functions} functions on {ends})"

    def __call__(self, points) -> np.ndarray:
        """Return the functions at points (k,) or (k, b), of shape (k, d)."""
        return self._evaluate(as_points(points, self.domain), (0,) * self.num_dims)

    def derivative(self, points, order: int | tuple[int, ...] = 1) -> np.ndarray:
        """Return derivatives of the functions at points.

        Parameters
        ----------
        points : array-like of shape (k,) or (k, b)
            Points in the domain.
        order : int or tuple of b int, default=1
            Order of the derivative; if b > 1, one order per dimension.

        Returns
        -------
        ndarray of shape (k, d)
            ∂^order φ_l at the points.

        Raises
        ------
        SmoothnessError
            If the functions have no such derivative.
        """
        return self._evaluate(as_points(points, self.domain), self._check_order(order))

    def _check_order(self, order) -> tuple[int, ...]:
        orders = (order,) if np.ndim(order) == 0 else tuple(order)
        if len(orders) != self.num_dims:
            raise InputError(f"order must be {self.num_dims} integers, one per dimension, got {order!r}.")
        return tuple(check_integer("order", one, 0) for one in orders)

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """Return quadrature nodes (k, b) and weights (k,), which sum to the volume, for products of two functions.

        Returns
        -------
        nodes, weights : ndarray of shape (k, b) and (k,)
            Nodes and weights.
        """
        count = NUM_NODES if self.num_dims == 1 else NUM_NODES_PER_DIMENSION
        panels = count // PANEL_NODES
        return product_rule([gauss_rule(np.linspace(*ends, panels + 1), PANEL_NODES) for ends in self.domain])

    def gram(self) -> np.ndarray:
        """Return the Gram matrix G = (∫ φ_l φ_r dt), (d, d).

        Returns
        -------
        ndarray of shape (d, d)
            Gram matrix.
        """
        return self._gram_of((0,) * self.num_dims)

    def roughness(self, order: int = 2) -> np.ndarray:
        """Return the matrix of the penalty ∫ (f^(s))² dt of f = Σ a_l φ_l, (d, d).

        Parameters
        ----------
        order : int, default=2
            Order s of the derivative. If b > 1, the sum over all partial derivatives of order s, with multinomial weights, which is
            invariant under rotation (the thin-plate penalty for b = s = 2).

        Returns
        -------
        ndarray of shape (d, d)
            Positive semi-definite matrix.
        """
        order = check_integer("order", order, 0)
        if self.num_dims == 1:
            return self._gram_of((order,))
        return sum(weight * self._gram_of(orders) for orders, weight in partial_orders(order, self.num_dims))

    def _gram_of(self, order: tuple[int, ...]) -> np.ndarray:
        nodes, weights = self.rule()
        rows = self._evaluate(nodes, order)
        gram = (rows * weights[:, None]).T @ rows
        return (gram + gram.T) / 2

    @property
    def condition_number(self) -> float:
        """Ratio of the largest to the smallest eigenvalue of the Gram matrix; inf if the functions are linearly dependent."""
        low, high = self.riesz_constants
        return np.inf if low == 0 else (high / low) ** 2

    @property
    def riesz_constants(self) -> tuple[float, float]:
        """Constants c, C with c ‖a‖ ≤ ‖Σ a_l φ_l‖ ≤ C ‖a‖: roots of the extreme eigenvalues of G (BO-46, BO-E-17)."""
        values = np.linalg.eigvalsh(self.gram())
        low = values[0] if values[0] > len(values) * np.finfo(float).eps * values[-1] else 0.0
        return float(np.sqrt(low)), float(np.sqrt(values[-1]))

    def inner(self, data, rule: str = "mean") -> np.ndarray:
        """Compute ⟨y_i, φ_l⟩ = ∫ y_i φ_l dt by quadrature on the observed points of each curve.

        Parameters
        ----------
        data : FunctionalData or array-like
            Curves in the domain of the dictionary.
        rule : {"mean", "trapezoid"}, default="mean"
            Quadrature rule of the observed points. "mean" multiplies the average over the points by the volume of the domain.

        Returns
        -------
        ndarray of shape (n, d) or (n, d, q)
            Inner products, per channel if the data have channels.

        Notes
        -----
        Complexity: O(n m d) on a common grid without gaps, O(Σ m_i d) otherwise.

        References
        ----------
        BO-62
        """
        data = self.check_data(data)
        if data.is_complete:
            rows = self._weights(data.grid, rule)[:, None] * self(data.grid)
            return np.einsum("nm...,md->nd...", data.values, rows)
        return _per_channel(data, lambda points, values: (self._weights(points, rule) * values) @ self(points))

    def _weights(self, points: np.ndarray, rule: str) -> np.ndarray:
        """Return weights of observed points for integrals over the domain."""
        return quadrature_weights(points, self.domain, rule) * self.volume

    def project(self, data, method: str = "least_squares", rule: str = "mean") -> np.ndarray:
        """Compute the coefficients of curves.

        Parameters
        ----------
        data : FunctionalData or array-like
            Curves in the domain of the dictionary.
        method : {"least_squares", "quadrature"}, default="least_squares"
            "least_squares" minimizes the squared error at the observed points; among several solutions it takes that of least norm.
            "quadrature" is G⁺⟨y_i, φ⟩ with the integrals of `inner`.
        rule : {"mean", "trapezoid"}, default="mean"
            Quadrature rule. Ignored unless `method="quadrature"`.

        Returns
        -------
        ndarray of shape (n, d) or (n, d, q)
            Coefficients a_i: y_i(t) ≈ Σ_l a_il φ_l(t).

        Notes
        -----
        Complexity: O(m d² + n m d) on a common grid without gaps, O(Σ m_i d²) otherwise.

        References
        ----------
        BO-31
        """
        data = self.check_data(data)
        if check_one_of("method", method, ("least_squares", "quadrature")) == "quadrature":
            inner = self.inner(data, rule)
            return np.einsum("lr,nr...->nl...", pseudo_inverse(self.gram()), inner)
        if data.is_complete:
            return np.einsum("dm,nm...->nd...", np.linalg.pinv(self(data.grid)), data.values)
        return _per_channel(data, lambda points, values: np.linalg.lstsq(self(points), values, rcond=None)[0])

    def expand(self, coefficients, points, order: int | tuple[int, ...] = 0) -> np.ndarray:
        """Evaluate expansions Σ_l a_l φ_l, or their derivatives, at points.

        Parameters
        ----------
        coefficients : array-like of shape (n, d), (n, d, q) or (d,)
            Coefficients.
        points : array-like of shape (k,) or (k, b)
            Points in the domain.
        order : int or tuple of b int, default=0
            Order of the derivative.

        Returns
        -------
        ndarray of shape (n, k), (n, k, q) or (k,)
            Values.
        """
        coefficients = as_array(coefficients, "coefficients")
        axis = 0 if coefficients.ndim == 1 else 1
        if coefficients.ndim > 3 or coefficients.shape[axis] != self.num_functions:
            raise InputError(
                f"coefficients has shape {coefficients.shape}, expected (n, {self.num_functions}) or (n, {self.num_functions}, q)."
            )
        order = (0,) * self.num_dims if order == 0 else self._check_order(order)
        rows = self._evaluate(as_points(points, self.domain), order)
        return rows @ coefficients if axis == 0 else np.einsum("kd,nd...->nk...", rows, coefficients)

    def subset(self, indices) -> Combination:
        """Select functions by indices or a mask.

        Parameters
        ----------
        indices : array-like of int or bool
            Functions to keep, in this order.

        Returns
        -------
        Combination
            Dictionary of the selected functions.
        """
        indices = np.asarray(indices)
        indices = np.flatnonzero(indices) if indices.dtype == bool else np.atleast_1d(indices)
        if indices.ndim != 1 or indices.size == 0 or not (np.abs(indices + 0.5) < self.num_functions).all():
            raise InputError(
                f"indices must select at least one of {self.num_functions} functions, got {indices.tolist()}."
            )
        return Combination(self, np.eye(self.num_functions)[:, indices])

    def orthonormalize(self, tolerance: float = RANK_TOLERANCE) -> Combination:
        """Return an orthonormal dictionary with the same span.

        Parameters
        ----------
        tolerance : float, default=1e-10
            Eigenvalues of the Gram matrix below this fraction of the largest are dropped, with their functions.

        Returns
        -------
        Combination
            Functions Φ W Υ^(−1/2) of the eigenpairs G = W Υ Wᵀ, by decreasing eigenvalues.
        """
        values, vectors = decompose(self.gram(), tolerance)
        return Combination(self, vectors / np.sqrt(values))

    def as_factor(self, output_matrix=None) -> DictionaryFactor:
        """Return coordinates Φ(t) B^½ of the kernel φ(t)ᵀBφ(t') for task learning.

        Parameters
        ----------
        output_matrix : array-like of shape (d, d) or (d,) or None, default=None
            Covariance B of the coefficients, or its diagonal. If None, the identity.

        Returns
        -------
        DictionaryFactor
            Map of tasks to rows, with slopes.
        """
        return DictionaryFactor(self, output_matrix)

    def check_data(self, data) -> FunctionalData:
        """Convert curves to functional data and check that their domain has the same dimension.

        Parameters
        ----------
        data : FunctionalData or array-like of shape (n, m)
            Curves.

        Returns
        -------
        FunctionalData
            Converted curves.
        """
        data = as_functional_data(data)
        if data.num_dims != self.num_dims:
            raise InputError(f"data have {data.num_dims} dimension(s), expected {self.num_dims} as the dictionary.")
        return data


class Combination(Dictionary):
    """Linear combinations of the functions of a dictionary, ψ_r = Σ_l M_lr φ_l.

    Parameters
    ----------
    dictionary : Dictionary
        Functions φ.
    matrix : array-like of shape (d, r)
        Coefficients M of the new functions.

    Examples
    --------
    >>> from ovkgp.functional import Combination, Fourier
    >>> Combination(Fourier(2), [[1.0], [1.0], [0.0]]).gram()
    array([[2.]])
    """

    def __init__(self, dictionary: Dictionary, matrix):
        self.dictionary, self.matrix, self.domain = dictionary, as_array(matrix, "matrix"), dictionary.domain
        if self.matrix.ndim != 2 or len(self.matrix) != dictionary.num_functions or not np.isfinite(self.matrix).all():
            raise InputError(
                f"matrix has shape {self.matrix.shape}, expected ({dictionary.num_functions}, r), with finite values."
            )

    @property
    def num_functions(self) -> int:
        return self.matrix.shape[1]

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        return self.dictionary._evaluate(points, order) @ self.matrix

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        return self.dictionary.rule()

    def gram(self) -> np.ndarray:
        return self.matrix.T @ self.dictionary.gram() @ self.matrix

    def roughness(self, order: int = 2) -> np.ndarray:
        return self.matrix.T @ self.dictionary.roughness(order) @ self.matrix


class Interpolated(Dictionary):
    """Functions given by their values on a grid in one dimension, with linear or cubic spline interpolation.

    Parameters
    ----------
    values : array-like of shape (m, d)
        Values of d functions at the points.
    grid : array-like of shape (m,)
        Increasing points.
    domain : array-like of shape (2,) or None, default=None
        Domain; beyond the grid functions keep their last value. If None, the range of the grid.
    kind : {"linear", "cubic"}, default="linear"
        Interpolation. Linear functions have only a first derivative, which is constant between two points.

    Examples
    --------
    >>> from ovkgp.functional import Interpolated
    >>> hat = Interpolated([[0.0], [1.0], [0.0]], [0.0, 0.5, 1.0])
    >>> hat([0.25]).tolist(), round(float(hat.gram()[0, 0]), 6)
    ([[0.5]], 0.333333)
    """

    def __init__(self, values, grid, domain=None, kind: str = "linear"):
        self.values, self.grid = as_array(values, "values"), as_array(grid, "grid")
        if self.grid.ndim != 1 or len(self.grid) < 2 or not (np.diff(self.grid) > 0).all():
            raise InputError("grid must be a vector of at least 2 strictly increasing points.")
        if self.values.ndim != 2 or len(self.values) != len(self.grid) or not np.isfinite(self.values).all():
            raise InputError(
                f"values has shape {self.values.shape}, expected ({len(self.grid)}, d), with finite values."
            )
        self.domain = as_domain((self.grid[0], self.grid[-1]) if domain is None else domain)
        as_points(self.grid, self.domain, "grid")
        self.kind = check_one_of("kind", kind, ("linear", "cubic"))

    @property
    def num_functions(self) -> int:
        return self.values.shape[1]

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        t, inside = np.clip(points[:, 0], self.grid[0], self.grid[-1]), (order[0] == 0)
        if self.kind == "cubic" and len(self.grid) > 3:
            found = CubicSpline(self.grid, self.values)(t, nu=order[0])
        else:
            cell = np.clip(np.searchsorted(self.grid, t, side="right") - 1, 0, len(self.grid) - 2)
            slope = np.diff(self.values, axis=0)[cell] / np.diff(self.grid)[cell, None]
            if order[0] > 1:
                raise SmoothnessError('Linear interpolation has no second derivative. Use kind="cubic".')
            found = slope if order[0] else self.values[cell] + (t - self.grid[cell])[:, None] * slope
        outside = t != points[:, 0]
        return found if inside else np.where(outside[:, None], 0.0, found)

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        breakpoints = np.concatenate([self.domain[0, :1], self.grid, self.domain[0, 1:]])
        nodes, weights = gauss_rule(breakpoints, 2 if self.kind == "linear" else 4)
        return nodes[:, None], weights


class DictionaryFactor(Factor):
    """Coordinates Φ(t) B^½ of the kernel φ(t)ᵀBφ(t'), as a `Factor` of task learning (BO-11).

    Parameters
    ----------
    dictionary : Dictionary
        Functions φ.
    output_matrix : array-like of shape (d, d) or (d,) or None, default=None
        Covariance B of the coefficients, or its diagonal. If None, the identity.
    """

    def __init__(self, dictionary: Dictionary, output_matrix=None):
        self.dictionary = dictionary
        size = dictionary.num_functions
        B = np.eye(size) if output_matrix is None else as_array(output_matrix, "output_matrix")
        B = np.diag(B) if B.ndim == 1 else B
        if B.shape != (size, size) or not np.allclose(B, B.T):
            raise InputError(f"output_matrix has shape {B.shape}, expected a symmetric matrix ({size}, {size}).")
        values, vectors = np.linalg.eigh(B)
        if values[0] < -1e-8 * max(values[-1], 0.0) or values[-1] <= 0:
            raise InputError(f"output_matrix must be positive semi-definite, got the eigenvalue {values[0]:.3g}.")
        self.root = torch.from_numpy((vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T)

    def __call__(self, points: Tensor) -> Tensor:
        return torch.from_numpy(self.dictionary(points)) @ self.root

    def slopes(self, points: Tensor) -> Tensor:
        return torch.from_numpy(self.dictionary.derivative(points)) @ self.root


def decompose(gram: np.ndarray, tolerance: float = RANK_TOLERANCE) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues (r,) above a fraction of the largest, decreasing, and their eigenvectors (d, r)."""
    values, vectors = np.linalg.eigh(gram)
    order = np.argsort(values)[::-1]
    order = order[values[order] > tolerance * values.max()]
    return values[order], vectors[:, order]


def pseudo_inverse(gram: np.ndarray, tolerance: float = RANK_TOLERANCE) -> np.ndarray:
    """Return the pseudo-inverse of a Gram matrix on its eigenvalues above a fraction of the largest."""
    values, vectors = decompose(gram, tolerance)
    return (vectors / values) @ vectors.T


def _per_channel(data: FunctionalData, compute) -> np.ndarray:
    """Apply `compute(points, values)` to the observed values of each curve and channel: (n, d) or (n, d, q)."""
    rows = []
    for i, (points, values) in enumerate(data.curves()):
        columns = []
        for c, column in enumerate(values.T):
            keep = ~np.isnan(column)
            if not keep.any():
                raise InputError(f"Curve {i} has no observed values in channel {c}. Drop it or add observations.")
            columns.append(compute(points[keep], column[keep]))
        rows.append(np.stack(columns, -1))
    stacked = np.stack(rows)
    return stacked if data.has_channels else stacked[..., 0]


def partial_orders(order: int, num_dims: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the multi-indices of a total order and their multinomial coefficients."""

    def indices(rest: int, dims: int):
        if dims == 1:
            yield (rest,)
            return
        for first in range(rest + 1):
            yield from ((first, *tail) for tail in indices(rest - first, dims - 1))

    return [(index, factorial(order) // prod(map(factorial, index))) for index in indices(order, num_dims)]
