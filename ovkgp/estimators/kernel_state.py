"""The numbers of a kernel by name, and the way back into a kernel of the same make.

Parameters and buffers are kept, bounds of constraints among them. **Priors are not**: a kernel with values put back
predicts as before, and its priors are those it was made with.
"""

from __future__ import annotations

from copy import deepcopy

import gpytorch
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module

from ovkgp.exceptions import KernelTypeError, OptionError


def kernel_state(kernel: Kernel) -> dict[str, Tensor]:
    """Copies of the parameters and buffers of any kernel by name, without those of its priors.

    Args:
        kernel: any kernel, also one that `kernel_to_spec` does not know.

    Example:
        >>> from gpytorch.kernels import CosineKernel
        >>> from ovkgp.estimators.kernel_state import kernel_state
        >>> sorted(kernel_state(CosineKernel()))[0]
        'raw_period_length'
    """
    priors = tuple(
        f"{name}." for name, module in kernel.named_modules(remove_duplicate=False) if isinstance(module, Prior)
    )
    state = {name: tensor for name, tensor in kernel.state_dict().items() if not name.startswith(priors)}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def load_kernel_state(kernel: Kernel, tensors: dict[str, Tensor]) -> Kernel:
    """A copy of `kernel` with stored values: the way back for kernels of one's own.

    Args:
        kernel: made as the stored one was, with the same options; it is left as it is.
        tensors: its parameters and buffers, from `kernel_state`; their dtype wins.

    Raises:
        OptionError: names or shapes do not fit; the message lists them.

    Cost: one copy of the tensors.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.kernel_state import kernel_state, load_kernel_state
        >>> trained = RBFKernel()
        >>> trained.lengthscale = 2.0
        >>> round(load_kernel_state(RBFKernel(), kernel_state(trained)).lengthscale.item(), 6)
        2.0
    """
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"expected a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
    copy = deepcopy(kernel)
    fill(copy, tensors)
    return copy


def owner_of(kernel: Kernel, name: str) -> tuple[Module, str]:
    """The module that holds an entry of the state, and the entry's last name."""
    path, _, leaf = name.rpartition(".")
    return kernel.get_submodule(path), leaf


def fill(kernel: Kernel, tensors: dict[str, Tensor]) -> None:
    """Set, in place, the parameters and buffers of a kernel, all of them and no others, to the bit."""
    _require_fit(kernel_state(kernel), tensors)
    for name, tensor in tensors.items():
        owner, leaf = owner_of(kernel, name)
        value = tensor.detach().clone().to(getattr(owner, leaf).device)
        if leaf in owner._parameters:
            owner._parameters[leaf].data = value
        else:
            owner._buffers[leaf] = value
    for module in kernel.modules():
        if isinstance(module, gpytorch.Module):
            module._clear_cache()


def _require_fit(own: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    faults = [f"{name} is not stored" for name in own.keys() - stored.keys()]
    faults += [f"{name} is stored, but the kernel has no such entry" for name in stored.keys() - own.keys()]
    for name in own.keys() & stored.keys():
        mine, theirs = own[name], stored[name]
        if mine.shape != theirs.shape or mine.is_floating_point() != theirs.is_floating_point():
            faults.append(f"{name} is {_described(mine)} in the kernel and {_described(theirs)} in the file")
    if faults:
        raise OptionError(
            f"the kernel does not fit the stored values: {'; '.join(sorted(faults)[:5])}. Make it as it was made before "
            "it was saved."
        )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
