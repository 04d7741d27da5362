"""Solvers of kernel ridge regression, which is the posterior mean of a Gaussian process with noise N (BT-67, BT-69).

dual    (K + N) u = y − m,                    primal    (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m)
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
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.algebra.kronecker_sum import KroneckerSum
from ovkgp.inference.algebra.krylov import check_residual, suppress_residual_warnings
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor, WeightPosterior, make_variance_floor
from ovkgp.inference.ridge.descent import doubly_stochastic_weights
from ovkgp.inference.ridge.products import (
    KernelProducts,
    KernelRows,
    MatrixFreeSystem,
    ProductSolver,
    default_iterations,
)
from ovkgp.inference.ridge.weight_products import WeightProducts
from ovkgp.inference.statistics.accumulation import compute_statistics
from ovkgp.inference.statistics.weight_space import make_weight_system
from ovkgp.inference.strategies.exact import MAX_EXACT_ROWS, DenseStrategy, EigenStrategy, row_noise
from ovkgp.inference.strategies.features import FeatureStrategy
from ovkgp.inference.strategies.selection import has_kronecker_form
from ovkgp.kernels import components

SOLVERS = ("auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd")
"""Names of the solvers. "doubly_sgd" needs a feature map."""


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
        variance_floor = make_variance_floor(model.kernel, data) if variance == "guarded" else None
        return _solve_primal(model, data, solver, options, variance_floor)


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
    if solver == "eigen":
        if not has_kronecker_form(model, data):
            raise OptionError(
                'solver="eigen" requires a separable kernel with one component, complete outputs and the same noise at all points. Use solver="closed_form", or solver="cg" for many rows.'
            )
        return EigenStrategy().condition(model, data)
    if solver == "closed_form":
        return DenseStrategy().condition(model, data)
    if solver == "cg" and _is_kronecker_sum(model, data):
        solution = _solve_with_kronecker_products(model, data, options)
    else:
        solution = _solve_with_kernel_products(model, data, solver, options)
    process, noise = KernelProcess(model.kernel, data.num_outputs), model.predictive_noise(data)
    return ExactPosterior(process, solution, data, model.mean, noise)


def _is_kronecker_sum(model: Model, data: Observations) -> bool:
    """Return whether the kernel is separable and its n × n Gram matrices fit in memory."""
    return components(model.kernel) is not None and data.num_rows <= MAX_EXACT_ROWS


def _solve_with_kronecker_products(model: Model, data: Observations, options: SolverOptions) -> IterativeSolver:
    """Run conjugate gradients with Kronecker products, which also estimate the evidence."""
    grams, matrices = _component_grams(model, data)
    residuals, limit = data.Y - model.mean(data.X), _iteration_limit(options, data.num_observed, "cg")
    settings = {"tolerance": options.tolerance, "max_iterations": limit}
    with suppress_residual_warnings():
        found = IterativeSolver(grams, matrices, row_noise(model, data), residuals, **settings)
    alpha, rhs = found.alpha.unsqueeze(1), residuals.nan_to_num().unsqueeze(1)
    check_residual(rhs - found.covariance.apply(alpha), rhs, alpha, "cg", options.tolerance, found.norm)
    return found


def _solve_with_kernel_products(model: Model, data: Observations, solver: str, options: SolverOptions) -> ProductSolver:
    """Run an iterative solver with products of chunks of K."""
    noise = row_noise(model, data)
    if _is_kronecker_sum(model, data):
        covariance = KroneckerSum(*_component_grams(model, data), noise, data.observed)
    else:
        covariance = KernelProducts(model.kernel, data.X, noise, data.observed)
    rows, residuals = KernelRows(model.kernel, data.X, data.observed), data.Y - model.mean(data.X)
    limit = _iteration_limit(options, data.num_observed, solver)
    return ProductSolver(covariance, rows, residuals, solver, options.tolerance, limit, options.verbose)


def _component_grams(model: Model, data: Observations) -> tuple[list[Tensor], list[Tensor]]:
    scalars, matrices = zip(*components(model.kernel), strict=True)
    return [to_dense(scalar(data.X)) for scalar in scalars], list(matrices)


def _iteration_limit(options: SolverOptions, size: int, method: str) -> int:
    return default_iterations(size, method) if options.max_iter is None else options.max_iter


def _solve_primal(
    model: Model, data: Observations, solver: str, options: SolverOptions, variance_floor: VarianceFloor | None
) -> WeightPosterior:
    """Solve (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m) with a feature map."""
    if solver == "eigen":
        _check_stein_form(model, data)
        strategy = FeatureStrategy()
        system = strategy.weight_system_from_statistics(model, strategy.statistics(model, data))
    elif solver == "closed_form":
        system = _normal_equations(model, data)
    else:
        products, known = WeightProducts.from_model(model, data), ()
        if solver == "doubly_sgd":
            known = doubly_stochastic_weights(model, data, **options._asdict())
        stops = {"tolerance": options.tolerance, "max_iter": None if solver == "doubly_sgd" else options.max_iter}
        system = MatrixFreeSystem(products, *known, method=solver, verbose=options.verbose, **stops)
    process, noise = KernelProcess(model.kernel, data.num_outputs), model.predictive_noise(data)
    return WeightPosterior(process, model.features, system, model.mean, noise, data.X.shape[1], variance_floor)


def _check_stein_form(model: Model, data: Observations) -> None:
    Phi = model.features(data.X[:1])
    is_product = isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == data.num_outputs
    if is_product and data.is_complete and data.noise is None:
        return
    raise OptionError(
        'solver="eigen" requires separable features with one component (φ ⊗ B), complete outputs and the same noise at all points. Use solver="closed_form", or solver="cg" for many features.'
    )


def _normal_equations(model: Model, data: Observations):
    """Accumulate the r × r normal equations one chunk of Φ at a time, whatever its structure (BT-71)."""
    template = model.features(data.X[:1])
    parts = model.features, model.mean, model.noise, data
    statistics = compute_statistics(*parts, template=template, layout="whitened", num_landmarks=0)
    return make_weight_system(statistics, template, model.noise.matrix(), model.mean.coefficients.to(data.X.device))
