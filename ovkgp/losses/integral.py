"""Losses integrated over a measure of tasks: L(u, y) = ∫ ℓ(θ, u(θ), y(θ)) dμ(θ) ≈ Σ_j η_j ℓ(θ_j, u_j, y_j) (LT-07)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.losses.base import CurveLoss, Loss
from ovkgp.losses.measures import TaskMeasure


class MeasuredLoss(CurveLoss):
    """Loss between curves that stores its task measure and ignores entries of weight 0."""

    def __init__(self, measure: TaskMeasure):
        if not bool((measure.weights >= 0).all()):
            raise InputError("The weights of measure must be at least 0, got a negative weight or NaN. Clip them.")
        self.measure = measure
        missing = measure.weights == 0
        self._missing = missing if bool(missing.any()) else None

    @property
    def nodes(self) -> Tensor:
        return self.measure.nodes

    @property
    def weights(self) -> Tensor:
        return self.measure.weights

    @property
    def num_dims(self) -> int:
        return self.measure.num_dims

    def mean(self, values: Tensor) -> Tensor:
        """Return Σ_j η_j values_j, (n,); entries of weight 0 are ignored even if they are infinite or NaN.

        Parameters
        ----------
        values : Tensor of shape (n, m)
            Values at the nodes.

        Returns
        -------
        Tensor of shape (n,)
            Weighted sums.
        """
        values = self._without_missing(values)
        return values @ self.weights if self.weights.dim() == 1 else (self.weights * values).sum(-1)

    def _without_missing(self, x: Tensor) -> Tensor:
        """Return x (n, m) with 0 where the weight is 0."""
        return x if self._missing is None else x.masked_fill(self._missing, 0.0)

    def _keep_missing(self, x: Tensor, u: Tensor) -> Tensor:
        """Return x with the entries of u where the weight is 0."""
        return x if self._missing is None else torch.where(self._missing, u, x)


class IntegralLoss(MeasuredLoss):
    """Integral ∫ ℓ dμ of a loss over a task measure.

    In the inner product of the measure, slopes and proximal operators act entry by entry.

    Parameters
    ----------
    loss : Loss
        Loss ℓ of one number.
    measure : TaskMeasure
        Nodes θ in R^b and weights η, (m,) or (n, m). An entry of weight 0 is missing. If the loss depends on the task,
        such as `Pinball` on a level, b must be that of the loss, `loss.num_task_dims`.

    Notes
    -----
    Complexity: O(n m) time and memory per method.

    References
    ----------
    LT-07, LT-87

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
    >>> loss = IntegralLoss(Pinball(), gauss_legendre(20))
    >>> u, y = torch.zeros(2, 20, dtype=torch.float64), torch.tensor([[1.0], [-3.0]], dtype=torch.float64)
    >>> loss.value(u, y)  # ∫ θ dθ = 1/2 per unit of error
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """

    def __init__(self, loss: Loss, measure: TaskMeasure):
        if loss.num_task_dims not in (None, measure.num_dims):
            raise InputError(
                f"{type(loss).__name__} requires tasks in R^{loss.num_task_dims}, got a measure with num_dims={measure.num_dims}. Use a loss that is the same for all tasks, such as Square()."
            )
        loss.check_tasks(measure.nodes)
        super().__init__(measure)
        self.loss = loss

    def __repr__(self) -> str:
        return f"IntegralLoss({self.loss!r}, {self.num_nodes} nodes)"

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return self.mean(self.loss.value(u, y, self.nodes))

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(self.loss.derivative(u, y, self.nodes))

    def curvature(self, u: Tensor, y: Tensor) -> Tensor:
        """Return ℓ'' at each node, (n, m).

        Parameters
        ----------
        u, y : Tensor of shape (n, m)
            Predictions and targets.

        Returns
        -------
        Tensor of shape (n, m)
            Second derivatives.
        """
        return self._without_missing(self.loss.curvature(u, y, self.nodes))

    def curvature_product(self, u: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """Return the derivative (n, m) of the gradient along a direction (n, m).

        Parameters
        ----------
        u, y : Tensor of shape (n, m)
            Predictions and targets.
        direction : Tensor of shape (n, m)
            Change of u.

        Returns
        -------
        Tensor of shape (n, m)
            Change of the gradient.
        """
        return self.curvature(u, y) * direction

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.mean(self.loss.conjugate(a, y, self.nodes))

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self._keep_missing(self.loss.prox(u, y, self.nodes, step), u)

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(self.loss.nearest_slope(a, y, self.nodes))

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self._without_missing(self.loss.conjugate_prox(a, y, self.nodes, step))

    def lipschitz(self) -> float:
        return self.loss.lipschitz(self.nodes).max().item()

    def check_targets(self, y: Tensor) -> None:
        self.loss.check_targets(self._observed_targets(y))
