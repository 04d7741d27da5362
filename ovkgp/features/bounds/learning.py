"""What learning with an operator-valued kernel guarantees: risk bounds and rules of thumb (BT-68, 85..89).

Each bound reads R(f) ≤ R_emp(f) + …, with probability at least 1 − δ over the N training pairs.
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel

from ovkgp.exceptions import OptionError
from ovkgp.features.bounds.checks import VARIANTS, nonnegative, one_of, positive, probability
from ovkgp.features.bounds.kernel_constants import spectral_constants
from ovkgp.kernels.checks import whole_number


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
    num_rows, delta = whole_number("num_rows", num_rows), probability("delta", delta)
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
        whole_number("num_rows", num_rows),
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
    num_rows, lam, delta = whole_number("num_rows", num_rows), positive("lam", lam), probability("delta", delta)
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
    num_rows, constant = whole_number("num_rows", num_rows), positive("constant", constant)
    growth = math.sqrt(num_rows) if one_of("rule", rule, ("sqrt", "linear")) == "sqrt" else num_rows
    return max(1, math.ceil(constant * growth))
