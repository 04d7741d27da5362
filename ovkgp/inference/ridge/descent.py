"""Doubly stochastic gradient descent: one block of random features and one batch of rows at a time (BT-93, Algorithm 4; ID-19).

At iteration t the block i = t mod B is drawn again from its seed, and with the batch S of the n rows

    g = θ_i − (n/|S|) Φ_{S,i}ᵀ N⁻¹ (y_S − m_S − Φ_S θ),     H = I + (n/|S|) Φ_{S,i}ᵀ N⁻¹ Φ_{S,i},     θ_i ← θ_i − γ_t H⁻¹ g.

Only the active block shrinks. Φ is scaled by 1/√D everywhere (BT-E-36). With all rows and γ = 1 this is block Gauss–Seidel; with
one block as well it is Algorithm 3 in one step.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from numbers import Real

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import BlockedORFF, FeatureMap
from ovkgp.inference.algebra.dense import safe_cholesky
from ovkgp.inference.algebra.krylov import Refined
from ovkgp.inference.algebra.krylov import warn_of_residual_quadratics as warn_of_residual
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.ridge.weight_products import WeightProducts

SWEEPS_KEPT = 8
"""How many sweeps are combined with the next."""

ROUND_OFF = 1e-8
"""A sweep of which less than this is new says nothing any more: what is left of e is no longer −Ψd."""


class Sweeps:
    """The weights and the residual after each sweep, with every sweep made conjugate to those kept, and of the best length.

    Args:
        weights: θ at the start (r,).
        left: z − Ψθ there (n, p).

    Cost of a sweep: O((r + n p) `SWEEPS_KEPT`) time and memory.

    Example:
        >>> import torch
        >>> from ovkgp.inference.ridge.descent import Sweeps
        >>> Psi, z = torch.eye(2).double(), torch.ones(2, 1).double()
        >>> sweeps = Sweeps(torch.zeros(2).double(), z)
        >>> change = torch.full((2,), 0.1).double()  # too short a step: (I + ΨᵀΨ)⁻¹ Ψᵀz is ½
        >>> sweeps.add(slice(None), change, (Psi @ change).view(2, 1))
        >>> sweeps.combine()[0]
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, weights: Tensor, left: Tensor):
        self.weights, self.left = weights.clone(), left.clone()
        self.kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=SWEEPS_KEPT)
        self.moves = torch.zeros_like(weights), torch.zeros_like(left)

    def add(self, columns: Tensor | slice, change: Tensor, moved: Tensor) -> None:
        """A step on one block: what it adds to θ and to Ψθ."""
        self.moves[0][columns] += change
        self.moves[1].sub_(moved)

    def combine(self) -> tuple[Tensor, Tensor]:
        """The weights and the residual after a sweep, improved."""
        d, e = self.moves
        whole = math.sqrt(_dot(d, e, d, e))
        for _ in range(2):  # once more for what rounding left
            for old_d, old_e in self.kept:
                share = _dot(d, e, old_d, old_e)
                d, e = d - share * old_d, e - share * old_e
        size = math.sqrt(_dot(d, e, d, e))
        if size > ROUND_OFF * whole:
            d, e = d / size, e / size
            self.kept.append((d, e))
            length = -_dot(d, e, self.weights, self.left)  # minus the slope, dᵀθ − (Ψd)ᵀ(z − Ψθ)
            self.weights, self.left = self.weights + length * d, self.left + length * e
        else:
            self.kept.clear()
            self.weights, self.left = self.weights + self.moves[0], self.left + self.moves[1]
        self.moves = torch.zeros_like(d), torch.zeros_like(e)
        return self.weights.clone(), self.left.clone()


def _dot(d: Tensor, e: Tensor, other_d: Tensor, other_e: Tensor) -> float:
    return (d @ other_d + (e * other_e).sum()).item()


FACTOR_ENTRIES = 4_000_000
"""Numbers (32 MB) that the factors of all blocks may take together to be kept between sweeps over all rows."""


class Blocks:
    """A feature map as blocks of columns; one that has none is a single block.

    Args:
        feature_map: Φ.
    """

    def __init__(self, feature_map: FeatureMap):
        self.whole = feature_map
        self.is_blocked = isinstance(feature_map, BlockedORFF)
        self.num_blocks = feature_map.num_blocks if self.is_blocked else 1
        self._columns: dict[int, Tensor] = {}  # r whole numbers at most, as many as weights

    def map(self, index: int) -> FeatureMap:
        """Φ_i, scaled as a part of the whole."""
        return self.whole.block(index) if self.is_blocked else self.whole

    def columns(self, index: int) -> Tensor | slice:
        """Where its weights are."""
        if not self.is_blocked:
            return slice(None)
        if index not in self._columns:
            self._columns[index] = self.whole.columns(index)
        return self._columns[index]


class BlockDescent(ABC):
    """The weights, and what a step on one block does to them.

    Args:
        model: with a feature map.
        data: the observations, in float64.
        blocks: of the feature map.
        preconditioned: whether steps are those of Newton on a block, or the plain gradient times σ²/n.

    Attributes:
        weights: θ (r,).
        start: ‖∇‖ at θ = 0.
    """

    num_steps = 0
    """How many were taken."""

    def __init__(self, model: Model, data: Observations, blocks: Blocks, preconditioned: bool):
        self.model, self.data, self.blocks, self.preconditioned = model, data, blocks, preconditioned
        self.weights = data.X.new_zeros(blocks.whole.num_features)
        self.chunk_rows = WeightProducts(blocks.map(0), model.mean, model.noise, data).chunk_rows
        self.start = self.gradient_norm()
        self.plain_scale = model.new_noise(data).diagonal().mean().item() / data.num_rows

    def products(self, index: int, rows: Tensor | None = None) -> WeightProducts:
        data = self.data if rows is None else self.data.rows(rows)
        return WeightProducts(self.blocks.map(index), self.model.mean, self.model.noise, data, self.chunk_rows)

    def residuals(self, rows: Tensor | None = None) -> Tensor:
        """z − Ψθ at some rows, one block after another."""
        left = None
        for i in range(self.blocks.num_blocks):
            products = self.products(i, rows)
            left = products.targets() if left is None else left
            left = left - products.forward(self.weights[self.blocks.columns(i)])
        return left

    def gradient_norm(self) -> float:
        """‖∇‖ of the whole problem at the present weights. O(n D)."""
        left = self.residuals()
        parts = (self.products(i).adjoint(left) for i in range(self.blocks.num_blocks))
        squares = (self.weights[self.blocks.columns(i)].sub(part).square().sum().item() for i, part in enumerate(parts))
        return math.sqrt(sum(squares))

    @abstractmethod
    def step(self, index: int, rate: float) -> float:
        """Move block `index`; the squared norm of its gradient before."""


class AllRows(BlockDescent):
    """Steps on all rows: the residual is kept up to date, so that other blocks are not looked at.

    Args:
        combined: whether sweeps are combined (`ovkgp.inference.ridge.descent`).

    Cost of a step: O(n b (p + d)); its Hessian O(n p r_b² + r_b³), kept between sweeps where there is room.
    """

    def __init__(self, model: Model, data: Observations, blocks: Blocks, preconditioned: bool, combined: bool):
        super().__init__(model, data, blocks, preconditioned)
        self.left = self.residuals()
        self.start = min(self.start, torch.linalg.vector_norm(self.left).item())  # as in `MatrixFreeSystem`
        self.factors: dict[int, Tensor] = {}
        self.sweeps = Sweeps(self.weights, self.left) if combined else None

    def step(self, index: int, rate: float) -> float:
        products, columns = self.products(index), self.blocks.columns(index)
        gradient = self.weights[columns] - products.adjoint(self.left)
        change = -rate * (
            self._solve(products, index, gradient) if self.preconditioned else self.plain_scale * gradient
        )
        moved = products.forward(change)
        self.weights[columns] += change
        self.left -= moved
        if self.sweeps is not None:
            self.sweeps.add(columns, change, moved)
            if index == self.blocks.num_blocks - 1:
                self.weights, self.left = self.sweeps.combine()
        return gradient.square().sum().item()

    def _solve(self, products: WeightProducts, index: int, gradient: Tensor) -> Tensor:
        chol = self.factors.get(index)
        if chol is None:
            chol = safe_cholesky(_plus_one(products.matrix()))
            if chol.numel() * self.blocks.num_blocks <= FACTOR_ENTRIES:
                self.factors[index] = chol
        return torch.cholesky_solve(gradient.unsqueeze(-1), chol).squeeze(-1)


class Batches(BlockDescent):
    """Steps on random rows, each predicted anew with all blocks.

    Args:
        size: |S|.
        seed: of the rows.

    Cost of a step: O(|S| D (p + d)), and O(|S| p r_b² + r_b³) for its Hessian.
    """

    def __init__(self, model: Model, data: Observations, blocks: Blocks, preconditioned: bool, size: int, seed: int):
        super().__init__(model, data, blocks, preconditioned)
        self.size, self.rng = size, np.random.default_rng(seed)

    def step(self, index: int, rate: float) -> float:
        rows, columns = self._rows(self.size), self.blocks.columns(index)
        products, share = self.products(index, rows), self.data.num_rows / self.size
        gradient = self.weights[columns] - share * products.adjoint(self.residuals(rows))
        step = (
            self._solve(products, index, gradient, min(rate, 1.0))
            if self.preconditioned
            else self.plain_scale * gradient
        )
        self.weights[columns] -= rate * step
        return gradient.square().sum().item()

    def _rows(self, size: int) -> Tensor:
        chosen = self.rng.choice(self.data.num_rows, size, replace=False, shuffle=False)
        return torch.from_numpy(chosen).to(self.data.X.device)

    def _solve(self, products: WeightProducts, index: int, gradient: Tensor, own: float) -> Tensor:
        hessian = own * self.data.num_rows / self.size * products.matrix()
        if own < 1:  # other rows, enough of them to see every direction
            size = min(max(self.size, 4 * len(gradient) // self.data.num_outputs + 1), self.data.num_rows)
            hessian += (1 - own) * self.data.num_rows / size * self.products(index, self._rows(size)).matrix()
        return torch.cholesky_solve(gradient.unsqueeze(-1), safe_cholesky(_plus_one(hessian))).squeeze(-1)


def _plus_one(matrix: Tensor) -> Tensor:
    matrix.diagonal().add_(1)
    return matrix


SWEEPS, PASSES = 2000, 20
"""Without `max_iter`: sweeps over the blocks with all rows at once, and passes of each block over the rows in batches."""

PATIENCE = 100
"""Sweeps over all rows in which the gradient must halve; where it does not, it would hardly arrive, and stops."""

BURN_IN, DECAY = 5, 0.75
"""Sweeps at the full rate, and the power of the sweep with which it falls afterwards, where rows come in batches."""


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
) -> Refined:
    """The posterior mean of the weights (r,), and the number of iterations, by blocks of features and batches of rows.

    Args:
        model: with a feature map; a `BlockedORFF` has blocks, any other map is one block.
        data: the observations, in float64.
        batch_size: |S|; None, or n and more, for all rows.
        learning_rate: γ; a number, constant with all rows and falling like s^-3/4 after a few sweeps s with batches, or a
            function t ↦ γ_t of the iteration t = 1, 2, ….
        preconditioned: divide the gradient by the block's Hessian. If not, it is that of the thesis, of
            (1/n) Σ ½‖y − f‖² + (λ/2)‖θ‖² with λ the mean noise over n, and γ is at most about 1/E tr K(x, x).
        tolerance: with all rows, stop when the gradient over a sweep is this part of the one at θ = 0, and of the length of
            N^{-½} (y − m).
        max_iter: iterations, one block each.
        random_state: of the batches.
        verbose: 1 shows a progress bar.

    With batches and γ_t < 1 the Hessian is γ_t that of the batch and 1 − γ_t that of other rows (`ovkgp.inference.ridge.descent`).
    With all rows and a number for γ, the last few sweeps are combined (`ovkgp.inference.ridge.descent`); a function gives plain steps.

    Ctrl-C keeps the weights so far and warns. A gradient that stays above the tolerance is a `FitWarning`; with batches it is
    one only where it is not below that of θ = 0.

    Cost of an iteration: O(n b (p + d)) with all rows, or O(|S| D (p + d)) with batches, and O(|S| p r_b² + r_b³) for the
    Hessian of the r_b weights of a block, kept between sweeps where there is room. Frequencies of one block at a time.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import BlockedORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.ridge.descent import doubly_stochastic_weights
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> features = BlockedORFF(kernel, 40, block_size=10, random_state=0)
        >>> gp = OperatorValuedGP(kernel, mean="zero", noise=0.1, features=features)
        >>> X = torch.linspace(0, 6, 50, dtype=torch.float64).unsqueeze(-1)
        >>> weights = doubly_stochastic_weights(gp.frozen().model, observations(X, X.sin(), 1)).solution
        >>> exact = gp.condition(X, X.sin()).weights
        >>> bool(torch.allclose(weights, exact, atol=1e-6))
        True
    """
    size = data.num_rows if batch_size is None else min(check_integer("batch_size", batch_size), data.num_rows)
    is_full = size == data.num_rows
    blocks = Blocks(model.features)
    rate = _rates(learning_rate, blocks.num_blocks, is_full)
    if max_iter is None:
        max_iter = blocks.num_blocks * (SWEEPS if is_full else PASSES * math.ceil(data.num_rows / size))
    if is_full:
        descent = AllRows(model, data, blocks, preconditioned, combined=not callable(learning_rate))
    else:
        descent = Batches(model, data, blocks, preconditioned, size, as_seed(random_state))
    with torch.no_grad():
        interrupted = _run(descent, rate, max_iter, tolerance if is_full else 0.0, verbose)
        if not interrupted:
            _judge(descent, tolerance if is_full else 1.0)
    return Refined(descent.weights, descent.num_steps)


def _rates(learning_rate: float | Callable[[int], float], num_blocks: int, is_full: bool) -> Callable[[int], float]:
    """t ↦ γ_t, checked."""

    def rate(t: int) -> float:
        if callable(learning_rate):
            value = learning_rate(t)
        else:
            late = max((t - 1) // num_blocks - BURN_IN, 0)
            value = learning_rate if is_full else learning_rate * (1 + late) ** -DECAY
        if isinstance(value, bool) or not (isinstance(value, Real) and math.isfinite(value) and value > 0):
            raise OptionError(
                f"learning_rate must be a positive number, or a function of the iteration with such values; got {value!r} "
                f"at iteration {t}."
            )
        return float(value)

    rate(1)
    return rate


def _run(descent: BlockDescent, rate: Callable[[int], float], max_iter: int, tolerance: float, verbose: int) -> bool:
    """Iterate until the gradient of a sweep is small; whether Ctrl-C came before."""
    start, num_blocks, sweep, last = descent.start, descent.blocks.num_blocks, 0.0, math.inf
    with tqdm(total=max_iter, disable=not verbose, unit="iteration") as bar:
        try:
            for t in range(1, max_iter + 1):
                sweep += descent.step((t - 1) % num_blocks, rate(t))
                descent.num_steps = t
                bar.update()
                if t % num_blocks == 0:
                    relative, sweep = math.sqrt(sweep) / start if start else 0.0, 0.0
                    bar.set_postfix(gradient=f"{relative:.1e}", refresh=False)
                    _require_bounded(relative, t)
                    if relative <= tolerance:
                        break
                    if tolerance and t % (PATIENCE * num_blocks) == 0:
                        if relative > last / 2:
                            break
                        last = relative
        except KeyboardInterrupt:
            message = (
                f'solver="doubly_sgd" was interrupted at iteration {t} of {max_iter}: the weights so far are kept.'
            )
            warnings.warn(message, FitWarning, stacklevel=4)
            return True
    return False


def _require_bounded(relative: float, t: int) -> None:
    if not relative < 1e12:
        raise OptionError(
            f"doubly stochastic descent diverged by iteration {t}: take a smaller learning_rate, or preconditioned=True."
        )


def _judge(descent: BlockDescent, tolerance: float) -> None:
    relative = descent.gradient_norm() / descent.start if descent.start else 0.0
    if not relative <= 2 * tolerance:  # that of a sweep, by which it stopped, is not quite that of its end
        warn_of_residual("doubly_sgd", relative, tolerance)
