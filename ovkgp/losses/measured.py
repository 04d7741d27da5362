"""Losses between curves on the nodes of a measure, where entries may be missing."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.losses.base import CurveLoss
from ovkgp.losses.measures import TaskMeasure


class MeasuredLoss(CurveLoss):
    """A loss between curves that keeps its measure, and knows how to leave out the entries of weight 0.

    Args:
        measure: anything with `nodes` θ (m,) or (n, m) and `weights` η ≥ 0, (m,) or (n, m).
    """

    def __init__(self, measure: TaskMeasure):
        if not bool((measure.weights >= 0).all()):
            raise InputError("a weight of the task measure is negative or NaN: clip it, or the loss is not convex.")
        self.measure = measure
        missing = measure.weights == 0
        self._missing = missing if bool(missing.any()) else None

    @property
    def nodes(self) -> Tensor:
        return self.measure.nodes

    @property
    def weights(self) -> Tensor:
        return self.measure.weights

    def mean(self, values: Tensor) -> Tensor:
        """Σ_j η_j values_j, (n,); an entry without weight counts for nothing even where it is infinite or NaN."""
        values = self._without_missing(values)
        return values @ self.weights if self.weights.dim() == 1 else (self.weights * values).sum(-1)

    def _without_missing(self, x: Tensor) -> Tensor:
        """x (n, m) with 0 where the weight is 0."""
        return x if self._missing is None else x.masked_fill(self._missing, 0.0)

    def _keep_missing(self, x: Tensor, u: Tensor) -> Tensor:
        """x with the entries of u where the weight is 0."""
        return x if self._missing is None else torch.where(self._missing, u, x)
