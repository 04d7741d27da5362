"""Cheap draws of hyperparameters from perturbed parameters, in place of a sampler."""

import copy

import numpy as np

from ovkgp.estimators.regression.hyperparameters import axis_names
from ovkgp.inference.sampling.arviz_data import DrawGroups, to_arviz_object


def perturbed(estimator, gp, rows, seed):
    """Replace `draw_hyperparameters` by two chains of three draws: trained parameters plus noise."""
    rng, gp = np.random.default_rng(seed), copy.deepcopy(gp)
    trained = {name: p.detach().numpy() for name, p in gp.named_parameters() if p.requires_grad}
    raw = {name: value + 0.1 * rng.standard_normal((2, 3, *value.shape)) for name, value in trained.items()}
    writer = DrawGroups(gp, raw, None, *rows.scaled(estimator.scaling_), *axis_names(estimator))
    groups = writer.posterior(writer.variables(), {"method": "laplace"}) | writer.observed_data()
    estimator.draws_ = to_arviz_object(groups)
