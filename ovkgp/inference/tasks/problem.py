"""A learned function of input and task, h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ), a point in the RKHS with ‖h − b‖ = ‖W‖_F (LT-34)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.factors import Factor
from ovkgp.losses import CurveLoss


@dataclass
class TaskProblem:
    """J and its dual.

    Args:
        inputs: Φ (n, r).
        tasks: Ψ (m, q); or (n, m, q) where each row has nodes of its own.
        targets: y (n, m) or (n, 1), with the offset b taken off; anything, NaN too, where the weight ω is 0.
        loss: L, with nodes and weights.
        lam: λ > 0, of the canonical objective above; the estimators translate conventions.
        row_weights: s (n,), at least 0; ones where None.

    Cost: O(n q (r + m)) for values and gradients alike; nothing larger than (n, m) is made.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(2))
        >>> problem = TaskProblem(torch.eye(3).double(), torch.eye(2).double(), torch.ones(3, 1).double(), loss, lam=0.1)
        >>> problem.objective(torch.zeros(3, 2).double()).item()
        0.5
    """

    inputs: Tensor
    tasks: Tensor
    targets: Tensor
    loss: CurveLoss
    lam: float
    row_weights: Tensor | None = None

    def __post_init__(self):
        if not (isinstance(self.lam, (int, float)) and math.isfinite(self.lam) and self.lam > 0):
            raise OptionError(
                f"lam must be a positive number, got {self.lam!r}: without it there is no unique solution."
            )
        self.inputs, self.tasks = _finite("inputs", self.inputs), _finite("tasks", self.tasks)
        self._check_shapes()
        if self.row_weights is None:
            self.row_weights = self.inputs.new_ones(self.num_rows)
        self.row_weights = checked_row_weights(self.row_weights, self.num_rows)
        self.entry_weights = self.row_weights[:, None] * self.loss.weights
        """ω (n, m)."""
        self.targets = self._known_targets()

    def _check_shapes(self) -> None:
        nodes = self.loss.nodes.shape
        if self.inputs.dim() != 2 or not self.num_rows:
            raise InputError(f"inputs must be rows (n, r) with n ≥ 1, got {tuple(self.inputs.shape)}.")
        if self.tasks.shape[:-1] not in (nodes[-1:], (self.num_rows, nodes[-1])):
            raise InputError(
                f"tasks must be rows (m, q) or (n, m, q) for the m = {nodes[-1]} nodes of the loss and n = "
                f"{self.num_rows}; got {tuple(self.tasks.shape)}."
            )
        if len(nodes) == 2 and nodes[0] != self.num_rows:
            raise InputError(f"the loss has nodes for {nodes[0]} rows, but there are {self.num_rows} inputs.")
        if self.targets.shape not in ((self.num_rows, 1), (self.num_rows, nodes[-1])):
            raise InputError(
                f"targets must be ({self.num_rows}, {nodes[-1]}) or ({self.num_rows}, 1); got {tuple(self.targets.shape)}."
            )

    def _known_targets(self) -> Tensor:
        """The targets with 0 in place of what counts for nothing, so that no NaN is ever multiplied by 0."""
        targets = self.targets.double()
        counted = self.entry_weights > 0
        if targets.shape[1] == 1:
            counted = counted.any(-1, keepdim=True)
        if not bool(torch.isfinite(targets[counted]).all()):
            raise InputError(
                "a target is NaN or infinite where its weight is positive: give it weight 0, or leave it out."
            )
        return torch.where(counted, targets, 0.0)

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, int]:
        """(r, q), that of W."""
        return self.inputs.shape[1], self.tasks.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.tasks.dim() == 2

    def values(self, weights: Tensor) -> Tensor:
        """H = Φ W Ψᵀ, (n, m)."""
        rows = (weights.T @ self.inputs.T).T  # the wide matrix on the right: half the time of Φ W
        return rows @ self.tasks.T if self.is_shared else torch.einsum("iq,ijq->ij", rows, self.tasks)

    def adjoint(self, entries: Tensor) -> Tensor:
        """Σ_ij e_ij φ_i ψ_ijᵀ, (r, q), for entries (n, m)."""
        rows = entries @ self.tasks if self.is_shared else torch.einsum("ij,ijq->iq", entries, self.tasks)
        return (rows.T @ self.inputs).T.contiguous()

    def risk(self, H: Tensor, loss: CurveLoss | None = None) -> Tensor:
        """(1/n) Σ_i s_i L(H_i, y_i)."""
        return self._mean((loss or self.loss).value(H, self.targets))

    def objective(self, weights: Tensor, H: Tensor | None = None) -> Tensor:
        """J(W)."""
        H = self.values(weights) if H is None else H
        return self.risk(H) + self.lam / 2 * weights.square().sum()

    def dual_weights(self, dual: Tensor) -> Tensor:
        """W(A), (r, q)."""
        return self.adjoint(self.entry_weights * dual) / (self.lam * self.num_rows)

    def dual_objective(self, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        """D(A); −∞ where A is not feasible."""
        weights = self.dual_weights(dual) if weights is None else weights
        return -self._mean(self.loss.conjugate(-dual, self.targets)) - self.lam / 2 * weights.square().sum()

    def _mean(self, rows: Tensor) -> Tensor:
        """(1/n) Σ_i s_i r_i; a row without weight counts for nothing, even where it is infinite."""
        return torch.where(self.row_weights > 0, self.row_weights * rows, 0.0).sum() / self.num_rows


@dataclass
class TaskSolution:
    """What a solver found.

    Args:
        weights: W (r, q).
        dual: A (n, m), feasible.
        objective: J(W).
        gap: J(W) − D(A) ≥ 0: J(W) is at most this far above the least value.
        report: how it was found; `converged` says that gap ≤ tolerance · |J(W)|.
    """

    weights: Tensor
    dual: Tensor
    objective: float
    gap: float
    report: FitReport


def checked_row_weights(row_weights: Tensor, num_rows: int) -> Tensor:
    """s (n,), float64, or an InputError."""
    row_weights = _finite("row_weights", row_weights)
    if row_weights.shape != (num_rows,) or bool((row_weights < 0).any()):
        raise InputError(f"row_weights must be {num_rows} numbers ≥ 0, one a row; got {tuple(row_weights.shape)}.")
    return row_weights


def _finite(name: str, values: Tensor) -> Tensor:
    # a sum is finite where all are, and needs no mask of their size; only where it overflows each one is looked at
    if not torch.is_tensor(values) or not (math.isfinite(values.sum()) or bool(torch.isfinite(values).all())):
        raise InputError(f"{name} must be a tensor of finite numbers.")
    return values.double()


def zero_offset(tasks: Tensor) -> Tensor:
    """b = 0."""
    return torch.zeros_like(tasks)


@dataclass
class TaskFunction:
    """h.

    Args:
        inputs, tasks: φ and ψ.
        weights: W (r, q).
        offset: b, from tasks (m,) to (m,): the mean of the prior.

    Cost: O(n r q + n m q) a call, and the rows of φ and ψ.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.tasks.factors import KernelFactor
        >>> from ovkgp.inference.tasks.problem import TaskFunction
        >>> X, tasks = torch.randn(4, 2).double(), torch.tensor([0.1, 0.5, 0.9]).double()
        >>> phi, psi = KernelFactor(RBFKernel().double(), X), KernelFactor(RBFKernel().double(), tasks)
        >>> h = TaskFunction(phi, psi, torch.ones(4, 3).double())
        >>> h(X, tasks).shape, h.slopes(X, tasks).shape, round(h.norm(), 3)
        (torch.Size([4, 3]), torch.Size([4, 3]), 3.464)
    """

    inputs: Factor
    tasks: Factor
    weights: Tensor
    offset: Callable[[Tensor], Tensor] = zero_offset

    def __call__(self, X: Tensor, tasks: Tensor) -> Tensor:
        """h(x_i)(θ_j), (n, m), for X (n, d) and tasks (m,)."""
        tasks = _vector(tasks)
        return self.offset(tasks) + self._along(X, self.tasks(tasks.unsqueeze(-1)))

    def slopes(self, X: Tensor, tasks: Tensor) -> Tensor:
        """∂_θ h(x_i)(θ_j), (n, m), the slope of the offset included.

        Raises:
            SmoothnessError: ψ has no derivative.
        """
        tasks = _vector(tasks)
        with torch.enable_grad():
            moved = tasks.detach().clone().requires_grad_()
            offset = self.offset(moved)
            slope = torch.autograd.grad(offset.sum(), moved)[0] if offset.requires_grad else torch.zeros_like(tasks)
        return slope + self._along(X, self.tasks.slopes(tasks.unsqueeze(-1)))

    def left_out(self, X: Tensor, tasks: Tensor) -> Tensor:
        """k_X k_Θ − ‖φ‖² ‖ψ‖² (n, m): the prior variance that the coordinates do not hold, all of it far from their anchors."""
        tasks = _vector(tasks).unsqueeze(-1)
        inputs, rows = (factor(points).square().sum(-1) for factor, points in ((self.inputs, X), (self.tasks, tasks)))
        whole = (inputs + self.inputs.left_out(X))[:, None] * (rows + self.tasks.left_out(tasks))
        return whole - inputs[:, None] * rows

    def norm(self) -> float:
        """‖h − b‖ in the RKHS of k_X · k_Θ."""
        return torch.linalg.vector_norm(self.weights).item()

    def _along(self, X: Tensor, rows: Tensor) -> Tensor:
        return self.inputs(X) @ (self.weights @ rows.T)


def _vector(tasks: Tensor) -> Tensor:
    if not torch.is_tensor(tasks) or tasks.dim() != 1:
        given = tuple(tasks.shape) if torch.is_tensor(tasks) else type(tasks).__name__
        raise InputError(f"tasks must be a tensor (m,), got {given}.")
    return tasks.double()
