"""Draws of hyperparameters as a sampler leaves them: plain arrays, before they have names.

Every sampler works in the variables u of `LogPosterior` and returns one of these; `ovkgp.inference.sampling` gives the
draws their names and makes the ArviZ object.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ovkgp.exceptions import InputError


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
        >>> from ovkgp.inference.hyperparameter_draws import HyperparameterDraws
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
