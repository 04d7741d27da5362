"""Problems of a fitted `GPRegressor` that a user should know of: one list for warnings of `fit`, `summary()` and the report."""

from __future__ import annotations

import numpy as np
import torch

from ovkgp.estimators.common.formatting import quote_names
from ovkgp.estimators.common.summary import list_active_bounds, pluralize

MAX_NOISE_FRACTION = 0.95  # noise above this fraction of the variance of an output leaves nothing to the function
MAX_NEIGHBOR_RATIO = (
    0.5  # mean squared difference of neighbors over twice the variance: 1 for noise, 0 for a smooth function
)
MIN_NEIGHBOR_ROWS = 20  # rows that the ratio needs
MAX_NEIGHBOR_ROWS = 1000  # rows between which neighbors are searched
MAX_COPIED_FRACTION = 0.05  # fraction of rows that may be copies of others
MIN_DISTINCT_FRACTION = (
    0.2  # with fewer distinct outputs among the rows, they are counts or labels, which repeat by nature
)


def list_fit_problems(estimator) -> list[str]:
    """List what is wrong with a fit, as sentences: active bounds, copied rows, signals taken for noise.

    Complexity: O(n log n), and O(1000²·d) for neighbors.
    """
    bounds = list_active_bounds(estimator)
    found = (
        [
            f"Training ended at a bound: {'; '.join(bounds)}. Check the outputs for duplicated or noise-free rows and the inputs for constant columns."
        ]
        if bounds
        else []
    )
    data = estimator.training_observations()
    if data is None or estimator.noise_ is None:
        return found
    X, Y = data.X.numpy(), data.Y.numpy()
    return [*found, *_copied_rows(X, Y), *_missed_signals(estimator, X, Y)]


def _copied_rows(X: np.ndarray, Y: np.ndarray) -> list[str]:
    rows = np.c_[X, np.nan_to_num(Y, nan=np.inf)]
    num_distinct, num_inputs = (len(np.unique(part, axis=0)) for part in (rows, X))
    num_copies = len(rows) - num_distinct
    if num_copies <= MAX_COPIED_FRACTION * len(rows) or num_distinct > num_inputs:
        return []  # rows with the same inputs differ in their outputs, as repeated measurements and labels do
    return [
        f"{pluralize(num_copies, 'row')} of {len(rows)} are exact copies of others, from which the model infers too little noise. Remove copies (a join may have made them)."
    ]


def _missed_signals(estimator, X: np.ndarray, Y: np.ndarray) -> list[str]:
    """Name outputs that are called noise although neighbors have similar values."""
    variances, noise = np.nanvar(Y, 0), np.diag(estimator.noise_) / estimator.scaling_.output_scale**2
    names = [
        name
        for a, name in enumerate(estimator.output_labels())
        if variances[a] > 0
        and noise[a] > MAX_NOISE_FRACTION * variances[a]
        and _neighbor_ratio(X, Y[:, a]) < MAX_NEIGHBOR_RATIO
    ]
    if not names:
        return []
    verb = "is" if len(names) == 1 else "are"
    return [
        f"{quote_names(names)} {verb} explained as noise, although neighboring rows have similar values. Rescale the inputs, or pass a kernel object with other priors."
    ]


def _neighbor_ratio(X: np.ndarray, y: np.ndarray) -> float:
    """Return the mean squared difference of nearest neighbors over twice the variance; 1 with few rows."""
    rows = np.flatnonzero(np.isfinite(y))
    if len(rows) < MIN_NEIGHBOR_ROWS:
        return 1.0
    rows = np.random.default_rng(0).permutation(rows)[:MAX_NEIGHBOR_ROWS]
    points = torch.from_numpy(X[rows])
    nearest = torch.cdist(points, points).fill_diagonal_(torch.inf).argmin(1).numpy()
    return float(np.mean((y[rows] - y[rows][nearest]) ** 2) / (2 * y[rows].var()))
