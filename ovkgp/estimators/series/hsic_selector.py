"""`HSICSelector`, backward selection of groups of inputs by the Hilbert–Schmidt independence criterion (BO-133).

HSIC = (1/n²) tr(K H L H),   H = I − 11ᵀ/n,      Nyström: ‖Φᵀ Ψ‖²_F / n²,   Φ = H K_np K_pp^{−1/2},   Ψ = H L_np L_pp^{−1/2}
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.linalg import eigh
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.criticism.sample_tests.samples import center_gram, squared_distances
from ovkgp.estimators.common.options import FRACTION, RANDOM_STATE, check_constraints, integer
from ovkgp.estimators.common.validation import check_observed, input_table, output_table
from ovkgp.exceptions import InputError
from ovkgp.scales import mean_and_std

EIGENVALUE_TOLERANCE = 1e-10  # smallest eigenvalue of K_pp, relative to the largest, whose direction is kept


class HSICSelector(SelectorMixin, BaseEstimator):
    """Backward selection of groups of inputs by their dependence with the outputs (BAHSIC, BO-133).

    In each round the criterion is computed without each of the remaining groups, and the groups without which it is largest
    are removed. Kernels are Gaussian with γ = 1/(2 · number of columns), on standardized columns.

    Parameters
    ----------
    num_groups : int, default=5
        Number of groups to keep, or of columns without `groups`.
    groups : array-like of shape (d,) or None, default=None
        Group of each column, such as `ForecastWindows.groups_`. If None, each column is a group.
    num_landmarks : int or None, default=100
        Number of random rows of the Nyström approximation of both kernels. If None, kernels are exact.
    removed : float, default=0.1
        Fraction of the remaining groups that a round removes, at least one group.
    random_state : int, RandomState instance or None, default=None
        Seed of the landmarks.

    Attributes
    ----------
    groups_ : ndarray of shape (g,)
        Distinct groups.
    ranking_ : ndarray of shape (g,)
        Rank of each group: 1 for the selected group with the largest score, g for the group that was removed first.
    scores_ : ndarray of shape (g,)
        1 − HSIC without the group / largest such HSIC of the selected groups; NaN for removed groups. Larger for more important groups,
        0 for the least important one.
    hsic_ : float
        Criterion of the selected groups.
    n_features_in_, feature_names_in_
        Number and names of columns.

    See Also
    --------
    ForecastWindows : Windows of series, whose variables are groups.
    ovkgp.criticism.hsic : Test of independence.

    Notes
    -----
    Complexity of one evaluation: O(n p (d + p)) time for p landmarks and O(n (p + d)) memory; O(n² d) and O(n²) if exact. The number of
    evaluations is at most g(g + 1)/2, and about g/`removed` for many groups. Rows with missing outputs are omitted.

    References
    ----------
    BO-133, BO-E-40

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.estimators.series import HSICSelector
    >>> X = np.random.default_rng(0).normal(size=(300, 6))
    >>> selector = HSICSelector(num_groups=2, random_state=0).fit(X, X[:, 1] ** 2 + X[:, 4])
    >>> selector.get_support(indices=True)
    array([1, 4])
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "num_groups": [integer()],
        "groups": ["array-like", None],
        "num_landmarks": [integer(2), None],
        "removed": [FRACTION],
        "random_state": RANDOM_STATE,
    }

    def __init__(self, num_groups=5, groups=None, num_landmarks=100, removed=0.1, random_state=None):
        self.num_groups = num_groups
        self.groups = groups
        self.num_landmarks = num_landmarks
        self.removed = removed
        self.random_state = random_state

    def fit(self, X, y) -> HSICSelector:
        """Rank the groups.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, p) or (n,)
            Outputs. All of them enter together.

        Returns
        -------
        self : HSICSelector
            Fitted selector.
        """
        check_constraints(self.get_params(deep=False), self._parameter_constraints)
        X = input_table(self, X, reset=True)
        Y, names, _ = output_table(y, X)
        check_observed(np.isfinite(Y).sum(0), names)
        complete = ~np.isnan(Y).any(1)
        if complete.sum() < 2:
            raise InputError(
                f"y must have at least 2 rows without missing values, got n_samples = {complete.sum()}. Pass more rows or impute y."
            )
        X, Y = _standardize(X[complete]), _standardize(Y[complete])
        self.groups_, codes = self._read_groups(X.shape[1])
        criterion = _make_criterion(X, Y, self.num_landmarks, np.random.default_rng(as_seed(self.random_state)))
        kept, removed = list(range(len(self.groups_))), []
        while len(kept) > self.num_groups:
            without = self._evaluate(criterion, codes, kept)
            number = min(max(1, int(self.removed * len(kept))), len(kept) - self.num_groups)
            order = sorted(kept, key=without.get, reverse=True)[:number]
            removed += order
            kept = [group for group in kept if group not in order]
        without = self._evaluate(criterion, codes, kept)
        largest = max(without.values())
        self.scores_ = np.full(len(self.groups_), np.nan)
        for group, value in without.items():
            self.scores_[group] = 1 - value / largest if largest > 0 else 0.0
        self.hsic_ = criterion(np.flatnonzero(np.isin(codes, kept)))
        best = [*sorted(kept, key=without.get), *removed[::-1]]
        self.ranking_ = np.argsort(best) + 1
        self._codes, self._kept = codes, np.array(kept)
        return self

    def _read_groups(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct groups in the order of their first columns, and the group (d,) of each column."""
        if self.groups is None:
            return np.arange(d), np.arange(d)
        labels = np.asarray(self.groups)
        if labels.shape != (d,):
            raise InputError(f"groups has shape {labels.shape}, expected ({d},), one group per column of X.")
        codes, found = pd.factorize(labels)
        if (codes < 0).any():
            raise InputError(f"groups must have a label for each column, got a missing one at {int(np.argmin(codes))}.")
        return found, codes

    def _evaluate(self, criterion, codes: np.ndarray, kept: list[int]) -> dict[int, float]:
        """Return the criterion without each of the remaining groups; 0 without the last one."""
        columns = np.flatnonzero(np.isin(codes, kept))
        return {group: criterion(columns, np.flatnonzero(codes == group)) for group in kept}

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self)
        return np.isin(self._codes, self._kept)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = tags.target_tags.multi_output = True
        return tags


def _standardize(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    mean, std = mean_and_std(values)
    return (values - mean) / np.where(std > 0, std, 1.0)


def _make_criterion(X: np.ndarray, Y: np.ndarray, num_landmarks: int | None, rng: np.random.Generator):
    """Return the function that maps columns, and some of these to leave out, to HSIC."""
    n = len(X)
    if num_landmarks is None or num_landmarks >= n:
        points = np.arange(n)
        target = center_gram(_gaussian(squared_distances(Y, Y), Y.shape[1]))
    else:
        points, others = (np.sort(rng.choice(n, num_landmarks, replace=False)) for _ in range(2))
        target = _centered_features(_gaussian(squared_distances(Y, Y[others]), Y.shape[1]), others)
    cache: dict[bytes, np.ndarray] = {}

    def criterion(columns: np.ndarray, omitted: np.ndarray | None = None) -> float:
        dims = len(columns) - (0 if omitted is None else len(omitted))
        if dims == 0:
            return 0.0
        key = columns.tobytes()
        if key not in cache:  # of one round
            cache.clear()
            cache[key] = squared_distances(X[:, columns], X[points][:, columns])
        squares = cache[key]
        if omitted is not None:
            squares = np.maximum(squares - squared_distances(X[:, omitted], X[points][:, omitted]), 0.0)
        gram = _gaussian(squares, dims)
        if len(points) == n:
            return float(np.einsum("ij,ij->", gram, target)) / n**2
        # Ψ is centered, so that Φ need not be
        cross = gram.T @ target
        return float(np.square(_inverse_root(gram[points]).T @ cross).sum()) / n**2

    return criterion


def _gaussian(squares: np.ndarray, dims: int) -> np.ndarray:
    """Compute exp(−γ s) of squared distances with γ = 1/(2 · number of columns)."""
    return np.exp(squares / (-2.0 * dims))


def _centered_features(gram: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """Return H K_np K_pp^{−1/2} of a kernel matrix K_np (n, p)."""
    features = gram @ _inverse_root(gram[landmarks])
    return features - features.mean(0)


def _inverse_root(gram: np.ndarray) -> np.ndarray:
    """Return R (p, r) with R Rᵀ the pseudoinverse of a kernel matrix (p, p)."""
    values, vectors = eigh(gram)
    kept = values > EIGENVALUE_TOLERANCE * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])
