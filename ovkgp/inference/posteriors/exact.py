"""Outputs that share nothing: one posterior each, side by side."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import KernelTypeError, OptionError, SpectralError
from ovkgp.features import ORFF
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.fields import FieldViews
from ovkgp.inference.posteriors.posterior import (
    CHUNK_ENTRIES,
    FunctionDraws,
    Posterior,
    Process,
    difference,
    normal,
    prior_covariance,
    seeds,
)
from ovkgp.kernels import components


class ProcessPosterior(FieldViews, Posterior):
    """The posterior of a process that is, or is tied to, the observed one.

    Args:
        process: what is predicted.
        mean: the prior mean of the observed process; other processes have mean zero.
        output_noise: Σ (p, p) of a new observation.
        num_dims: d.
    """

    def __init__(self, process: Process, mean: OutputMean, output_noise: Tensor, num_dims: int):
        self.process, self.mean, self.output_noise = process, mean, output_noise
        self.num_outputs, self.num_dims = process.num_outputs, num_dims

    @property
    def noise(self) -> Tensor | None:
        return self.output_noise if self.process.is_observed else None

    def prior_mean(self, X: Tensor) -> Tensor:
        """m(X) (m, q); zero for a process that is not the observed one."""
        return self.mean(X) if self.process.is_observed else X.new_zeros(len(X), self.num_outputs)


class ExactPosterior(ProcessPosterior):
    """The posterior of a process, by a dense or an iterative solver on the observed entries.

    Args:
        process: what is predicted.
        solver: C⁻¹ on the observed entries.
        data: what was observed, in float64.
        mean: the prior mean; used where the process is the observed one.
        output_noise: Σ (p, p) of a new observation, and of the data where theirs is not known.
    """

    def __init__(self, process: Process, solver, data: Observations, mean: OutputMean, output_noise: Tensor):
        super().__init__(process, mean, output_noise, data.X.shape[1])
        self.solver, self.data = solver, data
        self.log_evidence, self.log_evidence_error = float(solver.log_density), solver.standard_error

    @property
    def X(self) -> Tensor:
        """The training inputs (n, d)."""
        return self.data.X

    def of(self, process: Process) -> ExactPosterior:
        """The posterior of another process that is jointly Gaussian with the observed one."""
        return ExactPosterior(process, self.solver, self.data, self.mean, self.output_noise)

    def rows_at_once(self, form: str) -> int:
        return CHUNK_ENTRIES // (self.solver.alpha.numel() * self.num_outputs)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        cross = self.process.cross(X, self.X)
        cross = cross if form == "none" else to_dense(cross)
        mean = self.prior_mean(X) + (cross @ self.solver.alpha.flatten()).unflatten(-1, (-1, self.num_outputs))
        if form == "none":
            return mean, None
        explained = self.solver.explained(cross, form, num_outputs=self.num_outputs)
        return mean, difference(self.process.prior(X, form), explained, self.num_outputs, form)

    def propagate(self, X: Tensor, coefficients: Tensor) -> Tensor:
        """K(X, X_train) c for coefficients c (n·p, k): (m·q, k)."""
        return self.process.cross(X, self.X) @ coefficients

    def sample_functions(self, k: int = 1, *, random_state=None, num_frequencies: int = 2000) -> FunctionDraws:
        """k random functions; `num_frequencies` random features stand for the prior (see `ovkgp.inference.posteriors.posterior`)."""
        k, (for_features, for_weights, for_noise) = check_integer("the number of draws", k), seeds(random_state, 3)
        prior = prior_features(self.process.kernel, num_frequencies, self.num_dims, for_features)
        weights = normal((k, prior.num_features), for_weights, self.X)
        noise = self._noise_draws(normal((k, *self.solver.alpha.shape), for_noise, self.X))
        drawn = (prior(self.X) @ weights.mT).mT.unflatten(-1, self.solver.alpha.shape)
        coefficients = self.solver.alpha.flatten().unsqueeze(-1) - self.solver.solve((drawn + noise).flatten(1).mT)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = self.process.features(prior, X) @ weights[index].mT + self.propagate(X, coefficients[:, index])
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        return FunctionDraws(evaluate, k, self.num_dims)

    def _noise_draws(self, scores: Tensor) -> Tensor:
        if self.data.noise is not None:
            return scores * self.data.noise.sqrt()
        return scores @ torch.linalg.cholesky(self.output_noise).mT


class KroneckerPosterior(ExactPosterior):
    """The posterior of a kernel k(x, z) Γ given complete outputs, from the eigendecompositions of K and Γ.

    Cost of m standard deviations: O(m n² + m n p + m p²) time; the np × np matrix is never formed.
    """

    def __init__(self, process: Process, solver, data: Observations, mean: OutputMean, output_noise: Tensor):
        super().__init__(process, solver, data, mean, output_noise)
        ((self.scalar, self.output_matrix),) = components(process.kernel)

    def rows_at_once(self, form: str) -> int:
        return CHUNK_ENTRIES // max(len(self.X), self.num_outputs**2)

    def noise_path(self, multipliers) -> Tensor:
        """log p(Y) with the noise multiplied by each of `multipliers` (k,), all from the same eigenvalues (BT-76)."""
        return self.solver.path(multipliers)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        cross = to_dense(self.scalar(X, self.X))
        mean = self.prior_mean(X) + cross @ (self.solver.alpha @ self.output_matrix)
        if form == "none":
            return mean, None
        return mean, difference(self._prior(X, form), self.solver.explained(cross, form), self.num_outputs, form)

    def _prior(self, X: Tensor, form: str) -> Tensor:
        if form == "full":
            return torch.kron(to_dense(self.scalar(X)).contiguous(), self.output_matrix.contiguous())
        variance = prior_covariance(self.scalar, X, 1, "diag")
        return variance * self.output_matrix.diagonal() if form == "diag" else variance[..., None] * self.output_matrix

    def propagate(self, X: Tensor, coefficients: Tensor) -> Tensor:
        blocks = coefficients.unflatten(0, self.solver.alpha.shape)  # (n, p, k)
        mixed = torch.einsum("npk,pq->nqk", blocks, self.output_matrix).flatten(1)
        return (to_dense(self.scalar(X, self.X)) @ mixed).unflatten(-1, blocks.shape[1:]).flatten(0, 1)


def prior_features(kernel: Kernel, num_frequencies: int, num_dims: int, seed: int) -> ORFF:
    try:
        return ORFF(kernel, num_frequencies, num_dims=num_dims, random_state=seed).double()
    except (SpectralError, KernelTypeError) as error:
        raise OptionError(
            f"random functions need random features of the prior, and this kernel has none: {error} For joint draws at "
            "given points use sample(X, k)."
        ) from error


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
        k, own = check_integer("the number of draws", k), seeds(random_state, len(self.parts))
        draws = [part.sample_functions(k, random_state=seed) for part, seed in zip(self.parts, own, strict=True)]

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            return torch.cat([draw._evaluate(X, index) for draw in draws], -1)

        return FunctionDraws(evaluate, k, self.num_dims)


def _alone(column: Tensor, index: int, num_outputs: int, fill: float) -> Tensor:
    """A column (n, 1) among p columns of `fill`."""
    table = column.new_full((len(column), num_outputs), fill)
    table[:, [index]] = column
    return table
