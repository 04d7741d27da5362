"""What a posterior predicts, as the prior sees it: its own covariance, its covariance with the data, and its features.

The process that was observed is itself the first of them; a potential, a stream function or one part of a Helmholtz field
(`field_processes`) are others. Each is a linear functional of the same random weights or of the same observations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.features import FeatureMap
from ovkgp.kernels import is_operator_valued


class Process(ABC):
    """A Gaussian process with q outputs that is jointly Gaussian with the observed one."""

    kernel: Kernel
    """The kernel of the observed process."""

    num_outputs: int
    is_observed = False
    """Whether this is the observed process itself, to which its prior mean and noise belong."""

    @abstractmethod
    def prior(self, X: Tensor, form: str) -> Tensor:
        """Its covariance before any data: (m, q) for "diag", (m, q, q) for "output", (m·q, m·q) for "full"."""

    @abstractmethod
    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        """Its covariance at X (m, d) with the observed process at Z (n, d): (m·q) × (n·p)."""

    @abstractmethod
    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        """Its features (m·q) × r in terms of the weights of the observed process's map."""


class KernelProcess(Process):
    """The observed process itself, with p outputs."""

    is_observed = True

    def __init__(self, kernel: Kernel, num_outputs: int):
        self.kernel, self.num_outputs = kernel, num_outputs

    def prior(self, X: Tensor, form: str) -> Tensor:
        return prior_covariance(self.kernel, X, self.num_outputs, form)

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        return to_linear_operator(self.kernel(X, Z)).evaluate_kernel()

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        return feature_map(X)


def prior_covariance(kernel: Kernel, X: Tensor, num_outputs: int, form: str) -> Tensor:
    """K(X, X) as far as `form` asks: (m, p), (m, p, p) or (m·p, m·p)."""
    if form == "diag":
        return to_dense(kernel(X, diag=True)).unflatten(-1, (-1, num_outputs))
    if form == "full":
        return to_dense(kernel(X))
    if not is_operator_valued(kernel):
        return kernel(X, diag=True)[..., None, None]
    return to_dense(kernel(X.unsqueeze(-2)))  # a batch of m single points


def of_form(matrix: Tensor, num_outputs: int, form: str) -> Tensor:
    """The part of a whole (m·q, m·q) covariance that `form` asks for."""
    if form == "full":
        return matrix
    if form == "diag":
        return matrix.diagonal().unflatten(-1, (-1, num_outputs))
    points = torch.arange(len(matrix) // num_outputs, device=matrix.device)
    return matrix.unflatten(1, (-1, num_outputs)).unflatten(0, (-1, num_outputs))[points, :, points, :]
