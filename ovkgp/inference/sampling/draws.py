"""Draws of hyperparameters as a sampler leaves them: plain arrays, before they have names.

Every sampler works in the variables u of `LogPosterior` and returns one of these; `ovkgp.inference.sampling.sampling` gives the
draws their names and makes the ArviZ object.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ovkgp.exceptions import FactorizationError, FitWarning, InputError

MAX_ROUNDS = 20
"""How many times as many draws as are wanted are made of an approximation, to have enough where there is a density."""


@dataclass
class HyperparameterDraws:
    """u for every chain and draw, and what the sampler says about each.

    Args:
        method: "nuts", "svi" or "laplace".
        u: the draws (chains, draws, k).
        stats: arrays (chains, draws) by name; `lp`, the log density up to a constant, is always there.
        attrs: numbers and words about the run as a whole.

    Memory: O(chains · draws · k).

    Raises:
        InputError: the shapes do not fit together.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.sampling.draws import HyperparameterDraws
        >>> draws = HyperparameterDraws("laplace", np.zeros((2, 5, 3)), {"lp": np.zeros((2, 5))})
        >>> draws.num_chains, draws.num_draws, draws.flat.shape
        (2, 5, (10, 3))
    """

    method: str
    u: np.ndarray
    stats: dict[str, np.ndarray]
    attrs: dict[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self):
        if self.u.ndim != 3:
            raise InputError(f"draws have shape (chains, draws, k), got {self.u.shape}.")
        for name, values in self.stats.items():
            if values.shape != self.u.shape[:2]:
                raise InputError(f"{name} has shape {values.shape}; the draws have {self.u.shape[:2]}.")

    @property
    def num_chains(self) -> int:
        return self.u.shape[0]

    @property
    def num_draws(self) -> int:
        """How many draws each chain has."""
        return self.u.shape[1]

    @property
    def flat(self) -> np.ndarray:
        """All draws (chains · draws, k), one chain after another."""
        return self.u.reshape(-1, self.u.shape[-1])


class InsideDraws(NamedTuple):
    """Draws of q where π is not zero: u (draws, k), log q and log π there (draws,), and how it went."""

    u: np.ndarray
    log_q: np.ndarray
    lp: np.ndarray
    num_failed: int
    interrupted: bool


def draw_inside(
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    draw: Callable[[int], tuple[np.ndarray, np.ndarray]],
    count: int,
) -> InsideDraws:
    """Draws of an approximation q that a model can be given: those where there is a density, of q restricted to there.

    log q is that of the restricted q, whose share of the mass is estimated by that of the draws. Ctrl-C keeps the draws so
    far, with a `FitWarning`; before the first it is passed on.

    Args:
        density: u (k,) ↦ log π(u) and its gradient; −∞ where there is none.
        draw: a number ↦ as many draws u (number, k) and log q there (number,), others at every call.
        count: how many.

    Cost: one evaluation a draw, and one for each that fails.

    Raises:
        FactorizationError: less than a twentieth of q lies where there is a density.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.sampling.draws import draw_inside
        >>> rng = np.random.default_rng(0)
        >>> inside = draw_inside(
        ...     lambda u: (0.0 if u[0] > 0.5 else -np.inf, u), lambda n: (rng.random((n, 1)), np.zeros(n)), 100
        ... )
        >>> inside.u.shape, bool(inside.u.min() > 0.5), inside.num_failed > 50
        ((100, 1), True, True)
    """
    found, num_failed, interrupted = [], 0, False
    try:
        for u, log_q in (pair for _ in range(MAX_ROUNDS) for pair in zip(*draw(count), strict=True)):
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
        words = f"drawing was interrupted: kept {len(found)} of {count} draws."
        warnings.warn(words, FitWarning, stacklevel=4)
    if len(found) < count and not interrupted:
        raise FactorizationError(
            f"of {MAX_ROUNDS * count} draws from the approximation only {len(found)} lie where the posterior density can be "
            'evaluated: it is no stand-in for the posterior. Use method="nuts", or give tighter priors.'
        )
    u, log_q, lp = (np.array(column) for column in zip(*found, strict=True))
    return InsideDraws(u, log_q - np.log(len(found) / (len(found) + num_failed)), lp, num_failed, interrupted)
