"""Exact or approximate, and the feature map that goes with it."""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import KernelTypeError, OptionError, SpectralError
from ovkgp.features import ORFF, BlockedORFF, FeatureMap, Nystrom, spectral_pair
from ovkgp.inference.roads import DENSE_LIMIT
from ovkgp.kernels import components

SEPARABLE_LIMIT = 4000
"""Rows up to which a separable kernel with complete outputs is treated exactly."""


NUM_FEATURES = {"exact": 500, "orff": 500, "nystrom": 500, "variational": 200}
"""By approximation, how many frequencies, landmarks or inducing points num_frequencies="auto" is (those of an exact model where
rows are added to it)."""


def num_features(num_frequencies: int | str, approximation: str) -> int:
    """The number of frequencies, landmarks or inducing points: what was asked for, or what "auto" is."""
    return NUM_FEATURES[approximation] if num_frequencies == "auto" else num_frequencies


def choose_approximation(approximation: str, kernel: Kernel, Y: np.ndarray, noise: np.ndarray | None) -> str:
    """ "exact", "orff" or "nystrom": what was asked for, or what the size of Y (n, p) suggests."""
    if approximation != "auto":
        return approximation
    seen = np.isfinite(Y)
    is_plain = bool(seen.all()) and noise is None
    if seen.sum() <= DENSE_LIMIT or (components(kernel) is not None and is_plain and len(Y) <= SEPARABLE_LIMIT):
        return "exact"
    return feature_kind(approximation, kernel)


def feature_kind(approximation: str, kernel: Kernel) -> str:
    """ "nystrom" where that was asked for or the kernel has no spectral pair, else "orff"."""
    return "orff" if approximation != "nystrom" and _has_pair(kernel) else "nystrom"


def approximate(
    kernel: Kernel, approximation: str, X: Tensor, num_frequencies: int | str, seed: int
) -> FeatureMap | None:
    """The feature map of an approximation; None for the exact kernel."""
    if approximation == "exact":
        return None
    num_frequencies = num_features(num_frequencies, approximation)
    if approximation == "orff":
        return random_features(kernel, X.shape[1], num_frequencies, seed)
    distinct = torch.unique(X, dim=0)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(seed))
    return Nystrom(kernel, distinct[order[:num_frequencies]])


def random_features(
    kernel: Kernel, num_dims: int, num_frequencies: int, seed: int, block_size: int | None = None
) -> ORFF:
    """Random features of a kernel, orthogonal where its law allows; in blocks that are never stored where a size is given."""
    pair = spectral_pair(kernel, num_dims=num_dims)
    sampler = "orthogonal" if all(term.isotropic for term in pair.terms) else "iid"
    options = {"num_dims": num_dims, "sampler": sampler, "random_state": seed}
    if block_size is None:
        return ORFF(kernel, num_frequencies, **options)
    return BlockedORFF(kernel, num_frequencies, block_size, **options)


def _has_pair(kernel: Kernel) -> bool:
    try:
        spectral_pair(kernel)
    except (SpectralError, KernelTypeError):
        return False
    except OptionError:  # it has one, and only lacks the number of dimensions
        return True
    return True
