"""Trees that separate rows from uniform outliers, all trees of a forest grown level by level (BT-116..118, 121).

A node is a box with n_t rows and n'_t = γ n_t uniform outliers, which are not drawn: a child of the volume fraction λ has γ n_t λ
of them. The split minimizes f(n_L, n'_L) + f(n_R, n'_R) over thresholds on both sides of each row, between which it is
concave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import xlog1py

from ovkgp.estimators.storage.values import storable_record


def gini(inliers: np.ndarray, outliers: np.ndarray) -> np.ndarray:
    """Return n n'/(n + n') (D.5)."""
    return np.divide(inliers * outliers, total := inliers + outliers, out=np.zeros_like(total), where=total > 0)


def entropy(inliers: np.ndarray, outliers: np.ndarray) -> np.ndarray:
    """Return n log₂((n + n')/n) + n' log₂((n + n')/n') (BT-E-45)."""
    return inlier_entropy(inliers, outliers) + inlier_entropy(outliers, inliers)


def inlier_entropy(inliers: np.ndarray, outliers: np.ndarray) -> np.ndarray:
    """Return the first term of `entropy`, as printed in the thesis."""
    ratio = np.divide(outliers, inliers, out=np.zeros(np.shape(outliers)), where=inliers > 0)
    return xlog1py(inliers, ratio) / np.log(2)


CRITERIA: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "gini": gini,
    "entropy": entropy,
    "inlier_entropy": inlier_entropy,
    "naive": gini,  # with n' vol(t)/vol(root) instead of γ n_t outliers in a node
}


class TreeOptions(NamedTuple):
    """Options of the trees: criterion, γ, features per tree and node, largest depth and smallest node that is split."""

    criterion: str
    gamma: float
    max_features_tree: int
    max_features_node: int
    max_depth: int
    min_samples_split: int


@storable_record
@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes of all trees; the first ones are the roots.

    `feature` (N,) is −1 for leaves, `threshold` (N,) sends x ≤ c to `left` and other points to the next node. `count`, `depth` and
    `log_volume` (N,) are the rows, the depth and the log volume relative to the root box. `lower` and `upper` (T, d) are the root
    boxes, without limits in features that a tree does not use.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    count: np.ndarray
    depth: np.ndarray
    log_volume: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    importances: np.ndarray

    @property
    def num_trees(self) -> int:
        """Number T of trees."""
        return len(self.lower)

    def find_leaves(self, points: np.ndarray) -> np.ndarray:
        """Return the leaf (m, T) of each point (m, d) in each tree."""
        node = np.tile(np.arange(self.num_trees), (len(points), 1))
        row = np.arange(len(points))[:, None]
        while (is_inner := (feature := self.feature[node]) >= 0).any():
            goes_right = points[row, np.maximum(feature, 0)] > self.threshold[node]
            node = np.where(is_inner, self.left[node] + goes_right, node)
        return node

    def is_inside(self, points: np.ndarray) -> np.ndarray:
        """Return whether each point (m, d) is inside the root box of each tree (m, T)."""
        found = [((points >= low) & (points <= high)).all(1) for low, high in zip(self.lower, self.upper, strict=True)]
        return np.stack(found, 1)


def grow_forest(rows: np.ndarray, samples: list[np.ndarray], options: TreeOptions, rng: np.random.Generator) -> Forest:
    """Grow one tree on each sample of the indices of rows (n, d)."""
    num_trees, d = len(samples), rows.shape[1]
    uses = np.argsort(rng.random((num_trees, d)), axis=1)[:, : options.max_features_tree]
    is_used = np.zeros((num_trees, d), dtype=bool)
    np.put_along_axis(is_used, uses, values=True, axis=1)
    lower, upper = (np.stack([of(rows[sample], 0) for sample in samples]) for of in (np.min, np.max))
    level = Level(
        row=np.concatenate(samples),
        node=np.repeat(np.arange(num_trees), [len(sample) for sample in samples]),
        lower=lower,
        upper=upper,
        tree=np.arange(num_trees),
        log_volume=np.zeros(num_trees),
    )
    root_counts = np.array([len(sample) for sample in samples])
    tables, importances, first = [], np.zeros(d), 0
    for depth in range(options.max_depth + 1):
        counts = np.bincount(level.node, minlength=len(level.tree))
        outliers = options.gamma * counts.astype(np.float64)
        if options.criterion == "naive":
            outliers = options.gamma * root_counts[level.tree] * np.exp(level.log_volume)
        may_split = (counts >= options.min_samples_split) & (depth < options.max_depth)
        split = level.find_splits(rows, outliers, may_split, is_used, options, rng)
        np.add.at(importances, split.feature[split.exists], split.decrease[split.exists])
        left = np.where(split.exists, first + len(counts) + 2 * (np.cumsum(split.exists) - 1), -1)
        feature = np.where(split.exists, split.feature, -1)
        tables.append((feature, split.threshold, left, counts, np.full(len(counts), depth), level.log_volume))
        if not split.exists.any():
            break
        first, level = first + len(counts), level.descend(rows, split)
    columns = (np.concatenate(column) for column in zip(*tables, strict=True))
    limits = np.where(is_used, lower, -np.inf), np.where(is_used, upper, np.inf)
    return Forest(*columns, *limits, importances / num_trees)


class Splits(NamedTuple):
    """Whether each node (M,) is split, by which feature and threshold, the volume fraction of its left child and the decrease of the criterion."""

    exists: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    fraction: np.ndarray
    decrease: np.ndarray


class Level(NamedTuple):
    """All nodes (M,) of one depth: the rows in them, with the node of each, their boxes (M, d), trees and log volumes."""

    row: np.ndarray
    node: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    tree: np.ndarray
    log_volume: np.ndarray

    def find_splits(self, rows, outliers, may_split, is_used, options: TreeOptions, rng) -> Splits:
        """Find the best split of each node over a random selection of features."""
        measure, num_nodes = CRITERIA[options.criterion], len(self.tree)
        counts = np.bincount(self.node, minlength=num_nodes)
        parent = measure(counts.astype(np.float64), outliers)
        best = Splits(np.zeros(num_nodes, bool), *np.zeros((1, num_nodes), int), *np.zeros((3, num_nodes)))
        # constant features cannot be split and are drawn last
        order = rng.random(self.lower.shape) + ~(is_used[self.tree] & (self.upper > self.lower))
        chosen = np.argsort(order, axis=1)[:, : options.max_features_node]
        inside = may_split[self.node]
        row, node = self.row[inside], self.node[inside]
        if len(row) == 0:
            return best
        for feature in chosen.T:
            allowed = order[np.arange(num_nodes), feature] < 1
            value = rows[row, feature[node]]
            by_value = np.lexsort((value, node))
            v, t = value[by_value], node[by_value]
            starts = np.flatnonzero(np.r_[True, t[1:] != t[:-1]])
            rank = np.arange(len(t)) - np.repeat(starts, np.diff(np.r_[starts, len(t)]))
            is_new = np.r_[True, (t[1:] != t[:-1]) | (v[1:] != v[:-1])]
            is_last = np.r_[is_new[1:], True]
            low, high = self.lower[t, feature[t]], self.upper[t, feature[t]]
            between = (v[1:] + v[:-1]) / 2
            for is_candidate, left, threshold in (
                # just right of a row, which goes left; a row on the lower end of the box is cut off half-way to the next one
                (is_last & (v < high), rank + 1, np.where(v > low, v, np.r_[between, np.inf])),
                # just left of a row, or half-way to the previous one if it is on the upper end
                (is_new & (v > low), rank, np.where(v < high, np.nextafter(v, -np.inf), np.r_[-np.inf, between])),
            ):
                is_candidate = is_candidate & allowed[t] & ((left < counts[t]) | (v > low)) & ((left > 0) | (v < high))
                fraction = np.divide(threshold - low, high - low, out=np.zeros(len(t)), where=is_candidate)
                is_candidate &= (fraction > 0) & (fraction < 1)
                value = measure(left, outliers[t] * fraction)
                value = value + measure(counts[t] - left, outliers[t] * (1 - fraction))
                value[~is_candidate] = np.inf
                smallest = np.repeat(np.minimum.reduceat(value, starts), np.diff(np.r_[starts, len(t)]))
                first = np.flatnonzero(value == smallest)
                first = first[np.r_[True, t[first][1:] != t[first][:-1]]]  # the best of each node
                nodes, decrease = t[first], parent[t[first]] - value[first]
                better = decrease > np.maximum(best.decrease[nodes], 0.0)
                nodes, first = nodes[better], first[better]
                best.exists[nodes] = True
                best.feature[nodes], best.threshold[nodes] = feature[nodes], threshold[first]
                best.fraction[nodes], best.decrease[nodes] = fraction[first], decrease[better]
        return best

    def descend(self, rows: np.ndarray, split: Splits) -> Level:
        """Return the children of the nodes that are split, left and right ones in turn."""
        parents = np.flatnonzero(split.exists)
        child = np.full(len(self.tree), -1)
        child[parents] = 2 * np.arange(len(parents))
        stays = split.exists[self.node]
        row, node = self.row[stays], self.node[stays]
        node = child[node] + (rows[row, split.feature[node]] > split.threshold[node])
        lower, upper = np.repeat(self.lower[parents], 2, axis=0), np.repeat(self.upper[parents], 2, axis=0)
        index, feature, threshold = np.arange(0, 2 * len(parents), 2), split.feature[parents], split.threshold[parents]
        upper[index, feature] = threshold
        lower[index + 1, feature] = threshold
        fractions = np.stack([split.fraction[parents], 1 - split.fraction[parents]], 1).ravel()
        log_volume = np.repeat(self.log_volume[parents], 2) + np.log(fractions)
        return Level(row, node, lower, upper, np.repeat(self.tree[parents], 2), log_volume)
