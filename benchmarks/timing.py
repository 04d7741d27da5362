"""Measurements of the benchmarks: shortest of alternating runs, live tensors, and resident memory of the process.

Imported by the scripts of this folder; not a script.
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
    """Largest total of live tensor storages created inside, in bytes."""

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
    """Measure the peak memory of tensors, in bytes."""
    with PeakMemory() as watch:
        work()
    return watch.peak


def seconds(*works: Callable, repeats: int = 7, summary: Callable = min) -> list[float]:
    """Measure the shortest (or another `summary`) of several runs of each function; runs alternate, so that a drift of the clock affects all equally."""
    runs = [[timed(work)[0] for work in works] for _ in range(repeats)]
    return [summary(times) for times in zip(*runs, strict=True)]


def timed(work: Callable) -> tuple[float, object]:
    """Return the seconds of one run, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def memory_growth(work: Callable) -> float:
    """Measure the maximum growth of resident memory during a run, in bytes, including NumPy arrays.

    Freed memory is returned to the system first, so that it does not hide the growth. NaN on systems other than Linux.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        work()
        return math.nan
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def run_sections(
    sections: dict[str, Callable], description: str, folders: str = "", with_data: str | None = None
) -> None:
    """Run the command line of a script: all sections or one, at full or quick sizes, on one thread.

    Args:
        sections: Functions by name; each takes `quick`.
        description: Description of the script.
        folders: Names of folders of data; "" for none.
        with_data: Name of the section that takes `folder`.
    """
    parser = argparse.ArgumentParser(description=description)
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
