"""The primal solver: alternating directions until the gap is small, then Newton steps for the last digits (LT-84).

`splitting` needs one proximal step of the loss and one ridge in eigen-coordinates a round, and comes to about 1e-4 of the objective in
a hundred rounds at any λ. `multipliers` continues with semismooth Newton steps on Moreau envelopes of the loss. Either gives slopes that
are feasible in the dual, so that the gap between the two, which ends the search, is a certificate.
"""

from __future__ import annotations

import math

from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.task_learning.brackets import require_start
from ovkgp.inference.task_learning.certificates import Certificate
from ovkgp.inference.task_learning.dual import descend
from ovkgp.inference.task_learning.multipliers import Multipliers
from ovkgp.inference.task_learning.problem import TaskProblem, TaskSolution
from ovkgp.inference.task_learning.splitting import DENSE_COORDINATES, Splitting, ridge_step

FEW_ROUNDS, MANY_ROUNDS, DEAR = 80, 2500, 30.0
"""Rounds of splitting before Newton steps where those are cheap, and where they are dear: a step costs more than so many rounds."""


def solve_primal(
    problem: TaskProblem,
    *,
    start: Tensor | None = None,
    start_dual: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 5000,
    verbose: int = 0,
) -> TaskSolution:
    """Minimise J, for any loss that has a proximal operator.

    Args:
        problem: J.
        start: W (r, q) to begin with, such as the solution of a problem near by.
        start_dual: A (n, m) to begin with, likewise.
        tolerance: it stops where the gap is at most tolerance · |J|; 1e-3 is enough for most predictions.
        max_iter: the most rounds and Newton steps.
        verbose: 1 shows progress.

    Ctrl-C keeps the best solution so far, sets `report.interrupted` and warns; so does an end without convergence.

    Cost: O(n q (r + m)) a round after O(r³ + q³) once; a Newton step is a system of the size of the active entries, or of rq.
    Memory: O(n (r + m)), and the square of that size, at most 6000.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.primal import solve_primal
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, grid
        >>> loss = IntegralLoss(Pinball(), grid([0.5]))
        >>> y = torch.tensor([[0.0], [1.0], [5.0]]).double()
        >>> one = torch.ones(3, 1).double()
        >>> solution = solve_primal(TaskProblem(one, one[:1], y, loss, lam=1e-6))
        >>> round(solution.weights.item(), 3), solution.gap <= 1e-6 * solution.objective  # the median
        (1.0, True)
    """
    require_start("start", start, problem.shape)
    require_start("start_dual", start_dual, problem.entry_weights.shape)
    certificate = Certificate(problem, tolerance, max_iter, verbose)
    return certificate.run(lambda bar: search(certificate, start, start_dual, bar))


def search(certificate: Certificate, start: Tensor | None, start_dual: Tensor | None, bar: tqdm) -> None:
    """What `solve_primal` does with a certificate, whatever that takes for an end."""
    problem = certificate.problem
    slopes = certificate.look_at(certificate.weights)
    if start is not None:
        slopes = certificate.look_at(start.double())
    if start_dual is not None:
        slopes = problem.loss.nearest_slope(-start_dual.double(), problem.targets)
        certificate.look(certificate.weights, slopes)
    if certificate.over:
        return
    step = ridge_step(problem)
    if step is None:
        return descend(certificate, -slopes, bar)
    splitting = Splitting(step, certificate, slopes, problem.values(certificate.weights))
    splitting.run(FEW_ROUNDS, bar)
    many = math.prod(problem.shape) > DENSE_COORDINATES
    if many and not certificate.over and Multipliers(splitting, certificate).price() > DEAR:
        splitting.run(MANY_ROUNDS - FEW_ROUNDS, bar)
    if not certificate.over:
        Multipliers(splitting, certificate).run(bar)
