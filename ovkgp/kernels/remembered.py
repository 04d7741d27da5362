"""A value that is costly to compute, kept for as long as the modules it was computed from stay as they are.

Parameters are compared by value (GPyTorch changes them behind the back of torch's version counters), buffers by identity
and version. Nothing is kept where a gradient is wanted: autograd needs the computation itself.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor


class Remembered:
    """One value computed from modules.

    A copy of the modules (`deepcopy`) copies what is remembered with them; a pickle forgets it.

    Cost: O(number of parameters) a look; memory for a copy of the parameters.

    Example:
        >>> import torch
        >>> from ovkgp.kernels.remembered import Remembered
        >>> layer, memory = torch.nn.Linear(2, 2), Remembered()
        >>> with torch.no_grad():
        ...     first = memory.of([layer], "norm", lambda: layer.weight.norm())
        ...     again = memory.of([layer], "norm", lambda: layer.weight.norm())
        >>> first is again
        True
    """

    def __init__(self):
        self._modules: list[torch.nn.Module] = []
        self._parameters: list[Tensor] = []
        self._buffers: list[tuple[Tensor, int]] = []
        self._key: Any = None
        self._value: Any = None

    def of(self, modules: list[torch.nn.Module], key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, or what it gave before where nothing has changed since.

        Args:
            modules: all that the value depends on.
            key: what else it depends on, such as a dtype; compared by `==`.
            make: a function without arguments.
        """
        parts = [part for module in modules for part in module.modules()]
        parameters = [tensor for part in parts for tensor in part.parameters(recurse=False)]
        buffers = [tensor for part in parts for tensor in part.buffers(recurse=False)]
        if _is_tracked(parameters + buffers):
            return make()
        if not self._knows(parts, parameters, buffers, key):
            self._value = make()
            self._modules, self._key = parts, key
            self._parameters = [tensor.detach().clone() for tensor in parameters]
            self._buffers = [(tensor, tensor._version) for tensor in buffers]
        return self._value

    def _knows(self, parts: list, parameters: list[Tensor], buffers: list[Tensor], key: Any) -> bool:
        if not self._modules or key != self._key or [*map(id, parts)] != [*map(id, self._modules)]:
            return False
        if [(id(tensor), tensor._version) for tensor in buffers] != [(id(t), v) for t, v in self._buffers]:
            return False
        return len(parameters) == len(self._parameters) and all(map(_are_alike, parameters, self._parameters))

    def __deepcopy__(self, memo: dict) -> Remembered:
        copy = Remembered()
        copy._modules, copy._parameters, buffers, copy._key, copy._value = deepcopy(
            (self._modules, self._parameters, [tensor for tensor, _ in self._buffers], self._key, self._value), memo
        )
        unchanged = all(tensor._version == version for tensor, version in self._buffers)
        copy._buffers = [(tensor, tensor._version if unchanged else -1) for tensor in buffers]
        return copy

    def __reduce__(self):
        return Remembered, ()


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


def _is_tracked(tensors: list[Tensor]) -> bool:
    """Whether somebody differentiates, batches over or otherwise looks into these tensors."""
    if torch.is_inference_mode_enabled() or torch._C._are_functorch_transforms_active():
        return True
    if any(tensor.is_inference() for tensor in tensors):  # they have no version
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
