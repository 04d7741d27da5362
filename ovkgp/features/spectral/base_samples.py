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
CHUNK_NORMALS = 100_000  # number of normal numbers that are skipped at once


def check_sampler(sampler: str, pair) -> None:
    """Check that `sampler` is known, and not "orthogonal" for a distribution that is not rotation-invariant."""
    if check_one_of("sampler", sampler, SAMPLERS) == "orthogonal" and not pair.isotropic:
        raise SpectralError(
            'sampler="orthogonal" is biased if the distribution of frequencies is not rotation-invariant, as for this kernel. Use sampler="qmc" or sampler="iid".'
        )


def normal_scores(sampler: str, rows: range, pair: SpectralPair, key: tuple[int, ...]) -> Tensor:
    """Return rows (len(rows), base_dim), float64, of the sequence named by `key` = (seed, map, term).

    Complexity: O(len(rows) d), and O(len(rows) d² + rows.stop d) time for "orthogonal"; memory for the rows only.
    """
    if sampler == "qmc":
        uniforms = sobol_points(len(rows), pair.base_dim, _generator(key), rows.start)
    else:
        uniforms = _uniforms(rows, pair.base_dim, key)
    scores = ndtri(uniforms)
    if sampler == "orthogonal":
        scores = _orthogonalize(scores, pair.num_dims or pair.base_dim, rows, key)
    return torch.from_numpy(scores)


def _generator(key: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key[0], spawn_key=key[1:])))


def _uniforms(rows: range, width: int, key: tuple[int, ...]) -> np.ndarray:
    """Return rows (len(rows), width) of a sequence of uniforms; one uniform is one step of the bit generator."""
    rng = _generator(key)
    rng.bit_generator.advance(rows.start * width)
    return _clip_to_open_cube(rng.random((len(rows), width)))


def sobol_points(num_rows: int, num_dims: int, rng: np.random.Generator, first: int = 0) -> np.ndarray:
    """Return the scrambled Sobol points (num_rows, num_dims) from number `first`, strictly inside the unit cube."""
    engine = qmc.Sobol(num_dims, scramble=True, rng=rng)
    if first:
        return _clip_to_open_cube(engine.fast_forward(first).random(num_rows))
    power = max(num_rows - 1, 0).bit_length()  # a power of two at a time, as the sequence is balanced
    return _clip_to_open_cube(engine.random_base2(power)[:num_rows])


def _clip_to_open_cube(uniforms: np.ndarray) -> np.ndarray:
    return np.clip(uniforms, MIN_UNIFORM, 1 - 2**-53)


def _orthogonalize(scores: np.ndarray, d: int, rows: range, key: tuple[int, ...]) -> np.ndarray:
    """Make each run of d rows of the sequence orthogonal, keeping the norm of every row."""
    runs, rng = range(rows.start // d, -(-rows.stop // d)), _generator((*key, 1))
    skipped = runs.start * d * d  # a normal takes an unknown number of steps of the bit generator
    for first in range(0, skipped, CHUNK_NORMALS):
        rng.standard_normal(min(CHUNK_NORMALS, skipped - first))
    q, r = np.linalg.qr(rng.standard_normal((len(runs), d, d)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    norms, first = np.linalg.norm(scores[:, :d], axis=1, keepdims=True), rows.start - runs.start * d
    return np.concatenate([norms * q.reshape(-1, d)[first : first + len(rows)], scores[:, d:]], axis=1)
