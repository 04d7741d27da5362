import warnings

import numpy as np

from ovkgp.plotting.report.evaluation_data import means, spreads


def test_gaps_are_passed_over_and_empty_columns_are_zero():
    Y = np.random.default_rng(0).normal(5.0, 3.0, (20, 3))
    Y[::3, 1], Y[:, 2] = np.nan, np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = means(Y), spreads(Y)
    np.testing.assert_allclose(found[0], [*np.nanmean(Y[:, :2], 0), 0.0])
    np.testing.assert_allclose(found[1], [*np.nanstd(Y[:, :2], 0), 0.0])
