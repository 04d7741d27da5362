"""Kernel of random combinations of the functions of a dictionary, k(θ, θ') = φ(θ)ᵀ B φ(θ')."""

from __future__ import annotations

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.functional.dictionary import Dictionary


class DictionaryKernel(Kernel):
    """Covariance φ(θ)ᵀ B φ(θ') of a function with random coefficients of covariance B in a dictionary.

    Parameters
    ----------
    dictionary : Dictionary
        Functions φ.
    output_matrix : array-like of shape (d, d) or None, default=None
        Fixed covariance B of the coefficients. If None, B is diagonal, with trained variances.
    variances : array-like of shape (d,) or None, default=None
        Initial variances of a trained B. If None, they are equal, with a mean prior variance of about 1.
    offset, scale : array-like of shape (b,), default=0.0 and 1.0
        Points of the dictionary are offset + scale · θ.
    **kwargs
        Further arguments of GPyTorch's kernels.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.functional import DictionaryKernel, Fourier
    >>> DictionaryKernel(Fourier(5, [0, 1]))(torch.rand(4, 1).double()).shape
    torch.Size([4, 4])
    """

    is_stationary = False

    def __init__(self, dictionary: Dictionary, output_matrix=None, variances=None, offset=0.0, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.dictionary, d = dictionary, len(dictionary)
        for name, value in (("offset", offset), ("scale", scale)):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.float64))
        matrix = None if output_matrix is None else torch.as_tensor(output_matrix, dtype=torch.float64)
        if matrix is not None and matrix.shape != (d, d):
            raise OptionError(f"output_matrix has shape {tuple(matrix.shape)}, expected ({d}, {d}).")
        self.register_buffer("fixed_matrix", matrix)
        if matrix is None:
            initial = torch.full((d,), 1.0 / d) if variances is None else torch.as_tensor(variances)
            self.register_parameter("raw_variances", torch.nn.Parameter(torch.zeros(d, dtype=torch.float64)))
            self.register_constraint("raw_variances", Positive())
            self.initialize(
                raw_variances=self.raw_variances_constraint.inverse_transform(initial.double().clamp_min(1e-8))
            )

    @property
    def output_matrix(self) -> Tensor:
        """B (d, d)."""
        if self.fixed_matrix is not None:
            return self.fixed_matrix
        return torch.diag(self.raw_variances_constraint.transform(self.raw_variances))

    def features(self, points: Tensor, derivative: int = 0) -> Tensor:
        """Return φ (k, d) at points (k, b), or its first derivative in θ on a one-dimensional domain.

        Parameters
        ----------
        points : Tensor of shape (k, b)
            Points of the domain.
        derivative : {0, 1}, default=0
            Order of the derivative.

        Returns
        -------
        Tensor of shape (k, d)
            Values of the functions.
        """
        low, high = self.dictionary.domain.T
        at = (self.offset + self.scale * points.detach()).cpu().double().numpy().clip(low, high)
        values = self.dictionary.derivative(at) * self.scale.numpy() if derivative else self.dictionary(at)
        return torch.from_numpy(values).to(points)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        first, B = self.features(x1), self.output_matrix.to(x1)
        if diag:
            return ((first @ B) * self.features(x2)).sum(-1)
        return first @ B @ self.features(x2).mT

    def derivative_covariance(self, a: Tensor, b: Tensor, left: int, right: int) -> Tensor:
        """Return the covariance (k, l) of derivatives of orders `left` and `right` at points (k, b) and (l, b).

        Parameters
        ----------
        a, b : Tensor of shape (k, 1) and (l, 1)
            Points of the domain.
        left, right : {0, 1}
            Orders of the derivatives.

        Returns
        -------
        Tensor of shape (k, l)
            Covariances.
        """
        return self.features(a, left) @ self.output_matrix @ self.features(b, right).mT
