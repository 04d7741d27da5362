"""The ridge experiments of the papers, their published results next to ours, and their claims.

    python benchmarks/ridge.py [--quick | --full] [--only NAME] [--data FOLDER] [--repeats N] [--out FOLDER]

By name: `bt82`, a curl-free field in five dimensions; `bt83`, quadratic tasks; `ba12`, fields in the plane; `ba13`, outputs
of rank one under correlated noise; `bt81`, digits; `bt84`, SARCOS with one torque per input, if the folder of its file is
given (or in OVKGP_DATA); `moons`, points without labels (with --out a figure); `speed`, seconds compared with scikit-learn.
Default sizes take some ten minutes, --quick two, --full, the papers' sizes, some hours. One thread, float64.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

from claims import run_experiments
from ridge_classes import bt81, moons
from ridge_fields import ba12, bt82
from ridge_outputs import ba13, bt83
from ridge_sarcos import bt84
from ridge_speed import speed

EXPERIMENTS = {
    "bt82": bt82,
    "bt83": bt83,
    "ba12": ba12,
    "ba13": ba13,
    "bt81": bt81,
    "bt84": bt84,
    "moons": moons,
    "speed": speed,
}

QUICK = {
    "bt82": {
        "rows": (100, 316, 1000),
        "num_frequencies": 200,
        "exact_rows": 100,
        "frequencies": (50, 300),
        "fixed_rows": 250,
    },
    "bt83": {"num_rows": 5000, "exact_rows": 599, "num_frequencies": 300, "seeds": (0, 1, 2), "test_rows": 2000},
    "ba12": {"num_rows": 200, "frequencies": (10, 30, 100, 300), "clock_rows": (100, 1000, 10_000)},
    "ba13": {"rows": (100, 1000), "num_frequencies": 200, "seeds": (0, 1)},
    "bt81": {"num_rows": 500, "frequencies": (10, 100, 300), "clock_rows": (500, 1000, 2000), "clock_frequencies": 100},
    "bt84": {"rows": (50, 200), "repeats": 8},
    "moons": {"num_rows": 100, "draws": 3},
    "speed": {"num_rows": 500},
}

FULL = {
    "bt82": {
        "rows": (100, 316, 1000, 3162, 10_000, 31_623, 100_000),
        "beyond": (),
        "exact_rows": 1000,
        "fixed_rows": 1000,
    },
    "bt83": {"seeds_rows": 100_000, "test_rows": 100_000},
    "ba13": {"rows": (100, 1000, 10_000, 100_000), "exact_rows": 10_000, "num_frequencies": 1000, "seeds": (0,)},
    "bt81": {"clock_rows": (500, 1000, 2000, 4000, 8000, 12_000), "clock_frequencies": 1000},
    "bt84": {"rows": (50, 100, 150, 200, 400), "repeats": 80},
    "moons": {"num_rows": 500},
}
"""Options that differ from the defaults of the experiments."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    sizes.add_argument("--full", action="store_true", help="the sizes of the papers")
    parser.add_argument("--only", choices=EXPERIMENTS, help="one experiment")
    parser.add_argument("--data", default=os.environ.get("OVKGP_DATA"), help="the folder of sarcos/")
    parser.add_argument("--repeats", type=int, help="of bt84 (default 10; the thesis has 80)")
    parser.add_argument("--out", help="folder for figures")
    options = parser.parse_args()
    names = [options.only] if options.only else EXPERIMENTS
    run_experiments((name, partial(EXPERIMENTS[name], **sizes_of(name, options))) for name in names)


def sizes_of(name: str, options: argparse.Namespace) -> dict:
    """Return the requested sizes of one experiment."""
    sizes = dict((QUICK if options.quick else FULL if options.full else {}).get(name, {}))
    if name == "bt84":
        sizes |= {"folder": options.data} | ({"repeats": options.repeats} if options.repeats else {})
    if name == "moons":
        sizes["out"] = options.out
    return sizes


if __name__ == "__main__":
    main()
