"""Labels are few and right, and the nearest curve is the nearest of many points along it."""

import numpy as np
import pytest

from ovkgp.datasets import make_circles_and_moons, make_spiral, make_two_moons
from ovkgp.datasets.planar_shapes import CIRCLES, CIRCLES_CENTER, MOONS, Arc
from ovkgp.exceptions import OptionError
from ovkgp.kernels import simplex_code


def labeled(Y):
    return np.isfinite(Y).all(1)


@pytest.mark.parametrize("num_labels", [1, 3, 20])
def test_two_moons_keep_the_requested_labels_per_class(num_labels):
    X, Y, _ = make_two_moons(101, num_labels=num_labels, random_state=0)
    assert X.shape == (101, 2) and Y.shape == (101, 1)
    assert (Y == 1).sum() == (Y == -1).sum() == num_labels
    assert np.isnan(Y).sum() == 101 - 2 * num_labels


def test_every_row_may_be_labeled():
    _, Y, _ = make_two_moons(40, num_labels=20, random_state=0)
    assert np.isfinite(Y).all()


def test_labels_agree_with_the_truth():
    X, Y, truth = make_two_moons(2000, num_labels=1000, random_state=0)
    np.testing.assert_array_equal(Y, truth(X))  # five standard deviations to the middle between the moons
    assert set(truth.classes(X)) == {0, 1}
    np.testing.assert_array_equal(truth(X)[:, 0], 2 * truth.classes(X) - 1)


def test_points_lie_near_their_moon():
    X = make_two_moons(4000, noise=0.05, random_state=0).X
    distances = np.min([moon.distances(X) for moon in MOONS], axis=0)
    np.testing.assert_allclose(np.sqrt((distances**2).mean()), 0.05, rtol=0.05)
    exact = make_two_moons(100, noise=0.0, random_state=0).X
    np.testing.assert_allclose(np.min([moon.distances(exact) for moon in MOONS], axis=0), 0, atol=1e-12)


def test_another_seed_labels_other_rows():
    choices = [labeled(make_two_moons(200, random_state=seed).Y) for seed in range(2)]
    assert not np.array_equal(*choices)


@pytest.mark.parametrize("coding", ["simplex", "one_hot"])
def test_four_classes_keep_the_requested_labels_per_class(coding):
    X, Y, truth = make_circles_and_moons(403, num_labels=5, coding=coding, random_state=0)
    codes = simplex_code(4).numpy().T if coding == "simplex" else np.eye(4)
    kept = labeled(Y)
    assert X.shape == (403, 2) and Y.shape == (403, codes.shape[1])
    assert kept.sum() == 20 and np.isnan(Y[~kept]).all()
    np.testing.assert_array_equal(Y[kept], codes[truth.classes(X[kept])])
    np.testing.assert_array_equal(np.bincount(truth.classes(X[kept])), [5, 5, 5, 5])


def test_four_classes_are_of_equal_size_and_mixed():
    X, _, truth = make_circles_and_moons(400, random_state=0)
    np.testing.assert_array_equal(np.bincount(truth.classes(X)), [100, 100, 100, 100])
    assert len(set(truth.classes(X[:50]))) == 4
    radii = np.linalg.norm(X - CIRCLES_CENTER, axis=1)
    np.testing.assert_allclose(np.median(radii[truth.classes(X) == 2]), 1.0, atol=0.03)
    np.testing.assert_allclose(np.median(radii[truth.classes(X) == 3]), 0.5, atol=0.03)


def test_simplex_codes_decode_to_the_classes():
    X, _, truth = make_circles_and_moons(100, random_state=0)
    np.testing.assert_array_equal((truth(X) @ simplex_code(4).numpy()).argmax(1), truth.classes(X))


@pytest.mark.parametrize("arc", [*MOONS, *CIRCLES, Arc((0.3, -0.2), 0.7, side=-1)])
def test_distance_to_an_arc_is_the_least_over_points_along_it(arc):
    angles = {0: (0, 2 * np.pi), 1: (0, np.pi), -1: (-np.pi, 0)}[arc.side]
    t = np.linspace(*angles, 20_001)
    along = np.stack([np.cos(t), np.sin(t)], axis=1) * arc.radius + arc.center
    X = np.random.default_rng(0).uniform(-4, 3, (60, 2))
    expected = [np.linalg.norm(along - x, axis=1).min() for x in X]
    np.testing.assert_allclose(arc.distances(X), expected, atol=1e-4)


@pytest.mark.parametrize("make", [make_two_moons, make_circles_and_moons])
def test_semi_supervised_data_reject_invalid_options(make):
    with pytest.raises(OptionError, match="num_labels"):
        make(20 if make is make_two_moons else 40, num_labels=11)
    for option in ({"num_labels": 0}, {"noise": -0.1}, {"noise": np.nan}):
        with pytest.raises(OptionError, match=next(iter(option))):
            make(40, **option)
    with pytest.raises(OptionError, match="num_rows"):
        make(1)


def test_circles_and_moons_reject_unknown_coding():
    with pytest.raises(OptionError, match="coding"):
        make_circles_and_moons(40, coding="binary")


def distances_to_spiral(X):
    turn = np.linspace(0, 1, 4001)
    curve = ((2 * turn + 1) / 3 * np.exp(2j * np.pi * turn)).view(np.float64).reshape(-1, 2)
    return np.linalg.norm(X[:, None] - curve, axis=-1).min(1)


def test_spiral_rows_lie_near_it_and_far_from_the_opposite_one():
    X = make_spiral(500, random_state=0)
    assert distances_to_spiral(make_spiral(200, noise=0.0, random_state=0)).max() < 1e-3
    assert np.sqrt(np.mean(distances_to_spiral(X) ** 2)) == pytest.approx(0.05, rel=0.1)
    assert np.mean(distances_to_spiral(-X) > 0.1) > 0.95


def test_spiral_depends_on_the_seed_only():
    np.testing.assert_array_equal(make_spiral(30, random_state=1), make_spiral(30, random_state=1))
    assert not np.array_equal(make_spiral(30, random_state=1), make_spiral(30, random_state=2))


@pytest.mark.parametrize(
    ("options", "text"), [({"num_rows": 0}, "num_rows"), ({"num_rows": 3, "noise": -1.0}, "noise")]
)
def test_spiral_rejects_invalid_options(options, text):
    with pytest.raises(OptionError, match=text):
        make_spiral(**options)
