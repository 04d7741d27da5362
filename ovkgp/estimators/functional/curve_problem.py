"""Learning problems of curves: values at quadrature points, coordinates of kernels, and losses of whole curves."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.functional import FunctionalData
from ovkgp.functional.quadrature import quadrature_weights
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.square import ObservedTasks
from ovkgp.losses import (
    CurveHuber,
    CurveInsensitive,
    CurveLoss,
    EpsilonInsensitive,
    IntegralLoss,
    LogCosh,
    Loss,
    Square,
)


def make_problem(
    inputs: Tensor, factor, data: FunctionalData, lam: float, make_loss, *, quadrature: str, weighting: str
) -> TaskProblem:
    """Make the learning problem of centered curves with input coordinates (n, r) and coordinates ψ of the output kernel.

    `make_loss(measure)` is the loss of curves. Missing values have weight 0; curves at different points are padded.
    """
    if data.is_complete:
        measure, targets = ObservedTasks(_labels(data.num_points), to_tensor(data.weights(quadrature))), data.values
        tasks = factor_rows(factor, as_columns(data.grid))
    elif not data.is_ragged:
        weights = np.stack([_spread(row, data, quadrature) for row in data.values])
        measure, targets = ObservedTasks(_labels(data.num_points), to_tensor(weights)), data.values
        tasks = factor_rows(factor, as_columns(data.grid))
    else:
        curves, width = list(data.curves()), int(data.counts.max())
        targets, weights, tasks = np.full((len(data), width), np.nan), np.zeros((len(data), width)), None
        for i, (points, values) in enumerate(curves):
            rows = factor_rows(factor, points)
            tasks = np.zeros((len(data), width, rows.shape[1])) if tasks is None else tasks
            tasks[i, : len(rows)], targets[i, : len(rows)] = rows, values[:, 0]
            weights[i, : len(rows)] = quadrature_weights(points, data.domain, quadrature)
        measure = ObservedTasks(_labels(width).expand(len(data), -1), to_tensor(weights))
    if weighting == "points" and not data.is_complete:
        counts = torch.from_numpy(data.counts).double()
        measure = ObservedTasks(measure.nodes, measure.weights * (counts / counts.mean()).unsqueeze(-1))
    problem = TaskProblem(inputs, to_tensor(tasks), to_tensor(targets), make_loss(measure), lam)
    problem.loss.check_targets(problem.targets)
    return problem


def _labels(count: int) -> Tensor:
    """Return nodes of a measure, which losses of curves use as labels only."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def _spread(row: np.ndarray, data: FunctionalData, quadrature: str) -> np.ndarray:
    """Return the quadrature weights of the observed points of one curve on a common grid, 0 where missing."""
    observed = ~np.isnan(row)
    weights = np.zeros(len(row))
    weights[observed] = quadrature_weights(data.grid[observed], data.domain, quadrature)
    return weights


def as_columns(points: np.ndarray) -> np.ndarray:
    """Return points (m,) or (m, b) as (m, b)."""
    return points[:, None] if points.ndim == 1 else points


def is_robust(loss: str | Loss) -> bool:
    """Return whether the mean curve should be robust: unless the loss grows as the square, as the ε-insensitive one does."""
    return not (loss in ("square", "insensitive") or type(loss) in (Square, EpsilonInsensitive))


def make_curve_loss(name: str, p: float, parameter: float, measure) -> CurveLoss:
    """Make the loss "huber" (κ), "insensitive" (ε) or "log_cosh" (ν) of curves in L^p of a measure."""
    if name == "huber":
        return CurveHuber(parameter, p, measure)
    if name == "insensitive":
        return CurveInsensitive(parameter, p, measure)
    return IntegralLoss(LogCosh(parameter), measure)


def factor_rows(factor, points: np.ndarray) -> np.ndarray:
    """Return the coordinates ψ of a factor at points (k, b), (k, q)."""
    with torch.no_grad():
        return factor(to_tensor(points)).numpy()


def to_tensor(values: np.ndarray) -> Tensor:
    """Return an array as a float64 tensor."""
    return torch.tensor(np.asarray(values), dtype=torch.float64)  # a copy: frames are read-only
