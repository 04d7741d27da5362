"""Tests of `ovkgp.plotting.report.calibration`."""

import numpy as np
import pytest
from plot_cases import assessment
from scipy.stats import binom

import ovkgp
import ovkgp.plotting.report.calibration as calibration_module
from ovkgp.criticism import Coverage, coverage
from ovkgp.exceptions import InputError
from ovkgp.plotting.report.calibration import (
    CONSISTENCY_PROBABILITY,
    assess_calibration,
    assess_level_set,
    assess_outputs,
    get_assessed_levels,
)
from ovkgp.plotting.report.evaluation_data import collect_rows, predict_held_out


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    """Figures are replaced by the names of their plots."""
    monkeypatch.setattr(calibration_module, "render_panels", lambda plot, *_, **__: plot.__name__)


def assess(model, *rows):
    rows = collect_rows(model, *rows)
    return assess_calibration(model, rows, predict_held_out(model, rows))


def test_assessments_match_coverage(ridge):
    found, wanted = assess(ridge), coverage(ridge, levels=[0.9])
    overall, *each = found.assessments
    assert overall.covered / overall.total == pytest.approx(wanted.overall[0])
    assert [one.covered / one.total for one in each] == pytest.approx(wanted.observed[0])
    assert [one.name for one in each] == ["u", "v", "w"]
    assert found.figures == ("plot_pit", "plot_coverage") and "leave-one-out" in found.note


def test_assessment_detects_narrow_intervals():
    rng = np.random.default_rng(0)
    X = np.linspace(0, 6, 60)[:, None]
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=60)
    right = assess(ovkgp.OVKRidge(lam=0.09).fit(X, y))
    narrow = assess(ovkgp.OVKRidge(lam=0.09).fit(X, y), X + 1e-3, np.sin(X[:, 0]) + 2.0 * rng.normal(size=60))
    assert right.assessments[0].is_consistent and "consistent with the nominal level" in right.assessments[0].sentence
    assert narrow.assessments[0].is_consistent is False and "too narrow" in narrow.assessments[0].sentence
    assert len(right.assessments) == 1  # one output needs no second sentence


def test_output_without_entries_is_not_assessed(ridge):
    X, Y = np.linspace(0, 6, 5)[:, None], np.zeros((5, 3))
    Y[:, 1] = np.nan
    assert [one.name for one in assess(ridge, X, Y).assessments] == ["", "u", "w"]


def test_assess_outputs_lists_only_miscalibrated_ones_of_many():
    names, held, totals = [f"y{a}" for a in range(13)], np.full((1, 13), 90), np.full(13, 100)
    held[0, 4] = 50
    levels = np.array([0.9])
    assert [one.name for one in assess_outputs(names, Coverage(levels, held, totals), 0.9)] == ["", "y4"]
    assert len(assess_outputs(names[:12], Coverage(levels, held[:, :12], totals[:12]), 0.9)) == 13


def test_calibration_without_held_out_entries_asks_for_rows(features, quantiles, mixed):
    for model in (features, mixed):
        assert "Give rows" in assess(model).note and not assess(model).figures
    assert "calibrated on held-out rows" in assess(quantiles).note


def test_assessed_level_of_finitely_many_quantiles_is_widest(quantiles):
    X = np.random.default_rng(0).uniform(0, 3, (30, 1))
    few = ovkgp.InfiniteQuantileRegressor(coupling="joint", levels=[0.1, 0.5, 0.9], lengthscale=1.0, lam=0.1)
    few.fit(X, np.sin(X[:, 0]))
    assert get_assessed_levels(few)[1] == pytest.approx(0.8) and get_assessed_levels(quantiles)[1] == 0.9
    assert get_assessed_levels(few)[0].tolist() == pytest.approx([0.8])
    assert assess(few, X, np.sin(X[:, 0]) + 5).assessments[0].level == pytest.approx(0.8)
    median = ovkgp.InfiniteQuantileRegressor(coupling="independent", levels=[0.5], lengthscale=1.0, lam=0.1)
    assert get_assessed_levels(median.fit(X, np.sin(X[:, 0])))[1] == 0.9  # one quantile forms no interval


def test_assessed_level_of_one_sided_quantiles_is_default():
    X = np.random.default_rng(0).uniform(0, 3, (30, 1))
    upper = ovkgp.InfiniteQuantileRegressor(coupling="independent", levels=[0.6, 0.9], lengthscale=1.0, lam=0.1)
    upper.fit(X, np.sin(X[:, 0]))
    assert get_assessed_levels(upper)[1] == 0.9
    assert assess(upper, X + 0.01, np.sin(X[:, 0]) + 5).assessments[0].covered == 0


def test_calibration_of_classifiers_reports_log_loss(trees, costs):
    model, X, labels = trees
    kept, given = assess(model), assess(model, X, labels)
    assert f"{model.calibration_.log_loss:.3g}" in kept.note and "1.1" in kept.note  # log 3
    loss = -np.log(model.predict_proba(X)[np.arange(30), np.repeat([0, 1, 2], 10)]).mean()
    assert f"{loss:.3g}" in given.note and "accuracy" in given.note
    assert "not probabilities" in assess(costs[0]).note


def test_level_sets_are_assessed_on_given_rows(levels):
    model, X = levels
    assert not assess(model).assessments
    far = assess(model, X + 100.0).assessments
    assert [one.level for one in far] == [0.05, 0.1, 0.5] and not any(one.is_consistent for one in far)
    assert all(one.covered == 40 for one in far)


def test_tasks_are_assessed_on_given_rows(styles):
    model, X, Y = styles
    assert not assess(model).assessments
    assert assess(model, X, Y).assessments[0].covered == 72
    assert assess(model, X, Y + 100.0).assessments[0].covered == 0


def test_estimator_without_standard_deviation_has_nothing_to_calibrate():
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)
    assert "nothing to calibrate" in assess(model, X, X).note


@pytest.mark.parametrize("total", [50, 240, 5000])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_assess_coverage_follows_binomial_interval(total, level):
    low, high = binom.interval(CONSISTENCY_PROBABILITY, total, level)
    assert assessment(int(low), total, level).is_consistent and assessment(int(high), total, level).is_consistent
    narrow = assessment(int(low) - max(1, round(0.03 * total)), total, level)
    assert narrow.is_consistent is False and "too narrow" in narrow.sentence and "expected by chance" in narrow.sentence
    wide = int(high) + max(1, round(0.03 * total))
    if wide <= total:
        assert "too wide" in assessment(wide, total, level).sentence


def test_assess_coverage_tolerates_small_differences():
    assert binom.interval(CONSISTENCY_PROBABILITY, 10**6, 0.9)[0] > 890_000
    assert assessment(890_000, 10**6).is_consistent


def test_assess_coverage_of_few_entries_is_undecided():
    found = assessment(1, 6, name="v")
    assert (
        found.is_consistent is None
        and found.sentence == "Coverage of the 90 % intervals of 'v': 17 % of 6 entries, too few for an assessment."
    )


def test_assess_level_set_detects_wrong_size():
    assert "too small" in assess_level_set(100, 200, 0.1).sentence
    assert "too large" in assess_level_set(20, 200, 0.5).sentence
    assert assess_level_set(22, 200, 0.1).is_consistent


def test_assessment_covers_the_whole_curve():
    """Right 90 % intervals do not hide 40 % intervals that contain 53 %."""
    rng = np.random.default_rng(0)
    u = rng.uniform(size=(400, 1))
    inner = np.abs(u - 0.5) < 0.265  # 53 %, compressed into the 40 % interval
    bad = np.where(
        inner, 0.5 + (u - 0.5) * 0.2 / 0.265, 0.5 + np.sign(u - 0.5) * (0.2 + (np.abs(u - 0.5) - 0.265) * 0.3 / 0.235)
    )
    (right,), (wrong,) = (assess_outputs(["y"], Coverage.of(values), 0.9) for values in (u, bad))
    assert right.is_consistent and "as at all other levels" in right.sentence
    assert abs(wrong.covered / wrong.total - 0.9) < 0.05 and wrong.is_consistent is False
    assert "but the" in wrong.sentence and "too wide" in wrong.sentence


def test_assessment_of_groups_needs_training_rows(ridge, time_series):
    X, Y = time_series
    tracks = np.array([*"abc"] * 10)
    found = predict_held_out(ridge, collect_rows(ridge, X, Y), tracks)
    assert found.is_leave_one_out and found.has_groups
    assert "all rows of a group are held out" in assess_calibration(ridge, None, found).note
    without = ovkgp.OVKRidge(ridge.gp_.kernel, lam=ridge.lam_)
    offset, rest = ridge.scaling_.output_offset, tracks != "b"
    mean = without.fit(X[rest], Y[rest] - offset).predict(X[~rest]) + offset
    observed = np.isfinite(np.asarray(Y)[~rest])
    np.testing.assert_allclose(found.distribution.mean[~rest][observed], mean[observed], rtol=1e-6)
    with pytest.raises(InputError, match="training rows"):
        predict_held_out(ridge, collect_rows(ridge, X, Y + 1.0), tracks)
    with pytest.raises(InputError, match="passed with X and Y"):
        predict_held_out(ridge, collect_rows(ridge), tracks)
