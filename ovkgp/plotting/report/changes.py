"""How much predictions change along each input, the others at their medians: which inputs matter, whatever the kernel."""

from __future__ import annotations

import numpy as np

from ovkgp.criticism.rows import as_inputs
from ovkgp.plotting.cuts import input_range

POINTS = 15
"""Along an input."""


def changes(estimator, X: np.ndarray | None, spread: np.ndarray | float = 1.0) -> np.ndarray:
    """The range of the predicted mean along each input (d,), of the output that changes most, in units of `spread` (p,).

    Args:
        estimator: a fitted regressor.
        X: rows (n, d) that say over which range; where None, what the model knows of its inputs.
        spread: of the outputs; zero is one that does not count.

    Cost: 15 predictions for each input.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.report.changes import changes
        >>> X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
        >>> int(changes(ovkgp.OVKRidge(lam=1e-3).fit(X, X[:, 1]), X).argmax())
        1
    """
    low, middle, high = input_range(estimator, X)
    d = len(middle)
    points = np.tile(middle, (d, POINTS, 1))
    for i in range(d):
        points[i, :, i] = np.linspace(low[i], high[i], POINTS)
    mean = np.reshape(estimator.predict(as_inputs(estimator, points.reshape(-1, d))), (d, POINTS, -1))
    spread = np.where(np.asarray(spread) > 0, spread, np.inf)
    return np.max(np.ptp(mean, axis=1) / spread, axis=1)
