"""Shared statistics as whitened ones, for a stream with full noise in which an output goes missing later.

From ZᵀZ with Z = [φ, h, Y] and W = Σ⁻¹: Φᵀ N⁻¹ Φ as ever, Φᵀ N⁻¹ (h_k ⊗ e_a) from (φᵀh_k) ⊗ (W e_a), and so on; exact.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.inference.statistics import Statistics


def whitened(statistics: Statistics, template: LinearOperator, noise: Tensor, fingerprint: str) -> Statistics:
    """The statistics in the whitened layout, at the noise Σ (p, p); whitened ones as they are.

    Args:
        statistics: shared (and of complete outputs), or whitened already.
        template: Φ at any one point, which carries the factors.
        noise: Σ.
        fingerprint: of the whitened rows.
    """
    if statistics.layout != "shared":
        return statistics
    chol = torch.linalg.cholesky(noise)
    weight = torch.cholesky_inverse(chol).contiguous()  # LAPACK's is by columns, and `kron` cannot look at it
    M, b = statistics.num_waves, statistics.num_basis
    gram = statistics.gram
    to_basis = torch.einsum("mk,pa->mpka", gram[:M, M : M + b], weight).flatten(-2)  # (M, p, b·p)
    to_outputs = (gram[:M, M + b :] @ weight).unsqueeze(-1)  # (M, p, 1)
    moments = template.adjoint_from_waves(torch.cat([to_basis, to_outputs], -1))
    basis = torch.kron(gram[M : M + b, M : M + b].contiguous(), weight)
    cross = (gram[M : M + b, M + b :] @ weight).reshape(-1, 1)
    square = (gram[M + b :, M + b :] * weight).sum().reshape(1, 1)
    targets = torch.cat([torch.cat([basis, cross], 1), torch.cat([cross.mT, square], 1)])
    top = torch.cat([template.gram_from_waves(template, gram[:M, :M], weight), moments], 1)
    return replace(
        statistics,
        layout="whitened",
        gram=torch.cat([top, torch.cat([moments.mT, targets], 1)]),
        num_waves=template.shape[-1],
        log_noise=2 * statistics.num_rows * chol.diagonal().log().sum(),
        weighted=True,
        fingerprint=fingerprint,
        to_whitened=None,
    )
