"""Noise of curves on a grid: smooth deviations of single curves plus white noise whose variance may vary along the grid.

A curve i deviates from the function of its inputs by δ_i(θ) + ε_i(θ), independently of all other curves, so that on a grid of m points
with q channels the noise covariance of a row is

    Σ = K'_Θ ⊗ B + diag σ²(θ).
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from gpytorch.module import Module
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError
from ovkgp.kernels import FullMatrix
from ovkgp.kernels.evaluation import evaluate_kernel

INITIAL_VARIANCE = 0.1  # white noise before it is set from data
KNOT_WIDTH = 0.75  # standard deviation of the weights of a knot, relative to the distance between knots


class CurveNoise(Module):
    """Covariance K'_Θ ⊗ B + diag σ²(θ) of the deviations of a curve on a grid, trained; the noise of an `OperatorValuedGP`.

    Parameters
    ----------
    tasks : Tensor of shape (m, t)
        Grid, points as rows.
    deviation : Kernel or None, default=None
        Scalar kernel k'_Θ of the smooth deviations, with an outputscale if there is one channel. If None, there are none.
    num_channels : int, default=1
        Number q of channels; outputs are ordered point by point. With several, deviations have a trained covariance B (q, q).
    knots : Tensor of shape (K, t) or None, default=None
        Points between which log σ(θ) is interpolated. If None, σ² is constant along the grid.

    Notes
    -----
    log σ(θ) = Σ_k w_k(θ) s_k with normalized Gaussian weights w_k of the knots. Complexity: O(m²(t + q²)) for `matrix`.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel, ScaleKernel
    >>> from ovkgp.inference import OperatorValuedGP
    >>> from ovkgp.inference.model.curve_noise import CurveNoise
    >>> from ovkgp.kernels import FunctionValuedKernel
    >>> grid = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
    >>> noise = CurveNoise(grid, ScaleKernel(RBFKernel()))
    >>> gp = OperatorValuedGP(FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=grid), mean="zero", noise=noise)
    >>> gp.noise.shape
    torch.Size([8, 8])
    """

    kind, is_trained = "curves", True

    def __init__(
        self, tasks: Tensor, deviation: Kernel | None = None, num_channels: int = 1, knots: Tensor | None = None
    ):
        super().__init__()
        tasks = torch.as_tensor(tasks, dtype=torch.float64)
        if tasks.dim() != 2 or len(tasks) == 0:
            raise InputError(f"tasks must be a grid of shape (m, t), got shape {tuple(tasks.shape)}.")
        self.num_channels = check_integer("num_channels", num_channels)
        self.deviation = deviation
        self.channel_matrix = FullMatrix(num_channels).double() if deviation is not None and num_channels > 1 else None
        self.register_buffer("tasks", tasks)
        self.register_buffer("knots", None if knots is None else torch.as_tensor(knots, dtype=torch.float64))
        count = 1 if knots is None else len(knots)
        initial = torch.full((count, num_channels), INITIAL_VARIANCE, dtype=torch.float64).log() / 2
        self.register_parameter("log_scale", torch.nn.Parameter(initial))

    @property
    def num_outputs(self) -> int:
        """Number m·q of outputs."""
        return len(self.tasks) * self.num_channels

    @property
    def is_diagonal(self) -> bool:
        return self.deviation is None

    def weights(self, tasks: Tensor) -> Tensor:
        """Return the weights (k, K) of the knots at points (k, t); each row sums to one."""
        if self.knots is None:
            return tasks.new_ones(len(tasks), 1)
        spacing = knot_spacing(self.knots)
        squares = ((tasks.unsqueeze(1) - self.knots) / (KNOT_WIDTH * spacing)).square().sum(-1)
        return torch.softmax(-squares / 2, -1)

    def variances_at(self, tasks: Tensor) -> Tensor:
        """Return the white variances (k·q,) at points (k, t)."""
        return (2 * self.weights(tasks) @ self.log_scale).exp().flatten()

    def deviation_at(self, tasks: Tensor, others: Tensor | None = None) -> Tensor | None:
        """Return the covariance (k·q, l·q) of the deviations at points (k, t) and (l, t); None if there are none."""
        if self.deviation is None:
            return None
        matrix = to_dense(evaluate_kernel(self.deviation, tasks, others))
        return matrix if self.channel_matrix is None else torch.kron(matrix.contiguous(), self.channel_matrix())

    def matrix_at(self, tasks: Tensor) -> Tensor:
        """Return Σ (k·q, k·q) at other points (k, t)."""
        white = torch.diag_embed(self.variances_at(tasks))
        smooth = self.deviation_at(tasks)
        return white if smooth is None else smooth + white

    def matrix(self) -> Tensor:
        """Return Σ (m·q, m·q)."""
        return self.matrix_at(self.tasks)

    @property
    def value(self) -> Tensor:
        """Σ (m·q, m·q), or its diagonal (m·q,) without deviations."""
        return self.variances_at(self.tasks) if self.is_diagonal else self.matrix()

    @property
    def variances(self) -> Tensor:
        """White variances (K, q) at the knots."""
        return (2 * self.log_scale).exp()

    @torch.no_grad()
    def set(self, value) -> None:
        """Set the white variance of all channels, or of each (q,); deviations are kept."""
        value = torch.as_tensor(value, dtype=torch.float64)
        self.log_scale.copy_((value.log() / 2).expand_as(self.log_scale))

    def named_values(self) -> dict[str, Tensor]:
        """Return the hyperparameters by name: white noise, and those of the deviations."""
        found = {"noise": self.variances.squeeze()}
        if self.channel_matrix is not None:
            found["deviation.output_matrix"] = self.channel_matrix()
        if self.deviation is not None:
            for name, parameter, constraint in self.deviation.named_parameters_and_constraints():
                value = parameter if constraint is None else constraint.transform(parameter)
                found[f"deviation.{name.rpartition('.')[2].removeprefix('raw_')}"] = value
        return found


def knot_spacing(knots: Tensor) -> Tensor:
    """Return the typical distance between knots in each column (t,); 1 where they do not differ."""
    distinct = [column.unique() for column in knots.T]
    spacing = [column.diff().median() if len(column) > 1 else column.new_ones(()) for column in distinct]
    return torch.stack(spacing)
