"""Tests of `ovkgp.functional.point_names`."""

import numpy as np
import pytest

from ovkgp.exceptions import InputError
from ovkgp.functional.point_names import grid_of_names, name_points, parse_numbered_names, parse_plane_names


@pytest.mark.parametrize(
    ("names", "points", "prefix", "suffix"),
    [
        (["0.5", "1", "1e1"], [0.5, 1, 10], "", ""),
        (["y_01", "y_02"], [1, 2], "y_", ""),
        (["y-1", "y-2"], [1, 2], "y-", ""),  # hyphens
        (["y_-1", "y_0", "y_+1"], [-1, 0, 1], "y_", ""),  # signs
        (["T2 at 10 m", "T2 at 20 m"], [10, 20], "T2 at ", " m"),
        (["t=1.5", "t=1.25"], [1.5, 1.25], "t=", ""),  # not increasing
    ],
)
def test_parse_numbered_names_finds_the_number_that_varies(names, points, prefix, suffix):
    found = parse_numbered_names(names)
    np.testing.assert_array_equal(found.points, points)
    assert (found.prefix, found.suffix) == (prefix, suffix)


@pytest.mark.parametrize("names", [["u", "v"], ["u_1", "v_2"], ["u_1_1", "u_2_2"], ["y_1", "y"], ["y_1", "y_1"], []])
def test_parse_numbered_names_rejects_names_without_one_varying_number(names):
    assert parse_numbered_names(names) is None


def test_parse_plane_names_finds_two_numbers_that_vary():
    found = parse_plane_names(["u2_0_0", "u2_0_1", "u2_1_0", "u2_1_1"])
    np.testing.assert_array_equal(found, [[0, 0], [0, 1], [1, 0], [1, 1]])
    for names in (
        ["u_1", "u_2"],
        ["u_0_0", "u_0_1", "u_1_0"],
        ["u_0_1", "u_1_2"],
        ["u_1_1_1", "u_2_2_2"],
        ["u_1_2", "v_2_1"],
        ["u_1_2", "u_2_1", "u_1_2"],
    ):
        assert parse_plane_names(names) is None


@pytest.mark.parametrize(
    ("names", "points", "source"),
    [
        (["depth_10", "depth_20", "depth_50"], [10, 20, 50], "names"),
        ([0.0, 0.5], [0, 0.5], "names"),
        (["2020-01-30", "2020-01-31", "2020-02-01"], [18291, 18292, 18293], "names"),
        (["2020/01/30 06:00", "2020/01/30 12:00"], [18291.25, 18291.5], "names"),
        ([f"{year}-{month:02d}" for year in (1970, 1971) for month in (1, 2)], [0, 31, 365, 396], "names"),
        (["u_0_0", "u_0_1", "u_1_0", "u_1_1"], [[0, 0], [0, 1], [1, 0], [1, 1]], "plane"),
        (["u", "v", "w"], [0, 0.5, 1], "none"),
        (["T2 a", "T2 b"], [0, 1], "none"),  # the same number everywhere
    ],
)
def test_grid_of_names_reads_numbers_and_dates(names, points, source):
    found = grid_of_names(names, len(names))
    np.testing.assert_allclose(found.points, points)
    assert found.source == source


@pytest.mark.parametrize("names", [["y_2", "y_1"], ["y_1", "y_1", "y_2"], ["u_1", "v_2"], ["u_1_1", "u_2_2"]])
def test_grid_of_names_rejects_names_without_an_increasing_grid(names):
    with pytest.raises(InputError, match="column names"):
        grid_of_names(names, len(names))


def test_name_points_follows_the_columns_of_the_fit():
    points = np.array([[0.0], [1 / 3], [2.0]])
    assert name_points(["d_1 m", "d_2 m"], points) == ["d_0 m", "d_0.333333 m", "d_2 m"]
    assert name_points(["u", "v"], points[2:]) == name_points(None, points[2:]) == ["y_2"]
    assert name_points(None, np.array([[0.5, 0.25]])) == ["y_0.5_0.25"]
    assert len(set(name_points(None, np.array([[1.0], [1.0 + 1e-9]])))) == 2  # more digits where six coincide
