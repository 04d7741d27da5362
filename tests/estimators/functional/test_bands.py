"""Tests of simultaneous bands of `ovkgp.estimators.functional.base`."""

import numpy as np

from ovkgp.estimators.functional.base import largest_deviation


def test_largest_deviation_does_not_depend_on_arbitrary_eigenvectors():
    """Rounding errors rotate eigenvectors of equal eigenvalues, so that bands differed between batches by 1e-3."""
    covariance = np.kron(np.eye(4), np.ones((3, 3)) + 0.1 * np.eye(3))
    noise = 1e-14 * np.random.default_rng(0).standard_normal(covariance.shape)
    changed = largest_deviation(covariance + noise + noise.T, 0.9)
    assert abs(changed / largest_deviation(covariance, 0.9) - 1) < 1e-8


def test_largest_deviation_of_independent_values_is_that_of_their_maximum():
    """P(max |z| ≤ q) = (2Φ(q) − 1)^m."""
    assert abs(largest_deviation(np.eye(5), 0.9) - 2.3109) < 0.05
