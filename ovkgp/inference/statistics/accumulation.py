"""Computation of statistics from data: one pass in chunks of bounded memory, and a second one for the gradient.

The Gram matrix G = Σ_chunks Z_cᵀ Z_c is a differentiable function of the hyperparameters. If all rows fit into one
chunk its graph is kept; otherwise the backward pass recomputes each chunk to pull Ḡ back through its rows, so that
memory does not grow with the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from linear_operator import LinearOperator
from torch import Tensor
from torch.func import functional_call

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import choose_landmarks
from ovkgp.inference.statistics.rows import CHUNK_ROWS, Rows, choose_layout, compute_log_noise, count_scalar_features
from ovkgp.inference.statistics.statistics import Statistics

CHUNK_ENTRIES = 4_000_000  # approximate number of values in the rows of one chunk (32 MB)
MIN_CHUNK_ROWS = 256
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

    The basis of the mean is kept, so that its coefficients may change later; the value of the noise enters the whitened
    layout only. `template` is Φ at one point, if known. If `layout` is None, the smallest possible one is used; with
    full noise, all parts of a stream in which only some parts have missing outputs are computed as "whitened".
    `fingerprint` identifies what the rows depend on.

    Complexity: O(n M²) time for M scalar features ("whitened": O(n p r²)), and again for a gradient; memory for a chunk
    of `chunk_rows` and the Gram matrix.
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
    size = chunk_rows or max(CHUNK_ENTRIES // max(width, 1), MIN_CHUNK_ROWS)
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
