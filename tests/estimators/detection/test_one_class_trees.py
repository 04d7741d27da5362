"""Tests of `ovkgp.estimators.detection.one_class_trees`."""

import numpy as np
import pytest

from ovkgp.estimators.detection.one_class_trees import CRITERIA, TreeOptions, entropy, gini, grow_forest, inlier_entropy

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(60, 3))
OPTIONS = TreeOptions("gini", 1.0, 3, 3, 6, 2)


def grow(rows=ROWS, samples=None, seed=0, **options):
    samples = [np.arange(len(rows))] if samples is None else samples
    return grow_forest(rows, samples, OPTIONS._replace(**options), np.random.default_rng(seed))


def criterion(name, n_left, n, fraction, outliers):
    """The printed sums of both children, with 0 log 0 = 0."""

    def term(inliers, outliers):
        total = inliers + outliers
        if name in ("gini", "naive"):
            return inliers * outliers / total if total else 0.0
        found = inliers * np.log2(total / inliers) if inliers else 0.0
        if name == "entropy":
            found += outliers * np.log2(total / outliers) if outliers else 0.0
        return found

    return term(n_left, outliers * fraction) + term(n - n_left, outliers * (1 - fraction))


def best_split(rows, name, gamma):
    """Search thresholds just left and right of every value of every feature, and half-way to the ends, in plain loops."""
    n, low, high = len(rows), rows.min(0), rows.max(0)
    best = (np.inf, None, None)
    for feature, column in enumerate(rows.T):
        values = np.unique(column)
        ends = [(values[:2].mean(), 1), (values[-2:].mean(), n - 1)]  # of the box, which are rows
        inner = [(value, side) for value in values[1:-1] for side in ((column <= value).sum(), (column < value).sum())]
        for value, n_left in ends + inner:
            fraction = (value - low[feature]) / (high[feature] - low[feature])
            best = min(best, (criterion(name, n_left, n, fraction, gamma * n), feature, value))
    return best


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", CRITERIA)
def test_bt_116_and_117_root_split_is_the_best_of_all(name, gamma):
    value, feature, threshold = best_split(ROWS, name, gamma)
    forest = grow(criterion=name, gamma=gamma, max_depth=1)
    assert forest.feature[0] == feature
    assert forest.threshold[0] == pytest.approx(threshold, rel=1e-12)
    parent = criterion(name, 60, 60, 1.0, gamma * 60)
    assert forest.importances.sum() == pytest.approx(parent - value)


@pytest.mark.parametrize("measure", [gini, entropy, inlier_entropy])
def test_criteria_are_concave_between_rows(measure):
    """So that only the two ends need to be evaluated."""
    fraction = np.linspace(0.01, 0.99, 99)
    for n_left in (1, 5, 9):
        values = measure(np.full(99, n_left), 10 * fraction) + measure(np.full(99, 10 - n_left), 10 * (1 - fraction))
        assert (np.diff(values, 2) <= 1e-12).all()


def test_bt_e_45_entropy_has_the_terms_of_the_outliers():
    n, m = np.array([3.0, 0.0, 4.0]), np.array([5.0, 2.0, 0.0])
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.nan_to_num(n * np.log2((n + m) / n)) + np.nan_to_num(m * np.log2((n + m) / m))
    np.testing.assert_allclose(entropy(n, m), expected)
    np.testing.assert_allclose(entropy(n, m), inlier_entropy(n, m) + inlier_entropy(m, n))
    assert inlier_entropy(n, m)[0] == pytest.approx(3 * np.log2(8 / 3))  # as printed


def test_split_is_the_limit_of_drawn_outliers():
    """Remark D.1: the two-class Gini proxy with many weighted uniform draws, at any threshold (BT-116)."""
    rng, gamma = np.random.default_rng(0), 2.0
    column = ROWS[:, 0]
    drawn = rng.uniform(column.min(), column.max(), 400_000)
    weight = gamma * 60 / len(drawn)
    for threshold in (-1.0, 0.2, 0.9):
        left, outliers = column <= threshold, weight * (drawn <= threshold).sum()
        expected = sum(n * m / (n + m) for n, m in ((left.sum(), outliers), ((~left).sum(), gamma * 60 - outliers)))
        fraction = (threshold - column.min()) / np.ptp(column)
        assert criterion("gini", left.sum(), 60, fraction, gamma * 60) == pytest.approx(expected, rel=5e-3)


def test_bt_118_naive_criterion_splits_nothing_off_in_deep_nodes():
    """With outliers in proportion to the volume, deep nodes have hardly any, and splits keep the rows together."""
    X = np.random.default_rng(0).normal(size=(400, 10))
    fractions = {}
    for name in ("gini", "naive"):
        forest = grow(X, criterion=name, max_features_tree=10, max_features_node=10, max_depth=8)
        inner = np.flatnonzero((forest.feature >= 0) & (forest.depth >= 4) & (forest.count >= 10))
        smaller = np.minimum(forest.count[forest.left[inner]], forest.count[forest.left[inner] + 1])
        fractions[name] = (smaller / forest.count[inner]).mean()
    assert fractions["naive"] < fractions["gini"] / 2


def test_leaves_partition_the_box_and_the_rows():
    samples = [np.arange(0, 40), np.arange(20, 60)]
    forest = grow(samples=samples)
    leaves = forest.find_leaves(ROWS)
    for tree, sample in enumerate(samples):
        found, counts = np.unique(leaves[sample, tree], return_counts=True)
        np.testing.assert_array_equal(forest.count[found], counts)
        assert counts.sum() == 40
    is_leaf = forest.feature < 0
    assert np.exp(forest.log_volume[is_leaf]).sum() == pytest.approx(2)
    assert forest.depth.max() <= 6
    np.testing.assert_array_equal(forest.count[:2], [40, 40])
    assert (forest.count[is_leaf & (forest.depth < 6)] <= 1).all()


def test_children_hold_the_rows_of_their_parent():
    forest = grow()
    inner = np.flatnonzero(forest.feature >= 0)
    left = forest.left[inner]
    np.testing.assert_array_equal(forest.count[left] + forest.count[left + 1], forest.count[inner])
    np.testing.assert_allclose(
        np.exp(forest.log_volume[left]) + np.exp(forest.log_volume[left + 1]), np.exp(forest.log_volume[inner])
    )


def test_bt_121_small_nodes_are_not_split():
    forest = grow(min_samples_split=20, max_depth=10)
    assert (forest.count[forest.feature >= 0] >= 20).all()


def test_constant_and_equal_values_are_not_split():
    X = np.c_[np.repeat([0.0, 1.0, 2.0], 10), np.ones(30)]
    forest = grow(X, max_features_tree=2)
    assert set(forest.feature) <= {-1, 0}
    np.testing.assert_array_equal(np.sort(forest.count[forest.feature < 0])[-3:], [10, 10, 10])


def test_trees_use_their_features_only():
    forest = grow(samples=[np.arange(60)] * 20, max_features_tree=1)
    used = np.isfinite(forest.lower)
    assert (used.sum(1) == 1).all() and used.any(0).all()
    roots = forest.feature[:20]
    np.testing.assert_array_equal(roots, used.argmax(1))


def test_gamma_decides_whether_modes_are_separated():
    """Figure D.4: with few outliers the first split keeps nearly all rows on one side, with many it separates two modes (BT-122)."""
    sizes = {0.05: [], 1.0: [], 20.0: []}
    for gamma, found in sizes.items():
        for seed in range(10):
            rng = np.random.default_rng(seed)
            rows = rng.choice([-2.0, 2.0], (1000, 1)) + 0.5 * rng.normal(size=(1000, 1))
            found.append(grow(rows, gamma=gamma, max_features_tree=1, max_depth=1).count[1:].min() / 1000)
    few, same, many = map(np.mean, sizes.values())
    assert few < 0.02 and few < same < many and many > 0.4
