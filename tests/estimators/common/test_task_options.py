"""Tests of `ovkgp.estimators.common.task_options`."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

import ovkgp
from ovkgp.estimators.common.task_options import task_kernel
from ovkgp.exceptions import OptionError


def test_lt_41_task_lengthscale_is_the_low_quantile_of_the_distances():
    """.138 for 20 Gauss-Legendre nodes."""
    nodes = torch.from_numpy((np.polynomial.legendre.leggauss(20)[0] + 1) / 2).unsqueeze(-1)
    found = task_kernel("rbf", "quantile_0.2", nodes).lengthscale.item()
    assert found == pytest.approx(np.quantile(pdist(nodes.numpy()), 0.2), rel=1e-12)
    assert found == pytest.approx(0.138, abs=5e-4)
    assert task_kernel("rbf", "quantile_0.2", torch.zeros(3, 1)).lengthscale.item() == 1.0
    pairs = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)).double()
    expected = np.quantile(pdist(pairs.numpy()), 0.2)  # of a part of the points, in random order
    assert task_kernel("rbf", "quantile_0.2", pairs).lengthscale.item() == pytest.approx(expected, rel=0.05)


def test_quantile_rule_is_an_option_of_task_lengthscales_only():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=40)
    options = {"lam": 1e-3, "lengthscale": 0.3, "num_tasks": 20, "random_state": 0}
    rule = ovkgp.InfiniteQuantileRegressor(task_lengthscale="quantile_0.2", **options).fit(X, y)
    nodes = (np.polynomial.legendre.leggauss(20)[0] + 1) / 2
    number = float(np.quantile(pdist(nodes[:, None]), 0.2))
    same = ovkgp.InfiniteQuantileRegressor(task_lengthscale=number, **options).fit(X, y)
    np.testing.assert_allclose(rule.predict(X, [0.2, 0.7]), same.predict(X, [0.2, 0.7]), atol=1e-6)
    with pytest.raises(OptionError, match="lengthscale"):
        ovkgp.InfiniteQuantileRegressor(lengthscale="quantile_0.2").fit(X, y)
