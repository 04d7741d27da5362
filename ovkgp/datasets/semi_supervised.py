"""Points on curves in the plane, of which only a few have a label (BT-114): two moons, and nested circles beside them.

The curves are circles and half-circles, so the truth is known everywhere: a point belongs to the nearest curve. Rows
without a label have NaN for outputs, which is how a missing output is written everywhere in this package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.datasets import make_circles, make_moons

from ovkgp.checks import as_seed, check_integer, nonnegative, one_of
from ovkgp.datasets.samples import INPUTS, LABELS, Sample, child_seed, finite_rows, random_stream
from ovkgp.exceptions import OptionError
from ovkgp.kernels import simplex_code

CODINGS = ("simplex", "one_hot")
CIRCLES_AT = (-2.75, 0.25)
INNER_RADIUS = 0.5


class Arc(NamedTuple):
    """A circle in the plane (side 0), or its upper (1) or lower (−1) half.

    Example:
        >>> from ovkgp.datasets.semi_supervised import Arc
        >>> Arc((0.0, 0.0), 1.0, side=1).distances([[0.0, 3.0], [1.0, -2.0]])
        array([2., 2.])
    """

    centre: tuple[float, float]
    radius: float
    side: int = 0

    def distances(self, X: ArrayLike) -> np.ndarray:
        """From each row of X (m, 2) to the curve: (m,)."""
        lags = finite_rows(X, 2) - self.centre
        to_circle = abs(np.hypot(*lags.T) - self.radius)
        to_ends = np.hypot(abs(lags[:, 0]) - self.radius, lags[:, 1])
        return np.where(self.side * lags[:, 1] >= 0, to_circle, to_ends)


MOONS = (Arc((0.0, 0.0), 1.0, side=1), Arc((1.0, 0.5), 1.0, side=-1))
CIRCLES = (Arc(CIRCLES_AT, 1.0), Arc(CIRCLES_AT, INNER_RADIUS))


class NearestCurve:
    """x ↦ the code of the curve nearest to x.

    Args:
        curves: one for each class.
        codes: (c, p), the outputs of each class.

    Cost: O(m (c + p)) for m points.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.semi_supervised import MOONS, NearestCurve
        >>> truth = NearestCurve(MOONS, np.array([[-1.0], [1.0]]))
        >>> truth.classes([[0.0, 1.0], [1.0, -0.5]]), truth([[0.0, 1.0]])
        (array([0, 1]), array([[-1.]]))
    """

    def __init__(self, curves: tuple[Arc, ...], codes: np.ndarray):
        self.curves, self.codes = curves, codes

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """The outputs at the rows of X (m, 2): (m, p)."""
        return self.codes[self.classes(X)]

    def classes(self, X: ArrayLike) -> np.ndarray:
        """The class of each row of X (m, 2): integers (m,)."""
        return np.argmin([curve.distances(X) for curve in self.curves], axis=0)


def make_two_moons(num_rows: int, *, num_labels: int = 2, spread: float = 0.05, random_state=None) -> Sample:
    """Scikit-learn's two moons with a few labels: −1 on the upper moon, 1 on the lower, NaN elsewhere (BT-114).

    Args:
        num_rows: n, half of them on each moon.
        num_labels: how many rows of each class keep their label.
        spread: the standard deviation of the points about their curve.
        random_state: as in scikit-learn.

    Returns:
        X (n, 2), Y (n, 1) and the truth, a `NearestCurve`: ±1 everywhere, and `classes` 0 and 1. A label is that of
        the curve a point was drawn from; far out from it (the moons are .5 apart) another curve can be nearer.

    Cost: O(n) time and memory.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets import make_two_moons
        >>> X, Y, truth = make_two_moons(200, num_labels=3, random_state=0)
        >>> X.shape, Y.shape, int(np.isfinite(Y).sum())
        ((200, 2), (200, 1), 6)
    """
    seed, spread = as_seed(random_state), nonnegative("spread", spread)
    num_rows = check_integer("num_rows", num_rows, least=2)
    X, classes = make_moons(num_rows, noise=spread, random_state=child_seed(seed, INPUTS))
    return _few_labels(X, classes, NearestCurve(MOONS, np.array([[-1.0], [1.0]])), num_labels, seed)


def make_circles_and_moons(
    num_rows: int, *, num_labels: int = 2, spread: float = 0.05, coding: str = "simplex", random_state=None
) -> Sample:
    """Four classes, two moons and two nested circles beside them, with a few labels (BT-114).

    The source shows the picture only; the circles, of radius 1 and ½, lie to the left of the moons here.

    Args:
        num_rows: n, a quarter of them on each curve.
        num_labels: how many rows of each class keep their label.
        spread: the standard deviation of the points about their curve.
        coding: "simplex", the 3 outputs of `simplex_code(4)`, or "one_hot", 4 outputs.
        random_state: as in scikit-learn.

    Returns:
        X (n, 2), Y (n, 3 or 4), NaN where there is no label, and the truth, a `NearestCurve`; its `classes` are 0 and 1
        for the upper and lower moon, 2 and 3 for the outer and inner circle.

    Cost: O(n) time and memory.

    Example:
        >>> from ovkgp.datasets import make_circles_and_moons
        >>> X, Y, truth = make_circles_and_moons(400, random_state=0)
        >>> X.shape, Y.shape, truth.classes([[0.0, 1.0], [-2.75, 0.75]])
        ((400, 2), (400, 3), array([0, 3]))
    """
    seed, spread = as_seed(random_state), nonnegative("spread", spread)
    num_rows = check_integer("num_rows", num_rows, least=4)
    codes = simplex_code(4).numpy().T if one_of("coding", coding, CODINGS) == "simplex" else np.eye(4)
    rng = random_stream(seed, INPUTS)
    half = num_rows // 2
    moons, on_moons = make_moons(half, noise=spread, random_state=int(rng.integers(2**31)))
    circles, on_circles = make_circles(
        num_rows - half, noise=spread, factor=INNER_RADIUS, random_state=int(rng.integers(2**31))
    )
    X, classes = np.concatenate([moons, circles + CIRCLES_AT]), np.concatenate([on_moons, on_circles + 2])
    order = rng.permutation(num_rows)
    return _few_labels(X[order], classes[order], NearestCurve(MOONS + CIRCLES, codes), num_labels, seed)


def _few_labels(X: np.ndarray, classes: np.ndarray, truth: NearestCurve, num_labels: int, seed: int) -> Sample:
    """Keep the codes of `num_labels` rows of each class, chosen at random."""
    num_labels, smallest = check_integer("num_labels", num_labels), np.bincount(classes).min()
    if num_labels > smallest:
        raise OptionError(
            f"num_labels counts the labels of each class, and the smallest class has {smallest} of the {len(X)} rows; "
            f"got {num_labels}. Ask for more rows or fewer labels."
        )
    rng, Y = random_stream(seed, LABELS), np.full((len(X), truth.codes.shape[1]), np.nan)
    for index, code in enumerate(truth.codes):
        Y[rng.choice(np.flatnonzero(classes == index), num_labels, replace=False)] = code
    return Sample(X, Y, truth)
