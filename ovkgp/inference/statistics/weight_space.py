"""The posterior of weights, θ | y ~ N(C⁻¹ v, C⁻¹), C = I + Φᵀ N⁻¹ Φ and v = Φᵀ N⁻¹ (y − m) (ID-1, 2, 3, 5).

    log p(y) = −½ [ (y − m)ᵀ N⁻¹ (y − m) − vᵀ C⁻¹ v + log det C + log det N + |y| log 2π ].

Everything is computed from statistics of fixed size, without the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.statistics.accumulation import count_scalar_features
from ovkgp.inference.statistics.factors import DenseFactor, KroneckerFactor, evidence_terms
from ovkgp.inference.statistics.statistics import Statistics


def make_weight_system(
    statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor
) -> WeightSystem:
    """Compute the posterior of the weights from statistics, Φ at any point (`template`), Σ (p, p) and β (b, p).

    Only `log_density` is differentiable. O(r³) for r features, O(M³ + q³) for one separable part.
    """
    equations = make_normal_equations(statistics, template, noise, coefficients)
    gain, weights, factor = evidence_terms(equations.precision, equations.moment)
    constant = equations.square + equations.log_noise + equations.num_observed * math.log(2 * math.pi)
    parts = equations.moment.detach(), equations.square.detach(), equations.log_noise.detach()
    return WeightSystem(factor, weights, (gain - constant) / 2, *parts, equations.num_observed)


class WeightSystem:
    """Posterior of the weights θ given y, with mean `weights` (r,) and evidence `log_density`, and of any Φ_* θ."""

    def __init__(
        self,
        factor: DenseFactor | KroneckerFactor,
        weights: Tensor,
        log_density: Tensor,
        moment: Tensor,
        square: Tensor,
        log_noise: Tensor,
        num_observed: int,
    ):
        self.factor, self.weights, self.log_density = factor, weights, log_density
        self.moment, self.square, self.log_noise, self.num_observed = moment, square, log_noise, num_observed

    @property
    def num_features(self) -> int:
        """Number of features r."""
        return len(self.weights)

    @property
    def quadratic(self) -> Tensor:
        """(y − m)ᵀ (ΦΦᵀ + N)⁻¹ (y − m)."""
        return self.square - self.moment @ self.weights

    def variance(self, Phi: LinearOperator, form: str = "diag", num_outputs: int | None = None) -> Tensor:
        """Compute Cov(Φ_* θ given y) = Φ_* C⁻¹ Φ_*ᵀ as "diag" (m, q), "output" (m, q, q) or "full" (m·q, m·q)."""
        return self.factor.variance(Phi, form, Phi.num_outputs if num_outputs is None else num_outputs)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k weights, (k, r). Complexity: O(k r²), or O(k M q (M + q)) for one separable part."""
        scores = torch.randn(self.num_features, k, generator=generator, dtype=self.weights.dtype)
        return self.weights + self.factor.half_solve(scores.to(self.weights.device)).mT

    def path(self, multipliers: Tensor | Sequence[float]) -> Tensor:
        """Compute log p(y) with the noise multiplied by each of `multipliers` (k,), from one decomposition (BT-76)."""
        # with A = Q diag(λ) Qᵀ and u = Qᵀ v, noise c·N has vᵀC⁻¹v = Σ u²/(c (c + λ)) and log det C = Σ log(1 + λ/c)
        values, rotated = self.factor.spectrum(self.moment)
        c = torch.as_tensor(multipliers, dtype=values.dtype, device=values.device).unsqueeze(-1)
        gain = (rotated.square() / (c * (c + values)) - torch.log1p(values / c)).sum(-1)
        c = c.squeeze(-1)
        constant = self.square / c + self.log_noise + self.num_observed * (math.log(2 * math.pi) + c.log())
        return (gain - constant) / 2

    def path_weights(self, multiplier: float) -> Tensor:
        """Compute the posterior mean of the weights (r,) with the noise multiplied by a number."""
        values, rotated = self.factor.spectrum(self.moment)
        return self.factor.unrotate(rotated / (multiplier + values))

    def scale_noise(self, multiplier: float) -> WeightSystem:
        """Compute the system with the noise multiplied by a number, from the same eigendecomposition."""
        c = float(multiplier)
        log_density = self.path([c])[0]
        noise = self.log_noise + self.num_observed * math.log(c)
        parts = self.moment / c, self.square / c, noise, self.num_observed
        return WeightSystem(self.factor.scale_noise(c), self.path_weights(c), log_density, *parts)

    def to_eigenbasis(self, multipliers: Tensor | Sequence[float]) -> tuple[KroneckerFactor, list[WeightSystem]]:
        """Return a factor that rotates Φ to the eigenvectors of A, and the system in these at each noise level."""
        factor, (values, rotated) = self.factor.scale_noise(1.0), self.factor.spectrum(self.moment)
        systems = []
        for c, log_density in zip(map(float, multipliers), self.path(multipliers), strict=True):
            parts = rotated / c, self.square / c, self.log_noise + self.num_observed * math.log(c), self.num_observed
            level = KroneckerFactor(None, None, 1 + (factor.values - 1) / c)
            systems.append(WeightSystem(level, rotated / (c + values), log_density, *parts))
        return factor, systems

    def inverse_diagonal(self, Phi: LinearOperator, precision: Tensor) -> Tensor:
        """Compute diag (ΦΦᵀ + N)⁻¹ at some rows, (n, p), from their Φ and N⁻¹ (n, p, p), or (n, p) if diagonal."""
        num_outputs = precision.shape[1]
        if precision.dim() == 2:
            return precision - precision.square() * self.variance(Phi, "diag", num_outputs)
        explained = precision @ self.variance(Phi, "output", num_outputs) @ precision
        return (precision - explained).diagonal(dim1=-2, dim2=-1)

    def inverse_blocks(self, Phi: LinearOperator, precision: Tensor) -> Tensor:
        """Compute the blocks (n, p, p) of (ΦΦᵀ + N)⁻¹ between the outputs of each row, as for `inverse_diagonal`."""
        num_outputs = precision.shape[1]
        precision = torch.diag_embed(precision) if precision.dim() == 2 else precision
        return precision - precision @ self.variance(Phi, "output", num_outputs) @ precision

    def inverse_block(self, Phi: LinearOperator, precision: Tensor) -> Tensor:
        """Compute the block (m·p, m·p) of (ΦΦᵀ + N)⁻¹ between all entries of some rows, as for `inverse_diagonal`."""
        num_outputs = precision.shape[1]
        total = torch.diag(precision.flatten()) if precision.dim() == 2 else torch.block_diag(*precision)
        return total - total @ self.variance(Phi, "full", num_outputs) @ total

    def alpha(self, Phi: LinearOperator, precision: Tensor, residuals: Tensor) -> Tensor:
        """Compute (ΦΦᵀ + N)⁻¹ (y − m) = N⁻¹ (y − m − Φ θ̂) at some rows, (n, p), from `residuals` y − m (n, p)."""
        gap = torch.nan_to_num(residuals) - (Phi @ self.weights).unflatten(-1, (-1, residuals.shape[1]))
        return precision * gap if precision.dim() == 2 else (precision @ gap.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """A (r, r), or S (M, M) and T (q, q) with A = S ⊗ T, v (r,), s = (y − m)ᵀ N⁻¹ (y − m), and log det N."""

    precision: Tensor | tuple[Tensor, Tensor]
    moment: Tensor
    square: Tensor
    log_noise: Tensor
    num_observed: int


def make_normal_equations(
    statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor
) -> NormalEquations:
    """Make the normal equations of statistics, differentiable in all inputs; arguments as in `make_weight_system`."""
    if statistics.layout == "empty":
        raise InputError("The statistics have no data. Add some first.")
    _check_dimensions(statistics, template, coefficients)
    make = {"shared": _shared, "by_output": _by_output, "whitened": _whitened}[statistics.layout]
    return make(statistics, template, noise, coefficients)


def _check_dimensions(statistics: Statistics, template: LinearOperator, coefficients: Tensor) -> None:
    num_scalar_features = count_scalar_features(template, statistics.layout)
    if num_scalar_features != statistics.num_scalar_features:
        raise InputError(
            f"The feature map has {num_scalar_features} scalar features, but the statistics have {statistics.num_scalar_features}."
        )
    expected = (statistics.num_basis, statistics.num_outputs)
    if tuple(coefficients.shape) != expected:
        raise InputError(
            f"The coefficients of the mean have shape {tuple(coefficients.shape)}, expected {expected} for these statistics."
        )


def _shared(statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor) -> NormalEquations:
    chol = torch.linalg.cholesky(noise)
    weight, M = torch.cholesky_inverse(chol), statistics.num_scalar_features
    scalar_features, targets, scatter = statistics.gram[:M, :M], statistics.gram[:M, M:], statistics.gram[M:, M:]
    eye = torch.eye(statistics.num_outputs, dtype=noise.dtype, device=noise.device)
    residual = torch.cat([-coefficients, eye])  # [h, Y] @ residual = Y − hβ
    projections = targets @ residual @ weight  # (M, p)
    return NormalEquations(
        precision=_precision(template, scalar_features, weight),
        moment=template.adjoint_from_scalar_features(projections.unsqueeze(-1)).squeeze(-1),
        square=((residual.mT @ scatter @ residual) * weight).sum(),
        log_noise=2 * statistics.num_rows * chol.diagonal().log().sum(),
        num_observed=statistics.num_rows * statistics.num_outputs,
    )


def _precision(template: LinearOperator, scalar_features: Tensor, weight: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    if isinstance(template, FeatureOperator) and template.is_separable:
        output = template.factor.mT @ weight @ template.factor
        return scalar_features * output if output.numel() == 1 else (scalar_features, output)
    return template.gram_from_scalar_features(template, scalar_features, weight)


def _by_output(
    statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor
) -> NormalEquations:
    variances = torch.ones_like(noise.diagonal()) if statistics.weighted else _diagonal(noise)
    M, gram = statistics.num_scalar_features, statistics.gram / variances[:, None, None]
    ones = coefficients.new_ones(statistics.num_outputs, 1)
    residual = torch.cat([-coefficients.mT, ones], 1).unsqueeze(-1)  # (p, b + 1, 1)
    projections = (gram[:, :M, M:] @ residual).squeeze(-1).mT  # (M, p)
    pairs = [(template.output(a), gram[a, :M, :M]) for a in range(statistics.num_outputs)]
    parts = [output.gram_from_scalar_features(output, part, gram.new_ones(1, 1)) for output, part in pairs]
    return NormalEquations(
        precision=sum(parts[1:], parts[0]),
        moment=template.adjoint_from_scalar_features(projections.unsqueeze(-1)).squeeze(-1),
        square=(residual.mT @ gram[:, M:, M:] @ residual).sum(),
        log_noise=statistics.log_noise + statistics.num_observed.to(variances) @ variances.log(),
        num_observed=int(statistics.num_observed.sum()),
    )


def _diagonal(noise: Tensor) -> Tensor:
    if bool((noise.detach() - torch.diag_embed(noise.detach().diagonal())).any()):
        raise InputError(
            "Noise that is correlated between outputs is not supported with these statistics, computed for diagonal "
            "noise. "
            'Compute them with layout="whitened".'
        )
    return noise.diagonal()


def _whitened(statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor) -> NormalEquations:
    r, gram = statistics.num_scalar_features, statistics.gram
    residual = torch.cat([-coefficients.flatten(), coefficients.new_ones(1)])
    return NormalEquations(
        precision=gram[:r, :r],
        moment=gram[:r, r:] @ residual,
        square=residual @ gram[r:, r:] @ residual,
        log_noise=statistics.log_noise,
        num_observed=int(statistics.num_observed.sum()),
    )
