"""Selection of the inference strategy from the structure of model and data.

| kernel | outputs | strategy |
|---|---|---|
| independent outputs, diagonal noise | complete or missing | one strategy per output |
| any, with a feature map | complete or missing | weight space on additive statistics |
| separable, one component, several outputs | complete | two eigendecompositions (conditioning: one Cholesky factor if Γ is a multiple of the noise) |
| any, at most 5000 observed entries | complete or missing | dense Cholesky |
| separable, larger | complete or missing | conjugate gradients with Kronecker products |
| not separable, larger | | an error that recommends ORFF |
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

MAX_DENSE_ENTRIES = 5000  # observed entries up to which a dense Cholesky factor is used

STRATEGIES = ("auto", "kronecker", "dense", "iterative", "features")


def select_strategy(model: Model, data: Observations, strategy: str = "auto"):
    """Select the strategy for a model and its data; a named strategy is validated."""
    if strategy != "auto":
        return _make_named_strategy(model, data, strategy)
    if is_decoupled(model, data):
        return IndependentStrategy(select_strategy)
    if model.features is not None:
        return FeatureStrategy()
    if has_kronecker_form(model, data) and data.num_outputs > 1:
        return KroneckerStrategy()
    if data.num_observed <= MAX_DENSE_ENTRIES:
        return DenseStrategy()
    if has_kronecker_form(model, data):
        return KroneckerStrategy()
    if components(model.kernel) is not None:
        return IterativeStrategy()
    raise InputError(
        f"Y has {data.num_observed} observed entries, more than the {MAX_DENSE_ENTRIES} of a dense solve, and the "
        f"kernel {type(model.kernel).__name__} is not separable. Use random features, "
        "OperatorValuedGP(kernel, features=ORFF(kernel, num_frequencies=500)) from ovkgp.features, or a subset of the "
        "data."
    )


def is_decoupled(model: Model, data: Observations) -> bool:
    """Whether the outputs are independent: neither the kernel nor the noise couples them."""
    return isinstance(model.kernel, IndependentKernel) and (model.noise.is_diagonal or data.noise is not None)


def streaming_strategy(model: Model) -> FeatureStrategy | IndependentStrategy:
    """Return the strategy whose statistics describe any part of a stream."""
    decoupled = isinstance(model.kernel, IndependentKernel) and model.noise.is_diagonal
    return IndependentStrategy(select_strategy) if decoupled else FeatureStrategy()


def strategy_for_statistics(statistics: Statistics | OutputStatistics) -> FeatureStrategy | IndependentStrategy:
    """Return the strategy to which some statistics belong."""
    return IndependentStrategy(select_strategy) if isinstance(statistics, OutputStatistics) else FeatureStrategy()


def has_kronecker_form(model: Model, data: Observations) -> bool:
    """Whether the covariance of the data is K ⊗ Γ + I ⊗ Σ."""
    parts = components(model.kernel)
    return parts is not None and len(parts) == 1 and data.is_complete and data.noise is None


def _make_named_strategy(model: Model, data: Observations, strategy: str):
    if strategy == "kronecker":
        if not has_kronecker_form(model, data):
            raise OptionError(
                'strategy="kronecker" needs a separable kernel with one component, complete outputs and equal noise at all points. Use strategy="auto".'
            )
        return KroneckerStrategy()
    if strategy == "iterative" and components(model.kernel) is None:
        raise OptionError('strategy="iterative" needs a separable kernel. Use strategy="auto".')
    if strategy == "features" and model.features is None:
        raise OptionError(
            'strategy="features" needs a feature map. Use OperatorValuedGP(kernel, features=ORFF(kernel)).'
        )
    strategies = {"dense": DenseStrategy, "iterative": IterativeStrategy, "features": FeatureStrategy}
    return strategies[strategy]()


def check_strategy(strategy: str) -> str:
    """Check that `strategy` is a known strategy name."""
    if strategy not in STRATEGIES:
        raise OptionError(f"strategy must be one of {', '.join(map(repr, STRATEGIES))}, got {strategy!r}.")
    return strategy
