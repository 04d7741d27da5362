"""How observations arise from the latent function: likelihoods of one kind, or one for each output.

`make_likelihood("student_t", num_outputs)` is the door; a `Likelihood` knows its expected log density under a Gaussian
(`expected`, `terms`) and the predictive mixture (`moments`, `cdf`, `quantile`), which `LikelihoodPrediction` shows.
"""

from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.likelihoods.bernoulli import Bernoulli
from ovkgp.inference.likelihoods.counts import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.huber import Huber
from ovkgp.inference.likelihoods.making import make_likelihood
from ovkgp.inference.likelihoods.own_priors import register_likelihood_priors
from ovkgp.inference.likelihoods.per_output import PerOutput
from ovkgp.inference.likelihoods.prediction import LikelihoodPrediction
from ovkgp.inference.likelihoods.softmax import Softmax
from ovkgp.inference.likelihoods.student_t import StudentT
from ovkgp.inference.likelihoods.two_sided import AsymmetricLaplace, Laplace

__all__ = [
    "AsymmetricLaplace",
    "Bernoulli",
    "Gaussian",
    "Huber",
    "Laplace",
    "Likelihood",
    "LikelihoodPrediction",
    "NegativeBinomial",
    "PerOutput",
    "Poisson",
    "Softmax",
    "StudentT",
    "make_likelihood",
    "register_likelihood_priors",
]
