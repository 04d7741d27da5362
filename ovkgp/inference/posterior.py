"""What every posterior can be asked: predictions, joint samples, and whole random functions.

A posterior is frozen: it keeps copies of kernel, mean and noise as they were when the data were conditioned on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FactorisationError, OptionError
from ovkgp.features.noise import as_seed
from ovkgp.inference.data import inputs
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.prediction import Prediction, require_form
from ovkgp.inference.processes import of_form
from ovkgp.kernels.checks import whole_number

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
        form, X = require_form(cov), inputs(X, self.num_dims).double()
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
        k, prediction = whole_number("the number of draws", k), self.predict(X, "full", noise)
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
        raise FactorisationError(
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
