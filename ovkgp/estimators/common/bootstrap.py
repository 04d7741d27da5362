"""Bayesian bootstrap: fits to the same rows with random weights estimate the variability of a fit.

The weight of an observation is an exponential variable divided by their mean; a row of several observations has the sum of
their weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from ovkgp.checks import check_integer
from ovkgp.exceptions import FitWarning

STREAM = 17  # spawn key of the random numbers of the weights; features and measures use others
MIN_WEIGHT = 1e-9  # lower bound of the weights, since solvers divide by them

Fit = TypeVar("Fit")


def replicate_weights(counts: np.ndarray, num_replicates: int, seed: int) -> np.ndarray:
    """Draw weights (B, n) of B replicates; each sums to the sum of `counts` (n,), the number of observations of each row."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
    num_replicates = check_integer("num_replicates", num_replicates, minimum=2)  # it may change after the fit
    draws = np.maximum(rng.gamma(counts, size=(num_replicates, len(counts))), MIN_WEIGHT)
    return draws * (counts.sum() / draws.sum(1, keepdims=True))


def refitted_weights(solution) -> np.ndarray:
    """Return the weights of one of several fits; Ctrl-C during one ends them all."""
    if solution.report.interrupted:
        raise KeyboardInterrupt
    return solution.weights.numpy()


def replicate_fits(fit: Callable[[np.ndarray], Fit], weights: Sequence[np.ndarray], verbose: int = 0) -> list[Fit]:
    """Call `fit` with each row of weights. Ctrl-C keeps the replicates so far, if at least two, and warns."""
    found: list[Fit] = []
    try:
        for row in tqdm(weights, "replicates", disable=not verbose):
            found.append(fit(row))
    except KeyboardInterrupt:
        if len(found) < 2:
            raise
        warnings.warn(
            f"The bootstrap was interrupted; {len(found)} of {len(weights)} replicates are kept.",
            FitWarning,
            stacklevel=2,
        )
    return found
