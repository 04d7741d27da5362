"""The densities of priors, of the values they are on and of the raw parameters behind them, and those for standardised data.

A prior is a density p(θ) of a constrained value θ. Training adds Σ log p(θ) to the evidence, as GPyTorch does; samplers move
in the raw parameters, whose density has the Jacobian as well: Σ log p(θ) + log |dθ / d raw|.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from gpytorch.module import Module
from torch import Tensor

from ovkgp.inference.data_priors import register_data_priors, register_noise_priors
from ovkgp.inference.prior_rules import visit
from ovkgp.inference.prior_sites import follow, prior_sites
from ovkgp.inference.prior_units import Registry, Units
from ovkgp.inference.raw_priors import RawLogPrior, raw_log_prior

__all__ = [
    "RawLogPrior",
    "log_prior",
    "raw_log_prior",
    "register_data_priors",
    "register_default_priors",
    "register_noise_prior",
]


def register_default_priors(kernel: Kernel, num_dims: int) -> None:
    """Give every trained parameter inside a kernel a prior for standardised inputs and outputs, in place.

    A prior that is there already is kept, and so is a matrix prior on a whole `FreeMatrix`. The outputscale of a curl- or
    divergence-free kernel, whose variance is outputscale / ℓ², has the prior of a unit variance times ℓ².

    Args:
        kernel: any kernel.
        num_dims: the number of input columns.

    Cost: O(number of parameters).

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.inference.priors import register_default_priors
        >>> kernel = ScaleKernel(RBFKernel(active_dims=(0, 2)))
        >>> register_default_priors(kernel, num_dims=5)
        >>> [name for name, *_ in kernel.named_priors()]
        ['outputscale_prior', 'base_kernel.lengthscale_prior']
        >>> round(kernel.base_kernel.lengthscale_prior.loc.item(), 4)  # √2 + ½ log 2
        1.7608
    """
    visit(kernel, Units.standard(num_dims), Registry(kernel))


def register_noise_prior(noise: Module) -> None:
    """Give a trained noise a LogNormal(log 0.05, 1.5) prior on each variance, for standardised outputs, in place.

    The correlations of a full one are LKJ(2).

    Args:
        noise: an `OutputNoise`.

    Cost: O(p).

    Example:
        >>> from ovkgp.inference.noise import OutputNoise
        >>> from ovkgp.inference.priors import log_prior, register_noise_prior
        >>> noise = OutputNoise("per_output", num_outputs=2)
        >>> register_noise_prior(noise)
        >>> log_prior(noise).requires_grad
        True
    """
    register_noise_priors(noise, torch.ones(1, dtype=torch.float64))


def log_prior(module: torch.nn.Module) -> Tensor:
    """Σ log p(θ) over all priors registered on a module and inside it, each once; 0 where there are none.

    The densities are of the constrained values, as in GPyTorch's marginal likelihoods.

    Args:
        module: any module.

    Cost: O(number of parameters).

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from gpytorch.priors import NormalPrior
        >>> from ovkgp.inference.priors import log_prior
        >>> kernel = RBFKernel(lengthscale_prior=NormalPrior(0.0, 1.0)).double()
        >>> kernel.lengthscale = 1.0
        >>> round(log_prior(kernel).item(), 6)
        -1.418939
    """
    total = torch.zeros((), dtype=torch.float64)
    for site in prior_sites(module):  # visits a shared module once, where `named_priors` counts it twice
        value = site.read(site.module)
        follow(site.prior, value.device)
        total = total.to(value.device) + site.prior.log_prob(value).sum()
    return total
