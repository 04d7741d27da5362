"""Training of a `GPRegressor`: mixture of candidates or structure of the kernel, scaling, feature map and hyperparameters.

Hyperparameters are trained on at most `training_rows` rows. If the feature map makes each step expensive (more than 2000 weights
without Kronecker structure), they are trained with the exact kernel on fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.checks import as_numbers
from ovkgp.estimators.common.named_kernels import (
    CANDIDATES,
    DEFAULT_BASE_KERNEL,
    SEPARABLE_LIMIT,
    given_kernel,
    make_named_kernel,
    name_structure,
    shares_scale,
)
from ovkgp.estimators.common.options import is_variational
from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.summary import format_values
from ovkgp.estimators.common.validation import Table, as_array, check_size
from ovkgp.estimators.storage.models import ModelBuilder
from ovkgp.exceptions import FactorizationError, InputError
from ovkgp.features import FeatureMap
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference import OperatorValuedGP, VariationalGP
from ovkgp.inference.gp import check_inputs
from ovkgp.inference.likelihoods import register_likelihood_priors
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.stacking.candidates import CoupledCandidate, default_candidates
from ovkgp.inference.stacking.model_draws import average_over_draws
from ovkgp.inference.stacking.output_kernel import is_output_kernel
from ovkgp.inference.stacking.stack import fit_stack
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.training.initialization import register_default_priors, register_noise_prior
from ovkgp.inference.training.kernel_parameters import Units
from ovkgp.inference.training.priors import DEFAULT_PRIORS, WIDE_PRIORS, PriorRegistry, PriorSettings, normal
from ovkgp.kernels import IndependentKernel
from ovkgp.scales import root_mean_square

if TYPE_CHECKING:
    from ovkgp.estimators.regression.gp_regressor import GPRegressor

MAX_SCALE_RATIO = 10.0  # largest ratio of the scales of coordinates, and of components, of a vector field
MIN_FIELD_ENTRIES = 20  # observed entries that a vector field needs to be a candidate
MIN_ROWS_PER_OUTPUT = 6  # with fewer rows, coupled outputs are candidates although none is missing
STACK = "auto"  # name of the structure of a mixture of candidates
SELECTION_ROWS = 1000  # maximum number of rows on which the candidates of kernel="auto" are compared

DENSE_ENTRIES = 2500
"""Number of observed entries of an exact training that replaces one with too many weights, or of a candidate."""

MAX_WEIGHTS = 2000  # size of the largest system of weights that is factorized at every step of a training
FINAL_TOLERANCE = 3e-5  # tolerance of a training that continues from a model trained on fewer rows

LATENT_MEAN = (0.0, 3.0)
"""Location and scale of the normal prior on the mean of log-odds and log rates (odds of 1 to 20, either way)."""


@dataclass(frozen=True)
class TrainedModel:
    """Result of a training: the model that predicts, and the model and rows that were trained, which may lack its features."""

    kernel: str
    scaling: Scaling
    approximation: str
    gp: OperatorValuedGP | VariationalGP
    candidates: dict
    trained: tuple[OperatorValuedGP | VariationalGP, Table]
    posterior: Posterior | None = None  # of all rows, if training computed it


@dataclass(frozen=True)
class TrainingJob:
    """Training data of a `GPRegressor` (`options`): a table or a sample of it, the moments of all rows, and a seed.

    `is_real` (p,) are the outputs that may be scaled; None is all.
    """

    options: GPRegressor
    table: Table
    seed: int
    checkpoint: str | Path | None
    moments: tuple[Moments, Moments]
    is_real: np.ndarray | None = None

    def make_kernel(self, name: str) -> Kernel:
        """Make the kernel of a structure."""
        return make_kernel(self.options, name, self.table.X.shape[1], self.table.Y.shape[1])

    def make_scaling(self, kernel: Kernel) -> Scaling:
        """Return the scaling of the data for a kernel; with a kernel object, only outputs are shifted.

        Values, priors and constraints of an object are in original units. Inputs are not even shifted, since a kernel object
        need not be translation-invariant.
        """
        found = self.standardization(shares_scale(kernel))
        if not has_kernel_object(self.options):
            return found
        check_size([self.moments[0].largest], "X")
        for a, largest in enumerate(self.moments[1].largest):
            check_size([largest], f"column {a} of Y")
        none = Scaling.none(len(found.input_scale), len(found.output_scale))
        return none if self.options.hyperparameters == "fixed" else replace(none, output_offset=found.output_offset)

    def standardization(self, shared: bool) -> Scaling:
        """Return the scaling that makes inputs and outputs of order one, with one scale of all outputs if `shared`."""
        return Scaling.of_moments(*self.moments, scale_inputs=True, shared=shared, is_real=self.is_real)

    def prior_units(self, kernel: Kernel, rows: Table) -> Units | None:
        """Return the units of the default priors with a kernel object; None if the data are standardized."""
        if not has_kernel_object(self.options):
            return None
        deviations = torch.from_numpy(self.standardization(shares_scale(kernel)).output_scale)
        return Units.of(torch.from_numpy(rows.X.astype(np.float64)), torch.diag(deviations**2))


def uses_stack(options, table: Table, checkpoint) -> bool:
    """Whether these options and data are modeled by a mixture of candidates.

    A mixture is exact and has kernels of distances; it has no checkpoints, and its hyperparameters are not exported as draws.
    """
    if name_structure(options.kernel) != "auto" or isinstance(options.base_kernel, Kernel) or is_variational(options):
        return False
    if options.base_kernel != "auto" and not is_output_kernel(options.base_kernel):
        return False
    if options.hyperparameters not in ("auto", "evidence") or options.approximation not in ("auto", "exact"):
        return False
    if isinstance(options.noise, str):
        has_own_noise = options.noise == "per_output" or table.Y.shape[1] == 1 or table.noise is not None
    else:
        has_own_noise = np.ndim(as_array(options.noise)) < 2
    return has_own_noise and checkpoint is None and len(table.X) <= SEPARABLE_LIMIT


def train_stack(job: TrainingJob) -> TrainedModel:
    """Train and weight the candidates."""
    options, table = job.options, job.table
    scaling = job.standardization(shared=False).without_constant_inputs(job.moments[0])
    X, Y, noise = table.scaled(scaling)
    if noise is None and not isinstance(options.noise, str):
        fixed = np.broadcast_to(scaled_noise(options.noise, scaling), Y.shape[1:])
        noise = torch.from_numpy(np.ascontiguousarray(np.broadcast_to(fixed, Y.shape)))
    data = Observations(X, Y, noise).observed_rows()
    base = None if options.base_kernel == "auto" else options.base_kernel
    coupled = _coupled_candidates(data, base or DEFAULT_BASE_KERNEL, options.rank)
    candidates = [*default_candidates(base), *coupled, *_field_candidates(data, base or DEFAULT_BASE_KERNEL, scaling)]
    with name_hyperparameters_on_failure(options, STACK, scaling):
        average, others = options.hyperparameters == "auto", {"restarts": options.restarts, "verbose": options.verbose}
        stack = fit_stack(candidates, data, average=average, **others)
    counts = np.isfinite(table.Y).sum(0)
    shift = counts @ np.log(scaling.output_scale) / counts.sum()  # of the mean log density, in original units
    scores = {name: replace(score, log_density=score.log_density - shift) for name, score in stack.scores.items()}
    scores = {stack.name: scores.pop(stack.name)} | scores  # that of `gp_` first
    return TrainedModel(STACK, scaling, "exact", stack.gp, scores, (stack.gp, table), stack.posterior)


def _coupled_candidates(data: Observations, base: str, rank: int) -> list[CoupledCandidate]:
    """Return candidates with coupled outputs, if some are missing or rows are few per output."""
    is_scarce = data.num_rows < MIN_ROWS_PER_OUTPUT * data.num_outputs
    if data.num_outputs == 1 or data.num_observed > MAX_DENSE_ENTRIES or (data.is_complete and not is_scarce):
        return []
    coupled = [CoupledCandidate("decomposable, full noise", "icm", base, rank)]
    return coupled if data.is_complete else [*coupled, CoupledCandidate("lmc, full noise", "lmc", base, rank)]


def _field_candidates(data: Observations, base: str, scaling: Scaling) -> list[CoupledCandidate]:
    """Return a Helmholtz kernel, if inputs and outputs may be the coordinates and components of a vector field.

    They are as many, two or three, and have similar scales, since those of a field have common units.
    """
    num_dims, scales = data.X.shape[1], (scaling.input_scale[scaling.used_inputs], scaling.output_scale)
    is_field = num_dims == data.num_outputs in (2, 3) and all(
        np.ptp(np.log(s)) < np.log(MAX_SCALE_RATIO) for s in scales
    )
    if not is_field or not MIN_FIELD_ENTRIES <= data.num_observed <= MAX_DENSE_ENTRIES:
        return []
    inputs, outputs = (tuple((s / root_mean_square(s)).tolist()) for s in scales)
    return [CoupledCandidate("helmholtz", "helmholtz", base, input_scale=inputs, output_scale=outputs)]


def train_candidates(job: TrainingJob, train: Callable) -> tuple[dict[str, OperatorValuedGP], dict[str, float]]:
    """Train each structure of kernel="auto" by `train(job, name)`, and compute their penalized evidence in original units."""
    models, criteria = {}, {}
    for name in CANDIDATES:
        models[name], scaling, rows = train(job, name)
        criteria[name] = scaling.log_density(penalized_evidence(models[name]), np.isfinite(rows.Y).sum(0))
        if models[name].fit_report_.interrupted:
            for model in models.values():  # the interrupted candidate need not be the selected one
                model.fit_report_.interrupted = True
            break
    return models, criteria


def train_candidate(job: TrainingJob, name: str) -> tuple[OperatorValuedGP, Scaling, Table]:
    """Train a structure on some of the rows with the exact kernel; return it with its scaling and rows."""
    kernel = job.make_kernel(name)
    scaling = job.make_scaling(kernel)
    limit = SELECTION_ROWS if job.table.is_complete else min(SELECTION_ROWS, _num_dense_rows(job.table))
    rows = job.table.some_rows(limit, job.seed)
    checkpoint = None if job.checkpoint is None else f"{job.checkpoint}.{name}"
    with name_hyperparameters_on_failure(job.options, name, scaling):
        gp = make_gp(job.options, kernel, scaling, None, job.prior_units(kernel, rows))
        return _fit(gp, job, rows.scaled(scaling), checkpoint), scaling, rows


def train(
    job: TrainingJob, gp: OperatorValuedGP, scaling: Scaling, rows: Table, first: OperatorValuedGP | None
) -> tuple[OperatorValuedGP, Table]:
    """Train in place, from a model `first` trained on fewer rows if there is one; return the model and rows that were trained."""
    if first is not None:
        gp.copy_hyperparameters_from(first)
        is_done = gp.features is None and first.fit_report_.num_rows == len(rows.X)
        if is_done or first.fit_report_.interrupted:
            gp.fit_report_ = first.fit_report_
            return gp, rows
    trained = gp
    if gp.features is not None and num_weights(gp.features, rows) > MAX_WEIGHTS:
        units = job.prior_units(gp.kernel, rows)
        rows = rows.some_rows(_num_dense_rows(rows), job.seed)
        trained = make_gp(job.options, gp.kernel, scaling, None, units)
        trained.copy_hyperparameters_from(gp)
    _fit(trained, job, rows.scaled(scaling), job.checkpoint, "auto" if first is None else "current")
    if trained is not gp:
        gp.copy_hyperparameters_from(trained)
        gp.fit_report_ = trained.fit_report_
    return trained, rows


def _fit(gp: OperatorValuedGP, job: TrainingJob, data, checkpoint, init: str = "auto") -> OperatorValuedGP:
    X, Y, noise = data
    options = {"random_state": job.seed, "verbose": job.options.verbose, "training_rows": None}
    if init == "current":  # from a model trained on fewer rows, close to the optimum
        options["tolerance"] = FINAL_TOLERANCE
    else:
        options["restarts"] = job.options.restarts
    return gp.fit(X, Y, noise, init=init, checkpoint=checkpoint, **options)


def _num_dense_rows(table: Table) -> int:
    per_row = max(np.isfinite(table.Y).sum() / len(table.Y), 1.0)
    return max(int(DENSE_ENTRIES / per_row), 1)


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


def make_kernel(options, name: str, num_inputs: int, num_outputs: int) -> Kernel:
    """Make the kernel of a structure; "given" is a copy of the kernel object."""
    if name == "given":
        return given_kernel(options.kernel, num_outputs).double()
    base = options.base_kernel
    if isinstance(base, Kernel) and options.hyperparameters == "fixed":
        base = deepcopy(base).requires_grad_(False)  # its values are kept; those of the structure are set from the data
    return make_named_kernel(name, base, options.rank, num_inputs, num_outputs).double()


def has_kernel_object(options) -> bool:
    """Whether an option is a kernel object, whose values are in original units."""
    return isinstance(options.kernel, Kernel) or isinstance(options.base_kernel, Kernel)


def make_gp(
    options, kernel: Kernel, scaling: Scaling, features: FeatureMap | None, units: Units | None
) -> OperatorValuedGP:
    """Make the model of a regressor with its default priors, in `units` or for standardized data."""
    noise = options.noise if isinstance(options.noise, str) else scaled_noise(options.noise, scaling)
    gp = OperatorValuedGP(kernel, mean="constant", noise=noise, features=features)
    register_priors(gp, scaling, units)
    return gp


def register_priors(
    gp: OperatorValuedGP | VariationalGP, scaling: Scaling, units: Units | None, priors: PriorSettings = DEFAULT_PRIORS
) -> None:
    """Register weakly informative priors on kernel and noise or likelihood, in `units` or for standardized data."""
    if units is not None:
        check_inputs(gp, units.X)
    register_default_priors(gp.kernel, len(scaling.used_inputs), units, priors)
    deviations = None if units is None else units.deviations
    if isinstance(gp, VariationalGP):
        register_likelihood_priors(gp.likelihood, std=deviations)
        if not bool(gp.likelihood.is_real.all()):  # it would be infinite with one label or only zero counts
            PriorRegistry(gp).add(gp.mean, "constant", normal(*LATENT_MEAN))
    else:
        register_noise_prior(gp.noise_model, deviations, priors)


def scaled_noise(noise, scaling: Scaling) -> np.ndarray:
    """Convert a fixed noise from original to standardized units."""
    noise, scale = as_numbers(as_array(noise), "noise"), scaling.output_scale
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


def average(options, model: TrainedModel, table: Table) -> MixturePosterior | None:
    """Return the posterior averaged over draws around the mode of a named kernel; None if the mode is used.

    The draws are those of the rows on which the model was trained, and include its noise.
    """
    if options.hyperparameters != "auto" or model.approximation != "exact" or model.gp.fit_report_.interrupted:
        return None
    if has_kernel_object(options) or not isinstance(options.noise, str) or table.noise is not None:
        return None
    if len(model.trained[1].X) < len(table.X):
        return None
    return average_over_draws(model.gp, model.gp.observe(*table.scaled(model.scaling)).double(), options.variance)


def _rebuild_kernel(estimator, values: dict[str, torch.Tensor], scale: float) -> Kernel:
    name = "given" if isinstance(estimator.kernel, Kernel) else estimator.kernel_
    return make_kernel(estimator, name, estimator.n_features_in_, estimator.n_outputs_)


def _restore_priors(gp: OperatorValuedGP | VariationalGP, estimator) -> None:
    """Register the priors of a named kernel; those of a kernel object, in units of the data, are not stored."""
    if not has_kernel_object(estimator):
        candidates = getattr(estimator, "candidates_", {}) if estimator.kernel_ == "auto" else {}
        shown = next(iter(candidates), None)
        base = None if estimator.base_kernel == "auto" else estimator.base_kernel
        is_wide = any(one.name == shown and one.priors == WIDE_PRIORS for one in default_candidates(base))
        register_priors(gp, estimator.scaling_, None, WIDE_PRIORS if is_wide else DEFAULT_PRIORS)


MODEL_BUILDER = ModelBuilder(_rebuild_kernel, _restore_priors)
"""Rebuilds the model of a `GPRegressor` from a model file."""
