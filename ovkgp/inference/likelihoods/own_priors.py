"""Weakly informative priors on a likelihood's own parameters, in the units of the data.

scale        LogNormal(½ log 0.05 + log s_a, 0.75): its square has the prior of a noise variance
df − 2       Gamma(2, 0.1), which favours heavy tails a little (Juárez and Steel 2010) and keeps the variance finite
dispersion   LogNormal(−1, 1.5)
"""

from __future__ import annotations

import torch
from gpytorch.priors import GammaPrior
from torch import Tensor

from ovkgp.inference.data_priors import NOISE, register_noise_priors
from ovkgp.inference.likelihoods.base import Likelihood, require_outputs
from ovkgp.inference.likelihoods.counts import NegativeBinomial
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.location import LocationLikelihood, column_spread
from ovkgp.inference.likelihoods.per_output import PerOutput
from ovkgp.inference.likelihoods.student_t import LEAST_DF, StudentT
from ovkgp.inference.prior_units import Registry, log_normal

EXCESS_DF = (2.0, 0.1)
"""Shape and rate of the Gamma law of df − 2."""
DISPERSION = (-1.0, 1.5)
"""Location and scale of the logarithm of a dispersion."""


def register_likelihood_priors(likelihood: Likelihood, Y: Tensor | None = None) -> None:
    """Give every trained parameter of a likelihood that has no prior one, in place.

    Args:
        likelihood: any.
        Y: outputs (n, p) that give the units, NaN where missing; without them those of standardised outputs.

    Cost: O(n p).

    Example:
        >>> from ovkgp.inference.likelihoods import StudentT, register_likelihood_priors
        >>> likelihood = StudentT(num_outputs=2)
        >>> register_likelihood_priors(likelihood)
        >>> [name for name, *_ in likelihood.named_priors()]
        ['scale_prior', 'df_prior']
    """
    if isinstance(likelihood, PerOutput):
        for j, one in enumerate(likelihood.likelihoods):
            register_likelihood_priors(one, None if Y is None else Y[:, [j]])
        return
    spread = torch.ones(1, dtype=torch.float64)
    if Y is not None and bool(likelihood.is_real.all()):
        robust = not isinstance(likelihood, Gaussian)
        spread = column_spread(require_outputs(Y, likelihood.num_outputs), robust).detach().cpu()
    _register(likelihood, spread)


def _register(likelihood: Likelihood, spread: Tensor) -> None:
    registry, trained = Registry(likelihood), dict(likelihood.named_parameters(recurse=False))
    if isinstance(likelihood, Gaussian) and likelihood.noise_model.is_trained:
        register_noise_priors(likelihood.noise_model, spread)
    if isinstance(likelihood, LocationLikelihood) and "raw_scale" in trained:
        registry.add(likelihood, "raw_scale", log_normal(NOISE[0] / 2 + spread.log(), NOISE[1] / 2))
    if isinstance(likelihood, StudentT) and "raw_df" in trained:
        prior = GammaPrior(*torch.tensor(EXCESS_DF, dtype=torch.float64), validate_args=False)
        registry.add_with(likelihood, "df_prior", likelihood.raw_df, prior, get_excess_df, set_excess_df)
    if isinstance(likelihood, NegativeBinomial) and "raw_dispersion" in trained:
        registry.add(likelihood, "raw_dispersion", log_normal(*DISPERSION))


# Closures at the top level of the module: a lambda could not be pickled.


def get_excess_df(likelihood: StudentT) -> Tensor:
    return likelihood.df - LEAST_DF


def set_excess_df(likelihood: StudentT, value: Tensor) -> None:
    likelihood.df = value + LEAST_DF
