"""Cache of a value that is computed from the parameters and buffers of modules, such as a factorization."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor


class ModuleCache:
    """Cache of one value computed from modules; a `deepcopy` keeps the value, a pickle drops it."""

    def __init__(self):
        self._modules: list[torch.nn.Module] = []
        self._parameters: list[Tensor] = []
        self._buffers: list[tuple[Tensor, int]] = []
        self._key: Any = None
        self._value: Any = None

    def get_or_compute(self, modules: list[torch.nn.Module], key: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`, or the cached value if the modules and the key are unchanged."""
        submodules = [submodule for module in modules for submodule in module.modules()]
        parameters = [tensor for submodule in submodules for tensor in submodule.parameters(recurse=False)]
        buffers = [tensor for submodule in submodules for tensor in submodule.buffers(recurse=False)]
        if _is_tracked(parameters + buffers):
            return make()
        if not self._is_valid(submodules, parameters, buffers, key):
            self._value = make()
            self._modules, self._key = submodules, key
            self._parameters = [tensor.detach().clone() for tensor in parameters]
            self._buffers = [(tensor, tensor._version) for tensor in buffers]
        return self._value

    def _is_valid(self, submodules: list, parameters: list[Tensor], buffers: list[Tensor], key: Any) -> bool:
        if not self._modules or key != self._key or [*map(id, submodules)] != [*map(id, self._modules)]:
            return False
        if [(id(tensor), tensor._version) for tensor in buffers] != [(id(t), v) for t, v in self._buffers]:
            return False
        return len(parameters) == len(self._parameters) and all(map(_are_equal, parameters, self._parameters))

    def __deepcopy__(self, memo: dict) -> ModuleCache:
        copy = ModuleCache()
        copy._modules, copy._parameters, buffers, copy._key, copy._value = deepcopy(
            (self._modules, self._parameters, [tensor for tensor, _ in self._buffers], self._key, self._value), memo
        )
        unchanged = all(tensor._version == version for tensor, version in self._buffers)
        copy._buffers = [(tensor, tensor._version if unchanged else -1) for tensor in buffers]
        return copy

    def __reduce__(self):
        return ModuleCache, ()


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


def _is_tracked(tensors: list[Tensor]) -> bool:
    """Return whether these tensors are differentiated, batched over or otherwise traced."""
    if torch.is_inference_mode_enabled() or torch._C._are_functorch_transforms_active():
        return True
    if any(tensor.is_inference() for tensor in tensors):  # they have no version
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
