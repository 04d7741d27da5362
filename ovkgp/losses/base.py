"""What an error costs: ℓ(θ, u, y), the cost of saying u where y came, in the task θ.

A loss knows five things: its value, derivative and curvature in u, its proximal operator, and its conjugate. Any loss with
a proximal operator can be smoothed (`ovkgp.losses.envelope`) and solved through its dual: the proximal operator of the conjugate
follows from Moreau's identity x = prox_{γf}(x) + γ prox_{f*/γ}(x/γ) (LT-13).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Loss(ABC):
    """A convex loss in one number, applied entry by entry.

    Throughout, u is (…, n, m), y broadcasts against it ((n, m), or (n, 1) where all tasks share a target), and tasks (m,) or
    (n, m) are the parameters θ of the last axis. What comes back has the shape of u.

    `derivative` at a kink is any subgradient; `curvature` is the second derivative where there is one, else 0.
    """

    name: str

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
    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        """ℓ*(a) = sup_u a u − ℓ(θ, u, y); +∞ where a is no slope of ℓ."""

    @abstractmethod
    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        """argmin_v step · ℓ(θ, v, y) + ½ (v − u)²."""

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        """argmin_b step · ℓ*(b) + ½ (b − a)², by Moreau's identity."""
        return a - step * self.prox(a / step, y, tasks, 1 / step)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        """The Lipschitz constant (like tasks) of the derivative; ∞ for a loss with kinks."""
        return tasks.new_full(tasks.shape, float("inf"))


class CurveLoss(ABC):
    """A convex loss between curves that are known at the nodes of a task measure: what the solvers see.

    A curve is a row of m values. Slopes, proximal operators and conjugates are those of the inner product
    ⟨a, b⟩ = Σ_j η_j a_j b_j with the weights η of the measure, so that nothing changes when a node is given twice with half its weight.
    Shapes: u and a (n, m); y (n, m) or (n, 1).
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

    @abstractmethod
    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """sup_u ⟨a, u⟩ − L(u, y), (n,)."""

    @abstractmethod
    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """argmin_v step · L(v, y) + ½ ‖v − u‖², (n, m)."""

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """argmin_b step · L*(b) + ½ ‖b − a‖², by Moreau's identity."""
        return a - step * self.prox(a / step, y, 1 / step)
