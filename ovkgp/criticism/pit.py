"""Probability integral transforms: where in its predictive distribution each observation falls."""

from __future__ import annotations

import numpy as np

from ovkgp.criticism.predictives import predictive


def pit_values(estimator, X=None, Y=None) -> np.ndarray:
    """u = P(y′ ≤ y) (m, p) under the prediction of each entry by itself; NaN where Y is missing.

    They are uniform on [0, 1] where the model is right. Where it is too sure of itself they gather at 0 and 1, where it is not sure
    enough around ½, and where its mean is off at one side. Labels, classes and counts have u = P(y′ < y) + v P(y′ = y) with v uniform, always the
    same numbers, which is uniform too.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge`, `ORFFRidge` or `InfiniteQuantileRegressor`.
        X, Y: rows that were held out of the fit. Without them each entry that the model keeps, given all others, in closed form.

    Raises:
        OptionError: there are no rows, and the model keeps none or has no leave-one-out predictions.

    Cost: one prediction, or one factorisation (one for each draw that predictions average over).

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.criticism import pit_values
        >>> rng = np.random.default_rng(0)
        >>> X = np.linspace(0, 6, 200)[:, None]
        >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X) + np.sqrt(0.1) * rng.normal(size=X.shape))
        >>> u = pit_values(model)
        >>> bool(abs(np.mean(u < 0.25) - 0.25) < 0.1), bool(abs(np.mean(u > 0.75) - 0.25) < 0.1)
        (True, True)
    """
    return predictive(estimator, X, Y).pit()
