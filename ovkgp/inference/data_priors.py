"""Weakly informative priors in the units of the data, for every trained parameter of a model that has none.

Kernels have those of `prior_rules`. With outputs of mean m_a and standard deviation s_a, and columns of mean c_j and scale s_j:

    noise      LogNormal(log 0.05 s_a², 1.5), with LKJ(2) correlations where it is full
    constant   Normal(m_a, 2 s_a)           slopes    Normal(0, 2 s_a / s_j), the constant then wider by Σ_j (c_j / s_j)²
"""

from __future__ import annotations

import math

import torch
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference.covariance_prior import CovariancePrior
from ovkgp.inference.data_scales import output_covariance
from ovkgp.inference.means import PolynomialMean, WrappedMean
from ovkgp.inference.noise import OutputNoise
from ovkgp.inference.prior_rules import CONCENTRATION, other_priors, score_priors, visit
from ovkgp.inference.prior_units import Registry, Units, log_normal, normal

NOISE = (math.log(0.05), 1.5)
"""Of the logarithm of a noise variance, relative to the variance of the output."""
MEAN_WIDTH = 2.0
"""The standard deviation of the mean's constant, relative to that of the output."""


def register_data_priors(gp, X, Y) -> None:
    """Give every trained parameter of a model that has no prior a proper, weakly informative one, in place.

    A prior that is there already is kept, whoever registered it; the parameters of a likelihood other than its noise are
    left to `register_likelihood_priors`.

    Args:
        gp: a model with `kernel`, `mean`, `features` and `noise_model`.
        X: inputs (n, d).
        Y: outputs (n, p), NaN where missing; they give the units and nothing else.

    Cost: O(n·(d + p²)).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.data_priors import register_data_priors
        >>> from ovkgp.kernels import DecomposableKernel, FullMatrix
        >>> gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(2)))
        >>> X = torch.linspace(0, 50, 20, dtype=torch.float64).unsqueeze(-1)
        >>> register_data_priors(gp, X, torch.cat([X.sin(), 100 * X.cos()], -1))
        >>> [name.rpartition(".")[2] for name, *_ in gp.named_priors()]
        ['lengthscale_prior', 'covariance_prior', 'constant_prior', 'variances_prior']
    """
    data = gp.observe(X, Y).double()
    centre, covariance = _outputs(gp, data.Y)
    units, registry = Units.of(data.X, covariance), Registry(gp)
    visit(gp.kernel, units, registry)
    if isinstance(gp.features, ORFF):
        score_priors(gp.features, registry)
    _mean_priors(gp.mean, centre, units, registry)
    if isinstance(noise := getattr(gp, "noise_model", None), OutputNoise):
        _noise_prior(noise, units.deviations, registry)
    for part in gp.children():  # whatever else is trained, such as a feature map of the user's own
        if isinstance(part, Module) and part is not getattr(gp, "likelihood", None):
            other_priors(part, registry)


def register_noise_priors(noise: OutputNoise, deviations: Tensor) -> None:
    """Give a trained noise a prior, in place, for outputs with these standard deviations, (p,) or (1,)."""
    _noise_prior(noise, deviations, Registry(noise))


def _outputs(gp, Y: Tensor) -> tuple[Tensor, Tensor]:
    """The level (p,) and the covariance (p, p) that the latent functions are to explain."""
    centre, covariance = Y.nanmean(0).cpu(), output_covariance(Y)
    likelihood = getattr(gp, "likelihood", None)
    if likelihood is None or bool(likelihood.is_real.all()):
        return centre, covariance
    real = likelihood.is_real.cpu()  # counts and classes have latent functions of order one
    both = torch.outer(real, real)
    centre = torch.where(real, centre, likelihood.latent_start(Y).detach().to("cpu", torch.float64))
    return centre, torch.where(both, covariance, torch.eye(len(real), dtype=torch.float64))


def _noise_prior(noise: OutputNoise, deviations: Tensor, registry: Registry) -> None:
    loc = NOISE[0] + 2 * deviations.log()
    if noise.kind == "full":
        registry.add_covariance(noise, CovariancePrior(loc if len(loc) > 1 else loc[0], NOISE[1], CONCENTRATION))
        return
    loc = NOISE[0] + deviations.square().mean().log() if noise.kind == "shared" else loc
    prior = log_normal(loc, NOISE[1])
    registry.add_with(noise, "variances_prior", noise.log_scale, prior, get_variances, set_variances)


def _mean_priors(mean, centre: Tensor, units: Units, registry: Registry) -> None:
    wide = MEAN_WIDTH * units.deviations
    slopes = wide / units.columns.unsqueeze(-1)
    # the constant is the value at x = 0, and the slopes move it
    tilted = wide * (1 + (units.centre / units.columns).square().sum()).sqrt()
    if isinstance(mean, PolynomialMean) and mean.degree >= 0:
        registry.add(mean, "constant", normal(centre, wide if mean.degree == 0 else tilted))
        if mean.degree == 1:
            registry.add(mean, "slopes", normal(0.0, slopes))
    inner = mean.mean if isinstance(mean, WrappedMean) else None
    whole = (centre.mean(), MEAN_WIDTH * (units.variance + centre.var(correction=0)).sqrt())  # one for all outputs
    if isinstance(inner, ConstantMean):
        registry.add(inner, "raw_constant", normal(*whole))
    if isinstance(inner, LinearMean):
        registry.add(inner, "weights", normal(0.0, whole[1] / units.columns.unsqueeze(-1)))
        if inner.bias is not None:
            registry.add(inner, "bias", normal(whole[0], whole[1] * tilted[0] / wide[0]))
    other_priors(mean, registry, units.variance.sqrt())


def get_variances(noise: OutputNoise) -> Tensor:
    return noise.variances


@torch.no_grad()
def set_variances(noise: OutputNoise, value: Tensor) -> None:
    noise.log_scale.copy_(value.to(noise.log_scale).log() / 2)
