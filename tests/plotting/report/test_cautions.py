from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest

import ovkgp
from ovkgp.plotting.report.calibration import judged
from ovkgp.plotting.report.evaluation_data import report_rows
from ovkgp.plotting.report.fit_warnings import cautions, draws, poor_intervals, training


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
