"""Tests of `ovkgp.estimators.quantiles.summary`."""

import numpy as np
import pytest

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor


@pytest.fixture(scope="module")
def data():
    X, y, _ = make_sine_quantiles(40, random_state=0)
    return np.column_stack([X, X**2]), y


def summary(data, **options):
    return str(InfiniteQuantileRegressor(random_state=0, **options).fit(*data).summary())


def test_summary_lists_kernel_terms_with_a_trend(data):
    text = summary(data)
    assert "all levels by 10 nodes" in text
    assert "% stationary" in text
    assert "% linear" in text
    assert "% quadratic" not in text
    assert "held-out loss" in text
    assert "40 distinct rows, 2 inputs" in text


def test_summary_omits_kernel_terms_without_a_trend(data):
    text = summary(data, lengthscale=0.5, lam=1e-3, coupling="joint")
    assert "stationary" not in text
    assert "levels 0.1, 0.3, 0.5, 0.7, 0.9, joint" in text
    assert "held-out loss" not in text
    assert "λ 0.001" in text


def test_summary_lists_random_features(data):
    text = summary(data, lengthscale=0.5, lam=1e-3, num_frequencies=20, intercept=False, trend="linear")
    assert "20 random frequencies" in text
    assert "% linear" in text
