"""How the experiments of the papers speak: tables of plain columns, claims with their verdict, and sizes that do not fit.

A module for `ridge.py`, `itl.py` and their siblings; run by itself it does nothing.
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
    """A sentence of a paper, and whether this run bears it out."""

    text: str
    holds: bool


def heading(title: str, *columns: str) -> None:
    """Open a table."""
    print(f"\n{title}")
    row(*columns)


def row(first: str, *others: str | float) -> None:
    """One line of a table; numbers with three decimals."""
    cells = (cell if isinstance(cell, str) else f"{cell:.3f}" for cell in others)
    print(f"    {first:<{FIRST}}" + "".join(f"{cell:>{OTHER}}" for cell in cells), flush=True)


def note(text: str) -> None:
    """A sentence below a table."""
    print(f"    {text}", flush=True)


def claim(text: str, holds: bool) -> Claim:
    """Print a claim with its verdict, and hand it on."""
    print(f"    {'holds' if holds else 'DOES NOT HOLD':<14} {text}", flush=True)
    return Claim(text, bool(holds))


def spread(values: np.ndarray) -> str:
    """Mean ± standard deviation over the repetitions."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def infeasible(num_rows: int, num_outputs: int) -> str:
    """What the dense matrix between all entries would take, in float64."""
    return f"no: {8 * (num_rows * num_outputs) ** 2 / 1e9:.3g} GB"


def run_experiments(experiments: Iterable[tuple[str, Callable[[], list[Claim]]]]) -> None:
    """Run them one after another on one thread, and count the claims that hold."""
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's threads are not torch's
        claims = [found for name, experiment in experiments for found in _timed(name, experiment)]
    print(f"\n{sum(found.holds for found in claims)} of {len(claims)} claims hold")
    for found in claims:
        if not found.holds:
            print(f"    does not hold: {found.text}")


def _timed(name: str, experiment: Callable[[], list[Claim]]) -> list[Claim]:
    start = time.perf_counter()
    claims = experiment()
    print(f"    ({name}: {time.perf_counter() - start:.0f} s)", flush=True)
    return claims
