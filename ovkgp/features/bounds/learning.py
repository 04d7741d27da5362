"""Risk bounds and rules of thumb for learning with operator-valued kernels and with a continuum of tasks.

Bounds have the form R(f) ≤ R_emp(f) + …, with probability at least 1 − δ over the N training pairs (BT-68, BT-85..89).

Bounds named `task_…` (LT-110..115) are for h with the kernel k_X · k_Θ, κ_X² ≥ k_X(x, x) and κ_Θ² ≥ k_Θ(θ, θ), that
minimizes (1/n) Σ_i L(h(x_i), y_i) + λ ‖h‖²: λ multiplies ‖h‖² without a half, so it is **half** the λ of the canonical
objective. L integrates the pinball loss of |y| ≤ B, or the cost-sensitive hinge loss, over a probability measure of
tasks.
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel

from ovkgp.checks import VARIANTS, check_integer, check_nonnegative, check_one_of, check_positive, check_probability
from ovkgp.exceptions import OptionError
from ovkgp.features.bounds.constants import spectral_constants

TASK_LOSSES = ("pinball", "hinge")


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
    """Return the Rademacher bound (7.2), R(f) ≤ R_emp(f) + 2√(2/N) (L M √T + C √ln(2/δ)), for all ‖f‖_K ≤ M.

    The bound is as printed. For ridge regression use `ridge_generalization_bound`.

    Parameters
    ----------
    empirical_risk : float
        Mean cost on the training set.
    num_rows : int
        Number N of training rows.
    lipschitz, norm_bound, trace, cost_bound : float
        Lipschitz constant L of the cost in f(x), bound M on the norm of f, T ≥ Tr K(x, x), and C for costs in [0, C].
    delta : float, default=0.05
        Probability with which the bound may fail.

    Returns
    -------
    float
        Bound on the risk.

    Examples
    --------
    >>> from ovkgp.features.bounds import generalization_bound
    >>> round(generalization_bound(0.1, 10_000, lipschitz=1.0, norm_bound=1.0, trace=1.0, cost_bound=1.0), 4)
    0.1826
    """
    num_rows, delta = check_integer("num_rows", num_rows), check_probability("delta", delta)
    risk = check_nonnegative("empirical_risk", empirical_risk)
    capacity = check_nonnegative("lipschitz", lipschitz) * check_nonnegative("norm_bound", norm_bound)
    capacity *= math.sqrt(check_nonnegative("trace", trace))
    deviation = check_nonnegative("cost_bound", cost_bound) * math.sqrt(math.log(2 / delta))
    return risk + 2 * math.sqrt(2 / num_rows) * (capacity + deviation)


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
    """Return the bound (7.2) for ridge regression, the minimizer of (1/N) Σ c(f(x_i), y_i) + (λ/2)‖f‖².

    With c = ½‖·‖² ("half"): M = σ_y/√λ, L = √κ M + C_y, C = ½L².
    With c = ‖·‖² ("full"): M = σ_y√(2/λ), L = 2(√κ M + C_y), C = (√κ M + C_y)².

    Parameters
    ----------
    empirical_risk, num_rows, delta
        As in `generalization_bound`.
    lam : float
        λ as above (of the mean over rows, not the sum).
    kernel_norm, trace, output_norm : float
        κ ≥ ‖K(x, x)‖, T ≥ Tr K(x, x) and C_y ≥ ‖y‖.
    output_std : float or None, default=None
        σ_y with (1/N) Σ‖y_i‖² ≤ σ_y². If None, C_y.
    loss : {"half", "full"}, default="half"
        Cost c.
    variant : {"corrected", "printed"}, default="corrected"
        "printed" evaluates (7.5), R_emp + 8 (C_y²/λ) √(κ/N) (√T + √(κ ln(1/δ)/2)) for λ < 2κ and the first loss, whose
        L is the larger of the two terms of the sum above instead of the sum (BT-E-39).

    Returns
    -------
    float
        Bound on the risk.

    Examples
    --------
    >>> from ovkgp.features.bounds import ridge_generalization_bound
    >>> ridge_generalization_bound(0.0, 10**6, 1.0, kernel_norm=1.0, trace=1.0, output_norm=1.0) < 0.02
    True
    """
    lam, kappa = check_positive("lam", lam), check_nonnegative("kernel_norm", kernel_norm)
    size = check_nonnegative("output_norm", output_norm)
    std = size if output_std is None else check_nonnegative("output_std", output_std)
    check_one_of("loss", loss, ("half", "full"))
    if check_one_of("variant", variant, VARIANTS) == "printed":
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
        check_probability("delta", delta),
        check_nonnegative("trace", trace),
    )
    if lam >= 2 * kappa:
        raise OptionError(f'lam must be less than 2 κ = {2 * kappa} with variant="printed", got {lam}.')
    inner = math.sqrt(trace) + math.sqrt(kappa * math.log(1 / delta) / 2)
    return check_nonnegative("empirical_risk", empirical_risk) + 8 * size**2 / lam * math.sqrt(kappa / num_rows) * inner


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
    """Return the bound (7.6) from uniform stability, R(f) ≤ R_emp + 2β + (4Nβ + ξ) √(ln(1/δ)/2N), for ridge regression.

    β = σ²κ²/(2λN), ξ = σ²/2 and σ = C_y(1 + κ/√λ), so that 4Nβ + ξ = (σ²/2)(4κ²/λ + 1). The bound decreases as N^(−1/2)
    and grows as λ^(−2) for small λ. It does not depend on the trace of K, which may be infinite.

    Parameters
    ----------
    empirical_risk : float
        Mean of ½‖f(x_i) − y_i‖².
    num_rows, lam : int and float
        Number N of training rows, and λ.
    kappa : float
        κ. The thesis takes κ ≥ ‖K(x, x)‖; in Kadri et al., the source of the bound, κ² bounds it, so pass √‖K(x, x)‖
        for their bound, which is sharper if the norm exceeds 1.
    output_norm : float
        C_y ≥ ‖y‖.
    delta : float, default=0.05
        Probability with which the bound may fail.
    variant : {"corrected", "printed"}, default="corrected"
        "printed" misses the ½ in its last term: valid, but looser (BT-E-40).

    Returns
    -------
    float
        Bound on the risk.

    Examples
    --------
    >>> from ovkgp.features.bounds import stability_bound
    >>> bound = stability_bound(0.0, 1000, 1.0, kappa=1.0, output_norm=1.0)
    >>> bound < stability_bound(0.0, 1000, 1.0, kappa=1.0, output_norm=1.0, variant="printed")
    True
    """
    num_rows, lam, delta = (
        check_integer("num_rows", num_rows),
        check_positive("lam", lam),
        check_probability("delta", delta),
    )
    kappa, size = check_nonnegative("kappa", kappa), check_nonnegative("output_norm", output_norm)
    check_one_of("variant", variant, VARIANTS)
    square = (size * (1 + kappa / math.sqrt(lam))) ** 2
    beta, largest_loss = square * kappa**2 / (2 * lam * num_rows), square / 2
    deviation = (4 * num_rows * beta + largest_loss) * math.sqrt(math.log(1 / delta) / (2 * num_rows))
    deviation *= 2 if variant == "printed" else 1
    return check_nonnegative("empirical_risk", empirical_risk) + 2 * beta + deviation


def lambda_ceiling(
    kernel: Kernel, output_variance: float, output_norm: float, *, num_dims: int | None = None, bounded: bool = True
) -> float:
    """Return the largest λ with which ridge regression can still reach outputs of norm C: 2 ‖K_e(e)‖ σ_y² / C² (BT-68).

    For (1/N) Σ‖f(x_i) − y_i‖² + (λ/2)‖f‖², comparing with f = 0 gives λ‖f‖² ≤ 2σ_y² (the square is missing in the
    thesis, BT-E-23), and ‖f(x)‖ ≤ √‖K_e(e)‖ ‖f‖. The ceiling itself is as printed.

    Parameters
    ----------
    kernel : Kernel
        Shift-invariant kernel.
    output_variance, output_norm : float
        σ_y² ≥ (1/N) Σ‖y_i‖², and C, the largest ‖y_i‖ that should be fitted.
    num_dims, bounded
        As in `spectral_constants`.

    Returns
    -------
    float
        Largest λ.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import lambda_ceiling
    >>> lambda_ceiling(RBFKernel(ard_num_dims=2), output_variance=1.0, output_norm=2.0)
    0.5
    """
    norm = spectral_constants(kernel, num_dims=num_dims, bounded=bounded).kernel_norm
    return (
        2 * norm * check_positive("output_variance", output_variance) / check_positive("output_norm", output_norm) ** 2
    )


def suggest_features(num_rows: int, rule: str = "sqrt", *, constant: float = 1.0) -> int:
    """Suggest a number of frequencies for N training rows: a rule of thumb, not a guarantee (BT-89).

    Parameters
    ----------
    num_rows : int
        Number N of training rows.
    rule : {"sqrt", "linear"}, default="sqrt"
        "sqrt": D = c√N, with which ridge regression on random features generalizes as well as with the kernel (Rudi et
        al.). "linear": D = cN, for which the two terms of the bound of Prop. 7.3 decrease together.
    constant : float, default=1.0
        Constant c.

    Returns
    -------
    int
        D, rounded up, at least 1.

    Examples
    --------
    >>> from ovkgp.features.bounds import suggest_features
    >>> suggest_features(10_000), suggest_features(10_000, "linear", constant=0.1)
    (100, 1000)
    """
    num_rows, constant = check_integer("num_rows", num_rows), check_positive("constant", constant)
    growth = math.sqrt(num_rows) if check_one_of("rule", rule, ("sqrt", "linear")) == "sqrt" else num_rows
    return max(1, math.ceil(constant * growth))


def mean_deviation_bound(radius: float, num_samples: int, delta: float = 0.05) -> float:
    """Return the bound of Lemma 7.1, ‖X̄ − E X̄‖ ≤ (R/√D)(1 + √(2 ln(1/δ))) with probability 1 − δ.

    It holds for D independent vectors with ‖X_j‖ ≤ R, as printed.

    Parameters
    ----------
    radius, num_samples : float and int
        Bound R on the norms, and number D of vectors.
    delta : float, default=0.05
        Probability with which the bound may fail.

    Returns
    -------
    float
        Bound on the deviation.

    Examples
    --------
    >>> from ovkgp.features.bounds import mean_deviation_bound
    >>> round(mean_deviation_bound(1.0, 100, delta=0.05), 4)
    0.3448
    """
    radius, num_samples = check_nonnegative("radius", radius), check_integer("num_samples", num_samples)
    return radius / math.sqrt(num_samples) * (1 + math.sqrt(2 * math.log(1 / check_probability("delta", delta))))


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
    """Return the bound of Prop. 7.3 on the excess risk of random features whose weights are held in a ball (BT-88).

    With probability 1 − 2δ it is 4√(2/N) (L M √T + C √ln(2/δ)) + (u L M/√D)(1 + √(2 ln(1/δ))), for the constraint
    ‖θ_j‖ ≤ `weight_radius`(M, D), which is corrected (BT-E-41). Tikhonov's penalty does not satisfy it.

    Parameters
    ----------
    num_rows, num_frequencies : int
        Numbers N of training rows and D of frequencies.
    lipschitz, norm_bound, cost_bound : float
        L, M and C, as in `generalization_bound`.
    trace, factor_norm : float
        T ≥ ess sup Tr A(ω), and u = ess sup √‖A(ω)‖ = ess sup ‖B(ω)‖.
    delta : float, default=0.05
        Half of the probability with which the bound may fail.

    Returns
    -------
    float
        Bound on the excess risk.

    Examples
    --------
    >>> from ovkgp.features.bounds import constrained_excess_risk_bound
    >>> limits = dict(lipschitz=1.0, norm_bound=1.0, trace=1.0, cost_bound=1.0, factor_norm=1.0)
    >>> constrained_excess_risk_bound(10**6, 10**6, **limits) < 0.03
    True
    """
    twice = 2 * generalization_bound(
        0.0, num_rows, lipschitz=lipschitz, norm_bound=norm_bound, trace=trace, cost_bound=cost_bound, delta=delta
    )
    return twice + lipschitz * mean_deviation_bound(
        check_nonnegative("factor_norm", factor_norm) * norm_bound, num_frequencies, delta
    )


def weight_radius(norm_bound: float, num_frequencies: int, *, normalized: bool = True) -> float:
    """Return the radius of the ball in which Prop. 7.3 holds the weights of each frequency.

    It is M/√D for features with the factor 1/√D, such as those of `ORFF`, and M/D without it. The thesis prints the
    second with the first kind of features (BT-E-41).

    Parameters
    ----------
    norm_bound, num_frequencies : float and int
        Bound M on the norm of f, and number D of frequencies.
    normalized : bool, default=True
        Whether the features have the factor 1/√D.

    Returns
    -------
    float
        Radius.

    Examples
    --------
    >>> from ovkgp.features.bounds import weight_radius
    >>> weight_radius(2.0, 100), weight_radius(2.0, 100, normalized=False)
    (0.2, 0.02)
    """
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    return check_positive("norm_bound", norm_bound) / (math.sqrt(num_frequencies) if normalized else num_frequencies)


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
    lam : float
        λ, half of the canonical one.
    loss : {"pinball", "hinge"}, default="pinball"
        Loss of a task.
    target : float, default=1.0
        B ≥ |y|. Ignored for the hinge loss.
    kappa_x, kappa_task : float, default=1.0
        κ_X and κ_Θ, as in `task_stability`.

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
    return (
        check_nonnegative("kappa_x", kappa_x)
        * check_nonnegative("kappa_task", kappa_task)
        * math.sqrt(size / check_positive("lam", lam))
    )


def task_loss_bound(
    lam: float, *, loss: str = "pinball", target: float = 1.0, kappa_x: float = 1.0, kappa_task: float = 1.0
) -> float:
    """Return a bound ξ on the loss (LT-113, LT-114).

    It is 2(B + κ_X κ_Θ √(B/λ)) for quantiles, 1 + κ_X κ_Θ/√λ for the hinge loss.

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
