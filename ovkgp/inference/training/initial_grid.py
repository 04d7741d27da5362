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

from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.initialization import (
    RELATIVE_NOISE,
    ROLES,
    Initialization,
    latent_values,
    load_raw_state,
    raw_state,
)
from ovkgp.inference.training.kernel_parameters import KernelParameter, Units, kernel_parameters, output_covariance

NUM_LENGTHSCALES = 6
MAX_RELATIVE_LENGTHSCALE = 3.0  # largest lengthscale, in units of √d
NOISES = (0.3, 0.02)  # noise variances, relative to the variance of the output
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
    """Return the points (G, k) of `make_initial_grid` around the initial values from the data. The model is not changed."""
    current = raw_state(gp)
    load_raw_state(gp, initialization.values[0])
    points = make_initial_grid(gp, data, vector).points
    load_raw_state(gp, current)
    return points


@torch.no_grad()
def make_initial_grid(gp, data: Observations, vector: ParameterVector) -> InitialGrid:
    """Vary lengthscales, noise and slopes around the present hyperparameters of a model.

    Lengthscales are those of `make_lengthscale_grid`, in units of the columns; noise variances and slope variances are `NOISES` and
    `SLOPES`, relative to the data. The variance of a field kernel, which is that of derivatives, follows its lengthscale.
    """
    entries = {id(entry.parameter): entry for entry in vector.entries}
    units = Units.of(data.X, output_covariance(latent_values(gp, data)))
    found = [
        (p, entries.get(id(getattr(p.module, f"raw_{p.name}", None)))) for p in kernel_parameters(gp.kernel, units)
    ]
    by_role = {role: [(p, e) for p, e in found if e is not None and p.role == role] for role in ROLES}
    base = vector.expand(vector.get())

    lengthscales = []  # points that differ in lengthscales and variances of derivatives
    grids = [(entry.span, _lengthscale_variables(parameter, entry)) for parameter, entry in by_role["lengthscale"]]
    for index in range(max((len(values) for _, values in grids), default=1)):
        point = base.copy()
        for span, values in grids:
            point[span] = values[min(index, len(values) - 1)]
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


def _lengthscale_variables(parameter: KernelParameter, entry) -> list[np.ndarray]:
    """Return the variables of a lengthscale, or of one per column, at each value of the grid."""
    units, scales = parameter.units, parameter.units.column_scales
    values = units.lengthscale_factor * torch.from_numpy(make_lengthscale_grid((units.rows / scales).numpy()))
    is_ard = parameter.module.raw_lengthscale.shape[-1] > 1
    return [_variables(entry, value * (scales if is_ard else scales.square().mean().sqrt())) for value in values]


def _variables(entry, value: Tensor) -> np.ndarray:
    return entry.variable(value.to(torch.float64).expand(entry.parameter.shape)).reshape(-1).numpy()
