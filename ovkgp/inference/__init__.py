"""What do the data say? Evidence and posteriors of Gaussian processes with operator-valued kernels.

`OperatorValuedGP` ties kernel, mean, noise and perhaps a feature map together; its `condition` gives a `Posterior`, whose
`predict` gives a `Prediction`. `Statistics` are what a feature map keeps of data that stream by.
"""

from ovkgp.inference.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.data_priors import register_data_priors
from ovkgp.inference.distributed import process_group
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.hyperparameters import hyperparameters
from ovkgp.inference.leave_one_out import LeaveOneOut
from ovkgp.inference.likelihoods import LikelihoodPrediction, make_likelihood
from ovkgp.inference.long_format import to_long, to_wide
from ovkgp.inference.noise_path import NoisePath, noise_path, rows_left_out
from ovkgp.inference.posterior import Posterior
from ovkgp.inference.prediction import Prediction
from ovkgp.inference.primal_dual import PrimalDual, primal_dual_residual
from ovkgp.inference.prior_draws import draw_prior, prior_predictive
from ovkgp.inference.ridge_solvers import solve_ridge
from ovkgp.inference.sampling import sample_hyperparameters
from ovkgp.inference.statistics import Statistics
from ovkgp.inference.variational_gp import VariationalGP

__all__ = [
    "CovariancePrior",
    "FitReport",
    "FunctionDraws",
    "LeaveOneOut",
    "LikelihoodPrediction",
    "NoisePath",
    "OperatorValuedGP",
    "Posterior",
    "Prediction",
    "PrimalDual",
    "Statistics",
    "VariationalGP",
    "draw_prior",
    "hyperparameters",
    "make_likelihood",
    "noise_path",
    "primal_dual_residual",
    "prior_predictive",
    "process_group",
    "register_covariance_prior",
    "register_data_priors",
    "rows_left_out",
    "sample_hyperparameters",
    "solve_ridge",
    "to_long",
    "to_wide",
]
