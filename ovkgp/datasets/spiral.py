"""Rows on a spiral in the plane, for detectors of outliers (KT-63)."""

from __future__ import annotations

import numpy as np

from ovkgp.checks import as_seed, check_integer, check_nonnegative
from ovkgp.datasets.samples import INPUTS, NOISE, make_rng


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
