"""Random Fourier features in blocks that are drawn again whenever they are wanted, and kept nowhere (BT-93).

    Φ = [Φ_0, …, Φ_{B−1}] / √B,      Φ_i made of b frequencies from the seed (random_state, i),      D = B b.

The 1/√D of the whole is in every block, in training as in prediction (BT-E-36). Memory for frequencies is that of the blocks
that are looked at, so that an algorithm which takes one block at a time needs O(b d) and not O(D d).
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
from ovkgp.features.spectral.pair import SpectralPair, SpectralSum


class BlockedORFF(ORFF):
    """Operator-valued random Fourier features whose base noise is regenerated block by block.

    Args:
        kernel: a kernel with a spectral pair, or a bare pair; shared, not copied.
        num_frequencies: D, for each term of a sum; a multiple of `block_size`.
        block_size: b; one block of all D frequencies is `ORFF(kernel, D)`, bit for bit.
        num_dims, sampler, bounded, random_state: as for `ORFF`; "qmc" and "orthogonal" hold within a block.

    Columns are ordered as those of an `ORFF` with D frequencies, all cosines before all sines: block i is
    `columns(i)`, and `map(X) @ weights` is the sum of `block(i)(X) @ weights[columns(i)]`.

    Cost: `map(X)` O(n D d) time and O(n D + D d) memory while Φ lives; `block(i)(X)` O(n b d) and O(n b + b d).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import BlockedORFF
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> orff = BlockedORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)), 100, block_size=20, random_state=0)
        >>> X = torch.randn(7, 2)
        >>> orff.num_blocks, orff(X).shape, orff.block(3)(X).shape
        (5, torch.Size([14, 200]), torch.Size([14, 40]))
    """

    _shown: range | None = None
    """Which blocks this map consists of; None while block 0 is being checked."""

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
        _require_multiple("num_frequencies", total, size)
        super().__init__(kernel, size, num_dims=num_dims, sampler=sampler, bounded=bounded, random_state=random_state)
        self.block_size, self.num_blocks = size, total // size
        self._born = torch.get_default_dtype()  # to which `ORFF` rounds its noise
        for name in self._noise_names:  # no rows: they know the dimension, and follow the module's dtype and device
            self._store(name, getattr(self, name)[:0].clone())
        self._show(range(self.num_blocks))

    def _show(self, blocks: range) -> None:
        self._shown, self.num_frequencies = blocks, len(blocks) * self.block_size

    @property
    def num_features(self) -> int:
        """The number of columns of Φ."""
        return 2 * self.num_frequencies * sum(self._ranks)

    @property
    def _ranks(self) -> list[int]:
        """The columns of the factor of each term."""
        one = self._sharing_copy()
        one._show(range(1))
        return [factor.shape[-1] for factor in one.factors]

    def block(self, index: int) -> BlockedORFF:
        """Φ_i / √B as a map of its own, (n·p) × (r / B), with frequencies from (random_state, i)."""
        if check_integer("the index of a block", index, least=0) >= self.num_blocks:
            raise OptionError(f"there are {self.num_blocks} blocks, counted from 0; got index {index}.")
        other = self._sharing_copy()
        other._show(range(index, index + 1))
        return other

    def columns(self, index: int) -> Tensor:
        """The columns of Φ, and places of the weights, that belong to block i: (r / B,) whole numbers, increasing."""
        found, start = [], 0
        for rank in self._ranks:
            width = self.block_size * rank
            for half in (0, self.num_blocks):  # cosines, sines
                found.append(start + (half + index) * width + torch.arange(width))
            start += 2 * self.num_blocks * width
        return torch.cat(found)

    def extend(self, num_new: int) -> BlockedORFF:
        """Add blocks, in place: `num_new` more frequencies, a multiple of `block_size`. The old ones stay (BT-08)."""
        num_new = check_integer("the number of frequencies to add", num_new, least=0)
        if num_new:
            _require_multiple("the number of frequencies to add", num_new, self.block_size)
        self.num_blocks += num_new // self.block_size
        self._show(range(self.num_blocks))
        return self

    def forward(self, X: Tensor) -> LinearOperator:
        """Φ(X), of size (n·p) × num_features, for X (..., n, d)."""
        Phi = super().forward(X)
        share = len(self._shown) / self.num_blocks
        return Phi if share == 1 else Phi._mul_constant(math.sqrt(share))

    def _frequencies(self, terms: tuple[SpectralPair, ...]) -> list[Tensor]:
        if self._shown is None:
            return super()._frequencies(terms)
        drawn = self._sharing_copy()  # with the noise of its blocks, for as long as this call lasts
        drawn._shown = None
        for name, scores in zip(self._noise_names, self._regenerated(terms), strict=True):
            drawn._store(name, scores)
        return drawn._frequencies(terms)

    def _regenerated(self, terms: tuple[SpectralPair, ...]) -> list[Tensor]:
        """The base noise of the blocks that are shown, one tensor (blocks · b, base_dim) a term."""

        def scores(term: SpectralPair, index: int) -> Tensor:
            parts = [normal_scores(self.sampler, self.block_size, term, (self.seed, i, index)) for i in self._shown]
            return torch.cat(parts).to(self._born)

        device = getattr(self, self._noise_names[0]).device
        return [scores(term, i).to(device) for i, term in enumerate(terms, self._first_term)]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}"


def _require_multiple(name: str, number: int, size: int) -> None:
    if number % size:
        below, above = number // size * size, (number // size + 1) * size
        nearest = f"{below} or {above}" if below else f"{above}"
        raise OptionError(f"{name} must be a multiple of block_size={size}, got {number}: the nearest are {nearest}.")
