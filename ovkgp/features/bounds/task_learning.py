"""What learning a continuum of tasks guarantees: stability, sizes, risks, and the error of sampling the tasks (LT-110..115).

For h with the kernel k_X · k_Θ, κ_X² ≥ k_X(x, x) and κ_Θ² ≥ k_Θ(θ, θ), that minimises (1/n) Σ_i L(h(x_i), y_i) + λ ‖h‖²: here λ multiplies ‖h‖²
without a half, so it is **half** the λ of the canonical objective. L integrates the pinball loss of |y| ≤ B (loss="pinball"), or the
cost-sensitive hinge loss (loss="hinge"), over a probability measure of tasks.
"""

from __future__ import annotations

import math

from ovkgp.features.bounds.checks import nonnegative, one_of, positive, probability
from ovkgp.kernels.checks import whole_number

LOSSES = ("pinball", "hinge")


def task_stability(num_rows: int, lam: float, *, kappa_x: float = 1.0, kappa_task: float = 1.0) -> float:
    """β = κ_Θ² κ_X² / (2 λ n): by how much a loss at any point changes when one row is taken away (LT-112).

    Both losses are κ_Θ-Lipschitz in h(x); the thesis takes 2κ_Θ for the pinball loss, which is four times looser (LT-E-31).

    Example:
        >>> from ovkgp.features.bounds import task_stability
        >>> task_stability(100, 0.01)
        0.5
    """
    kappa = nonnegative("kappa_x", kappa_x) * nonnegative("kappa_task", kappa_task)
    return kappa**2 / (2 * positive("lam", lam) * whole_number("num_rows", num_rows))


def task_value_bound(
    lam: float, *, loss: str = "pinball", target: float = 1.0, kappa_x: float = 1.0, kappa_task: float = 1.0
) -> float:
    """|h(x)(θ)| ≤ κ_X κ_Θ √(B/λ) for quantiles, κ_X κ_Θ / √λ for the hinge loss (LT-113, LT-114).

    Because J(h) ≤ J(0) ≤ B, or ≤ 1.

    Args:
        lam: λ.
        loss: "pinball" or "hinge".
        target: B ≥ |y|; of no meaning to the hinge loss.

    Example:
        >>> from ovkgp.features.bounds import task_value_bound
        >>> task_value_bound(0.25, target=4.0)
        4.0
    """
    one_of("loss", loss, LOSSES)
    size = nonnegative("target", target) if loss == "pinball" else 1.0
    return (
        nonnegative("kappa_x", kappa_x) * nonnegative("kappa_task", kappa_task) * math.sqrt(size / positive("lam", lam))
    )


def task_loss_bound(
    lam: float, *, loss: str = "pinball", target: float = 1.0, kappa_x: float = 1.0, kappa_task: float = 1.0
) -> float:
    """ξ, the largest loss of the fit: 2(B + κ_X κ_Θ √(B/λ)) for quantiles, 1 + κ_X κ_Θ/√λ for the hinge loss (LT-113, LT-114).

    Example:
        >>> from ovkgp.features.bounds import task_loss_bound
        >>> task_loss_bound(0.25, target=4.0), task_loss_bound(0.25, loss="hinge")
        (16.0, 3.0)
    """
    size = task_value_bound(lam, loss=loss, target=target, kappa_x=kappa_x, kappa_task=kappa_task)
    return 2 * (target + size) if loss == "pinball" else 1 + size


def task_generalization_bound(
    empirical_risk: float,
    num_rows: int,
    lam: float,
    *,
    loss: str = "pinball",
    target: float = 1.0,
    kappa_x: float = 1.0,
    kappa_task: float = 1.0,
    delta: float = 0.05,
    form: str = "thesis",
) -> float:
    """R(h) ≤ R_emp(h) + …, with probability at least 1 − δ (LT-110, LT-111).

    "thesis" is the bound (5.15) and its sibling for the hinge loss: 2β + (4nβ + ξ) √(ln(1/δ)/n) with Lipschitz constants 2κ_Θ and κ_Θ.
    "tight" has the constant κ_Θ for both and the factor √(ln(1/δ)/(2n)) of Bousquet and Elisseeff. "sharp" is Bousquet, Klochkov and Zhivotovskiy's
    12√2 e β log₂(n) ln(e/δ) + 4e ξ √(ln(e/δ)/n), better for small λ n and large n.

    Args:
        empirical_risk: the mean loss on the training set.
        num_rows: n.
        lam: λ, see the module.
        form: "thesis", "tight" or "sharp".

    Example:
        >>> from ovkgp.features.bounds import task_generalization_bound
        >>> tight = task_generalization_bound(0.2, 1000, 0.5, form="tight")
        >>> 0.2 < tight < task_generalization_bound(0.2, 1000, 0.5)
        True
    """
    one_of("form", form, ("thesis", "tight", "sharp"))
    n, delta = whole_number("num_rows", num_rows), probability("delta", delta)
    risk = nonnegative("empirical_risk", empirical_risk)
    beta = task_stability(n, lam, kappa_x=kappa_x, kappa_task=kappa_task)
    largest = task_loss_bound(lam, loss=loss, target=target, kappa_x=kappa_x, kappa_task=kappa_task)
    if form == "sharp":
        log = math.log(math.e / delta)
        return risk + 12 * math.sqrt(2) * math.e * beta * math.log2(n) * log + 4 * math.e * largest * math.sqrt(log / n)
    beta *= 4 if form == "thesis" and loss == "pinball" else 1
    rate = math.sqrt(math.log(1 / delta) / (n if form == "thesis" else 2 * n))
    return risk + 2 * beta + (4 * n * beta + largest) * rate


def task_sampling_bound(
    discrepancy: float,
    lam: float,
    *,
    target: float = 1.0,
    kappa_x: float = 1.0,
    kappa_task: float = 1.0,
    slope: float = 1.0,
) -> float:
    """|R − R̃| ≤ V D*: how far the pinball risk on sampled levels may be from the integral over all (LT-115).

    V = B + κ_X κ_Θ √(B/λ) + κ_X √(B/λ) sup_θ √(∂₁∂₂k_Θ(θ, θ)) bounds the variation of θ ↦ ρ_θ(y − h(x)(θ)). The thesis' own bound rests on two steps
    that do not hold: a sum of square roots of cells that grows with their number (LT-E-32), and log(m)/m for the discrepancy (LT-E-33).

    Args:
        discrepancy: D* of the levels, see `ovkgp.losses.star_discrepancy`.
        lam: λ, see the module.
        target: B ≥ |y|.
        slope: sup_θ √(∂₁∂₂k_Θ(θ, θ)); 1/ℓ for a Gaussian kernel of lengthscale ℓ.

    Example:
        >>> from ovkgp.features.bounds import task_sampling_bound
        >>> task_sampling_bound(0.075, 1.0, slope=2.0)
        0.3
    """
    size = task_value_bound(lam, target=target, kappa_x=kappa_x, kappa_task=1.0)
    variation = target + size * (nonnegative("kappa_task", kappa_task) + nonnegative("slope", slope))
    return variation * nonnegative("discrepancy", discrepancy)
