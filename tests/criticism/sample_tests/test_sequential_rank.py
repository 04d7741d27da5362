"""Tests of the sequential test of the rank of a covariance."""

import numpy as np
import pytest

from ovkgp.criticism import covariance_rank, gaussianity_test
from ovkgp.criticism.sample_tests.sequential_rank import schedule_level
from ovkgp.exceptions import InputError, OptionError

SPECTRA = {"polynomial": 1 / np.arange(1, 11), "exponential": np.exp(-0.2 * np.arange(1, 11))}


def test_rank_of_latent_factors_is_found():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 20)) + 5
    found = covariance_rank(rows, random_state=0)
    assert found.rank == 3
    assert [test.rejected for test in found.tests] == [True, True, False]
    assert found.alpha == schedule_level(200)
    np.testing.assert_allclose(found.eigenvalues[:3], np.linalg.eigvalsh(np.cov(rows.T, bias=True))[:-4:-1])
    assert "is 3" in found.conclusion
    assert len(found.pvalues) == 3


def test_tests_are_those_of_the_rank_hypotheses():
    rows = np.random.default_rng(1).normal(size=(60, 4)) * [2, 1, 0.5, 0.2]
    for derivative_at in ("projected", "empirical"):
        options = {"method": "exact", "derivative_at": derivative_at, "scale": 0.2}
        found = covariance_rank(rows, alpha=0.999, start=2, **options)
        single = gaussianity_test(rows, null=2, **options)
        assert found.tests[0].statistic == pytest.approx(single.statistic, abs=1e-12)
        assert found.tests[0].pvalue == pytest.approx(single.pvalue, abs=1e-9)


def test_rejection_of_all_ranks_is_reported():
    rows = np.random.default_rng(2).exponential(size=(200, 2))
    found = covariance_rank(rows, random_state=0)
    assert found.rank is None
    assert "> 2" in found.conclusion
    assert "> 2" in repr(found)
    limited = covariance_rank(np.random.default_rng(3).normal(size=(200, 4)), max_rank=2, random_state=0)
    assert limited.rank is None
    assert "> 2" in repr(limited)


def test_kt_e_07_gram_is_that_of_the_sample():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(150, 2)) @ rng.normal(size=(2, 6))
    found = covariance_rank(gram=rows @ rows.T, method="exact", scale=0.1)
    assert found.rank == covariance_rank(rows, method="exact", scale=0.1).rank == 2
    # printed: the Gram matrix of the kernel on the space, whose sample has rank n − 1
    squares = ((rows[:, None] - rows) ** 2).sum(-1)
    printed = covariance_rank(gram=np.exp(-0.1 * squares), method="exact", max_rank=3)
    assert printed.rank != 2


def test_schedule_decreases_with_the_number_of_rows():
    levels = [schedule_level(n) for n in (100, 300, 600, 1000, 1500, 5000)]
    np.testing.assert_allclose(levels, [0.370, 0.196, 0.108, 0.061, 0.035, 0.0031], atol=5e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0}, "start"),
        ({"max_rank": 9}, "max_rank"),
        ({"start": 3, "max_rank": 2}, "max_rank"),
        ({"alpha": 2.0}, "alpha"),
        ({"method": "features"}, "method"),
        ({"num_replicates": 10, "alpha": 0.05}, "num_replicates"),
        ({"derivative_at": "both"}, "derivative_at"),
    ],
)
def test_invalid_options_are_an_error(options, message):
    with pytest.raises((OptionError, InputError), match=message):
        covariance_rank(np.random.default_rng(5).normal(size=(40, 3)), **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:scale is large")
@pytest.mark.parametrize(
    ("spectrum", "n", "expected"),
    [("polynomial", 600, 0.92), ("exponential", 600, 0.96), ("polynomial", 1000, 1.0), ("exponential", 1000, 1.0)],
)
def test_frequency_of_the_right_rank_is_that_of_the_paper(spectrum, n, expected):
    rng = np.random.default_rng(6)
    right = [
        covariance_rank(
            rng.normal(size=(n, 10)) * np.sqrt(SPECTRA[spectrum]),
            start=6,
            scale=1.0,
            num_replicates=400,
            random_state=rng,
        ).rank
        == 10
        for _ in range(100)
    ]
    assert np.mean(right) == pytest.approx(expected, abs=0.05)


@pytest.mark.slow
def test_rank_is_rarely_too_large():
    rng, levels = np.random.default_rng(7), 0.1
    ranks = [
        covariance_rank(rng.normal(size=(200, 2)) @ np.eye(2, 5) * 2, alpha=levels, random_state=rng).rank
        for _ in range(150)
    ]
    too_large = np.mean([rank is None or rank > 2 for rank in ranks])
    assert too_large <= levels + 2 * np.sqrt(levels * (1 - levels) / 150)
