"""Training of a variational model: the collapsed bound max_q ELBO, and stochastic training in batches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.lbfgs import FAILURES
from ovkgp.inference.training.priors import LogPrior
from ovkgp.inference.variational.bound import RowChunk, RowChunks, VariationalBound
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.natural_gradients import (
    MIN_STEP_SIZE,
    Slopes,
    compute_slopes,
    maximize_bound,
    natural_step,
    rotate_to_eigenbasis,
)
from ovkgp.inference.variational.rows import DenseRows

FINAL_RATE_FRACTION = 0.05  # final learning rate relative to the initial one; rates decay along half a cosine
BASIS_ROWS = 4096
"""Number of rows that determine the eigenbasis of an epoch, or twice the number of scalar features if that is more."""
MIN_BASIS_STEPS = 50
"""Minimum number of steps between two updates of the eigenbasis: an update keeps only the diagonal of the precision."""
FINAL_STEPS = 10
"""Number of natural steps over all rows after training in batches, and before the first eigenbasis is improved."""


class CollapsedBound:
    """max_q ELBO as a function of the current hyperparameters, differentiable once by the envelope theorem.

    The search for q starts and ends at `gp.q_`. By default the eigenbasis of a family that is not full is fixed at the
    first call: the function is smooth, as samplers need, but decreases as the features leave the basis. Training
    sets `update_basis`, which recomputes the basis at every call. Both agree if mean field is exact in its basis.
    """

    def __init__(self, gp, data: Observations, update_basis: bool = False):
        self.gp, self.bound = gp, VariationalBound(gp.features, gp.mean, gp.likelihood, data)
        same_rows = data.is_complete and data.noise is None
        is_exact = self.bound.is_conjugate and (same_rows or isinstance(self.bound.probe(), DenseRows))
        self.updates_basis, self.has_basis = update_basis or is_exact, False

    def __call__(self) -> Tensor:
        chunk = self.bound.make_single_chunk()
        self.maximize_over_q(RowChunks(self.bound, chunk))
        return self.bound.value(self.gp.q_, chunk)

    @torch.no_grad()
    def maximize_over_q(self, chunks: RowChunks | None = None) -> None:
        """Set `gp.q_` to the q that maximizes the bound at the current hyperparameters."""
        chunks = RowChunks(self.bound) if chunks is None else chunks
        q = self.gp.initial_weights(self.bound)
        if self.updates_basis or not self.has_basis:
            q = rotate_to_eigenbasis(q, self.bound, chunks)
            if not (self.bound.is_conjugate or q.is_full):  # again: the curvatures were those of a poor q
                q = rotate_to_eigenbasis(maximize_bound(q, self.bound, chunks, FINAL_STEPS), self.bound, chunks)
            self.has_basis = True
        self.gp.q_ = maximize_bound(q, self.bound, chunks)


class BatchTraining:
    """Stochastic training of hyperparameters (by Adam, in the variables of `ParameterVector`) and q, in place.

    `callback` is called after each epoch with the mean estimate of the objective.
    """

    def __init__(
        self, gp, data: Observations, batch_size: int, epochs: int, learning_rate: float, natural_step: float, *,
        bounds, scales, callback: Callable | None = None, random_state=None, verbose: int = 0,
    ):  # fmt: skip
        self.gp, self.data, self.batch_size, self.epochs = gp, data, min(batch_size, data.num_rows), epochs
        self.callback = callback
        self.natural_step, self.num_batches = natural_step, math.ceil(data.num_rows / self.batch_size)
        self.generator = torch.Generator().manual_seed(as_seed(random_state))
        self.bound = VariationalBound(gp.features, gp.mean, gp.likelihood, data)
        self.vector, self.log_prior = ParameterVector(gp, bounds, scales), LogPrior(gp)
        self.variables = torch.tensor(self.vector.get(), requires_grad=True)
        options = {"lr": learning_rate, "betas": (0.9, 0.99)}
        self.adam = torch.optim.Adam([self.variables], **options) if len(self.vector) else None
        self.rate, self.bar = learning_rate, tqdm(disable=not verbose, unit="step", total=epochs * self.num_batches)
        self.step, self.failures, self.objectives, self.history = 0, 0, [], []
        self.basis_step: int | None = None

    def run(self) -> FitReport:
        """Train for all epochs; Ctrl-C keeps the latest parameters."""
        start_time, interrupted = time.monotonic(), False
        try:
            for _ in range(self.epochs):
                self.run_epoch()
                if self.callback is not None:
                    self.callback(self.history[-1])
            self.finish()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.bar.close()
            self.vector.clear_gradient()
        message = "was interrupted: the parameters are the latest" if interrupted else "finished its epochs"
        if interrupted:
            warnings.warn(f"Training {message}.", FitWarning, stacklevel=3)
        objective = self.history[-1] if self.history else math.nan
        return FitReport(
            objective, not interrupted, message, iterations=self.step, evaluations=self.step, failures=self.failures,
            interrupted=interrupted, seconds=time.monotonic() - start_time, history=tuple(self.history),
        )  # fmt: skip

    def run_epoch(self) -> None:
        """Pass over the data once in a new random order."""
        order, self.objectives = torch.randperm(self.data.num_rows, generator=self.generator), []
        if self.basis_step is None or self.step - self.basis_step >= MIN_BASIS_STEPS:
            self.update_basis(order)
            self.basis_step = self.step
        for rows in order.split(self.batch_size):
            self.train_on_batch(self.data.rows(rows.to(self.data.X.device)))
            self.bar.update()
        self.history.append(float(np.mean(self.objectives)) if self.objectives else math.nan)
        self.bar.set_postfix(objective=f"{self.history[-1]:.6g}", refresh=False)

    @torch.no_grad()
    def update_basis(self, order: Tensor) -> None:
        """Recompute the eigenbasis from some of the rows, as the features change with the hyperparameters."""
        q = self.gp.initial_weights(self.bound)
        if not q.is_full:
            some = self.data.rows(order[: max(BASIS_ROWS, 2 * q.num_weights // self.data.num_outputs)].sort().values)
            part = VariationalBound(self.gp.features, self.gp.mean, self.gp.likelihood, some)
            q = rotate_to_eigenbasis(q, part, RowChunks(part), self.data.num_rows / some.num_rows)
        self.gp.q_ = q

    def train_on_batch(self, batch: Observations) -> None:
        """Take a natural step of q and a step of Adam, from one evaluation of the features."""
        try:
            chunk = self.bound.make_chunk(batch).rotate(self.gp.q_.basis)
            self.gp.q_ = self.take_natural_step(chunk.detach(), self.data.num_rows / batch.num_rows)
            self.take_adam_step(chunk, self.data.num_rows / batch.num_rows)
        except FAILURES:
            self.failures += 1
            if self.failures > 10 + self.step // 10:  # occasional failures are tolerated
                raise
        self.step += 1

    def take_natural_step(self, chunk: RowChunk, scale: float) -> WeightGaussian:
        """Compute q after a natural step, which is halved while it lowers the bound of its batch."""
        q, step_size = self.gp.q_, max(self.natural_step * self.decay, 1 / (1 + self.step))
        slopes = self.compute_slopes(chunk, scale)
        while step_size >= MIN_STEP_SIZE:
            try:
                moved = natural_step(q, slopes, step_size)
            except FactorizationError:
                moved = natural_step(q, self.compute_slopes(chunk, scale, clamped=True), step_size)
            if self.bound.is_conjugate or not self._is_lower(moved, chunk, scale, slopes):
                return moved
            step_size /= 2
        return q

    @torch.no_grad()
    def _is_lower(self, moved: WeightGaussian, chunk: RowChunk, scale: float, before: Slopes) -> bool:
        after = scale * self.bound.expected(chunk, moved) - moved.divergence
        return not bool(after >= before.value - self.gp.q_.divergence)

    def compute_slopes(self, chunk: RowChunk, scale: float, clamped: bool = False) -> Slopes:
        """Compute the slopes of a batch, scaled to all rows."""
        with_variances = not self.bound.is_conjugate
        return compute_slopes(self.gp.q_, [chunk], self.gp.likelihood, self.bound.form, scale, with_variances, clamped)

    def take_adam_step(self, chunk: RowChunk, scale: float) -> None:
        """Take a step of Adam on the estimate of ELBO + log prior, per observed entry."""
        objective = scale * self.bound.expected(chunk, self.gp.q_) - self.gp.q_.divergence + self.log_prior()
        if not bool(torch.isfinite(objective.detach())):
            raise FactorizationError("The bound is not finite at the current hyperparameters.")
        self.objectives.append(float(objective.detach()))
        if self.adam is None:
            return
        self.vector.clear_gradient()
        (-objective / self.data.num_observed).backward()
        self.variables.grad = torch.from_numpy(self.vector.gradient())
        for group in self.adam.param_groups:
            group["lr"] = self.rate * self.decay
        self.adam.step()
        self.vector.set(np.clip(self.variables.detach().numpy(), *self.vector.bounds.T))
        with torch.no_grad():
            self.variables.copy_(torch.from_numpy(self.vector.get()))

    @property
    def decay(self) -> float:
        """Factor of the rates: from 1 to `FINAL_RATE_FRACTION` along half a cosine."""
        progress = min(self.step / max(self.epochs * self.num_batches, 1), 1.0)
        return FINAL_RATE_FRACTION + (1 - FINAL_RATE_FRACTION) * (1 + math.cos(math.pi * progress)) / 2

    @torch.no_grad()
    def finish(self) -> None:
        """Improve q on all rows at the final hyperparameters, if their features can be cached."""
        chunks = RowChunks(self.bound)
        if chunks.cached is not None:
            q = rotate_to_eigenbasis(self.gp.q_, self.bound, chunks)
            self.gp.q_ = maximize_bound(q, self.bound, chunks, FINAL_STEPS)
        self.history.append(float(self.bound.value(self.gp.q_) + self.log_prior()))
