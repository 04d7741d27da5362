"""Lengthscales at which a search for hyperparameters starts: oscillations of any frequency and lines are modes of one
density, and a descent from a lengthscale near its own finds each.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial import cKDTree

NUM_LENGTHSCALES = 6
MAX_RELATIVE_LENGTHSCALE = 3.0  # largest lengthscale, in units of √d


def make_lengthscale_grid(X: np.ndarray, num_lengthscales: int = NUM_LENGTHSCALES) -> np.ndarray:
    """Return lengthscales (k,) for standardized inputs X (n, d), with a constant ratio.

    From the median distance of a distinct row to its nearest neighbor, below which a function is noise on these rows,
    to 3√d. Complexity: O(n log n) for few inputs, at most O(n² d).
    """
    largest = MAX_RELATIVE_LENGTHSCALE * math.sqrt(X.shape[1])
    distinct = np.unique(X, axis=0)
    if len(distinct) < 2:
        return np.array([largest])
    distances = cKDTree(distinct).query(distinct, k=2)[0][:, 1]
    return np.geomspace(min(np.median(distances), largest / 2), largest, num_lengthscales)
