"""Hyperparameters from the data: where a training begins, and the box in which it stays.

A lengthscale starts at the median distance between inputs (times √d for one a column), an output matrix at the principal
components of Y, an outputscale so that the prior variance at the data is var(Y). Terms of a sum share the variance and
have lengthscales in a geometric sequence. The rules for each kind of kernel are in `start_rules`.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.inference.data_scales import output_covariance, subsample
from ovkgp.inference.start_rules import Note, Surroundings, start
from ovkgp.kernels import FreeMatrix, FullMatrix


def data_starts(kernel: Kernel, X: Tensor, Y: Tensor) -> None:
    """Set the trainable hyperparameters of a kernel from data, in place; those kept fixed are left alone.

    Args:
        kernel: any kernel, of this package or GPyTorch's.
        X: inputs (n, d).
        Y: outputs (n, p), NaN where missing, with the mean taken away if the model has one.

    Cost: O(500²·d + n·p² + p³).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.inference.starts import data_starts
        >>> kernel = ScaleKernel(RBFKernel())
        >>> data_starts(kernel, torch.tensor([[0.0], [3.0]]), torch.tensor([[-2.0], [2.0]]))
        >>> round(kernel.base_kernel.lengthscale.item(), 4), round(kernel.outputscale.item(), 4)
        (3.0, 8.0)
    """
    _run(kernel, X, Y, _forget)


def boxes(kernel: Kernel, X: Tensor, Y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Ranges (low, high) of constrained values by qualified name, relative to the data; the kernel is left alone.

    Lengthscales stay between 1e-2 of the 5 % quantile of the distances and 1e3 of their median (a column at a time with
    ARD), variances between 1e-8 and 1e4 of those of Y, for each output alone where the kernel can.

    Args:
        kernel, X, Y: as for `data_starts`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.starts import boxes
        >>> low, high = boxes(RBFKernel(), torch.tensor([[0.0], [3.0]]), torch.zeros(2, 1))["raw_lengthscale"]
        >>> round(low.item(), 4), round(high.item(), 4)
        (0.03, 3000.0)
    """
    kernel, found = deepcopy(kernel), {}
    _run(kernel, X, Y, lambda parameter, low, high: found.setdefault(id(parameter), (low, high)))
    return {name: found[id(parameter)] for name, parameter in kernel.named_parameters() if id(parameter) in found}


def sizes(kernel: Kernel, X: Tensor, Y: Tensor) -> dict[str, float]:
    """The typical size of each unconstrained parameter that `data_starts` sets, for `maximise`; all else is 1.

    Args:
        kernel, X, Y: as for `data_starts`.

    Returns:
        The size of the loadings of each `FreeMatrix`, (p, 1), and of what is below the diagonal of each `FullMatrix`,
        (p(p − 1)/2,), by qualified name.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.starts import sizes
        >>> from ovkgp.kernels import DecomposableKernel
        >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
        >>> sizes(kernel, torch.randn(9, 1), torch.randn(9, 2))["output_module.loadings"].shape
        torch.Size([2, 1])
    """
    kernel = deepcopy(kernel)
    data_starts(kernel, X, Y)
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


def noise_start(Y: Tensor) -> Tensor:
    """A tenth of the variance of each output of Y (n, p), as (p,).

    Example:
        >>> import torch
        >>> from ovkgp.inference.starts import noise_start
        >>> noise_start(torch.tensor([[1.0], [3.0]])).tolist()
        [0.2]
    """
    return 0.1 * output_covariance(Y).diagonal()


@torch.no_grad()
def _run(kernel: Kernel, X: Tensor, Y: Tensor, note: Note) -> None:
    X, Y = (values.detach().to("cpu", torch.float64) for values in (X, Y))
    start(kernel, Surroundings(subsample(X), output_covariance(Y), note))


def _forget(parameter: torch.nn.Parameter, low: Tensor, high: Tensor) -> None:
    pass
