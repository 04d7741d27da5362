"""Do the primal and the dual ridge problem have the same solution? In exact arithmetic yes, for any λ > 0 (BT-69).

    (ΦΦᵀ + N) u = y − m,      θ_s = (I + Φᵀ N⁻¹ Φ)⁻¹ Φᵀ N⁻¹ (y − m),      residual  Φᵀ u − θ_s.

A residual that is not small says that the noise is zero to working precision, and that neither solution is to be trusted.
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
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.algebra.kronecker_sum import KroneckerSum
from ovkgp.inference.algebra.krylov import Quadratic, check_residual, least_point, quiet_iterations
from ovkgp.inference.algebra.preconditioners import SketchedPreconditioner
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor, WeightPosterior, landmark_guard
from ovkgp.inference.ridge.descent import doubly_stochastic_weights
from ovkgp.inference.ridge.products import (
    KernelProducts,
    KernelRows,
    MatrixFreeSystem,
    ProductSolver,
    default_iterations,
)
from ovkgp.inference.ridge.weight_products import WeightProducts
from ovkgp.inference.statistics.accumulation import gather
from ovkgp.inference.statistics.weight_space import weight_system
from ovkgp.inference.strategies.exact import MAX_ROWS, DenseStrategy, EigenStrategy, noise_of_rows
from ovkgp.inference.strategies.features import FeatureStrategy
from ovkgp.inference.strategies.selection import DENSE_LIMIT, has_kronecker_form
from ovkgp.kernels import components

SOLVERS = ("auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd")
EXACT_SOLVERS = SOLVERS[:-1]
"""The names of the solvers, with features and with the exact kernel."""


class SolverOptions(NamedTuple):
    """What the iterative solvers may be told; see `solve_ridge`."""

    tolerance: float
    max_iter: int | None
    batch_size: int | None
    learning_rate: float | Callable[[int], float]
    preconditioned: bool
    random_state: object
    verbose: int


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
    """The posterior of a model, by a named solver; the mean is the ridge estimate with that noise.

    Args:
        gp: the model, at its hyperparameters; without a feature map the dual problem is solved, with one the primal.
        X, Y, noise: as for `OperatorValuedGP.condition`: NaN in Y is a missing output, `noise` known variances (n, p).
        solver: "auto", "eigen", "closed_form", "cg", "lbfgs" or (with features) "doubly_sgd".
        tolerance: of "cg", "lbfgs" and full-batch "doubly_sgd": the relative residual at which they stop.
        max_iter: iterations of these; None for a number that is ample.
        batch_size, learning_rate, preconditioned, random_state: of "doubly_sgd" (`doubly_stochastic_weights`).
        variance: "features" or, with a feature map, "guarded", as for `OperatorValuedGP.condition`.
        verbose: 1 shows the progress of the iterative ones, except of "cg" with Kronecker products.

    The posterior of "cg" (unless the kernel is separable), "lbfgs" and "doubly_sgd" has `log_evidence` NaN: products alone
    do not tell the log determinant. Its standard deviations and draws come from further solves by conjugate gradients.

    Cost (n rows, p outputs, r features, M waves): closed_form O(n³p³) or O(n p r²) + O(r³); eigen O(n³ + p³) or
    O(n M² + M³ + p³); an iteration of cg and lbfgs O(n² p²) (separable: O(n² p)) or O(n M p), in memory for one chunk of rows.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.ridge.solvers import solve_ridge
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
    with torch.no_grad(), gp.naming_failures():
        data = gp.observe(X, Y, noise).double().clone()  # the posterior outlives what happens to the user's arrays
        model = gp.frozen().model
        if model.features is None:
            return _dual(model, data, solver, options)
        guard = landmark_guard(model.kernel, data) if variance == "guarded" else None
        return _primal(model, data, solver, options, guard)


# --- the exact kernel ----------------------------------------------------------------------------------------------


def _dual(model: Model, data: Observations, solver: str, options: SolverOptions) -> Posterior:
    if solver == "doubly_sgd":
        raise OptionError(
            'solver="doubly_sgd" trains weights of random features, and this model has the exact kernel: use ORFFRidge (a '
            'model with features=ORFF(kernel)), or solver="cg".'
        )
    if solver == "eigen":
        return _eigen_road(model, data).condition(model, data)
    if solver == "closed_form":
        return DenseStrategy().condition(model, data)
    found = _iterative(model, data, options) if solver == "cg" and _is_kronecker_sum(model, data) else None
    found = found or _by_products(model, data, solver, options)
    return ExactPosterior(KernelProcess(model.kernel, data.num_outputs), found, data, model.mean, model.new_noise(data))


def _eigen_road(model: Model, data: Observations) -> EigenStrategy:
    if has_kronecker_form(model, data):
        return EigenStrategy()
    raise OptionError(
        'solver="eigen" needs a separable kernel with one component, complete outputs and noise that is alike at all '
        'points; use solver="closed_form", or solver="cg" for many data.'
    )


def _is_kronecker_sum(model: Model, data: Observations) -> bool:
    """Whether the n × n matrices of a separable kernel are there to be had."""
    return components(model.kernel) is not None and data.num_rows <= MAX_ROWS


def _iterative(model: Model, data: Observations, options: SolverOptions) -> IterativeSolver:
    """Conjugate gradients with Kronecker products, which estimate the evidence too."""
    grams, matrices = _grams(model, data)
    residuals, limit = data.Y - model.mean(data.X), _limit(options, data.num_observed, "cg")
    settings = {"tolerance": options.tolerance, "max_iterations": limit}
    with quiet_iterations():
        found = IterativeSolver(grams, matrices, noise_of_rows(model, data), residuals, **settings)
    alpha, rhs = found.alpha.unsqueeze(1), residuals.nan_to_num().unsqueeze(1)
    check_residual(rhs - found.covariance.apply(alpha), rhs, alpha, "cg", options.tolerance, found.norm)
    return found


def _by_products(model: Model, data: Observations, solver: str, options: SolverOptions) -> ProductSolver:
    noise = noise_of_rows(model, data)
    if _is_kronecker_sum(model, data):
        covariance = KroneckerSum(*_grams(model, data), noise, data.observed)
    else:
        covariance = KernelProducts(model.kernel, data.X, noise, data.observed)
    rows, residuals = KernelRows(model.kernel, data.X, data.observed), data.Y - model.mean(data.X)
    limit = _limit(options, data.num_observed, solver)
    return ProductSolver(covariance, rows, residuals, solver, options.tolerance, limit, options.verbose)


def _grams(model: Model, data: Observations) -> tuple[list[Tensor], list[Tensor]]:
    scalars, matrices = zip(*components(model.kernel), strict=True)
    return [to_dense(scalar(data.X)) for scalar in scalars], list(matrices)


def _limit(options: SolverOptions, size: int, method: str) -> int:
    return default_iterations(size, method) if options.max_iter is None else options.max_iter


# --- feature maps --------------------------------------------------------------------------------------------------


def _primal(
    model: Model, data: Observations, solver: str, options: SolverOptions, guard: VarianceFloor | None
) -> WeightPosterior:
    if solver == "eigen":
        _require_stein_form(model, data)
        strategy = FeatureStrategy()
        system = strategy.system_of(model, strategy.statistics(model, data))
    elif solver == "closed_form":
        system = _algorithm_3(model, data)
    else:
        products, known = WeightProducts.of(model, data), ()
        if solver == "doubly_sgd":
            known = doubly_stochastic_weights(model, data, **options._asdict())
        stops = {"tolerance": options.tolerance, "max_iter": None if solver == "doubly_sgd" else options.max_iter}
        system = MatrixFreeSystem(products, *known, method=solver, verbose=options.verbose, **stops)
    process, noise = KernelProcess(model.kernel, data.num_outputs), model.new_noise(data)
    return WeightPosterior(process, model.features, system, model.mean, noise, data.X.shape[1], guard)


def _require_stein_form(model: Model, data: Observations) -> None:
    Phi = model.features(data.X[:1])
    is_product = isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == data.num_outputs
    if is_product and data.is_complete and data.noise is None:
        return
    raise OptionError(
        'solver="eigen" needs separable features of one component (φ ⊗ B), complete outputs and noise that is alike at all '
        'points; use solver="closed_form", or solver="cg" for many features.'
    )


def _algorithm_3(model: Model, data: Observations):
    """The r × r normal equations, whatever the structure, gathered a chunk of Φ at a time (BT-71)."""
    template = model.features(data.X[:1])
    parts = model.features, model.mean, model.noise, data
    statistics = gather(*parts, template=template, layout="whitened", num_landmarks=0)
    return weight_system(statistics, template, model.noise.matrix(), model.mean.coefficients.to(data.X.device))


TOLERANCE = 1e-12
"""Relative residual of the solves that are too large for a Cholesky factor."""


class PrimalDual(NamedTuple):
    """Σ_i Φ_iᵀ u_i − θ_s (r,), and its length as a part of that of θ_s."""

    residual: Tensor
    relative: float


def primal_dual_residual(gp: OperatorValuedGP, X, Y, noise=None) -> PrimalDual:
    """The difference between the weights of the dual solution and those of the primal one.

    Args:
        gp: a model with a feature map.
        X, Y, noise: as for `OperatorValuedGP.condition`.

    Cost: O((np)³ + r³) up to `DENSE_LIMIT` entries, or features; beyond, conjugate gradients with O(n M p) an iteration.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.ridge.solvers import primal_dual_residual
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 20, random_state=0))
        >>> X = torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
        >>> primal_dual_residual(gp, X, X.sin()).relative < 1e-10
        True
    """
    if gp.features is None:
        raise OptionError(
            "the primal problem needs a feature map, and this model has none: OperatorValuedGP(kernel, features=ORFF(kernel))."
        )
    with torch.no_grad():
        products = WeightProducts.of(gp.frozen().model, gp.observe(X, Y, noise).double())
        weights = _primal_primal_dual(products)
        residual = products.adjoint(_dual_primal_dual(products)) - weights
    size = torch.linalg.vector_norm(weights).item()
    return PrimalDual(residual, torch.linalg.vector_norm(residual).item() / size if size else 0.0)


def _primal_primal_dual(products: WeightProducts) -> Tensor:
    """θ_s (r,)."""
    if products.num_features > DENSE_LIMIT:
        return MatrixFreeSystem(products, tolerance=TOLERANCE).weights
    return _solve(products.matrix(), products.moment())


def _dual_primal_dual(products: WeightProducts) -> Tensor:
    """w (n, p) with (ΨΨᵀ + I) w = z, the whitened u: Φᵀu = Ψᵀw."""
    targets = products.targets()
    if targets.numel() <= DENSE_LIMIT:
        rows = torch.cat(list(products.whitened_rows()))
        return _solve(gram(rows.mT), targets.reshape(-1, 1)).view(targets.shape)

    def apply(columns: Tensor) -> Tensor:
        return columns + products.forward(products.adjoint_columns(columns))

    P = SketchedPreconditioner(apply, targets.numel(), like=targets)
    quadratic = Quadratic(
        lambda V: apply(V.squeeze(-1)).unsqueeze(-1),
        *(lambda V: P.power(V, 1.0), lambda V: P.power(V, 0.5), lambda V: P.power(V, 0.5)),
        norm=1 + products.trace,
    )
    limit = default_iterations(targets.numel(), "cg")
    return least_point(quadratic, targets.reshape(-1, 1, 1), "cg", TOLERANCE, limit).solution.view(targets.shape)


def _solve(matrix: Tensor, rhs: Tensor) -> Tensor:
    """(I + matrix)⁻¹ rhs as a vector."""
    matrix.diagonal().add_(1)
    return torch.cholesky_solve(rhs, safe_cholesky(matrix)).squeeze(-1)
