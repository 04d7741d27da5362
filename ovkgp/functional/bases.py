"""Fourier and B-spline bases, and tensor products of dictionaries for domains in R^b (BO-36, BO-39)."""

from __future__ import annotations

import numpy as np
from scipy.interpolate import BSpline

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError, SmoothnessError
from ovkgp.functional.dictionary import Dictionary
from ovkgp.functional.quadrature import as_array, as_domain, gauss_rule, product_rule


class Fourier(Dictionary):
    """Real Fourier basis: 1, √2 cos 2πlu, √2 sin 2πlu for l = 1, …, F − 1 with u = (t − low)/(high − low), over √(high − low).

    Parameters
    ----------
    num_frequencies : int
        Number F of frequencies, the constant included: there are 2F − 1 functions.
    domain : array-like of shape (2,), default=(0, 1)
        Domain, one period.

    Notes
    -----
    The functions are orthonormal, G = I, and bounded by √(2/(high − low)), not by 1 (BO-E-22). Roughness matrices are diagonal
    with entries (2πl/(high − low))^(2s). Complexity: O(k d).

    References
    ----------
    BO-36

    Examples
    --------
    >>> from ovkgp.functional import Fourier
    >>> Fourier(3)([0.0]).round(6).tolist()
    [[1.0, 1.414214, 0.0, 1.414214, 0.0]]
    """

    def __init__(self, num_frequencies: int, domain=(0.0, 1.0)):
        self.num_frequencies, self.domain = check_integer("num_frequencies", num_frequencies), as_domain(domain)
        if len(self.domain) != 1:
            raise InputError("domain must be an interval (low, high). Use TensorProduct for several dimensions.")

    @property
    def num_functions(self) -> int:
        return 2 * self.num_frequencies - 1

    @property
    def frequencies(self) -> np.ndarray:
        """Number of periods l of each function, (d,)."""
        return (np.arange(self.num_functions) + 1) // 2

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        rate = 2 * np.pi * self.frequencies / self.volume
        phase = np.where(
            np.arange(self.num_functions) % 2 == 1, np.pi / 2, 0.0
        )  # cosines are sines shifted by a quarter
        scale = np.sqrt(2 / self.volume) * rate ** order[0]
        rows = scale * np.sin((points - self.domain[0, 0]) * rate + phase + order[0] * np.pi / 2)
        rows[:, 0] = 0.0 if order[0] else 1 / np.sqrt(self.volume)
        return rows

    def gram(self) -> np.ndarray:
        return np.eye(self.num_functions)

    def roughness(self, order: int = 2) -> np.ndarray:
        order = check_integer("order", order, 0)
        return np.diag((2 * np.pi * self.frequencies / self.volume) ** (2.0 * order))


class BSplines(Dictionary):
    """B-splines N_l of an order s, piecewise polynomials of degree s − 1 with support of s knot intervals.

    Parameters
    ----------
    num_functions : int or None, default=None
        Number d of functions on equidistant knots, at least `order`. Ignored if `knots` is given.
    domain : array-like of shape (2,), default=(0, 1)
        Domain. Ignored if `knots` is given.
    order : int, default=4
        Order s; 4 is cubic.
    knots : array-like or None, default=None
        Non-decreasing breakpoints from the low to the high end of the domain; each repetition of an inner one reduces the
        smoothness there by 1. Both ends are repeated `order` times. If None, equidistant.

    Notes
    -----
    The functions are nonnegative and sum to 1; there are (number of breakpoints) + s − 2. They follow the normalization N = (τ_{l+s} − τ_l) M
    of the recursion of M-splines (BO-E-07). The Gram and roughness matrices are exact and banded. Complexity: O(k s + k d).

    References
    ----------
    BO-39

    Examples
    --------
    >>> from ovkgp.functional import BSplines
    >>> splines = BSplines(6)
    >>> splines([0.3]).sum().round(12), splines.num_functions
    (np.float64(1.0), 6)
    """

    def __init__(self, num_functions: int | None = None, domain=(0.0, 1.0), order: int = 4, knots=None):
        self.order = check_integer("order", order)
        if knots is None:
            count = check_integer("num_functions", 10 if num_functions is None else num_functions, self.order)
            ends = as_domain(domain)
            if len(ends) != 1:
                raise InputError("domain must be an interval (low, high). Use TensorProduct for several dimensions.")
            knots = np.linspace(*ends[0], count - self.order + 2)
        inner = as_array(knots, "knots")
        if inner.ndim != 1 or len(inner) < 2 or not (np.diff(inner) >= 0).all() or inner[0] == inner[-1]:
            raise InputError(f"knots must be at least 2 non-decreasing numbers, got {inner.tolist()[:5]}.")
        if max(np.unique(inner, return_counts=True)[1]) > self.order:
            raise OptionError(f"knots may repeat a number at most {self.order} times, the order of the splines.")
        low, high = inner[0], inner[-1]
        middle = inner[(inner > low) & (inner < high)]
        self.domain = as_domain((low, high))
        self.knots = np.concatenate([np.repeat(low, self.order), middle, np.repeat(high, self.order)])

    @property
    def num_functions(self) -> int:
        return len(self.knots) - self.order

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        if order[0] >= self.order:
            return np.zeros((len(points), self.num_functions))
        if order[0] == 0:
            return BSpline.design_matrix(points[:, 0], self.knots, self.order - 1).toarray()
        return BSpline(self.knots, np.eye(self.num_functions), self.order - 1)(points[:, 0], nu=order[0])

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        nodes, weights = gauss_rule(np.unique(self.knots), self.order)
        return nodes[:, None], weights

    def roughness(self, order: int = 2) -> np.ndarray:
        if check_integer("order", order, 0) >= self.order:
            raise SmoothnessError(
                f"roughness of order {order} requires splines of order above {order}, got {self.order}."
            )
        return super().roughness(order)


class TensorProduct(Dictionary):
    """Products of functions of one variable each, φ_l(t_1) ψ_r(t_2) …, on a Cartesian product of domains.

    Parameters
    ----------
    *dictionaries : Dictionary
        One dictionary per variable, each in one dimension. The functions of the last one vary fastest.

    Notes
    -----
    Gram matrices are Kronecker products. Complexity: O(k d) for k points and d = Π d_i functions.

    Examples
    --------
    >>> from ovkgp.functional import BSplines, Fourier, TensorProduct
    >>> TensorProduct(Fourier(2), BSplines(5))([[0.1, 0.2]]).shape
    (1, 15)
    """

    def __init__(self, *dictionaries: Dictionary):
        if not all(isinstance(one, Dictionary) for one in dictionaries):
            given = ", ".join(type(one).__name__ for one in dictionaries)
            raise InputError(
                f"dictionaries must be Dictionary objects, got {given}. Pass TensorProduct(first, second)."
            )
        if not dictionaries or any(one.num_dims != 1 for one in dictionaries):
            raise InputError("dictionaries must be at least one dictionary, each in one dimension.")
        self.dictionaries = dictionaries
        self.domain = np.concatenate([one.domain for one in dictionaries])

    @property
    def num_functions(self) -> int:
        return int(np.prod([one.num_functions for one in self.dictionaries]))

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        rows = np.ones((len(points), 1))
        for i, one in enumerate(self.dictionaries):
            factor = one._evaluate(points[:, i : i + 1], order[i : i + 1])
            rows = (rows[:, :, None] * factor[:, None, :]).reshape(len(points), -1)
        return rows

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        return product_rule([(nodes[:, 0], weights) for nodes, weights in (one.rule() for one in self.dictionaries)])

    def gram(self) -> np.ndarray:
        return self._gram_of((0,) * self.num_dims)

    def _gram_of(self, order: tuple[int, ...]) -> np.ndarray:
        product = np.ones((1, 1))
        for one, s in zip(self.dictionaries, order, strict=True):
            product = np.kron(product, one.roughness(s) if s else one.gram())
        return product
