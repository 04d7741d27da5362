"""Mixed regularizer of L²(μ) and the RKHS of the inputs: a separate penalty for the function of each task (LT-64).

    Ω(h) = ½ Σ_j η_j ‖h(·)(θ_j)‖²_{k_X} = ½ Σ_j η_j ‖W ψ_j‖²,
    λ_min(K_Θ) min_j η_j ‖h‖² ≤ 2 Ω(h) ≤ Σ_j η_j k_Θ(θ_j, θ_j) ‖h‖²

for h(x)(θ) = φ(x)ᵀWψ(θ) (LT-117, LT-118); the lower bound holds for h in the span of the nodes. Ω does not couple
tasks: k_Θ only interpolates between the nodes. `one_class` uses it with the unknowns w_j = Wψ_j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError

EIGENVALUE_CUTOFF = 1e-12  # task directions with eigenvalues below this fraction of the largest are dropped


def section_norms(weights: Tensor, tasks: Tensor) -> Tensor:
    """Return ‖h(·)(θ_j)‖², (m,), in the RKHS of the inputs, for W (r, q) and Ψ (m, q). O(r q m)."""
    if weights.dim() != 2 or tasks.dim() != 2 or weights.shape[1] != tasks.shape[1]:
        raise InputError(
            f"weights must have shape (r, q) and tasks (m, q) with the same q, got {tuple(weights.shape)} and {tuple(tasks.shape)}."
        )
    return (weights @ tasks.T).square().sum(0)


def mixed_norm(weights: Tensor, tasks: Tensor, measure_weights: Tensor) -> Tensor:
    """Return Ω(h), differentiable by autograd, for W (r, q), Ψ (m, q) at the nodes and η (m,). O(r q m)."""
    norms = section_norms(weights, tasks)
    if measure_weights.shape != norms.shape:
        raise InputError(f"measure_weights must have shape ({len(norms)},), got {tuple(measure_weights.shape)}.")
    return (measure_weights * norms).sum() / 2


def mixed_coordinates(tasks: Tensor, measure_weights: Tensor) -> Tensor:
    """Return C (q, k) such that with task coordinates Ψ C the regularizer is Ω(h) = ½ ‖V‖², W = V Cᵀ.

    A `TaskProblem` with the tasks Ψ C has the penalty (λ/2) Σ_j η_j ‖h(·)(θ_j)‖², for every solver. C = U S^(−1/2) from
    the eigenpairs ΨᵀηΨ = U S Uᵀ above a cutoff; functions of the tasks that vanish at all nodes have no penalty and are
    omitted. O(m q² + q³).
    """
    values, vectors = torch.linalg.eigh((measure_weights[:, None] * tasks).T @ tasks)
    if not bool(values[-1] > 0):
        raise FactorizationError(
            "The task coordinates are zero at all nodes with positive weight. Check the task kernel and the measure."
        )
    keep = values > EIGENVALUE_CUTOFF * values[-1]
    return vectors[:, keep] / values[keep].sqrt()
