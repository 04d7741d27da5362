"""The hyperparameters of a kernel by name, as values and not as raw parameters."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.kernels import OutputMatrix

WRAPPERS = {"base_kernel", "output_module", "kernels"}
"""Names that say how a kernel is built and not what it believes."""


def hyperparameters(kernel: Kernel) -> dict[str, Tensor]:
    """lengthscale, outputscale, output_matrix, … of a kernel; those of the terms of a sum are prefixed by their number.

    Where two have the same name (a scaled kernel inside a scaled one) the inner one keeps its whole path.

    Example:
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from ovkgp.inference.hyperparameters import hyperparameters
        >>> from ovkgp.kernels import DecomposableKernel
        >>> lmc = DecomposableKernel(RBFKernel(), 2) + DecomposableKernel(MaternKernel(), 2)
        >>> sorted(hyperparameters(lmc))
        ['0.lengthscale', '0.output_matrix', '1.lengthscale', '1.output_matrix']
    """
    matrices = {path: part for path, part in kernel.named_modules() if isinstance(part, OutputMatrix)}
    with torch.no_grad():
        found = {}
        for path, matrix in matrices.items():
            _add(found, path, "output_matrix", matrix())
        for path, parameter, constraint in kernel.named_parameters_and_constraints():
            owner, _, last = path.rpartition(".")
            if not any(owner == inside or owner.startswith(f"{inside}.") for inside in matrices):
                value = parameter.detach() if constraint is None else constraint.transform(parameter)
                _add(found, owner, last.removeprefix("raw_"), value.clone())
    return found


def _add(found: dict[str, Tensor], path: str, last: str, value: Tensor) -> None:
    short = ".".join([*(step for step in path.split(".") if step and step not in WRAPPERS), last])
    found[f"{path}.{last}" if short in found else short] = value
