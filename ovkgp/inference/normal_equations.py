"""From statistics to the posterior of the weights θ ~ N(0, I): all that it needs of the data (BT-72, BT-74).

    A = Φᵀ N⁻¹ Φ (r, r),    v = Φᵀ N⁻¹ (y − Hβ) (r,),    s = (y − Hβ)ᵀ N⁻¹ (y − Hβ),    log det N,

with the factors of Φ, the noise and the mean's coefficients β put in afterwards where the layout allows it. For one
separable part, A = S ⊗ T with S = φᵀφ (M, M) and T = Bᵀ Σ⁻¹ B, and is not formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.statistics import Statistics


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """A, v, s, log det N and the number of observed entries.

    Args:
        precision: A (r, r), or the pair S (M, M), T (q, q) of which it is the Kronecker product.
        moment: v (r,).
        square: s.
        log_noise: log det N.
        num_seen: the number of observed entries.
    """

    precision: Tensor | tuple[Tensor, Tensor]
    moment: Tensor
    square: Tensor
    log_noise: Tensor
    num_seen: int


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
    num_waves = sum(part.shape[-1] if is_whitened else part.features.shape[-1] for part in parts)
    if num_waves != statistics.num_waves:
        raise InputError(f"the statistics hold {statistics.num_waves} features, but the feature map has {num_waves}.")
    expected = (statistics.num_basis, statistics.num_outputs)
    if tuple(coefficients.shape) != expected:
        raise InputError(
            f"the mean's coefficients have shape {tuple(coefficients.shape)}; the statistics want {expected}."
        )


def _shared(statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor) -> NormalEquations:
    chol = torch.linalg.cholesky(noise)
    weight, M = torch.cholesky_inverse(chol), statistics.num_waves
    waves, targets, scatter = statistics.gram[:M, :M], statistics.gram[:M, M:], statistics.gram[M:, M:]
    eye = torch.eye(statistics.num_outputs, dtype=noise.dtype, device=noise.device)
    residual = torch.cat([-coefficients, eye])  # [h, Y] @ residual = Y − hβ
    projections = targets @ residual @ weight  # (M, p)
    return NormalEquations(
        precision=_precision(template, waves, weight),
        moment=template.adjoint_from_waves(projections.unsqueeze(-1)).squeeze(-1),
        square=((residual.mT @ scatter @ residual) * weight).sum(),
        log_noise=2 * statistics.num_rows * chol.diagonal().log().sum(),
        num_seen=statistics.num_rows * statistics.num_outputs,
    )


def _precision(template: LinearOperator, waves: Tensor, weight: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    if isinstance(template, FeatureOperator) and template.is_separable:
        output = template.factor.mT @ weight @ template.factor
        return waves * output if output.numel() == 1 else (waves, output)
    return template.gram_from_waves(template, waves, weight)


def _by_output(
    statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor
) -> NormalEquations:
    variances = torch.ones_like(noise.diagonal()) if statistics.weighted else _diagonal(noise)
    M, gram = statistics.num_waves, statistics.gram / variances[:, None, None]
    ones = coefficients.new_ones(statistics.num_outputs, 1)
    residual = torch.cat([-coefficients.mT, ones], 1).unsqueeze(-1)  # (p, b + 1, 1)
    projections = (gram[:, :M, M:] @ residual).squeeze(-1).mT  # (M, p)
    one = gram.new_ones(1, 1)
    outputs = [template.output(a) for a in range(statistics.num_outputs)]
    parts = [output.gram_from_waves(output, waves, one) for output, waves in zip(outputs, gram[:, :M, :M], strict=True)]
    return NormalEquations(
        precision=sum(parts[1:], parts[0]),
        moment=template.adjoint_from_waves(projections.unsqueeze(-1)).squeeze(-1),
        square=(residual.mT @ gram[:, M:, M:] @ residual).sum(),
        log_noise=statistics.log_noise + statistics.num_seen.to(variances) @ variances.log(),
        num_seen=int(statistics.num_seen.sum()),
    )


def _diagonal(noise: Tensor) -> Tensor:
    if bool((noise.detach() - torch.diag_embed(noise.detach().diagonal())).any()):
        raise InputError(
            "the noise is correlated between outputs, but these statistics were gathered for a diagonal one; gather them "
            'again with layout="whitened".'
        )
    return noise.diagonal()


def _whitened(statistics: Statistics, template: LinearOperator, noise: Tensor, coefficients: Tensor) -> NormalEquations:
    r, gram = statistics.num_waves, statistics.gram
    residual = torch.cat([-coefficients.flatten(), coefficients.new_ones(1)])
    return NormalEquations(
        precision=gram[:r, :r],
        moment=gram[:r, r:] @ residual,
        square=residual @ gram[r:, r:] @ residual,
        log_noise=statistics.log_noise,
        num_seen=int(statistics.num_seen.sum()),
    )
