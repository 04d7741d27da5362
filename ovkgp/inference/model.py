"""What a road needs to know of a model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.features import FeatureMap
from ovkgp.inference.data import Observations
from ovkgp.inference.means import OutputMean
from ovkgp.inference.noise import OutputNoise


class Model(NamedTuple):
    """Kernel, mean, noise and, perhaps, a feature map of the kernel."""

    kernel: Kernel
    mean: OutputMean
    noise: OutputNoise
    features: FeatureMap | None = None

    def new_noise(self, data: Observations) -> Tensor:
        """Σ (p, p) of a new observation: the model's, or the average of the known variances for each output."""
        if data.noise is None:
            return self.noise.matrix().detach()
        seen = data.seen
        return torch.diag_embed((data.noise.double() * seen).sum(0) / seen.sum(0).clamp_min(1))
