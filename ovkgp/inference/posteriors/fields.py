"""What a vector field tells about its potential, its stream function and its two Helmholtz parts (ID-11, 12).

With f = ∇g and g ~ GP(0, k):       Cov(g(x), f(z)) = −∇k(x − z),
with f = (∂₂ψ, −∂₁ψ), ψ ~ GP(0, k): Cov(ψ(x), f(z)) = (−∂₂k, ∂₁k)(x − z),
and for a sum of independent fields the covariance of a part with the sum is that part's own kernel.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features import ORFF, FeatureMap, SpectralPair, spectral_pair
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference.model.observations import one_point
from ovkgp.inference.posteriors.posterior import Process, prior_covariance
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel, lag_jet
from ovkgp.kernels.fields import FieldKernel


def field_terms(kernel: Kernel) -> list[Kernel]:
    """The two parts of a Helmholtz kernel; any other is its own only part."""
    return list(kernel.kernels) if isinstance(kernel, HelmholtzKernel) else [kernel]


def quarter_turn(vectors: Tensor) -> Tensor:
    """(v₁, v₂) ↦ (v₂, −v₁)."""
    return torch.stack([vectors[..., 1], -vectors[..., 0]], -1)


def check_fourier_features(feature_map: FeatureMap) -> None:
    """Refuse maps that are not made of waves, whose parts and primitives nobody knows."""
    if not isinstance(feature_map, ORFF):
        raise OptionError(
            f"the parts and the potentials of a field need random Fourier features or none, and this model has "
            f"{type(feature_map).__name__}: use features=ORFF(kernel), or features=None for the exact kernel."
        )


def part_features(feature_map: FeatureMap, X: Tensor, index: int) -> LinearOperator:
    """Those of part `index` of the field at X (m, d), beside zeros for the weights of the other: (m·p) × r. O(m D d)."""
    pieces, mine = _pieces(feature_map, X), _places(feature_map, index)
    return _among(pieces, mine, pieces[mine.start].num_outputs)


def scalar_features(feature_map: FeatureMap, X: Tensor, index: int, columns: Tensor, rotated: bool) -> LinearOperator:
    """Those of the scalar behind part `index` of the field, m × r.

    Args:
        feature_map: the map of the whole field, with r features.
        X: (m, d).
        index: which part.
        columns: the columns of X that are the coordinates of the field.
        rotated: whether the field is (∂₂ψ, −∂₁ψ) and not ∇g.

    Cost: O(m D d).
    """
    pieces, mine = _pieces(feature_map, X), _places(feature_map, index)
    terms, frequencies = feature_map.pair.terms, feature_map.frequencies
    frequencies = frequencies if isinstance(frequencies, list) else [frequencies]
    for i in mine:
        lengths = _lengths(terms[i], frequencies[i], X.shape[-1], columns, rotated)
        cos, sin = pieces[i].features.chunk(2, -1)
        pieces[i] = FeatureOperator(torch.cat([sin, -cos], -1), lengths, num_outputs=1)
    return _among(pieces, mine, 1)


def _lengths(term: SpectralPair, frequencies: Tensor, num_dims: int, columns: Tensor, rotated: bool) -> Tensor:
    """b_j / √D as a column (D, 1)."""
    scalar_features = _along_x(term, frequencies, num_dims)[:, columns]
    # At ω = 0, which periodic kernels have, B = 0 hides b. The factors of such laws do not depend on ω: look elsewhere.
    at = torch.where((scalar_features == 0).all(-1, keepdim=True), frequencies + 1, frequencies)
    scalar_features = _along_x(term, at, num_dims)[:, columns]
    direction = quarter_turn(scalar_features) if rotated else scalar_features
    products = (term.factor(at).squeeze(-1) * direction).sum(-1, keepdim=True)
    return products / direction.square().sum(-1, keepdim=True) / math.sqrt(len(frequencies))


def _along_x(term: SpectralPair, frequencies: Tensor, num_dims: int) -> Tensor:
    """The frequencies (D, d) of x itself: the warps of field kernels select and repeat columns, and are linear."""
    eye = torch.eye(num_dims, dtype=frequencies.dtype, device=frequencies.device)
    return frequencies if term.warp is None else frequencies @ term.warp(eye).mT


def _pieces(feature_map: FeatureMap, X: Tensor) -> list[LinearOperator]:
    check_fourier_features(feature_map)
    features = feature_map(X)
    return list(features.parts) if isinstance(features, StackedFeatures) else [features]


def _places(feature_map: ORFF, index: int) -> range:
    """Which spectral terms belong to part `index`: several where its base kernel is a sum."""
    options = {"num_dims": feature_map.num_dims, "bounded": feature_map.bounded}
    counts = [len(spectral_pair(part, **options).terms) for part in field_terms(feature_map.kernel)]
    return range(sum(counts[:index]), sum(counts[: index + 1]))


def _among(pieces: list[LinearOperator], mine: range, num_outputs: int) -> LinearOperator:
    """The pieces of one part beside zeros for the weights of the others."""
    if len(pieces) == 1:
        return pieces[0]
    return StackedFeatures(*(p if i in mine else _nothing(p, num_outputs) for i, p in enumerate(pieces)))


def _nothing(piece: LinearOperator, num_outputs: int) -> FeatureOperator:
    points, like = piece.shape[-2] // piece.num_outputs, piece.features
    zeros, ones = like.new_zeros(points, piece.num_columns), like.new_ones(num_outputs, 1)
    return FeatureOperator(zeros, ones, num_outputs=num_outputs)


class FieldPart(Process):
    """The curl-free or the divergence-free part of a Helmholtz field.

    Args:
        kernel: the Helmholtz kernel of the observed field.
        index: 0 for the curl-free part, 1 for the divergence-free one.
    """

    def __init__(self, kernel: HelmholtzKernel, index: int):
        self.kernel, self.index, self.num_outputs = kernel, index, kernel.num_outputs
        self.part = kernel.kernels[index]

    def prior(self, X: Tensor, form: str) -> Tensor:
        return prior_covariance(self.part, X, self.num_outputs, form)

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        return to_linear_operator(self.part(X, Z)).evaluate_kernel()

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        return part_features(feature_map, X, self.index)


class ScalarOfField(Process):
    """The scalar function whose derivatives are the observed field, or one part of it.

    Args:
        kernel: that of the observed field.
        index: which part of `kernel` it is; 0 where there is only one.
        rotated: whether the field is (∂₂ψ, −∂₁ψ) and not ∇g.
        reference: a point (1, d) where the scalar is taken as zero; None keeps its prior N(0, k(0)) level.
    """

    num_outputs = 1

    def __init__(self, kernel: Kernel, index: int, rotated: bool, reference: Tensor | None):
        self.kernel, self.index, self.rotated, self.reference = kernel, index, rotated, reference
        part = field_terms(kernel)[index]
        field, self.scale = unscaled(part)
        self.base, self.selections = field.base_kernel, (part.active_dims, field.base_kernel.active_dims)

    def columns(self, X: Tensor) -> Tensor:
        """The columns of X that are the coordinates of the field."""
        columns = torch.arange(X.shape[-1], device=X.device)
        for selection in self.selections:
            columns = columns if selection is None else columns[selection]
        return columns

    def _jet(self, X: Tensor, Z: Tensor):
        """k and its derivatives at all lags x − z, without `scale`."""
        X, Z = (points[..., self.columns(points)] for points in (X, Z))
        return lag_jet(self.base, X.unsqueeze(-2) - Z.unsqueeze(-3))

    def prior(self, X: Tensor, form: str) -> Tensor:
        observed = X if self.selections[0] is None else X[..., self.selections[0]]
        if self.reference is None:
            return self.scale * prior_covariance(self.base, observed, 1, form)
        level, shared = (self._jet(points, self.reference).value for points in (self.reference, X))  # (1, 1), (m, 1)
        if form == "full":
            return self.scale * (to_dense(self.base(observed)) - shared - shared.mT + level)
        variance = 2 * (level - shared)  # stationary: k(x, x) is k(0), and the same number as at the reference
        return self.scale * (variance if form == "diag" else variance.unsqueeze(-1))

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        cross = self._cross(X, Z)
        return to_linear_operator(cross if self.reference is None else cross - self._cross(self.reference, Z))

    def _cross(self, X: Tensor, Z: Tensor) -> Tensor:
        gradient = self._jet(X, Z).gradient  # (m, n, d)
        return -self.scale * (quarter_turn(gradient) if self.rotated else gradient).flatten(-2)

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        options = self.index, self.columns(X), self.rotated
        scalar = scalar_features(feature_map, X, *options)
        if self.reference is None:
            return scalar
        at_reference = scalar_features(feature_map, self.reference, *options)
        return to_linear_operator(to_dense(scalar) - to_dense(at_reference))


def unscaled(kernel: Kernel) -> tuple[Kernel, Tensor | float]:
    """The kernel inside its `ScaleKernel`s, and the product of their scales."""
    scale = 1.0
    while isinstance(kernel, ScaleKernel):
        kernel, scale = kernel.base_kernel, scale * kernel.outputscale
    return kernel, scale


class FieldViews:
    """What posteriors of vector fields can be asked beyond the field itself.

    Each answer is a posterior with `predict`, `sample` and `sample_functions` of its own, for the field less its prior
    mean. With one `random_state` all of them draw the same function: a drawn potential has the drawn field as its gradient.
    None has noise, since none was observed. With random features their variance is that of the features, unguarded.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.kernels import HelmholtzKernel
        >>> X = torch.rand(30, 2, dtype=torch.float64)
        >>> gp = OperatorValuedGP(HelmholtzKernel(RBFKernel(ard_num_dims=2)), mean="zero", noise=0.01)
        >>> posterior = gp.condition(X, torch.stack([X[:, 0], X[:, 1]], -1))  # the gradient of |x|²/2
        >>> posterior.potential(reference=[0.5, 0.5]).predict([[0.5, 0.5], [1.0, 1.0]]).std[0].item()
        0.0
        >>> parts = posterior.components()
        >>> torch.allclose(sum(part.predict(X).mean for part in parts.values()), posterior.predict(X).mean)
        True
    """

    def potential(self, reference=None):
        """The posterior of g with f = ∇g, for curl-free kernels and the curl-free part of `HelmholtzKernel` (ID-11).

        Args:
            reference: a point (d,) at which g is taken as zero. A field fixes its potential up to a constant only; with
                None the constant keeps its prior uncertainty.
        """
        return self._scalar(CurlFreeKernel, False, reference)

    def stream_function(self, reference=None):
        """The posterior of ψ with f = (∂₂ψ, −∂₁ψ), for divergence-free kernels in two dimensions (ID-11).

        Args:
            reference: as for `potential`.
        """
        return self._scalar(DivergenceFreeKernel, True, reference)

    def components(self) -> dict:
        """The posteriors of the two parts of a Helmholtz field, {"curl": …, "div": …}; their means add up (ID-12)."""
        kernel = self.process.kernel
        if not isinstance(kernel, HelmholtzKernel) or not self.process.is_observed:
            name = type(kernel).__name__ if self.process.is_observed else "posterior derived from one"
            raise KernelTypeError(f"only the posterior of a HelmholtzKernel has two components; this is a {name}.")
        self._check_fourier_features()
        return {name: self.of(FieldPart(kernel, index)) for index, name in enumerate(("curl", "div"))}

    def _scalar(self, wanted: type[FieldKernel], rotated: bool, reference):
        fields = self._fields()
        index = next((index for index, field in fields.items() if isinstance(field, wanted)), None)
        if index is None:
            names = " and ".join(type(field).__name__ for field in fields.values())
            raise KernelTypeError(
                f"this needs a {wanted.__name__} (scaled or not) or a HelmholtzKernel; this is a {names}."
            )
        if rotated and fields[index].num_outputs != 2:
            raise KernelTypeError(
                f"a stream function belongs to a field in two dimensions; this one has {fields[index].num_outputs}."
            )
        self._check_fourier_features()
        at = None if reference is None else one_point(reference, self.num_dims, "reference")
        return self.of(ScalarOfField(self.process.kernel, index, rotated, at))

    def _fields(self) -> dict[int, Kernel]:
        """The fields that are predicted, without their scales, by their place in the kernel."""
        if isinstance(self.process, ScalarOfField):
            raise KernelTypeError("this is the posterior of a scalar function already: ask that of the field.")
        fields = {i: unscaled(term)[0] for i, term in enumerate(field_terms(self.process.kernel))}
        return {i: f for i, f in fields.items() if not isinstance(self.process, FieldPart) or i == self.process.index}

    def _check_fourier_features(self) -> None:
        feature_map = getattr(self, "feature_map", None)
        if feature_map is not None:
            check_fourier_features(feature_map)
