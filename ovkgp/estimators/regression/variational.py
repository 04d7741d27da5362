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

from ovkgp.estimators.common.named_kernels import num_features
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.validation import Table
from ovkgp.estimators.regression.training import (
    FINAL_TOLERANCE,
    TrainingJob,
    name_hyperparameters_on_failure,
    register_priors,
    scaled_noise,
)
from ovkgp.exceptions import OptionError
from ovkgp.inference import VariationalGP
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput, make_likelihood
from ovkgp.inference.likelihoods.location import LocationLikelihood
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.variational.inducing import choose_inducing

FIRST_ROWS, FIRST_POINTS = 500, 100
"""Rows and inducing points of the first training, and of the candidates of kernel="auto"."""
BATCH_ROWS, BATCH_SIZE, BATCH_STEPS = 2000, 256, 500
"""Number of rows beyond which training is in batches, size of a batch, and total number of batches."""
FIRST_TOLERANCE = 1e-4  # tolerance of the first training, per observed entry


def check_likelihood_data(options, table: Table, checkpoint) -> np.ndarray:
    """Check Y against the likelihood; return which outputs (p,) may be scaled."""
    if checkpoint is not None:
        raise OptionError("checkpoint is not supported with variational inference. Use checkpoint=None.")
    likelihood = model_likelihood(options, table.Y.shape[1], None)
    likelihood.check(torch.tensor(table.Y, dtype=torch.float64))
    return likelihood.is_real.numpy()


def train_variational_candidate(job: TrainingJob, name: str) -> tuple[VariationalGP, Scaling, Table]:
    """Train a structure on some of the rows with some of the inducing points; return it with its scaling and rows."""
    options, kernel, rows = job.options, job.make_kernel(name), job.table.some_rows(FIRST_ROWS, job.seed)
    scaling, num_points = job.make_scaling(kernel), num_features(options.num_frequencies, "variational")
    gp = make_variational_gp(job, kernel, scaling, rows, min(FIRST_POINTS, num_points))
    training = {"random_state": job.seed, "verbose": options.verbose, "tolerance": FIRST_TOLERANCE}
    training["restarts"] = options.restarts
    with name_hyperparameters_on_failure(options, name, scaling):
        return gp.fit(*rows.scaled(scaling), **training), scaling, rows


def train_variational(
    job: TrainingJob, gp: VariationalGP, name: str, scaling: Scaling, rows: Table, first: VariationalGP | None
) -> None:
    """Train in place, from a model `first` trained on fewer rows and points if there is one or if there are many rows.

    Complexity: `VariationalGP.fit` with 100 points and 500 rows for each structure, and with all points for the selected one.
    """
    if first is None and len(rows.X) > FIRST_ROWS:
        first = train_variational_candidate(job, name)[0]
    options = {"init": "auto", "tolerance": 1e-5, "restarts": job.options.restarts}
    if first is not None:
        gp.copy_hyperparameters_from(first)
        # few points cannot resolve short lengthscales, which are tried again
        options |= {"tolerance": FINAL_TOLERANCE}
        if len(rows.X) > FIRST_ROWS:  # several runs were made on fewer rows
            options |= {"init": "current", "restarts": 1}
        if first.fit_report_.interrupted:
            gp.fit_report_ = first.fit_report_
            return
    if (num_rows := len(rows.X)) > BATCH_ROWS:
        del options["tolerance"]
        options |= {"batch_size": BATCH_SIZE, "epochs": max(2, math.ceil(BATCH_STEPS * BATCH_SIZE / num_rows))}
    gp.fit(*rows.scaled(scaling), random_state=job.seed, verbose=job.options.verbose, **options)


def make_variational_gp(
    job: TrainingJob, kernel: Kernel, scaling: Scaling, rows: Table, num_points: int
) -> VariationalGP:
    """Make the model of a regressor with inducing points among the rows, and its default priors."""
    points = choose_inducing(scaling.inputs(rows.X), num_points, job.seed)
    likelihood = model_likelihood(job.options, len(scaling.output_scale), scaling)
    gp = VariationalGP(kernel, likelihood, inducing=points)
    register_priors(gp, scaling, job.prior_units(kernel, rows))
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
