"""Evidence, leave-one-out errors and predictions for a path of noise levels c·N from one factorization (BT-76).

With C_c = K + c N and α_c = C_c⁻¹ (y − m),

    exact kernel    N^{-½} K N^{-½} = Q diag(s) Qᵀ     gives  C_c⁻¹ = N^{-½} Q diag(1 / (s + c)) Qᵀ N^{-½},
    features        Φᵀ N⁻¹ Φ = Q diag(s) Qᵀ            gives  θ_c = Q diag(1 / (s + c)) Qᵀ Φᵀ N⁻¹ (y − m).

For one separable component Q = U ⊗ V and s = s_i t_j, so only K (n, n) or φᵀφ (M, M) is decomposed.
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
from ovkgp.inference.model.observations import Observations, validate_inputs
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES
from ovkgp.inference.statistics.weight_space import WeightSystem
from ovkgp.inference.strategies.exact import (
    KroneckerStrategy,
    check_exact_size,
    observed_noise_covariance,
    observed_prior_covariance,
)
from ovkgp.inference.strategies.features import FeatureStrategy, row_precision
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES, STRATEGIES
from ovkgp.kernels.evaluation import evaluate_kernel


@dataclass(frozen=True, eq=False)
class NoisePath:
    """Evidence, leave-one-out errors and predictions of a model at k noise levels.

    Attributes
    ----------
    multipliers : Tensor of shape (k,)
        Factors c; the noise is c times the model's.
    log_evidence : Tensor of shape (k,)
        log p(Y).
    loo_error : Tensor of shape (k,)
        Mean squared error of each row predicted from all others. Entries are weighted by the inverse of their noise.
    loo_log_density : Tensor of shape (k,)
        Sum of the log densities of each row given all others.
    scales : Tensor of shape (k,)
        Factors by which prior and noise were multiplied: 1, or with `rescale=True` the factor of largest evidence.
    """

    multipliers: Tensor
    log_evidence: Tensor
    loo_error: Tensor
    loo_log_density: Tensor
    scales: Tensor
    spectrum: _Spectrum

    def predict(self, X) -> Tensor:
        """Predict the posterior means for each noise level.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        Tensor of shape (k, m, p)
            Posterior means.
        """
        spectrum = self.spectrum
        X = validate_inputs(X, spectrum.data.X.shape[1]).double()
        prior = spectrum.model.mean(X)
        return torch.stack([prior + spectrum.mean(X, float(c)).view_as(prior) for c in self.multipliers])


@torch.no_grad()
def noise_path(gp: OperatorValuedGP, X, Y, multipliers, noise=None, *, rescale: bool = False) -> NoisePath:
    """Compute evidence, leave-one-out errors and means for the noise of a model times each of `multipliers`.

    Parameters
    ----------
    gp : OperatorValuedGP
        Model at its current hyperparameters.
    X : array-like of shape (n, d)
        Inputs.
    Y : array-like of shape (n, p)
        Outputs. NaN marks a missing output.
    multipliers : array-like of shape (k,)
        Factors c of the noise. Must be positive.
    noise : array-like of shape (n, p) or None, default=None
        Known noise variances. If None, the model's noise is used.
    rescale : bool, default=False
        Whether to multiply prior and noise, at each level, by the factor (y − m)ᵀ C_c⁻¹ (y − m) / N of largest
        evidence, for N observed entries. Means and errors do not change.

    Returns
    -------
    NoisePath
        Evidence, leave-one-out errors and predictions at each level.

    Raises
    ------
    InputError
        If a multiplier is not a positive number.
    OptionError
        If the exact kernel requires a dense factorization and there are too many observed entries.

    Notes
    -----
    Complexity: one factorization, O(n³ + p³) for a separable kernel with complete outputs, O(N³) for N observed entries
    and any other kernel, O(n M² + M³) for separable features with M scalar features, O(n p r²) for r features; then
    O(n² p), O(N²), O(n M p) or O(n p r) per level.

    References
    ----------
    BT-76.

    Examples
    --------
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
        raise InputError(f"multipliers must be positive numbers, got {multipliers.tolist()}.")
    spectrum = _decompose(gp.frozen().model, gp.observe(X, Y, noise).double())
    columns = (torch.stack(column) for column in zip(*spectrum.levels(multipliers, rescale), strict=True))
    return NoisePath(multipliers, *columns, spectrum)


def leave_rows_out(gp: OperatorValuedGP, X, Y, noise=None, *, groups="rows") -> LeaveGroupOut:
    """Compute the predictive distribution of each row, or group of rows, given all others, in closed form.

    Parameters
    ----------
    gp, X, Y, noise
        As for `noise_path`.
    groups : "rows" or array-like of shape (n,), default="rows"
        Labels of rows that are held out together, such as tracks or stations; "rows" holds out single rows.

    Returns
    -------
    LeaveGroupOut
        Means and standard deviations (n, p) and log densities of rows (n,) or groups (G,); NaN in rows without observed outputs.

    See Also
    --------
    OperatorValuedGP.leave_one_out : The same, and of single entries.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.inference import OperatorValuedGP, leave_rows_out
    >>> X = torch.linspace(0, 6, 30).double().unsqueeze(-1)
    >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.01)
    >>> bool((leave_rows_out(gp, X, X.sin()).mean - X.sin()).abs().max() < 0.1)
    True
    """
    return gp.leave_one_out(X, Y, noise, groups=groups)


def _decompose(model: Model, data: Observations) -> _Spectrum:
    """Factorize the covariance in the cheapest way that the kernel and the data allow."""
    name = next(name for name in SPECTRA if STRATEGIES[name].strategy.supports(model, data))
    if name == "dense" and data.num_observed > MAX_DENSE_ENTRIES:
        raise OptionError(
            f"A noise path with the exact kernel supports at most {MAX_DENSE_ENTRIES} observed entries unless the kernel is separable and the outputs are complete, got {data.num_observed}. Use a feature map, complete outputs or fewer rows."
        )
    return SPECTRA[name](model, data)


class _Spectrum(ABC):
    """A factorization from which quantities at any noise level follow."""

    def __init__(self, model: Model, data: Observations):
        self.model, self.data = model, data
        self.residuals = data.Y - model.mean(data.X)
        variances = data.noise if data.noise is not None else model.noise.matrix().diagonal()
        self.weights = torch.where(data.observed, 1 / variances, 0.0)

    @abstractmethod
    def leave_one_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveGroupOut]]:
        """Iterate over c: log p(Y) with noise c·N, (y − m)ᵀ C_c⁻¹ (y − m), and each row given all others."""

    @abstractmethod
    def mean(self, X: Tensor, c: float) -> Tensor:
        """Return the posterior mean (m·p,) minus the prior mean."""

    def levels(self, multipliers: Tensor, rescale: bool) -> list[tuple[Tensor, ...]]:
        """Return log evidence, leave-one-out error, leave-one-out log density and scale for each noise level."""
        levels, size = [], self.data.num_observed
        for log_evidence, quadratic, held_out in self.leave_one_out(multipliers):
            scale = quadratic / size if rescale and bool(quadratic > 0) else torch.ones_like(quadratic)
            errors = torch.where(self.data.observed, self.data.Y - held_out.mean, 0.0).square()
            error = (self.weights * errors).sum() / self.weights.sum()
            # from N(y | 0, C) to N(y | 0, sC), for all entries and for each row given the others
            shift = -size / 2 * scale.log()
            densities = held_out.log_density.sum() + shift + (1 - 1 / scale) * held_out.quadratic.sum() / 2
            levels.append((log_evidence + shift + (1 - 1 / scale) * quadratic / 2, error, densities, scale))
        return levels


class _KroneckerSpectrum(_Spectrum):
    def __init__(self, model: Model, data: Observations):
        super().__init__(model, check_exact_size(data))
        self.solver = KroneckerSolver(*KroneckerStrategy.parts(model, self.data))

    def _alpha(self, c: float) -> tuple[Tensor, Tensor]:
        solver = self.solver
        inverse = 1 / (solver.values - 1 + c)
        return solver.U @ (solver.rotated * inverse) @ solver.W.mT, inverse

    def leave_one_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveGroupOut]]:
        left, back = self.solver.U.square(), torch.linalg.inv(self.solver.W)
        constant = 2 * torch.linalg.slogdet(back).logabsdet
        for c, log_evidence in zip(map(float, multipliers), self.solver.path(multipliers), strict=True):
            alpha, inverse = self._alpha(c)
            quadratic = (self.solver.rotated.square() * inverse).sum()
            diagonal = left @ inverse  # a block of C⁻¹ is W diag(diagonal_i) Wᵀ
            deviation = (alpha @ back.mT / diagonal) @ back
            parts = deviation, (1 / diagonal) @ back.square(), constant - diagonal.log().sum(-1)
            yield log_evidence, quadratic, LeaveGroupOut.from_deviations(self.data.Y, alpha, *parts)

    def mean(self, X: Tensor, c: float) -> Tensor:
        return evaluate_kernel(self.model.kernel, X, self.data.X) @ self._alpha(c)[0].flatten()


class _DenseSpectrum(_Spectrum):
    def __init__(self, model: Model, data: Observations):
        super().__init__(model, check_exact_size(data))
        chol = safe_cholesky(observed_noise_covariance(model, data))
        half = torch.linalg.solve_triangular(chol, observed_prior_covariance(model, data), upper=False)
        self.values, vectors = eigh(torch.linalg.solve_triangular(chol, half.mT, upper=False))
        self.vectors = torch.linalg.solve_triangular(chol.mT, vectors, upper=True)
        self.rotated = self.vectors.mT @ self.residuals[data.observed]
        self.noise_logdet = 2 * chol.diagonal().log().sum()

    def _alpha(self, c: float) -> Tensor:
        entries = self.vectors @ (self.rotated / (self.values + c))
        return torch.zeros_like(self.residuals).masked_scatter_(self.data.observed, entries)

    def leave_one_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveGroupOut]]:
        rows = self.residuals.new_zeros(*self.residuals.shape, len(self.values))  # the rows of the vectors, (n, p, N)
        rows[self.data.observed] = self.vectors
        for c in map(float, multipliers):
            values = self.values + c
            quadratic = (self.rotated.square() / values).sum()
            density = gaussian_log_density(quadratic, values.log().sum(), len(values)) - self.noise_logdet / 2
            yield density, quadratic, LeaveGroupOut.from_blocks(self.data.Y, self._alpha(c), (rows / values) @ rows.mT)

    def mean(self, X: Tensor, c: float) -> Tensor:
        return evaluate_kernel(self.model.kernel, X, self.data.X) @ self._alpha(c).flatten()


class _WeightSpectrum(_Spectrum):
    """Factorization in weight space; the features of a chunk of rows are rotated once for all levels."""

    def __init__(self, model: Model, data: Observations):
        super().__init__(model, data)
        strategy = FeatureStrategy()
        self.system: WeightSystem = strategy.weight_system_from_statistics(model, strategy.statistics(model, data))

    def leave_one_out(self, multipliers: Tensor) -> Iterator[tuple[Tensor, Tensor, LeaveGroupOut]]:
        factor, systems = self.system.to_eigenbasis(multipliers)
        parts = []
        for chunk in self.data.chunks(self._chunk_rows()):
            Phi = factor.rotate(self.model.features(chunk.X), chunk.num_outputs)
            precision = row_precision(chunk, self.model.noise.matrix(), self.model.noise.is_diagonal)
            residuals, found = chunk.Y - self.model.mean(chunk.X), []
            for system, c in zip(systems, map(float, multipliers), strict=True):
                alpha = system.alpha(Phi, precision / c, residuals)
                found.append(LeaveGroupOut.from_blocks(chunk.Y, alpha, system.inverse_blocks(Phi, precision / c)))
            parts.append(found)
        for system, column in zip(systems, zip(*parts, strict=True), strict=True):
            yield system.log_density, system.quadratic, LeaveGroupOut.stack(list(column))

    def _chunk_rows(self) -> int:
        Phi, p = self.model.features(self.data.X[:1]), self.data.num_outputs
        is_separable = isinstance(Phi, FeatureOperator) and Phi.is_separable and Phi.num_outputs == p
        width = Phi.features.shape[-1] + p * p if is_separable else self.system.num_features * p
        return max(CHUNK_ENTRIES // width, 1)

    def mean(self, X: Tensor, c: float) -> Tensor:
        return self.model.features(X) @ self.system.path_weights(c)


SPECTRA = {"features": _WeightSpectrum, "kronecker": _KroneckerSpectrum, "dense": _DenseSpectrum}
"""Factorizations by the strategy whose structure they use, the first supported one is taken."""
