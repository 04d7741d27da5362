"""Predicted distributions of a quantile regressor."""

from __future__ import annotations

import numpy as np
import torch

from ovkgp.inference.tasks.quantile_distribution import LevelDistribution


class QuantileDistribution:
    """Distributions of m observations from quantiles (m, k) at levels (k,), as NumPy arrays; see `LevelDistribution`."""

    def __init__(self, levels: np.ndarray, quantiles: np.ndarray):
        self._found = LevelDistribution(torch.from_numpy(levels), torch.from_numpy(quantiles))

    def __len__(self) -> int:
        return len(self._found)

    @property
    def levels(self) -> np.ndarray:
        """Levels (k,) of the quantiles."""
        return self._found.levels.numpy()

    @property
    def quantiles(self) -> np.ndarray:
        """Quantiles (m, k)."""
        return self._found.quantiles.numpy()

    @property
    def mean(self) -> np.ndarray:
        """Means (m,)."""
        return self._found.mean.numpy()

    @property
    def std(self) -> np.ndarray:
        """Standard deviations (m,)."""
        return self._found.std.numpy()

    def quantile(self, levels) -> np.ndarray:
        """Compute quantiles (m, q) at levels (q,), shared by all rows, or (m, q)."""
        return self._found.quantile(levels).numpy()

    def cdf(self, y) -> np.ndarray:
        """Compute P(Y ≤ y), (m, q), at y (q,), shared by all rows, or (m, q)."""
        return self._found.cdf(y).numpy()

    def density(self, y) -> np.ndarray:
        """Compute the density (m, q) at y (q,) or (m, q); infinite at an atom."""
        return self._found.density(y).numpy()

    def sample(self, num_samples: int, random_state=None) -> np.ndarray:
        """Draw independent samples (m, num_samples)."""
        return self._found.sample(num_samples, random_state).numpy()
