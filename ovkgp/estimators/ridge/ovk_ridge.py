"""Ridge regression with the exact kernel (BT-67)."""

from __future__ import annotations

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.validation import Weighed
from ovkgp.estimators.ridge.base import RidgeEstimator, check_solver
from ovkgp.inference import Posterior
from ovkgp.inference.ridge.solvers import solve_ridge


class OVKRidge(RidgeEstimator):
    """Ridge regression with the exact kernel: the posterior mean of a Gaussian process with noise σ² (BT-67).

    Args:
        kernel: "auto" or "independent" (k(x, z) I), "decomposable" (k(x, z) Γ), "curl_free", "divergence_free",
            "helmholtz" (vector fields), or a kernel object, which is copied.
        lam: λ > 0, or a list of several, among which `selection` chooses.
        convention: what λ means; see `ovkgp.estimators.common.options`. "sum" is σ² = λ, "mean" is σ² = nλ, …
        solver: "auto" (the fastest that applies), or "eigen" (two eigendecompositions: separable kernels, complete outputs),
            "closed_form" (Cholesky), "cg", "lbfgs" (products with the kernel only). They agree.
        base_kernel: "rbf", "matern12", "matern32", "matern52", "rq" or a scalar kernel object.
        lengthscale: of a base kernel by name: "median" (the median distance between inputs) or a number.
        output_matrix: Γ (p, p) for "decomposable" (or "auto"): an array or a module of `ovkgp.kernels`. None takes the
            covariance of the outputs for "decomposable", the identity for "auto".
        output_metric: Σ (p, p) or (p,) in the loss (y − f)ᵀ Σ⁻¹ (y − f): noise that is correlated between outputs.
        fit_intercept: centre the outputs first; the papers do not.
        selection: among several λ, by "loo" (the smallest error of rows left out) or "evidence" (the largest).
        scale: "given" takes prior and noise as they are. λ fixes only their ratio: "evidence" multiplies both by the one
            factor that makes the evidence largest, which leaves the mean as it is and gives the std its size (and takes
            twice the time).
        tolerance, max_iter: of the iterative solvers.
        verbose: 0 is quiet, 1 shows progress.

    Attributes:
        noise_: σ², the noise variance (its covariance is σ² Σ with an `output_metric`), before `scale_`.
        lam_, path_: the λ taken and, for several, the table that it was chosen by.
        scale_: the factor of scale="evidence".
        gp_, posterior_: the `OperatorValuedGP` behind it and its posterior; `scaling_` holds the intercept.
        dual_coef_: u (n, p) with f(x) = Σ_j K(x, x_j) u_j, over the rows x_j in which something was seen (`posterior_.X`).
        n_iter_: iterations of the solver; 1 for those that factorise.
        kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_.

    Cost: O(n³ + p³) for a separable kernel with complete outputs, else O(N³) for N observed entries; O(n²) or O(N²) memory.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)])
        >>> ridge = ovkgp.OVKRidge(lam=[1e-6, 1e-3, 1.0], convention="mean").fit(X, Y)
        >>> ridge.lam_, ridge.noise_ == 40 * ridge.lam_
        (1e-06, True)
        >>> mean, std = ridge.predict([[1.5], [2.0]], return_std=True)
        >>> mean.shape, std.shape
        ((2, 2), (2, 2))
    """

    def __init__(
        self,
        kernel="auto",
        lam=1.0,
        convention="sum",
        solver="auto",
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        output_metric=None,
        fit_intercept=False,
        selection="loo",
        scale="given",
        tolerance=1e-9,
        max_iter=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.lam = lam
        self.convention = convention
        self.solver = solver
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.output_metric = output_metric
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.verbose = verbose

    def _require_options(self) -> None:
        super()._require_options()
        check_solver(self)

    def _features(self, kernel: Kernel) -> None:
        return None

    def _solve(self, table: Weighed) -> None:
        data = self._data(table)
        options = {"tolerance": self.tolerance, "max_iter": self.max_iter, "verbose": self.verbose}
        self.posterior_: Posterior = solve_ridge(self.gp_, *data, solver=self.solver, **options)

    @property
    def n_iter_(self) -> int:
        """How many iterations the solver took; 1 for those that factorise."""
        check_is_fitted(self, "posterior_")
        return max(getattr(self.posterior_.solver, "num_iterations", 1), 1)

    @property
    def dual_coef_(self) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return self.posterior_.solver.alpha.numpy()
