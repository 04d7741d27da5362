"""Posteriors of hyperparameters and variational training compared with GPyTorch, in one run and on one thread.

    python benchmarks/hyperparameters.py [--quick] [--only NAME] [--data FOLDER]

By name: `one`, NUTS over 3 hyperparameters at n = 30, `three`, over 13 of an ICM at n = 100, p = 3, and `icm`, over an ICM at
n = 200, p = 4, in effective samples per CPU second compared with GPyTorch's `pyro_sample_from_prior`, with NumPyro if OVKGP_NUMPYRO
names a Python that has it, and with nutpie if it is installed; `features`, ORFF with p = 4 and D = 200 at n = 10⁵ and 10⁴ with every
method; `variational`, the time to come within 1 % of the final test log density on SARCOS compared with GPyTorch's LMC SVGP,
if the folder of its file is given (or in OVKGP_DATA). Float64.
"""

from __future__ import annotations

from hyperparameters_features import features
from hyperparameters_nuts import icm, one, three
from hyperparameters_variational import variational
from timing import run_sections

SECTIONS = {"one": one, "three": three, "icm": icm, "features": features, "variational": variational}


if __name__ == "__main__":
    run_sections(SECTIONS, __doc__.splitlines()[0], "sarcos/", with_data="variational")
