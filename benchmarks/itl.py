"""Learning a continuum of tasks: the experiments of the papers, their published results next to ours, and their claims.

    python benchmarks/itl.py [--quick] [--only NAME] [--data FOLDER] [--splits N] [--out FOLDER]

By name: `lt134`, quantiles of the sine toy; `lt136`, the width of a smoothed loss; `lt137`, the number of levels; `lt135`, the table of quantile
regression on twenty data sets, if their folder is given (or in OVKGP_DATA); `quantile_tables`, `quantile_sines` and `quantile_rows`, quantiles without
options on these tables, on sines of any frequency and with many rows; `lt139`, costs of errors; `lt141` and `bt105`, level sets; `lt142`,
`lt144` and `lt145`, style transfer, its rank, and missing faces; `speed`, seconds compared with other implementations. Default sizes take an hour or two, most of it
`lt135`; --quick, half an hour. --out writes figures. One thread, float64.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

from claims import run_experiments
from itl_classes import lt139
from itl_defaults import quantile_rows, quantile_sines, quantile_tables
from itl_landmarks import lt142, lt144, lt145
from itl_levels import bt105, lt141
from itl_speed import speed
from itl_tables import lt135
from itl_toys import lt134, lt136, lt137

EXPERIMENTS = {
    "lt134": lt134,
    "lt136": lt136,
    "lt137": lt137,
    "lt135": lt135,
    "quantile_tables": quantile_tables,
    "quantile_sines": quantile_sines,
    "quantile_rows": quantile_rows,
    "lt139": lt139,
    "lt141": lt141,
    "bt105": bt105,
    "lt142": lt142,
    "lt144": lt144,
    "lt145": lt145,
    "speed": speed,
}
FIGURES = ("lt134", "lt136", "lt137", "lt141", "bt105")
"""Experiments with figures."""

QUICK = {
    "lt135": {"splits": 5},
    "quantile_sines": {"settings": 10},
    "quantile_rows": {"sizes": (2000, 20_000)},
    "lt139": {"repeats": 2},
    "lt141": {"repeats": 3},
    "lt142": {"repeats": 2},
    "lt144": {"repeats": 1},
    "lt145": {"repeats": 2, "masks": 1},
    "speed": {"sizes": ((200, 15, 40),), "frequencies": (200,)},
}
"""Options that differ from the defaults of the experiments."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    parser.add_argument("--only", choices=EXPERIMENTS, help="one experiment")
    parser.add_argument("--data", default=os.environ.get("OVKGP_DATA"), help="the folder of quantile/")
    parser.add_argument("--splits", type=int, help="of lt135 (default 20, as in the thesis; 5 with --quick)")
    parser.add_argument("--out", help="folder for figures")
    options = parser.parse_args()
    names = [options.only] if options.only else EXPERIMENTS
    run_experiments((name, partial(EXPERIMENTS[name], **sizes_of(name, options))) for name in names)


def sizes_of(name: str, options: argparse.Namespace) -> dict:
    """Return the requested sizes of one experiment."""
    sizes = dict(QUICK.get(name, {})) if options.quick else {}
    if name == "lt135":
        sizes |= {"folder": options.data} | ({"splits": options.splits} if options.splits else {})
    if name == "quantile_tables":
        sizes["folder"] = options.data
    if name in FIGURES:
        sizes["out"] = options.out
    return sizes


if __name__ == "__main__":
    main()
