"""Ctrl-C that was heard: estimators keep what they have and return, so that only a note of the signal tells of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """How often Ctrl-C was pressed while `listening`."""

    def __init__(self):
        self.count = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count SIGINT, which raises `KeyboardInterrupt` as ever."""
        if threading.current_thread() is not threading.main_thread():  # signals are for the main thread
            yield
            return

        def heard(number, frame):
            self.count += 1
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, heard)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
