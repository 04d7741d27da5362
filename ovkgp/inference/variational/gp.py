"""A Gaussian process with any likelihood, by variational inference: q(w) = N(μ, S) over the weights of f = m + Φ w (+ residual).

Φ is a feature map (weight space) or made of inducing points. `fit` trains hyperparameters by the evidence lower bound, with
all rows or in batches, `evidence` is the bound at the best q, and `condition` gives a `Posterior` like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import FactorizationError, InputError, KernelTypeError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.gp import VARIANCES, check_inputs
from ovkgp.inference.likelihoods import Gaussian, Likelihood, make_likelihood
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.mean_noise import Model, OutputNoise, output_mean
from ovkgp.inference.model.observations import Observations, observations
from ovkgp.inference.model.parameter_vector import hyperparameters as named_hyperparameters
from ovkgp.inference.model.row_sample import Landmarks, choose_landmarks
from ovkgp.inference.posteriors.mixture import condition_on_draws
from ovkgp.inference.posteriors.posterior import FunctionDraws, KernelProcess, Posterior
from ovkgp.inference.posteriors.prediction import Prediction
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor
from ovkgp.inference.training.initialization import log_prior
from ovkgp.inference.training.maximize import maximise
from ovkgp.inference.variational.bound import VariationalBound
from ovkgp.inference.variational.families import WeightGaussian, check_family, family_rank, prior_weights
from ovkgp.inference.variational.inducing import InducingPoints, inducing_points
from ovkgp.inference.variational.posterior import VariationalPosterior
from ovkgp.inference.variational.training import (
    BatchTraining,
    CollapsedBound,
    initial_latents,
    latent_bounds,
    latent_sizes,
)
from ovkgp.kernels import num_outputs

NUM_INDUCING = 200
"""How many inducing points there are where neither a feature map nor inducing points were asked for."""
NUM_STEPS = 1500
"""How many steps a training in batches takes, where the number of epochs was left open and the data are not too many."""
NUM_LANDMARKS = 1000
"""How many inputs are remembered for a guarded variance."""


class VariationalGP(Module):
    """A Gaussian process with p outputs and any likelihood.

    Args:
        kernel: any kernel of `ovkgp.kernels` or GPyTorch; copied, in float64.
        likelihood: a name, a list of names (one an output) or a `Likelihood`; see `ovkgp.inference.likelihoods`.
        features: a feature map *of this kernel*, such as `ORFF(kernel)`.
        inducing: instead, the number of inducing points, chosen from the data, or the points (m, d); 200 by default.
        mean: of the latent function: "zero", "constant", "linear" or a GPyTorch mean.
        family: of q: "full" (an r × r covariance), "mean_field" (diagonal in the eigenbasis of the features, BT-76),
            "low_rank" (dense on the `rank` directions in which a diagonal would miss most, diagonal on the others), or
            "auto": full up to 1500 weights, mean field beyond.
        rank: of "low_rank".
        learn_inducing: whether the inducing points are trained.

    Attributes:
        q_: the weights, a `WeightGaussian`; no parameter of the module: it follows from data and hyperparameters.
        fit_report_: how the last training went.

    Cost: of a bound with n rows, O(n M² p) for a full q and Φ = φ ⊗ B with M waves or inducing points, O(n M q) for mean
    field, O(n p r²) for other maps with r weights, and r³; memory for the features of at most 2·10⁷ numbers.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import VariationalGP
        >>> from ovkgp.kernels import DecomposableKernel
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.cos()], -1) + 0.1 * (50 * X).sin()
        >>> Y[7, 0] = 30.0  # an outlier
        >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=2)
        >>> gp = VariationalGP(kernel, "student_t", inducing=8).fit(X, Y, tolerance=1e-3, random_state=0)
        >>> bool((gp.predict(X).mean[7, 0] - X[7, 0].sin()).abs() < 0.2)
        True
    """

    fit_report_: FitReport | None = None
    q_: WeightGaussian | None = None

    def __init__(
        self,
        kernel: Kernel,
        likelihood: str | list | Likelihood = "gaussian",
        features: FeatureMap | None = None,
        inducing=None,
        mean: str | Mean = "constant",
        family: str = "auto",
        rank: int | None = None,
        learn_inducing: bool = False,
    ):
        super().__init__()
        _require_parts(kernel, features, inducing)
        check_family(family, rank)
        self.kernel, self.features, mean, likelihood = deepcopy((kernel, features, mean, likelihood))
        self.num_outputs = num_outputs(self.kernel)
        self.mean = output_mean(mean, self.num_outputs)
        self.likelihood = make_likelihood(likelihood, self.num_outputs)
        self.family, self.rank, self.learn_inducing = family, rank, learn_inducing
        self.inducing = NUM_INDUCING if features is None and inducing is None else inducing
        self._seen: tuple[Landmarks, Tensor | None, float] | None = None
        self.double()

    @property
    def noise_model(self) -> OutputNoise | None:
        """The noise of a Gaussian likelihood; None for another."""
        return self.likelihood.noise_model if isinstance(self.likelihood, Gaussian) else None

    @property
    def noise(self) -> Tensor | None:
        """Σ of a Gaussian likelihood, as a tensor (), (p,) or (p, p); None for another."""
        return None if self.noise_model is None else self.noise_model.value

    def frozen(self) -> VariationalGP:
        """A copy that nobody trains."""
        return deepcopy(self).requires_grad_(False)

    def elbo(self, X, Y, noise=None) -> Tensor:
        """The bound at the present q (the prior, before any training), differentiable in the hyperparameters.

        Args:
            X: inputs (n, d).
            Y: outputs (n, p), NaN where missing.
            noise: known variances (n, p), for a Gaussian likelihood.
        """
        bound = self._bound(self.observe(X, Y, noise))
        return bound.value(self.start_weights(bound))

    def log_evidence(self, X, Y, noise=None) -> Tensor:
        """The largest bound over q: at most log p(Y), and equal to it for a Gaussian likelihood and a full q over the weights
        of a feature map. Differentiable once."""
        return self.evidence(X, Y, noise)()

    def evidence(self, X, Y, noise=None) -> CollapsedBound:
        """`log_evidence` as a function of the present hyperparameters; each call begins at the q of the last."""
        return CollapsedBound(self, self.observe(X, Y, noise))

    def condition(
        self,
        X,
        Y,
        hyperparameters=None,
        noise=None,
        *,
        variance: str = "features",
        num_landmarks: int = NUM_LANDMARKS,
        max_draws: int = 200,
    ) -> Posterior:
        """The posterior given data, at the present hyperparameters and the best q, or averaged over draws of them.

        Args:
            X, Y, noise: as for `elbo`.
            hyperparameters: None, for the present ones; or draws, as for `OperatorValuedGP.condition`: the answer is then a
                `MixturePosterior`, with a best q for each draw.
            variance: with a feature map, "features" for the variance of its weights alone, "guarded" for one that never
                falls below the exact kernel's given `num_landmarks` of the inputs. Inducing points need no guard.
            max_draws: more draws are thinned to so many.
        """
        copy, options = deepcopy(self), {"variance": variance, "num_landmarks": num_landmarks}
        data = copy.observe(X, Y, noise)
        if hyperparameters is None:
            copy._settle(data, num_landmarks)
            return copy.posterior(**options)
        data = data.clone()
        if data.noise is not None:  # known for each entry, so that nobody draws the model's
            copy.noise_model.requires_grad_(False)
        if isinstance(copy.features, InducingPoints):  # nor where an approximation is good
            copy.features.points.requires_grad_(False)
        condition = partial(VariationalGP.condition, X=data.X, Y=data.Y, noise=data.noise, **options)
        return condition_on_draws(copy, hyperparameters, condition, max_draws=max_draws)

    def fit(
        self,
        X,
        Y,
        noise=None,
        *,
        batch_size: int | None = None,
        start: str = "auto",
        max_iter: int = 200,
        tolerance: float = 1e-5,
        epochs: int | None = None,
        learning_rate: float = 0.03,
        natural_step: float = 0.1,
        callback: Callable[[VariationalGP], None] | None = None,
        random_state=None,
        verbose: int = 0,
    ) -> VariationalGP:
        """Train hyperparameters and q, in place, to the largest bound (plus log-priors, where priors are registered).

        Args:
            X, Y, noise: as for `elbo`.
            batch_size: None climbs the collapsed bound of all rows by L-BFGS; a number alternates natural steps of q and
                steps of Adam, each from so many random rows.
            start: "data" starts from the data, "current" from the present values, "auto" from the better of the two
                (from the data, in batches).
            max_iter, tolerance: of L-BFGS; the tolerance is per observed entry.
            epochs, learning_rate, natural_step: of the training in batches: passes over the data (None for as many as make
                1500 steps, at least 3), the rate of Adam and the step ρ of q; rates fall to a twentieth in the end, and q is
                then brought to its best for all rows if their features are at most 2·10⁷ numbers.
            callback: called with the model after each epoch of a training in batches.
            random_state: of the inducing points and of the order of the rows.
            verbose: 0 is quiet, 1 shows a progress bar.

        Ctrl-C keeps the best values so far (the latest, in batches), sets `fit_report_.interrupted`, warns and returns.
        """
        _require_training(start, epochs, learning_rate, natural_step)
        if start != "current" and isinstance(self.features, InducingPoints) and isinstance(self.inducing, int):
            self.features = None  # they belong to other data
        data = self.observe(X, Y, noise, random_state=random_state)
        options = {"bounds": latent_bounds(self, data), "sizes": latent_sizes(self, data)}
        starts = initial_latents(self, data, start)
        if batch_size is None:
            collapsed = CollapsedBound(self, data, turning=True)
            with self.naming_failures():
                self.fit_report_ = maximise(
                    self,
                    lambda: collapsed() + log_prior(self),
                    starts=starts,
                    max_iter=max_iter,
                    tolerance=tolerance,
                    scale=data.num_observed,
                    verbose=verbose,
                    **options,
                )
            self._settle(data)
        else:
            size = check_integer("batch_size", batch_size)
            epochs = max(3, math.ceil(NUM_STEPS * size / data.num_rows)) if epochs is None else epochs
            self.load_state_dict(starts[0], strict=False)
            training = BatchTraining(
                *(self, data, size, epochs, learning_rate, natural_step),
                callback=callback and partial(self._show, callback, data),
                random_state=random_state,
                verbose=verbose,
                **options,
            )
            with self.naming_failures():
                self.fit_report_ = training.run()
            self._remember(data)
        self.fit_report_.num_rows, self.fit_report_.num_observed = data.num_rows, data.num_observed
        self.fit_report_.log_evidence = self._seen[2]
        return self

    def posterior(self, variance: str = "features", num_landmarks: int = NUM_LANDMARKS) -> VariationalPosterior:
        """The posterior of the data of `fit`; `variance` and `num_landmarks` (here at most 1000) as for `condition`."""
        if self._seen is None:
            raise OptionError("the model has not seen data: call fit(X, Y) first, or condition(X, Y).")
        if variance not in VARIANCES:
            raise OptionError(f"variance must be one of {', '.join(map(repr, VARIANCES))}, got {variance!r}.")
        (found, noise, elbo), model = self._seen, self.frozen()
        guard = None
        if variance == "guarded" and not isinstance(self.features, InducingPoints) and self.features.kernel is not None:
            guard = VarianceFloor(model.kernel, found.X[:num_landmarks], found.observed[:num_landmarks])
        process = KernelProcess(model.kernel, self.num_outputs)
        parts = model.features, self.q_, model.mean, model.likelihood, noise, found.X.shape[1]
        return VariationalPosterior(process, *parts, guard=guard, elbo=elbo)

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """`posterior().predict`: the latent function at X (m, d), or with `noise` a new observation."""
        return self.posterior().predict(X, cov, noise)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """`posterior().sample`: k joint draws (k, m, p) at X (m, d)."""
        return self.posterior().sample(X, k, noise=noise, random_state=random_state)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """`posterior().sample_functions`: k random functions."""
        return self.posterior().sample_functions(k, random_state=random_state)

    def start(self, X, Y, kernel: bool = True) -> VariationalGP:
        """Set mean, likelihood and, unless `kernel` is False, kernel hyperparameters from the data, without training."""
        initial_latents(self, self.observe(X, Y), "data", kernel)
        return self

    def settle(self, X, Y, noise=None) -> VariationalGP:
        """Bring q to its best for these data at the present hyperparameters, in place, and remember what `posterior` needs."""
        self._settle(self.observe(X, Y, noise))
        return self

    def adopt(self, other: VariationalGP) -> None:
        """Take the hyperparameters of another model of the same kernel structure, mean and likelihood; not its q."""
        for part in ("kernel", "mean", "likelihood"):
            getattr(self, part).load_state_dict(getattr(other, part).state_dict())

    def start_weights(self, bound: VariationalBound) -> WeightGaussian:
        """The q to begin with: the last one where it fits the map, else the prior."""
        num_weights = bound.probe().num_weights
        rank = family_rank(self.family, self.rank, num_weights)
        if self.q_ is None or (self.q_.num_weights, self.q_.rank) != (num_weights, rank):
            self.q_ = prior_weights(num_weights, rank, bound.data.X.device)
        return self.q_

    def observe(self, X, Y, noise=None, every_output: bool = True, random_state=0) -> Observations:
        """Data for this model, checked, in float64; inducing points are chosen from them where there are none yet."""
        data = observations(X, Y, self.num_outputs, noise, every_output=every_output).double()
        self.likelihood.check(data.Y)
        if data.noise is not None and self.noise_model is None:
            raise InputError("known noise belongs to a Gaussian likelihood; leave noise=None with another.")
        self.to(data.X.device)
        self.mean.see(data.X.shape[1])
        check_inputs(self, data.X)
        if self.features is None:
            points = inducing_points(self.inducing, data.X, random_state)
            self.features = InducingPoints(self.kernel, points, self.learn_inducing)
        return data

    @contextmanager
    def naming_failures(self):
        """A failed factorisation says at which hyperparameters it failed."""
        try:
            yield
        except FactorizationError as error:
            values = {**named_hyperparameters(self.kernel), **self.likelihood.variables()}
            listed = "; ".join(f"{name} = {value.squeeze().tolist()}" for name, value in values.items())
            raise FactorizationError(f"{error} This was at {listed}.") from error

    def _bound(self, data: Observations) -> VariationalBound:
        return VariationalBound(self.features, self.mean, self.likelihood, data)

    @torch.no_grad()
    def _settle(self, data: Observations, num_landmarks: int = NUM_LANDMARKS) -> None:
        """Bring q to its best, and remember what a posterior needs."""
        with self.naming_failures():
            CollapsedBound(self, data).settle()
        self._remember(data, num_landmarks=num_landmarks)

    def _show(self, callback: Callable[[VariationalGP], None], data: Observations, elbo: float) -> None:
        """Call back with a model that can predict."""
        self._remember(data, elbo)
        callback(self)

    @torch.no_grad()
    def _remember(self, data: Observations, elbo: float | None = None, num_landmarks: int = NUM_LANDMARKS) -> None:
        noise = None
        if self.noise_model is not None:
            noise = Model(self.kernel, self.mean, self.noise_model).new_noise(data)
        bound = self._bound(data)
        elbo = float(bound.value(self.start_weights(bound))) if elbo is None else elbo
        self._seen = choose_landmarks(data, num_landmarks), noise, elbo


def _require_parts(kernel: Kernel, features: FeatureMap | None, inducing) -> None:
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"expected a kernel, got {type(kernel).__name__}.")
    if len(kernel.batch_shape):
        raise KernelTypeError(f"a kernel with batch shape {tuple(kernel.batch_shape)} is several models; give one.")
    if features is not None and inducing is not None:
        raise OptionError("give a feature map or inducing points, not both.")
    if features is not None and features.kernel is not kernel:
        raise OptionError(
            "the feature map belongs to another kernel; make it from this one: VariationalGP(kernel, features=ORFF(kernel))."
        )


def _require_training(start: str, epochs: int | None, learning_rate: float, natural_step: float) -> None:
    if start not in ("auto", "data", "current"):
        raise OptionError(f'start must be "auto", "data" or "current", got {start!r}.')
    if epochs is not None:
        check_integer("epochs", epochs)
    if not learning_rate > 0:
        raise OptionError(f"learning_rate must be positive, got {learning_rate}.")
    if not 0 < natural_step <= 1:
        raise OptionError(f"natural_step lies in (0, 1], got {natural_step}.")
