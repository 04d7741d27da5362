"""The posterior averaged over draws of the hyperparameters: a mixture of S posteriors with equal weights.

    p(f | Y) = ∫ p(f | Y, θ) p(θ | Y) dθ ≈ mean_s p(f | Y, θ_s),    θ_s ~ p(θ | Y).

Means average, covariances follow the law of total covariance, quantiles are those of the mixture, and a random function
is one of a random component.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import methodcaller

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.noise import as_seed
from ovkgp.inference.data import inputs
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.mixture_prediction import MixturePrediction
from ovkgp.inference.posterior import Posterior, seeds
from ovkgp.inference.prediction import Prediction, require_form
from ovkgp.kernels.checks import whole_number


class MixturePosterior(Posterior):
    """S posteriors of the same outputs as one.

    Args:
        components: the S posteriors, a list, or any sequence that makes each anew when it is asked for
            (`ovkgp.inference.draws_conditioning.ConditionedDraws`): they are then used one at a time.

    `noise` is the average of the components' noise; `log_evidence` is the *mean over the draws* of log p(Y | θ_s), which is
    not the log of an averaged evidence.

    Cost: S times that of one component, in time; in memory S times the factors of a component where they are kept, one
    component's where they are made anew, and O(S m p) for predictions at m points.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.mixture_posterior import MixturePosterior
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> noisy = [OperatorValuedGP(RBFKernel(), noise=level).condition(X, X.sin()) for level in (0.01, 0.1)]
        >>> prediction = MixturePosterior(noisy).predict([[1.0], [9.0]], noise=True)
        >>> lower, upper = prediction.interval(0.95)
        >>> prediction.mean.shape, bool((lower < upper).all())
        (torch.Size([2, 1]), True)
    """

    def __init__(self, components: Sequence[Posterior]):
        if not len(components):
            raise InputError("a mixture needs at least one posterior.")
        self.parts = components
        first = components[0]
        self.num_outputs, self.num_dims = first.num_outputs, first.num_dims

    def __len__(self) -> int:
        return len(self.parts)

    # --- numbers ----------------------------------------------------------------------------------------------------

    @property
    def noise(self) -> Tensor | None:
        return self._facts[0]

    @property
    def log_evidence(self) -> float:
        return self._facts[1]

    @property
    def log_evidence_error(self) -> float:
        return self._facts[2]

    @cached_property
    def _facts(self) -> tuple[Tensor | None, float, float]:
        """Noise, log evidence and its error, in one pass over the components."""
        noises, evidences, errors = zip(
            *((part.noise, part.log_evidence, part.log_evidence_error) for part in self.parts), strict=True
        )
        noise = None if any(noise is None for noise in noises) else torch.stack(noises).mean(0)
        return noise, math.fsum(evidences) / len(evidences), math.hypot(*errors) / len(errors)

    # --- questions --------------------------------------------------------------------------------------------------

    def predict(self, X, cov: str = "diag", noise: bool = False) -> MixturePrediction:
        form, X = require_form(cov), inputs(X, self.num_dims).double()
        return MixturePrediction(part.predict(X, form, noise) for part in self.parts)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        mixture = MixturePrediction(Prediction(*part.latent(X, form), form) for part in self.parts)
        return mixture.mean, mixture._covariance

    def rows_at_once(self, form: str) -> int:
        return self.parts[0].rows_at_once(form)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """k joint draws at the points X (m, d), (k, m, p), each from one component: O((m·p)³) for each component drawn."""
        share = Shares(whole_number("the number of draws", k), len(self.parts), random_state)
        X = inputs(X, self.num_dims).double()
        values = X.new_empty(k, len(X), self.num_outputs)
        for index, places in share.places.items():
            seed = share.seeds[index]
            values[places] = self.parts[index].sample(X, len(places), noise=noise, random_state=seed).to(values)
        return values

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """k random functions, each from one component, equally many from each as far as k allows."""
        share = Shares(whole_number("the number of draws", k), len(self.parts), random_state)

        def draws_of(index: int) -> FunctionDraws:
            return self.parts[index].sample_functions(len(share.places[index]), random_state=share.seeds[index])

        # Components that are made anew give the same functions anew, from the same seeds.
        kept = {index: draws_of(index) for index in share.places} if getattr(self.parts, "are_kept", True) else {}

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = X.new_empty(len(index), len(X), self.num_outputs)
            owners, ranks = share.owners[index.numpy()], share.ranks[index.numpy()]
            for owner in np.unique(owners).tolist():
                rows = np.flatnonzero(owners == owner)
                own = torch.from_numpy(ranks[rows])
                values[rows] = (kept.get(owner) or draws_of(owner))._evaluate(X, own)
            return values

        return FunctionDraws(evaluate, k, self.num_dims)

    # --- vector fields ----------------------------------------------------------------------------------------------

    def potential(self, reference=None) -> MixturePosterior:
        """The average over the draws of the posteriors of g with f = ∇g; see `FieldViews.potential`."""
        return MixturePosterior(Views(self.parts, methodcaller("potential", reference)))

    def stream_function(self, reference=None) -> MixturePosterior:
        """The average over the draws of the posteriors of ψ with f = (∂₂ψ, −∂₁ψ); see `FieldViews.stream_function`."""
        return MixturePosterior(Views(self.parts, methodcaller("stream_function", reference)))

    def components(self) -> dict[str, MixturePosterior]:
        """The average over the draws of the two parts of a Helmholtz field; see `FieldViews.components`."""
        names = self.parts[0].components()
        return {name: MixturePosterior(Views(self.parts, partial(_part_of_field, name))) for name in names}


class Views(Sequence):
    """What each of some posteriors says of a process that is tied to its own.

    Args:
        parts: the posteriors.
        ask: from one of them to the posterior of the other process.
    """

    def __init__(self, parts: Sequence[Posterior], ask: Callable[[Posterior], Posterior]):
        self.parts, self.ask, self.are_kept = parts, ask, getattr(parts, "are_kept", True)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Posterior:
        return self.ask(self.parts[index])


def _part_of_field(name: str, posterior: Posterior) -> Posterior:
    return posterior.components()[name]


class Shares:
    """Which component makes which of k draws: equally many each, the rest at random, in random order.

    Args:
        num_draws: k.
        num_components: S.
        random_state: as in scikit-learn.

    Attributes:
        owners: the component (k,) of each draw.
        ranks: the how-manieth (k,) of its component's draws it is.
        places: component ↦ the places of its draws, where it has any.
        seeds: one for each component.

    Example:
        >>> from ovkgp.inference.mixture_posterior import Shares
        >>> sorted(len(places) for places in Shares(7, 3, random_state=0).places.values())
        [2, 2, 3]
    """

    def __init__(self, num_draws: int, num_components: int, random_state=None):
        seed = as_seed(random_state)
        self.seeds, rng = seeds(seed, num_components), np.random.default_rng(seed)
        whole, left = divmod(num_draws, num_components)
        some = rng.choice(num_components, left, replace=False)
        self.owners = rng.permutation(np.concatenate([np.repeat(np.arange(num_components), whole), some]))
        self.places = {int(owner): np.flatnonzero(self.owners == owner) for owner in np.unique(self.owners)}
        self.ranks = np.empty(num_draws, dtype=np.int64)
        for places in self.places.values():
            self.ranks[places] = np.arange(len(places))
