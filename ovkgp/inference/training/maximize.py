"""Training: maximize an objective in the parameters of a module, with restarts and checkpoints.

If the outputs share no parameter, they are trained one by one first (`train_independently`).
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import FactorizationError, FitWarning, OptionError
from ovkgp.files import check_path
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.mean_noise import MEANS, PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import Bounds, ParameterVector
from ovkgp.inference.training.checkpoints import (
    Progress,
    problem_signature,
    read_progress,
    write_progress,
)
from ovkgp.inference.training.lbfgs import LBFGSRun, ObjectiveEvaluator, Point, TorchObjective
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.inference.training.priors import output_prior
from ovkgp.kernels import IndependentKernel

PERTURBATION_STD = 0.7
"""Standard deviation of a random initial point of a restart, in the optimizer's variables (mostly logarithms)."""
MAX_INITIAL_DRAWS = 10  # maximum number of perturbed points that a restart tries
CHECKPOINT_ITERATIONS, CHECKPOINT_SECONDS = 5, 1.0
"""A checkpoint is written every this many iterations, if the last one is at least this old."""


def maximize(
    module: torch.nn.Module,
    objective: Callable[[], Tensor],
    *,
    bounds: Mapping[int | str, Bounds] | None = None,
    scales: Mapping[str, float | Tensor] | None = None,
    **options,
) -> FitReport:
    """Train `module` in place to the largest value of `objective`, a differentiable scalar computed at every call.

    `bounds` and `scales` are as for `ParameterVector`, and `options` as for `maximize_density`.
    """
    return maximize_density(TorchObjective(ParameterVector(module, bounds, scales), objective), **options)


def maximize_density(
    density: TorchObjective | LogDensity,
    *,
    max_iter: int = 200,
    tolerance: float = 1e-6,
    restarts: int = 1,
    initial_states: Sequence[Mapping[str, Tensor] | None] = (),
    initial_points: Sequence[np.ndarray] = (),
    random_state=None,
    verbose: int = 0,
    checkpoint: str | os.PathLike | None = None,
    signature: str = "",
    scale: float = 1.0,
) -> FitReport:
    """Move the parameters of `density.vector` to the largest value of `density`, which maps x to a value and its gradient.

    `max_iter` is per restart. `tolerance` is on the change of density / `scale` (the number of observations) over five
    iterations, and on its gradient. The first of the `restarts` begins at the best of `initial_states` (raw parameters by
    name, possibly partial; None is the present state, also the default) and of `initial_points`, each a vector (k,) or a group
    of them (g, k). The others begin at the best points of the other groups, in the order of their values, where `initial_states`
    are one group, and then at random perturbations of the best one. Progress is written to the file `checkpoint` and resumed
    from it if it exists; a checkpoint with another `signature` is rejected.

    Raises `FactorizationError` if the density cannot be evaluated at any initial state, and `InputError` if the
    checkpoint cannot be written, is damaged, or belongs to another problem. Complexity: one or two gradients per
    iteration.
    """
    if not (tolerance > 0 and scale > 0):
        raise OptionError(f"tolerance and scale must be positive, got {tolerance} and {scale}.")
    if len(density.vector) == 0:
        value, _ = density(np.zeros(0))
        return FitReport(value, True, "there was nothing to train", evaluations=1, gradient_norm=0.0)
    training = _Training(
        ObjectiveEvaluator(density.vector, density, scale),
        check_integer("max_iter", max_iter),
        tolerance,
        check_integer("restarts", restarts),
        as_seed(random_state),
        tqdm(disable=not verbose, unit="iteration"),
    )
    if checkpoint is not None:
        training.use_checkpoint(check_path("checkpoint", checkpoint), signature)
    return training.run(initial_states, initial_points)


class _Training:
    """State of one call of `maximize`."""

    def __init__(
        self, evaluator: ObjectiveEvaluator, max_iter: int, tolerance: float, restarts: int, seed: int, bar: tqdm
    ):
        self.evaluator, self.vector = evaluator, evaluator.vector
        self.max_iter, self.tolerance, self.restarts, self.bar = max_iter, tolerance, restarts, bar
        self.initial, self.progress = self.vector.state(), Progress(seed)
        self.current_run: LBFGSRun | None = None
        self.path, self.resumed, self.interrupted = None, False, False
        self.groups: list[list[np.ndarray]] = []
        self.began = self.written = time.monotonic()

    def run(
        self, initial_states: Sequence[Mapping[str, Tensor] | None], initial_points: Sequence[np.ndarray]
    ) -> FitReport:
        trained = False
        self.groups = [
            [self.vector_of(state) for state in (initial_states or (None,))],
            *(list(np.atleast_2d(group)) for group in initial_points),
        ]
        try:
            if not self.resumed or not self.progress.start:
                self.begin()
            while len(self.progress.finished) < self.restarts:
                trained = True
                self.restart()
            self.progress.done = True
        except KeyboardInterrupt:
            self.interrupted = True
        finally:  # leave the module at a point where the objective is known
            self.bar.close()
            self.vector.clear_gradient()
            self.store_best()
            self.vector.load(self.progress.best or self.initial)
        if trained or self.interrupted:
            self.save()
            self.vector.load(self.progress.best or self.initial)
        report = self.report()
        if self.interrupted or (trained and not report.converged):
            warnings.warn(f"Training {report.message}.", FitWarning, stacklevel=5)
        return report

    def begin(self) -> None:
        """Select the best initial point, or a perturbation if the objective fails at all of them."""
        first = self.ranked_points[0] if self.ranked_points else self.perturbed(self.groups[0][0], 0)
        if first is None:
            raise self.failure(self.groups[0][0])
        self.vector.set(first.x)
        self.progress.start = self.vector.state()

    @cached_property
    def ranked_points(self) -> list[Point]:
        """Best point of each group, in the order of their values."""
        found = [[point for x in group if (point := self.evaluator.evaluate(x)) is not None] for group in self.groups]
        value = lambda point: point.value  # noqa: E731
        return sorted((max(points, key=value) for points in found if points), key=value, reverse=True)

    def vector_of(self, state: Mapping[str, Tensor] | None) -> np.ndarray:
        """Return the vector of an initial state, inside the bounds."""
        if state is not None and not set(state) & set(self.vector.names):
            raise OptionError(
                f"initial_states must name some of the trained parameters {', '.join(self.vector.names)}, got {', '.join(map(str, state)) or 'an empty state'}."
            )
        self.vector.load({**self.initial, **(state or {})})
        return self.vector.get()

    def restart(self) -> None:
        """Run the optimizer once and store the result."""
        index, self.progress.done = len(self.progress.finished), False
        self.bar.reset(total=self.max_iter)
        self.bar.set_description(f"training {index + 1}/{self.restarts}" if self.restarts > 1 else "training")
        first = self.initial_point(index)
        if first is None:
            result = {"objective": math.nan, "iterations": 0, "converged": False, "gradient_norm": math.nan}
            result["message"] = "stopped: the objective could not be evaluated at any initial point of this restart"
        else:
            done = self.progress.current_iterations
            options = {"after": self.on_iteration, "done": done, "size": 1.0}
            self.current_run = LBFGSRun(self.evaluator, first, self.max_iter, self.tolerance, **options)
            result = _result(self.current_run.run())
        self.progress.finished.append(result)
        self.progress.current, self.progress.current_iterations, self.current_run = {}, 0, None
        self.save()

    def initial_point(self, index: int) -> Point | None:
        if self.progress.current:  # a restart that was cut short
            self.vector.load(self.progress.current)
            if (point := self.evaluator.evaluate(self.vector.get())) is not None:
                return point
        self.vector.load(self.progress.start)
        start = self.vector.get()
        if index == 0:
            return self.evaluator.evaluate(start)
        others = self.ranked_points if index < len(self.groups) else []
        return others[index] if index < len(others) else self.perturbed(start, index)

    def perturbed(self, start: np.ndarray, index: int) -> Point | None:
        """Return a random point around `start` at which the objective can be evaluated, or None."""
        generator = np.random.default_rng([self.progress.seed, index])
        for _ in range(MAX_INITIAL_DRAWS):
            x = start + PERTURBATION_STD * generator.standard_normal(len(start))
            if (point := self.evaluator.evaluate(np.clip(x, *self.vector.bounds.T))) is not None:
                return point
        return None

    def on_iteration(self, run: LBFGSRun) -> None:
        self.progress.history.append(run.iterate.value)
        self.bar.set_postfix(objective=f"{run.best.value:.6g}", refresh=False)
        self.bar.update()
        is_old = time.monotonic() - self.written >= CHECKPOINT_SECONDS
        if is_old and run.iterations % CHECKPOINT_ITERATIONS == 0:
            self.save()

    def use_checkpoint(self, path, data: str) -> None:
        """Write progress to `path` from now on, and resume from it if it exists."""
        self.path, self.signature = path, problem_signature(self.initial, data)
        if not path.exists():
            return
        self.progress, self.resumed = read_progress(path, self.signature), True
        self.began -= self.progress.seconds
        self.evaluator.evaluations, self.evaluator.failures = self.progress.evaluations, self.progress.failures
        finished = self.progress.finished
        best = _best(finished) if len(finished) >= self.restarts else None
        if best is not None and not best["converged"] and 0 < best["iterations"] < self.max_iter:
            finished.remove(best)  # it was stopped by a smaller max_iter: resume it
            self.progress.current, self.progress.current_iterations = self.progress.best, best["iterations"]

    def save(self) -> None:
        self.store_best()
        if self.current_run is not None:
            self.vector.set(self.current_run.best.x)
            self.progress.current, self.progress.current_iterations = self.vector.state(), self.current_run.iterations
        self.progress.evaluations, self.progress.failures = self.evaluator.evaluations, self.evaluator.failures
        self.progress.seconds, self.written = time.monotonic() - self.began, time.monotonic()
        if self.path is None or not self.progress.start:
            return
        try:
            write_progress(self.path, self.progress, self.signature)
        except OSError as error:  # a full disk must not end the training
            warnings.warn(f"The checkpoint {self.path} could not be written: {error}", FitWarning, stacklevel=2)

    def store_best(self) -> None:
        best, known = self.evaluator.best, self.progress.best_value
        if best is not None and (known is None or best.value > known):
            self.vector.set(best.x)
            self.progress.best, self.progress.best_value = self.vector.state(), best.value

    def report(self) -> FitReport:
        progress, finished = self.progress, list(self.progress.finished)
        if self.current_run is not None:  # cut short
            finished.append(_result(self.current_run))
        best = _best(finished)
        if self.interrupted:
            gradient_norm = math.nan if self.evaluator.best is None else self.evaluator.slope(self.evaluator.best)
            message = "was interrupted: the parameters are the best so far"
            best = {"converged": False, "message": message, "gradient_norm": gradient_norm}
        return FitReport(
            objective=math.nan if progress.best_value is None else progress.best_value,
            converged=best["converged"],
            messages=best["message"],
            iterations=sum(result["iterations"] for result in finished),
            evaluations=self.evaluator.evaluations,
            failures=self.evaluator.failures,
            gradient_norm=best["gradient_norm"],
            interrupted=self.interrupted,
            resumed=self.resumed,
            seconds=time.monotonic() - self.began,
            restarts=tuple(result["objective"] for result in finished),
            history=tuple(progress.history),
            active_bounds=self.vector.active_bounds(),
        )

    def failure(self, x: np.ndarray) -> FactorizationError:
        self.vector.set(x)
        last = self.evaluator.last_failure
        return FactorizationError(
            f"The objective could not be evaluated at any initial state, nor at {MAX_INITIAL_DRAWS} perturbations of the first. "
            f"The last failure: {str(getattr(last, 'problem', last)).rstrip('.')}. Check the data for duplicates and extreme scales, "
            "change the initial values, or increase the noise.",
            getattr(last, "hyperparameters", None) or self.vector.values(),
        )


def _result(run: LBFGSRun) -> dict:
    return {
        "objective": run.best.value,
        "iterations": run.iterations,
        "converged": run.converged,
        "message": run.messages,
        "gradient_norm": run.gradient_norm,
    }


def _best(results: list[dict]) -> dict | None:
    """Return the restart with the largest objective; one without any only if all have none."""
    key = lambda result: -math.inf if math.isnan(result["objective"]) else result["objective"]  # noqa: E731
    return max(results, key=key, default=None)


def can_train_independently(gp) -> bool:
    """Return whether no parameter is shared between outputs."""
    is_noise_separate = gp.noise_model.kind == "per_output" or not gp.noise_model.is_trained
    is_separate = isinstance(gp.kernel, IndependentKernel) and isinstance(gp.mean, PolynomialMean) and is_noise_separate
    return is_separate and gp.noise_model.is_diagonal and gp.features is None and gp.num_outputs > 1


def train_independently(gp, data: Observations, **options) -> None:
    """Train the outputs of a model one by one, in place; `gp.fit_report_` is then that of the last one trained."""
    for a in range(gp.num_outputs):
        alone = output_gp(gp, a)
        part = data.output(a)
        with prefix_failures(a):
            alone.fit(part.X, part.Y, part.noise, training_rows=None, **options)
        copy_output(gp, alone, a)
        gp.fit_report_ = alone.fit_report_
        if gp.fit_report_.interrupted:
            return


@contextmanager
def prefix_failures(index: int) -> Iterator[None]:
    """Give the hyperparameters of a failed factorization the names that they have in a model of several outputs."""
    try:
        yield
    except FactorizationError as error:
        values = error.hyperparameters or {}
        names = {name: f"noise_{index}" if name == "noise" else f"{index}.{name}" for name in values}
        raise FactorizationError(error.problem, {names[name]: values[name] for name in values}) from error


def output_gp(gp, index: int):
    """Return a model of one output, with copies of its hyperparameters and of the priors."""
    noise = gp.noise_model.variances.detach()
    noise = noise if noise.dim() == 0 else noise[index]
    alone = type(gp)(
        gp.kernel.kernels[index], MEANS[gp.mean.degree + 1], "shared" if gp.noise_model.is_trained else noise
    )
    alone.noise_model.set(noise)
    for name, _, prior, closure, put in list(gp.noise_model.named_priors()):
        alone.noise_model.register_prior(name, output_prior(prior, index), closure, put)
    return alone


@torch.no_grad()
def copy_output(gp, alone, index: int) -> None:
    gp.kernel.kernels[index].load_state_dict(alone.kernel.state_dict())
    if gp.noise_model.is_trained:
        gp.noise_model.log_scale[index] = alone.noise_model.log_scale
    if gp.mean.degree >= 0:
        gp.mean.constant[index] = alone.mean.constant[0]
    if gp.mean.degree == 1:
        gp.mean.slopes[:, index] = alone.mean.slopes[:, 0]
