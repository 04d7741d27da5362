"""Domains [low, high]^b of functions, points in them, and quadrature rules.

Integrals over a domain are with respect to Lebesgue measure, ∫ f(t) dt, in the units of the grid. Weights of observation grids
sum to 1, Σ_s w_s f(t_s) ≈ (1/volume) ∫ f(t) dt, as the weights of a `TaskMeasure` do.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from ovkgp.checks import check_one_of
from ovkgp.exceptions import DomainError, InputError, OptionError

RULES = ("mean", "trapezoid")
NOT_NUMBERS = {"M": "dates", "m": "durations", "c": "complex numbers"}  # by the kind of NumPy
DOMAIN_TOLERANCE = 1e-9  # points may lie outside of the domain by this fraction of its width


def as_values(values, name: str) -> np.ndarray:
    """Return values of curves as float64, like `as_array`, but raise if they are dates or durations."""
    if kinds := _kinds(values) & NOT_NUMBERS.keys():
        raise InputError(
            f"{name} must hold real numbers, got {NOT_NUMBERS[min(kinds)]}. Convert them, for example to days since a common date."
        )
    return as_array(values, name)


def as_array(values, name: str) -> np.ndarray:
    """Return numbers (an array, a tensor on any device, or nested lists) as float64.

    Masked values are NaN. Dates are days since 1970-01-01 and durations days, in whatever unit they are stored.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if "c" in _kinds(values):
        raise InputError(f"{name} must hold real numbers, got {NOT_NUMBERS['c']}.")
    try:
        if isinstance(values, np.ma.MaskedArray):
            return values.astype(np.float64).filled(np.nan)
        array = np.asarray(values)
        if array.dtype == object and all(hasattr(one, "isoformat") for one in array.flat) and array.size:
            array = array.astype("datetime64[us]")
        if array.dtype.kind in "Mm":
            origin = np.datetime64(0, "D") if array.dtype.kind == "M" else np.timedelta64(0, "D")
            return np.asarray((array - origin) / np.timedelta64(1, "D"), dtype=np.float64)
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}.") from error


def _kinds(values) -> set[str]:
    """Return the NumPy kinds of an array, of the columns of a frame, or of nested lists."""
    found = getattr(values, "dtypes", getattr(values, "dtype", None))
    if found is None:
        try:
            found = np.asarray(values).dtype
        except ValueError:  # lists of different lengths, which the conversion reports
            return set()
    return {getattr(one, "kind", "") for one in (found if hasattr(found, "__iter__") else [found])}


def as_domain(domain: ArrayLike) -> np.ndarray:
    """Return a domain (low, high), or one pair per dimension, as an array (b, 2)."""
    array = as_array(domain, "domain")
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] != 2 or not np.isfinite(array).all() or not (array[:, 0] < array[:, 1]).all():
        raise InputError(f"domain must be (low, high) with low < high, or one pair per dimension, got {domain!r}.")
    return array


def as_points(points, domain: np.ndarray, name: str = "points") -> np.ndarray:
    """Return points (k,) or (k, b) as finite float64 (k, b) inside the domain (b, 2); rounding errors are clipped."""
    array, num_dims = as_array(points, name), len(domain)
    if array.ndim == 1 and num_dims == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != num_dims:
        expected = "(k,) or (k, 1)" if num_dims == 1 else f"(k, {num_dims})"
        raise InputError(f"{name} has shape {array.shape}, expected {expected} for a domain in R^{num_dims}.")
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite.")
    low, high = domain.T
    slack = DOMAIN_TOLERANCE * (high - low)
    if len(array) and not ((array >= low - slack) & (array <= high + slack)).all():
        raise DomainError(
            f"{name} must lie in the domain {describe_domain(domain)}, got {describe_domain(np.stack([array.min(0), array.max(0)], 1))}. "
            "Set `domain` so that it contains them."
        )
    return np.clip(array, low, high)


def describe_domain(domain: np.ndarray) -> str:
    """Return "[low, high] × …" for messages."""
    return " × ".join(f"[{low:g}, {high:g}]" for low, high in domain)


def quadrature_weights(grid, domain=None, rule: str = "mean") -> np.ndarray:
    """Compute weights of grid points for averages over a domain.

    Parameters
    ----------
    grid : array-like of shape (m,) or (m, b)
        Points; increasing if b = 1.
    domain : array-like of shape (2,) or (b, 2) or None, default=None
        Ends of the domain. If None, the range of the grid.
    rule : {"mean", "trapezoid"}, default="mean"
        "mean": all weights are 1/m. "trapezoid": lengths of the cells between midpoints of neighbors, up to the ends of the domain.
        This is the trapezoidal rule if the grid contains the ends and the midpoint rule if it consists of midpoints. If b > 1, the
        grid must be a Cartesian product.

    Returns
    -------
    ndarray of shape (m,)
        Weights w with sum 1: Σ_s w_s f(t_s) ≈ (1/volume) ∫ f(t) dt.

    Notes
    -----
    Equal weights on a grid that contains both ends count the end of a period twice: a Fourier basis is not orthonormal on it.
    Complexity: O(m b log m).

    References
    ----------
    BO-62

    Examples
    --------
    >>> from ovkgp.functional import quadrature_weights
    >>> quadrature_weights([0.0, 0.5, 1.0], rule="trapezoid").tolist()
    [0.25, 0.5, 0.25]
    """
    check_one_of("rule", rule, RULES)
    points = as_array(grid, "grid")
    points = points[:, None] if points.ndim == 1 else points
    ends = np.stack([points.min(0), points.max(0)], 1) if domain is None else as_domain(domain)
    if len(ends) != points.shape[1]:
        raise InputError(
            f"domain has {len(ends)} dimension(s), expected {points.shape[1]}, the number of columns of grid."
        )
    if rule == "mean" or len(points) == 1:
        return np.full(len(points), 1 / len(points))
    if points.shape[1] == 1:
        return _cell_fractions(points[:, 0], ends[0])
    weights = np.ones(len(points))
    axes = [np.unique(column, return_inverse=True) for column in points.T]
    if np.prod([len(values) for values, _ in axes]) != len(points):
        raise OptionError('rule="trapezoid" requires a grid that is a Cartesian product if b > 1. Use rule="mean".')
    for (values, index), end in zip(axes, ends, strict=True):
        weights = weights * (_cell_fractions(values, end)[index] if len(values) > 1 else 1.0)
    return weights


def _cell_fractions(points: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the lengths of the cells of increasing points, up to the ends, divided by their sum."""
    edges = np.concatenate([ends[:1], (points[1:] + points[:-1]) / 2, ends[1:]])
    return np.diff(edges) / (ends[1] - ends[0])


def gauss_rule(breakpoints: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (k,) and weights (k,) of the Gauss–Legendre rule with `num_nodes` nodes between each two breakpoints."""
    x, w = np.polynomial.legendre.leggauss(num_nodes)
    spans = np.array(list(pairwise(breakpoints)))
    spans = spans[spans[:, 1] > spans[:, 0]]
    low, width = spans[:, :1], np.diff(spans, axis=1)
    return (low + width * (x + 1) / 2).ravel(), (width * w / 2).ravel()


def product_rule(rules: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (k, b) and weights (k,) of the product of one-dimensional rules; the last dimension varies fastest."""
    nodes = np.stack(np.meshgrid(*[n for n, _ in rules], indexing="ij"), -1).reshape(-1, len(rules))
    weights = np.ones(1)
    for _, w in rules:
        weights = np.kron(weights, w)
    return nodes, weights
