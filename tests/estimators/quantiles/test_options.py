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

BAD = [
    ({"kernel": "rfb"}, "kernel must be"),
    ({"task_kernel": "sine"}, "task_kernel must be"),
    ({"lengthscale": -1.0}, "lengthscale must be"),
    ({"lengthscale": "long"}, "lengthscale must be"),
    ({"task_lengthscale": "auto"}, "task_lengthscale must be"),
    ({"task_lengthscale": LearnedKernel(1.0)}, "task_lengthscale must be"),
    ({"trend": "cubic"}, "trend must be"),
    ({"trend": "linear", "kernel": RBFKernel()}, "LinearKernel"),
    ({"trend": "linear", "lengthscale": LearnedKernel(1.0)}, "has its trend already"),
    ({"trend": "linear", "feature_extractor": torch.nn.Linear(1, 1), "lam": 0.1}, "trend is not for"),
    ({"lam": [0.1, 0.2]}, "one positive number"),
    ({"convention": "half"}, "convention must be"),
    ({"coupling": "loose"}, "coupling must be"),
    ({"levels": [0.1]}, "leave levels out"),
    ({"num_tasks": 0}, "num_tasks"),
    ({"measure": "simpson"}, "measure must be"),
    ({"noncrossing": "sort"}, "noncrossing must be"),
    ({"noncrossing": "penalty", "coupling": "joint"}, "rearrange"),
    ({"lam_nc": -1.0}, "lam_nc"),
    ({"loss": "square"}, "loss must be"),
    ({"loss": "smoothed_pinball"}, "kappa must be"),
    ({"kappa": 0.1}, "leave it out"),
    ({"prior_mean": "flat"}, "prior_mean must be"),
    ({"num_frequencies": 0}, "num_frequencies"),
    ({"feature_extractor": "network", "lam": 0.1}, "torch.nn.Module"),
    ({"feature_extractor": torch.nn.Linear(1, 1)}, "BayesSearchCV"),
    ({"tol": 0.0}, "tol must be"),
    ({"max_iter": 0}, "max_iter"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_options_are_refused_in_words(options, words):
    with pytest.raises(OptionError, match=words):
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
def test_good_options_pass(options):
    check_quantile_options(InfiniteQuantileRegressor(**options))


def test_lam_must_be_positive():
    with pytest.raises(InputError, match="lam must be a positive number"):
        check_quantile_options(InfiniteQuantileRegressor(lam=0.0))


def test_finite_levels_and_nodes_lie_inside_zero_and_one():
    with pytest.raises(InputError, match="levels"):
        check_quantile_options(InfiniteQuantileRegressor(coupling="joint", levels=[0.0, 0.5]))
    with pytest.raises(InputError, match="nodes of the measure"):
        check_quantile_options(InfiniteQuantileRegressor(measure=TaskMeasure(torch.tensor([0.5, 1.0]))))


def test_bad_options_leave_a_fitted_model_as_it_was():
    X = np.linspace(0, 1, 20)[:, None]
    model = InfiniteQuantileRegressor(lengthscale=1.0, lam=1e-2).fit(X, X[:, 0])
    before = model.predict(X)
    with pytest.raises(OptionError):
        model.set_params(loss="square").fit(X, X[:, 0])
    np.testing.assert_array_equal(model.predict(X), before)


def test_lam_of_the_stability_convention_is_twice_the_canonical_one():
    assert canonical_lam(InfiniteQuantileRegressor(lam=0.1)) == 0.1
    assert canonical_lam(InfiniteQuantileRegressor(lam=0.1, convention="stability")) == 0.2


@pytest.mark.parametrize("levels", [[0.1, 1.0], [0.0], [np.nan], [[0.1]], [], "median", [0.1, 90]])
def test_levels_that_are_none_are_refused(levels):
    with pytest.raises(InputError, match="quantiles must"):
        check_levels(levels)


def test_levels_come_back_as_a_vector():
    assert check_levels(0.5).tolist() == [0.5]
    assert check_levels(torch.tensor([0.9, 0.1])).dtype == np.float64


@pytest.fixture(scope="module")
def data():
    X, y, _ = make_sine_quantiles(40, random_state=0)
    return np.column_stack([X, X**2]), y


def summary(data, **options):
    return str(InfiniteQuantileRegressor(random_state=0, **options).fit(*data).summary())


def test_it_names_the_parts_of_a_kernel_with_a_trend(data):
    text = summary(data)
    assert "all levels by 10 nodes" in text
    assert "% stationary" in text
    assert "% linear" in text
    assert "% quadratic" not in text
    assert "tried; loss of rows left out" in text
    assert "40 distinct rows, 2 inputs" in text


def test_it_is_silent_on_a_trend_where_there_is_none(data):
    text = summary(data, lengthscale=0.5, lam=1e-3, coupling="joint")
    assert "stationary" not in text
    assert "levels 0.1, 0.3, 0.5, 0.7, 0.9, joint" in text
    assert "tried" not in text
    assert "λ 0.001" in text


def test_it_names_random_features(data):
    text = summary(data, lengthscale=0.5, lam=1e-3, num_frequencies=20, intercept=False, trend="linear")
    assert "20 random frequencies" in text
    assert "% linear" in text
