"""A whole path of noise levels c·N from one factorisation (BT-76): evidence, leave-one-out errors and predictions for each c.

With C_c = K + c N and α_c = C_c⁻¹ (y − m),

    exact kernel    N^{-½} K N^{-½} = Q diag(s) Qᵀ     gives  C_c⁻¹ = N^{-½} Q diag(1 / (s + c)) Qᵀ N^{-½},
    features        Φᵀ N⁻¹ Φ = Q diag(s) Qᵀ            gives  θ_c = Q diag(1 / (s + c)) Qᵀ Φᵀ N⁻¹ (y − m),

and for one separable component Q = U ⊗ V and s = s_i t_j, so that nothing larger than K (n, n) or φᵀφ (M, M) is decomposed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.algebra.dense import gaussian_log_density, safe_cholesky
from ovkgp.inference.algebra.kronecker import KroneckerSolver, eigh
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations, as_floating, inputs
from ovkgp.inference.posteriors.leave_one_out import LeaveRowOut
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES
from ovkgp.inference.statistics.factors import KroneckerFactor
from ovkgp.inference.statistics.weight_space import WeightSystem
from ovkgp.inference.strategies.exact import KroneckerStrategy, checked, noise_between, prior_between
from ovkgp.inference.strategies.features import FeatureStrategy, precision_of
from ovkgp.inference.strategies.selection import DENSE_LIMIT, has_kronecker_form


@dataclass(frozen=True, eq=False)
class NoisePath:
    """What the data say at each of k noise levels.

    Attributes:
        multipliers: c (k,): the noise is c times the model's.
        log_evidence: log p(Y) (k,).
        loo_error: the mean squared error (k,) of each row predicted from all others, entries weighted by the inverse of
            their noise (alike where the noise is alike).
        loo_log_density: the sum (k,) of the log densities of the rows given all others.
        scales: by what prior and noise were multiplied (k,): one, or the factor of largest evidence.
    """

    multipliers: Tensor
    log_evidence: Tensor
    loo_error: Tensor
    loo_log_density: Tensor
    scales: Tensor
    spectrum: _Spectrum

    def predict(self, X) -> Tensor:
        """The posterior means at X (m, d) for each noise level, (k, m, p)."""
        return self.spectrum.means(inputs(X, self.spectrum.num_dims).double(), self.multipliers)


@torch.no_grad()
def noise_path(gp: OperatorValuedGP, X, Y, multipliers, noise=None, *, rescale: bool = False) -> NoisePath:
    """Evidence, leave-one-out errors and means for the noise of a model times each of `multipliers`.

    Args:
        gp: the model, at its present hyperparameters.
        X, Y, noise: as for `gp.condition`.
        multipliers: c (k,), positive.
        rescale: multiply prior and noise together, at each level, by the factor that makes the evidence largest,
            (y − m)ᵀ C_c⁻¹ (y − m) / |y|. Means and errors stay as they are.

    Cost: one factorisation, O(n³ + p³) for a separable kernel with complete outputs, O(N³) for N observed entries of any
    other, O(n M² + M³) for separable features with M waves, O(n p r²) for r features; then O(n² p), O(N²), O(n M p) or
    O(n p r) for each level.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP, noise_path
        >>> X = torch.linspace(0, 6, 30).double().unsqueeze(-1)
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=1.0)
        >>> path = noise_path(gp, X, X.sin(), [1e-4, 1e-2, 1.0])
        >>> path.log_evidence.argmax().item(), path.predict(X).shape
        (0, torch.Size([3, 30, 1]))
    """
    multipliers = torch.as_tensor(multipliers, dtype=torch.float64).reshape(-1)
    if not len(multipliers) or not bool((torch.isfinite(multipliers) & (multipliers > 0)).all()):
        raise InputError(f"multipliers of the noise must be positive numbers, got {multipliers.tolist()}.")
    data = gp.observe(X, Y, noise).double()
    model = gp.frozen().model
    spectrum = _spectrum(model, data)
    columns = (torch.stack(column) for column in zip(*spectrum.levels(multipliers, rescale), strict=True))
    return NoisePath(multipliers, *columns, spectrum)


@torch.no_grad()
def rows_left_out(gp: OperatorValuedGP, X, Y, noise=None) -> LeaveRowOut:
    """The predictive density of each row given all others, in closed form; NaN in rows in which nothing is observed.

    Args:
        gp: the model, at its present hyperparameters.
        X, Y, noise: as for `gp.condition`.

    Cost: that of `noise_path` with one level.
    """
    data = gp.observe(X, Y, noise).double()
    ((_, _, found),) = _spectrum(gp.frozen().model, data).left_out(torch.ones(1, dtype=torch.float64))
    kept = ~torch.isnan(as_floating(Y, "Y").reshape(len(Y), -1)).all(1)
    return found.spread(kept)


def _spectrum(model: Model, data: Observations) -> _Spectrum:
    if model.features is not None:
        return _WeightSpectrum(model, data)
    if has_kronecker_form(model, data):
        return _KroneckerSpectrum(model, checked(data))
    if data.num_observed > DENSE_LIMIT:
        raise OptionError(
            f"a path needs one factorisation, and {data.num_observed} observed entries are too many for a dense one (limit "
            f"{DENSE_LIMIT}): complete the outputs, use a feature map, or choose λ on fewer rows."
        )
    return _DenseSpectrum(model, checked(data))


class _Spectrum(ABC):
    """One factorisation, read at any noise level."""

    def __init__(self, model: Model, data: Observations):
        self.model, self.data = model, data
        self.residuals = data.Y - model.mean(data.X)
        self.num_dims = data.X.shape[1]
        variances = data.noise if data.noise is not None else model.noise.matrix().diagonal()
        self.weights = torch.where(data.observed, 1 / variances, 0.0)

    @abstractmethod
    def left_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveRowOut]]:
        """log p(Y) with noise c·N, (y − m)ᵀ C_c⁻¹ (y − m), and each row given all others, for each c."""

    @abstractmethod
    def mean(self, X: Tensor, c: float) -> Tensor:
        """The posterior mean (m, p) less the prior's."""

    def levels(self, multipliers: Tensor, rescale: bool) -> list[tuple[Tensor, ...]]:
        """log evidence, leave-one-out error and log density, and the scale, at each noise level."""
        found, size = [], self.data.num_observed
        for log_evidence, quadratic, left_out in self.left_out(multipliers):
            scale = quadratic / size if rescale and bool(quadratic > 0) else torch.ones_like(quadratic)
            errors = torch.where(self.data.observed, self.data.Y - left_out.mean, 0.0).square()
            error = (self.weights * errors).sum() / self.weights.sum()
            # N(y | 0, sC) for N(y | 0, C), of all entries and of each row given the others
            shift = -size / 2 * scale.log()
            densities = left_out.log_density.sum() + shift + (1 - 1 / scale) * left_out.quadratic.sum() / 2
            found.append((log_evidence + shift + (1 - 1 / scale) * quadratic / 2, error, densities, scale))
        return found

    def means(self, X: Tensor, multipliers: Tensor) -> Tensor:
        prior = self.model.mean(X)
        return torch.stack([prior + self.mean(X, float(c)) for c in multipliers])


class _KroneckerSpectrum(_Spectrum):
    def __init__(self, model: Model, data: Observations):
        super().__init__(model, data)
        self.solver: KroneckerSolver = KroneckerStrategy().eigen_solver(model, data)

    def _alpha(self, c: float) -> tuple[Tensor, Tensor]:
        solver = self.solver
        inverse = 1 / (solver.values - 1 + c)
        return solver.U @ (solver.rotated * inverse) @ solver.W.mT, inverse

    def left_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveRowOut]]:
        left, back = self.solver.U.square(), torch.linalg.inv(self.solver.W)
        constant = 2 * torch.linalg.slogdet(back).logabsdet
        for c, log_evidence in zip(map(float, multipliers), self.solver.path(multipliers), strict=True):
            alpha, inverse = self._alpha(c)
            quadratic = (self.solver.rotated.square() * inverse).sum()
            spread = left @ inverse  # a block of C⁻¹ is W diag(spread_i) Wᵀ
            deviation = (alpha @ back.mT / spread) @ back
            parts = deviation, (1 / spread) @ back.square(), constant - spread.log().sum(-1)
            yield log_evidence, quadratic, LeaveRowOut.of(self.data, alpha, *parts)

    def mean(self, X: Tensor, c: float) -> Tensor:
        return (self.model.kernel(X, self.data.X) @ self._alpha(c)[0].flatten()).unflatten(
            -1, (-1, self.data.num_outputs)
        )


class _DenseSpectrum(_Spectrum):
    def __init__(self, model: Model, data: Observations):
        super().__init__(model, data)
        chol = safe_cholesky(noise_between(model, data))
        half = torch.linalg.solve_triangular(chol, prior_between(model, data), upper=False)
        self.values, vectors = eigh(torch.linalg.solve_triangular(chol, half.mT, upper=False))
        self.vectors = torch.linalg.solve_triangular(chol.mT, vectors, upper=True)
        self.rotated = self.vectors.mT @ self.residuals[data.observed]
        self.noise_logdet = 2 * chol.diagonal().log().sum()

    def _spread(self, entries: Tensor) -> Tensor:
        return torch.zeros_like(self.residuals).masked_scatter_(self.data.observed, entries)

    def _alpha(self, c: float) -> Tensor:
        return self._spread(self.vectors @ (self.rotated / (self.values + c)))

    def left_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveRowOut]]:
        rows = self.residuals.new_zeros(*self.residuals.shape, len(self.values))  # those of the vectors, (n, p, N)
        rows[self.data.observed] = self.vectors
        for c in map(float, multipliers):
            values = self.values + c
            quadratic = (self.rotated.square() / values).sum()
            density = gaussian_log_density(quadratic, values.log().sum(), len(values)) - self.noise_logdet / 2
            left_out = LeaveRowOut.from_blocks(self.data, self._alpha(c), (rows / values) @ rows.mT)
            yield density, quadratic, left_out

    def mean(self, X: Tensor, c: float) -> Tensor:
        alpha = self._alpha(c).flatten()
        return (self.model.kernel(X, self.data.X) @ alpha).unflatten(-1, (-1, self.data.num_outputs))


class _WeightSpectrum(_Spectrum):
    """In weight space; the features of a chunk of rows are rotated once, for all levels."""

    def __init__(self, model: Model, data: Observations):
        super().__init__(model, data)
        strategy = FeatureStrategy()
        self.system: WeightSystem = strategy.system_of(model, strategy.statistics(model, data))
        self.noise = model.noise.matrix()

    def left_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveRowOut]]:
        factor, systems = self.system.rotated(multipliers)
        chunks = self.data.chunks(self._rows_at_once())
        parts = [self._left_out(chunk, factor, systems, multipliers) for chunk in chunks]
        for system, column in zip(systems, zip(*parts, strict=True), strict=True):
            yield system.log_density, system.quadratic, LeaveRowOut.stack(list(column))

    def _rows_at_once(self) -> int:
        Phi, p = self.model.features(self.data.X[:1]), self.data.num_outputs
        is_separable = isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == p
        width = Phi.features.shape[-1] + p * p if is_separable else self.system.num_features * p
        return max(CHUNK_ENTRIES // width, 1)

    def _left_out(self, chunk: Observations, factor: KroneckerFactor, systems, multipliers) -> list[LeaveRowOut]:
        Phi = factor.rotate(self.model.features(chunk.X), chunk.num_outputs)
        precision = precision_of(chunk, self.noise, self.model.noise.is_diagonal)
        residuals = chunk.Y - self.model.mean(chunk.X)
        found = []
        for system, c in zip(systems, map(float, multipliers), strict=True):
            alpha = system.alpha(Phi, precision / c, residuals)
            found.append(LeaveRowOut.from_blocks(chunk, alpha, system.inverse_blocks(Phi, precision / c)))
        return found

    def mean(self, X: Tensor, c: float) -> Tensor:
        return (self.model.features(X) @ self.system.path_weights(c)).unflatten(-1, (-1, self.data.num_outputs))
