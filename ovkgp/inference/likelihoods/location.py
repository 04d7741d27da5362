"""Likelihoods y = f + s·e of a noise e with a fixed shape and a trained scale s: what they have in common.

The predictive mixture has mean m + s E[e] and variance v + s² Var[e]; its quantiles are found on its distribution function.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.inference.likelihoods.base import START_SHARE, refuse_values, require_outputs
from ovkgp.inference.likelihoods.entrywise import EntrywiseLikelihood, marginal
from ovkgp.inference.likelihoods.quantiles import continuous_quantile

NORMAL_MAD = 1.482602218505602
"""The standard deviation of a normal law whose median absolute deviation is one."""
INFINITE_UNIT_VARIANCE = 3.0
"""What an infinite variance of the noise at unit scale counts as when a scale is started."""


class LocationLikelihood(EntrywiseLikelihood):
    """y = f + s·e.

    Args:
        num_outputs: p.
        scale: s, a number or (p,), kept fixed; None trains one an output.
    """

    def __init__(self, num_outputs: int, scale=None):
        super().__init__(num_outputs)
        self._own("scale", scale, start=0.3)

    @property
    def scale(self) -> Tensor:
        """s (p,), in the units of the outputs."""
        return self._value("scale")

    @scale.setter
    def scale(self, value) -> None:
        self._place("scale", value)

    @property
    def is_real(self) -> Tensor:
        return torch.ones(self.num_outputs, dtype=torch.bool)

    @abstractmethod
    def unit_moments(self) -> tuple[Tensor, Tensor]:
        """E[e] and Var[e] at scale one, (p,)."""

    def check(self, Y: Tensor) -> None:
        refuse_values(require_outputs(Y, self.num_outputs), torch.isinf(Y), self.name, "finite numbers")

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        (shift, spread), mean = self.unit_moments(), mean.double()
        return mean + self.scale * shift, marginal(mean, variance) + self.scale.square() * spread

    def noise_covariance(self) -> Tensor:
        return torch.diag_embed(self.scale.square() * self.unit_moments()[1])

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        """Found on `cdf`, starting from an interval that is as wide as the latent law and the scale together."""
        width = (marginal(mean, variance) + self.scale.square()).sqrt()
        return continuous_quantile(lambda y: self.cdf(y, mean, variance), q, mean.double(), width)

    @torch.no_grad()
    def start(self, Y: Tensor) -> None:
        """A scale with which the noise has a tenth of each output's (robust) variance."""
        if self._is_trained("scale"):
            spread = column_spread(require_outputs(Y, self.num_outputs))
            unit = self.unit_moments()[1].nan_to_num(posinf=INFINITE_UNIT_VARIANCE)
            self.scale = spread.to(unit.device) * (START_SHARE / unit).sqrt()

    def latent_start(self, Y: Tensor) -> Tensor:
        """The median of each output."""
        return column_statistic(require_outputs(Y, self.num_outputs), lambda y, dim: y.nanmedian(dim).values)


def column_statistic(Y: Tensor, statistic: Callable[..., Tensor]) -> Tensor:
    """A statistic of each column of Y (n, p) that ignores NaN; 0 for a column in which there is nothing else."""
    return statistic(Y, dim=0).nan_to_num(0.0)


def column_spread(Y: Tensor, robust: bool = True) -> Tensor:
    """The standard deviation (p,) of each column; by the median absolute deviation where that is not zero. 1 if constant."""
    centred = Y - Y.nanmean(0)
    spread = centred.square().nanmean(0).sqrt()
    if robust:
        deviation = NORMAL_MAD * (Y - Y.nanmedian(0).values).abs().nanmedian(0).values
        spread = torch.where(deviation > 0, deviation, spread)
    return torch.where(spread > 1e-12 * Y.abs().nan_to_num(0.0).amax(0), spread, 1.0)
