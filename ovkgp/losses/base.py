"""Interfaces of the losses ℓ(θ, u, y), the cost of the prediction u for the target y in the task θ.

A loss has a value, a derivative and a curvature in u, a conjugate, and the proximal operators of both, related by
Moreau's identity x = prox_{γf}(x) + γ prox_{f*/γ}(x/γ) (LT-13). Envelopes and dual solvers need nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ovkgp.exceptions import InputError

SLACK = 1e-12  # relative distance from its domain at which the conjugate still accepts a slope


class Loss(ABC):
    """Base class of convex losses of one number, applied entry by entry.

    In all methods, predictions u and slopes a have shape (..., n, m), targets y have shape (n, m), or (n, 1) if all
    tasks share a target, and tasks θ have shape (m,) or (n, m), with a last axis of length b for tasks in R^b with b > 1.
    The result has the shape of u. All tensors are float64.
    `derivative` is a subgradient at a kink; `curvature` is 0 there. A subclass defines the abstract methods, and
    `slope_range` if its slopes are bounded.

    Attributes
    ----------
    name : str
        Name of the loss.
    slope_scale : float
        Size of a typical slope, the scale of rounding errors in `conjugate`.
    num_task_dims : int or None
        Dimension b of the tasks on which the loss depends; None if it is the same for all tasks, in any dimension.

    Notes
    -----
    Complexity: O(n m) time and memory per method.
    """

    name: str
    slope_scale = 1.0
    num_task_dims: int | None = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @abstractmethod
    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """Return ℓ(θ, u, y).

        Parameters
        ----------
        u, y, tasks : Tensor
            Predictions, targets and tasks.

        Returns
        -------
        Tensor of the shape of u
            Losses.
        """

    @abstractmethod
    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """Return ∂ℓ/∂u.

        Parameters
        ----------
        u, y, tasks : Tensor
            Predictions, targets and tasks.

        Returns
        -------
        Tensor of the shape of u
            Subgradients.
        """

    @abstractmethod
    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """Return ∂²ℓ/∂u², almost everywhere.

        Parameters
        ----------
        u, y, tasks : Tensor
            Predictions, targets and tasks.

        Returns
        -------
        Tensor of the shape of u
            Second derivatives.
        """

    @abstractmethod
    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """Return sup_u a u − ℓ(θ, u, y) for slopes a of ℓ; other a are not checked.

        Parameters
        ----------
        a, y, tasks : Tensor
            Slopes, targets and tasks.

        Returns
        -------
        Tensor of the shape of a
            Conjugates.
        """

    @abstractmethod
    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        """Return argmin_v step · ℓ(θ, v, y) + ½ (v − u)².

        Parameters
        ----------
        u, y, tasks : Tensor
            Predictions, targets and tasks.
        step : float or Tensor
            Step, for all entries or of each.

        Returns
        -------
        Tensor of the shape of u
            Minimizers.
        """

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float | Tensor, float | Tensor] | None:
        """Return the smallest and the largest slope of ℓ in u; None if slopes are unbounded.

        Parameters
        ----------
        y, tasks : Tensor
            Targets and tasks.

        Returns
        -------
        low, high : float or Tensor, or None
            Bounds.
        """
        return None

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """Return the slope of ℓ nearest to a, which removes rounding errors of a dual variable.

        Parameters
        ----------
        a, y, tasks : Tensor
            Slopes, targets and tasks.

        Returns
        -------
        Tensor of the shape of a
            Slopes.
        """
        bounds = self.slope_range(y, tasks)
        return a if bounds is None else torch.clamp(a, *bounds)

    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """Return ℓ*(a) = sup_u a u − ℓ(θ, u, y); +∞ if a is not a slope of ℓ, up to the tolerance `SLACK`.

        Parameters
        ----------
        a, y, tasks : Tensor
            Slopes, targets and tasks.

        Returns
        -------
        Tensor of the shape of a
            Conjugates.
        """
        bounds = self.slope_range(y, tasks)
        if bounds is None:
            return self.finite_conjugate(a, y, tasks)
        low, high = bounds
        slack = [SLACK * (self.slope_scale + abs(bound)) for bound in bounds]
        outside = (a < low - slack[0]) | (a > high + slack[1])
        return self.finite_conjugate(torch.clamp(a, low, high), y, tasks).masked_fill_(outside, math.inf)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        """Return argmin_b step · ℓ*(b) + ½ (b − a)², a slope of ℓ, by Moreau's identity.

        Parameters
        ----------
        a, y, tasks : Tensor
            Slopes, targets and tasks.
        step : float or Tensor
            Step, for all entries or of each.

        Returns
        -------
        Tensor of the shape of a
            Minimizers.
        """
        return self.nearest_slope(a - step * self.prox(a / step, y, tasks, 1 / step), y, tasks)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        """Return the Lipschitz constant of the derivative for each task; ∞ for a loss with kinks.

        Parameters
        ----------
        tasks : Tensor
            Tasks.

        Returns
        -------
        Tensor of the shape of tasks
            Constants.
        """
        return torch.full_like(tasks, math.inf)

    def check_tasks(self, tasks: Tensor) -> None:
        """Raise InputError if a task is not valid for this loss; by default every finite θ is valid.

        Parameters
        ----------
        tasks : Tensor
            Tasks.
        """
        if not bool(torch.isfinite(tasks).all()):
            raise InputError("tasks must be finite, got NaN or infinity.")

    def check_targets(self, y: Tensor) -> None:
        """Raise InputError if a target is not valid for this loss; none may be missing.

        Parameters
        ----------
        y : Tensor
            Targets.
        """
        _check_finite_targets(y)


class CurveLoss(ABC):
    """Base class of convex losses between curves, given by their values at the nodes of a task measure.

    A curve is a row of m values; u and a have shape (n, m), y has shape (n, m) or (n, 1). Slopes, proximal operators
    and conjugates refer to the inner product ⟨a, b⟩ = Σ_j η_j a_j b_j with the weights η of the measure, so that
    splitting a node into two with half its weight changes nothing. An entry with weight 0 is missing: its y may be NaN,
    its slope is 0, and `prox` does not change it.
    """

    @property
    @abstractmethod
    def nodes(self) -> Tensor:
        """Tasks θ_j, (m,) or (n, m), with a last axis of length b for tasks in R^b with b > 1."""

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """Weights η_j ≥ 0, (m,) or (n, m), with sum 1 over the last axis if no entry is missing."""

    @property
    def num_dims(self) -> int:
        """Dimension b of a task."""
        return 1

    @property
    def num_nodes(self) -> int:
        """Number m of nodes."""
        return self.weights.shape[-1]

    @property
    def has_shared_nodes(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.nodes.dim() == (1 if self.num_dims == 1 else 2)

    @abstractmethod
    def value(self, u: Tensor, y: Tensor) -> Tensor:
        """Return L(u_i, y_i), (n,).

        Parameters
        ----------
        u, y : Tensor of shape (n, m)
            Predictions and targets.

        Returns
        -------
        Tensor of shape (n,)
            Losses.
        """

    @abstractmethod
    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        """Return the gradient g in u, (n, m): dL = Σ_j η_j g_j du_j.

        Parameters
        ----------
        u, y : Tensor of shape (n, m)
            Predictions and targets.

        Returns
        -------
        Tensor of shape (n, m)
            Gradients.
        """

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return value (n,) and gradient (n, m), which may be cheaper than two calls.

        Parameters
        ----------
        u, y : Tensor of shape (n, m)
            Predictions and targets.

        Returns
        -------
        value, derivative : Tensor of shape (n,) and (n, m)
            Losses and gradients.
        """
        return self.value(u, y), self.derivative(u, y)

    @abstractmethod
    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """Return sup_u ⟨a, u⟩ − L(u, y), (n,); +∞ if a is not a slope of L, up to rounding.

        Parameters
        ----------
        a, y : Tensor of shape (n, m)
            Slopes and targets.

        Returns
        -------
        Tensor of shape (n,)
            Conjugates.
        """

    @abstractmethod
    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """Return argmin_v step · L(v, y) + ½ ‖v − u‖², (n, m).

        Parameters
        ----------
        u, y : Tensor of shape (n, m)
            Predictions and targets.
        step : float or Tensor
            Step, for all entries or of each.

        Returns
        -------
        Tensor of shape (n, m)
            Minimizers.
        """

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        """Return the slope of L nearest to a, (n, m), which removes rounding errors of a dual variable.

        Parameters
        ----------
        a, y : Tensor of shape (n, m)
            Slopes and targets.

        Returns
        -------
        Tensor of shape (n, m)
            Slopes.
        """
        return a

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """Return argmin_b step · L*(b) + ½ ‖b − a‖², a slope of L, by Moreau's identity.

        Parameters
        ----------
        a, y : Tensor of shape (n, m)
            Slopes and targets.
        step : float or Tensor
            Step, for all entries or of each.

        Returns
        -------
        Tensor of shape (n, m)
            Minimizers.
        """
        return self.nearest_slope(a - step * self.prox(a / step, y, 1 / step), y)

    def lipschitz(self) -> float:
        """Return the Lipschitz constant of the gradient; ∞ for a loss with kinks.

        Returns
        -------
        float
            Lipschitz constant.
        """
        return math.inf

    def check_targets(self, y: Tensor) -> None:
        """Raise InputError if a target of positive weight is not valid for this loss; call it once before a fit.

        Parameters
        ----------
        y : Tensor of shape (n, m)
            Targets.
        """
        _check_finite_targets(self._observed_targets(y))

    def _observed_targets(self, y: Tensor) -> Tensor:
        """Return the targets (k,) of positive weight."""
        shape = torch.broadcast_shapes(y.shape, self.weights.shape)
        return y.expand(shape)[self.weights.expand(shape) > 0]


def _check_finite_targets(y: Tensor) -> None:
    if not bool(torch.isfinite(y).all()):
        raise InputError("Targets must be finite, got NaN or infinity. Give missing entries weight 0 in the measure.")
