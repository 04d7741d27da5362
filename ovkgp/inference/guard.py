"""A floor under the variance of random features.

A model with r features has r weights; once the data have fixed them it is sure of itself everywhere, far from the data
too. The exact kernel is not: given the function's values at a subset Z of the training points it still has the variance

    K(x, x) − K(x, Z) K(Z, Z)⁻¹ K(Z, x),

which vanishes at the landmarks and returns to the prior's far away. The guard lifts the features' variance to it.
"""

from __future__ import annotations

from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.inference.data import Observations
from ovkgp.inference.dense import safe_cholesky
from ovkgp.inference.landmarks import choose_landmarks
from ovkgp.inference.processes import of_form, prior_covariance
from ovkgp.kernels import components, num_outputs

NUGGET = 1e-6
"""The values at the landmarks are known up to this share of the prior variance: K(Z, Z) is singular for smooth kernels."""

MOST_ENTRIES = 3000
"""Observed entries at the landmarks that are used where the kernel is not a scalar one times a matrix."""


class VarianceGuard:
    """The exact kernel's conditional covariance given the function at landmarks.

    Args:
        kernel: the exact kernel, with p outputs.
        landmarks: Z (k, d), some of the training inputs.
        seen: which outputs were observed there, (k, p).

    Cost: O(k³) once, at the first variance, and O(m k²) for m points for a separable kernel with complete outputs; k grows to k·p otherwise, and
    landmarks are then left out so that no more than 3000 observed entries are used.
    """

    def __init__(self, kernel: Kernel, landmarks: Tensor, seen: Tensor):
        self.kernel, self.num_outputs = kernel, seen.shape[1]
        parts = components(kernel)
        self.is_separable = parts is not None and len(parts) == 1 and bool(seen.all())
        if self.is_separable:
            ((self.scalar, self.output_matrix),) = parts
            self.landmarks, self.entries = landmarks, slice(None)
        else:
            enough = int((seen.sum(1).cumsum(0) <= max(MOST_ENTRIES, self.num_outputs)).sum())
            self.landmarks, self.entries = landmarks[:enough], seen[:enough].flatten()

    @cached_property
    def chol(self) -> Tensor:
        """The factor of K(Z, Z), made when a variance is first asked for: a model that rows are added to may never be asked."""
        with torch.no_grad():
            gram = self._cross(self.landmarks)[self.entries]
            return safe_cholesky(gram + NUGGET * gram.diagonal().mean() * torch.eye(len(gram)).to(gram))

    def _cross(self, X: Tensor) -> Tensor:
        kernel = self.scalar if self.is_separable else self.kernel
        return to_dense(kernel(X, self.landmarks))[:, self.entries]

    def covariance(self, X: Tensor, form: str) -> Tensor:
        """The conditional covariance at X (m, d): (m, p) for "diag", (m, p, p) for "output", (m·p, m·p) for "full"."""
        half = torch.linalg.solve_triangular(self.chol, self._cross(X).mT, upper=False)  # (k, m) or (entries, m·p)
        if self.is_separable:
            return self._separable(X, half, form)
        if form == "full":
            return prior_covariance(self.kernel, X, self.num_outputs, form) - half.mT @ half
        blocks = half.unflatten(-1, (-1, self.num_outputs))  # (entries, m, p)
        explained = blocks.square().sum(0) if form == "diag" else torch.einsum("emp,emq->mpq", blocks, blocks)
        return prior_covariance(self.kernel, X, self.num_outputs, form) - explained

    def _separable(self, X: Tensor, half: Tensor, form: str) -> Tensor:
        if form == "full":
            left = to_dense(self.scalar(X)) - half.mT @ half
            return torch.kron(left.contiguous(), self.output_matrix.contiguous())  # it cannot look at others
        left = prior_covariance(self.scalar, X, 1, "diag") - half.square().sum(0).unsqueeze(-1)  # (m, 1)
        return left * self.output_matrix.diagonal() if form == "diag" else left.unsqueeze(-1) * self.output_matrix

    def lift(self, X: Tensor, covariance: Tensor, form: str) -> Tensor:
        """`covariance` of the given form, with its diagonal raised to the guard's where it is lower.

        What is added is the guard's own covariance, scaled to the missing variances: positive semi-definite and smooth.
        """
        floor = self.covariance(X, form)
        if form == "diag":
            return torch.maximum(covariance, floor)
        have, need = (_standing(c, self.num_outputs, form) for c in (covariance, floor))
        lacking = (need - have).clamp_min(0) / need.clamp_min(torch.finfo(need.dtype).tiny)
        share = torch.where(lacking > 0, torch.where(lacking > 0, lacking, 1.0).sqrt(), 0.0)  # no slope of √ at zero
        return covariance + share.unsqueeze(-1) * floor * share.unsqueeze(-2)

    def tensors(self) -> dict[str, Tensor]:
        """All that `from_tensors` needs beside the kernel, to be stored bit for bit."""
        entries = {} if self.is_separable else {"entries": self.entries}
        return {"landmarks": self.landmarks, "chol": self.chol, **entries}

    @classmethod
    def from_tensors(cls, kernel: Kernel, tensors: dict[str, Tensor]) -> VarianceGuard:
        """The guard that `tensors` came from, over the same kernel."""
        guard = cls.__new__(cls)
        guard.kernel, guard.num_outputs, guard.is_separable = kernel, num_outputs(kernel), "entries" not in tensors
        guard.landmarks, guard.chol = tensors["landmarks"], tensors["chol"]
        guard.entries = tensors.get("entries", slice(None))
        if guard.is_separable:
            ((guard.scalar, guard.output_matrix),) = components(kernel)
        return guard


def landmark_guard(kernel: Kernel, data: Observations, num_landmarks: int = 1000) -> VarianceGuard:
    """The guard of a model from some of its data."""
    found = choose_landmarks(data, num_landmarks)
    return VarianceGuard(kernel, found.X, found.seen)


def _standing(covariance: Tensor, num_outputs: int, form: str) -> Tensor:
    """The diagonal: (m, p) of blocks, (m·p,) of the whole."""
    if form == "output":
        return covariance.diagonal(dim1=-2, dim2=-1)
    return of_form(covariance, num_outputs, "diag").flatten()
