"""Training of a `GPRegressor` by variational inference: a `VariationalGP` with inducing points, for any likelihood.

Labels, counts and classes are neither centered nor scaled. Hyperparameters are trained on a few rows and points first, then on at
most `training_rows` rows, in batches if there are many.
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
from ovkgp.estimators.common.validation import Table
from ovkgp.estimators.regression.training import (
    FINAL_TOLERANCE,
    Learned,
    RegressorTrainer,
    name_hyperparameters_on_failure,
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
"""Number of rows beyond which training is in batches, size of a batch, and total number of batches."""
FIRST_TOLERANCE = 1e-4  # tolerance of the first training, per observed entry


class VariationalTrainer(RegressorTrainer):
    """Training of a variational model on a table; see `RegressorTrainer`.

    Complexity: `VariationalGP.fit` with 50 points and 500 rows for each structure, and with all points for the selected one.
    """

    def __init__(self, options, table: Table, seed: int, checkpoint=None, moments=None):
        if checkpoint is not None:
            raise OptionError("checkpoint is not supported with variational inference. Use checkpoint=None.")
        super().__init__(options, table, seed, None, moments)
        self.likelihood = model_likelihood(options, table.Y.shape[1], None)
        self.likelihood.check(torch.tensor(table.Y, dtype=torch.float64))

    def learn(self, features: bool) -> Learned:
        """Train the model, with q optimized for the whole table."""
        name, first = self._structure()
        kernel, options = self._kernel(name), self.options
        scaling, rows = self._scaling(kernel), self.table.some_rows(options.training_rows, self.seed)
        gp = self._model(kernel, scaling, rows, num_features(options.num_frequencies, "variational"))
        if options.hyperparameters == "fixed":
            gp.initialize(*rows.scaled(scaling)[:2], kernel=not isinstance(options.kernel, Kernel))
        else:
            first = self._candidate(name) if first is None and len(rows.X) > FIRST_ROWS else first
            with name_hyperparameters_on_failure(options, name, scaling):
                self._train(gp, scaling, rows, first)
        if gp.q_ is None or len(rows.X) < len(self.table.X):
            with name_hyperparameters_on_failure(options, name, scaling):
                gp.fit_variational_distribution(*self.table.scaled(scaling))
        self.trained = gp, rows
        return Learned(name, scaling, "variational", gp, gp.fit_report_, self.candidates)

    def _train(self, gp: VariationalGP, scaling: Scaling, rows: Table, trained: VariationalGP | None) -> None:
        init = "auto"
        if trained is not None:
            gp.copy_hyperparameters_from(trained)
            init = "current"
            if trained.fit_report_.interrupted:
                gp.fit_report_ = trained.fit_report_
                return
        options = {"tolerance": FINAL_TOLERANCE if init == "current" else 1e-5}
        if (num_rows := len(rows.X)) > BATCH_ROWS:
            options = {"batch_size": BATCH_SIZE, "epochs": max(2, math.ceil(BATCH_STEPS * BATCH_SIZE / num_rows))}
        gp.fit(*rows.scaled(scaling), init=init, random_state=self.seed, verbose=self.options.verbose, **options)

    def _candidate(self, name: str) -> VariationalGP:
        """Train a structure on some of the rows with some of the inducing points."""
        kernel, rows = self._kernel(name), self.table.some_rows(FIRST_ROWS, self.seed)
        scaling, most = self._scaling(kernel), num_features(self.options.num_frequencies, "variational")
        self._shift = scaling.log_density(0.0, np.isfinite(rows.Y).sum(0))
        gp = self._model(kernel, scaling, rows, min(FIRST_POINTS, most))
        options = {"random_state": self.seed, "verbose": self.options.verbose, "tolerance": FIRST_TOLERANCE}
        with name_hyperparameters_on_failure(self.options, name, scaling):
            return gp.fit(*rows.scaled(scaling), **options)

    def _model(self, kernel: Kernel, scaling: Scaling, rows: Table, num_points: int) -> VariationalGP:
        points = choose_inducing(scaling.inputs(rows.X), num_points, self.seed)
        return regressor_variational_gp(self.options, kernel, scaling, points)

    def _scaling(self, kernel: Kernel) -> Scaling:
        return scaling_of(self.options, kernel, *self.moments, is_real=self.likelihood.is_real.numpy())


def regressor_variational_gp(options, kernel: Kernel, scaling: Scaling, points: Tensor) -> VariationalGP:
    """Make the model of a regressor with inducing points (m, d), and the priors that its scaling allows."""
    likelihood = model_likelihood(options, len(scaling.output_scale), scaling)
    gp = VariationalGP(kernel, likelihood, inducing=points)
    register_priors(gp, options, scaling)
    return gp


def model_likelihood(options, num_outputs: int, scaling: Scaling | None) -> Likelihood:
    """Make the likelihood of the options, with fixed values converted from original to standardized units."""
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
        else:  # one variance for all outputs is one per output in standardized units
            likelihood.noise_model = OutputNoise(noise if likelihood.couples_outputs else noise.diagonal(), len(scale))
