"""Outputs that share nothing are trained one by one: p small climbs, and not one in all their parameters together."""

from __future__ import annotations

import torch

from ovkgp.inference.data import Observations
from ovkgp.inference.means import MEANS, PolynomialMean
from ovkgp.inference.prior_units import output_prior
from ovkgp.kernels import IndependentKernel


def can_train_apart(gp) -> bool:
    """Whether no parameter is shared between outputs."""
    own_noise = gp.noise_model.kind == "per_output" or not gp.noise_model.is_trained
    is_plain = isinstance(gp.kernel, IndependentKernel) and isinstance(gp.mean, PolynomialMean) and own_noise
    return is_plain and gp.noise_model.is_diagonal and gp.features is None and gp.num_outputs > 1


def train_apart(gp, data: Observations, **options) -> None:
    """Train the outputs of a model one by one, in place; `gp.fit_report_` is then that of the last one trained."""
    for a in range(gp.num_outputs):
        alone = _output_gp(gp, a)
        part = data.output(a)
        alone.fit(part.X, part.Y, part.noise, **options)
        _copy_back(gp, alone, a)
        gp.fit_report_ = alone.fit_report_
        if gp.fit_report_.interrupted:
            return


def _output_gp(gp, index: int):
    """One output's model, with copies of its hyperparameters and the priors of the whole."""
    noise = gp.noise_model.variances.detach()
    noise = noise if noise.dim() == 0 else noise[index]
    alone = type(gp)(
        gp.kernel.kernels[index], MEANS[gp.mean.degree + 1], "shared" if gp.noise_model.is_trained else noise
    )
    alone.noise_model.set(noise)
    for name, _, prior, closure, put in list(gp.noise_model.named_priors()):
        alone.noise_model.register_prior(name, output_prior(prior, index), closure, put)
    return alone


@torch.no_grad()
def _copy_back(gp, alone, index: int) -> None:
    gp.kernel.kernels[index].load_state_dict(alone.kernel.state_dict())
    if gp.noise_model.is_trained:
        gp.noise_model.log_scale[index] = alone.noise_model.log_scale
    if gp.mean.degree >= 0:
        gp.mean.constant[index] = alone.mean.constant[0]
    if gp.mean.degree == 1:
        gp.mean.slopes[:, index] = alone.mean.slopes[:, 0]
