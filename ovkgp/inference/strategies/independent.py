"""Outputs that share nothing but, perhaps, a parameter: p problems of one output each, on the rows where it was seen."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.inference.model.mean_noise import MeanColumn, Model, NoiseEntry
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import IndependentPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.features import FeatureRoad

ROWS_AT_ONCE = 1 << 16
"""Rows that are taken apart into outputs together."""


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

    def statistics(self, model: Model, data: Observations, into: OutputStatistics | None = None) -> OutputStatistics:
        """The statistics of each output with its own part of the feature map, added to others."""
        models = [output_model(model, a) for a in range(data.num_outputs)]
        for chunk in data.chunks(ROWS_AT_ONCE):
            found = OutputStatistics(tuple(_statistics(part, chunk.output(a)) for a, part in enumerate(models)))
            into = found if into is None else into + found
        return into

    def log_evidence_of(self, model: Model, statistics: OutputStatistics) -> Tensor:
        """log p(Y) from statistics."""
        first, *rest = (FeatureRoad().log_evidence_of(*problem) for problem in _gathered(model, statistics))
        return sum(rest, first)

    def condition_on(self, model: Model, statistics: OutputStatistics, num_landmarks: int = 0) -> IndependentPosterior:
        """The posterior from statistics."""
        problems = _gathered(model, statistics)
        return IndependentPosterior([FeatureRoad().condition_on(*problem, num_landmarks) for problem in problems])

    def _problems(self, model: Model, data: Observations):
        for a in range(data.num_outputs):
            part, alone = output_model(model, a), data.output(a)
            yield self.choose(part, alone), part, alone


def _statistics(model: Model, data: Observations) -> Statistics:
    return FeatureRoad().statistics(model, data) if data.num_rows else Statistics.empty()


def _gathered(model: Model, statistics: OutputStatistics) -> list[tuple[Model, Statistics]]:
    if unseen := (statistics.num_seen == 0).nonzero().flatten().tolist():
        raise InputError(
            f"nobody observed output {', '.join(map(str, unseen))} in these statistics: add data, or leave it out."
        )
    return [(output_model(model, a), part) for a, part in enumerate(statistics.parts)]


def output_model(model: Model, index: int) -> Model:
    """The model of one output, sharing the parameters of the whole."""
    kernel = model.kernel.kernels[index]
    features = model.features
    if features is not None:
        features = features.part(index, kernel) if isinstance(features, ORFF) else features.over(kernel)
    return Model(kernel, MeanColumn(model.mean, index), NoiseEntry(model.noise, index), features)
