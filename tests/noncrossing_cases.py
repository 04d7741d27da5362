"""Small quantile regression problems with a non-crossing penalty, and their dense algebra from the formulas of LT-43."""

from dataclasses import dataclass

import numpy as np
import torch
from task_cases import rbf
from torch import Tensor

from ovkgp.functional.factors import DerivativeTaskFactor, KernelFactor
from ovkgp.inference.tasks.noncrossing import NonCrossing
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.losses import IntegralLoss, Pinball, TaskMeasure, gauss_legendre

GAMMA_X, GAMMA_T = 10.0, 5.0


def sine_toy(num_rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return x sorted in [0, 1.5] and y, both (n, 1): a sine with noise that decreases with x."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 1.5, num_rows))
    mean = -np.sin(2 * np.pi * x) * (1 + np.sin(2 * np.pi * x / 3))
    y = mean + (0.2 + (1.5 - x) / 1.5) * rng.standard_normal(num_rows)
    return torch.from_numpy(x)[:, None], torch.from_numpy(y)[:, None]


@dataclass
class Case:
    """A problem, its penalty, and their parts."""

    X: Tensor
    y: Tensor
    anchors: Tensor
    measure: TaskMeasure
    slope_nodes: Tensor
    inputs: KernelFactor
    tasks: DerivativeTaskFactor
    problem: TaskProblem
    penalty: NonCrossing

    def values(self, weights: Tensor, X: Tensor, levels: Tensor) -> Tensor:
        return self.inputs(X) @ weights @ self.tasks(levels).T

    def with_lam_nc(self, lam_nc: float) -> NonCrossing:
        return NonCrossing(self.penalty.inputs, self.penalty.slopes, self.penalty.offset_slopes, lam_nc)


def quantile_case(
    X,
    y,
    num_tasks=20,
    lam=1e-3,
    lam_nc=1.0,
    *,
    anchors=None,
    slope_nodes=None,
    offset_slopes=None,
    atoms=None,
    points=None,
) -> Case:
    """Build a case. Anchors and slope nodes are the data and the nodes by default; `atoms` (nodes, slope nodes) and `points` (inputs)
    replace the points that span the coordinates.
    """
    measure = gauss_legendre(num_tasks)
    anchors = X if anchors is None else anchors
    slope_nodes = measure.nodes if slope_nodes is None else slope_nodes
    tasks = DerivativeTaskFactor(rbf(GAMMA_T), *((measure.nodes, slope_nodes) if atoms is None else atoms))
    inputs = KernelFactor(rbf(GAMMA_X), torch.cat([X, anchors]).unique(dim=0) if points is None else points)
    problem = TaskProblem(inputs(X), tasks(measure.nodes), y, IntegralLoss(Pinball(), measure), lam)
    penalty = NonCrossing(inputs(anchors), tasks.slopes(slope_nodes), offset_slopes, lam_nc)
    return Case(X, y, anchors, measure, slope_nodes, inputs, tasks, problem, penalty)


def gaussian_blocks(a: np.ndarray, b: np.ndarray, gamma: float = GAMMA_T) -> tuple[np.ndarray, ...]:
    """Return k, ∂_1 k, ∂_2 k and ∂_1 ∂_2 k of exp(−γ δ²), δ = a − b (LT-43)."""
    delta = np.asarray(a)[:, None] - np.asarray(b)[None, :]
    k = np.exp(-gamma * delta**2)
    return k, -2 * gamma * delta * k, 2 * gamma * delta * k, (2 * gamma - 4 * gamma**2 * delta**2) * k


def dense_gram(case: Case) -> np.ndarray:
    """Return G of Thm 5.27: values at the data first, slopes at the anchors after them, both data-major."""
    nodes, slope_nodes = case.measure.nodes.numpy(), case.slope_nodes.numpy()

    def inputs(a, b):
        return np.exp(-GAMMA_X * (a.numpy() - b.numpy().T) ** 2)

    k = gaussian_blocks(nodes, nodes)[0]
    second, first = gaussian_blocks(nodes, slope_nodes)[2], gaussian_blocks(slope_nodes, nodes)[1]
    both = gaussian_blocks(slope_nodes, slope_nodes)[3]
    top = [np.kron(inputs(case.X, case.X), k), np.kron(inputs(case.X, case.anchors), second)]
    bottom = [np.kron(inputs(case.anchors, case.X), first), np.kron(inputs(case.anchors, case.anchors), both)]
    return np.block([top, bottom])
