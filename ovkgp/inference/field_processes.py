"""What a vector field tells about its potential, its stream function and its two Helmholtz parts (ID-11, 12).

With f = ∇g and g ~ GP(0, k):       Cov(g(x), f(z)) = −∇k(x − z),
with f = (∂₂ψ, −∂₁ψ), ψ ~ GP(0, k): Cov(ψ(x), f(z)) = (−∂₂k, ∂₁k)(x − z),
and for a sum of independent fields the covariance of a part with the sum is that part's own kernel. In terms of random
features B_j cos⟨ω_j, x⟩ θ_j + B_j sin⟨ω_j, x⟩ θ'_j with B_j = b_j ω_j (or b_j times ω_j turned by a right angle) the scalar
is b_j sin⟨ω_j, x⟩ θ_j − b_j cos⟨ω_j, x⟩ θ'_j: its derivatives are the field, term by term.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features import ORFF, FeatureMap
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference.data import one_point
from ovkgp.inference.processes import Process, prior_covariance
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel, lag_jet
from ovkgp.kernels.fields import FieldKernel


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
        return _among(_field_features(feature_map, X), self.index, self.num_outputs)


class ScalarOfField(Process):
    """The scalar function whose derivatives are the observed field, or one part of it.

    Args:
        kernel: that of the observed field.
        part: the curl-free or divergence-free kernel of the part, scaled or not.
        index: which term of `kernel` it is.
        turned: whether the field is (∂₂ψ, −∂₁ψ) and not ∇g.
        reference: a point (1, d) where the scalar is taken as zero; None keeps its prior N(0, k(0)) level.
    """

    num_outputs = 1

    def __init__(self, kernel: Kernel, part: Kernel, index: int, turned: bool, reference: Tensor | None):
        self.kernel, self.index, self.turned, self.reference = kernel, index, turned, reference
        self.scale = part.outputscale if isinstance(part, ScaleKernel) else torch.ones((), dtype=torch.float64)
        self.base = (part.base_kernel if isinstance(part, ScaleKernel) else part).base_kernel

    def prior(self, X: Tensor, form: str) -> Tensor:
        if self.reference is None:
            return self.scale * prior_covariance(self.base, X, 1, form)
        if form == "full":
            to_reference = to_dense(self.base(X, self.reference))
            level = to_dense(self.base(self.reference))
            return self.scale * (to_dense(self.base(X)) - to_reference - to_reference.mT + level)
        variance = 2 * (prior_covariance(self.base, X, 1, "diag") - to_dense(self.base(X, self.reference)))
        return self.scale * (variance if form == "diag" else variance.unsqueeze(-1))  # stationary: k(x, x) = k(0)

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        cross = self._cross(X, Z)
        return to_linear_operator(cross if self.reference is None else cross - self._cross(self.reference, Z))

    def _cross(self, X: Tensor, Z: Tensor) -> Tensor:
        if self.base.active_dims is not None:
            X, Z = (points.index_select(-1, self.base.active_dims) for points in (X, Z))
        gradient = lag_jet(self.base, X.unsqueeze(-2) - Z.unsqueeze(-3)).gradient  # (m, n, d)
        return -self.scale * (_quarter_turn(gradient) if self.turned else gradient).flatten(-2)

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        scalar = self._features(feature_map, X)
        if self.reference is None:
            return scalar
        at_reference = self._features(feature_map, self.reference)
        return to_linear_operator(to_dense(scalar) - to_dense(at_reference))

    def _features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        parts = _field_features(feature_map, X)
        frequencies = feature_map.frequencies
        frequencies = frequencies[self.index] if isinstance(frequencies, list) else frequencies
        direction = _quarter_turn(frequencies) if self.turned else frequencies
        blocks = parts[self.index].blocks.squeeze(-1)  # (D, d)
        lengths = (blocks * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True)
        cos, sin = parts[self.index].features.chunk(2, -1)
        scalar = FeatureOperator(torch.cat([sin, -cos], -1), lengths, num_outputs=1)
        return _among([*parts[: self.index], scalar, *parts[self.index + 1 :]], self.index, 1)


class FieldViews:
    """What posteriors of vector fields can be asked beyond the field itself."""

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
        if not isinstance(kernel, HelmholtzKernel):
            raise KernelTypeError(f"only a HelmholtzKernel has two components; this is a {type(kernel).__name__}.")
        return {name: self.of(FieldPart(kernel, index)) for index, name in enumerate(("curl", "div"))}

    def _scalar(self, wanted: type[FieldKernel], turned: bool, reference):
        kernel = self.process.kernel
        terms = list(kernel.kernels) if isinstance(kernel, HelmholtzKernel) else [kernel]
        for index, term in enumerate(terms):
            field = term.base_kernel if isinstance(term, ScaleKernel) else term
            if isinstance(field, wanted):
                if turned and self.num_dims != 2:
                    raise KernelTypeError(
                        f"a stream function exists in two dimensions; these inputs have {self.num_dims}."
                    )
                at = None if reference is None else one_point(reference, self.num_dims, "reference")
                return self.of(ScalarOfField(kernel, term, index, turned, at))
        raise KernelTypeError(
            f"this needs a {wanted.__name__} (scaled or not) or a HelmholtzKernel; this is a {type(kernel).__name__}."
        )


def _quarter_turn(vectors: Tensor) -> Tensor:
    """(v₁, v₂) ↦ (v₂, −v₁)."""
    return torch.stack([vectors[..., 1], -vectors[..., 0]], -1)


def _field_features(feature_map: FeatureMap, X: Tensor) -> list[LinearOperator]:
    if not isinstance(feature_map, ORFF):
        raise OptionError(
            f"the parts of a field need an ORFF map or exact inference, not {type(feature_map).__name__}."
        )
    features = feature_map(X)
    return list(features.parts) if isinstance(features, StackedFeatures) else [features]


def _among(parts: list[LinearOperator], index: int, num_outputs: int) -> LinearOperator:
    """The features of one part beside zeros for the weights of the others."""
    if len(parts) == 1:
        return parts[0]
    rows = parts[index].shape[-2]
    blocks = [
        part if i == index else _nothing(rows, part.num_columns, num_outputs, part.features)
        for i, part in enumerate(parts)
    ]
    return StackedFeatures(*blocks)


def _nothing(rows: int, columns: int, num_outputs: int, like: Tensor) -> FeatureOperator:
    points = rows // num_outputs
    return FeatureOperator(like.new_zeros(points, columns), like.new_ones(num_outputs, 1), num_outputs=num_outputs)
