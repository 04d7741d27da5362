"""Tests of residuals: Gaussianity, dependence on inputs, other columns, order and each other, and joint calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from ovkgp.criticism.joint_calibration import (
    PRERANKS,
    mahalanobis_test,
    marginal_test,
    pivoted_cholesky_test,
    prerank_test,
    spectral_test,
)
from ovkgp.criticism.residuals import Residuals, is_ordered_by
from ovkgp.criticism.results import HypothesisTest
from ovkgp.criticism.sample_tests.gaussianity import gaussianity_test
from ovkgp.criticism.sample_tests.two_sample import hsic
from ovkgp.criticism.table import Check

MAX_KERNEL_ROWS = 500  # random rows that kernel tests use
SCALES = (0.25, 1.0, 4.0)  # of the kernels exp(−scale ‖x − y‖²) of independence tests, with mean squared distance 1
MIN_ROWS = 20  # rows below which tests are not made
MAX_OUTPUTS = 6  # outputs that are tested separately; of more, the smallest p-value is corrected for their number

ADVICE = {
    "Gaussianity": 'Heavy tails: use likelihood="student_t" or a loss such as Huber\'s. Skewed outputs: transform them (log, Box–Cox).',
    "inputs": 'The mean depends on the inputs in a way that the kernel misses: use kernel="auto", one lengthscale per input or a mean function.',
    "noise level": "Noise varies with the inputs: pass known variances as fit(noise=), transform the outputs or learn quantiles.",
    "order": "Errors drift in the order of the rows: add time or order as an input.",
    "column": "Add the column to the inputs X.",
    "groups": "Groups differ: add the label or its properties to the inputs X, and judge the model with groups=.",
    "outputs": 'Errors of outputs depend on each other: use noise="full" with kernel="decomposable" or "lmc".',
    "marginal": 'The distribution of this output is not normal: use likelihood="student_t", transform it or learn quantiles.',
    "location": 'Errors of outputs go together: use noise="full" with kernel="decomposable" or "lmc".',
    "scale": "Joint intervals have the wrong size: recalibrate them (`ovkgp.criticism.recalibrate`) or use heavier tails.",
    "dependence": 'Outputs are correlated beyond the model: use noise="full" with kernel="decomposable" or "lmc".',
    "mahalanobis": "Predicted variances are too small (statistic above 1) or too large: recalibrate intervals or average over hyperparameters.",
    "pivoted": "Look at the row of the largest error: it may be an outlier or lie where the kernel varies too little.",
    "spectral": 'The kernel has the wrong smoothness or range: try base_kernel="matern12", "matern32" or "auto", or a sum of kernels.',
}


@dataclass(frozen=True)
class Tester:
    """Options of the tests; random numbers of each test are those of its own seed."""

    residuals: Residuals  # without missing entries
    missing: np.ndarray  # mask (n, p) of entries that were filled
    num_trained: int | None  # entries that hyperparameters were trained on; None if they are known
    alpha: float
    seed: int
    names: list[str]

    @property
    def kernel_rows(self) -> np.ndarray:
        """Random rows of kernel tests."""
        count = len(self.residuals.values)
        return np.sort(np.random.default_rng(self.seed).permutation(count)[:MAX_KERNEL_ROWS])

    def depends(self, values: np.ndarray, other: np.ndarray) -> HypothesisTest:
        """Test the dependence of residuals on the ranks of other columns, in rows without missing values among `MAX_KERNEL_ROWS`."""
        rows = self.kernel_rows
        rows = rows[np.isfinite(other[rows]).all(1)]
        tables = _scale(values[rows]), _scale(rankdata(other[rows], axis=0))
        return hsic(*tables, scale=SCALES, alpha=self.alpha, random_state=self.seed)

    def check(self, name: str, test: Callable[[], HypothesisTest], found: str, not_found: str, advice: str) -> Check:
        """Make the check of a test, whose conclusion depends on the correction for the number of tests."""
        result = test()
        return Check(
            name, result.statistic, result.pvalue, None, not_found, ADVICE[advice], test=result, if_rejected=found
        )


def check_residuals(tester: Tester, extra: list[tuple[str, np.ndarray]], groups: np.ndarray | None) -> Iterator[Check]:
    """Yield the checks of residuals."""
    z = tester.residuals.values
    if len(z) < MIN_ROWS:
        yield Check("residuals", conclusion=f"tests need at least {MIN_ROWS} rows, got {len(z)}", applies=False)
        return
    yield _check_gaussianity(tester)
    yield from _check_marginals(tester)
    yield from _check_inputs(tester)
    yield from _check_order(tester)
    for name, column in extra:
        if (np.nanmax(column, 0) == np.nanmin(column, 0)).all() or np.isfinite(column).all(1).sum() < MIN_ROWS:
            yield Check(f"residuals and {name}", conclusion="the column is constant or mostly missing", applies=False)
            continue
        test = lambda column=column: tester.depends(z, column)  # noqa: E731
        found = f"Residuals depend on {name}, which is no input."
        yield tester.check(f"residuals and {name}", test, found, f"No dependence on {name} found.", "column")
    if groups is not None:
        test = lambda: tester.depends(z, groups)  # noqa: E731
        yield tester.check(
            "residuals and groups",
            test,
            "Residuals differ between groups.",
            "No difference between groups found.",
            "groups",
        )
    yield from _check_outputs(tester)
    yield from _check_covariance(tester)


def _check_gaussianity(tester: Tester) -> Check:
    residuals = tester.residuals
    null = "known" if residuals.is_known and residuals.is_joint else "full"
    test = lambda: gaussianity_test(residuals.values[tester.kernel_rows], null=null, method="exact", alpha=tester.alpha)  # noqa: E731
    what = "N(0, I)" if null == "known" else "normal with estimated mean and covariance"
    return tester.check(
        "Gaussianity of residuals", test, f"Residuals are not {what}.", f"Residuals are {what}.", "Gaussianity"
    )


def _check_marginals(tester: Tester) -> Iterator[Check]:
    z, found = tester.residuals.values, []
    for a, name in enumerate(tester.names):
        observed = z[~tester.missing[:, a], a]
        if len(observed) < MIN_ROWS:
            yield Check(f"PIT of {name}", conclusion=f"fewer than {MIN_ROWS} observations", applies=False)
            continue
        options = {
            "is_known": tester.residuals.is_known,
            "alpha": tester.alpha,
            "random_state": tester.seed,
            "num_replicates": 1000,
        }
        test = lambda observed=observed, name=name, options=options: marginal_test(observed, name, **options)  # noqa: E731
        conclusions = (
            f"Probability integral transforms of {name} are not uniform.",
            f"Transforms of {name} are uniform.",
        )
        found.append(tester.check(f"PIT of {name}", test, *conclusions, "marginal"))
    yield from found if len(found) <= MAX_OUTPUTS else [_combine(found, "PIT of all outputs")]


def _combine(checks: list[Check], name: str) -> Check:
    """Replace the checks of many outputs by that of the smallest p-value, times their number."""
    least = min(checks, key=lambda check: check.pvalue)
    return replace(least, name=name, pvalue=min(1.0, least.pvalue * len(checks)))


def _check_inputs(tester: Tester) -> Iterator[Check]:
    X, z = tester.residuals.X, tester.residuals.values
    X = X[:, np.ptp(X, axis=0) > 0]
    if not X.shape[1]:
        yield Check("residuals and inputs", conclusion="all inputs are constant", applies=False)
        return
    conclusions = "Residuals depend on the inputs.", "No dependence on the inputs found."
    yield tester.check("residuals and inputs", lambda: tester.depends(z, X), *conclusions, "inputs")
    conclusions = "The size of residuals depends on the inputs.", "Size of residuals does not depend on the inputs."
    yield tester.check("noise level and inputs", lambda: tester.depends(np.abs(z), X), *conclusions, "noise level")


def _check_order(tester: Tester) -> Iterator[Check]:
    residuals = tester.residuals
    if is_ordered_by(residuals.X).any():
        yield Check("residuals and order", conclusion="rows are in the order of an input", applies=False)
        return
    order = residuals.rows[:, None].astype(float)
    conclusions = "Residuals depend on the order of the rows.", "No dependence on the order of rows found."
    yield tester.check("residuals and order", lambda: tester.depends(residuals.values, order), *conclusions, "order")


def _check_outputs(tester: Tester) -> Iterator[Check]:
    residuals, z = tester.residuals, tester.residuals.values
    p = z.shape[1]
    names = ["dependence between outputs", *(f"joint calibration: {prerank}" for prerank in PRERANKS)]
    if p == 1 or not residuals.is_joint:
        why = "there is one output" if p == 1 else "predictions of outputs have no joint distribution"
        yield from (Check(name, conclusion=why, applies=False) for name in names)
        return
    found = []
    for a in range(p if p > 2 else 1):
        others = [b for b in range(p) if b != a]
        test = lambda a=a, others=others: tester.depends(z[:, [a]], z[:, others])  # noqa: E731
        conclusions = "Residuals of outputs depend on each other.", "No dependence between outputs found."
        found.append(tester.check(names[0], test, *conclusions, "outputs"))
    yield found[0] if len(found) == 1 else _combine(found, names[0])
    for prerank, name in zip(PRERANKS, names[1:], strict=True):
        options = {"is_known": residuals.is_known, "alpha": tester.alpha, "random_state": tester.seed}
        test = lambda prerank=prerank, options=options: prerank_test(z, prerank, **options)  # noqa: E731
        conclusions = f"The {prerank} of rows is not calibrated.", f"The {prerank} of rows is calibrated."
        yield tester.check(name, test, *conclusions, prerank)


def _check_covariance(tester: Tester) -> Iterator[Check]:
    residuals = tester.residuals
    if residuals.joint is None:
        for name in ("Mahalanobis distance", "pivoted Cholesky errors", "scales of variation"):
            yield Check(name, conclusion="predictions have no joint covariance", applies=False)
        return
    if residuals.is_known or residuals.is_held_out:
        entries = residuals.values[~tester.missing]
        test = lambda: mahalanobis_test(entries, tester.num_trained, tester.alpha)  # noqa: E731
        conclusions = "The mean square of residuals differs from 1.", "Variances are right on average."
        yield tester.check("Mahalanobis distance", test, *conclusions, "mahalanobis")
    else:
        why = "hyperparameters were trained on these rows, which sets their mean square to 1"
        yield Check("Mahalanobis distance", conclusion=why, applies=False)
    options = {"is_known": residuals.is_known, "alpha": tester.alpha}
    test = lambda: pivoted_cholesky_test(residuals.joint, **options)  # noqa: E731
    conclusions = "A pivoted Cholesky error is too large.", "No pivoted Cholesky error is too large."
    yield tester.check("pivoted Cholesky errors", test, *conclusions, "pivoted")
    test = lambda: spectral_test(residuals.joint, alpha=tester.alpha, random_state=tester.seed)  # noqa: E731
    conclusions = "Variances are wrong at some scales of variation.", "Variances are right at all scales of variation."
    yield tester.check("scales of variation", test, *conclusions, "spectral")


def _scale(table: np.ndarray) -> np.ndarray:
    """Scale the columns (n, k) that vary such that the mean squared distance of two rows is 1."""
    scale = table.std(0)
    return table / np.where(scale > 0, scale, 1.0) / np.sqrt(2 * table.shape[1])
