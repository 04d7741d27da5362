"""Mean and spread of each column of a table with gaps; a column without a number has a mean and a spread of zero."""

from __future__ import annotations

import numpy as np


def means(Y: np.ndarray) -> np.ndarray:
    """The mean (p,) of the numbers in each column of (n, p); zero where there is none.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.columns import means
        >>> means(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
        [2.0, 0.0]
    """
    seen = np.isfinite(Y)
    return np.where(seen, Y, 0.0).sum(0) / np.maximum(seen.sum(0), 1)


def spreads(Y: np.ndarray) -> np.ndarray:
    """The standard deviation (p,) of the numbers in each column of (n, p), divided by their count; zero where there is none.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.columns import spreads
        >>> spreads(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
        [1.0, 0.0]
    """
    return np.sqrt(means((Y - means(Y)) ** 2))
