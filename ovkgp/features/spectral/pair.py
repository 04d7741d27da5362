"""Spectral pairs: the operator-valued Bochner theorem as an object.

A shift-invariant operator-valued kernel is an expectation over frequencies (R. Brault's thesis, §4.2; see
``docs/references.md``),

    K(x, z) = E_ω [ cos⟨ω, h(x) − h(z)⟩ B(ω) B(ω)ᵀ ]            (even signatures, B real)
    K(x, z) = E_ω [ Re( e^{−i⟨ω, h(x) − h(z)⟩} B(ω) B(ω)* ) ]      (any signature, B complex)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.kernels.protocol import check_kernel, infer_num_dims
from ovkgp.kernels.records import KernelDispatcher


@dataclass(frozen=True)
class SpectralPair:
    """Distribution of frequencies and factor of the spectral density: (ρ, B) with K = E_ρ[cos · B Bᵀ].

    Parameters
    ----------
    base_dim : int
        Number of uniforms per frequency.
    frequencies : callable
        Map from u (D, base_dim) in (0, 1) to frequencies (..., D, q), differentiable in the hyperparameters.
    factor : callable
        Map from frequencies (..., D, q) to B (..., D, p, r), or (..., 1, p, r) if B does not depend on the frequency
        (the kernel is then separable and its features a Kronecker product). Complex if and only if `even` is False.
    isotropic : bool, default=False
        Whether the distribution is a scaled rotation-invariant one whose direction is that of the normal quantiles of
        the first `num_dims` uniforms, as orthogonal sampling requires.
    even : bool, default=True
        Whether K_e(δ) = K_e(−δ). A real factor can only represent even signatures (BT-E-15).
    warp : callable or None, default=None
        Map h from x (..., n, d) to (..., n, q), or to (..., n, p, q) for one point per output. If None, the identity.
    num_dims : int or None, default=None
        Number of uniforms that hold the direction. If None, `base_dim`.
    reflection : callable or None, default=None
        Map from frequencies to (v (..., D, p), s (..., D, 1)), if the factor is s (I − 2vvᵀ/‖v‖²) without its first
        column: it avoids the (D, p, p − 1) tensor. `factor` must agree with it.
    discrete : bool, default=False
        Whether the frequencies lie on a lattice, so that they have no derivative in the uniforms.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.features import ORFF, SpectralPair
    >>> pair = SpectralPair(1, lambda u: torch.special.ndtri(u), lambda w: torch.ones(1, 1, 1, dtype=w.dtype))
    >>> ORFF(pair, num_frequencies=8, random_state=0)(torch.zeros(3, 1)).shape
    torch.Size([3, 16])
    """

    base_dim: int
    frequencies: Callable[[Tensor], Tensor]
    factor: Callable[[Tensor], Tensor]
    isotropic: bool = False
    even: bool = True
    warp: Callable[[Tensor], Tensor] | None = None
    num_dims: int | None = None
    reflection: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    discrete: bool = False

    def __post_init__(self):
        if self.base_dim < 1:
            raise OptionError(f"base_dim must be at least 1, got {self.base_dim}.")

    @property
    def terms(self) -> tuple[SpectralPair, ...]:
        """Pairs whose kernels add up to this one: only itself."""
        return (self,)


@dataclass(frozen=True)
class SpectralSum:
    """Sum of shift-invariant kernels: one pair per term, whose features are concatenated.

    Parameters
    ----------
    terms : tuple of SpectralPair
        Pairs of the terms.

    Examples
    --------
    >>> from gpytorch.kernels import MaternKernel, RBFKernel
    >>> from ovkgp.features import spectral_pair
    >>> pair = spectral_pair(RBFKernel(ard_num_dims=2) + MaternKernel(ard_num_dims=2))
    >>> type(pair).__name__, len(pair.terms), pair.isotropic
    ('SpectralSum', 2, True)
    """

    terms: tuple[SpectralPair, ...]

    @property
    def isotropic(self) -> bool:
        return all(term.isotropic for term in self.terms)

    @property
    def even(self) -> bool:
        return all(term.even for term in self.terms)


def map_terms(pair: SpectralPair | SpectralSum, change: Callable[[SpectralPair], SpectralPair]):
    """Apply `change` to every term of a pair, keeping a single pair single."""
    terms = tuple(change(term) for term in pair.terms)
    return terms[0] if isinstance(pair, SpectralPair) else SpectralSum(terms)


def precompose(pair: SpectralPair | SpectralSum, warp: Callable[[Tensor], Tensor]):
    """Return the pair of K(w(x), w(z)) from that of K: `warp` is applied before the pair's warp."""

    def change(term: SpectralPair) -> SpectralPair:
        inner = term.warp
        return replace(term, warp=warp if inner is None else lambda x: inner(warp(x)))

    return map_terms(pair, change)


class SpectralPairDispatcher(KernelDispatcher):
    """Dispatcher `spectral_pair(kernel)` from kernel classes to their spectral pairs.

    It knows the kernels that the README lists with random features. Register another shift-invariant kernel with
    ``@spectral_pair.register(MyKernel)`` and a function from the kernel to its pair. The function takes the kernel and,
    if it declares them, the keywords `num_dims` (input dimension or None) and `bounded` (prefer a bounded factor). It
    need not handle the kernel's `active_dims`.

    Parameters
    ----------
    kernel : Kernel
        Kernel whose class, or a parent of it, is registered.
    num_dims : int or None, default=None
        Input dimension, for kernels that do not define it.
    bounded : bool, default=True
        Whether to use the factor of bounded norm (lower variance) for curl- and divergence-free kernels.

    Returns
    -------
    SpectralPair or SpectralSum
        Pair, or sum of pairs for a sum of kernels. No frequency is drawn.

    Raises
    ------
    SpectralError
        If the kernel has no pair, or one of infinite variance.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import Kernel, RBFKernel
    >>> from ovkgp.features import ORFF, SpectralPair, spectral_pair
    >>> spectral_pair(RBFKernel(ard_num_dims=2)).isotropic
    True
    >>> class Gauss(Kernel):  # exp(−‖δ‖²/2), whose frequencies are standard normal
    ...     def forward(self, x1, x2, diag=False, **params):
    ...         return self.covar_dist(x1, x2, diag=diag, square_dist=True).div(-2).exp()
    >>> @spectral_pair.register(Gauss)
    ... def gauss_pair(kernel, num_dims=None):
    ...     return SpectralPair(num_dims, torch.special.ndtri, lambda w: torch.ones(1, 1, 1, dtype=w.dtype))
    >>> ORFF(Gauss(), num_frequencies=8, num_dims=2, random_state=0)(torch.zeros(3, 2)).shape
    torch.Size([3, 16])
    """

    def __call__(
        self, kernel: Kernel, *, num_dims: int | None = None, bounded: bool = True
    ) -> SpectralPair | SpectralSum:
        """Return the spectral pair of a shift-invariant kernel; the class documents the parameters."""
        active = kernel.active_dims if isinstance(kernel, Kernel) else None
        pair = self.ignoring_active_dims(kernel, num_dims=None if active is not None else num_dims, bounded=bounded)
        return pair if active is None else precompose(pair, lambda x: select_columns(x, active))

    def ignoring_active_dims(self, kernel: Kernel, *, num_dims: int | None = None, bounded: bool = True):
        """Return the pair on columns that `active_dims` has selected already (as `forward` relates to `__call__`)."""
        check_kernel(kernel)
        rule = self.find(kernel)
        if rule is None:
            raise SpectralError(
                f"{type(kernel).__name__} has no spectral pair, and so no random Fourier features. Use Nystrom, or, if "
                f"the kernel is shift-invariant, register one with @spectral_pair.register({type(kernel).__name__}). "
                f"Known: {self.known_classes}."
            )
        options = {"num_dims": num_dims, "bounded": bounded}
        return rule(kernel, **{name: options[name] for name in _keywords(rule)})


@cache
def _keywords(rule: Callable) -> tuple[str, ...]:
    """Return the keywords that a rule takes."""
    return tuple(name for name in ("num_dims", "bounded") if name in inspect.signature(rule).parameters)


spectral_pair = SpectralPairDispatcher()


def resolve_num_dims(kernel: Kernel, num_dims: int | None) -> int:
    """Return the number of columns of `kernel`: from ARD, `active_dims`, its own `num_dims`, or the one given."""
    own = infer_num_dims(kernel)
    if kernel.active_dims is None and None not in (own, num_dims) and own != num_dims:
        raise OptionError(f"num_dims must be {own}, the dimension of {type(kernel).__name__}, got {num_dims}.")
    dims = num_dims if own is None else own
    if dims is None:
        raise OptionError(
            f"The input dimension of {type(kernel).__name__} is unknown. Set ard_num_dims or active_dims on the kernel or pass num_dims."
        )
    return dims


def scale_pair(pair: SpectralPair | SpectralSum, scale: Callable[[], Tensor]):
    """Return the pair of s · K: the factor is multiplied by √s."""

    def change(term: SpectralPair) -> SpectralPair:
        def factor(frequencies: Tensor) -> Tensor:
            return term.factor(frequencies) * scale().sqrt()[..., None, None, None]

        def reflection(frequencies: Tensor) -> tuple[Tensor, Tensor]:
            vector, length = term.reflection(frequencies)
            return vector, length * scale().sqrt()[..., None, None]

        return replace(term, factor=factor, reflection=reflection if term.reflection else None)

    return map_terms(pair, change)


def select_columns(x: Tensor, columns: Tensor) -> Tensor:
    """Return the columns of x (..., d) given by `active_dims`."""
    if int(columns.max()) >= x.shape[-1]:
        raise InputError(f"X has {x.shape[-1]} columns, but active_dims selects column {int(columns.max())}.")
    return x.index_select(-1, columns.to(x.device))


def unit_factor(frequencies: Tensor) -> Tensor:
    """Return B = 1, the factor of a scalar kernel with k(0) = 1, as a (1, 1, 1) tensor."""
    return torch.ones(1, 1, 1, dtype=frequencies.dtype, device=frequencies.device)
