"""Tests of `ovkgp.estimators.detection.one_class_forest`."""

import numpy as np
import pytest
from detector_cases import cancer_split, spiral_split
from scipy.special import digamma
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest
from sklearn.ensemble._iforest import _average_path_length
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp import OneClassForest
from ovkgp.estimators.detection.one_class_forest import mean_depth

rng = np.random.default_rng(0)
ROWS, POINTS = rng.normal(size=(150, 2)), rng.normal(scale=2.0, size=(50, 2))


@parametrize_with_checks([OneClassForest(num_trees=5)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        OneClassForest(num_trees=20, leaf_score="density", criterion="entropy", min_samples_split=20),
        OneClassForest(leaf_score="cell_density", gamma=5.0, min_samples_split=20),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


def test_mean_depth_is_that_of_random_trees():
    """c(n) = 2 H(n − 1) − 2 (n − 1)/n; scikit-learn's H is log(n) + .5772, which is less by about 1/(2n)."""
    n = np.arange(2, 300)
    harmonic = np.cumsum(1 / np.arange(1, 299))
    np.testing.assert_allclose(mean_depth(n), 2 * harmonic - 2 * (n - 1) / n, rtol=1e-12)
    np.testing.assert_allclose(mean_depth(n[8:]), _average_path_length(n[8:]), rtol=0.05)
    np.testing.assert_array_equal(mean_depth(np.array([0, 1])), 0)
    assert mean_depth(np.array(2)) == pytest.approx(2 * (digamma(2) + np.euler_gamma) - 1)


def paths(model, x):
    """Depth, rows, log volume and whether x is inside the box, of the leaf of a scaled point in each tree, in plain loops."""
    forest, found = model._forest, []
    for root in range(model.num_trees):
        node = root
        while forest.feature[node] >= 0:
            node = forest.left[node] + int(x[forest.feature[node]] > forest.threshold[node])
        inside = (x >= forest.lower[root]).all() and (x <= forest.upper[root]).all()
        found.append((forest.depth[node], forest.count[node], forest.log_volume[node], inside))
    return [np.array(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("score", ["depth", "density", "cell_density"])
def test_scores_equal_plain_loops(score):
    model = OneClassForest(num_trees=8, leaf_score=score, random_state=0).fit(ROWS)
    points = model.scaling_.inputs(POINTS).numpy()
    for x, found in zip(points, model.score_samples(POINTS), strict=True):
        depth, count, log_volume, inside = paths(model, x)
        expected = {
            "depth": 0.0,
            "density": np.mean(inside * count / np.exp(log_volume)),
            "cell_density": (inside * count).sum() / np.exp(log_volume).sum(),
        }[score]
        if expected == 0:
            expected = -(2 ** (-np.mean(depth + mean_depth(count)) / mean_depth(np.array(100))))
        assert found == pytest.approx(expected, rel=1e-12)


def test_bt_e_44_score_averages_over_trees():
    """A sum over leaves, as printed, would tend to −0 with the number of trees."""
    found = [OneClassForest(num_trees=k, random_state=0).fit(ROWS).score_samples(POINTS).mean() for k in (10, 100)]
    assert found[0] == pytest.approx(found[1], abs=0.03) and found[1] < -0.3


@pytest.mark.parametrize("score", ["depth", "density", "cell_density"])
def test_bt_119_and_120_scores_are_ordered_as_the_density(score):
    model = OneClassForest(num_trees=50, leaf_score=score, random_state=0)
    model.fit(np.random.default_rng(0).normal(size=(1000, 2)))
    radii = np.linspace(0.2, 3.0, 8)
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    ring = np.stack([np.cos(angles), np.sin(angles)], 1)
    means = [model.score_samples(radius * ring).mean() for radius in radii]
    assert (np.diff(means) < 0).all()


@pytest.mark.parametrize("score", ["density", "cell_density"])
def test_distant_points_are_outliers_where_many_densities_are_zero(score):
    """Trees of all rows cut off empty parts of the box: more than a fraction alpha of new rows has density 0."""
    model = OneClassForest(num_trees=20, leaf_score=score, max_samples=150, random_state=0).fit(ROWS)
    assert (model.held_out_scores_ < 0).mean() > 0.05
    assert model.predict([[50.0, 50.0]]) == -1


def test_bt_121_importances_are_the_tails_of_the_features():
    """Summed decreases, of which a heavy tail has most and a uniform feature none."""
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_t(2, 500), rng.normal(size=500), rng.uniform(size=500), np.ones(500)]
    importances = OneClassForest(num_trees=30, random_state=0).fit(X).feature_importances_
    assert importances.sum() == pytest.approx(1)
    assert importances[0] > importances[1] > importances[2] > importances[3] == 0


def test_bt_122_defaults_are_those_of_the_thesis():
    model = OneClassForest(random_state=0)
    model._seed = 0
    model._fit_rows(np.random.default_rng(0).normal(size=(1000, 16)))
    assert model.max_samples_ == 200 and model._forest.num_trees == 100
    assert (np.isfinite(model._forest.lower).sum(1) == 8).all()
    assert model._forest.depth.max() <= 10
    assert OneClassForest(random_state=0).fit(ROWS).max_samples_ == 100


def test_one_tree_of_depth_four_has_level_sets():
    """Figure D.3: at most 16 cells, the densest in the middle."""
    options = {"num_trees": 1, "max_depth": 4, "max_samples": 1000, "leaf_score": "density", "random_state": 0}
    model = OneClassForest(**options).fit(np.random.default_rng(0).normal(size=(1000, 2)))
    plane = np.stack(np.meshgrid(*[np.linspace(-4, 4, 60)] * 2), -1).reshape(-1, 2)
    values = model.score_samples(plane)
    assert 4 < len(np.unique(values[values > 0])) <= 16
    assert values[np.linalg.norm(plane, axis=1) < 0.3].min() > 5 * values.mean()


@pytest.mark.parametrize("score", ["depth", "density"])
def test_fraction_of_flagged_rows_is_alpha(score):
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        model = OneClassForest(alpha=0.1, num_trees=30, leaf_score=score, random_state=seed).fit(
            rng.normal(size=(300, 2))
        )
        found.append((model.predict(rng.normal(size=(500, 2))) == -1).mean())
    assert 0.05 < np.mean(found) < 0.16


def digits_split():
    X, y = load_digits(return_X_y=True)
    return X[y < 5], X[y == 7]


def toys(seed):
    """Return (training, new typical rows, outliers) by name."""
    rng = np.random.default_rng(seed)
    few, outliers = digits_split()
    rows = rng.permutation(few)
    clusters = rng.normal(scale=0.5, size=(600, 2)) + 3 * (np.arange(600)[:, None] % 2)
    return {
        "normal": (rng.normal(size=(400, 4)), rng.normal(size=(400, 4)), rng.uniform(-4, 4, (400, 4))),
        "clusters": (clusters[:300], clusters[300:], rng.uniform(-2, 5, (300, 2))),
        "spiral": tuple(spiral_split(seed)),
        "cancer": tuple(cancer_split(seed)),
        "digits": (rows[:500], rows[500:], outliers),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "clusters", "spiral", "cancer", "digits"])
def test_bt_123_auc_is_near_that_of_isolation_forest(name):
    """On average over 5 seeds, not less by more than .05."""
    found = []
    for seed in range(5):
        training, typical, outliers = toys(seed)[name]
        labels = np.repeat([1, 0], [len(typical), len(outliers)])
        found.append(
            [
                roc_auc_score(labels, kind(random_state=seed).fit(training).score_samples(np.r_[typical, outliers]))
                for kind in (OneClassForest, IsolationForest)
            ]
        )
    ours, peer = np.mean(found, 0)
    assert ours > peer - 0.05 and ours > 0.6


def test_saved_forest_predicts_the_same(tmp_path):
    model = OneClassForest(num_trees=5, random_state=0).fit(ROWS)
    model.save(tmp_path / "model.ovkgp")
    again = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_array_equal(again.score_samples(POINTS), model.score_samples(POINTS))
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)
