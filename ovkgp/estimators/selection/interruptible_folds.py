"""Folds that are computed once and shared by all candidates, and that end a cross-validation on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from sklearn.utils.metadata_routing import get_routing_for_object


class Folds:
    """Splitter with the given (train, test) indices, which raises between two folds after Ctrl-C.

    An estimator that catches Ctrl-C and keeps its best parameters, as those of this package do, would otherwise end its own fit only.
    """

    def __init__(self, cv, splits: list[tuple[np.ndarray, np.ndarray]]):
        self.cv, self.splits, self.interrupted = cv, splits, False

    def split(self, X, y=None, groups=None, **params) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the folds; all arguments are ignored."""
        for fold in self.splits:
            self.check_not_interrupted()
            yield fold

    def get_n_splits(self, X=None, y=None, groups=None, **params) -> int:
        """Return the number of folds."""
        return len(self.splits)

    def get_metadata_routing(self):
        """Return the routing of the splitter that made the folds, so that scikit-learn accepts its metadata."""
        return get_routing_for_object(self.cv)

    def check_not_interrupted(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was recorded."""
        if self.interrupted:
            raise KeyboardInterrupt


@contextmanager
def record_interrupts(folds: Folds) -> Iterator[None]:
    """Record a Ctrl-C in `folds.interrupted`, then call the previous handler."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread receives signals
        return

    def record(number, frame):
        folds.interrupted = True
        return before(number, frame)

    signal.signal(signal.SIGINT, record)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
