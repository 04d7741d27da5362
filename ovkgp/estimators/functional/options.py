"""Options that the functional estimators share: dictionaries by name, output matrices, and losses of curves."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp import functional
from ovkgp.checks import as_numbers
from ovkgp.estimators.common.options import Rule, integer, one_of
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.functional.basis_ridge import factor_rows, to_tensor
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError
from ovkgp.functional import (
    BSplines,
    Combination,
    Dictionary,
    Fourier,
    FunctionalData,
    PrincipalComponents,
    eigenfunctions,
)
from ovkgp.functional.quadrature import quadrature_weights
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.square import ObservedTasks
from ovkgp.losses import (
    CurveHuber,
    CurveInsensitive,
    CurveLoss,
    EpsilonInsensitive,
    Huber,
    IntegralLoss,
    LogCosh,
    Loss,
    Pinball,
    SmoothedPinball,
    Square,
)

MIN_FUNCTIONS, MAX_FUNCTIONS = 4, 20  # range of the default number of functions of a dictionary
SPLINE_ORDER = 4
DICTIONARIES = ("bsplines", "fourier", "pca")
DICTIONARY_CONSTRAINTS = {
    "dictionary": [one_of(*DICTIONARIES), Dictionary],
    "num_functions": [integer(), None],
    "output_matrix": ["array-like", None],
}
LOSS = [one_of("square"), Rule("a Loss", lambda value: isinstance(value, Loss))]

for kind in (LogCosh, Huber, EpsilonInsensitive, Pinball, SmoothedPinball, Square):
    storable_record(kind)
for found in (*vars(functional).values(), *vars(eigenfunctions).values()):
    if isinstance(found, type) and found.__module__.startswith("ovkgp.functional.") and found is not Dictionary:
        storable_record(found)  # dictionaries and their parts


def make_dictionary(option, num_functions: int | None, data: FunctionalData) -> Dictionary:
    """Make a dictionary by name on the domain of the curves, or return the given one."""
    if isinstance(option, Dictionary):
        return option
    count = num_functions or int(np.clip(np.median(data.counts) // 3, MIN_FUNCTIONS, MAX_FUNCTIONS))
    if option == "pca":
        return (
            PrincipalComponents(data, min(count, len(data) - 1, data.num_points))
            if len(data) > 1
            else BSplines(4, data.domain)
        )
    if data.num_dims > 1:
        raise InputError(
            f"dictionary={option!r} requires curves on an interval, got {data.num_dims} dimensions. Pass a TensorProduct."
        )
    if option == "fourier":
        return Fourier((count + 2) // 2, data.domain)
    return BSplines(count, data.domain, order=min(SPLINE_ORDER, count))


def check_output_matrix(matrix, size: int) -> np.ndarray:
    """Return B (d, d) from a matrix, its diagonal (d,) or None for the identity."""
    if matrix is None:
        return np.eye(size)
    B = as_numbers(as_array(matrix), "output_matrix")
    B = np.diag(B) if B.ndim == 1 else B
    if B.shape != (size, size):
        raise InputError(
            f"output_matrix has shape {np.shape(matrix)}, expected ({size}, {size}) or ({size},), one row per function."
        )
    return B


def truncate_dictionary(
    dictionary: Dictionary, matrix: np.ndarray, threshold: float, gram: np.ndarray
) -> tuple[Dictionary, np.ndarray]:
    """Keep the eigenvectors W of the Gram matrix above a threshold: functions ΦW and the output matrix WᵀBW (BO-80)."""
    values, vectors = np.linalg.eigh(gram)
    keep = values > threshold
    if not keep.any():
        raise InputError(
            f"rank_threshold must be below the largest eigenvalue {values[-1]:.3g} of the Gram matrix, got {threshold:g}."
        )
    W = vectors[:, keep][:, ::-1]
    return Combination(dictionary, W), W.T @ matrix @ W


def make_problem(
    inputs: Tensor, factor, data: FunctionalData, lam: float, make_loss, *, quadrature: str, weighting: str
) -> TaskProblem:
    """Make the learning problem of centered curves with input coordinates (n, r) and coordinates ψ of the output kernel.

    `make_loss(measure)` is the loss of curves. Missing values have weight 0; curves at different points are padded.
    """
    if data.is_complete:
        measure, targets = _Measure(_labels(data.num_points), to_tensor(data.weights(quadrature))), data.values
        tasks = factor_rows(factor, _columns(data.grid))
    elif not data.is_ragged:
        weights = np.stack([_spread(row, data, quadrature) for row in data.values])
        measure, targets = _Measure(_labels(data.num_points), to_tensor(weights)), data.values
        tasks = factor_rows(factor, _columns(data.grid))
    else:
        curves, width = list(data.curves()), int(data.counts.max())
        targets, weights, tasks = np.full((len(data), width), np.nan), np.zeros((len(data), width)), None
        for i, (points, values) in enumerate(curves):
            rows = factor_rows(factor, points)
            tasks = np.zeros((len(data), width, rows.shape[1])) if tasks is None else tasks
            tasks[i, : len(rows)], targets[i, : len(rows)] = rows, values[:, 0]
            weights[i, : len(rows)] = quadrature_weights(points, data.domain, quadrature)
        measure = _Measure(_labels(width).expand(len(data), -1), to_tensor(weights))
    if weighting == "points" and not data.is_complete:
        counts = torch.from_numpy(data.counts).double()
        measure = ObservedTasks(measure.nodes, measure.weights * (counts / counts.mean()).unsqueeze(-1))
    return TaskProblem(inputs, to_tensor(tasks), to_tensor(targets), make_loss(measure), lam)


_Measure = ObservedTasks


def _labels(count: int) -> Tensor:
    """Return nodes of a measure, which losses of curves use as labels only."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def _spread(row: np.ndarray, data: FunctionalData, quadrature: str) -> np.ndarray:
    """Return the quadrature weights of the observed points of one curve on a common grid, 0 where missing."""
    observed = ~np.isnan(row)
    weights = np.zeros(len(row))
    weights[observed] = quadrature_weights(data.grid[observed], data.domain, quadrature)
    return weights


def _columns(points: np.ndarray) -> np.ndarray:
    return points[:, None] if points.ndim == 1 else points


def make_curve_loss(name: str, p: float, parameter: float, measure) -> CurveLoss:
    """Make the loss "huber" (κ), "insensitive" (ε) or "log_cosh" (ν) of curves in L^p of a measure."""
    if name == "huber":
        return CurveHuber(parameter, p, measure)
    if name == "insensitive":
        return CurveInsensitive(parameter, p, measure)
    return IntegralLoss(LogCosh(parameter), measure)
