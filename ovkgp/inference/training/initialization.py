"""Initial values, bounds, scales and priors of the hyperparameters of a model, from its data.

Those of kernels are in `roles`, by the role of the parameter; mean, noise and likelihood follow here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.mean_noise import DEFAULT_NOISE, OutputNoise, PolynomialMean, WrappedMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import Bounds
from ovkgp.inference.training.covariance_prior import CovariancePrior
from ovkgp.inference.training.kernel_parameters import (
    KernelParameter,
    Units,
    column_stds,
    kernel_parameters,
    output_covariance,
    score_parameters,
)
from ovkgp.inference.training.priors import (
    DEFAULT_PRIORS,
    PriorRegistry,
    PriorSettings,
    get_variances,
    log_normal,
    normal,
    parameters_with_given_prior,
    set_variances,
)
from ovkgp.inference.training.roles import (
    LKJ_CONCENTRATION,
    ROLES,
    initialize_cholesky,
    initialize_kernel,
    register_kernel_priors,
    register_remaining_priors,
    set_parameter,
)
from ovkgp.kernels import FreeMatrix, FullMatrix
from ovkgp.kernels.outputs.matrices import make_initial_loadings

RELATIVE_NOISE = 0.1  # initial noise variance, relative to the variance of its output
RELATIVE_DEVIATION = 0.1  # initial variance of the deviations of single curves, likewise
RELATIVE_NOISE_BOUNDS = (1e-8, 1e2)  # bounds of a trained noise variance, relative to the variance of its output
MIN_RELATIVE_CHANNEL_NOISE = (
    1e-4  # the same if curves have several channels, whose evidence is unbounded if they are collinear
)
RELATIVE_MEAN_STD = 2.0  # prior standard deviation of the mean's constant, relative to that of the output


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
        bounds |= _initialize_curve_noise(gp.noise_model, covariance.diagonal(), of_residuals)
    elif gp.noise_model.is_trained:
        gp.noise_model.set(RELATIVE_NOISE * of_residuals.diagonal())
    if gp.noise_model is not None and gp.noise_model.is_trained and not isinstance(gp.noise_model, CurveNoise):
        scale = variances.mean() if gp.noise_model.kind == "shared" else variances
        ends = tuple(0.5 * (math.log(end) + scale.log()) for end in RELATIVE_NOISE_BOUNDS)
        bounds[id(gp.noise_model.log_scale)] = ends
    given = parameters_with_given_prior(gp)
    return {key: ends for key, ends in bounds.items() if key not in given}, _scales(gp, data, variances.sqrt())


def outputs_covariance(gp, Y: Tensor) -> Tensor:
    """Return the covariance (p, p) of the outputs; of curves, that of the channels at one point, pooled over the grid.

    Few curves may have been observed at one point of the grid.
    """
    noise = getattr(gp, "noise_model", None)
    if not isinstance(noise, CurveNoise):
        return output_covariance(Y)
    pooled = output_covariance(Y.reshape(-1, noise.num_channels))
    return torch.kron(torch.eye(len(noise.tasks)).to(pooled), pooled)


def _initialize_curve_noise(noise: CurveNoise, variances: Tensor, residual_covariance: Tensor) -> dict[int, Bounds]:
    """Set white noise and deviations to fractions of the covariance of the channels; return their bounds."""
    q = noise.num_channels
    scale, between = variances[:q], residual_covariance[:q, :q]
    residual = between.diagonal()
    noise.set(RELATIVE_NOISE * residual)
    ends = RELATIVE_NOISE_BOUNDS if q == 1 else (MIN_RELATIVE_CHANNEL_NOISE, RELATIVE_NOISE_BOUNDS[1])
    bounds = {id(noise.log_scale): tuple(0.5 * (math.log(end) + scale.log()) for end in ends)}
    if noise.deviation is None:
        return bounds
    units = Units.of(noise.tasks, RELATIVE_DEVIATION * residual.mean().reshape(1, 1))
    if noise.channel_matrix is None:
        return bounds | initialize_kernel(noise.deviation, units)
    bounds |= initialize_kernel(noise.deviation, units.as_scalar())
    return bounds | initialize_cholesky(noise.channel_matrix, RELATIVE_DEVIATION * between)


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
        set_parameter(module, "diagonal", units.covariance.diagonal() * module.diagonal, *2 * (torch.ones(()),))
        return {id(module.loadings), id(module.raw_diagonal)}
    raw = getattr(module, f"raw_{parameter.name}", None)
    if parameter.role not in ROLES or id(raw) not in defaults:
        return set()
    prior = ROLES[parameter.role].prior  # the unit of a prior is that of the value
    standard = replace(units, X=None, covariance=torch.ones(1, 1, dtype=torch.float64))
    unit = (prior(parameter).loc - prior(replace(parameter, units=standard)).loc).exp()
    value = module.constraint_for_parameter_name(f"raw_{parameter.name}").transform(raw)
    set_parameter(module, parameter.name, unit.to(value) * value, *2 * (torch.ones(()),))
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
    register_kernel_priors(kernel_parameters(gp.kernel, units), registry)
    if isinstance(gp.features, ORFF):
        register_kernel_priors(score_parameters(gp.features, units), registry)
    _register_mean_priors(gp.mean, center, units, registry)
    if isinstance(noise := getattr(gp, "noise_model", None), OutputNoise):
        _add_noise_prior(noise, units.deviations, units.priors.noise, registry)
    elif isinstance(noise, CurveNoise):
        _add_curve_noise_prior(noise, units.deviations, units.priors, registry)
    for part in gp.children():  # whatever else is trained, such as a custom feature map
        if isinstance(part, Module) and part is not getattr(gp, "likelihood", None):
            register_remaining_priors(part, registry)


def register_default_priors(
    kernel: Kernel, num_dims: int, units: Units | None = None, priors: PriorSettings = DEFAULT_PRIORS
) -> None:
    """Register priors on every trained parameter inside a kernel that has none, in place.

    `units` are those of the data; if None, inputs and outputs are standardized. A matrix prior on a whole `FreeMatrix` is kept.
    The outputscale of a curl- or divergence-free kernel, whose variance is outputscale / ℓ², has the prior of a unit variance
    times ℓ².
    """
    units = Units.standard(num_dims, priors) if units is None else replace(units, priors=priors)
    register_kernel_priors(kernel_parameters(kernel, units), PriorRegistry(kernel))


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
    register_kernel_priors(kernel_parameters(noise.deviation, units), registry)


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
    register_remaining_priors(mean, registry, units.variance.sqrt())
