"""The Laplace approximation of the posterior of hyperparameters: a Gaussian at its mode.

In the variables u of `LogPosterior`, q(u) = N(u*, H⁻¹) with u* the mode and H = −∇² log π(u*), by central differences
of the gradient. Its root R (R Rᵀ = H⁻¹) also defines the whitened coordinates z, u = u* + R z, of the other samplers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning
from ovkgp.inference.sampling.diagnostics import HyperparameterDraws, check_importance_ratios, draw_where_finite
from ovkgp.inference.training.free_parameters import PROBE_STEP
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational.bound import WithGradient

MIN_CURVATURE, REPLACEMENT_CURVATURE = 1e-3, 1.0
"""Smaller curvatures (a standard deviation above 30, where u is a logarithm or of order one) are replaced."""


@dataclass(frozen=True)
class LaplaceApproximation:
    """N(u*, R Rᵀ) with mode u* (k,) and invertible root R (k, k)."""

    mode: np.ndarray
    root: np.ndarray
    log_density: float  # log π(u*)
    converged: bool
    flat: tuple[tuple[float, np.ndarray], ...] = ()  # curvature and direction (k,), if nearly flat or convex

    def u(self, z: np.ndarray) -> np.ndarray:
        """Return u* + R z for z (..., k)."""
        return self.mode + z @ self.root.T

    def value(self, density: Callable[[np.ndarray], tuple[float, np.ndarray]], z: Tensor) -> Tensor:
        """Return log π(u* + R z) for a tensor z (k,), differentiable once, from log π(u) and its gradient."""
        with torch.enable_grad():  # the density may differentiate
            value, gradient = density(self.u(z.detach().numpy()))
        return WithGradient.apply(z.new_tensor(value), [torch.from_numpy(gradient @ self.root)], z)

    @property
    def log_volume(self) -> float:
        """log |det R|."""
        return float(np.linalg.slogdet(self.root)[1])

    @property
    def log_evidence(self) -> float:
        """Laplace's estimate of log ∫ π(u) du around this mode."""
        return float(self.log_density + len(self.mode) * np.log(2 * np.pi) / 2 + self.log_volume)

    def log_q(self, z: np.ndarray) -> np.ndarray:
        """Return log q(u) (...,) at u = u* + R z, z (..., k)."""
        return -((z**2).sum(-1) + len(self.mode) * np.log(2 * np.pi)) / 2 - self.log_volume


def find_laplace_approximation(log_posterior: LogPosterior) -> LaplaceApproximation:
    """Find the mode and the Gaussian there, from some tens of gradients and 2k for the Hessian."""
    mode, value, converged = log_posterior.mode()
    return make_laplace_approximation(mode, value, converged, log_posterior.hessian(mode))


def make_laplace_approximation(
    mode: np.ndarray, value: float, converged: bool, hessian: np.ndarray
) -> LaplaceApproximation:
    """Return the Gaussian at a mode with the Hessian of log π (k, k); flat directions get a finite width."""
    values, vectors = np.linalg.eigh(-hessian)
    is_flat = values < MIN_CURVATURE
    root = vectors / np.sqrt(np.where(is_flat, REPLACEMENT_CURVATURE, values))
    flat = tuple((float(values[i]), vectors[:, i]) for i in np.flatnonzero(is_flat))
    return LaplaceApproximation(mode, root, float(value), bool(converged), flat)


def warn_of_flat_directions(laplace: LaplaceApproximation, names: list[str]) -> None:
    """Warn of each direction that data and priors do not determine."""
    for curvature, direction in laplace.flat:
        largest = np.argsort(-np.abs(direction))[:3]
        where = ", ".join(f"{direction[i]:+.2f} {names[i]}" for i in largest if abs(direction[i]) > 0.1)
        warnings.warn(
            f"The posterior is flat or convex at its mode (curvature {curvature:.3g}) along {where}; the Gaussian gets the "
            f"standard deviation {REPLACEMENT_CURVATURE**-0.5:.3g} there. Use a tighter prior, a model with identified "
            'parameters (FullMatrix for a free output matrix), or method="nuts".',
            FitWarning,
            stacklevel=4,
        )


def sample_laplace(log_posterior: LogPosterior, draws: int, seed: int) -> HyperparameterDraws:
    """Draw from N(u*, H⁻¹) where there is a density, and assess the draws by the Pareto shape of the ratios π / q.

    `log_marginal_likelihood` estimates log p(Y) with the hyperparameters integrated out, over all signs of loadings.
    """
    laplace = find_laplace_approximation(log_posterior)
    warn_of_flat_directions(laplace, variable_names(log_posterior))
    if not laplace.converged:
        warnings.warn(
            "The search for the mode of the posterior did not converge; the Gaussian may not be centered at the mode. Fit the "
            'model first, or use method="nuts".',
            FitWarning,
            stacklevel=3,
        )
    generator = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        z = generator.standard_normal((count, len(laplace.mode)))
        return laplace.u(z), laplace.log_q(z)

    inside = draw_where_finite(log_posterior, draw, draws)
    attrs = {
        "log_marginal_likelihood": laplace.log_evidence + log_posterior.log_num_modes,
        "mode_converged": int(laplace.converged),
        "num_flat": len(laplace.flat),
        "num_failed_draws": inside.num_failed,
        "interrupted": int(inside.interrupted),
    }
    attrs |= check_importance_ratios(inside.lp - inside.log_q, "laplace")
    return HyperparameterDraws("laplace", inside.u[None], {"lp": inside.lp[None]}, attrs)


def variable_names(log_posterior: LogPosterior) -> list[str]:
    """Return a name for each entry of u: that of its raw parameter, with an index if it has several entries."""
    here, there = (log_posterior.raw(log_posterior.initial_point() + step) for step in (0.0, PROBE_STEP))
    return [
        name if value.size == 1 else f"{name}[{', '.join(map(str, np.unravel_index(i, value.shape)))}]"
        for name, value in here.items()
        for i in np.flatnonzero(value != there[name])  # other entries are fixed
    ]
