"""Posterior of a Markov process of time: a prediction needs the two neighboring rows only, O(log n + s³) per point."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.inference.algebra.kalman import KalmanSolver, assemble_blocks, multiply_blocks
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, subtract_explained
from ovkgp.kernels import components
from ovkgp.kernels.state_space import StateSpaceForm, state_space_forms


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
            (torch.where(is_prior[:, None, None], part.covariance(times), part.process_noise(since)), matrix)
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


def find_forms(kernel: Kernel) -> list[tuple[StateSpaceForm, Tensor]] | None:
    """Return pairs (form, output matrix) whose products sum to the kernel; None if there are none."""
    forms = [(state_space_forms(scalar), matrix) for scalar, matrix in components(kernel) or ()]
    if not forms or any(found is None for found, _ in forms):
        return None
    return [(form, matrix.double()) for found, matrix in forms for form in found]
