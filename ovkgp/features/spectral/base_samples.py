"""The base noise of a feature map: normal scores of uniforms, iid, orthogonal or quasi-Monte-Carlo.

One row makes one frequency. Every sampler is a fixed infinite sequence given its seed: asking for
more rows repeats the first ones, which is what lets a feature map grow (BT-08) or be made again
from a seed (BT-93). Frequencies are smooth functions of these rows and of the hyperparameters.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import qmc
from torch import Tensor

from ovkgp.exceptions import OptionError, SpectralError
from ovkgp.features.spectral.pair import SpectralPair

SAMPLERS = ("iid", "orthogonal", "qmc")
_SMALLEST = 2.0**-54


def check_sampler(sampler: str, pair) -> None:
    """Refuse unknown samplers, and orthogonal sampling of laws that are not rotation-invariant, where it is biased."""
    if sampler not in SAMPLERS:
        raise OptionError(f"sampler must be one of {', '.join(SAMPLERS)}; got {sampler!r}.")
    if sampler == "orthogonal" and not pair.isotropic:
        raise SpectralError(
            "orthogonal sampling is biased for laws of frequencies that are not rotation-invariant, such as those of "
            'this kernel; use sampler="qmc" or sampler="iid".'
        )


def normal_scores(sampler: str, num_rows: int, pair: SpectralPair, key: tuple[int, ...]) -> Tensor:
    """The first rows (num_rows, base_dim), float64, of the sequence named by `key` = (seed, block, term)."""
    rng = np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=key[1:]))
    if sampler == "qmc":
        uniforms = sobol_points(num_rows, pair.base_dim, rng)
    else:
        uniforms = _inside(rng.random((num_rows, pair.base_dim)))
    scores = ndtri(uniforms)
    if sampler == "orthogonal":
        scores = _orthogonalised(scores, pair.num_dims or pair.base_dim, key)
    return torch.from_numpy(scores)


def sobol_points(num_rows: int, num_dims: int, rng: np.random.Generator) -> np.ndarray:
    """The first scrambled Sobol points (num_rows, num_dims), strictly inside the unit cube."""
    power = max(num_rows - 1, 0).bit_length()  # a power of two at a time, as the sequence is balanced
    return _inside(qmc.Sobol(num_dims, scramble=True, rng=rng).random_base2(power)[:num_rows])


def _inside(uniforms: np.ndarray) -> np.ndarray:
    return np.clip(uniforms, _SMALLEST, 1 - 2**-53)


def _orthogonalised(scores: np.ndarray, d: int, key: tuple[int, ...]) -> np.ndarray:
    """Turn each run of d rows into orthogonal directions, keeping every row's norm."""
    rng = np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=(*key[1:], 1)))
    blocks = -(-len(scores) // d)
    q, r = np.linalg.qr(rng.standard_normal((blocks, d, d)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    norms = np.linalg.norm(scores[:, :d], axis=1, keepdims=True)
    return np.concatenate([norms * q.reshape(-1, d)[: len(scores)], scores[:, d:]], axis=1)
