"""One ridge problem, many ways to solve it: the posterior of a model by the solver that is asked for (BT-67, BT-71, BT-78).

| solver | exact kernel (dual, K + N) | feature map (primal, I + Φᵀ N⁻¹ Φ) |
|---|---|---|
| auto | what `OperatorValuedGP.condition` takes | the same |
| eigen | two eigendecompositions | the Stein equation (BT-76) |
| closed_form | Cholesky between the observed entries | Cholesky of r × r, Algorithm 3 |
| cg | conjugate gradients by products | conjugate gradients by products with Φ |
| lbfgs | L-BFGS on ½ αᵀ(K + N)α − αᵀy | L-BFGS with the gradient (6.9) |
| doubly_sgd | | Algorithm 4, blocks of features and batches of rows |

All give the same posterior: they differ in time, memory, and in whether they know the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.data import Observations
from ovkgp.inference.doubly_stochastic import doubly_stochastic_weights
from ovkgp.inference.dual_products import KernelProducts, ProductSolver
from ovkgp.inference.exact_posterior import ExactPosterior
from ovkgp.inference.exact_roads import MOST_ROWS, DenseRoad, EigenRoad, noise_of_rows
from ovkgp.inference.feature_road import FeatureRoad
from ovkgp.inference.gathering import gather
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.guard import VarianceGuard, landmark_guard
from ovkgp.inference.iterative import IterativeSolver
from ovkgp.inference.kronecker_sum import KroneckerSum
from ovkgp.inference.matrix_free import MatrixFreeSystem, default_iterations
from ovkgp.inference.model import Model
from ovkgp.inference.posterior import Posterior
from ovkgp.inference.processes import KernelProcess
from ovkgp.inference.quadratics import quiet_iterations, require_residual
from ovkgp.inference.roads import has_kronecker_form
from ovkgp.inference.row_preconditioner import KernelRows
from ovkgp.inference.weight_posterior import WeightPosterior
from ovkgp.inference.weight_products import WeightProducts
from ovkgp.inference.weight_space import weight_system
from ovkgp.kernels import components
from ovkgp.kernels.checks import whole_number

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
        >>> from ovkgp.inference.ridge_solvers import solve_ridge
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
        max_iter = whole_number("max_iter", max_iter)
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
        return DenseRoad().condition(model, data)
    found = _iterative(model, data, options) if solver == "cg" and _is_kronecker_sum(model, data) else None
    found = found or _by_products(model, data, solver, options)
    return ExactPosterior(KernelProcess(model.kernel, data.num_outputs), found, data, model.mean, model.new_noise(data))


def _eigen_road(model: Model, data: Observations) -> EigenRoad:
    if has_kronecker_form(model, data):
        return EigenRoad()
    raise OptionError(
        'solver="eigen" needs a separable kernel with one component, complete outputs and noise that is alike at all '
        'points; use solver="closed_form", or solver="cg" for many data.'
    )


def _is_kronecker_sum(model: Model, data: Observations) -> bool:
    """Whether the n × n matrices of a separable kernel are there to be had."""
    return components(model.kernel) is not None and data.num_rows <= MOST_ROWS


def _iterative(model: Model, data: Observations, options: SolverOptions) -> IterativeSolver:
    """Conjugate gradients with Kronecker products, which estimate the evidence too."""
    grams, matrices = _grams(model, data)
    residuals, limit = data.Y - model.mean(data.X), _limit(options, data.num_seen, "cg")
    settings = {"tolerance": options.tolerance, "max_iterations": limit}
    with quiet_iterations():
        found = IterativeSolver(grams, matrices, noise_of_rows(model, data), residuals, **settings)
    alpha, rhs = found.alpha.unsqueeze(1), residuals.nan_to_num().unsqueeze(1)
    require_residual(rhs - found.covariance.apply(alpha), rhs, alpha, "cg", options.tolerance, found.norm)
    return found


def _by_products(model: Model, data: Observations, solver: str, options: SolverOptions) -> ProductSolver:
    noise = noise_of_rows(model, data)
    if _is_kronecker_sum(model, data):
        covariance = KroneckerSum(*_grams(model, data), noise, data.seen)
    else:
        covariance = KernelProducts(model.kernel, data.X, noise, data.seen)
    rows, residuals = KernelRows(model.kernel, data.X, data.seen), data.Y - model.mean(data.X)
    limit = _limit(options, data.num_seen, solver)
    return ProductSolver(covariance, rows, residuals, solver, options.tolerance, limit, options.verbose)


def _grams(model: Model, data: Observations) -> tuple[list[Tensor], list[Tensor]]:
    scalars, matrices = zip(*components(model.kernel), strict=True)
    return [to_dense(scalar(data.X)) for scalar in scalars], list(matrices)


def _limit(options: SolverOptions, size: int, method: str) -> int:
    return default_iterations(size, method) if options.max_iter is None else options.max_iter


# --- feature maps --------------------------------------------------------------------------------------------------


def _primal(
    model: Model, data: Observations, solver: str, options: SolverOptions, guard: VarianceGuard | None
) -> WeightPosterior:
    if solver == "eigen":
        _require_stein_form(model, data)
        road = FeatureRoad()
        system = road.system_of(model, road.statistics(model, data))
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
