import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.plotting.report.evaluation_data import report_rows
from ovkgp.plotting.report.fit_warnings import (
    constant_columns,
    extrapolation,
    few_observations,
    few_rows,
    unobserved_outputs,
)

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


def test_rows_of_the_fit_lie_inside_of_their_own_range(coupled, waves):
    assert not said(extrapolation, coupled, *waves)


def test_what_cannot_be_known_is_not_said(features, levels, styles, quantiles):
    X = np.linspace(50, 60, 4)[:, None]
    assert not said(extrapolation, features, X, np.zeros((4, 3)))
    for model in (levels[0], styles[0], quantiles):
        assert not [sentence for check in CHECKS for sentence in said(check, model)]
