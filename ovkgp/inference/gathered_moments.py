"""Where the outputs of gathered data lie and how much they vary: mean and covariance from statistics alone.

Exact where the statistics keep them (complete outputs, with a constant in the mean); otherwise good enough for a scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.inference.output_statistics import OutputStatistics
from ovkgp.inference.statistics import Statistics

MOST_LANDMARKS = 100
"""How many inputs stand for all of them."""


def output_moments(statistics: Statistics | OutputStatistics, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (p,) and the covariance (p, p) of the outputs.

    Without a constant in the mean the level is taken for zero. Statistics that are divided by the noise know the
    variances relative to it: that of known variances on average, or the model's.

    Args:
        statistics: not empty.
        noise: Σ (p, p).

    Cost: O(p³).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.gathered_moments import output_moments
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, features=ORFF(kernel, 10, random_state=0))
        >>> mean, covariance = output_moments(gp.statistics([[0.0], [1.0]], [[1.0], [5.0]]), gp.noise_model.matrix())
        >>> mean.tolist(), covariance.tolist()
        ([3.0], [[4.0]])
    """
    if isinstance(statistics, OutputStatistics):
        pairs = [output_moments(part, noise[a : a + 1, a : a + 1]) for a, part in enumerate(statistics.parts)]
        return torch.cat([mean for mean, _ in pairs]), torch.block_diag(*(covariance for _, covariance in pairs))
    rest = statistics.gram[..., statistics.num_waves :, statistics.num_waves :]
    make = {"shared": _shared, "by_output": _by_output, "whitened": _whitened}[statistics.layout]
    return make(statistics, rest, noise.detach())


def _shared(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    b, n = statistics.num_basis, statistics.num_rows
    mean = rest[0, b:] / n if b else rest.new_zeros(statistics.num_outputs)
    return mean, rest[b:, b:] / n - torch.outer(mean, mean)


def _by_output(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    square = rest[:, -1, -1]
    if statistics.num_basis:
        mean = rest[:, 0, -1] / rest[:, 0, 0]
        return mean, torch.diag(square / rest[:, 0, 0] - mean.square())
    variances = square / statistics.num_seen
    return torch.zeros_like(square), torch.diag(
        variances * _level(statistics, noise) if statistics.weighted else variances
    )


def _whitened(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    p, square = statistics.num_outputs, rest[-1, -1]
    mean = rest.new_zeros(p)
    if statistics.num_basis:
        mean = torch.linalg.solve(rest[:p, :p], rest[:p, -1])
        square = square - mean @ rest[:p, -1]
    return mean, torch.diag(square / statistics.num_seen.sum() * _level(statistics, noise))


def _level(statistics: Statistics, noise: Tensor) -> Tensor:
    """The variances (p,) that the rows were divided by, on average."""
    is_known = bool((statistics.noise_sum > 0).any())
    return statistics.noise_sum / statistics.num_seen if is_known else noise.diagonal()


def stand_in(statistics: Statistics | OutputStatistics, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Data (n, d), (n, p) with inputs like the landmarks and outputs of the same mean and covariance: they tell the scales
    of the data to what asks for data, and nothing else.

    Args:
        statistics, noise: as for `output_moments`.
    """
    mean, covariance = output_moments(statistics, noise)
    values, vectors = torch.linalg.eigh(covariance)
    p = len(mean)
    steps = (vectors * (p * values.clamp_min(0)).sqrt()).mT
    Y = torch.cat([mean + steps, mean - steps])
    parts = statistics.parts if isinstance(statistics, OutputStatistics) else (statistics,)
    X = torch.cat([part.landmarks.X[:MOST_LANDMARKS] for part in parts]).double()
    return X.repeat(len(Y), 1), Y.repeat_interleave(len(X), 0)
