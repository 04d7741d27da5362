"""Tests of `ovkgp.datasets.columns`."""

import numpy as np
import pytest

from ovkgp.datasets import BadRow, DataWarning
from ovkgp.datasets.columns import MAX_LISTED_COLUMNS, MAX_STORED_BAD_ROWS, BadRowLog, Columns
from ovkgp.exceptions import InputError


def test_columns_are_the_same_from_lists_tuples_and_strings():
    expected = Columns(("a", "b"), ("c",))
    assert Columns.from_names("a,b", "c") == expected
    assert Columns.from_names(" a , b ", ["c"]) == expected
    assert Columns.from_names(("a", "b"), iter(["c"])) == expected
    assert expected.names == ("a", "b", "c")


@pytest.mark.parametrize("inputs", ["", [], "a,,b", ["a", ""], ["a", 3], [None]])
def test_columns_reject_invalid_names(inputs):
    with pytest.raises(InputError, match="inputs"):
        Columns.from_names(inputs, "y")
    with pytest.raises(InputError, match="outputs"):
        Columns.from_names("y", inputs)


def test_columns_reject_repeated_names():
    with pytest.raises(InputError, match="'b' is both"):
        Columns.from_names("a,b", "b,c")
    with pytest.raises(InputError, match=r"inputs .* 'a'"):
        Columns.from_names("a,b,a", "c")


def test_column_indices_follow_the_requested_order():
    assert Columns.from_names("c,a", "b").find_in(("a", "b", "c", "d"), "file") == (2, 0, 1)


def test_unknown_column_error_suggests_one_and_lists_all():
    columns = Columns.from_names("Depht", "y")
    with pytest.raises(InputError, match=r"'Depht' .*'depth'\?.* 'time', 'depth', 'y'"):
        columns.find_in(("time", "depth", "y"), "file")
    with pytest.raises(InputError, match=r"'Depht'; its columns are 'a', 'y'\."):
        columns.find_in(("a", "y"), "file")
    with pytest.raises(InputError, match="separator"):
        columns.find_in(("depth;y",), "file")


def test_unknown_column_error_abbreviates_a_wide_table():
    header = tuple(f"c{number}" for number in range(MAX_LISTED_COLUMNS + 7))
    with pytest.raises(InputError, match=f"'c{MAX_LISTED_COLUMNS - 1}' and 7 more"):
        Columns.from_names("x", "c0").find_in(header, "file")


def test_columns_reject_a_repeated_header_only_if_requested():
    header = ("a", "b", "b", "c")
    with pytest.raises(InputError, match="more than one column 'b'"):
        Columns.from_names("a", "b").find_in(header, "file")
    assert Columns.from_names("a", "c").find_in(header, "file") == (0, 3)


def test_describe_fault_agrees_with_is_bad():
    columns = Columns.from_names("a", "b")
    cells = (0.5, np.nan, np.inf, -np.inf)
    rows = np.array([[x, y] for x in cells for y in cells])
    faults = [columns.describe_fault(row) for row in rows.tolist()]
    assert [fault is not None for fault in faults] == columns.is_bad(rows).tolist()
    assert faults[:4] == [None, None, "output 'b' is infinite", "output 'b' is infinite"]
    assert faults[4] == "input 'a' is missing" and faults[8] == "input 'a' is infinite"


COLUMNS = Columns(("x",), ("y", "z"))


def make_log(strict=False):
    return BadRowLog("'table.csv'", COLUMNS, "line", strict)


def test_log_keeps_good_rows_and_rows_without_outputs():
    rows = np.array([[1.0, np.nan, np.nan], [2.0, 3.0, np.nan]])
    log = make_log()
    assert log.find_good_rows(rows, lambda index: index).all()
    X, Y = log.accept(rows)
    np.testing.assert_array_equal(X, [[1.0], [2.0]])
    np.testing.assert_array_equal(Y, rows[:, 1:])
    assert log.report().num_rows == 2 and log.report().num_observed == (1, 0)
    X[:], Y[:] = 0.0, 0.0
    assert rows[1, 0] == 2.0 and rows[1, 1] == 3.0  # what is given out is a copy


def test_log_stores_the_first_bad_rows_and_counts_all():
    log, requested = make_log(), []
    rows = np.full((3 * MAX_STORED_BAD_ROWS, 3), np.nan)
    rows[1::2, 0] = 0.0  # every other one is good
    for _ in range(2):
        is_good = log.find_good_rows(rows, lambda index: requested.append(index) or index + 10)
        assert is_good.sum() == len(rows) // 2
    log.reject(lambda: pytest.fail("the number of a row that is not stored costs time"), "too many")
    assert log.num_bad_rows == 3 * MAX_STORED_BAD_ROWS + 1
    assert len(log.bad_rows) == MAX_STORED_BAD_ROWS
    assert log.bad_rows[:2] == [BadRow(10, "input 'x' is missing"), BadRow(12, "input 'x' is missing")]
    assert len(requested) == MAX_STORED_BAD_ROWS


def test_strict_log_raises_at_the_first_bad_row():
    rows = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, -np.inf], [np.nan, 1.0, 1.0]])
    with pytest.raises(InputError, match=r"csv', line 8: .*'z' is infinite.*\"warn\""):
        make_log(strict=True).find_good_rows(rows, lambda index: index + 7)


def test_warning_lists_the_first_bad_rows():
    log = make_log()
    for line in range(7):
        log.reject(lambda line=line: line + 2, "input 'x' is missing")
    log.num_rows = 3
    with pytest.warns(DataWarning, match=r"7 of 10 rows .*line 2 \(.*, and 2 more\.$") as caught:
        log.warn(stacklevel=1)
    assert caught[0].filename == __file__
    assert str(log.report()).endswith("(the pass was interrupted)")


def test_log_does_not_warn_without_bad_rows(recwarn):
    make_log().warn(stacklevel=1)
    assert not recwarn
