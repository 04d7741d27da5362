"""Initial points of a training: a grid of lengthscales, noises and slopes.

Oscillations of any frequency, lines and noise are modes of one density; a search from a lengthscale near its own finds each.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.initialization import (
    RELATIVE_DEVIATION,
    RELATIVE_NOISE,
    Initialization,
    latent_values,
    load_raw_state,
    outputs_covariance,
    raw_state,
)
from ovkgp.inference.training.kernel_parameters import KernelParameter, Units, kernel_parameters
from ovkgp.inference.training.roles import ROLES

NUM_LENGTHSCALES, NUM_TASK_LENGTHSCALES = 6, 3
MAX_RELATIVE_LENGTHSCALE = 3.0  # largest lengthscale, in units of √d
NOISES = (0.3, 0.02)  # noise variances, relative to the variance of the output
TASK_LENGTHSCALES = (1, 3, 5)  # indices of the lengthscales of the domain of curves
CURVE_NOISES = ((0.02, 0.3), (0.3, 0.02), (0.02, 0.02))  # variances of white noise and of deviations of single curves
SLOPES = (0.3, 100.0)  # variances of a linear term at a typical input, likewise


def make_lengthscale_grid(X: np.ndarray, num_lengthscales: int = NUM_LENGTHSCALES) -> np.ndarray:
    """Return lengthscales (k,) for standardized inputs X (n, d), with a constant ratio.

    From the median distance of a distinct row to its nearest neighbor, below which a function is noise on these rows,
    to 3√d. Complexity: O(n log n) for few inputs, at most O(n² d).
    """
    largest = MAX_RELATIVE_LENGTHSCALE * math.sqrt(X.shape[1])
    distinct = np.unique(X, axis=0)
    if len(distinct) < 2:
        return np.array([largest])
    distances = cKDTree(distinct).query(distinct, k=2)[0][:, 1]
    return np.geomspace(min(np.median(distances), largest / 2), largest, num_lengthscales)


class InitialGrid(NamedTuple):
    """Initial points (G, k) in the variables of a `ParameterVector`, and the index (G,) of their lengthscale."""

    points: np.ndarray
    lengthscale: np.ndarray


@torch.no_grad()
def grid_around(gp, data: Observations, vector: ParameterVector, initialization: Initialization) -> np.ndarray:
    """Return the points (L, S, k) of `make_initial_grid` around the initial values from the data, S for each of L lengthscales.

    The model is not changed.
    """
    current = raw_state(gp)
    load_raw_state(gp, initialization.values[0])
    grid = make_initial_grid(gp, data, vector)
    load_raw_state(gp, current)
    return grid.points.reshape(grid.lengthscale.max() + 1, -1, grid.points.shape[-1])


@torch.no_grad()
def make_initial_grid(gp, data: Observations, vector: ParameterVector) -> InitialGrid:
    """Vary lengthscales, noise and slopes around the present hyperparameters of a model.

    Lengthscales are those of `make_lengthscale_grid`, in units of the columns; noise variances and slope variances are `NOISES` and
    `SLOPES`, relative to the data. The lengthscales of all inputs vary together, and those of tasks independently of them. The
    variance of a field kernel, which is that of derivatives, follows its lengthscale.
    """
    entries = {id(entry.parameter): entry for entry in vector.entries}
    units = Units.of(data.X, outputs_covariance(gp, latent_values(gp, data)))
    found = [
        (p, entries.get(id(getattr(p.module, f"raw_{p.name}", None)))) for p in kernel_parameters(gp.kernel, units)
    ]
    by_role = {role: [(p, e) for p, e in found if e is not None and p.role == role] for role in ROLES}
    base = vector.expand(vector.get())

    if isinstance(getattr(gp, "noise_model", None), CurveNoise):
        return _curve_grid(gp, vector, by_role, entries, base)
    lengthscales = []  # points that differ in lengthscales and variances of derivatives
    grids, task_grids = (
        [(e.span, _lengthscale_variables(p, e)) for p, e in by_role["lengthscale"] if p.units.are_tasks == are_tasks]
        for are_tasks in (False, True)
    )
    sizes = [max((len(values) for _, values in each), default=1) for each in (grids, task_grids)]
    for index, task_index in product(*map(range, sizes)):
        point = base.copy()
        for each, i in ((grids, index), (task_grids, task_index)):
            for span, values in each:
                point[span] = values[min(i, len(values) - 1)]
        steps = [(point[span] - base[span]).mean() for span, _ in grids]
        for parameter, entry in by_role["variance"]:
            if parameter.units.is_derivative_variance and steps:
                point[entry.span] += 2 * steps[0]
        lengthscales.append(point)

    noise = None if getattr(gp, "likelihood", None) is not None else entries.get(id(gp.noise_model.log_scale))
    shifts = [0.5 * math.log(value / RELATIVE_NOISE) for value in NOISES] if noise is not None else [0.0]
    slopes = SLOPES if by_role["slope_variance"] else (1.0,)
    points, indices = [], []
    for (index, start), shift, slope in product(enumerate(lengthscales), shifts, slopes):
        point = start.copy()
        for parameter, entry in by_role["slope_variance"]:
            size = parameter.units.mean_squared_norm
            point[entry.span] = _variables(entry, slope * parameter.units.variance / (size if size > 0 else 1.0))
        if noise is not None:
            point[noise.span] += shift
        points.append(np.clip(point[vector.kept], *vector.bounds.T))
        indices.append(index)
    return InitialGrid(np.stack(points), np.array(indices))


def _curve_grid(gp, vector: ParameterVector, by_role: dict, entries: dict, base: np.ndarray) -> InitialGrid:
    """Vary the lengthscales of inputs and of the domain, and the variances of noise and deviations, of curves on a grid."""
    of_tasks = {id(parameter) for parameter in gp.kernel.task_kernel.parameters()}
    found = [(e, _lengthscale_variables(p, e), id(e.parameter) in of_tasks) for p, e in by_role["lengthscale"]]
    noise, points, indices = gp.noise_model, [], []
    deviation = [entries.get(id(p)) for name, p in noise.named_parameters() if name.endswith("raw_lengthscale")]
    scales = [entries.get(id(p)) for name, p in noise.named_parameters() if name.endswith("raw_outputscale")]
    white, choices = entries.get(id(noise.log_scale)), CURVE_NOISES if deviation else ((0.02, 0.0), (0.3, 0.0))
    for index, task_index, (variance, of_deviations) in product(range(NUM_LENGTHSCALES), TASK_LENGTHSCALES, choices):
        point = base.copy()
        for entry, values, is_of_tasks in found:
            chosen = min(task_index if is_of_tasks else index, len(values) - 1)
            point[entry.span] = values[chosen]
            if is_of_tasks:
                for own in filter(None, deviation):
                    point[own.span] = values[max(chosen - 1, 0)]
        if white is not None:
            point[white.span] += 0.5 * math.log(variance / RELATIVE_NOISE)
        for own in filter(None, scales):
            point[own.span] += math.log(of_deviations / RELATIVE_DEVIATION)
        for parameter, entry in by_role["slope_variance"]:
            point[entry.span] = _variables(entry, SLOPES[0] * parameter.units.variance / parameter.units.num_dims)
        points.append(np.clip(point[vector.kept], *vector.bounds.T))
        indices.append(index)
    return InitialGrid(np.stack(points), np.array(indices))


def _lengthscale_variables(parameter: KernelParameter, entry) -> list[np.ndarray]:
    """Return the variables of a lengthscale, or of one per column, at each value of the grid."""
    units, scales = parameter.units, parameter.units.column_scales
    count = NUM_TASK_LENGTHSCALES if units.are_tasks else NUM_LENGTHSCALES
    values = units.lengthscale_factor * torch.from_numpy(make_lengthscale_grid((units.rows / scales).numpy(), count))
    is_ard = parameter.module.raw_lengthscale.shape[-1] > 1
    return [_variables(entry, value * (scales if is_ard else scales.square().mean().sqrt())) for value in values]


def _variables(entry, value: Tensor) -> np.ndarray:
    return entry.variable(value.to(torch.float64).expand(entry.parameter.shape)).reshape(-1).numpy()
