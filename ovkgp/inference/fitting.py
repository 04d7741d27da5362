"""Where training begins and how far it may go, from the data: starts, boxes and natural steps of a model's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import sha256

import torch
from torch import Tensor

from ovkgp.inference.data import Observations
from ovkgp.inference.parameters import Box
from ovkgp.inference.starts import boxes, data_starts, noise_start, sizes

NOISE_BOX = (1e-8, 1e2)
"""Where a trained noise variance stays, relative to the variance of its output."""


@torch.no_grad()
def start_from_data(gp, data: Observations, kernel: bool = True) -> None:
    """Set mean, noise and kernel hyperparameters of a model: least squares, a tenth of the variance, distances and
    principal components."""
    gp.mean.start(data.X, data.Y)
    centred = data.Y - gp.mean(data.X)
    if kernel:
        data_starts(gp.kernel, data.X, centred)
    if gp.noise_model.is_trained:
        gp.noise_model.set(noise_start(centred))


def starting_points(gp, data: Observations, start: str) -> list[dict[str, Tensor]]:
    """The raw parameters to begin from: "current" ones, those from the "data", or both ("auto")."""
    current = _state(gp)
    if start == "current":
        return [current]
    start_from_data(gp, data)
    return [_state(gp), current] if start == "auto" else [_state(gp)]


def _state(gp) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}


def parameter_boxes(gp, data: Observations) -> dict[str, Box]:
    """The box of each parameter that has one, relative to the scales of the data."""
    found = {f"kernel.{name}": box for name, box in boxes(gp.kernel, data.X, data.Y).items()}
    if gp.noise_model.is_trained:
        variances = _variances(data)
        variances = variances.mean() if gp.noise_model.kind == "shared" else variances
        found["noise_model.log_scale"] = tuple(0.5 * (math.log(end) + variances.log()) for end in NOISE_BOX)
    return found


def parameter_sizes(gp, data: Observations) -> dict[str, float | Tensor]:
    """The natural steps of parameters that live in the units of the data."""
    deviations, spread = _variances(data).sqrt(), data.X.std(0, correction=0).unsqueeze(-1)
    steps = {
        "mean.constant": deviations,
        "mean.slopes": deviations / torch.where(spread > 0, spread, 1.0),
        "noise_model.lower": 0.3 * deviations.unsqueeze(-1),
    }
    known = dict(gp.named_parameters())
    found = {f"kernel.{name}": size for name, size in sizes(gp.kernel, data.X, data.Y).items()}
    return found | {name: step for name, step in steps.items() if name in known}


def _variances(data: Observations) -> Tensor:
    return 10 * noise_start(data.Y)


def problem_name(gp, data: Observations, objective: Callable[[], Tensor]) -> str:
    """A short name for the data and the model, so that a checkpoint is not resumed on another problem: a hash of the
    data, and the objective at the start that they suggest, which no two models share."""
    digest = sha256()
    for part in (data.X, data.Y, data.noise):
        if part is not None:
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    current = _state(gp)
    start_from_data(gp, data)
    with torch.no_grad():
        level = float(objective())
        for name, parameter in gp.named_parameters():
            parameter.copy_(current[name])
    return f"{digest.hexdigest()[:16]} {level:.8g}"
