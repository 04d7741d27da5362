"""What an online expansion says of uncertainty: its own mean, and the variance of the Gaussian process given the points it kept.

The variance does not depend on the outputs, and points that were seen and not kept could only lower it: it is an upper bound on
the variance given all rows, at the noise σ² that is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.observations import observations
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, FunctionDraws, KernelProcess, Posterior
from ovkgp.inference.ridge.online_blocks import blocks_of
from ovkgp.inference.strategies.exact import DenseStrategy, KroneckerStrategy
from ovkgp.inference.strategies.selection import DENSE_LIMIT, has_kronecker_form

CHUNK_ROWS, KERNEL_CHUNK_ENTRIES = 256, 2_000_000
"""Rows whose kernel with all points is evaluated together, and about how many numbers that may be (16 MB)."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """f = Σ_j K(·, x_j) a_j, as it stands after some steps.

    Args:
        X: the points (m, d), in the order in which they came.
        coefficients: a (m, p), of the last iterate.
        average: ā (m, p), of the average of all iterates.
        observed: which outputs were ever observed at the points, (m, p).
        own: K(x_j, x_j) as `Blocks` wants it, (m, …).
        num_steps: t.
        norm: κ, the largest ‖K(x, x)‖ so far.
        error: a bound on ‖f − f'‖, where f' is what the recursion gives without a budget.
        average_error: the same of the averages.
    """

    X: np.ndarray
    coefficients: np.ndarray
    average: np.ndarray
    observed: np.ndarray
    own: np.ndarray
    num_steps: int = 0
    norm: float = 0.0
    error: float = 0.0
    average_error: float = 0.0

    def __len__(self) -> int:
        return len(self.X)


class OnlineGradient:
    """The recursion, chunk by chunk: `learn` makes an `Expansion` of an earlier one and more rows.

    Args:
        kernel: with p outputs, in float64.
        num_outputs: p.
        lam: λ > 0.
        eta0, power: of the steps; 0 < eta0 ≤ 1, and power = 0 for steps that do not become smaller. For eta0 ≤ ½ no step
            overshoots, and ρ = 1 − ηλ.
        budget: the most points that are kept.
        average: whether the average of the iterates is kept as well.

    A row whose input is a kept point adds to its coefficient. Beyond the budget, whichever loses less: the new term is projected
    on the kept point that can take over most of it, or the smallest kept term goes. A loss of norm δ_t at step t makes

        ‖f_T − f'_T‖ ≤ Σ_t δ_t Π_{t < s ≤ T} ρ_s,

    with f' the recursion without a budget, since each step contracts differences by ρ; `Expansion.error` is this sum, and
    √‖K(x, x)‖ times it bounds the difference at x. Each δ_t is at most what dropping the oldest point would lose, as NORMA does.

    Cost: O(budget p²) time a row (k(x, z) Γ: O(budget p)); O(budget (p² + d)) memory, however many rows there were.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.ridge.online import OnlineGradient
        >>> learner = OnlineGradient(RBFKernel().double(), 1, lam=1.0, eta0=0.5, power=0.0)
        >>> expansion = learner.learn(learner.start(1), np.zeros((1, 1)), np.ones((1, 1)))  # η = 1 / (1 + 1)
        >>> expansion.coefficients.tolist(), expansion.num_steps
        ([[0.5]], 1)
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
        if not 0 < eta0 <= 1:
            raise OptionError(
                f"eta0 must be above 0 and at most 1 (it is a part of the largest stable step, 2 / (λ + ‖K(x, x)‖)), got {eta0}."
            )
        if not 0 <= power <= 1:
            raise OptionError(f"power must lie between 0 (steps of one size) and 1, got {power}.")
        if not 0 < lam < np.inf:
            raise OptionError(f"lam must be a positive number, got {lam}.")
        self.blocks, self.num_outputs = blocks_of(kernel, num_outputs), num_outputs
        self.lam, self.eta0, self.power = float(lam), float(eta0), float(power)
        self.budget, self.average = check_integer("budget", budget), average

    def step_size(self, step: int, norm: float) -> float:
        """η at step t = 1, 2, …, for κ."""
        return 2 * self.eta0 * step**-self.power / (self.lam + norm)

    @property
    def rows_at_once(self) -> int:
        """How many rows make a chunk."""
        room = KERNEL_CHUNK_ENTRIES // (self.blocks.entries * (self.budget + CHUNK_ROWS))
        return max(min(CHUNK_ROWS, room, self.budget), 16)

    def start(self, num_dims: int) -> Expansion:
        """f = 0, for inputs with d columns."""
        X, none = np.zeros((0, num_dims)), np.zeros((0, self.num_outputs))
        own = self.blocks.own(np.zeros((1, num_dims)))[:0]
        return Expansion(X, none, none, none.astype(bool), own)

    @torch.no_grad()
    def learn(self, expansion: Expansion, X: np.ndarray, Y: np.ndarray) -> Expansion:
        """The expansion after the rows X (n, d), Y (n, p), one after another; the earlier one is left as it was.

        Args:
            expansion: from `start` or `learn`.
            X: finite inputs in float64, at most about `rows_at_once` of them.
            Y: outputs, NaN where missing: those contribute no gradient. A row must have something observed.
        """
        work = _Work(self, expansion, X, Y)
        for row in range(len(X)):
            work.step(row)
        return work.result()


class _Work:
    """An expansion while it changes: the kept points and behind them the rows of the chunk, with the dead among them."""

    def __init__(self, learner: OnlineGradient, before: Expansion, X: np.ndarray, Y: np.ndarray):
        self.learner, self.blocks, self.before = learner, learner.blocks, before
        self.first, total = len(before), len(before) + len(X)
        X = X + 0.0  # makes −0 and 0 alike
        own = self.blocks.own(X)
        self.X, self.own = np.concatenate([before.X, X]), np.concatenate([before.own, own])
        self.coefficients, self.average = (_padded(a, total) for a in (before.coefficients, before.average))
        self.observed = np.concatenate([before.observed, ~np.isnan(Y)])
        self.Y, self.norms, self.rows = np.nan_to_num(Y), self.blocks.norms(own), self.blocks.cross(X, self.X)
        self.num_steps, self.norm = before.num_steps, before.norm
        self.error, self.average_error = before.error, before.average_error
        self.squares = np.full(total, np.inf)  # of the terms; infinite for the dead, which are never the smallest
        self.squares[: self.first] = self.blocks.squares(before.own, before.coefficients)
        self.places = {point.tobytes(): j for j, point in enumerate(before.X)}
        for _ in range(self.first - learner.budget):
            self._remove(self._smallest(self.first)[0])

    def step(self, row: int) -> None:
        """One row: a gradient step, the budget, and the average."""
        end, lam = self.first + row, self.learner.lam
        self.num_steps, self.norm = self.num_steps + 1, max(self.norm, float(self.norms[row]))
        eta = self.learner.step_size(self.num_steps, self.norm)
        value = self.blocks.value(self.rows[row, :end], self.coefficients[:end])
        new = eta * self.observed[end] * (self.Y[row] - value)
        shrinkage = 1 - eta * lam
        self.coefficients[:end] *= shrinkage
        self.squares[:end] *= shrinkage**2
        self.error *= max(abs(shrinkage), abs(shrinkage - eta * self.norm))
        self._place(row, end, new)
        if self.learner.average:
            self.average[: end + 1] += (self.coefficients[: end + 1] - self.average[: end + 1]) / self.num_steps
            self.average_error += (self.error - self.average_error) / self.num_steps

    def _place(self, row: int, end: int, new: np.ndarray) -> None:
        """Add K(·, x) new, in as many points as the budget allows."""
        key = self.X[end].tobytes()
        if (place := self.places.get(key)) is not None:
            self._add(place, new)
            self.observed[place] |= self.observed[end]
            return
        if len(self.places) >= self.learner.budget:
            smallest, loss = self._smallest(end)
            place, left = self._nearest(row, end, new)
            if left <= loss:
                self.error += left
                self._add(place, self.blocks.transfer(self.rows[row, :end], self.own, place, new))
                return
            self._remove(smallest)
        self.places[key] = end
        self._add(end, new)

    def _add(self, place: int, coefficient: np.ndarray) -> None:
        self.coefficients[place] += coefficient
        one = slice(place, place + 1)
        self.squares[one] = self.blocks.squares(self.own[one], self.coefficients[one]).clip(0)

    def _smallest(self, end: int) -> tuple[int, float]:
        """The term whose removal loses least, and the norm of that."""
        losses = np.sqrt(self.squares[:end])
        if self.learner.average:
            losses = losses + np.sqrt(self.blocks.squares(self.own[:end], self.average[:end]).clip(0))
        place = int(losses.argmin())
        return place, float(losses[place])

    def _nearest(self, row: int, end: int, new: np.ndarray) -> tuple[int, float]:
        """The kept point that can take over most of K(·, x) new, and the norm of what is left."""
        own = self.own[self.first + row : self.first + row + 1]
        covered = self.blocks.covered(self.rows[row, :end], self.own[:end], new)
        covered[np.isinf(self.squares[:end])] = -1.0
        place = int(covered.argmax())
        return place, float(np.sqrt(max(self.blocks.squares(own, new[None])[0] - covered[place], 0.0)))

    def _remove(self, place: int) -> None:
        one = slice(place, place + 1)
        self.error += float(np.sqrt(self.squares[place]))
        self.average_error += float(np.sqrt(self.blocks.squares(self.own[one], self.average[one]).clip(0)[0]))
        self.coefficients[place], self.average[place], self.squares[place] = 0.0, 0.0, np.inf
        del self.places[self.X[place].tobytes()]

    def result(self) -> Expansion:
        kept = np.sort(np.fromiter(self.places.values(), dtype=np.int64, count=len(self.places)))
        names = ("X", "coefficients", "average", "observed", "own")
        return replace(
            self.before,
            **{name: getattr(self, name)[kept] for name in names},
            num_steps=self.num_steps,
            norm=self.norm,
            error=self.error,
            average_error=self.average_error,
        )


def _padded(values: np.ndarray, total: int) -> np.ndarray:
    """Values and, behind them, zeros: `total` rows in all."""
    return np.concatenate([values, np.zeros((total - len(values), *values.shape[1:]))])


class OnlinePosterior(Posterior):
    """The mean Σ_j K(·, x_j) a_j, with the covariance of the process given the kept points.

    Args:
        gp: kernel and noise σ², with mean zero.
        expansion: of at least one point.
        average: whether the mean is that of the averaged iterates.

    `log_evidence` is NaN: the points do not tell what the rows that were let go had been.

    Cost: O(m n p²) for the mean at n test points of m kept ones. The first covariance takes a factorisation, O(m³ + p³) for
    k(x, z) Γ with complete outputs, else O(N³) for the N observed entries of the points. If those are more than 5000 (points,
    entries), it is given an even selection of the points: still an upper bound.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.ridge.online import OnlineGradient
        >>> from ovkgp.inference.ridge.online import OnlinePosterior
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.5)
        >>> learner = OnlineGradient(gp.kernel, 1, lam=0.5)
        >>> expansion = learner.learn(learner.start(1), np.zeros((1, 1)), np.ones((1, 1)))
        >>> prediction = OnlinePosterior(gp, expansion).predict([[0.0]])
        >>> round(prediction.mean.item(), 4), round(prediction.std.item() ** 2, 4)  # 1 − 1 / 1.5
        (0.6667, 0.3333)
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
        """The process given the outputs seen at the kept points, all of them zero: its covariance is ours."""
        kept = np.where(self.expansion.observed, 0.0, np.nan)
        with torch.no_grad():
            data, model = observations(self.X, kept, self.num_outputs, every_output=False), self.gp.model
            is_kronecker = has_kronecker_form(model, data)
            size = data.num_rows if is_kronecker else data.num_observed
            if size > DENSE_LIMIT:
                data = data.rows(torch.linspace(0, data.num_rows - 1, data.num_rows * DENSE_LIMIT // size).long())
            return (KroneckerStrategy() if is_kronecker else DenseStrategy()).condition(model, data)

    def rows_at_once(self, form: str) -> int:
        return CHUNK_ENTRIES // (len(self.X) * self.num_outputs**2)

    @torch.no_grad()
    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        return self._mean(X), None if form == "none" else self.given_points.latent(X, form)[1]

    def _mean(self, X: Tensor) -> Tensor:
        return (self.process.cross(X, self.X) @ self.coefficients.flatten()).unflatten(-1, (-1, self.num_outputs))

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """k random functions around the mean, with the covariance given the kept points."""
        around_zero = self.given_points.sample_functions(k, random_state=random_state)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            with torch.no_grad():
                return self._mean(X) + around_zero._at(X, index)

        return FunctionDraws(evaluate, len(around_zero), self.num_dims)
