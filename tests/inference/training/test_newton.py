"""Tests of `ovkgp.inference.training.newton`."""

from types import SimpleNamespace

import numpy as np
import pytest

from ovkgp.inference.training.lbfgs import ObjectiveEvaluator
from ovkgp.inference.training.newton import MAX_DISTANCE, refine_mode

RNG = np.random.default_rng(0)
ROOT = RNG.standard_normal((4, 6))
HESSIAN, MODE = ROOT @ ROOT.T + np.eye(4), RNG.standard_normal(4)


def quadratic(x):
    return -0.5 * (x - MODE) @ HESSIAN @ (x - MODE), -HESSIAN @ (x - MODE)


def rosenbrock(x):
    a, b = 1 - x[0], x[1] - x[0] ** 2
    return -(a**2) - 100 * b**2, np.array([2 * a + 400 * x[0] * b, -200 * b])


def search(density, start, metric, max_evaluations=100, tolerance=1e-12, bounds=(-10.0, 10.0)):
    vector = SimpleNamespace(bounds=np.tile(bounds, (len(start), 1)))
    evaluator = ObjectiveEvaluator(vector, density)
    found = refine_mode(evaluator, evaluator.evaluate(np.array(start, float)), metric, max_evaluations, tolerance)
    return found.best, found.gain, found.steps, evaluator


def test_one_step_suffices_with_the_exact_hessian():
    point, gain, steps, evaluator = search(quadratic, MODE + 0.3, HESSIAN)
    assert steps == 1 and evaluator.evaluations == 2 and gain < 1e-12
    np.testing.assert_allclose(point.x, MODE, atol=1e-12)


def test_gain_is_that_of_the_next_step():
    start = MODE + 0.1
    _, gain, steps, _ = search(quadratic, start, HESSIAN, tolerance=np.inf)
    assert steps == 0 and gain == pytest.approx(-quadratic(start)[0], rel=1e-10)


@pytest.mark.parametrize("metric", [np.eye(4), 100 * np.eye(4), 0.01 * np.eye(4)])
def test_wrong_metrics_are_corrected(metric):
    point, gain, _, _ = search(quadratic, MODE + 1, metric)
    assert gain < 1e-10
    np.testing.assert_allclose(point.x, MODE, atol=1e-5)


def test_curved_valley_is_followed_although_curvatures_change_sign():
    point, *_ = search(rosenbrock, [-1.2, 1.0], 100 * np.eye(2), max_evaluations=500)
    np.testing.assert_allclose(point.x, 1, atol=1e-4)


def test_search_ends_close_to_a_known_mode():
    evaluator = ObjectiveEvaluator(SimpleNamespace(bounds=np.tile((-10.0, 10.0), (4, 1))), quadratic)
    known = refine_mode(evaluator, evaluator.evaluate(MODE + 0.3), HESSIAN, 100, 1e-12)
    again = refine_mode(evaluator, evaluator.evaluate(MODE - 2), np.eye(4), 100, 1e-12, known)
    assert known.gain == again.gain and quadratic(again.best.x)[0] > -MAX_DISTANCE
    assert again.steps < refine_mode(evaluator, evaluator.evaluate(MODE - 2), np.eye(4), 100, 1e-12).steps


def test_bounds_are_respected_and_active_ones_are_fixed():
    bounds = (-10.0, float(MODE.max() - 0.5))
    point, gain, _, evaluator = search(quadratic, np.full(4, -1.0), np.eye(4), bounds=bounds)
    assert point.x.max() == bounds[1] and gain < 1e-10
    assert evaluator.slope(point) < 1e-5  # of the free variables


def test_number_of_evaluations_is_limited():
    *_, evaluator = search(rosenbrock, [-1.2, 1.0], np.eye(2), max_evaluations=7)
    assert evaluator.evaluations == 8  # with that of the initial point


def test_failed_evaluations_shorten_the_step():
    def density(x):
        if x[0] > MODE[0] + 0.1:
            raise np.linalg.LinAlgError
        return quadratic(x)

    point, gain, _, evaluator = search(density, MODE - 0.8, 0.3 * HESSIAN)
    assert evaluator.failures > 0 and gain < 1e-10
    np.testing.assert_allclose(point.x, MODE, atol=1e-5)


@pytest.mark.parametrize("steepness", [1e17, 1e19, 1e22, 1e25])
def test_search_continues_where_the_metric_becomes_singular(steepness):
    """The curvature at a wall, such as that of a nearly singular covariance matrix, exceeds all others by more than 1e16."""
    across = np.array([0.6, 0.5, -0.4, 0.3])

    def walled(x):
        excess = max(across @ (x - MODE) - 0.05, 0.0)
        value, gradient = quadratic(x)
        return value - 0.5 * steepness * excess**2, gradient - steepness * excess * across

    for seed in range(8):
        direction = np.random.default_rng(seed).standard_normal(4)
        start = (
            MODE
            + (0.05 + 1e-3) * across / (across @ across)
            + (direction - across * (across @ direction) / (across @ across))
        )
        point, gain, *_ = search(walled, start, np.eye(4), max_evaluations=400, tolerance=1e-6)
        assert 0 <= gain < 1e-3
        np.testing.assert_allclose(point.x, MODE, atol=0.05)
