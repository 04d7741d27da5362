"""Coordinates of a task kernel in which the derivative in the task has an atom of its own: rows ψ(θ) and ψ'(θ).

A penalty on ∂_θ h(x)(θ̃) puts functions ∂_2 k(·, θ̃) beside the k(·, θ) of the nodes into the solution (Thm 5.27, LT-98). The
coordinates below span both: with the Gram matrix of values and derivatives (LT-43)

    G = [[k, ∂_2 k], [∂_1 k, ∂_1 ∂_2 k]] = B Bᵀ,     ψ(θ) = [k(θ, nodes), ∂_2 k(θ, slope nodes)] B^{−ᵀ}.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.task_learning.factors import CUTOFF
from ovkgp.kernels import lag_jet


def derivative_task_factor(kernel: Kernel, nodes: Tensor, slope_nodes: Tensor | None = None) -> DerivativeTaskFactor:
    """The coordinates of a task kernel on nodes and on derivatives at slope nodes.

    Args:
        kernel: a stationary scalar kernel with second derivatives, such as `RBFKernel` or `MaternKernel(nu=2.5)`; it is copied.
        nodes: θ (m,), where the loss looks at values.
        slope_nodes: θ̃ (m̃,), where a penalty looks at derivatives; None are the nodes, an empty tensor leaves derivatives out.

    Cost: O((m + m̃)³) once.

    Raises:
        SmoothnessError: the kernel has a kink at zero lag (Laplace, Matérn ½).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.task_learning.noncrossing_tasks import derivative_task_factor
        >>> factor = derivative_task_factor(RBFKernel(), torch.tensor([0.2, 0.5, 0.8]), torch.tensor([0.4]))
        >>> rows = factor(torch.tensor([[0.2], [0.8]]))
        >>> rows.shape, torch.allclose(rows @ rows.T, RBFKernel()(torch.tensor([[0.2], [0.8]])).to_dense().double())
        (torch.Size([2, 4]), True)
        >>> factor.slopes(torch.tensor([[0.4]])).shape
        torch.Size([1, 4])
    """
    return DerivativeTaskFactor(
        deepcopy(kernel).double().requires_grad_(False),
        _levels("nodes", nodes),
        _levels("slope_nodes", nodes if slope_nodes is None else slope_nodes),
    )


class DerivativeTaskFactor:
    """ψ and ψ' of a task kernel; `derivative_task_factor` makes one.

    Args:
        kernel: in float64; not changed afterwards.
        nodes, slope_nodes: θ (m,) and θ̃ (m̃,).

    Attributes:
        gram: G (m + m̃, m + m̃).
        projection: B^{−ᵀ} (m + m̃, q); eigenvalues of the scaled G below 1e-12 of the largest are dropped.

    Cost: O(k (m + m̃) q) for k rows or slopes.
    """

    def __init__(self, kernel: Kernel, nodes: Tensor, slope_nodes: Tensor):
        self.kernel, self.nodes, self.slope_nodes = kernel, nodes, slope_nodes
        self.gram = torch.cat([self._atoms(nodes), self._slope_atoms(slope_nodes)])
        # values and slopes have different units: without them the cutoff would favour one
        units = self.gram.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(self.gram / units / units[:, None])
        keep = values > CUTOFF * values[-1]
        self.projection = vectors[:, keep] / values[keep].sqrt() / units[:, None]

    def __call__(self, points: Tensor) -> Tensor:
        """ψ(θ), (k, q), for points (k, 1)."""
        return self._atoms(_levels("tasks", points)) @ self.projection

    def slopes(self, points: Tensor) -> Tensor:
        """ψ'(θ), (k, q), for points (k, 1)."""
        return self._slope_atoms(_levels("tasks", points)) @ self.projection

    def left_out(self, points: Tensor) -> Tensor:
        """k(θ, θ) − ‖ψ(θ)‖² (k,), 0 at the nodes."""
        with torch.no_grad():
            whole = self.kernel(_levels("tasks", points)[:, None], diag=True)
        return (whole - self(points).square().sum(-1)).clamp_min(0.0)

    def _atoms(self, tasks: Tensor) -> Tensor:
        """k(θ, nodes) and ∂_2 k(θ, slope nodes)."""
        value, slope, _ = self._jet(tasks)
        return torch.cat([value[:, : len(self.nodes)], -slope[:, len(self.nodes) :]], -1)

    def _slope_atoms(self, tasks: Tensor) -> Tensor:
        """∂_1 k(θ, nodes) and ∂_1 ∂_2 k(θ, slope nodes)."""
        _, slope, bend = self._jet(tasks)
        return torch.cat([slope[:, : len(self.nodes)], -bend[:, len(self.nodes) :]], -1)

    def _jet(self, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k and its two derivatives in the lag, against all nodes, each (k, m + m̃)."""
        lag = tasks[:, None] - torch.cat([self.nodes, self.slope_nodes])
        with torch.no_grad():
            jet = lag_jet(self.kernel, lag.unsqueeze(-1))
        return jet.value, jet.gradient[..., 0], jet.hessian[..., 0, 0]


def _levels(name: str, points: Tensor) -> Tensor:
    """Points (k,) or (k, 1) as float64 (k,)."""
    points = torch.as_tensor(points, dtype=torch.float64)
    if points.dim() == 2 and points.shape[1] == 1:
        points = points[:, 0]
    if points.dim() != 1 or not bool(torch.isfinite(points).all()):
        raise InputError(f"{name} must be finite numbers of shape (k,) or (k, 1), got {tuple(points.shape)}.")
    return points
