"""`OVKRidge`, ridge regression with the exact kernel (BT-67)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.descriptions import EXACT_KERNEL, Description
from ovkgp.estimators.common.fit_checks import warn_about_rows
from ovkgp.estimators.common.loss_options import MODE_ATTRIBUTES
from ovkgp.estimators.common.named_kernels import name_structure, ridge_kernel
from ovkgp.estimators.common.options import restore_on_error
from ovkgp.estimators.common.validation import Table
from ovkgp.estimators.ridge.base import (
    RIDGE_ATTRIBUTES,
    RIDGE_BUILDER,
    SOLVER_CONSTRAINTS,
    RidgeEstimator,
    best_scale,
    compute_path,
    make_ridge_gp,
    make_scaling,
    multiply_kernel,
    select_lam,
    weighted_table,
)
from ovkgp.estimators.ridge.losses import LEVEL, LOSS, LossMixin
from ovkgp.estimators.storage.storage import storable
from ovkgp.inference import OperatorValuedGP, Posterior
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.tasks.mode_posterior import ModePosterior


@storable(*RIDGE_ATTRIBUTES, optional=("path_", "scale_", *MODE_ATTRIBUTES), builder=RIDGE_BUILDER)
class OVKRidge(LossMixin, RidgeEstimator):
    """Ridge regression with the exact kernel: the posterior mean of a Gaussian process with noise σ² (BT-67).

    With another loss it is the mode of the posterior under the likelihood of the loss (BT-70).

    Parameters
    ----------
    kernel : {"auto", "independent", "decomposable", "curl_free", "divergence_free", "helmholtz"} or Kernel, default="auto"
        "auto" and "independent" are k(x, z) I, "decomposable" is k(x, z) Γ, the last three are for vector fields. A kernel
        object is copied.
    lam : float or list of float, default=1.0
        λ > 0, or candidates among which `selection` chooses.
    convention : str, default="sum"
        Meaning of λ: "sum" is σ² = λ, "mean" σ² = nλ, "mean_unhalved" nλ/2, "penalty_unhalved" and "mean_halved" 2nλ, "samples" Nλ, "stability" 2Nλ,
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
        With other losses than the square loss, outlying outputs do not count in the covariance.
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
        Tolerance of the iterative solvers: relative residual, or relative duality gap for other losses.
    max_iter : int or None, default=None
        Maximum number of iterations of the iterative solvers.
    verbose : int, default=0
        If 1, progress is shown.
    loss : {"square", "huber", "epsilon_insensitive", "log_cosh", "pinball", "smoothed_pinball"}, Loss or CurveLoss, default="square"
        Loss ℓ in Σ ℓ(y, f)/σ² + ½‖f‖², with σ² as for the square loss ½(y − f)². The parameter of a name is relative to the robust
        standard deviation s of residuals, pooled over outputs: κ = 1.345 s ("huber"), ν = 1/s ("log_cosh"), ε = s/2, κ = s/10
        ("smoothed_pinball"). s is that of the fit itself for "huber" and that of the square loss otherwise. A `Loss` of `ovkgp.losses` is
        used as it is, in units of y. A `CurveLoss`, such as `CurveHuber(kappa, 2, Coordinates(p))`, couples the outputs of a row and
        requires a separable kernel and complete outputs.
    level : float or array-like of shape (p,), default=0.5
        Level θ of a pinball loss, for all outputs or one per output; the cost of a hinge loss.

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
    loss_, gap_, sparsity_, fit_report_ : Loss or CurveLoss, float, float, FitReport
        For losses other than "square": the loss, the relative duality gap, the fraction of entries of `dual_coef_` that are 0, and the
        report of the solver.
    kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        Name of the kernel, names and numbers of columns.

    Notes
    -----
    Other losses: `predict` returns the mode, for a pinball loss the quantile. Standard deviations, intervals and draws are those of
    the normalized likelihood of the loss, by a Gaussian approximation with this mode and the covariance of a variational posterior
    (`posterior_.approximation`, with its own mean), computed when they are first requested. Hinge losses, envelopes and curve losses
    have no likelihood and predict no standard deviation. Several λ, `path`, leave-one-out, an `output_metric` and other solvers are
    not supported.

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
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **RidgeEstimator._parameter_constraints,
        **SOLVER_CONSTRAINTS,
        "loss": LOSS,
        "level": LEVEL,
    }

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
        loss="square",
        level=0.5,
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
        self.loss = loss
        self.level = level

    def fit(self, X, y, sample_weight=None) -> OVKRidge:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing.
        sample_weight : array-like of shape (n,) or (n, p), or None, default=None
            Weights of rows, which count as copies, or of entries in the loss. The noise of an entry is σ² / weight; entries of
            weight zero are ignored. The covariance of the outputs (`kernel="decomposable"`) and leave-one-out do not use them.

        Returns
        -------
        self : OVKRidge
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            data = self._check_first_rows(X, y, sample_weight)
            warn_about_rows(data.X, data.Y)
            observed = np.isfinite(data.Y).any(1)
            self._kernel = ridge_kernel(self, data.X[observed], data.Y[observed])
            self.kernel_ = name_structure(self.kernel)
            self.scaling_ = make_scaling(data.X.shape[1], data.mean(), fit_intercept=self.fit_intercept)
            self._counts = data.num_rows, data.num_observed
            if self._is_mode:
                self._fit_mode(data, self._make_scaled_gp, variance="features")
                return self
            make_gp = partial(make_ridge_gp, self._kernel, metric=self._metric())
            rescale = self.scale == "evidence"
            select_lam(self, lambda *levels: compute_path(make_gp, data, *levels, self.scaling_, rescale=rescale))
            self.gp_, table = make_gp(self.noise_), weighted_table(data, self.noise_)
            self.posterior_ = self._solve(table)
            if rescale:
                self.scale_ = best_scale(self.gp_, self.posterior_, table, self.scaling_)
                kernel = multiply_kernel(self._kernel, self.scale_)
                self.gp_ = make_ridge_gp(kernel, self._scaled_noise, self._metric())
                self.posterior_ = self._solve(weighted_table(data, self._scaled_noise))
        return self

    def _make_scaled_gp(self, noise: float, scale: float = 1.0) -> OperatorValuedGP:
        return make_ridge_gp(multiply_kernel(self._kernel, scale), noise * scale, None)

    def _solve(self, table: Table) -> Posterior:
        options = {name: getattr(self, name) for name in ("solver", "tolerance", "max_iter", "verbose")}
        return solve_ridge(self.gp_, *table.scaled(self.scaling_), **options)

    def _facts(self) -> dict[str, str | None]:
        return super()._facts() | {"Approximation": EXACT_KERNEL}

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver; 1 for direct ones."""
        check_is_fitted(self, "posterior_")
        if isinstance(self.posterior_, ModePosterior):
            return max(self.fit_report_.iterations, 1)
        return max(getattr(self.posterior_.solver, "num_iterations", 1), 1)

    @property
    def dual_coef_(self) -> np.ndarray:
        """Coefficients u (n, p) in f(x) = Σ_j K(x, x_j) u_j."""
        check_is_fitted(self, "posterior_")
        is_mode = isinstance(self.posterior_, ModePosterior)
        return (self.posterior_.coefficients if is_mode else self.posterior_.solver.alpha).numpy()
