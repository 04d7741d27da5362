"""Tables of `defaults.py`: public data in two fixed halves, simulated functions, random splits and removed outputs.

Half A is for choices, half B for their evaluation; the halves were fixed by name before any result. Imported by `defaults.py`; not a script.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

_HALF_A = (
    "abalone corn fission_gas ldaps meuse pulpfiber sarcos wind_jul bigmac2003 bostonhousing "
    "cobarore crabs ftcollinssnow geyser heights mcycle snowgeese ufc"
)
_HALF_B = (
    "circadapt dough jura mash passive_inflation riverflow wind_jan birthwt caution cpus engel "
    "gagurine gilgais highway sniffer topo un3"
)
HALVES = {"A": _HALF_A.split(), "B": _HALF_B.split()}
"""Names of the tables; every other one of the sorted names of the multi-output and of the single-output tables belongs to A."""

FIELDS = ("wind_jan", "wind_jul")
"""Tables whose outputs are the components of a vector field over their inputs."""

SIZES = (30, 60, 120, 250)
MAX_OUTPUTS, MAX_TEST_ROWS, MIN_TEST_ROWS = 6, 400, 8
MAX_ROWS_OF_ALL_SPLITS = 120
"""Larger training sets have half as many splits."""

FAULT = 20.0
"""Flows of gauge NASI2 above it are a sensor fault (78.9; all others are below 5.7)."""


class Table(NamedTuple):
    """Complete rows of a table: inputs (n, d) and outputs (n, p)."""

    name: str
    half: str
    X: np.ndarray
    Y: np.ndarray


class Split(NamedTuple):
    """Training rows, with NaN for removed outputs, and test rows."""

    X: np.ndarray
    Y: np.ndarray
    X_test: np.ndarray
    Y_test: np.ndarray


def load_table(folder: str | Path, name: str) -> Table:
    """Read a table by name; rows with missing values are omitted, and outputs beyond the sixth."""
    half = next(half for half, names in HALVES.items() if name in names)
    X, Y = read_arrays(Path(folder), name)
    complete = np.isfinite(X).all(1) & np.isfinite(Y).all(1)
    return Table(name, half, X[complete], Y[complete, :MAX_OUTPUTS])


def read_arrays(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read inputs (n, d) and all outputs (n, p) of a table; logarithms for "meuse" and "jura"."""
    if name == "sarcos":
        with np.load(folder / "sarcos" / "sarcos_test.npz", allow_pickle=False) as arrays:
            return arrays["X"], arrays["Y"]
    if name in FIELDS:
        frame = pd.read_csv(folder / "winds" / "north_atlantic.csv")
        frame = frame[frame["month"] == (1 if name == "wind_jan" else 7)]
        return _columns(frame, ["lon", "lat"]), _columns(frame, ["u", "v"])
    if name == "jura":
        frame = pd.concat([pd.read_csv(folder / "jura" / f"{part}.csv") for part in ("prediction", "validation")])
        return _columns(frame, ["xloc", "yloc"]), np.log(_columns(frame, list(frame.columns[4:])))
    path = next(
        path for part in ("multitarget", "emulator", "quantile") if (path := folder / part / f"{name}.csv").is_file()
    )
    frame = pd.read_csv(path)
    if name == "riverflow":
        frame = frame[frame["y_NASI2_48H_0"] < FAULT]
    inputs = [column for column in frame.columns if column.startswith("x_")]
    X, Y = _columns(frame, inputs), _columns(frame, [column for column in frame.columns if column not in inputs])
    return X, np.log(Y) if name == "meuse" else Y


def _columns(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    return frame[names].to_numpy(float)


def make_splits(table: Table, n: int, missing: float = 0.0, num_splits: int = 2) -> Iterator[tuple[int, Split]]:
    """Yield the splits with n training rows, seeded by the name of the table; none if fewer than 8 test rows would remain."""
    if len(table.X) < n + MIN_TEST_ROWS:
        return
    for number in range(num_splits if n <= MAX_ROWS_OF_ALL_SPLITS else (num_splits + 1) // 2):
        rng = np.random.default_rng([zlib.crc32(table.name.encode()), n, number])
        order = rng.permutation(len(table.X))
        train, test = order[:n], order[n : n + MAX_TEST_ROWS]
        yield number, Split(table.X[train], remove_outputs(table.Y[train], missing, rng), table.X[test], table.Y[test])


def remove_outputs(Y: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Replace a fraction of the entries of each output by NaN, at random."""
    Y, num_removed = Y.copy(), round(fraction * len(Y))
    for column in Y.T:
        column[rng.permutation(len(Y))[:num_removed]] = np.nan
    return Y


def _forrester(U: np.ndarray) -> np.ndarray:
    x = U[:, 0]
    return (6 * x - 2) ** 2 * np.sin(12 * x - 4)


def _branin(U: np.ndarray) -> np.ndarray:
    x, y = 15 * U[:, 0] - 5, 15 * U[:, 1]
    return (y - 5.1 * x**2 / (4 * np.pi**2) + 5 * x / np.pi - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x)


def _ishigami(U: np.ndarray) -> np.ndarray:
    x, y, z = np.pi * (2 * U.T - 1)
    return np.sin(x) + 7 * np.sin(y) ** 2 + 0.1 * z**4 * np.sin(x)


def _friedman(U: np.ndarray) -> np.ndarray:
    return 10 * np.sin(np.pi * U[:, 0] * U[:, 1]) + 20 * (U[:, 2] - 0.5) ** 2 + 10 * U[:, 3] + 5 * U[:, 4]


def _borehole(U: np.ndarray) -> np.ndarray:
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    rw, r, tu, hu, tl, hl, length, kw = (low + (high - low) * U).T
    ratio = np.log(r / rw)
    return 2 * np.pi * tu * (hu - hl) / (ratio * (1 + 2 * length * tu / (ratio * rw**2 * kw) + tu / tl))


def _oscillator(U: np.ndarray) -> np.ndarray:
    frequency, damping, time = 4 + 4 * U[:, 0], 0.5 + 1.5 * U[:, 1], U[:, 2]
    decay = np.exp(-damping * time)
    return np.stack([decay * np.cos(frequency * time), -decay * np.sin(frequency * time), damping * frequency], 1)


FUNCTIONS: dict[str, tuple[int, Callable]] = {
    "forrester": (1, _forrester),
    "branin": (2, _branin),
    "ishigami": (3, _ishigami),
    "oscillator": (3, _oscillator),
    "friedman": (10, _friedman),
    "borehole": (8, _borehole),
}
"""Number of inputs, uniform on the unit cube, and the function. Five of the ten inputs of "friedman" are irrelevant."""

NOISE_STD = 0.2
"""Noise of the noisy functions relative to the standard deviation of the function."""


@cache
def simulated_tables(num_rows: int = 600) -> tuple[Table, ...]:
    """Return the textbook functions, each without noise and with it."""
    tables = []
    for name, (d, function) in FUNCTIONS.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        X = rng.uniform(size=(num_rows, d))
        Y = function(X).reshape(num_rows, -1)
        noise = NOISE_STD * Y.std(0) * rng.standard_normal(Y.shape)
        tables += [Table(name, "functions", X, Y), Table(f"{name}_noisy", "functions", X, Y + noise)]
    return tuple(tables)
