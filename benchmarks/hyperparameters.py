"""Posteriors of hyperparameters and variational training beside GPyTorch's, in one run and on one thread.

    python benchmarks/hyperparameters.py [--quick] [--only NAME] [--data FOLDER]

By name: `one`, NUTS over 3 hyperparameters at n = 30, and `icm`, over an ICM at n = 200, p = 4, in effective samples a
second beside GPyTorch's `pyro_sample_from_prior`; `features`, ORFF with p = 4 and D = 200 at n = 10⁵ and 10⁴ on every road
there is; `variational`, the time to come within 1 % of the final test log density on SARCOS beside GPyTorch's LMC SVGP,
where the folder of its file is given (or in OVKGP_DATA). Float64.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from hyperparameters_features import features
from hyperparameters_nuts import icm, one
from hyperparameters_variational import variational
from threadpoolctl import threadpool_limits

SECTIONS = {"one": one, "icm": icm, "features": features, "variational": variational}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    parser.add_argument("--data", default=os.environ.get("OVKGP_DATA"), help="the folder of sarcos/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's threads are not torch's
        for name in [options.only] if options.only else SECTIONS:
            start = time.perf_counter()
            SECTIONS[name](options.quick, **({"folder": options.data} if name == "variational" else {}))
            print(f"    ({name}: {time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
