"""Likelihoods p(y | f): the distribution of the observations given the latent function.

`make_likelihood("student_t", num_outputs)` makes one by its name. A `Likelihood` computes its expected log density
under a Gaussian f (`expected`, `terms`) and the predictive distribution (`moments`, `cdf`, `quantile`) of a
`LikelihoodPrediction`.
"""

from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.likelihoods.classification import Bernoulli, Softmax
from ovkgp.inference.likelihoods.counts import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.factory import make_likelihood, register_likelihood_priors
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.location import Huber, StudentT
from ovkgp.inference.likelihoods.log_cosh import LogCosh
from ovkgp.inference.likelihoods.per_output import PerOutput
from ovkgp.inference.likelihoods.piecewise import AsymmetricHuber, EpsilonInsensitive
from ovkgp.inference.likelihoods.prediction import LikelihoodPrediction
from ovkgp.inference.likelihoods.two_sided import AsymmetricLaplace, Laplace

__all__ = [
    "AsymmetricHuber",
    "AsymmetricLaplace",
    "Bernoulli",
    "EpsilonInsensitive",
    "Gaussian",
    "Huber",
    "Laplace",
    "Likelihood",
    "LikelihoodPrediction",
    "LogCosh",
    "NegativeBinomial",
    "PerOutput",
    "Poisson",
    "Softmax",
    "StudentT",
    "make_likelihood",
    "register_likelihood_priors",
]
