"""`OVKRidge`, ridge regression with the exact kernel (BT-67)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.descriptions import EXACT_KERNEL, Description
from ovkgp.estimators.common.validation import WeightedData
from ovkgp.estimators.ridge.base import RIDGE_ATTRIBUTES, RIDGE_BUILDER, SOLVER_CONSTRAINTS, RidgeEstimator
from ovkgp.estimators.storage.storage import storable
from ovkgp.inference import Posterior
from ovkgp.inference.ridge.solvers import solve_ridge


@storable(*RIDGE_ATTRIBUTES, optional=("path_", "scale_"), builder=RIDGE_BUILDER)
class OVKRidge(RidgeEstimator):
    """Ridge regression with the exact kernel: the posterior mean of a Gaussian process with noise σ² (BT-67).

    Parameters
    ----------
    kernel : {"auto", "independent", "decomposable", "curl_free", "divergence_free", "helmholtz"} or Kernel, default="auto"
        "auto" and "independent" are k(x, z) I, "decomposable" is k(x, z) Γ, the last three are for vector fields. A kernel
        object is copied.
    lam : float or list of float, default=1.0
        λ > 0, or candidates among which `selection` chooses.
    convention : str, default="sum"
        Meaning of λ: "sum" is σ² = λ, "mean" σ² = nλ, "mean_unhalved" nλ/2, "penalty_unhalved" 2nλ, "samples" Nλ, "stability" 2Nλ,
        "var" (n − 1)λ, for n rows and N observed entries.
    solver : {"auto", "eigen", "closed_form", "cg", "lbfgs"}, default="auto"
        "eigen" uses two eigendecompositions (separable kernels, complete outputs), "closed_form" a Cholesky factorization, "cg" and
        "lbfgs" only products with the kernel. All agree; "auto" is the fastest that applies.
    base_kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Scalar kernel of the named structures.
    lengthscale : "median" or float, default="median"
        Lengthscale of a base kernel by name; "median" is the median distance between inputs.
    output_matrix : array-like of shape (p, p), OutputMatrix or None, default=None
        Γ of "decomposable" or "auto". If None, the covariance of the outputs for "decomposable" and the identity for "auto".
    output_metric : array-like of shape (p, p) or (p,), or None, default=None
        Σ in the loss (y − f)ᵀ Σ⁻¹ (y − f), for noise that is correlated between outputs.
    fit_intercept : bool, default=False
        Whether to center the outputs.
    selection : {"loo", "evidence"}, default="loo"
        Criterion to choose among several λ: leave-one-row-out error or evidence.
    scale : {"given", "evidence"}, default="given"
        λ determines only the ratio of noise and prior. "evidence" multiplies both by the factor that maximizes the evidence, which
        leaves the mean unchanged, calibrates the standard deviation and doubles the time.
    tolerance : float, default=1e-9
        Tolerance of the iterative solvers.
    max_iter : int or None, default=None
        Maximum number of iterations of the iterative solvers.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    noise_ : float
        σ², before `scale_`; the noise covariance is σ² Σ with an `output_metric`.
    lam_, path_ : float, RidgePath
        Selected λ and, for several, the table it was selected from.
    scale_ : float
        Factor of `scale="evidence"`.
    gp_, posterior_ : OperatorValuedGP, Posterior
        Model and its posterior; `scaling_` holds the intercept.
    dual_coef_ : ndarray of shape (n, p)
        u in f(x) = Σ_j K(x, x_j) u_j, over the rows x_j with an observed entry (`posterior_.X`).
    n_iter_ : int
        Number of iterations; 1 for direct solvers.
    kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        Name of the kernel, names and numbers of columns.

    Notes
    -----
    Complexity: O(n³ + p³) for a separable kernel with complete outputs, else O(N³) for N observed entries; O(n²) or O(N²) memory.

    Examples
    --------
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

    description = Description(
        "ridge regression with an operator-valued kernel",
        "The fit minimizes squared errors plus a penalty on the norm of the function. It is the posterior mean of a Gaussian process with noise σ², which provides the standard deviations. Nothing is trained: λ was given, or selected among several values.",
        "f = argmin Σ_i ‖y_i − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = RidgeEstimator._parameter_constraints | SOLVER_CONSTRAINTS

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

    def _features(self, kernel: Kernel) -> None:
        return None

    def _solve(self, table: WeightedData) -> None:
        data = self._data(table)
        options = {"tolerance": self.tolerance, "max_iter": self.max_iter, "verbose": self.verbose}
        self.posterior_: Posterior = solve_ridge(self.gp_, *data, solver=self.solver, **options)

    def _facts(self) -> dict[str, str | None]:
        return super()._facts() | {"Approximation": EXACT_KERNEL}

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver; 1 for direct ones."""
        check_is_fitted(self, "posterior_")
        return max(getattr(self.posterior_.solver, "num_iterations", 1), 1)

    @property
    def dual_coef_(self) -> np.ndarray:
        """Coefficients u (n, p) in f(x) = Σ_j K(x, x_j) u_j."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.solver.alpha.numpy()
