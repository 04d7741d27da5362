"""What learning a continuum of tasks guarantees: stability, sizes, risks, and the error of sampling the tasks (LT-110..115).

For h with the kernel k_X · k_Θ, κ_X² ≥ k_X(x, x) and κ_Θ² ≥ k_Θ(θ, θ), that minimises (1/n) Σ_i L(h(x_i), y_i) + λ ‖h‖²: here λ multiplies ‖h‖²
without a half, so it is **half** the λ of the canonical objective. L integrates the pinball loss of |y| ≤ B (loss="pinball"), or the
cost-sensitive hinge loss (loss="hinge"), over a probability measure of tasks.
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel

from ovkgp.checks import VARIANTS, check_integer, nonnegative, one_of, positive, probability
from ovkgp.exceptions import OptionError
from ovkgp.features.bounds.constants import spectral_constants


def generalization_bound(
    empirical_risk: float,
    num_rows: int,
    *,
    lipschitz: float,
    norm_bound: float,
    trace: float,
    cost_bound: float,
    delta: float = 0.05,
) -> float:
    """The Rademacher bound (7.2), R(f) ≤ R_emp(f) + 2√(2/N) (L M √T + C √ln(2/δ)), for all ‖f‖_K ≤ M at once.

    As printed; there is nothing to correct in it. For ridge regression see `ridge_generalization_bound`.

    Args:
        empirical_risk: the mean cost on the training set.
        num_rows: N.
        lipschitz: L, the Lipschitz constant of the cost in f(x).
        norm_bound: M, on the norm of f.
        trace: T ≥ Tr K(x, x).
        cost_bound: C; the cost takes values in [0, C].
        delta: the probability with which the bound may fail.

    Example:
        >>> from ovkgp.features.bounds import generalization_bound
        >>> round(generalization_bound(0.1, 10_000, lipschitz=1.0, norm_bound=1.0, trace=1.0, cost_bound=1.0), 4)
        0.1826
    """
    num_rows, delta = check_integer("num_rows", num_rows), probability("delta", delta)
    risk = nonnegative("empirical_risk", empirical_risk)
    capacity = nonnegative("lipschitz", lipschitz) * nonnegative("norm_bound", norm_bound)
    capacity *= math.sqrt(nonnegative("trace", trace))
    spread = nonnegative("cost_bound", cost_bound) * math.sqrt(math.log(2 / delta))
    return risk + 2 * math.sqrt(2 / num_rows) * (capacity + spread)


def ridge_generalization_bound(
    empirical_risk: float,
    num_rows: int,
    lam: float,
    *,
    kernel_norm: float,
    trace: float,
    output_norm: float,
    output_std: float | None = None,
    loss: str = "half",
    delta: float = 0.05,
    variant: str = "corrected",
) -> float:
    """(7.2) for the minimiser of (1/N) Σ c(f(x_i), y_i) + (λ/2)‖f‖², with the constants that ridge regression has.

    With c = ½‖·‖² ("half"): M = σ_y/√λ, L = √κ M + C_y, C = ½L².
    With c = ‖·‖² ("full"): M = σ_y√(2/λ), L = 2(√κ M + C_y), C = (√κ M + C_y)².

    ``variant="printed"`` evaluates (7.5), R_emp + 8 (C_y²/λ) √(κ/N) (√T + √(κ ln(1/δ)/2)) for λ < 2κ and the
    first loss, whose L is the larger of the two terms of the sum above where it should be the sum (BT-E-39).

    Args:
        empirical_risk: the mean cost on the training set.
        num_rows: N.
        lam: λ, as above (not a sum over rows).
        kernel_norm: κ ≥ ‖K(x, x)‖.
        trace: T ≥ Tr K(x, x).
        output_norm: C_y ≥ ‖y‖.
        output_std: σ_y with (1/N) Σ‖y_i‖² ≤ σ_y²; C_y where it is None.
        loss: "half" or "full".

    Example:
        >>> from ovkgp.features.bounds import ridge_generalization_bound
        >>> ridge_generalization_bound(0.0, 10**6, 1.0, kernel_norm=1.0, trace=1.0, output_norm=1.0) < 0.02
        True
    """
    lam, kappa = positive("lam", lam), nonnegative("kernel_norm", kernel_norm)
    size = nonnegative("output_norm", output_norm)
    std = size if output_std is None else nonnegative("output_std", output_std)
    one_of("loss", loss, ("half", "full"))
    if one_of("variant", variant, VARIANTS) == "printed":
        return _printed_ridge(empirical_risk, num_rows, lam, kappa, trace, size, delta)
    norm_bound = std / math.sqrt(lam) if loss == "half" else std * math.sqrt(2 / lam)
    residual = math.sqrt(kappa) * norm_bound + size
    factor = 1 if loss == "half" else 2
    return generalization_bound(
        empirical_risk,
        num_rows,
        lipschitz=factor * residual,
        norm_bound=norm_bound,
        trace=trace,
        cost_bound=factor * residual**2 / 2,
        delta=delta,
    )


def _printed_ridge(empirical_risk, num_rows, lam, kappa, trace, size, delta) -> float:
    num_rows, delta, trace = (
        check_integer("num_rows", num_rows),
        probability("delta", delta),
        nonnegative("trace", trace),
    )
    if lam >= 2 * kappa:
        raise OptionError(f"the printed bound (7.5) is for lam < 2 κ, got lam={lam} and κ={kappa}.")
    inner = math.sqrt(trace) + math.sqrt(kappa * math.log(1 / delta) / 2)
    return nonnegative("empirical_risk", empirical_risk) + 8 * size**2 / lam * math.sqrt(kappa / num_rows) * inner


def stability_bound(
    empirical_risk: float,
    num_rows: int,
    lam: float,
    *,
    kappa: float,
    output_norm: float,
    delta: float = 0.05,
    variant: str = "corrected",
) -> float:
    """The bound (7.6) from uniform stability, R(f) ≤ R_emp + 2β + (4Nβ + ξ) √(ln(1/δ)/2N), for ridge regression.

    β = σ²κ²/(2λN), ξ = σ²/2 and σ = C_y(1 + κ/√λ), so that 4Nβ + ξ = (σ²/2)(4κ²/λ + 1). ``variant="printed"`` misses
    that ½ in its last term: valid, but looser (BT-E-40). The bound decreases as N^(−1/2) and grows as λ^(−2) for small
    λ. It asks nothing of the trace of K, which may be infinite.

    Args:
        empirical_risk: the mean of ½‖f(x_i) − y_i‖².
        num_rows: N.
        lam: λ.
        kappa: κ. The thesis takes κ ≥ ‖K(x, x)‖; in Kadri et al., where the bound is from, κ² bounds it, so give
            √‖K(x, x)‖ for their reading, which is the sharper one where the norm exceeds 1.
        output_norm: C_y ≥ ‖y‖.

    Example:
        >>> from ovkgp.features.bounds import stability_bound
        >>> bound = stability_bound(0.0, 1000, 1.0, kappa=1.0, output_norm=1.0)
        >>> bound < stability_bound(0.0, 1000, 1.0, kappa=1.0, output_norm=1.0, variant="printed")
        True
    """
    num_rows, lam, delta = check_integer("num_rows", num_rows), positive("lam", lam), probability("delta", delta)
    kappa, size = nonnegative("kappa", kappa), nonnegative("output_norm", output_norm)
    one_of("variant", variant, VARIANTS)
    square = (size * (1 + kappa / math.sqrt(lam))) ** 2
    beta, largest_loss = square * kappa**2 / (2 * lam * num_rows), square / 2
    spread = (4 * num_rows * beta + largest_loss) * math.sqrt(math.log(1 / delta) / (2 * num_rows))
    spread *= 2 if variant == "printed" else 1
    return nonnegative("empirical_risk", empirical_risk) + 2 * beta + spread


def lambda_ceiling(
    kernel: Kernel, output_variance: float, output_norm: float, *, num_dims: int | None = None, bounded: bool = True
) -> float:
    """The largest λ with which ridge regression can still reach outputs of norm C: 2 ‖K_e(e)‖ σ_y² / C² (BT-68).

    For (1/N) Σ‖f(x_i) − y_i‖² + (λ/2)‖f‖², comparing with f = 0 gives λ‖f‖² ≤ 2σ_y² (the square is missing in the
    thesis, BT-E-23), and ‖f(x)‖ ≤ √‖K_e(e)‖ ‖f‖. The ceiling itself is as printed.

    Args:
        kernel: a shift-invariant kernel.
        output_variance: σ_y² ≥ (1/N) Σ‖y_i‖².
        output_norm: C, the largest ‖y_i‖ that should be fitted.
        num_dims: the input dimension, for kernels that do not know it.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import lambda_ceiling
        >>> lambda_ceiling(RBFKernel(ard_num_dims=2), output_variance=1.0, output_norm=2.0)
        0.5
    """
    norm = spectral_constants(kernel, num_dims=num_dims, bounded=bounded).kernel_norm
    return 2 * norm * positive("output_variance", output_variance) / positive("output_norm", output_norm) ** 2


def suggest_features(num_rows: int, rule: str = "sqrt", *, constant: float = 1.0) -> int:
    """A number of frequencies for N training rows: a rule of thumb from learning theory, not a guarantee (BT-89).

    "sqrt": D = c√N, with which kernel ridge regression on random features generalises as well as without them (Rudi et
    al.). "linear": D = cN, what the bound of Prop. 7.3 asks for, whose two terms then decrease together.

    Args:
        num_rows: N.
        rule: "sqrt" or "linear".
        constant: c.

    Returns:
        D, rounded up, at least 1.

    Example:
        >>> from ovkgp.features.bounds import suggest_features
        >>> suggest_features(10_000), suggest_features(10_000, "linear", constant=0.1)
        (100, 1000)
    """
    num_rows, constant = check_integer("num_rows", num_rows), positive("constant", constant)
    growth = math.sqrt(num_rows) if one_of("rule", rule, ("sqrt", "linear")) == "sqrt" else num_rows
    return max(1, math.ceil(constant * growth))


def mean_deviation_bound(radius: float, num_samples: int, delta: float = 0.05) -> float:
    """Lemma 7.1: ‖X̄ − E X̄‖ ≤ (R/√D)(1 + √(2 ln(1/δ))) with probability 1 − δ, for D independent vectors with ‖X_j‖ ≤ R.

    As printed; there is nothing to correct in it.

    Args:
        radius: R.
        num_samples: D.
        delta: the probability with which the bound may fail.

    Example:
        >>> from ovkgp.features.bounds import mean_deviation_bound
        >>> round(mean_deviation_bound(1.0, 100, delta=0.05), 4)
        0.3448
    """
    radius, num_samples = nonnegative("radius", radius), check_integer("num_samples", num_samples)
    return radius / math.sqrt(num_samples) * (1 + math.sqrt(2 * math.log(1 / probability("delta", delta))))


def constrained_excess_risk_bound(
    num_rows: int,
    num_frequencies: int,
    *,
    lipschitz: float,
    norm_bound: float,
    trace: float,
    cost_bound: float,
    factor_norm: float,
    delta: float = 0.05,
) -> float:
    """Prop. 7.3: the excess risk of random features whose weights are held in a ball, with probability 1 − 2δ,

    4√(2/N) (L M √T + C √ln(2/δ)) + (u L M/√D)(1 + √(2 ln(1/δ))), for the constraint ‖θ_j‖ ≤ `weight_radius`(M, D).

    As printed, with the constraint corrected (BT-E-41). Tikhonov's penalty does not satisfy it.

    Args:
        num_rows, num_frequencies: N and D.
        lipschitz, norm_bound, cost_bound: L, M and C, as in `generalization_bound`.
        trace: T ≥ ess sup Tr A(ω).
        factor_norm: u = ess sup √‖A(ω)‖ = ess sup ‖B(ω)‖.

    Example:
        >>> from ovkgp.features.bounds import constrained_excess_risk_bound
        >>> limits = dict(lipschitz=1.0, norm_bound=1.0, trace=1.0, cost_bound=1.0, factor_norm=1.0)
        >>> constrained_excess_risk_bound(10**6, 10**6, **limits) < 0.03
        True
    """
    twice = 2 * generalization_bound(
        0.0, num_rows, lipschitz=lipschitz, norm_bound=norm_bound, trace=trace, cost_bound=cost_bound, delta=delta
    )
    return twice + lipschitz * mean_deviation_bound(
        nonnegative("factor_norm", factor_norm) * norm_bound, num_frequencies, delta
    )


def weight_radius(norm_bound: float, num_frequencies: int, *, normalized: bool = True) -> float:
    """The radius of the ball that Prop. 7.3 holds each frequency's weights in.

    M/√D for features with the factor 1/√D, as `ORFF` has them, and M/D without it (``normalized=False``). The thesis
    prints the second with the first kind of features (BT-E-41).

    Args:
        norm_bound: M.
        num_frequencies: D.
        normalized: whether the features carry the factor 1/√D.

    Example:
        >>> from ovkgp.features.bounds import weight_radius
        >>> weight_radius(2.0, 100), weight_radius(2.0, 100, normalized=False)
        (0.2, 0.02)
    """
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    return positive("norm_bound", norm_bound) / (math.sqrt(num_frequencies) if normalized else num_frequencies)


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
    return kappa**2 / (2 * positive("lam", lam) * check_integer("num_rows", num_rows))


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
    n, delta = check_integer("num_rows", num_rows), probability("delta", delta)
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
