"""The primal solver: L-BFGS on Moreau envelopes of the loss, from smooth to sharp, until the duality gap is small (LT-84).

The slope of the envelope at its minimiser is feasible in the dual of the loss itself, so that each stage κ gives both sides of the gap.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.task_learning.problem import TaskProblem, TaskSolution
from ovkgp.losses import CurveEnvelope

KAPPAS = tuple(10.0 ** -np.arange(1.0, 7.5, 0.5))


def solve_primal(
    problem: TaskProblem, *, start: Tensor | None = None, tolerance: float = 1e-6, max_iter: int = 5000, verbose: int = 0
) -> TaskSolution:
    """Minimise J. It stops where the gap is at most tolerance · |J|.

    Args:
        start: W (r, q) to begin with.
    """
    began, iterations = time.perf_counter(), 0
    shape = problem.inputs.shape[1], problem.tasks.shape[1]
    weights = torch.zeros(shape, dtype=torch.float64) if start is None else start
    for kappa in KAPPAS:
        smooth = CurveEnvelope(problem.loss, kappa)

        def both(x, smooth=smooth):
            W = torch.from_numpy(x).reshape(shape)
            H = problem.values(W)
            slope = problem.entry_weights * smooth.derivative(H, problem.targets) / problem.num_rows
            value = problem.risk(H, smooth) + problem.lam / 2 * W.square().sum()
            return value.item(), (problem.inputs.T @ slope @ problem.tasks + problem.lam * W).flatten().numpy()

        found = minimize(both, weights.flatten().numpy(), jac=True, method="L-BFGS-B", options={"maxiter": max_iter, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-9})
        iterations += found.nit
        weights = torch.from_numpy(found.x).reshape(shape)
        H = problem.values(weights)
        dual = -smooth.derivative(H, problem.targets)
        objective = problem.objective(weights, H).item()
        gap = objective - problem.dual_objective(dual).item()
        if gap <= tolerance * abs(objective):
            break
    converged = gap <= tolerance * abs(objective)
    report = FitReport(objective, converged, "converged" if converged else "the gap stayed large", iterations=iterations, seconds=time.perf_counter() - began)
    return TaskSolution(weights, dual, objective, gap, report)
