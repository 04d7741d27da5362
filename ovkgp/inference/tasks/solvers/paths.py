"""Warm-started solutions along a path of λ, κ or ε, and the values at which such paths end (LT-97, LT §2.8).

A Huber loss equals the ridge for κ ≥ κ_max = max_i ‖α_i‖_q, with the ridge's dual variable α and 1/p + 1/q = 1; an
insensitive loss gives h = 0 for ε ≥ ε_max = max_i ‖y_i‖_p. Between these values and 0 the dual variable changes little
from step to step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import check_nonnegative, check_one_of, check_positive
from ovkgp.exceptions import OptionError
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import CurveHuber, CurveInsensitive, CurveLoss, EpsilonInsensitive, Huber, IntegralLoss, Loss, Square
from ovkgp.losses.balls import dual_order, norm

SOLVERS = ("dual", "primal")
PARAMETERS = ("lam", "kappa", "epsilon")


def solve_path(
    problems: Iterable[TaskProblem],
    *,
    solver: str = "dual",
    init: TaskSolution | None = None,
    verbose: int = 0,
    **options,
) -> list[TaskSolution]:
    """Solve problems with the same rows, nodes and coordinates in order, each from the solution of the previous one.

    `init` is the initial solution of the first problem, such as the ridge's (LT-97), and `options` are those of
    `solve_dual` or `solve_primal`. If Ctrl-C ends a problem, its solution is the last.
    """
    check_one_of("solver", solver, SOLVERS)
    solutions = []
    for problem in tqdm(problems, disable=not verbose, desc="path", unit="problem"):
        last = solutions[-1] if solutions else init
        dual = None if last is None else _warm_start(problem, last)
        if solver == "dual":
            solution = solve_dual(problem, init=dual, **options)
        else:
            weights = None if last is None else last.weights
            solution = solve_primal(problem, init=weights, init_dual=dual, **options)
        solutions.append(solution)
        if solution.report.interrupted:
            break
    return solutions


def _warm_start(problem: TaskProblem, last: TaskSolution) -> Tensor:
    """Return the previous A, or its multiple closest to the previous W if it is better after a change of λ."""
    weights = problem.dual_weights(last.dual)
    scale = (weights * last.weights).sum() / weights.square().sum().clamp(min=1e-300)
    candidates = [-problem.loss.nearest_slope(-part * last.dual, problem.targets) for part in (1.0, scale)]
    return max(candidates, key=lambda dual: problem.dual_objective(dual).item())


def vary_parameter(problem: TaskProblem, parameter: str, values: Iterable[float]) -> Iterator[TaskProblem]:
    """Iterate over copies of a problem with another "lam", or "kappa" or "epsilon" of the loss.

    Order the values such that neighbors are close and easy problems come first: large λ, κ and ε.
    """
    if check_one_of("parameter", parameter, PARAMETERS) == "lam":
        return (replace(problem, lam=value) for value in values)
    return (replace(problem, loss=_replace_parameter(problem.loss, parameter, value)) for value in values)


def find_max_kappa(problem: TaskProblem) -> float:
    """Return κ_max, the smallest κ at which the Huber loss of a problem has the solution of the square loss (LT-97)."""
    p = _norm_order(problem.loss, CurveHuber, Huber, 1)
    ridge = solve_square(replace(problem, loss=IntegralLoss(Square(), problem.loss.measure)))
    return norm(ridge.dual, dual_order(p), problem.loss.weights).max().item()


def find_max_epsilon(problem: TaskProblem) -> float:
    """Return ε_max = max_i ‖y_i‖_p, from which on the solution is h = 0. O(n m)."""
    p = _norm_order(problem.loss, CurveInsensitive, EpsilonInsensitive, math.inf)
    targets = torch.where(problem.entry_weights > 0, problem.targets, 0.0)
    return norm(targets, p, problem.loss.weights).max().item()


class Sparsity(NamedTuple):
    """Fractions of rows and of entries of a dual variable that are exactly 0."""

    rows: float
    entries: float


def compute_sparsity(dual: Tensor, entry_weights: Tensor | None = None) -> Sparsity:
    """Return the fractions of zero rows (curves forgiven as a whole, p = 2) and of zero entries of A (n, m).

    If `entry_weights` ω (n, m) are given, entries without weight, which are always 0, are not counted.
    """
    counted = torch.ones_like(dual, dtype=torch.bool) if entry_weights is None else entry_weights > 0
    pulls, rows = counted & (dual != 0), counted.any(-1)
    return Sparsity(1 - int(pulls.any(-1).sum()) / int(rows.sum()), 1 - int(pulls.sum()) / int(counted.sum()))


def _replace_parameter(loss: CurveLoss | Loss, parameter: str, value: float) -> CurveLoss | Loss:
    """Return a copy of a loss, or of the loss inside it, with another κ or ε."""
    (check_nonnegative if parameter == "epsilon" else check_positive)(parameter, value)
    changed = copy.copy(loss)
    if parameter in vars(loss):
        setattr(changed, parameter, value)
    elif hasattr(loss, "loss"):
        changed.loss = _replace_parameter(loss.loss, parameter, value)
    else:
        raise OptionError(f"The loss must have a parameter {parameter}, got {loss!r}.")
    return changed


def _norm_order(loss: CurveLoss, curve: type, entrywise: type, order: float) -> float:
    """Return p of a loss between curves, or that of its entrywise form."""
    if isinstance(loss, curve):
        return loss.p
    if isinstance(loss, IntegralLoss) and type(loss.loss) is entrywise:
        return order
    raise OptionError(
        f"The loss must be {curve.__name__}(…, p, measure) or IntegralLoss({entrywise.__name__}(…), measure), got {loss!r}."
    )
