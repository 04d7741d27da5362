"""Where the training of a variational model begins: kernel and mean from stand-ins for the latent values, the rest from Y.

A real output stands for itself. Of any other (a class, a count) the latent function is thought of as the likelihood's own
start plus the standardised output: of size one, as such functions are.
"""

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
from ovkgp.inference.model.parameter_vector import Bounds, ParameterVector
from ovkgp.inference.training.initialization import (
    RELATIVE_NOISE_BOUNDS,
    bounds,
    initial_noise,
    initialize_from_data,
    log_prior,
    sizes,
)
from ovkgp.inference.training.lbfgs import FAILURES
from ovkgp.inference.variational.bound import Piece, RowChunks, VariationalBound
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.natural_gradients import Slopes, ascend, eigenbasis, natural_step, slopes
from ovkgp.inference.variational.rows import DenseRows

LAST_RATE = 0.05
"""Rates fall along a half cosine to this share of the first."""
BASIS_ROWS = 4096
"""Rows from which the eigenbasis is found at the beginning of each epoch; twice as many as waves where those are more."""
TURN_STEPS = 50
"""Steps, at least, from one eigenbasis to the next: a turn keeps the diagonal of the precision alone."""
POLISHING = 10
"""Natural steps over all rows at the end of a training with batches, and before the first eigenbasis is improved."""
SHORTEST = 2.0**-20
"""The smallest share of a natural step that is tried where a longer one lowers the bound of its batch."""


class CollapsedBound:
    """max_q ELBO as a function of the present hyperparameters, differentiable once by the envelope theorem.

    Args:
        gp: the model, whose `q_` is where the search for q begins, and where it ends.
        data: the observations, in float64.
        turning: whether the eigenbasis of a family that is not full is found anew at every call.

    By default the eigenbasis is that of the first call, so that the function is smooth and its gradient exact: as samplers and
    second derivatives want it. It falls off away from there, though, as the features turn out of the basis, and its summit
    is near to where it began; a training therefore finds the basis anew, and its gradient is that at the present basis. The two are
    one where mean field is exact in its own basis (a Gaussian likelihood, and for Kronecker features complete outputs).
    """

    def __init__(self, gp, data: Observations, turning: bool = False):
        self.gp, self.bound = gp, VariationalBound(gp.features, gp.mean, gp.likelihood, data)
        alike = data.is_complete and data.noise is None
        is_exact = self.bound.is_conjugate and (alike or isinstance(self.bound.probe(), DenseRows))
        self.turns, self.is_turned = turning or is_exact, False

    def __call__(self) -> Tensor:
        whole = self.bound.whole()
        self.settle(RowChunks(self.bound, whole))
        return self.bound.value(self.gp.q_, whole)

    @torch.no_grad()
    def settle(self, pieces: RowChunks | None = None) -> None:
        """Bring q to its best at the present hyperparameters."""
        pieces = RowChunks(self.bound) if pieces is None else pieces
        q = self.gp.start_weights(self.bound)
        if self.turns or not self.is_turned:
            q = eigenbasis(q, self.bound, pieces)
            if not (self.bound.is_conjugate or q.is_full):  # once more: the curvatures were those of a poor q
                q = eigenbasis(ascend(q, self.bound, pieces, POLISHING), self.bound, pieces)
            self.is_turned = True
        self.gp.q_ = ascend(q, self.bound, pieces)


class BatchTraining:
    """Stochastic training of a model's hyperparameters and q, in place.

    Args:
        gp: the model.
        data: the observations.
        batch_size: rows of a batch.
        epochs: passes over the data.
        learning_rate: of Adam, in the well-scaled variables of `ParameterVector`.
        natural_step: ρ, after the first steps, in which it is 1 / (1 + step).
        bounds, sizes: of the parameters.
        callback: called after each epoch with the mean of its estimates of the objective.
        random_state: of the order of the rows.
        verbose: 1 shows a progress bar.

    Cost of a step with b rows: O(b M q) for mean field and Φ = φ ⊗ B, O(b M² p + r³) for a full q, and the features' own.
    """

    def __init__(
        self, gp, data: Observations, batch_size: int, epochs: int, learning_rate: float, natural_step: float, *,
        bounds, sizes, callback: Callable | None = None, random_state=None, verbose: int = 0,
    ):  # fmt: skip
        self.gp, self.data, self.batch_size, self.epochs = gp, data, min(batch_size, data.num_rows), epochs
        self.callback = callback
        self.natural_step, self.num_batches = natural_step, math.ceil(data.num_rows / self.batch_size)
        self.generator = torch.Generator().manual_seed(as_seed(random_state))
        self.bound = VariationalBound(gp.features, gp.mean, gp.likelihood, data)
        self.vector = ParameterVector(gp, bounds, sizes)
        self.variables = torch.tensor(self.vector.get(), requires_grad=True)
        self.adam = (
            torch.optim.Adam([self.variables], lr=learning_rate, betas=(0.9, 0.99)) if len(self.vector) else None
        )
        self.rate, self.bar = learning_rate, tqdm(disable=not verbose, unit="step", total=epochs * self.num_batches)
        self.step, self.failures, self.levels, self.history = 0, 0, [], []
        self.turned_at: int | None = None

    def run(self) -> FitReport:
        """Train; Ctrl-C keeps the latest parameters."""
        began, interrupted = time.monotonic(), False
        try:
            for _ in range(self.epochs):
                self.epoch()
                if self.callback is not None:
                    self.callback(self.history[-1])
            self.polish()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.bar.close()
            self.vector.clear_gradient()
        words = "was interrupted: the parameters are the latest" if interrupted else "finished its epochs"
        if interrupted:
            warnings.warn(f"training {words}.", FitWarning, stacklevel=3)
        objective = self.history[-1] if self.history else math.nan
        return FitReport(
            objective, not interrupted, words, iterations=self.step, evaluations=self.step, failures=self.failures,
            interrupted=interrupted, seconds=time.monotonic() - began, history=tuple(self.history),
        )  # fmt: skip

    def epoch(self) -> None:
        """One pass over the data in a fresh random order."""
        order, self.levels = torch.randperm(self.data.num_rows, generator=self.generator), []
        if self.turned_at is None or self.step - self.turned_at >= TURN_STEPS:
            self.turn(order)
            self.turned_at = self.step
        for rows in order.split(self.batch_size):
            self.one_step(self.data.rows(rows.to(self.data.X.device)))
            self.bar.update()
        self.history.append(float(np.mean(self.levels)) if self.levels else math.nan)
        self.bar.set_postfix(objective=f"{self.history[-1]:.6g}", refresh=False)

    @torch.no_grad()
    def turn(self, order: Tensor) -> None:
        """Find the eigenbasis anew, from some of the rows: the features have moved with the hyperparameters."""
        q = self.gp.start_weights(self.bound)
        if not q.is_full:
            some = self.data.rows(order[: max(BASIS_ROWS, 2 * q.num_weights // self.data.num_outputs)].sort().values)
            part = VariationalBound(self.gp.features, self.gp.mean, self.gp.likelihood, some)
            q = eigenbasis(q, part, RowChunks(part), self.data.num_rows / some.num_rows)
        self.gp.q_ = q

    def one_step(self, batch: Observations) -> None:
        """A natural step of q and a step of Adam, from one evaluation of the features."""
        try:
            piece = self.bound.piece(batch).rotated(self.gp.q_.basis)
            self.gp.q_ = self.natural(piece.detach(), self.data.num_rows / batch.num_rows)
            self.adapt(piece, self.data.num_rows / batch.num_rows)
        except FAILURES:
            self.failures += 1
            if self.failures > 10 + self.step // 10:  # now and then a step may fail, but not as a rule
                raise
        self.step += 1

    def natural(self, piece: Piece, scale: float) -> WeightGaussian:
        """q after a natural step; one that lowers the bound of its own batch (an exponential rate may overflow) is halved, and
        negative curvatures are left out where they would leave no precision."""
        q, share = self.gp.q_, max(self.natural_step * self.decay, 1 / (1 + self.step))
        found = self.slopes(piece, scale)
        while share >= SHORTEST:
            try:
                moved = natural_step(q, found, share)
            except FactorizationError:
                moved = natural_step(q, self.slopes(piece, scale, clamped=True), share)
            if self.bound.is_conjugate or not self._is_lower(moved, piece, scale, found):
                return moved
            share /= 2
        return q

    @torch.no_grad()
    def _is_lower(self, moved: WeightGaussian, piece: Piece, scale: float, before: Slopes) -> bool:
        after = scale * self.bound.expected(piece, moved) - moved.divergence
        return not bool(after >= before.value - self.gp.q_.divergence)

    def slopes(self, piece: Piece, scale: float, clamped: bool = False) -> Slopes:
        """The slopes of a batch, scaled to all rows."""
        exact = not self.bound.is_conjugate
        return slopes(self.gp.q_, [piece], self.gp.likelihood, self.bound.form, scale, exact, clamped)

    def adapt(self, piece: Piece, scale: float) -> None:
        """A step of Adam on the estimate of ELBO + log prior, for each observed entry."""
        objective = scale * self.bound.expected(piece, self.gp.q_) - self.gp.q_.divergence + log_prior(self.gp)
        if not bool(torch.isfinite(objective.detach())):
            raise FactorizationError("the bound is not finite at the present hyperparameters.")
        self.levels.append(float(objective.detach()))
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
        """From 1 to `LAST_RATE` along half a cosine."""
        way = min(self.step / max(self.epochs * self.num_batches, 1), 1.0)
        return LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * way)) / 2

    @torch.no_grad()
    def polish(self) -> None:
        """Bring q to its best for all rows at the last hyperparameters, unless they are so many that it would take long."""
        pieces = RowChunks(self.bound)
        if pieces.kept is not None:
            self.gp.q_ = ascend(eigenbasis(self.gp.q_, self.bound, pieces), self.bound, pieces, POLISHING)
        self.history.append(float(self.bound.value(self.gp.q_) + log_prior(self.gp)))


def latent_values(gp, data: Observations) -> Tensor:
    """Stand-ins (n, p) for the latent values at the data, NaN where nothing was observed.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.variational.gp import VariationalGP
        >>> from ovkgp.inference.variational.training import latent_values
        >>> data = observations(torch.arange(3.0), torch.tensor([1.0, 2.0, 6.0]), 1)
        >>> latent_values(VariationalGP(RBFKernel(), "gaussian"), data.double()).flatten().tolist()
        [1.0, 2.0, 6.0]
    """
    Y, is_real = data.Y, gp.likelihood.is_real.to(data.Y.device)
    if bool(is_real.all()):
        return Y
    centre = Y.nanmean(0)
    spread = (Y - centre).square().nanmean(0).sqrt()
    standard = gp.likelihood.initial_latent(Y) + (Y - centre) / torch.where(spread > 0, spread, 1.0)
    return torch.where(is_real, Y, standard)


@torch.no_grad()
def initial_latents(gp, data: Observations, start: str, kernel: bool = True) -> list[dict[str, Tensor]]:
    """The raw parameters to begin from: "current" ones, those from the "data", or both ("auto"); the latter are set, those of the
    kernel only where `kernel` is True."""
    current = _state(gp)
    if start == "current":
        return [current]
    values = latent_values(gp, data)
    gp.mean.start(data.X, values)
    if kernel:
        initialize_from_data(gp.kernel, data.X, values - gp.mean(data.X))
    gp.likelihood.start(data.Y)
    return [_state(gp), current] if start == "auto" else [_state(gp)]


def latent_bounds(gp, data: Observations) -> dict[int, Bounds]:
    """The box of each parameter that has one, relative to the scales of the data."""
    values, known = latent_values(gp, data), dict(gp.kernel.named_parameters())
    found = {id(known[name]): box for name, box in bounds(gp.kernel, data.X, values).items()}
    if gp.noise_model is not None and gp.noise_model.is_trained:
        variances = 10 * initial_noise(values)
        variances = variances.mean() if gp.noise_model.kind == "shared" else variances
        found[id(gp.noise_model.log_scale)] = tuple(
            0.5 * (math.log(end) + variances.log()) for end in RELATIVE_NOISE_BOUNDS
        )
    return found | _scale_bounds(gp, (10 * initial_noise(values)).sqrt())


def _scale_bounds(gp, deviations: Tensor) -> dict[int, Bounds]:
    """The scale of a likelihood of real outputs stays where a noise would, relative to the deviation of its output."""
    low, high = (math.sqrt(end) for end in RELATIVE_NOISE_BOUNDS)
    scales = [one for name, one in gp.likelihood.named_parameters() if name.rpartition(".")[2] == "raw_scale"]
    whole = deviations.min(), deviations.max()
    ends = [(deviations, deviations) if one.numel() == len(deviations) else whole for one in scales]
    return {id(one): (low * least, high * most) for one, (least, most) in zip(scales, ends, strict=True)}


def latent_sizes(gp, data: Observations) -> dict[str, float | Tensor]:
    """The natural steps of parameters that live in the units of the data."""
    values = latent_values(gp, data)
    deviations, spread = (10 * initial_noise(values)).sqrt(), data.X.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    steps = {
        "mean.constant": deviations,
        "mean.slopes": deviations / spread.unsqueeze(-1),
        "likelihood.noise_model.lower": 0.3 * deviations.unsqueeze(-1),
    }
    if isinstance(gp.features, InducingPoints):
        steps["features.points"] = spread
    known = dict(gp.named_parameters())
    found = {f"kernel.{name}": size for name, size in sizes(gp.kernel, data.X, values).items()}
    return found | {name: step for name, step in steps.items() if name in known}


def _state(gp) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}
