"""The roads that work with the exact kernel: Kronecker products, a dense Cholesky factor, or conjugate gradients.

Each gives the evidence log N(y | m(X), K + noise) of the observed entries, differentiable in the hyperparameters, and the
posterior at fixed ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.dense import DenseSolver, dense_log_density
from ovkgp.inference.algebra.iterative import IterativeSolver, iterative_log_density
from ovkgp.inference.algebra.kronecker import CommonSolver, KroneckerSolver, kronecker_log_density, kronecker_solver
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior, KroneckerPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.kernels import components

MAX_ROWS = 20_000
"""Rows beyond which the n × n matrices of the exact roads no longer fit an ordinary memory."""


class ExactStrategy(ABC):
    """Evidence, posterior and leave-one-out densities by one solver."""

    name: str
    posterior = ExactPosterior

    @abstractmethod
    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        """log p(Y), differentiable in the hyperparameters."""

    @abstractmethod
    def solver(self, model: Model, data: Observations):
        """C⁻¹ at fixed hyperparameters."""

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> Posterior:
        """The posterior; `model` is frozen. Landmarks are for features only: these variances need no guard."""
        data = checked(data).clone()  # the posterior outlives what happens to the user's arrays
        process = KernelProcess(model.kernel, data.num_outputs)
        return self.posterior(process, self.solver(model, data), data, model.mean, model.new_noise(data))

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        """The predictive densities of each entry given all others."""
        data = checked(data)
        solver = self.solver(model, data)
        return LeaveOneOut.from_inverse(data, solver.alpha, solver.inverse_diagonal())


class KroneckerStrategy(ExactStrategy):
    """K ⊗ Γ + I ⊗ Σ with complete outputs. O(n³ + p³ + n²p) time, O(n²) memory."""

    name, posterior = "kronecker", KroneckerPosterior

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return kronecker_log_density(*self._parts(model, checked(data)))

    def solver(self, model: Model, data: Observations) -> CommonSolver | KroneckerSolver:
        return kronecker_solver(*self._parts(model, data))

    def eigen_solver(self, model: Model, data: Observations) -> KroneckerSolver:
        """C⁻¹ by two eigendecompositions, whatever would be cheaper."""
        return KroneckerSolver(*self._parts(model, data))

    @staticmethod
    def _parts(model: Model, data: Observations) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ((scalar, output_matrix),) = components(model.kernel)
        return to_dense(scalar(data.X)), output_matrix, model.noise.matrix(), data.Y - model.mean(data.X)


class EigenStrategy(KroneckerStrategy):
    """The same, always by two eigendecompositions."""

    def solver(self, model: Model, data: Observations) -> KroneckerSolver:
        return self.eigen_solver(model, data)


class DenseStrategy(ExactStrategy):
    """The N × N matrix of the N observed entries. O(N³) time, O(N²) memory."""

    name = "dense"

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        data = checked(data)
        return dense_log_density(covariance(model, data), (data.Y - model.mean(data.X))[data.observed])

    def solver(self, model: Model, data: Observations) -> DenseSolver:
        return DenseSolver(covariance(model, data), data.Y - model.mean(data.X))


class IterativeStrategy(ExactStrategy):
    """Σ_q K_q ⊗ Γ_q + noise on the observed entries, by products alone. O(n²p) time a product, O(n²) memory."""

    name = "iterative"

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return iterative_log_density(*self._parts(model, checked(data)))

    def solver(self, model: Model, data: Observations) -> IterativeSolver:
        return IterativeSolver(*self._parts(model, data))

    @staticmethod
    def _parts(model: Model, data: Observations) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        scalars, matrices = zip(*components(model.kernel), strict=True)
        grams = [to_dense(scalar(data.X)) for scalar in scalars]
        return grams, list(matrices), noise_of_rows(model, data), data.Y - model.mean(data.X)


def noise_of_rows(model: Model, data: Observations) -> Tensor:
    """The noise at each row: variances (n, p), or for all rows alike (1, p), or a covariance (1, p, p)."""
    if data.noise is not None:
        return data.noise
    matrix = model.noise.matrix()
    return (matrix.diagonal() if model.noise.is_diagonal else matrix).unsqueeze(0)


def checked(data: Observations) -> Observations:
    """The data in float64, unless they are too many for the exact kernel."""
    if data.num_rows > MAX_ROWS:
        gigabytes = data.num_rows**2 * 8 / 1e9
        raise InputError(
            f"the exact kernel of {data.num_rows} rows needs matrices of {gigabytes:.0f} GB each. Give the model a feature "
            "map, OperatorValuedGP(kernel, features=ORFF(kernel)), or fewer rows."
        )
    return data.double()


def covariance(model: Model, data: Observations) -> Tensor:
    """K + noise between the observed entries, (N, N)."""
    return prior_between(model, data) + noise_between(model, data)


def prior_between(model: Model, data: Observations) -> Tensor:
    """K between the observed entries, (N, N)."""
    if data.is_complete:
        return to_dense(model.kernel(data.X))
    parts = components(model.kernel)
    if parts is not None:  # between observed entries only: one task a row would make n·p far larger than N
        rows, outputs = data.observed.nonzero(as_tuple=True)
        scalars = (to_dense(scalar(data.X))[rows][:, rows] for scalar, _ in parts)
        first, *rest = (k * matrix[outputs][:, outputs] for k, (_, matrix) in zip(scalars, parts, strict=True))
        return sum(rest, first)
    observed = data.observed.flatten()
    return to_dense(model.kernel(data.X))[observed][:, observed]


def noise_between(model: Model, data: Observations) -> Tensor:
    """The covariance of the noise between the observed entries, (N, N)."""
    rows, outputs = data.observed.nonzero(as_tuple=True)
    if data.noise is not None:
        return torch.diag_embed(data.noise[data.observed])
    matrix = model.noise.matrix()
    if model.noise.is_diagonal:
        return torch.diag_embed(matrix.diagonal()[outputs])
    return matrix[outputs][:, outputs] * (rows.unsqueeze(-1) == rows)
