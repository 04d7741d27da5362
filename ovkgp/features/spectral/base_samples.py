"""The base noise of a feature map: normal scores of uniforms, iid, orthogonal or quasi-Monte Carlo.

One row makes one frequency. Every sampler is a fixed infinite sequence given its seed: more rows repeat the first ones,
so that a feature map can grow (BT-08) or be regenerated (BT-93).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import qmc
from torch import Tensor

from ovkgp.checks import check_one_of
from ovkgp.exceptions import SpectralError
from ovkgp.kernels.spectral import SpectralPair

SAMPLERS = ("iid", "orthogonal", "qmc")
MIN_UNIFORM = 2.0**-54


def check_sampler(sampler: str, pair) -> None:
    """Check that `sampler` is known, and not "orthogonal" for a distribution that is not rotation-invariant."""
    if check_one_of("sampler", sampler, SAMPLERS) == "orthogonal" and not pair.isotropic:
        raise SpectralError(
            'sampler="orthogonal" is biased if the distribution of frequencies is not rotation-invariant, as for this kernel. Use sampler="qmc" or sampler="iid".'
        )


def normal_scores(sampler: str, num_rows: int, pair: SpectralPair, key: tuple[int, ...]) -> Tensor:
    """Return the first rows (num_rows, base_dim), float64, of the sequence named by `key` = (seed, block, term)."""
    rng = np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=key[1:]))
    if sampler == "qmc":
        uniforms = sobol_points(num_rows, pair.base_dim, rng)
    else:
        uniforms = _clip_to_open_cube(rng.random((num_rows, pair.base_dim)))
    scores = ndtri(uniforms)
    if sampler == "orthogonal":
        scores = _orthogonalize(scores, pair.num_dims or pair.base_dim, key)
    return torch.from_numpy(scores)


def sobol_points(num_rows: int, num_dims: int, rng: np.random.Generator) -> np.ndarray:
    """Return the first scrambled Sobol points (num_rows, num_dims), strictly inside the unit cube."""
    power = max(num_rows - 1, 0).bit_length()  # a power of two at a time, as the sequence is balanced
    return _clip_to_open_cube(qmc.Sobol(num_dims, scramble=True, rng=rng).random_base2(power)[:num_rows])


def _clip_to_open_cube(uniforms: np.ndarray) -> np.ndarray:
    return np.clip(uniforms, MIN_UNIFORM, 1 - 2**-53)


def _orthogonalize(scores: np.ndarray, d: int, key: tuple[int, ...]) -> np.ndarray:
    """Make each run of d rows orthogonal, keeping the norm of every row."""
    rng = np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=(*key[1:], 1)))
    blocks = -(-len(scores) // d)
    q, r = np.linalg.qr(rng.standard_normal((blocks, d, d)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    norms = np.linalg.norm(scores[:, :d], axis=1, keepdims=True)
    return np.concatenate([norms * q.reshape(-1, d)[: len(scores)], scores[:, d:]], axis=1)
