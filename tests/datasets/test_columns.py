"""Tests of `ovkgp.datasets.columns`."""

import numpy as np
import pytest

from ovkgp.datasets import BadRow, DataWarning
from ovkgp.datasets.columns import KEPT, LISTED, BadRowLog, Columns
from ovkgp.exceptions import InputError


def test_lists_tuples_and_strings_name_the_same_columns():
    expected = Columns(("a", "b"), ("c",))
    assert Columns.named("a,b", "c") == expected
    assert Columns.named(" a , b ", ["c"]) == expected
    assert Columns.named(("a", "b"), iter(["c"])) == expected
    assert expected.names == ("a", "b", "c")


@pytest.mark.parametrize("inputs", ["", [], "a,,b", ["a", ""], ["a", 3], [None]])
def test_names_that_are_no_names(inputs):
    with pytest.raises(InputError, match="inputs must be one or more names"):
        Columns.named(inputs, "y")
    with pytest.raises(InputError, match="outputs must be one or more names"):
        Columns.named("y", inputs)


def test_a_column_is_named_once():
    with pytest.raises(InputError, match="'b' named both as input and as output"):
        Columns.named("a,b", "b,c")
    with pytest.raises(InputError, match="inputs names 'a' more than once"):
        Columns.named("a,b,a", "c")


def test_places_follow_the_order_asked_for():
    assert Columns.named("c,a", "b").places(("a", "b", "c", "d"), "file") == (2, 0, 1)


def test_an_unknown_column_suggests_one_and_lists_all():
    columns = Columns.named("Depht", "y")
    with pytest.raises(
        InputError, match=r"file has no column 'Depht' \(did you mean 'depth'\?\).* 'time', 'depth', 'y'"
    ):
        columns.places(("time", "depth", "y"), "file")
    with pytest.raises(InputError, match=r"no column 'Depht'; its columns are 'a', 'y'\."):
        columns.places(("a", "y"), "file")
    with pytest.raises(InputError, match="is the separator right"):
        columns.places(("depth;y",), "file")


def test_a_wide_table_is_not_listed_whole():
    header = tuple(f"c{number}" for number in range(LISTED + 7))
    with pytest.raises(InputError, match=f"'c{LISTED - 1}' and 7 more"):
        Columns.named("x", "c0").places(header, "file")


def test_a_name_that_stands_twice_in_the_file_is_refused_only_where_it_is_wanted():
    header = ("a", "b", "b", "c")
    with pytest.raises(InputError, match="more than one column 'b'"):
        Columns.named("a", "b").places(header, "file")
    assert Columns.named("a", "c").places(header, "file") == (0, 3)


def test_faults_and_bad_rows_agree():
    columns = Columns.named("a", "b")
    cells = (0.5, np.nan, np.inf, -np.inf)
    rows = np.array([[x, y] for x in cells for y in cells])
    faults = [columns.fault(row) for row in rows.tolist()]
    assert [fault is not None for fault in faults] == columns.is_bad(rows).tolist()
    assert faults[:4] == [None, None, "output 'b' is infinite", "output 'b' is infinite"]
    assert faults[4] == "input 'a' is missing" and faults[8] == "input 'a' is infinite"


COLUMNS = Columns(("x",), ("y", "z"))


def tally(strict=False):
    return BadRowLog("'table.csv'", COLUMNS, "line", strict)


def test_good_rows_pass_untouched_and_unobserved_rows_are_good():
    rows = np.array([[1.0, np.nan, np.nan], [2.0, 3.0, np.nan]])
    account = tally()
    assert account.sift(rows, lambda place: place) is rows
    X, Y = account.accept(rows)
    np.testing.assert_array_equal(X, [[1.0], [2.0]])
    np.testing.assert_array_equal(Y, rows[:, 1:])
    assert account.report().num_rows == 2 and account.report().num_observed == (1, 0)
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
