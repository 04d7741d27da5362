"""Proposals: a function of the seed and of what was found, and of nothing else."""

import math

import numpy as np

from ovkgp.estimators.selection.search_space import make_space, propose, sobol_point

SPACE = make_space({"x": (0.0, 1.0), "y": (0.0, 1.0), "kind": ["a", "b"]})


def start(number, seed=0):
    return [sobol_point(SPACE, k, seed) for k in range(number)]


def score(point):
    return -((point["x"] - 0.4) ** 2) - (point["y"] - 0.7) ** 2 - 0.2 * (point["kind"] == 0)


def test_a_sobol_start_fills_every_quarter_of_every_range():
    points = start(16)
    for name in ("x", "y"):
        counts = np.histogram([point[name] for point in points], bins=16, range=(0, 1))[0]
        assert counts.tolist() == [1] * 16
    assert sum(point["kind"] for point in points) == 8


def test_a_proposal_forgets_everything_but_the_trials():
    points = start(8)
    scores = [score(point) for point in points]
    once = propose(SPACE, points, scores, 8, seed=0)
    propose(SPACE, points[:5], scores[:5], 5, seed=3)
    assert propose(SPACE, points, scores, 8, seed=0) == once
    assert once not in points


def test_there_are_more_sobol_points_until_two_trials_succeeded():
    scores = [math.nan, -1.0, math.inf, math.nan]
    assert propose(SPACE, start(4), scores, 2, seed=0) == sobol_point(SPACE, 4, 0)


def test_a_failure_is_not_proposed_again():
    points = start(8)
    scores = [score(point) for point in points]
    peak = {"x": 0.4, "y": 0.7, "kind": 1}
    failed = [peak] * 6
    proposed = propose(SPACE, points + failed, scores + [math.nan] * 6, 8, seed=0)
    assert math.dist((proposed["x"], proposed["y"]), (0.4, 0.7)) > 0.1 or proposed["kind"] == 0


def test_scores_that_are_all_alike_are_no_obstacle():
    proposed = propose(SPACE, start(6), [1.0] * 6, 6, seed=0)
    assert set(proposed) == set(SPACE)
