"""The operator-valued Bochner theorem as an object.

A shift-invariant operator-valued kernel is an expectation over frequencies (R. Brault's thesis, §4.2; see ``docs/references.md``),

    K(x, z) = E_ω [ cos⟨ω, h(x) − h(z)⟩ B(ω) B(ω)ᵀ ]            (even signatures, B real)
    K(x, z) = E_ω [ Re( e^{−i⟨ω, h(x) − h(z)⟩} B(ω) B(ω)* ) ]      (any signature, B complex)

`SpectralPair` holds the law of ω, as a map from uniforms, and the factor B. `spectral_pair(kernel)`
looks the pair of a kernel up in a table that users extend with ``@spectral_pair.register(MyKernel)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError, OptionError, SpectralError
from ovkgp.kernels.protocol import known_dims
from ovkgp.kernels.records import KernelDispatcher


@dataclass(frozen=True)
class SpectralPair:
    """A law of frequencies and a factor of the spectral density: (ρ, B) with K = E_ρ[cos · B Bᵀ].

    Args:
        base_dim: how many uniforms make one frequency.
        frequencies: u (D, base_dim) in (0, 1) → frequencies (..., D, q); differentiable in the hyperparameters.
        factor: frequencies (..., D, q) → B (..., D, p, r), or (..., 1, p, r) where B does not depend on the
            frequency (the kernel is then separable and its features a Kronecker product). Complex if and only
            if `even` is False.
        isotropic: the law is a scaled rotation-invariant one whose direction is that of the normal quantiles of
            the first `num_dims` uniforms: what orthogonal sampling needs.
        even: whether K_e(δ) = K_e(−δ). A real factor can only represent even signatures (BT-E-15).
        warp: h, from x (..., n, d) to (..., n, q), or to (..., n, p, q) for one point an output; None is the identity.
        num_dims: the number of uniforms that hold the direction; `base_dim` where it is not given.
        reflection: frequencies → (v (..., D, p), s (..., D, 1)), where the factor is s (I − 2vvᵀ/‖v‖²) without its first
            column: spares the (D, p, p − 1) tensor. `factor` must agree with it.
        discrete: the frequencies lie on a lattice, so they have no derivative in the uniforms.

    Example:
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
        """The pairs whose kernels add up to this one: itself alone."""
        return (self,)


@dataclass(frozen=True)
class SpectralSum:
    """A sum of shift-invariant kernels: one pair a term, whose features stand side by side.

    Args:
        terms: the pairs.

    Example:
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
    """The pair of K(w(x), w(z)) from that of K: `warp` is applied before the pair's own."""

    def change(term: SpectralPair) -> SpectralPair:
        inner = term.warp
        return replace(term, warp=warp if inner is None else lambda x: inner(warp(x)))

    return map_terms(pair, change)


class SpectralTable(KernelDispatcher):
    """`spectral_pair(kernel)`: the law of the frequencies and the factor from which random features are made.

    `spectral_pair` is the one table of this class. It knows the kernels that the README lists with random features.

    Args:
        kernel: a kernel whose class, or a parent of it, is registered.
        num_dims: the input dimension, for kernels that do not know it.
        bounded: for curl- and divergence-free kernels, the factor of bounded norm (lower variance).

    Returns:
        A `SpectralPair`, or a `SpectralSum` for a sum of kernels. It costs nothing: no frequency is drawn.

    Raises:
        SpectralError: the kernel has no pair, or one of infinite variance.

    Register a shift-invariant kernel of your own with ``@spectral_pair.register(MyKernel)`` and a function from the
    kernel to its pair. The rule takes the kernel, and where it wants them the keywords `num_dims` (the input dimension,
    or None where nobody knows) and `bounded` (prefer a bounded factor). It need not look at the kernel's `active_dims`.

    Example:
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
        """The spectral pair of a shift-invariant kernel; the arguments are at the head of the class."""
        active = kernel.active_dims if isinstance(kernel, Kernel) else None
        pair = self.ignoring_active_dims(kernel, num_dims=None if active is not None else num_dims, bounded=bounded)
        return pair if active is None else precompose(pair, lambda x: select(x, active))

    def ignoring_active_dims(self, kernel: Kernel, *, num_dims: int | None = None, bounded: bool = True):
        """The pair on the columns `active_dims` has selected already (what `forward` is to `__call__`)."""
        if not isinstance(kernel, Kernel):
            raise KernelTypeError(f"expected a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
        rule = self.find(kernel)
        if rule is None:
            raise SpectralError(
                f"{type(kernel).__name__} has no spectral pair here, so it has no random Fourier features. Use Nystrom, "
                f"or, if the kernel is shift-invariant, register one with @spectral_pair.register({type(kernel).__name__}). "
                f"Known: {self.known}."
            )
        offered = {"num_dims": num_dims, "bounded": bounded}
        return rule(kernel, **{name: offered[name] for name in _keywords(rule)})


@cache
def _keywords(rule: Callable) -> tuple[str, ...]:
    """Which of the keywords on offer a rule takes."""
    return tuple(name for name in ("num_dims", "bounded") if name in inspect.signature(rule).parameters)


spectral_pair = SpectralTable()


def input_dim(kernel: Kernel, num_dims: int | None) -> int:
    """The dimension of the columns `kernel` sees: ARD, `active_dims`, its own `num_dims`, or the one given."""
    own = known_dims(kernel)
    if kernel.active_dims is None and None not in (own, num_dims) and own != num_dims:
        raise OptionError(f"num_dims={num_dims} contradicts the {own} dimensions of {type(kernel).__name__}.")
    dims = num_dims if own is None else own
    if dims is None:
        raise OptionError(
            f"the input dimension of {type(kernel).__name__} is not known: set ard_num_dims or active_dims on the "
            "kernel, or pass num_dims=d."
        )
    return dims


def scaled(pair: SpectralPair | SpectralSum, scale: Callable[[], Tensor]):
    """The pair of s · K: the factor grows by √s."""

    def change(term: SpectralPair) -> SpectralPair:
        def factor(frequencies: Tensor) -> Tensor:
            return term.factor(frequencies) * scale().sqrt()[..., None, None, None]

        def reflection(frequencies: Tensor) -> tuple[Tensor, Tensor]:
            mirror, length = term.reflection(frequencies)
            return mirror, length * scale().sqrt()[..., None, None]

        return replace(term, factor=factor, reflection=reflection if term.reflection else None)

    return map_terms(pair, change)


def select(x: Tensor, columns: Tensor) -> Tensor:
    """The columns of x (..., d) that `active_dims` name."""
    if int(columns.max()) >= x.shape[-1]:
        raise InputError(f"active_dims ask for column {int(columns.max())}, but the inputs have {x.shape[-1]} columns.")
    return x.index_select(-1, columns.to(x.device))


def unit_factor(frequencies: Tensor) -> Tensor:
    """B = 1, the factor of a scalar kernel with k(0) = 1, as a (1, 1, 1) tensor."""
    return torch.ones(1, 1, 1, dtype=frequencies.dtype, device=frequencies.device)
