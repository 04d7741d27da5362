"""Small quadratics for tests of weights constrained to balls."""

import torch


def psd(size, seed, rank=None):
    """Return a positive semi-definite matrix of the given rank."""
    factor = torch.randn(size, rank or size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return factor @ factor.mT


def vector(size, seed=5):
    """Return a standard normal vector."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
