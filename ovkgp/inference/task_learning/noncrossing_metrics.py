"""How much quantile curves cross: by their slopes, and by what each level falls below the one before it (LT-135)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import InputError


def falling_slope(slopes: Tensor) -> float:
    """mean_ij max(0, −∂_θ h(x_i)(θ_j)): 0 where no curve falls.

    Args:
        slopes: ∂_θ h (n, m) on a grid of levels, `TaskFunction.slopes`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.noncrossing_metrics import falling_slope
        >>> falling_slope(torch.tensor([[1.0, -0.5], [2.0, 1.0]]))
        0.125
    """
    return (-_table("slopes", slopes, 1)).clamp_min(0.0).mean().item()


def crossing_loss(quantiles: Tensor) -> float:
    """mean_i Σ_j max(0, q_ij − q_i,j+1), in the units of y: how far each level falls below the one before it.

    Args:
        quantiles: q (n, m) at increasing levels; m ≥ 2.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.noncrossing_metrics import crossing_loss
        >>> crossing_loss(torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 2.0]]))
        0.25
    """
    return (-_table("quantiles", quantiles, 2).diff(dim=-1)).clamp_min(0.0).sum(-1).mean().item()


def _table(name: str, values: Tensor, columns: int) -> Tensor:
    values = torch.as_tensor(values, dtype=torch.float64)
    if values.dim() != 2 or len(values) == 0 or values.shape[1] < columns or not bool(torch.isfinite(values).all()):
        raise InputError(
            f"{name} must be finite, one row an input and at least {columns} columns; got {tuple(values.shape)}."
        )
    return values
