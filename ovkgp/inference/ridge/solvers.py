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
from ovkgp.inference.algebra.krylov import (
    Quadratic,
    SketchedPreconditioner,
    check_residual,
    minimize_quadratic,
    suppress_residual_warnings,
)
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
    default_iterations,
)
from ovkgp.inference.ridge.weight_products import WeightProducts
from ovkgp.inference.strategies.exact import MAX_EXACT_ROWS, IterativeStrategy, KroneckerStrategy, row_noise
from ovkgp.inference.strategies.features import MAX_LANDMARKS
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES, STRATEGIES
from ovkgp.kernels import components

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
        Relative residual at which "cg", "lbfgs" and full-batch "doubly_sgd" stop.
    max_iter : int or None, default=None
        Maximum number of iterations of these solvers. If None, a limit that ordinary problems do not reach.
    batch_size : int or None, default=None
        Number of rows per step of "doubly_sgd". If None, all rows.
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
    options = SolverOptions(tolerance, max_iter, batch_size, learning_rate, preconditioned, random_state, verbose)
    with torch.no_grad(), gp.report_hyperparameters_on_failure():
        data = gp.observe(X, Y, noise).double().clone()  # a copy: the caller may change the arrays later
        model = gp.frozen().model
        if model.features is None:
            return _solve_dual(model, data, solver, options)
        return _solve_primal(model, data, solver, options, is_guarded=variance == "guarded")


class SolverOptions(NamedTuple):
    """Options of the iterative solvers; see `solve_ridge`."""

    tolerance: float
    max_iter: int | None
    batch_size: int | None
    learning_rate: float | Callable[[int], float]
    preconditioned: bool
    random_state: object
    verbose: int


def _solve_dual(model: Model, data: Observations, solver: str, options: SolverOptions) -> Posterior:
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
    if solver == "cg" and _is_kronecker_sum(model, data):
        return _condition_with_kronecker_products(model, data, options)
    solution = _solve_with_kernel_products(model, data, solver, options)
    process, noise = KernelProcess(model.kernel, data.num_outputs), model.predictive_noise(data)
    return ExactPosterior(process, solution, data, model.mean, noise)


def _is_kronecker_sum(model: Model, data: Observations) -> bool:
    """Return whether the kernel is separable and its n × n Gram matrices fit in memory."""
    return STRATEGIES["iterative"].strategy.supports(model, data) and data.num_rows <= MAX_EXACT_ROWS


def _condition_with_kronecker_products(model: Model, data: Observations, options: SolverOptions) -> ExactPosterior:
    """Run conjugate gradients with Kronecker products, which also estimate the evidence."""
    limit = _iteration_limit(options, data.num_observed, "cg")
    with suppress_residual_warnings():
        posterior = IterativeStrategy(tolerance=options.tolerance, max_iterations=limit).condition(model, data)
    found, rhs = posterior.solver, (data.Y - model.mean(data.X)).nan_to_num().unsqueeze(1)
    alpha = found.alpha.unsqueeze(1)
    check_residual(rhs - found.covariance.apply(alpha), rhs, alpha, "cg", options.tolerance, found.norm)
    return posterior


def _solve_with_kernel_products(model: Model, data: Observations, solver: str, options: SolverOptions) -> ProductSolver:
    """Run an iterative solver with products of chunks of K."""
    noise = row_noise(model, data)
    if _is_kronecker_sum(model, data):
        scalars, matrices = zip(*components(model.kernel), strict=True)
        covariance = KroneckerSum([to_dense(k(data.X)) for k in scalars], list(matrices), noise, data.observed)
    else:
        covariance = KernelProducts(model.kernel, data.X, noise, data.observed)
    rows, residuals = KernelRows(model.kernel, data.X, data.observed), data.Y - model.mean(data.X)
    limit = _iteration_limit(options, data.num_observed, solver)
    return ProductSolver(covariance, rows, residuals, solver, options.tolerance, limit, options.verbose)


def _iteration_limit(options: SolverOptions, size: int, method: str) -> int:
    return default_iterations(size, method) if options.max_iter is None else options.max_iter


def _solve_primal(
    model: Model, data: Observations, solver: str, options: SolverOptions, *, is_guarded: bool
) -> WeightPosterior:
    """Solve (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m) with a feature map."""
    strategy = STRATEGIES["features"].strategy
    if solver in ("eigen", "closed_form"):
        if solver == "eigen":
            _check_stein_form(model, data)
        # "closed_form" forms the r × r normal equations whatever the structure of Φ (BT-71)
        statistics = strategy.statistics(model, data, layout="whitened" if solver == "closed_form" else None)
        posterior = strategy.condition_on_statistics(model, statistics, MAX_LANDMARKS if is_guarded else 0)
        posterior.conditioning = Conditioning(strategy, model, data)
        return posterior
    products, known = WeightProducts.from_model(model, data), ()
    if solver == "doubly_sgd":
        known = doubly_stochastic_weights(model, data, **options._asdict())
    stops = {"tolerance": options.tolerance, "max_iter": None if solver == "doubly_sgd" else options.max_iter}
    system = MatrixFreeSystem(products, *known, method=solver, verbose=options.verbose, **stops)
    process, noise = KernelProcess(model.kernel, data.num_outputs), model.predictive_noise(data)
    floor = make_variance_floor(model.kernel, data) if is_guarded else None
    posterior = WeightPosterior(process, model.features, system, model.mean, noise, data.X.shape[1], floor)
    posterior.conditioning = Conditioning(strategy, model, data)
    return posterior


def _check_stein_form(model: Model, data: Observations) -> None:
    Phi = model.features(data.X[:1])
    is_product = isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == data.num_outputs
    if is_product and data.is_complete and data.noise is None:
        return
    raise OptionError(
        'solver="eigen" requires separable features with one component (φ ⊗ B), complete outputs and the same noise at all points. Use solver="closed_form", or solver="cg" for many features.'
    )


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
    X : array-like of shape (n, d)
        Inputs.
    Y : array-like of shape (n, p)
        Outputs. NaN marks a missing output.
    noise : array-like of shape (n, p) or None, default=None
        Known noise variances. If None, the model's noise is used.

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
        products = WeightProducts.from_model(gp.frozen().model, gp.observe(X, Y, noise).double())
        weights = _primal_weights(products)
        residual = products.adjoint(_dual_coefficients(products)) - weights
    size = torch.linalg.vector_norm(weights).item()
    return PrimalDual(residual, torch.linalg.vector_norm(residual).item() / size if size else 0.0)


def _primal_weights(products: WeightProducts) -> Tensor:
    """Return θ (r,)."""
    if products.num_features > MAX_DENSE_ENTRIES:
        return MatrixFreeSystem(products, tolerance=COMPARISON_TOLERANCE).weights
    return _solve_identity_plus(products.matrix(), products.moment())


def _dual_coefficients(products: WeightProducts) -> Tensor:
    """Return w (n, p) with (ΨΨᵀ + I) w = z, the whitened u: Φᵀu = Ψᵀw."""
    targets = products.targets()
    if targets.numel() <= MAX_DENSE_ENTRIES:
        rows = torch.cat(list(products.whitened_rows()))
        return _solve_identity_plus(gram(rows.mT), targets.reshape(-1, 1)).view(targets.shape)

    def apply(columns: Tensor) -> Tensor:
        return columns + products.forward(products.adjoint_columns(columns))

    P = SketchedPreconditioner(apply, targets.numel(), like=targets)
    quadratic = Quadratic(
        lambda V: apply(V.squeeze(-1)).unsqueeze(-1),
        *(lambda V: P.power(V, 1.0), lambda V: P.power(V, 0.5), lambda V: P.power(V, 0.5)),
        norm=1 + products.trace,
    )
    limit = default_iterations(targets.numel(), "cg")
    return minimize_quadratic(quadratic, targets.reshape(-1, 1, 1), "cg", COMPARISON_TOLERANCE, limit).solution.view_as(
        targets
    )


def _solve_identity_plus(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Return (I + matrix)⁻¹ rhs as a vector."""
    matrix.diagonal().add_(1)
    return torch.cholesky_solve(rhs, safe_cholesky(matrix)).squeeze(-1)
