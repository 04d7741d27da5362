"""The mixed regulariser of L²(μ) and the RKHS of the inputs: each task pays for its own function of x (LT-64).

    Ω(h) = ½ Σ_j η_j ‖h(·)(θ_j)‖²_{k_X} = ½ Σ_j η_j ‖W ψ_j‖²,      λ_min(K_Θ) min_j η_j ‖h‖² ≤ 2 Ω(h) ≤ Σ_j η_j k_Θ(θ_j, θ_j) ‖h‖²

for h(x)(θ) = φ(x)ᵀWψ(θ) (LT-117, LT-118); the lower bound holds for h in the span of the nodes. It does not see how tasks are alike: k_Θ
only joins what was learned at the nodes. `one_class` has it with w_j = Wψ_j for its unknowns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError

CUTOFF = 1e-12
"""Directions of the tasks below this part of the largest are not seen by the nodes."""


def section_norms(weights: Tensor, tasks: Tensor) -> Tensor:
    """‖h(·)(θ_j)‖², (m,), in the RKHS of the inputs.

    Args:
        weights: W (r, q).
        tasks: Ψ (m, q).

    Cost: O(r q m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.mixed_norm import section_norms
        >>> section_norms(torch.eye(2), torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
        tensor([ 1., 25.])
    """
    if weights.dim() != 2 or tasks.dim() != 2 or weights.shape[1] != tasks.shape[1]:
        raise InputError(
            f"weights must be (r, q) and tasks (m, q) with the same q; got {tuple(weights.shape)} and {tuple(tasks.shape)}."
        )
    return (weights @ tasks.T).square().sum(0)


def mixed_norm(weights: Tensor, tasks: Tensor, measure_weights: Tensor) -> Tensor:
    """Ω(h), which autograd can differentiate.

    Args:
        weights: W (r, q).
        tasks: Ψ (m, q) at the nodes.
        measure_weights: η (m,).

    Cost: O(r q m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.mixed_norm import mixed_norm
        >>> mixed_norm(torch.eye(2), torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([0.5, 0.5])).item()
        6.5
    """
    norms = section_norms(weights, tasks)
    if measure_weights.shape != norms.shape:
        raise InputError(f"measure_weights must be ({len(norms)},), one a task; got {tuple(measure_weights.shape)}.")
    return (measure_weights * norms).sum() / 2


def mixed_coordinates(tasks: Tensor, measure_weights: Tensor) -> Tensor:
    """C (q, k) with which Ψ C are coordinates of the tasks where Ω(h) = ½ ‖V‖², W = V Cᵀ.

    A `TaskProblem` with the tasks Ψ C has (λ/2) Σ_j η_j ‖h(·)(θ_j)‖² for its penalty, and every solver works on it. C = U S^(−1/2) from
    the eigenpairs ΨᵀηΨ = U S Uᵀ above a cutoff: functions of the tasks that vanish at all nodes cost nothing and are left out.

    Args:
        tasks: Ψ (m, q).
        measure_weights: η (m,) ≥ 0.

    Cost: O(m q² + q³).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.mixed_norm import mixed_coordinates, mixed_norm
        >>> tasks, eta = torch.tensor([[1.0, 0.0], [3.0, 4.0]]).double(), torch.tensor([0.25, 0.75]).double()
        >>> C, V = mixed_coordinates(tasks, eta), torch.tensor([[1.0, 2.0]]).double()
        >>> round(mixed_norm(V @ C.T, tasks, eta).item(), 9)  # ½ ‖V‖²
        2.5
    """
    values, vectors = torch.linalg.eigh((measure_weights[:, None] * tasks).T @ tasks)
    if not bool(values[-1] > 0):
        raise FactorizationError("all tasks are zero where they have weight: there is nothing to learn at the nodes.")
    keep = values > CUTOFF * values[-1]
    return vectors[:, keep] / values[keep].sqrt()
