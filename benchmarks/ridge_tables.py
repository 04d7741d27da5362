"""How the ridge experiments speak: tables of plain columns, claims with their verdict, and sizes that do not fit.

A module for `ridge.py` and its siblings; run by itself it does nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
