"""Tests of `ovkgp.datasets.corruptions`."""

import numpy as np
import pytest

from ovkgp.datasets import add_outlying_curves, corrupt_points, drop_points, negate_curves, permute_curves
from ovkgp.exceptions import InputError, OptionError

Y = np.random.default_rng(0).standard_normal((21, 40))


@pytest.mark.parametrize("kind", ["range", "symmetric", "additive"])
def test_corrupted_points_are_those_of_the_mask(kind):
    corrupted, mask = corrupt_points(Y, 0.25, curve_fraction=0.5, kind=kind, random_state=0)
    assert np.array_equal(corrupted[~mask], Y[~mask]) and (corrupted[mask] != Y[mask]).all()
    assert mask.any(1).sum() == 10 and set(mask.sum(1)) == {0, 10}
    if kind != "additive":
        assert np.abs(corrupted).max() <= np.abs(Y).max()


def test_dropped_points_are_nan_and_curves_keep_one_point():
    corrupted, mask = drop_points(Y, 0.3, random_state=0)
    assert np.array_equal(np.isnan(corrupted), mask) and (mask.sum(1) == 12).all()
    assert (~np.isnan(drop_points(Y, 1.0, random_state=0)[0])).sum(1).tolist() == [1] * 21


def test_permuted_curves_are_the_same_set():
    corrupted, mask = permute_curves(Y, 0.5, random_state=0)
    assert mask.sum() == 10 and np.array_equal(corrupted[~mask], Y[~mask])
    assert np.array_equal(np.sort(corrupted[:, 0]), np.sort(Y[:, 0])) and (corrupted != Y).any()


def test_negative_curves_are_shifted_or_their_own():
    """Type 1 takes the next of the drawn curves; LT-130 keeps the curve and scales it."""
    shifted, mask = negate_curves(Y, 0.2, random_state=0)
    assert mask.sum() == 4 and np.allclose(np.sort(-shifted[mask, 0]), np.sort(Y[mask, 0]))
    assert not np.isclose(-shifted[mask], Y[mask]).any()
    own, mask = negate_curves(Y, 0.2, scale=3.0, shift=False, random_state=0)
    assert np.allclose(own[mask], -3 * Y[mask])


def test_bo_e_44_outlying_curves_are_added_or_replace():
    added, mask = add_outlying_curves(Y, 0.2, 3.0, random_state=0)
    replaced, same = add_outlying_curves(Y, 0.2, 3.0, mode="replace", random_state=0)
    assert np.array_equal(mask, same) and np.allclose(added[mask] - replaced[mask], Y[mask])
    assert np.array_equal(added[~mask], Y[~mask])
    assert np.array_equal(add_outlying_curves(Y, 0.2, 0.0, random_state=0)[0], Y)


def test_corruptions_reject_invalid_arguments():
    with pytest.raises(OptionError, match="fraction"):
        corrupt_points(Y, 1.5)
    with pytest.raises(InputError, match="Y has shape"):
        drop_points(Y[0], 0.1)
    with pytest.raises(OptionError, match="mode"):
        add_outlying_curves(Y, 0.1, 1.0, mode="both")
