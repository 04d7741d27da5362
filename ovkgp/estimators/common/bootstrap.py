"""The Bayesian bootstrap: fits to the same rows with random weights show how a fit varies with the data.

Each observation weighs an exponential variable, divided by their mean. A row that stands for several observations weighs the sum of theirs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from ovkgp.checks import check_integer
from ovkgp.exceptions import FitWarning

STREAM = 17
"""The stream of random numbers of a seed that weights are drawn from: no feature or measure uses it."""
SMALLEST = 1e-9
"""No weight is smaller, as solvers divide by them."""

Fit = TypeVar("Fit")


def check_replicates(options) -> int:
    """B, the option `num_replicates` of an estimator: one fit alone has no spread."""
    return check_integer("num_replicates", options.num_replicates, least=2)


def replicate_weights(counts: np.ndarray, num_replicates: int, seed: int) -> np.ndarray:
    """Weights (B, n) of B replicates, each with the sum of the counts.

    Args:
        counts: the observations that each row stands for (n,).
        num_replicates: B.
        seed: of the draws.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.common.bootstrap import replicate_weights
        >>> replicate_weights(np.array([1.0, 1.0, 4.0]), 2, seed=0).sum(1).round(9)
        array([6., 6.])
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
    draws = np.maximum(rng.gamma(counts, size=(num_replicates, len(counts))), SMALLEST)
    return draws * (counts.sum() / draws.sum(1, keepdims=True))


def replicate_fits(fit: Callable[[np.ndarray], Fit], weights: Sequence[np.ndarray], verbose: int = 0) -> list[Fit]:
    """`fit` of each row of weights. Ctrl-C keeps those that are there, if two are, and warns.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.common.bootstrap import replicate_fits
        >>> replicate_fits(np.sum, np.ones((3, 2))) == [2.0, 2.0, 2.0]
        True
    """
    found: list[Fit] = []
    try:
        for row in tqdm(weights, "replicates", disable=not verbose):
            found.append(fit(row))
    except KeyboardInterrupt:
        if len(found) < 2:
            raise
        warnings.warn(f"interrupted: {len(found)} of {len(weights)} replicates are kept.", FitWarning, stacklevel=2)
    return found
