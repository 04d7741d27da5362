"""Tests of `ovkgp.plotting.report.fit_warnings`."""

from copy import copy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.plotting.report.calibration import judged
from ovkgp.plotting.report.evaluation_data import report_rows
from ovkgp.plotting.report.fit_warnings import (
    NEAR_FLOOR,
    POINTS,
    cautions,
    changes,
    constant_columns,
    draws,
    extrapolation,
    few_observations,
    few_rows,
    idle_inputs,
    noise_levels,
    poor_intervals,
    starving_features,
    training,
    unobserved_outputs,
    wide_errors,
)


def with_report(model, **changes):
    """The same model with another report of its training."""
    other, report = copy(model), copy(model.fit_report_)
    vars(report).update(changes)
    other.fit_report_ = report
    return other


def with_draws(**attrs):
    """Something that drew its hyperparameters, and what is known of the draws."""
    group = SimpleNamespace(attrs={"method": "nuts", **attrs}, sizes={"chain": 2, "draw": 100})
    return SimpleNamespace(draws_={"posterior": group})


def test_a_good_model_has_no_warnings():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (40, 1))
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(X) + 0.2 * rng.normal(size=(40, 1)))
    assert cautions(model, report_rows(model)) == ()


def test_training_that_was_cut_short(coupled):
    assert not [*training(coupled, None)]
    (interrupted,) = training(with_report(coupled, interrupted=True, converged=False), None)
    assert "interrupted" in interrupted
    (open_ended,) = training(
        with_report(coupled, converged=False, message="stopped after 9 iterations; use more"), None
    )
    assert "did not converge (stopped after 9 iterations)" in open_ended


def test_an_estimator_without_training_is_not_accused(ridge):
    assert not [*training(ridge, None)]


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"num_divergences": 3}, "3 transitions of the sampler diverged"),
        ({"num_divergences": 1}, "1 transition of the sampler diverged"),
        ({"rhat_max": 1.2, "rhat_worst": "noise[0]"}, "R̂ = 1.2 for noise[0]"),
        ({"rhat_max": np.nan, "rhat_worst": "noise[0]"}, "have not mixed"),
        ({"ess_min": 20.0, "ess_worst": "mean[0]"}, "worth only 20 independent ones for mean[0]"),
        ({"khat": 0.9, "method": "svi"}, "svi approximation of the hyperparameters is poor"),
        ({"interrupted": 1}, "interrupted"),
    ],
)
def test_draws_that_should_not_be_trusted(attrs, words):
    (found,) = draws(with_draws(**attrs), None)
    assert words in found


def test_draws_that_can_be_trusted():
    good = {"num_divergences": 0, "rhat_max": 1.005, "ess_min": 400.0, "khat": 0.3, "interrupted": 0}
    assert not [*draws(with_draws(**good), None)] and not [*draws(SimpleNamespace(), None)]


def test_chains_that_were_too_short_are_named(chains):
    found = " ".join(cautions(chains, report_rows(chains)))
    assert "worth only" in found


def test_intervals_that_do_not_hold_what_they_promise():
    good, poor, of_v, few = judged(215, 240), judged(100, 240), judged(50, 120, name="v"), judged(0, 3, name="w")
    assert poor_intervals((good, few)) == ()
    assert poor_intervals((poor,)) == (poor.sentence,)
    found = poor_intervals((poor, of_v, few))
    assert found[0] == poor.sentence and "'v'" in found[1] and "'w'" not in found[1]


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


CHECKS = (constant_columns, extrapolation, few_observations, few_rows, unobserved_outputs)


def said(check, model, *rows):
    return [*check(model, report_rows(model, *rows))]


def test_outputs_that_were_hardly_observed_are_named(coupled, ridge, features):
    wanted = ["Output 'w' has 6 observations: its intervals rest on the prior more than on data."]
    for model in (coupled, ridge, features):
        assert said(few_observations, model) == wanted


def test_classes_that_were_hardly_observed_are_named(trees):
    model, X, labels = trees
    assert not said(few_observations, model)
    assert not said(few_observations, model, X[:21], labels[:21])  # of the fit, ten rows of each class are known
    few = ovkgp.SimplexClassifier(lam=0.1).fit(X[:26], labels[:26])
    wanted = ["Class 'cedar' has 6 rows: little is known of it."]
    assert said(few_observations, few) == said(few_observations, few, X, labels) == wanted


def test_columns_that_do_not_vary():
    X = pd.DataFrame({"a": np.linspace(0, 1, 12), "b": 1.0, "c": 2.0})
    model = ovkgp.OVKRidge(lam=0.1).fit(X, pd.DataFrame({"u": X["a"], "v": 7.5}))
    assert said(constant_columns, model) == [
        "Inputs 'b' and 'c' never vary: nothing can be learned from them.",
        "Output 'v' is constant (7.5): there is nothing to explain.",
    ]
    assert len(said(constant_columns, model, X + np.random.default_rng(0).normal(size=X.shape), np.eye(12)[:, :2])) == 2
    one = ovkgp.OVKRidge(lam=0.1).fit(X[["a", "b"]], X["a"])
    assert said(constant_columns, one) == ["Input 'b' never varies: nothing can be learned from it."]


def test_columns_of_the_rows_given_say_nothing_of_what_was_learned(coupled, features):
    X, Y = np.full((4, 1), 3.0), np.zeros((4, 3))
    assert not said(constant_columns, coupled, X, Y) and not said(constant_columns, features, X, Y)


def test_more_inputs_than_rows_can_tell():
    X = np.random.default_rng(0).normal(size=(12, 10))
    assert "12 rows for 10 inputs" in said(few_rows, ovkgp.OVKRidge(lam=0.1).fit(X, X[:, 0]))[0]
    assert not said(few_rows, ovkgp.OVKRidge(lam=0.1).fit(X[:, :3], X[:, 0]))
    assert not said(few_rows, ovkgp.InfiniteOneClassSVM(num_tasks=4).fit(X))  # nobody asks which of them matter


def test_outputs_that_the_rows_given_do_not_show(coupled):
    Y = np.zeros((4, 3))
    Y[:, 1] = np.nan
    assert "Nobody observed 'v'" in said(unobserved_outputs, coupled, np.linspace(1, 5, 4)[:, None], Y)[0]
    assert not said(unobserved_outputs, coupled)


@pytest.mark.parametrize(("shift", "is_far"), [(0.0, False), (3.0, True)])
def test_rows_outside_of_the_range_of_the_fit(coupled, shift, is_far):
    X = np.linspace(1, 5, 20)[:, None] + shift
    found = said(extrapolation, coupled, X, np.zeros((20, 3)))
    assert bool(found) == is_far
    if is_far:
        share = np.mean(report_rows(coupled).inputs.max() < X)
        assert found == [
            f"{100 * share:.0f} % of the rows given lie outside of the range of the fit (in 'time'): there the model extrapolates."
        ]


def test_rows_of_the_fit_lie_inside_of_their_own_range(coupled, scalar_features):
    assert not said(extrapolation, coupled, *scalar_features)


def test_what_cannot_be_known_is_not_said(features, levels, styles, quantiles):
    X = np.linspace(50, 60, 4)[:, None]
    assert not said(extrapolation, features, X, np.zeros((4, 3)))
    for model in (levels[0], styles[0], quantiles):
        assert not [sentence for check in CHECKS for sentence in said(check, model)]


def with_noise(model, share):
    """The same model with noise that is a share of the variance of each output."""
    other = copy(model)
    other.noise_ = np.diag(share * np.nanvar(model.posterior_.data.Y.numpy(), axis=0) * model.scaling_.output_scale**2)
    return other


def test_an_input_that_says_nothing_is_found_and_one_that_matters_is_not():
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.uniform(0, 1, (40, 2)), columns=["wind", "moon"])
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(6 * X["wind"]) + 0.1 * rng.normal(size=40))
    (found,) = idle_inputs(model, None)
    assert "Input 'moon' hardly matters" in found and "wind" not in found


def test_a_straight_line_has_a_long_lengthscale_and_matters():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 2))
    model = ovkgp.GPRegressor("independent", random_state=0).fit(
        X, 3 * X[:, 0] + 2 * X[:, 1] + 0.01 * rng.normal(size=40)
    )
    assert model.gp_.kernel.kernels[0].base_kernel.lengthscale.min() > 2  # in standard deviations
    assert not [*idle_inputs(model, None)]


def test_noise_at_its_floor_and_noise_that_is_all(coupled):
    assert not [*noise_levels(coupled, None)]
    floor = [*noise_levels(with_noise(coupled, NEAR_FLOOR / 2), None)]
    assert len(floor) == 3 and "Output 'u': the noise is at its floor" in floor[0]
    all_noise = [*noise_levels(with_noise(coupled, 0.95), None)]
    assert len(all_noise) == 3 and "taken for noise" in all_noise[2]


def test_noise_that_was_given_is_not_judged():
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.GPRegressor("independent", noise=1e-9, random_state=0).fit(X, np.sin(9 * X))
    assert not [*noise_levels(model, None)]


def test_features_without_a_guard_starve(features, coupled):
    assert not [*starving_features(features, None)] and not [*starving_features(coupled, None)]
    X = np.linspace(0, 1, 10)[:, None]
    bare = ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, variance="features", random_state=0).fit(X, X)
    assert 'variance="guarded"' in next(iter(starving_features(bare, None)))


def test_a_budget_that_was_full():
    X = np.linspace(0, 1, 10)[:, None]
    assert "budget" in next(iter(wide_errors(ovkgp.ONORMA(budget=3).fit(X, X), None)))
    assert not [*wide_errors(ovkgp.ONORMA(budget=50).fit(X, X), None)]
