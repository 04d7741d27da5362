"""Tests of `ovkgp.plotting.report.fit_warnings`."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from plot_cases import assessment

import ovkgp
from ovkgp.plotting.report.evaluation_data import collect_rows
from ovkgp.plotting.report.fit_warnings import (
    NUM_SENSITIVITY_POINTS,
    collect_warnings,
    compute_input_sensitivity,
    constant_columns,
    extrapolation,
    few_observations,
    irrelevant_inputs,
    miscalibrated_intervals,
    model_warnings,
    unobserved_outputs,
    unreliable_draws,
)


def with_draws(**attrs):
    """Stub of an estimator with draws and their diagnostics."""
    group = SimpleNamespace(attrs={"method": "nuts", **attrs}, sizes={"chain": 2, "draw": 100})
    return SimpleNamespace(hyperparameter_draws={"posterior": group})


def test_collect_warnings_of_good_model_is_empty():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (40, 1))
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(X) + 0.2 * rng.normal(size=(40, 1)))
    assert collect_warnings(model, collect_rows(model)) == ()


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"num_divergences": 3}, "3 transitions of the sampler diverged"),
        ({"num_divergences": 1}, "1 transition of the sampler diverged"),
        ({"rhat_max": 1.2, "rhat_worst": "noise[0]"}, "R̂ = 1.2 for noise[0]"),
        ({"rhat_max": np.nan, "rhat_worst": "noise[0]"}, "have not mixed"),
        ({"ess_min": 20.0, "ess_worst": "mean[0]"}, "ESS of mean[0] is 20"),
        ({"khat": 0.9, "method": "svi"}, "svi approximation of the hyperparameters is poor"),
        ({"interrupted": 1}, "interrupted"),
    ],
)
def test_unreliable_draws_reports_poor_diagnostics(attrs, text):
    (found,) = unreliable_draws(with_draws(**attrs), None)
    assert text in found


def test_unreliable_draws_of_good_diagnostics_is_empty():
    good = {"num_divergences": 0, "rhat_max": 1.005, "ess_min": 400.0, "khat": 0.3, "interrupted": 0}
    assert not [*unreliable_draws(with_draws(**good), None)] and not [
        *unreliable_draws(SimpleNamespace(hyperparameter_draws=None), None)
    ]


def test_collect_warnings_reports_short_chains(chains):
    found = " ".join(collect_warnings(chains, collect_rows(chains)))
    assert "The ESS of" in found


def test_miscalibrated_intervals_names_outputs():
    good, poor, of_v, few = (
        assessment(215, 240),
        assessment(100, 240),
        assessment(50, 120, name="v"),
        assessment(0, 3, name="w"),
    )
    assert miscalibrated_intervals((good, few)) == ()
    assert miscalibrated_intervals((poor,)) == (poor.sentence,)
    found = miscalibrated_intervals((poor, of_v, few))
    assert found[0] == poor.sentence and "'v'" in found[1] and "'w'" not in found[1]


class Sum:
    """An estimator whose two outputs are known functions of three inputs."""

    n_features_in_ = 3

    def predict(self, X):
        assert X.shape == (3 * NUM_SENSITIVITY_POINTS, 3)
        return np.column_stack([2 * X[:, 0] + 0 * X[:, 1], 3 * X[:, 2]])


def test_input_sensitivity_is_range_of_mean():
    X = np.array([[0.0, 5.0, 1.0], [1.0, 6.0, 4.0]])
    assert compute_input_sensitivity(Sum(), X) == pytest.approx([2.0, 0.0, 9.0])


def test_input_sensitivity_ignores_outputs_of_scale_zero():
    X = np.array([[0.0, 5.0, 1.0], [1.0, 6.0, 4.0]])
    assert compute_input_sensitivity(Sum(), X, np.array([4.0, 0.0])) == pytest.approx([0.5, 0.0, 0.0])


def test_input_sensitivity_uses_scaling_without_rows(features):
    assert compute_input_sensitivity(features, None)[0] > 0


CHECKS = (constant_columns, extrapolation, few_observations, unobserved_outputs)


def warn(check, model, *rows):
    return [*check(model, collect_rows(model, *rows))]


def test_few_observations_names_outputs(coupled, ridge, features):
    wanted = ["Output 'w' has 6 observations; its intervals depend mostly on the prior."]
    for model in (coupled, ridge, features):
        assert warn(few_observations, model) == wanted


def test_few_observations_names_classes(trees):
    model, X, labels = trees
    assert not warn(few_observations, model)
    assert not warn(few_observations, model, X[:21], labels[:21])  # ten training rows per class
    few = ovkgp.SimplexClassifier(lam=0.1).fit(X[:26], labels[:26])
    wanted = ["Class 'cedar' has 6 rows; its predictions are uncertain."]
    assert warn(few_observations, few) == warn(few_observations, few, X, labels) == wanted


def test_constant_columns_names_inputs_and_outputs():
    X = pd.DataFrame({"a": np.linspace(0, 1, 12), "b": 1.0, "c": 2.0})
    model = ovkgp.OVKRidge(lam=0.1).fit(X, pd.DataFrame({"u": X["a"], "v": 7.5}))
    assert warn(constant_columns, model) == [
        "Inputs 'b' and 'c' are constant and carry no information.",
        "Output 'v' is constant (7.5); there is no variation to explain.",
    ]
    assert len(warn(constant_columns, model, X + np.random.default_rng(0).normal(size=X.shape), np.eye(12)[:, :2])) == 2
    one = ovkgp.OVKRidge(lam=0.1).fit(X[["a", "b"]], X["a"])
    assert warn(constant_columns, one) == ["Input 'b' is constant and carries no information."]


def test_constant_columns_ignores_given_rows(coupled, features):
    X, Y = np.full((4, 1), 3.0), np.zeros((4, 3))
    assert not warn(constant_columns, coupled, X, Y) and not warn(constant_columns, features, X, Y)


def test_unobserved_outputs_names_outputs(coupled):
    Y = np.zeros((4, 3))
    Y[:, 1] = np.nan
    assert "no observed values of 'v'" in warn(unobserved_outputs, coupled, np.linspace(1, 5, 4)[:, None], Y)[0]
    assert not warn(unobserved_outputs, coupled)


@pytest.mark.parametrize(("shift", "is_far"), [(0.0, False), (3.0, True)])
def test_extrapolation_reports_fraction_of_rows_outside(coupled, shift, is_far):
    X = np.linspace(1, 5, 20)[:, None] + shift
    found = warn(extrapolation, coupled, X, np.zeros((20, 3)))
    assert bool(found) == is_far
    if is_far:
        fraction = np.mean(collect_rows(coupled).inputs.max() < X)
        assert found == [
            f"{100 * fraction:.0f} % of the given rows lie outside of the range of the training rows (in 'time'). "
            "Predictions there are extrapolations."
        ]


def test_extrapolation_of_training_rows_is_empty(coupled, time_series):
    assert not warn(extrapolation, coupled, *time_series)


def test_data_warnings_without_stored_rows_are_empty(features, levels, styles, quantiles):
    X = np.linspace(50, 60, 4)[:, None]
    assert not warn(extrapolation, features, X, np.zeros((4, 3)))
    for model in (levels[0], styles[0], quantiles):
        assert not [sentence for check in CHECKS for sentence in warn(check, model)]


def test_irrelevant_inputs_names_inputs():
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.uniform(0, 1, (40, 2)), columns=["wind", "moon"])
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, np.sin(6 * X["wind"]) + 0.1 * rng.normal(size=40))
    (found,) = irrelevant_inputs(model, None)
    assert "Input 'moon' is nearly irrelevant" in found and "wind" not in found


def test_irrelevant_inputs_ignores_linear_trend():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 2))
    model = ovkgp.GPRegressor("independent", random_state=0).fit(
        X, 3 * X[:, 0] + 2 * X[:, 1] + 0.01 * rng.normal(size=40)
    )
    assert model.gp_.kernel.kernels[0].base_kernel.lengthscale.min() > 2  # in standard deviations
    assert not [*irrelevant_inputs(model, None)]


def test_underestimated_variance_warns_without_floor(features, coupled):
    assert not [*model_warnings(features, None)] and not [*model_warnings(coupled, None)]
    X = np.linspace(0, 1, 10)[:, None]
    bare = ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, variance="features", random_state=0).fit(X, X)
    assert 'variance="guarded"' in next(iter(model_warnings(bare, None)))


def test_truncated_expansion_warns_of_small_budget():
    X = np.linspace(0, 1, 10)[:, None]
    assert "budget" in next(iter(model_warnings(ovkgp.ONORMA(budget=3).fit(X, X), None)))
    assert not [*model_warnings(ovkgp.ONORMA(budget=50).fit(X, X), None)]
