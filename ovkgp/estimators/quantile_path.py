"""λ by cross-validation: the loss of rows left out, along a path of λ from large to small, each fit started at the last one.

Coordinates of the kernel are made once, of all rows: those of a part of the rows are a subspace of them, and a fit in the larger one
is the same function (LT-83). The path ends when the loss has risen for a while.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import FitWarning
from ovkgp.inference.task_learning.primal import solve_primal
from ovkgp.inference.task_learning.problem import TaskProblem

EXPONENTS = np.arange(2.0, -3.25, -0.5)
"""The path: a first guess of λ, times ten to these."""
PATIENCE = 2
"""How often the loss may rise in a row, once λ is below the first guess; far above it, all losses are alike."""
TOLERANCE, MAX_ITER = 3e-3, 220
"""The relative duality gap of the fits of a path, and their most iterations: losses of rows left out differ by more than that."""


@dataclass(frozen=True)
class QuantilePath:
    """The loss of rows left out at each λ tried.

    Attributes:
        lams: λ (k,), canonical, decreasing.
        losses: the mean loss (k,) of rows left out, in the units of the standardised target.
    """

    lams: np.ndarray
    losses: np.ndarray

    @property
    def best(self) -> float:
        """The λ of least loss."""
        return float(self.lams[self.losses.argmin()])


def quantile_path(problem: TaskProblem, folds: list[np.ndarray], *, verbose: int = 0) -> QuantilePath:
    """The loss of rows left out, for λ around that of the problem.

    Args:
        problem: of all rows, with a first guess of λ.
        folds: the places of the rows that are left out together.
        verbose: whether there is a progress bar.

    A fit to n' of n rows has the penalty λ n/n': what the whole weighs against the prior, λ n, stays the same.

    Cost: a loose solution for each fold and λ.
    """
    lams, losses, starts = problem.lam * 10**EXPONENTS, [], [None] * len(folds)
    for lam in tqdm(lams, disable=not verbose, desc="λ", unit="λ"):
        found = [_left_out(problem, fold, lam, start, verbose) for fold, start in zip(folds, starts, strict=True)]
        losses.append(sum(loss for loss, _, _ in found) / float(problem.row_weights.sum()))
        starts = [start for _, start, _ in found]
        rises = lam <= problem.lam and len(losses) - 1 - int(np.argmin(losses)) >= PATIENCE
        if rises or any(interrupted for _, _, interrupted in found):
            break
    return QuantilePath(lams[: len(losses)], np.array(losses))


def _left_out(problem: TaskProblem, fold: np.ndarray, lam: float, start: Tensor | None, verbose: int):
    """The summed loss of a fold, the weights of the fit to the others, and whether Ctrl-C ended it."""
    kept = np.setdiff1d(np.arange(problem.num_rows), fold)
    training = rows_of(problem, kept, lam * problem.num_rows / len(kept))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # loose on purpose; the fit at the λ chosen warns for itself
        solution = solve_primal(training, start=start, tolerance=TOLERANCE, max_iter=MAX_ITER, verbose=0)
    held = rows_of(problem, fold, lam)
    loss = held.risk(held.values(solution.weights)) * len(fold)
    return loss.item(), solution.weights, solution.report.interrupted


def rows_of(problem: TaskProblem, places: np.ndarray, lam: float) -> TaskProblem:
    """The same problem on some of the rows."""
    index = torch.from_numpy(places)
    return replace(
        problem,
        inputs=problem.inputs[index],
        targets=problem.targets[index],
        row_weights=problem.row_weights[index],
        lam=lam,
    )
