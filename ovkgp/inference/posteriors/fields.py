"""Posteriors of the potential, the stream function and the Helmholtz parts of a vector field (ID-11, 12).

With f = ∇g and g ~ GP(0, k):       Cov(g(x), f(z)) = −∇k(x − z),
with f = (∂₂ψ, −∂₁ψ), ψ ~ GP(0, k): Cov(ψ(x), f(z)) = (−∂₂k, ∂₁k)(x − z),
and for a sum of independent fields the covariance of a part with the sum is the kernel of the part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features import ORFF, FeatureMap, SpectralPair, spectral_pair
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.features.spectral.fields import input_frequencies
from ovkgp.inference.model.mean_noise import OutputMean, PolynomialMean
from ovkgp.inference.model.observations import validate_point
from ovkgp.inference.model.parameter_vector import HELMHOLTZ_PARTS
from ovkgp.inference.posteriors.posterior import KernelProcess, Process, prior_covariance
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel, lag_jet
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.fields import FieldKernel
from ovkgp.kernels.radial_derivatives import bilaplacian_at_zero, laplacian_gradient


def field_terms(kernel: Kernel) -> list[Kernel]:
    """Return the two parts of a Helmholtz kernel; any other kernel is its only part."""
    return list(kernel.kernels) if isinstance(kernel, HelmholtzKernel) else [kernel]


def rotate_quarter(vectors: Tensor) -> Tensor:
    """Rotate (v₁, v₂) to (v₂, −v₁)."""
    return torch.stack([vectors[..., 1], -vectors[..., 0]], -1)


def check_fourier_features(feature_map: FeatureMap) -> None:
    """Check that a feature map consists of Fourier features, whose parts and primitives are known."""
    if not isinstance(feature_map, ORFF):
        raise OptionError(
            f"Parts and potentials of a field are not supported with {type(feature_map).__name__}. Use features=ORFF(kernel), or features=None for the exact kernel."
        )


def part_features(feature_map: FeatureMap, X: Tensor, index: int) -> LinearOperator:
    """Compute the features (m·p) × r of part `index` at X (m, d), zero for the weights of the other. O(m D d)."""
    blocks, span = _feature_blocks(feature_map, X), _term_range(feature_map, index)
    return _zero_others(blocks, span, blocks[span.start].num_outputs)


def scalar_features(
    feature_map: FeatureMap, X: Tensor, index: int, columns: Tensor, rotated: bool, laplacian: bool = False
) -> LinearOperator:
    """Compute the features m × r of the scalar of part `index`, a field of (∂₂ψ, −∂₁ψ) if `rotated`, else ∇g.

    With `laplacian`, those of its Laplacian.
    """
    blocks, span = _feature_blocks(feature_map, X), _term_range(feature_map, index)
    terms, frequencies = feature_map.pair.terms, feature_map.frequencies
    frequencies = frequencies if isinstance(frequencies, list) else [frequencies]
    for i in span:
        scales = _primitive_scales(terms[i], frequencies[i], X.shape[-1], columns, rotated)
        if laplacian:
            directions = input_frequencies(terms[i], frequencies[i], X.shape[-1])[:, columns]
            scales = -directions.square().sum(-1, keepdim=True) * scales
        cos, sin = blocks[i].features.chunk(2, -1)
        blocks[i] = FeatureOperator(torch.cat([sin, -cos], -1), scales, num_outputs=1)
    return _zero_others(blocks, span, 1)


def _primitive_scales(term: SpectralPair, frequencies: Tensor, num_dims: int, columns: Tensor, rotated: bool) -> Tensor:
    """Compute b_j / √D, where B(ω_j) is b_j times ω_j (rotated for ψ), as a column (D, 1)."""
    directions = input_frequencies(term, frequencies, num_dims)[:, columns]
    # At ω = 0, which periodic kernels have, B = 0 hides b. Their factors do not depend on ω: use another frequency.
    at = torch.where((directions == 0).all(-1, keepdim=True), frequencies + 1, frequencies)
    directions = input_frequencies(term, at, num_dims)[:, columns]
    directions = rotate_quarter(directions) if rotated else directions
    products = (term.factor(at).squeeze(-1) * directions).sum(-1, keepdim=True)
    return products / directions.square().sum(-1, keepdim=True) / math.sqrt(len(frequencies))


def _feature_blocks(feature_map: FeatureMap, X: Tensor) -> list[LinearOperator]:
    check_fourier_features(feature_map)
    features = feature_map(X)
    return list(features.parts) if isinstance(features, StackedFeatures) else [features]


def _term_range(feature_map: ORFF, index: int) -> range:
    """Return the indices of the spectral terms of part `index`: several if its base kernel is a sum."""
    options = {"num_dims": feature_map.num_dims, "bounded": feature_map.bounded}
    counts = [len(spectral_pair(part, **options).terms) for part in field_terms(feature_map.kernel)]
    return range(sum(counts[:index]), sum(counts[: index + 1]))


def _zero_others(blocks: list[LinearOperator], span: range, num_outputs: int) -> LinearOperator:
    """Replace the blocks outside of `span` by zeros."""
    if len(blocks) == 1:
        return blocks[0]
    return StackedFeatures(*(b if i in span else _zero_features(b, num_outputs) for i, b in enumerate(blocks)))


def _zero_features(block: LinearOperator, num_outputs: int) -> FeatureOperator:
    points, like = block.shape[-2] // block.num_outputs, block.features
    zeros, ones = like.new_zeros(points, block.num_columns), like.new_ones(num_outputs, 1)
    return FeatureOperator(zeros, ones, num_outputs=num_outputs)


class FieldPart(KernelProcess):
    """Curl-free (`index` 0) or divergence-free (`index` 1) part of a Helmholtz field."""

    is_observed = False

    def __init__(self, kernel: HelmholtzKernel, index: int):
        super().__init__(kernel, kernel.num_outputs)
        self.part, self.index = kernel.kernels[index], index

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        return part_features(feature_map, X, self.index)

    def prior_mean(self, mean: OutputMean, X: Tensor) -> Tensor:
        return AffineField.of(mean, X.shape[-1]).part(self.index)(X)


class ScalarOfField(Process):
    """Scalar function whose derivatives, (∂₂ψ, −∂₁ψ) if `rotated`, else ∇g, are the observed field or its part `index`.

    It is zero at `reference` (1, d); if None, it has its prior variance k(0).
    """

    num_outputs = 1

    def __init__(self, kernel: Kernel, index: int, rotated: bool, reference: Tensor | None):
        self.kernel, self.index, self.rotated, self.reference = kernel, index, rotated, reference
        part = field_terms(kernel)[index]
        field, self.scale = strip_scales(part)
        self.base, self.selections = field.base_kernel, (part.active_dims, field.base_kernel.active_dims)

    def columns(self, X: Tensor) -> Tensor:
        """Return the columns of X that are coordinates of the field."""
        columns = torch.arange(X.shape[-1], device=X.device)
        for selection in self.selections:
            columns = columns if selection is None else columns[selection]
        return columns

    def _jet(self, X: Tensor, Z: Tensor):
        """Compute k and its derivatives at all lags x − z, without `scale`."""
        X, Z = (points[..., self.columns(points)] for points in (X, Z))
        return lag_jet(self.base, X.unsqueeze(-2) - Z.unsqueeze(-3))

    def prior(self, X: Tensor, form: str) -> Tensor:
        observed = X if self.selections[0] is None else X[..., self.selections[0]]
        if self.reference is None:
            return self.scale * prior_covariance(self.base, observed, 1, form)
        prior, cross = (self._jet(points, self.reference).value for points in (self.reference, X))  # (1, 1), (m, 1)
        if form == "full":
            return self.scale * (to_dense(evaluate_kernel(self.base, observed)) - cross - cross.mT + prior)
        variance = 2 * (prior - cross)  # stationary: k(x, x) is k(0), the same number as at the reference
        return self.scale * (variance if form == "diag" else variance.unsqueeze(-1))

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        cross = self._cross(X, Z)
        return to_linear_operator(cross if self.reference is None else cross - self._cross(self.reference, Z))

    def _cross(self, X: Tensor, Z: Tensor) -> Tensor:
        gradient = self._jet(X, Z).gradient  # (m, n, d)
        return -self.scale * (rotate_quarter(gradient) if self.rotated else gradient).flatten(-2)

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        options = self.index, self.columns(X), self.rotated
        scalar = scalar_features(feature_map, X, *options)
        if self.reference is None:
            return scalar
        at_reference = scalar_features(feature_map, self.reference, *options)
        return to_linear_operator(to_dense(scalar) - to_dense(at_reference))

    def prior_mean(self, mean: OutputMean, X: Tensor) -> Tensor:
        flow = self._flow(mean, X)
        integrate = flow.stream_function if self.rotated else flow.potential
        values = integrate(X[:, self.columns(X)])
        if self.reference is None:
            return values
        return values - integrate(self.reference[:, self.columns(X)])

    def _flow(self, mean: OutputMean, X: Tensor) -> AffineField:
        """Return the mean field of which this is the scalar."""
        flow = AffineField.of(mean, X.shape[-1])
        return flow.part(self.index) if isinstance(self.kernel, HelmholtzKernel) else flow


class LaplacianOfScalar(ScalarOfField):
    """Divergence Δg of a field ∇g, or curl −Δψ of a field (∂₂ψ, −∂₁ψ) if `rotated`."""

    def __init__(self, kernel: Kernel, index: int, rotated: bool):
        super().__init__(kernel, index, rotated, None)
        self.sign = -1.0 if rotated else 1.0

    def prior(self, X: Tensor, form: str) -> Tensor:
        if form == "full":
            raise OptionError('cov="full" is not supported for curl and divergence. Use cov="diag".')
        variance = self.scale * bilaplacian_at_zero(self.base, len(self.columns(X)))
        return (
            variance.to(X).reshape(1, 1, 1).expand(len(X), 1, 1)
            if form == "output"
            else variance.to(X).expand(len(X), 1)
        )

    def _cross(self, X: Tensor, Z: Tensor) -> Tensor:
        X, Z = (points[..., self.columns(points)] for points in (X, Z))
        gradient = laplacian_gradient(self.base, X.unsqueeze(-2) - Z.unsqueeze(-3))
        return -self.sign * self.scale * (rotate_quarter(gradient) if self.rotated else gradient).flatten(-2)

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        found = scalar_features(feature_map, X, self.index, self.columns(X), self.rotated, laplacian=True)
        return to_linear_operator(self.sign * to_dense(found))

    def prior_mean(self, mean: OutputMean, X: Tensor) -> Tensor:
        matrix = AffineField.of(mean, X.shape[-1]).matrix
        value = matrix[1, 0] - matrix[0, 1] if self.rotated else matrix.trace()
        return value.expand(len(X), 1).to(X)


@dataclass(frozen=True)
class AffineField:
    """Field b + A x, the prior mean of a vector field."""

    constant: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, mean: OutputMean, num_dims: int) -> AffineField:
        """Return a zero, constant or linear mean of d outputs as a field of the first d inputs."""
        if not isinstance(mean, PolynomialMean):
            raise OptionError(
                f'Parts of a field need mean="zero", "constant" or "linear", got a {type(mean).__name__}, whose parts are unknown.'
            )
        p, beta = mean.num_outputs, mean.coefficients.detach()
        constant = beta[0] if mean.degree >= 0 else torch.zeros(p, dtype=torch.float64)
        if mean.degree < 1:
            return cls(constant, constant.new_zeros(p, p))
        if num_dims != p:
            raise OptionError(
                'Parts of a field with a linear mean need as many inputs as outputs. Use mean="constant".'
            )
        return cls(constant, beta[1:].mT)

    def __call__(self, X: Tensor) -> Tensor:
        linear = X @ self.matrix.mT.to(X) if bool(self.matrix.any()) else 0.0
        return self.constant.to(X).expand(len(X), -1) + linear

    def part(self, index: int) -> AffineField:
        """Return the curl-free part (0), without rotation and constant, or the divergence-free part (1)."""
        d = len(self.constant)
        stretching = self.matrix.trace() / d * torch.eye(d).to(self.matrix)
        if index == 0:
            return AffineField(torch.zeros_like(self.constant), stretching)
        return AffineField(self.constant, self.matrix - stretching)

    def potential(self, X: Tensor) -> Tensor:
        """Return bᵀx + xᵀA x / 2 (m, 1), whose gradient is the field if A is symmetric."""
        if not torch.allclose(self.matrix, self.matrix.mT):
            raise OptionError('The linear mean of the field has a curl, so there is no potential. Use mean="constant".')
        return (X @ self.constant.to(X) + ((X @ self.matrix.to(X)) * X).sum(-1) / 2).unsqueeze(-1)

    def stream_function(self, X: Tensor) -> Tensor:
        """Return ψ (m, 1) with (∂₂ψ, −∂₁ψ) = b + A x, for a matrix without trace."""
        (a, b), (c, d) = self.matrix.to(X)
        if not torch.allclose(a, -d, atol=1e-12):
            raise OptionError(
                'The linear mean of the field has a divergence, so there is no stream function. Use mean="constant".'
            )
        x, y = X.unbind(-1)
        first, second = self.constant.to(X)
        return (first * y - second * x + a * x * y + b * y**2 / 2 - c * x**2 / 2).unsqueeze(-1)


def strip_scales(kernel: Kernel) -> tuple[Kernel, Tensor | float]:
    """Return the kernel inside its `ScaleKernel`s, and the product of their scales."""
    scale = 1.0
    while isinstance(kernel, ScaleKernel):
        kernel, scale = kernel.base_kernel, scale * kernel.outputscale
    return kernel, scale


class FieldPosteriors:
    """Posteriors derived from that of a vector field: potential, stream function, parts, curl and divergence.

    They include the prior mean of the field, which must be zero, constant or linear. Of a Helmholtz field, a constant
    mean belongs to the divergence-free part, since it has neither curl nor divergence. With one `random_state` all of them draw the same function: a drawn potential has the drawn field as its gradient.
    They have no noise, since they are not observed, and with random features no variance floor.
    """

    def potential(self, reference=None):
        """Return the posterior of g with f = ∇g, for curl-free kernels and the curl-free part of `HelmholtzKernel`.

        Parameters
        ----------
        reference : array-like of shape (d,), optional
            Point at which g is zero. A field determines its potential up to a constant; if None, the constant keeps its
            prior uncertainty.

        Returns
        -------
        Posterior
        """
        return self._derive(ScalarOfField, CurlFreeKernel, False, self._check_reference(reference))

    def stream_function(self, reference=None):
        """Return the posterior of ψ with f = (∂₂ψ, −∂₁ψ), for divergence-free kernels in two dimensions (ID-11).

        Parameters
        ----------
        reference : array-like of shape (d,), optional
            Point at which ψ is zero, see `potential`.

        Returns
        -------
        Posterior
        """
        return self._derive(ScalarOfField, DivergenceFreeKernel, True, self._check_reference(reference))

    def divergence(self):
        """Return the posterior of the divergence Σ_i ∂_i f_i, of one output.

        Returns
        -------
        Posterior
        """
        return self._derive(LaplacianOfScalar, CurlFreeKernel, False)

    def curl(self):
        """Return the posterior of the curl ∂₁f₂ − ∂₂f₁ of a field in two dimensions, of one output.

        Returns
        -------
        Posterior
        """
        return self._derive(LaplacianOfScalar, DivergenceFreeKernel, True)

    def components(self) -> dict:
        """Return the posteriors of the two parts of a Helmholtz field, which add up (ID-12).

        Returns
        -------
        dict of str to Posterior
            Keys "curl_free" and "divergence_free".
        """
        kernel = self.process.kernel
        if not isinstance(kernel, HelmholtzKernel) or not self.process.is_observed:
            name = type(kernel).__name__ if self.process.is_observed else "posterior derived from one"
            raise KernelTypeError(
                f"Components are supported for the posterior of a HelmholtzKernel only, got a {name}."
            )
        self._check_fourier_features()
        return {name: self._for_process(FieldPart(kernel, index)) for index, name in enumerate(HELMHOLTZ_PARTS)}

    def _check_reference(self, reference) -> Tensor | None:
        return None if reference is None else validate_point(reference, self.num_dims, "reference")

    def _for_process(self, process: Process):
        found = self.for_process(process)
        found.units = self.units
        return found

    def _derive(self, make: type[ScalarOfField], kernel_type: type[FieldKernel], rotated: bool, *options):
        """Return the posterior of a process of the field of this kernel."""
        fields = self._fields()
        index = next((index for index, field in fields.items() if isinstance(field, kernel_type)), None)
        if index is None:
            names = " and ".join(type(field).__name__ for field in fields.values())
            raise KernelTypeError(
                f"kernel must be a {kernel_type.__name__} (scaled or not) or a HelmholtzKernel, got a {names}."
            )
        if rotated and fields[index].num_outputs != 2:
            raise KernelTypeError(
                f"A stream function and a curl need a field in two dimensions, got {fields[index].num_outputs} dimensions."
            )
        self._check_fourier_features()
        return self._for_process(make(self.process.kernel, index, rotated, *options))

    def _fields(self) -> dict[int, Kernel]:
        """Return the predicted fields without their scales, by their index in the kernel."""
        if isinstance(self.process, ScalarOfField):
            raise KernelTypeError("This is the posterior of a scalar function. Use the posterior of the field instead.")
        fields = {i: strip_scales(term)[0] for i, term in enumerate(field_terms(self.process.kernel))}
        return {i: f for i, f in fields.items() if not isinstance(self.process, FieldPart) or i == self.process.index}

    def _check_fourier_features(self) -> None:
        feature_map = getattr(self, "feature_map", None)
        if feature_map is not None:
            check_fourier_features(feature_map)
