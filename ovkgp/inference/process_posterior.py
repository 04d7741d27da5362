"""What exact and feature posteriors have in common: a process, its prior mean, and the noise of a new observation."""

from __future__ import annotations

from torch import Tensor

from ovkgp.inference.field_processes import FieldViews
from ovkgp.inference.means import OutputMean
from ovkgp.inference.posterior import Posterior
from ovkgp.inference.processes import Process


class ProcessPosterior(FieldViews, Posterior):
    """The posterior of a process that is, or is tied to, the observed one.

    Args:
        process: what is predicted.
        mean: the prior mean of the observed process; other processes have mean zero.
        output_noise: Σ (p, p) of a new observation.
        num_dims: d.
    """

    def __init__(self, process: Process, mean: OutputMean, output_noise: Tensor, num_dims: int):
        self.process, self.mean, self.output_noise = process, mean, output_noise
        self.num_outputs, self.num_dims = process.num_outputs, num_dims

    @property
    def noise(self) -> Tensor | None:
        return self.output_noise if self.process.is_observed else None

    def prior_mean(self, X: Tensor) -> Tensor:
        """m(X) (m, q); zero for a process that is not the observed one."""
        return self.mean(X) if self.process.is_observed else X.new_zeros(len(X), self.num_outputs)
