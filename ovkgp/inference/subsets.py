"""A random subset of the rows that is large enough to train hyperparameters on."""

from __future__ import annotations

import numpy as np
import torch

from ovkgp.features.noise import as_seed
from ovkgp.inference.data import Observations
from ovkgp.kernels.checks import whole_number

FEWEST = 50
"""An output keeps at least so many observed entries in the subset, where it has them; fewer where there are so many outputs
that this would more than double the rows."""


def training_subset(data: Observations, num_rows: int | None, random_state=None) -> Observations:
    """`num_rows` random rows, in their order, and at most as many again for outputs that are rarely observed.

    Args:
        data: the observations.
        num_rows: how many; None for all of them.
        random_state: as in scikit-learn.

    Example:
        >>> import torch
        >>> from ovkgp.inference.data import observations
        >>> from ovkgp.inference.subsets import training_subset
        >>> data = observations(torch.arange(100.0), torch.zeros(100, 2), num_outputs=2)
        >>> training_subset(data, 30, random_state=0).num_rows
        30
    """
    if num_rows is None or data.num_rows <= whole_number("training_rows", num_rows):
        return data
    rows = torch.from_numpy(random_rows(data.seen.cpu().numpy(), num_rows, random_state))
    return data.rows(rows.to(data.X.device))


def random_rows(seen: np.ndarray, num_rows: int, random_state=None) -> np.ndarray:
    """The sorted indices of `num_rows` random rows of `seen` (n, p); a rarely observed output brings its own along."""
    order = np.random.default_rng(as_seed(random_state)).permutation(len(seen))
    order = order[seen[order].any(1)]
    chosen, rest = [order[:num_rows]], order[num_rows:]
    counts, fewest = seen[chosen[0]].sum(0), min(FEWEST, max(num_rows // seen.shape[1], 1))
    for output in np.flatnonzero(counts < fewest):
        chosen.append(rest[seen[rest, output]][: fewest - counts[output]])
    return np.unique(np.concatenate(chosen))
