"""From a table to a trained model: structure, scaling, feature map and hyperparameters, as the options of a regressor say.

Hyperparameters are trained on at most `training_rows` rows. Where the feature map would make each step expensive (more
than 2000 weights that do not fall apart into Kronecker factors) they are trained with the exact kernel on fewer rows, which
believes the same; the weights are needed once only.
"""

from __future__ import annotations

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
    shares_scale,
    structure,
)
from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.exceptions import InputError
from ovkgp.features import FeatureMap
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference import FitReport, OperatorValuedGP, VariationalGP
from ovkgp.inference.likelihoods import register_likelihood_priors
from ovkgp.inference.model.row_sample import random_rows
from ovkgp.inference.training.initialization import register_default_priors, register_noise_prior
from ovkgp.inference.training.prior_sites import Registry, normal
from ovkgp.kernels import IndependentKernel

SELECTION_ROWS = 1000
"""Rows on which the candidate structures of kernel="auto" are compared, at most."""

DENSE_ENTRIES = 2500
"""Observed entries on which a model is trained exactly where its weights are too many, or candidates are compared."""

MAX_WEIGHTS = 2000
"""The largest system of weights that is factorised at every step of a training."""

POLISH = 3e-5
"""The tolerance of a training that goes on from a model trained on fewer rows."""

LATENT_MEAN = (0.0, 3.0)
"""Location and scale of the prior on the level of log-odds and logarithms of rates: odds of one to 20, either way."""


@dataclass(frozen=True)
class Table:
    """X (n, d), Y (n, p) with NaN where missing, and known variances (n, p) or None, as arrays in the user's units."""

    X: np.ndarray
    Y: np.ndarray
    noise: np.ndarray | None = None

    def __getitem__(self, rows) -> Table:
        return Table(self.X[rows], self.Y[rows], None if self.noise is None else self.noise[rows])

    @property
    def is_plain(self) -> bool:
        """Whether all outputs are there, with noise that is alike at all points."""
        return self.noise is None and bool(np.isfinite(self.Y).all())

    def scaled(self, scaling: Scaling) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The same as tensors in the units of the model."""
        noise = None if self.noise is None else scaling.variances(self.noise)
        return scaling.inputs(self.X), scaling.outputs(self.Y), noise

    def parts(self, num_rows: int) -> list[Table]:
        """Consecutive rows, at most `num_rows` at a time."""
        return [self[start : start + num_rows] for start in range(0, len(self.X), num_rows)]

    def some_rows(self, most: int | None, seed: int) -> Table:
        """At most about `most` random rows."""
        if most is None or len(self.X) <= most:
            return self
        return self[random_rows(np.isfinite(self.Y), most, seed)]


@dataclass(frozen=True)
class Learned:
    """What training found."""

    kernel: str
    scaling: Scaling
    approximation: str
    gp: OperatorValuedGP | VariationalGP
    report: FitReport | None
    candidates: dict[str, float] | None


class RegressorTrainer:
    """Trains a model on a table.

    Args:
        options: a `GPRegressor`, for its constructor's parameters.
        table: the data, or a sample of them.
        seed: of rows, frequencies and restarts.
        checkpoint: a file for the progress of training, or None.
        moments: of the inputs and of the outputs, where those of all data are known and the table is a sample.

    Attributes:
        trained: after `learn`, the model that was trained and its rows; the model that predicts may have features besides.
    """

    def __init__(
        self, options, table: Table, seed: int, checkpoint=None, moments: tuple[Moments, Moments] | None = None
    ):
        self.options, self.table, self.seed, self.checkpoint = options, table, seed, checkpoint
        self.moments = moments or (Moments.of(table.X), Moments.of(table.Y))
        self.candidates, self.trained, self._shift = None, None, 0.0

    def learn(self, features: bool) -> Learned:
        """The trained model; with a feature map in any case where `features` is True."""
        options, table = self.options, self.table
        name, trained = self._structure()
        kernel = self._kernel(name)
        scaling = self._scaling(kernel)
        kind = feature_kind(options.approximation, kernel)
        kind = kind if features else choose_approximation(options.approximation, kernel, table.Y, table.noise)
        rows = table.some_rows(options.training_rows, self.seed)
        X = scaling.inputs(rows.X)
        gp = regressor_gp(options, kernel, scaling, approximate(kernel, kind, X, options.num_frequencies, self.seed))
        if options.hyperparameters == "fixed":
            gp.start(*rows.scaled(scaling)[:2], kernel=not isinstance(options.kernel, Kernel))
        else:
            self._train(gp, scaling, rows, trained)
        return Learned(name, scaling, kind, gp, gp.fit_report_, self.candidates)

    def _train(self, gp: OperatorValuedGP, scaling: Scaling, rows: Table, trained: OperatorValuedGP | None) -> None:
        """Train in place, from a model that was trained on fewer rows where there is one."""
        if trained is not None:
            gp.adopt(trained)
            self.trained = gp, rows
            is_done = gp.features is None and trained.fit_report_.num_rows == len(rows.X)
            if is_done or trained.fit_report_.interrupted:
                gp.fit_report_ = trained.fit_report_
                return
        learner = gp
        if gp.features is not None and num_weights(gp.features, rows) > MAX_WEIGHTS:
            rows = rows.some_rows(self._dense_rows(rows), self.seed)
            learner = regressor_gp(self.options, gp.kernel, scaling, None)
            learner.adopt(gp)
        self._fit(learner, rows.scaled(scaling), self.checkpoint, "auto" if trained is None else "current")
        if learner is not gp:
            gp.adopt(learner)
            gp.fit_report_ = learner.fit_report_
        self.trained = learner, rows

    def _fit(self, gp: OperatorValuedGP, data, checkpoint, start: str = "auto") -> OperatorValuedGP:
        X, Y, noise = data
        options = {"random_state": self.seed, "verbose": self.options.verbose, "training_rows": None}
        if start == "current":  # from a model that was trained on fewer rows, and close to the end
            options["tolerance"] = POLISH
        return gp.fit(X, Y, noise, start=start, checkpoint=checkpoint, **options)

    def _structure(self) -> tuple[str, OperatorValuedGP | None]:
        """The name of the structure and, where several were compared, the winner's model on some of the rows."""
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
        self.candidates = {name: penalised_evidence(model) + self._shift for name, model in models.items()}
        best = max(self.candidates, key=self.candidates.get)
        # the one under way at Ctrl-C need not be the one that is taken
        models[best].fit_report_.interrupted = any(model.fit_report_.interrupted for model in models.values())
        return best, models[best]

    def _candidate(self, name: str) -> OperatorValuedGP:
        """A structure, trained on some of the rows with the exact kernel."""
        kernel = self._kernel(name)
        scaling = self._scaling(kernel)
        most = SELECTION_ROWS if self.table.is_plain else min(SELECTION_ROWS, self._dense_rows(self.table))
        rows = self.table.some_rows(most, self.seed)
        self._shift = scaling.log_density(0.0, np.isfinite(rows.Y).sum(0))  # to the user's units, alike for all
        checkpoint = None if self.checkpoint is None else f"{self.checkpoint}.{name}"
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
        return structure(name, options.base_kernel, options.rank, d, p).double()


def scaling_of(
    options, kernel: Kernel, inputs: Moments, outputs: Moments, is_real: np.ndarray | None = None
) -> Scaling:
    """The scaling of data for a kernel: none where a kernel object has numbers of its own in the user's units; `is_real` (p,) says
    which outputs may be scaled."""
    if isinstance(options.kernel, Kernel) and (options.hyperparameters == "fixed" or carries_units(kernel)):
        return Scaling.none(len(inputs.mean), len(outputs.mean))
    by_name = isinstance(options.kernel, str) and isinstance(options.base_kernel, str)
    return Scaling.of_moments(inputs, outputs, scale_inputs=by_name, shared=shares_scale(kernel), is_real=is_real)


def regressor_gp(options, kernel: Kernel, scaling: Scaling, features: FeatureMap | None) -> OperatorValuedGP:
    """The model of a regressor before training, with the priors that its scaling allows."""
    noise = options.noise if isinstance(options.noise, str) else scaled_noise(options.noise, scaling)
    gp = OperatorValuedGP(kernel, mean="constant", noise=noise, features=features)
    register_priors(gp, options, scaling)
    return gp


def register_priors(gp: OperatorValuedGP | VariationalGP, options, scaling: Scaling) -> None:
    """Weakly informative priors, for models whose inputs and outputs are of order one."""
    if isinstance(options.kernel, str) and isinstance(options.base_kernel, str):
        register_default_priors(gp.kernel, len(scaling.input_scale))
    if isinstance(gp, VariationalGP):
        if not (scaling.is_none and bool(gp.likelihood.is_real.any())):  # whose scale would be in the user's units
            register_likelihood_priors(gp.likelihood)
            if not bool(gp.likelihood.is_real.all()):  # one label alone, or no count at all, would make it infinite
                Registry(gp).add(gp.mean, "constant", normal(*LATENT_MEAN))
    elif not scaling.is_none:
        register_noise_prior(gp.noise_model)


def scaled_noise(noise, scaling: Scaling) -> np.ndarray:
    """A fixed noise, given in the user's units, in those of the model."""
    noise, scale = np.asarray(noise, dtype=np.float64), scaling.output_scale
    if noise.ndim > 2 or any(size != len(scale) for size in noise.shape):
        raise InputError(f"noise must be a number, ({len(scale)},) or ({len(scale)}, {len(scale)}); got {noise.shape}.")
    if noise.ndim == 0 and np.all(scale == scale[0]):
        return noise / scale[0] ** 2
    return noise / np.outer(scale, scale) if noise.ndim == 2 else noise / scale**2


def num_weights(features: FeatureMap, table: Table) -> int:
    """The size of the largest matrix that a training with these features factorises at every step."""
    template = features(torch.full((1, table.X.shape[1]), 0.5, dtype=torch.float64))
    parts = template.parts if isinstance(template, StackedFeatures) else (template,)
    if isinstance(features.kernel, IndependentKernel):
        return max(part.shape[-1] for part in parts)
    if len(parts) == 1 and isinstance(template, FeatureOperator) and template.is_separable and table.is_plain:
        return template.features.shape[-1]
    return template.shape[-1]


def penalised_evidence(gp: OperatorValuedGP | VariationalGP) -> float:
    """log p(Y) less one for each trained parameter: by so much, on average, their training flatters the evidence."""
    num_parameters = sum(parameter.numel() for parameter in gp.parameters() if parameter.requires_grad)
    return gp.fit_report_.log_evidence - num_parameters
