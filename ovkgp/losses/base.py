"""What an error costs: ℓ(θ, u, y), the cost of saying u where y came, in the task θ.

A loss knows its value, its derivative and curvature in u, its conjugate and the proximal operators of both. That is enough to
smooth it (`ovkgp.losses.envelope`) and to solve it through its dual. The two proximal operators are tied by Moreau's identity
x = prox_{γf}(x) + γ prox_{f*/γ}(x/γ) (LT-13).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ovkgp.exceptions import InputError

SLACK = 1e-12
"""How far outside its domain, relative to it, the conjugate still takes a slope for one inside."""


class Loss(ABC):
    """A convex loss in one number, applied entry by entry.

    Throughout, u and a slope a are (…, n, m), y broadcasts against them ((n, m), or (n, 1) where all tasks share a target), and
    tasks (m,) or (n, m) are the parameters θ of the last axis. What comes back has the shape of u. All of it is float64.

    `derivative` at a kink is a subgradient; `curvature` is the second derivative where there is one, else 0.

    A loss of one's own needs the abstract methods, and `slope_range` where its slopes are bounded.

    Cost: O(n m) time and memory, each method.
    """

    name: str
    slope_scale = 1.0
    """The size of a typical slope, to which rounding in `conjugate` is compared."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @abstractmethod
    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """ℓ(θ, u, y)."""

    @abstractmethod
    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """∂ℓ/∂u."""

    @abstractmethod
    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """∂²ℓ/∂u², almost everywhere."""

    @abstractmethod
    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """sup_u a u − ℓ(θ, u, y) at slopes a of ℓ; elsewhere whatever the formula gives."""

    @abstractmethod
    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        """argmin_v step · ℓ(θ, v, y) + ½ (v − u)²."""

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float | Tensor, float | Tensor] | None:
        """The least and the greatest slope of ℓ in u, two numbers or two tensors; None where slopes have no bound."""
        return None

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """The slope of ℓ nearest to a: what takes the rounding off a dual variable."""
        bounds = self.slope_range(y, tasks)
        return a if bounds is None else torch.clamp(a, *bounds)

    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """ℓ*(a) = sup_u a u − ℓ(θ, u, y); +∞ where a is no slope of ℓ, but for a rounding of `SLACK`."""
        bounds = self.slope_range(y, tasks)
        if bounds is None:
            return self.finite_conjugate(a, y, tasks)
        low, high = bounds
        slack = [SLACK * (self.slope_scale + abs(bound)) for bound in bounds]
        outside = (a < low - slack[0]) | (a > high + slack[1])
        return self.finite_conjugate(torch.clamp(a, low, high), y, tasks).masked_fill_(outside, math.inf)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        """argmin_b step · ℓ*(b) + ½ (b − a)², by Moreau's identity; a slope of ℓ."""
        return self.nearest_slope(a - step * self.prox(a / step, y, tasks, 1 / step), y, tasks)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        """The Lipschitz constant of the derivative, like tasks; ∞ for a loss with kinks."""
        return torch.full_like(tasks, math.inf)

    def check_tasks(self, tasks: Tensor) -> None:
        """Raise InputError where a θ means nothing to this loss; any finite one will do unless a loss says otherwise."""
        if not bool(torch.isfinite(tasks).all()):
            raise InputError("a task is NaN or infinite; tasks must be finite numbers.")

    def check_targets(self, y: Tensor) -> None:
        """Raise InputError where a y, none of them missing, means nothing to this loss."""
        _require_finite(y)


class CurveLoss(ABC):
    """A convex loss between curves that are known at the nodes of a task measure: what the solvers see.

    A curve is a row of m values. Slopes, proximal operators and conjugates are those of the inner product
    ⟨a, b⟩ = Σ_j η_j a_j b_j with the weights η of the measure, so that nothing changes when a node is given twice with half its
    weight. Shapes: u and a (n, m); y (n, m) or (n, 1).

    An entry with weight 0 is missing: its y may be NaN, its slope is 0, and `prox` leaves it where it is.
    """

    @property
    @abstractmethod
    def nodes(self) -> Tensor:
        """The tasks θ_j, (m,) or (n, m)."""

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """η_j ≥ 0, (m,) or (n, m), with sum 1 over the last axis where nothing is missing."""

    @abstractmethod
    def value(self, u: Tensor, y: Tensor) -> Tensor:
        """L(u_i, y_i), (n,)."""

    @abstractmethod
    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        """The gradient in u, (n, m): dL = Σ_j η_j g_j du_j."""

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once, (n,) and (n, m): cheaper where one comes from the other."""
        return self.value(u, y), self.derivative(u, y)

    @abstractmethod
    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """sup_u ⟨a, u⟩ − L(u, y), (n,); +∞ where a is no slope of L, but for rounding."""

    @abstractmethod
    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """argmin_v step · L(v, y) + ½ ‖v − u‖², (n, m)."""

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        """The slope of L nearest to a, (n, m): what takes the rounding off a dual variable."""
        return a

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """argmin_b step · L*(b) + ½ ‖b − a‖², by Moreau's identity; a slope of L."""
        return self.nearest_slope(a - step * self.prox(a / step, y, 1 / step), y)

    def lipschitz(self) -> float:
        """The Lipschitz constant of the gradient; ∞ for a loss with kinks."""
        return math.inf

    def check_targets(self, y: Tensor) -> None:
        """Raise InputError where a y of positive weight means nothing to this loss: call it once, before a fit."""
        _require_finite(self._present(y))

    def _present(self, y: Tensor) -> Tensor:
        """The targets (k,) with weight."""
        shape = torch.broadcast_shapes(y.shape, self.weights.shape)
        return y.expand(shape)[self.weights.expand(shape) > 0]


def _require_finite(y: Tensor) -> None:
    if not bool(torch.isfinite(y).all()):
        raise InputError("a target is NaN or infinite: give its entry weight 0 in the task measure, or drop it.")
