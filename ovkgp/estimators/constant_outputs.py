"""Outputs that never change, told where they could do harm.

Outputs of a coupled kernel share its lengthscales. The evidence of a constant one grows without end as its noise shrinks, and it is told as
well by a kernel that does not vary: training may then end where the others are taken for noise.
"""

from __future__ import annotations

import warnings

import numpy as np

from ovkgp.exceptions import FitWarning

FEW = 3
"""Equal values that are no accident."""


def constant_outputs(Y: np.ndarray) -> list[int]:
    """The columns of Y (n, p), NaN where missing, that were seen at least three times and always with the same value.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.constant_outputs import constant_outputs
        >>> constant_outputs(np.array([[1.0, 2.0], [2.0, 2.0], [0.0, np.nan], [4.0, 2.0]]))
        [1]
    """
    columns = (y[np.isfinite(y)] for y in Y.T)
    return [a for a, y in enumerate(columns) if len(y) >= FEW and (y == y[0]).all()]


def warn_of_constants(estimator, Y: np.ndarray) -> None:
    """Name the constant outputs of a model whose outputs are trained together."""
    if Y.shape[1] == 1 or estimator.kernel in ("auto", "independent") or estimator.hyperparameters == "fixed":
        return
    if found := constant_outputs(Y):
        listed = ", ".join(repr(estimator.output_names_[a]) for a in found)
        warnings.warn(
            f"{listed} of Y never changes: nothing can be learned from it, and outputs that are trained together with it may be taken "
            'for noise. Leave it out, or use kernel="independent".',
            FitWarning,
            stacklevel=5,
        )
