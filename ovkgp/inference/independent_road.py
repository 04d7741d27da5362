"""Outputs that share nothing but, perhaps, a parameter: p problems of one output each, on the rows where it was seen."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference.data import Observations
from ovkgp.inference.independent_posterior import IndependentPosterior
from ovkgp.inference.leave_one_out import LeaveOneOut
from ovkgp.inference.means import MeanColumn
from ovkgp.inference.model import Model
from ovkgp.inference.noise import NoiseEntry


class IndependentRoad:
    """One road for each output.

    Args:
        choose: model, data ↦ the road of one output.
    """

    name = "independent"

    def __init__(self, choose: Callable):
        self.choose = choose

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        first, *rest = (road.log_evidence(*problem) for road, *problem in self._problems(model, data))
        return sum(rest, first)

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> IndependentPosterior:
        """The posterior; `model` is frozen."""
        return IndependentPosterior(
            [road.condition(*problem, num_landmarks) for road, *problem in self._problems(model, data)]
        )

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        parts = []
        for a, (road, *problem) in enumerate(self._problems(model, data)):
            parts.append(road.leave_one_out(*problem).spread(data.seen[:, a]))
        return LeaveOneOut(*(torch.cat(fields, -1) for fields in zip(*parts, strict=True)))

    def _problems(self, model: Model, data: Observations):
        for a in range(data.num_outputs):
            part, alone = output_model(model, a), data.output(a)
            yield self.choose(part, alone), part, alone


def output_model(model: Model, index: int) -> Model:
    """The model of one output, sharing the parameters of the whole."""
    kernel = model.kernel.kernels[index]
    features = model.features
    if features is not None:
        features = features.part(index, kernel) if isinstance(features, ORFF) else features.over(kernel)
    return Model(kernel, MeanColumn(model.mean, index), NoiseEntry(model.noise, index), features)
