import pytest
from scipy.stats import binom

from ovkgp.plotting.report.calibration import CHANCE, judged, judged_outside


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
