"""Which kind of estimator a report is about, by what its outputs are: a table, a target, labels, or nothing at all."""

from __future__ import annotations

from sklearn.utils.validation import check_is_fitted

from ovkgp.exceptions import InputError

KINDS = {
    "GPRegressor": "table",
    "OVKRidge": "table",
    "ORFFRidge": "table",
    "ManifoldRidge": "table",
    "ONORMA": "table",
    "ConstrainedORFF": "table",
    "VectorTaskRegressor": "tasks",
    "InfiniteQuantileRegressor": "target",
    "InfiniteCostSensitiveClassifier": "labels",
    "SimplexClassifier": "labels",
    "InfiniteOneClassSVM": "none",
}
"""By class: Y is a "table" (n, p), "tasks" (n, T, p), one "target" (n,), "labels" (n,), or "none"."""
CLASSES = ("function_", "posterior_", "calibration_", "coef_")
"""Fitted attributes, of which every estimator has one."""


def class_name(estimator) -> str:
    """The name of the estimator's class among `KINDS`, or of the one that it extends.

    Raises:
        InputError: it is none of them.
    """
    for kind in type(estimator).__mro__:
        if kind.__name__ in KINDS and kind.__module__.startswith("ovkgp."):
            return kind.__name__
    raise InputError(
        f"a report is about one of {', '.join(KINDS)}, got {type(estimator).__name__}: give the estimator itself, not a pipeline or "
        "a search around it."
    )


def kind_of(estimator) -> str:
    """What the outputs of a fitted estimator are.

    Raises:
        InputError: a report does not know this class.
        NotFittedError: nothing has been fitted yet.
    """
    kind = KINDS[class_name(estimator)]
    check_is_fitted(estimator, CLASSES, all_or_any=any)
    return kind


def called(estimator, name: str) -> str:
    """An output at the beginning of a sentence: by its name, or by its number where it has none.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.report.kinds import called
        >>> called(ovkgp.OVKRidge().fit(np.eye(3), np.eye(3)), "output 2")
        'Output 2'
    """
    return f"Output '{name}'" if getattr(estimator, "_has_names", True) else name.capitalize()
