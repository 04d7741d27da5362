"""`OneClassForest`, a random forest that separates rows from uniform outliers which are not drawn (BT-122)."""

from __future__ import annotations

from math import ceil, log2
from typing import ClassVar

import numpy as np
from scipy.special import digamma

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.options import POSITIVE, RANDOM_STATE, integer, one_of, restore_on_error
from ovkgp.estimators.common.summary import ColumnNames, Hyperparameter
from ovkgp.estimators.detection.base import DETECTOR_ATTRIBUTES, OutlierDetector, enter_rows, set_threshold
from ovkgp.estimators.detection.one_class_trees import CRITERIA, Forest, TreeOptions, grow_forest
from ovkgp.estimators.storage.storage import storable

CHUNK_LEAVES = 1 << 20  # number of leaves that are found together


@storable(*DETECTOR_ATTRIBUTES, "max_samples_", "feature_importances_", "_forest")
class OneClassForest(OutlierDetector):
    """Outliers by a random forest that separates rows from uniform outliers, which are not drawn (BT-122).

    Each node of a tree is a box with n_t rows and, in expectation, γ n_t uniform outliers. It is split where the Gini index of
    both classes decreases most, so that empty parts of the box are cut off first, and outliers are in leaves of small depth. A tree is
    grown on a random subset of the rows and of the features.

    Parameters
    ----------
    alpha : float, default=0.05
        Level: the fraction of typical new rows that `predict` flags.
    num_trees : int, default=100
        Number of trees.
    gamma : float, default=1.0
        Ratio γ of outliers to rows in a node. If it is small, splits keep all rows on one side; if it is large, they cut off
        the tails, and separate clusters.
    criterion : {"gini", "entropy", "inlier_entropy", "naive"}, default="gini"
        Criterion of the splits. "entropy" is the Shannon entropy of both classes, "inlier_entropy" its terms of the rows only, as
        printed in the thesis, and "naive" the Gini index with γ n vol(t)/vol(root) outliers in a node, which tends to 0 in
        deep nodes (BT-118).
    leaf_score : {"depth", "density", "cell_density"}, default="depth"
        Score of a point. "depth" is −2^(−mean of depth/c(n)), as in `IsolationForest`; "density" the mean over trees of the rows
        per volume of the leaf, a step-wise density; "cell_density" the rows of all leaves over their volumes (BT-120).
        Volumes are relative to the box of the training rows, and a tree has density 0 outside its box. Points where all
        trees have density 0 are ordered by "depth", whose scores are negative. Densities are larger at training rows than
        at new ones, less so with a `min_samples_split` of 20 or more.
    max_samples : int or "auto", default="auto"
        Rows per tree, at most n. "auto" is 20 % of n, but at least 100.
    max_features_tree : int or "auto", default="auto"
        Features per tree, at most d. "auto" is 50 % of d, but at least 5.
    max_features_node : int, default=5
        Features considered in a node.
    max_depth : int or "auto", default="auto"
        Largest depth. "auto" is ⌈log₂ n⌉.
    min_samples_split : int, default=2
        Smallest number of rows of a node that is split.
    scale_inputs : bool, default=True
        Whether to center and scale the columns of X, which changes nothing but rounding.
    random_state : int, RandomState instance or None, default=None
        Seed of the subsets.

    Attributes
    ----------
    feature_importances_ : ndarray of shape (d,)
        Decrease of the criterion by the splits of each feature, summed over a tree, averaged over trees and normalized to 1.
        It measures how far a feature is from uniform, and so the size of its tails.
    max_samples_ : int
        Number of rows per tree.
    held_out_scores_ : ndarray of shape (n,)
        Score of each training row by a fit to the other four of five random folds.
    offset_ : float
        The α-quantile of `held_out_scores_`; `decision_function` is `score_samples` minus `offset_`.
    scaling_, n_features_in_, feature_names_in_
        Offsets and scales of the inputs, and their number and names.

    See Also
    --------
    RandomProjectionDetector : p-values from a kernel.

    Notes
    -----
    Complexity: O(T n_s (log n_s) D f) for T trees of n_s rows, depth D and f features per node.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 3)) * [1.0, 1.0, 0.0] + [0.0, 0.0, 1.0]
    >>> model = ovkgp.OneClassForest(random_state=0).fit(X)
    >>> model.predict([[0.0, 0.0, 1.0], [6.0, 6.0, 1.0]])
    array([ 1, -1])
    >>> model.feature_importances_.round(1)
    array([0.5, 0.5, 0. ])
    """

    description = Description(
        "outliers by a one-class random forest",
        "Trees separate the training rows from uniform outliers, which are not drawn but enter by their expected numbers. Outliers are in leaves of small depth.",
        "s(x) = 2^{−E[d_t + c(n_t)]/c(n)}",
    )
    reported = (*OutlierDetector.reported, ("gamma", "ratio γ of outliers to rows"), ("max_samples_", "rows per tree"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **OutlierDetector._parameter_constraints,
        "num_trees": [integer()],
        "gamma": [POSITIVE],
        "criterion": [one_of(*CRITERIA)],
        "leaf_score": [one_of("depth", "density", "cell_density")],
        "max_samples": [integer(2), one_of("auto")],
        "max_features_tree": [integer(), one_of("auto")],
        "max_features_node": [integer()],
        "max_depth": [integer(1, 60), one_of("auto")],
        "min_samples_split": [integer(2)],
        "random_state": RANDOM_STATE,
    }

    def __init__(
        self,
        alpha=0.05,
        num_trees=100,
        gamma=1.0,
        criterion="gini",
        leaf_score="depth",
        max_samples="auto",
        max_features_tree="auto",
        max_features_node=5,
        max_depth="auto",
        min_samples_split=2,
        scale_inputs=True,
        random_state=None,
    ):
        self.alpha = alpha
        self.num_trees = num_trees
        self.gamma = gamma
        self.criterion = criterion
        self.leaf_score = leaf_score
        self.max_samples = max_samples
        self.max_features_tree = max_features_tree
        self.max_features_node = max_features_node
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.scale_inputs = scale_inputs
        self.random_state = random_state

    def fit(self, X, y=None) -> OneClassForest:
        """Fit the detector.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Typical rows, of which a few may be outliers. At least two must be distinct.
        y : None, default=None
            Ignored.

        Returns
        -------
        self : OneClassForest
            Fitted estimator.
        """
        with restore_on_error(self):
            rows = enter_rows(self, X)
            self._fit_rows(rows)
            set_threshold(self, rows)
        return self

    def _fit_rows(self, rows: np.ndarray) -> None:
        """Fit to scaled rows (n, d)."""
        (n, d), rng = rows.shape, np.random.default_rng(self._seed)
        self.max_samples_ = min(n, max(100, round(0.2 * n)) if self.max_samples == "auto" else self.max_samples)
        options = TreeOptions(
            criterion=self.criterion,
            gamma=float(self.gamma),
            max_features_tree=max(5, round(0.5 * d)) if self.max_features_tree == "auto" else self.max_features_tree,
            max_features_node=self.max_features_node,
            max_depth=max(1, ceil(log2(n))) if self.max_depth == "auto" else self.max_depth,
            min_samples_split=self.min_samples_split,
        )
        samples = [rng.permutation(n)[: self.max_samples_] for _ in range(self.num_trees)]
        self._forest = grow_forest(rows, samples, options, rng)
        total = self._forest.importances.sum()
        self.feature_importances_ = self._forest.importances / (total if total > 0 else 1.0)

    def list_parameters(self) -> list[Hyperparameter]:
        """List the level, the threshold, γ, the rows per tree and the importances of the inputs."""
        pairs = zip(self.feature_importances_, ColumnNames.of(self).inputs, strict=True)
        return [*super().list_parameters(), *(Hyperparameter.of("importance", value, name) for value, name in pairs)]

    def _score(self, points: np.ndarray) -> np.ndarray:
        parts = np.array_split(points, max(1, -(-len(points) * self.num_trees // CHUNK_LEAVES)))
        return np.concatenate([score_points(self._forest, part, self.leaf_score, self.max_samples_) for part in parts])


def score_points(forest: Forest, points: np.ndarray, score: str, num_samples: int) -> np.ndarray:
    """Return the scores (m,) of points (m, d); larger for more typical points (BT-119, 120)."""
    leaves = forest.find_leaves(points)
    counts = forest.count[leaves]
    depths = forest.depth[leaves] + mean_depth(counts)
    by_depth = -np.exp2(-depths.mean(1) / mean_depth(np.array(num_samples)))
    if score == "depth":
        return by_depth
    inside, log_volume = np.where(forest.is_inside(points), counts, 0), forest.log_volume[leaves]
    if score == "density":
        density = (inside * np.exp(-log_volume)).mean(1)
    else:
        density = inside.sum(1) / np.exp(log_volume).sum(1)
    return np.where(density > 0, density, by_depth)


def mean_depth(n: np.ndarray) -> np.ndarray:
    """Return c(n) = 2 H(n − 1) − 2 (n − 1)/n, the mean depth of a random tree of n rows; c(0) = c(1) = 0."""
    n = np.maximum(n, 1).astype(np.float64)
    return np.where(n > 1, 2 * (digamma(n) + np.euler_gamma) - 2 * (n - 1) / n, 0.0)
