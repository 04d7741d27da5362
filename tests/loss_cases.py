"""Every loss with tasks and targets that mean something to it, and small measures, for the tests of losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.losses import (
    CostSensitiveHinge,
    CurveEnvelope,
    CurveHuber,
    CurveInsensitive,
    Envelope,
    EpsilonInsensitive,
    Huber,
    IntegralLoss,
    LogCosh,
    Loss,
    OneClass,
    Pinball,
    PinballEnvelope,
    SmoothedHinge,
    SmoothedPinball,
    Square,
    TaskMeasure,
)

LEVELS, SIGNED = [0.15, 0.5, 0.9], [-0.6, 0.1, 0.8]
REALS, LABELS = [-0.7, 0.0, 1.3], [-1.0, 1.0]


@dataclass
class Case:
    """A loss, tasks (m,), and targets (k, 1)."""

    loss: Loss
    levels: list[float]
    points: list[float]

    def __str__(self) -> str:
        return repr(self.loss)

    @property
    def tasks(self) -> Tensor:
        return torch.tensor(self.levels, dtype=torch.float64)

    @property
    def targets(self) -> Tensor:
        return torch.tensor(self.points, dtype=torch.float64)[:, None]


CASES = [
    Case(Square(), LEVELS, REALS),
    Case(Pinball(), LEVELS, REALS),
    Case(SmoothedPinball(0.5), LEVELS, REALS),
    Case(PinballEnvelope(0.5), LEVELS, REALS),
    Case(CostSensitiveHinge(), SIGNED, LABELS),
    Case(CostSensitiveHinge("unit"), LEVELS, LABELS),
    Case(SmoothedHinge(0.4), SIGNED, LABELS),
    Case(OneClass(), LEVELS, REALS),
    Case(OneClass(0.3), LEVELS, REALS),
    Case(Huber(0.7), LEVELS, REALS),
    Case(EpsilonInsensitive(0.3), LEVELS, REALS),
    Case(LogCosh(2.0), LEVELS, REALS),
    Case(Envelope(CostSensitiveHinge("unit"), 0.4), LEVELS, LABELS),
    Case(Envelope(LogCosh(2.0), 0.4), LEVELS, REALS),
    Case(Envelope(EpsilonInsensitive(0.3), 0.4), LEVELS, REALS),
]

MEASURE = TaskMeasure([0.1, 0.3, 0.5, 0.9], [0.1, 0.4, 0.3, 0.2])


def curve_losses(measure=MEASURE):
    """One of each kind of loss between curves."""
    return [
        IntegralLoss(Pinball(), measure),
        IntegralLoss(SmoothedPinball(0.3), measure),
        IntegralLoss(LogCosh(2.0), measure),
        CurveEnvelope(IntegralLoss(Pinball(), measure), 0.2),
        CurveEnvelope(CurveHuber(0.7, 2, measure), 0.2),
        *(CurveHuber(0.7, p, measure) for p in (1, 1.5, 2, math.inf)),
        *(CurveInsensitive(0.4, p, measure) for p in (1, 2, 3, math.inf)),
    ]


def normal(*shape, seed=0, scale=1.0):
    """Normal numbers, float64."""
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
