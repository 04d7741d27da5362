"""`RandomProjectionDetector`, p-values of outliers from random projections in the space of a kernel (KT-58)."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import BASE_KERNEL, median_distance, random_features
from ovkgp.estimators.common.options import POSITIVE, POSITIVES, RANDOM_STATE, integer, one_of, restore_on_error
from ovkgp.estimators.common.task_options import LENGTHSCALE_RATIOS, task_kernel
from ovkgp.estimators.detection.base import DETECTOR_ATTRIBUTES, OutlierDetector, enter_rows
from ovkgp.estimators.detection.columns import CHUNK_ENTRIES, ExactColumns, LowRankColumns
from ovkgp.estimators.detection.projection_selection import chi_square_values, choose_projection
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import FitWarning, OptionError

MAX_SELECTION_ROWS = 500  # half of them are tested against the other half
SELECTION_RATIOS = np.geomspace(2.0, 0.02, 41)  # of the candidate lengthscales to the median distance
SELECTION_PROJECTIONS = (2, 10, 50, 200)
NUM_DISTANT_POINTS = 200  # that show whether random features resolve the lengthscale
DISTANCE = 1e4  # of these points, relative to the largest distance of a row
MAX_MISSED = 0.05  # fraction of them that may be missed without a warning


@storable(
    *DETECTOR_ATTRIBUTES,
    *("kernel_", "num_projections_", "_columns", "_projection", "_log_variances"),
    optional=("selection_",),
)
class RandomProjectionDetector(OutlierDetector):
    """Outliers by p-values from random projections in the space of a kernel (KT-58).

    A typical row x, as a vector k_x = (k(X_i, x)) of its kernel values, is projected on p random directions U. Given the rows,
    S(x) = ‖U k_x‖²/n is S_n(x, x) χ²(p), S_n(x, x) being the mean of k(X_i, x)². Far from the training rows it is small.
    The p-value is the probability of a smaller value at a training row,

        PV(x) = (1/n) Σ_i F(S(x)/s_i²),   s_i² = (1/(n − 1)) Σ_{j≠i} k(X_j, X_i)²,   F the distribution function of χ²(p),

    and x is an outlier if PV(x) < alpha. With leave-one-out variances s_i², a fraction of about alpha of typical new rows is
    below alpha, for any lengthscale.

    Parameters
    ----------
    alpha : float, default=0.05
        Level: the fraction of typical new rows that `predict` flags.
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Kernel of the scaled inputs, by name or as a scalar GPyTorch kernel, which is divided by its standard deviations.
    lengthscale : {"local", "median", "ks"}, float or array-like of shape (d,), default="local"
        Lengthscale ℓ of a kernel by name; γ = 1/(2ℓ²). "median" is the median distance between rows, "local" 0.3 times that,
        and "ks" the lengthscale at which p-values of half of the rows, given the other half, are most uniform (KT-62).
    num_projections : int or "ks", default=100
        Number p of projections. With more of them PV(x) tends to the rank of S_n(x, x) among all s_i². "ks" chooses it, too.
    leave_one_out : bool, default=True
        Whether s_i² excludes row i. If False, it is the mean over all rows, as in the tables of the thesis, and the fraction
        of flagged rows grows as the lengthscale decreases.
    approximation : {"exact", "nystrom", "orff"}, default="exact"
        Whether to replace the kernel matrix by a low-rank one, from landmarks or random features (KT-59). Random features
        have errors of about 1/√num_frequencies also where the kernel is small, which hide outliers if the lengthscale is short:
        the fit warns if points far from all rows would not be flagged.
    num_frequencies : int, default=300
        Number of landmarks (at most n) or random frequencies. Should be large compared with `num_projections`.
    scale_inputs : bool, default=True
        Whether to center and scale the columns of X; never done for a kernel object.
    random_state : int, RandomState instance or None, default=None
        Seed of the projections, which are fixed by the fit, of random features, landmarks and "ks".

    Attributes
    ----------
    kernel_ : Kernel
        Kernel of the scaled inputs.
    num_projections_ : int
        Number of projections.
    held_out_scores_ : ndarray of shape (n,)
        p-value of each training row given all others, with which outliers in the training rows are found.
    offset_ : float
        `alpha`; `decision_function` is `score_samples` minus `offset_`, as in scikit-learn.
    selection_ : dict
        If `lengthscale="ks"`: "lengthscale" (L,), "num_projections" (q,) and smoothed distances "ks" (q, L).
    scaling_, n_features_in_, feature_names_in_
        Offsets and scales of the inputs, and their number and names.

    See Also
    --------
    KernelPCADetector, OneClassForest : Other detectors.
    InfiniteOneClassSVM : Level sets of all masses.

    Notes
    -----
    Complexity: O(n²) time for the fit and O(p n) per predicted row; O(n r²) and O(p r + r²) with r features. For one draw of
    the directions, p-values of different rows are dependent, strongly if the lengthscale is large: the fraction of flagged
    rows is alpha on average over draws.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X, X_new = rng.normal(size=(300, 2)), rng.normal(size=(2000, 2))
    >>> model = ovkgp.RandomProjectionDetector(random_state=0).fit(X)
    >>> bool(abs((model.predict(X_new) == -1).mean() - 0.05) < 0.03)
    True
    >>> model.predict([[0.0, 0.0], [6.0, 6.0]]), bool(model.score_samples([[6.0, 6.0]]) < 1e-6)
    (array([ 1, -1]), True)
    """

    description = Description(
        "outliers by random projections",
        "Rows are embedded by a kernel and projected on random directions. The squared length of the projections is small for a row far from the training rows; its p-value is the probability of a smaller one at a training row.",
        "S(x) = ‖U k_x‖²/n,   PV(x) = (1/n) Σ_i F_{χ²(p)}(S(x)/s_i²)",
    )
    calibration_note = (
        "p-values come from leave-one-out variances. To assess their level, give new rows (X=, or --data)."
    )
    reported = (("alpha", "level α of predict"), ("num_projections_", "number of projections"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **OutlierDetector._parameter_constraints,
        "kernel": BASE_KERNEL,
        "lengthscale": [one_of(*LENGTHSCALE_RATIOS, "ks"), POSITIVE, POSITIVES],
        "num_projections": [integer(), one_of("ks")],
        "leave_one_out": ["boolean"],
        "approximation": [one_of("exact", "nystrom", "orff")],
        "num_frequencies": [integer()],
        "random_state": RANDOM_STATE,
    }

    def __init__(
        self,
        alpha=0.05,
        kernel="rbf",
        lengthscale="local",
        num_projections=100,
        leave_one_out=True,
        approximation="exact",
        num_frequencies=300,
        scale_inputs=True,
        random_state=None,
    ):
        self.alpha = alpha
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.num_projections = num_projections
        self.leave_one_out = leave_one_out
        self.approximation = approximation
        self.num_frequencies = num_frequencies
        self.scale_inputs = scale_inputs
        self.random_state = random_state

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        chooses = isinstance(self.lengthscale, str) and self.lengthscale == "ks"
        if chooses and isinstance(self.kernel, Kernel):
            raise OptionError('lengthscale="ks" is not supported with a kernel object. Use a kernel by name.')
        if self.num_projections == "ks" and not chooses:
            raise OptionError('num_projections="ks" requires lengthscale="ks". Set both, or a number of projections.')

    def fit(self, X, y=None) -> RandomProjectionDetector:
        """Fit the detector.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Typical rows, of which a few may be outliers. At least two must be distinct.
        y : None, default=None
            Ignored.

        Returns
        -------
        self : RandomProjectionDetector
            Fitted estimator.
        """
        with restore_on_error(self):
            rows = enter_rows(self, X)
            vars(self).pop("selection_", None)
            rng = np.random.default_rng(self._seed)
            self.num_projections_, lengthscale = self.num_projections, self.lengthscale
            if isinstance(lengthscale, str) and lengthscale == "ks":
                lengthscale = self._select(rows, rng)
            self.kernel_ = task_kernel(self.kernel, lengthscale, torch.from_numpy(rows))
            directions = rng.standard_normal((self.num_projections_, len(rows)))
            if self.approximation == "exact":
                self._columns = ExactColumns(self.kernel_, rows)
                projected = self._columns.project(directions, self.leave_one_out)
            else:
                self._columns = self._low_rank_columns(rows, rng)
                projected = self._columns.project(rows, directions, self.leave_one_out)
            self._projection, self._log_variances, self._own_log_statistics = projected
            self.held_out_scores_, self.offset_ = self._score_training_rows(), float(self.alpha)
            if self.approximation == "orff":
                self._warn_about_resolution(rows, rng)
        return self

    def _select(self, rows: np.ndarray, rng: np.random.Generator) -> float:
        """Choose the lengthscale and, if asked for, the number of projections."""
        sample = rows[rng.permutation(len(rows))[:MAX_SELECTION_ROWS]]
        candidates = SELECTION_PROJECTIONS if self.num_projections == "ks" else (self.num_projections,)
        lengthscales = SELECTION_RATIOS * median_distance(rows)
        options = {"kernel": self.kernel, "leave_one_out": self.leave_one_out, "rng": rng}
        choice = choose_projection(sample, lengthscales, candidates, **options)
        self.num_projections_ = choice.num_projections
        self.selection_ = {
            "lengthscale": choice.lengthscales,
            "num_projections": choice.candidates,
            "ks": choice.ks,
        }
        return choice.lengthscale * (len(sample) / len(rows)) ** (1 / (2 * rows.shape[1]))

    def _low_rank_columns(self, rows: np.ndarray, rng: np.random.Generator) -> LowRankColumns:
        if self.approximation == "nystrom":
            chosen = np.sort(rng.permutation(len(rows))[: self.num_frequencies])
            return LowRankColumns(self.kernel_, len(rows), None, rows[chosen])
        features = random_features(self.kernel_, rows.shape[1], self.num_frequencies, int(rng.integers(2**31)))
        return LowRankColumns(self.kernel_, len(rows), features, None)

    def _warn_about_resolution(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Warn if points arbitrarily far from the rows, where only the error of the features is left of S(x), are not flagged."""
        exact = ExactColumns(self.kernel_, rows)
        center, directions = rows.mean(0), rng.standard_normal((NUM_DISTANT_POINTS, rows.shape[1]))
        distances = DISTANCE * rng.uniform(1, 2, (NUM_DISTANT_POINTS, 1)) * (1 + np.abs(rows - center).max())
        points = center + distances * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        # those where the kernel itself is zero: it does not decay if it is periodic
        points = points[exact.log_mean_squares(points) < np.log(1e-6)]
        missed = float((self._score(points) >= self.alpha).mean()) if len(points) else 0.0
        if missed > MAX_MISSED:
            warnings.warn(
                f"{self.num_frequencies} random frequencies are too few for this lengthscale: {missed:.0%} of points arbitrarily far from the rows are not flagged as outliers. "
                'Use approximation="nystrom" or "exact", a longer lengthscale or more frequencies.',
                FitWarning,
                stacklevel=3,
            )

    def _score(self, points: np.ndarray) -> np.ndarray:
        log_s = self._columns.log_statistics(points, self._projection)
        parts = np.array_split(log_s, -(-log_s.size * self._log_variances.size // CHUNK_ENTRIES) or 1)
        return np.concatenate([self._chi_square_values(part).mean(1) for part in parts])

    def _chi_square_values(self, log_s: np.ndarray) -> np.ndarray:
        return chi_square_values(log_s, self._log_variances, self.num_projections_)

    def _score_training_rows(self) -> np.ndarray:
        """Return the p-value (n,) of each training row given all others."""
        n, scores = self.num_rows_, np.empty(self.num_rows_)
        for rows in np.array_split(np.arange(n), -(-n * n // CHUNK_ENTRIES)):
            values = self._chi_square_values(self._own_log_statistics[rows])
            scores[rows] = (values.sum(1) - values[np.arange(len(rows)), rows]) / (n - 1)
        return scores

    def level_score(self, X) -> np.ndarray:
        """Return the p-value of each row, as `score_samples` does.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            p-values, below `alpha` for outliers.
        """
        return self.score_samples(X)
