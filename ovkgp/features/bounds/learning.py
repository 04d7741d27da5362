"""Risk bounds and rules of thumb for learning with operator-valued kernels.

Bounds have the form R(f) ≤ R_emp(f) + …, with probability at least 1 − δ over the N training pairs (BT-68, BT-85..89).
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel

from ovkgp.checks import VARIANTS, check_integer, check_nonnegative, check_one_of, check_positive, check_probability
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
    num_rows, delta = check_integer("num_rows", num_rows), check_probability("delta", delta)
    trace = check_nonnegative("trace", trace)
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
    empirical_risk, num_rows, lam, output_norm, delta
        As for `ridge_generalization_bound` with the loss "half".
    kappa : float
        κ. The thesis takes κ ≥ ‖K(x, x)‖; in Kadri et al., the source of the bound, κ² bounds it, so pass √‖K(x, x)‖
        for their bound, which is sharper if the norm exceeds 1.
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
    num_rows, lam = check_integer("num_rows", num_rows), check_positive("lam", lam)
    delta = check_probability("delta", delta)
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
    variance = check_positive("output_variance", output_variance)
    return 2 * norm * variance / check_positive("output_norm", output_norm) ** 2


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
    delta
        As for `generalization_bound`.

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
    radius = check_nonnegative("factor_norm", factor_norm) * norm_bound
    return twice + lipschitz * mean_deviation_bound(radius, num_frequencies, delta)


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
