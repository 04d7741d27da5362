"""Random Fourier features in blocks that are regenerated from a seed when needed (BT-93).

    Φ = [Φ_0, …, Φ_{B−1}] / √B,      Φ_i made of the frequencies i b, …, (i + 1) b − 1 of `ORFF`,      D = B b.

Every block has the scale 1/√D of the whole, in training and prediction (BT-E-36).
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError
from ovkgp.features.orff import ORFF
from ovkgp.features.spectral.base_samples import normal_scores
from ovkgp.kernels.spectral import SpectralPair, SpectralSum


class BlockedORFF(ORFF):
    """Operator-valued random Fourier features whose base noise is regenerated block by block.

    Columns are ordered as those of an `ORFF` with D frequencies, all cosines before all sines: block i is `columns(i)`,
    and `map(X) @ weights` is the sum of `block(i)(X) @ weights[columns(i)]`.

    Parameters
    ----------
    kernel, num_dims, sampler, bounded, random_state
        As for `ORFF`; "qmc" and "orthogonal" hold within a block.
    num_frequencies : int
        Number D of frequencies per term of a sum; a multiple of `block_size`.
    block_size : int
        Number b of frequencies per block. Frequencies do not depend on it: they are those of `ORFF(kernel, D)`, bit for bit.

    Notes
    -----
    Complexity: `map(X)` O(n D d) time and O(n D + D d) memory while Φ lives; `block(i)(X)` O(n b d) and O(n b + b d).

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import BlockedORFF
    >>> from ovkgp.kernels import CurlFreeKernel
    >>> orff = BlockedORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)), 100, block_size=20, random_state=0)
    >>> X = torch.randn(7, 2)
    >>> orff.num_blocks, orff(X).shape, orff.block(3)(X).shape
    (5, torch.Size([14, 200]), torch.Size([14, 40]))
    """

    _block_range: range | None = None
    """Blocks of this map; None while block 0 is being checked."""

    def __init__(
        self,
        kernel: Kernel | SpectralPair | SpectralSum,
        num_frequencies: int,
        block_size: int,
        *,
        num_dims: int | None = None,
        sampler: str = "iid",
        bounded: bool = True,
        random_state=None,
    ):
        total, size = check_integer("num_frequencies", num_frequencies), check_integer("block_size", block_size)
        _check_multiple("num_frequencies", total, size)
        super().__init__(kernel, size, num_dims=num_dims, sampler=sampler, bounded=bounded, random_state=random_state)
        self.block_size, self.num_blocks = size, total // size
        self._noise_dtype = torch.get_default_dtype()  # to which `ORFF` rounds its noise
        for name in self._noise_names:  # no rows: they hold the dimension, and follow the module's dtype and device
            self._store(name, getattr(self, name)[:0].clone())
        self._set_blocks(range(self.num_blocks))

    def _set_blocks(self, blocks: range) -> None:
        self._block_range, self.num_frequencies = blocks, len(blocks) * self.block_size

    @property
    def num_features(self) -> int:
        """Number of columns of Φ."""
        return 2 * self.num_frequencies * sum(self._ranks)

    @property
    def _ranks(self) -> list[int]:
        """Number of columns of the factor of each term."""
        one = self._sharing_copy()
        one._set_blocks(range(1))
        return [factor.shape[-1] for factor in one.factors]

    def block(self, index: int) -> BlockedORFF:
        """Return the map Φ_i / √B, (n·p) × (r / B), regenerated from `random_state`.

        Parameters
        ----------
        index : int
            Index i of the block.

        Returns
        -------
        BlockedORFF
            Map of one block.
        """
        if check_integer("index", index, minimum=0) >= self.num_blocks:
            raise OptionError(f"index must be less than the number of blocks, {self.num_blocks}, got {index}.")
        other = self._sharing_copy()
        other._set_blocks(range(index, index + 1))
        return other

    def columns(self, index: int) -> Tensor:
        """Return the columns of Φ, and indices of the weights, that belong to block i: (r / B,) increasing integers.

        Parameters
        ----------
        index : int
            Block i.

        Returns
        -------
        Tensor of shape (r / B,)
            Indices.
        """
        found, start = [], 0
        for rank in self._ranks:
            width = self.block_size * rank
            for half in (0, self.num_blocks):  # cosines, sines
                found.append(start + (half + index) * width + torch.arange(width))
            start += 2 * self.num_blocks * width
        return torch.cat(found)

    def extend(self, num_new: int) -> BlockedORFF:
        """Add blocks in place; the previous ones stay (BT-08).

        Parameters
        ----------
        num_new : int
            Number of frequencies to add per term; a multiple of `block_size`.

        Returns
        -------
        BlockedORFF
            This map.
        """
        num_new = check_integer("num_new", num_new, minimum=0)
        if num_new:
            _check_multiple("num_new", num_new, self.block_size)
        self.num_blocks += num_new // self.block_size
        self._set_blocks(range(self.num_blocks))
        return self

    def forward(self, X: Tensor) -> LinearOperator:
        """Return Φ(X), of size (n·p) × num_features, for X (..., n, d)."""
        Phi = super().forward(X)
        fraction = len(self._block_range) / self.num_blocks
        return Phi if fraction == 1 else Phi._mul_constant(math.sqrt(fraction))

    def _frequencies(self, terms: tuple[SpectralPair, ...]) -> list[Tensor]:
        if self._block_range is None:
            return super()._frequencies(terms)
        drawn = self._sharing_copy()  # with the noise of its blocks, for as long as this call lasts
        drawn._block_range = None
        for name, scores in zip(self._noise_names, self._regenerate_noise(terms), strict=True):
            drawn._store(name, scores)
        return drawn._frequencies(terms)

    def _regenerate_noise(self, terms: tuple[SpectralPair, ...]) -> list[Tensor]:
        """Return the base noise of the blocks of this map, one tensor (blocks · b, base_dim) per term."""
        rows = range(self._block_range.start * self.block_size, self._block_range.stop * self.block_size)
        device = getattr(self, self._noise_names[0]).device
        return [
            normal_scores(self.sampler, rows, term, (self.seed, 0, i)).to(device, self._noise_dtype)
            for i, term in enumerate(terms, self._first_term)
        ]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}"


def _check_multiple(name: str, number: int, size: int) -> None:
    if number % size:
        below, above = number // size * size, (number // size + 1) * size
        nearest = f"{below} or {above}" if below else f"{above}"
        raise OptionError(f"{name} must be a multiple of block_size={size}, such as {nearest}, got {number}.")
