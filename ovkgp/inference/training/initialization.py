"""Initial values, bounds, scales and priors of the hyperparameters of a model, taken from its data.

A prior is a density p(θ) of a constrained value θ; `ovkgp.inference.training.log_prior` evaluates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference.model.mean_noise import OutputNoise, PolynomialMean, WrappedMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import Bounds
from ovkgp.inference.training.covariance_prior import CovariancePrior
from ovkgp.inference.training.kernel_parameters import (
    LKJ_CONCENTRATION,
    InitializationContext,
    RecordBounds,
    initialize_kernel,
    register_kernel_priors,
    register_remaining_priors,
    register_score_priors,
)
from ovkgp.inference.training.prior_sites import (
    PriorRegistry,
    Units,
    get_variances,
    log_normal,
    normal,
    output_covariance,
    set_variances,
    subsample,
)
from ovkgp.kernels import FreeMatrix, FullMatrix

RELATIVE_NOISE_BOUNDS = (1e-8, 1e2)  # bounds of a trained noise variance, relative to the variance of its output
NOISE_PRIOR = (math.log(0.05), 1.5)
"""Location and scale of the logarithm of a noise variance, relative to the variance of the output."""
RELATIVE_MEAN_STD = 2.0  # prior standard deviation of the mean's constant, relative to that of the output


@torch.no_grad()
def initialize_model(gp, data: Observations, kernel: bool = True) -> None:
    """Set the mean by least squares, the noise to a tenth of the variance, and the kernel by `initialize_from_data`."""
    gp.mean.initialize_from_data(data.X, data.Y)
    centered = data.Y - gp.mean(data.X)
    if kernel:
        initialize_from_data(gp.kernel, data.X, centered)
    if gp.noise_model.is_trained:
        gp.noise_model.set(initial_noise(centered))


def initial_states(gp, data: Observations, init: str) -> list[dict[str, Tensor]]:
    """Return the raw parameters to start from: the "current" ones, those from the "data", or both ("auto")."""
    current = _raw_state(gp)
    if init == "current":
        return [current]
    initialize_model(gp, data)
    return [_raw_state(gp), current] if init == "auto" else [_raw_state(gp)]


def _raw_state(gp) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}


def parameter_bounds(gp, data: Observations) -> dict[str, Bounds]:
    """Return the bounds of each parameter that has some, relative to the scales of the data."""
    found = {f"kernel.{name}": ends for name, ends in kernel_parameter_bounds(gp.kernel, data.X, data.Y).items()}
    if gp.noise_model.is_trained:
        variances = _variances(data)
        variances = variances.mean() if gp.noise_model.kind == "shared" else variances
        found["noise_model.log_scale"] = tuple(0.5 * (math.log(end) + variances.log()) for end in RELATIVE_NOISE_BOUNDS)
    return found


def parameter_scales(gp, data: Observations) -> dict[str, float | Tensor]:
    """Return the typical size of the parameters that have the units of the data."""
    deviations, column_stds = _variances(data).sqrt(), data.X.std(0, correction=0).unsqueeze(-1)
    scales = {
        "mean.constant": deviations,
        "mean.slopes": deviations / torch.where(column_stds > 0, column_stds, 1.0),
        "noise_model.lower": 0.3 * deviations.unsqueeze(-1),
    }
    known = dict(gp.named_parameters())
    found = {f"kernel.{name}": scale for name, scale in kernel_parameter_scales(gp.kernel, data.X, data.Y).items()}
    return found | {name: scale for name, scale in scales.items() if name in known}


def _variances(data: Observations) -> Tensor:
    return 10 * initial_noise(data.Y)


def fingerprint_problem(gp, data: Observations, objective: Callable[[], Tensor]) -> str:
    """Return a hash of the data and the objective at the initial values, to recognize the problem of a checkpoint."""
    digest = sha256()
    for part in (data.X, data.Y, data.noise):
        if part is not None:
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    current = _raw_state(gp)
    initialize_model(gp, data)
    with torch.no_grad():
        value = float(objective())
        for name, parameter in gp.named_parameters():
            parameter.copy_(current[name])
    return f"{digest.hexdigest()[:16]} {value:.8g}"


def initialize_from_data(kernel: Kernel, X: Tensor, Y: Tensor) -> None:
    """Set the trained hyperparameters of a kernel from inputs X (n, d) and centered outputs Y (n, p), in place.

    NaN marks missing outputs. Complexity: O(500²·d + n·p² + p³).
    """
    _apply_rules(kernel, X, Y, lambda parameter, low, high: None)


def kernel_parameter_bounds(kernel: Kernel, X: Tensor, Y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return (low, high) of constrained values by qualified name, relative to the data; the kernel is not changed.

    Lengthscales stay between 1e-2 of the 5 % quantile of the distances and 1e3 of their median (per column with ARD),
    variances between 1e-8 and 1e4 of those of Y (per output if the kernel allows).
    """
    kernel, found = deepcopy(kernel), {}
    _apply_rules(kernel, X, Y, lambda parameter, low, high: found.setdefault(id(parameter), (low, high)))
    return {name: found[id(parameter)] for name, parameter in kernel.named_parameters() if id(parameter) in found}


def kernel_parameter_scales(kernel: Kernel, X: Tensor, Y: Tensor) -> dict[str, Tensor]:
    """Return the typical size of unconstrained parameters by qualified name; all others have size 1.

    These are the loadings of each `FreeMatrix`, (p, 1), and the entries below the diagonal of each `FullMatrix`,
    (p(p − 1)/2,).
    """
    kernel = deepcopy(kernel)
    initialize_from_data(kernel, X, Y)
    found = {}
    for name, module in kernel.named_modules():
        if isinstance(module, (FreeMatrix, FullMatrix)):
            deviations = module().detach().diagonal(dim1=-2, dim2=-1).sqrt()
            row = torch.tril_indices(module.num_outputs, module.num_outputs, -1)[0]
            is_free = isinstance(module, FreeMatrix)
            found[f"{name}.{'loadings' if is_free else 'lower'}"] = (
                deviations.unsqueeze(-1) if is_free else deviations[..., row]
            )
    return found


@torch.no_grad()
def _apply_rules(kernel: Kernel, X: Tensor, Y: Tensor, record_bounds: RecordBounds) -> None:
    X, Y = (values.detach().to("cpu", torch.float64) for values in (X, Y))
    initialize_kernel(kernel, InitializationContext(subsample(X), output_covariance(Y), record_bounds))


def initial_noise(Y: Tensor) -> Tensor:
    """Return a tenth of the variance of each output of Y (n, p), as (p,)."""
    return 0.1 * output_covariance(Y).diagonal()


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
    register_kernel_priors(gp.kernel, units, registry)
    if isinstance(gp.features, ORFF):
        register_score_priors(gp.features, registry)
    _register_mean_priors(gp.mean, center, units, registry)
    if isinstance(noise := getattr(gp, "noise_model", None), OutputNoise):
        _add_noise_prior(noise, units.deviations, registry)
    for part in gp.children():  # whatever else is trained, such as a custom feature map
        if isinstance(part, Module) and part is not getattr(gp, "likelihood", None):
            register_remaining_priors(part, registry)


def register_default_priors(kernel: Kernel, num_dims: int) -> None:
    """Register priors for standardized data on every trained parameter inside a kernel that has none, in place.

    A matrix prior on a whole `FreeMatrix` is kept. The outputscale of a curl- or divergence-free kernel, whose variance
    is outputscale / ℓ², has the prior of a unit variance times ℓ².
    """
    register_kernel_priors(kernel, Units.standard(num_dims), PriorRegistry(kernel))


def register_noise_prior(noise: OutputNoise, deviations: Tensor | None = None) -> None:
    """Register a LogNormal(log 0.05 s², 1.5) prior on each trained noise variance, in place; LKJ(2) for correlations.

    `deviations` are the standard deviations s of the outputs, (p,) or (1,); 1 if None.
    """
    deviations = torch.ones(1, dtype=torch.float64) if deviations is None else deviations
    _add_noise_prior(noise, deviations, PriorRegistry(noise))


def _latent_moments(gp, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (p,) and the covariance (p, p) that the latent functions have to explain."""
    center, covariance = Y.nanmean(0).cpu(), output_covariance(Y)
    likelihood = getattr(gp, "likelihood", None)
    if likelihood is None or bool(likelihood.is_real.all()):
        return center, covariance
    real = likelihood.is_real.cpu()  # counts and classes have latent functions of order one
    both = torch.outer(real, real)
    center = torch.where(real, center, likelihood.initial_latent(Y).detach().to("cpu", torch.float64))
    return center, torch.where(both, covariance, torch.eye(len(real), dtype=torch.float64))


def _add_noise_prior(noise: OutputNoise, deviations: Tensor, registry: PriorRegistry) -> None:
    loc = NOISE_PRIOR[0] + 2 * deviations.log()
    if noise.kind == "full":
        prior = CovariancePrior(loc if len(loc) > 1 else loc[0], NOISE_PRIOR[1], LKJ_CONCENTRATION)
        registry.add_covariance(noise, prior)
        return
    loc = NOISE_PRIOR[0] + deviations.square().mean().log() if noise.kind == "shared" else loc
    prior = log_normal(loc, NOISE_PRIOR[1])
    registry.add_with_closures(noise, "variances_prior", noise.log_scale, prior, get_variances, set_variances)


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
