"""What do the data say? Evidence and posteriors of Gaussian processes with operator-valued kernels.

`OperatorValuedGP` ties kernel, mean, noise and perhaps a feature map together; its `condition` gives a `Posterior`, whose
`predict` gives a `Prediction`. `Statistics` are what a feature map keeps of data that stream by.
"""

from ovkgp.inference.distributed import process_group
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.hyperparameters import hyperparameters
from ovkgp.inference.leave_one_out import LeaveOneOut
from ovkgp.inference.long_format import to_long, to_wide
from ovkgp.inference.noise_path import NoisePath, noise_path, rows_left_out
from ovkgp.inference.posterior import Posterior
from ovkgp.inference.prediction import Prediction
from ovkgp.inference.primal_dual import PrimalDual, primal_dual_residual
from ovkgp.inference.ridge_solvers import solve_ridge
from ovkgp.inference.statistics import Statistics

__all__ = [
    "FitReport",
    "FunctionDraws",
    "LeaveOneOut",
    "NoisePath",
    "OperatorValuedGP",
    "Posterior",
    "Prediction",
    "PrimalDual",
    "Statistics",
    "hyperparameters",
    "noise_path",
    "primal_dual_residual",
    "process_group",
    "rows_left_out",
    "solve_ridge",
    "to_long",
    "to_wide",
]
