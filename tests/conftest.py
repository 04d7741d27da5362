"""Ctrl-C reaches the tests, and the processes that they start, also where a background job was told to ignore it."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
