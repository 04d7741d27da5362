"""Risk bounds for learning a continuum of tasks (LT-110..115).

They are for h with the kernel k_X · k_Θ, κ_X² ≥ k_X(x, x) and κ_Θ² ≥ k_Θ(θ, θ), that minimizes (1/n) Σ_i L(h(x_i),
y_i) + λ ‖h‖²: λ multiplies ‖h‖² without a half, so it is **half** the λ of the canonical objective. L integrates the
pinball loss of |y| ≤ B, or the cost-sensitive hinge loss, over a probability measure of tasks.
"""

from __future__ import annotations

import math

from ovkgp.checks import check_integer, check_nonnegative, check_one_of, check_positive, check_probability

TASK_LOSSES = ("pinball", "hinge")


def task_stability(num_rows: int, lam: float, *, kappa_x: float = 1.0, kappa_task: float = 1.0) -> float:
    """Return β = κ_Θ² κ_X² / (2 λ n), the largest change of a loss when one row is removed (LT-112).

    Both losses are κ_Θ-Lipschitz in h(x); the thesis takes 2κ_Θ for the pinball loss, which is four times looser
    (LT-E-31).

    Parameters
    ----------
    num_rows : int
        Number n of rows.
    lam : float
        λ, half of the canonical one.
    kappa_x, kappa_task : float, default=1.0
        κ_X and κ_Θ, roots of bounds on k_X(x, x) and k_Θ(θ, θ).

    Returns
    -------
    float
        Stability β.

    Examples
    --------
    >>> from ovkgp.features.bounds import task_stability
    >>> task_stability(100, 0.01)
    0.5
    """
    kappa = check_nonnegative("kappa_x", kappa_x) * check_nonnegative("kappa_task", kappa_task)
    return kappa**2 / (2 * check_positive("lam", lam) * check_integer("num_rows", num_rows))


def task_value_bound(
    lam: float, *, loss: str = "pinball", target: float = 1.0, kappa_x: float = 1.0, kappa_task: float = 1.0
) -> float:
    """Return the bound |h(x)(θ)| ≤ κ_X κ_Θ √(B/λ) for quantiles, κ_X κ_Θ / √λ for the hinge loss (LT-113, LT-114).

    It holds because J(h) ≤ J(0) ≤ B, or ≤ 1.

    Parameters
    ----------
    lam, kappa_x, kappa_task
        As for `task_stability`.
    loss : {"pinball", "hinge"}, default="pinball"
        Loss of a task.
    target : float, default=1.0
        B ≥ |y|. Ignored for the hinge loss.

    Returns
    -------
    float
        Bound on the values of h.

    Examples
    --------
    >>> from ovkgp.features.bounds import task_value_bound
    >>> task_value_bound(0.25, target=4.0)
    4.0
    """
    check_one_of("loss", loss, TASK_LOSSES)
    size = check_nonnegative("target", target) if loss == "pinball" else 1.0
    kappa = check_nonnegative("kappa_x", kappa_x) * check_nonnegative("kappa_task", kappa_task)
    return kappa * math.sqrt(size / check_positive("lam", lam))


def task_loss_bound(
    lam: float, *, loss: str = "pinball", target: float = 1.0, kappa_x: float = 1.0, kappa_task: float = 1.0
) -> float:
    """Return a bound on the loss, 2(B + κ_X κ_Θ √(B/λ)) for quantiles, 1 + κ_X κ_Θ/√λ for the hinge loss (LT-113, 114).

    Parameters
    ----------
    lam, loss, target, kappa_x, kappa_task
        As in `task_value_bound`.

    Returns
    -------
    float
        Bound ξ on the loss.

    Examples
    --------
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
    """Return a bound on R(h) that holds with probability at least 1 − δ (LT-110, LT-111).

    Parameters
    ----------
    empirical_risk, num_rows, delta
        As in `generalization_bound`.
    lam, loss, target, kappa_x, kappa_task
        As in `task_value_bound`.
    form : {"thesis", "tight", "sharp"}, default="thesis"
        "thesis" is the bound (5.15) and its analogue for the hinge loss: 2β + (4nβ + ξ) √(ln(1/δ)/n) with Lipschitz
        constants 2κ_Θ and κ_Θ. "tight" has the constant κ_Θ for both and the factor √(ln(1/δ)/(2n)) of Bousquet and
        Elisseeff. "sharp" is that of Bousquet, Klochkov and Zhivotovskiy, 12√2 e β log₂(n) ln(e/δ) + 4e ξ √(ln(e/δ)/n),
        better for small λ n and large n.

    Returns
    -------
    float
        Bound on the risk.

    Examples
    --------
    >>> from ovkgp.features.bounds import task_generalization_bound
    >>> tight = task_generalization_bound(0.2, 1000, 0.5, form="tight")
    >>> 0.2 < tight < task_generalization_bound(0.2, 1000, 0.5)
    True
    """
    check_one_of("form", form, ("thesis", "tight", "sharp"))
    n, delta = check_integer("num_rows", num_rows), check_probability("delta", delta)
    risk = check_nonnegative("empirical_risk", empirical_risk)
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
    """Return the bound |R − R̃| ≤ V D* between the pinball risk over all levels and over sampled levels (LT-115).

    V = B + κ_X κ_Θ √(B/λ) + κ_X √(B/λ) sup_θ √(∂₁∂₂k_Θ(θ, θ)) bounds the variation of θ ↦ ρ_θ(y − h(x)(θ)). The bound
    of the thesis rests on two steps that do not hold: a sum of square roots of cells that grows with their number
    (LT-E-32), and log(m)/m for the discrepancy (LT-E-33).

    Parameters
    ----------
    discrepancy : float
        D* of the levels, see `ovkgp.losses.star_discrepancy`.
    lam, target, kappa_x, kappa_task : float
        As in `task_value_bound`.
    slope : float, default=1.0
        sup_θ √(∂₁∂₂k_Θ(θ, θ)); 1/ℓ for a Gaussian kernel of lengthscale ℓ.

    Returns
    -------
    float
        Bound on the difference of the risks.

    Examples
    --------
    >>> from ovkgp.features.bounds import task_sampling_bound
    >>> task_sampling_bound(0.075, 1.0, slope=2.0)
    0.3
    """
    size = task_value_bound(lam, target=target, kappa_x=kappa_x, kappa_task=1.0)
    variation = target + size * (check_nonnegative("kappa_task", kappa_task) + check_nonnegative("slope", slope))
    return variation * check_nonnegative("discrepancy", discrepancy)
