"""Short parameter lists in which every pair of values of two parameters occurs, in place of full grids."""

from collections import Counter
from itertools import combinations, product


def pairwise(**values):
    """Return cases, as tuples in the order of the arguments, that contain every pair of values of two parameters.

    Each step adds the case of the full grid that contains the most pairs that are still missing; of several, the first
    whose pairs were used least, so that all values alternate. Use it as `@pytest.mark.parametrize(("a", "b", "c"), pairwise(a=..., b=..., c=...))`.
    """
    levels = [list(level) for level in values.values()]
    grid = {case: _pairs(case) for case in product(*(range(len(level)) for level in levels))}
    missing = set().union(*grid.values())
    cases, uses = [], Counter()
    while missing:
        best = max(grid, key=lambda case: (len(grid[case] & missing), -sum(uses[pair] for pair in grid[case])))
        missing -= grid[best]
        uses.update(grid[best])
        cases.append(tuple(level[index] for level, index in zip(levels, best, strict=True)))
    return cases


def _pairs(case):
    return set(combinations(enumerate(case), 2))
