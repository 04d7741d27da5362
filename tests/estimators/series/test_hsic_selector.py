"""Backward selection by HSIC: a dense oracle of the criterion, its Nyström approximation, selection of variables."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.criticism import hsic
from ovkgp.datasets import make_wind_farm
from ovkgp.estimators.series.forecast_windows import ForecastWindows
from ovkgp.estimators.series.hsic_selector import HSICSelector
from ovkgp.exceptions import InputError, OptionError


@parametrize_with_checks([HSICSelector(num_landmarks=20, random_state=0)])
def test_hsic_selector_passes_scikit_learn_checks(estimator, check):
    check(estimator)


def make_data(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 7)) * [1, 10, 0.1, 1, 1, 1, 1] + 3
    return X, np.column_stack([np.sin(X[:, 0]), (X[:, 1] - 3) ** 2 / 50]) + 0.1 * rng.normal(size=(n, 2))


def gram(X):
    """Gaussian kernel matrix of standardized columns with γ = 1/(2d)."""
    X = (X - X.mean(0)) / X.std(0)
    squares = ((X[:, None] - X[None]) ** 2).sum(-1)
    return np.exp(-squares / (2 * X.shape[1]))


def slow_hsic(X, Y, factor=1.0):
    """tr(K H L H)/n² with H = factor · I − 11ᵀ/n."""
    n = len(X)
    H = factor * np.eye(n) - np.ones((n, n)) / n
    return np.trace(gram(X) @ H @ gram(Y) @ H) / n**2


def test_criterion_agrees_with_dense_algebra_and_the_test_of_independence():
    X, Y = make_data()
    selector = HSICSelector(num_groups=7, num_landmarks=None).fit(X, Y)
    assert selector.hsic_ == pytest.approx(slow_hsic(X, Y), rel=1e-10)
    assert selector.hsic_ == pytest.approx(
        hsic(gram_x=gram(X), gram_y=gram(Y), random_state=0).statistic, rel=1e-6
    )  # it omits a trace of 1e-6
    without = np.array([slow_hsic(np.delete(X, j, 1), Y) for j in range(7)])
    np.testing.assert_allclose(selector.scores_, 1 - without / without.max(), atol=1e-10)


def test_centering_matrix_is_a_projection_bo_e_40():
    """The thesis prints (I − 11ᵀ)/n, which is no projection: independent tables would have a large criterion."""
    X, Y = make_data()
    independent = np.random.default_rng(1).permutation(Y)
    found = HSICSelector(num_groups=7, num_landmarks=None).fit(X, independent).hsic_
    assert found == pytest.approx(slow_hsic(X, independent), rel=1e-10)
    printed, n = slow_hsic(X, independent, factor=1 / len(X)), len(X)
    assert found < 0.02 and printed > 5 * found
    H = np.eye(n) - np.ones((n, n)) / n
    np.testing.assert_allclose(H @ H, H, atol=1e-12)


def test_nystrom_with_all_rows_is_exact_and_with_few_is_close():
    X, Y = make_data(400)
    exact = HSICSelector(num_groups=7, num_landmarks=None).fit(X, Y)
    assert HSICSelector(num_groups=7, num_landmarks=400).fit(X, Y).hsic_ == exact.hsic_
    # features of all but one row: the kernel matrix of both is reproduced on these rows
    almost = HSICSelector(num_groups=7, num_landmarks=399, random_state=0).fit(X, Y)
    assert almost.hsic_ == pytest.approx(exact.hsic_, rel=1e-3)
    few = [HSICSelector(num_groups=7, random_state=seed).fit(X, Y).hsic_ for seed in range(3)]
    np.testing.assert_allclose(few, exact.hsic_, rtol=0.15)


def test_nystrom_agrees_with_dense_algebra():
    X, Y = make_data()
    selector = HSICSelector(num_groups=7, num_landmarks=15, random_state=4).fit(X, Y)
    rng = np.random.default_rng(4)
    points, others = (np.sort(rng.choice(len(X), 15, replace=False)) for _ in range(2))
    H = np.eye(len(X)) - 1 / len(X)

    def low_rank(K, rows):
        return K[:, rows] @ np.linalg.pinv(K[np.ix_(rows, rows)], rcond=1e-10, hermitian=True) @ K[rows]

    expected = np.trace(low_rank(gram(X), points) @ H @ low_rank(gram(Y), others) @ H) / len(X) ** 2
    assert selector.hsic_ == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("num_landmarks", [None, 60])
def test_selection_finds_nonlinear_dependence(num_landmarks):
    X, Y = make_data(300)
    selector = HSICSelector(num_groups=2, num_landmarks=num_landmarks, random_state=0).fit(X, Y)
    assert selector.get_support(indices=True).tolist() == [0, 1]
    assert sorted(selector.ranking_) == list(range(1, 8)) and set(selector.ranking_[:2]) == {1, 2}
    assert np.isnan(selector.scores_[2:]).all() and selector.scores_[:2].min() == 0
    np.testing.assert_array_equal(selector.transform(X), X[:, :2])


def test_groups_are_removed_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 8))
    groups = np.array(["b", "b", "a", "c", "c", "a", "d", "d"])
    y = X[:, 2] * X[:, 5] + X[:, 6]
    selector = HSICSelector(num_groups=2, groups=groups, num_landmarks=None, removed=0.6).fit(X, y)
    assert list(selector.groups_) == ["b", "a", "c", "d"]
    assert selector.get_support(indices=True).tolist() == [2, 5, 6, 7]
    assert {selector.groups_[i] for i in np.argsort(selector.ranking_)[:2]} == {"a", "d"}


def test_selector_of_wind_variables_in_a_pipeline():
    farm = make_wind_farm(4000, random_state=0)
    windows = ForecastWindows([6, 24], 6, before=3, after=3, directions=["direction", "forecast direction"])
    X, Y = windows.fit(*farm).make_pairs(*farm)
    selector = HSICSelector(num_groups=2, groups=windows.groups_, random_state=0)
    model = make_pipeline(selector, Ridge()).fit(X, Y)
    fitted = model[0]
    kept = set(fitted.groups_[fitted.ranking_ <= 2])
    assert kept <= {"speed", "power", "speed_100m", "speed_10m"} and model.score(X, Y) > 0.7
    names = fitted.get_feature_names_out()
    assert set(names) == set(X.columns[fitted.get_support()])


def test_selector_rejects_invalid_arguments():
    X, Y = make_data()
    with pytest.raises(OptionError, match="num_groups"):
        HSICSelector(num_groups=0).fit(X, Y)
    with pytest.raises(OptionError, match="removed"):
        HSICSelector(removed=1.5).fit(X, Y)
    with pytest.raises(InputError, match=r"groups has shape \(3,\), expected \(7,\)"):
        HSICSelector(groups=[0, 1, 2]).fit(X, Y)
    with pytest.raises(InputError, match="missing one at 1"):
        HSICSelector(groups=pd.array(["a", None, *"bcdef"])).fit(X, Y)
    Y[1:, 0] = np.nan
    with pytest.raises(InputError, match="2 rows without missing"):
        HSICSelector().fit(X, Y)
