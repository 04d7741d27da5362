"""Names of columns: lists and strings, and messages that help to find the right one."""

import numpy as np
import pytest

from ovkgp.datasets.columns import LISTED, Columns
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
