"""How far random features are from their kernel, measured: beside the bounds, what really happens.

The error of one map is the largest operator norm ‖Φ(x)Φ(z)ᵀ − K(x, z)‖ over pairs of given points, divided by the largest
‖K(x, x)‖; it falls as D^(−1/2) with the number D of frequencies (BT-57).
"""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.noise import as_seed
from ovkgp.features.orff import ORFF
from ovkgp.kernels.checks import whole_number


def measured_error(
    kernel: Kernel, X: Tensor, num_frequencies: int, *, repeats: int = 5, sampler: str = "iid", random_state=None
) -> float:
    """The relative sup error of random features on the points X (n, d), averaged over several maps.

    Args:
        kernel: a kernel with random features, scalar or operator-valued.
        X: points; all pairs of them are looked at.
        num_frequencies: D.
        repeats: how many maps.
        sampler: as for `ORFF`; the bounds are for "iid".
        random_state: as in scikit-learn.

    Cost: O(repeats · (n p)² D r) time and O(n p D r) memory, for r columns of the kernel's factor.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import measured_error
        >>> X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> few, many = (measured_error(RBFKernel(ard_num_dims=2), X, D, random_state=0) for D in (100, 10_000))
        >>> 5 < few / many < 20
        True
    """
    if X.dim() != 2 or len(X) == 0:
        raise InputError(f"X holds points, (n, d) with n at least 1; got {tuple(X.shape)}.")
    num_frequencies, repeats = whole_number("num_frequencies", num_frequencies), whole_number("repeats", repeats)
    with torch.no_grad():
        exact = kernel(X).to_dense()
        size = block_norms(exact, len(X)).diagonal().max().item()
        seeds = np.random.SeedSequence(as_seed(random_state)).generate_state(repeats).tolist()
        errors = [
            _error(ORFF(kernel, num_frequencies, num_dims=X.shape[1], sampler=sampler, random_state=seed), X, exact)
            for seed in seeds
        ]
    return float(np.mean(errors)) / size


def _error(features: ORFF, X: Tensor, exact: Tensor) -> float:
    Phi = features(X).to_dense()
    return block_norms(Phi @ Phi.mT - exact, len(X)).max().item()


def block_norms(gram: Tensor, num_points: int) -> Tensor:
    """The spectral norm of every p × p block of a data-major (n·p) × (n·p) matrix, (n, n).

    Example:
        >>> import torch
        >>> from ovkgp.features.bounds.measured import block_norms
        >>> block_norms(torch.diag(torch.tensor([1.0, 3.0, 2.0, 5.0])), 2)
        tensor([[3., 0.],
                [0., 5.]])
    """
    blocks = gram.unflatten(0, (num_points, -1)).unflatten(2, (num_points, -1)).transpose(1, 2)
    return torch.linalg.matrix_norm(blocks, ord=2)
