"""Do the primal and the dual ridge problem have the same solution? In exact arithmetic yes, for any λ > 0 (BT-69).

    (ΦΦᵀ + N) u = y − m,      θ_s = (I + Φᵀ N⁻¹ Φ)⁻¹ Φᵀ N⁻¹ (y − m),      residual  Φᵀ u − θ_s.

A residual that is not small says that the noise is zero to working precision, and that neither solution is to be trusted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.dense import gram, safe_cholesky
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.matrix_free import MatrixFreeSystem, default_iterations
from ovkgp.inference.quadratics import Quadratic, least_point
from ovkgp.inference.roads import DENSE_LIMIT
from ovkgp.inference.sketched import SketchedPreconditioner
from ovkgp.inference.weight_products import WeightProducts

TOLERANCE = 1e-12
"""Relative residual of the solves that are too large for a Cholesky factor."""


class PrimalDual(NamedTuple):
    """Σ_i Φ_iᵀ u_i − θ_s (r,), and its length as a part of that of θ_s."""

    residual: Tensor
    relative: float


def primal_dual_residual(gp: OperatorValuedGP, X, Y, noise=None) -> PrimalDual:
    """The difference between the weights of the dual solution and those of the primal one.

    Args:
        gp: a model with a feature map.
        X, Y, noise: as for `OperatorValuedGP.condition`.

    Cost: O((np)³ + r³) up to `DENSE_LIMIT` entries, or features; beyond, conjugate gradients with O(n M p) an iteration.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.primal_dual import primal_dual_residual
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 20, random_state=0))
        >>> X = torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
        >>> primal_dual_residual(gp, X, X.sin()).relative < 1e-10
        True
    """
    if gp.features is None:
        raise OptionError(
            "the primal problem needs a feature map, and this model has none: OperatorValuedGP(kernel, features=ORFF(kernel))."
        )
    with torch.no_grad():
        products = WeightProducts.of(gp.frozen().model, gp.observe(X, Y, noise).double())
        weights = _primal(products)
        residual = products.adjoint(_dual(products)) - weights
    size = torch.linalg.vector_norm(weights).item()
    return PrimalDual(residual, torch.linalg.vector_norm(residual).item() / size if size else 0.0)


def _primal(products: WeightProducts) -> Tensor:
    """θ_s (r,)."""
    if products.num_features > DENSE_LIMIT:
        return MatrixFreeSystem(products, tolerance=TOLERANCE).weights
    return _solve(products.matrix(), products.moment())


def _dual(products: WeightProducts) -> Tensor:
    """w (n, p) with (ΨΨᵀ + I) w = z, the whitened u: Φᵀu = Ψᵀw."""
    targets = products.targets()
    if targets.numel() <= DENSE_LIMIT:
        rows = torch.cat(list(products.whitened_rows()))
        return _solve(gram(rows.mT), targets.reshape(-1, 1)).view(targets.shape)

    def apply(columns: Tensor) -> Tensor:
        return columns + products.forward(products.adjoint_columns(columns))

    P = SketchedPreconditioner(apply, targets.numel(), like=targets)
    quadratic = Quadratic(
        lambda V: apply(V.squeeze(-1)).unsqueeze(-1),
        *(lambda V: P.power(V, 1.0), lambda V: P.power(V, 0.5), lambda V: P.power(V, 0.5)),
        norm=1 + products.trace,
    )
    limit = default_iterations(targets.numel(), "cg")
    return least_point(quadratic, targets.reshape(-1, 1, 1), "cg", TOLERANCE, limit).solution.view(targets.shape)


def _solve(matrix: Tensor, rhs: Tensor) -> Tensor:
    """(I + matrix)⁻¹ rhs as a vector."""
    matrix.diagonal().add_(1)
    return torch.cholesky_solve(rhs, safe_cholesky(matrix)).squeeze(-1)
