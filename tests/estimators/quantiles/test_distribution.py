"""Tests of `ovkgp.estimators.quantiles.posterior`."""

import numpy as np
import torch

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor

LEVELS = [0.1, 0.3, 0.5, 0.7, 0.9]


def test_distribution_has_the_predicted_quantiles():
    sine = make_sine_quantiles(100, random_state=0)
    fitted = InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3, random_state=0).fit(sine.X, sine.y)
    distribution = fitted.predict_distribution(sine.X[:5])
    np.testing.assert_allclose(
        distribution.quantile(torch.tensor(LEVELS, dtype=torch.float64)), fitted.predict(sine.X[:5], LEVELS)
    )
    inside = distribution.cdf(torch.from_numpy(fitted.predict(sine.X[:5], LEVELS)))
    np.testing.assert_allclose(inside, np.broadcast_to(LEVELS, (5, 5)), atol=1e-8)
    arrays = [inside, distribution.mean, distribution.std, distribution.quantile(LEVELS), distribution.density([0.0])]
    arrays += [distribution.sample(3, random_state=0), distribution.levels, distribution.quantiles]
    assert all(type(array) is np.ndarray for array in arrays) and len(distribution) == 5
