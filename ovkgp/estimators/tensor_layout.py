"""Tensors by name, with the order of their axes in memory.

A file holds every tensor row by row. A Cholesky factor from LAPACK lies column by column, and products with it are summed in
another order: the last bits of a prediction depend on it. So the order of the axes is stored beside the numbers.
"""

from __future__ import annotations

from torch import Tensor


def unrolled(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Each tensor with its axes in the order in which they lie in memory, and that order where it is not the usual one.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.tensor_layout import rolled, unrolled
        >>> tensors, orders = unrolled({"columns": torch.ones(2, 3).mT, "rows": torch.ones(2, 3)})
        >>> orders, rolled(tensors, orders)["columns"].stride()
        ({'columns': [1, 0]}, (1, 3))
    """
    orders = {name: order for name, tensor in tensors.items() if (order := _order(tensor)) is not None}
    return {name: t.permute(orders[name]) if name in orders else t for name, t in tensors.items()}, orders


def rolled(tensors: dict[str, Tensor], orders: dict[str, list[int]]) -> dict[str, Tensor]:
    """The inverse of `unrolled`, each tensor in memory of its own, aligned as torch aligns what it computes."""
    return {name: _turned(tensor, orders.get(name)).clone() for name, tensor in tensors.items()}


def _order(tensor: Tensor) -> list[int] | None:
    """The axes from the slowest to the fastest; None where they are in order, or where the tensor has gaps."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return None if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


def _turned(tensor: Tensor, order: list[int] | None) -> Tensor:
    return tensor if order is None else tensor.permute([order.index(axis) for axis in range(tensor.dim())])


def prefixed(**groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """Groups of tensors as one: `name` of group `prefix` becomes `prefix.name`."""
    return {f"{prefix}.{name}": tensor for prefix, group in groups.items() for name, tensor in group.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One group out of `prefixed`."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
