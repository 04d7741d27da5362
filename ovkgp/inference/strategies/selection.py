"""Which linear algebra the structure at hand allows.

| kernel | outputs | road |
|---|---|---|
| independent outputs, diagonal noise | complete or missing | one road for each output |
| any, with a feature map | complete or missing | weight space on additive statistics |
| separable, one component, several outputs | complete | two eigendecompositions (conditioning: one Cholesky factor where Γ is a multiple of the noise) |
| any, at most 5000 observed entries | complete or missing | dense Cholesky |
| separable, larger | complete or missing | conjugate gradients with Kronecker products |
| not separable, larger | | an error that names ORFF |
"""

from __future__ import annotations

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.exact import DenseStrategy, IterativeStrategy, KroneckerStrategy
from ovkgp.inference.strategies.features import FeatureStrategy
from ovkgp.inference.strategies.independent import IndependentStrategy
from ovkgp.kernels import IndependentKernel, components

DENSE_LIMIT = 5000
"""Observed entries up to which a dense Cholesky factor is taken."""

STRATEGIES = ("auto", "kronecker", "dense", "iterative", "features")


def select_strategy(model: Model, data: Observations, strategy: str = "auto"):
    """The road for a model and its data; a named road is checked and taken."""
    if strategy != "auto":
        return _named(model, data, strategy)
    if is_decoupled(model, data):
        return IndependentStrategy(select_strategy)
    if model.features is not None:
        return FeatureStrategy()
    if has_kronecker_form(model, data) and data.num_outputs > 1:
        return KroneckerStrategy()
    if data.num_observed <= DENSE_LIMIT:
        return DenseStrategy()
    if has_kronecker_form(model, data):
        return KroneckerStrategy()
    if components(model.kernel) is not None:
        return IterativeStrategy()
    raise InputError(
        f"{data.num_observed} observed entries are too many for a dense solve (limit {DENSE_LIMIT}), and the kernel "
        f"{type(model.kernel).__name__} is not separable. Give the model random features: "
        "OperatorValuedGP(kernel, features=ORFF(kernel, num_frequencies=500)) from ovkgp.features, or a subset of the data."
    )


def is_decoupled(model: Model, data: Observations) -> bool:
    """Whether the outputs share nothing: neither the kernel nor the noise ties them."""
    return isinstance(model.kernel, IndependentKernel) and (model.noise.is_diagonal or data.noise is not None)


def streaming_strategy(model: Model) -> FeatureStrategy | IndependentStrategy:
    """The road whose statistics describe any part of a stream."""
    decoupled = isinstance(model.kernel, IndependentKernel) and model.noise.is_diagonal
    return IndependentStrategy(select_strategy) if decoupled else FeatureStrategy()


def strategy_for_statistics(statistics: Statistics | OutputStatistics) -> FeatureStrategy | IndependentStrategy:
    """The road that some statistics belong to."""
    return IndependentStrategy(select_strategy) if isinstance(statistics, OutputStatistics) else FeatureStrategy()


def has_kronecker_form(model: Model, data: Observations) -> bool:
    """Whether the covariance of the data is K ⊗ Γ + I ⊗ Σ."""
    parts = components(model.kernel)
    return parts is not None and len(parts) == 1 and data.is_complete and data.noise is None


def _named(model: Model, data: Observations, strategy: str):
    if strategy == "kronecker":
        if not has_kronecker_form(model, data):
            raise OptionError(
                "the Kronecker road needs a separable kernel with one component, complete outputs and noise that is alike "
                'at all points; use road="auto".'
            )
        return KroneckerStrategy()
    if strategy == "iterative" and components(model.kernel) is None:
        raise OptionError('the iterative road needs a separable kernel; use road="auto".')
    if strategy == "features" and model.features is None:
        raise OptionError('road="features" needs a feature map: OperatorValuedGP(kernel, features=ORFF(kernel)).')
    strategies = {"dense": DenseStrategy, "iterative": IterativeStrategy, "features": FeatureStrategy}
    return strategies[strategy]()


def check_strategy(strategy: str) -> str:
    """Refuse a road that there is not."""
    if strategy not in STRATEGIES:
        raise OptionError(f"road must be one of {', '.join(map(repr, STRATEGIES))}, got {strategy!r}.")
    return strategy
