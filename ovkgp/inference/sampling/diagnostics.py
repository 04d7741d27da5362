"""Draws of hyperparameters in the variables u of `LogPosterior`, and their diagnostics, with warnings if they are poor.

Chains are assessed by R̂, effective sample size and divergences; draws from an approximation q by the Pareto shape k̂
of the ratios π / q (Yao et al. 2018, "Yes, but did it work?"): above 0.7, q does not represent the posterior.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from ovkgp.exceptions import FactorizationError, FitWarning, InputError, OptionError
from ovkgp.inference.algebra.pareto import MAX_PARETO_K, pareto_shape
from ovkgp.inference.sampling.arviz_data import Axes

MAX_RHAT, MIN_ESS_PER_CHAIN = 1.01, 100  # largest R̂ and smallest effective size per chain that cause no warning
MIN_DRAWS_PER_CHAIN = 4  # minimum length of a chain (or half of a single one) for diagnostics
MAX_DRAW_ROUNDS = 20  # maximum number of proposed draws of an approximation per requested draw


def rhat(values: np.ndarray) -> float:
    """Return R̂ (rank-normalized, split) of draws (chains, draws); a single chain is split into halves."""
    if len(values) == 1:  # ArviZ needs two chains
        half = values.shape[1] // 2
        values = values[0, : 2 * half].reshape(2, half)
    return float(_statistics().rhat(values))


def effective_size(values: np.ndarray) -> float:
    """Return the bulk effective sample size of draws (chains, draws)."""
    return float(_statistics().ess(values))


def check_importance_ratios(log_ratios: np.ndarray, method: str) -> dict[str, float]:
    """Return the bound E_q[log π − log q] with its standard error, and k̂; warn if q does not represent π."""
    shape = pareto_shape(log_ratios)
    if np.isnan(shape):
        warnings.warn(
            f"{len(log_ratios)} draws are too few to assess the {method} approximation. Increase `draws` to 100 or more.",
            FitWarning,
            stacklevel=4,
        )
    if shape > MAX_PARETO_K:
        warnings.warn(
            f"The {method} approximation is poor: the Pareto shape of its importance ratios is k̂ = {shape:.2f}, above "
            f'{MAX_PARETO_K}; its standard deviations may be wrong. Use method="nuts".',
            FitWarning,
            stacklevel=4,
        )
    error = float(log_ratios.std() / np.sqrt(len(log_ratios)))
    return {"khat": shape, "elbo": float(log_ratios.mean()), "elbo_error": error}


def check_chains(
    variables: Mapping[str, np.ndarray], divergences: int, axes: Axes | None = None
) -> dict[str, float | int | str]:
    """Return the worst R̂ and effective size of named draws (chains, draws, ...); warn, labeled by `axes`, if poor."""
    chains, draws = next(iter(variables.values())).shape[:2]
    found = {"num_divergences": int(divergences)}
    if divergences:
        _warn(
            f"{divergences} of {chains * draws} transitions diverged; draws may be missing where the posterior is too narrow "
            "for the step size. Increase `target_accept` (0.95, 0.99), or use tighter priors."
        )
    if draws < (MIN_DRAWS_PER_CHAIN if chains > 1 else 2 * MIN_DRAWS_PER_CHAIN):
        return found
    columns = dict(_varying_entries(variables, axes))
    if not columns:
        return found
    rhats, sizes = ({name: f(values) for name, values in columns.items()} for f in (rhat, effective_size))
    # a constant chain has no R̂: the worst of all
    worst = max(rhats, key=lambda name: np.nan_to_num(rhats[name], nan=np.inf))
    smallest = min(sizes, key=lambda name: np.nan_to_num(sizes[name], nan=0.0))
    if not rhats[worst] <= MAX_RHAT:
        _warn(
            f"The chains have not mixed: R̂ = {rhats[worst]:.3f} for {worst}, above {MAX_RHAT}. Increase `tune` and `draws`, and check plot_trace for chains in different modes."
        )
    if not sizes[smallest] >= MIN_ESS_PER_CHAIN * chains:
        _warn(
            f"The ESS of {smallest} is {sizes[smallest]:.0f} (below {MIN_ESS_PER_CHAIN} per chain). Increase `draws` before reporting quantiles."
        )
    return found | {"rhat_max": rhats[worst], "rhat_worst": worst, "ess_min": sizes[smallest], "ess_worst": smallest}


def _varying_entries(variables: Mapping[str, np.ndarray], axes: Axes | None) -> Iterator[tuple[str, np.ndarray]]:
    for name, values in variables.items():
        for index in np.ndindex(values.shape[2:]):
            entry = values[(slice(None), slice(None), *index)]
            if np.ptp(entry) > 0:  # a fixed hyperparameter has no R̂
                yield _label_entry(name, index, values.shape[2:], axes), entry


def _label_entry(name: str, index: tuple[int, ...], shape: tuple[int, ...], axes: Axes | None) -> str:
    """Label an entry with its columns, such as `lengthscale[temperature, east]` for input 0 of `0.lengthscale`."""
    labels = [*map(str, index)]
    if axes is not None:
        coords, dims = axes.coords(), axes.dims(name, shape)
        kept = index if len(dims) == len(shape) else [i for i, size in zip(index, shape, strict=True) if size > 1]
        labels = [str(coords[dim][i]) if dim in coords else str(i) for dim, i in zip(dims, kept, strict=True)]
        first, _, rest = name.partition(".")
        if first.isdigit():  # one of independent outputs
            name, labels = rest, [str(axes.outputs[int(first)]), *labels]
    return f"{name}[{', '.join(labels)}]" if labels else name


def _warn(message: str) -> None:
    warnings.warn(message, FitWarning, stacklevel=5)


class _ArvizStats:
    """The two functions of arviz-stats (ArviZ 1.x) with the names and axes of ArviZ 0.x."""

    def __init__(self):
        self.stats = import_module("arviz_stats.base").array_stats

    def rhat(self, values):
        return self.stats.rhat(values, chain_axis=0, draw_axis=1)

    def ess(self, values):
        return self.stats.ess(values, chain_axis=0, draw_axis=1)


def _statistics():
    # imported here since ArviZ loads matplotlib, numba or xarray, which `import ovkgp` must not
    if find_spec("arviz_stats") is not None:
        return _ArvizStats()
    if find_spec("arviz") is not None:
        return import_module("arviz")
    raise OptionError("Sampling requires ArviZ, which is not installed. Run `pip install arviz`.")


@dataclass
class HyperparameterDraws:
    """Draws of a sampler and its statistics."""

    method: str
    u: np.ndarray  # (chains, draws, k)
    stats: dict[str, np.ndarray]  # (chains, draws) by name, always including the log density `lp`
    attrs: dict[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self):
        if self.u.ndim != 3:
            raise InputError(f"u has shape {self.u.shape}, expected (chains, draws, k).")
        for name, values in self.stats.items():
            if values.shape != self.u.shape[:2]:
                raise InputError(f"{name} has shape {values.shape}, expected {self.u.shape[:2]}.")

    @property
    def flat(self) -> np.ndarray:
        """All draws (chains · draws, k), one chain after another."""
        return self.u.reshape(-1, self.u.shape[-1])


class FiniteDraws(NamedTuple):
    """Draws of q where π > 0: u (draws, k), log q and log π (draws,), number of failures, whether interrupted."""

    u: np.ndarray
    log_q: np.ndarray
    lp: np.ndarray
    num_failed: int
    interrupted: bool


def draw_where_finite(
    density: Callable[[np.ndarray], tuple[float, np.ndarray]],
    draw: Callable[[int], tuple[np.ndarray, np.ndarray]],
    count: int,
) -> FiniteDraws:
    """Draw `count` times from q, where `draw` returns u (number, k) and log q, restricted to where there is a density.

    The returned log q is that of the restricted q, whose mass is estimated. Ctrl-C keeps the draws so far.
    """
    found, num_failed, interrupted = [], 0, False
    try:
        for u, log_q in (pair for _ in range(MAX_DRAW_ROUNDS) for pair in zip(*draw(count), strict=True)):
            value = density(u)[0]
            if np.isfinite(value):
                found.append((u, log_q, value))
            else:
                num_failed += 1
            if len(found) == count:
                break
    except KeyboardInterrupt:
        if not found:
            raise
        interrupted = True
        warnings.warn(f"Sampling was interrupted; {len(found)} of {count} draws are kept.", FitWarning, stacklevel=4)
    if len(found) < count and not interrupted:
        raise FactorizationError(
            f"Only {len(found)} of {MAX_DRAW_ROUNDS * count} draws from the approximation lie where the posterior density can "
            'be evaluated. Use method="nuts" or tighter priors.'
        )
    u, log_q, lp = (np.array(column) for column in zip(*found, strict=True))
    return FiniteDraws(u, log_q - np.log(len(found) / (len(found) + num_failed)), lp, num_failed, interrupted)
