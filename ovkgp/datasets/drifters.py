"""Ocean currents seen by drifters: a vector field in the plane whose two Helmholtz parts are known.

    current = (∂ψ/∂north, −∂ψ/∂east) + ∇φ

The stream function ψ has a bump for every eddy, and its part of the current has no divergence; the potential φ has a
weaker bump for every place where water sinks or wells up, and its part has no curl. Positions are in km, currents in
m/s, ψ and φ therefore in 10³ m²/s. Drifters go with the current, so their reports come in short tracks with gaps between.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_integer
from ovkgp.datasets.fields import GaussianField
from ovkgp.datasets.samples import INPUTS, LABELS, NOISE, TRUTH, Sample, random_stream, with_noise
from ovkgp.exceptions import OptionError

WIDTHS = np.array([100.0, 60.0])
"""Of the region from west to east and from south to north, in km."""
REPORTS = 5
"""Positions a drifter reports."""
HOURS = 4.0
"""Between two of them."""
SPREAD = 1.0
"""Standard deviation of the random part of a step, in km."""
KM_PER_HOUR = 3.6
"""A current of 1 m/s."""


class Currents:
    """x ↦ (∂₂ψ, −∂₁ψ)(x) + ∇φ(x), with signed Gaussian bumps ψ (eddies) and φ (convergence and upwelling).

    Args:
        eddies: the divergence-free part.
        upwelling: the curl-free part.

    Attributes:
        extent: (west, east, south, north) of the region with drifters, in km.

    Cost: O(m k) time and memory for m points and k bumps.

    Example:
        >>> from ovkgp.datasets import make_drifters
        >>> currents = make_drifters(10, random_state=0).truth
        >>> centre = [[50.0, 30.0]]
        >>> currents(centre).shape, currents.stream_function(centre).shape, currents.potential(centre).shape
        ((1, 2), (1,), (1,))
    """

    extent = (0.0, float(WIDTHS[0]), 0.0, float(WIDTHS[1]))

    def __init__(self, eddies: GaussianField, upwelling: GaussianField):
        self.eddies, self.upwelling = eddies, upwelling

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """The current, east and north, at the rows of X (m, 2): (m, 2) in m/s."""
        return self.eddies(X) + self.upwelling(X)

    def stream_function(self, X: ArrayLike) -> np.ndarray:
        """ψ at the rows of X (m, 2): (m,); positive where an eddy turns anticlockwise."""
        return self.eddies.potential(X)

    def potential(self, X: ArrayLike) -> np.ndarray:
        """φ at the rows of X (m, 2): (m,); currents go up the slope, and meet where it is largest."""
        return self.upwelling.potential(X)


def make_drifters(
    num_rows: int = 150, *, noise: ArrayLike = 0.0025, missing: float = 0.15, random_state=None
) -> Sample:
    """Currents measured by drifters in a region of 100 km × 60 km, with noise and missing components.

    Six eddies of either sign, 0.35 to 0.6 m/s at their fastest, and three weaker places of convergence or upwelling. Each
    drifter starts at random, goes with the current and a random walk, and reports five times, every four hours.

    Args:
        num_rows: n, the reports of all drifters.
        noise: the variance of a measured component in (m/s)²: one, one a component (2,), or a covariance (2, 2).
        missing: the fraction of components that are missing, at most a half: no report misses both.
        random_state: as in scikit-learn. One int gives one truth, and the same first rows for every n.

    Returns:
        X (n, 2), east and north in km; Y (n, 2), the current towards east and north in m/s, NaN where missing; and the
        truth, `Currents`, which has `stream_function` and `potential`, the two parts behind it.

    Cost: O(n) time and memory.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets import make_drifters
        >>> X, Y, truth = make_drifters(150, random_state=0)
        >>> X.shape, Y.shape, int(np.isnan(Y).sum())
        ((150, 2), (150, 2), 51)
    """
    num_rows, seed = check_integer("num_rows", num_rows), as_seed(random_state)
    if not 0 <= missing <= 0.5:
        raise OptionError(f"missing is the fraction of components left out, from 0 to 0.5; got {missing!r}.")
    truth = random_currents(random_stream(seed, TRUTH))
    X = tracks(truth, -(-num_rows // REPORTS), random_stream(seed, INPUTS))[:num_rows]
    Y = with_noise(truth(X), noise, random_stream(seed, NOISE))
    lot = random_stream(seed, LABELS).uniform(size=num_rows)
    Y[lot < missing, 0] = np.nan
    Y[lot > 1 - missing, 1] = np.nan
    return Sample(X, Y, truth)


def random_currents(rng: np.random.Generator) -> Currents:
    """Six eddies and three places of convergence or upwelling, each spread over the region."""
    eddies = _bumps(6, lengthscale=11.0, speeds=(0.35, 0.6), kind="divergence_free", rng=rng)
    return Currents(eddies, _bumps(3, lengthscale=16.0, speeds=(0.15, 0.22), kind="curl_free", rng=rng))


def _bumps(number: int, *, lengthscale: float, speeds: tuple, kind: str, rng: np.random.Generator) -> GaussianField:
    """Bumps of alternating sign; one of height h is fastest at its lengthscale, |h| e^(−1/2) / lengthscale."""
    signs = (-1.0) ** np.arange(number)
    heights = signs * rng.uniform(*speeds, number) * lengthscale * np.exp(0.5)
    return GaussianField(_apart(number, rng), heights, lengthscale, kind)


def _apart(number: int, rng: np.random.Generator) -> np.ndarray:
    """Points (number, 2) of the region, each the one of 30 candidates that is furthest from those before."""
    chosen = rng.uniform(size=(1, 2)) * WIDTHS
    while len(chosen) < number:
        candidates = rng.uniform(size=(30, 2)) * WIDTHS
        distances = np.linalg.norm(candidates[:, None] - chosen, axis=-1).min(1)
        chosen = np.vstack([chosen, candidates[distances.argmax()]])
    return chosen


def tracks(currents: Currents, num_drifters: int, rng: np.random.Generator) -> np.ndarray:
    """The reported positions (5 · num_drifters, 2), drifter by drifter; one that reaches the border turns back."""
    starts, wander = np.empty((num_drifters, 2)), np.empty((REPORTS, num_drifters, 2))
    for drifter in range(num_drifters):  # one after another, so that further drifters change none of the first
        starts[drifter] = rng.uniform(size=2) * WIDTHS
        wander[:, drifter] = SPREAD * rng.standard_normal((REPORTS, 2))
    positions = [starts]
    for step in wander[1:]:
        there = positions[-1] + KM_PER_HOUR * HOURS * currents(positions[-1]) + step
        positions.append(WIDTHS - abs(WIDTHS - abs(there)))
    return np.stack(positions, axis=1).reshape(-1, 2)
