"""Posteriors in weight space: mean m + Φ_* θ̂ and covariance Φ_* C⁻¹ Φ_*ᵀ, from statistics alone; no data are kept."""

from __future__ import annotations

from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.features import FeatureMap
from ovkgp.inference.algebra.dense import safe_cholesky
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import choose_landmarks
from ovkgp.inference.posteriors.exact import ProcessPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, FunctionDraws, Process, of_form, prior_covariance
from ovkgp.kernels import components, num_outputs

NUGGET = 1e-6
"""The values at the landmarks are known up to this share of the prior variance: K(Z, Z) is singular for smooth kernels."""

MAX_ENTRIES = 3000
"""Observed entries at the landmarks that are used where the kernel is not a scalar one times a matrix."""


class VarianceFloor:
    """The exact kernel's conditional covariance given the function at landmarks.

    Args:
        kernel: the exact kernel, with p outputs.
        landmarks: Z (k, d), some of the training inputs.
        observed: which outputs were observed there, (k, p).

    Cost: O(k³) once, at the first variance, and O(m k²) for m points for a separable kernel with complete outputs; k grows to k·p otherwise, and
    landmarks are then left out so that no more than 3000 observed entries are used.
    """

    def __init__(self, kernel: Kernel, landmarks: Tensor, observed: Tensor):
        self.kernel, self.num_outputs = kernel, observed.shape[1]
        parts = components(kernel)
        self.is_separable = parts is not None and len(parts) == 1 and bool(observed.all())
        if self.is_separable:
            ((self.scalar, self.output_matrix),) = parts
            self.landmarks, self.entries = landmarks, slice(None)
        else:
            enough = int((observed.sum(1).cumsum(0) <= max(MAX_ENTRIES, self.num_outputs)).sum())
            self.landmarks, self.entries = landmarks[:enough], observed[:enough].flatten()

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
    def from_tensors(cls, kernel: Kernel, tensors: dict[str, Tensor]) -> VarianceFloor:
        """The guard that `tensors` came from, over the same kernel."""
        guard = cls.__new__(cls)
        guard.kernel, guard.num_outputs, guard.is_separable = kernel, num_outputs(kernel), "entries" not in tensors
        guard.landmarks, guard.chol = tensors["landmarks"], tensors["chol"]
        guard.entries = tensors.get("entries", slice(None))
        if guard.is_separable:
            ((guard.scalar, guard.output_matrix),) = components(kernel)
        return guard


def landmark_guard(kernel: Kernel, data: Observations, num_landmarks: int = 1000) -> VarianceFloor:
    """The guard of a model from some of its data."""
    found = choose_landmarks(data, num_landmarks)
    return VarianceFloor(kernel, found.X, found.observed)


def _standing(covariance: Tensor, num_outputs: int, form: str) -> Tensor:
    """The diagonal: (m, p) of blocks, (m·p,) of the whole."""
    if form == "output":
        return covariance.diagonal(dim1=-2, dim2=-1)
    return of_form(covariance, num_outputs, "diag").flatten()


class WeightPosterior(ProcessPosterior):
    """The posterior of a process with finitely many features.

    Args:
        process: what is predicted.
        feature_map: Φ, the features of the observed process.
        system: the posterior of the weights.
        mean: the prior mean; used where the process is the observed one.
        output_noise: Σ (p, p) of a new observation.
        num_dims: d.
        guard: lifts the variance where features starve it, or None for the bare variance.

    Function draws are draws of the weights, and have the bare variance.
    """

    def __init__(
        self,
        process: Process,
        feature_map: FeatureMap,
        system,
        mean: OutputMean,
        output_noise: Tensor,
        num_dims: int,
        guard: VarianceFloor | None = None,
    ):
        super().__init__(process, mean, output_noise, num_dims)
        self.feature_map, self.system = feature_map, system
        self.guard = guard
        self.log_evidence = float(system.log_density)

    @property
    def weights(self) -> Tensor:
        """The posterior mean of the weights (r,)."""
        return self.system.weights

    def noise_path(self, multipliers) -> Tensor:
        """log p(Y) with the noise multiplied by each of `multipliers` (k,), from one eigendecomposition (BT-76)."""
        return self.system.path(multipliers)

    def path_weights(self, multiplier: float) -> Tensor:
        """The posterior mean of the weights (r,) with the noise multiplied by a number: a point of the same path."""
        return self.system.path_weights(multiplier)

    def of(self, process: Process) -> WeightPosterior:
        """The posterior of another process made of the same weights, with the bare variance of the features."""
        return WeightPosterior(process, self.feature_map, self.system, self.mean, self.output_noise, self.num_dims)

    def rows_at_once(self, form: str) -> int:
        return CHUNK_ENTRIES // (self.system.num_features * (1 if form == "none" else self.num_outputs))

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        features = self.process.features(self.feature_map, X)
        mean = self.prior_mean(X) + (features @ self.weights).unflatten(-1, (-1, self.num_outputs))
        if form == "none":
            return mean, None
        covariance = self.system.variance(features, form, num_outputs=self.num_outputs)
        return mean, covariance if self.guard is None else self.guard.lift(X, covariance, form)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        k = check_integer("the number of draws", k)
        generator = torch.Generator().manual_seed(as_seed(random_state))
        weights = self.system.draw(k, generator)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = self.process.features(self.feature_map, X) @ weights[index].mT
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        return FunctionDraws(evaluate, k, self.num_dims)
