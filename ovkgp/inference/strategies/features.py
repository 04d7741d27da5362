"""Strategy for feature maps: weight space on additive statistics.

One pass over the data computes `Statistics`; evidence, weights and their covariance follow from them at a cost
independent of the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256

import torch
from gpytorch.priors import Prior
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF, ORFFKernel
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.algebra.inverse_roots import common_variance, quadrature_nodes
from ovkgp.inference.model.mean_noise import Model, OutputNoise
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, Conditioning, KernelProcess
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor, WeightPosterior
from ovkgp.inference.statistics.accumulation import choose_layout, compute_statistics, whitening_roots
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics, whiten_statistics
from ovkgp.inference.statistics.weight_space import WeightSystem, make_weight_system
from ovkgp.inference.strategies.exact import DenseStrategy

MAX_LANDMARKS = 1000  # number of inputs that statistics store for the guarded variance


class FeatureStrategy:
    """Weight space on additive statistics. O(n M²) for M scalar features, then O(M³ + p³) if separable, else O(r³)."""

    name = "features"
    requirement = "a feature map. Use OperatorValuedGP(kernel, features=ORFF(kernel))."

    def supports(self, model: Model, data: Observations | None) -> bool:
        """Whether the model has a feature map."""
        return model.features is not None

    def log_evidence(self, model: Model, data: Observations) -> Tensor:
        template = _template(model, data.X)
        if _is_wide(template, data):
            return DenseStrategy().log_evidence(_as_kernel(model), data)
        statistics = compute_statistics(
            model.features, model.mean, model.noise, data, template=template, num_landmarks=0
        )
        return _system(model, statistics, template).log_density

    def condition(self, model: Model, data: Observations, num_landmarks: int = 0) -> WeightPosterior:
        """Compute the posterior of a frozen model, with guarded variance if `num_landmarks` is positive."""
        posterior = self.condition_on_statistics(model, self.statistics(model, data), num_landmarks)
        posterior.statistics = None  # the data can be given again; mixtures would keep the statistics of every draw
        posterior.conditioning = Conditioning(self, model, data.clone())  # the user's arrays may change later
        return posterior

    def statistics(
        self, model: Model, data: Observations, into: Statistics | None = None, layout: str | None = None
    ) -> Statistics:
        """Compute the statistics of data, in the given or the most compact layout, and add them to `into`."""
        template = _template(model, data.X)
        layout = layout or choose_layout(template, model.noise, data)
        fingerprint = _fingerprint(model, data.X, "whitened")
        convert = partial(whiten_statistics, template=template, noise=model.noise.matrix(), fingerprint=fingerprint)
        if into is not None and into.layout == "whitened":
            layout = "whitened"
        elif into is not None and into.layout == "shared" and layout == "whitened":
            into = convert(into)
        found = compute_statistics(
            *(model.features, model.mean, model.noise, data),
            template=template,
            layout=layout,
            num_landmarks=MAX_LANDMARKS,
            fingerprint=_fingerprint(model, data.X, layout),
        )
        if layout == "shared" and not model.noise.is_diagonal:
            found = replace(found, to_whitened=convert)
        return found if into is None else into + found

    def log_evidence_from_statistics(self, model: Model, statistics: Statistics) -> Tensor:
        """Compute log p(Y) from statistics; differentiable in noise, mean and output factors."""
        return self.weight_system_from_statistics(model, statistics).log_density

    def condition_on_statistics(self, model: Model, statistics: Statistics, num_landmarks: int = 0) -> WeightPosterior:
        """Compute the posterior from statistics."""
        system, found = self.weight_system_from_statistics(model, statistics), statistics.landmarks
        variance_floor = None
        if num_landmarks and model.features.kernel is not None:
            variance_floor = VarianceFloor(model.kernel, found.X[:num_landmarks], found.observed[:num_landmarks])
        process = KernelProcess(model.kernel, statistics.num_outputs)
        parts = process, model.features, system, model.mean, predictive_noise(model, statistics), found.X.shape[1]
        return WeightPosterior(*parts, variance_floor, statistics)

    def leave_one_out(self, model: Model, data: Observations) -> LeaveOneOut:
        """Compute the predictive density of each entry given all others, in a second pass over the data."""
        system = self.weight_system_from_statistics(model, self.statistics(model, data))
        return LeaveOneOut.stack([_leave_chunk_out(model, system, chunk) for chunk in _chunks(system, data)])

    def leave_groups_out(self, model: Model, data: Observations, groups: Tensor) -> LeaveGroupOut:
        """Compute the predictive density of each group of rows given all others, in a second pass over the data."""
        data = data.double()
        system = self.weight_system_from_statistics(model, self.statistics(model, data))
        noise, is_diagonal = model.noise.matrix(), model.noise.is_diagonal

        def blocks(rows: Tensor) -> Tensor:
            if rows.shape[1] == 1:
                chunks = rows.flatten().split(_chunk_rows(system, data))
                return torch.cat([block(part, system.inverse_blocks) for part in chunks])
            return torch.stack([block(part, system.inverse_block) for part in rows])

        def block(rows: Tensor, compute: Callable) -> Tensor:
            part = data.rows(rows)
            return compute(model.features(part.X), row_precision(part, noise, is_diagonal))

        return LeaveGroupOut.from_groups(data, _alpha(model, system, data), groups, blocks)

    def whitened_residuals(self, model: Model, data: Observations) -> Tensor:
        """Compute C^(−½) (y − m) with the symmetric root, (n, p), NaN if missing."""
        if _is_wide(_template(model, data.X), data):
            return DenseStrategy().whitened_residuals(_as_kernel(model), data)
        statistics = self.statistics(model, data)
        system = self.weight_system_from_statistics(model, statistics)
        values, rotated = system.factor.spectrum(system.moment)
        noise = model.noise.matrix()
        if data.noise is None and (variance := common_variance(noise)) is not None:
            # σ⁻¹ (y − m − Φ Q diag(1/(a + a²)) Qᵀ Φᵀ (y − m) / σ²) with ΦᵀΦ / σ² = Q diag(λ) Qᵀ and a = √(1 + λ)
            roots = (1 + values).sqrt()
            system.weights = system.factor.unrotate(rotated / (roots + roots.square()))
            total = variance**0.5 * _alpha(model, system, data)
        else:  # a quadrature sums α over models with more noise
            variances = torch.linalg.eigvalsh(noise) if data.noise is None else data.noise[data.observed]
            total, is_reusable = 0, statistics.layout != "whitened" and data.noise is None
            largest = variances.max() * (1 + values.max())
            for shift, weight in quadrature_nodes(variances.min().item(), largest.item()):
                shifted = _add_noise(model, data, shift)
                found = statistics if is_reusable else self.statistics(*shifted)
                system = self.weight_system_from_statistics(shifted[0], found)
                total = total + weight * _alpha(shifted[0], system, shifted[1])
        return torch.where(data.observed, total, torch.nan)

    @staticmethod
    def weight_system_from_statistics(model: Model, statistics: Statistics) -> WeightSystem:
        """Compute the posterior of the weights from statistics of this model."""
        check_every_output(statistics)
        if statistics.layout == "empty":
            raise InputError("statistics must contain data, got empty ones. Add some first.")
        if model.features is None:
            raise OptionError("Statistics need a model with the feature map with which they were computed.")
        template = _template(model, statistics.landmarks.X)
        if not (isinstance(template, FeatureOperator) and template.is_separable):
            template = template.detach()  # factors that depend on the frequencies would give only part of a gradient
        if statistics.fingerprint != _fingerprint(model, statistics.landmarks.X, statistics.layout):
            raise InputError(
                "statistics were computed with other features or other hyperparameters of the kernel. Compute them again with gp.statistics(X, Y)."
            )
        return _system(model, statistics, template)


def check_every_output(statistics: Statistics | OutputStatistics) -> None:
    """Check that statistics have an observed value of each output."""
    if unobserved := (statistics.num_observed == 0).nonzero().flatten().tolist():
        raise InputError(
            f"statistics have no observed values for output {', '.join(map(str, unobserved))}. Add data or drop it."
        )


def sign_statistics(model: Model, statistics: Statistics) -> Statistics:
    """Return statistics known to be of this model with the fingerprint that this machine computes."""
    return replace(statistics, fingerprint=_fingerprint(model, statistics.landmarks.X, statistics.layout))


def _as_kernel(model: Model) -> Model:
    """Replace the kernel by that of the features."""
    return model._replace(kernel=ORFFKernel(model.features), features=None)


def _add_noise(model: Model, data: Observations, variance: float) -> tuple[Model, Observations]:
    """Add independent noise to all entries."""
    if data.noise is not None:
        return model, replace(data, noise=data.noise.double() + variance)
    matrix = model.noise.matrix()
    total = matrix + variance * torch.eye(len(matrix)).to(matrix)
    noise = OutputNoise(total.diagonal() if model.noise.is_diagonal else total, len(matrix))
    return model._replace(noise=noise.to(matrix.device)), data


def _template(model: Model, X: Tensor) -> LinearOperator:
    """Evaluate Φ at a fixed input: it contains the factors."""
    return model.features(_probe(X))


def _probe(X: Tensor) -> Tensor:
    return torch.linspace(0.1, 0.9, X.shape[1], dtype=torch.float64, device=X.device).unsqueeze(0)


def _is_wide(template: LinearOperator, data: Observations) -> bool:
    """Whether there are fewer observed entries than features, so that the matrix between entries is the smaller one."""
    separable = isinstance(template, FeatureOperator) and template.is_separable
    size = template.features.shape[-1] if separable and data.is_complete and data.noise is None else template.shape[-1]
    return data.num_observed < size and data.Y.numel() < 2 * size


def _system(model: Model, statistics: Statistics, template: LinearOperator) -> WeightSystem:
    coefficients = model.mean.coefficients.to(template.device)
    return make_weight_system(statistics, template, model.noise.matrix(), coefficients)


@torch.no_grad()
def _fingerprint(model: Model, X: Tensor, layout: str) -> str:
    """Hash what determines the rows: the scalar features and, if the layout is whitened, their factors and the noise.

    Features themselves are not hashed: their last bits depend on memory alignment and on whether gradients are required.
    """
    features, is_whitened = model.features, layout == "whitened"
    values = _scalar_feature_values(features, X) if isinstance(features, ORFF) else []
    if is_whitened or not isinstance(features, ORFF):
        values += _state(features) or [to_dense(features(_probe(X)))]  # a map without state is constant
    if is_whitened:
        values += _state(model.noise)
    if not model.mean.has_basis:
        values += _state(model.mean)
    digest = sha256()
    for value in values:
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _scalar_feature_values(features: ORFF, X: Tensor) -> list[Tensor]:
    """Return the frequencies, warped inputs and, without a kernel that owns them, the factors of random features."""
    frequencies, terms = features.frequencies, features.pair.terms
    warped = [term.warp(_probe(X)) for term in terms if term.warp is not None]
    factors = features.factors if features.kernel is None else []
    return [*(frequencies if isinstance(frequencies, list) else [frequencies]), *warped, *factors]


def _state(module: torch.nn.Module) -> list[Tensor]:
    """Return all parameters and buffers inside a module, without those of priors."""
    parts = [part for part in module.modules() if not isinstance(part, Prior)]
    return [value for part in parts for value in (*part.parameters(False), *part.buffers(False))]


def predictive_noise(model: Model, statistics: Statistics) -> Tensor:
    """Return Σ (p, p) of a new observation, as `Model.predictive_noise` does."""
    if bool((statistics.noise_sum > 0).any()):
        return torch.diag_embed(statistics.noise_sum / statistics.num_observed.clamp_min(1))
    return model.noise.matrix().detach()


def _chunks(system: WeightSystem, data: Observations) -> Iterator[Observations]:
    return data.chunks(_chunk_rows(system, data))


def _chunk_rows(system: WeightSystem, data: Observations) -> int:
    return max(CHUNK_ENTRIES // (system.num_features * data.num_outputs), 1)


def _leave_chunk_out(model: Model, system: WeightSystem, chunk: Observations) -> LeaveOneOut:
    Phi = model.features(chunk.X)
    precision = row_precision(chunk, model.noise.matrix(), model.noise.is_diagonal)
    alpha = system.alpha(Phi, precision, chunk.Y - model.mean(chunk.X))
    return LeaveOneOut.from_inverse(chunk, alpha, system.inverse_diagonal(Phi, precision))


def _alpha(model: Model, system: WeightSystem, data: Observations) -> Tensor:
    """Compute (ΦΦᵀ + N)⁻¹ (y − m), (n, p), zero where missing."""
    noise, is_diagonal = model.noise.matrix(), model.noise.is_diagonal
    parts = ((chunk, row_precision(chunk, noise, is_diagonal)) for chunk in _chunks(system, data))
    return torch.cat([system.alpha(model.features(c.X), P, c.Y - model.mean(c.X)) for c, P in parts])


def row_precision(chunk: Observations, noise: Tensor, is_diagonal: bool) -> Tensor:
    """Compute N⁻¹ of each row between its observed outputs, zero elsewhere: (n, p) if diagonal, else (n, p, p)."""
    if chunk.noise is not None or is_diagonal:
        variances = noise.diagonal() if chunk.noise is None else chunk.noise
        return torch.where(chunk.observed, 1 / variances, 0.0)
    root = whitening_roots(chunk, noise)
    return (root.mT @ root).expand(chunk.num_rows, -1, -1)
