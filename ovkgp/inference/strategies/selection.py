"""Selection of the inference strategy from the structure of model and data.

| kernel | outputs | strategy |
|---|---|---|
| independent outputs, diagonal noise | complete or missing | one strategy per output |
| any, with a feature map | complete or missing | weight space on additive statistics |
| one input; Markov terms (Matérn, constant, linear, integrated Brownian, seasonal, products); more than 1000 observed entries | complete or missing | Kalman filter |
| separable, one component, several outputs | complete | two eigendecompositions (conditioning: one Cholesky factor if Γ is a multiple of the noise) |
| separable, one component, at most 5000 missing entries | missing, cheaper than dense | complete inverse, corrected by a Cholesky factor between the missing entries |
| any, at most 5000 observed entries | complete or missing | dense Cholesky |
| separable, larger | complete or missing | conjugate gradients with Kronecker products |
| not separable, larger | | an error that recommends ORFF |

A new strategy is a file of this folder with a class that follows `Strategy`, and one row of `STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.checks import check_one_of
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.exact import (
    DenseStrategy,
    IterativeStrategy,
    KroneckerMissingStrategy,
    KroneckerStrategy,
)
from ovkgp.inference.strategies.features import FeatureStrategy
from ovkgp.inference.strategies.independent import IndependentStrategy
from ovkgp.inference.strategies.state_space import MAX_STATE_ENTRIES, StateSpaceStrategy, state_size
from ovkgp.kernels import IndependentKernel

MAX_DENSE_ENTRIES = 5000  # observed (or missing) entries up to which a dense Cholesky factor is used
MIN_STATE_SPACE_ENTRIES = 1000  # observed entries from which a Kalman filter is faster than a dense factor
MIN_MISSING_ENTRIES = 500  # observed entries below which one dense matrix is cheaper than several small ones


class Strategy(Protocol):
    """Linear algebra with C = K + Σ between the observed entries of data, and the residuals y − m.

    A strategy on statistics also has `statistics(model, data, into)`, `log_evidence_from_statistics(model, statistics)`
    and `condition_on_statistics(model, statistics, num_landmarks)`.
    """

    name: str
    requirement: str
    """End of the error message if the strategy is requested but not supported."""

    def supports(self, model: Model, data: Observations) -> bool:
        """Whether the structure of model and data allows this strategy."""

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        """Compute log N(y − m | 0, C), differentiable in the hyperparameters."""

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> Posterior:
        """Compute the posterior of a frozen model, and set its `conditioning`."""

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        """Compute the predictive density of each entry given all others."""

    def leave_groups_out(self, model: Model, data: Observations, groups: Tensor) -> LeaveGroupOut:
        """Compute the predictive density of each group given all others; `groups` (n,) has the indices 0, …, G − 1."""

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        """Compute C^(−½) (y − m) with the symmetric root, (n, p), NaN if missing."""


class Row(NamedTuple):
    """A strategy, and whether "auto" takes it where it is supported and no row above is taken."""

    strategy: Strategy
    is_preferred: Callable[[Model, Observations], bool] = lambda model, data: True


def select_strategy(model: Model, data: Observations, strategy: str = "auto") -> Strategy:
    """Select the strategy for a model and its data; a named strategy is validated."""
    if strategy != "auto":
        found = STRATEGIES[strategy].strategy
        if not found.supports(model, data):
            raise OptionError(f'strategy="{strategy}" needs {found.requirement}')
        return found
    for found, is_preferred in STRATEGIES.values():
        if is_preferred(model, data) and found.supports(model, data):
            return found
    raise InputError(
        f"Y has {data.num_observed} observed entries, more than the {MAX_DENSE_ENTRIES} of a dense solve, and the "
        f"kernel {type(model.kernel).__name__} is not separable. Use random features, "
        "OperatorValuedGP(kernel, features=ORFF(kernel, num_frequencies=500)) from ovkgp.features, or a subset of the "
        "data."
    )


def streaming_strategy(model: Model) -> FeatureStrategy | IndependentStrategy:
    """Return the strategy whose statistics describe any part of a stream."""
    is_independent = STRATEGIES["independent"].strategy.supports(model, None)
    return STRATEGIES["independent" if is_independent else "features"].strategy


def strategy_for_statistics(statistics: Statistics | OutputStatistics) -> FeatureStrategy | IndependentStrategy:
    """Return the strategy to which some statistics belong."""
    return STRATEGIES["independent" if isinstance(statistics, OutputStatistics) else "features"].strategy


def check_strategy(strategy: str) -> str:
    """Check that `strategy` is a known strategy name."""
    return check_one_of("strategy", strategy, ("auto", *STRATEGIES))


def fits_state_space(kernel: Kernel, num_dims: int, num_rows: int) -> bool:
    """Whether a Kalman filter is exact for this kernel, and its states of all rows fit into memory."""
    if isinstance(kernel, IndependentKernel):
        return all(fits_state_space(part, num_dims, num_rows) for part in kernel.kernels)
    return num_dims == 1 and num_rows * state_size(kernel) ** 2 <= MAX_STATE_ENTRIES


def is_cheaper_than_dense(data: Observations) -> bool:
    """Whether matrices between rows, outputs and missing entries are cheaper than those between the observed entries.

    The operations of one evidence with its gradient are compared, as measured on data of 80 to 3700 observed entries.
    """
    (n, p), N, k = data.Y.shape, data.num_observed, data.num_missing
    if data.is_complete or N < MIN_MISSING_ENTRIES or k > MAX_DENSE_ENTRIES:
        return False
    return N > MAX_DENSE_ENTRIES or 2 * k**3 + 2 * k**2 * (n + p) + 10 * (n**3 + p**3) + n * p * (n**2 + p**2) < N**3


STRATEGIES: dict[str, Row] = {
    "independent": Row(IndependentStrategy(select_strategy)),
    "features": Row(FeatureStrategy(), lambda model, data: model.features is not None),
    "state_space": Row(StateSpaceStrategy(), lambda model, data: data.num_observed > MIN_STATE_SPACE_ENTRIES),
    "kronecker": Row(
        KroneckerStrategy(), lambda model, data: data.num_outputs > 1 or data.num_observed > MAX_DENSE_ENTRIES
    ),
    "kronecker_missing": Row(KroneckerMissingStrategy(), lambda model, data: is_cheaper_than_dense(data)),
    "dense": Row(DenseStrategy(), lambda model, data: data.num_observed <= MAX_DENSE_ENTRIES),
    "iterative": Row(IterativeStrategy()),
}
"""Strategies by name, in the order in which "auto" considers them."""
