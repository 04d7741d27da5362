"""Data into statistics: one pass in chunks of bounded memory, and a second one backwards for the gradient.

The Gram matrix G = Σ_chunks Z_cᵀ Z_c is a differentiable function of the hyperparameters. Where all rows fit into one chunk
its graph is kept; otherwise nothing is, and the chunks stream by again in the backward pass, each pulling Ḡ back through
its own rows: memory does not grow with the number of rows.
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
from ovkgp.inference.statistics.rows import CHUNK_ROWS, Rows, choose_layout, whitened_log_noise
from ovkgp.inference.statistics.statistics import Statistics

CHUNK_ENTRIES = 4_000_000
"""About how many numbers the rows of one chunk may have (32 MB)."""

MIN_ROWS = 256


def gather(
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
    """The statistics of some data, differentiable in the parameters of feature map, mean and noise.

    Args:
        feature_map: X ↦ Φ(X), of size (n·p) × r.
        mean: an `OutputMean`; its basis is kept, so that its coefficients may change later.
        noise: an `OutputNoise`; only the whitened layout looks at its value.
        data: the observations, in any floating precision.
        template: Φ at one point, where it is at hand.
        layout: of the statistics; the smallest that will do where it is None. Parts of a stream that has missing outputs
            in only some of its parts, and full noise, are all gathered "whitened".
        num_landmarks: how many inputs to keep at most.
        fingerprint: of all that the rows depend on.
        chunk_rows: rows at a time.

    Cost: O(n M²) time for M waves ("whitened": O(n p r²)) and again for a gradient, memory for a chunk and the Gram matrix.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.statistics.accumulation import gather
        >>> from ovkgp.inference.model.mean_noise import output_mean
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> from ovkgp.kernels import DecomposableKernel
        >>> orff = ORFF(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3), 10, random_state=0)
        >>> data = observations(torch.rand(40, 2), torch.rand(40, 3), 3)
        >>> gather(orff, output_mean("constant", 3), OutputNoise("full", 3), data).gram.shape
        torch.Size([24, 24])
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
    num_scalar_features = template.shape[-1] if is_whitened else _count_scalar_features(template)
    width = num_scalar_features * (data.num_outputs if is_whitened else 1)
    size = chunk_rows or max(CHUNK_ENTRIES // max(width, 1), MIN_ROWS)
    log_noise = data.Y.new_zeros((), dtype=torch.float64)
    is_weighted = is_whitened or data.noise is not None
    return Statistics(
        layout=layout,
        gram=stream_gram(rows, data, matrix, size),
        num_observed=data.observed.sum(0),
        num_rows=data.num_rows,
        num_scalar_features=num_scalar_features,
        num_basis=rows.num_basis,
        log_noise=whitened_log_noise(data, matrix) if is_weighted else log_noise,
        noise_sum=_noise_sum(data),
        weighted=is_weighted,
        fingerprint=fingerprint,
        landmarks=choose_landmarks(data, num_landmarks),
    )


def _count_scalar_features(template: LinearOperator) -> int:
    return sum(part.features.shape[-1] for part in getattr(template, "parts", (template,)))


def _noise_sum(data: Observations) -> Tensor:
    if data.noise is None:
        return data.Y.new_zeros(data.num_outputs, dtype=torch.float64)
    return sum(torch.where(part.observed, part.noise, 0.0).sum(0) for part in data.chunks(CHUNK_ROWS))


def stream_gram(rows: Rows, data: Observations, noise: Tensor | None, chunk_rows: int) -> Tensor:
    """The Gram matrix of all rows; see `Rows` for what they are."""
    if data.num_rows <= chunk_rows:
        (chunk,) = data.chunks(chunk_rows)
        return rows(chunk, noise)
    tensors = {name: tensor for name, tensor in rows.named_parameters() if tensor.requires_grad}
    stream = Stream(rows, data, chunk_rows, noise)
    used = stream.used(tensors if noise is None else {**tensors, NOISE: noise}) if torch.is_grad_enabled() else {}
    return _StreamedGram.apply(stream, tuple(used), *used.values())


NOISE = " "
"""The name of Σ among those of parameters, which have no spaces."""


@dataclass(frozen=True)
class Stream:
    """Rows in chunks, as a function of their parameters by name and of Σ, where the layout needs it."""

    rows: Rows
    data: Observations
    chunk_rows: int
    noise: Tensor | None

    def gram(self, chunk: Observations, tensors: dict[str, Tensor], only_gradient: bool) -> Tensor:
        """The Gram matrix of one chunk with some of the parameters replaced."""
        parameters = {name: tensor for name, tensor in tensors.items() if name != NOISE}
        return functional_call(self.rows, parameters, (chunk, tensors.get(NOISE, self.noise), only_gradient))

    def total(self, tensors: dict[str, Tensor]) -> Tensor:
        """The sum over the chunks."""
        total = None
        for chunk in self.data.chunks(self.chunk_rows):
            gram = self.gram(chunk, tensors, only_gradient=False)
            total = gram if total is None else total.add_(gram)
        return total

    def pull_back(self, tensors: dict[str, Tensor], gradient: Tensor) -> list[Tensor]:
        """The gradient in the given parameters, from that in the Gram matrix."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        sums = [torch.zeros_like(leaf) for leaf in leaves.values()]
        for chunk in self.data.chunks(self.chunk_rows):
            with torch.enable_grad():
                gram = self.gram(chunk, leaves, only_gradient=True)
            for total, part in zip(sums, torch.autograd.grad(gram, tuple(leaves.values()), gradient), strict=True):
                total.add_(part)
        return sums

    def used(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those of the given tensors on which the rows depend: factors, for one, do not enter the waves."""
        (chunk,) = self.data.rows(slice(0, 1)).chunks(1)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        if self.gram(chunk, {name: leaf.detach() for name, leaf in leaves.items()}, only_gradient=True).requires_grad:
            raise KernelTypeError(  # a gradient that would otherwise be lost without a word
                "the features or the mean depend on tensors that require gradients but are not parameters of their modules; "
                "with more than one chunk of rows their gradient cannot be found. Register them as parameters, detach them, "
                f"or raise chunk_rows to the number of rows, {self.data.num_rows}."
            )
        gram = self.gram(chunk, leaves, only_gradient=True)
        if not gram.requires_grad:
            return {}
        parts = torch.autograd.grad(gram.sum(), tuple(leaves.values()), allow_unused=True)
        return {name: tensors[name] for name, part in zip(leaves, parts, strict=True) if part is not None}


class _StreamedGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stream: Stream, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        ctx.stream, ctx.names = stream, names
        ctx.save_for_backward(*tensors)
        return stream.total(dict(zip(names, tensors, strict=True)))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise OptionError(
                "statistics gathered in several chunks have first derivatives only: create_graph=True asks for the second. "
                f"Take differences of gradients, or raise chunk_rows to the number of rows, {ctx.stream.data.num_rows}."
            )
        return None, None, *ctx.stream.pull_back(dict(zip(ctx.names, ctx.saved_tensors, strict=True)), gradient)
