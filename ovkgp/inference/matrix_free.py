"""The posterior of the weights by products alone: θ | y ~ N(C⁻¹ v, C⁻¹), and C = I + Φᵀ N⁻¹ Φ is never formed (BT-78).

The mean is given, or found by conjugate gradients or L-BFGS. A variance is a solve with C for each row of Φ_*, and a draw is
the solution of a perturbed problem,

    θ = θ̂ + C⁻¹ (ζ + Φᵀ N⁻¹ ε),    ζ ~ N(0, I),  ε ~ N(0, N),      whose covariance is C⁻¹ C C⁻¹ = C⁻¹.
"""

from __future__ import annotations

from functools import cached_property, partial

import torch
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.conjugate_gradients import refined_solve
from ovkgp.inference.dense import check_form
from ovkgp.inference.processes import of_form
from ovkgp.inference.quadratics import Quadratic, least_point
from ovkgp.inference.sketched import SketchedPreconditioner
from ovkgp.inference.weight_products import WeightProducts

CHUNK_COLUMNS = 256
"""Right-hand sides that are solved together."""


class MatrixFreeSystem:
    """θ | y with the interface of `WeightSystem`, for a `WeightPosterior`. It keeps the data, and no r × r matrix.

    Args:
        products: C and v; its data must not change any more.
        weights: the posterior mean (r,), where it is known; found by `method` otherwise.
        num_iterations: how many it took, where it is known.
        method: "cg" or "lbfgs", for the mean; variances and draws always take conjugate gradients.
        tolerance: relative residual of all solves. That of the mean is also held against the data, ‖v − Cθ‖ below this part
            of √((y − m)ᵀ N⁻¹ (y − m)): predictions at the data, in units of noise, are then as close to the exact ones.
        max_iter: iterations of a solve; by default more than enough for all but singular problems.
        verbose: 1 shows the number of products.

    Cost: a solve with k columns takes O(n M p k) time an iteration, and memory for one chunk of rows and O(r k).

    Attributes:
        weights: the posterior mean (r,).
        log_density: NaN. The log determinant is not computed by products alone.
        num_features: r.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.data import observations
        >>> from ovkgp.inference.matrix_free import MatrixFreeSystem
        >>> from ovkgp.inference.means import output_mean
        >>> from ovkgp.inference.noise import OutputNoise
        >>> from ovkgp.inference.weight_products import WeightProducts
        >>> orff = ORFF(RBFKernel(ard_num_dims=1), 50, random_state=0)
        >>> X = torch.linspace(0, 6, 100, dtype=torch.float64).unsqueeze(-1)
        >>> data = observations(X, X.sin(), 1)
        >>> system = MatrixFreeSystem(WeightProducts(orff, output_mean("zero", 1), OutputNoise(0.01, 1), data))
        >>> bool(((orff(X) @ system.weights).unsqueeze(-1) - X.sin()).abs().max() < 0.1)
        True
        >>> system.variance(orff(X[:3])).shape, system.draw(4).shape
        (torch.Size([3, 1]), torch.Size([4, 100]))
    """

    @torch.no_grad()
    def __init__(
        self,
        products: WeightProducts,
        weights: Tensor | None = None,
        num_iterations: int = 0,
        *,
        method: str = "cg",
        tolerance: float = 1e-9,
        max_iter: int | None = None,
        verbose: int = 0,
    ):
        self.products, self.tolerance = products, tolerance
        self.max_iter = default_iterations(products.num_features, "cg") if max_iter is None else max_iter
        self.log_density = torch.tensor(torch.nan, dtype=torch.float64)
        if weights is None:
            limit = default_iterations(products.num_features, method) if max_iter is None else max_iter
            moment = products.moment().unsqueeze(-1)
            sizes = [torch.linalg.vector_norm(part).item() for part in (products.targets(), moment)]
            tolerance *= min(sizes[0] / max(sizes[1], 1e-300), 1.0)
            found = least_point(self.quadratic, moment, method, tolerance, limit, verbose)
            weights, num_iterations = found.solution.flatten(), found.num_iterations
        self.weights, self.num_iterations = weights, num_iterations

    @cached_property
    def preconditioner(self) -> SketchedPreconditioner:
        """P̂ ≈ C."""
        products = self.products
        return SketchedPreconditioner(products.apply, products.num_features, like=products.data.X)

    @property
    def quadratic(self) -> Quadratic:
        """C over vectors (r, k, 1)."""
        P, half = self.preconditioner, partial(self.preconditioner.power, power=0.5)
        return Quadratic(self._apply, partial(P.power, power=1.0), half, half, 1 + self.products.trace)

    def _apply(self, V: Tensor) -> Tensor:
        return self.products.apply(V.squeeze(-1)).unsqueeze(-1)

    @property
    def num_features(self) -> int:
        return len(self.weights)

    @torch.no_grad()
    def solve(self, columns: Tensor) -> Tensor:
        """C⁻¹ columns, (r, k) → (r, k)."""
        C = self.quadratic
        options = self.tolerance, self.max_iter, C.norm
        parts = [
            refined_solve(C.apply, C.precondition, part[..., None], *options).solution
            for part in columns.split(CHUNK_COLUMNS, 1)
        ]
        return torch.cat(parts, 1).squeeze(-1)

    def variance(self, Phi: LinearOperator, form: str = "diag", num_outputs: int | None = None) -> Tensor:
        """Cov(Φ_* θ | y) = Φ_* C⁻¹ Φ_*ᵀ: (m, q) for "diag", (m, q, q) for "output", (m·q, m·q) for "full".

        Args:
            Phi: Φ_* (m·q) × r.
            form: which part of it.
            num_outputs: q; that of Φ_* where it is None.

        Cost: a solve for each of the m·q rows; O(m q (r + m q)) memory.
        """
        check_form(form)
        rows = to_dense(Phi)
        full = rows @ self.solve(rows.detach().mT)
        return of_form((full + full.mT) / 2, Phi.num_outputs if num_outputs is None else num_outputs, form)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws of the weights, (k, r): one solve each."""
        prior = torch.randn(self.num_features, k, generator=generator, dtype=torch.float64).to(self.weights.device)
        return self.weights + self.solve(prior + self.products.noise_draws(k, generator)).mT

    def path(self, multipliers: Tensor) -> Tensor:
        """Not by products alone: an `OptionError`."""
        raise _needs_factor("the evidence along a path of noises")

    def path_weights(self, multiplier: float) -> Tensor:
        """Not from one solve: an `OptionError`."""
        raise _needs_factor("the weights along a path of noises")

    def tensors(self) -> dict[str, Tensor]:
        """Not without the data: an `OptionError`."""
        raise _needs_factor("storing a posterior")


def default_iterations(size: int, method: str) -> int:
    """Iterations that are more than enough for a problem of so many unknowns, were it not for rounding."""
    return max(1000, 2 * size) * (1 if method == "cg" else 20)


def _needs_factor(what: str) -> OptionError:
    return OptionError(
        f"{what} needs the factorised matrix of the weights, and this posterior was made by products alone: fit with "
        'solver="auto" or solver="closed_form".'
    )
