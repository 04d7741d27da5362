"""Outputs that share nothing: one posterior each, side by side."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.inference.data import Observations
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.posterior import Posterior, seeds
from ovkgp.kernels.checks import whole_number


class IndependentPosterior(Posterior):
    """p posteriors of one output each as one posterior of p outputs.

    Args:
        parts: the p posteriors, all on the same input space.
    """

    def __init__(self, parts: list[Posterior]):
        self.parts = parts
        self.num_outputs, self.num_dims = len(parts), parts[0].num_dims
        self.log_evidence = sum(part.log_evidence for part in parts)
        self.log_evidence_error = math.hypot(*(part.log_evidence_error for part in parts))

    @property
    def noise(self) -> Tensor:
        return torch.block_diag(*(part.noise for part in self.parts))

    @property
    def data(self) -> Observations:
        """What was observed, one output a row (posteriors of exact parts only)."""
        parts = [part.data for part in self.parts]
        alone = [_alone(part.Y, a, len(parts), torch.nan) for a, part in enumerate(parts)]
        known = None
        if parts[0].noise is not None:
            known = torch.cat([_alone(part.noise, a, len(parts), 1.0) for a, part in enumerate(parts)])
        return Observations(torch.cat([part.X for part in parts]), torch.cat(alone), known)

    def rows_at_once(self, form: str) -> int:
        return min(part.rows_at_once(form) for part in self.parts)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        means, covariances = zip(*(part.latent(X, form) for part in self.parts), strict=True)
        mean = torch.cat(means, -1)
        if form == "none":
            return mean, None
        if form == "diag":
            return mean, torch.cat(covariances, -1)
        if form == "output":
            return mean, torch.diag_embed(torch.cat(covariances, -1).squeeze(-2))
        blocks = torch.diag_embed(torch.stack(covariances, -1))  # (m, m, p, p)
        return mean, blocks.transpose(1, 2).flatten(2).flatten(0, 1)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        k, own = whole_number("the number of draws", k), seeds(random_state, len(self.parts))
        draws = [part.sample_functions(k, random_state=seed) for part, seed in zip(self.parts, own, strict=True)]

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            return torch.cat([draw._evaluate(X, index) for draw in draws], -1)

        return FunctionDraws(evaluate, k, self.num_dims)


def _alone(column: Tensor, index: int, num_outputs: int, fill: float) -> Tensor:
    """A column (n, 1) among p columns of `fill`."""
    table = column.new_full((len(column), num_outputs), fill)
    table[:, [index]] = column
    return table
