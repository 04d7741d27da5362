"""Tests of `ovkgp.estimators.quantiles.options`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.common.task_options import canonical_lam
from ovkgp.estimators.quantiles.kernel import LearnedKernel
from ovkgp.estimators.quantiles.options import check_levels
from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import TaskMeasure, gauss_legendre, grid

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
    ({"feature_extractor": "network", "lam": 0.1}, "Module"),
    ({"feature_extractor": torch.nn.Linear(1, 1)}, "BayesSearchCV"),
    ({"tol": 0.0}, "tol"),
    ({"max_iter": 0}, "max_iter"),
]


@pytest.mark.parametrize(("options", "match"), INVALID)
def test_quantile_options_reject_invalid_values(options, match):
    with pytest.raises(OptionError, match=match):
        InfiniteQuantileRegressor(**options).check_options()


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
    InfiniteQuantileRegressor(**options).check_options()


def test_lam_must_be_positive():
    with pytest.raises(OptionError, match="lam"):
        InfiniteQuantileRegressor(lam=0.0).check_options()


def test_levels_and_nodes_must_lie_between_zero_and_one():
    with pytest.raises(OptionError, match="levels"):
        InfiniteQuantileRegressor(coupling="joint", levels=[0.0, 0.5]).check_options()
    with pytest.raises(InputError, match="nodes"):
        InfiniteQuantileRegressor(measure=TaskMeasure(torch.tensor([0.5, 1.0]))).check_options()
    with pytest.raises(InputError, match="one dimension"):
        InfiniteQuantileRegressor(measure=gauss_legendre(3, num_dims=2)).check_options()


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
