"""The Laplace approximation of the posterior of hyperparameters: a Gaussian at its mode.

In the variables u of `LogPosterior`, q(u) = N(u*, H⁻¹) with u* the mode and H = −∇² log π(u*), by central differences of
the gradient. Its root R (R Rᵀ = H⁻¹) is also what makes the coordinates z, u = u* + R z, of the other samplers round.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning
from ovkgp.inference.sampling.diagnostics import importance_checks
from ovkgp.inference.sampling.draws import HyperparameterDraws, draw_inside
from ovkgp.inference.training.free_parameters import NUDGE
from ovkgp.inference.training.log_posterior import LogPosterior

FLAT, RAISED = 1e-3, 1.0
"""A curvature below `FLAT` (a standard deviation beyond 30, where u is a logarithm or of order one) is taken as `RAISED`."""


@dataclass(frozen=True)
class LaplaceApproximation:
    """N(u*, R Rᵀ), and how it came about.

    Args:
        mode: u* (k,).
        root: R (k, k), invertible.
        log_density: log π(u*).
        converged: whether the search for the mode ended at one.
        flat: for each direction that was all but flat or bent upwards, its curvature and the direction (k,).
    """

    mode: np.ndarray
    root: np.ndarray
    log_density: float
    converged: bool
    flat: tuple[tuple[float, np.ndarray], ...] = ()

    def u(self, z: np.ndarray) -> np.ndarray:
        """u* + R z for z (..., k)."""
        return self.mode + z @ self.root.T

    def value(self, density: Callable[[np.ndarray], tuple[float, np.ndarray]], z: Tensor) -> Tensor:
        """log π(u* + R z) for a tensor z (k,), differentiable once, where `density` gives log π(u) and its gradient (k,)."""
        return _InCoordinates.apply(z, density, self)

    @property
    def log_volume(self) -> float:
        """log |det R|."""
        return float(np.linalg.slogdet(self.root)[1])

    @property
    def log_evidence(self) -> float:
        """Laplace's estimate of log ∫ π(u) du around this one mode."""
        return float(self.log_density + len(self.mode) * np.log(2 * np.pi) / 2 + self.log_volume)

    def log_q(self, z: np.ndarray) -> np.ndarray:
        """log q(u) (...,) at u = u* + R z, z (..., k)."""
        return -((z**2).sum(-1) + len(self.mode) * np.log(2 * np.pi)) / 2 - self.log_volume


class _InCoordinates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor, density, local: LaplaceApproximation) -> Tensor:
        with torch.enable_grad():  # torch turns gradients off in here, and the density takes its own
            value, gradient = density(local.u(z.detach().numpy()))
        ctx.gradient = torch.from_numpy(gradient @ local.root)
        return z.new_tensor(value)

    @staticmethod
    def backward(ctx, by_value: Tensor) -> tuple[Tensor, None, None]:
        return by_value * ctx.gradient, None, None


def local_gaussian(log_posterior: LogPosterior) -> LaplaceApproximation:
    """Find the mode and the Gaussian there.

    Cost: some tens of gradients for the mode, 2k for the Hessian.

    Raises:
        FactorizationError: log π cannot be evaluated at any start, or not around its mode.
    """
    mode, value, converged = log_posterior.mode()
    return gaussian_at(mode, value, converged, log_posterior.hessian(mode))


def gaussian_at(mode: np.ndarray, value: float, converged: bool, hessian: np.ndarray) -> LaplaceApproximation:
    """The Gaussian at a mode from the second derivatives of log π there (k, k); flat directions are made finite."""
    values, vectors = np.linalg.eigh(-hessian)
    is_flat = values < FLAT
    root = vectors / np.sqrt(np.where(is_flat, RAISED, values))
    flat = tuple((float(values[i]), vectors[:, i]) for i in np.flatnonzero(is_flat))
    return LaplaceApproximation(mode, root, float(value), bool(converged), flat)


def warn_of_flatness(local: LaplaceApproximation, names: list[str]) -> None:
    """Say which directions the data and the priors leave open, where there are some."""
    for curvature, direction in local.flat:
        largest = np.argsort(-np.abs(direction))[:3]
        where = ", ".join(f"{direction[i]:+.2f} {names[i]}" for i in largest if abs(direction[i]) > 0.1)
        warnings.warn(
            f"the posterior is flat or bent upwards at its mode (curvature {curvature:.3g}) along {where}: there the Gaussian "
            f"is given the standard deviation {RAISED**-0.5:.3g} instead. Give a tighter prior, a model whose parameters are "
            'identified (FullMatrix for a free output matrix), or use method="nuts".',
            FitWarning,
            stacklevel=4,
        )


def sample_laplace(log_posterior: LogPosterior, draws: int, seed: int) -> HyperparameterDraws:
    """Draws from N(u*, H⁻¹), with the shape of the importance ratios π / q as a check.

    Draws where there is no density, as outside of a uniform prior, are made anew and counted in `num_failed_draws`. The
    attribute `log_marginal_likelihood` estimates log p(Y) with the hyperparameters integrated out, all modes that differ by
    signs of loadings included.

    Args:
        log_posterior: log π.
        draws: how many.
        seed: of the draws.

    Cost: that of `local_gaussian`, and one evaluation a draw for the check.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.training.log_posterior import LogPosterior
        >>> from ovkgp.inference.sampling.laplace import sample_laplace
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> density = LogPosterior(OperatorValuedGP(RBFKernel(), mean="zero"), X, X.sin() + 0.1 * torch.cos(40 * X))
        >>> sampled = sample_laplace(density, draws=100, seed=0)
        >>> sampled.u.shape, sampled.attrs["mode_converged"]
        ((1, 100, 2), 1)
    """
    local = local_gaussian(log_posterior)
    warn_of_flatness(local, variable_names(log_posterior))
    if not local.converged:
        warnings.warn(
            "the search for the mode of the posterior did not converge, and the Gaussian may be centred beside it: fit the model "
            'first, or use method="nuts".',
            FitWarning,
            stacklevel=3,
        )
    generator = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        z = generator.standard_normal((count, len(local.mode)))
        return local.u(z), local.log_q(z)

    inside = draw_inside(log_posterior, draw, draws)
    attrs = {
        "log_marginal_likelihood": local.log_evidence + log_posterior.log_copies,
        "mode_converged": int(local.converged),
        "num_flat": len(local.flat),
        "num_failed_draws": inside.num_failed,
        "interrupted": int(inside.interrupted),
    }
    attrs |= importance_checks(inside.lp - inside.log_q, "laplace")
    return HyperparameterDraws("laplace", inside.u[None], {"lp": inside.lp[None]}, attrs)


def variable_names(log_posterior: LogPosterior) -> list[str]:
    """A name for each entry of u: that of its raw parameter, numbered where it has several entries."""
    here, there = (log_posterior.raw(log_posterior.start() + nudge) for nudge in (0.0, NUDGE))
    return [
        name if value.size == 1 else f"{name}[{', '.join(map(str, np.unravel_index(i, value.shape)))}]"
        for name, value in here.items()
        for i in np.flatnonzero(value != there[name])  # others are not among the variables
    ]
