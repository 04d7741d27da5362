"""Functions with many temporaries for each row, evaluated a few rows at a time with their derivatives.

A quadrature rule makes tens to thousands of numbers out of one. Taken a block at a time, with the derivatives computed on the
spot, they stay in the cache, and neither value nor gradient needs more memory than its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ENTRIES = 1 << 17
"""How many temporaries a block has: a megabyte in float64."""


def by_blocks(function: Callable[..., Tensor], nodes_per_row: int, *parts: Tensor) -> Tensor:
    """function(*parts) (n,) for a function that treats rows apart, differentiable once in every part.

    Args:
        function: takes some rows of every part and gives one number for each row.
        nodes_per_row: about how many temporaries it makes for a row.
        parts: tensors with n rows.

    Cost: that of the function; memory is that of `parts` and of `BLOCK_ENTRIES` temporaries.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.blocks import by_blocks
        >>> x = torch.arange(3.0, requires_grad=True)
        >>> by_blocks(torch.square, 1, x).sum().backward()
        >>> x.grad.tolist()
        [0.0, 2.0, 4.0]
    """
    size = max(1, BLOCK_ENTRIES // nodes_per_row)
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return _Blocks.apply(function, size, *parts)
    return torch.cat([function(*block) for block in _split(size, parts)])


def _split(size: int, parts: Sequence[Tensor]) -> Iterable[tuple[Tensor, ...]]:
    return zip(*(part.split(size) for part in parts), strict=True)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function: Callable, size: int, *parts: Tensor) -> Tensor:
        values, slopes = [], []
        for block in _split(size, parts):
            leaves = [part.detach().requires_grad_() for part in block]
            with torch.enable_grad():
                value = function(*leaves)
                slopes.append(torch.autograd.grad(value.sum(), leaves))
            values.append(value.detach())
        ctx.save_for_backward(*(torch.cat(column) for column in zip(*slopes, strict=True)))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx, by_value: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        return None, None, *(by_value.reshape(-1, *[1] * (slope.dim() - 1)) * slope for slope in slopes)
