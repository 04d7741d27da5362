"""Whether draws can be trusted, in numbers and in words.

Chains are judged by R̂, effective sample size and divergences; draws from an approximation q by the Pareto shape k̂ of the
ratios π / q (Yao et al. 2018, "Yes, but did it work?"): beyond 0.7 q is no stand-in for the posterior.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from ovkgp.exceptions import FitWarning, OptionError

MAX_RHAT, MIN_ESS_PER_CHAIN, MAX_PARETO_K = 1.01, 100, 0.7
"""The largest R̂ and k̂, and the smallest effective size for each chain, that pass without a warning."""
EQUAL = 1e-4
"""Logarithms of ratios that differ by less are those of the posterior itself, up to its Hessian's differences."""
FEWEST, MIN_RATIOS = 4, 25
"""Chains, or halves of a single one, shorter than this say nothing about themselves, and so few ratios nothing about q."""


def rhat(values: np.ndarray) -> float:
    """R̂ (rank-normalised, split) of draws (chains, draws); a single chain is judged by its halves."""
    if len(values) == 1:  # of which ArviZ says nothing
        half = values.shape[1] // 2
        values = values[0, : 2 * half].reshape(2, half)
    return float(_statistics().rhat(values))


def effective_size(values: np.ndarray) -> float:
    """The effective sample size, in the bulk, of draws (chains, draws)."""
    return float(_statistics().ess(values))


def pareto_shape(log_ratios: np.ndarray) -> float:
    """k̂ of importance ratios (draws,), by Pareto-smoothed importance sampling: NaN of fewer than 25, ∞ where all are zero.

    Ratios exp(c z²) of a standard normal z have k = 2c.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.sampling.diagnostics import pareto_shape
        >>> z = np.random.default_rng(0).standard_normal(2000)
        >>> pareto_shape(0.1 * z**2) < 0.5 < pareto_shape(0.45 * z**2)  # q a little too narrow, q far too narrow
        True
    """
    log_ratios = np.asarray(log_ratios, dtype=np.float64)
    is_finite = np.isfinite(log_ratios)
    if len(log_ratios) < MIN_RATIOS or not is_finite.any():
        return np.nan if is_finite.any() else np.inf
    log_ratios = np.where(is_finite, log_ratios, log_ratios[is_finite].min() - 50)  # a ratio of zero is no tail
    tail = np.sort(log_ratios)[-max(len(log_ratios) // 5, 1) :]
    return 0.0 if np.ptp(tail) < EQUAL else float(_statistics().psislw(log_ratios)[1])


def importance_checks(log_ratios: np.ndarray, method: str) -> dict[str, float]:
    """The bound E_q[log π − log q] with its standard error, and k̂, with a warning where q is no stand-in for π.

    Args:
        log_ratios: log π − log q at draws of q (draws,), finite.
        method: its name.
    """
    shape = pareto_shape(log_ratios)
    if np.isnan(shape):
        words = (
            f"{len(log_ratios)} draws are too few to tell whether the {method} approximation is good: take 100 or more."
        )
        warnings.warn(words, FitWarning, stacklevel=4)
    if shape > MAX_PARETO_K:
        warnings.warn(
            f"the {method} approximation is poor: the Pareto shape of its importance ratios is k̂ = {shape:.2f}, above "
            f'{MAX_PARETO_K}. Read its spreads with care, or use "nuts".',
            FitWarning,
            stacklevel=4,
        )
    error = float(log_ratios.std() / np.sqrt(len(log_ratios)))
    return {"khat": shape, "elbo": float(log_ratios.mean()), "elbo_error": error}


def chain_checks(variables: Mapping[str, np.ndarray], divergences: int) -> dict[str, float | int | str]:
    """The worst R̂ and effective size of all entries of named draws (chains, draws, ...), with warnings in words.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.sampling.diagnostics import chain_checks
        >>> found = chain_checks({"noise": np.random.default_rng(0).random((4, 500))}, divergences=0)
        >>> found["rhat_max"] < 1.01, found["ess_min"] > 1000
        (True, True)
    """
    chains, draws = next(iter(variables.values())).shape[:2]
    found = {"num_divergences": int(divergences)}
    if divergences:
        _warn(
            f"{divergences} of {chains * draws} transitions diverged: the posterior has a corner for which the steps are too "
            "long, and draws may be missing from it. Raise target_accept (0.95, 0.99), or give tighter priors."
        )
    if draws < (FEWEST if chains > 1 else 2 * FEWEST):
        return found
    columns = dict(_moving_entries(variables))
    if not columns:
        return found
    rhats, sizes = ({name: f(values) for name, values in columns.items()} for f in (rhat, effective_size))
    # A chain that does not move at all has no R̂: the worst of all
    worst = max(rhats, key=lambda name: np.nan_to_num(rhats[name], nan=np.inf))
    fewest = min(sizes, key=lambda name: np.nan_to_num(sizes[name], nan=0.0))
    if not rhats[worst] <= MAX_RHAT:
        _warn(
            f"the chains have not mixed: R̂ = {rhats[worst]:.3f} for {worst}, above {MAX_RHAT}. Take more tune and draws, and "
            "look at plot_trace for chains in different modes."
        )
    if not sizes[fewest] >= MIN_ESS_PER_CHAIN * chains:
        _warn(
            f"the draws are worth only {sizes[fewest]:.0f} independent ones for {fewest} (fewer than {MIN_ESS_PER_CHAIN} a chain): "
            "take more draws before quoting quantiles."
        )
    return found | {"rhat_max": rhats[worst], "rhat_worst": worst, "ess_min": sizes[fewest], "ess_worst": fewest}


def _moving_entries(variables: Mapping[str, np.ndarray]):
    for name, values in variables.items():
        for index in np.ndindex(values.shape[2:]):
            entry = values[(slice(None), slice(None), *index)]
            if np.ptp(entry) > 0:  # a fixed hyperparameter has no R̂
                yield name + (f"[{', '.join(map(str, index))}]" if index else ""), entry


def _warn(words: str) -> None:
    warnings.warn(words, FitWarning, stacklevel=5)


class _ArvizStats:
    """The three functions of arviz-stats (ArviZ 1.x) by the names and axes of ArviZ 0.x."""

    def __init__(self):
        self.stats = import_module("arviz_stats.base").array_stats

    def rhat(self, values):
        return self.stats.rhat(values, chain_axis=0, draw_axis=1)

    def ess(self, values):
        return self.stats.ess(values, chain_axis=0, draw_axis=1)

    def psislw(self, log_ratios):
        return self.stats.psislw(-log_ratios)  # it takes log-likelihoods, whose ratios are their inverses


def _statistics():
    # Imported here and not above: ArviZ loads matplotlib, numba or xarray, and `import ovkgp` must not
    if find_spec("arviz_stats") is not None:
        return _ArvizStats()
    if find_spec("arviz") is not None:
        return import_module("arviz")
    raise OptionError("draws are judged and returned with ArviZ, which is not installed: pip install arviz.")
