"""How observations arise from the latent function: likelihoods of one kind, or one for each output.

`make_likelihood("student_t", num_outputs)` is the door; a `Likelihood` knows its expected log density under a Gaussian
(`expected`, `terms`) and the predictive mixture (`moments`, `cdf`, `quantile`), which `LikelihoodPrediction` shows.
"""

from __future__ import annotations

from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.likelihoods.classification import Bernoulli, Softmax
from ovkgp.inference.likelihoods.counts import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.factory import PerOutput, make_likelihood, register_likelihood_priors
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.location import Huber, StudentT
from ovkgp.inference.likelihoods.prediction import LikelihoodPrediction
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
