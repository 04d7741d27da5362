"""Evidence and posteriors of Gaussian processes with operator-valued kernels.

`OperatorValuedGP` combines kernel, mean, noise and an optional feature map; its `condition` returns a `Posterior`,
whose `predict` returns a `Prediction`. `Statistics` summarize streamed data for a feature map.
"""

from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.likelihoods import LikelihoodPrediction, make_likelihood
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.long_format import to_long, to_wide
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut
from ovkgp.inference.posteriors.posterior import FunctionDraws, Posterior
from ovkgp.inference.posteriors.prediction import Prediction
from ovkgp.inference.ridge.noise_path import NoisePath, leave_rows_out, noise_path
from ovkgp.inference.ridge.solvers import PrimalDual, primal_dual_residual, solve_ridge
from ovkgp.inference.sampling.prior_predictive import draw_prior, prior_predictive
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.statistics.distributed import process_group
from ovkgp.inference.statistics.statistics import Statistics
from ovkgp.inference.training.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.training.initialization import register_data_priors
from ovkgp.inference.variational.gp import VariationalGP

__all__ = [
    "CovariancePrior",
    "FitReport",
    "FunctionDraws",
    "LeaveGroupOut",
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
    "leave_rows_out",
    "make_likelihood",
    "noise_path",
    "primal_dual_residual",
    "prior_predictive",
    "process_group",
    "register_covariance_prior",
    "register_data_priors",
    "sample_hyperparameters",
    "solve_ridge",
    "to_long",
    "to_wide",
]
