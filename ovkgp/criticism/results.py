"""Results of hypothesis tests, and of the checks of a model as one table that is corrected for their number."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape

import numpy as np
import pandas as pd

from ovkgp.criticism.residuals import Residuals
from ovkgp.exceptions import OptionError

COLUMNS = ("check", "statistic", "p", "adjusted p", "conclusion", "recommendation")
TEXT_WIDTHS = {"check": 30, "conclusion": 44, "recommendation": 48}


@dataclass(frozen=True, repr=False)
class HypothesisTest:
    """Result of a hypothesis test that rejects large values of a statistic.

    Attributes
    ----------
    name : str
        Name of the test.
    statistic : float
        Value of the statistic.
    pvalue : float
        Probability of a value at least as large if the null hypothesis is true.
    critical_value : float
        Value above which the hypothesis is rejected at level `alpha`.
    null : str
        Null hypothesis, as a clause such as "the rows are Gaussian with unknown mean and covariance".
    replicates : ndarray of shape (num_replicates,) or None, default=None
        Values of the statistic under the null hypothesis. None if its distribution is known in closed form.
    alpha : float, default=0.05
        Level of the test.
    conclusion : str, default=""
        Result as a sentence. If empty, it is made from `null`, `pvalue` and `alpha`.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import HypothesisTest
    >>> found = HypothesisTest.from_replicates("demo", 3.0, np.arange(99.0), "the mean is zero", alpha=0.05)
    >>> found.rejected, found.pvalue, found.critical_value
    (False, 0.97, 94.0)
    >>> found
    HypothesisTest(demo: statistic 3, critical value 94, p = 0.97; not rejected at level 0.05)
    >>> found.conclusion
    'Not rejected at level 0.05 (p = 0.97): the mean is zero.'
    """

    name: str
    statistic: float
    pvalue: float
    critical_value: float
    null: str
    replicates: np.ndarray | None = field(default=None, compare=False)
    alpha: float = 0.05
    conclusion: str = ""

    def __post_init__(self):
        """Write the conclusion, unless one is given."""
        if not self.conclusion:
            decision = "Rejected" if self.rejected else "Not rejected"
            text = f"{decision} at level {self.alpha:g} (p = {self.pvalue:.3g}): {self.null}."
            object.__setattr__(self, "conclusion", text)

    @classmethod
    def from_replicates(
        cls, name: str, statistic: float, replicates: np.ndarray, null: str, alpha: float, conclusion: str = ""
    ) -> HypothesisTest:
        """Compare a statistic with B values under the null hypothesis.

        Parameters
        ----------
        name, statistic, replicates, null, alpha, conclusion
            Attributes of the result.

        Returns
        -------
        HypothesisTest
            p = (1 + #{replicates ≥ statistic})/(B + 1). The critical value is order statistic ⌈(1 − α)(B + 1)⌉ of the replicates,
            above which p ≤ α; it is infinite if B + 1 < 1/α.
        """
        number = len(replicates)
        pvalue = (1 + int(np.count_nonzero(replicates >= statistic))) / (number + 1)
        # replicates that p ≤ α allows; the tolerance: .05 · 100 is rounded up, .05 · 60 down
        exceeding = math.floor(alpha * (number + 1) * (1 + 1e-12)) - 1
        critical = math.inf if exceeding < 0 else float(np.sort(replicates)[number - 1 - exceeding])
        return cls(name, float(statistic), pvalue, critical, null, replicates, alpha, conclusion)

    @property
    def rejected(self) -> bool:
        """Whether the null hypothesis is rejected at level `alpha`."""
        return bool(self.pvalue <= self.alpha * (1 + 1e-12))

    def __repr__(self) -> str:
        decision = "rejected" if self.rejected else "not rejected"
        return (
            f"HypothesisTest({self.name}: statistic {self.statistic:.4g}, critical value {self.critical_value:.4g}, "
            f"p = {self.pvalue:.3g}; {decision} at level {self.alpha:g})"
        )


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes
    ----------
    name : str
        What was checked.
    statistic : float or None, default=None
        Value of the statistic or score.
    pvalue, adjusted : float or None, default=None
        p-value, and Holm's adjusted p-value; None if the check is not a test.
    conclusion, recommendation : str, default=""
        Result, and what to do.
    applies : bool, default=True
        Whether the check could be made; if not, `conclusion` is the reason.
    rejected : bool, default=False
        Whether the adjusted p-value is at most the level.
    test : HypothesisTest or None, default=None
        Result of the test, with its replicates.
    if_rejected : str, default=""
        Conclusion if the adjusted p-value is at most the level.
    """

    name: str
    statistic: float | None = None
    pvalue: float | None = None
    adjusted: float | None = None
    conclusion: str = ""
    recommendation: str = ""
    applies: bool = True
    rejected: bool = False
    test: HypothesisTest | None = field(default=None, compare=False, repr=False)
    if_rejected: str = field(default="", repr=False)


@dataclass(frozen=True, repr=False)
class Criticism(Sequence):
    """Table of checks of a model: a sequence of `Check`, which prints as a table.

    Attributes
    ----------
    checks : tuple of Check
        Tests, scores, notes, and checks that do not apply.
    alpha : float
        Probability that any test rejects if the model is right.
    notes : tuple of str
        How residuals and predictions were computed.
    residuals : Residuals
        Residuals that the tests used.
    """

    checks: tuple[Check, ...]
    alpha: float
    notes: tuple[str, ...]
    residuals: Residuals

    def __len__(self) -> int:
        return len(self.checks)

    def __getitem__(self, key):
        """Return a check by number or name, or a slice of them."""
        if not isinstance(key, str):
            return self.checks[key]
        found = [check for check in self.checks if check.name == key]
        if not found:
            raise OptionError(f"{key!r} is not a check. Checks are {', '.join(check.name for check in self.checks)}.")
        return found[0]

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    @property
    def rejected(self) -> tuple[Check, ...]:
        """Tests that reject at level `alpha` after Holm's correction."""
        return tuple(check for check in self.checks if check.rejected)

    @property
    def conclusion(self) -> str:
        """Summary in a sentence."""
        number = sum(check.pvalue is not None for check in self.checks)
        level = f"level {self.alpha:g}, Holm's correction for {number}"
        if not self.rejected:
            return f"No test rejects the model ({level})." if number else "No test applies."
        return f"Tests that reject the model ({level}): {'; '.join(check.name for check in self.rejected)}."

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a data frame.

        Returns
        -------
        DataFrame
            One row per check, with the columns check, statistic, p, adjusted p, conclusion, recommendation, rejected and applies.
        """
        rows = [
            (c.name, c.statistic, c.pvalue, c.adjusted, c.conclusion, c.recommendation, c.rejected, c.applies)
            for c in self
        ]
        frame = pd.DataFrame(rows, columns=[*COLUMNS, "rejected", "applies"])
        return frame.astype({"statistic": float, "p": float, "adjusted p": float})

    def _cells(self, check: Check) -> list[str]:
        numbers = [_format(check.statistic), _format(check.pvalue, 2), _format(check.adjusted, 2)]
        conclusion = check.conclusion if check.applies else f"does not apply: {check.conclusion}"
        return [check.name, *numbers, conclusion, check.recommendation]

    def __str__(self) -> str:
        table = [[[name] for name in COLUMNS]]
        for check in self:
            cells = zip(COLUMNS, self._cells(check), strict=True)
            table.append([textwrap.wrap(text, TEXT_WIDTHS.get(name, 12)) or [""] for name, text in cells])
        widths = [max(len(line) for row in table for line in row[i]) for i in range(len(COLUMNS))]
        lines = [self.conclusion, *self.notes, ""]
        for row in table:
            for i in range(max(map(len, row))):
                cells = [cell[i] if i < len(cell) else "" for cell in row]
                lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        rows = []
        for check in self:
            cells = "".join(f"<td>{escape(text)}</td>" for text in self._cells(check))
            rows.append(f"<tr>{cells}</tr>")
        notes = "".join(f"<p>{escape(text)}</p>" for text in (self.conclusion, *self.notes))
        return f"{notes}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def correct_for_number(checks: Sequence[Check], alpha: float) -> tuple[Check, ...]:
    """Add Holm's adjusted p-values: the k-th smallest of m is multiplied by m − k + 1, and they do not decrease."""
    tests = [i for i, check in enumerate(checks) if check.pvalue is not None]
    order = sorted(tests, key=lambda i: checks[i].pvalue)
    factors = np.arange(len(order), 0, -1)
    adjusted = np.minimum(
        np.maximum.accumulate([checks[i].pvalue * m for i, m in zip(order, factors, strict=True)]), 1.0
    )
    result = list(checks)
    for i, value in zip(order, adjusted, strict=True):
        is_rejected = bool(value <= alpha)
        check = replace(checks[i], adjusted=float(value), rejected=is_rejected)
        result[i] = replace(check, conclusion=check.if_rejected) if is_rejected else replace(check, recommendation="")
    return tuple(result)


def _format(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}g}"
