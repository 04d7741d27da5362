"""Tests of residuals: Gaussianity, dependence on inputs, other columns, order and each other, and joint calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

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
from ovkgp.criticism.results import Check, HypothesisTest
from ovkgp.criticism.sample_tests.gaussianity import gaussianity_test
from ovkgp.criticism.sample_tests.two_sample import hsic

MAX_KERNEL_ROWS = 500  # random rows that kernel tests use
SCALES = (0.25, 1.0, 4.0)  # of the kernels exp(−scale ‖x − y‖²) of independence tests, with mean squared distance 1
MIN_ROWS = 20  # rows below which tests are not made
NUM_OTHER_TESTS = 15  # besides those of outputs and extra columns
MIN_REPLICATES = 1000
MAX_OUTPUTS = 6  # outputs that are tested separately; of more, the smallest p-value is corrected for their number

ADVICE = {
    "Gaussianity": 'Heavy tails: use likelihood="student_t" or a loss such as Huber\'s. Skewed outputs: transform them (log, Box–Cox).',
    "inputs": 'The mean depends on the inputs in a way that the kernel misses: use kernel="auto", one lengthscale per input or a mean function.',
    "noise level": "Noise varies with the inputs: pass known variances as fit(noise=), transform the outputs or learn quantiles.",
    "order": "Errors drift in the order of the rows: add time or order as an input.",
    "column": "Add the column to the inputs X.",
    "groups": "Groups differ: add the label or its properties to the inputs X, and pass groups= to assess predictions of new groups.",
    "outputs": 'Errors of outputs depend on each other: use noise="full" with kernel="decomposable" or "lmc".',
    "marginal": 'The distribution of this output is not normal: use likelihood="student_t", transform it or learn quantiles.',
    "location": 'Errors of outputs go together: use noise="full" with kernel="decomposable" or "lmc".',
    "scale": "Joint intervals have the wrong size: recalibrate them (ovkgp.criticism.recalibrate) or use heavier tails.",
    "dependence": 'Outputs are correlated beyond the model: use noise="full" with kernel="decomposable" or "lmc".',
    "mahalanobis": "Predicted variances are too small (statistic above 1) or too large: recalibrate intervals or average over hyperparameters.",
    "pivoted": "Look at the row of the largest error: it may be an outlier or lie where the kernel varies too little.",
    "spectral": 'The kernel has the wrong smoothness or range: try base_kernel="matern12", "matern32" or "auto", or a sum of kernels.',
}


@dataclass(frozen=True)
class ResidualTests:
    """Tests of the residuals of a model; each draws its random numbers from the same seed."""

    residuals: Residuals  # without missing entries
    missing: np.ndarray  # mask (n, p) of entries that were filled
    num_trained: int | None  # entries that hyperparameters were trained on; None if they are known
    alpha: float
    seed: int
    names: list[str]
    num_extra: int = 0  # extra columns

    @property
    def num_replicates(self) -> int:
        """Number of simulations or permutations, so that p-values can be small enough after the correction for all tests."""
        num_tests = NUM_OTHER_TESTS + len(self.names) + self.num_extra
        return max(MIN_REPLICATES, math.ceil(2 * num_tests / self.alpha))

    @property
    def options(self) -> dict:
        """Options of simulated tests."""
        return {"num_replicates": self.num_replicates, "alpha": self.alpha, "random_state": self.seed}

    @cached_property
    def kernel_rows(self) -> np.ndarray:
        """Random rows of kernel tests."""
        order = np.random.default_rng(self.seed).permutation(len(self.residuals.values))
        return np.sort(order[:MAX_KERNEL_ROWS])

    def dependence(self, values: np.ndarray, other: np.ndarray) -> HypothesisTest:
        """Test the dependence of values (n, k) on the ranks of a table (n, q), at `kernel_rows` without missing values."""
        rows = self.kernel_rows
        rows = rows[np.isfinite(other[rows]).all(1)]
        tables = _scale(values[rows]), _scale(rankdata(other[rows], axis=0))
        options = {"num_permutations": self.num_replicates, "alpha": self.alpha, "random_state": self.seed}
        return hsic(*tables, scale=SCALES, **options)


def check_residuals(
    tests: ResidualTests, extra: list[tuple[str, np.ndarray]], groups: np.ndarray | None
) -> list[Check]:
    """List the checks of residuals, with tables (n, k) of extra columns and indicators (n, G) of groups."""
    number = len(tests.residuals.values)
    if number < MIN_ROWS:
        return [_omit("residuals", f"tests need at least {MIN_ROWS} rows, got {number}")]
    checks = [_check_gaussianity(tests), *_check_marginals(tests), *_check_inputs(tests), _check_order(tests)]
    checks += [_check_column(tests, name, column) for name, column in extra]
    if groups is not None:
        test = tests.dependence(tests.residuals.values, groups)
        checks.append(_make_check("residuals and groups", test, "residuals differ between groups", "groups"))
    return [*checks, *_check_outputs(tests), *_check_covariance(tests)]


def _make_check(name: str, test: HypothesisTest, claim: str, advice: str) -> Check:
    """Make the check of a test; `claim` is the clause that holds if it rejects after the correction for the number of tests."""
    conclusions = {"conclusion": f"No evidence that {claim}.", "if_rejected": f"{claim[0].upper()}{claim[1:]}."}
    return Check(name, test.statistic, test.pvalue, test=test, recommendation=ADVICE[advice], **conclusions)


def _omit(name: str, reason: str) -> Check:
    return Check(name, conclusion=reason, applies=False)


def _check_gaussianity(tests: ResidualTests) -> Check:
    residuals = tests.residuals
    null = "known" if residuals.is_known and residuals.is_joint else "full"
    test = gaussianity_test(residuals.values[tests.kernel_rows], null=null, method="exact", alpha=tests.alpha)
    kind = "N(0, I)" if null == "known" else "normal with estimated mean and covariance"
    return _make_check("Gaussianity of residuals", test, f"residuals are not {kind}", "Gaussianity")


def _check_marginals(tests: ResidualTests) -> list[Check]:
    checks, omitted = [], []
    for a, name in enumerate(tests.names):
        observed = tests.residuals.values[~tests.missing[:, a], a]
        if len(observed) < MIN_ROWS:
            omitted.append(_omit(f"PIT of {name}", f"fewer than {MIN_ROWS} observations"))
            continue
        test = marginal_test(observed, name, is_known=tests.residuals.is_known, **tests.options)
        claim = f"probability integral transforms of {name} are not uniform"
        checks.append(_make_check(f"PIT of {name}", test, claim, "marginal"))
    return [*(checks if len(checks) <= MAX_OUTPUTS else [_combine(checks, "PIT of all outputs")]), *omitted]


def _combine(checks: list[Check], name: str) -> Check:
    """Replace the checks of several outputs by that of the smallest p-value, times their number."""
    smallest = min(checks, key=lambda check: check.pvalue)
    return replace(smallest, name=name, pvalue=min(1.0, smallest.pvalue * len(checks)))


def _check_inputs(tests: ResidualTests) -> list[Check]:
    X, z = tests.residuals.X, tests.residuals.values
    X = X[:, np.ptp(X, axis=0) > 0]
    if not X.shape[1]:
        return [_omit("residuals and inputs", "all inputs are constant")]
    mean, size = tests.dependence(z, X), tests.dependence(np.abs(z), X)
    return [
        _make_check("residuals and inputs", mean, "residuals depend on the inputs", "inputs"),
        _make_check("noise level and inputs", size, "the size of residuals depends on the inputs", "noise level"),
    ]


def _check_order(tests: ResidualTests) -> Check:
    name, residuals = "residuals and order", tests.residuals
    if is_ordered_by(residuals.X).any():
        return _omit(name, "rows are in the order of an input")
    test = tests.dependence(residuals.values, residuals.rows[:, None].astype(float))
    return _make_check(name, test, "residuals depend on the order of the rows", "order")


def _check_column(tests: ResidualTests, column_name: str, column: np.ndarray) -> Check:
    """Test the dependence of residuals on an extra column (n, k)."""
    name, used = f"residuals and {column_name}", column[tests.kernel_rows]
    used = used[np.isfinite(used).all(1)]
    if len(used) < MIN_ROWS or not np.ptp(used, axis=0).any():
        return _omit(name, "the column is constant or mostly missing")
    test = tests.dependence(tests.residuals.values, column)
    return _make_check(name, test, f"residuals depend on {column_name}, which is no input", "column")


def _check_outputs(tests: ResidualTests) -> list[Check]:
    residuals, z = tests.residuals, tests.residuals.values
    p = z.shape[1]
    names = ["dependence between outputs", *(f"joint calibration: {prerank}" for prerank in PRERANKS)]
    if p == 1 or not residuals.is_joint:
        reason = "there is one output" if p == 1 else "predictions of outputs have no joint distribution"
        return [_omit(name, reason) for name in names]
    pairs = []
    for a in range(1 if p == 2 else p):  # each output and all others
        test = tests.dependence(z[:, [a]], np.delete(z, a, axis=1))
        pairs.append(_make_check(names[0], test, "residuals of outputs depend on each other", "outputs"))
    checks = [_combine(pairs, names[0])]
    for prerank, name in zip(PRERANKS, names[1:], strict=True):
        test = prerank_test(z, prerank, is_known=residuals.is_known, **tests.options)
        checks.append(_make_check(name, test, f"the {prerank} of rows is not calibrated", prerank))
    return checks


def _check_covariance(tests: ResidualTests) -> list[Check]:
    residuals, joint = tests.residuals, tests.residuals.joint
    names = "Mahalanobis distance", "pivoted Cholesky errors", "scales of variation"
    if joint is None:
        return [_omit(name, "predictions have no joint covariance") for name in names]
    if residuals.is_known or residuals.is_held_out:
        test = mahalanobis_test(residuals.values[~tests.missing], tests.num_trained, tests.alpha)
        distance = _make_check(names[0], test, "the mean square of residuals differs from 1", "mahalanobis")
    else:
        distance = _omit(names[0], "hyperparameters were trained on these rows, which sets their mean square to 1")
    pivoted = pivoted_cholesky_test(joint, is_known=residuals.is_known, alpha=tests.alpha)
    scales = spectral_test(joint, **tests.options)
    return [
        distance,
        _make_check(names[1], pivoted, "a pivoted Cholesky error is too large", "pivoted"),
        _make_check(names[2], scales, "variances are wrong at some scales of variation", "spectral"),
    ]


def _scale(table: np.ndarray) -> np.ndarray:
    """Scale the columns (n, k) that vary such that the mean squared distance of two rows is 1."""
    scale = table.std(0)
    return table / np.where(scale > 0, scale, 1.0) / np.sqrt(2 * table.shape[1])
