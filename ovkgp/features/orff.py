"""Operator-valued random Fourier features (BT-47..53).

    Φ(x) = 1/√D [ cos⟨ω_j, h(x)⟩ B(ω_j),  sin⟨ω_j, h(x)⟩ B(ω_j) ]_j,      Φ(x) Φ(z)ᵀ ≈ K(x, z)

The base noise is drawn once and stored; frequencies are differentiable functions of it and of the kernel's
hyperparameters, so that every realization is itself a valid kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError, KernelTypeError, OptionError, SpectralError
from ovkgp.features.feature_map import FeatureMap
from ovkgp.features.operators import (
    ComplexFeatureOperator,
    CosSinFeatures,
    FeatureOperator,
    ReflectedFeatureOperator,
    stack_features,
)
from ovkgp.features.spectral.base_samples import check_sampler, normal_scores
from ovkgp.features.spectral.pair import spectral_pair
from ovkgp.kernels import components, is_operator_valued, num_outputs
from ovkgp.kernels.fields import FieldKernel
from ovkgp.kernels.spectral import SpectralPair, SpectralSum


class ORFF(FeatureMap):
    """Operator-valued random Fourier features of a kernel.

    Parameters
    ----------
    kernel_or_pair : Kernel, SpectralPair or SpectralSum
        Kernel with a spectral pair (its parameters are shared, not copied), or a pair itself.
    num_frequencies : int, default=500
        Number D of frequencies per term of a sum.
    num_dims : int or None, default=None
        Input dimension. Needed if the kernel does not define it by ARD, `active_dims` or its outputs.
    sampler : {"iid", "orthogonal", "qmc"}, default="iid"
        "orthogonal" has lower variance and requires a rotation-invariant distribution; "qmc" is a scrambled Sobol
        sequence.
    bounded : bool, default=True
        Whether to use the factor of bounded norm for curl- and divergence-free kernels over RBF, Matérn or RQ.
    learn_frequencies : bool, default=False
        Whether the base noise is a parameter, so that the spectrum is learned (BT-110).
    random_state : int, RandomState or None, default=None
        Seed. An int reproduces the same features bit for bit.

    Notes
    -----
    Complexity: O(n D d) to build; Φ has 2·D·r columns for a factor with r columns. `FeatureOperator` states the cost of
    products.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import ORFF
    >>> from ovkgp.kernels import CurlFreeKernel
    >>> orff = ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)), num_frequencies=100, random_state=0)
    >>> Phi = orff(torch.randn(7, 2))
    >>> Phi.shape, (Phi @ torch.randn(200)).shape
    (torch.Size([14, 200]), torch.Size([14]))
    """

    def __init__(
        self,
        kernel_or_pair: Kernel | SpectralPair | SpectralSum,
        num_frequencies: int = 500,
        *,
        num_dims: int | None = None,
        sampler: str = "iid",
        bounded: bool = True,
        learn_frequencies: bool = False,
        random_state=None,
    ):
        super().__init__()
        is_pair = isinstance(kernel_or_pair, SpectralPair | SpectralSum)
        if not is_pair and not isinstance(kernel_or_pair, Kernel):
            raise KernelTypeError(
                f"kernel_or_pair must be a kernel or a SpectralPair, got {type(kernel_or_pair).__name__}."
            )
        self.kernel = None if is_pair else kernel_or_pair
        self._pair = kernel_or_pair if is_pair else None
        self.num_frequencies = check_integer("num_frequencies", num_frequencies)
        self.num_dims, self.sampler, self.bounded = num_dims, sampler, bounded
        self.learn_frequencies = learn_frequencies
        self.seed, self.block_index, self._first_term = as_seed(random_state), 0, 0
        pair = self.pair
        check_sampler(sampler, pair)
        device = None if self.kernel is None else self.kernel.device
        for term in pair.terms:
            _check_factor(term, learn_frequencies, device)
        if self.kernel is not None:
            _check_even(self.kernel, num_dims, bounded)
        self._noise_names = tuple(f"raw_frequencies_{i}" for i in range(len(pair.terms)))
        for name, scores in zip(self._noise_names, self._scores(self.num_frequencies), strict=True):
            self._store(name, scores.to(device, torch.get_default_dtype()))
        self._num_outputs = self._count_outputs()

    @property
    def pair(self) -> SpectralPair | SpectralSum:
        """Spectral pair at the current hyperparameters of the kernel."""
        if self.kernel is None:
            return self._pair
        return spectral_pair(self.kernel, num_dims=self.num_dims, bounded=self.bounded)

    @property
    def num_outputs(self) -> int:
        """Number p of outputs."""
        return self._num_outputs

    def _count_outputs(self) -> int:
        counts = {factor.shape[-2] for factor in self.factors}
        is_open_field = isinstance(self.kernel, FieldKernel) and self.kernel.num_dims is None
        if 1 not in counts or self.kernel is None or is_open_field:
            return max(counts)
        return num_outputs(self.kernel)  # a kernel with one point per output has p = 1 here

    @property
    def is_stationary(self) -> bool:
        return self.kernel is not None and self.kernel.is_stationary

    @property
    def num_features(self) -> int:
        """Number of columns of Φ."""
        return sum(2 * self.num_frequencies * factor.shape[-1] for factor in self.factors)

    @property
    def frequencies(self) -> Tensor | list[Tensor]:
        """Frequencies ω (..., D, q), float64; for a sum, a list with one tensor per term."""
        drawn = self._frequencies(self.pair.terms)
        return drawn[0] if len(drawn) == 1 else drawn

    @property
    def factors(self) -> list[Tensor]:
        """Factors B (..., D or 1, p, r), one tensor per term."""
        terms = self.pair.terms
        return [term.factor(w) for term, w in zip(terms, self._frequencies(terms), strict=True)]

    def _frequencies(self, terms: tuple[SpectralPair, ...]) -> list[Tensor]:
        # Uniforms in float64 whatever the dtype of the module: the tails of a float32 uniform are too coarse.
        limit = 2.0**-53
        return [
            term.frequencies(torch.special.ndtr(getattr(self, name).double()).clamp(limit, 1 - limit))
            for term, name in zip(terms, self._noise_names, strict=True)
        ]

    def _scores(self, num_rows: int) -> list[Tensor]:
        return [
            normal_scores(self.sampler, range(num_rows), term, (self.seed, self.block_index, i))
            for i, term in enumerate(self.pair.terms, self._first_term)
        ]

    def _store(self, name: str, scores: Tensor) -> None:
        if self.learn_frequencies:
            self.register_parameter(name, torch.nn.Parameter(scores))
        else:
            self.register_buffer(name, scores)

    def extend(self, num_new: int) -> ORFF:
        """Draw `num_new` more frequencies in place; the previous ones stay, learned or not (BT-08).

        Learned frequencies become a new, longer parameter, which must be passed to the optimizer again.

        Parameters
        ----------
        num_new : int
            Number of frequencies to add per term.

        Returns
        -------
        ORFF
            This map.
        """
        old, num_new = self.num_frequencies, check_integer("num_new", num_new, minimum=0)
        for name, scores in zip(self._noise_names, self._scores(old + num_new), strict=True):
            previous = getattr(self, name)
            self._store(name, torch.cat([previous.data, scores[old:].to(previous)]))
        self.num_frequencies = old + num_new
        return self

    def block(self, index: int) -> ORFF:
        """Return an independent map of the same size and kernel, regenerated from (random_state, index) (BT-93).

        Parameters
        ----------
        index : int
            Index of the block; block 0 is the map as it was first drawn.

        Returns
        -------
        ORFF
            Map whose noise is not stored here.
        """
        other = self._sharing_copy()
        other.block_index = check_integer("index", index, minimum=0)
        for name, scores in zip(self._noise_names, other._scores(self.num_frequencies), strict=True):
            other._store(name, scores.to(getattr(self, name)))
        return other

    def part(self, index: int, kernel: Kernel | None = None) -> ORFF:
        """Return the scalar map φ_q of one component of a separable kernel.

        Here Φ = [φ_1 ⊗ B_1, …, φ_c ⊗ B_c] with Γ_q = B_q B_qᵀ. The map shares noise and hyperparameters with this one.
        For an `IndependentKernel` it is the map of output q.

        Parameters
        ----------
        index : int
            Index q of the component in `components(orff.kernel)`.
        kernel : Kernel or None, default=None
            Scalar kernel k_q, if available. If None, it is looked up in the components.

        Returns
        -------
        ORFF
            Map of the scalar kernel k_q.

        Examples
        --------
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.kernels import IndependentKernel
        >>> orff = ORFF(IndependentKernel.copies(RBFKernel(ard_num_dims=2), 3), 10, random_state=0)
        >>> orff(torch.zeros(4, 2)).shape, orff.part(1)(torch.zeros(4, 2)).shape
        (torch.Size([12, 60]), torch.Size([4, 20]))
        """
        parts = None if self.kernel is None else components(self.kernel)
        if parts is None:
            raise KernelTypeError("Scalar parts are not supported for a kernel that is not separable.")
        if check_integer("index", index, minimum=0) >= len(parts):
            raise OptionError(f"index must be less than the number of parts, {len(parts)}, got {index}.")
        counts = [len(spectral_pair(k, num_dims=self.num_dims).terms) for k, _ in parts[: index + 1]]
        other = self.over(parts[index][0] if kernel is None else kernel)
        other._num_outputs, other._first_term = 1, self._first_term + sum(counts[:-1])
        other._noise_names = self._noise_names[sum(counts[:-1]) : sum(counts)]
        for name in set(self._noise_names) - set(other._noise_names):
            other._buffers.pop(name, None), other._parameters.pop(name, None)
        if [term.base_dim for term in other.pair.terms] != [getattr(self, n).shape[-1] for n in other._noise_names]:
            raise KernelTypeError(
                f"kernel must be that of part {index} of these features, got {type(kernel).__name__}."
            )
        return other

    def forward(self, X: Tensor) -> LinearOperator:
        """Return Φ(X), of size (n·p) × num_features, for X (..., n, d)."""
        X = self.check(X)
        terms = self.pair.terms
        drawn = zip(terms, self._frequencies(terms), strict=True)
        return stack_features(*(self._term(term, frequencies, X) for term, frequencies in drawn))

    def freeze(self) -> Callable[[Tensor], LinearOperator]:
        """Return Φ as a function of X whose frequencies are computed once, at the current hyperparameters.

        Returns
        -------
        Callable
            Function from X (..., n, d) to Φ(X), without gradients in the frequencies.
        """
        terms = self.pair.terms
        drawn = list(zip(terms, [part.detach() for part in self._frequencies(terms)], strict=True))
        return lambda X: stack_features(*(self._term(term, frequencies, self.check(X)) for term, frequencies in drawn))

    def _term(self, term: SpectralPair, frequencies: Tensor, X: Tensor) -> FeatureOperator:
        points = X if term.warp is None else term.warp(X)
        if points.dim() > X.dim():  # one point per output: p scalar rows for each x
            points = points.flatten(-3, -2)
        if points.shape[-1] != frequencies.shape[-1]:
            raise InputError(f"X must have {frequencies.shape[-1]} columns, got {points.shape[-1]}.")
        if not torch.isfinite(frequencies).all():
            raise OptionError(
                "lengthscale must be large enough for finite frequencies, got infinite ones. Scale the inputs to units of ordinary size, or increase the lengthscale."
            )
        phases = points @ frequencies.to(points).mT
        if not torch.isfinite(phases.detach().sum()) and not torch.isfinite(phases).all():
            raise InputError(
                f"X must have finite phases ωᵀx, got overflow for |x| up to {points.detach().abs().max():.3g} and frequencies up to {frequencies.detach().abs().max():.3g}. Remove such rows, or scale the inputs."
            )
        scalar_features = CosSinFeatures.apply(phases)
        # The 1/√D goes into the factors, which are small.
        if term.reflection is not None:
            vectors, lengths = (part.to(points) for part in term.reflection(frequencies))
            lengths = lengths.expand(*lengths.shape[:-2], self.num_frequencies, 1) / math.sqrt(self.num_frequencies)
            return ReflectedFeatureOperator(scalar_features, vectors, lengths, num_outputs=vectors.shape[-1])
        factor = term.factor(frequencies) / math.sqrt(self.num_frequencies)
        p = factor.shape[-2]
        if term.even:
            return FeatureOperator(scalar_features, factor.to(points).flatten(-3, -2), num_outputs=p)
        factor = factor.expand(*factor.shape[:-3], self.num_frequencies, *factor.shape[-2:])
        parts = (part.to(points).flatten(-3, -2) for part in (factor.real, factor.imag))
        return ComplexFeatureOperator(scalar_features, *parts, num_outputs=p)

    def extra_repr(self) -> str:
        return f"num_frequencies={self.num_frequencies}, sampler={self.sampler!r}, random_state={self.seed}"


def _probe(term: SpectralPair, device) -> Tensor:
    return torch.full((1, term.base_dim), 0.3, dtype=torch.float64, device=device)


def _check_factor(term: SpectralPair, learn: bool, device) -> None:
    """Check that the factor is real for an even signature and complex otherwise (BT-E-15), and may be learned."""
    factor = term.factor(term.frequencies(_probe(term, device)))
    if factor.dim() < 3:
        raise SpectralError(f"factor has shape {tuple(factor.shape)}, expected (..., D or 1, p, r).")
    if factor.is_complex() == term.even:
        raise SpectralError(
            "factor B(ω) must be real for an even signature and complex (with C(−ω) the conjugate of C(ω)) otherwise, "
            f"got even={term.even} and a {'complex' if factor.is_complex() else 'real'} factor."
        )
    if learn and term.discrete:
        raise SpectralError(
            "learn_frequencies=True is not supported with this kernel, whose frequencies lie on a lattice."
        )


def _check_even(kernel: Kernel, num_dims: int | None, bounded: bool) -> None:
    """Check that a kernel whose pair is even, and each of its parts, has symmetric blocks: K_e(δ) = K_e(−δ)."""
    for part in kernel.modules():
        if isinstance(part, Kernel) and is_operator_valued(part) and not _is_even(part, num_dims, bounded):
            raise SpectralError(
                f"{type(part).__name__} is not even, K(x, z) ≠ K(z, x), but its spectral pair has even=True: real "
                "features cannot represent it (BT-E-15). Register a pair with even=False and a complex factor."
            )


def _is_even(kernel: Kernel, num_dims: int | None, bounded: bool) -> bool:
    """Return whether the blocks of a kernel with an even pair are symmetric at a probe."""
    try:
        pair = spectral_pair.ignoring_active_dims(kernel, num_dims=num_dims, bounded=bounded)
    except OptionError:
        return True  # a part behind a warp, of unknown dimension: its own parts are checked too
    if any(term.warp is not None or not term.even for term in pair.terms):
        return True  # likewise made of parts, or of a complex factor
    dims = pair.terms[0].frequencies(_probe(pair.terms[0], kernel.device)).shape[-1]
    x = torch.linspace(0.2, 0.8, 2 * dims, dtype=kernel.dtype, device=kernel.device).reshape(2, dims)
    block = to_dense(kernel.forward(x[:1], x[1:])).detach()
    return bool((block - block.mT).abs().max() <= 1e-4 * block.abs().max())
