"""Scalar kernels of one input as linear stochastic differential equations, whose state is a Markov process.

The state x(t) ∈ R^d yields the function f(t) = hᵀ x(t), and for a lag Δ ≥ 0

    x(t + Δ) = A(Δ) x(t) + q,   q ~ N(0, Q(Δ)),   x(t) ~ N(0, P(t)).

Matérn kernels with ν = ½, 3/2, 5/2, constant, linear, integrated Brownian and seasonal kernels, their multiples, sums and products have
such a form. The state of a product is x ⊗ z for the independent states x and z of its factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from ovkgp.kernels.records import find_record

MAX_RATIO = 800.0  # ratio of lag and time scale at which exp(−ratio) is zero, and powers of it are not infinite
LARGE_RATIO = 2.0  # ratio of lag and time scale from which P − A P Aᵀ loses no digits
NODES, WEIGHTS = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(14))


class StateSpaceForm(NamedTuple):
    """Markov process, of whose entries a linear combination has a given kernel.

    Attributes
    ----------
    size : int
        Number d of entries of the state.
    transition : callable
        A (n, d, d) at lags (n,), differentiable in the hyperparameters.
    process_noise : callable
        Q (n, d, d) at lags (n,) that end at times (n,). The times may be omitted if the process is homogeneous.
    covariance : callable
        P (n, d, d) at times (n,).
    reading : Tensor or None, default=None
        h (d,). If None, the function is the first entry of the state.
    """

    size: int
    transition: Callable[[Tensor], Tensor]
    process_noise: Callable[..., Tensor]
    covariance: Callable[[Tensor], Tensor]
    reading: Tensor | None = None

    def scaled(self, scale: Tensor) -> StateSpaceForm:
        """Return the form of a multiple of the kernel."""
        return self._replace(
            process_noise=lambda lags, times=None: scale * self.process_noise(lags, times),
            covariance=lambda times: scale * self.covariance(times),
        )

    def times(self, other: StateSpaceForm) -> StateSpaceForm:
        """Return the form of the product with another kernel; neither process noise is a difference."""

        def process_noise(lags: Tensor, times: Tensor | None = None) -> Tensor:
            ends = torch.zeros_like(lags) if times is None else times
            transition = self.transition(lags)
            moved = transition @ self.covariance(ends - lags) @ transition.mT
            return kronecker_blocks(self.process_noise(lags, times), other.covariance(ends)) + kronecker_blocks(
                moved, other.process_noise(lags, times)
            )

        return StateSpaceForm(
            self.size * other.size,
            lambda lags: kronecker_blocks(self.transition(lags), other.transition(lags)),
            process_noise,
            lambda times: kronecker_blocks(self.covariance(times), other.covariance(times)),
            torch.kron(self.read_vector(), other.read_vector()),
        )

    def read_vector(self) -> Tensor:
        """Return h (d,)."""
        return torch.eye(1, self.size, dtype=torch.float64)[0] if self.reading is None else self.reading


def kronecker_blocks(left: Tensor, right: Tensor) -> Tensor:
    """Compute the Kronecker products (n, a b, a b) of matrices (n, a, a) and (n, b, b)."""
    return (left[:, :, None, :, None] * right[:, None, :, None, :]).flatten(3).flatten(1, 2)


def state_space_forms(kernel: Kernel) -> list[StateSpaceForm] | None:
    """Return the forms of independent processes whose sum has a scalar kernel of one input; None if there are none.

    Parameters
    ----------
    kernel : Kernel
        Scalar kernel. Kernels with a form have a record with `state_space`.

    Returns
    -------
    list of StateSpaceForm or None
        One form per term of the sum, or of the expanded product of sums.

    Examples
    --------
    >>> from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel
    >>> from ovkgp.kernels.state_space import state_space_forms
    >>> [form.size for form in state_space_forms(MaternKernel(nu=2.5) + LinearKernel())]
    [3, 2]
    >>> state_space_forms(RBFKernel()) is None
    True
    """
    if kernel.active_dims is not None or kernel.batch_shape or kernel.ard_num_dims not in (None, 1):
        return None
    if isinstance(kernel, AdditiveKernel):
        parts = [state_space_forms(part) for part in kernel.kernels]
        return None if any(part is None for part in parts) else [form for part in parts for form in part]
    if isinstance(kernel, ScaleKernel):
        forms = state_space_forms(kernel.base_kernel)
        return None if forms is None else [form.scaled(kernel.outputscale.double()) for form in forms]
    if isinstance(kernel, ProductKernel):
        parts = [state_space_forms(part) for part in kernel.kernels]
        return None if any(part is None for part in parts) else reduce(_multiply_sums, parts)
    record = find_record(kernel)
    form = None if record is None or record.state_space is None else record.state_space(kernel)
    return None if form is None else [form]


def _multiply_sums(left: list[StateSpaceForm], right: list[StateSpaceForm]) -> list[StateSpaceForm]:
    return [a.times(b) for a in left for b in right]


def matern_form(nu: float, lengthscale: Tensor) -> StateSpaceForm | None:
    """Make the form of a Matérn kernel from (d/dτ + 1)^d f = white noise, τ = √(2ν) t/ℓ; None unless d = ν + ½ is 1, 2 or 3.

    Further entries of the state are derivatives in τ, so that A and Q depend on the ratio of lag and lengthscale alone. Entries of Q
    fall like powers of this ratio down to its 5th; they are integrals of squares, with a small relative error each.

    Parameters
    ----------
    nu : float
        Smoothness.
    lengthscale : Tensor
        One lengthscale ℓ.

    Returns
    -------
    StateSpaceForm or None
        Form of the kernel with variance 1.
    """
    size = round(nu + 0.5)
    if size not in STATIONARY_COVARIANCES or nu != size - 0.5:
        return None
    rate = math.sqrt(2 * nu) / lengthscale.double().reshape(())
    stationary = torch.tensor(STATIONARY_COVARIANCES[size], dtype=torch.float64)
    companion = torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)
    companion[-1] = torch.tensor([-math.comb(size, k) for k in range(size)], dtype=torch.float64)
    shifted = companion + torch.eye(size, dtype=torch.float64)  # nilpotent, so that its exponential is a polynomial
    terms = torch.stack([torch.linalg.matrix_power(shifted, k) / math.factorial(k) for k in range(size)])
    intensity = -2 * (companion @ stationary)[-1, -1]  # of the white noise: N P + P Nᵀ + L q Lᵀ = 0

    def exponential(ratios: Tensor) -> Tensor:
        ratios = ratios.clamp_max(MAX_RATIO)
        powers = torch.stack([ratios**k for k in range(size)], -1) * torch.exp(-ratios).unsqueeze(-1)
        return (powers @ terms.flatten(1)).unflatten(-1, (size, size))

    def process_noise(lags: Tensor, times: Tensor | None = None) -> Tensor:
        ratios = lags * rate
        small = ratios.clamp_max(LARGE_RATIO).unsqueeze(-1)
        impulses = exponential(small * (NODES + 1) / 2)[..., -1]  # (n, nodes, d), of ∫ exp(N s) L q Lᵀ exp(N s)ᵀ ds
        by_quadrature = (impulses * (small * WEIGHTS * intensity / 2).unsqueeze(-1)).mT @ impulses
        transition = exponential(ratios)
        by_difference = stationary - transition @ stationary @ transition.mT
        return torch.where((ratios > LARGE_RATIO)[:, None, None], by_difference, by_quadrature)

    return StateSpaceForm(
        size, lambda lags: exponential(lags * rate), process_noise, lambda times: stationary.expand(len(times), -1, -1)
    )


STATIONARY_COVARIANCES = {
    1: [[1.0]],
    2: [[1.0, 0.0], [0.0, 1.0]],
    3: [[1.0, 0.0, -1 / 3], [0.0, 1 / 3, 0.0], [-1 / 3, 0.0, 1.0]],
}
"""Covariances P of the states of Matérn kernels of variance 1, by the number of entries."""


def constant_form(variance: Tensor) -> StateSpaceForm:
    """Make the form of the kernel k = `variance`."""
    value = variance.double().reshape(1, 1, 1)
    return StateSpaceForm(
        1, lambda lags: torch.ones_like(lags)[:, None, None], _no_noise(1), lambda times: value.expand(len(times), 1, 1)
    )


def linear_form(variance: Tensor) -> StateSpaceForm:
    """Make the form of k(s, t) = `variance` s t, with the state (w t, w)."""

    def transition(lags: Tensor) -> Tensor:
        one = torch.ones_like(lags)
        return torch.stack([one, lags, 0 * one, one], -1).unflatten(-1, (2, 2))

    def covariance(times: Tensor) -> Tensor:
        rows = torch.stack([times, torch.ones_like(times)], -1)
        return variance.double().reshape(()) * rows.unsqueeze(-1) * rows.unsqueeze(-2)

    return StateSpaceForm(2, transition, _no_noise(2), covariance)


def _no_noise(size: int) -> Callable[..., Tensor]:
    return lambda lags, times=None: lags.new_zeros(len(lags), size, size)
