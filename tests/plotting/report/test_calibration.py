"""Tests of `ovkgp.plotting.report.calibration`."""

import numpy as np
import pytest
from scipy.stats import binom

import ovkgp
import ovkgp.plotting.report.calibration as calibration_module
from ovkgp.criticism import coverage
from ovkgp.plotting.report.calibration import CHANCE, calibration, judged, judged_level, judged_outside, judgements
from ovkgp.plotting.report.evaluation_data import predicted, report_rows


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    """Pictures are named, not drawn."""
    monkeypatch.setattr(calibration_module, "panels", lambda plot, *_: plot.__name__)


def of(model, *rows):
    rows = report_rows(model, *rows)
    return calibration(model, rows, predicted(model, rows))


def test_judgements_are_those_of_the_coverage(ridge):
    found, wanted = of(ridge), coverage(ridge, levels=[0.9])
    overall, *each = found.judgements
    assert overall.held / overall.total == pytest.approx(wanted.overall[0])
    assert [one.held / one.total for one in each] == pytest.approx(wanted.observed[0])
    assert [one.name for one in each] == ["u", "v", "w"]
    assert found.pictures == ("plot_pit", "plot_coverage") and found.note.startswith("Left out one at a time")


def test_intervals_that_are_too_narrow_are_found_and_right_ones_are_not():
    rng = np.random.default_rng(0)
    X = np.linspace(0, 6, 60)[:, None]
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=60)
    right = of(ovkgp.OVKRidge(lam=0.09).fit(X, y))
    narrow = of(ovkgp.OVKRidge(lam=0.09).fit(X, y), X + 1e-3, np.sin(X[:, 0]) + 2.0 * rng.normal(size=60))
    assert right.judgements[0].is_good and "as they should" in right.judgements[0].sentence
    assert narrow.judgements[0].is_good is False and "too narrow" in narrow.judgements[0].sentence
    assert len(right.judgements) == 1  # one output needs no second sentence


def test_an_output_without_entries_is_not_judged(ridge):
    X, Y = np.linspace(0, 6, 5)[:, None], np.zeros((5, 3))
    Y[:, 1] = np.nan
    assert [one.name for one in of(ridge, X, Y).judgements] == ["", "u", "w"]


def test_of_many_outputs_only_those_that_fail_are_named():
    names, held, totals = [f"y{a}" for a in range(13)], np.full(13, 90), np.full(13, 100)
    held[4] = 50
    assert [one.name for one in judgements(names, held, totals, 0.9)] == ["", "y4"]
    assert len(judgements(names[:12], held[:12], totals[:12], 0.9)) == 13


def test_without_unseen_entries_the_page_says_what_to_do(features, quantiles, mixed):
    for model in (features, mixed):
        assert "Give rows" in of(model).note and not of(model).pictures
    assert "predict_interval" in of(quantiles).note


def test_finitely_many_quantiles_are_judged_at_their_own_level(quantiles):
    X = np.random.default_rng(0).uniform(0, 3, (30, 1))
    few = ovkgp.InfiniteQuantileRegressor(coupling="joint", levels=[0.1, 0.5, 0.9], lengthscale=1.0, lam=0.1)
    few.fit(X, np.sin(X[:, 0]))
    assert judged_level(few) == pytest.approx(0.8) and judged_level(quantiles) == 0.9
    assert of(few, X, np.sin(X[:, 0]) + 5).judgements[0].level == pytest.approx(0.8)
    median = ovkgp.InfiniteQuantileRegressor(coupling="independent", levels=[0.5], lengthscale=1.0, lam=0.1)
    assert judged_level(median.fit(X, np.sin(X[:, 0]))) == 0.9  # has no interval of its own


def test_quantiles_of_one_side_have_no_interval_of_their_own():
    X = np.random.default_rng(0).uniform(0, 3, (30, 1))
    upper = ovkgp.InfiniteQuantileRegressor(coupling="independent", levels=[0.6, 0.9], lengthscale=1.0, lam=0.1)
    upper.fit(X, np.sin(X[:, 0]))
    assert judged_level(upper) == 0.9
    assert of(upper, X + 0.01, np.sin(X[:, 0]) + 5).judgements[0].held == 0


def test_probabilities_of_classes(trees, costs):
    model, X, labels = trees
    kept, given = of(model), of(model, X, labels)
    assert f"{model.calibration_.log_loss:.3g}" in kept.note and "1.1" in kept.note  # log 3
    loss = -np.log(model.predict_proba(X)[np.arange(30), np.repeat([0, 1, 2], 10)]).mean()
    assert f"{loss:.3g}" in given.note and "% of the classes are right" in given.note
    assert "no probabilities" in of(costs[0]).note


def test_level_sets_are_judged_on_fresh_rows(levels):
    model, X = levels
    assert not of(model).judgements
    far = of(model, X + 100.0).judgements
    assert [one.level for one in far] == [0.05, 0.1, 0.5] and not any(one.is_good for one in far)
    assert all(one.held == 40 for one in far)


def test_tasks_are_judged_on_rows_given(styles):
    model, X, Y = styles
    assert not of(model).judgements
    assert of(model, X, Y).judgements[0].held == 72
    assert of(model, X, Y + 100.0).judgements[0].held == 0


def test_an_estimator_without_a_standard_deviation_has_nothing_to_calibrate():
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)
    assert "nothing to calibrate" in of(model, X, X).note


@pytest.mark.parametrize("total", [50, 240, 5000])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_what_chance_does_is_as_it_should_be_and_what_it_does_not_is_not(total, level):
    low, high = binom.interval(CHANCE, total, level)
    assert judged(int(low), total, level).is_good and judged(int(high), total, level).is_good
    narrow = judged(int(low) - max(1, round(0.03 * total)), total, level)
    assert narrow.is_good is False and "too narrow" in narrow.sentence and "chance alone" in narrow.sentence
    wide = int(high) + max(1, round(0.03 * total))
    if wide <= total:
        assert "wider than they need to be" in judged(wide, total, level).sentence


def test_a_small_difference_that_many_entries_prove_is_no_fault():
    assert binom.interval(CHANCE, 10**6, 0.9)[0] > 890_000
    assert judged(890_000, 10**6).is_good


def test_few_entries_say_nothing():
    found = judged(1, 6, name="v")
    assert (
        found.is_good is None
        and found.sentence == "'v': the 90 % intervals held 17 % of 6 entries: too few to say more."
    )


def test_sets_that_are_too_small_or_too_large():
    assert "too small" in judged_outside(100, 200, 0.1).sentence
    assert "too large" in judged_outside(20, 200, 0.5).sentence
    assert judged_outside(22, 200, 0.1).is_good
