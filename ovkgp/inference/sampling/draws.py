"""Draws of hyperparameters as arrays in the variables u of `LogPosterior`, as every sampler returns them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ovkgp.exceptions import FactorizationError, FitWarning, InputError

MAX_DRAW_ROUNDS = 20  # maximum number of proposed draws of an approximation per requested draw


@dataclass
class HyperparameterDraws:
    """Draws u (chains, draws, k) of a sampler and its statistics.

    `stats` has arrays (chains, draws) by name, always including the log density `lp`; `attrs` describes the whole run.
    """

    method: str
    u: np.ndarray
    stats: dict[str, np.ndarray]
    attrs: dict[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self):
        if self.u.ndim != 3:
            raise InputError(f"u has shape {self.u.shape}, expected (chains, draws, k).")
        for name, values in self.stats.items():
            if values.shape != self.u.shape[:2]:
                raise InputError(f"{name} has shape {values.shape}, expected {self.u.shape[:2]}.")

    @property
    def num_chains(self) -> int:
        return self.u.shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws per chain."""
        return self.u.shape[1]

    @property
    def flat(self) -> np.ndarray:
        """All draws (chains · draws, k), one chain after another."""
        return self.u.reshape(-1, self.u.shape[-1])


class FiniteDraws(NamedTuple):
    """Draws of q where π > 0: u (draws, k), log q and log π there (draws,), number of failures, and whether it was
    interrupted."""

    u: np.ndarray
    log_q: np.ndarray
    lp: np.ndarray
    num_failed: int
    interrupted: bool


def draw_where_finite(
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    draw: Callable[[int], tuple[np.ndarray, np.ndarray]],
    count: int,
) -> FiniteDraws:
    """Draw `count` times from an approximation q restricted to where the density is not zero.

    `draw` maps a number to as many new draws u (number, k) and log q there (number,). The returned log q is that of the
    restricted q, whose mass is estimated from the draws. Ctrl-C keeps the draws so far with a `FitWarning`; before the
    first it is raised. Raises `FactorizationError` if less than a twentieth of q lies where there is a density.
    """
    found, num_failed, interrupted = [], 0, False
    try:
        for u, log_q in (pair for _ in range(MAX_DRAW_ROUNDS) for pair in zip(*draw(count), strict=True)):
            value = density(u)[0]
            if np.isfinite(value):
                found.append((u, log_q, value))
            else:
                num_failed += 1
            if len(found) == count:
                break
    except KeyboardInterrupt:
        if not found:
            raise
        interrupted = True
        warnings.warn(f"Sampling was interrupted; {len(found)} of {count} draws are kept.", FitWarning, stacklevel=4)
    if len(found) < count and not interrupted:
        raise FactorizationError(
            f"Only {len(found)} of {MAX_DRAW_ROUNDS * count} draws from the approximation lie where the posterior density can "
            'be evaluated. Use method="nuts" or tighter priors.'
        )
    u, log_q, lp = (np.array(column) for column in zip(*found, strict=True))
    return FiniteDraws(u, log_q - np.log(len(found) / (len(found) + num_failed)), lp, num_failed, interrupted)
