"""The dual solver: one accelerated proximal gradient method for every loss (LT-89..97, LT-108, BO-75).

    A ← −prox of γL* at −(A − γ grad),     grad = H(A) = Φ W(A) Ψᵀ,     γ = 1/C,     C = ‖ΦᵀsΦ‖ ‖ΨᵀηΨ‖ / (λ n),

all in the inner product of L²(ω), so that the whole conjugate, linear term and quadratic part included, goes through its proximal operator
(LT-E-05). The extrapolation of FISTA begins again where it points the wrong way. W(A) is the primal point.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.certificates import Certificate, check_initial_point

LOOK_EVERY, POWER_STEPS, MARGIN = 10, 60, 1.02
"""Steps between two looks at the gap; steps of a power iteration, and what its result is multiplied by."""


def solve_dual(
    problem: TaskProblem,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 20_000,
    verbose: int = 0,
) -> TaskSolution:
    """Maximise D.

    Exact zeros of the proximal operator stay exact zeros of A, so that a sparse solution is sparse (`paths.sparsity`).

    Args:
        problem: D.
        start: A (n, m) to begin with, such as the solution of a problem near by, or a ridge's (LT-97); it need not be feasible.
        tolerance: it stops where the gap is at most tolerance · |J|.
        max_iter: the most steps.
        verbose: 1 shows progress.

    Ctrl-C keeps the best solution so far, sets `report.interrupted` and warns; so does an end without convergence.

    Cost: O(n q (r + m)) a step. Losses with a quadratic part take tens to hundreds of steps, the pinball thousands where λ is small:
    `solve_primal` is then the faster one.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.dual import solve_dual
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import CurveHuber, grid
        >>> y, one = torch.tensor([[0.0], [1.0], [50.0]]).double(), torch.ones(3, 1).double()
        >>> solution = solve_dual(TaskProblem(one, one[:1], y, CurveHuber(1.0, 2, grid([0.5])), lam=1e-6))
        >>> solution.dual[2].item(), round(solution.weights.item(), 3)  # the outlier pulls no more than κ = 1
        (1.0, 1.0)
    """
    check_initial_point("start", start, problem.entry_weights.shape)
    certificate = Certificate(problem, tolerance, max_iter, verbose)
    dual = torch.zeros_like(problem.entry_weights) if start is None else start.double()
    return certificate.run(lambda bar: descend(certificate, dual, bar))


def descend(certificate: Certificate, dual: Tensor, bar: tqdm) -> None:
    """FISTA with restarts from A until the certificate is over."""
    problem = certificate.problem
    step = 1 / max(lipschitz_constant(problem), 1e-300)
    dual = -problem.loss.nearest_slope(-dual, problem.targets)
    weights = problem.dual_weights(dual)
    certificate.look(weights, -dual)
    before, at, momentum = dual, dual, 1.0
    while not certificate.over:
        slopes = problem.values(problem.dual_weights(at)) * step - at
        dual = -problem.loss.conjugate_prox(slopes, problem.targets, step)
        rotated = (problem.entry_weights * (at - dual) * (dual - before)).sum() > 0
        following = 1.0 if rotated else (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        at = dual if rotated else dual + (momentum - 1) / following * (dual - before)
        before, momentum = dual, following
        certificate.tick(bar)
        if certificate.steps % LOOK_EVERY == 0 or certificate.over:
            certificate.look(problem.dual_weights(dual), -dual)


def lipschitz_constant(problem: TaskProblem) -> float:
    """C, the Lipschitz constant in L²(ω) of A ↦ H(A) (LT-96).

    Exact where tasks and their weights are shared: ‖ΦᵀsΦ‖ ‖ΨᵀηΨ‖ / (λ n); else by a power iteration, with a margin of 2 %.

    Cost: O(n r² + r³), or 60 products.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.dual import lipschitz_constant
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(2))
        >>> problem = TaskProblem(torch.eye(3).double(), torch.eye(2).double(), torch.ones(3, 1).double(), loss, lam=0.1)
        >>> round(lipschitz_constant(problem), 6)  # ½ / (λ n)
        1.666667
    """
    weights = problem.loss.weights
    if problem.is_shared and weights.dim() == 1:
        return (
            _norm(problem.inputs, problem.row_weights)
            * _norm(problem.tasks, weights)
            / (problem.lam * problem.num_rows)
        )
    dual = torch.ones_like(problem.entry_weights)
    for _ in range(POWER_STEPS):
        dual = dual / (problem.entry_weights * dual.square()).sum().sqrt()
        weights = problem.dual_weights(dual)
        dual = problem.values(weights)
    # the Rayleigh quotient of the last unit vector
    return MARGIN * problem.lam * problem.num_rows * weights.square().sum().item()


def _norm(rows: Tensor, weights: Tensor) -> float:
    """‖RᵀdR‖, from the smaller of the two Gram matrices."""
    rows = rows * weights.sqrt()[:, None]
    gram = rows.T @ rows if rows.shape[0] >= rows.shape[1] else rows @ rows.T
    return torch.linalg.eigvalsh(gram)[-1].item()
