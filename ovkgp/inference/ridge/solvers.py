"""Solvers of kernel ridge regression, which is the posterior mean of a Gaussian process with noise N (BT-67, BT-69).

dual    (K + N) u = y − m,                    primal    (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m)

`primal_dual_residual` compares both for one feature map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.algebra.dense import gram, safe_cholesky
from ovkgp.inference.algebra.kronecker import KroneckerSolver
from ovkgp.inference.algebra.kronecker_sum import KroneckerSum
from ovkgp.inference.algebra.krylov import check_residual, minimize_quadratic, suppress_residual_warnings
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import Conditioning, KernelProcess, Posterior
from ovkgp.inference.posteriors.weight_posterior import WeightPosterior, make_variance_floor
from ovkgp.inference.ridge.descent import doubly_stochastic_weights
from ovkgp.inference.ridge.products import (
    KernelProducts,
    KernelRows,
    MatrixFreeSystem,
    ProductSolver,
    WeightProducts,
    default_iterations,
    sketched_quadratic,
)
from ovkgp.inference.strategies.exact import MAX_EXACT_ROWS, IterativeStrategy, KroneckerStrategy, row_noise
from ovkgp.inference.strategies.features import MAX_LANDMARKS
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES, STRATEGIES
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

SOLVERS = ("auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd")
"""Names of the solvers. "doubly_sgd" needs a feature map."""
DUAL_STRATEGIES = {"eigen": KroneckerStrategy(KroneckerSolver), "closed_form": STRATEGIES["dense"].strategy}
"""Strategies of the direct solvers with the exact kernel."""
COMPARISON_TOLERANCE = 1e-12  # relative residual of the conjugate gradients of `primal_dual_residual`


def solve_ridge(
    gp: OperatorValuedGP,
    X,
    Y,
    noise=None,
    *,
    solver: str = "auto",
    tolerance: float = 1e-9,
    max_iter: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | Callable[[int], float] = 1.0,
    preconditioned: bool = True,
    variance: str = "features",
    random_state=None,
    verbose: int = 0,
) -> Posterior:
    """Compute the posterior of a model by a named solver; its mean is the ridge estimate.

    Parameters
    ----------
    gp : OperatorValuedGP
        Model at its current hyperparameters. Without a feature map the dual problem is solved, with one the primal
        problem.
    X : array-like of shape (n, d)
        Inputs.
    Y : array-like of shape (n, p)
        Outputs. NaN marks a missing output.
    noise : array-like of shape (n, p) or None, default=None
        Known noise variances. If None, the model's noise is used.
    solver : {"auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd"}, default="auto"
        Solver. "auto" is `gp.condition`; "doubly_sgd" requires a feature map.
    tolerance : float, default=1e-9
        Relative residual at which "cg", "lbfgs" and "doubly_sgd" stop. A larger final residual is a `FitWarning`.
    max_iter : int or None, default=None
        Maximum number of iterations of these solvers. If None, a limit that ordinary problems do not reach.
    batch_size : int or None, default=None
        Number of rows per step of "doubly_sgd". If None, all rows. The error of batches falls only with the root of their
        number, so sweeps over all rows follow them unless `max_iter` or a function `learning_rate` is given.
    learning_rate : float or callable, default=1.0
        Step size of "doubly_sgd", or a function of the iteration t = 1, 2, ….
    preconditioned : bool, default=True
        Whether "doubly_sgd" divides the gradient of a block by its Hessian.
    variance : {"features", "guarded"}, default="features"
        Predictive variance of a model with a feature map, as in `OperatorValuedGP.condition`.
    random_state : int, Generator or None, default=None
        Seed of the batches of "doubly_sgd".
    verbose : int, default=0
        If 1, show the progress of the iterative solvers, except of "cg" with Kronecker products.

    Returns
    -------
    Posterior
        Posterior distribution. With "cg" (unless the kernel is separable), "lbfgs" and "doubly_sgd" its `log_evidence`
        is NaN, as matrix products alone do not give the log determinant, and standard deviations and draws take further
        solves by conjugate gradients.

    Raises
    ------
    OptionError
        If the solver is unknown or does not support the model or the data.

    Notes
    -----
    Complexity for n rows, p outputs, r features and M scalar features: "closed_form" O(n³p³) or O(n p r²) + O(r³);
    "eigen" O(n³ + p³) or O(n M² + M³ + p³); an iteration of "cg" and "lbfgs" O(n² p²) (separable: O(n² p)) or O(n M p),
    with memory for one chunk of rows.

    References
    ----------
    BT-67, BT-69, BT-71, BT-93.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.inference import OperatorValuedGP, solve_ridge
    >>> from ovkgp.kernels import CurlFreeKernel
    >>> X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> gp = OperatorValuedGP(CurlFreeKernel(RBFKernel(ard_num_dims=2)), mean="zero", noise=0.1)
    >>> posteriors = [solve_ridge(gp, X, X.sin(), solver=name) for name in ("closed_form", "cg", "lbfgs")]
    >>> means = [posterior.predict([[0.5, 0.5]]).mean for posterior in posteriors]
    >>> bool(torch.allclose(means[0], means[1], atol=1e-7)), bool(torch.allclose(means[0], means[2], atol=1e-7))
    (True, True)
    """
    if solver not in SOLVERS:
        raise OptionError(f"solver must be one of {', '.join(map(repr, SOLVERS))}, got {solver!r}.")
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise OptionError(f"tolerance must be a positive number, got {tolerance}.")
    if max_iter is not None:
        max_iter = check_integer("max_iter", max_iter)
    if solver == "auto":
        return gp.condition(X, Y, noise=noise, variance=variance)
    stops = {"tolerance": tolerance, "max_iter": max_iter, "verbose": verbose}
    with torch.no_grad(), gp.report_hyperparameters_on_failure():
        data = gp.observe(X, Y, noise).double().clone()  # a copy: the caller may change the arrays later
        model, is_guarded = gp.frozen().model, variance == "guarded"
        if model.features is None:
            return _solve_dual(model, data, solver, **stops)
        if solver in ("eigen", "closed_form"):
            return _factorize_primal(model, data, solver, is_guarded=is_guarded)
        known = ()
        if solver == "doubly_sgd":
            steps = {"batch_size": batch_size, "learning_rate": learning_rate, "preconditioned": preconditioned}
            known = doubly_stochastic_weights(model, data, random_state=random_state, **steps, **stops)
            stops["max_iter"] = None
        products = WeightProducts(model.features, model.mean, model.noise, data)
        system = MatrixFreeSystem(products, *known, method=solver, **stops)
        process, output_noise = KernelProcess(model.kernel, data.num_outputs), model.predictive_noise(data)
        floor = make_variance_floor(model.kernel, data) if is_guarded else None
        posterior = WeightPosterior(process, model.features, system, model.mean, output_noise, data.X.shape[1], floor)
        posterior.conditioning = Conditioning(STRATEGIES["features"].strategy, model, data)
        return posterior


def _solve_dual(
    model: Model, data: Observations, solver: str, tolerance: float, max_iter: int | None, verbose: int
) -> Posterior:
    """Solve (K + N) u = y − m with the exact kernel."""
    if solver == "doubly_sgd":
        raise OptionError(
            'solver="doubly_sgd" is not supported with the exact kernel. Use ORFFRidge (a model with features=ORFF(kernel)) or solver="cg".'
        )
    if solver in DUAL_STRATEGIES:
        strategy = DUAL_STRATEGIES[solver]
        if not strategy.supports(model, data):
            raise OptionError(
                'solver="eigen" requires a separable kernel with one component, complete outputs and the same noise at all points. Use solver="closed_form", or solver="cg" for many rows.'
            )
        return strategy.condition(model, data)
    is_kronecker_sum = STRATEGIES["iterative"].strategy.supports(model, data) and data.num_rows <= MAX_EXACT_ROWS
    limit = default_iterations(data.num_observed, solver) if max_iter is None else max_iter
    residuals = data.Y - model.mean(data.X)
    if solver == "cg" and is_kronecker_sum:  # Kronecker products, which also estimate the evidence
        with suppress_residual_warnings():
            posterior = IterativeStrategy(tolerance=tolerance, max_iterations=limit).condition(model, data)
        found, rhs = posterior.solver, residuals.nan_to_num().unsqueeze(1)
        alpha = found.alpha.unsqueeze(1)
        check_residual(rhs - found.covariance.apply(alpha), rhs, alpha, "cg", tolerance, found.norm)
        return posterior
    noise = row_noise(model, data)
    if is_kronecker_sum:
        scalars, matrices = zip(*components(model.kernel), strict=True)
        covariance = KroneckerSum(
            [to_dense(evaluate_kernel(k, data.X)) for k in scalars], list(matrices), noise, data.observed
        )
    else:
        covariance = KernelProducts(model.kernel, data.X, noise, data.observed)
    rows = KernelRows(model.kernel, data.X, data.observed)
    found = ProductSolver(covariance, rows, residuals, solver, tolerance, limit, verbose)
    process = KernelProcess(model.kernel, data.num_outputs)
    return ExactPosterior(process, found, data, model.mean, model.predictive_noise(data))


def _factorize_primal(model: Model, data: Observations, solver: str, *, is_guarded: bool) -> WeightPosterior:
    """Solve (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m) by a factorization."""
    Phi = model.features(data.X[:1])
    is_product = isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == data.num_outputs
    if solver == "eigen" and not (is_product and data.is_complete and data.noise is None):
        raise OptionError(
            'solver="eigen" requires separable features with one component (φ ⊗ B), complete outputs and the same noise at all points. Use solver="closed_form", or solver="cg" for many features.'
        )
    strategy = STRATEGIES["features"].strategy
    # "closed_form" forms the r × r normal equations whatever the structure of Φ (BT-71)
    statistics = strategy.statistics(model, data, layout="whitened" if solver == "closed_form" else None)
    posterior = strategy.condition_on_statistics(model, statistics, MAX_LANDMARKS if is_guarded else 0)
    posterior.conditioning = Conditioning(strategy, model, data)
    return posterior


class PrimalDual(NamedTuple):
    """Difference between the dual and the primal solution.

    Attributes
    ----------
    residual : Tensor of shape (r,)
        Φᵀu − θ, with u the dual and θ the primal solution.
    relative : float
        Norm of the residual divided by the norm of θ.
    """

    residual: Tensor
    relative: float


def primal_dual_residual(gp: OperatorValuedGP, X, Y, noise=None) -> PrimalDual:
    """Compute the difference between the weights of the dual solution and those of the primal one.

    Parameters
    ----------
    gp : OperatorValuedGP
        Model with a feature map.
    X, Y, noise
        As for `solve_ridge`.

    Returns
    -------
    PrimalDual
        Residual, which is zero in exact arithmetic, and its relative norm. A large residual shows that the noise is
        zero to working precision and that neither solution is reliable.

    Raises
    ------
    OptionError
        If the model has no feature map.

    Notes
    -----
    Complexity: O((np)³ + r³) up to 5000 entries and features; beyond, conjugate gradients at O(n M p) per iteration.

    References
    ----------
    BT-69.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import ORFF
    >>> from ovkgp.inference import OperatorValuedGP, primal_dual_residual
    >>> kernel = RBFKernel(ard_num_dims=1)
    >>> gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 20, random_state=0))
    >>> X = torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
    >>> primal_dual_residual(gp, X, X.sin()).relative < 1e-10
    True
    """
    if gp.features is None:
        raise OptionError(
            "primal_dual_residual requires a model with a feature map. Use OperatorValuedGP(kernel, features=ORFF(kernel))."
        )
    with torch.no_grad():
        model, data = gp.frozen().model, gp.observe(X, Y, noise).double()
        products = WeightProducts(model.features, model.mean, model.noise, data)
        if products.num_features > MAX_DENSE_ENTRIES:
            weights = MatrixFreeSystem(products, tolerance=COMPARISON_TOLERANCE).weights
        else:
            weights = _solve_identity_plus(products.matrix(), products.moment())
        residual = products.adjoint(_dual_coefficients(products)) - weights
    size = torch.linalg.vector_norm(weights).item()
    return PrimalDual(residual, torch.linalg.vector_norm(residual).item() / size if size else 0.0)


def _dual_coefficients(products: WeightProducts) -> Tensor:
    """Return w (n, p) with (ΨΨᵀ + I) w = z, the whitened u: Φᵀu = Ψᵀw."""
    targets = products.targets()
    if (size := targets.numel()) <= MAX_DENSE_ENTRIES:
        rows = torch.cat(list(products.whitened_rows()))
        return _solve_identity_plus(gram(rows.mT), targets.reshape(-1, 1)).view(targets.shape)

    def apply(columns: Tensor) -> Tensor:
        return columns + products.forward(products.adjoint_columns(columns))

    quadratic, limit = sketched_quadratic(apply, size, 1 + products.trace, targets), default_iterations(size, "cg")
    found = minimize_quadratic(quadratic, targets.reshape(-1, 1, 1), "cg", COMPARISON_TOLERANCE, limit)
    return found.solution.view_as(targets)


def _solve_identity_plus(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Return (I + matrix)⁻¹ rhs as a vector."""
    matrix.diagonal().add_(1)
    return torch.cholesky_solve(rhs, safe_cholesky(matrix)).squeeze(-1)
