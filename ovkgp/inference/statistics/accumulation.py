"""Computation of statistics from data: rows, their Gram matrices in chunks of bounded memory, and the gradient.

If every part of Φ consists of scalar features φ and factors for all p outputs, the rows are [φ, h, Y], independent of
the factors, the noise and the coefficients of the mean. Otherwise they are N^{-½} [Φ, h ⊗ I, y], with the Cholesky
factor of the noise between the observed outputs of each row. A mean without a basis is subtracted from Y.

The Gram matrix G = Σ_chunks Z_cᵀ Z_c is a differentiable function of the hyperparameters. If all rows fit into one
chunk its graph is kept; otherwise the backward pass recomputes each chunk to pull Ḡ back through its rows, so that
memory does not grow with the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from linear_operator import LinearOperator, to_dense
from torch import Tensor
from torch.func import functional_call

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.features.operators import FEATURE_CHUNK_ENTRIES, FeatureOperator, StackedFeatures
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import choose_landmarks, pack_mask
from ovkgp.inference.statistics.statistics import Statistics

MIN_CHUNK_ROWS = 256
CHUNK_ROWS = 1 << 16  # number of rows whose patterns of missing outputs are counted at a time
GRAM_ADDITION_ROWS = 100
"""Number of rows whose multiplication into a Gram matrix takes as long as adding two Gram matrices."""
NOISE_KEY = " "  # name of Σ among those of the parameters, which have no spaces


def compute_statistics(
    feature_map: torch.nn.Module,
    mean: torch.nn.Module,
    noise: torch.nn.Module,
    data: Observations,
    *,
    template: LinearOperator | None = None,
    layout: str | None = None,
    num_landmarks: int = 1000,
    fingerprint: str = "",
    chunk_rows: int | None = None,
) -> Statistics:
    """Compute the statistics of data, differentiable in the parameters of feature map, mean and noise.

    `template` is Φ at one point, if known. If `layout` is None, the smallest possible one is used; a stream with full
    noise in which only some parts have missing outputs needs "whitened" for all. O(n M²), or O(n p r²) if whitened.
    """
    data = data if data.is_complete else data.observed_rows()
    if data.num_rows == 0:
        return Statistics.empty()
    if template is None:
        with torch.no_grad():
            template = feature_map(data.X[:1].double())
    layout = choose_layout(template, noise, data) if layout is None else layout
    is_whitened = layout == "whitened"
    matrix = noise.matrix() if is_whitened and data.noise is None else None
    rows = Rows(feature_map, mean, layout)
    num_scalar_features = count_scalar_features(template, layout)
    width = num_scalar_features * (data.num_outputs if is_whitened else 1)
    size = chunk_rows or max(FEATURE_CHUNK_ENTRIES // max(width, 1), MIN_CHUNK_ROWS)
    log_noise = data.Y.new_zeros((), dtype=torch.float64)
    is_weighted = is_whitened or data.noise is not None
    return Statistics(
        layout=layout,
        gram=compute_gram(rows, data, matrix, size),
        num_observed=data.observed.sum(0),
        num_rows=data.num_rows,
        num_scalar_features=num_scalar_features,
        num_basis=rows.num_basis,
        log_noise=compute_log_noise(data, matrix) if is_weighted else log_noise,
        noise_sum=_noise_sum(data),
        weighted=is_weighted,
        fingerprint=fingerprint,
        landmarks=choose_landmarks(data, num_landmarks),
    )


def _noise_sum(data: Observations) -> Tensor:
    if data.noise is None:
        return data.Y.new_zeros(data.num_outputs, dtype=torch.float64)
    return sum(torch.where(part.observed, part.noise, 0.0).sum(0) for part in data.chunks(CHUNK_ROWS))


def compute_gram(rows: Rows, data: Observations, noise: Tensor | None, chunk_rows: int) -> Tensor:
    """Compute the Gram matrix of all rows."""
    if data.num_rows <= chunk_rows:
        (chunk,) = data.chunks(chunk_rows)
        return rows(chunk, noise)
    tensors = {name: tensor for name, tensor in rows.named_parameters() if tensor.requires_grad}
    stream = GramStream(rows, data, chunk_rows, noise)
    tensors |= {} if noise is None else {NOISE_KEY: noise}
    used = stream.select_used(tensors) if torch.is_grad_enabled() else {}
    return _StreamedGram.apply(stream, tuple(used), *used.values())


@dataclass(frozen=True)
class GramStream:
    """Rows in chunks, as a function of their parameters by name and of Σ if the layout needs it."""

    rows: Rows
    data: Observations
    chunk_rows: int
    noise: Tensor | None

    def gram(self, chunk: Observations, tensors: dict[str, Tensor], only_gradient: bool) -> Tensor:
        """Compute the Gram matrix of one chunk with some of the parameters replaced."""
        parameters = {name: tensor for name, tensor in tensors.items() if name != NOISE_KEY}
        return functional_call(self.rows, parameters, (chunk, tensors.get(NOISE_KEY, self.noise), only_gradient))

    def total(self, tensors: dict[str, Tensor]) -> Tensor:
        """Compute the sum over the chunks."""
        total = None
        for chunk in self.data.chunks(self.chunk_rows):
            gram = self.gram(chunk, tensors, only_gradient=False)
            total = gram if total is None else total.add_(gram)
        return total

    def pull_back(self, tensors: dict[str, Tensor], gradient: Tensor) -> list[Tensor]:
        """Compute the gradient in the given parameters from that in the Gram matrix."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        sums = [torch.zeros_like(leaf) for leaf in leaves.values()]
        for chunk in self.data.chunks(self.chunk_rows):
            with torch.enable_grad():
                gram = self.gram(chunk, leaves, only_gradient=True)
            for total, part in zip(sums, torch.autograd.grad(gram, tuple(leaves.values()), gradient), strict=True):
                total.add_(part)
        return sums

    def select_used(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Select the tensors on which the rows depend: factors, for example, do not enter the scalar features."""
        (chunk,) = self.data.rows(slice(0, 1)).chunks(1)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        if self.gram(chunk, {name: leaf.detach() for name, leaf in leaves.items()}, only_gradient=True).requires_grad:
            raise KernelTypeError(  # this gradient would otherwise be lost silently
                "Gradients in tensors that are not parameters of the feature map or the mean are not supported with "
                "more than one chunk of rows. Register the tensors as parameters, detach them, or increase chunk_rows "
                f"to the number of rows, {self.data.num_rows}."
            )
        gram = self.gram(chunk, leaves, only_gradient=True)
        if not gram.requires_grad:
            return {}
        parts = torch.autograd.grad(gram.sum(), tuple(leaves.values()), allow_unused=True)
        return {name: tensors[name] for name, part in zip(leaves, parts, strict=True) if part is not None}


class _StreamedGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stream: GramStream, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        ctx.stream, ctx.names = stream, names
        ctx.save_for_backward(*tensors)
        return stream.total(dict(zip(names, tensors, strict=True)))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise OptionError(
                "Second derivatives (create_graph=True) are not supported with more than one chunk of rows. Use "
                f"differences of gradients, or increase chunk_rows to the number of rows, {ctx.stream.data.num_rows}."
            )
        return None, None, *ctx.stream.pull_back(dict(zip(ctx.names, ctx.saved_tensors, strict=True)), gradient)


class BlockGram(torch.autograd.Function):
    """Zᵀ Z (C, C) from the blocks of Z (n, C), twice differentiable; zeros if `only_gradient`."""

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

        def pull_back(span: slice) -> Tensor:
            total = blocks[0] @ both[spans[0], span]
            for other, block in zip(spans[1:], blocks[1:], strict=True):
                total.addmm_(block, both[other, span])
            return total

        needed = ctx.needs_input_grad[1:]
        return None, *(pull_back(span) if wanted else None for span, wanted in zip(spans, needed, strict=True))


def _spans(blocks: tuple[Tensor, ...]) -> list[slice]:
    ends = list(accumulate(block.shape[1] for block in blocks))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.device.type != "cpu":
        return left.mT @ right
    array = left.detach().numpy()
    return torch.from_numpy(array.T @ (array if left is right else right.detach().numpy()))


def find_patterns(observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the distinct rows (k, p) of a mask (n, p), the index of each row among them (n,), and their counts (k,)."""
    packed = pack_mask(observed)
    keys = packed[:, 0] if packed.shape[1] == 1 else np.unique(packed, axis=0, return_inverse=True)[1].ravel()
    _, *found = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    first, which, counts = (torch.from_numpy(part).to(observed.device) for part in found)
    return observed[first], which, counts


class RowGroup(NamedTuple):
    """Rows that enter the Gram matrices of some outputs together, each row multiplied by its scale."""

    rows: Tensor | None
    outputs: tuple[int, ...]
    scale: Tensor | None = None

    def select(self, block: Tensor) -> Tensor:
        """Select and scale the rows of a block."""
        block = block if self.rows is None else block.index_select(0, self.rows)
        return block if self.scale is None else block * self.scale.unsqueeze(-1)


def make_row_groups(chunk: Observations) -> list[RowGroup]:
    """Make groups that contain each observed entry of a chunk exactly once, and each output at least once."""
    every = tuple(range(chunk.num_outputs))
    if chunk.noise is not None:
        rows = [(a, chunk.observed[:, a].nonzero().squeeze(-1)) for a in every]
        return [RowGroup(index, (a,), chunk.noise[index, a].rsqrt()) for a, index in rows]
    if chunk.is_complete:
        return [RowGroup(None, every)]
    # rows with the same observed outputs are multiplied once for all of them if they are enough to save time
    patterns, which, counts = find_patterns(chunk.observed)
    sizes = patterns.sum(1)
    together = counts * (sizes - 1) > GRAM_ADDITION_ROWS * (sizes + 1)
    chosen = together.nonzero().flatten().tolist()
    groups = [
        RowGroup((which == k).nonzero().flatten(), tuple(patterns[k].nonzero().flatten().tolist())) for k in chosen
    ]
    alone = chunk.observed & ~together[which].unsqueeze(-1)
    rest = [RowGroup(alone[:, a].nonzero().squeeze(-1), (a,)) for a in every]
    covered = {a for group in groups for a in group.outputs}
    return groups + [group for group in rest if len(group.rows) or not covered.issuperset(group.outputs)]


def compute_grams_by_output(
    scalar_features: list[Tensor], basis: Tensor, Y: Tensor, groups: list[RowGroup], only_gradient: bool = False
) -> Tensor:
    """Compute [φ, h, y_a]ᵀ D_a [φ, h, y_a] for each output a, (p, M + b + 1, M + b + 1), from the rows of `groups`."""
    size = sum(block.shape[1] for block in scalar_features) + basis.shape[1]
    cores, crosses, squares = ([[] for _ in range(Y.shape[1])] for _ in range(3))
    for group in groups:
        blocks = [group.select(block) for block in (*scalar_features, torch.cat([basis, Y[:, list(group.outputs)]], 1))]
        gram = BlockGram.apply(only_gradient, *blocks)
        for i, a in enumerate(group.outputs):
            cores[a].append(gram[:size, :size])
            crosses[a].append(gram[:size, size + i])
            squares[a].append(gram[size + i, size + i])
    return torch.stack(
        [_bordered(*(sum(parts) for parts in output)) for output in zip(cores, crosses, squares, strict=True)]
    )


def _bordered(core: Tensor, cross: Tensor, square: Tensor) -> Tensor:
    """Assemble [[A, v], [vᵀ, s]]."""
    top = torch.cat([core, cross.unsqueeze(-1)], 1)
    return torch.cat([top, torch.cat([cross, square.reshape(1)]).unsqueeze(0)])


def get_scalar_feature_parts(Phi: LinearOperator, num_outputs: int) -> list[FeatureOperator] | None:
    """Return the parts of Φ if all of them consist of scalar features and factors for p outputs, else None."""
    parts = Phi.parts if isinstance(Phi, StackedFeatures) else (Phi,)
    fits = all(isinstance(part, FeatureOperator) and part.num_outputs == num_outputs for part in parts)
    return list(parts) if fits else None


def count_scalar_features(template: LinearOperator, layout: str) -> int:
    """Return the number M of scalar features of Φ; the number r of features if whitened."""
    if layout == "whitened":
        return template.shape[-1]
    return sum(part.features.shape[-1] for part in getattr(template, "parts", (template,)))


def choose_layout(template: LinearOperator, noise, data: Observations) -> str:
    """Return the smallest layout of `Statistics` that features (Φ at one point, p × r), noise and data allow."""
    if template.shape[-2] != data.num_outputs:
        raise InputError(
            f"Y has {data.num_outputs} columns, expected {template.shape[-2]}, the outputs of the feature map."
        )
    if get_scalar_feature_parts(template, data.num_outputs) is None:
        return "whitened"
    if data.noise is None and data.is_complete:
        return "shared"
    return "by_output" if data.noise is not None or noise.is_diagonal else "whitened"


class Rows(torch.nn.Module):
    """The Gram matrix of the rows of a chunk, as a function of the parameters of feature map and mean."""

    def __init__(self, feature_map: torch.nn.Module, mean: torch.nn.Module, layout: str):
        super().__init__()
        self.feature_map, self.mean, self.layout = feature_map, mean, layout

    def forward(self, chunk: Observations, noise: Tensor | None = None, only_gradient: bool = False) -> Tensor:
        """Compute the Gram matrix of a chunk; the noise Σ (p, p) is used by the whitened layout only."""
        Phi = self.feature_map(chunk.X)
        basis, Y = self._targets(chunk)
        if self.layout == "whitened":
            return BlockGram.apply(only_gradient, *_whitened(Phi, basis, Y, whitening_roots(chunk, noise)))
        scalar_features = [part.features for part in get_scalar_feature_parts(Phi, chunk.num_outputs)]
        if self.layout == "shared":
            return BlockGram.apply(only_gradient, *scalar_features, torch.cat([basis, Y], 1))
        return compute_grams_by_output(scalar_features, basis, Y, make_row_groups(chunk), only_gradient)

    def _targets(self, chunk: Observations) -> tuple[Tensor, Tensor]:
        """Return h (n, b) and Y (n, p), zero where missing; for a mean without a basis, h (n, 0) and residuals."""
        Y = chunk.Y if chunk.is_complete else torch.where(chunk.observed, chunk.Y, 0.0)
        basis = self.mean.basis(chunk.X)
        if basis is not None:
            return basis, Y
        return Y.new_zeros(len(Y), 0), Y - torch.where(chunk.observed, self.mean(chunk.X), 0.0)

    @property
    def num_basis(self) -> int:
        """Number b of basis functions; 0 for a mean without a basis."""
        return len(self.mean.coefficients)


def _whitened(Phi: LinearOperator, basis: Tensor, Y: Tensor, root: Tensor) -> list[Tensor]:
    """Compute N^{-½} Φ (n·p, r) and N^{-½} [h ⊗ I, y] (n·p, b·p + 1), from N^{-½} as (n, p, p)."""
    p = Y.shape[1]
    features = root @ to_dense(Phi).unflatten(0, (-1, p))  # (n, p, r)
    targets = torch.einsum("nk,npa->npka", basis, root.expand(len(Y), p, p)).flatten(-2)
    targets = torch.cat([targets, root @ Y.unsqueeze(-1)], -1)
    return [features.flatten(0, 1), targets.flatten(0, 1)]


def whitening_roots(chunk: Observations, noise: Tensor | None) -> Tensor:
    """Compute N^{-½} of each row, (n, p, p) or (1, p, p) if all are equal; zero for missing outputs."""
    if chunk.noise is not None:
        return torch.diag_embed(torch.where(chunk.observed, chunk.noise.rsqrt(), 0.0))
    patterns, which = chunk.observed[:1], None
    if not chunk.is_complete:
        patterns, which, _ = find_patterns(chunk.observed)
    chol = _pattern_chol(patterns, noise)
    eye = torch.diag_embed(patterns.to(chol))
    root = torch.linalg.solve_triangular(chol, eye, upper=False)
    return root if which is None else root[which]


def compute_log_noise(data: Observations, noise: Tensor | None) -> Tensor:
    """Compute log det N over the observed entries, differentiable in Σ."""
    if data.noise is not None:
        return sum(part.noise.log()[part.observed].sum() for part in data.chunks(CHUNK_ROWS))
    total = noise.new_zeros(())
    for observed in data.observed.split(CHUNK_ROWS):
        patterns, _, counts = find_patterns(observed)
        total = total + 2 * counts.to(noise) @ _pattern_chol(patterns, noise).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return total


def _pattern_chol(patterns: Tensor, noise: Tensor) -> Tensor:
    """Compute the Cholesky factor of Σ for each pattern (k, p) of observed outputs, of the identity elsewhere."""
    both = patterns.unsqueeze(-1) & patterns.unsqueeze(-2)
    eye = torch.eye(len(noise), dtype=noise.dtype, device=noise.device)
    return torch.linalg.cholesky(torch.where(both, noise, eye))
