"""Results of hypothesis tests, and tables of checks: Holm's correction, access by name, and the formats."""

import dataclasses

import numpy as np
import pytest

from ovkgp.criticism import Check, Criticism, HypothesisTest
from ovkgp.criticism.residuals import Residuals
from ovkgp.criticism.results import correct_for_number
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize("number", [19, 99, 100, 250, 999, 1000])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.5])
def test_rejection_agrees_with_p_value_and_critical_value(number, alpha):
    replicates = np.random.default_rng(0).permutation(number).astype(float)
    for statistic in np.arange(-0.5, number + 1, 0.5):
        found = HypothesisTest.from_replicates("t", statistic, replicates, "null", alpha)
        assert found.rejected == (found.statistic > found.critical_value)
        assert found.rejected == (found.pvalue <= alpha + 1e-12)


def test_rejection_needs_enough_replicates():
    found = HypothesisTest.from_replicates("t", 1e9, np.zeros(18), "null", 0.05)
    assert not found.rejected
    assert found.critical_value == np.inf
    assert HypothesisTest.from_replicates("t", 1e9, np.zeros(19), "null", 0.05).rejected


def test_level_is_exact_for_exchangeable_replicates():
    # the rank of the statistic among B + 1 exchangeable values is uniform: P(p ≤ .05) = .05 for B + 1 a multiple of 20
    B = 99
    rejected = [
        HypothesisTest.from_replicates("t", rank - 0.5, np.arange(B), "null", 0.05).rejected for rank in range(B + 1)
    ]
    assert np.mean(rejected) == pytest.approx(0.05, abs=1e-12)


def test_conclusion_names_null_and_decision():
    found = HypothesisTest("t", 2.0, 0.01, 1.0, "the rows are Gaussian")
    assert found.conclusion == "Rejected at level 0.05 (p = 0.01): the rows are Gaussian."
    assert HypothesisTest("t", 2.0, 0.01, 1.0, "null", conclusion="As told.").conclusion == "As told."
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.alpha = 0.1
    assert "replicates" not in repr(found)


def make_checks(pvalues):
    texts = {"conclusion": "fine", "if_rejected": "wrong", "recommendation": "repair"}
    return [Check(f"test {i}", 1.5, pvalue, **texts) for i, pvalue in enumerate(pvalues)]


def make_table(checks, alpha=0.05):
    residuals = Residuals(np.zeros((2, 1)), np.zeros((2, 1)), np.arange(2), "Made up.", False, True, True)
    return Criticism(correct_for_number(checks, alpha), alpha, ("Made up.",), residuals)


def holm_by_definition(pvalues):
    """Return max_{j ≤ k} min(1, (m − j + 1) p_(j)) for the k-th smallest of m p-values."""
    order, m = np.argsort(pvalues), len(pvalues)
    result = np.empty(m)
    for k, index in enumerate(order):
        result[index] = max(min(1.0, (m - j) * pvalues[order[j]]) for j in range(k + 1))
    return result


def test_correction_is_holms():
    pvalues = [0.04, 0.01, 0.3, 0.011, 0.9, 0.0001]
    adjusted = [check.adjusted for check in correct_for_number(make_checks(pvalues), 0.05)]
    np.testing.assert_allclose(adjusted, holm_by_definition(pvalues))
    assert adjusted[1] == pytest.approx(0.05)  # the second smallest of 6, times 5
    assert adjusted[3] == pytest.approx(0.05)  # .044, but not below the one before


def test_correction_counts_tests_only():
    checks = [Check("score", 2.0), *make_checks([0.03]), Check("omitted", conclusion="none", applies=False)]
    found = correct_for_number(checks, 0.05)
    assert [check.adjusted for check in found] == [None, 0.03, None]
    assert [check.rejected for check in found] == [False, True, False]
    assert correct_for_number([Check("score", 2.0)], 0.05)[0].adjusted is None


def test_rejected_check_has_its_conclusion_and_advice():
    table = make_table(make_checks([0.001, 0.6]))
    assert (table[0].conclusion, table[0].recommendation) == ("wrong", "repair")
    assert (table[1].conclusion, table[1].recommendation) == ("fine", "")
    assert table.rejected == (table[0],)
    assert table.conclusion == "Tests that reject the model (level 0.05, Holm's correction for 2): test 0."
    assert make_table(make_checks([0.5])).conclusion.startswith("No test rejects the model (level 0.05")
    assert make_table([]).conclusion == "No test applies."


def test_table_is_a_sequence_with_names():
    table = make_table(make_checks([0.001, 0.6]))
    assert len(table) == 2
    assert table["test 1"] is table[1]
    assert table[:1] == (table[0],)
    with pytest.raises(OptionError, match="test 0, test 1"):
        table["test 2"]


def test_table_prints_each_check_with_its_reason():
    table = make_table([*make_checks([0.001]), Check("a < b", conclusion="there is one output", applies=False)])
    text, html = str(table), table._repr_html_()
    assert repr(table) == text
    assert all(word in text for word in ("Made up.", "test 0", "repair", "adjusted p", "does not apply: there is one"))
    assert "a &lt; b" in html
    assert html.count("<tr>") == 3


def test_frame_has_a_row_per_check():
    table = make_table([*make_checks([0.001]), Check("omitted", conclusion="none", applies=False)])
    frame = table.to_frame()
    assert frame["check"].tolist() == ["test 0", "omitted"]
    assert frame["rejected"].tolist() == [True, False]
    assert frame["applies"].tolist() == [True, False]
    assert frame["p"].isna().tolist() == [False, True]
