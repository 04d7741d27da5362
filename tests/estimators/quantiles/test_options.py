"""Tests of `ovkgp.estimators.quantiles.options`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.kernel import LearnedKernel
from ovkgp.estimators.quantiles.options import canonical_lam, check_levels, check_quantile_options
from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import TaskMeasure, grid

INVALID = [
    ({"kernel": "rfb"}, "kernel"),
    ({"task_kernel": "sine"}, "task_kernel"),
    ({"lengthscale": -1.0}, "lengthscale"),
    ({"lengthscale": "long"}, "lengthscale"),
    ({"task_lengthscale": "auto"}, "task_lengthscale"),
    ({"task_lengthscale": LearnedKernel(1.0)}, "task_lengthscale"),
    ({"trend": "cubic"}, "trend"),
    ({"trend": "linear", "kernel": RBFKernel()}, "LinearKernel"),
    ({"trend": "linear", "lengthscale": LearnedKernel(1.0)}, "LearnedKernel"),
    ({"trend": "linear", "feature_extractor": torch.nn.Linear(1, 1), "lam": 0.1}, "feature_extractor"),
    ({"lam": [0.1, 0.2]}, "lam"),
    ({"convention": "half"}, "convention"),
    ({"coupling": "loose"}, "coupling"),
    ({"levels": [0.1]}, "levels"),
    ({"num_tasks": 0}, "num_tasks"),
    ({"measure": "simpson"}, "measure"),
    ({"noncrossing": "sort"}, "noncrossing"),
    ({"noncrossing": "penalty", "coupling": "joint"}, "rearrange"),
    ({"lam_nc": -1.0}, "lam_nc"),
    ({"loss": "square"}, "loss"),
    ({"loss": "smoothed_pinball"}, "kappa"),
    ({"kappa": 0.1}, "kappa"),
    ({"prior_mean": "flat"}, "prior_mean"),
    ({"num_frequencies": 0}, "num_frequencies"),
    ({"feature_extractor": "network", "lam": 0.1}, "torch.nn.Module"),
    ({"feature_extractor": torch.nn.Linear(1, 1)}, "BayesSearchCV"),
    ({"tol": 0.0}, "tol"),
    ({"max_iter": 0}, "max_iter"),
]


@pytest.mark.parametrize(("options", "match"), INVALID)
def test_quantile_options_reject_invalid_values(options, match):
    with pytest.raises(OptionError, match=match):
        check_quantile_options(InfiniteQuantileRegressor(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lengthscale": LearnedKernel(1.0)},
        {"trend": None},
        {"trend": "quadratic"},
        {"kernel": RBFKernel()},
        {"coupling": "joint", "levels": [0.1, 0.9]},
        {"measure": grid([0.2, 0.8])},
        {"noncrossing": None},
        {"noncrossing": "exact"},
        {"loss": "smoothed_pinball", "kappa": 0.1},
    ],
)
def test_quantile_options_accept_valid_values(options):
    check_quantile_options(InfiniteQuantileRegressor(**options))


def test_lam_must_be_positive():
    with pytest.raises(InputError, match="lam"):
        check_quantile_options(InfiniteQuantileRegressor(lam=0.0))


def test_levels_and_nodes_must_lie_between_zero_and_one():
    with pytest.raises(InputError, match="levels"):
        check_quantile_options(InfiniteQuantileRegressor(coupling="joint", levels=[0.0, 0.5]))
    with pytest.raises(InputError, match="nodes"):
        check_quantile_options(InfiniteQuantileRegressor(measure=TaskMeasure(torch.tensor([0.5, 1.0]))))


def test_failed_option_check_keeps_the_fitted_model():
    X = np.linspace(0, 1, 20)[:, None]
    model = InfiniteQuantileRegressor(lengthscale=1.0, lam=1e-2).fit(X, X[:, 0])
    before = model.predict(X)
    with pytest.raises(OptionError):
        model.set_params(loss="square").fit(X, X[:, 0])
    np.testing.assert_array_equal(model.predict(X), before)


def test_canonical_lam_doubles_the_stability_convention():
    assert canonical_lam(InfiniteQuantileRegressor(lam=0.1)) == 0.1
    assert canonical_lam(InfiniteQuantileRegressor(lam=0.1, convention="stability")) == 0.2


@pytest.mark.parametrize("levels", [[0.1, 1.0], [0.0], [np.nan], [[0.1]], [], "median", [0.1, 90]])
def test_check_levels_rejects_invalid_levels(levels):
    with pytest.raises(InputError, match="quantiles"):
        check_levels(levels)


def test_check_levels_returns_a_vector():
    assert check_levels(0.5).tolist() == [0.5]
    assert check_levels(torch.tensor([0.9, 0.1])).dtype == np.float64


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
