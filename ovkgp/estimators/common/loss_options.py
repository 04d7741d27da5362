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


def tune_loss(loss: str | Loss | CurveLoss, problem: TaskProblem) -> TaskProblem:
    """Return the problem with the parameter of a loss by name from the residuals of the square loss, or of its own fit if robust."""
    if not isinstance(loss, str) or loss == "pinball":
        return problem

    def with_loss(one: Loss) -> TaskProblem:
        return replace(problem, loss=IntegralLoss(one, problem.loss.measure))

    fit, std = solve_square(with_loss(losses.Square())), None
    for _ in range(MAX_SCALE_ROUNDS):
        before, std = std, _residual_std(problem, fit)
        problem = with_loss(make_loss(loss, std))
        if loss not in ("huber", "log_cosh") or (before and abs(np.log(std / before)) < SCALE_TOLERANCE):
            break
        fit = solve_primal(problem, tolerance=SCALE_GAP)
    return problem


def _residual_std(problem: TaskProblem, solution: TaskSolution) -> float:
    """Compute a robust standard deviation of residuals, by the weighted median of their absolute values; 1 if that is 0."""
    counted = problem.entry_weights > 0
    size = torch.where(counted, problem.targets - problem.values(solution.weights), 0.0)[counted].abs()
    std = NORMAL_MAD * weighted_quantile(size.numpy(), problem.entry_weights[counted].numpy(), 0.5)
    return std if std > 0 else 1.0


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """Return the smallest value whose values up to it have at least the fraction `level` of the weight."""
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(mass, level * mass[-1] * (1 - 1e-12))])


def fit_constants(loss: str | Loss | CurveLoss, data: WeightedData, levels: np.ndarray) -> np.ndarray:
    """Return the constant that fits each output: its mean, its quantile at a level, or its median."""
    loss = make_loss(loss)
    if isinstance(loss, losses.EpsilonInsensitive | losses.CurveInsensitive):
        return data.mean()
    levels = levels if type(loss) in QUANTILE_LOSSES else np.full(len(levels), 0.5)
    weights = np.isfinite(data.Y) / (1.0 if data.variances is None else data.variances)
    columns = zip(np.nan_to_num(data.Y).T, weights.T, levels, strict=True)
    return np.array([weighted_quantile(*column) for column in columns])
