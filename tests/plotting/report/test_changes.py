import numpy as np
import pytest

from ovkgp.plotting.report.fit_warnings import POINTS, changes


class Sum:
    """An estimator whose two outputs are known functions of three inputs."""

    n_features_in_ = 3

    def predict(self, X):
        assert X.shape == (3 * POINTS, 3)
        return np.column_stack([2 * X[:, 0] + 0 * X[:, 1], 3 * X[:, 2]])


def test_the_range_of_the_mean_along_each_input():
    X = np.array([[0.0, 5.0, 1.0], [1.0, 6.0, 4.0]])
    assert changes(Sum(), X) == pytest.approx([2.0, 0.0, 9.0])


def test_spreads_are_units_and_an_output_without_one_does_not_count():
    X = np.array([[0.0, 5.0, 1.0], [1.0, 6.0, 4.0]])
    assert changes(Sum(), X, np.array([4.0, 0.0])) == pytest.approx([0.5, 0.0, 0.0])


def test_a_model_that_has_forgotten_its_rows_knows_their_scale(features):
    assert changes(features, None)[0] > 0
