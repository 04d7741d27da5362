"""Strategies for the exact kernel: Kronecker products, a dense Cholesky factor or conjugate gradients.

Each computes the evidence log N(y | m(X), K + noise) of the observed entries, differentiable in the hyperparameters,
and the posterior at fixed hyperparameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.dense import DenseSolver, dense_log_density
from ovkgp.inference.algebra.iterative import IterativeSolver, iterative_log_density
from ovkgp.inference.algebra.kronecker import (
    KroneckerSolver,
    ProportionalSolver,
    kronecker_log_density,
    make_kronecker_solver,
)
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior, KroneckerPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.kernels import components

MAX_EXACT_ROWS = 20_000  # rows beyond which the n × n matrices of these strategies exceed ordinary memory


class ExactStrategy(ABC):
    """Evidence, posterior and leave-one-out densities by one solver."""

    name: str
    posterior = ExactPosterior

    @abstractmethod
    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        """Compute log p(Y), differentiable in the hyperparameters."""

    @abstractmethod
    def solver(self, model: Model, data: Observations):
        """Make the solver for C⁻¹ at fixed hyperparameters."""

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> Posterior:
        """Compute the posterior of a frozen model; exact variances need no landmarks."""
        data = check_exact_size(data).clone()  # the user's arrays may change later
        process = KernelProcess(model.kernel, data.num_outputs)
        return self.posterior(process, self.solver(model, data), data, model.mean, model.predictive_noise(data))

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        """Compute the predictive density of each entry given all others."""
        data = check_exact_size(data)
        solver = self.solver(model, data)
        return LeaveOneOut.from_inverse(data, solver.alpha, solver.inverse_diagonal())


class KroneckerStrategy(ExactStrategy):
    """C = K ⊗ Γ + I ⊗ Σ with complete outputs. O(n³ + p³ + n²p) time, O(n²) memory."""

    name, posterior = "kronecker", KroneckerPosterior

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return kronecker_log_density(*self._parts(model, check_exact_size(data)))

    def solver(self, model: Model, data: Observations) -> ProportionalSolver | KroneckerSolver:
        return make_kronecker_solver(*self._parts(model, data))

    def eigen_solver(self, model: Model, data: Observations) -> KroneckerSolver:
        """Make the solver with two eigendecompositions, even if another is cheaper."""
        return KroneckerSolver(*self._parts(model, data))

    @staticmethod
    def _parts(model: Model, data: Observations) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ((scalar, output_matrix),) = components(model.kernel)
        return to_dense(scalar(data.X)), output_matrix, model.noise.matrix(), data.Y - model.mean(data.X)


class EigenStrategy(KroneckerStrategy):
    """Kronecker strategy that always uses two eigendecompositions."""

    def solver(self, model: Model, data: Observations) -> KroneckerSolver:
        return self.eigen_solver(model, data)


class DenseStrategy(ExactStrategy):
    """N × N matrix of the N observed entries. O(N³) time, O(N²) memory."""

    name = "dense"

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        data = check_exact_size(data)
        return dense_log_density(observed_covariance(model, data), (data.Y - model.mean(data.X))[data.observed])

    def solver(self, model: Model, data: Observations) -> DenseSolver:
        return DenseSolver(observed_covariance(model, data), data.Y - model.mean(data.X))


class IterativeStrategy(ExactStrategy):
    """C = Σ_q K_q ⊗ Γ_q + noise on the observed entries, by products only. O(n²p) time per product, O(n²) memory."""

    name = "iterative"

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return iterative_log_density(*self._parts(model, check_exact_size(data)))

    def solver(self, model: Model, data: Observations) -> IterativeSolver:
        return IterativeSolver(*self._parts(model, data))

    @staticmethod
    def _parts(model: Model, data: Observations) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        scalars, matrices = zip(*components(model.kernel), strict=True)
        grams = [to_dense(scalar(data.X)) for scalar in scalars]
        return grams, list(matrices), row_noise(model, data), data.Y - model.mean(data.X)


def row_noise(model: Model, data: Observations) -> Tensor:
    """Return the noise of each row: variances (n, p), or for all rows variances (1, p) or a covariance (1, p, p)."""
    if data.noise is not None:
        return data.noise
    matrix = model.noise.matrix()
    return (matrix.diagonal() if model.noise.is_diagonal else matrix).unsqueeze(0)


def check_exact_size(data: Observations) -> Observations:
    """Check that the data are small enough for the exact kernel, and convert them to float64."""
    if data.num_rows > MAX_EXACT_ROWS:
        gigabytes = data.num_rows**2 * 8 / 1e9
        raise InputError(
            f"X has {data.num_rows} rows, for which the exact kernel needs matrices of {gigabytes:.0f} GB each. Use a feature map, OperatorValuedGP(kernel, features=ORFF(kernel)), or fewer rows."
        )
    return data.double()


def observed_covariance(model: Model, data: Observations) -> Tensor:
    """Compute K + noise between the observed entries, (N, N)."""
    return observed_prior_covariance(model, data) + observed_noise_covariance(model, data)


def observed_prior_covariance(model: Model, data: Observations) -> Tensor:
    """Compute K between the observed entries, (N, N)."""
    if data.is_complete:
        return to_dense(model.kernel(data.X))
    parts = components(model.kernel)
    if parts is not None:  # between observed entries only: with one task per row n·p is far larger than N
        rows, outputs = data.observed.nonzero(as_tuple=True)
        scalars = (to_dense(scalar(data.X))[rows][:, rows] for scalar, _ in parts)
        first, *rest = (k * matrix[outputs][:, outputs] for k, (_, matrix) in zip(scalars, parts, strict=True))
        return sum(rest, first)
    observed = data.observed.flatten()
    return to_dense(model.kernel(data.X))[observed][:, observed]


def observed_noise_covariance(model: Model, data: Observations) -> Tensor:
    """Compute the covariance of the noise between the observed entries, (N, N)."""
    rows, outputs = data.observed.nonzero(as_tuple=True)
    if data.noise is not None:
        return torch.diag_embed(data.noise[data.observed])
    matrix = model.noise.matrix()
    if model.noise.is_diagonal:
        return torch.diag_embed(matrix.diagonal()[outputs])
    return matrix[outputs][:, outputs] * (rows.unsqueeze(-1) == rows)
