"""Splits of forecast origins: order, windows, disjoint blocks, and use as a splitter of scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score

from ovkgp.estimators.series.splits import rolling_splits
from ovkgp.exceptions import InputError, OptionError


@pytest.mark.parametrize(("step", "window"), [(1, "expanding"), (3, "expanding"), (2, 4)])
def test_rolling_splits_are_contiguous_and_ordered(step, window):
    cv = rolling_splits(20, 6, 3, step=step, window=window)
    folds = list(cv.split(np.zeros(20)))
    assert len(folds) == cv.get_n_splits() == len(range(6, 18, step))
    for k, (train, test) in enumerate(folds):
        origin = 6 + k * step
        assert test.tolist() == list(range(origin, origin + 3))
        assert train.tolist() == list(range(0 if window == "expanding" else origin - window, origin))


def test_rolling_splits_with_disjoint_blocks_bo_131():
    folds = list(rolling_splits(75, 20, 10, step=30, window=20).split())
    assert [(t[0], t[-1], s[0], s[-1]) for t, s in folds] == [(0, 19, 20, 29), (30, 49, 50, 59)]


def test_rolling_splits_serve_scikit_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    scores = cross_val_score(Ridge(), X, X.sum(1), cv=rolling_splits(40, 20, 5, step=5))
    assert scores.shape == (4,)
    with pytest.raises(InputError, match="40 rows"):
        next(rolling_splits(40, 20, 5).split(X[:30]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 8, 3), "initial \\+ horizon"),
        ((10, 0, 3), "initial"),
        ((10, 5, 3, 0), "step"),
        ((10, 5, 3, 1, "sliding"), "window"),
        ((10, 5, 3, 1, 6), "window must be at most initial"),
    ],
)
def test_rolling_splits_rejects_invalid_arguments(arguments, message):
    with pytest.raises(OptionError, match=message):
        rolling_splits(*arguments)
