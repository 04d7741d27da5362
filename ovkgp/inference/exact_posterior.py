"""Posteriors by the exact kernel: mean m + K_* α and covariance K_** − K_* C⁻¹ K_*ᵀ, with α = C⁻¹ (y − m).

`ExactPosterior` works with the whole cross-covariance, `KroneckerPosterior` with the scalar kernel alone.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import KernelTypeError, OptionError, SpectralError
from ovkgp.features import ORFF
from ovkgp.inference.data import Observations
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.means import OutputMean
from ovkgp.inference.posterior import CHUNK_ENTRIES, difference, normal, seeds
from ovkgp.inference.process_posterior import ProcessPosterior
from ovkgp.inference.processes import Process, prior_covariance
from ovkgp.kernels import components
from ovkgp.kernels.checks import whole_number


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
        """k random functions; `num_frequencies` random features stand for the prior (see `ovkgp.inference.draws`)."""
        k, (for_features, for_weights, for_noise) = whole_number("the number of draws", k), seeds(random_state, 3)
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
