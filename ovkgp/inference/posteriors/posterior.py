"""Base classes of posteriors: predictions, joint samples and random functions of a Gaussian process given data.

A posterior keeps copies of kernel, mean and noise as they were at conditioning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.algebra.dense import gaussian_log_density, kronecker_in_form, psd_root
from ovkgp.inference.model.mean_noise import Model, OutputMean
from ovkgp.inference.model.observations import Observations, validate_inputs
from ovkgp.inference.posteriors.leave_one_out import expand_rows
from ovkgp.inference.posteriors.prediction import JoinedPrediction, Prediction, check_form
from ovkgp.kernels import is_operator_valued
from ovkgp.kernels.evaluation import evaluate_kernel

CHUNK_ENTRIES = 1_000_000
"""Approximate number of entries of the largest matrix of one chunk of test points (8 MB in float64)."""

PAIR_ROWS = 32  # functions that are evaluated at each other's rows, to use products of matrices
VARIANCE_SLACK = 1e-6  # a variance below −1e-6 of the prior's is no round-off: the factorization has failed


class FunctionDraws(Sequence):
    """Sequence of k functions X (m, d) ↦ (m, p); calling it evaluates all of them, (k, m, p).

    Parameters
    ----------
    evaluate : Callable
        Function of X (m, d) and an index tensor with values (len(index), m, p).
    num_draws : int
        Number k of functions.
    num_dims : int
        Number d of input columns.
    noise : Callable or None, default=None
        Function that returns the noise covariance of new observations, (p, p) or, for each function, (k, p, p). None if there is none.
    evaluate_pairs : Callable or None, default=None
        Function of X (m, d) and an index tensor (m,) with the values (m, p) of the i-th of these functions at the i-th row. If
        None, they are selected from blocks of `evaluate`.
    """

    def __init__(
        self,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        num_draws: int,
        num_dims: int,
        noise: Callable[[], Tensor] | None = None,
        evaluate_pairs: Callable[[Tensor, Tensor], Tensor] | None = None,
    ):
        self._evaluate, self._num_draws, self._num_dims = evaluate, num_draws, num_dims
        self._noise, self._evaluate_pairs = noise, evaluate_pairs or self._select_pairs

    def __len__(self) -> int:
        return self._num_draws

    def __call__(self, X) -> Tensor:
        return self._evaluate_at(X, torch.arange(self._num_draws))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}.")
        position = torch.tensor([index % len(self)])
        return lambda X: self._evaluate_at(X, position)[0]

    @property
    def noise(self) -> Tensor:
        """Noise covariance (k, p, p) of new observations of each function."""
        if self._noise is None:
            raise OptionError("These functions have no Gaussian noise. Use those of a posterior of observed outputs.")
        noise = self._noise()
        return noise.expand(len(self), *noise.shape[-2:])

    def evaluate_pairs(self, X, index: Tensor) -> Tensor:
        """Evaluate one function per row.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        index : Tensor of shape (m,)
            Number of the function of each row.

        Returns
        -------
        Tensor of shape (m, p)
            Value of function index[i] at X[i].
        """
        return self._evaluate_pairs(validate_inputs(X, self._num_dims).double(), index)

    def _select_pairs(self, X: Tensor, index: Tensor) -> Tensor:
        parts = zip(X.split(PAIR_ROWS), index.split(PAIR_ROWS), strict=True)
        return torch.cat([self._evaluate(x, own).diagonal(dim1=0, dim2=1).mT for x, own in parts])

    def _evaluate_at(self, X, index: Tensor) -> Tensor:
        return self._evaluate(validate_inputs(X, self._num_dims).double(), index)


class Process(ABC):
    """Gaussian process with q outputs that is jointly Gaussian with the observed one."""

    kernel: Kernel
    """Kernel of the observed process."""

    num_outputs: int
    is_observed = False
    """Whether this is the observed process itself, to which prior mean and noise belong."""

    @abstractmethod
    def prior(self, X: Tensor, form: str) -> Tensor:
        """Compute its prior covariance: (m, q) for "diag", (m, q, q) for "output", (m·q, m·q) for "full"."""

    @abstractmethod
    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        """Compute its covariance at X (m, d) with the observed process at Z (n, d): (m·q) × (n·p)."""

    @abstractmethod
    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        """Compute its features (m·q) × r for the weights of the feature map of the observed process."""

    @abstractmethod
    def prior_mean(self, mean: OutputMean, X: Tensor) -> Tensor:
        """Compute its prior mean (m, q) at X (m, d) from that of the observed process."""


class KernelProcess(Process):
    """The observed process itself, with p outputs."""

    is_observed = True

    def __init__(self, kernel: Kernel, num_outputs: int):
        self.kernel, self.part, self.num_outputs = kernel, kernel, num_outputs

    def prior(self, X: Tensor, form: str) -> Tensor:
        return prior_covariance(self.part, X, self.num_outputs, form)

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        return to_linear_operator(evaluate_kernel(self.part, X, Z))

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        return feature_map(X)

    def prior_mean(self, mean: OutputMean, X: Tensor) -> Tensor:
        return mean(X)


def prior_covariance(kernel: Kernel, X: Tensor, num_outputs: int, form: str) -> Tensor:
    """Compute K(X, X) in the given form: (m, p), (m, p, p) or (m·p, m·p)."""
    if form == "diag":
        return evaluate_kernel(kernel, X, diag=True).unflatten(-1, (-1, num_outputs))
    if form == "full":
        return to_dense(evaluate_kernel(kernel, X))
    if not is_operator_valued(kernel):
        return evaluate_kernel(kernel, X, diag=True)[..., None, None]
    return to_dense(evaluate_kernel(kernel, X.unsqueeze(-2)))  # a batch of m single points


def select_form(matrix: Tensor, num_outputs: int, form: str) -> Tensor:
    """Select the part of a full (m·q, m·q) covariance that `form` specifies."""
    if form == "full":
        return matrix
    if form == "diag":
        return matrix.diagonal().unflatten(-1, (-1, num_outputs))
    points = torch.arange(len(matrix) // num_outputs, device=matrix.device)
    return matrix.unflatten(1, (-1, num_outputs)).unflatten(0, (-1, num_outputs))[points, :, points, :]


class Conditioning(NamedTuple):
    """Strategy by which a model was conditioned on data, the model and the data."""

    strategy: Any
    model: Model
    data: Observations


class Posterior(ABC):
    """Gaussian process given data.

    `predict` describes the latent function unless `noise=True`. Computations are chunked over the test points, except
    for joint ones (`cov="full"` and `sample`).

    Attributes
    ----------
    num_outputs, num_dims : int
        Number of outputs p and of input columns d.
    noise : Tensor of shape (p, p) or None
        Noise covariance of a new observation. None if the process was not observed itself.
    log_evidence : float
        log p(Y) of the data at the hyperparameters of this posterior.
    log_evidence_error : float
        Standard error of `log_evidence`; zero unless the log determinant was estimated.
    """

    num_outputs: int
    num_dims: int
    noise: Tensor | None
    log_evidence: float
    log_evidence_error: float = 0.0
    units: str = "those of the data it was conditioned on"
    conditioning: Conditioning | None = None
    """Set by the strategy; None if the posterior does not have the data, or is not Gaussian at all rows jointly."""

    no_residuals = (
        "Whitened residuals need the observed process and its data, which this posterior does not have. Condition on X "
        "and Y, gp.condition(X, Y).whitened_residuals(), not on statistics."
    )
    """Error message of `whitened_residuals` without `conditioning`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_dims={self.num_dims}, num_outputs={self.num_outputs}), units: {self.units}"

    @abstractmethod
    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Compute mean (m, p) and covariance of the latent function in the given form, for one chunk of points.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            Inputs.
        form : {"none", "diag", "output", "full"}
            No covariance, variances (m, p), covariances (m, p, p) of the outputs at a point, or (m·p, m·p).

        Returns
        -------
        mean, covariance : Tensor of shape (m, p), and Tensor or None
            Moments of the latent function.
        """

    @abstractmethod
    def max_chunk_rows(self, form: str) -> int:
        """Return the number of test points per chunk.

        Parameters
        ----------
        form : {"none", "diag", "output", "full"}
            Form of the covariance.

        Returns
        -------
        int
            Number of rows that fit in memory.
        """

    @abstractmethod
    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """Draw k random functions from the posterior, which keep their values over repeated calls.

        Parameters
        ----------
        k : int, default=1
            Number of functions.
        random_state : int, numpy.random.Generator or None, default=None
            Seed.

        Returns
        -------
        FunctionDraws
            `draws[i](X)` is (m, p), `draws(X)` is (k, m, p).
        """

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """Predict at the points X (m, d).

        Parameters
        ----------
        X : array-like of shape (m, d)
            Test inputs.
        cov : {"none", "diag", "output", "full"}, default="diag"
            Covariance to compute: standard deviations for "diag", between outputs at each point (m, p, p) for "output",
            between all entries (m·p, m·p) for "full".
        noise : bool, default=False
            Whether to predict a new observation y = f(x) + ε instead of the latent f(x). If the noise was known for
            each entry of Y, its average over the observed entries is used.

        Returns
        -------
        Prediction
        """
        form, X = check_form(cov), validate_inputs(X, self.num_dims).double()
        size = len(X) if form == "full" else self.max_chunk_rows(form)
        means, covariances = zip(*(self.latent(part, form) for part in X.split(max(size, 1))), strict=True)
        mean = torch.cat(means)
        if noise and self.noise is None:
            raise OptionError(
                "noise=True is not supported for a process that was not observed itself. Use noise=False."
            )
        if form == "none":
            return Prediction(mean)
        covariance = covariances[0] if form == "full" else torch.cat(covariances)
        if noise:
            ones = covariance.new_ones(len(X))
            scalar = torch.diag(ones) if form == "full" else ones.unsqueeze(-1)
            covariance = covariance + kronecker_in_form(scalar, self.noise, form)
        return Prediction(mean, covariance, form)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """Draw k joint samples at the points X (m, d).

        Parameters
        ----------
        X, noise
            As for `predict`.
        k, random_state
            As for `sample_functions`.

        Returns
        -------
        Tensor of shape (k, m, p)

        Notes
        -----
        Complexity: O((m·p)³). For many points use `sample_functions`.
        """
        k, prediction = check_integer("the number of draws", k), self.predict(X, "full", noise)
        root = psd_root(prediction.cov)
        scores = draw_normal((k, len(root)), random_state, root)
        return prediction.mean + (scores @ root.mT).unflatten(-1, prediction.mean.shape)

    @torch.no_grad()
    def joint_log_density(self, X, Y) -> Tensor:
        """Compute the log density of the observed outputs of each new row, jointly.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            Inputs.
        Y : Tensor of shape (m, p)
            New observations, NaN where missing.

        Returns
        -------
        Tensor of shape (m,)
            log p(y_i | x_i, data); 0 for a row without observed outputs.

        Notes
        -----
        Complexity: that of `predict(X, "output", noise=True)`, and O(m p³).
        """
        prediction = self.predict(X, "output", noise=True)
        parts = prediction.columns if isinstance(prediction, JoinedPrediction) else (prediction,)
        if any(type(part) is not Prediction for part in parts):
            raise OptionError(
                "A joint log density is not supported with a likelihood that is not Gaussian. Use the log densities of single entries."
            )
        gap = torch.as_tensor(Y, dtype=torch.float64) - prediction.mean
        observed = torch.isfinite(gap)
        both = observed.unsqueeze(-1) & observed.unsqueeze(-2)
        eye = torch.eye(gap.shape[-1], dtype=gap.dtype)  # a missing output is an independent standard normal of value 0
        chol = torch.linalg.cholesky(torch.where(both, prediction.cov, eye))
        gap = torch.where(observed, gap, 0.0).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(chol, gap, upper=False).squeeze(-1)
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return gaussian_log_density(whitened.square().sum(-1), logdet, observed.sum(-1))

    def whitened_residuals(self) -> Tensor:
        """Compute (K + Σ)^(−½) (y − m) with the symmetric root, between all observed entries.

        If the model is true they are independent and standard normal, and each belongs to its row and output: the
        order of the rows does not change them. The sum of their squares is (y − m)ᵀ (K + Σ)⁻¹ (y − m).

        Returns
        -------
        Tensor of shape (n, p)
            NaN for entries that were not observed.

        Raises
        ------
        OptionError
            If the posterior does not have the data (it was conditioned on statistics or read from a file), is
            variational or an average over hyperparameter draws.

        Notes
        -----
        Complexity: O(N³) for N observed entries; O(n³ + np³) for a separable kernel with complete outputs. With a
        feature map one eigendecomposition in weight space if all entries have the same noise variance, otherwise 15 to
        50 conditionings (a quadrature, exact to about 1e-10), as for a separable kernel with few missing outputs; as
        many solves by conjugate gradients for larger exact kernels, to about 1e-6.
        """
        if self.conditioning is None:
            raise OptionError(self.no_residuals)
        strategy, model, data = self.conditioning
        return expand_rows(strategy.whitened_residuals(model, data), data.kept)

    def forget_data(self) -> None:
        """Drop the data that only `whitened_residuals` needs."""
        self.conditioning = None


def spawn_seeds(random_state, count: int) -> list[int]:
    """Spawn seeds of independent streams from one `random_state`."""
    children = np.random.SeedSequence(as_seed(random_state)).spawn(count)
    return [int(child.generate_state(1)[0]) for child in children]


def draw_normal(shape: tuple[int, ...], random_state, like: Tensor) -> Tensor:
    """Draw standard normal numbers in float64, reproducible from `random_state`, on the device of `like`."""
    generator = torch.Generator().manual_seed(as_seed(random_state))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device)


def subtract_explained(prior: Tensor, explained: Tensor, form: str) -> Tensor:
    """Compute prior − explained; negative round-off of variances becomes zero, larger negative ones are an error."""
    covariance = prior - explained
    variance, scale = (c if form == "diag" else c.diagonal(dim1=-2, dim2=-1) for c in (covariance, prior))
    slack = VARIANCE_SLACK * scale.detach().amax() if scale.numel() else 0.0
    if not bool((variance.detach() >= -slack).all()):
        raise FactorizationError(
            f"A predictive variance is {variance.detach().min().item():.3g} at a prior variance of "
            f"{scale.detach().max().item():.3g}: the covariance matrix of the data is numerically singular. Increase "
            "the noise or shorten the lengthscales."
        )
    return covariance.clamp_min(0) if form == "diag" else covariance + torch.diag_embed((-variance).clamp_min(0))
