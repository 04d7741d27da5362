"""Quantiles of a predictive mixture from its distribution function, for many entries at once.

Continuous laws: Ridders' method on the normal score Φ⁻¹(F(y)), in which a law that is nearly normal is
nearly a straight line. Counts: bisection over the integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.exceptions import FactorisationError, OptionError

MOST_STEPS = 200
"""Of widening or of halving a bracket."""
LARGEST_COUNT = 2.0**50
"""Beyond it whole numbers in float64 are no longer safe."""
TOLERANCE = 1e-12
"""Of a quantile, relative to the standard deviation of its law plus its own size."""


def require_level(q: float) -> float:
    """A level strictly between 0 and 1."""
    if not 0 < q < 1:
        raise OptionError(f"quantile levels lie strictly between 0 and 1, got {q}.")
    return float(q)


@torch.no_grad()
def continuous_quantile(cdf: Callable[[Tensor], Tensor], q: float, centre: Tensor, spread: Tensor) -> Tensor:
    """y (m, p) with cdf(y) = q.

    Args:
        cdf: an increasing function of (m, p) for each entry.
        q: the level.
        centre, spread: about where the law lies and how wide it is, (m, p).

    Cost: about 10 to 20 calls of `cdf`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quantiles import continuous_quantile
        >>> centre, spread = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
        >>> round(continuous_quantile(torch.special.ndtr, 0.975, centre, spread).item(), 9)
        1.959963985
    """
    target = torch.special.ndtri(torch.tensor(require_level(q), dtype=torch.float64)).item()

    def score(y: Tensor) -> Tensor:
        level = cdf(y).clamp(1e-300, 1 - 2**-53)
        return torch.special.ndtri(level) - target

    low, high = _bracket(score, centre, spread)
    return _ridders(score, low, high, spread)


def _bracket(score: Callable[[Tensor], Tensor], centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    low, high, width = centre - spread, centre + spread, spread.clone()
    for _ in range(MOST_STEPS):
        below, above = score(low) <= 0, score(high) >= 0
        if bool((below & above).all()):
            return low, high
        width = 2 * width
        low, high = torch.where(below, low, centre - width), torch.where(above, high, centre + width)
    raise FactorisationError(
        "no interval holds the quantile: the predictive law is too wide, or its moments are not finite."
    )


def _ridders(score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, spread: Tensor) -> Tensor:
    """Ridders' method: the bracket is at least halved at every step, and the root found quadratically."""
    at_low, at_high, root = score(low), score(high), low
    for _ in range(MOST_STEPS):
        middle = (low + high) / 2
        at_middle = score(middle)
        bend = (at_middle.square() - at_low * at_high).sqrt()
        last, root = root, middle - (middle - low) * torch.where(bend > 0, at_middle / bend, 0.0)
        if bool(((root - last).abs() <= TOLERANCE * (spread + root.abs())).all()):
            break
        at_root = score(root)
        for point, value in ((middle, at_middle), (root, at_root)):
            inside, left = (point >= low) & (point <= high), value <= 0
            low, at_low = torch.where(inside & left, point, low), torch.where(inside & left, value, at_low)
            high, at_high = torch.where(inside & ~left, point, high), torch.where(inside & ~left, value, at_high)
    return root


@torch.no_grad()
def count_quantile(cdf: Callable[[Tensor], Tensor], q: float, guess: Tensor) -> Tensor:
    """The smallest whole number k (m, p) with cdf(k) ≥ q.

    Args:
        cdf: an increasing function of (m, p) for each entry.
        q: the level.
        guess: about how large a count may be, (m, p).

    Cost: about 2 log₂(1 + k) calls of `cdf`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quantiles import count_quantile
        >>> halving = lambda k: 1 - 0.5 ** (k + 1)  # a geometric law
        >>> count_quantile(halving, 0.9, torch.ones(1, 1).double()).item()
        3.0
    """
    q = require_level(q)
    low, high = torch.full_like(guess, -1.0), guess.clamp(1.0, LARGEST_COUNT).ceil()
    while bool((short := cdf(high) < q).any()):
        if bool((high[short] >= LARGEST_COUNT).any()):
            raise FactorisationError(
                f"a quantile is above {LARGEST_COUNT:g} counts: the latent mean or variance is too large to be a log-mean."
            )
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        enough = cdf(middle) >= q
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
