"""The folds of a search: found once, the same for every candidate, and the place where Ctrl-C ends a cross-validation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from sklearn.utils.metadata_routing import get_routing_for_object


class Folds:
    """The same folds for every candidate, as a splitter that stops between two folds once Ctrl-C was noted: an estimator that keeps
    what it has on Ctrl-C, as ours do, would otherwise end no more than its own fit.

    Args:
        cv: the splitter that made them, asked for its metadata routing.
        splits: rows to train on and rows to test on, for each fold.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.selection.cross_validation import Folds
        >>> Folds(None, [(np.array([0, 1]), np.array([2]))]).get_n_splits()
        1
    """

    def __init__(self, cv, splits: list[tuple[np.ndarray, np.ndarray]]):
        self.cv, self.splits, self.interrupted = cv, splits, False

    def split(self, X, y=None, groups=None, **params) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The folds, whatever the arguments."""
        for fold in self.splits:
            self.check_going()
            yield fold

    def get_n_splits(self, X=None, y=None, groups=None, **params) -> int:
        """How many there are."""
        return len(self.splits)

    def get_metadata_routing(self):
        """What the splitter asks for: it has had it, and scikit-learn wants to know that somebody takes it."""
        return get_routing_for_object(self.cv)

    def check_going(self) -> None:
        """Raise KeyboardInterrupt once Ctrl-C was noted."""
        if self.interrupted:
            raise KeyboardInterrupt


@contextmanager
def interrupts_noted(folds: Folds) -> Iterator[None]:
    """Tell the folds of a Ctrl-C, and then do with it what was done before.

    Example:
        >>> from ovkgp.estimators.selection.cross_validation import Folds, interrupts_noted
        >>> folds = Folds(None, [])
        >>> with interrupts_noted(folds):
        ...     folds.interrupted
        False
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread hears signals
        return

    def note(number, frame):
        folds.interrupted = True
        return before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
