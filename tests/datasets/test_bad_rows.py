"""The account of a pass: what is remembered, what is only counted, and what is said."""

import numpy as np
import pytest

from ovkgp.datasets import BadRow, DataWarning
from ovkgp.datasets.columns import KEPT, Columns, Tally
from ovkgp.exceptions import InputError

COLUMNS = Columns(("x",), ("y", "z"))


def tally(strict=False):
    return Tally("'table.csv'", COLUMNS, "line", strict)


def test_good_rows_pass_untouched_and_unobserved_rows_are_good():
    rows = np.array([[1.0, np.nan, np.nan], [2.0, 3.0, np.nan]])
    account = tally()
    assert account.sift(rows, lambda place: place) is rows
    X, Y = account.accept(rows)
    np.testing.assert_array_equal(X, [[1.0], [2.0]])
    np.testing.assert_array_equal(Y, rows[:, 1:])
    assert account.report().num_rows == 2 and account.report().num_seen == (1, 0)
    X[:], Y[:] = 0.0, 0.0
    assert rows[1, 0] == 2.0 and rows[1, 1] == 3.0  # what is given out is a copy


def test_only_the_first_bad_rows_are_remembered_and_all_are_counted():
    account, asked = tally(), []
    rows = np.full((3 * KEPT, 3), np.nan)
    rows[1::2, 0] = 0.0  # every other one is good
    for _ in range(2):
        kept = account.sift(rows, lambda place: asked.append(place) or place + 10)
        assert len(kept) == len(rows) // 2
    account.reject(lambda: pytest.fail("the number of a row that is not remembered costs time"), "too many")
    assert account.num_bad == 3 * KEPT + 1
    assert len(account.bad_rows) == KEPT
    assert account.bad_rows[:2] == [BadRow(10, "input 'x' is missing"), BadRow(12, "input 'x' is missing")]
    assert len(asked) == KEPT


def test_strict_stops_at_the_first():
    rows = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, -np.inf], [np.nan, 1.0, 1.0]])
    with pytest.raises(InputError, match=r"'table.csv', line 8: output 'z' is infinite\. .* bad=\"warn\""):
        tally(strict=True).sift(rows, lambda place: place + 7)


def test_the_warning_names_the_first_few():
    account = tally()
    for line in range(7):
        account.reject(lambda line=line: line + 2, "input 'x' is missing")
    account.num_rows = 3
    with pytest.warns(
        DataWarning, match=r"7 of 10 rows left out: line 2 \(input 'x' is missing\), .*, and 2 more\.$"
    ) as caught:
        account.warn(stacklevel=1)
    assert caught[0].filename == __file__
    assert str(account.report()).endswith("(the pass was broken off)")


def test_no_warning_without_bad_rows(recwarn):
    tally().warn(stacklevel=1)
    assert not recwarn
