"""Output of the experiments of the papers: tables, claims and whether they hold, and sizes that do not fit in memory.

Imported by `ridge.py`, `itl.py` and others; not a script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

FIRST, OTHER = 16, 20
"""Widths of the columns."""


class Claim(NamedTuple):
    """Claim of a paper, and whether this run reproduces it."""

    text: str
    holds: bool


def heading(title: str, *columns: str) -> None:
    """Open a table."""
    print(f"\n{title}")
    row(*columns)


def row(first: str, *others: str | float) -> None:
    """Print one line of a table; numbers with three decimals."""
    cells = (cell if isinstance(cell, str) else f"{cell:.3f}" for cell in others)
    print(f"    {first:<{FIRST}}" + "".join(f"{cell:>{OTHER}}" for cell in cells), flush=True)


def note(text: str) -> None:
    """Print a sentence below a table."""
    print(f"    {text}", flush=True)


def claim(text: str, holds: bool) -> Claim:
    """Print a claim and whether it holds, and return it."""
    print(f"    {'holds' if holds else 'DOES NOT HOLD':<14} {text}", flush=True)
    return Claim(text, bool(holds))


def mean_and_std(values: np.ndarray) -> str:
    """Format mean ± standard deviation over the repetitions."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def infeasible(num_rows: int, num_outputs: int) -> str:
    """Format the memory of the dense matrix between all entries, in float64."""
    return f"no: {8 * (num_rows * num_outputs) ** 2 / 1e9:.3g} GB"


def run_experiments(experiments: Iterable[tuple[str, Callable[[], list[Claim]]]], strict: bool = False) -> None:
    """Run experiments in order on one thread, and count the claims that hold; `strict` as for `count_claims`."""
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's threads are not torch's
        claims = [found for name, experiment in experiments for found in _timed(name, experiment)]
    count_claims(claims, strict)


def count_claims(claims: list[Claim], strict: bool = True) -> None:
    """Print how many claims hold and which do not; if `strict`, exit with status 1 if one does not."""
    failures = [found.text for found in claims if not found.holds]
    print(f"\n{len(claims) - len(failures)} of {len(claims)} claims hold")
    for text in failures:
        print(f"    does not hold: {text}")
    if failures and strict:
        raise SystemExit(1)


def _timed(name: str, experiment: Callable[[], list[Claim]]) -> list[Claim]:
    start = time.perf_counter()
    claims = experiment()
    print(f"    ({name}: {time.perf_counter() - start:.0f} s)", flush=True)
    return claims
