"""Small problems with streamed rows, and the same problems in memory."""

from __future__ import annotations

import torch
from loss_cases import normal
from task_cases import rbf
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.functional.factors import FeatureFactor, KernelFactor
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
from ovkgp.losses import IntegralLoss, Loss, Pinball, gauss_legendre


def sine(num_rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return X (n, 2) and y (n, 1), with more noise on one side."""
    X = normal(num_rows, 2, seed=seed)
    return X, torch.sin(2 * X[:, :1]) + (0.3 + 0.2 * X[:, 1:].sigmoid()) * normal(num_rows, 1, seed=seed + 1)


def streamed(
    num_rows: int = 400,
    num_frequencies: int = 8,
    num_tasks: int = 6,
    lam: float = 1e-3,
    loss: Loss | None = None,
    seed: int = 0,
    **options,
) -> StreamedProblem:
    """Build a problem with random features of the inputs and an exact kernel of the tasks."""
    X, y = sine(num_rows, seed)
    measure = gauss_legendre(num_tasks)
    features = FeatureFactor(ORFF(rbf(0.5), num_frequencies, num_dims=2, random_state=0))
    tasks = KernelFactor(rbf(3.0), measure.nodes[:, None]).anchor_rows
    options = {"targets": y, "random_state": 0} | options
    return StreamedProblem.from_factor(
        features, X, tasks, loss=IntegralLoss(loss or Pinball(), measure), lam=lam, **options
    )


def in_memory(problem: StreamedProblem) -> TaskProblem:
    """Return the problem with all rows in memory, in their original order."""
    return problem.chunk(torch.arange(problem.num_rows))
