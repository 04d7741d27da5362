"""Online gradient descent for ridge regression with a budget of points (ONORMA), and its posterior distribution.

    f_{t+1} = (1 − η_t λ) f_t − η_t K(·, x_t) (f_t(x_t) − y_t),    f = Σ_j K(·, x_j) a_j with at most `budget` points

`OnlinePosterior` has the mean f and the variance of the Gaussian process given the kept points, which is an upper bound
on the variance given all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.inference.algebra.dense import check_finite
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.observations import validate_observations
from ovkgp.inference.posteriors.posterior import (
    CHUNK_ENTRIES,
    FunctionDraws,
    KernelProcess,
    Posterior,
    prior_covariance,
)
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES, STRATEGIES
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

CHUNK_ROWS, KERNEL_CHUNK_ENTRIES = 256, 2_000_000
"""Maximum number of rows, and approximate number of kernel entries (16 MB), that are evaluated together."""


class OnlineGradient:
    """The recursion in chunks of rows: `learn` computes an `Expansion` from an earlier one and more rows.

    λ is `lam`, and η_t = 2 eta0 t^−power / (λ + κ) with 0 < eta0 ≤ 1; with power = 0 steps are constant. For eta0 ≤ ½
    no step overshoots, and ρ = 1 − ηλ. A row whose input is a kept point adds to its coefficient. Beyond the budget, the cheaper of two
    actions is taken: the new term is projected on the kept point that covers most of it, or the smallest kept term is
    removed. A loss of norm δ_t at step t gives

        ‖f_T − f'_T‖ ≤ Σ_t δ_t Π_{t < s ≤ T} ρ_s,

    with f' the recursion without a budget, since each step contracts differences by ρ. `Expansion.error` is this sum,
    and √‖K(x, x)‖ times it bounds the difference at x. Each δ_t is at most the loss from dropping the oldest point, as
    NORMA does.

    Complexity: O(budget p²) time per row (k(x, z) Γ: O(budget p)); O(budget (p² + d)) memory.
    """

    def __init__(
        self,
        kernel: Kernel,
        num_outputs: int,
        lam: float,
        *,
        eta0: float = 0.5,
        power: float = 0.5,
        budget: int = 1000,
        average: bool = False,
    ):
        self.blocks, self.num_outputs = make_kernel_blocks(kernel, num_outputs), num_outputs
        self.lam, self.eta0, self.power = float(lam), float(eta0), float(power)
        self.budget, self.average = budget, average

    def step_size(self, step: int, norm: float) -> float:
        """Return η at step t = 1, 2, …, for κ."""
        return 2 * self.eta0 * step**-self.power / (self.lam + norm)

    @property
    def max_chunk_rows(self) -> int:
        """Return the number of rows per chunk."""
        room = KERNEL_CHUNK_ENTRIES // (self.blocks.entries * (self.budget + CHUNK_ROWS))
        return max(min(CHUNK_ROWS, room, self.budget), 16)

    def start(self, num_dims: int) -> Expansion:
        """Return f = 0, for inputs with d columns."""
        X, none = np.zeros((0, num_dims)), np.zeros((0, self.num_outputs))
        own = self.blocks.self_blocks(np.zeros((1, num_dims)))[:0]
        return Expansion(X, none, none, none.astype(bool), own)

    @torch.no_grad()
    def learn(self, expansion: Expansion, X: np.ndarray, Y: np.ndarray) -> Expansion:
        """Return the expansion after the rows X (n, d), Y (n, p), in order; the earlier expansion does not change.

        X is finite, in float64 and has at most about `max_chunk_rows` rows. Y is NaN where missing, which contributes
        no gradient; each row has at least one observed output.
        """
        update = _Update(self, expansion, X, Y)
        for row in range(len(X)):
            update.step(row)
        return update.result()


@dataclass(frozen=True, eq=False)
class Expansion:
    """f = Σ_j K(·, x_j) a_j after some steps of `OnlineGradient`.

    X (m, d) are the points in the order of arrival, `average` (m, p) the coefficients of the average of all iterates, and
    `observed` (m, p) the outputs that were ever observed at the points. `norm` is κ, the largest ‖K(x, x)‖ so far.
    `error` bounds ‖f − f'‖ with f' the iterate without a budget, `average_error` that of the averages.
    """

    X: np.ndarray
    coefficients: np.ndarray
    average: np.ndarray
    observed: np.ndarray
    self_blocks: np.ndarray
    num_steps: int = 0
    norm: float = 0.0
    error: float = 0.0
    average_error: float = 0.0

    def __len__(self) -> int:
        return len(self.X)


class OnlinePosterior(Posterior):
    """Posterior with mean Σ_j K(·, x_j) a_j and the covariance of the process given the kept points.

    `gp` has mean zero and the noise σ². `log_evidence` is NaN, since rows that were not kept are unknown. Complexity:
    O(m n p²) for the mean at n test points of m kept ones. The first covariance takes a factorization, O(m³ + p³) for
    k(x, z) Γ with complete outputs, otherwise O(N³) for the N observed entries of the points. Above 5000 points or
    entries, an even selection of the points is used, which still gives an upper bound.
    """

    log_evidence = math.nan

    def __init__(self, gp: OperatorValuedGP, expansion: Expansion, average: bool = False):
        self.gp, self.expansion = gp.frozen(), expansion
        self.num_outputs, self.num_dims = expansion.observed.shape[1], expansion.X.shape[1]
        self.process = KernelProcess(self.gp.kernel, self.num_outputs)
        self.X = torch.from_numpy(expansion.X)
        self.coefficients = torch.from_numpy(expansion.average if average else expansion.coefficients)

    @property
    def noise(self) -> Tensor:
        return self.gp.noise_model.matrix().detach()

    @cached_property
    def given_points(self) -> Posterior:
        """Return the process given zero outputs at the kept points; it has the same covariance."""
        kept = np.where(self.expansion.observed, 0.0, np.nan)
        with torch.no_grad():
            data, model = validate_observations(self.X, kept, self.num_outputs, every_output=False), self.gp.model
            is_kronecker = STRATEGIES["kronecker"].strategy.supports(model, data)
            size = data.num_rows if is_kronecker else data.num_observed
            if size > MAX_DENSE_ENTRIES:
                data = data.rows(torch.linspace(0, data.num_rows - 1, data.num_rows * MAX_DENSE_ENTRIES // size).long())
            return STRATEGIES["kronecker" if is_kronecker else "dense"].strategy.condition(model, data)

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // (len(self.X) * self.num_outputs**2)

    @torch.no_grad()
    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        return self._mean(X), None if form == "none" else self.given_points.latent(X, form)[1]

    def _mean(self, X: Tensor) -> Tensor:
        return (self.process.cross(X, self.X) @ self.coefficients.flatten()).unflatten(-1, (-1, self.num_outputs))

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """Draw k random functions around the mean, with the covariance given the kept points."""
        around_zero = self.given_points.sample_functions(k, random_state=random_state)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            with torch.no_grad():
                return self._mean(X) + around_zero._evaluate_at(X, index)

        return FunctionDraws(evaluate, len(around_zero), self.num_dims)


class _Update:
    """An expansion while it changes: the kept points followed by the rows of the chunk, including removed points."""

    def __init__(self, learner: OnlineGradient, before: Expansion, X: np.ndarray, Y: np.ndarray):
        self.learner, self.blocks = learner, learner.blocks
        self.first, total = len(before), len(before) + len(X)
        X = X + 0.0  # turns −0 into 0
        own = self.blocks.self_blocks(X)
        self.X, self.self_blocks = np.concatenate([before.X, X]), np.concatenate([before.self_blocks, own])
        pad = (0, len(X)), (0, 0)
        self.coefficients, self.average = (np.pad(a, pad) for a in (before.coefficients, before.average))
        self.observed = np.concatenate([before.observed, ~np.isnan(Y)])
        self.Y, self.norms, self.rows = np.nan_to_num(Y), self.blocks.norms(own), self.blocks.cross(X, self.X)
        self.num_steps, self.norm = before.num_steps, before.norm
        self.error, self.average_error = before.error, before.average_error
        self.squares = np.full(total, np.inf)  # squared norms of the terms; infinite for removed ones
        self.squares[: self.first] = self.blocks.squares(before.self_blocks, before.coefficients)
        self.indices = {point.tobytes(): j for j, point in enumerate(before.X)}
        for _ in range(self.first - learner.budget):
            self._remove(self._smallest_term(self.first)[0])

    def step(self, row: int) -> None:
        """Process one row: gradient step, budget and average."""
        end, lam = self.first + row, self.learner.lam
        self.num_steps, self.norm = self.num_steps + 1, max(self.norm, float(self.norms[row]))
        eta = self.learner.step_size(self.num_steps, self.norm)
        value = self.blocks.value(self.rows[row, :end], self.coefficients[:end])
        new = eta * self.observed[end] * (self.Y[row] - value)
        shrinkage = 1 - eta * lam
        self.coefficients[:end] *= shrinkage
        self.squares[:end] *= shrinkage**2
        self.error *= max(abs(shrinkage), abs(shrinkage - eta * self.norm))
        self._insert(row, end, new)
        if self.learner.average:
            self.average[: end + 1] += (self.coefficients[: end + 1] - self.average[: end + 1]) / self.num_steps
            self.average_error += (self.error - self.average_error) / self.num_steps

    def _insert(self, row: int, end: int, new: np.ndarray) -> None:
        """Add K(·, x) new within the budget."""
        key = self.X[end].tobytes()
        if (index := self.indices.get(key)) is not None:
            self._add(index, new)
            self.observed[index] |= self.observed[end]
            return
        if len(self.indices) >= self.learner.budget:
            smallest, loss_of_removal = self._smallest_term(end)
            index, loss_of_projection = self._best_projection(row, end, new)
            if loss_of_projection <= loss_of_removal:
                self.error += loss_of_projection
                self._add(index, self.blocks.transfer(self.rows[row, :end], self.self_blocks, index, new))
                return
            self._remove(smallest)
        self.indices[key] = end
        self._add(end, new)

    def _add(self, index: int, coefficient: np.ndarray) -> None:
        self.coefficients[index] += coefficient
        entry = slice(index, index + 1)
        self.squares[entry] = self.blocks.squares(self.self_blocks[entry], self.coefficients[entry]).clip(0)

    def _smallest_term(self, end: int) -> tuple[int, float]:
        """Return the term whose removal loses least, and the norm of the loss."""
        losses = np.sqrt(self.squares[:end])
        if self.learner.average:
            losses = losses + np.sqrt(self.blocks.squares(self.self_blocks[:end], self.average[:end]).clip(0))
        index = int(losses.argmin())
        return index, float(losses[index])

    def _best_projection(self, row: int, end: int, new: np.ndarray) -> tuple[int, float]:
        """Return the kept point that covers most of K(·, x) new, and the norm of the remainder."""
        own = self.self_blocks[self.first + row : self.first + row + 1]
        covered = self.blocks.covered(self.rows[row, :end], self.self_blocks[:end], new)
        covered[np.isinf(self.squares[:end])] = -1.0
        index = int(covered.argmax())
        return index, float(np.sqrt(max(self.blocks.squares(own, new[None])[0] - covered[index], 0.0)))

    def _remove(self, index: int) -> None:
        entry = slice(index, index + 1)
        self.error += float(np.sqrt(self.squares[index]))
        self.average_error += float(
            np.sqrt(self.blocks.squares(self.self_blocks[entry], self.average[entry]).clip(0)[0])
        )
        self.coefficients[index], self.average[index], self.squares[index] = 0.0, 0.0, np.inf
        del self.indices[self.X[index].tobytes()]

    def result(self) -> Expansion:
        kept = np.sort(np.fromiter(self.indices.values(), dtype=np.int64, count=len(self.indices)))
        arrays = ("X", "coefficients", "average", "observed", "self_blocks")
        numbers = {name: getattr(self, name) for name in ("num_steps", "norm", "error", "average_error")}
        return Expansion(**{name: getattr(self, name)[kept] for name in arrays}, **numbers)


class SeparableBlocks:
    """Geometry of the terms K(·, x_j) a_j of a kernel k(x, z) Γ: O(m p) per row, O(m p²) for norms.

    `self_blocks` are k(x, x) (n,), and a `row` is k(x, x_j) (m,), the part of `cross` for one x.
    """

    entries = 1  # number of entries that a pair of points takes

    def __init__(self, scalar: Kernel, output_matrix: torch.Tensor):
        self.scalar, self.matrix = scalar, output_matrix.detach().numpy()
        self.norm = float(np.linalg.norm(self.matrix, 2))

    @torch.no_grad()
    def self_blocks(self, X: np.ndarray) -> np.ndarray:
        """Return what K(x, x) determines, for each row of X (n, d)."""
        return prior_covariance(self.scalar, torch.from_numpy(X), 1, "diag")[:, 0].numpy()

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Return the rows for X (n, d) against Z (m, d)."""
        return _evaluate(self.scalar, X, Z)

    def norms(self, self_blocks: np.ndarray) -> np.ndarray:
        """Return ‖K(x, x)‖ (n,)."""
        return self_blocks * self.norm

    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return Σ_j K(x, x_j) a_j (p,), for coefficients (m, p)."""
        return self.matrix @ (row @ coefficients)

    def squares(self, self_blocks: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return ‖K(·, x_j) a_j‖² = a_jᵀ K(x_j, x_j) a_j, (m,)."""
        return self_blocks * ((coefficients @ self.matrix) * coefficients).sum(-1)

    def covered(self, row: np.ndarray, self_blocks: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        """Return the squared norm of the projection of K(·, x)a on each x_j, (m,)."""
        ratios = np.divide(row * row, self_blocks, out=np.zeros_like(row), where=self_blocks > 0)
        return ratios * (coefficient @ self.matrix @ coefficient)

    def transfer(self, row: np.ndarray, self_blocks: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        """Return the coefficient of the projection on x_j: K(x_j, x_j)⁺ K(x_j, x) a, (p,)."""
        return coefficient * (row[j] / self_blocks[j] if self_blocks[j] > 0 else 0.0)


class DenseBlocks:
    """Blocks of any kernel: `self_blocks` are K(x, x) and K(x, x)⁺ (n, 2, p, p), a row is K(x, x_j) (m, p, p)."""

    def __init__(self, kernel: Kernel, num_outputs: int):
        self.kernel, self.num_outputs, self.entries = kernel, num_outputs, num_outputs**2
        self.parts = components(kernel)

    @torch.no_grad()
    def self_blocks(self, X: np.ndarray) -> np.ndarray:
        blocks = prior_covariance(self.kernel, torch.from_numpy(X), self.num_outputs, "output")
        blocks = blocks.expand(len(X), self.num_outputs, self.num_outputs)
        return torch.stack([blocks, torch.linalg.pinv(blocks, rtol=1e-10, hermitian=True)], 1).numpy()

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        if self.parts is not None:
            return sum(_evaluate(k, X, Z)[:, :, None, None] * matrix.detach().numpy() for k, matrix in self.parts)
        p = self.num_outputs
        blocks = _evaluate(self.kernel, X, Z).reshape(len(X), p, len(Z), p)
        return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))  # so that K(x_j, x) a is one product for all rows

    def norms(self, self_blocks: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh(self_blocks[:, 0])[:, -1].clip(0)

    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return coefficients.reshape(-1) @ row.reshape(-1, self.num_outputs)

    def squares(self, self_blocks: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return _quadratic_forms(self_blocks[:, 0], coefficients)

    def covered(self, row: np.ndarray, self_blocks: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        products = (row.reshape(-1, self.num_outputs) @ coefficient).reshape(-1, self.num_outputs)
        return _quadratic_forms(self_blocks[:, 1], products)

    def transfer(self, row: np.ndarray, self_blocks: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        return self_blocks[j, 1] @ (row[j] @ coefficient)


def make_kernel_blocks(kernel: Kernel, num_outputs: int) -> SeparableBlocks | DenseBlocks:
    """Return the cheapest blocks of a kernel in float64."""
    parts = components(kernel)
    return SeparableBlocks(*parts[0]) if parts is not None and len(parts) == 1 else DenseBlocks(kernel, num_outputs)


@torch.no_grad()
def _evaluate(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    matrix = to_dense(evaluate_kernel(kernel, torch.from_numpy(X), torch.from_numpy(Z)))
    check_finite(matrix, "the kernel between the rows and the kept points")
    return matrix.numpy()


def _quadratic_forms(blocks: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return v_jᵀ M_j v_j (m,), for M (m, p, p) and v (m, p)."""
    size = vectors.shape[1] ** 2  # long rows, since NumPy multiplies small matrices one by one
    squares = (vectors[:, :, None] * vectors[:, None, :]).reshape(-1, size)
    return np.einsum("jk,jk->j", blocks.reshape(-1, size), squares)
