"""Priors as plain functions of the values θ: log-normal, normal and uniform ones of one parameter, and `CovariancePrior`.

A log-normal prior of a variance exp(2s) is, as a density of the trained s, log N(2s | loc, scale) + log 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import LogNormalPrior, NormalPrior, UniformPrior
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import logsigmoid, softplus

from ovkgp.inference.training.covariance_prior import CovariancePrior
from ovkgp.inference.training.numpy_values import CholeskyOutputs, NoAnalyticForm, NumpyVector
from ovkgp.inference.training.prior_sites import Site, follow, get_variances, trained_sites

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
        >>> from ovkgp.inference.training.log_prior import RawLogPrior
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
        >>> from ovkgp.inference.training.log_prior import raw_log_prior, register_default_priors
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


LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class NormalTerms:
    """Σ log N(c x | loc, scale) + log c over entries of θ, with x = θ or, for a log-normal prior, x = log θ.

    Args:
        places: of the entries in θ, (m,).
        loc, scale: of their laws, (m,).
        is_log: which have a log-normal prior, (m,).
        factor: c, 2 where θ is half the logarithm of a variance with a log-normal prior, else 1, (m,).
    """

    def __init__(self, places: np.ndarray, loc: np.ndarray, scale: np.ndarray, is_log: np.ndarray, factor: np.ndarray):
        self.places, self.loc, self.scale, self.factor = places, loc, scale, factor
        self.is_log, self.any_log = is_log, bool(is_log.any())
        self.constant = float(np.log(factor / scale).sum()) - len(places) * LOG_ROOT_2_PI

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        value, total = theta[self.places], self.constant
        x, slope = value * self.factor, self.factor
        if self.any_log:
            logs = np.log(np.where(self.is_log, value, 1.0))
            x, slope = np.where(self.is_log, logs, x), np.where(self.is_log, 1 / value, slope)
            total -= float(logs.sum())
        scores = (x - self.loc) / self.scale
        by_value = -scores / self.scale * slope
        if self.any_log:
            by_value -= np.where(self.is_log, slope, 0.0)
        np.add.at(out, self.places, by_value)
        return total - 0.5 * float(scores @ scores)


class CovarianceTerms:
    """log p of a covariance L Lᵀ under a `CovariancePrior`, as a density of log L_ii and what is below.

    Args:
        prior: the prior.
        factor: where L is.
    """

    def __init__(self, prior: CovariancePrior, factor: CholeskyOutputs):
        p, self.factor = factor.num_outputs, factor
        self.loc, self.scale = (np.broadcast_to(v.cpu().numpy(), (p,)) for v in (prior.loc, prior.scale))
        rows = np.arange(p)
        # the coefficients of log s_i² and of log L_ii: those of the density and those of the Jacobian
        self.on_diagonal = 2 * (prior.concentration.item() - 1) + p + 1 - rows
        self.on_variances = -rows / 2 - self.on_diagonal / 2
        at_one = prior.log_prob(torch.eye(p, dtype=torch.float64)) + prior.log_jacobian(
            torch.eye(p, dtype=torch.float64)
        )
        self.constant = at_one.item() + 0.5 * float(np.square(self.loc / self.scale).sum())

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        L = self.factor.chol(theta)
        squares = np.square(L).sum(1)
        log_variances, log_diagonal = np.log(squares), np.log(L.diagonal())
        scores = (log_variances - self.loc) / self.scale
        by_variances = self.on_variances - scores / self.scale
        by_chol = (2 * by_variances / squares)[:, None] * L
        by_chol.flat[:: len(L) + 1] += self.on_diagonal / L.diagonal()
        self.factor.add(out, L, by_chol)
        return self.constant + float(
            self.on_variances @ log_variances + self.on_diagonal @ log_diagonal - 0.5 * scores @ scores
        )


def numpy_priors(module: torch.nn.Module, vector: NumpyVector) -> list:
    """The pieces of all priors on trained parameters of a module.

    Cost: O(number of parameters), once and at every call of a piece.

    Raises:
        NoAnalyticForm: a prior is neither normal, log-normal nor uniform, or not one of a parameter's value.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from gpytorch.priors import LogNormalPrior
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> from ovkgp.inference.training.numpy_values import NumpyVector
        >>> from ovkgp.inference.training.log_prior import numpy_priors
        >>> kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)).double()
        >>> (piece,) = numpy_priors(kernel, NumpyVector(ParameterVector(kernel)))
        >>> round(piece(np.array([1.0]), np.zeros(1)), 4)
        -0.9189
    """
    sites = trained_sites(module)
    terms = [CovarianceTerms(site.prior, _factor(site.module, vector)) for site in sites if site.is_covariance]
    uniform = [site for site in sites if type(site.prior) is UniformPrior]
    normal = [_normal(site, vector) for site in sites if not site.is_covariance and site not in uniform]
    terms += [Constant(_uniform(site)) for site in uniform]
    if normal:
        terms.append(NormalTerms(*(np.concatenate(column) for column in zip(*normal, strict=True))))
    return terms


class Constant:
    """The log-density of uniform priors.

    Args:
        value: the number.
    """

    def __init__(self, value: float):
        self.value = value

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        return self.value


def _uniform(site: Site) -> float:
    """log 1/(high − low) of all entries, where the parameter cannot leave the support."""
    low, high = (v.detach().double() for v in (site.prior.low, site.prior.high))
    bounds = site.bounds()
    if bool((bounds[0] < low).any() or (bounds[1] > high).any()):
        raise NoAnalyticForm(f"the prior {site.name}, from whose support its parameter can escape")
    return -float((high - low).log().expand(site.read(site.module).shape).sum())


def _factor(part: torch.nn.Module, vector: NumpyVector) -> CholeskyOutputs:
    return CholeskyOutputs(vector.reference(part.log_scale, None), vector.reference(part.lower, None))


def _normal(site: Site, vector: NumpyVector) -> tuple[np.ndarray, ...]:
    """The arguments of `NormalTerms` for one prior."""
    prior, (parameter,) = site.prior, site.parameters.values()
    if type(prior) not in (LogNormalPrior, NormalPrior) or getattr(prior, "_transform", None) is not None:
        raise NoAnalyticForm(f"the prior {site.name}")
    (entry,) = (entry for entry in vector.vector.entries if entry.parameter is parameter)
    is_log = type(prior) is LogNormalPrior
    is_variance = is_log and site.read is get_variances
    if not is_variance and site.plain is None:
        raise NoAnalyticForm(f"the prior {site.name}, of a function of {entry.name}")
    shape = parameter.shape
    loc, scale = (v.detach().double().expand(shape).reshape(-1).cpu().numpy() for v in (prior.loc, prior.scale))
    places, size = np.arange(entry.piece.start, entry.piece.stop), parameter.numel()
    return places, loc, scale, np.full(size, is_log and not is_variance), np.full(size, 2.0 if is_variance else 1.0)
