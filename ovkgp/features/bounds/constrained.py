"""Random features with weights held in a ball: how close the learned function is to the best (thesis §7.2, BT-88)."""

from __future__ import annotations

import math

from ovkgp.features.bounds.checks import nonnegative, positive, probability
from ovkgp.features.bounds.learning import generalization_bound
from ovkgp.kernels.checks import whole_number


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
    radius, num_samples = nonnegative("radius", radius), whole_number("num_samples", num_samples)
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
    num_frequencies = whole_number("num_frequencies", num_frequencies)
    return positive("norm_bound", norm_bound) / (math.sqrt(num_frequencies) if normalized else num_frequencies)
