"""Ctrl-C reaches the tests, and the processes that they start, also where a background job was told to ignore it; scripts as modules."""

import importlib
import signal
import sys
from pathlib import Path

import pytest

import ovkgp  # noqa: F401  before any test imports GPyTorch, whose deprecation warning it silences

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def benchmark_of(monkeypatch):
    """Scripts of the folder benchmarks as modules, by name; forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(BENCHMARKS)):
            del sys.modules[name]
