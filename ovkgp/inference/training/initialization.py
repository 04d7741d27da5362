"""The densities of priors, of the values they are on and of the raw parameters behind them, and those for standardised data.

A prior is a density p(θ) of a constrained value θ. Training adds Σ log p(θ) to the evidence, as GPyTorch does; samplers move
in the raw parameters, whose density has the Jacobian as well: Σ log p(θ) + log |dθ / d raw|.
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
    CONCENTRATION,
    InitializationContext,
    Note,
    other_priors,
    score_priors,
    start,
    visit,
)
from ovkgp.inference.training.prior_sites import (
    Registry,
    Units,
    follow,
    get_variances,
    log_normal,
    normal,
    output_covariance,
    prior_sites,
    set_variances,
    subsample,
)
from ovkgp.kernels import FreeMatrix, FullMatrix


def initialize_from_data(kernel: Kernel, X: Tensor, Y: Tensor) -> None:
    """Set the trainable hyperparameters of a kernel from data, in place; those kept fixed are left alone.

    Args:
        kernel: any kernel, of this package or GPyTorch's.
        X: inputs (n, d).
        Y: outputs (n, p), NaN where missing, with the mean taken away if the model has one.

    Cost: O(500²·d + n·p² + p³).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.inference.training.initialization import initialize_from_data
        >>> kernel = ScaleKernel(RBFKernel())
        >>> initialize_from_data(kernel, torch.tensor([[0.0], [3.0]]), torch.tensor([[-2.0], [2.0]]))
        >>> round(kernel.base_kernel.lengthscale.item(), 4), round(kernel.outputscale.item(), 4)
        (3.0, 8.0)
    """
    _run(kernel, X, Y, _forget)


def bounds(kernel: Kernel, X: Tensor, Y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Ranges (low, high) of constrained values by qualified name, relative to the data; the kernel is left alone.

    Lengthscales stay between 1e-2 of the 5 % quantile of the distances and 1e3 of their median (a column at a time with
    ARD), variances between 1e-8 and 1e4 of those of Y, for each output alone where the kernel can.

    Args:
        kernel, X, Y: as for `initialize_from_data`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.training.initialization import bounds
        >>> low, high = bounds(RBFKernel(), torch.tensor([[0.0], [3.0]]), torch.zeros(2, 1))["raw_lengthscale"]
        >>> round(low.item(), 4), round(high.item(), 4)
        (0.03, 3000.0)
    """
    kernel, found = deepcopy(kernel), {}
    _run(kernel, X, Y, lambda parameter, low, high: found.setdefault(id(parameter), (low, high)))
    return {name: found[id(parameter)] for name, parameter in kernel.named_parameters() if id(parameter) in found}


def sizes(kernel: Kernel, X: Tensor, Y: Tensor) -> dict[str, float]:
    """The typical size of each unconstrained parameter that `initialize_from_data` sets, for `maximise`; all else is 1.

    Args:
        kernel, X, Y: as for `initialize_from_data`.

    Returns:
        The size of the loadings of each `FreeMatrix`, (p, 1), and of what is below the diagonal of each `FullMatrix`,
        (p(p − 1)/2,), by qualified name.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.training.initialization import sizes
        >>> from ovkgp.kernels import DecomposableKernel
        >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
        >>> sizes(kernel, torch.randn(9, 1), torch.randn(9, 2))["output_module.loadings"].shape
        torch.Size([2, 1])
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


def initial_noise(Y: Tensor) -> Tensor:
    """A tenth of the variance of each output of Y (n, p), as (p,).

    Example:
        >>> import torch
        >>> from ovkgp.inference.training.initialization import initial_noise
        >>> initial_noise(torch.tensor([[1.0], [3.0]])).tolist()
        [0.2]
    """
    return 0.1 * output_covariance(Y).diagonal()


@torch.no_grad()
def _run(kernel: Kernel, X: Tensor, Y: Tensor, note: Note) -> None:
    X, Y = (values.detach().to("cpu", torch.float64) for values in (X, Y))
    start(kernel, InitializationContext(subsample(X), output_covariance(Y), note))


def _forget(parameter: torch.nn.Parameter, low: Tensor, high: Tensor) -> None:
    pass


RELATIVE_NOISE_BOUNDS = (1e-8, 1e2)
"""Where a trained noise variance stays, relative to the variance of its output."""


@torch.no_grad()
def start_from_data(gp, data: Observations, kernel: bool = True) -> None:
    """Set mean, noise and kernel hyperparameters of a model: least squares, a tenth of the variance, distances and
    principal components."""
    gp.mean.start(data.X, data.Y)
    centred = data.Y - gp.mean(data.X)
    if kernel:
        initialize_from_data(gp.kernel, data.X, centred)
    if gp.noise_model.is_trained:
        gp.noise_model.set(initial_noise(centred))


def starting_points(gp, data: Observations, start: str) -> list[dict[str, Tensor]]:
    """The raw parameters to begin from: "current" ones, those from the "data", or both ("auto")."""
    current = _state(gp)
    if start == "current":
        return [current]
    start_from_data(gp, data)
    return [_state(gp), current] if start == "auto" else [_state(gp)]


def _state(gp) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}


def parameter_bounds(gp, data: Observations) -> dict[str, Bounds]:
    """The box of each parameter that has one, relative to the scales of the data."""
    found = {f"kernel.{name}": box for name, box in bounds(gp.kernel, data.X, data.Y).items()}
    if gp.noise_model.is_trained:
        variances = _variances(data)
        variances = variances.mean() if gp.noise_model.kind == "shared" else variances
        found["noise_model.log_scale"] = tuple(0.5 * (math.log(end) + variances.log()) for end in RELATIVE_NOISE_BOUNDS)
    return found


def parameter_scales(gp, data: Observations) -> dict[str, float | Tensor]:
    """The natural steps of parameters that live in the units of the data."""
    deviations, spread = _variances(data).sqrt(), data.X.std(0, correction=0).unsqueeze(-1)
    steps = {
        "mean.constant": deviations,
        "mean.slopes": deviations / torch.where(spread > 0, spread, 1.0),
        "noise_model.lower": 0.3 * deviations.unsqueeze(-1),
    }
    known = dict(gp.named_parameters())
    found = {f"kernel.{name}": size for name, size in sizes(gp.kernel, data.X, data.Y).items()}
    return found | {name: step for name, step in steps.items() if name in known}


def _variances(data: Observations) -> Tensor:
    return 10 * initial_noise(data.Y)


def problem_name(gp, data: Observations, objective: Callable[[], Tensor]) -> str:
    """A short name for the data and the model, so that a checkpoint is not resumed on another problem: a hash of the
    data, and the objective at the start that they suggest, which no two models share."""
    digest = sha256()
    for part in (data.X, data.Y, data.noise):
        if part is not None:
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    current = _state(gp)
    start_from_data(gp, data)
    with torch.no_grad():
        level = float(objective())
        for name, parameter in gp.named_parameters():
            parameter.copy_(current[name])
    return f"{digest.hexdigest()[:16]} {level:.8g}"


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
        >>> from ovkgp.inference.training.initialization import register_data_priors
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
    centre = torch.where(real, centre, likelihood.initial_latent(Y).detach().to("cpu", torch.float64))
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
        >>> from ovkgp.inference.training.initialization import register_default_priors
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
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> from ovkgp.inference.training.initialization import log_prior, register_noise_prior
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
        >>> from ovkgp.inference.training.initialization import log_prior
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
