"""How a quantile model is solved, and how sure its curves are.

In memory by alternating directions and Newton steps, with a penalty on crossings by the solver of that, and with more rows than memory by
L-BFGS a few rows at a time; each stops on the duality gap. The same roads fit replicates, the rows with random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.bayesian_bootstrap import replicate_fits, replicate_weights, require_replicates
from ovkgp.estimators.quantile_model import QuantileModel, TaskSide, kept_rows, quantile_loss
from ovkgp.estimators.quantile_prior import GaussianQuantiles
from ovkgp.exceptions import OptionError
from ovkgp.features.noise import as_seed
from ovkgp.inference.task_learning.noncrossing import METHODS, solve_noncrossing
from ovkgp.inference.task_learning.primal import solve_primal
from ovkgp.inference.task_learning.problem import TaskProblem, TaskSolution
from ovkgp.inference.task_learning.sandwich import Sandwich, sandwich
from ovkgp.inference.task_learning.streamed_lbfgs import solve_streamed
from ovkgp.inference.task_learning.streamed_run import StreamedSolution

OFFSET = 1
"""The stream of random numbers of a seed that errors of the prior mean are drawn from: no weights use it."""


def solve_quantiles(
    options, model: QuantileModel, side: TaskSide, lam: float, start: Tensor | None = None, verbose: int = 0
) -> TaskSolution | StreamedSolution:
    """The minimiser of J at λ.

    Args:
        options: for `noncrossing`, `lam_nc`, `tol` and `max_iter`.
        start: W (r, q) to begin with.

    Cost: that of the solver.
    """
    how = {"start": start, "tolerance": options.tol, "max_iter": options.max_iter, "verbose": verbose}
    if model.Phi is None:
        if options.noncrossing in METHODS:
            raise OptionError(
                f"noncrossing={options.noncrossing!r} needs all rows in memory, and {len(model.rows)} rows of features are too many: use "
                '"rearrange", or fewer num_frequencies.'
            )
        return solve_streamed(model.streamed(side, lam), **how)
    if options.noncrossing in METHODS:
        return solve_noncrossing(
            model.problem(side, lam), model.penalty(side, options.lam_nc), method=options.noncrossing, **how
        )
    return solve_primal(model.problem(side, lam), **how)


def fitted_model(estimator) -> tuple[QuantileModel, TaskSide]:
    """The model and the task side of a fitted `InfiniteQuantileRegressor`, made again from what it keeps. O(n r) time and memory."""
    h, rows = estimator.function_, estimator._data
    X = torch.from_numpy(rows.X)
    Phi = h.inputs(X) if estimator.num_frequencies is None else kept_rows(estimator, h.inputs, X)
    model = QuantileModel(rows, h.inputs, Phi, None, h.offset, quantile_loss(estimator))
    return model, TaskSide(estimator.measure_, h.tasks)


def fitted_parts(estimator) -> Callable[[], Iterable[TaskProblem]]:
    """J of a fitted `InfiniteQuantileRegressor`, in one piece or a few rows at a time."""
    model, side = fitted_model(estimator)
    if model.Phi is None:
        return model.streamed(side, estimator.lam_).chunks
    problem = model.problem(side, estimator.lam_)
    return lambda: [problem]


def quantile_sandwich(estimator) -> Sandwich:
    """Cov[W] of a fitted `InfiniteQuantileRegressor`, in the units of the model. O(n r² + r³) time."""
    h = estimator.function_
    return sandwich(fitted_parts(estimator), h.weights, h.offset(estimator.measure_.nodes), estimator._data.count)


def sandwich_std(estimator, X: Tensor, levels: Tensor) -> Tensor:
    """The standard deviation (m, q) of the curves at scaled X (m, d), in the units of the model; far from the data, that of the prior."""
    h, cov = estimator.function_, estimator.sandwich_
    variance = cov.variance(h.inputs(X), h.tasks(levels[:, None])) + cov.temperature * h.left_out(X, levels)
    return (variance + offset_variance(estimator, levels)).sqrt()


def offset_variance(estimator, levels: Tensor) -> Tensor:
    """How unsure the prior mean b itself is, (q,), in the units of the model: it too was learned from the rows."""
    offset = estimator.function_.offset
    if isinstance(offset, GaussianQuantiles):
        return offset.variance(levels, estimator._data.count)
    return torch.zeros_like(levels)


def offset_draws(estimator, levels: Tensor, num_samples: int, random_state) -> Tensor:
    """Draws (num_samples, q) of the error of b, in the units of the model, with the variance above."""
    offset = estimator.function_.offset
    if not isinstance(offset, GaussianQuantiles):
        return levels.new_zeros(num_samples, len(levels))
    rng = np.random.default_rng(np.random.SeedSequence(as_seed(random_state), spawn_key=(OFFSET,)))
    return offset.errors(levels, estimator._data.count, torch.from_numpy(rng.standard_normal((num_samples, 2))))


def quantile_replicates(estimator, seed: int) -> np.ndarray:
    """W (B, r, q) of `num_replicates` fits to the same rows with random weights (the Bayesian bootstrap). B solutions."""
    model, side = fitted_model(estimator)

    def fit(weights: np.ndarray) -> np.ndarray:
        weighed = replace(model, rows=replace(model.rows, weights=weights))
        found = solve_quantiles(estimator, weighed, side, estimator.lam_, estimator.function_.weights)
        if found.report.interrupted:
            raise KeyboardInterrupt  # ends all replicates, and not this one alone
        return found.weights.numpy()

    weights = replicate_weights(model.rows.weights, require_replicates(estimator), seed)
    return np.stack(replicate_fits(fit, weights, estimator.verbose))
