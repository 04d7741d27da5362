"""Tests of `ovkgp.datasets.spiral`."""

import numpy as np
import pytest

from ovkgp.datasets import make_spiral
from ovkgp.exceptions import OptionError


def distances_to_spiral(X):
    turn = np.linspace(0, 1, 4001)
    curve = ((2 * turn + 1) / 3 * np.exp(2j * np.pi * turn)).view(np.float64).reshape(-1, 2)
    return np.linalg.norm(X[:, None] - curve, axis=-1).min(1)


def test_rows_lie_near_the_spiral_and_far_from_the_opposite_one():
    X = make_spiral(500, random_state=0)
    assert distances_to_spiral(make_spiral(200, noise=0.0, random_state=0)).max() < 1e-3
    assert np.sqrt(np.mean(distances_to_spiral(X) ** 2)) == pytest.approx(0.05, rel=0.1)
    assert np.mean(distances_to_spiral(-X) > 0.1) > 0.95


def test_rows_depend_on_the_seed_only():
    np.testing.assert_array_equal(make_spiral(30, random_state=1), make_spiral(30, random_state=1))
    assert not np.array_equal(make_spiral(30, random_state=1), make_spiral(30, random_state=2))


@pytest.mark.parametrize(
    ("options", "text"), [({"num_rows": 0}, "num_rows"), ({"num_rows": 3, "noise": -1.0}, "noise")]
)
def test_invalid_options_are_rejected(options, text):
    with pytest.raises(OptionError, match=text):
        make_spiral(**options)
