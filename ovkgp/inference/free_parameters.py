"""Which of a model's trained parameters are to be inferred from some data: those that the evidence depends on.

The noise of a model is not where it is known for each entry, statistics hold for one set of lengthscales, inducing points
belong to an approximation, and a square matrix of which only a triangle is read has entries that mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.ascent import FAILURES
from ovkgp.inference.inducing import InducingPoints
from ovkgp.inference.parameters import ParameterVector

NUDGE = 1e-3
"""How far a parameter is moved to see whether anything depends on it."""


def freeze_unused(gp: torch.nn.Module, evidence: Callable[[], Tensor], is_gathered: bool = False) -> None:
    """Keep the parameters on which the evidence does not depend, or at whose other values it is not known, in place.

    Args:
        gp: holds the parameters.
        evidence: of some data, at the present parameters.
        is_gathered: whether it is one of statistics, which may refuse other values of a parameter.

    Cost: an evidence and its gradient; for statistics also an evidence for each parameter.
    """
    if isinstance(gp.features, InducingPoints):  # where an approximation is good, and no belief about the data
        gp.features.points.requires_grad_(False)
    trained = [parameter for parameter in gp.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        value = evidence()
    slopes = torch.autograd.grad(value, trained, allow_unused=True) if value.requires_grad else [None] * len(trained)
    for parameter, slope in zip(trained, slopes, strict=True):
        if slope is None or (is_gathered and not _may_move(parameter, evidence)):
            parameter.requires_grad_(False)


@torch.no_grad()
def _may_move(parameter: Tensor, evidence: Callable[[], Tensor]) -> bool:
    """Whether there is an evidence at another value: statistics refuse what would make others of them."""
    kept = parameter.clone()
    parameter.add_(NUDGE)
    try:
        evidence()
    except InputError:
        return False
    except FAILURES:
        return True
    finally:
        parameter.copy_(kept)
    return True


def read_entries(
    vector: ParameterVector, evidence: Callable[[], Tensor], values: Callable[[], dict[str, np.ndarray]]
) -> np.ndarray:
    """Which variables (len,) the evidence, or any of the named values, depends on.

    Args:
        vector: of the parameters.
        evidence: of some data, at the present parameters.
        values: the hyperparameters by name, likewise.

    Cost: an evidence and its gradient, and a look at the values for each variable with a gradient of zero.
    """
    vector.clear_gradient()
    with torch.enable_grad():
        evidence().backward()
    read, here, u = vector.gradient() != 0, values(), vector.get()
    vector.clear_gradient()
    for i in np.flatnonzero(~read):
        vector.set(u + NUDGE * (np.arange(len(u)) == i))
        there = values()
        read[i] = any(not np.array_equal(here[name], there[name]) for name in here)
    vector.set(u)
    return read
