"""Small task learning problems with every loss, and their dense algebra in NumPy from the formulas of LT §2.8."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from loss_cases import normal
from torch import Tensor

from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.losses import (
    CostSensitiveHinge,
    CurveEnvelope,
    CurveHuber,
    CurveInsensitive,
    CurveLoss,
    EpsilonInsensitive,
    Huber,
    IntegralLoss,
    LogCosh,
    Loss,
    Pinball,
    PinballEnvelope,
    SmoothedHinge,
    SmoothedPinball,
    Square,
    TaskMeasure,
    gauss_legendre,
    monte_carlo,
)

GAMMA_X, GAMMA_T = 1.0, 5.0
N, M = 14, 6

LOSSES: dict[str, Loss] = {
    "square": Square(),
    "pinball": Pinball(),
    "smoothed_pinball": SmoothedPinball(0.2),
    "pinball_envelope": PinballEnvelope(0.2),
    "hinge": CostSensitiveHinge(),
    "hinge_unit": CostSensitiveHinge("unit"),
    "smoothed_hinge": SmoothedHinge(0.3),
    "huber": Huber(0.4),
    "insensitive": EpsilonInsensitive(0.3),
    "log_cosh": LogCosh(2.0),
}
CURVES = {
    **{f"curve_huber_{p}": lambda measure, p=p: CurveHuber(0.5, p, measure) for p in (1, 2, math.inf)},
    **{f"curve_insensitive_{p}": lambda measure, p=p: CurveInsensitive(0.4, p, measure) for p in (1, 2, math.inf)},
    "curve_envelope": lambda measure: CurveEnvelope(CurveHuber(0.5, 2, measure), 0.2),
}
NAMES = [*LOSSES, *CURVES]
"""Every loss by its name."""


def rbf(gamma: float) -> RBFKernel:
    """Return the kernel exp(−γ d²) in float64."""
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor((2 * gamma) ** -0.5, dtype=torch.float64)
    return kernel


def gauss(gamma: float, a, b) -> np.ndarray:
    """Return exp(−γ (a_i − b_j)²) of two vectors."""
    return np.exp(-gamma * (np.asarray(a)[:, None] - np.asarray(b)[None]) ** 2)


def loss_on(name: str, measure: TaskMeasure) -> CurveLoss:
    """Build a loss on nodes in [0, 1], which are mapped to [−1, 1] for signed costs."""
    if name in CURVES:
        return CURVES[name](measure)
    loss = LOSSES[name]
    if getattr(loss, "costs", None) == "signed":
        measure = type(measure)(2 * measure.nodes - 1, measure.weights)
    return IntegralLoss(loss, measure)


def inputs(num_rows: int = N) -> Tensor:
    """Return x (n,), sorted, in [0, 3]."""
    return 3 * torch.rand(num_rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values


def targets(name: str, num_rows: int = N, num_nodes: int = M) -> Tensor:
    """Return y: labels (n, 1) for a hinge, one number per row (n, 1) for a quantile, otherwise curves (n, m)."""
    x = inputs(num_rows)[:, None]
    y = torch.sin(2 * x) + normal(num_rows, 1, seed=1, scale=0.5)
    if "hinge" in name:
        return torch.where(y > 0, 1.0, -1.0).double()
    return y if "pinball" in name else y + normal(num_rows, num_nodes, seed=2, scale=0.5)


def case(
    name: str, measure: TaskMeasure | None = None, *, lam: float = 0.02, num_rows: int = N, row_weights=None
) -> TaskProblem:
    """Build a problem with Gaussian kernels, exact on its data."""
    measure = gauss_legendre(M) if measure is None else measure
    loss = loss_on(name, measure)
    phi = KernelFactor(rbf(GAMMA_X), inputs(num_rows)[:, None], cutoff=1e-14)
    psi = KernelFactor(rbf(GAMMA_T), measure.nodes.flatten().unique()[:, None], cutoff=1e-14)
    tasks = psi(measure.nodes.reshape(-1, 1)).reshape(*measure.nodes.shape, -1)
    return TaskProblem(phi.anchor_rows, tasks, targets(name, num_rows, len(measure)), loss, lam, row_weights)


def own_nodes(num_rows: int = N, num_nodes: int = 3) -> TaskMeasure:
    """Return separate nodes for each row."""
    return monte_carlo(num_nodes, num_rows=num_rows, random_state=0)


def dense_gram(problem: TaskProblem) -> np.ndarray:
    """Return K (nm, nm) of the pairs (x_i, θ_ij), data-major: ⟨φ_i, φ_k⟩ ⟨ψ_ij, ψ_kl⟩."""
    n, m = problem.entry_weights.shape
    Phi, Psi = problem.inputs.numpy(), problem.tasks.expand(n, m, -1).numpy().reshape(n * m, -1)
    rows = np.repeat(np.arange(n), m)
    return (Phi @ Phi.T)[rows][:, rows] * (Psi @ Psi.T)


def dense_values(problem: TaskProblem, dual: Tensor) -> np.ndarray:
    """Return H = (1/(λn)) K (ω ∘ A), (n, m): the primal point of a dual one."""
    weighted = (problem.entry_weights * dual).numpy().ravel()
    return (dense_gram(problem) @ weighted).reshape(dual.shape) / (problem.lam * problem.num_rows)


def dense_norm(problem: TaskProblem, dual: Tensor) -> float:
    """Return ⟨α̃, K α̃⟩/(λn)², the squared norm of the primal point."""
    weighted = (problem.entry_weights * dual).numpy().ravel() / (problem.lam * problem.num_rows)
    return float(weighted @ dense_gram(problem) @ weighted)
