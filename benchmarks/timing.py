"""How the benchmarks run and measure: the shortest of runs that take turns, live tensors, and the resident memory of the process.

A module for the scripts beside it; run by itself it does nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits
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


def run_sections(sections: dict[str, Callable], words: str, folders: str = "", with_data: str | None = None) -> None:
    """The command line of a script: all sections, or one, at full or quick sizes, on one thread.

    Args:
        sections: by name; each takes `quick`.
        words: what the script is for.
        folders: which folders of data there may be; "" for none.
        with_data: the name of the section that takes their `folder` too.
    """
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    parser.add_argument("--only", choices=sections, help="one section")
    if folders:
        parser.add_argument("--data", default=os.environ.get("OVKGP_DATA"), help=f"the folder of {folders}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's threads are not torch's
        for name in [options.only] if options.only else sections:
            start = time.perf_counter()
            sections[name](options.quick, **({"folder": options.data} if name == with_data else {}))
            print(f"    ({name}: {time.perf_counter() - start:.0f} s)", flush=True)


def line(label: str, ours: float, theirs: float, target: str, unit: str = "ms", scale: float = 1e3) -> None:
    """Print ours, theirs, theirs / ours and the target."""
    print(
        f"{label:<52}{ours * scale:>11.2f} {unit}{theirs * scale:>12.2f} {unit}{theirs / ours:>9.2f} x   {target}",
        flush=True,
    )
