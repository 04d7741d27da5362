"""Default cases of tests of all estimators, so that a new estimator takes part without a row in their tables."""

from collections.abc import Iterable
from inspect import signature

import ovkgp
from ovkgp.estimators.functional.base import FunctionalRegressor


def list_estimators() -> set[type]:
    """Return the exported estimators that fit to rows; `BayesSearchCV` delegates to its estimator."""
    exported = {getattr(ovkgp.estimators, name) for name in ovkgp.estimators.__all__}
    return {kind for kind in exported - {ovkgp.BayesSearchCV} if "X" in signature(getattr(kind, "fit", len)).parameters}


def default_cases(kinds: Iterable[type]) -> dict[str, tuple[type, str, dict]]:
    """Return class, target and options, by name, of each exported estimator that is not among `kinds`.

    The target is "table", "labels", "curves" or "none".
    """
    cases = {}
    for kind in sorted(list_estimators() - set(kinds), key=lambda kind: kind.__name__):
        tags = kind().__sklearn_tags__()
        target = "curves" if issubclass(kind, FunctionalRegressor) else "table"
        if tags.estimator_type == "classifier":
            target = "labels"
        elif not tags.target_tags.required:
            target = "none"
        cases[kind.__name__] = kind, target, {"random_state": 0} if "random_state" in kind().get_params() else {}
    return cases
