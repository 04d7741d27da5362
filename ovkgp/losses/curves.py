"""Robust and sparse losses of curves: ½‖·‖² of L²(η) convolved with a norm or a ball of L^p(η) (LT-57..62, BO-70..72).

Huber losses bound the gradient: its norm for p = 2, each of its values for p = 1, their mean size for p = ∞.
Insensitive losses ignore curves of small norm for p = 2, small values for p = ∞, values of small mean size for p = 1.
The conjugate is ⟨a, y⟩ + ½‖a‖² + g*(a), and all operators follow from the projection on one ball.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ovkgp.checks import check_nonnegative, check_positive
from ovkgp.exceptions import InputError
from ovkgp.losses.balls import dual_order, norm, project, project_product, shrink
from ovkgp.losses.base import SLACK
from ovkgp.losses.integral import MeasuredLoss
from ovkgp.losses.measures import TaskMeasure


class ConvolvedLoss(MeasuredLoss):
    """Infimal convolution ½‖·‖² □ g of u − y with an even g (BO-70); its gradient is 1-Lipschitz."""

    def __init__(self, p: float, measure: TaskMeasure):
        super().__init__(measure)
        self.p, self.q = p, dual_order(p)

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value_and_derivative(u, y)[0]

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value_and_derivative(u, y)[1]

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.mean(a * (y + a / 2)) + self._dual_term(self._without_missing(a))

    @abstractmethod
    def _dual_term(self, a: Tensor) -> Tensor:
        """Return g*(a), (n,)."""

    def lipschitz(self) -> float:
        return 1.0

    def _error(self, u: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(u - y)

    def _linear_quadratic_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """Return the proximal point of ⟨·, y⟩ + ½‖·‖² at a."""
        return self._without_missing((a - step * y) / (1 + step))


class CurveHuber(ConvolvedLoss):
    """Huber loss of curves, ½‖·‖² □ κ‖·‖_p of u − y.

    Its gradient is the projection of u − y on ‖·‖_q ≤ κ, 1/p + 1/q = 1. With p = 1 it is
    `IntegralLoss(Huber(kappa), measure)`, with p = 2 the Huber function of the norm ‖u − y‖ in L²(η).

    Parameters
    ----------
    kappa : float
        Bound κ on the dual norm of the gradient. Must be greater than 0.
    p : float
        Order of the norm, at least 1; `math.inf` is the maximum norm.
    measure : TaskMeasure
        Nodes and weights.

    Notes
    -----
    Complexity: O(n m) per method, O(n m log m) for p = ∞; iterative, about a hundred times as long, for p other than 1, 2, ∞.

    References
    ----------
    LT-57, LT-58, LT-62, BO-71

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import CurveHuber, gauss_legendre
    >>> loss = CurveHuber(1.0, 2, gauss_legendre(5))
    >>> u = torch.tensor([[0.5], [3.0]], dtype=torch.float64).expand(2, 5)
    >>> loss.value(u, torch.zeros(2, 1, dtype=torch.float64))
    tensor([0.1250, 2.5000], dtype=torch.float64)
    """

    def __init__(self, kappa: float, p: float, measure: TaskMeasure):
        self.kappa = check_positive("kappa", kappa)
        super().__init__(p, measure)

    def __repr__(self) -> str:
        return f"CurveHuber(kappa={self.kappa!r}, p={self.p!r}, {self.num_nodes} nodes)"

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        d = self._error(u, y)
        slope = self._project(d)
        return self.mean(slope * (d - slope / 2)), slope

    def curvature_product(self, u: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """Return the derivative (n, m) of the gradient along a direction (n, m), almost everywhere.

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
        direction = self._without_missing(direction)
        return project_product(self._error(u, y), direction, self.kappa, self.q, self.weights)

    def _dual_term(self, a: Tensor) -> Tensor:
        outside = norm(a, self.q, self.weights) > self.kappa * (1 + SLACK)
        return a.new_zeros(outside.shape).masked_fill(outside, math.inf)

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return u - step * self._project(self._error(u, y) / (1 + step))

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self._project(self._without_missing(a))

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self._project(self._linear_quadratic_prox(a, y, step))

    def _project(self, x: Tensor) -> Tensor:
        return project(x, self.kappa, self.q, self.weights)


class CurveInsensitive(ConvolvedLoss):
    """Insensitive loss of curves, ½ dist(u − y, {‖·‖_p ≤ ε})² in L²(η).

    With p = 2 it is ½ max(‖u − y‖ − ε, 0)², with p = ∞ `IntegralLoss(EpsilonInsensitive(epsilon), measure)`. Dual
    variables are sparse: zero for whole curves if p = 2, for single values if p = ∞.

    Parameters
    ----------
    epsilon : float
        Radius ε of the ball in which errors cost nothing. Must be at least 0.
    p : float
        Order of the norm, at least 1; `math.inf` is the maximum norm.
    measure : TaskMeasure
        Nodes and weights.

    Notes
    -----
    Complexity: O(n m) per method, O(n m log m) for p = 1; iterative, about a hundred times as long, for p other than 1, 2, ∞.

    References
    ----------
    LT-59..62, BO-72; LT-E-08 for the factor ½

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import CurveInsensitive, gauss_legendre
    >>> loss = CurveInsensitive(1.0, 2, gauss_legendre(5))
    >>> u = torch.tensor([[0.5], [3.0]], dtype=torch.float64).expand(2, 5)
    >>> loss.value(u, torch.zeros(2, 1, dtype=torch.float64))
    tensor([0.0000, 2.0000], dtype=torch.float64)
    """

    def __init__(self, epsilon: float, p: float, measure: TaskMeasure):
        self.epsilon = check_nonnegative("epsilon", epsilon)
        super().__init__(p, measure)

    def __repr__(self) -> str:
        return f"CurveInsensitive(epsilon={self.epsilon!r}, p={self.p!r}, {self.num_nodes} nodes)"

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        slope = self._shrink(self._error(u, y))
        return self.mean(slope.square() / 2), slope

    def curvature_product(self, u: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """Return the derivative (n, m) of the gradient along a direction (n, m), almost everywhere.

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
        direction = self._without_missing(direction)
        return direction - project_product(self._error(u, y), direction, self.epsilon, self.p, self.weights)

    def _dual_term(self, a: Tensor) -> Tensor:
        return self.epsilon * norm(a, self.q, self.weights)

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return u - step / (1 + step) * self._shrink(self._error(u, y))

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(a)

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return shrink(self._linear_quadratic_prox(a, y, step), step * self.epsilon / (1 + step), self.q, self.weights)

    def _shrink(self, d: Tensor) -> Tensor:
        return shrink(d, self.epsilon, self.q, self.weights)


def robustness_ratio(
    errors: Tensor,
    corrupted: Tensor,
    p: float,
    measure: TaskMeasure,
    quantiles: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
) -> float:
    """Compute how much outliers raise the Huber loss of curves with an L^p norm, (1/n) Σ_i H_κ(ẽ_i)/H_κ(e_i).

    Parameters
    ----------
    errors : Tensor of shape (n, m)
        Errors e of curves without outliers, at the nodes of the measure.
    corrupted : Tensor of shape (n, m)
        Errors ẽ of the same curves with outliers.
    p : float
        Order of the norm, at least 1.
    measure : TaskMeasure
        Nodes and weights.
    quantiles : sequence of float, default=(0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
        The bounds κ considered are these quantiles of the dual norms ‖e_i‖_q.

    Returns
    -------
    float
        Smallest ratio over κ; 1 means that outliers have no influence on the loss.

    Notes
    -----
    Outliers of whole curves favor p = 2, outliers of single values p near 1. Complexity: that of `CurveHuber` for each κ.

    References
    ----------
    BO-79, BO-113

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import gauss_legendre, robustness_ratio
    >>> errors = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None].expand(20, 5)
    >>> round(robustness_ratio(errors, 3 * errors, 2, gauss_legendre(5)), 2) < 9  # of the square loss: 9
    True
    """
    if errors.shape != corrupted.shape or errors.dim() != 2 or errors.shape[1] != len(measure):
        raise InputError(
            f"errors and corrupted must have shape (n, {len(measure)}), got {tuple(errors.shape)} and {tuple(corrupted.shape)}."
        )
    errors, corrupted = errors.double(), corrupted.double()
    sizes = norm(errors, dual_order(p), measure.weights)
    if not bool((sizes > 0).all()):
        raise InputError("errors must not be zero along a whole curve. Drop such curves.")
    bounds = torch.quantile(sizes, torch.tensor(quantiles, dtype=torch.float64))
    losses = [CurveHuber(kappa, p, measure) for kappa in bounds.tolist()]
    zero = errors.new_zeros(len(errors), 1)
    return min((loss.value(corrupted, zero) / loss.value(errors, zero)).mean().item() for loss in losses)
