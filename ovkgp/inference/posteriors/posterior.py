"""What every posterior can be asked: predictions, joint samples, and whole random functions.

A posterior is frozen: it keeps copies of kernel, mean and noise as they were when the data were conditioned on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.model.observations import inputs
from ovkgp.inference.posteriors.prediction import Prediction, check_form
from ovkgp.kernels import is_operator_valued


class FunctionDraws(Sequence):
    """k functions X (m, d) ↦ (m, p); calling the sequence evaluates all of them, (k, m, p).

    Args:
        evaluate: X (m, d), index ↦ (len(index), m, p).
        num_draws: k.
        num_dims: d.
    """

    def __init__(self, evaluate: Callable[[Tensor, Tensor], Tensor], num_draws: int, num_dims: int):
        self._evaluate, self._num_draws, self._num_dims = evaluate, num_draws, num_dims

    def __len__(self) -> int:
        return self._num_draws

    def __call__(self, X) -> Tensor:
        return self._at(X, torch.arange(self._num_draws))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} draws; {index} is not one of them.")
        position = torch.tensor([index % len(self)])
        return lambda X: self._at(X, position)[0]

    def _at(self, X, index: Tensor) -> Tensor:
        return self._evaluate(inputs(X, self._num_dims).double(), index)


class Process(ABC):
    """A Gaussian process with q outputs that is jointly Gaussian with the observed one."""

    kernel: Kernel
    """The kernel of the observed process."""

    num_outputs: int
    is_observed = False
    """Whether this is the observed process itself, to which its prior mean and noise belong."""

    @abstractmethod
    def prior(self, X: Tensor, form: str) -> Tensor:
        """Its covariance before any data: (m, q) for "diag", (m, q, q) for "output", (m·q, m·q) for "full"."""

    @abstractmethod
    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        """Its covariance at X (m, d) with the observed process at Z (n, d): (m·q) × (n·p)."""

    @abstractmethod
    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        """Its features (m·q) × r in terms of the weights of the observed process's map."""


class KernelProcess(Process):
    """The observed process itself, with p outputs."""

    is_observed = True

    def __init__(self, kernel: Kernel, num_outputs: int):
        self.kernel, self.num_outputs = kernel, num_outputs

    def prior(self, X: Tensor, form: str) -> Tensor:
        return prior_covariance(self.kernel, X, self.num_outputs, form)

    def cross(self, X: Tensor, Z: Tensor) -> LinearOperator:
        return to_linear_operator(self.kernel(X, Z)).evaluate_kernel()

    def features(self, feature_map: FeatureMap, X: Tensor) -> LinearOperator:
        return feature_map(X)


def prior_covariance(kernel: Kernel, X: Tensor, num_outputs: int, form: str) -> Tensor:
    """K(X, X) as far as `form` asks: (m, p), (m, p, p) or (m·p, m·p)."""
    if form == "diag":
        return to_dense(kernel(X, diag=True)).unflatten(-1, (-1, num_outputs))
    if form == "full":
        return to_dense(kernel(X))
    if not is_operator_valued(kernel):
        return kernel(X, diag=True)[..., None, None]
    return to_dense(kernel(X.unsqueeze(-2)))  # a batch of m single points


def of_form(matrix: Tensor, num_outputs: int, form: str) -> Tensor:
    """The part of a whole (m·q, m·q) covariance that `form` asks for."""
    if form == "full":
        return matrix
    if form == "diag":
        return matrix.diagonal().unflatten(-1, (-1, num_outputs))
    points = torch.arange(len(matrix) // num_outputs, device=matrix.device)
    return matrix.unflatten(1, (-1, num_outputs)).unflatten(0, (-1, num_outputs))[points, :, points, :]


CHUNK_ENTRIES = 1_000_000
"""About how many numbers the largest matrix of one chunk of test points may have (8 MB in float64)."""

VARIANCE_SLACK = 1e-6
"""A variance below −1e-6 of the prior's is no round-off: the factorisation has failed."""


class Posterior(ABC):
    """A Gaussian process given data.

    `predict` describes the latent function unless it is asked for `noise`. Everything is chunked over the test points,
    except what is joint between them (`cov="full"` and `sample`).
    """

    num_outputs: int
    num_dims: int
    noise: Tensor | None
    """The covariance (p, p) of a new observation's noise; None where the posterior is of something never observed."""

    log_evidence: float
    """log p(Y) of the data at the hyperparameters of this posterior."""

    log_evidence_error: float = 0.0
    """Its standard error: zero unless the log-determinant was estimated."""

    @abstractmethod
    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """The mean (m, p) of the latent function and its covariance in the given form, for one chunk of points."""

    @abstractmethod
    def rows_at_once(self, form: str) -> int:
        """How many test points make one chunk."""

    @abstractmethod
    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """k random functions from the posterior, as a sequence: `draws[i](X)` is (m, p), `draws(X)` is (k, m, p).

        The same functions answer at every call, wherever they are evaluated.
        """

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """The posterior at the points X (m, d).

        Args:
            X: test inputs, an array or a tensor.
            cov: "none"; "diag" for standard deviations; "output" for the covariance between outputs at each point,
                (m, p, p); "full" for everything, (m·p, m·p).
            noise: describe a new observation y = f(x) + ε instead of the latent f(x). Where the noise was given for
                each entry of Y, that of a new observation is taken as its average over the observed entries.
        """
        form, X = check_form(cov), inputs(X, self.num_dims).double()
        size = len(X) if form == "full" else self.rows_at_once(form)
        means, covariances = zip(*(self.latent(part, form) for part in X.split(max(size, 1))), strict=True)
        mean = torch.cat(means)
        if noise and self.noise is None:
            raise OptionError("this process was not itself observed, so that there is no noise to add: noise=False.")
        if form == "none":
            return Prediction(mean)
        covariance = covariances[0] if form == "full" else torch.cat(covariances)
        return Prediction(mean, covariance + self._noise_of(len(X), form) if noise else covariance, form)

    def _noise_of(self, num_points: int, form: str) -> Tensor:
        if form == "diag":
            return self.noise.diagonal()
        return self.noise if form == "output" else torch.block_diag(*[self.noise] * num_points)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """k joint draws at the points X (m, d), (k, m, p). O((m·p)³): for many points use `sample_functions`."""
        k, prediction = check_integer("the number of draws", k), self.predict(X, "full", noise)
        values, vectors = torch.linalg.eigh(prediction.cov)
        root = vectors * values.clamp_min(0).sqrt()
        scores = normal((k, len(root)), random_state, root)
        return prediction.mean + (scores @ root.mT).unflatten(-1, prediction.mean.shape)


def seeds(random_state, count: int) -> list[int]:
    """Seeds of independent streams: those of one `random_state` are not those of another, shifted."""
    children = np.random.SeedSequence(as_seed(random_state)).spawn(count)
    return [int(child.generate_state(1)[0]) for child in children]


def normal(shape: tuple[int, ...], random_state, like: Tensor) -> Tensor:
    """Standard normal numbers in float64, reproducible from `random_state`, where `like` lives."""
    generator = torch.Generator().manual_seed(as_seed(random_state))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device)


def difference(prior: Tensor, explained: Tensor, num_outputs: int, form: str) -> Tensor:
    """prior − explained, with round-off below zero on the diagonal set to zero, and anything worse an error."""
    covariance = prior - explained
    variance, scale = (c if form == "diag" else _diagonal(c, num_outputs, form) for c in (covariance, prior))
    slack = VARIANCE_SLACK * scale.detach().amax() if scale.numel() else 0.0
    if not bool((variance.detach() >= -slack).all()):
        raise FactorizationError(
            f"a predictive variance came out as {variance.detach().min().item():.3g} where the prior has "
            f"{scale.detach().max().item():.3g}: the covariance matrix of the data is singular to working precision. Raise the "
            "noise, or shorten the lengthscales."
        )
    if form == "diag":
        return covariance.clamp_min(0)
    lift = (-variance).clamp_min(0)
    return covariance + torch.diag_embed(lift if form == "output" else lift.flatten())


def _diagonal(covariance: Tensor, num_outputs: int, form: str) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1) if form == "output" else of_form(covariance, num_outputs, "diag")
