"""Strategies for the exact kernel: Kronecker products, complete or with missing outputs, a dense Cholesky factor, or
conjugate gradients.

Each computes the evidence log N(y | m(X), K + noise) of the observed entries, differentiable in the hyperparameters,
and the posterior at fixed hyperparameters.
"""

from __future__ import annotations

import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.dense import DenseSolver, dense_log_density
from ovkgp.inference.algebra.inverse_roots import dense_inverse_root, kronecker_inverse_root
from ovkgp.inference.algebra.iterative import IterativeSolver, iterative_inverse_root, iterative_log_density
from ovkgp.inference.algebra.kronecker import (
    KroneckerSolver,
    ProportionalSolver,
    kronecker_log_density,
    make_kronecker_solver,
)
from ovkgp.inference.algebra.kronecker_missing import MissingSolver, missing_inverse_root, missing_log_density
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior, KroneckerPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut
from ovkgp.inference.posteriors.posterior import Conditioning, KernelProcess
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

MAX_EXACT_ROWS = 20_000  # rows beyond which the n × n matrices of these strategies exceed ordinary memory


class ExactStrategy:
    """Posterior and leave-one-out densities from `solver(model, data)` for C⁻¹; see `Strategy` for the other methods."""

    posterior = ExactPosterior

    def check_size(self, data: Observations) -> Observations:
        """Check that the data are small enough, and convert them to float64."""
        return check_exact_size(data)

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0, **options) -> ExactPosterior:
        """Compute the posterior of a frozen model, with options of the solver; exact variances need no landmarks."""
        data = self.check_size(data).clone()  # the user's arrays may change later
        process, solver = KernelProcess(model.kernel, data.num_outputs), self.solver(model, data, **options)
        posterior = self.posterior(process, solver, data, model.mean, model.predictive_noise(data))
        posterior.conditioning = Conditioning(self, model, data)
        return posterior

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        """Compute the predictive density of each entry given all others."""
        data = self.check_size(data)
        solver = self.solver(model, data)
        return LeaveOneOut.from_inverse(data, solver.alpha, solver.inverse_diagonal())

    def leave_groups_out(self, model: Model, data: Observations, groups: Tensor) -> LeaveGroupOut:
        """Compute the predictive density of each group of rows given all others."""
        data = self.check_size(data)
        solver = self.solver(model, data)
        return LeaveGroupOut.from_groups(data, solver.alpha, groups, solver.inverse_blocks)


class KroneckerStrategy(ExactStrategy):
    """C = K ⊗ Γ + I ⊗ Σ with complete outputs. O(n³ + p³ + n²p) time, O(n²) memory."""

    name, posterior = "kronecker", KroneckerPosterior
    requirement = (
        'a separable kernel with one component, complete outputs and equal noise at all points. Use strategy="auto".'
    )

    def __init__(self, make_solver=make_kronecker_solver):
        self.make_solver = make_solver  # or `KroneckerSolver`, even if another is cheaper

    def supports(self, model: Model, data: Observations) -> bool:
        parts = components(model.kernel)
        return parts is not None and len(parts) == 1 and data.is_complete and data.noise is None

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return kronecker_log_density(*self.parts(model, check_exact_size(data)))

    def solver(self, model: Model, data: Observations) -> ProportionalSolver | KroneckerSolver:
        return self.make_solver(*self.parts(model, data))

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        return kronecker_inverse_root(*self.parts(model, check_exact_size(data)))

    @staticmethod
    def parts(model: Model, data: Observations) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return K, Γ, Σ and y − m."""
        ((scalar, output_matrix),) = components(model.kernel)
        return (
            to_dense(evaluate_kernel(scalar, data.X)),
            output_matrix,
            model.noise.matrix(),
            data.Y - model.mean(data.X),
        )


class KroneckerMissingStrategy(KroneckerStrategy):
    """C = P (K ⊗ Γ + I ⊗ Σ) Pᵀ with k missing outputs. O(n³ + p³ + k³ + n p (n² + p²)) time, O(n² + p² + np + k²) memory."""

    name = "kronecker_missing"
    requirement = 'a separable kernel with one component and equal noise at all points. Use strategy="auto".'

    def __init__(self):
        super().__init__(MissingSolver)

    def supports(self, model: Model, data: Observations) -> bool:
        parts = components(model.kernel)
        return parts is not None and len(parts) == 1 and data.noise is None

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return missing_log_density(*self.parts(model, check_exact_size(data)))

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        return missing_inverse_root(*self.parts(model, check_exact_size(data)))


class DenseStrategy(ExactStrategy):
    """N × N matrix of the N observed entries. O(N³) time, O(N²) memory."""

    name = "dense"
    requirement = ""  # it supports every model

    def supports(self, model: Model, data: Observations) -> bool:
        return True

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        data = check_exact_size(data)
        return dense_log_density(observed_covariance(model, data), (data.Y - model.mean(data.X))[data.observed])

    def solver(self, model: Model, data: Observations) -> DenseSolver:
        return DenseSolver(observed_covariance(model, data), data.Y - model.mean(data.X))

    @torch.no_grad()
    def extend(self, posterior: ExactPosterior, added: Observations, data: Observations) -> ExactPosterior:
        """Return the posterior given `data`, the rows of `posterior` followed by `added`. O(N² K) for K new observed entries."""
        _, model, earlier = posterior.conditioning
        data = self.check_size(data)
        cross = to_dense(evaluate_kernel(model.kernel, added.X, earlier.X))
        cross = cross[added.observed.flatten()][:, earlier.observed.flatten()]
        covariance = observed_covariance(model, added)
        solver = posterior.solver.extended(cross, covariance, data.Y - model.mean(data.X))
        found = ExactPosterior(posterior.process, solver, data, model.mean, model.predictive_noise(data))
        found.conditioning = Conditioning(self, model, data)
        return found

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        data = check_exact_size(data)
        residuals = data.Y - model.mean(data.X)
        found = dense_inverse_root(observed_covariance(model, data), residuals[data.observed])
        return residuals.masked_scatter(data.observed, found)


class IterativeStrategy(ExactStrategy):
    """C = Σ_q K_q ⊗ Γ_q + noise on the observed entries, by products only. O(n²p) time per product, O(n²) memory."""

    name = "iterative"
    requirement = 'a separable kernel. Use strategy="auto".'

    def __init__(self, **settings):
        self.settings = settings  # of `IterativeSolver`

    def supports(self, model: Model, data: Observations) -> bool:
        return components(model.kernel) is not None

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return iterative_log_density(*self._parts(model, check_exact_size(data)))

    def solver(self, model: Model, data: Observations, **options) -> IterativeSolver:
        return IterativeSolver(*self._parts(model, data), **{**self.settings, **options})

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        return iterative_inverse_root(*self._parts(model, check_exact_size(data)), **self.settings)

    @staticmethod
    def _parts(model: Model, data: Observations) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        scalars, matrices = zip(*components(model.kernel), strict=True)
        grams = [to_dense(evaluate_kernel(scalar, data.X)) for scalar in scalars]
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
        return to_dense(evaluate_kernel(model.kernel, data.X))
    parts = components(model.kernel)
    if parts is not None:  # between observed entries only: with one task per row n·p is far larger than N
        rows, outputs = data.observed.nonzero(as_tuple=True)
        scalars = (to_dense(evaluate_kernel(scalar, data.X))[rows][:, rows] for scalar, _ in parts)
        first, *rest = (k * matrix[outputs][:, outputs] for k, (_, matrix) in zip(scalars, parts, strict=True))
        return sum(rest, first)
    observed = data.observed.flatten()
    return to_dense(evaluate_kernel(model.kernel, data.X))[observed][:, observed]


def observed_noise_covariance(model: Model, data: Observations) -> Tensor:
    """Compute the covariance of the noise between the observed entries, (N, N)."""
    rows, outputs = data.observed.nonzero(as_tuple=True)
    if data.noise is not None:
        return torch.diag_embed(data.noise[data.observed])
    matrix = model.noise.matrix()
    if model.noise.is_diagonal:
        return torch.diag_embed(matrix.diagonal()[outputs])
    return matrix[outputs][:, outputs] * (rows.unsqueeze(-1) == rows)
