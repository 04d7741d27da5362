"""Losses by name or as objects, their parameters from residuals, and the constant that fits each output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ovkgp import losses
from ovkgp.estimators.common.validation import WeightedData
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import CurveLoss, IntegralLoss, Loss

LOSS_NAMES = ("square", "huber", "epsilon_insensitive", "log_cosh", "pinball", "smoothed_pinball")
QUANTILE_LOSSES = (losses.Pinball, losses.SmoothedPinball, losses.PinballEnvelope)
MODE_ATTRIBUTES = ("loss_", "gap_", "sparsity_", "fit_report_")
"""Fitted attributes of a fit with another loss than the square loss, for model files."""
NORMAL_MAD = 1.482602218505602  # standard deviation of a normal distribution over its median absolute deviation
HUBER_TUNING, PINBALL_WIDTH = 1.345, 0.1
"""κ of "huber" (95 % efficient for Gaussian errors) and of "smoothed_pinball", in standard deviations of the residuals."""
MAX_SCALE_ROUNDS, SCALE_TOLERANCE, SCALE_GAP = 8, 0.05, 1e-3
"""Updates of the parameter of a loss by name: their number, the relative change at the end, and the duality gap of each fit."""


def is_square(loss) -> bool:
    """Whether a loss is the square loss, by name or as an object."""
    return type(loss) is losses.Square or (isinstance(loss, str) and loss == "square")


def make_loss(loss: str | Loss | CurveLoss, std: float = 1.0) -> Loss | CurveLoss:
    """Make a loss by name, with a parameter in units of `std`, the standard deviation of residuals; return objects unchanged."""
    if not isinstance(loss, str):
        return loss
    makers = {
        "square": losses.Square,
        "huber": lambda: losses.Huber(HUBER_TUNING * std),
        "epsilon_insensitive": lambda: losses.EpsilonInsensitive(std / 2),
        "log_cosh": lambda: losses.LogCosh(1 / std),
        "pinball": losses.Pinball,
        "smoothed_pinball": lambda: losses.SmoothedPinball(PINBALL_WIDTH * std),
    }
    return makers[loss]()


def tune_loss(loss: str | Loss | CurveLoss, problems: list[TaskProblem]) -> list[TaskProblem]:
    """Return problems with one parameter of a loss by name, from the residuals of the square loss, or for Huber of its own fit."""
    if not isinstance(loss, str) or loss == "pinball":
        return problems

    def with_loss(one: Loss) -> list[TaskProblem]:
        return [replace(problem, loss=IntegralLoss(one, problem.loss.measure)) for problem in problems]

    fits, std = [solve_square(problem) for problem in with_loss(losses.Square())], None
    for _ in range(MAX_SCALE_ROUNDS):
        before, std = std, _residual_std(problems, fits)
        problems = with_loss(make_loss(loss, std))
        # log-cosh has slopes up to 1 for any ν, so that its own residuals may shrink without end
        if loss != "huber" or (before and abs(np.log(std / before)) < SCALE_TOLERANCE):
            break
        fits = [solve_primal(problem, tolerance=SCALE_GAP) for problem in problems]
    return problems


def _residual_std(problems: list[TaskProblem], fits: list[TaskSolution]) -> float:
    """Compute a robust standard deviation of residuals, by the weighted median of their absolute values; 1 if that is 0."""
    sizes, weights = [], []
    for problem, fit in zip(problems, fits, strict=True):
        counted = problem.entry_weights > 0
        sizes.append((problem.targets - problem.values(fit.weights)).abs()[counted])
        weights.append(problem.entry_weights[counted])
    std = NORMAL_MAD * float(weighted_quantiles(torch.cat(sizes).numpy(), torch.cat(weights).numpy(), 0.5))
    return std if std > 0 else 1.0


def weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels) -> np.ndarray:
    """Return minimizers of the weighted pinball loss at levels (q,), or at one: the first value whose cumulative weight reaches it."""
    order = np.argsort(values, kind="stable")
    fraction = np.cumsum(weights[order]) / weights.sum()
    return values[order][np.minimum(np.searchsorted(fraction, levels - 1e-12), len(values) - 1)]


def fit_constants(loss: str | Loss | CurveLoss, data: WeightedData, levels: np.ndarray) -> np.ndarray:
    """Return the constant that fits each output: its mean, its quantile at a level, or its median."""
    loss = make_loss(loss)
    if isinstance(loss, losses.EpsilonInsensitive | losses.CurveInsensitive):
        return data.mean()
    levels = levels if type(loss) in QUANTILE_LOSSES else np.full(len(levels), 0.5)
    weights = np.isfinite(data.Y) / (1.0 if data.variances is None else data.variances)
    columns = zip(np.nan_to_num(data.Y).T, weights.T, levels, strict=True)
    return np.array([weighted_quantiles(*column) for column in columns])
