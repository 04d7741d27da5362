"""Results of hypothesis tests: one type that every test of `ovkgp.criticism` returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


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
