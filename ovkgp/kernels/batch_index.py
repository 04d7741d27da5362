"""Indexing and expanding the batch dimensions of modules that hold parameters, as GPyTorch does for kernels."""

from __future__ import annotations

from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from torch import Tensor


class BatchIndexMixin:
    """Indexing and expansion of the batch shape for kernels that contain other kernels, also those of GPyTorch.

    GPyTorch's own registers all descendants again under dotted names, and does not expand the terms of a sum.
    """

    batched_buffers: tuple[str, ...] = ()  # names of the buffers that start with the batch shape

    def _map_batch(self, on_tensor, on_child, batch_shape: torch.Size):
        copy = deepcopy(self)
        copy._batch_shape = batch_shape
        for name, parameter in self.named_parameters(recurse=False):
            getattr(copy, name).data = on_tensor(parameter.data)
        for name, buffer in self.named_buffers(recurse=False):  # all those of GPyTorch's kernels are batched
            if name in self.batched_buffers if isinstance(self, BatchIndexMixin) else name != "active_dims":
                setattr(copy, name, on_tensor(buffer))
        for name, child in self.named_children():
            if hasattr(child, "expand_batch"):
                setattr(copy, name, on_child(child))
            elif isinstance(child, torch.nn.ModuleList) and all(hasattr(item, "expand_batch") for item in child):
                setattr(copy, name, torch.nn.ModuleList(on_child(item) for item in child))
        return copy

    def __getitem__(self, index):
        if len(self.batch_shape) == 0:
            return self
        index = index if isinstance(index, tuple) else (index,)
        batch_shape = self.batch_shape
        return BatchIndexMixin._map_batch(
            self,
            lambda t: t.expand(*batch_shape, *_event_shape(self, t))[index],
            lambda child: _index(_expand(child, batch_shape), index) if len(child.batch_shape) else child,
            torch.empty(batch_shape)[index].shape,
        )

    def expand_batch(self, *sizes):
        """Return the kernel with an expanded batch shape.

        Parameters
        ----------
        *sizes : int or torch.Size
            Batch shape.

        Returns
        -------
        Kernel
            Copy, or the kernel itself if it has this batch shape.
        """
        batch_shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        if batch_shape == self.batch_shape:
            return self
        return BatchIndexMixin._map_batch(
            self,
            lambda t: t.expand(*batch_shape, *_event_shape(self, t)),
            lambda child: _expand(child, batch_shape),
            batch_shape,
        )


def _event_shape(kernel, tensor: Tensor) -> torch.Size:
    """Return the shape of a parameter without its batch shape; that of a `ScaleKernel` includes the scaled kernel's."""
    shape = kernel.batch_shape
    return tensor.shape[len(shape if tensor.shape[: len(shape)] == shape else kernel._batch_shape) :]


def _is_gpytorch_kernel(child) -> bool:
    """Return whether a child is a kernel with GPyTorch's batch indexing."""
    return isinstance(child, Kernel) and not isinstance(child, BatchIndexMixin)


def _index(child, index):
    return BatchIndexMixin.__getitem__(child, index) if _is_gpytorch_kernel(child) else child[index]


def _expand(child, batch_shape: torch.Size):
    if _is_gpytorch_kernel(child):
        return BatchIndexMixin.expand_batch(child, batch_shape)
    return child.expand_batch(batch_shape)
