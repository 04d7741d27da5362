"""Training of a `GPRegressor`: structure of the kernel, scaling, feature map and hyperparameters.

Hyperparameters are trained on at most `training_rows` rows. If the feature map makes each step expensive (more than 2000 weights
without Kronecker structure), they are trained with the exact kernel on fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.estimators.common.named_kernels import (
    CANDIDATES,
    approximate,
    carries_units,
    choose_approximation,
    feature_kind,
    given_kernel,
    make_named_kernel,
    shares_scale,
)
from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.summary import format_values
from ovkgp.estimators.common.validation import Table
from ovkgp.estimators.storage.models import ModelBuilder
from ovkgp.exceptions import FactorizationError, InputError
from ovkgp.features import FeatureMap
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference import FitReport, OperatorValuedGP, VariationalGP
from ovkgp.inference.likelihoods import register_likelihood_priors
from ovkgp.inference.training.initialization import register_default_priors, register_noise_prior
from ovkgp.inference.training.prior_sites import PriorRegistry, normal
from ovkgp.kernels import IndependentKernel

SELECTION_ROWS = 1000  # maximum number of rows on which the candidates of kernel="auto" are compared

DENSE_ENTRIES = 2500
"""Number of observed entries of an exact training that replaces one with too many weights, or of a candidate."""

MAX_WEIGHTS = 2000  # size of the largest system of weights that is factorized at every step of a training
FINAL_TOLERANCE = 3e-5  # tolerance of a training that continues from a model trained on fewer rows

LATENT_MEAN = (0.0, 3.0)
"""Location and scale of the normal prior on the mean of log-odds and log rates (odds of 1 to 20, either way)."""


@dataclass(frozen=True)
class Learned:
    """Result of a training."""

    kernel: str
    scaling: Scaling
    approximation: str
    gp: OperatorValuedGP | VariationalGP
    report: FitReport | None
    candidates: dict[str, float] | None


class RegressorTrainer:
    """Training of a model on a table.

    `options` is a `GPRegressor`; `table` are the data or a sample of them; `moments` are those of all data if the table is a sample.
    After `learn`, `trained` is the model that was trained and its rows; the model that predicts may also have features.
    """

    def __init__(
        self, options, table: Table, seed: int, checkpoint=None, moments: tuple[Moments, Moments] | None = None
    ):
        self.options, self.table, self.seed, self.checkpoint = options, table, seed, checkpoint
        self.moments = moments or (Moments.of(table.X), Moments.of(table.Y))
        self.candidates, self.trained, self._shift = None, None, 0.0

    def learn(self, features: bool) -> Learned:
        """Train the model; with a feature map in any case if `features`."""
        options, table = self.options, self.table
        name, trained = self._structure()
        kernel = self._kernel(name)
        scaling = self._scaling(kernel)
        if features:
            kind = feature_kind(options.approximation, kernel)
        else:
            kind = choose_approximation(options.approximation, kernel, table.Y, table.noise)
        rows = table.some_rows(options.training_rows, self.seed)
        X = scaling.inputs(rows.X)
        gp = regressor_gp(options, kernel, scaling, approximate(kernel, kind, X, options.num_frequencies, self.seed))
        if options.hyperparameters == "fixed":
            gp.initialize(*rows.scaled(scaling)[:2], kernel=not isinstance(options.kernel, Kernel))
        else:
            with name_hyperparameters_on_failure(options, name, scaling):
                self._train(gp, scaling, rows, trained)
        return Learned(name, scaling, kind, gp, gp.fit_report_, self.candidates)

    def _train(self, gp: OperatorValuedGP, scaling: Scaling, rows: Table, trained: OperatorValuedGP | None) -> None:
        """Train in place, from a model trained on fewer rows if there is one."""
        if trained is not None:
            gp.copy_hyperparameters_from(trained)
            self.trained = gp, rows
            is_done = gp.features is None and trained.fit_report_.num_rows == len(rows.X)
            if is_done or trained.fit_report_.interrupted:
                gp.fit_report_ = trained.fit_report_
                return
        learner = gp
        if gp.features is not None and num_weights(gp.features, rows) > MAX_WEIGHTS:
            rows = rows.some_rows(self._dense_rows(rows), self.seed)
            learner = regressor_gp(self.options, gp.kernel, scaling, None)
            learner.copy_hyperparameters_from(gp)
        self._fit(learner, rows.scaled(scaling), self.checkpoint, "auto" if trained is None else "current")
        if learner is not gp:
            gp.copy_hyperparameters_from(learner)
            gp.fit_report_ = learner.fit_report_
        self.trained = learner, rows

    def _fit(self, gp: OperatorValuedGP, data, checkpoint, init: str = "auto") -> OperatorValuedGP:
        X, Y, noise = data
        options = {"random_state": self.seed, "verbose": self.options.verbose, "training_rows": None}
        if init == "current":  # from a model trained on fewer rows, close to the optimum
            options["tolerance"] = FINAL_TOLERANCE
        return gp.fit(X, Y, noise, init=init, checkpoint=checkpoint, **options)

    def _structure(self) -> tuple[str, OperatorValuedGP | None]:
        """Return the name of the structure and, if several were compared, the trained model of the selected one."""
        options = self.options
        if isinstance(options.kernel, Kernel):
            return "given", None
        if options.kernel != "auto":
            return options.kernel, None
        if self.table.Y.shape[1] == 1 or options.hyperparameters == "fixed":
            return "independent", None
        models = {}
        for name in CANDIDATES:
            models[name] = self._candidate(name)
            if models[name].fit_report_.interrupted:
                break
        self.candidates = {name: penalized_evidence(model) + self._shift for name, model in models.items()}
        best = max(self.candidates, key=self.candidates.get)
        # the candidate that was interrupted need not be the selected one
        models[best].fit_report_.interrupted = any(model.fit_report_.interrupted for model in models.values())
        return best, models[best]

    def _candidate(self, name: str) -> OperatorValuedGP:
        """Train a structure on some of the rows with the exact kernel."""
        kernel = self._kernel(name)
        scaling = self._scaling(kernel)
        most = SELECTION_ROWS if self.table.is_complete else min(SELECTION_ROWS, self._dense_rows(self.table))
        rows = self.table.some_rows(most, self.seed)
        self._shift = scaling.log_density(
            0.0, np.isfinite(rows.Y).sum(0)
        )  # to original units, the same for all candidates
        checkpoint = None if self.checkpoint is None else f"{self.checkpoint}.{name}"
        with name_hyperparameters_on_failure(self.options, name, scaling):
            return self._fit(regressor_gp(self.options, kernel, scaling, None), rows.scaled(scaling), checkpoint)

    @staticmethod
    def _dense_rows(table: Table) -> int:
        per_row = max(np.isfinite(table.Y).sum() / len(table.Y), 1.0)
        return max(int(DENSE_ENTRIES / per_row), 1)

    def _scaling(self, kernel: Kernel) -> Scaling:
        return scaling_of(self.options, kernel, *self.moments)

    def _kernel(self, name: str) -> Kernel:
        (d, p), options = (self.table.X.shape[1], self.table.Y.shape[1]), self.options
        if name == "given":
            return given_kernel(options.kernel, p).double()
        return make_named_kernel(name, options.base_kernel, options.rank, d, p).double()


@contextmanager
def name_hyperparameters_on_failure(estimator, structure: str, scaling: Scaling) -> Iterator[None]:
    """Give the hyperparameters in the message of a failed factorization with column names and in original units."""
    try:
        yield
    except FactorizationError as error:
        if error.hyperparameters is None:
            raise
        listed = format_values(error.hyperparameters, estimator, structure, scaling)
        raise FactorizationError(f"{error.problem} The hyperparameters were {listed}.") from error


def scaling_of(
    options, kernel: Kernel, inputs: Moments, outputs: Moments, is_real: np.ndarray | None = None
) -> Scaling:
    """Return the scaling of data for a kernel: none if a kernel object has values in original units. `is_real` (p,) are the outputs that may be scaled."""
    if isinstance(options.kernel, Kernel) and (options.hyperparameters == "fixed" or carries_units(kernel)):
        return Scaling.none(len(inputs.mean), len(outputs.mean))
    by_name = isinstance(options.kernel, str) and isinstance(options.base_kernel, str)
    return Scaling.of_moments(inputs, outputs, scale_inputs=by_name, shared=shares_scale(kernel), is_real=is_real)


def regressor_gp(options, kernel: Kernel, scaling: Scaling, features: FeatureMap | None) -> OperatorValuedGP:
    """Make the model of a regressor, with the priors that its scaling allows."""
    noise = options.noise if isinstance(options.noise, str) else scaled_noise(options.noise, scaling)
    gp = OperatorValuedGP(kernel, mean="constant", noise=noise, features=features)
    register_priors(gp, options, scaling)
    return gp


def register_priors(gp: OperatorValuedGP | VariationalGP, options, scaling: Scaling) -> None:
    """Register weakly informative priors of models whose inputs and outputs are of order one."""
    if isinstance(options.kernel, str) and isinstance(options.base_kernel, str):
        register_default_priors(gp.kernel, len(scaling.input_scale))
    if isinstance(gp, VariationalGP):
        if not (scaling.is_none and bool(gp.likelihood.is_real.any())):  # its scale would be in original units
            register_likelihood_priors(gp.likelihood)
            if not bool(gp.likelihood.is_real.all()):  # it would be infinite with one label or only zero counts
                PriorRegistry(gp).add(gp.mean, "constant", normal(*LATENT_MEAN))
    elif not scaling.is_none:
        register_noise_prior(gp.noise_model)


def scaled_noise(noise, scaling: Scaling) -> np.ndarray:
    """Convert a fixed noise from original to standardized units."""
    noise, scale = np.asarray(noise, dtype=np.float64), scaling.output_scale
    if noise.ndim > 2 or any(size != len(scale) for size in noise.shape):
        raise InputError(
            f"noise has shape {noise.shape}, expected (), ({len(scale)},) or ({len(scale)}, {len(scale)})."
        )
    if noise.ndim == 0 and np.all(scale == scale[0]):
        return noise / scale[0] ** 2
    return noise / np.outer(scale, scale) if noise.ndim == 2 else noise / scale**2


def num_weights(features: FeatureMap, table: Table) -> int:
    """Return the size of the largest matrix that a training with these features factorizes at every step."""
    template = features(torch.full((1, table.X.shape[1]), 0.5, dtype=torch.float64))
    parts = template.parts if isinstance(template, StackedFeatures) else (template,)
    if isinstance(features.kernel, IndependentKernel):
        return max(part.shape[-1] for part in parts)
    if len(parts) == 1 and isinstance(template, FeatureOperator) and template.is_separable and table.is_complete:
        return template.features.shape[-1]
    return template.shape[-1]


def penalized_evidence(gp: OperatorValuedGP | VariationalGP) -> float:
    """Return log p(Y) minus the number of trained parameters, the expected optimism of the evidence."""
    num_parameters = sum(parameter.numel() for parameter in gp.parameters() if parameter.requires_grad)
    return gp.fit_report_.log_evidence - num_parameters


def _rebuild_kernel(estimator, values: dict[str, torch.Tensor], scale: float) -> Kernel:
    if isinstance(estimator.kernel, Kernel):
        return given_kernel(estimator.kernel, estimator.n_outputs_).double()
    shape = estimator.n_features_in_, estimator.n_outputs_
    return make_named_kernel(estimator.kernel_, estimator.base_kernel, estimator.rank, *shape).double()


MODEL_BUILDER = ModelBuilder(_rebuild_kernel, lambda gp, estimator: register_priors(gp, estimator, estimator.scaling_))
"""Rebuilds the model of a `GPRegressor` from a model file."""
