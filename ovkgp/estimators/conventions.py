"""What a paper's λ is as a noise variance σ²: one row for each way of writing the same objective.

A ridge estimator minimises data term + penalty; dividing by the factor of ½‖f‖² leaves (1/2σ²) Σ ‖y_i − f(x_i)‖² + ½ ‖f‖²,
minus the log posterior of a Gaussian process with noise σ². With n rows and N observed entries (n·m for m outputs):

| convention | objective | σ² |
|---|---|---|
| sum | Σ ‖·‖² + λ ‖f‖², or both halved | λ |
| mean | (1/n) Σ ½ ‖·‖² + (λ/2) ‖f‖², or neither halved | n λ |
| mean_unhalved | (1/n) Σ ‖·‖² + (λ/2) ‖f‖² | n λ / 2 |
| penalty_unhalved | (1/n) Σ ½ ‖·‖² + λ ‖f‖² | 2 n λ |
| samples | (1/N) Σ ½ ‖·‖² + (λ/2) ‖f‖²: outputs are values of a function at m places | N λ |
| stability | (1/N) Σ ½ ‖·‖² + λ ‖f‖² | 2 N λ |
| var | (1/(n − 1)) Σ ‖·‖² + λ ‖f‖²: a series of n vectors has n − 1 pairs | (n − 1) λ |

Weights w_ij of the entries divide: the noise of an entry is σ² / w_ij.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import numpy as np

from ovkgp.exceptions import InputError, OptionError

CONVENTIONS: dict[str, Callable[[float, float], float]] = {
    "sum": lambda n, N: 1.0,
    "mean": lambda n, N: n,
    "mean_unhalved": lambda n, N: n / 2,
    "penalty_unhalved": lambda n, N: 2.0 * n,
    "samples": lambda n, N: N,
    "stability": lambda n, N: 2.0 * N,
    "var": lambda n, N: n - 1,
}
"""σ² / λ for n rows and N observed entries."""


def noise_of(lam: float, convention: str, num_rows: float, num_seen: float) -> float:
    """σ² of λ.

    Args:
        lam: λ > 0.
        convention: a row of the table above.
        num_rows: n, the rows in which something is observed. For "var" the vectors of a series; where its n − 1 pairs
            (x_t, x_{t+1}) are the rows, "mean" says the same.
        num_seen: N, the observed entries.

    Example:
        >>> from ovkgp.estimators.conventions import noise_of
        >>> noise_of(0.1, "mean", num_rows=50, num_seen=150)
        5.0
    """
    factor = CONVENTIONS[require_convention(convention)](num_rows, num_seen)
    if factor <= 0:
        raise InputError(f'convention="{convention}" needs at least two rows, got {num_rows:g}.')
    return float(lam * factor)


def require_convention(convention: str) -> str:
    """Refuse a convention that there is not."""
    if not isinstance(convention, str) or convention not in CONVENTIONS:
        raise OptionError(f"convention must be one of {', '.join(map(repr, CONVENTIONS))}, got {convention!r}.")
    return convention


def require_lam(lam, name: str = "lam") -> np.ndarray:
    """λ as a vector (k,) of positive numbers; a number is a vector of one."""
    try:
        values = np.asarray(lam if isinstance(lam, Real | np.ndarray | list | tuple) else np.nan, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if (
        isinstance(lam, bool)
        or values.ndim > 1
        or values.size == 0
        or not bool((np.isfinite(values) & (values > 0)).all())
    ):
        raise InputError(
            f"{name} must be a positive number, or a list of some to choose from; got {lam!r}. A fit without a penalty is the "
            "limit of a small one, such as 1e-8 times the variance of the outputs."
        )
    return values.reshape(-1)
