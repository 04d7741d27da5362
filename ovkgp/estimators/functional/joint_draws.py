"""`JointDraws`, exact draws of random functions at the inputs at which they are evaluated, for kernels without random features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.posteriors.posterior import Posterior

JITTER = 1e-9  # added to the covariance, relative to its largest variance


class JointDraws:
    """k random functions with the joint distribution of a posterior: `draws(X)` is (k, n, p), the same values at repeated inputs.

    The standard normal variables of all inputs so far are kept; those of new inputs extend the Cholesky factor. Complexity:
    O((N p)³) for N different inputs.
    """

    def __init__(self, posterior: Posterior, k: int, seed: int):
        self._posterior, self._rng = posterior, np.random.default_rng(seed)
        self._index: dict[bytes, int] = {}
        self._rows: list[Tensor] = []
        self._normal = torch.zeros(k, 0, posterior.num_outputs, dtype=torch.float64)

    @torch.no_grad()
    def __call__(self, X: Tensor) -> Tensor:
        """Evaluate the functions at X (n, d)."""
        for row in X:
            if (key := row.numpy().tobytes()) not in self._index:
                self._index[key] = len(self._rows)
                self._rows.append(row)
                noise = self._rng.standard_normal((len(self._normal), 1, self._normal.shape[2]))
                self._normal = torch.cat([self._normal, torch.from_numpy(noise)], 1)
        found = self._posterior.predict(torch.stack(self._rows), "full")
        covariance = found.cov.clone()
        covariance.diagonal().add_(JITTER * covariance.diagonal().max().clamp_min(1e-300))
        deviations = self._normal.flatten(1) @ torch.linalg.cholesky(covariance).mT
        values = found.mean + deviations.view_as(self._normal)
        return values[:, [self._index[row.numpy().tobytes()] for row in X]]
