"""Dispatch of kernels to their spectral pairs, and operations on pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.kernels.protocol import check_kernel, infer_num_dims
from ovkgp.kernels.records import KernelDispatcher, KernelRecord, find_record
from ovkgp.kernels.spectral import ScaleMixture, SpectralPair, SpectralSum, scale_mixture


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

    It knows the kernels that the README lists with random features. The pair of a scalar kernel is part of its record;
    see `ovkgp.kernels.KernelRecord`. Register another operator-valued kernel with
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
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import spectral_pair
    >>> spectral_pair(RBFKernel(ard_num_dims=2)).isotropic
    True
    """

    def from_record(self, record: KernelRecord) -> Callable | None:
        """Return the rule for the pair, or for the scale mixture, of a scalar kernel."""
        if record.spectral_pair is not None:
            return _recorded_pair
        return None if record.scale_mixture is None else radial_pair

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
                "the kernel is shift-invariant, register one: with ovkgp.kernels.register_kernel for a scalar kernel, "
                f"with @spectral_pair.register({type(kernel).__name__}) for an operator-valued one. "
                f"Known: {self.known_classes}."
            )
        options = {"num_dims": num_dims, "bounded": bounded}
        return rule(kernel, **{name: options[name] for name in _keywords(rule)})


@cache
def _keywords(rule: Callable) -> tuple[str, ...]:
    """Return the keywords that a rule takes."""
    return tuple(name for name in ("num_dims", "bounded") if name in inspect.signature(rule).parameters)


spectral_pair = SpectralPairDispatcher()


def _recorded_pair(kernel: Kernel, num_dims: int | None = None) -> SpectralPair | SpectralSum:
    return find_record(kernel).spectral_pair(kernel, resolve_num_dims(kernel, num_dims))


def radial_pair(kernel: Kernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair ω = √τ z ⊘ ℓ, B = 1 of a Gaussian scale mixture (BT-42)."""
    d, mixture = resolve_num_dims(kernel, num_dims), scale_mixture(kernel)
    return SpectralPair(
        base_dim=d + mixture.base_dim,
        frequencies=lambda u: whitened_frequencies(u, d, mixture) / kernel.lengthscale.to(u),
        isotropic=True,
        num_dims=d,
    )


def whitened_frequencies(uniforms: Tensor, d: int, mixture: ScaleMixture, tilted: bool = False) -> Tensor:
    """Return ω ∘ ℓ (*batch, D, d): √τ z, or if `tilted` R û with R² = τ χ²(d + 2), which takes one more uniform."""
    z = torch.special.ndtri(uniforms[:, :d])
    if tilted:
        squared = z.square().sum(-1, keepdim=True)
        z = z * ((squared - 2 * uniforms[:, d : d + 1].log()) / squared).sqrt()
    quantile = mixture.tilted_quantile if tilted else mixture.quantile
    return z if quantile is None else z * quantile(uniforms[:, -1]).sqrt().unsqueeze(-1)


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
