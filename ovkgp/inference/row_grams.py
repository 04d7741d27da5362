"""Gram matrices Zᵀ Z of rows that stand in blocks side by side, Z = [Z_1, …, Z_c], and of those rows where an output is seen.

The blocks are never copied into one matrix. On the processor the products are NumPy's, which calls SYRK: half the work of a
full product. The gradient is one product for each block that needs one, dZ_i = Σ_j Z_j (Ḡ + Ḡᵀ)_ji.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.data import Observations
from ovkgp.inference.landmarks import mask_words

ADDING = 100
"""Adding one Gram matrix to another takes about as long as multiplying this many rows into it (memory against arithmetic)."""


class BlockGram(torch.autograd.Function):
    """Zᵀ Z (C, C) from the blocks of Z (n, C); twice differentiable.

    With `only_gradient` the value is left out (zeros), for those who want to pull a gradient back and have the value.
    """

    @staticmethod
    def forward(ctx, only_gradient: bool, *blocks: Tensor) -> Tensor:
        ctx.save_for_backward(*blocks)
        spans = _spans(blocks)
        width = spans[-1].stop
        if only_gradient:
            return blocks[0].new_zeros(1, 1).expand(width, width)
        gram = blocks[0].new_empty(width, width)
        for i, (span, block) in enumerate(zip(spans, blocks, strict=True)):
            gram[span, span] = _product(block, block)
            for other_span, other in zip(spans[i + 1 :], blocks[i + 1 :], strict=True):
                gram[other_span, span] = product = _product(other, block)
                gram[span, other_span] = product.mT
        return gram

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        blocks, both = ctx.saved_tensors, gradient + gradient.mT
        spans = _spans(blocks)

        def pulled(span: slice) -> Tensor:
            total = blocks[0] @ both[spans[0], span]
            for other, block in zip(spans[1:], blocks[1:], strict=True):
                total.addmm_(block, both[other, span])
            return total

        needed = ctx.needs_input_grad[1:]
        return None, *(pulled(span) if wanted else None for span, wanted in zip(spans, needed, strict=True))


def _spans(blocks: tuple[Tensor, ...]) -> list[slice]:
    ends = list(accumulate(block.shape[1] for block in blocks))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.device.type != "cpu":
        return left.mT @ right
    array = left.detach().numpy()
    return torch.from_numpy(array.T @ (array if left is right else right.detach().numpy()))


def seen_patterns(seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct rows (k, p) of a mask (n, p), which of them each row is (n,), and how many rows are so (k,)."""
    words = mask_words(seen)
    keys = words[:, 0] if words.shape[1] == 1 else np.unique(words, axis=0, return_inverse=True)[1].ravel()
    _, *found = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    first, which, counts = (torch.from_numpy(part).to(seen.device) for part in found)
    return seen[first], which, counts


class RowGroup(NamedTuple):
    """Rows that enter the Gram matrices of some outputs together, each row multiplied by its scale."""

    rows: Tensor | None
    outputs: tuple[int, ...]
    scale: Tensor | None = None

    def of(self, block: Tensor) -> Tensor:
        """The rows of a block."""
        block = block if self.rows is None else block.index_select(0, self.rows)
        return block if self.scale is None else block * self.scale.unsqueeze(-1)


def row_groups(chunk: Observations) -> list[RowGroup]:
    """Groups in which each observed entry of a chunk is exactly once, and each output at least once.

    Rows with the same outputs seen are multiplied once for all these outputs, where they are enough to make up for
    adding the product to each; the rest, and rows with known noise, output by output.
    """
    every = tuple(range(chunk.num_outputs))
    if chunk.noise is not None:
        rows = [(a, chunk.seen[:, a].nonzero().squeeze(-1)) for a in every]
        return [RowGroup(index, (a,), chunk.noise[index, a].rsqrt()) for a, index in rows]
    if chunk.is_complete:
        return [RowGroup(None, every)]
    patterns, which, counts = seen_patterns(chunk.seen)
    sizes = patterns.sum(1)
    together = counts * (sizes - 1) > ADDING * (sizes + 1)
    groups = [
        RowGroup((which == k).nonzero().squeeze(-1), tuple(patterns[k].nonzero().squeeze(-1).tolist()))
        for k in together.nonzero().squeeze(-1).tolist()
    ]
    alone = chunk.seen & ~together[which].unsqueeze(-1)
    rest = [RowGroup(alone[:, a].nonzero().squeeze(-1), (a,)) for a in every]
    covered = {a for group in groups for a in group.outputs}
    return groups + [group for group in rest if len(group.rows) or not covered.issuperset(group.outputs)]


def grams_by_output(
    waves: list[Tensor], basis: Tensor, Y: Tensor, groups: list[RowGroup], only_gradient: bool = False
) -> Tensor:
    """[φ, h, y_a]ᵀ D_a [φ, h, y_a] for each output a, (p, M + b + 1, M + b + 1), from the rows of `groups`."""
    size = sum(wave.shape[1] for wave in waves) + basis.shape[1]
    cores, crosses, squares = ([[] for _ in range(Y.shape[1])] for _ in range(3))
    for group in groups:
        blocks = [group.of(block) for block in (*waves, torch.cat([basis, Y[:, list(group.outputs)]], 1))]
        gram = BlockGram.apply(only_gradient, *blocks)
        for i, a in enumerate(group.outputs):
            cores[a].append(gram[:size, :size])
            crosses[a].append(gram[:size, size + i])
            squares[a].append(gram[size + i, size + i])
    return torch.stack(
        [_bordered(*(sum(parts) for parts in output)) for output in zip(cores, crosses, squares, strict=True)]
    )


def _bordered(core: Tensor, cross: Tensor, square: Tensor) -> Tensor:
    """[[A, v], [vᵀ, s]]."""
    top = torch.cat([core, cross.unsqueeze(-1)], 1)
    return torch.cat([top, torch.cat([cross, square.reshape(1)]).unsqueeze(0)])
