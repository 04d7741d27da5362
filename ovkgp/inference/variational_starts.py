"""Where the training of a variational model begins: kernel and mean from stand-ins for the latent values, the rest from Y.

A real output stands for itself. Of any other (a class, a count) the latent function is thought of as the likelihood's own
start plus the standardised output: of size one, as such functions are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.inference.data import Observations
from ovkgp.inference.fitting import NOISE_BOX
from ovkgp.inference.inducing import InducingPoints
from ovkgp.inference.parameters import Box
from ovkgp.inference.starts import boxes, data_starts, noise_start, sizes


def latent_values(gp, data: Observations) -> Tensor:
    """Stand-ins (n, p) for the latent values at the data, NaN where nothing was observed.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.data import observations
        >>> from ovkgp.inference.variational_gp import VariationalGP
        >>> from ovkgp.inference.variational_starts import latent_values
        >>> data = observations(torch.arange(3.0), torch.tensor([1.0, 2.0, 6.0]), 1)
        >>> latent_values(VariationalGP(RBFKernel(), "gaussian"), data.double()).flatten().tolist()
        [1.0, 2.0, 6.0]
    """
    Y, is_real = data.Y, gp.likelihood.is_real.to(data.Y.device)
    if bool(is_real.all()):
        return Y
    centre = Y.nanmean(0)
    spread = (Y - centre).square().nanmean(0).sqrt()
    standard = gp.likelihood.latent_start(Y) + (Y - centre) / torch.where(spread > 0, spread, 1.0)
    return torch.where(is_real, Y, standard)


@torch.no_grad()
def latent_starts(gp, data: Observations, start: str, kernel: bool = True) -> list[dict[str, Tensor]]:
    """The raw parameters to begin from: "current" ones, those from the "data", or both ("auto"); the latter are set, those of the
    kernel only where `kernel` is True."""
    current = _state(gp)
    if start == "current":
        return [current]
    values = latent_values(gp, data)
    gp.mean.start(data.X, values)
    if kernel:
        data_starts(gp.kernel, data.X, values - gp.mean(data.X))
    gp.likelihood.start(data.Y)
    return [_state(gp), current] if start == "auto" else [_state(gp)]


def latent_boxes(gp, data: Observations) -> dict[int, Box]:
    """The box of each parameter that has one, relative to the scales of the data."""
    values, known = latent_values(gp, data), dict(gp.kernel.named_parameters())
    found = {id(known[name]): box for name, box in boxes(gp.kernel, data.X, values).items()}
    if gp.noise_model is not None and gp.noise_model.is_trained:
        variances = 10 * noise_start(values)
        variances = variances.mean() if gp.noise_model.kind == "shared" else variances
        found[id(gp.noise_model.log_scale)] = tuple(0.5 * (math.log(end) + variances.log()) for end in NOISE_BOX)
    return found | _scale_boxes(gp, (10 * noise_start(values)).sqrt())


def _scale_boxes(gp, deviations: Tensor) -> dict[int, Box]:
    """The scale of a likelihood of real outputs stays where a noise would, relative to the deviation of its output."""
    low, high = (math.sqrt(end) for end in NOISE_BOX)
    scales = [one for name, one in gp.likelihood.named_parameters() if name.rpartition(".")[2] == "raw_scale"]
    whole = deviations.min(), deviations.max()
    ends = [(deviations, deviations) if one.numel() == len(deviations) else whole for one in scales]
    return {id(one): (low * least, high * most) for one, (least, most) in zip(scales, ends, strict=True)}


def latent_sizes(gp, data: Observations) -> dict[str, float | Tensor]:
    """The natural steps of parameters that live in the units of the data."""
    values = latent_values(gp, data)
    deviations, spread = (10 * noise_start(values)).sqrt(), data.X.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    steps = {
        "mean.constant": deviations,
        "mean.slopes": deviations / spread.unsqueeze(-1),
        "likelihood.noise_model.lower": 0.3 * deviations.unsqueeze(-1),
    }
    if isinstance(gp.features, InducingPoints):
        steps["features.points"] = spread
    known = dict(gp.named_parameters())
    found = {f"kernel.{name}": size for name, size in sizes(gp.kernel, data.X, values).items()}
    return found | {name: step for name, step in steps.items() if name in known}


def _state(gp) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}
