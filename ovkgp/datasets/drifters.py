"""Ocean currents observed by drifters: a vector field in the plane whose two Helmholtz parts are known.

    current = (∂ψ/∂north, −∂ψ/∂east) + ∇φ

The stream function ψ has one bump per eddy and gives the divergence-free part; the potential φ has weaker bumps where
water sinks or rises and gives the curl-free part. Positions are in km, currents in m/s, ψ and φ in 10³ m²/s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_integer
from ovkgp.datasets.fields import GaussianField
from ovkgp.datasets.samples import INPUTS, LABELS, NOISE, TRUTH, Sample, add_noise, make_rng
from ovkgp.exceptions import OptionError

WIDTHS_KM = np.array([100.0, 60.0])  # widths of the region from west to east and from south to north
NUM_REPORTS = 5  # number of positions per drifter
REPORT_INTERVAL_HOURS = 4.0  # time between two reports
STEP_STD_KM = 1.0  # standard deviation of the random part of a step
KM_PER_HOUR = 3.6  # speed of a current of 1 m/s


class Currents:
    """Sum (∂₂ψ, −∂₁ψ) + ∇φ of `eddies` (divergence-free) and `upwelling` (curl-free), with Gaussian bumps ψ and φ.

    `extent` is (west, east, south, north) of the region in km. Complexity: O(m k) for m points and k bumps.
    """

    extent = (0.0, float(WIDTHS_KM[0]), 0.0, float(WIDTHS_KM[1]))

    def __init__(self, eddies: GaussianField, upwelling: GaussianField):
        self.eddies, self.upwelling = eddies, upwelling

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Return the current, east and north, at points X (m, 2): (m, 2) in m/s."""
        return self.eddies(X) + self.upwelling(X)

    def stream_function(self, X: ArrayLike) -> np.ndarray:
        """Return ψ at points X (m, 2): (m,), positive where an eddy rotates anticlockwise."""
        return self.eddies.potential(X)

    def potential(self, X: ArrayLike) -> np.ndarray:
        """Return φ at points X (m, 2): (m,), largest where currents converge."""
        return self.upwelling.potential(X)


def make_drifters(
    num_rows: int = 150, *, noise: ArrayLike = 0.0025, missing: float = 0.15, random_state=None
) -> Sample:
    """Generate currents measured by drifters in a region of 100 km × 60 km, with noise and missing components.

    There are six eddies of either sign, with maximum speeds from 0.35 to 0.6 m/s, and three weaker centers of
    convergence or upwelling. Each drifter begins at a random position, follows the current and a random walk, and
    reports five times, every four hours.

    Parameters
    ----------
    num_rows : int, default=150
        Number n of reports of all drifters.
    noise : float or array-like, default=0.0025
        Noise variance in (m/s)²: one value, one per component (2,), or a covariance (2, 2).
    missing : float, default=0.15
        Fraction of missing components, at most 0.5. No report misses both components.
    random_state : int, RandomState or None, default=None
        Seed. One int gives one ground truth, and the same first rows for every n.

    Returns
    -------
    Sample
        X (n, 2), east and north in km; Y (n, 2), the current towards east and north in m/s, NaN where missing; and the
        ground truth `Currents` with its methods `stream_function` and `potential`.

    Notes
    -----
    Complexity: O(n) time and memory.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.datasets import make_drifters
    >>> X, Y, truth = make_drifters(150, random_state=0)
    >>> X.shape, Y.shape, int(np.isnan(Y).sum())
    ((150, 2), (150, 2), 51)
    """
    num_rows, seed = check_integer("num_rows", num_rows), as_seed(random_state)
    if not 0 <= missing <= 0.5:
        raise OptionError(f"missing must be a fraction between 0 and 0.5, got {missing!r}.")
    truth = draw_currents(make_rng(seed, TRUTH))
    X = simulate_tracks(truth, -(-num_rows // NUM_REPORTS), make_rng(seed, INPUTS))[:num_rows]
    Y = add_noise(truth(X), noise, make_rng(seed, NOISE))
    uniforms = make_rng(seed, LABELS).uniform(size=num_rows)
    Y[uniforms < missing, 0] = np.nan
    Y[uniforms > 1 - missing, 1] = np.nan
    return Sample(X, Y, truth)


def draw_currents(rng: np.random.Generator) -> Currents:
    """Draw six eddies and three centers of convergence or upwelling, distributed over the region."""
    eddies = _bumps(6, lengthscale=11.0, speeds=(0.35, 0.6), kind="divergence_free", rng=rng)
    return Currents(eddies, _bumps(3, lengthscale=16.0, speeds=(0.15, 0.22), kind="curl_free", rng=rng))


def _bumps(number: int, *, lengthscale: float, speeds: tuple, kind: str, rng: np.random.Generator) -> GaussianField:
    """Draw bumps of alternating sign; one of height h is fastest at its lengthscale, |h| e^(−1/2) / lengthscale."""
    signs = (-1.0) ** np.arange(number)
    heights = signs * rng.uniform(*speeds, number) * lengthscale * np.exp(0.5)
    return GaussianField(_sample_distant_points(number, rng), heights, lengthscale, kind)


def _sample_distant_points(number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw points (number, 2) of the region, each the one of 30 candidates that is furthest from the previous ones."""
    chosen = rng.uniform(size=(1, 2)) * WIDTHS_KM
    while len(chosen) < number:
        candidates = rng.uniform(size=(30, 2)) * WIDTHS_KM
        distances = np.linalg.norm(candidates[:, None] - chosen, axis=-1).min(1)
        chosen = np.vstack([chosen, candidates[distances.argmax()]])
    return chosen


def simulate_tracks(currents: Currents, num_drifters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the reported positions (5 · num_drifters, 2), drifter by drifter; drifters are reflected at the border."""
    initial, random_walk = np.empty((num_drifters, 2)), np.empty((NUM_REPORTS, num_drifters, 2))
    for drifter in range(num_drifters):  # one after another, so that more drifters do not change the first ones
        initial[drifter] = rng.uniform(size=2) * WIDTHS_KM
        random_walk[:, drifter] = STEP_STD_KM * rng.standard_normal((NUM_REPORTS, 2))
    positions = [initial]
    for step in random_walk[1:]:
        moved = positions[-1] + KM_PER_HOUR * REPORT_INTERVAL_HOURS * currents(positions[-1]) + step
        positions.append(WIDTHS_KM - abs(WIDTHS_KM - abs(moved)))
    return np.stack(positions, axis=1).reshape(-1, 2)
