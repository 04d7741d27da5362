"""Outputs that share nothing are trained one by one: p small climbs, and not one in all their parameters together."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import FactorizationError, FitWarning, OptionError
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.mean_noise import MEANS, PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import Bounds, ParameterVector
from ovkgp.inference.training.checkpoints import (
    Progress,
    check_writable,
    problem_signature,
    read_progress,
    write_progress,
)
from ovkgp.inference.training.lbfgs import LBFGSRun, ObjectiveEvaluator, Point
from ovkgp.inference.training.prior_sites import output_prior
from ovkgp.kernels import IndependentKernel

PERTURBATION = 0.7
"""The standard deviation of a restart's start, in the optimiser's variables (mostly logarithms)."""
TRIES = 10
"""How many perturbed points a restart tries before it gives up."""
CHECKPOINT_ITERATIONS, CHECKPOINT_SECONDS = 5, 1.0
"""A checkpoint is written at every so many iterations, if the last one is this old."""


def maximise(
    module: torch.nn.Module,
    objective: Callable[[], Tensor],
    *,
    bounds: Mapping[int | str, Bounds] | None = None,
    sizes: Mapping[str, float | Tensor] | None = None,
    max_iter: int = 200,
    tolerance: float = 1e-6,
    restarts: int = 1,
    starts: Sequence[Mapping[str, Tensor] | None] = (),
    random_state=None,
    verbose: int = 0,
    checkpoint: str | os.PathLike | None = None,
    signature: str = "",
    scale: float = 1.0,
) -> FitReport:
    """Train `module` in place: the parameters that require a gradient end where `objective` was largest.

    Args:
        module: holds the parameters; GPyTorch constraints are heeded.
        objective: no argument, a differentiable scalar; computed from the parameters anew at every call.
        bounds, sizes: of the parameters, see `ParameterVector`.
        max_iter: the most iterations of each restart.
        tolerance: on the change of objective / scale over five iterations, and on its gradient.
        restarts: the first begins at the best of `starts`, the others at random perturbations of that.
        starts: raw parameters by name (a state dict, or part of one); None is the present state, and so is no start.
        random_state: as in scikit-learn; of the perturbations.
        verbose: 1 shows a progress bar.
        checkpoint: a file to write to, and to go on from where it is there already.
        signature: a fingerprint of the data; a checkpoint with another one is refused.
        scale: the number of observations, so that `tolerance` is per observation.

    Cost: an evaluation or two of the objective and its gradient an iteration.

    Raises:
        FactorizationError: the objective could not be evaluated at any start.
        InputError: the checkpoint cannot be written, is damaged, or belongs to something else.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.training.maximize import maximise
        >>> kernel = RBFKernel().double()
        >>> report = maximise(kernel, lambda: -(kernel.lengthscale.log() - 2).square().sum())
        >>> report.converged, round(kernel.lengthscale.log().item(), 4)
        (True, 2.0)
    """
    if not (tolerance > 0 and scale > 0):
        raise OptionError(f"tolerance and scale must be positive, got {tolerance} and {scale}.")
    vector = ParameterVector(module, bounds, sizes)
    if len(vector) == 0:
        with torch.no_grad():
            return FitReport(float(objective()), True, "there was nothing to train", evaluations=1, gradient_norm=0.0)
    training = _Training(
        ObjectiveEvaluator(vector, objective, scale),
        check_integer("max_iter", max_iter),
        tolerance,
        check_integer("restarts", restarts),
        as_seed(random_state),
        tqdm(disable=not verbose, unit="iteration"),
    )
    if checkpoint is not None:
        training.keep_at(check_writable(checkpoint), signature)
    return training.run(starts)


class _Training:
    """The state of one call of `maximise`."""

    def __init__(
        self, landscape: ObjectiveEvaluator, max_iter: int, tolerance: float, restarts: int, seed: int, bar: tqdm
    ):
        self.landscape, self.vector = landscape, landscape.vector
        self.max_iter, self.tolerance, self.restarts, self.bar = max_iter, tolerance, restarts, bar
        self.initial, self.progress = self.vector.state(), Progress(seed)
        self.climb: LBFGSRun | None = None
        self.path, self.resumed, self.interrupted = None, False, False
        self.began = self.written = time.monotonic()

    # --- the course of a training ---------------------------------------------------------------------------------

    def run(self, starts: Sequence[Mapping[str, Tensor] | None]) -> FitReport:
        trained = False
        try:
            if not self.resumed or not self.progress.start:
                self.begin(starts)
            while len(self.progress.finished) < self.restarts:
                trained = True
                self.restart()
            self.progress.done = True
        except KeyboardInterrupt:
            self.interrupted = True
        finally:  # whatever happens, the module is left at a point where the objective was known
            self.bar.close()
            self.vector.clear_gradient()
            self.update_best()
            self.vector.load(self.progress.best or self.initial)
        if trained or self.interrupted:
            self.save()
            self.vector.load(self.progress.best or self.initial)
        report = self.report()
        if self.interrupted or (trained and not report.converged):
            warnings.warn(f"training {report.message}.", FitWarning, stacklevel=4)
        return report

    def begin(self, starts: Sequence[Mapping[str, Tensor] | None]) -> None:
        """Choose the best of the starts, or a perturbation where the objective fails at all of them."""
        candidates = [self.place(start) for start in (starts or (None,))]
        points = [point for x in candidates if (point := self.landscape.look(x)) is not None]
        first = max(points, key=lambda point: point.value) if points else self.perturbed(candidates[0], 0)
        if first is None:
            raise self.failure(candidates[0])
        self.vector.set(first.x)
        self.progress.start = self.vector.state()

    def place(self, start: Mapping[str, Tensor] | None) -> np.ndarray:
        """The vector of a start, inside the boxes."""
        if start is not None and not set(start) & set(self.vector.names):
            raise OptionError(
                f"a start must name some of the trained parameters {', '.join(self.vector.names)}; got "
                f"{', '.join(map(str, start)) or 'an empty one'}."
            )
        self.vector.load({**self.initial, **(start or {})})
        return self.vector.get()

    def restart(self) -> None:
        """Climb once, and note how it went."""
        index, self.progress.done = len(self.progress.finished), False
        self.bar.reset(total=self.max_iter)
        self.bar.set_description(f"training {index + 1}/{self.restarts}" if self.restarts > 1 else "training")
        first = self.first_point(index)
        if first is None:
            result = {"objective": math.nan, "iterations": 0, "converged": False, "gradient_norm": math.nan}
            result["message"] = "stopped: the objective could not be evaluated at any start of this restart"
        else:
            done = self.progress.current_iterations
            self.climb = LBFGSRun(self.landscape, first, self.max_iter, self.tolerance, self.after_iteration, done)
            result = _result(self.climb.run())
        self.progress.finished.append(result)
        self.progress.current, self.progress.current_iterations, self.climb = {}, 0, None
        self.save()

    def first_point(self, index: int) -> Point | None:
        if self.progress.current:  # a restart that was cut short
            self.vector.load(self.progress.current)
            if (point := self.landscape.look(self.vector.get())) is not None:
                return point
        self.vector.load(self.progress.start)
        start = self.vector.get()
        return self.landscape.look(start) if index == 0 else self.perturbed(start, index)

    def perturbed(self, start: np.ndarray, index: int) -> Point | None:
        """A random point around `start` at which the objective can be evaluated."""
        generator = np.random.default_rng([self.progress.seed, index])
        for _ in range(TRIES):
            x = start + PERTURBATION * generator.standard_normal(len(start))
            if (point := self.landscape.look(np.clip(x, *self.vector.bounds.T))) is not None:
                return point
        return None

    def after_iteration(self, climb: LBFGSRun) -> None:
        self.climb = climb
        self.progress.history.append(climb.iterate.value)
        self.bar.set_postfix(objective=f"{climb.best.value:.6g}", refresh=False)
        self.bar.update()
        is_old = time.monotonic() - self.written >= CHECKPOINT_SECONDS
        if is_old and climb.iterations % CHECKPOINT_ITERATIONS == 0:
            self.save()

    # --- the checkpoint -------------------------------------------------------------------------------------------

    def keep_at(self, path, data: str) -> None:
        """Write progress to `path` from now on; go on from it where there is some."""
        self.path, self.signature = path, problem_signature(self.initial, data)
        if not path.exists():
            return
        self.progress, self.resumed = read_progress(path, self.signature), True
        self.began -= self.progress.seconds
        self.landscape.evaluations, self.landscape.failures = self.progress.evaluations, self.progress.failures
        finished = self.progress.finished
        if len(finished) >= self.restarts and (best := _best(finished)) is not None and self._is_short(best):
            finished.remove(best)  # it was cut short by a smaller max_iter: go on with it
            self.progress.current, self.progress.current_iterations = self.progress.best, best["iterations"]

    def _is_short(self, result: Mapping) -> bool:
        return not result["converged"] and 0 < result["iterations"] < self.max_iter

    def save(self) -> None:
        self.update_best()
        if self.climb is not None:
            self.vector.set(self.climb.best.x)
            self.progress.current, self.progress.current_iterations = self.vector.state(), self.climb.iterations
        self.progress.evaluations, self.progress.failures = self.landscape.evaluations, self.landscape.failures
        self.progress.seconds, self.written = time.monotonic() - self.began, time.monotonic()
        if self.path is None or not self.progress.start:
            return
        try:
            write_progress(self.path, self.progress, self.signature)
        except OSError as error:  # a full disk must not cost the training
            warnings.warn(f"the checkpoint {self.path} could not be written: {error}", FitWarning, stacklevel=2)

    def update_best(self) -> None:
        best, known = self.landscape.best, self.progress.best_value
        if best is not None and (known is None or best.value > known):
            self.vector.set(best.x)
            self.progress.best, self.progress.best_value = self.vector.state(), best.value

    # --- what is said about it ------------------------------------------------------------------------------------

    def report(self) -> FitReport:
        progress, finished = self.progress, list(self.progress.finished)
        if self.climb is not None:  # cut short
            finished.append(_result(self.climb))
        best = _best(finished)
        if self.interrupted:
            gradient_norm = math.nan if self.landscape.best is None else self.landscape.slope(self.landscape.best)
            words = "was interrupted: the parameters are the best so far"
            best = {"converged": False, "message": words, "gradient_norm": gradient_norm}
        return FitReport(
            objective=math.nan if progress.best_value is None else progress.best_value,
            converged=best["converged"],
            message=best["message"],
            iterations=sum(result["iterations"] for result in finished),
            evaluations=self.landscape.evaluations,
            failures=self.landscape.failures,
            gradient_norm=best["gradient_norm"],
            interrupted=self.interrupted,
            resumed=self.resumed,
            seconds=time.monotonic() - self.began,
            restarts=tuple(result["objective"] for result in finished),
            history=tuple(progress.history),
        )

    def failure(self, x: np.ndarray) -> FactorizationError:
        self.vector.set(x)
        places = ", ".join(f"{name} = {_short(value)}" for name, value in self.vector.values().items())
        return FactorizationError(
            f"the objective could not be evaluated at any start, nor at {TRIES} perturbations of the first, where "
            f"{places}. The last failure: {self.landscape.last_failure}. Check the data for duplicates and extreme "
            "scales, start elsewhere, or keep the noise larger."
        )


def _result(climb: LBFGSRun) -> dict:
    return {
        "objective": climb.best.value,
        "iterations": climb.iterations,
        "converged": climb.converged,
        "message": climb.message,
        "gradient_norm": climb.gradient_norm,
    }


def _best(results: list[dict]) -> dict | None:
    """The restart with the largest objective; one without any only where all are."""
    key = lambda result: -math.inf if math.isnan(result["objective"]) else result["objective"]  # noqa: E731
    return max(results, key=key, default=None)


def _short(value: Tensor) -> str:
    numbers = [f"{number:.4g}" for number in value.reshape(-1)[:8].tolist()]
    more = ", …" if value.numel() > 8 else ""
    return numbers[0] if value.dim() == 0 else f"[{', '.join(numbers)}{more}]"


def can_train_independently(gp) -> bool:
    """Whether no parameter is shared between outputs."""
    own_noise = gp.noise_model.kind == "per_output" or not gp.noise_model.is_trained
    is_plain = isinstance(gp.kernel, IndependentKernel) and isinstance(gp.mean, PolynomialMean) and own_noise
    return is_plain and gp.noise_model.is_diagonal and gp.features is None and gp.num_outputs > 1


def train_independently(gp, data: Observations, **options) -> None:
    """Train the outputs of a model one by one, in place; `gp.fit_report_` is then that of the last one trained."""
    for a in range(gp.num_outputs):
        alone = _output_gp(gp, a)
        part = data.output(a)
        alone.fit(part.X, part.Y, part.noise, **options)
        _copy_back(gp, alone, a)
        gp.fit_report_ = alone.fit_report_
        if gp.fit_report_.interrupted:
            return


def _output_gp(gp, index: int):
    """One output's model, with copies of its hyperparameters and the priors of the whole."""
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
def _copy_back(gp, alone, index: int) -> None:
    gp.kernel.kernels[index].load_state_dict(alone.kernel.state_dict())
    if gp.noise_model.is_trained:
        gp.noise_model.log_scale[index] = alone.noise_model.log_scale
    if gp.mean.degree >= 0:
        gp.mean.constant[index] = alone.mean.constant[0]
    if gp.mean.degree == 1:
        gp.mean.slopes[:, index] = alone.mean.slopes[:, 0]
