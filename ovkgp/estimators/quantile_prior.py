"""The mean of the prior of quantile curves: b(θ) = s Φ⁻¹(θ), the quantiles of Gaussian noise of standard deviation s.

A Gaussian process on the inputs says what s is. What is learned is then how the data differ from that noise, which is nothing at
all where they do not, and far from the data the curves keep a spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.estimators.task_state import storable_part

NOISES = torch.logspace(-8, 3, 89, dtype=torch.float64)
"""c = σ²/a², the noise of the Gaussian process as a part of the variance of its signal."""
LARGEST_GUESS = 0.1
NOISE_CENTRE, NOISE_WIDTH = -1.0, 1.5
"""Prior mean and standard deviation of log σ² of a target of variance one: few rows, or an outlier, do not make it vanish."""


@storable_part
@dataclass(frozen=True)
class GaussianQuantiles:
    """b(θ) = s Φ⁻¹(θ).

    Args:
        scale: s ≥ 0.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantile_prior import GaussianQuantiles
        >>> GaussianQuantiles(2.0)(torch.tensor([0.5, 0.975]).double())
        tensor([0.0000, 3.9199], dtype=torch.float64)
    """

    scale: float

    def __call__(self, tasks: Tensor) -> Tensor:
        return self.scale * torch.special.ndtri(tasks)

    def slopes(self, tasks: Tensor) -> Tensor:
        """∂b/∂θ = s √(2π) exp(Φ⁻¹(θ)²/2)."""
        return self.scale * math.sqrt(2 * math.pi) * (torch.special.ndtri(tasks) ** 2 / 2).exp()

    def variance(self, tasks: Tensor, count: float) -> Tensor:
        """s²/N (1 + Φ⁻¹(θ)²/2): how far N observations leave the mean and the standard deviation of Gaussian noise unknown, (m,)."""
        return self.scale**2 / count * (1 + torch.special.ndtri(tasks) ** 2 / 2)

    def errors(self, tasks: Tensor, count: float, normals: Tensor) -> Tensor:
        """Draws (k, m) of that error from normals (k, 2): one for the mean and one for the standard deviation."""
        along = torch.stack([torch.ones_like(tasks), torch.special.ndtri(tasks) / math.sqrt(2)])
        return self.scale / math.sqrt(count) * normals @ along


@dataclass(frozen=True)
class GaussianScales:
    """Signal and noise of a Gaussian process with a given kernel.

    Args:
        signal: the variance a² of the signal.
        noise: σ².
    """

    signal: float
    noise: float

    @property
    def residual_scale(self) -> float:
        """s = σ."""
        return math.sqrt(self.noise)

    def lam(self, num_rows: float) -> float:
        """The λ of the pinball loss at which its curvature meets the prior as the noise does: 0.3 σ / (n a²).

        A squared loss has λ = σ²/(n a²); near its minimiser the pinball loss of Gaussian noise bends by its density there,
        which is about 0.3/σ over the levels. At most 0.1: of a standardised target, larger ones leave the curves to the prior,
        whose noise is Gaussian.
        """
        return min(0.3 * math.sqrt(self.noise) / (num_rows * self.signal), LARGEST_GUESS)


def gaussian_scales(inputs: Tensor, y: Tensor, weights: Tensor) -> GaussianScales:
    """The most probable signal and noise for y = a Φ w + σ ε with w ~ N(0, I): a Gaussian process in coordinates.

    Args:
        inputs: Φ (n, r).
        y: (n,).
        weights: how often each row is there, (n,).

    With ΦᵀNΦ = Q diag(v) Qᵀ, u = QᵀΦᵀN y and c = σ²/a², minus twice the log evidence is, but for a constant,
    N log(a² c) + Σ log(1 + v/c) where a² = (yᵀN y − Σ u²/(c + v)) / (N c); log σ² = log(a² c) has a normal prior.

    Cost: O(n r² + r³).

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantile_prior import gaussian_scales
        >>> x = torch.linspace(-1, 1, 200).double()
        >>> noise = 0.1 * torch.randn(200, generator=torch.Generator().manual_seed(0)).double()
        >>> scales = gaussian_scales(torch.stack([torch.ones_like(x), x], -1), 2 * x + noise, torch.ones_like(x))
        >>> bool(abs(scales.residual_scale - 0.1) < 0.02)
        True
    """
    weighed = weights[:, None] * inputs
    values, vectors = torch.linalg.eigh(inputs.T @ weighed)
    values, rotated = values.clamp_min(0.0), vectors.T @ (weighed.T @ y)
    count, square, c = weights.sum(), (weights * y**2).sum(), NOISES[:, None]
    explained = (rotated**2 / (c + values)).sum(-1)
    signals = (square - explained).clamp_min(1e-15 * square) / (count * NOISES)
    logs = (signals * NOISES).log()
    deviances = count * logs + torch.log1p(values / c).sum(-1) + ((logs - NOISE_CENTRE) / NOISE_WIDTH) ** 2
    best = int(deviances.argmin())
    return GaussianScales(float(signals[best]), float(signals[best] * NOISES[best]))
