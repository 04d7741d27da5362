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
from ovkgp.inference.strategies.features import FeatureStrategy

CHUNK_ROWS = 1 << 16
"""Rows that are taken apart into outputs together."""


class IndependentStrategy:
    """One road for each output.

    Args:
        choose: model, data ↦ the road of one output.
    """

    name = "independent"

    def __init__(self, choose: Callable):
        self.choose = choose

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        first, *rest = (strategy.log_evidence(*problem) for strategy, *problem in self._problems(model, data))
        return sum(rest, first)

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> IndependentPosterior:
        """The posterior; `model` is frozen."""
        return IndependentPosterior(
            [strategy.condition(*problem, num_landmarks) for strategy, *problem in self._problems(model, data)]
        )

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        parts = []
        for a, (strategy, *problem) in enumerate(self._problems(model, data)):
            parts.append(strategy.leave_one_out(*problem).spread(data.observed[:, a]))
        return LeaveOneOut(*(torch.cat(fields, -1) for fields in zip(*parts, strict=True)))

    def statistics(self, model: Model, data: Observations, into: OutputStatistics | None = None) -> OutputStatistics:
        """The statistics of each output with its own part of the feature map, added to others."""
        models = [output_model(model, a) for a in range(data.num_outputs)]
        for chunk in data.chunks(CHUNK_ROWS):
            found = OutputStatistics(tuple(_statistics(part, chunk.output(a)) for a, part in enumerate(models)))
            into = found if into is None else into + found
        return into

    def log_evidence_of(self, model: Model, statistics: OutputStatistics) -> Tensor:
        """log p(Y) from statistics."""
        first, *rest = (FeatureStrategy().log_evidence_of(*problem) for problem in _gathered(model, statistics))
        return sum(rest, first)

    def condition_on(self, model: Model, statistics: OutputStatistics, num_landmarks: int = 0) -> IndependentPosterior:
        """The posterior from statistics."""
        problems = _gathered(model, statistics)
        return IndependentPosterior([FeatureStrategy().condition_on(*problem, num_landmarks) for problem in problems])

    def _problems(self, model: Model, data: Observations):
        for a in range(data.num_outputs):
            part, alone = output_model(model, a), data.output(a)
            yield self.choose(part, alone), part, alone


def _statistics(model: Model, data: Observations) -> Statistics:
    return FeatureStrategy().statistics(model, data) if data.num_rows else Statistics.empty()


def _gathered(model: Model, statistics: OutputStatistics) -> list[tuple[Model, Statistics]]:
    if unobserved := (statistics.num_observed == 0).nonzero().flatten().tolist():
        raise InputError(
            f"nobody observed output {', '.join(map(str, unobserved))} in these statistics: add data, or leave it out."
        )
    return [(output_model(model, a), part) for a, part in enumerate(statistics.parts)]


def output_model(model: Model, index: int) -> Model:
    """The model of one output, sharing the parameters of the whole."""
    kernel = model.kernel.kernels[index]
    features = model.features
    if features is not None:
        features = features.part(index, kernel) if isinstance(features, ORFF) else features.over(kernel)
    return Model(kernel, MeanColumn(model.mean, index), NoiseEntry(model.noise, index), features)
