"""`ManifoldRidge`, semi-supervised ridge regression with a manifold penalty over labeled and unlabeled rows (BT-111..115).

    f̂ = argmin (1/2n) Σ_labeled ‖y_i − V f(x_i)‖² + (λ/2) ‖f‖² + (λ_M/2) Σ_ik ⟨f(x_i), M_ik f(x_k)⟩,     i, k over all rows,

with V = I unless outputs are combinations of latent ones (BT-115), is the posterior mean of the Gaussian process with the covariance of `ovkgp.kernels.ManifoldKernel` at strength λ_M/λ and noise
nλ, for n labeled rows (ID-7). Its standard deviation shrinks along the manifold.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy import sparse
from torch import Tensor

from ovkgp.checks import as_numbers, as_seed
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import name_structure, random_features, ridge_kernel, scale_kernel
from ovkgp.estimators.common.options import (
    NONNEGATIVE,
    POSITIVE,
    RANDOM_STATE,
    Rule,
    check_lam,
    integer,
    noise_of,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.validation import Table, as_array
from ovkgp.estimators.ridge.base import (
    RIDGE_ATTRIBUTES,
    RidgeEstimator,
    RidgePath,
    best_scale,
    make_ridge_gp,
    make_scaling,
    rebuild_ridge_kernel,
)
from ovkgp.estimators.storage.kernels import blank_penalty
from ovkgp.estimators.storage.models import ModelBuilder
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ManifoldFeatures
from ovkgp.inference.gp import VARIANCES
from ovkgp.kernels import ManifoldKernel, cluster_laplacian, neighbor_laplacian


def _rebuild_kernel(estimator, values: dict[str, Tensor], scale: float) -> Kernel:
    indices = values.get("penalty.indices")
    penalty = blank_penalty(estimator.manifold_.shape[0], None if indices is None else indices.shape[1])
    V, num_outputs = values.get("combination"), estimator.n_outputs_
    base = rebuild_ridge_kernel(estimator, values, scale, num_outputs if V is None else V.shape[1])
    return ManifoldKernel(base, values["X"], penalty, combination=V).double()


def _is_matrix(value) -> bool:
    if torch.is_tensor(value) or sparse.issparse(value):
        return value.ndim == 2
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "biuf"


MANIFOLD_BUILDER = ModelBuilder(_rebuild_kernel, keeps_unscaled_kernel=True)


@storable(*RIDGE_ATTRIBUTES, "_seed", "manifold_", optional=("path_", "scale_"), builder=MANIFOLD_BUILDER)
class ManifoldRidge(RidgeEstimator):
    """Semi-supervised ridge regression; unlabeled rows define the manifold penalty (BT-111, Algorithm 6).

    Rows of `y` without a label are NaN; a row may also have some of its outputs.

    Parameters
    ----------
    kernel, convention, base_kernel, lengthscale, output_matrix, output_metric, fit_intercept, scale, verbose
        As for `OVKRidge`; the median distance is that of all rows.
    lam : float, default=1e-3
        λ > 0.
    lam_manifold : float, default=1e-3
        λ_M ≥ 0 of the penalty, in the same convention; 0 is ridge regression on the labeled rows.
    manifold : {"neighbors", "clusters"} or matrix, default="neighbors"
        Penalty M over all rows: the Laplacian of the graph of nearest neighbors, the Laplacian of "is in the same cluster" by
        spectral clustering, or a symmetric positive semi-definite matrix, (n, n) for each output or (n·p, n·p), dense or sparse; with
        a `combination`, (n·u, n·u).
    num_neighbors : int, default=10
        Number of neighbors of a row in either graph.
    num_clusters : int, default=2
        Number of clusters of "clusters".
    combination : array-like of shape (p, u) or None, default=None
        V, by which the p columns of y are combinations V f of u latent outputs f; kernel and penalty are those of f, and
        predictions those of V f. With m views of p outputs each, `np.kron(np.full((1, m), 1 / m), np.eye(p))` is their mean
        (BT-115). If None, f are the columns of y.
    num_frequencies : int or None, default=None
        Number of random frequencies. If None, the exact kernel is used.
    random_state : int, RandomState instance or None, default=None
        Seed of clusters and frequencies.
    variance : {"features", "guarded"}, default="features"
        "guarded" bounds the variance of random features from below far from the data, at the cost of the exact kernel.

    Attributes
    ----------
    noise_ : float
        σ² of n labeled rows; the variance of the pseudo-observations is lam / lam_manifold.
    manifold_ : matrix
        M.
    gp_, posterior_, scaling_, kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        As for `OVKRidge`.

    Notes
    -----
    Complexity: O((n p)³) time and O((n p)²) memory for n rows, labeled or not, with the exact kernel; O(n M² + r³) and O(r²) with
    r random features of M scalar features.

    Examples
    --------
    >>> import ovkgp
    >>> from ovkgp.datasets import make_two_moons
    >>> X, Y, truth = make_two_moons(200, num_labels=2, random_state=0)
    >>> ridge = ovkgp.ManifoldRidge(lam_manifold=1e-2, lengthscale=0.3).fit(X, Y)
    >>> bool(((ridge.predict(X) > 0) == (truth(X) > 0)).mean() > 0.99)
    True
    """

    description = Description(
        "ridge regression on a manifold",
        "Few rows are labeled; the unlabeled rows define the manifold penalty. In addition to the norm of the function, its changes between neighboring rows are penalized, so that labels propagate along the shape of the data.",
        "f = argmin Σ_{labeled} ‖y_i − f(x_i)‖^2/(2n) + (λ/2) ‖f‖_K^2 + (λ_M/2) Σ_{ij} ⟨f(x_i), M_{ij} f(x_j)⟩",
    )
    reported = (
        ("lam_", "penalty λ"),
        ("lam_manifold", "penalty on the manifold λ_M"),
        ("scale_", "scale of prior and noise s²"),
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **RidgeEstimator._parameter_constraints,
        "lam": [POSITIVE],
        "lam_manifold": [NONNEGATIVE],
        "manifold": [
            one_of("neighbors", "clusters"),
            Rule("a numeric matrix (n, n)", _is_matrix),
        ],
        "num_neighbors": [integer()],
        "num_clusters": [integer()],
        "combination": ["array-like", None],
        "num_frequencies": [integer(), None],
        "random_state": RANDOM_STATE,
        "variance": [one_of(*VARIANCES)],
    }

    def __init__(
        self,
        kernel="auto",
        lam=1e-3,
        lam_manifold=1e-3,
        convention="mean",
        manifold="neighbors",
        num_neighbors=10,
        num_clusters=2,
        combination=None,
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
        self.combination = combination
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
        """Fit the model to X (n, d) and y (n, p) or (n,), NaN in unlabeled rows and where an output is missing.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing; rows without any define the manifold only.

        Returns
        -------
        self : ManifoldRidge
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            data = self._check_first_rows(X, y, None)
            self._seed = as_seed(self.random_state)
            self.manifold_ = self._penalty(data.X)
            V, strength = self._combination(), float(self.lam_manifold / self.lam)
            base = ridge_kernel(self, data.X, data.Y if V is None else np.full((len(data.X), V.shape[1]), np.nan))
            self._kernel = ManifoldKernel(base, data.X, self.manifold_, strength, combination=V).double()
            self.kernel_ = name_structure(self.kernel)
            self.scaling_ = make_scaling(data.X.shape[1], data.mean(), fit_intercept=self.fit_intercept)
            self._counts = data.num_rows, data.num_observed
            self.lam_ = float(self.lam)
            self.noise_ = noise_of(self.lam_, self.convention, *self._counts)
            table = Table(data.X, data.Y)
            self._condition(self._kernel, table)
            if self.scale == "evidence":
                self.scale_ = best_scale(self.gp_, self.posterior_, table, self.scaling_)
                if self.scale_ != 1.0:  # s K_M is the manifold kernel of s K with its strength divided by s
                    base, X, penalty = scale_kernel(base, self.scale_), self._kernel.X, self._kernel.penalty
                    strength /= self.scale_
                    self._condition(ManifoldKernel(base, X, penalty, strength, combination=V), table)
        return self

    def _combination(self) -> np.ndarray | None:
        """Return V (p, u) of the columns of y; None if they are the latent outputs."""
        if self.combination is None:
            return None
        V, p = as_numbers(as_array(self.combination), "combination"), self.n_outputs_
        if V.ndim != 2 or V.shape[0] != p or not V.shape[1]:
            raise InputError(f"combination has shape {V.shape}, expected ({p}, u), one row per column of y.")
        if self.kernel == "decomposable" and self.output_matrix is None:
            raise OptionError(
                'output_matrix must be given with a combination and kernel="decomposable", since latent outputs have no observed covariance.'
            )
        return V

    def _penalty(self, X: np.ndarray):
        if not isinstance(self.manifold, str):
            return self.manifold
        if self.manifold == "neighbors":
            return neighbor_laplacian(X, self.num_neighbors)
        return cluster_laplacian(
            X, self.num_clusters, num_neighbors=self.num_neighbors, random_state=self._seed % 2**32
        )

    def _condition(self, kernel: ManifoldKernel, table: Table) -> None:
        """Set `gp_` and `posterior_`; a model file with features holds the statistics."""
        X, Y, _ = table.scaled(self.scaling_)
        features = None
        if self.num_frequencies is not None:
            base = random_features(kernel.base_kernel, self.n_features_in_, self.num_frequencies, self._seed)
            features = ManifoldFeatures(base, kernel)
        self.gp_ = make_ridge_gp(kernel, self._scaled_noise, self._metric(), features)
        rows = (X, Y) if features is None else (self.gp_.statistics(X, Y),)
        self.posterior_ = self.gp_.condition(*rows, variance=self.variance)

    def path(self, X, y, lam=None, sample_weight=None) -> RidgePath:
        """Compute the path of `OVKRidge` at the fitted λ only: another λ is another kernel, of strength λ_M/λ."""
        if lam is not None and not np.array_equal(check_lam(lam), [self.lam_]):
            raise OptionError(
                "path is not supported for other lam, since the kernel depends on lam_manifold / lam. Fit with each lam."
            )
        return super().path(X, y, self.lam_, sample_weight)
