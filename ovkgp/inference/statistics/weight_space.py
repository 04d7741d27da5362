"""The posterior of finitely many weights, θ | y ~ N(C⁻¹ v, C⁻¹) with C = I + Φᵀ N⁻¹ Φ and v = Φᵀ N⁻¹ (y − m) (ID-1, 2, 3, 5).

    log p(y) = −½ [ (y − m)ᵀ N⁻¹ (y − m) − vᵀ C⁻¹ v + log det C + log det N + |y| log 2π ].

Everything comes from statistics of fixed size; the data are not needed any more.
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
from ovkgp.inference.statistics.factors import DenseFactor, KroneckerFactor, evidence_terms
from ovkgp.inference.statistics.statistics import Statistics


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """A, v, s, log det N and the number of observed entries.

    Args:
        precision: A (r, r), or the pair S (M, M), T (q, q) of which it is the Kronecker product.
        moment: v (r,).
        square: s.
        log_noise: log det N.
        num_observed: the number of observed entries.
    """

    precision: Tensor | tuple[Tensor, Tensor]
    moment: Tensor
    square: Tensor
    log_noise: Tensor
    num_observed: int


def normal_equations(
    statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor
) -> NormalEquations:
    """The normal equations of some statistics, differentiable in all that they are made of.

    Args:
        statistics: of data that are not empty.
        template: Φ at any one point, which carries the factors.
        noise: Σ (p, p); not looked at where the statistics are weighted.
        coefficients: β (b, p).
    """
    if statistics.layout == "empty":
        raise InputError("there are no data in these statistics: add some first.")
    _require_fit(statistics, template, coefficients)
    make = {"shared": _shared, "by_output": _by_output, "whitened": _whitened}[statistics.layout]
    return make(statistics, template, noise, coefficients)


def _require_fit(statistics: Statistics, template: LinearOperator, coefficients: Tensor) -> None:
    is_whitened = statistics.layout == "whitened"
    parts = (template,) if is_whitened else getattr(template, "parts", (template,))
    num_scalar_features = sum(part.shape[-1] if is_whitened else part.features.shape[-1] for part in parts)
    if num_scalar_features != statistics.num_scalar_features:
        raise InputError(
            f"the statistics hold {statistics.num_scalar_features} features, but the feature map has {num_scalar_features}."
        )
    expected = (statistics.num_basis, statistics.num_outputs)
    if tuple(coefficients.shape) != expected:
        raise InputError(
            f"the mean's coefficients have shape {tuple(coefficients.shape)}; the statistics want {expected}."
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
    one = gram.new_ones(1, 1)
    outputs = [template.output(a) for a in range(statistics.num_outputs)]
    parts = [
        output.gram_from_scalar_features(output, scalar_features, one)
        for output, scalar_features in zip(outputs, gram[:, :M, :M], strict=True)
    ]
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
            "the noise is correlated between outputs, but these statistics were gathered for a diagonal one; gather them "
            'again with layout="whitened".'
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


STORED = ("weights", "log_density", "moment", "square", "log_noise")
"""The tensors of a system, apart from those of its factor."""


def weight_system(
    statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor
) -> WeightSystem:
    """The posterior of the weights from statistics.

    Args:
        statistics: as `gather` makes them.
        template: Φ at any one point, which carries the factors: `feature_map(X[:1])`.
        noise: Σ (p, p); not looked at where the statistics are weighted.
        coefficients: β (b, p) of the mean; (0, p) for a mean without a basis.

    Its `log_density` is differentiable in the factors, Σ, β and the statistics; nothing else is.

    Cost: O(r³) for r features, or O(M³ + q³) for one separable part with M waves and factor (p, q).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.statistics.accumulation import gather
        >>> from ovkgp.inference.model.mean_noise import output_mean
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> from ovkgp.inference.statistics.weight_space import weight_system
        >>> orff = ORFF(RBFKernel(ard_num_dims=1), 50, random_state=0)
        >>> mean, noise = output_mean("zero", 1), OutputNoise(0.01, 1)
        >>> X = torch.linspace(0, 6, 100, dtype=torch.float64).unsqueeze(-1)
        >>> statistics = gather(orff, mean, noise, observations(X, X.sin(), 1))
        >>> system = weight_system(statistics, orff(X[:1]), noise.matrix(), mean.coefficients)
        >>> bool(((orff(X) @ system.weights).unsqueeze(-1) - X.sin()).abs().max() < 0.1)
        True
    """
    equations = normal_equations(statistics, template, noise, coefficients)
    gain, weights, factor = evidence_terms(equations.precision, equations.moment)
    constant = equations.square + equations.log_noise + equations.num_observed * math.log(2 * math.pi)
    parts = equations.moment.detach(), equations.square.detach(), equations.log_noise.detach()
    return WeightSystem(factor, weights, (gain - constant) / 2, *parts, equations.num_observed)


class WeightSystem:
    """θ | y, and what follows from it for any process Φ_* θ; `weight_system` makes one.

    Attributes:
        weights: the posterior mean (r,).
        log_density: log p(y), with its graph where one was recorded.
        num_features: r.
    """

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
        return len(self.weights)

    @property
    def quadratic(self) -> Tensor:
        """(y − m)ᵀ (ΦΦᵀ + N)⁻¹ (y − m)."""
        return self.square - self.moment @ self.weights

    def variance(self, Phi: LinearOperator, form: str = "diag", num_outputs: int | None = None) -> Tensor:
        """Cov(Φ_* θ | y) = Φ_* C⁻¹ Φ_*ᵀ.

        Args:
            Phi: Φ_* (m·q) × r.
            form: "diag" gives (m, q), "output" (m, q, q), "full" (m·q, m·q).
            num_outputs: q; that of Φ_* where it is None.

        Cost: O(m q r²) time and O(m q r) memory; for one separable part O(m M (M + q) + m q p) and O(m (M + p)).
        """
        return self.factor.variance(Phi, form, Phi.num_outputs if num_outputs is None else num_outputs)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws of the weights, (k, r). O(k r²), or O(k M q (M + q)) for one separable part."""
        scores = torch.randn(self.num_features, k, generator=generator, dtype=self.weights.dtype)
        return self.weights + self.factor.half_solve(scores.to(self.weights.device)).mT

    def path(self, multipliers: Tensor | Sequence[float]) -> Tensor:
        """log p(y) with the noise multiplied by each of `multipliers` (k,), all from one eigendecomposition (BT-76).

        With A = Q diag(λ) Qᵀ and u = Qᵀ v, noise c·N has vᵀC⁻¹v = Σ u²/(c (c + λ)) and log det C = Σ log(1 + λ/c).
        """
        values, rotated = self.factor.spectrum(self.moment)
        c = torch.as_tensor(multipliers, dtype=values.dtype, device=values.device).unsqueeze(-1)
        gain = (rotated.square() / (c * (c + values)) - torch.log1p(values / c)).sum(-1)
        c = c.squeeze(-1)
        constant = self.square / c + self.log_noise + self.num_observed * (math.log(2 * math.pi) + c.log())
        return (gain - constant) / 2

    def path_weights(self, multiplier: float) -> Tensor:
        """The posterior mean of the weights (r,) with the noise multiplied by a number."""
        values, rotated = self.factor.spectrum(self.moment)
        return self.factor.unrotate(rotated / (multiplier + values))

    def at(self, multiplier: float) -> WeightSystem:
        """The system of the same data with the noise multiplied by a number, from the same eigendecomposition."""
        c = float(multiplier)
        log_density = self.path([c])[0]
        noise = self.log_noise + self.num_observed * math.log(c)
        parts = self.moment / c, self.square / c, noise, self.num_observed
        return WeightSystem(self.factor.at(c), self.path_weights(c), log_density, *parts)

    def rotated(self, multipliers: Tensor | Sequence[float]) -> tuple[KroneckerFactor, list[WeightSystem]]:
        """Φ and the weights in the eigenvectors of A: a factor that rotates Φ, and the system at each noise level.

        What depends on the level is then a division by the eigenvalues; the rotation is done once for all of them.
        """
        factor, (values, rotated) = self.factor.at(1.0), self.factor.spectrum(self.moment)
        systems = []
        for c, log_density in zip(map(float, multipliers), self.path(multipliers), strict=True):
            parts = rotated / c, self.square / c, self.log_noise + self.num_observed * math.log(c), self.num_observed
            level = KroneckerFactor(None, None, 1 + (factor.values - 1) / c)
            systems.append(WeightSystem(level, rotated / (c + values), log_density, *parts))
        return factor, systems

    def inverse_diagonal(self, Phi: LinearOperator, precision: Tensor) -> Tensor:
        """diag (ΦΦᵀ + N)⁻¹ = diag(N⁻¹ − N⁻¹ Φ C⁻¹ Φᵀ N⁻¹) at some rows of the data, (n, p), zero where missing.

        Args:
            Phi: Φ (n·p) × r of these rows.
            precision: N⁻¹ of each row between its seen outputs, zero elsewhere: (n, p, p), or (n, p) where diagonal.
        """
        num_outputs = precision.shape[1]
        if precision.dim() == 2:
            return precision - precision.square() * self.variance(Phi, "diag", num_outputs)
        explained = precision @ self.variance(Phi, "output", num_outputs) @ precision
        return (precision - explained).diagonal(dim1=-2, dim2=-1)

    def inverse_blocks(self, Phi: LinearOperator, precision: Tensor) -> Tensor:
        """The blocks of (ΦΦᵀ + N)⁻¹ between the outputs of each of some rows, (n, p, p), zero where missing.

        Args:
            Phi, precision: as for `inverse_diagonal`.
        """
        num_outputs = precision.shape[1]
        precision = torch.diag_embed(precision) if precision.dim() == 2 else precision
        return precision - precision @ self.variance(Phi, "output", num_outputs) @ precision

    def alpha(self, Phi: LinearOperator, precision: Tensor, residuals: Tensor) -> Tensor:
        """(ΦΦᵀ + N)⁻¹ (y − m) = N⁻¹ (y − m − Φ θ̂) at some rows of the data, (n, p), zero where missing.

        Args:
            Phi, precision: as for `inverse_diagonal`.
            residuals: y − m (n, p); NaN where missing.
        """
        remainder = torch.nan_to_num(residuals) - (Phi @ self.weights).unflatten(-1, (-1, residuals.shape[1]))
        return precision * remainder if precision.dim() == 2 else (precision @ remainder.unsqueeze(-1)).squeeze(-1)

    def tensors(self) -> dict[str, Tensor]:
        """All that `from_tensors` needs, to be stored bit for bit."""
        own = {name: getattr(self, name).detach() for name in STORED}
        return {**own, "num_observed": torch.tensor(self.num_observed), **self.factor.tensors()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> WeightSystem:
        """The inverse of `tensors`."""
        is_dense = "chol" in tensors
        factor, names = (DenseFactor, ("chol",)) if is_dense else (KroneckerFactor, ("U", "V", "values"))
        own = {name: tensors[name] for name in STORED}
        return cls(factor(*(tensors[name] for name in names)), **own, num_observed=int(tensors["num_observed"]))
