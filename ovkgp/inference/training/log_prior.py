"""Log density of hyperparameters under their priors, with torch (`LogPrior`) and with NumPy (`make_prior_terms`).

A prior is a density p(θ) of a constrained value. Training maximizes Σ log p(θ), as GPyTorch does. Samplers need the density
of the raw parameters, Σ log p(θ) + log |dθ / d raw| (`jacobian`): a log-normal prior of a variance exp(2s) is, as a density of
the trained s, log N(2s | loc, scale) + log 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import LogNormalPrior, NormalPrior, UniformPrior
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import logsigmoid, softplus

from ovkgp.inference.training.covariance_prior import CovariancePrior
from ovkgp.inference.training.numpy_values import CholeskyOutputs, NoAnalyticForm, NumpyVector
from ovkgp.inference.training.prior_sites import PriorSite, get_variances, move_prior, prior_sites, trained_sites

LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)

Term = Callable[[], Tensor]


class LogPrior:
    """Σ log p(θ) of the priors on a module and inside it, to be called many times; 0 if there are none.

    With `jacobian` it is the density of the raw parameters, Σ log p(θ) + log |dθ / d raw|, differentiable twice. Each prior on a
    trained parameter must then be on a one-to-one function of one raw parameter, or be a `CovariancePrior`; otherwise
    `OptionError` is raised. Parameters without a prior add nothing. Complexity: O(number of parameters) per call.
    """

    def __init__(self, module: torch.nn.Module, jacobian: bool = False):
        if not jacobian:
            self._terms = [partial(_value_density, site) for site in prior_sites(module)]
            return
        positive, linear, self._terms = [], [], []
        for site in trained_sites(module):
            if _is_linear(site):
                linear.append(site)
            elif _is_positive(site):
                positive.append(site)
            else:
                self._terms.append(_make_term(site))
        self._terms += [
            _make_gaussian_term(sites, curve)
            for sites, curve in ((positive, _log_softplus), (linear, _identity))
            if sites
        ]

    def __call__(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for term in self._terms:
            density = term()
            total = total.to(density.device) + density
        return total


def _value_density(site: PriorSite) -> Tensor:
    """Return log p(θ) of a constrained value."""
    value = site.read(site.module)
    move_prior(site.prior, value.device)
    return site.prior.log_prob(value).sum()


def _is_linear(site: PriorSite) -> bool:
    """Return whether the value is normal and unconstrained, or a noise variance exp(2r) that is log-normal."""
    if getattr(site.prior, "_transform", None) is not None:
        return False
    if isinstance(site.prior, NormalPrior):
        return site.constrained_parameter is not None and site.constrained_parameter[1] is None
    return isinstance(site.prior, LogNormalPrior) and site.read is get_variances


def _is_positive(site: PriorSite) -> bool:
    """Return whether the value is log-normal, and softplus(r) + l of its parameter."""
    is_log_normal = isinstance(site.prior, LogNormalPrior) and site.prior._transform is None
    return is_log_normal and _transform_name(site) == "softplus"


def _make_gaussian_term(sites: list[PriorSite], curve: Callable) -> Term:
    """Return log N(g(r) | loc, scale) + log |g'(r)| over all parameters r of some sites, as a function."""
    parameters = [parameter for site in sites for parameter in site.parameters.values()]
    factor = _expand([torch.tensor(2.0 if site.read is get_variances else 1.0) for site in sites], parameters)
    loc, scale = (_expand([getattr(site.prior, name) for site in sites], parameters) for name in ("loc", "scale"))
    lower = _expand([_lower_bound(site) for site in sites], parameters)
    constant = float((factor / scale).log().sum()) - 0.5 * math.log(2 * math.pi) * scale.numel()

    def term() -> Tensor:
        raw = torch.cat([parameter.reshape(-1) for parameter in parameters])
        value, log_slope = curve(raw, lower)
        distance = (factor * value - loc) / scale
        return constant - 0.5 * distance.dot(distance) + log_slope

    return term


def _log_softplus(raw: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """Return g = log(softplus(r) + l), and Σ log g'."""
    value = (softplus(raw) + lower).log()
    return value, (logsigmoid(raw) - value).sum()


def _identity(raw: Tensor, lower: Tensor) -> tuple[Tensor, float]:
    return raw, 0.0


def _lower_bound(site: PriorSite) -> Tensor:
    constraint = None if site.constrained_parameter is None else site.constrained_parameter[1]
    return torch.zeros(()) if constraint is None else constraint.lower_bound


def _expand(numbers: list[Tensor], parameters: list[Parameter]) -> Tensor:
    """Return one number for each entry of the parameters."""
    pairs = zip(numbers, parameters, strict=True)
    return torch.cat([number.detach().to(one.data).expand_as(one).reshape(-1) for number, one in pairs])


def _make_term(site: PriorSite) -> Term:
    if site.is_covariance:
        return lambda: _covariance_density(site)
    if (
        site.constrained_parameter is None
        or _transform_name(site) == "other"
        or getattr(site.prior, "_transform", None) is not None
    ):
        return lambda: _general_density(site)
    return lambda: _constrained_density(site)


def _covariance_density(site: PriorSite) -> Tensor:
    chol, lower = site.read(site.module), site.module.lower
    total = site.prior.raw_log_prob(chol).sum()
    # entries on and above the diagonal of a square `lower` are not read: a standard normal keeps the density proper
    return total if lower.shape != chol.shape else total - 0.5 * lower.triu().square().sum()


def _constrained_density(site: PriorSite) -> Tensor:
    """Return the density of a constrained value whose slope is known."""
    parameter, constraint = site.constrained_parameter
    density, kind = _value_density(site), _transform_name(site)
    if kind == "softplus":
        return density + logsigmoid(parameter).sum()
    if kind == "sigmoid":
        length = (constraint.upper_bound - constraint.lower_bound).expand_as(parameter)
        return density + (logsigmoid(parameter) + logsigmoid(-parameter) + length.log()).sum()
    return density


def _general_density(site: PriorSite) -> Tensor:
    """Return the density of any elementwise function of a parameter."""
    (parameter,) = site.parameters.values()
    with torch.enable_grad():
        value = site.read(site.module)
        transform = getattr(site.prior, "_transform", None)
        argument = value if transform is None else transform(value)  # GPyTorch's prior is a density of this
        (slopes,) = torch.autograd.grad(argument.sum(), parameter, create_graph=True)
    move_prior(site.prior, value.device)
    return site.prior.log_prob(value).sum() + slopes.abs().log().sum()


def _transform_name(site: PriorSite) -> str:
    """Return the transform from parameter to value: "none", "softplus", "sigmoid" or "other"."""
    if site.constrained_parameter is None:
        return "other"
    constraint = site.constrained_parameter[1]
    if constraint is None or not constraint.enforced:
        return "none"
    if isinstance(constraint, GreaterThan):
        transform = constraint._transform
        return "softplus" if isinstance(transform, torch.nn.Softplus) and transform.beta == 1 else "other"
    return "sigmoid" if type(constraint) is Interval and constraint._transform is torch.sigmoid else "other"


class NormalPriorTerms:
    """Σ log N(x | loc, scale) over entries of θ, with x = θ, x = log θ or x = 2θ; minus x if the density is that of e^x.

    All arguments are (m,): positions of the entries in θ, location and scale, whether x = log θ, the factor c of x = cθ otherwise,
    and whether the prior is a density of e^x.
    """

    def __init__(self, indices: np.ndarray, loc: np.ndarray, scale: np.ndarray, is_log, factor, is_of_exponential):
        self.indices, self.loc, self.scale, self.factor = indices, loc, scale, factor
        self.is_log, self.any_log = is_log, bool(is_log.any())
        self.shift = is_of_exponential.astype(np.float64)
        log_factors = np.where(is_of_exponential, 0.0, np.log(factor))
        self.constant = float((log_factors - np.log(scale)).sum()) - len(indices) * LOG_ROOT_2_PI

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        value = theta[self.indices]
        x, slope = value * self.factor, self.factor
        if self.any_log:
            logs = np.log(np.where(self.is_log, value, 1.0))
            x, slope = np.where(self.is_log, logs, x), np.where(self.is_log, 1 / value, slope)
        scores = (x - self.loc) / self.scale
        np.add.at(out, self.indices, -(scores / self.scale + self.shift) * slope)
        return self.constant - float(self.shift @ x) - 0.5 * float(scores @ scores)


class CovariancePriorTerms:
    """Log density of a covariance L Lᵀ under a `CovariancePrior`; with `jacobian`, of log L_ii and the entries below."""

    def __init__(self, prior: CovariancePrior, factor: CholeskyOutputs, jacobian: bool):
        p, self.factor = factor.num_outputs, factor
        self.loc, self.scale = (np.broadcast_to(v.cpu().numpy(), (p,)) for v in (prior.loc, prior.scale))
        rows, eye = np.arange(p), torch.eye(p, dtype=torch.float64)
        # the coefficients of log s_i² and of log L_ii
        self.on_diagonal = 2 * (prior.concentration.item() - 1) + (p + 1 - rows if jacobian else np.zeros(p))
        self.on_variances = (-rows / 2 if jacobian else -1.0) - self.on_diagonal / 2
        at_one = prior.raw_log_prob(eye) if jacobian else prior.log_prob(eye)
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


def make_prior_terms(module: torch.nn.Module, vector: NumpyVector, jacobian: bool = True) -> list:
    """Return the NumPy terms of all priors on trained parameters of a module, as for `LogPrior`.

    Raises `NoAnalyticForm` if a prior is neither normal, log-normal nor uniform, or not on a parameter's value.
    """
    sites = trained_sites(module)
    fixed = [] if jacobian else [site for site in prior_sites(module) if not site.parameters]
    terms = [
        CovariancePriorTerms(site.prior, CholeskyOutputs.of(site.module, vector), jacobian)
        for site in sites
        if site.is_covariance
    ]
    uniform = [site for site in sites if type(site.prior) is UniformPrior]
    rest = [site for site in sites if not site.is_covariance and site not in uniform]
    terms += [ConstantTerm(_uniform_log_density(site)) for site in uniform]
    terms += [ConstantTerm(float(_value_density(site).detach())) for site in fixed]
    if rest:
        arguments = [_normal_arguments(site, vector, jacobian) for site in rest]
        terms.append(NormalPriorTerms(*(np.concatenate(column) for column in zip(*arguments, strict=True))))
    return terms


class ConstantTerm:
    """The log density of uniform priors, and of priors on values that are not trained."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        return self.value


def _uniform_log_density(site: PriorSite) -> float:
    """Return Σ log 1/(high − low) of all entries, if the parameter cannot leave the support."""
    low, high = (v.detach().double() for v in (site.prior.low, site.prior.high))
    bounds = site.bounds()
    if bool((bounds[0] < low).any() or (bounds[1] > high).any()):
        raise NoAnalyticForm(f"the prior {site.name}, from whose support its parameter can escape")
    return -float((high - low).log().expand(site.read(site.module).shape).sum())


def _normal_arguments(site: PriorSite, vector: NumpyVector, jacobian: bool) -> tuple[np.ndarray, ...]:
    """Return the arguments of `NormalPriorTerms` for one prior."""
    prior, (parameter,) = site.prior, site.parameters.values()
    if type(prior) not in (LogNormalPrior, NormalPrior) or getattr(prior, "_transform", None) is not None:
        raise NoAnalyticForm(f"the prior {site.name}")
    (entry,) = (entry for entry in vector.vector.entries if entry.parameter is parameter)
    is_log_normal = type(prior) is LogNormalPrior
    is_variance = is_log_normal and site.read is get_variances
    if not is_variance and site.constrained_parameter is None:
        raise NoAnalyticForm(f"the prior {site.name}, of a function of {entry.name}")
    shape, size = parameter.shape, parameter.numel()
    loc, scale = (v.detach().double().expand(shape).reshape(-1).cpu().numpy() for v in (prior.loc, prior.scale))
    indices, is_log = np.arange(entry.span.start, entry.span.stop), is_log_normal and not is_variance
    numbers = is_log, 2.0 if is_variance else 1.0, is_log or (is_variance and not jacobian)
    return indices, loc, scale, *(np.full(size, number) for number in numbers)
