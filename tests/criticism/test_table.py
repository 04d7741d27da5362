"""Tables of checks: Holm's correction, access by name, and the formats."""

import numpy as np
import pytest

from ovkgp.criticism import Check, Criticism
from ovkgp.criticism.residuals import Residuals
from ovkgp.criticism.table import correct_for_number
from ovkgp.exceptions import OptionError


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
