"""`KernelPCADetector`, outliers by the reconstruction error of kernel principal components (KT-56, 57)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from linear_operator import to_dense
from scipy.linalg import eigh

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import BASE_KERNEL
from ovkgp.estimators.common.options import integer, restore_on_error
from ovkgp.estimators.common.task_options import LOCAL_LENGTHSCALE, task_kernel
from ovkgp.estimators.detection.base import DETECTOR_ATTRIBUTES, OutlierDetector, enter_rows, set_threshold
from ovkgp.estimators.detection.columns import split_rows
from ovkgp.estimators.storage.storage import storable
from ovkgp.kernels.evaluation import evaluate_kernel

MIN_EIGENVALUE_RATIO = 1e-10  # smallest eigenvalue of a component relative to the largest one


@storable(
    *DETECTOR_ATTRIBUTES,
    *("kernel_", "num_components_", "eigenvalues_", "_model_rows", "_weights", "_row_means", "_mean"),
)
class KernelPCADetector(OutlierDetector):
    """Outliers by the reconstruction error of kernel principal components (KT-56).

    A point is an outlier if its vector in the space of the kernel is far from the span of the first components of the
    training rows. `score_samples` is minus its squared distance,

        −RE(x),   RE(x) = ‖φ(x) − m‖² − Σ_{s≤p} ⟨u_s, φ(x) − m⟩²,

    m being the mean of the training rows and u_s the components. Without components, and with a stationary kernel, it orders points
    as the Parzen density estimate Σ_i k(X_i, x) (KT-57).

    Parameters
    ----------
    alpha : float, default=0.05
        Level: the fraction of typical new rows that `predict` flags.
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Kernel of the scaled inputs, by name or as a scalar GPyTorch kernel.
    lengthscale : {"local", "median"}, float or array-like of shape (d,), default="local"
        Lengthscale ℓ of a kernel by name; γ = 1/(2ℓ²). "median" is the median distance between rows, "local" 0.3 times that.
    num_components : int, default=10
        Number p of components, 0 for the Parzen detector. At most n − 1 are used, and none whose eigenvalue is below
        1e-10 of the largest one.
    scale_inputs : bool, default=True
        Whether to center and scale the columns of X; never done for a kernel object.

    Attributes
    ----------
    kernel_ : Kernel
        Kernel of the scaled inputs.
    num_components_, eigenvalues_ : int, ndarray of shape (p,)
        Number of components, and the variances λ_s of the training rows along them.
    held_out_scores_ : ndarray of shape (n,)
        Score of each training row by a fit to the other four of five random folds.
    offset_ : float
        The α-quantile of `held_out_scores_`; `decision_function` is `score_samples` minus `offset_`.
    scaling_, n_features_in_, feature_names_in_
        Offsets and scales of the inputs, and their number and names.

    See Also
    --------
    RandomProjectionDetector : p-values, in O(n²) instead of O(n² p) to O(n³) time.

    Notes
    -----
    Complexity: O(n² p) to O(n³) time and O(n²) memory for the fit, O(n p) per predicted row.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> model = ovkgp.KernelPCADetector().fit(rng.normal(size=(200, 2)))
    >>> model.predict([[0.0, 0.0], [6.0, 6.0]])
    array([ 1, -1])
    """

    description = Description(
        "outliers by kernel principal components",
        "Rows are embedded by a kernel. A row is an outlier if its squared distance from the span of the first principal components of the training rows, its reconstruction error, is larger than that of most held-out training rows.",
        "RE(x) = ‖φ(x) − m‖² − Σ_s ⟨u_s, φ(x) − m⟩²",
    )
    reported = (*OutlierDetector.reported, ("num_components_", "number of components"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **OutlierDetector._parameter_constraints,
        "kernel": BASE_KERNEL,
        "lengthscale": LOCAL_LENGTHSCALE,
        "num_components": [integer(0)],
    }

    def __init__(self, alpha=0.05, kernel="rbf", lengthscale="local", num_components=10, scale_inputs=True):
        self.alpha = alpha
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.num_components = num_components
        self.scale_inputs = scale_inputs

    def fit(self, X, y=None) -> KernelPCADetector:
        """Fit the detector.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Typical rows, of which a few may be outliers. At least two must be distinct.
        y : None, default=None
            Ignored.

        Returns
        -------
        self : KernelPCADetector
            Fitted estimator.
        """
        with restore_on_error(self):
            rows = enter_rows(self, X)
            self._fit_rows(rows)
            set_threshold(self, rows)
        return self

    def _fit_rows(self, rows: np.ndarray) -> None:
        """Fit to scaled rows (n, d)."""
        n, points = len(rows), torch.from_numpy(rows)
        self.kernel_, self._model_rows = task_kernel(self.kernel, self.lengthscale, points), rows
        gram = to_dense(evaluate_kernel(self.kernel_, points)).numpy()
        self._row_means, self._mean = gram.mean(1), float(gram.mean())
        count = min(self.num_components, n - 1)
        values, vectors = np.empty(0), np.empty((n, 0))
        if count:
            centered = gram - self._row_means[:, None] - self._row_means + self._mean
            values, vectors = eigh(centered, subset_by_index=[n - count, n - 1])
            kept = np.flatnonzero(values > MIN_EIGENVALUE_RATIO * values[-1])[::-1]
            values, vectors = values[kept], vectors[:, kept]
        self._weights, self.eigenvalues_, self.num_components_ = vectors / np.sqrt(values), values / n, len(values)

    def _score(self, points: np.ndarray) -> np.ndarray:
        """Return −RE(x) (m,), in which k(x, X_i) is centered in the space of the kernel."""
        rows, scores = torch.from_numpy(self._model_rows), []
        for part in split_rows(points, len(rows)):
            columns = to_dense(evaluate_kernel(self.kernel_, part, rows)).numpy()
            means = columns.mean(1)
            variance = to_dense(evaluate_kernel(self.kernel_, part, diag=True)).numpy()
            centered = columns - means[:, None] - self._row_means + self._mean
            projected = np.square(centered @ self._weights).sum(1)
            scores.append(projected - (variance - 2 * means + self._mean))
        return np.concatenate(scores)
