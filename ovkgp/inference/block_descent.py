"""Steps on one block of features, on all rows or on a batch of them (BT-93).

    g = θ_i − (n/|S|) Ψ_{S,i}ᵀ (z_S − Ψ_S θ),     H_S = I + (n/|S|) Ψ_{S,i}ᵀ Ψ_{S,i},     θ_i ← θ_i − γ H⁻¹ g,

with H = H_S on all rows, and H = γ H_S + (1 − γ) H_P with other rows P on a batch: H_S alone depends on the same rows as g, and
the mean of H_S⁻¹ g is not zero at the ridge solution; H_P alone does not bound the step, and γ H_S ≤ H does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from ovkgp.features import BlockedORFF, FeatureMap
from ovkgp.inference.data import Observations
from ovkgp.inference.dense import safe_cholesky
from ovkgp.inference.model import Model
from ovkgp.inference.sweeps import Sweeps
from ovkgp.inference.weight_products import WeightProducts

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
        combined: whether sweeps are combined (`ovkgp.inference.sweeps`).

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
