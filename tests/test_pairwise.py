"""Tests of the pairwise parameter lists."""

from itertools import combinations, product
from math import prod

import pytest
from pairwise import pairwise

GRIDS = [
    {"a": [0, 1], "b": "xy", "c": [None, 2.5]},
    {"a": range(4), "b": range(2), "c": range(3), "d": range(2)},
    {"a": [[1], [2]], "b": [{}, {"k": 1}, {"k": 2}], "c": [True, False], "d": range(5), "e": "xyz"},
]


@pytest.mark.parametrize("grid", GRIDS)
def test_pairwise_contains_every_pair_in_fewer_cases_than_the_grid(grid):
    cases = pairwise(**grid)
    levels = [list(level) for level in grid.values()]
    for i, j in combinations(range(len(levels)), 2):
        covered = [[case[i], case[j]] for case in cases]
        assert all([one, other] in covered for one, other in product(levels[i], levels[j]))
    assert len(cases) < prod(map(len, levels))
    assert len({repr(case) for case in cases}) == len(cases)


def test_pairwise_of_two_parameters_is_the_grid():
    assert pairwise(a=[1, 2], b="xyz") == list(product([1, 2], "xyz"))


def test_pairwise_is_deterministic_and_near_minimal():
    cases = pairwise(a=range(4), b=range(3), c=range(2), d=range(2))
    assert cases == pairwise(a=range(4), b=range(3), c=range(2), d=range(2))
    assert 12 <= len(cases) <= 14
