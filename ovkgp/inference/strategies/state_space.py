"""Strategy for one input, time, and kernels of Markov processes: a Kalman filter over the rows in the order of time, in O(n).

A prediction needs the two neighboring rows only: O(log n + s³) per point for a state of s entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.dense import psd_root
from ovkgp.inference.algebra.inverse_roots import quadrature_nodes
from ovkgp.inference.algebra.kalman import (
    KalmanSolver,
    MarkovTerm,
    assemble_blocks,
    filter_rows,
    markov_log_density,
    multiply_blocks,
    reading_matrix,
)
from ovkgp.inference.model.mean_noise import Model, OutputMean
from ovkgp.inference.model.observations import Observations, validate_inputs
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import (
    CHUNK_ENTRIES,
    Conditioning,
    Process,
    draw_normal,
    subtract_explained,
)
from ovkgp.inference.strategies.exact import ExactStrategy, row_noise
from ovkgp.kernels import components
from ovkgp.kernels.state_space import StateSpaceForm, state_space_forms

MAX_STATE_ENTRIES = (
    50_000_000  # entries of the covariances of the states of all rows, of which six arrays are stored (2.4 GB)
)
MAX_DRAW_ENTRIES = 10_000_000  # entries of the states of draws that are simulated together (80 MB)


class EndState(NamedTuple):
    """Time () of the last row, and mean (s,) and covariance (s, s) of the state there given all rows."""

    time: Tensor
    mean: Tensor
    covariance: Tensor


class StateSpacePosterior(ExactPosterior):
    """Posterior by a solver that stores filtered states m_k, P_k and adjoints r̃_k, Ñ_k of the rows.

    At a time after row k, with transitions A from row k and B to row k + 1, the state has mean m + P r and covariance P − P N P for

        m = A m_k,   P = A P_k Aᵀ + Q,   r = Bᵀ r̃_{k+1},   N = Bᵀ Ñ_{k+1} B.

    After `StateSpaceStrategy.extend`, points after the last row need `end` alone; the solver is made when other points are predicted.
    """

    def __init__(self, process: Process, solver: KalmanSolver, data: Observations, mean: OutputMean, noise: Tensor):
        super().__init__(process, solver, data, mean, noise)
        self._pairs = None
        means, covariances = solver.states(torch.tensor([data.num_rows - 1]))
        self.end = EndState(data.X[:, 0].max(), means[0], covariances[0])

    @property
    def solver(self) -> KalmanSolver:
        """Solver of all rows."""
        if not isinstance(self._solver, KalmanSolver):
            self._solver = self._solver()
        return self._solver

    @solver.setter
    def solver(self, solver: KalmanSolver | Callable[[], KalmanSolver]) -> None:
        self._solver = solver

    @property
    def pairs(self) -> list[tuple[StateSpaceForm, Tensor]]:
        """Forms and output matrices of the terms of the kernel."""
        if self._pairs is None:
            self._pairs = find_forms(self.process.kernel)
        return self._pairs

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_pairs": None}  # forms are functions, which cannot be pickled

    def extended(self, data: Observations, end: EndState, log_density: float, make_solver) -> StateSpacePosterior:
        """Return the posterior given further rows, whose log density given the present ones is known."""
        posterior = copy(self)
        posterior._pairs = self._pairs
        posterior.data, posterior.end, posterior.solver = data, end, make_solver
        posterior.log_evidence = self.log_evidence + log_density
        return posterior

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // len(self.end.mean) ** 2

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        if form == "full":
            return super().latent(X, form)
        if bool((X[:, 0] >= self.end.time).all()):
            return self._latent_after_end(X, form)
        solver = self.solver
        before, after, forward, backward, noise = self._neighbors(X)
        mean, covariance = solver.states(before)
        adjoint, information = solver.future(after)
        mean = multiply_blocks(forward, mean.unsqueeze(-1))
        covariance = multiply_blocks(forward, multiply_blocks(forward, covariance).mT) + noise
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

    def _neighbors(self, X: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], Tensor]:
        """Return the rows before and after each point, the transitions from and to them, and Q, before the first row P."""
        times, stamps = X[:, 0].contiguous(), self.X[self.solver.order, 0]
        after = torch.searchsorted(stamps, times, right=True)
        before = after - 1
        is_prior, is_last = before < 0, after == len(stamps)
        since = torch.where(is_prior, 0.0, times - stamps[before.clamp_min(0)])
        until = torch.where(is_last, 0.0, stamps[after.clamp_max(len(stamps) - 1)] - times)
        pairs = self.pairs
        forward, backward = ([form.transition(lags) for form, _ in pairs] for lags in (since, until))
        is_prior = is_prior[:, None, None]
        noises = [
            (torch.where(is_prior, part.covariance(times), part.process_noise(since, times)), matrix)
            for part, matrix in pairs
        ]
        return before, after, forward, backward, assemble_blocks(noises, self.solver.size)

    def _latent_after_end(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Compute the moments at points after the last row from the state there."""
        times, pairs = X[:, 0], self.pairs
        lags, reading = times - self.end.time, read_states(pairs)
        blocks = [form.transition(lags) for form, _ in pairs]
        mean, covariance = (part.expand(len(X), *part.shape) for part in self.end[1:])
        values = self.prior_mean(X) + (reading @ multiply_blocks(blocks, mean.unsqueeze(-1))).squeeze(-1)
        if form == "none":
            return values, None
        noises = [(part.process_noise(lags, times), matrix) for part, matrix in pairs]
        covariance = multiply_blocks(blocks, multiply_blocks(blocks, covariance).mT)
        covariance = covariance + assemble_blocks(noises, mean.shape[-1])
        covariance = reading @ covariance @ reading.mT
        return values, covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0) if form == "diag" else covariance

    def propagate(self, X: Tensor, coefficients: Tensor) -> Tensor:
        size = max(CHUNK_ENTRIES // len(coefficients), 1)
        return torch.cat([super(StateSpacePosterior, self).propagate(part, coefficients) for part in X.split(size)])

    @torch.no_grad()
    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """Draw k joint samples at the points X (m, 1), with the arguments of `Posterior.sample`.

        Draws of the prior are simulated in the order of time and corrected by smoothing their differences to the data (Matheron's
        rule). After the last row they begin at its state. O((n + m) s² k), after the last row O(m s² k).
        """
        k, mean = check_integer("the number of draws", k), self.predict(X, "none", noise).mean
        X = validate_inputs(X, self.num_dims).double()
        rng = np.random.default_rng(as_seed(random_state))
        is_after = bool((X[:, 0] >= self.end.time).all())
        rows = len(X) + (0 if is_after else self.data.num_rows)
        width = max(1, MAX_DRAW_ENTRIES // (rows * len(self.end.mean)))  # draws that are made together
        draw = self._draw_after_end if is_after else self._draw
        parts = [draw(X, min(width, k - done), rng) for done in range(0, k, width)]
        found = mean + torch.cat(parts)
        if not noise:
            return found
        return found + draw_normal(found.shape, rng, found) @ torch.linalg.cholesky(self.noise).mT

    def _draw_after_end(self, X: Tensor, k: int, rng: np.random.Generator) -> Tensor:
        """Draw deviations (k, m, p) from the mean at points after the last row."""
        order = X[:, 0].argsort(stable=True)
        root = scaled_root(self.end.covariance)
        start = root @ draw_normal((len(root), k), rng, X)
        return simulate(self.pairs, X[order, 0], k, rng, (self.end.time, start))[:, order.argsort()]

    def _draw(self, X: Tensor, k: int, rng: np.random.Generator) -> Tensor:
        """Draw deviations (k, m, p) from the mean: f(X) − K(X, X_train) C⁻¹ (f(X_train) + ε) for f of the prior."""
        times = torch.cat([self.X[:, 0], X[:, 0]])
        order = times.argsort(stable=True)
        draws = simulate(self.pairs, times[order], k, rng)[:, order.argsort()]
        values, at_points = draws[:, : self.data.num_rows], draws[:, self.data.num_rows :]
        known, errors = self.data.noise, draw_normal(values.shape, rng, values)
        errors = errors @ torch.linalg.cholesky(self.output_noise).mT if known is None else errors * known.sqrt()
        means, adjoints = self.solver.smooth((values + errors).permute(1, 2, 0))
        corrections = []
        for part in X.split(max(1, CHUNK_ENTRIES // (len(self.end.mean) * max(k, len(self.end.mean))))):
            before, after, forward, backward, noise = self._neighbors(part)
            is_row = (before >= 0)[:, None, None], (after < self.data.num_rows)[:, None, None]
            mean = multiply_blocks(forward, means[before.clamp_min(0)] * is_row[0])
            covariance = multiply_blocks(forward, multiply_blocks(forward, self.solver.states(before)[1]).mT) + noise
            adjoint = adjoints[after.clamp_max(self.data.num_rows - 1)] * is_row[1]
            mean = mean + covariance @ multiply_blocks(backward, adjoint, transpose=True)
            corrections.append(self.solver.reading @ mean)
        return at_points - torch.cat(corrections).permute(2, 0, 1)


def simulate(
    pairs: list[tuple[StateSpaceForm, Tensor]],
    times: Tensor,
    k: int,
    rng: np.random.Generator,
    start: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Draw k paths (k, m, p) at sorted times (m,), from the prior or from states (s, k) at a time before them."""
    lags = times.diff(prepend=times[:1] if start is None else start[0][None])
    p, increments = len(pairs[0][1]), []
    for form, matrix in pairs:
        noises = form.process_noise(lags, times)
        if start is None:
            noises = torch.cat([form.covariance(times[:1]), noises[1:]])
        scores = draw_normal((len(times), form.size, p, k), rng, times)
        increments.append(
            torch.einsum("mij,ab,mjbk->miak", scaled_root(noises), psd_root(matrix), scores).flatten(1, 2)
        )
    transitions = [form.transition(lags) for form, _ in pairs]
    reading, changes = read_states(pairs), torch.cat(increments, 1)
    state = torch.zeros_like(changes[0]) if start is None else start[1]
    values = times.new_empty(len(times), p, k)
    for row, change in enumerate(changes):
        blocks = [transition[row : row + 1] for transition in transitions]
        state = multiply_blocks(blocks, state.unsqueeze(0))[0] + change
        values[row] = reading @ state
    return values.permute(2, 0, 1)


def read_states(pairs: list[tuple[StateSpaceForm, Tensor]]) -> Tensor:
    """Return the matrix H (p, s) by which states yield the outputs."""
    return reading_matrix([form.read_vector() for form, _ in pairs], len(pairs[0][1]))


def scaled_root(matrix: Tensor) -> Tensor:
    """Return R with R Rᵀ equal to covariances (..., d, d) whose entries may differ by many orders of magnitude."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().unsqueeze(-1)
    safe = torch.where(scale > 0, scale, 1.0)
    return scale * psd_root(matrix / safe / safe.mT)


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
    def extend(self, posterior: StateSpacePosterior, added: Observations, data: Observations) -> StateSpacePosterior:
        """Return the posterior given `data`, the rows of `posterior` followed by `added`, whose times are not earlier. O(s³) per row."""
        _, model, _ = posterior.conditioning
        if bool((added.X[:, 0] < posterior.end.time).any()):
            return self.condition(model, data)
        terms, noise, residuals, order = self._parts(model, added, posterior.end.time, posterior.pairs)
        mean, covariance, log_density = filter_rows(terms, noise[order], residuals[order], *posterior.end[1:])
        end = EndState(added.X[:, 0].max(), mean, covariance)
        found = posterior.extended(data, end, log_density, partial(self.solver, model, data))
        found.output_noise, found.conditioning = model.predictive_noise(data), Conditioning(self, model, data)
        return found

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
    def _parts(
        model: Model,
        data: Observations,
        start: Tensor | None = None,
        pairs: list[tuple[StateSpaceForm, Tensor]] | None = None,
    ) -> tuple[list[MarkovTerm], Tensor, Tensor, Tensor]:
        """Return the terms in the order of time, from the prior or the time `start`, R (n, p, p), y − m (n, p) and the order."""
        pairs = find_forms(model.kernel) if pairs is None else pairs
        size = sum(form.size * len(matrix) for form, matrix in pairs)
        if data.num_rows * size**2 > MAX_STATE_ENTRIES:
            raise InputError(
                f"X has {data.num_rows} rows, for which states of {size} entries need more than 2.4 GB. Use a feature map, OperatorValuedGP(kernel, features=ORFF(kernel)), or fewer rows."
            )
        order = data.X[:, 0].argsort(stable=True)
        times = data.X[order, 0]
        lags = times.diff(prepend=times[:1] if start is None else start[None])
        terms = []
        for form, matrix in pairs:
            transitions, noises = form.transition(lags), form.process_noise(lags, times)
            if start is None:
                noises = torch.cat([form.covariance(times[:1]), noises[1:]])
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
