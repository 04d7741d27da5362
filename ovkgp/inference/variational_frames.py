"""Coordinates in which a few directions of the weights are set apart from the others, for a Gaussian of low rank.

    x = D^{-½} H z,     H = I − Z (I + V₁)⁻¹ Zᵀ,   Z = V + E,

with V (r, k) orthonormal, E the unit vectors of k coordinates and V₁ = Eᵀ V symmetric: H is the reflection that takes E to −V. A
precision C with the diagonal D has the correlations R = D^{-½} C D^{-½}, and a diagonal precision in its place loses Σ_i (λ_i − 1 − log λ_i) / 2
over all eigenvalues λ of R. With the precision of z dense on k coordinates that run along eigenvectors of R, these k no longer count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

DEPTH, SPARE = 3, 5
"""Powers of R, and vectors beyond the rank, that span the space in which directions are sought."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates z of the weights x = D^{-½} H z.

    Args:
        scale: D^{-½} (r,).
        directions: V (r, k), orthonormal, with V[index] symmetric and positive semi-definite.
        index: the coordinates (k,) of z that run along −V.

    Cost: O(r k) memory, and time for each vector.

    Example:
        >>> import torch
        >>> from ovkgp.inference.variational_frames import unit_frame
        >>> frame = unit_frame(num_weights=5, rank=2)
        >>> frame.outward(torch.ones(5).double()).tolist()
        [-1.0, -1.0, 1.0, 1.0, 1.0]
    """

    scale: Tensor
    directions: Tensor
    index: Tensor

    @cached_property
    def normals(self) -> Tensor:
        """Z (r, k)."""
        units = torch.zeros_like(self.directions)
        units[self.index, torch.arange(len(self.index), device=units.device)] = 1.0
        return self.directions + units

    @cached_property
    def mixed(self) -> Tensor:
        """Z (I + V₁)⁻¹ (r, k)."""
        return torch.linalg.solve(self.normals[self.index], self.normals, left=False)

    @cached_property
    def probes(self) -> Tensor:
        """D^{-½} [Z, V] (r, 2k): a symmetric matrix is restricted by what it makes of these."""
        return self.scale.unsqueeze(-1) * torch.cat([self.normals, self.directions], 1)

    @cached_property
    def prior(self) -> tuple[Tensor, Tensor]:
        """The identity, restricted."""
        return self.restricted(torch.ones_like(self.scale), self.probes)

    def reflected(self, vectors: Tensor) -> Tensor:
        """H v of vectors (r, …)."""
        return vectors - self.mixed @ (self.normals.mT @ vectors)

    def outward(self, z: Tensor) -> Tensor:
        """x (r, …) of z."""
        return (self.scale * self.reflected(z).mT).mT if z.dim() > 1 else self.scale * self.reflected(z)

    def inward(self, x: Tensor) -> Tensor:
        """z (r,) of x."""
        return self.reflected(x / self.scale)

    def pulled(self, gradient: Tensor) -> Tensor:
        """The gradient (r,) in z of a function with this gradient in x."""
        return self.reflected(self.scale * gradient)

    def restricted(self, diagonal: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
        """A symmetric M in the coordinates z: its diagonal (r,), of use outside `index`, and its block (k, k) on it. Linear in M.

        Args:
            diagonal: of M (r,).
            products: M times `probes` (r, 2k).
        """
        k = len(self.index)
        by_normals, by_directions = products[:, :k], products[:, k:]
        inner = self.probes[:, :k].mT @ by_normals
        cross = 2 * self.scale.unsqueeze(-1) * by_normals - self.mixed @ inner
        return self.scale.square() * diagonal - (self.mixed * cross).sum(1), self.probes[:, k:].mT @ by_directions

    def spread(self, diagonal: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """H (diag + block) H of a diagonal (r,) that is zero on `index` and a block (k, k), as diag + F M Fᵀ.

        Returns:
            the diagonal (r,), F (r, 3k) and M (3k, 3k).
        """
        weighted = diagonal.unsqueeze(-1) * self.normals
        eye = torch.eye(len(block)).to(block)
        zero = torch.zeros_like(block)
        core = [[self.normals.mT @ weighted, -eye, zero], [-eye, zero, zero], [zero, zero, block]]
        factor = torch.cat([self.mixed, weighted, self.directions], 1)
        return diagonal, factor, torch.cat([torch.cat(row, 1) for row in core])


def unit_frame(num_weights: int, rank: int, device: torch.device | None = None) -> Frame:
    """The first `rank` coordinates set apart as they are."""
    eye = torch.eye(num_weights, rank, dtype=torch.float64, device=device)
    return Frame(torch.ones(num_weights, dtype=torch.float64, device=device), eye, torch.arange(rank, device=device))


def leading_frame(times: Callable[[Tensor], Tensor], diagonal: Tensor, rank: int) -> Frame:
    """The `rank` directions along which a precision C differs most from its diagonal: those of the largest λ − 1 − log λ.

    Args:
        times: C V of columns V (r, c).
        diagonal: that of C (r,).
        rank: k.

    The eigenvectors are those in a block Krylov space of random vectors (of fixed seed): any V is valid, and a good one near enough.

    Cost: 6 (k + 5) products with C and O(r k²).

    Example:
        >>> import torch
        >>> from ovkgp.inference.variational_frames import leading_frame
        >>> C = torch.eye(6).double() + 0.9 * torch.ones(6, 6).double()
        >>> leading_frame(lambda V: C @ V, C.diagonal(), rank=1).directions.abs().round(decimals=3).flatten().tolist()
        [0.408, 0.408, 0.408, 0.408, 0.408, 0.408]
    """
    scale = diagonal.rsqrt()
    beside = lambda V: scale.unsqueeze(-1) * times(scale.unsqueeze(-1) * V) - V  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(len(scale), rank + SPARE, generator=generator, dtype=torch.float64).to(scale)
    spaces = []
    for _ in range(DEPTH):
        block = torch.linalg.qr(beside(block))[0]
        spaces.append(block)
    space = torch.linalg.qr(torch.cat(spaces, 1))[0]
    values, vectors = torch.linalg.eigh(space.mT @ beside(space))
    loss = values - torch.log1p(values.clamp_min(-1 + 1e-12))
    return _aligned(scale, space @ vectors[:, loss.topk(rank).indices])


def _aligned(scale: Tensor, directions: Tensor) -> Frame:
    """The frame with these directions, turned among themselves, on the coordinates that they have most of."""
    index = directions.square().sum(1).topk(directions.shape[1]).indices.sort().values
    left, _, right = torch.linalg.svd(directions[index])
    return Frame(scale, directions @ (left @ right).mT, index)
