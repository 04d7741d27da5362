"""Default priors (`PriorSettings`), and priors on a model: reading them (`PriorSite`), adding them (`PriorRegistry`), log density.

A prior is a density p(θ) of a constrained value. Training maximizes Σ log p(θ) for the priors that a user registered, as GPyTorch
does, and Σ log p(log θ) for the default ones, which are normal in log θ: their mode in log θ is their location. Samplers need
the density of the raw parameters, Σ log p(θ) + log |dθ / d raw| (`jacobian`): a log-normal prior of a variance exp(2s) is, as a
density of the trained s, log N(2s | loc, scale) + log 2. `LogPrior` computes them with torch, `make_prior_terms` with NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.priors import LogNormalPrior, NormalPrior, Prior, UniformPrior
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.functional import logsigmoid, softplus

from ovkgp.exceptions import OptionError
from ovkgp.inference.training.covariance_prior import CovariancePrior, get_chol, register_covariance_prior
from ovkgp.inference.training.numpy_outputs import CholeskyOutputs
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector

LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class PriorSettings:
    """Location and scale of the logarithm of hyperparameters for standardized data: normal priors in the logarithm.

    The location of a lengthscale is that of one column; ½ log d is added for d columns.
    """

    lengthscale: tuple[float, float] = (0.35, 0.8)
    noise: tuple[float, float] = (math.log(0.1), 1.5)
    deviation: tuple[float, float] = (math.log(0.1), 1.5)  # variance of smooth deviations of single curves
    variance: tuple[float, float] = (0.0, 1.0)
    slope_variance: tuple[float, float] = (0.0, 3.0)
    diagonal: tuple[float, float] = (-1.0, 1.5)  # variances of single outputs beside a low-rank matrix
    shape: tuple[float, float] = (0.0, 1.5)  # α of a rational quadratic kernel
    period: tuple[float, float] = (math.log(2), 1.0)


DEFAULT_PRIORS = PriorSettings()
WIDE_PRIORS = PriorSettings(lengthscale=(1.0, 1.4), noise=(math.log(0.02), 2.0))
"""Priors for smooth, sparsely sampled and nearly noise-free functions."""


@dataclass(frozen=True)
class ParameterReader:
    """Reads the constrained value of the parameter at a dotted path below a module; can be pickled, unlike a lambda."""

    path: str

    def __call__(self, module: Module) -> Tensor:
        parameter, constraint = find_parameter(module, self.path)
        return parameter if constraint is None else constraint.transform(parameter)


@dataclass(frozen=True)
class ParameterWriter:
    """Sets the value that a `ParameterReader` reads."""

    path: str

    @torch.no_grad()
    def __call__(self, module: Module, value: Tensor) -> None:
        parameter, constraint = find_parameter(module, self.path)
        value = torch.as_tensor(value).to(parameter).expand_as(parameter)
        parameter.copy_(value if constraint is None else constraint.inverse_transform(value))


def find_parameter(module: Module, path: str) -> tuple[Parameter, Interval | None]:
    """Return the parameter at a dotted path, and its constraint if it has one."""
    owner, _, leaf = path.rpartition(".")
    owner = module.get_submodule(owner)
    return getattr(owner, leaf), getattr(owner, "_constraints", {}).get(f"{leaf}_constraint")


@dataclass(frozen=True, eq=False)
class PriorSite:
    """One registered prior: its qualified name, the module it is registered on, and its closures."""

    name: str
    module: Module
    prior: Prior
    read: Callable[[Module], Tensor]
    write: Callable[[Module, Tensor], None] | None

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Trained parameters below the module on which the value depends, by path."""
        trained = {path: one for path, one in self.module.named_parameters() if one.requires_grad}
        with torch.enable_grad():
            value = self.read(self.module)
            if not (value.requires_grad and trained):
                return {}
            slopes = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
        return {path: one for (path, one), slope in zip(trained.items(), slopes, strict=True) if slope is not None}

    @property
    def is_covariance(self) -> bool:
        """Whether the prior is a `CovariancePrior` on the Cholesky factor of a module."""
        return isinstance(self.prior, CovariancePrior) and self.read is get_chol

    @property
    def is_in_logs(self) -> bool:
        """Whether training counts the prior as a density of log θ (of the log variances, for a covariance)."""
        is_positive = isinstance(self.prior, LogNormalPrior) or self.is_covariance
        return is_positive and getattr(self.prior, "is_default", False)

    @cached_property
    def constrained_parameter(self) -> tuple[Parameter, Interval | None] | None:
        """Parameter and constraint if the value is the constrained value of one parameter; otherwise None."""
        if len(self.parameters) != 1 or self.is_covariance:
            return None
        parameter, constraint = find_parameter(self.module, next(iter(self.parameters)))
        kept = parameter.detach().clone()
        try:
            is_constrained_value = self._reads(parameter, constraint)
            parameter.data.add_(torch.linspace(0.1, 0.2, kept.numel()).to(kept).reshape(kept.shape))
            # two values may agree at one point by chance
            is_constrained_value = is_constrained_value and self._reads(parameter, constraint)
        finally:
            parameter.data.copy_(kept)
        return (parameter, constraint) if is_constrained_value else None

    @torch.no_grad()
    def _reads(self, parameter: Parameter, constraint: Interval | None) -> bool:
        return torch.equal(self.read(self.module), parameter if constraint is None else constraint.transform(parameter))

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the bounds of θ; infinite unless it is the constrained value of a parameter."""
        constraint = None if self.constrained_parameter is None else self.constrained_parameter[1]
        ends = (-torch.inf, torch.inf) if constraint is None else constraint
        return tuple(torch.as_tensor(end, dtype=torch.float64, device="cpu") for end in ends)

    def check_one_to_one(self) -> None:
        """Check that the value has one number for each number of one parameter."""
        if self.is_covariance or not self.parameters:
            return
        if len(self.parameters) == 1 and self._is_elementwise():
            return
        raise OptionError(
            f"The prior {self.name} ({type(self.prior).__name__}) is on a function of {', '.join(self.parameters)} that is "
            "not one-to-one, so the parameters have no density to sample from. Put priors on the parameters themselves "
            "(register_data_priors does), or use FullMatrix(p) with "
            "register_covariance_prior(matrix, CovariancePrior(loc, scale)) for a prior on a whole covariance."
        )

    def _is_elementwise(self) -> bool:
        (parameter,) = self.parameters.values()
        with torch.enable_grad():
            value = self.read(self.module)
            if value.numel() != parameter.numel():
                return False
            # not equidistant: averaging over neighbors would map equal steps to themselves
            probe = torch.linspace(0.0, 1.0, value.numel()).exp().to(value)
            slopes, probed = (
                torch.autograd.grad(value, parameter, weight.reshape(value.shape), retain_graph=True)[0].reshape(-1)
                for weight in (torch.ones_like(probe), probe)
            )
        return torch.allclose(probed, slopes * probe, rtol=1e3 * torch.finfo(value.dtype).eps, atol=0.0, equal_nan=True)


def prior_sites(module: Module) -> Iterator[PriorSite]:
    """Yield all priors registered on a module and inside it, each once even if a module is shared."""
    for path, part in module.named_modules():
        for name, (prior, read, write) in getattr(part, "_priors", {}).items():
            yield PriorSite(f"{path}.{name}".lstrip("."), part, prior, read, write)


def trained_sites(module: Module) -> list[PriorSite]:
    """Return the priors on trained parameters; raise `OptionError` if one is not one-to-one or a parameter has two."""
    found, owners = [], {}
    for site in prior_sites(module):
        if not site.parameters:
            continue
        site.check_one_to_one()
        for path, parameter in site.parameters.items():
            other = owners.setdefault(id(parameter), site.name)
            if other != site.name:
                raise OptionError(
                    f"{path} has two priors, {other} and {site.name}, whose product is not a known density. Remove one of them."
                )
        found.append(site)
    return found


def move_prior(prior: Prior, device: torch.device) -> None:
    """Move a prior to a device: `Module.to` does not move the values of a transformed distribution."""
    if device.type == "cpu":
        return
    for name, buffer in list(prior.named_buffers(recurse=False)):
        if name.startswith("_buffered_") and getattr(prior.base_dist, name[len("_buffered_") :]).device != device:
            setattr(prior, name, buffer.to(device))


def parameters_with_given_prior(module: Module) -> set[int]:
    """Return the identities of the parameters with a prior that was not registered by default."""
    given = (site for site in prior_sites(module) if not getattr(site.prior, "is_default", False))
    return {id(parameter) for site in given for parameter in site.parameters.values()}


class PriorRegistry:
    """Registers default priors on the trained parameters of a module that have none, in place."""

    def __init__(self, module: Module):
        self._with_prior = {id(one) for site in prior_sites(module) for one in site.parameters.values()}

    def needs_prior(self, parameter: Tensor) -> bool:
        """Return whether a parameter is trained and has no prior."""
        return parameter.requires_grad and id(parameter) not in self._with_prior

    def add(self, module: Module, path: str, prior: Prior) -> None:
        """Register a prior on the constrained value of the parameter at a path below a module, if it has none."""
        name, parameter = f"{path.replace('.', '_').removeprefix('raw_')}_prior", find_parameter(module, path)[0]
        self.add_with_closures(module, name, parameter, prior, ParameterReader(path), ParameterWriter(path))

    def add_covariance(self, module: Module, prior: CovariancePrior) -> None:
        """Register a prior on a covariance held by its Cholesky factor, if neither part of it has one."""
        parts = (module.log_scale, module.lower)
        if any(part.requires_grad for part in parts) and not any(id(part) in self._with_prior for part in parts):
            self._with_prior.update(map(id, parts))
            prior.is_default = True
            register_covariance_prior(module, prior, _unused_name(module, "covariance_prior"))

    def add_with_closures(self, module: Module, name: str, parameter: Tensor, prior: Prior, read, write) -> None:
        """Register a prior on a function of one parameter, if it has none."""
        if self.needs_prior(parameter):
            self._with_prior.add(id(parameter))
            prior.is_default = True
            module.register_prior(_unused_name(module, name), prior, read, write)


def _unused_name(module: Module, name: str) -> str:
    """Return a name for a prior; an existing prior of this name is on a parameter that is not trained, and is kept."""
    if name not in module._priors:
        return name
    free = f"data_{name}"
    if free in module._priors:
        raise OptionError(
            f"{type(module).__name__} has priors named {name} and {free} on other parameters. Rename one of them."
        )
    return free


def log_normal(loc: float | Tensor, scale: float | Tensor) -> LogNormalPrior:
    """Return the prior log θ ~ N(loc, scale²) in float64."""
    return LogNormalPrior(*_as_float64(loc, scale), validate_args=False)


def normal(loc: float | Tensor, scale: float | Tensor) -> NormalPrior:
    """Return the prior θ ~ N(loc, scale²) in float64."""
    return NormalPrior(*_as_float64(loc, scale), validate_args=False)


def uniform(low: float | Tensor, high: float | Tensor) -> UniformPrior:
    """Return the prior θ ~ U(low, high) in float64."""
    return UniformPrior(*_as_float64(low, high), validate_args=False)


def output_prior(prior: Prior, index: int) -> Prior:
    """Return the distribution of one entry of a normal or log-normal prior with one entry per output; keep other priors."""
    if not isinstance(prior, (LogNormalPrior, NormalPrior)) or prior._transform is not None:
        return prior
    loc, scale = (number if number.dim() == 0 else number[..., index] for number in (prior.loc, prior.scale))
    found = type(prior)(loc.clone(), scale.clone(), validate_args=False)
    found.is_default = getattr(prior, "is_default", False)
    return found


def _as_float64(*numbers: float | Tensor) -> tuple[Tensor, ...]:
    """Return float64 tensors, scalars if all entries are equal."""
    tensors = [torch.as_tensor(number, dtype=torch.float64).detach() for number in numbers]
    return tuple(
        one.flatten()[0].clone() if one.numel() and bool((one == one.flatten()[0]).all()) else one for one in tensors
    )


def get_variances(noise) -> Tensor:
    """Return the noise variances: the value that their prior is on."""
    return noise.variances


@torch.no_grad()
def set_variances(noise, value: Tensor) -> None:
    """Write noise variances into `log_scale`."""
    noise.log_scale.copy_(value.to(noise.log_scale).log() / 2)


class LogPrior:
    """Σ log p(θ) of the priors on a module and inside it, to be called many times; 0 if there are none.

    A default prior of a positive θ counts as a density of log θ. With `jacobian` it is the density of the raw parameters, Σ log p(θ) + log |dθ / d raw|, differentiable twice. Each prior on a
    trained parameter must then be on a one-to-one function of one raw parameter, or be a `CovariancePrior`; otherwise
    `OptionError` is raised. Parameters without a prior add nothing. Complexity: O(number of parameters) per call.
    """

    def __init__(self, module: Module, jacobian: bool = False):
        if not jacobian:
            self._terms = [partial(_training_density, site) for site in prior_sites(module)]
            return
        positive, linear, self._terms = [], [], []
        for site in trained_sites(module):
            if _is_linear(site):
                linear.append(site)
            elif _is_positive(site):
                positive.append(site)
            else:
                self._terms.append(_make_term(site))
        groups = ((positive, _log_softplus), (linear, lambda raw, lower: (raw, 0.0)))
        self._terms += [_make_gaussian_term(sites, curve) for sites, curve in groups if sites]

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


def _training_density(site: PriorSite) -> Tensor:
    """Return log p(θ), or log p(log θ) of a default prior of a positive value."""
    density = _value_density(site)
    if not site.is_in_logs:
        return density
    value = site.read(site.module)
    return density + (value.square().sum(-1) if site.is_covariance else value).log().sum()


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


def _make_gaussian_term(sites: list[PriorSite], curve: Callable) -> Callable[[], Tensor]:
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


def _lower_bound(site: PriorSite) -> Tensor:
    constraint = None if site.constrained_parameter is None else site.constrained_parameter[1]
    return torch.zeros(()) if constraint is None else constraint.lower_bound


def _expand(numbers: list[Tensor], parameters: list[Parameter]) -> Tensor:
    """Return one number for each entry of the parameters."""
    pairs = zip(numbers, parameters, strict=True)
    return torch.cat([number.detach().to(one.data).expand_as(one).reshape(-1) for number, one in pairs])


def _make_term(site: PriorSite) -> Callable[[], Tensor]:
    if site.is_covariance:
        return partial(_covariance_density, site)
    is_general = _transform_name(site) == "other" or getattr(site.prior, "_transform", None) is not None
    return partial(_general_density if is_general else _constrained_density, site)


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
    """Σ log N(x | loc, scale) over entries of θ, with x = θ, x = log θ or x = 2θ, as a density of e^x, x or θ.

    All arguments are (m,): positions of the entries in θ, location and scale, whether x = log θ, the factor c of x = cθ otherwise,
    and whether the prior is a density of e^x, or of θ.
    """

    def __init__(self, indices: np.ndarray, loc, scale, is_log, factor, is_of_exponential, is_of_theta):
        self.indices, self.loc, self.scale, self.factor = indices, loc, scale, factor
        self.is_log, self.any_log, self.all_log = is_log, bool(is_log.any()), bool(is_log.all())
        self.is_unique = len(np.unique(indices)) == len(indices)
        self.shift = is_of_exponential.astype(np.float64)
        log_factors = np.where(is_of_theta, np.log(factor), 0.0)
        self.constant = float((log_factors - np.log(scale)).sum()) - len(indices) * LOG_ROOT_2_PI

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        value = theta[self.indices]
        x, slope = value * self.factor, self.factor
        if self.all_log:
            x, slope = np.log(value), 1 / value
        elif self.any_log:
            logs = np.log(np.where(self.is_log, value, 1.0))
            x, slope = np.where(self.is_log, logs, x), np.where(self.is_log, 1 / value, slope)
        scores = (x - self.loc) / self.scale
        by_value = (scores / self.scale + self.shift) * slope
        if self.is_unique:
            out[self.indices] -= by_value
        else:
            np.subtract.at(out, self.indices, by_value)
        return self.constant - float(self.shift @ x) - 0.5 * float(scores @ scores)


class CovariancePriorTerms:
    """Log density of a covariance L Lᵀ under a `CovariancePrior`; with `jacobian`, of log L_ii and the entries below.

    `is_in_logs` counts the prior as a density of the log variances.
    """

    def __init__(self, prior: CovariancePrior, factor: CholeskyOutputs, jacobian: bool, is_in_logs: bool):
        p, self.factor = factor.num_outputs, factor
        self.loc, self.scale = (np.broadcast_to(v.cpu().numpy(), (p,)) for v in (prior.loc, prior.scale))
        rows, eye = np.arange(p), torch.eye(p, dtype=torch.float64)
        # the coefficients of log s_i² and of log L_ii
        self.on_diagonal = 2 * (prior.concentration.item() - 1) + (p + 1 - rows if jacobian else np.zeros(p))
        self.on_variances = (-rows / 2 if jacobian else 0.0 if is_in_logs else -1.0) - self.on_diagonal / 2
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


def make_prior_terms(module: Module, vector: NumpyVector, jacobian: bool = True) -> list:
    """Return the NumPy terms of all priors on trained parameters of a module, as for `LogPrior`.

    Raises `NoAnalyticForm` if a prior is neither normal, log-normal nor uniform, or not on a parameter's value.
    """
    sites = trained_sites(module)
    fixed = [] if jacobian else [site for site in prior_sites(module) if not site.parameters]
    constant = sum(float(_training_density(site).detach()) for site in fixed)
    terms, arguments = [], []
    for site in sites:
        if site.is_covariance:
            chol = CholeskyOutputs.of(site.module, vector)
            terms.append(CovariancePriorTerms(site.prior, chol, jacobian, site.is_in_logs))
        elif type(site.prior) is UniformPrior:
            constant += _uniform_log_density(site)
        else:
            arguments.append(_normal_arguments(site, vector, jacobian))
    if arguments:
        terms.append(NormalPriorTerms(*(np.concatenate(column) for column in zip(*arguments, strict=True))))
    return [*terms, lambda theta, out: constant] if constant else terms


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
    is_of_exponential = is_log_normal and (is_log if jacobian else not site.is_in_logs)
    numbers = is_log, 2.0 if is_variance else 1.0, is_of_exponential, is_variance and jacobian
    return indices, loc, scale, *(np.full(size, number) for number in numbers)
