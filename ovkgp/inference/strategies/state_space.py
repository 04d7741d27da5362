"""Strategy for one input, time, and kernels of Markov processes: a Kalman filter over the rows in the order of time, in O(n).

A prediction needs the two neighboring rows only: O(log n + s³) per point for a state of s entries.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.inverse_roots import quadrature_nodes
from ovkgp.inference.algebra.kalman import (
    KalmanSolver,
    MarkovTerm,
    assemble_blocks,
    markov_log_density,
    multiply_blocks,
)
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, subtract_explained
from ovkgp.inference.strategies.exact import ExactStrategy, row_noise
from ovkgp.kernels import components
from ovkgp.kernels.state_space import StateSpaceForm, state_space_forms

MAX_STATE_ENTRIES = (
    50_000_000  # entries of the covariances of the states of all rows, of which six arrays are stored (2.4 GB)
)


class StateSpacePosterior(ExactPosterior):
    """Posterior by a solver that stores filtered states m_k, P_k and adjoints r̃_k, Ñ_k of the rows.

    At a time after row k, with transitions A from row k and B to row k + 1, the state has mean m + P r and covariance P − P N P for

        m = A m_k,   P = A P_k Aᵀ + Q,   r = Bᵀ r̃_{k+1},   N = Bᵀ Ñ_{k+1} B.
    """

    solver: KalmanSolver

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // self.solver.size**2

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        if form == "full":
            return super().latent(X, form)
        solver, times, stamps = self.solver, X[:, 0].contiguous(), self.X[self.solver.order, 0]
        after = torch.searchsorted(stamps, times, right=True)  # rows after each point
        before = after - 1
        is_prior, is_last = before < 0, after == len(stamps)
        since = torch.where(is_prior, 0.0, times - stamps[before.clamp_min(0)])
        until = torch.where(is_last, 0.0, stamps[after.clamp_max(len(stamps) - 1)] - times)
        pairs = find_forms(self.process.kernel)
        forward, backward = ([form.transition(lags) for form, _ in pairs] for lags in (since, until))
        noises = [
            (torch.where(is_prior[:, None, None], part.covariance(times), part.process_noise(since, times)), matrix)
            for part, matrix in pairs
        ]
        mean, covariance = solver.states(before)
        adjoint, information = solver.future(after)
        mean = multiply_blocks(forward, mean.unsqueeze(-1))
        covariance = multiply_blocks(forward, multiply_blocks(forward, covariance).mT)
        covariance = covariance + assemble_blocks(noises, solver.size)
        adjoint = multiply_blocks(backward, adjoint.unsqueeze(-1), transpose=True)
        read = solver.reading @ covariance  # H P (m, p, s)
        values = self.prior_mean(X) + (solver.reading @ mean + read @ adjoint).squeeze(-1)
        if form == "none":
            return values, None
        information = multiply_blocks(backward, multiply_blocks(backward, information, True).mT, True)
        parts = read @ solver.reading.mT, read @ information @ read.mT
        if form == "diag":
            parts = tuple(part.diagonal(dim1=-2, dim2=-1) for part in parts)
        return values, subtract_explained(*parts, form)

    def propagate(self, X: Tensor, coefficients: Tensor) -> Tensor:
        size = max(CHUNK_ENTRIES // len(coefficients), 1)
        return torch.cat([super(StateSpacePosterior, self).propagate(part, coefficients) for part in X.split(size)])


class StateSpaceStrategy(ExactStrategy):
    """C = Σ_c K_c ⊗ Γ_c + noise for Markov processes, with missing outputs and equal stamps. O(n s³) time and O(n s²) memory, s = Σ d_c p."""

    name, posterior = "state_space", StateSpacePosterior
    requirement = 'one input column and a separable kernel of Matérn (ν = ½, 3/2, 5/2), constant, linear, integrated Brownian and seasonal terms and their products. Use strategy="auto".'

    def check_size(self, data: Observations) -> Observations:
        return data.double()  # `_parts` checks the size, which depends on the kernel

    def supports(self, model: Model, data: Observations) -> bool:
        return data.X.shape[1] == 1 and model.features is None and find_forms(model.kernel) is not None

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        return markov_log_density(*self._parts(model, data.double()))

    def solver(self, model: Model, data: Observations) -> KalmanSolver:
        return KalmanSolver(*self._parts(model, data))

    @torch.no_grad()
    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        """Compute C^(−½) r by 15 to 50 filters with more noise, a quadrature exact to about 1e-10."""
        data = data.double()
        terms, noise, residuals, order = self._parts(model, data)
        variances = [
            (form.covariance(data.X[:, 0]) @ form.read_vector() @ form.read_vector()).sum() * matrix.trace()
            for form, matrix in find_forms(model.kernel)
        ]
        trace = sum(variances) + noise.diagonal(dim1=-2, dim2=-1).sum()
        total, eye = torch.zeros_like(residuals), torch.eye(data.num_outputs).to(residuals)
        for shift, weight in quadrature_nodes(float(torch.linalg.eigvalsh(noise).min()), float(trace)):
            total += weight * KalmanSolver(terms, noise + shift * eye, residuals, order).alpha
        return torch.where(data.observed, total, torch.nan)

    @staticmethod
    def _parts(model: Model, data: Observations) -> tuple[list[MarkovTerm], Tensor, Tensor, Tensor]:
        """Return the terms in the order of time, R (n, p, p), y − m (n, p) and the order."""
        size = state_size(model.kernel)
        if data.num_rows * size**2 > MAX_STATE_ENTRIES:
            raise InputError(
                f"X has {data.num_rows} rows, for which states of {size} entries need more than 2.4 GB. Use a feature map, OperatorValuedGP(kernel, features=ORFF(kernel)), or fewer rows."
            )
        order = data.X[:, 0].argsort(stable=True)
        times = data.X[order, 0]
        lags = times.diff()
        terms = []
        for form, matrix in find_forms(model.kernel):
            transitions = torch.cat([torch.eye(form.size).to(times).unsqueeze(0), form.transition(lags)])
            noises = torch.cat([form.covariance(times[:1]), form.process_noise(lags, times[1:])])
            terms.append(MarkovTerm(transitions, noises, matrix, form.reading))
        noise = row_noise(model, data)
        noise = noise if noise.dim() == 3 else torch.diag_embed(noise)
        p = data.num_outputs
        return terms, noise.expand(len(order), p, p), data.Y - model.mean(data.X), order


def find_forms(kernel: Kernel) -> list[tuple[StateSpaceForm, Tensor]] | None:
    """Return pairs (form, output matrix) whose products sum to the kernel; None if there are none."""
    forms = [(state_space_forms(scalar), matrix) for scalar, matrix in components(kernel) or ()]
    if not forms or any(found is None for found, _ in forms):
        return None
    return [(form, matrix.double()) for found, matrix in forms for form in found]


def state_size(kernel: Kernel) -> float:
    """Return the number of entries of the state, for all outputs; infinity if the kernel is not one of a Markov process."""
    forms = find_forms(kernel)
    return math.inf if forms is None else sum(form.size * len(matrix) for form, matrix in forms)
