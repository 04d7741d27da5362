"""Smoothing of curves: penalized least squares in a dictionary, and in the RKHS of a kernel (BO-30..33, 38).

Curve i with m_i observed values y_i is represented by f_i = Σ_l a_l φ_l, which minimizes

    (1/m_i) ‖Φ_i a − y_i‖² + ridge ‖a‖² + shrinkage (1/m_i) ‖Φ_i a‖² + roughness ∫ (f^(s))² dt.

In an RKHS, (1/m_i) Σ_s (f(t_s) − y_s)² + ridge ‖f‖²_H is minimized by f = Σ_s α_s k(·, t_s) with α = (K + ridge m_i I)⁻¹ y.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ovkgp.checks import check_integer, check_nonnegative
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional.conversion import as_functional_data
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.dictionary import Combination, Dictionary, pseudo_inverse
from ovkgp.functional.eigenfunctions import SampledFunctions
from ovkgp.functional.quadrature import as_array, as_domain, as_points
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.protocol import check_scalar_kernel

LOG_CANDIDATES = np.linspace(-12.0, 3.0, 46)
"""Decimal logarithms of the candidates of generalized cross validation, relative to the scale of the design."""
MAX_GCV_CURVES = 200  # number of curves with their own points or gaps that choose a penalty


class SmoothedCurves:
    """Smooth curves f_i = Σ_l a_il φ_l, with standard deviations that reflect the noise of the observations.

    Attributes
    ----------
    dictionary : Dictionary
        Functions φ; the sections k(·, t_s) at all observed points if curves were smoothed in an RKHS.
    coefficients : ndarray of shape (n, d) or (n, d, q)
        Coefficients a.
    freedom : ndarray of shape (n,) or (n, q)
        Effective degrees of freedom, the trace of the matrix that maps observations to fitted values.
    noise : ndarray of shape (n,) or (n, q)
        Estimated noise variance: squared residuals divided by (number of observations − freedom); NaN if that is not positive.
    penalties : dict of str to float
        Values of `ridge`, `roughness` and `shrinkage`.
    """

    def __init__(self, data: FunctionalData, dictionary: Dictionary, fits: list[_Fit], penalties: dict[str, float]):
        self.dictionary, self.penalties, self._fits = dictionary, penalties, fits
        channels = data.num_channels if data.has_channels else 1
        shape = (len(data), channels)
        coefficients = np.concatenate([fit.coefficients for fit in fits], 1).T.reshape(*shape, -1)
        self.freedom = np.concatenate([np.full(fit.coefficients.shape[1], fit.freedom) for fit in fits]).reshape(shape)
        self.noise = np.concatenate([fit.noise for fit in fits]).reshape(shape)
        self.coefficients = np.moveaxis(coefficients, 1, 2)
        if not data.has_channels:
            self.coefficients, self.freedom, self.noise = (
                a[..., 0] for a in (self.coefficients, self.freedom, self.noise)
            )

    def __len__(self) -> int:
        return len(self.coefficients)

    def __repr__(self) -> str:
        return f"SmoothedCurves({len(self)} curves, {self.dictionary!r}, mean degrees of freedom {np.mean(self.freedom):.3g})"

    def __call__(self, points, order=0) -> np.ndarray:
        """Return the curves, or derivatives of an order, at points (k,) or (k, b): (n, k) or (n, k, q)."""
        return self.dictionary.expand(self.coefficients, points, order)

    def std(self, points) -> np.ndarray:
        """Return standard deviations of the curves at points (k,) or (k, b) given the estimated noise, (n, k) or (n, k, q).

        The penalties are read as a Gaussian prior of f, so that the posterior standard deviation includes the bias of smoothing on average
        over functions of this prior.

        Parameters
        ----------
        points : array-like of shape (k,) or (k, b)
            Points of the domain.

        Returns
        -------
        ndarray of shape (n, k) or (n, k, q)
            Standard deviations.
        """
        rows = self.dictionary(points)
        prior = self.dictionary.variances(points) if isinstance(self.dictionary, KernelSections) else None
        units = []  # variances for unit noise, (k,), one per fitted table
        for fit in self._fits:
            part = rows if fit.index is None else rows[:, fit.index]
            explained = np.einsum("kd,de,ke->k", part, fit.inverse, part)
            unit = (
                explained / fit.count if prior is None else (prior - explained) / (self.penalties["ridge"] * fit.count)
            )
            units += [np.maximum(unit, 0.0)] * fit.coefficients.shape[1]
        shape = self.noise.shape
        variances = np.stack(units).reshape(*shape, -1) * self.noise[..., None]
        return np.sqrt(variances if len(shape) == 1 else np.moveaxis(variances, 1, 2))

    def to_data(self, grid) -> FunctionalData:
        """Return the curves at the points of a grid as complete functional data.

        Parameters
        ----------
        grid : array-like of shape (k,) or (k, b)
            Points of the domain.

        Returns
        -------
        FunctionalData
            Curves on the grid.
        """
        return FunctionalData(self(grid), grid, self.dictionary.domain)


def smooth(data, basis, *, ridge=0.0, roughness=0.0, shrinkage: float = 0.0, order: int = 2) -> SmoothedCurves:
    """Smooth curves by penalized least squares in a dictionary or in the RKHS of a kernel.

    Parameters
    ----------
    data : FunctionalData or array-like
        Curves, which may have gaps, different points and channels.
    basis : Dictionary or Kernel
        Dictionary of functions, or a scalar kernel with fixed hyperparameters.
    ridge : float or "gcv", default=0.0
        Penalty on ‖a‖², or on ‖f‖² in the RKHS of a kernel (which must be positive then).
    roughness : float or "gcv", default=0.0
        Penalty on ∫ (f^(s))² dt. "gcv" chooses one value for all curves by generalized cross validation, of at most 200
        evenly spaced ones if they have gaps or different points; one penalty may be "gcv".
    shrinkage : float, default=0.0
        Penalty on the mean square of the fitted values, which divides least squares coefficients by 1 + shrinkage (BO-E-05).
    order : int, default=2
        Order s of the derivative in the roughness penalty.

    Returns
    -------
    SmoothedCurves
        The curves: a function of points with `coefficients`, `noise` and `std`.

    Raises
    ------
    InputError
        If a curve has no observed values in a channel.

    Notes
    -----
    With `BSplines(knots=grid)` and `order=2` the result is the cubic smoothing spline with λ = m_i · roughness in the units of SciPy's
    `make_smoothing_spline`. RKHS smoothing is the posterior mean of a Gaussian process with noise variance m_i · ridge.
    Complexity: O(m d² + d³ + n m d) on a common grid without gaps, O(Σ m_i d² + n d³) otherwise; O(m³) or O(Σ m_i³) in an RKHS.

    References
    ----------
    BO-31, BO-32, BO-33

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.functional import BSplines, FunctionalData, smooth
    >>> t = np.linspace(0, 1, 60)
    >>> data = FunctionalData([np.sin(6 * t) + 0.1 * np.random.default_rng(0).standard_normal(60)], t)
    >>> curves = smooth(data, BSplines(20), roughness="gcv")
    >>> bool(np.abs(curves(t) - np.sin(6 * t)).max() < 0.1)
    True
    """
    data, order = as_functional_data(data), check_integer("order", order, 0)
    penalties = {"ridge": ridge, "roughness": roughness, "shrinkage": shrinkage}
    for name, value in penalties.items():
        if name == "shrinkage" or not isinstance(value, str) or value != "gcv":
            penalties[name] = check_nonnegative(name, value)
    if isinstance(basis, Kernel):
        if penalties["roughness"] != 0 or penalties["shrinkage"] != 0:
            raise OptionError("roughness and shrinkage are not supported with a kernel. Use `ridge`.")
        if penalties["ridge"] == 0:
            raise OptionError('ridge must be greater than 0 with a kernel, or "gcv".')
        return _smooth_in_rkhs(data, basis, penalties)
    if not isinstance(basis, Dictionary):
        raise InputError(f"basis must be a Dictionary or a Kernel, got {type(basis).__name__}.")
    data = basis.check_data(data)
    rough = basis.roughness(order) if penalties["roughness"] != 0 else np.zeros((1, 1))

    def fit(table: _Table, values: dict[str, float]) -> _Fit:
        count, rows = len(table.values), table.rows
        if (
            values["ridge"] == values["roughness"] == 0
        ):  # least squares, also if singular, without squaring the condition number
            inverse = np.linalg.pinv(rows)
            coefficients = inverse @ table.values / (1 + values["shrinkage"])
            freedom = np.trace(inverse @ rows) / (1 + values["shrinkage"])
            inverse = inverse @ inverse.T * count / (1 + values["shrinkage"])
            return _Fit.make(table, coefficients, rows @ coefficients, freedom, inverse)
        gram = rows.T @ rows / count
        system = (1 + values["shrinkage"]) * gram + values["ridge"] * np.eye(len(gram)) + values["roughness"] * rough
        inverse = _invert(system)
        coefficients = inverse @ (rows.T @ table.values) / count
        return _Fit.make(table, coefficients, rows @ coefficients, np.trace(inverse @ gram), inverse)

    tables = [_Table(basis(points), values) for points, values in _observed_tables(data)]
    scale = np.mean([np.sum(table.rows**2) / len(table.rows) for table in tables])
    units = {"ridge": scale / basis.num_functions, "roughness": scale / (np.trace(rough) or 1.0)}
    penalties = _choose_penalty(tables, fit, penalties, units)
    return SmoothedCurves(data, basis, [fit(table, penalties) for table in tables], penalties)


def _smooth_in_rkhs(data: FunctionalData, kernel: Kernel, penalties: dict) -> SmoothedCurves:
    """Smooth in the RKHS of a kernel: coefficients on the sections at all points, 0 at the points of other curves."""
    sections = KernelSections(kernel, data.union_grid, data.domain)
    positions = {tuple(point): s for s, point in enumerate(sections.points)}

    def fit(table: _Table, values: dict[str, float]) -> _Fit:
        inverse = _invert(table.rows + values["ridge"] * len(table.values) * np.eye(len(table.rows)))
        found = inverse @ table.values
        coefficients = np.zeros((sections.num_functions, found.shape[1]))
        coefficients[table.index] = found
        return _Fit.make(table, coefficients, table.rows @ found, np.trace(table.rows @ inverse), inverse)

    tables, K = [], sections(sections.points)
    for points, values in _observed_tables(data):
        index = np.array([positions[tuple(point)] for point in points])
        tables.append(_Table(K[np.ix_(index, index)], values, index))
    penalties = _choose_penalty(tables, fit, penalties, {"ridge": np.trace(K) / len(K)})
    return SmoothedCurves(data, sections, [fit(table, penalties) for table in tables], penalties)


@dataclass(frozen=True)
class _Table:
    """Design (m, d) and values (m, c) that are fitted together, and the indices of their functions, None if all."""

    rows: np.ndarray
    values: np.ndarray
    index: np.ndarray | None = None


@dataclass(frozen=True)
class _Fit:
    """Coefficients (d, c), degrees of freedom, noise (c,), the inverse of the system and the number of observations of a table."""

    coefficients: np.ndarray
    freedom: float
    noise: np.ndarray
    inverse: np.ndarray
    count: int
    index: np.ndarray | None
    error: float  # generalized cross validation

    @classmethod
    def make(cls, table: _Table, coefficients, fitted, freedom: float, inverse: np.ndarray) -> _Fit:
        count = len(table.values)
        errors, left = ((table.values - fitted) ** 2).sum(0), count - freedom
        noise = errors / left if left > 1e-6 * count else np.full(len(errors), np.nan)
        error = errors.sum() * count / left**2 if left > 1e-6 * count else np.inf
        return cls(coefficients, float(freedom), noise, inverse, count, table.index, error)


def _observed_tables(data: FunctionalData) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return points (m, b) and values (m, c) to fit together: all curves if complete, else one curve and channel each."""
    if data.is_complete:
        grid = data.grid.reshape(len(data.grid), -1)
        return [(grid, np.moveaxis(data.values, 1, 0).reshape(len(grid), -1))]
    tables = []
    for i, (points, values) in enumerate(data.curves()):
        for c, column in enumerate(values.T):
            keep = ~np.isnan(column)
            if not keep.any():
                raise InputError(f"Curve {i} has no observed values in channel {c}. Drop it or add observations.")
            tables.append((points[keep], column[keep, None]))
    return tables


def _choose_penalty(tables: list[_Table], fit, penalties: dict, units: dict[str, float]) -> dict[str, float]:
    """Replace "gcv" by the candidate of least generalized cross validation error over all curves."""
    chosen = [name for name, value in penalties.items() if value == "gcv"]
    if len(chosen) > 1:
        raise OptionError('Only one of ridge and roughness may be "gcv".')
    for name in chosen:
        candidates = [penalties | {name: float(units[name] * 10.0**power)} for power in LOG_CANDIDATES]
        some = tables[:: -(-len(tables) // MAX_GCV_CURVES)]
        errors = [sum(fit(table, values).error for table in some) for values in candidates]
        penalties = candidates[int(np.argmin(errors))]
    return penalties


def _invert(system: np.ndarray) -> np.ndarray:
    """Return the inverse of a positive definite matrix, the pseudo-inverse if it is singular to rounding."""
    scale = np.sqrt(np.maximum(np.diag(system), np.finfo(float).tiny))
    scaled = system / np.outer(scale, scale)  # the rank does not depend on the units of the functions
    try:
        factor = cho_factor(scaled)
        if np.abs(np.diag(factor[0])).min() > 1e-7:
            return cho_solve(factor, np.eye(len(system))) / np.outer(scale, scale)
    except LinAlgError:
        pass
    return pseudo_inverse(system, 1e-13)


class KernelSections(Dictionary):
    """Sections k(·, t_1), …, k(·, t_m) of a scalar kernel.

    Parameters
    ----------
    kernel : Kernel
        Scalar kernel; its hyperparameters are copied.
    points : array-like of shape (m,) or (m, b)
        Points t.
    domain : array-like of shape (2,) or (b, 2)
        Domain that contains the points.

    Notes
    -----
    Derivatives are available up to order 2 in one dimension, for stationary kernels that have them. Complexity: that of the kernel.

    References
    ----------
    BO-33
    """

    def __init__(self, kernel: Kernel, points, domain):
        check_scalar_kernel(kernel, "kernel")
        self.domain = as_domain(domain)
        self.points = as_points(points, self.domain)
        self.kernel = deepcopy(kernel).double().requires_grad_(False)

    @property
    def num_functions(self) -> int:
        return len(self.points)

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        identity = torch.eye(len(self.points), dtype=torch.float64)
        functions = SampledFunctions(self.kernel, torch.from_numpy(self.points), identity)
        return functions(torch.from_numpy(points), sum(order)).numpy()

    def variances(self, points) -> np.ndarray:
        """Return k(t, t) at points (k,) or (k, b), of shape (k,).

        Parameters
        ----------
        points : array-like of shape (k,) or (k, b)
            Points of the domain.

        Returns
        -------
        ndarray of shape (k,)
            Variances.
        """
        points = torch.from_numpy(as_points(points, self.domain))
        return evaluate_kernel(self.kernel, points, diag=True).double().numpy()


def keep_largest(coefficients, count: int) -> np.ndarray:
    """Set all but the `count` largest coefficients of each curve to zero: the nonlinear approximation in an orthonormal basis.

    Parameters
    ----------
    coefficients : array-like of shape (n, d)
        Coefficients.
    count : int
        Number of coefficients to keep per curve.

    Returns
    -------
    ndarray of shape (n, d)
        Sparse coefficients.

    References
    ----------
    BO-38

    Examples
    --------
    >>> from ovkgp.functional import keep_largest
    >>> keep_largest([[3.0, -4.0, 1.0]], 2).tolist()
    [[3.0, -4.0, 0.0]]
    """
    coefficients = as_array(coefficients, "coefficients").copy()
    drop = np.argsort(-np.abs(coefficients), axis=1, kind="stable")[:, check_integer("count", count) :]
    np.put_along_axis(coefficients, drop, 0.0, axis=1)
    return coefficients


def select_functions(dictionary: Dictionary, data, count: int, rule: str = "trapezoid") -> Combination:
    """Select the functions with the largest absolute inner products Σ_i |⟨y_i, φ_l⟩| with the curves.

    Parameters
    ----------
    dictionary : Dictionary
        Functions to select from.
    data : FunctionalData or array-like
        Curves.
    count : int
        Number of functions.
    rule : {"mean", "trapezoid"}, default="trapezoid"
        Quadrature rule of the inner products.

    Returns
    -------
    Combination
        Dictionary of the selected functions, by decreasing importance.

    References
    ----------
    BO-38
    """
    inner = np.abs(dictionary.inner(data, rule))
    importance = np.moveaxis(inner, 1, -1).reshape(-1, dictionary.num_functions).sum(0)
    return dictionary.subset(np.argsort(-importance, kind="stable")[: check_integer("count", count)])
