"""Dual solver: an accelerated proximal gradient method for any loss (LT-89..97, LT-108, BO-75).

    A ← −prox of γL* at −(A − γ grad),     grad = H(A) = Φ W(A) Ψᵀ,     γ = 1/C,     C = ‖ΦᵀsΦ‖ ‖ΨᵀηΨ‖ / (λ n),

in the inner product of L²(ω), with the conjugate, including its linear term and quadratic part, in the proximal
operator (LT-E-05). The momentum of FISTA restarts if it points against the step. W(A) is the primal point.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.certificates import Certificate, check_initial_point

CHECK_INTERVAL_STEPS, NUM_POWER_ITERATIONS, POWER_MARGIN = 10, 60, 1.02
"""Steps between two evaluations of the gap; number of power iterations, and the factor applied to their result."""


def solve_dual(
    problem: TaskProblem,
    *,
    init: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 20_000,
    verbose: int = 0,
) -> TaskSolution:
    """Maximize D until the gap is at most tolerance · |J|.

    `init` A (n, m), such as the solution of a similar problem or of a ridge (LT-97), need not be feasible. Exact zeros
    of the proximal operator are exact zeros of A, so sparse solutions are sparse (`paths.compute_sparsity`). Ctrl-C
    keeps the best solution so far, sets `report.interrupted` and warns, as does a run that does not converge.

    Complexity: O(n q (r + m)) per step. Losses with a quadratic part take tens to hundreds of steps, the pinball loss
    thousands if λ is small, for which `solve_primal` is faster.
    """
    check_initial_point("init", init, problem.entry_weights.shape)
    certificate = Certificate(problem, tolerance, max_iter, verbose)
    dual = torch.zeros_like(problem.entry_weights) if init is None else init.double()
    return certificate.run(lambda bar: descend(certificate, dual, bar))


def descend(certificate: Certificate, dual: Tensor, bar: tqdm) -> None:
    """Run FISTA with restarts from A until the certificate is over."""
    problem = certificate.problem
    step = 1 / max(lipschitz_constant(problem), 1e-300)
    dual = -problem.loss.nearest_slope(-dual, problem.targets)
    weights = problem.dual_weights(dual)
    certificate.evaluate(weights, -dual)
    before, at, momentum = dual, dual, 1.0
    while not certificate.is_over:
        slopes = problem.values(problem.dual_weights(at)) * step - at
        dual = -problem.loss.conjugate_prox(slopes, problem.targets, step)
        restart = (problem.entry_weights * (at - dual) * (dual - before)).sum() > 0
        following = 1.0 if restart else (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        at = dual if restart else dual + (momentum - 1) / following * (dual - before)
        before, momentum = dual, following
        certificate.count_step(bar)
        if certificate.steps % CHECK_INTERVAL_STEPS == 0 or certificate.is_over:
            certificate.evaluate(problem.dual_weights(dual), -dual)


def lipschitz_constant(problem: TaskProblem) -> float:
    """Return C, the Lipschitz constant in L²(ω) of A ↦ H(A) (LT-96).

    If tasks and weights are shared, it is ‖ΦᵀsΦ‖ ‖ΨᵀηΨ‖ / (λ n), O(n r² + r³); otherwise it is estimated by 60 power
    iterations, plus 2 %.
    """
    weights = problem.loss.weights
    if problem.is_shared and weights.dim() == 1:
        norms = _norm(problem.inputs, problem.row_weights) * _norm(problem.tasks, weights)
        return norms / (problem.lam * problem.num_rows)
    dual = torch.ones_like(problem.entry_weights)
    for _ in range(NUM_POWER_ITERATIONS):
        dual = dual / (problem.entry_weights * dual.square()).sum().sqrt()
        weights = problem.dual_weights(dual)
        dual = problem.values(weights)
    # the Rayleigh quotient of the last unit vector
    return POWER_MARGIN * problem.lam * problem.num_rows * weights.square().sum().item()


def _norm(rows: Tensor, weights: Tensor) -> float:
    """Return ‖RᵀdR‖, from the smaller of the two Gram matrices."""
    rows = rows * weights.sqrt()[:, None]
    gram = rows.T @ rows if rows.shape[0] >= rows.shape[1] else rows @ rows.T
    return torch.linalg.eigvalsh(gram)[-1].item()
