"""What a count of entries inside their intervals says, against what chance alone would do.

Of N entries an interval of level q holds Binomial(N, q) of them where it is right. A count within the central 99 % of that is as it should
be; outside, the intervals are too narrow or too wide, and the sentence says so.
"""

from __future__ import annotations

from scipy.stats import binom

from ovkgp.estimators.summary import count
from ovkgp.plotting.report.numbers import percent
from ovkgp.plotting.report.sections import Judgement

CHANCE = 0.99
"""The probability of a count that raises no doubt."""
CLOSE = 0.02
"""A share this near to the level is near enough, whatever chance says."""
FEW = 20
"""So few entries say little."""


def judged(held: int, total: int, level: float = 0.9, name: str = "") -> Judgement:
    """The judgement of intervals of a level that held so many of all entries.

    Example:
        >>> from ovkgp.plotting.report.judging import judged
        >>> print(judged(211, 240).sentence)
        The 90 % intervals held 88 % of 240 entries: as they should.
        >>> print(judged(150, 240, name="u").sentence)
        'u': the 90 % intervals held 62 % of 240 entries: they are too narrow (chance alone gives 85 % to 95 %).
    """
    low, high = binom.interval(CHANCE, total, level)
    share = held / total
    is_good = low <= held <= high or abs(share - level) <= CLOSE
    start = f"'{name}': the" if name else "The"
    sentence = f"{start} {percent(level)} intervals held {percent(share)} of {count(total, 'entry', 'entries')}: "
    if total < FEW:
        return Judgement(name, level, held, total, f"{sentence}too few to say more.", None)
    if is_good:
        return Judgement(name, level, held, total, f"{sentence}as they should.", True)
    side = "too narrow" if share < level else "wider than they need to be"
    return Judgement(name, level, held, total, f"{sentence}they are {side} ({_chance(low, high, total)}).", False)


def judged_outside(outside: int, total: int, level: float) -> Judgement:
    """The judgement of a set that should leave a share `level` of all rows outside.

    Example:
        >>> from ovkgp.plotting.report.judging import judged_outside
        >>> print(judged_outside(24, 240, 0.1).sentence)
        The set of level 10 % left 10 % of 240 rows outside: as it should.
    """
    low, high = binom.interval(CHANCE, total, level)
    is_good = low <= outside <= high or abs(outside / total - level) <= CLOSE
    end = (
        "as it should"
        if is_good
        else f"it is too {'small' if outside > high else 'large'} ({_chance(low, high, total)})"
    )
    sentence = (
        f"The set of level {percent(level)} left {percent(outside / total)} of {count(total, 'row')} outside: {end}."
    )
    return Judgement("", level, outside, total, sentence, is_good)


def _chance(low: float, high: float, total: int) -> str:
    return f"chance alone gives {percent(low / total)} to {percent(high / total)}"
