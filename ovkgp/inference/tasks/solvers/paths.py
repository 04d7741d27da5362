"""Solutions along a path of λ, κ or ε, each started at the last one, and where such paths end (LT-97, LT §2.8).

A Huber loss is the ridge from κ_max = max_i ‖α_i‖_q on, for the ridge's dual variable α and 1/p + 1/q = 1; an insensitive loss leaves
h = 0 from ε_max = max_i ‖y_i‖_p on. On the way from there to κ = 0 or ε = 0 the dual variable changes little from step to step.
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

from ovkgp.checks import check_positive
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
    start: TaskSolution | None = None,
    verbose: int = 0,
    **options,
) -> list[TaskSolution]:
    """Solve problems one after another, each from the solution of the one before.

    Args:
        problems: with the same rows, nodes and coordinates, such as those of `along`.
        solver: "dual" or "primal".
        start: where the first begins, such as the ridge's solution (LT-97); None begins at zero.
        verbose: 1 shows progress.
        options: of `solve_dual` or `solve_primal`: tolerance and max_iter.

    Returns:
        One solution each; fewer where Ctrl-C ended one of them, which is then the last.

    Cost: that of the solver, most of all for the first problem.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.paths import along, solve_path
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import CurveHuber, grid
        >>> y, one = torch.tensor([[0.0], [1.0], [50.0]]).double(), torch.ones(3, 1).double()
        >>> problem = TaskProblem(one, one[:1], y, CurveHuber(1.0, 2, grid([0.5])), lam=1e-6)
        >>> path = solve_path(along(problem, "kappa", [100.0, 10.0, 1.0]))
        >>> [round(solution.weights.item(), 1) for solution in path]  # from the mean to nearly the median
        [17.0, 5.5, 1.0]
    """
    if solver not in SOLVERS:
        raise OptionError(f"solver must be one of {', '.join(SOLVERS)}; got {solver!r}.")
    found = []
    for problem in tqdm(problems, disable=not verbose, desc="path", unit="problem"):
        last = found[-1] if found else start
        dual = None if last is None else _carried(problem, last)
        if solver == "dual":
            solution = solve_dual(problem, start=dual, **options)
        else:
            weights = None if last is None else last.weights
            solution = solve_primal(problem, start=weights, start_dual=dual, **options)
        found.append(solution)
        if solution.report.interrupted:
            break
    return found


def along(problem: TaskProblem, parameter: str, values: Iterable[float]) -> Iterator[TaskProblem]:
    """The same problem with one number changed.

    Args:
        problem: J.
        parameter: "lam", or "kappa" or "epsilon" of the loss.
        values: what it becomes; in an order in which neighbours are near each other, and easy problems first: large λ, κ and ε.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.paths import along
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import Huber, IntegralLoss, grid
        >>> one = torch.ones(1, 1).double()
        >>> problem = TaskProblem(one, one, one, IntegralLoss(Huber(1.0), grid([0.5])), lam=0.1)
        >>> [each.loss.loss.kappa for each in along(problem, "kappa", [2.0, 0.5])], problem.loss.loss.kappa
        ([2.0, 0.5], 1.0)
    """
    if parameter not in PARAMETERS:
        raise OptionError(f"parameter must be one of {', '.join(PARAMETERS)}; got {parameter!r}.")
    if parameter == "lam":
        return (replace(problem, lam=value) for value in values)
    return (replace(problem, loss=_with(problem.loss, parameter, value)) for value in values)


def largest_kappa(problem: TaskProblem) -> float:
    """κ_max, the smallest κ at which the Huber loss of a problem gives the solution of the square loss (LT-97).

    Args:
        problem: with `CurveHuber(κ, p, measure)` or `IntegralLoss(Huber(κ), measure)`, of whatever κ.

    Cost: that of `solve_square`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.paths import largest_kappa
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import CurveHuber, grid
        >>> one = torch.ones(1, 1).double()
        >>> largest_kappa(TaskProblem(one, one, 3 * one, CurveHuber(1.0, 2, grid([0.5])), lam=1.0))  # h = 3/2
        1.5
    """
    p = _order(problem.loss, CurveHuber, Huber, 1)
    ridge = solve_square(replace(problem, loss=IntegralLoss(Square(), problem.loss.measure)))
    return norm(ridge.dual, dual_order(p), problem.loss.weights).max().item()


def largest_epsilon(problem: TaskProblem) -> float:
    """ε_max = max_i ‖y_i‖_p, from which on the solution is h = 0.

    Args:
        problem: with `CurveInsensitive(ε, p, measure)` or `IntegralLoss(EpsilonInsensitive(ε), measure)`, of whatever ε.

    Cost: O(n m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.paths import largest_epsilon
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import EpsilonInsensitive, IntegralLoss, grid
        >>> one = torch.ones(1, 1).double()
        >>> largest_epsilon(TaskProblem(one, one, -3 * one, IntegralLoss(EpsilonInsensitive(1.0), grid([0.5])), lam=1.0))
        3.0
    """
    p = _order(problem.loss, CurveInsensitive, EpsilonInsensitive, math.inf)
    targets = torch.where(problem.entry_weights > 0, problem.targets, 0.0)
    return norm(targets, p, problem.loss.weights).max().item()


class Sparsity(NamedTuple):
    """The shares of rows and of entries of a dual variable that are exactly 0."""

    rows: float
    entries: float


def sparsity(dual: Tensor, entry_weights: Tensor | None = None) -> Sparsity:
    """What share of a dual variable is 0: rows where curves are forgiven as a whole, p = 2, entries where single values are.

    Args:
        dual: A (n, m) of `solve_dual`, whose zeros are exact.
        entry_weights: ω (n, m), such as `problem.entry_weights`: entries without weight, always 0, are then left out.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.paths import sparsity
        >>> sparsity(torch.tensor([[0.0, 0.0], [0.0, 0.5]]))
        Sparsity(rows=0.5, entries=0.75)
    """
    counted = torch.ones_like(dual, dtype=torch.bool) if entry_weights is None else entry_weights > 0
    pulls, rows = counted & (dual != 0), counted.any(-1)
    return Sparsity(
        rows=1 - int(pulls.any(-1).sum()) / int(rows.sum()), entries=1 - int(pulls.sum()) / int(counted.sum())
    )


def _carried(problem: TaskProblem, last: TaskSolution) -> Tensor:
    """The last A, or that multiple of it with the last W where this is the better one: after a change of λ either may be."""
    weights = problem.dual_weights(last.dual)
    share = (weights * last.weights).sum() / weights.square().sum().clamp(min=1e-300)
    starts = [-problem.loss.nearest_slope(-part * last.dual, problem.targets) for part in (1.0, share)]
    return max(starts, key=lambda dual: problem.dual_objective(dual).item())


def _with(loss: CurveLoss | Loss, parameter: str, value: float) -> CurveLoss | Loss:
    """A copy of a loss, or of the loss inside of it, with another κ or ε."""
    check_positive(parameter, value, or_zero=parameter == "epsilon")
    changed = copy.copy(loss)
    if parameter in vars(loss):
        setattr(changed, parameter, value)
    elif hasattr(loss, "loss"):
        changed.loss = _with(loss.loss, parameter, value)
    else:
        raise OptionError(f"{loss!r} has no {parameter}.")
    return changed


def _order(loss: CurveLoss, curve: type, entrywise: type, order: float) -> float:
    """p of a loss between curves; that of its entrywise form."""
    if isinstance(loss, curve):
        return loss.p
    if isinstance(loss, IntegralLoss) and type(loss.loss) is entrywise:
        return order
    raise OptionError(
        f"this is a property of {curve.__name__}(…, p, measure) and of IntegralLoss({entrywise.__name__}(…), measure); "
        f"got {loss!r}."
    )
