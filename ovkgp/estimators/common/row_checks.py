"""Warnings of the training rows of estimators that are not a `GPRegressor`: a single row, and exact copies of rows."""

from __future__ import annotations

import warnings

import numpy as np

from ovkgp.estimators.common.fit_checks import _copied_rows
from ovkgp.exceptions import FitWarning


def warn_about_rows(X: np.ndarray, Y: np.ndarray) -> None:
    """Warn if there is only one row of X (n, d) and Y (n, ...), NaN where missing, or if many rows are exact copies of others."""
    if len(X) == 1:
        found = [
            "There is only one training row, from which nothing is known elsewhere. Add rows, or check how they were selected."
        ]
    else:
        found = _copied_rows(X, np.reshape(Y, (len(X), -1)))
    for message in found:
        warnings.warn(message, FitWarning, stacklevel=4)
