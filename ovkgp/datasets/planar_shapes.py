"""Points on curves in the plane: two moons, and nested circles beside them, few of them labeled (BT-114); a spiral (KT-63).

Moons and circles are circles and half-circles, so the ground truth is known everywhere: a point belongs to the nearest curve.
Rows without a label have NaN outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.datasets import make_circles, make_moons

from ovkgp.checks import as_seed, check_integer, check_nonnegative, check_one_of
from ovkgp.datasets.samples import INPUTS, LABELS, NOISE, Sample, check_points, derive_seed, make_rng
from ovkgp.exceptions import OptionError
from ovkgp.kernels import simplex_code

CODINGS = ("simplex", "one_hot")
CIRCLES_CENTER = (-2.75, 0.25)
INNER_RADIUS = 0.5


class Arc(NamedTuple):
    """Circle in the plane (side 0), or its upper (1) or lower (−1) half."""

    center: tuple[float, float]
    radius: float
    side: int = 0

    def distances(self, X: ArrayLike) -> np.ndarray:
        """Return the distance from each row of X (m, 2) to the curve: (m,)."""
        lags = check_points(X, 2) - self.center
        to_circle = abs(np.hypot(*lags.T) - self.radius)
        to_ends = np.hypot(abs(lags[:, 0]) - self.radius, lags[:, 1])
        return np.where(self.side * lags[:, 1] >= 0, to_circle, to_ends)


MOONS = (Arc((0.0, 0.0), 1.0, side=1), Arc((1.0, 0.5), 1.0, side=-1))
CIRCLES = (Arc(CIRCLES_CENTER, 1.0), Arc(CIRCLES_CENTER, INNER_RADIUS))


class NearestCurve:
    """Function from x to the code of the nearest curve, for one curve per class and `codes` (c, p) of the classes."""

    def __init__(self, curves: tuple[Arc, ...], codes: np.ndarray):
        self.curves, self.codes = curves, codes

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Return the outputs at points X (m, 2): (m, p)."""
        return self.codes[self.classes(X)]

    def classes(self, X: ArrayLike) -> np.ndarray:
        """Return the class of each row of X (m, 2): integers (m,)."""
        return np.argmin([curve.distances(X) for curve in self.curves], axis=0)


def make_two_moons(num_rows: int, *, num_labels: int = 2, noise: float = 0.05, random_state=None) -> Sample:
    """Generate scikit-learn's two moons with few labels: −1 on the upper moon, 1 on the lower, NaN elsewhere (BT-114).

    Parameters
    ----------
    num_rows : int
        Number n of rows, half of them on each moon.
    num_labels : int, default=2
        Number of labeled rows per class.
    noise : float, default=0.05
        Standard deviation of the points around their curve.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    Sample
        X (n, 2), Y (n, 1) and the ground truth, a `NearestCurve`: ±1 everywhere, with `classes` 0 and 1. A label is
        that of the curve from which a point was drawn; far from it (the distance of the moons is 0.5) another curve can be
        nearer.

    Notes
    -----
    Complexity: O(n) time and memory.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.datasets import make_two_moons
    >>> X, Y, truth = make_two_moons(200, num_labels=3, random_state=0)
    >>> X.shape, Y.shape, int(np.isfinite(Y).sum())
    ((200, 2), (200, 1), 6)
    """
    seed, noise = as_seed(random_state), check_nonnegative("noise", noise)
    num_rows = check_integer("num_rows", num_rows, minimum=2)
    X, classes = make_moons(num_rows, noise=noise, random_state=derive_seed(seed, INPUTS))
    return _keep_labels(X, classes, NearestCurve(MOONS, np.array([[-1.0], [1.0]])), num_labels, seed)


def make_circles_and_moons(
    num_rows: int, *, num_labels: int = 2, noise: float = 0.05, coding: str = "simplex", random_state=None
) -> Sample:
    """Generate four classes with few labels: two moons, and two nested circles beside them (BT-114).

    The source has a figure only; here the circles, of radius 1 and ½, lie to the left of the moons.

    Parameters
    ----------
    num_rows : int
        Number n of rows, a quarter of them on each curve.
    coding : {"simplex", "one_hot"}, default="simplex"
        Output coding: the 3 outputs of `simplex_code(4)`, or 4 outputs.
    num_labels, noise, random_state
        As for `make_two_moons`.

    Returns
    -------
    Sample
        X (n, 2), Y (n, 3 or 4), NaN where there is no label, and the ground truth, a `NearestCurve`; its `classes` are
        0 and 1 for the upper and lower moon, 2 and 3 for the outer and inner circle.

    Notes
    -----
    Complexity: O(n) time and memory.

    Examples
    --------
    >>> from ovkgp.datasets import make_circles_and_moons
    >>> X, Y, truth = make_circles_and_moons(400, random_state=0)
    >>> X.shape, Y.shape, truth.classes([[0.0, 1.0], [-2.75, 0.75]])
    ((400, 2), (400, 3), array([0, 3]))
    """
    seed, noise = as_seed(random_state), check_nonnegative("noise", noise)
    num_rows = check_integer("num_rows", num_rows, minimum=4)
    codes = simplex_code(4).numpy().T if check_one_of("coding", coding, CODINGS) == "simplex" else np.eye(4)
    rng = make_rng(seed, INPUTS)
    half = num_rows // 2
    moons, on_moons = make_moons(half, noise=noise, random_state=int(rng.integers(2**31)))
    circles, on_circles = make_circles(
        num_rows - half, noise=noise, factor=INNER_RADIUS, random_state=int(rng.integers(2**31))
    )
    X, classes = np.concatenate([moons, circles + CIRCLES_CENTER]), np.concatenate([on_moons, on_circles + 2])
    order = rng.permutation(num_rows)
    return _keep_labels(X[order], classes[order], NearestCurve(MOONS + CIRCLES, codes), num_labels, seed)


def make_spiral(num_rows: int, *, noise: float = 0.05, random_state=None) -> np.ndarray:
    """Generate rows on one turn of a spiral; minus such rows are on the opposite spiral, outside of it (KT-63).

    The spiral starts at radius 1/3 and ends at radius 1.

    Parameters
    ----------
    num_rows : int
        Number n of rows.
    noise : float, default=0.05
        Standard deviation of the rows along the normal of the spiral.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    ndarray of shape (n, 2)
        Rows.

    Examples
    --------
    >>> from ovkgp.datasets import make_spiral
    >>> make_spiral(500, random_state=0).shape
    (500, 2)
    """
    num_rows, noise = check_integer("num_rows", num_rows), check_nonnegative("noise", noise)
    seed = as_seed(random_state)
    turn = make_rng(seed, INPUTS).uniform(size=num_rows)
    angle, radius = 2 * np.pi * turn, 2 * turn + 1
    tangent = np.c_[np.cos(angle) - np.pi * radius * np.sin(angle), np.sin(angle) + np.pi * radius * np.cos(angle)]
    normal = np.c_[tangent[:, 1], -tangent[:, 0]] / np.linalg.norm(tangent, axis=1, keepdims=True)
    deviation = noise * make_rng(seed, NOISE).standard_normal((num_rows, 1))
    return np.c_[radius * np.cos(angle), radius * np.sin(angle)] / 3 + deviation * normal


def _keep_labels(X: np.ndarray, classes: np.ndarray, truth: NearestCurve, num_labels: int, seed: int) -> Sample:
    """Keep the codes of `num_labels` random rows of each class."""
    num_labels, smallest = check_integer("num_labels", num_labels), np.bincount(classes).min()
    if num_labels > smallest:
        raise OptionError(
            f"num_labels must be at most the size of the smallest class, {smallest} of the {len(X)} rows, got {num_labels}. Generate more rows or fewer labels."
        )
    rng, Y = make_rng(seed, LABELS), np.full((len(X), truth.codes.shape[1]), np.nan)
    for index, code in enumerate(truth.codes):
        Y[rng.choice(np.flatnonzero(classes == index), num_labels, replace=False)] = code
    return Sample(X, Y, truth)
