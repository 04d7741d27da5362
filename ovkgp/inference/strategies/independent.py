"""Strategy for independent outputs: p problems of one output each, on the rows where it is observed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference.model.mean_noise import MeanColumn, Model, NoiseEntry
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import IndependentPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut, expand_rows
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.features import FeatureStrategy, check_every_output
from ovkgp.kernels import IndependentKernel

CHUNK_ROWS = 1 << 16  # rows that are split into outputs together


class IndependentStrategy:
    """One strategy per output, selected by `choose(model, data)`."""

    name = "independent"
    requirement = 'an IndependentKernel and noise that is independent between outputs. Use strategy="auto".'

    def __init__(self, choose: Callable):
        self.choose = choose

    def supports(self, model: Model, data: Observations | None) -> bool:
        """Whether neither the kernel nor the noise couples the outputs; None is a stream of data."""
        is_known = data is not None and data.noise is not None
        return isinstance(model.kernel, IndependentKernel) and (model.noise.is_diagonal or is_known)

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        first, *rest = (strategy.log_evidence(*problem) for strategy, *problem in self._problems(model, data))
        return sum(rest, first)

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> IndependentPosterior:
        """Compute the posterior of a frozen model."""
        return IndependentPosterior(
            [strategy.condition(*problem, num_landmarks) for strategy, *problem in self._problems(model, data)]
        )

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        parts = []
        for a, (strategy, *problem) in enumerate(self._problems(model, data)):
            parts.append(strategy.leave_one_out(*problem).expand_rows(data.observed[:, a]))
        return LeaveOneOut(*(torch.cat(fields, -1) for fields in zip(*parts, strict=True)))

    def leave_groups_out(self, model: Model, data: Observations, groups: Tensor) -> LeaveGroupOut:
        """Compute the density of each group as the product of those of its outputs."""
        mean, std = (torch.full_like(data.Y, torch.nan, dtype=torch.float64) for _ in range(2))
        log_density, quadratic = (mean.new_zeros(int(groups.max()) + 1) for _ in range(2))
        for a, (strategy, *problem) in enumerate(self._problems(model, data)):
            rows = data.observed[:, a]
            labels, index = groups[rows].unique(return_inverse=True)
            part = strategy.leave_groups_out(*problem, index)
            mean[rows, a], std[rows, a] = part.mean.squeeze(-1), part.std.squeeze(-1)
            log_density[labels] += part.log_density
            quadratic[labels] += part.quadratic
        return LeaveGroupOut(mean, std, log_density, quadratic)

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        """Compute the whitened residuals of each output."""
        found = [strategy.whitened_residuals(*problem) for strategy, *problem in self._problems(model, data)]
        return torch.cat([expand_rows(part, data.observed[:, a]) for a, part in enumerate(found)], -1)

    def statistics(self, model: Model, data: Observations, into: OutputStatistics | None = None) -> OutputStatistics:
        """Compute the statistics of each output with its part of the feature map, and add them to `into`."""
        models = [output_model(model, a) for a in range(data.num_outputs)]
        into = OutputStatistics((Statistics.empty(),) * len(models)) if into is None else into
        for chunk in data.chunks(CHUNK_ROWS):
            parts = (_output_statistics(part, chunk.output(a)) for a, part in enumerate(models))
            into = into + OutputStatistics(tuple(parts))
        return into

    def log_evidence_from_statistics(self, model: Model, statistics: OutputStatistics) -> Tensor:
        """Compute log p(Y) from statistics."""
        first, *rest = (
            FeatureStrategy().log_evidence_from_statistics(*problem)
            for problem in _statistics_problems(model, statistics)
        )
        return sum(rest, first)

    def condition_on_statistics(
        self, model: Model, statistics: OutputStatistics, num_landmarks: int = 0
    ) -> IndependentPosterior:
        """Compute the posterior from statistics."""
        problems = _statistics_problems(model, statistics)
        return IndependentPosterior(
            [FeatureStrategy().condition_on_statistics(*problem, num_landmarks) for problem in problems]
        )

    def _problems(self, model: Model, data: Observations):
        for a in range(data.num_outputs):
            part, part_data = output_model(model, a), data.output(a)
            yield self.choose(part, part_data), part, part_data


def _output_statistics(model: Model, data: Observations) -> Statistics:
    return FeatureStrategy().statistics(model, data) if data.num_rows else Statistics.empty()


def _statistics_problems(model: Model, statistics: OutputStatistics) -> list[tuple[Model, Statistics]]:
    check_every_output(statistics)
    return [(output_model(model, a), part) for a, part in enumerate(statistics.parts)]


def output_model(model: Model, index: int) -> Model:
    """Make the model of one output, sharing the parameters of the whole."""
    kernel = model.kernel.kernels[index]
    features = model.features
    if features is not None:
        features = features.part(index, kernel) if isinstance(features, ORFF) else features.over(kernel)
    return Model(kernel, MeanColumn(model.mean, index), NoiseEntry(model.noise, index), features)
