"""Priors as densities of the raw parameters: Σ log p(θ) + log |dθ / d raw|, what a sampler of raw parameters needs.

Most values are Gaussian in a function g of their raw parameter r (log softplus(r) where they are log-normal and positive,
r itself where they are normal), and then the density of r is N(g(r)) |g'(r)|: all such parameters are done at once, since a
sampler asks for this as often as for the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import LogNormalPrior, NormalPrior
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import logsigmoid, softplus

from ovkgp.inference.data_priors import get_variances
from ovkgp.inference.prior_sites import Site, follow, trained_sites

Term = Callable[[], Tensor]


class RawLogPrior:
    """Σ log p(θ) + log |dθ / d raw| of a module's priors, as a function to be called many times.

    Args:
        module: any module. Each prior must be on a value with one number for each number of one raw parameter, or be a
            `CovariancePrior`; that is checked once, and the priors are read once. Parameters that are not trained, and
            those without a prior, add nothing.

    Attributes:
        sites: the priors on trained parameters.

    Raises:
        OptionError: a prior is on a function that is not one-to-one, such as a whole output matrix of low rank, or a
            parameter has two priors.

    Cost: O(number of parameters) a call; differentiable twice.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gpytorch.priors import LogNormalPrior
        >>> from ovkgp.inference.priors import RawLogPrior
        >>> kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)).double()
        >>> density = RawLogPrior(kernel)
        >>> kernel.lengthscale = 1.0
        >>> round(density().item(), 6)  # log φ(0) + log (1 − 1/e)
        -1.377614
    """

    def __init__(self, module: torch.nn.Module):
        self.sites = trained_sites(module)
        positive, linear, self._terms = [], [], []
        for site in self.sites:
            if _is_linear(site):
                linear.append(site)
            elif _is_positive(site):
                positive.append(site)
            else:
                self._terms.append(_term(site))
        self._terms += [
            _gaussian(sites, curve) for sites, curve in ((positive, _logarithm), (linear, _itself)) if sites
        ]

    def __call__(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for term in self._terms:
            density = term()
            total = total.to(density.device) + density
        return total


def raw_log_prior(module: torch.nn.Module) -> Tensor:
    """The log-density of the raw parameters at their present values; see `RawLogPrior`, which is faster when called again.

    Args:
        module: any module.

    Cost: O(number of parameters).

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.priors import raw_log_prior, register_default_priors
        >>> kernel = RBFKernel().double()
        >>> register_default_priors(kernel, num_dims=1)
        >>> raw_log_prior(kernel).requires_grad
        True
    """
    return RawLogPrior(module)()


# --- many parameters at once ----------------------------------------------------------------------------------------------


def _is_linear(site: Site) -> bool:
    """Whether the value is normal and unconstrained, or a noise variance exp(2r) that is log-normal."""
    if getattr(site.prior, "_transform", None) is not None:
        return False
    if isinstance(site.prior, NormalPrior):
        return site.plain is not None and site.plain[1] is None
    return isinstance(site.prior, LogNormalPrior) and site.read is get_variances


def _is_positive(site: Site) -> bool:
    """Whether the value is log-normal, and softplus(r) + l of its parameter."""
    is_log_normal = isinstance(site.prior, LogNormalPrior) and site.prior._transform is None
    return is_log_normal and _transform(site) == "softplus"


def _gaussian(sites: list[Site], curve: Callable) -> Term:
    """log N(g(r) | loc, scale) + log |g'(r)| over all parameters r of some sites."""
    parameters = [parameter for site in sites for parameter in site.parameters.values()]
    slope = _spread([torch.tensor(2.0 if site.read is get_variances else 1.0) for site in sites], parameters)
    loc, scale = (_spread([getattr(site.prior, name) for site in sites], parameters) for name in ("loc", "scale"))
    lower = _spread([_lower(site) for site in sites], parameters)
    constant = float((slope / scale).log().sum()) - 0.5 * math.log(2 * math.pi) * scale.numel()

    def term() -> Tensor:
        raw = torch.cat([parameter.reshape(-1) for parameter in parameters])
        value, log_slope = curve(raw, lower)
        distance = (slope * value - loc) / scale
        return constant - 0.5 * distance.dot(distance) + log_slope

    return term


def _logarithm(raw: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """g = log(softplus(r) + l), and Σ log g'."""
    value = (softplus(raw) + lower).log()
    return value, (logsigmoid(raw) - value).sum()


def _itself(raw: Tensor, lower: Tensor) -> tuple[Tensor, float]:
    return raw, 0.0


def _lower(site: Site) -> Tensor:
    constraint = None if site.plain is None else site.plain[1]
    return torch.zeros(()) if constraint is None else constraint.lower_bound


def _spread(numbers: list[Tensor], parameters: list[Parameter]) -> Tensor:
    """One number for each entry of the parameters."""
    pairs = zip(numbers, parameters, strict=True)
    return torch.cat([number.detach().to(one.data).expand_as(one).reshape(-1) for number, one in pairs])


# --- one prior at a time --------------------------------------------------------------------------------------------------


def _term(site: Site) -> Term:
    if site.is_covariance:
        return lambda: _covariance_density(site)
    if site.plain is None or _transform(site) == "other" or getattr(site.prior, "_transform", None) is not None:
        return lambda: _general_density(site)
    return lambda: _plain_density(site)


def _covariance_density(site: Site) -> Tensor:
    chol, lower = site.read(site.module), site.module.lower
    total = site.prior.raw_log_prob(chol).sum()
    # what lies on and above the diagonal of a square `lower` is not read: a law of its own keeps the whole proper
    return total if lower.shape != chol.shape else total - 0.5 * lower.triu().square().sum()


def _plain_density(site: Site) -> Tensor:
    """Of a constrained value, whose slope is known."""
    parameter, constraint = site.plain
    value, kind = site.read(site.module), _transform(site)
    follow(site.prior, value.device)
    density = site.prior.log_prob(value).sum()
    if kind == "softplus":
        return density + logsigmoid(parameter).sum()
    if kind == "sigmoid":
        length = (constraint.upper_bound - constraint.lower_bound).expand_as(parameter)
        return density + (logsigmoid(parameter) + logsigmoid(-parameter) + length.log()).sum()
    return density


def _general_density(site: Site) -> Tensor:
    """Of any function of a parameter, entry by entry."""
    (parameter,) = site.parameters.values()
    with torch.enable_grad():
        value = site.read(site.module)
        transform = getattr(site.prior, "_transform", None)
        own = value if transform is None else transform(value)  # what GPyTorch's prior is then a law of
        (slopes,) = torch.autograd.grad(own.sum(), parameter, create_graph=True)
    follow(site.prior, value.device)
    return site.prior.log_prob(value).sum() + slopes.abs().log().sum()


def _transform(site: Site) -> str:
    """What makes the value of its parameter: "none", "softplus", "sigmoid" or "other"."""
    if site.plain is None:
        return "other"
    constraint = site.plain[1]
    if constraint is None or not constraint.enforced:
        return "none"
    if isinstance(constraint, GreaterThan):
        transform = constraint._transform
        return "softplus" if isinstance(transform, torch.nn.Softplus) and transform.beta == 1 else "other"
    return "sigmoid" if type(constraint) is Interval and constraint._transform is torch.sigmoid else "other"
