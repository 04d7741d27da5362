"""Training of a regressor whose outputs need not be Gaussian: a `VariationalGP` with inducing points.

Labels, counts and classes are neither centred nor scaled. Hyperparameters are trained on a few rows and points first, where
a step costs little, and then on at most `training_rows` rows: on all of them together, or in batches where they are many.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.common.named_kernels import num_features
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.regression.training import (
    POLISH,
    Learned,
    RegressorTrainer,
    Table,
    register_priors,
    scaled_noise,
    scaling_of,
)
from ovkgp.exceptions import OptionError
from ovkgp.inference import VariationalGP
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput, make_likelihood
from ovkgp.inference.likelihoods.location import LocationLikelihood
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.variational.inducing import choose_inducing

FIRST_ROWS, FIRST_POINTS = 500, 50
"""Rows and inducing points of the first training, and of the candidates of kernel="auto"."""
BATCH_ROWS, BATCH_SIZE, BATCH_STEPS = 2000, 256, 500
"""Beyond so many rows training is in batches of this size, of which there are so many in all."""
FIRST_TOLERANCE = 1e-4
"""Of the first training, for each observed entry."""


class VariationalLearner(RegressorTrainer):
    """Trains a variational model on a table; see `RegressorTrainer`.

    Args:
        options, table, seed: as there.

    Cost: that of `VariationalGP.fit` with 50 points and 500 rows for each structure, and with all points for the one that is
    taken; beyond `training_rows` rows, of finding q for all of them once.
    """

    def __init__(self, options, table: Table, seed: int, checkpoint=None, moments=None):
        if checkpoint is not None:
            raise OptionError("a checkpoint is not available with variational inference: leave checkpoint=None.")
        super().__init__(options, table, seed, None, moments)
        self.likelihood = model_likelihood(options, table.Y.shape[1], None)
        self.likelihood.check(torch.tensor(table.Y, dtype=torch.float64))

    def learn(self, features: bool) -> Learned:
        """The trained model, with q at its best for the whole table."""
        name, first = self._structure()
        kernel, options = self._kernel(name), self.options
        scaling, rows = self._scaling(kernel), self.table.some_rows(options.training_rows, self.seed)
        gp = self._model(kernel, scaling, rows, num_features(options.num_frequencies, "variational"))
        if options.hyperparameters == "fixed":
            gp.start(*rows.scaled(scaling)[:2], kernel=not isinstance(options.kernel, Kernel))
        else:
            first = self._candidate(name) if first is None and len(rows.X) > FIRST_ROWS else first
            self._train(gp, scaling, rows, first)
        if gp.q_ is None or len(rows.X) < len(self.table.X):
            gp.settle(*self.table.scaled(scaling))
        self.trained = gp, rows
        return Learned(name, scaling, "variational", gp, gp.fit_report_, self.candidates)

    def _train(self, gp: VariationalGP, scaling: Scaling, rows: Table, trained: VariationalGP | None) -> None:
        start = "auto"
        if trained is not None:
            gp.adopt(trained)
            start = "current"
            if trained.fit_report_.interrupted:
                gp.fit_report_ = trained.fit_report_
                return
        options = {"tolerance": POLISH if start == "current" else 1e-5}
        if (num_rows := len(rows.X)) > BATCH_ROWS:
            options = {"batch_size": BATCH_SIZE, "epochs": max(2, math.ceil(BATCH_STEPS * BATCH_SIZE / num_rows))}
        gp.fit(*rows.scaled(scaling), start=start, random_state=self.seed, verbose=self.options.verbose, **options)

    def _candidate(self, name: str) -> VariationalGP:
        """A structure, trained on some of the rows with some of the inducing points."""
        kernel, rows = self._kernel(name), self.table.some_rows(FIRST_ROWS, self.seed)
        scaling, most = self._scaling(kernel), num_features(self.options.num_frequencies, "variational")
        self._shift = scaling.log_density(0.0, np.isfinite(rows.Y).sum(0))
        gp = self._model(kernel, scaling, rows, min(FIRST_POINTS, most))
        options = {"random_state": self.seed, "verbose": self.options.verbose, "tolerance": FIRST_TOLERANCE}
        return gp.fit(*rows.scaled(scaling), **options)

    def _model(self, kernel: Kernel, scaling: Scaling, rows: Table, num_points: int) -> VariationalGP:
        points = choose_inducing(scaling.inputs(rows.X), num_points, self.seed)
        return regressor_variational_gp(self.options, kernel, scaling, points)

    def _scaling(self, kernel: Kernel) -> Scaling:
        return scaling_of(self.options, kernel, *self.moments, is_real=self.likelihood.is_real.numpy())


def regressor_variational_gp(options, kernel: Kernel, scaling: Scaling, points: Tensor) -> VariationalGP:
    """The model of a regressor before training, with the priors that its scaling allows.

    Args:
        options: a `GPRegressor`, for its constructor's parameters.
        kernel: with p outputs.
        scaling: of the data.
        points: inducing points (m, d), in the units of the model.
    """
    likelihood = model_likelihood(options, len(scaling.output_scale), scaling)
    gp = VariationalGP(kernel, likelihood, inducing=points)
    register_priors(gp, options, scaling)
    return gp


def model_likelihood(options, num_outputs: int, scaling: Scaling | None) -> Likelihood:
    """The likelihood that the options ask for, with what it fixes turned from the user's units to those of the model."""
    scaling = Scaling.none(0, num_outputs) if scaling is None else scaling
    if isinstance(options.likelihood, str) and options.likelihood == "gaussian":
        noise = options.noise if isinstance(options.noise, str) else scaled_noise(options.noise, scaling)
        return Gaussian(num_outputs, noise)
    likelihood = deepcopy(make_likelihood(options.likelihood, num_outputs))
    _rescale(likelihood, scaling.output_scale)
    return likelihood


def _rescale(likelihood: Likelihood, scale: np.ndarray) -> None:
    if isinstance(likelihood, PerOutput):
        for a, one in enumerate(likelihood.likelihoods):
            _rescale(one, scale[[a]])
    elif isinstance(likelihood, LocationLikelihood):
        likelihood.scale = likelihood.scale.detach() / torch.from_numpy(scale)
    elif isinstance(likelihood, Gaussian):
        noise = likelihood.noise_model.matrix().detach() / torch.from_numpy(np.outer(scale, scale))
        if likelihood.noise_model.is_trained:
            likelihood.noise_model.set(noise)
        else:  # one variance for all outputs is one for each in the units of the model
            likelihood.noise_model = OutputNoise(noise if likelihood.couples_outputs else noise.diagonal(), len(scale))
