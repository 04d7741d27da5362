"""All or nothing: an estimator whose fit fails is what it was before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sklearn.base import BaseEstimator


@contextmanager
def all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """Whatever goes wrong inside, what was fitted before is there again.

    Example:
        >>> import ovkgp
        >>> from ovkgp.estimators.restoring import all_or_nothing
        >>> model = ovkgp.OVKRidge(lam=0.5)
        >>> try:
        ...     with all_or_nothing(model):
        ...         model.lam = 7.0
        ...         raise ValueError
        ... except ValueError:
        ...     print(model.lam)
        0.5
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
