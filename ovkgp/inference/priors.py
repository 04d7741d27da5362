"""Weakly informative priors on hyperparameters, for data whose inputs and outputs are standardised.

A lengthscale over d columns is LogNormal(√2 + ½ log d, √3): distances grow with √d, and so does its location (Hvarfner,
Hellsten and Nardi 2024, "Vanilla Bayesian optimization performs great in high dimensions"). Noise is kept away from zero.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.module import Module
from gpytorch.priors import LogNormalPrior, NormalPrior, Prior
from torch import Tensor

from ovkgp.kernels import FreeMatrix, FunctionValuedKernel, GaussianCurveKernel, LaplaceCurveKernel, WarpedKernel
from ovkgp.kernels.fields import FieldKernel

LENGTHSCALE = (math.sqrt(2), math.sqrt(3))
"""Location in one dimension, and scale, of log ℓ."""
OUTPUTSCALE = (0.0, 1.0)
"""Location and scale of the logarithm of an outputscale."""
DIAGONAL = (-1.0, 1.5)
"""Of the logarithm of an output's own variance."""
NOISE = (math.log(0.05), 1.5)
"""Of the logarithm of a noise variance."""


def register_default_priors(kernel: Kernel, num_dims: int) -> None:
    """Give every trained lengthscale, outputscale and free output matrix inside a kernel a prior, in place.

    A prior that is there already is kept, and so is a matrix prior on a whole `FreeMatrix`. The outputscale of a curl- or
    divergence-free kernel, whose variance is outputscale / ℓ², has the prior of a unit variance times ℓ².

    Args:
        kernel: any kernel.
        num_dims: the number of input columns.

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
    _visit(kernel, num_dims)


def register_noise_prior(noise: Module) -> None:
    """Give a trained noise module (anything with `variances`) a LogNormal(log 0.05, 1.5) prior on each, in place.

    Example:
        >>> from ovkgp.inference.noise import OutputNoise
        >>> from ovkgp.inference.priors import log_prior, register_noise_prior
        >>> noise = OutputNoise("per_output", num_outputs=2)
        >>> register_noise_prior(noise)
        >>> log_prior(noise).requires_grad
        True
    """
    if any(parameter.requires_grad for parameter in noise.parameters()):
        _register(
            noise, "variances_prior", LogNormalPrior(*_exact(NOISE), validate_args=False), get_variances, set_variances
        )


def log_prior(module: torch.nn.Module) -> Tensor:
    """Σ log p(θ) over all priors registered on a module and inside it, each once; 0 where there are none.

    The densities are of the constrained values, as in GPyTorch's marginal likelihoods.

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
    for part in module.modules():  # visits a shared module once, where `named_priors` counts it twice
        for prior, closure, _ in getattr(part, "_priors", {}).values():
            density = prior.log_prob(closure(part)).sum()
            total = total.to(density.device) + density
    return total


def _visit(module: torch.nn.Module, num_dims: int) -> None:
    if isinstance(module, Kernel):
        num_dims = _own_dims(module, num_dims)
        _register_on_kernel(module, num_dims)
    if isinstance(module, FreeMatrix):
        _register_on_matrix(module)
    if isinstance(module, FunctionValuedKernel):
        _visit_function_valued(module, num_dims)
        return
    inner_dims = module.group.embedding_dim if isinstance(module, WarpedKernel) else num_dims
    for child in module.children():
        _visit(child, inner_dims)


def _visit_function_valued(kernel: FunctionValuedKernel, num_dims: int) -> None:
    on_grid = kernel.tasks is not None
    _visit(kernel.input_kernel, num_dims if on_grid else max(1, num_dims - kernel.num_task_dims))
    _visit(kernel.task_kernel, kernel.tasks.shape[-1] if on_grid else kernel.num_task_dims)


def _own_dims(kernel: Kernel, num_dims: int) -> int:
    """How many columns a kernel looks at, where its parent sees `num_dims`."""
    num_dims = num_dims if kernel.active_dims is None else len(kernel.active_dims)
    return kernel.ard_num_dims or num_dims


def _register_on_kernel(kernel: Kernel, num_dims: int) -> None:
    if kernel.has_lengthscale and kernel.raw_lengthscale.requires_grad:
        if isinstance(kernel, (GaussianCurveKernel, LaplaceCurveKernel)):
            num_dims = kernel.num_channels  # curves are compared at one grid point at a time
        loc, scale = LENGTHSCALE
        prior = LogNormalPrior(*_exact((loc + math.log(num_dims) / 2, scale)), validate_args=False)
        _register(kernel, "lengthscale_prior", prior, get_lengthscale, set_lengthscale)
    if isinstance(kernel, ScaleKernel) and kernel.raw_outputscale.requires_grad:
        prior = LogNormalPrior(*_exact(_outputscale_law(kernel, num_dims)), validate_args=False)
        _register(kernel, "outputscale_prior", prior, get_outputscale, set_outputscale)


def _outputscale_law(kernel: ScaleKernel, num_dims: int) -> tuple[float, float]:
    loc, scale = OUTPUTSCALE
    if not isinstance(kernel.base_kernel, FieldKernel):
        return loc, scale
    # log(v ℓ²) = log v + 2 log ℓ, the two independent
    return loc + 2 * LENGTHSCALE[0] + math.log(num_dims), math.hypot(scale, 2 * LENGTHSCALE[1])


def _register_on_matrix(module: FreeMatrix) -> None:
    if "matrix_prior" in module._priors:
        return
    if module.loadings.requires_grad:
        _register(module, "loadings_prior", NormalPrior(*_exact((0.0, 1.0))), get_loadings, set_loadings)
    if module.raw_diagonal.requires_grad:
        prior = LogNormalPrior(*_exact(DIAGONAL), validate_args=False)
        _register(module, "diagonal_prior", prior, get_diagonal, set_diagonal)


def _register(module: Module, name: str, prior: Prior, get, put) -> None:
    if name not in module._priors:
        module.register_prior(name, prior, get, put)


def _exact(numbers: tuple[float, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(number, dtype=torch.float64) for number in numbers)


# Closures at the top level of the module: a lambda could not be pickled.


def get_lengthscale(kernel: Kernel) -> Tensor:
    return kernel.lengthscale


def set_lengthscale(kernel: Kernel, value: Tensor) -> None:
    kernel.lengthscale = value


def get_outputscale(kernel: ScaleKernel) -> Tensor:
    return kernel.outputscale


def set_outputscale(kernel: ScaleKernel, value: Tensor) -> None:
    kernel.outputscale = value


def get_loadings(module: FreeMatrix) -> Tensor:
    return module.loadings


def set_loadings(module: FreeMatrix, value: Tensor) -> None:
    module.initialize(loadings=value)


def get_diagonal(module: FreeMatrix) -> Tensor:
    return module.diagonal


def set_diagonal(module: FreeMatrix, value: Tensor) -> None:
    module.diagonal = value


def get_variances(noise: Module) -> Tensor:
    return noise.variances


def set_variances(noise: Module, value: Tensor) -> None:
    noise.set(value)
