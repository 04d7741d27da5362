"""Ctrl-C is counted, and raises as ever."""

import os
import signal
import threading

import pytest

from ovkgp.cli.errors import Interrupts


def test_a_signal_that_was_swallowed_is_known():
    interrupts, before = Interrupts(), signal.getsignal(signal.SIGINT)
    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_hear_nothing():
    interrupts, done = Interrupts(), []

    def work():
        with interrupts.listening():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True] and interrupts.count == 0
