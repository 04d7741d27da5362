"""Functional principal components: on a common grid, in a dictionary, or from a pooled smooth covariance of sparse curves (BO-35, BO-42)."""

from __future__ import annotations

import numpy as np

from ovkgp.checks import check_integer, check_one_of, check_probability
from ovkgp.exceptions import InputError
from ovkgp.functional.bases import BSplines
from ovkgp.functional.conversion import as_functional_data
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.dictionary import Combination, Dictionary, Interpolated, decompose
from ovkgp.functional.mean_curve import MeanCurve, place_knots
from ovkgp.functional.quadrature import as_array
from ovkgp.functional.smoothing import smooth

METHODS = ("auto", "grid", "coefficients", "pooled")
MAX_SPLINES = 10  # number of B-splines of a pooled covariance
NUM_FOLDS = 5  # folds of curves that choose the roughness of a pooled covariance
LOG_PENALTIES = np.linspace(-6.0, 2.0, 9)  # candidates of that roughness, relative to the scale of the design


class PrincipalComponents(Dictionary):
    """Principal components ξ_1, …, ξ_d of curves: orthonormal eigenfunctions of their covariance.

    Parameters
    ----------
    data : FunctionalData or array-like of shape (n, m)
        Curves with one channel.
    num_functions : int or float or None, default=None
        Number d of components; a float in (0, 1) is the fraction of variance to explain. If None, all with nonzero variance.
    dictionary : Dictionary or None, default=None
        Functions of which components are combinations. If None, "grid" interpolates and "pooled" uses up to 10 cubic B-splines.
    method : {"auto", "grid", "coefficients", "pooled"}, default="auto"
        "grid": singular value decomposition on a common grid without gaps, in one dimension. "coefficients": of least squares coefficients in
        the dictionary. "pooled": eigenfunctions of a covariance surface fitted to the products of pairs of values of all curves, for curves
        with few points; scores are conditional expectations given each curve. "auto": the first of these that suits the data.
    roughness : float or "gcv", default=0.0
        Penalty of `smooth` on the coefficients. Ignored unless `method="coefficients"`.
    center : bool, default=True
        Whether to subtract the mean curve. If False, the components are eigenfunctions of the second moment (1/n) Σ_i y_i ⊗ y_i; those of the predictions
        of a model are the projection of its low-rank version.
    rule : {"mean", "trapezoid"}, default="trapezoid"
        Quadrature rule of "grid".
    kind : {"linear", "cubic"}, default="linear"
        Interpolation of "grid".

    Attributes
    ----------
    mean : MeanCurve
        Mean that was subtracted.
    scores : ndarray of shape (n, d)
        Coefficients of the centered curves; of "pooled", their conditional expectations.
    eigenvalues : ndarray of shape (d,)
        Variances of the components, decreasing; (1/n) Σ_i scores², except for "pooled".
    explained : ndarray of shape (d,)
        Fraction of the total variance of each component.
    noise : float
        Variance of the noise of "pooled", else 0.

    Notes
    -----
    In a dictionary with Gram matrix G and centered coefficients A (n, d): (1/n) G^½ AᵀA G^½ c = λc, ξ = φᵀG^(−½)c, on the range of G. Complexity:
    "grid" O(n m min(n, m)), "coefficients" O(d³ + n d²), "pooled" O(N d⁴ + d⁶) for N observations and d splines.

    References
    ----------
    BO-35, BO-42; BO-57 if `center=False`

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.functional import FunctionalData, PrincipalComponents
    >>> t, rng = np.linspace(0, 1, 50), np.random.default_rng(0)
    >>> curves = rng.standard_normal((40, 1)) * np.sin(3 * t) + 0.1 * rng.standard_normal((40, 1)) * t
    >>> components = PrincipalComponents(FunctionalData(curves, t), 1)
    >>> components.scores.shape, bool(components.explained[0] > 0.98)
    ((40, 1), True)
    """

    def __init__(
        self,
        data,
        num_functions: int | float | None = None,
        dictionary: Dictionary | None = None,
        method: str = "auto",
        roughness=0.0,
        center: bool = True,
        rule: str = "trapezoid",
        kind: str = "linear",
    ):
        data = as_functional_data(data)
        if data.has_channels:
            raise InputError(
                "data must have values of shape (n, m), got an axis of channels. Use one channel at a time."
            )
        method = self._choose_method(data, dictionary, check_one_of("method", method, METHODS))
        self.domain = data.domain if dictionary is None else dictionary.domain
        self.noise = 0.0
        zero = MeanCurve(data.domain, data.domain.T, np.zeros((2, 1))) if data.num_dims == 1 else None
        if not center and zero is None:
            raise InputError("center=False requires data in one dimension.")
        centered, self.mean = data.center(None if center else zero)
        if method == "grid":
            self._fit_grid(centered, num_functions, rule, kind)
        elif method == "coefficients":
            self._fit_coefficients(dictionary, centered, num_functions, roughness)
        else:
            self._fit_pooled(_default_splines(data) if dictionary is None else dictionary, centered, num_functions)

    @staticmethod
    def _choose_method(data: FunctionalData, dictionary: Dictionary | None, method: str) -> str:
        on_grid = data.is_complete and data.num_dims == 1
        if method == "auto":
            if dictionary is None:
                return "grid" if on_grid else "pooled"
            return "coefficients" if data.counts.min() >= 2 * dictionary.num_functions else "pooled"
        if method == "grid" and not on_grid:
            raise InputError('method="grid" requires complete curves in one dimension. Use method="pooled".')
        if method == "coefficients" and dictionary is None:
            raise InputError('method="coefficients" requires `dictionary`.')
        return method

    def _fit_grid(self, data: FunctionalData, num_functions, rule: str, kind: str) -> None:
        roots = np.sqrt(data.weights(rule) * data.volume)
        U, s, Vt = np.linalg.svd(data.values * roots / np.sqrt(len(data)), full_matrices=False)
        keep = self._keep(s**2, num_functions)
        self.functions = Interpolated((Vt / roots).T[:, :keep], data.grid, self.domain, kind)
        self.scores = np.sqrt(len(data)) * U[:, :keep] * s[:keep]

    def _fit_coefficients(self, dictionary: Dictionary, data: FunctionalData, num_functions, roughness) -> None:
        coefficients = smooth(data, dictionary, roughness=roughness).coefficients
        root, inverse = _gram_roots(dictionary)
        U, s, Ct = np.linalg.svd(coefficients @ root / np.sqrt(len(data)), full_matrices=False)
        keep = self._keep(s**2, num_functions)
        self.functions = Combination(dictionary, inverse @ Ct[:keep].T)
        self.scores = np.sqrt(len(data)) * U[:, :keep] * s[:keep]

    def _fit_pooled(self, dictionary: Dictionary, data: FunctionalData, num_functions) -> None:
        covariance = _fit_covariance(dictionary, data)
        root, inverse = _gram_roots(dictionary)
        values, vectors = np.linalg.eigh(root.T @ covariance @ root)
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        keep = self._keep(values, num_functions)
        self.functions = Combination(dictionary, inverse @ vectors[:, :keep])
        rows = [self.functions(points) for points, _ in data.curves()]
        curves = [y[:, 0] for _, y in data.curves()]
        squares = np.concatenate([y**2 - (r**2) @ self.eigenvalues for r, y in zip(rows, curves, strict=True)])
        self.noise = float(max(squares.mean(), 1e-6 * np.mean(np.concatenate(curves) ** 2)))
        self.scores = np.stack([self._expect(r, y) for r, y in zip(rows, curves, strict=True)])

    def _expect(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the conditional expectation of the scores of a curve, Λ Ξᵀ(Ξ Λ Ξᵀ + σ²I)⁻¹ y, by a system of size d."""
        precision = rows.T @ rows / self.noise + np.diag(1 / self.eigenvalues)
        return np.linalg.solve(precision, rows.T @ values / self.noise)

    def _keep(self, variances: np.ndarray, num_functions) -> int:
        """Set eigenvalues and explained fractions, and return the number of components."""
        total = variances.sum()
        if not total > 0:
            raise InputError("All curves of data are equal: they have no principal components.")
        keep = int((variances > 1e-12 * variances[0]).sum())
        if isinstance(num_functions, float):
            fraction = check_probability("num_functions", num_functions)
            keep = min(keep, int(np.searchsorted(np.cumsum(variances) / total, fraction - 1e-12)) + 1)
        elif num_functions is not None:
            keep = min(keep, check_integer("num_functions", num_functions))
        self.eigenvalues, self.explained = variances[:keep], variances[:keep] / total
        return keep

    @property
    def num_functions(self) -> int:
        return len(self.eigenvalues)

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        return self.functions._evaluate(points, order)

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        return self.functions.rule()

    def gram(self) -> np.ndarray:
        return self.functions.gram()

    def roughness(self, order: int = 2) -> np.ndarray:
        return self.functions.roughness(order)

    def reconstruct(self, scores, points) -> np.ndarray:
        """Return the mean plus Σ_l scores_il ξ_l at points (k,) or (k, b), of shape (n, k), for scores (n, d).

        Parameters
        ----------
        scores : array-like of shape (n, d)
            Coefficients of the components.
        points : array-like of shape (k,) or (k, b)
            Points of the domain.

        Returns
        -------
        ndarray of shape (n, k)
            Values of the curves.
        """
        return self.mean(points)[:, 0] + self.expand(as_array(scores, "scores"), points)


def _gram_roots(dictionary: Dictionary) -> tuple[np.ndarray, np.ndarray]:
    """Return R and S (d, r) with R Rᵀ = G and Sᵀ R = I on the range of the Gram matrix."""
    values, vectors = decompose(dictionary.gram())
    return vectors * np.sqrt(values), vectors / np.sqrt(values)


def _default_splines(data: FunctionalData) -> BSplines:
    if data.num_dims > 1:
        raise InputError("data must be in one dimension if no dictionary is given. Pass `dictionary`.")
    count = int(np.clip(data.num_points // 3, 4, MAX_SPLINES))
    return BSplines(knots=place_knots(data.union_grid.ravel(), data.domain[0], count - 2))


def _fit_covariance(dictionary: Dictionary, data: FunctionalData) -> np.ndarray:
    """Fit φ(s)ᵀ C φ(t) to the products y_i(s) y_i(t), s ≠ t, of all curves, with a roughness penalty chosen by folds of curves.

    Products at equal points contain the noise and are omitted. C (d, d) is symmetric.
    """
    size = dictionary.num_functions
    grams, moments = np.zeros((NUM_FOLDS, size**2, size**2)), np.zeros((NUM_FOLDS, size**2))
    for i, (points, values) in enumerate(data.curves()):
        rows, y = dictionary(points), values[:, 0]
        squares = np.einsum("md,me->mde", rows, rows).reshape(len(rows), -1)
        A, b = rows.T @ rows, rows.T @ y
        fold = i % NUM_FOLDS
        grams[fold] += np.kron(A, A) - squares.T @ squares
        moments[fold] += np.outer(b, b).ravel() - squares.T @ y**2
    gram, moment = grams.sum(0), moments.sum(0)
    if not np.trace(gram) > 0:
        raise InputError("data must have curves with at least two points to estimate a covariance.")
    rough, identity = dictionary.roughness(2), dictionary.gram()
    penalty = np.kron(rough, identity) + np.kron(identity, rough)
    scale = np.trace(gram) / np.trace(penalty)
    tiny = 1e-8 * np.trace(gram) / len(gram) * np.eye(len(gram))

    def solve(weight: float, gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
        return np.linalg.solve(gram + weight * penalty + tiny, moment)

    errors = []
    for weight in scale * 10.0**LOG_PENALTIES:
        found = [solve(weight, gram - g, moment - m) for g, m in zip(grams, moments, strict=True)]
        errors.append(sum(c @ g @ c - 2 * c @ m for c, g, m in zip(found, grams, moments, strict=True)))
    weight = scale * 10.0 ** LOG_PENALTIES[int(np.argmin(errors))]
    C = solve(weight, gram, moment).reshape(size, size)
    return (C + C.T) / 2
