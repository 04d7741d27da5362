"""Tests of `ovkgp.metrics.curves`."""

import numpy as np
import pytest

from ovkgp import metrics
from ovkgp.exceptions import InputError, OptionError

RNG = np.random.default_rng(0)
Y, PREDICTED = 2 + RNG.standard_normal((6, 9)), 2 + RNG.standard_normal((6, 9))


def test_curve_errors_sum_or_average_over_points():
    """The MSE of BO-106 sums over the m points, the NMSE averages: they differ by the factor m."""
    total = metrics.curve_squared_error(Y, PREDICTED)
    assert total == pytest.approx(((Y - PREDICTED) ** 2).sum(1).mean())
    assert metrics.curve_squared_error(Y, PREDICTED, normalize=True) == pytest.approx(total / 9)
    gaps = Y.copy()
    gaps[0, 3:], gaps[1] = np.nan, np.nan
    errors = [np.nanmean((gaps[i] - PREDICTED[i]) ** 2) for i in (0, 2, 3, 4, 5)]
    assert metrics.curve_squared_error(gaps, PREDICTED, normalize=True) == pytest.approx(np.mean(errors))


def test_normalized_rmse_divides_by_the_mean_of_each_column():
    expected = np.sqrt(((Y - PREDICTED) ** 2).mean(0)) / Y.mean(0)
    assert np.allclose(metrics.normalized_rmse(Y, PREDICTED, multioutput="raw_values"), expected)
    assert metrics.normalized_rmse(Y, PREDICTED) == pytest.approx(expected.mean())


def test_degradation_is_zero_for_the_best_predictor():
    errors = RNG.uniform(1, 2, (3, 4, 5))
    errors[1] = 0.5
    found = metrics.rmse_degradation(errors)
    assert found[1] == 0 and np.allclose(found[[0, 2]], errors[[0, 2]].mean((1, 2)) - 0.5)


def test_simultaneous_coverage_is_at_most_the_pointwise_one():
    lower, upper = PREDICTED - 2, PREDICTED + 2
    both = metrics.simultaneous_coverage(Y, lower, upper), metrics.coverage(Y, lower, upper)
    assert both[0] <= both[1] and both[0] == np.mean((np.abs(Y - PREDICTED) <= 2).all(1))
    gaps = np.where(np.abs(Y - PREDICTED) > 2, np.nan, Y)
    assert metrics.simultaneous_coverage(gaps, lower, upper) == 1.0


def test_curve_metrics_reject_invalid_arguments():
    with pytest.raises(InputError):
        metrics.curve_squared_error(np.full((2, 2), np.nan), np.zeros((2, 2)))
    with pytest.raises(InputError):
        metrics.rmse_degradation([1.0, 2.0])
    with pytest.raises(OptionError, match="noise_std"):
        metrics.signal_to_noise(Y, 0.0)
    for function in (metrics.median_and_mad, metrics.sparsity):
        with pytest.raises(InputError):
            function([])
