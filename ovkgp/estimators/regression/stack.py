"""Training of `GPRegressor(kernel="auto")`: a mixture of candidates of independent outputs on standardized data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.estimators.common.named_kernels import DEFAULT_BASE_KERNEL, SEPARABLE_LIMIT, name_structure
from ovkgp.estimators.common.options import is_variational
from ovkgp.estimators.common.validation import Table, as_array
from ovkgp.estimators.regression.training import (
    TrainedModel,
    TrainingJob,
    name_hyperparameters_on_failure,
    scaled_noise,
)
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.stacking.candidates import CoupledCandidate, default_candidates
from ovkgp.inference.stacking.stack import fit_stack
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES

MIN_ROWS_PER_OUTPUT = 6  # with fewer rows, coupled outputs are candidates although none is missing
STACK = "auto"  # name of the structure of a mixture of candidates


def uses_stack(options, table: Table, checkpoint) -> bool:
    """Whether these options and data are modeled by a mixture of candidates.

    A mixture is exact and has independent outputs; it has no checkpoints, and its hyperparameters are not exported as draws.
    """
    if name_structure(options.kernel) != "auto" or isinstance(options.base_kernel, Kernel) or is_variational(options):
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
    scaling = job.standardization(job.make_kernel("independent"))
    X, Y, noise = table.scaled(scaling)
    if noise is None and not isinstance(options.noise, str):
        fixed = np.broadcast_to(scaled_noise(options.noise, scaling), Y.shape[1:])
        noise = torch.from_numpy(np.ascontiguousarray(np.broadcast_to(fixed, Y.shape)))
    data = Observations(X, Y, noise).observed_rows()
    base = None if options.base_kernel == "auto" else options.base_kernel
    candidates = [*default_candidates(base), *_coupled_candidates(data, base or DEFAULT_BASE_KERNEL, options.rank)]
    with name_hyperparameters_on_failure(options, STACK, scaling):
        stack = fit_stack(candidates, data, average=options.hyperparameters == "auto", verbose=options.verbose)
    counts = np.isfinite(table.Y).sum(0)
    shift = counts @ np.log(scaling.output_scale) / counts.sum()  # of the mean log density, in original units
    scores = {name: replace(score, log_density=score.log_density - shift) for name, score in stack.scores.items()}
    return TrainedModel(STACK, scaling, "exact", stack.gp, scores, (stack.gp, table), stack.posterior)


def _coupled_candidates(data: Observations, base: str, rank: int) -> list[CoupledCandidate]:
    """Return candidates with coupled outputs, if some are missing or rows are few per output."""
    is_scarce = data.num_rows < MIN_ROWS_PER_OUTPUT * data.num_outputs
    if data.num_outputs == 1 or data.num_observed > MAX_DENSE_ENTRIES or (data.is_complete and not is_scarce):
        return []
    coupled = [CoupledCandidate("decomposable, full noise", "icm", base, rank)]
    return coupled if data.is_complete else [*coupled, CoupledCandidate("lmc, full noise", "lmc", base, rank)]
