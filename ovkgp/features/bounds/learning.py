"""What learning with an operator-valued kernel guarantees: risk bounds and rules of thumb (thesis §6.1, 7; BT-68, 85..89).

Each bound reads R(f) ≤ R_emp(f) + …, with probability at least 1 − δ over the N training pairs.
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel

from ovkgp.exceptions import OptionError
from ovkgp.features.bounds.checks import VARIANTS, count, nonnegative, one_of, positive, probability
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
        0.1827
    """
    num_rows, delta = count("num_rows", num_rows), probability("delta", delta)
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

    With c = ½‖·‖² ("half"): M = σ_y/√λ, L = √κ M + C_y, C = ½L². With c = ‖·‖² ("full"): M = σ_y√(2/λ), L = 2(√κ M + C_y),
    C = (√κ M + C_y)². ``variant="printed"`` evaluates (7.5), R_emp + 8 (C_y²/λ) √(κ/N) (√T + √(κ ln(1/δ)/2)) for λ < 2κ,
    whose L is the larger of the two terms of the sum above where it should be the sum (BT-E-39).

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
    num_rows, delta, trace = count("num_rows", num_rows), probability("delta", delta), nonnegative("trace", trace)
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

    β = σ²κ²/(2λN), ξ = σ²/2 and σ = C_y(1 + κ/√λ), so that 4Nβ + ξ = (σ²/2)(4κ²/λ + 1). ``variant="printed"`` misses that ½ in
    its last term: valid, but looser (BT-E-40). The bound decreases as N^(−1/2) and grows as λ^(−2) for small λ. It
    asks nothing of the trace of K, which may be infinite.

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
    num_rows, lam, delta = count("num_rows", num_rows), positive("lam", lam), probability("delta", delta)
    kappa, size = nonnegative("kappa", kappa), nonnegative("output_norm", output_norm)
    one_of("variant", variant, VARIANTS)
    square = (size * (1 + kappa / math.sqrt(lam))) ** 2
    beta, largest_loss = square * kappa**2 / (2 * lam * num_rows), square / 2
    spread = (4 * num_rows * beta + largest_loss) * math.sqrt(math.log(1 / delta) / (2 * num_rows))
    spread *= 2 if variant == "printed" else 1
    return nonnegative("empirical_risk", empirical_risk) + 2 * beta + spread


def mean_deviation_bound(radius: float, num_samples: int, delta: float = 0.05) -> float:
    """Lemma 7.1: ‖X̄ − E X̄‖ ≤ (R/√D)(1 + √(2 ln(1/δ))) with probability 1 − δ, for D independent vectors with ‖X_j‖ ≤ R.

    As printed; there is nothing to correct in it.

    Example:
        >>> from ovkgp.features.bounds import mean_deviation_bound
        >>> round(mean_deviation_bound(1.0, 100, delta=0.05), 4)
        0.3448
    """
    radius, num_samples = nonnegative("radius", radius), count("num_samples", num_samples)
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

    Example:
        >>> from ovkgp.features.bounds import weight_radius
        >>> weight_radius(2.0, 100), weight_radius(2.0, 100, normalized=False)
        (0.2, 0.02)
    """
    num_frequencies = count("num_frequencies", num_frequencies)
    return positive("norm_bound", norm_bound) / (math.sqrt(num_frequencies) if normalized else num_frequencies)


def lambda_ceiling(
    kernel: Kernel, output_variance: float, output_norm: float, *, num_dims: int | None = None, bounded: bool = True
) -> float:
    """The largest λ with which ridge regression can still reach outputs of norm C: 2 ‖K_e(e)‖ σ_y² / C² (BT-68).

    For (1/N) Σ‖f(x_i) − y_i‖² + (λ/2)‖f‖², comparing with f = 0 gives λ‖f‖² ≤ 2σ_y² (the square is missing in the thesis,
    BT-E-23), and ‖f(x)‖ ≤ √‖K_e(e)‖ ‖f‖. The ceiling itself is as printed.

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
    num_rows, constant = count("num_rows", num_rows), positive("constant", constant)
    growth = math.sqrt(num_rows) if one_of("rule", rule, ("sqrt", "linear")) == "sqrt" else num_rows
    return max(1, math.ceil(constant * growth))
