"""Semi-supervised ridge regression: points without labels say where the function may vary (BT-111..114).

    f̂ = argmin (1/2n) Σ_labelled ‖y_i − f(x_i)‖² + (λ/2) ‖f‖² + (λ_M/2) Σ_ik ⟨f(x_i), M_ik f(x_k)⟩,     i, k over all rows,

is the posterior mean of the Gaussian process with the covariance of `ovkgp.kernels.ManifoldKernel` at strength λ_M/λ and noise
nλ, for n labelled rows (ID-7). Its standard deviation shrinks along the manifold.
"""

from __future__ import annotations

from numbers import Real

import numpy as np
from gpytorch.kernels import Kernel
from scipy.sparse import issparse

from ovkgp.checks import as_seed
from ovkgp.estimators.common.named_kernels import random_features, ridge_kernel
from ovkgp.estimators.common.options import check_lam, check_option
from ovkgp.estimators.common.validation import Weighed
from ovkgp.estimators.ridge.base import RidgeEstimator, RidgePath, scaled_kernel
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import FeatureMap, ManifoldFeatures
from ovkgp.inference.gp import VARIANCES
from ovkgp.kernels import ManifoldKernel, cluster_laplacian, neighbor_laplacian

MANIFOLDS = ("neighbors", "clusters")


class ManifoldRidge(RidgeEstimator):
    """Ridge regression that learns from rows without labels too (BT-111, Algorithm 6).

    Args:
        kernel, convention, base_kernel, lengthscale, output_matrix, output_metric, fit_intercept, scale, verbose: as for
            `OVKRidge`; the median distance is that of all rows.
        lam: λ > 0, one number.
        lam_manifold: λ_M ≥ 0 of the penalty, in the same convention; 0 is plain ridge regression on the labelled rows.
        manifold: the penalty M over all rows: "neighbors" (the Laplacian of the graph of nearest neighbours), "clusters" (the
            Laplacian of "is in the same cluster", by spectral clustering), or any symmetric positive semi-definite matrix,
            (n, n) for all outputs alike or (n·p, n·p); dense or sparse.
        num_neighbors: of a row in the graph of either.
        num_clusters: of "clusters".
        num_frequencies: None for the exact kernel; a number for random features, with many rows.
        variance: of random features: "features", or "guarded", which takes the exact kernel, and its cost, to keep the variance
            from starving far from the data.
        random_state: of the clusters and the frequencies.

    Rows of y without a label are NaN; a row may also have some of its outputs.

    Attributes:
        noise_: σ², of n labelled rows in the convention; the variance of the pseudo-observations is lam / lam_manifold.
        manifold_: M.
        gp_, posterior_, scaling_, kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_.

    Cost: O((n p)³) time and O((n p)²) memory for n rows, labelled or not, with the exact kernel; O(n M² + r³) and O(r²) with
    r random features of M waves.

    Example:
        >>> import ovkgp
        >>> from ovkgp.datasets import make_two_moons
        >>> X, Y, truth = make_two_moons(200, num_labels=2, random_state=0)
        >>> ridge = ovkgp.ManifoldRidge(lam_manifold=1e-2, lengthscale=0.3).fit(X, Y)
        >>> bool(((ridge.predict(X) > 0) == (truth(X) > 0)).mean() > 0.99)
        True
    """

    def __init__(
        self,
        kernel="auto",
        lam=1e-3,
        lam_manifold=1e-3,
        convention="mean",
        manifold="neighbors",
        num_neighbors=10,
        num_clusters=2,
        num_frequencies=None,
        random_state=None,
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        output_metric=None,
        fit_intercept=False,
        scale="given",
        variance="features",
        verbose=0,
    ):
        self.kernel = kernel
        self.lam = lam
        self.lam_manifold = lam_manifold
        self.convention = convention
        self.manifold = manifold
        self.num_neighbors = num_neighbors
        self.num_clusters = num_clusters
        self.num_frequencies = num_frequencies
        self.random_state = random_state
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.output_metric = output_metric
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.variance = variance
        self.verbose = verbose

    def fit(self, X, y) -> ManifoldRidge:
        """Fit to X (n, d) and y (n, p) or (n,), NaN in the rows without a label and where an output is missing."""
        return super().fit(X, y)

    def path(self, X, y, lam=None, sample_weight=None) -> RidgePath:
        """As for `OVKRidge`, at the fitted λ only: another one is another kernel, of strength λ_M/λ."""
        if lam is not None and not np.array_equal(check_lam(lam), [self.lam_]):
            raise OptionError(
                "the kernel depends on lam_manifold / lam: fit with each lam, there is no path through them."
            )
        return super().path(X, y, self.lam_, sample_weight)

    def _kernel_of(self, X: np.ndarray, Y: np.ndarray) -> Kernel:
        self._seed = as_seed(self.random_state)
        self.manifold_ = self._penalty(X)
        return ManifoldKernel(ridge_kernel(self, X, Y), X, self.manifold_, self._strength).double()

    @property
    def _strength(self) -> float:
        return float(self.lam_manifold / check_lam(self.lam)[0])

    def _penalty(self, X: np.ndarray):
        if not isinstance(self.manifold, str):
            return self.manifold
        if self.manifold == "neighbors":
            return neighbor_laplacian(X, self.num_neighbors)
        return cluster_laplacian(
            X, self.num_clusters, num_neighbors=self.num_neighbors, random_state=self._seed % 2**32
        )

    def _scaled(self, kernel: ManifoldKernel, scale: float) -> Kernel:
        """s K_M, as the manifold kernel of s K with its strength divided by s."""
        return ManifoldKernel(
            scaled_kernel(kernel.base_kernel, scale), kernel.X, kernel.penalty, self._strength / scale
        )

    def _features(self, kernel: ManifoldKernel) -> FeatureMap | None:
        if self.num_frequencies is None:
            return None
        base = random_features(kernel.base_kernel, self.n_features_in_, self.num_frequencies, self._seed)
        return ManifoldFeatures(base, kernel)

    def _solve(self, table: Weighed) -> None:
        X, Y, noise = self._data(table)
        self.posterior_ = self.gp_.condition(X, Y, noise=noise, variance=self.variance)

    def _require_options(self) -> None:
        super()._require_options()
        check_option("variance", self.variance, VARIANCES)
        if len(check_lam(self.lam)) > 1:
            raise OptionError(
                "ManifoldRidge takes one lam, on which its kernel depends: fit with each, and compare leave_one_out(X, y) or "
                "posterior_.log_evidence. (Folds of rows without labels tell nothing.)"
            )
        is_number = isinstance(self.lam_manifold, Real) and not isinstance(self.lam_manifold, bool)
        if not is_number or not 0 <= self.lam_manifold < np.inf:
            raise InputError(f"lam_manifold must be a number that is not negative, got {self.lam_manifold!r}.")
        if isinstance(self.manifold, str):
            check_option("manifold", self.manifold, MANIFOLDS)
        elif not (issparse(self.manifold) or hasattr(self.manifold, "shape")):
            raise OptionError(
                f"manifold must be one of {', '.join(map(repr, MANIFOLDS))} or a matrix (n, n), got {self.manifold!r}."
            )
