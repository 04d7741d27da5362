"""Training and test rows of forecast origins, which roll along a series (BO-131)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError


@dataclass(frozen=True)
class RollingSplits:
    """Training and test rows of forecast origins, for `backtest` and wherever scikit-learn takes a splitter; made by `rolling_splits`.

    Parameters
    ----------
    n : int
        Number of rows of the series.
    initial : int
        Number of rows before the first origin.
    horizon : int
        Number of test rows of each origin.
    step : int
        Distance between origins.
    window : int or None
        Number of training rows. If None, all rows before the origin.

    Examples
    --------
    >>> from ovkgp.estimators.series import rolling_splits
    >>> [(len(train), test.tolist()) for train, test in rolling_splits(8, 4, 2).split()]
    [(4, [4, 5]), (5, [5, 6]), (6, [6, 7])]
    """

    n: int
    initial: int
    horizon: int
    step: int = 1
    window: int | None = None

    def split(self, X=None, y=None, groups=None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the indices of the training and test rows of each origin.

        Parameters
        ----------
        X : array-like of shape (n, ...) or None, default=None
            Series, whose length is checked.
        y, groups : None, default=None
            Ignored.

        Yields
        ------
        train, test : ndarray
            Indices.
        """
        if X is not None and len(X) != self.n:
            raise InputError(f"X must have {self.n} rows, as the splits, got {len(X)}.")
        for origin in self._origins():
            start = 0 if self.window is None else origin - self.window
            yield np.arange(start, origin), np.arange(origin, origin + self.horizon)

    def get_n_splits(self, X=None, y=None, groups=None) -> int:
        """Return the number of origins.

        Parameters
        ----------
        X, y, groups : None, default=None
            Ignored.

        Returns
        -------
        int
            Number of folds.
        """
        return len(self._origins())

    def _origins(self) -> range:
        return range(self.initial, self.n - self.horizon + 1, self.step)


def rolling_splits(n, initial, horizon, step=1, window="expanding") -> RollingSplits:
    """Split a series into training rows and the `horizon` rows that follow them, from many origins.

    Parameters
    ----------
    n : int
        Number of rows of the series.
    initial : int
        Number of rows before the first origin.
    horizon : int
        Number of test rows of each origin.
    step : int, default=1
        Distance between origins. With `step=initial + horizon` and `window=initial`, blocks are disjoint (BO-131).
    window : "expanding" or int, default="expanding"
        Whether to train on all rows before the origin, or on the last ones, at most `initial`.

    Returns
    -------
    RollingSplits
        Splitter with `split` and `get_n_splits`.

    References
    ----------
    BO-131

    Examples
    --------
    >>> from ovkgp.estimators.series import rolling_splits
    >>> [(train.tolist(), test.tolist()) for train, test in rolling_splits(7, 3, 2, step=2, window=2).split()]
    [([1, 2], [3, 4]), ([3, 4], [5, 6])]
    """
    n, initial, horizon, step = (
        check_integer(name, value)
        for name, value in (("n", n), ("initial", initial), ("horizon", horizon), ("step", step))
    )
    if initial + horizon > n:
        raise OptionError(
            f"initial + horizon must be at most the number of rows, {n}, got {initial} + {horizon}. Use a smaller initial."
        )
    if isinstance(window, str):
        if window != "expanding":
            raise OptionError(f'window must be "expanding" or an integer, got {window!r}.')
        return RollingSplits(n, initial, horizon, step)
    if check_integer("window", window) > initial:
        raise OptionError(f"window must be at most initial, {initial}, got {window}.")
    return RollingSplits(n, initial, horizon, step, int(window))
