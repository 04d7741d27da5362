"""Covariances of Markov processes, by Kalman filters: C = K + Σ of n rows is solved in O(n) time and memory.

The state x_k = A_k x_{k−1} + q_k, q_k ~ N(0, Q_k), k = 1, …, n, is observed as y_k = H x_k + ε_k, ε_k ~ N(0, R_k), with x_0 = 0 (Q_1 is
the prior covariance of the first state). It is the sum of terms with A = A_c ⊗ I and Q = Q_c ⊗ Γ_c: H has the blocks h_cᵀ ⊗ I, by
default with the first unit vector h_c. The filter computes gains G_k and innovation covariances S_k forward; the adjoint filter of Bryson and Frazier
computes backward, from r = 0 and N = 0 after the last row,

    u_k = S_k⁻¹ v_k − G_kᵀ r_k,          r̃_k = r_k + Hᵀ u_k,                              r_{k−1} = A_kᵀ r̃_k,
    D_k = S_k⁻¹ + G_kᵀ N_k G_k,          Ñ_k = (I − G_k H)ᵀ N_k (I − G_k H) + Hᵀ S_k⁻¹ H,     N_{k−1} = A_kᵀ Ñ_k A_k,

where u = C⁻¹ y, D_k are the diagonal blocks of C⁻¹, and ½ (r̃_k r̃_kᵀ − Ñ_k) is the derivative of log N(y | 0, C) in Q_k. Neither Q nor the
covariance of a state is inverted, so that stamps may coincide. Missing outputs have zero rows of H.

Rows are divided into about √n chunks, which are filtered at the same time in three passes: first as functions of the state before each
chunk, then these states one after another, then all chunks again. Every operation on all chunks is one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.algebra.dense import gaussian_log_density, reject_second_derivatives


@dataclass(frozen=True)
class MarkovTerm:
    """Term of the state: transitions A and process noise Q (n, d, d), those of the first row being the prior, Γ (p, p), and h (d,).

    If h is None, it is the first unit vector.
    """

    transitions: Tensor
    noises: Tensor
    output_matrix: Tensor
    reading: Tensor | None = None

    def read_vector(self) -> Tensor:
        """Return h (d,)."""
        return torch.eye(1, self.noises.shape[-1])[0] if self.reading is None else self.reading


def multiply_blocks(blocks: list[Tensor], matrix: Tensor, transpose: bool = False) -> Tensor:
    """Compute A M, or Aᵀ M, for A = blockdiag_c(A_c ⊗ I) with A_c (m, d_c, d_c), and M (m, s, k)."""
    num_outputs = matrix.shape[-2] // sum(block.shape[-1] for block in blocks)
    parts = matrix.split([block.shape[-1] * num_outputs for block in blocks], -2)
    products = [
        ((block.mT if transpose else block) @ part.reshape(*block.shape[:-1], -1)).view(part.shape)
        for block, part in zip(blocks, parts, strict=True)
    ]
    return products[0] if len(products) == 1 else torch.cat(products, -2)


def assemble_blocks(pairs: list[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """Compute blockdiag_c(Q_c ⊗ Γ_c) (m, s, s) from pairs Q_c (m, d_c, d_c), Γ_c (p, p)."""
    blocks = [(Q[:, :, None, :, None] * matrix[:, None, :]).flatten(3).flatten(1, 2) for Q, matrix in pairs]
    if len(blocks) == 1:
        return blocks[0]
    whole, offset = blocks[0].new_zeros(len(blocks[0]), size, size), 0
    for block in blocks:
        end = offset + block.shape[-1]
        whole[:, offset:end, offset:end] = block
        offset = end
    return whole


def reading_matrix(readings: list[Tensor], num_outputs: int) -> Tensor:
    """Return H (p, s) with the blocks h_cᵀ ⊗ I of h_c (d_c,), in float64."""
    eye = torch.eye(num_outputs, dtype=torch.float64)
    return torch.cat([torch.kron(reading.double().unsqueeze(0), eye) for reading in readings], 1)


@torch.no_grad()
def filter_rows(
    terms: list[MarkovTerm], noise: Tensor, residuals: Tensor, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Continue a filter by m rows, one after another, with noise (m, p, p) and residuals (m, p), NaN if missing.

    Returns the mean (s,) and covariance (s, s) of the state after the last row, and the log density of the residuals given the
    earlier rows. O(m s³).
    """
    reading, total = reading_matrix([term.read_vector() for term in terms], residuals.shape[1]), 0.0
    for row, values in enumerate(residuals):
        blocks = [term.transitions[row : row + 1] for term in terms]
        mean = multiply_blocks(blocks, mean[None, :, None])[0, :, 0]
        covariance = multiply_blocks(blocks, multiply_blocks(blocks, covariance[None]).mT)[0]
        pairs = [(term.noises[row : row + 1], term.output_matrix) for term in terms]
        covariance = covariance + assemble_blocks(pairs, len(mean))[0]
        observed = ~torch.isnan(values)
        if not bool(observed.any()):
            continue
        H = reading[observed]
        read = H @ covariance
        chol = _factorize_innovations((read @ H.mT + noise[row][observed][:, observed]).unsqueeze(0))[0]
        error = (values[observed] - H @ mean).unsqueeze(-1)
        solved = torch.cholesky_solve(error, chol)
        mean = mean + (read.mT @ solved).squeeze(-1)
        covariance = covariance - read.mT @ torch.cholesky_solve(read, chol)
        covariance = (covariance + covariance.mT) / 2
        logdet = 2 * chol.diagonal().log().sum()
        total += float(gaussian_log_density((error * solved).sum(), logdet, int(observed.sum())))
    return mean, covariance, total


def _factorize_innovations(innovations: Tensor) -> Tensor:
    """Return the Cholesky factors of innovation covariances (m, p, p)."""
    chol, info = torch.linalg.cholesky_ex((innovations + innovations.mT) / 2)
    if bool(info.any()) or not math.isfinite(float(chol.sum())):
        raise FactorizationError(
            "The covariance of an observation given the earlier ones is not positive definite. Use more noise, shorter lengthscales or smaller outputscales."
        )
    return chol


class KalmanSolver:
    """C⁻¹ for terms of the state, in the order of time, and noise R (n, p, p) and residuals (n, p), NaN if missing, in any order.

    `order` (n,) holds the rows in the order of time; `alpha` = C⁻¹ r (n, p), zero if missing; `log_density` = log N(r | 0, C).
    O(n s³) time and O(n s²) memory for s = Σ d_c p entries of the state.
    """

    standard_error = 0.0

    @torch.no_grad()
    def __init__(self, terms: list[MarkovTerm], noise: Tensor, residuals: Tensor, order: Tensor):
        n, p = residuals.shape
        sizes = [term.noises.shape[-1] for term in terms]
        self.size, self.num_outputs, self.order = sum(sizes) * p, p, order
        self.length = max(math.isqrt(n), 1)  # rows of a chunk
        self.observed = ~torch.isnan(residuals)
        mask, noise = self.observed[order].to(residuals), noise[order]
        both = mask.unsqueeze(-1) * mask.unsqueeze(-2)
        noise = noise * both + torch.diag_embed(1 - mask)  # a missing output is read as noise of variance 1
        self.terms = [
            MarkovTerm(
                self._by_step(term.transitions, torch.eye(size)),
                self._by_step(term.noises, 0.0),
                term.output_matrix,
            )
            for term, size in zip(terms, sizes, strict=True)
        ]
        self.mask, self.noise = self._by_step(mask, 0.0), self._by_step(noise, torch.eye(p))
        self.reading = reading_matrix([term.read_vector() for term in terms], p)
        self.gains, self.inverses, self.covariances, self.products, logdet = self._filter()
        values = torch.where(self.observed, residuals, 0.0).unsqueeze(-1)
        self.means, alpha, self.adjoints = self._smooth(values)
        self.alpha = alpha.squeeze(-1)
        quadratic = (values * alpha).sum()
        self.log_density = gaussian_log_density(quadratic, logdet, int(self.observed.sum()))

    # Rows as steps of chunks: (n, ...) ↔ (L, B, ...), padded by rows without observations or noise.

    def _by_step(self, values: Tensor, padding) -> Tensor:
        chunks = -(-len(values) // self.length)
        padded = values.new_empty(chunks * self.length, *values.shape[1:])
        padded[: len(values)], padded[len(values) :] = values.detach(), torch.as_tensor(padding).to(values)
        return padded.unflatten(0, (chunks, self.length)).transpose(0, 1).contiguous()

    def _by_row(self, steps: Tensor) -> Tensor:
        return steps.transpose(0, 1).flatten(0, 1)[: len(self.order)]

    def _in_given_order(self, steps: Tensor) -> Tensor:
        rows = self._by_row(steps)
        return torch.empty_like(rows).index_copy_(0, self.order, rows)

    def _advance(self, step: int, matrix: Tensor, transpose: bool = False) -> Tensor:
        """Compute A M, or Aᵀ M, for M (B, s, k)."""
        return multiply_blocks([term.transitions[step] for term in self.terms], matrix, transpose)

    def _update(self, step: int, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the covariance after a row, its gain, S⁻¹ and the Cholesky factor of S."""
        predicted = self._advance(step, self._advance(step, covariance).mT)
        predicted = predicted + assemble_blocks(
            [(term.noises[step], term.output_matrix) for term in self.terms], self.size
        )
        mask = self.mask[step]
        read = (self.reading @ predicted) * mask.unsqueeze(-1)  # H P (B, p, s)
        innovation = (read @ self.reading.mT) * mask.unsqueeze(-2) + self.noise[step]
        chol = _factorize_innovations(innovation)
        inverse = torch.cholesky_inverse(chol)
        gain = read.mT @ inverse
        covariance = predicted - gain @ read
        return (covariance + covariance.mT) / 2, gain, inverse, chol

    def _close(self, step: int, gain: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (I − G H) A M for M (B, s, k), and H A M."""
        advanced = self._advance(step, product)
        read = (self.reading @ advanced) * self.mask[step].unsqueeze(-1)
        return advanced - gain @ read, read

    def _filter(self):
        """Compute gains, S⁻¹ and covariances of the states (L, B, ...), the product of (I − G H) A over each chunk, and log det C."""
        length, chunks, p = self.mask.shape
        size, like = self.size, self.noise
        eye = torch.eye(size).to(like)
        covariance = like.new_zeros(chunks, size, size)  # given the state before the chunk, of which it is no function
        product, information = eye.expand(chunks, -1, -1), like.new_zeros(chunks, size, size)
        for step in range(length if chunks > 1 else 0):
            covariance, gain, inverse, _ = self._update(step, covariance)
            product, read = self._close(step, gain, product)
            information = information + read.mT @ inverse @ read
        before = like.new_zeros(chunks, size, size)  # covariance of the state before each chunk, given earlier rows
        for chunk in range(1, chunks):
            state, moved = before[chunk - 1], product[chunk - 1]
            posterior = torch.linalg.solve(eye + state @ information[chunk - 1], state)
            before[chunk] = covariance[chunk - 1] + moved @ ((posterior + posterior.mT) / 2) @ moved.mT
        gains, inverses = like.new_empty(length, chunks, size, p), torch.empty_like(self.noise)
        covariances = like.new_empty(length, chunks, size, size)
        covariance, product, logdet = before, eye.expand(chunks, -1, -1), 0.0
        for step in range(length):
            covariance, gain, inverse, chol = self._update(step, covariance)
            product, _ = self._close(step, gain, product)
            covariances[step], gains[step], inverses[step] = covariance, gain, inverse
            logdet += 2 * float(chol.diagonal(dim1=-2, dim2=-1).log().sum())
        return gains, inverses, covariances, product, logdet

    def _smooth(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return filtered means (L, B, s, k), C⁻¹ values (n, p, k) and adjoints r̃ (L, B, s, k) for values (n, p, k), zero if missing."""
        length, chunks, p = self.mask.shape
        values, width = self._by_step(values[self.order], 0.0), values.shape[-1]
        like, products = self.noise, self.products

        def forward(state: Tensor, means: Tensor | None = None, errors: Tensor | None = None) -> Tensor:
            for step in range(length):
                advanced = self._advance(step, state)
                error = (values[step] - self.reading @ advanced) * self.mask[step].unsqueeze(-1)
                state = advanced + self.gains[step] @ error
                if means is not None:
                    means[step], errors[step] = state, error
            return state

        zero = like.new_zeros(chunks, self.size, width)
        before = zero.clone()
        if chunks > 1:
            local = forward(zero)
            for chunk in range(1, chunks):
                before[chunk] = local[chunk - 1] + products[chunk - 1] @ before[chunk - 1]
        means, errors = like.new_empty(length, *zero.shape), like.new_empty(length, chunks, p, width)
        forward(before, means, errors)
        errors = self.inverses @ errors

        def backward(state: Tensor, solved: Tensor | None = None, adjoints: Tensor | None = None) -> Tensor:
            for step in reversed(range(length)):
                entry = errors[step] - self.gains[step].mT @ state
                state = state + self.reading.mT @ entry
                if solved is not None:
                    solved[step], adjoints[step] = entry, state
                state = self._advance(step, state, transpose=True)
            return state

        after = zero.clone()
        if chunks > 1:
            local = backward(zero)
            for chunk in reversed(range(chunks - 1)):
                after[chunk] = local[chunk + 1] + products[chunk + 1].mT @ after[chunk + 1]
        solved, adjoints = torch.empty_like(errors), torch.empty_like(means)
        backward(after, solved, adjoints)
        return means, self._in_given_order(solved), adjoints

    def _visit_adjoints(self, visit: Callable[[int, Tensor, Tensor], None]) -> None:
        """Call `visit(step, Ñ, D)` for all chunks from the last step to the first."""
        length, chunks, _ = self.mask.shape

        def backward(state: Tensor, visit=None) -> Tensor:
            for step in reversed(range(length)):
                gain, mask = self.gains[step], self.mask[step]
                inverse = self.inverses[step] * mask.unsqueeze(-1) * mask.unsqueeze(-2)
                inner = inverse + gain.mT @ state @ gain
                # (I − G H)ᵀ N (I − G H) + Hᵀ S⁻¹ H: expanded, rounding errors would grow from row to row
                state = state - self.reading.mT @ (gain.mT @ state)
                state = state - (state @ gain) @ self.reading + self.reading.mT @ inverse @ self.reading
                if visit is not None:
                    visit(step, state, inner)
                state = self._advance(step, self._advance(step, state, transpose=True).mT, transpose=True)
            return state

        after = self.noise.new_zeros(chunks, self.size, self.size)
        if chunks > 1:
            local = backward(after)
            for chunk in reversed(range(chunks - 1)):
                product = self.products[chunk + 1]
                after[chunk] = local[chunk + 1] + product.mT @ after[chunk + 1] @ product
        backward(after, visit)

    @torch.no_grad()
    def smooth(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return filtered means and adjoints r̃ (n, s, k), in the order of time, for values (n, p, k); missing entries are ignored."""
        means, _, adjoints = self._smooth(values * self.observed.unsqueeze(-1))
        return self._by_row(means), self._by_row(adjoints)

    def states(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (m, s) and covariances (m, s, s) of the states given the rows up to some, in the order of time; zero for −1."""
        index = rows.clamp_min(0) % self.length, rows.clamp_min(0) // self.length
        is_row = (rows >= 0).to(self.alpha)
        return self.means[index].squeeze(-1) * is_row[:, None], self.covariances[index] * is_row[:, None, None]

    def future(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return r̃ (m, s) and Ñ (m, s, s) of some rows, in the order of time; zero after the last one."""
        is_row = rows < len(self.order)
        index = torch.where(is_row, rows, 0) % self.length, torch.where(is_row, rows, 0) // self.length
        is_row = is_row.to(self.alpha)
        return self.adjoints[index].squeeze(-1) * is_row[:, None], self._adjoint_covariances[index] * is_row[
            :, None, None
        ]

    @cached_property
    def _adjoint_covariances(self) -> Tensor:
        """Ñ (L, B, s, s)."""
        found = torch.empty_like(self.covariances)
        self._visit_adjoints(lambda step, adjoint, block: found[step].copy_(adjoint))
        return found

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Compute C⁻¹ rhs, (n·p, k) → (n·p, k); missing entries are ignored on input and zero on output."""
        values = rhs.unflatten(0, self.observed.shape) * self.observed.unsqueeze(-1)
        return self._smooth(values)[1].flatten(0, 1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Compute the diagonal of C⁻¹ (n, p), zero if missing. O(n s³)."""
        return self._diagonal_blocks.diagonal(dim1=-2, dim2=-1)

    @cached_property
    def _diagonal_blocks(self) -> Tensor:
        """Diagonal blocks D (n, p, p) of C⁻¹."""
        found = torch.empty_like(self.inverses)
        self._visit_adjoints(lambda step, adjoint, block: found[step].copy_(block))
        return self._in_given_order(found)

    @torch.no_grad()
    def inverse_blocks(self, rows: Tensor) -> Tensor:
        """Compute the blocks (k, m·p, m·p) of C⁻¹ between the entries of `rows` (k, m), zero if missing. O(n m p) per group, O(n) if m = 1."""
        if rows.shape[1] == 1:
            return self._diagonal_blocks[rows[:, 0]]
        entries = (rows.unsqueeze(-1) * self.num_outputs + torch.arange(self.num_outputs)).flatten(1)
        blocks = []
        for index in entries:  # one group at a time
            unit = self.alpha.new_zeros(self.observed.numel(), len(index))
            unit[index, torch.arange(len(index))] = 1.0
            blocks.append(self.solve(unit)[index])
        return torch.stack(blocks)

    def explained(self, cross: Tensor, form: str, num_outputs: int | None = None) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ in the given form for K_* (m·q, n·p); q is p by default. O(n m q)."""
        solved, q = self.solve(cross.mT), num_outputs or self.num_outputs
        if form == "full":
            return cross @ solved
        left, right = cross.unflatten(0, (-1, q)), solved.mT.unflatten(0, (-1, q))
        return (left * right).sum(-1) if form == "diag" else left @ right.mT

    @torch.no_grad()
    def gradients(self) -> tuple[list[MarkovTerm], Tensor]:
        """Compute the derivatives of the log density in the terms and in the noise R (n, p, p)."""
        p = self.num_outputs
        by_terms = [
            MarkovTerm(torch.empty_like(t.transitions), torch.empty_like(t.noises), torch.zeros_like(t.output_matrix))
            for t in self.terms
        ]
        by_noise = torch.empty_like(self.inverses)
        solved = self._by_step(self.alpha[self.order], 0.0)

        def visit(step: int, adjoint: Tensor, block: Tensor) -> None:
            r = self.adjoints[step]
            excess = r @ r.mT - adjoint  # twice the derivative in Q
            by_noise[step] = (solved[step].unsqueeze(-1) * solved[step].unsqueeze(-2) - block) / 2
            transition = excess @ self._advance(step, self._previous(self.covariances, step))
            transition += r @ self._previous(self.means, step).mT
            offset = 0
            for term, found in zip(self.terms, by_terms, strict=True):
                size = term.noises.shape[-1]
                part = slice(offset, offset + size * p)
                offset += size * p
                within = excess[:, part, part].reshape(-1, size, p, size, p) / 2
                found.noises[step] = torch.einsum("biajc,ac->bij", within, term.output_matrix)
                found.output_matrix.add_(torch.einsum("biajc,bij->ac", within, term.noises[step]))
                moved = transition[:, part, part].reshape(-1, size, p, size, p)
                found.transitions[step] = moved.diagonal(dim1=2, dim2=4).sum(-1)

        self._visit_adjoints(visit)
        rows = [
            MarkovTerm(self._by_row(term.transitions), self._by_row(term.noises), term.output_matrix)
            for term in by_terms
        ]
        return rows, self._in_given_order(by_noise)

    def _previous(self, steps: Tensor, step: int) -> Tensor:
        """Return the states (B, s, k) one row earlier; zero before the first row."""
        if step:
            return steps[step - 1]
        return torch.cat([torch.zeros_like(steps[-1, :1]), steps[-1, :-1]])


def markov_log_density(terms: list[MarkovTerm], noise: Tensor, residuals: Tensor, order: Tensor) -> Tensor:
    """Compute log N(r | 0, C) as `KalmanSolver`, differentiable once in terms, noise and residuals. O(n s³)."""
    parts = [part for term in terms for part in (term.transitions, term.noises, term.output_matrix)]
    return _MarkovDensity.apply([term.reading for term in terms], order, noise, residuals, *parts)


class _MarkovDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, readings: list, order: Tensor, noise: Tensor, residuals: Tensor, *parts: Tensor) -> Tensor:
        terms = [MarkovTerm(*parts[3 * i : 3 * i + 3], reading) for i, reading in enumerate(readings)]
        ctx.solver = KalmanSolver(terms, noise, residuals, order)
        return ctx.solver.log_density

    @staticmethod
    def backward(ctx, gradient: Tensor):
        reject_second_derivatives("state-space")
        terms, by_noise = ctx.solver.gradients()
        found = [part for term in terms for part in (term.transitions, term.noises, term.output_matrix)]
        return None, None, gradient * by_noise, -gradient * ctx.solver.alpha, *(gradient * part for part in found)
