"""How the benchmarks measure: the shortest of runs that take turns, live tensors, and the resident memory of the process.

A module for the scripts beside it; run by itself it does nothing.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class PeakMemory(TorchDispatchMode):
    """The largest total of live tensor storages made inside, in bytes."""

    def __init__(self):
        super().__init__()
        self.live, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if torch.is_tensor(tensor):
                storage = tensor.untyped_storage()
                self.live[storage.data_ptr()] = (
                    storage.nbytes(),
                    torch.multiprocessing.reductions.StorageWeakRef(storage),
                )
        self.live = {key: pair for key, pair in self.live.items() if not pair[1].expired()}
        self.peak = max(self.peak, sum(size for size, _ in self.live.values()))
        return result


def peak(work: Callable) -> int:
    """The peak of the tensors made by some work, in bytes."""
    with PeakMemory() as watch:
        work()
    return watch.peak


def seconds(*works: Callable, repeats: int = 7) -> list[float]:
    """The shortest of several runs of each; the runs take turns, so that a drift of the clock meets all alike."""
    best = [math.inf] * len(works)
    for _ in range(repeats):
        for i, work in enumerate(works):
            best[i] = min(best[i], timed(work)[0])
    return best


def timed(work: Callable) -> tuple[float, object]:
    """The seconds of one run, and what it gave."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def memory_growth(work: Callable) -> float:
    """By how many bytes the resident memory of the process grew at most while some work ran, NumPy's arrays included.

    Freed memory is handed back first, or it would hide what the work takes. NaN where the system does not tell (it is
    Linux that does).
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    except OSError:
        work()
        return math.nan
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def line(label: str, ours: float, theirs: float, target: str, unit: str = "ms", scale: float = 1e3) -> None:
    """Print ours, theirs, theirs / ours and the target."""
    print(
        f"{label:<52}{ours * scale:>11.2f} {unit}{theirs * scale:>12.2f} {unit}{theirs / ours:>9.2f} x   {target}",
        flush=True,
    )
