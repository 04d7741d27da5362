"""Doubly stochastic gradient descent: a block of features and a batch of rows per step (BT-93, Algorithm 4; ID-19).

At iteration t the block i = t mod B is drawn again from its seed, and with the batch S of the n rows

    g = θ_i − (n/|S|) Φ_{S,i}ᵀ N⁻¹ (y_S − m_S − Φ_S θ),   H = I + (n/|S|) Φ_{S,i}ᵀ N⁻¹ Φ_{S,i},   θ_i ← θ_i − γ_t H⁻¹ g.

Only the active block shrinks. Φ is scaled by 1/√D everywhere (BT-E-36). With all rows and γ = 1 this is block
Gauss–Seidel; with one block as well it is Algorithm 3 in one step.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from numbers import Real

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import BlockedORFF
from ovkgp.inference.algebra.dense import safe_cholesky
from ovkgp.inference.algebra.krylov import RefinedSolution, warn_solver_residual
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.ridge.products import WeightProducts

MAX_SWEEPS, NUM_PASSES = 2000, 4
"""Without `max_iter`: maximum number of sweeps over the blocks with all rows, and number of batches in units of n/|S|."""

PATIENCE_SWEEPS = 100  # number of sweeps over all rows in which the gradient must halve; otherwise the descent stops

BURN_IN_SWEEPS, DECAY_POWER = 5, 0.75
"""With batches: number of sweeps at the full rate, and the power of the sweep with which it falls afterwards."""

MAX_FACTOR_ENTRIES = 4_000_000
"""Maximum number of entries (32 MB) of the block factors that are stored between sweeps over all rows."""

MAX_STORED_SWEEPS = 8  # number of sweeps that are combined with the next
MIN_NEW_FRACTION = 1e-8  # a sweep of which a smaller fraction is new is dominated by rounding


def doubly_stochastic_weights(
    model: Model,
    data: Observations,
    *,
    batch_size: int | None = None,
    learning_rate: float | Callable[[int], float] = 1.0,
    preconditioned: bool = True,
    tolerance: float = 1e-9,
    max_iter: int | None = None,
    random_state=None,
    verbose: int = 0,
) -> RefinedSolution:
    """Compute the posterior mean of the weights (r,) by steps on blocks of features and batches of rows.

    Any map but a `BlockedORFF` is one block. A number γ is constant with all rows; with batches it falls like s^-3/4 after
    a few sweeps s. Without preconditioning the gradient is that of (1/n) Σ ½‖y − f‖² + (λ/2)‖θ‖² with λ the mean noise
    over n, and γ is at most about 1/E tr K(x, x). With all rows the descent stops if the gradient over a sweep is at most
    `tolerance` times the gradient at θ = 0 and the norm of N^{-½} (y − m); a number γ combines the last sweeps (`Sweeps`).
    With batches and γ_t < 1 the Hessian is γ_t times that of the batch plus 1 − γ_t times that of other rows. The error of
    batches falls only with the root of their number: unless `max_iter` or a function γ_t is given, sweeps over all rows
    follow them and reach the tolerance. A final gradient above the tolerance is a `FitWarning`.

    Complexity of an iteration: O(n b (p + d)) with all rows, or O(|S| D (p + d)) with batches, and O(|S| p r_b² + r_b³)
    for the Hessian of the r_b weights of a block. Frequencies are in memory for one block at a time.
    """
    size = data.num_rows if batch_size is None else min(check_integer("batch_size", batch_size), data.num_rows)
    num_blocks, is_schedule = getattr(model.features, "num_blocks", 1), callable(learning_rate)
    descent, was_interrupted = None, False
    with torch.no_grad():
        if size < data.num_rows:
            rate = _make_rate(learning_rate, num_blocks, is_full=False)
            descent = Batches(model, data, preconditioned, size, as_seed(random_state))
            num_sweeps = math.ceil(NUM_PASSES * data.num_rows / (size * num_blocks))
            was_interrupted = _run(descent, rate, max_iter or num_sweeps * num_blocks, 0.0, verbose)
        if descent is None or not (max_iter or is_schedule or was_interrupted):
            rate = _make_rate(learning_rate, num_blocks, is_full=True)
            descent = AllRows(model, data, preconditioned, combined=not is_schedule, start=descent)
            was_interrupted = _run(descent, rate, max_iter or MAX_SWEEPS * num_blocks, tolerance, verbose)
        if not was_interrupted:
            relative = descent.gradient_norm() / descent.initial_norm if descent.initial_norm else 0.0
            if (
                not relative <= 2 * tolerance
            ):  # the descent stopped by the gradient over a sweep, not by that at its end
                warn_solver_residual("doubly_sgd", relative, tolerance)
    return RefinedSolution(descent.weights, descent.num_steps)


def _make_rate(learning_rate: float | Callable[[int], float], num_blocks: int, is_full: bool) -> Callable[[int], float]:
    """Return t ↦ γ_t, which checks its values."""

    def rate(t: int) -> float:
        value = learning_rate(t) if callable(learning_rate) else learning_rate
        if not (callable(learning_rate) or is_full):
            value *= (1 + max((t - 1) // num_blocks - BURN_IN_SWEEPS, 0)) ** -DECAY_POWER
        if isinstance(value, bool) or not (isinstance(value, Real) and math.isfinite(value) and value > 0):
            raise OptionError(
                f"learning_rate must be a positive number or a function of the iteration with positive values, got {value!r} at iteration {t}."
            )
        return float(value)

    rate(1)
    return rate


def _run(descent: BlockDescent, rate: Callable[[int], float], max_iter: int, tolerance: float, verbose: int) -> bool:
    """Iterate until the gradient over a sweep is small, and return whether Ctrl-C interrupted the iterations."""
    initial, num_blocks, sweep, last = descent.initial_norm, descent.num_blocks, 0.0, math.inf
    with tqdm(total=max_iter, disable=not verbose, unit="iteration") as bar:
        try:
            for t in range(1, max_iter + 1):
                sweep += descent.step((t - 1) % num_blocks, rate(t))
                descent.num_steps += 1
                bar.update()
                if t % num_blocks == 0:
                    relative, sweep = math.sqrt(sweep) / initial if initial else 0.0, 0.0
                    bar.set_postfix(gradient=f"{relative:.1e}", refresh=False)
                    if not relative < 1e12:
                        raise OptionError(
                            f"Doubly stochastic descent diverged by iteration {t}. Use a smaller learning_rate or preconditioned=True."
                        )
                    if relative <= tolerance:
                        break
                    if tolerance and t % (PATIENCE_SWEEPS * num_blocks) == 0:
                        if relative > last / 2:
                            break
                        last = relative
        except KeyboardInterrupt:
            message = (
                f'solver="doubly_sgd" was interrupted at iteration {t} of {max_iter}; the current weights are kept.'
            )
            warnings.warn(message, FitWarning, stacklevel=4)
            return True
    return False


class BlockDescent(ABC):
    """Weights θ (r,) and the steps on their blocks. `initial_norm` is the smaller of ‖∇‖ at θ = 0 and ‖N^{-½} (y − m)‖.

    `preconditioned` selects Newton steps on a block; otherwise a step is the gradient times σ²/n.
    """

    num_steps = 0

    def __init__(self, model: Model, data: Observations, preconditioned: bool):
        self.model, self.data, self.preconditioned = model, data, preconditioned
        self.weights, whole = data.X.new_zeros(model.features.num_features), model.features
        self.is_blocked = isinstance(whole, BlockedORFF)  # any other map is one block
        self.num_blocks = whole.num_blocks if self.is_blocked else 1
        self.columns = list(map(whole.columns, range(self.num_blocks))) if self.is_blocked else [slice(None)]
        self.chunk_rows = None  # that of one block
        self.chunk_rows = self.products(0).chunk_rows
        size = torch.linalg.vector_norm(self.products(0).targets()).item()
        self.initial_norm = min(self.gradient_norm(), size)  # as in `MatrixFreeSystem`
        self.gradient_scale = model.predictive_noise(data).diagonal().mean().item() / data.num_rows

    def products(self, index: int, rows: Tensor | None = None) -> WeightProducts:
        """Return the products with Φ_i at some rows; Φ_i is scaled as a part of the whole map."""
        features = self.model.features.block(index) if self.is_blocked else self.model.features
        data = self.data if rows is None else self.data.rows(rows)
        return WeightProducts(features, self.model.mean, self.model.noise, data, self.chunk_rows)

    def residuals(self, rows: Tensor | None = None) -> Tensor:
        """Return z − Ψθ at some rows, computed block by block."""
        residual = None
        for i, columns in enumerate(self.columns):
            products = self.products(i, rows)
            residual = products.targets() if residual is None else residual
            residual = residual - products.forward(self.weights[columns])
        return residual

    def gradient_norm(self) -> float:
        """Return ‖∇‖ of the whole problem at the current weights. O(n D)."""
        residual = self.residuals()
        parts = (self.weights[columns] - self.products(i).adjoint(residual) for i, columns in enumerate(self.columns))
        return math.sqrt(sum(part.square().sum().item() for part in parts))

    @abstractmethod
    def step(self, index: int, rate: float) -> float:
        """Move block `index` and return the squared norm of its gradient before the step."""


class AllRows(BlockDescent):
    """Steps on all rows, from the weights of `start`; the residual is kept up to date, so a step evaluates one block only.

    Complexity of a step: O(n b (p + d)), and O(n p r_b² + r_b³) for its Hessian, which is stored if it fits.
    """

    def __init__(
        self, model: Model, data: Observations, preconditioned: bool, combined: bool, start: BlockDescent | None
    ):
        super().__init__(model, data, preconditioned)
        if start is not None:
            self.weights, self.num_steps = start.weights, start.num_steps
        self.residual = self.residuals()
        self.factors: dict[int, Tensor] = {}
        self.sweeps = Sweeps(self.weights, self.residual) if combined else None

    def step(self, index: int, rate: float) -> float:
        products, columns = self.products(index), self.columns[index]
        gradient = self.weights[columns] - products.adjoint(self.residual)
        step = self._solve(products, index, gradient) if self.preconditioned else self.gradient_scale * gradient
        change = -rate * step
        moved = products.forward(change)
        self.weights[columns] += change
        self.residual -= moved
        if self.sweeps is not None:
            self.sweeps.add(columns, change, moved)
            if index == self.num_blocks - 1:
                self.weights, self.residual = self.sweeps.combine()
        return gradient.square().sum().item()

    def _solve(self, products: WeightProducts, index: int, gradient: Tensor) -> Tensor:
        chol = self.factors.get(index)
        if chol is None:
            chol = safe_cholesky(_add_identity(products.matrix()))
            if chol.numel() * self.num_blocks <= MAX_FACTOR_ENTRIES:
                self.factors[index] = chol
        return torch.cholesky_solve(gradient.unsqueeze(-1), chol).squeeze(-1)


class Batches(BlockDescent):
    """Steps on random rows, whose residuals are computed with all blocks.

    Complexity of a step: O(|S| D (p + d)), and O(|S| p r_b² + r_b³) for its Hessian.
    """

    def __init__(self, model: Model, data: Observations, preconditioned: bool, size: int, seed: int):
        super().__init__(model, data, preconditioned)
        self.size, self.rng = size, np.random.default_rng(seed)

    def step(self, index: int, rate: float) -> float:
        rows, columns = self._rows(self.size), self.columns[index]
        products, ratio = self.products(index, rows), self.data.num_rows / self.size
        gradient = self.weights[columns] - ratio * products.adjoint(self.residuals(rows))
        solve = partial(self._solve, products, index, fraction=min(rate, 1.0))
        self.weights[columns] -= rate * (solve(gradient) if self.preconditioned else self.gradient_scale * gradient)
        return gradient.square().sum().item()

    def _rows(self, size: int) -> Tensor:
        chosen = self.rng.choice(self.data.num_rows, size, replace=False, shuffle=False)
        return torch.from_numpy(chosen).to(self.data.X.device)

    def _solve(self, products: WeightProducts, index: int, gradient: Tensor, fraction: float) -> Tensor:
        hessian = fraction * self.data.num_rows / self.size * products.matrix()
        if fraction < 1:  # independent rows, enough of them for a Hessian of full rank
            size = min(max(self.size, 4 * len(gradient) // self.data.num_outputs + 1), self.data.num_rows)
            hessian += (1 - fraction) * self.data.num_rows / size * self.products(index, self._rows(size)).matrix()
        return torch.cholesky_solve(gradient.unsqueeze(-1), safe_cholesky(_add_identity(hessian))).squeeze(-1)


class Sweeps:
    """Weights (r,) and residual z − Ψθ (n, p) after each sweep, in one vector, made conjugate to the stored sweeps.

    Complexity per sweep: O((r + n p) `MAX_STORED_SWEEPS`) time and memory.
    """

    def __init__(self, weights: Tensor, residual: Tensor):
        self.num_weights, self.shape = len(weights), residual.shape
        self.state = torch.cat([weights, residual.flatten()])
        self.directions: deque[Tensor] = deque(maxlen=MAX_STORED_SWEEPS)
        self.move = torch.zeros_like(self.state)

    def add(self, columns: Tensor | slice, change: Tensor, moved: Tensor) -> None:
        """Record a step on one block: its change of θ and of Ψθ."""
        self.move[: self.num_weights][columns] += change
        self.move[self.num_weights :] -= moved.flatten()

    def combine(self) -> tuple[Tensor, Tensor]:
        """Return the improved weights and residual after a sweep."""
        direction = self.move
        for _ in range(2):  # twice, against rounding
            for old in self.directions:
                direction = direction - (direction @ old) * old
        norm = torch.linalg.vector_norm(direction)
        if norm > MIN_NEW_FRACTION * torch.linalg.vector_norm(self.move):
            direction = direction / norm
            self.directions.append(direction)
            self.state = self.state - (direction @ self.state) * direction  # the slope is dᵀθ − (Ψd)ᵀ(z − Ψθ)
        else:
            self.directions.clear()
            self.state = self.state + self.move
        self.move = torch.zeros_like(self.move)
        state = self.state.clone()
        return state[: self.num_weights], state[self.num_weights :].view(self.shape)


def _add_identity(matrix: Tensor) -> Tensor:
    matrix.diagonal().add_(1)
    return matrix
