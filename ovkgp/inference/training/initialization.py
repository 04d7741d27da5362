"""Initial values, bounds, scales and priors of the hyperparameters of a model, from its data.

The role of a parameter of a kernel gives its initial value, bounds and prior in the units of `kernel_parameters`. With columns
of scales s_j (of root mean square s) and outputs of variance v, the default priors (`PriorSettings`) are

    lengthscale   LogNormal(0.35 + ½ log d + log s_j, 0.8)      period       LogNormal(log 2 s_j, 1)
    variance      LogNormal(log v, 1)                           loadings     Normal(0, √v_a)
    diagonal      LogNormal(log v_a − 1, 1.5)                   full matrix  LogNormal(log v_a, 1) variances, LKJ(2)
    slope         LogNormal(log v/‖x‖², 3)                      noise        LogNormal(log 0.1 v_a, 1.5)

They are normal in the logarithm, and training maximizes that density of the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from gpytorch.kernels import IndexKernel, Kernel
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.module import Module
from gpytorch.priors import Prior
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.mean_noise import DEFAULT_NOISE, OutputNoise, PolynomialMean, WrappedMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import Bounds
from ovkgp.inference.training.covariance_prior import CovariancePrior, set_chol
from ovkgp.inference.training.kernel_parameters import (
    DEFAULT_PRIORS,
    MIN_RELATIVE_VARIANCE,
    KernelParameter,
    PriorSettings,
    Units,
    column_distances,
    column_stds,
    kernel_parameters,
    output_covariance,
    row_distances,
    score_parameters,
    units_of_lengthscale,
)
from ovkgp.inference.training.priors import (
    PriorRegistry,
    find_parameter,
    get_variances,
    log_normal,
    normal,
    parameters_with_given_prior,
    set_variances,
    uniform,
)
from ovkgp.kernels import FreeMatrix, FullMatrix, OutputMatrix
from ovkgp.kernels.outputs.matrices import make_initial_loadings

RELATIVE_NOISE = 0.1  # initial noise variance, relative to the variance of its output
RELATIVE_DEVIATION = 0.1  # initial variance of the deviations of single curves, likewise
RELATIVE_NOISE_BOUNDS = (1e-8, 1e2)  # bounds of a trained noise variance, relative to the variance of its output
RELATIVE_MEAN_STD = 2.0  # prior standard deviation of the mean's constant, relative to that of the output
RELATIVE_LENGTHSCALE_BOUNDS = (1e-2, 1e3)  # relative to the 5 % quantile and to the median of the distances
RELATIVE_VARIANCE_BOUNDS = (1e-8, 1e4)  # relative to the variance of the outputs
LOADINGS_FRACTION = 0.9
"""Fraction of a principal component's variance that goes to the loadings; the rest goes to the diagonal."""
DEFAULT_LOG_STD = 1.5  # standard deviation of the logarithm of any other positive parameter, around its present value
LKJ_CONCENTRATION = 2.0
"""Concentration of the LKJ distribution of correlations; values above 1 favor small correlations."""

Range = tuple[Tensor, Tensor, Tensor]
"""Initial value, lower and upper bound of a parameter."""


@dataclass(frozen=True)
class Initialization:
    """Initial points and scales of a training.

    `values` are raw parameters by name, one dictionary for each initial point; `bounds` are those of constrained values, and
    `scales` the typical sizes of unconstrained parameters, both by name.
    """

    values: list[dict[str, Tensor]]
    bounds: dict[str, Bounds]
    scales: dict[str, Tensor]

    def initial_states(self, gp, data: Observations, init: str) -> list[dict[str, Tensor]]:
        """Return the raw parameters to start from: those from the "data", the "current" ones, or both ("auto").

        With "auto", the default value of a parameter is one for standardized data, and is converted to the units of the data.
        """
        if init == "current":
            return [raw_state(gp)]
        return [*self.values, _state_in_units(gp, data, self.values[0])] if init == "auto" else [*self.values]


@torch.no_grad()
def initialize(gp, data: Observations) -> Initialization:
    """Return initial values, bounds and scales of a model, relative to its data. The model is not changed.

    The mean is that of least squares, the noise a tenth of the variance, and the kernel has the variance of the residuals
    and the typical distances of the inputs. Complexity: O(500²·d + n·p² + p³).
    """
    current = raw_state(gp)
    bounds, scales = set_initial_values(gp, data)
    values = raw_state(gp)
    load_raw_state(gp, current)
    names = {id(parameter): name for name, parameter in gp.named_parameters()}
    return Initialization([values], {names[key]: pair for key, pair in bounds.items() if key in names}, scales)


@torch.no_grad()
def set_initial_values(gp, data: Observations, kernel: bool = True) -> tuple[dict[int, Bounds], dict[str, Tensor]]:
    """Set the hyperparameters of a model from its data; return bounds by the identity of the parameter, and scales.

    Those of the kernel are set only if `kernel` is True. A parameter with a prior of the user's has no bounds, which could cut it.
    """
    latent = latent_values(gp, data)
    gp.mean.initialize_from_data(data.X, latent)
    covariance, of_residuals = (outputs_covariance(gp, values) for values in (latent, latent - gp.mean(data.X)))
    bounds = _initialize_kernel(gp.kernel, data.X, covariance, of_residuals) if kernel else {}
    variances, likelihood = covariance.diagonal(), getattr(gp, "likelihood", None)
    if likelihood is not None:
        likelihood.start(data.Y)
        bounds |= _likelihood_bounds(likelihood, variances.sqrt())
    elif isinstance(gp.noise_model, CurveNoise):
        bounds |= _initialize_curve_noise(gp.noise_model, covariance.diagonal(), of_residuals.diagonal())
    elif gp.noise_model.is_trained:
        gp.noise_model.set(RELATIVE_NOISE * of_residuals.diagonal())
    if gp.noise_model is not None and gp.noise_model.is_trained and not isinstance(gp.noise_model, CurveNoise):
        scale = variances.mean() if gp.noise_model.kind == "shared" else variances
        ends = tuple(0.5 * (math.log(end) + scale.log()) for end in RELATIVE_NOISE_BOUNDS)
        bounds[id(gp.noise_model.log_scale)] = ends
    given = parameters_with_given_prior(gp)
    return {key: ends for key, ends in bounds.items() if key not in given}, _scales(gp, data, variances.sqrt())


def outputs_covariance(gp, Y: Tensor) -> Tensor:
    """Return the covariance (p, p) of the outputs; of curves, the variance of each channel, pooled over the grid.

    Few curves may have been observed at one point of the grid.
    """
    noise = getattr(gp, "noise_model", None)
    if not isinstance(noise, CurveNoise):
        return output_covariance(Y)
    pooled = output_covariance(Y.reshape(-1, noise.num_channels)).diagonal()
    return torch.diag(pooled.repeat(len(noise.tasks)))


def _initialize_curve_noise(noise: CurveNoise, variances: Tensor, residual_variances: Tensor) -> dict[int, Bounds]:
    """Set white noise and deviations to fractions of the variance of each channel; return their bounds."""
    scale, residual = (values[: noise.num_channels] for values in (variances, residual_variances))
    noise.set(RELATIVE_NOISE * residual)
    bounds = {id(noise.log_scale): tuple(0.5 * (math.log(end) + scale.log()) for end in RELATIVE_NOISE_BOUNDS)}
    if noise.deviation is None:
        return bounds
    units = Units.of(noise.tasks, RELATIVE_DEVIATION * residual.mean().reshape(1, 1))
    if noise.channel_matrix is None:
        return bounds | initialize_kernel(noise.deviation, units)
    bounds |= initialize_kernel(noise.deviation, units.as_scalar())
    return bounds | _initialize_cholesky(noise.channel_matrix, torch.diag(RELATIVE_DEVIATION * residual))


def _initialize_kernel(kernel: Kernel, X: Tensor, covariance: Tensor, of_residuals: Tensor) -> dict[int, Bounds]:
    """Set a kernel to the covariance of the residuals; its bounds are relative to that of the latent values."""
    bounds = initialize_kernel(kernel, Units.of(X, of_residuals))
    if torch.allclose(covariance, of_residuals, rtol=1e-6, atol=0.0):
        return bounds
    values = raw_state(kernel)  # the mean explains a part of the covariance
    bounds = initialize_kernel(kernel, Units.of(X, covariance))
    load_raw_state(kernel, values)
    return bounds


def latent_values(gp, data: Observations) -> Tensor:
    """Return the outputs, or surrogates (n, p) of the latent values of a likelihood, NaN where missing.

    The latent function of a class or a count is of order one: its surrogate is the likelihood's initial latent value plus the
    standardized output.
    """
    Y, likelihood = data.Y, getattr(gp, "likelihood", None)
    if likelihood is None or bool(likelihood.is_real.all()):
        return Y
    center = Y.nanmean(0)
    std = (Y - center).square().nanmean(0).sqrt()
    standardized = likelihood.initial_latent(Y) + (Y - center) / torch.where(std > 0, std, 1.0)
    return torch.where(likelihood.is_real.to(Y.device), Y, standardized)


def _likelihood_bounds(likelihood: Module, deviations: Tensor) -> dict[int, Bounds]:
    """Bound the scales of likelihoods like the standard deviation of noise, relative to that of the output."""
    low, high = (math.sqrt(end) for end in RELATIVE_NOISE_BOUNDS)
    scales = [one for name, one in likelihood.named_parameters() if name.rpartition(".")[2] == "raw_scale"]
    extremes = deviations.min(), deviations.max()
    ends = [(deviations, deviations) if one.numel() == len(deviations) else extremes for one in scales]
    return {id(one): (low * smallest, high * largest) for one, (smallest, largest) in zip(scales, ends, strict=True)}


def _scales(gp, data: Observations, deviations: Tensor) -> dict[str, Tensor]:
    """Return the typical size of parameters in the units of the data, by name; all others have size 1."""
    input_std = column_stds(data.X)
    input_std = torch.where(input_std > 0, input_std, 1.0)
    scales = {
        "mean.constant": deviations,
        "mean.slopes": deviations / input_std.unsqueeze(-1).to(deviations),
        "noise_model.lower": 0.3 * deviations.unsqueeze(-1),
        "likelihood.noise_model.lower": 0.3 * deviations.unsqueeze(-1),
        "features.points": input_std,
    }
    for name, module in gp.kernel.named_modules():
        if isinstance(module, (FreeMatrix, FullMatrix)):
            size, is_free = module().diagonal(dim1=-2, dim2=-1).sqrt(), isinstance(module, FreeMatrix)
            row = torch.tril_indices(module.num_outputs, module.num_outputs, -1)[0]
            leaf = "loadings" if is_free else "lower"
            scales[f"kernel.{name}.{leaf}".replace("..", ".")] = size.unsqueeze(-1) if is_free else size[..., row]
    known = dict(gp.named_parameters())
    return {name: scale for name, scale in scales.items() if name in known}


def raw_state(gp) -> dict[str, Tensor]:
    """Copy the raw parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}


@torch.no_grad()
def _state_in_units(gp, data: Observations, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the current raw parameters, with default values of the kernel and the noise in the units of the data.

    Those of the mean are taken from `values`. The model is not changed.
    """
    current, defaults = raw_state(gp), _default_parameters(gp)
    units = Units.of(data.X, output_covariance(latent_values(gp, data)))
    for parameter in kernel_parameters(gp.kernel, units):
        defaults -= _convert_to_units(parameter, defaults)
    if isinstance(noise := gp.noise_model, OutputNoise) and id(noise.log_scale) in defaults:
        scale = units.variance.sqrt() if noise.kind == "shared" else units.deviations
        noise.log_scale += scale.log().to(noise.log_scale)
    found = {
        name: values[name] if name.startswith("mean.") and id(one) in defaults else one.detach().clone()
        for name, one in gp.named_parameters()
    }
    load_raw_state(gp, current)
    return found


def _default_parameters(gp) -> set[int]:
    """Return the identities of the trained parameters with default values: 0 (GPyTorch's), or those of noise and loadings."""
    free = [part for part in gp.modules() if isinstance(part, FreeMatrix)]
    known = {id(part.loadings): make_initial_loadings(part.num_outputs, part.rank) for part in free}
    if isinstance(gp.noise_model, OutputNoise):
        known[id(gp.noise_model.log_scale)] = 0.5 * torch.tensor(DEFAULT_NOISE).log()
    pairs = (
        (one, known.get(id(one), torch.zeros(())).to(one).expand_as(one))
        for one in gp.parameters()
        if one.requires_grad
    )
    return {id(one) for one, default in pairs if torch.allclose(one, default, rtol=1e-6, atol=0.0)}


def _convert_to_units(parameter: KernelParameter, defaults: set[int]) -> set[int]:
    """Multiply a default value inside a kernel by its unit; return the identities of what was converted."""
    module, units = parameter.module, parameter.units
    if isinstance(module, FullMatrix) and id(module.log_scale) in defaults:  # I
        module.log_scale += units.deviations.log().to(module.log_scale)
        return {id(module.log_scale)}
    if isinstance(module, FreeMatrix) and id(module.loadings) in defaults and id(module.raw_diagonal) in defaults:
        module.loadings *= units.deviations.unsqueeze(-1).to(module.loadings)
        _set_parameter(module, "diagonal", units.covariance.diagonal() * module.diagonal, *2 * (torch.ones(()),))
        return {id(module.loadings), id(module.raw_diagonal)}
    raw = getattr(module, f"raw_{parameter.name}", None)
    if parameter.role not in ROLES or id(raw) not in defaults:
        return set()
    prior = ROLES[parameter.role].prior  # the unit of a prior is that of the value
    standard = replace(units, X=None, covariance=torch.ones(1, 1, dtype=torch.float64))
    unit = (prior(parameter).loc - prior(replace(parameter, units=standard)).loc).exp()
    value = module.constraint_for_parameter_name(f"raw_{parameter.name}").transform(raw)
    _set_parameter(module, parameter.name, unit.to(value) * value, *2 * (torch.ones(()),))
    return {id(raw)}


@torch.no_grad()
def load_raw_state(gp, state: dict[str, Tensor]) -> None:
    """Copy raw parameters into a model."""
    for name, parameter in gp.named_parameters():
        parameter.copy_(state[name])


def register_data_priors(gp, X, Y) -> None:
    """Register a proper, weakly informative prior on each trained parameter of a model that has none, in place.

    Existing priors are kept. Parameters of a likelihood other than its noise are left to `register_likelihood_priors`.

    Parameters
    ----------
    gp : OperatorValuedGP or VariationalGP
        Model with `kernel`, `mean`, `features` and `noise_model`.
    X : array-like of shape (n, d)
        Inputs.
    Y : array-like of shape (n, p)
        Outputs, NaN where missing. Inputs and outputs only set the units of the priors.

    See Also
    --------
    draw_prior : Draw hyperparameters from their priors.

    Notes
    -----
    Complexity: O(n·(d + p²)).

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.inference import OperatorValuedGP, register_data_priors
    >>> from ovkgp.kernels import DecomposableKernel, FullMatrix
    >>> gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(2)))
    >>> X = torch.linspace(0, 50, 20, dtype=torch.float64).unsqueeze(-1)
    >>> register_data_priors(gp, X, torch.cat([X.sin(), 100 * X.cos()], -1))
    >>> [name.rpartition(".")[2] for name, *_ in gp.named_priors()]
    ['lengthscale_prior', 'covariance_prior', 'constant_prior', 'variances_prior']
    """
    data = gp.observe(X, Y).double()
    center, covariance = _latent_moments(gp, data.Y)
    units, registry = Units.of(data.X, covariance), PriorRegistry(gp)
    _register_kernel_priors(kernel_parameters(gp.kernel, units), registry)
    if isinstance(gp.features, ORFF):
        _register_kernel_priors(score_parameters(gp.features, units), registry)
    _register_mean_priors(gp.mean, center, units, registry)
    if isinstance(noise := getattr(gp, "noise_model", None), OutputNoise):
        _add_noise_prior(noise, units.deviations, units.priors.noise, registry)
    elif isinstance(noise, CurveNoise):
        _add_curve_noise_prior(noise, units.deviations, units.priors, registry)
    for part in gp.children():  # whatever else is trained, such as a custom feature map
        if isinstance(part, Module) and part is not getattr(gp, "likelihood", None):
            _register_remaining_priors(part, registry)


def register_default_priors(
    kernel: Kernel, num_dims: int, units: Units | None = None, priors: PriorSettings = DEFAULT_PRIORS
) -> None:
    """Register priors on every trained parameter inside a kernel that has none, in place.

    `units` are those of the data; if None, inputs and outputs are standardized. A matrix prior on a whole `FreeMatrix` is kept.
    The outputscale of a curl- or divergence-free kernel, whose variance is outputscale / ℓ², has the prior of a unit variance
    times ℓ².
    """
    units = Units.standard(num_dims, priors) if units is None else replace(units, priors=priors)
    _register_kernel_priors(kernel_parameters(kernel, units), PriorRegistry(kernel))


def register_noise_prior(
    noise: OutputNoise | CurveNoise, deviations: Tensor | None = None, priors: PriorSettings = DEFAULT_PRIORS
) -> None:
    """Register a prior on each trained noise variance, in place: log-normal relative to s², with LKJ(2) correlations.

    `deviations` are the standard deviations s of the outputs, (p,) or (1,); 1 if None. The smooth deviations of curves
    have the lengthscale of `priors` and a variance like that of noise.
    """
    deviations = torch.ones(1, dtype=torch.float64) if deviations is None else deviations
    if isinstance(noise, CurveNoise):
        _add_curve_noise_prior(noise, deviations, priors, PriorRegistry(noise))
        return
    _add_noise_prior(noise, deviations, priors.noise, PriorRegistry(noise))


def _latent_moments(gp, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (p,) and the covariance (p, p) that the latent functions have to explain."""
    center, covariance = Y.nanmean(0).cpu(), outputs_covariance(gp, Y)
    likelihood = getattr(gp, "likelihood", None)
    if likelihood is None or bool(likelihood.is_real.all()):
        return center, covariance
    real = likelihood.is_real.cpu()  # counts and classes have latent functions of order one
    both = torch.outer(real, real)
    center = torch.where(real, center, likelihood.initial_latent(Y).detach().to("cpu", torch.float64))
    return center, torch.where(both, covariance, torch.eye(len(real), dtype=torch.float64))


def _add_noise_prior(
    noise: OutputNoise, deviations: Tensor, relative: tuple[float, float], registry: PriorRegistry
) -> None:
    loc = relative[0] + 2 * deviations.log()
    if noise.kind == "full":
        prior = CovariancePrior(loc if len(loc) > 1 else loc[0], relative[1], LKJ_CONCENTRATION)
        registry.add_covariance(noise, prior)
        return
    loc = relative[0] + deviations.square().mean().log() if noise.kind == "shared" else loc
    prior = log_normal(loc, relative[1])
    registry.add_with_closures(noise, "variances_prior", noise.log_scale, prior, get_variances, set_variances)


def _add_curve_noise_prior(
    noise: CurveNoise, deviations: Tensor, priors: PriorSettings, registry: PriorRegistry
) -> None:
    scale = deviations[: noise.num_channels].expand(noise.num_channels)
    loc = (priors.noise[0] + 2 * scale.log()).expand_as(noise.log_scale)
    prior = log_normal(loc.clone(), priors.noise[1])
    registry.add_with_closures(noise, "variances_prior", noise.log_scale, prior, get_variances, set_variances)
    if noise.deviation is None:
        return
    of_deviations = replace(priors, variance=(priors.deviation[0], priors.deviation[1]))
    units = Units(noise.tasks.shape[1], scale.square().mean().reshape(1, 1), noise.tasks, priors=of_deviations)
    if noise.channel_matrix is not None:
        matrix_prior = CovariancePrior(priors.deviation[0] + 2 * scale.log(), priors.deviation[1], LKJ_CONCENTRATION)
        registry.add_covariance(noise.channel_matrix, matrix_prior)
    _register_kernel_priors(kernel_parameters(noise.deviation, units), registry)


def _register_mean_priors(mean, center: Tensor, units: Units, registry: PriorRegistry) -> None:
    std = RELATIVE_MEAN_STD * units.deviations
    slope_std = std / units.column_scales.unsqueeze(-1)
    # the constant is the value at x = 0, and the slopes move it
    constant_std = std * (1 + (units.center / units.column_scales).square().sum()).sqrt()
    if isinstance(mean, PolynomialMean) and mean.degree >= 0:
        registry.add(mean, "constant", normal(center, std if mean.degree == 0 else constant_std))
        if mean.degree == 1:
            registry.add(mean, "slopes", normal(0.0, slope_std))
    inner = mean.mean if isinstance(mean, WrappedMean) else None
    # one constant for all outputs
    joint_center, joint_std = center.mean(), RELATIVE_MEAN_STD * (units.variance + center.var(correction=0)).sqrt()
    if isinstance(inner, ConstantMean):
        registry.add(inner, "raw_constant", normal(joint_center, joint_std))
    if isinstance(inner, LinearMean):
        registry.add(inner, "weights", normal(0.0, joint_std / units.column_scales.unsqueeze(-1)))
        if inner.bias is not None:
            registry.add(inner, "bias", normal(joint_center, joint_std * constant_std[0] / std[0]))
    _register_remaining_priors(mean, registry, units.variance.sqrt())


@torch.no_grad()
def initialize_kernel(kernel: Kernel, units: Units) -> dict[int, Bounds]:
    """Set the trained hyperparameters of a kernel and return their bounds by identity."""
    bounds = {}
    for parameter in kernel_parameters(kernel, units):
        if parameter.role == "output_matrix" and parameter.initial is not None:
            set_matrix = _initialize_cholesky if isinstance(parameter.module, FullMatrix) else _initialize_loadings
            bounds |= set_matrix(parameter.module, parameter.initial())
        elif parameter.role in ROLES and ROLES[parameter.role].initial is not None and parameter.units.sets_values:
            bounds |= _set_parameter(parameter.module, parameter.name, *ROLES[parameter.role].initial(parameter))
    return bounds


def _register_kernel_priors(parameters: Iterator[KernelParameter], registry: PriorRegistry) -> None:
    """Register priors on the trained hyperparameters of a kernel that have none."""
    for parameter in list(parameters):  # priors are modules, and join the others
        module, name, role = parameter.module, parameter.name, parameter.role
        if role == "output_matrix":
            _register_matrix_priors(module, parameter.units, registry)
        elif role == "score":  # learned frequencies are computed from standard normal scores
            registry.add(module, name, normal(0.0, 1.0))
        elif role == "other":
            _register_remaining_priors(module, registry, parameter.units.parameter_unit)
        else:
            registry.add(module, f"raw_{name}", ROLES[role].prior(parameter))


class Role(NamedTuple):
    """Prior of a parameter and, if it is initialized from the data, its initial value and bounds."""

    prior: Callable[[KernelParameter], Prior]
    initial: Callable[[KernelParameter], Range] | None = None


def _find_lengthscale_range(parameter: KernelParameter) -> Range:
    """Return the median distance times √d, per column if there are several entries, and its bounds."""
    X = parameter.units.rows
    is_ard = getattr(parameter.module, f"raw_{parameter.name}").shape[-1] > 1
    distances = (column_distances if is_ard else row_distances)(X)
    factor = X.shape[1] ** 0.5 if is_ard else 1.0
    median = factor * parameter.units.lengthscale_factor * distances.median
    low = RELATIVE_LENGTHSCALE_BOUNDS[0] * torch.minimum(distances.small, median)
    return median, low, RELATIVE_LENGTHSCALE_BOUNDS[1] * factor * distances.median


def _find_curve_lengthscale_range(parameter: KernelParameter) -> Range:
    # the kernel averages over grid points and compares the curves at one of them at a time
    units, num_points = parameter.units, max(1, parameter.units.rows.shape[1] // parameter.module.num_channels)
    units = replace(units, lengthscale_factor=units.lengthscale_factor / num_points**0.5)
    return _find_lengthscale_range(replace(parameter, units=units))


def _find_variance_range(parameter: KernelParameter) -> Range:
    value = parameter.units.initial_variance if parameter.initial is None else parameter.initial()
    return value, *(end * value for end in RELATIVE_VARIANCE_BOUNDS)


def _find_slope_variance_range(parameter: KernelParameter) -> Range:
    size = parameter.units.rows.square().sum(-1).mean()
    value = parameter.units.initial_variance / (size if size > 0 else 1.0)
    return value, *(end * value for end in RELATIVE_VARIANCE_BOUNDS)


def _lengthscale_location(units: Units, per_column: bool = False) -> Tensor:
    """Return loc + ½ log d + log s, with the scale of each column (d,) or their root mean square."""
    scales = units.column_scales if per_column else units.column_scales.square().mean().sqrt()
    return units.priors.lengthscale[0] + math.log(units.num_dims) / 2 + scales.log()


def _lengthscale_prior(parameter: KernelParameter) -> Prior:
    units = units_of_lengthscale(parameter.module, parameter.units)
    loc = _lengthscale_location(units, per_column=parameter.module.raw_lengthscale.shape[-1] > 1)
    return log_normal(loc, units.priors.lengthscale[1])


def _curve_lengthscale_prior(parameter: KernelParameter) -> Prior:
    # curves are compared at one grid point at a time: one column per channel, with the joint scale
    units, (loc, scale) = parameter.units, parameter.units.priors.lengthscale
    loc += math.log(parameter.module.num_channels) / 2
    return log_normal(loc + units.column_scales.square().mean().log() / 2, scale)


def _period_prior(parameter: KernelParameter) -> Prior:
    units, size = parameter.units, getattr(parameter.module, f"raw_{parameter.name}").shape[-1]
    scales = units.column_scales if size == units.num_dims else units.typical_distance
    return log_normal(units.priors.period[0] + scales.log(), units.priors.period[1])


def _variance_prior(parameter: KernelParameter) -> Prior:
    units, (loc, scale) = parameter.units, parameter.units.priors.variance
    loc = units.variance.log() + loc
    if units.is_derivative_variance:  # log(v ℓ²) = log v + 2 log ℓ, the two independent
        loc, scale = loc + 2 * _lengthscale_location(units), math.hypot(scale, 2 * units.priors.lengthscale[1])
    return log_normal(loc, scale)


def _slope_variance_prior(parameter: KernelParameter) -> Prior:
    units, (loc, scale) = parameter.units, parameter.units.priors.slope_variance
    return log_normal(loc + units.variance.log() - _positive(units.mean_squared_norm).log(), scale)


def _mixture_weight_prior(parameter: KernelParameter) -> Prior:
    # GPyTorch multiplies the mixtures of the columns: the variance is (Σ weights)^d
    kernel = parameter.module
    loc = parameter.units.variance.log() / kernel.raw_mixture_means.shape[-1] - math.log(kernel.num_mixtures)
    return log_normal(loc, parameter.units.priors.variance[1])


def _mixture_scale_prior(parameter: KernelParameter) -> Prior:
    # a width σ is the lengthscale 1/(2πσ)
    loc = -_lengthscale_location(parameter.units, per_column=True) - math.log(2 * math.pi)
    return log_normal(loc, parameter.units.priors.lengthscale[1])


def _mixture_mean_prior(parameter: KernelParameter) -> Prior:
    loc, scale = parameter.units.priors.period
    return log_normal(-loc - parameter.units.column_scales.log(), scale)


ROLES = {
    "lengthscale": Role(_lengthscale_prior, _find_lengthscale_range),
    "relative_lengthscale": Role(lambda p: _lengthscale_prior(replace(p, units=replace(p.units, X=None)))),
    "curve_lengthscale": Role(_curve_lengthscale_prior, _find_curve_lengthscale_range),
    "period": Role(_period_prior, _find_lengthscale_range),
    "variance": Role(_variance_prior, _find_variance_range),
    "slope_variance": Role(_slope_variance_prior, _find_slope_variance_range),
    "shape": Role(lambda p: log_normal(*p.units.priors.shape)),
    "offset": Role(lambda p: log_normal(_positive(p.units.mean_squared_norm).log(), DEFAULT_LOG_STD)),
    "mixture_weight": Role(_mixture_weight_prior),
    "mixture_scale": Role(_mixture_scale_prior),
    "mixture_mean": Role(_mixture_mean_prior),
}
"""Roles of the parameters of scalar kernels by name. The lengthscale of a periodic kernel is relative: it has no unit.
All other parameters get a prior around their present value."""


def _set_parameter(module: Module, name: str, value: Tensor, low: Tensor, high: Tensor) -> dict[int, tuple]:
    """Set the constrained value of `raw_<name>` as close to `value` as its constraint allows, if it is trained.

    Returns its bounds by identity, or nothing if the constraint is tighter.
    """
    raw, constraint = getattr(module, f"raw_{name}"), module.constraint_for_parameter_name(f"raw_{name}")
    if not raw.requires_grad:
        return {}
    lower, upper = (end.to("cpu", torch.float64) for end in constraint)
    size = torch.where(torch.isfinite(lower), lower, upper).abs()
    margin = 1e-3 * torch.where(torch.isfinite(upper - lower), upper - lower, size)
    value = torch.clamp(value, lower + margin, upper - margin)
    raw.copy_(constraint.inverse_transform(value.to(raw)).expand_as(raw))
    return {id(raw): (low, high)} if bool((low < upper).all() and (high > lower).all()) else {}


def _loading_names(module: FreeMatrix | IndexKernel) -> tuple[str, str]:
    return ("loadings", "diagonal") if isinstance(module, FreeMatrix) else ("covar_factor", "var")


def _initialize_loadings(module: FreeMatrix | IndexKernel, covariance: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Set W Wᵀ + diag(v) ≈ covariance, with W the leading principal components of the correlations.

    Correlations rather than covariances keep outputs in small units; W gets `LOADINGS_FRACTION` of their variance.
    """
    name, diagonal = _loading_names(module)
    loadings, variances = getattr(module, name), covariance.diagonal()
    deviations, rank = variances.sqrt(), loadings.shape[-1]
    values, vectors = torch.linalg.eigh(covariance / torch.outer(deviations, deviations))
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    # a column of zeros has no gradient and would stay zero
    scales = (LOADINGS_FRACTION * values.clamp_min(MIN_RELATIVE_VARIANCE)).sqrt()
    found = vectors * scales * _signs_of_largest(vectors)
    if loadings.requires_grad:
        loadings.copy_((deviations.unsqueeze(-1) * found).to(loadings).expand_as(loadings))
    rest = variances * (1 - found.square().sum(-1)).clamp_min(MIN_RELATIVE_VARIANCE)
    return _set_parameter(module, diagonal, rest, *(end * variances for end in RELATIVE_VARIANCE_BOUNDS))


def _initialize_cholesky(module: FullMatrix, covariance: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Set L Lᵀ = covariance with correlations shrunk by `LOADINGS_FRACTION`, since estimates may be singular."""
    if not (module.log_scale.requires_grad and module.lower.requires_grad):
        return {}
    variances = covariance.diagonal()
    shrunk = LOADINGS_FRACTION * covariance + (1 - LOADINGS_FRACTION) * torch.diag(variances)
    set_chol(module, torch.linalg.cholesky(shrunk))
    return {id(module.log_scale): tuple(0.5 * (end * variances).log() for end in RELATIVE_VARIANCE_BOUNDS)}


def _signs_of_largest(vectors: Tensor) -> Tensor:
    """Return signs that make the largest entry of each column positive."""
    largest = vectors.abs().argmax(0, keepdim=True)
    return torch.where(vectors.gather(0, largest) < 0, -1.0, 1.0)


def _register_matrix_priors(module: OutputMatrix | IndexKernel, units: Units, registry: PriorRegistry) -> None:
    log_variances, priors = 2 * units.deviations.log(), units.priors
    if isinstance(module, FullMatrix):
        prior = CovariancePrior(log_variances + priors.variance[0], priors.variance[1], LKJ_CONCENTRATION)
        registry.add_covariance(module, prior)
    elif isinstance(module, (FreeMatrix, IndexKernel)):
        loadings, diagonal = _loading_names(module)
        registry.add(module, loadings, normal(0.0, units.deviations.unsqueeze(-1)))
        registry.add(module, f"raw_{diagonal}", log_normal(log_variances + priors.diagonal[0], priors.diagonal[1]))
    _register_remaining_priors(module, registry)


def _register_remaining_priors(module: Module, registry: PriorRegistry, unit: Tensor | float = 1.0) -> None:
    """Register priors on all other parameters below a module, except those inside kernels and output matrices.

    Around the present value they are log-normal of width `DEFAULT_LOG_STD` for positive parameters, uniform on bounded
    intervals, and normal of width max(|value|, unit) otherwise.
    """
    for path, parameter in list(module.named_parameters()):  # priors are modules, and join the others
        owners = [module.get_submodule(path[:dot]) for dot, letter in enumerate(path) if letter == "."]
        if not registry.needs_prior(parameter) or any(isinstance(owner, (Kernel, OutputMatrix)) for owner in owners):
            continue
        registry.add(module, path, _prior_around_value(module, path, unit))


def _prior_around_value(module: Module, path: str, unit: Tensor | float) -> Prior:
    parameter, constraint = find_parameter(module, path)
    with torch.no_grad():
        value = (parameter if constraint is None else constraint.transform(parameter)).to("cpu", torch.float64)
    ends = (-math.inf, math.inf) if constraint is None else (constraint.lower_bound.min(), constraint.upper_bound.max())
    low, high = map(float, ends)
    if math.isfinite(low) and math.isfinite(high):
        return uniform(low, high)
    return log_normal(value.log(), DEFAULT_LOG_STD) if low >= 0 else normal(value, value.abs().clamp_min(float(unit)))


def _positive(value: Tensor) -> Tensor:
    return torch.where(value > 0, value, 1.0)
