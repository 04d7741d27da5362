"""A Gaussian process with any likelihood: variational inference of the weights w of f = m + Φ w (+ residual).

Φ is a feature map (weight space) or given by inducing points. `fit` trains hyperparameters on the evidence lower bound,
with all rows or in batches, `evidence` is the bound at the best q, and `condition` returns a `Posterior`.
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

from ovkgp.checks import check_integer, check_one_of, check_positive
from ovkgp.exceptions import FactorizationError, InputError, KernelTypeError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.gp import VARIANCES, check_inputs
from ovkgp.inference.likelihoods import Gaussian, Likelihood, make_likelihood, register_likelihood_priors
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.mean_noise import Model, OutputNoise, make_output_mean
from ovkgp.inference.model.observations import Observations, validate_observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.model.parameter_vector import hyperparameters as named_hyperparameters
from ovkgp.inference.model.row_sample import Landmarks, choose_landmarks
from ovkgp.inference.posteriors.mixture import condition_on_draws
from ovkgp.inference.posteriors.posterior import FunctionDraws, KernelProcess, Posterior
from ovkgp.inference.posteriors.prediction import Prediction
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor
from ovkgp.inference.training.initial_grid import grid_around
from ovkgp.inference.training.initialization import initialize, register_data_priors, set_initial_values
from ovkgp.inference.training.maximize import maximize
from ovkgp.inference.training.priors import LogPrior
from ovkgp.inference.variational.bound import VariationalBound
from ovkgp.inference.variational.families import WeightGaussian, check_family, family_rank, prior_weights
from ovkgp.inference.variational.inducing import InducingPoints, inducing_points
from ovkgp.inference.variational.posterior import VariationalPosterior
from ovkgp.inference.variational.training import BatchTraining, CollapsedBound
from ovkgp.kernels import num_outputs
from ovkgp.kernels.protocol import check_kernel

DEFAULT_NUM_INDUCING = 200  # number of inducing points if neither a feature map nor inducing points are given
DEFAULT_BATCH_STEPS = 1500
"""Number of steps of a training in batches if the number of epochs is not given (more if that is less than 3
epochs)."""
DEFAULT_NUM_LANDMARKS = 1000  # number of inputs stored for a guarded variance


class VariationalGP(Module):
    """Gaussian process with p outputs and any likelihood, by variational inference.

    Parameters
    ----------
    kernel : Kernel
        Kernel of `ovkgp.kernels` or GPyTorch; copied, in float64.
    likelihood : str, list or Likelihood, default="gaussian"
        Name, list of names (one per output) or `Likelihood`; see `ovkgp.inference.likelihoods`.
    features : FeatureMap or None, default=None
        Feature map *of this kernel*, such as `ORFF(kernel)`.
    inducing : int, array-like of shape (m, d) or None, default=None
        Number of inducing points, chosen from the data, or the points. Must be None with `features`. If both are None,
        200.
    mean : {"zero", "constant", "linear"} or Mean, default="constant"
        Mean of the latent function.
    family : {"auto", "full", "mean_field", "low_rank"}, default="auto"
        Family of q: "full" (an r × r covariance), "mean_field" (diagonal in the eigenbasis of the features), "low_rank"
        (dense on the `rank` directions in which a diagonal would lose most, diagonal on the others), or "auto": full up
        to 1500 weights, mean field beyond.
    rank : int or None, default=None
        Number of dense directions. Required if `family="low_rank"`, else it must be None.
    learn_inducing : bool, default=False
        Whether to train the inducing points.

    Attributes
    ----------
    q_ : WeightGaussian or None
        Distribution of the weights. It follows from data and hyperparameters and is not a parameter of the module.
    fit_report_ : FitReport or None
        Report of the last training.

    Notes
    -----
    Complexity: a bound with n rows takes O(n M² p) for a full q and Φ = φ ⊗ B with M scalar features or inducing
    points, O(n M q) for mean field, O(n p r²) for other maps with r weights, plus O(r³); the memory of at most 2·10⁷
    feature values.

    References
    ----------
    BT-76 (mean field in the eigenbasis)

    Examples
    --------
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
    observations_: Observations | None = None

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
        _check_kernel_and_features(kernel, features, inducing)
        check_family(family, rank)
        self.kernel, self.features, mean, likelihood = deepcopy((kernel, features, mean, likelihood))
        self.num_outputs = num_outputs(self.kernel)
        self.mean = make_output_mean(mean, self.num_outputs)
        self.likelihood = make_likelihood(likelihood, self.num_outputs)
        self.family, self.rank, self.learn_inducing = family, rank, learn_inducing
        self.inducing = DEFAULT_NUM_INDUCING if features is None and inducing is None else inducing
        self._fitted_data: tuple[Landmarks, Tensor | None, float] | None = None
        self.double()

    @property
    def noise_model(self) -> OutputNoise | None:
        """Noise of a Gaussian likelihood; None for any other likelihood."""
        return self.likelihood.noise_model if isinstance(self.likelihood, Gaussian) else None

    @property
    def noise(self) -> Tensor | None:
        """Σ of a Gaussian likelihood, as a tensor (), (p,) or (p, p); None for any other likelihood."""
        return None if self.noise_model is None else self.noise_model.value

    def frozen(self) -> VariationalGP:
        """Return a copy without trained parameters.

        Returns
        -------
        VariationalGP
            Copy for predictions.
        """
        return deepcopy(self).requires_grad_(False)

    def elbo(self, X, Y, noise=None) -> Tensor:
        """Compute the bound at the current q (the prior, before any training), differentiable in the hyperparameters.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        Y : array-like of shape (n, p)
            Outputs, NaN where missing.
        noise : array-like of shape (n, p) or None, default=None
            Known noise variances, for a Gaussian likelihood.

        Returns
        -------
        Tensor of shape ()
            The evidence lower bound.
        """
        bound = self._bound(self.observe(X, Y, noise))
        return bound.value(self.initial_weights(bound))

    def log_evidence(self, X, Y, noise=None) -> Tensor:
        """Compute the maximum of the bound over q, differentiable once.

        It is at most log p(Y), with equality for a Gaussian likelihood and a full q over the weights of a feature map.
        Parameters are those of `elbo`.

        Parameters
        ----------
        X, Y, noise
            As for `elbo`.

        Returns
        -------
        Tensor, scalar
            Bound on log p(Y).
        """
        return self.evidence(X, Y, noise)()

    def evidence(self, X, Y, noise=None) -> CollapsedBound:
        """Return `log_evidence` as a function of the current hyperparameters; each call starts at the q of the last.

        Parameters
        ----------
        X, Y, noise
            As for `elbo`.

        Returns
        -------
        CollapsedBound
            Bound as a function without arguments.
        """
        return CollapsedBound(self, self.observe(X, Y, noise))

    def condition(
        self,
        X,
        Y,
        hyperparameters=None,
        noise=None,
        *,
        variance: str = "features",
        num_landmarks: int = DEFAULT_NUM_LANDMARKS,
        max_draws: int = 200,
    ) -> Posterior:
        """Compute the posterior given data, at the best q for the current hyperparameters or for draws of them.

        Parameters
        ----------
        X, Y, noise : array-like
            Data, as for `elbo`.
        hyperparameters : optional
            Draws of hyperparameters, as for `OperatorValuedGP.condition`. If None, the current ones are used.
        variance : {"features", "guarded"}, default="features"
            With a feature map, "features" is the variance of its weights; "guarded" is never below that of the exact
            kernel given `num_landmarks` of the inputs. Ignored with inducing points, which do not underestimate the
            variance.
        num_landmarks : int, default=1000
            Number of inputs for a guarded variance.
        max_draws : int, default=200
            Maximum number of draws; more are thinned.

        Returns
        -------
        Posterior
            A `VariationalPosterior`; a `MixturePosterior` with one q per draw if `hyperparameters` are given.
        """
        copy, options = deepcopy(self), {"variance": variance, "num_landmarks": num_landmarks}
        data = copy.observe(X, Y, noise)
        if hyperparameters is None:
            copy._fit_q(data, num_landmarks)
            return copy.posterior(**options)
        data = data.clone()
        if data.noise is not None:  # known per entry: the noise of the model is not sampled
            copy.noise_model.requires_grad_(False)
        if isinstance(copy.features, InducingPoints):  # these are no hyperparameters
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
        init: str = "auto",
        restarts: int = 1,
        max_iter: int = 200,
        tolerance: float = 1e-5,
        epochs: int | None = None,
        learning_rate: float = 0.03,
        natural_step: float = 0.1,
        callback: Callable[[VariationalGP], None] | None = None,
        random_state=None,
        verbose: int = 0,
    ) -> VariationalGP:
        """Train hyperparameters and q, in place, by maximizing the bound plus the log priors that are registered.

        Parameters
        ----------
        X, Y, noise : array-like
            Data, as for `elbo`.
        batch_size : int or None, default=None
            If None, maximize the collapsed bound of all rows by L-BFGS. Otherwise alternate natural steps of q and
            steps of Adam, each on this number of random rows.
        init : {"auto", "data", "current"}, default="auto"
            Initial values: computed from the data, the current ones, or the better of both (from the data if in
            batches).
        restarts : int, default=1
            Number of optimization runs, as for `OperatorValuedGP.fit`. Ignored in batches.
        max_iter, tolerance : int and float, default=200 and 1e-5
            Maximum number of L-BFGS iterations, and their tolerance per observed entry.
        epochs : int or None, default=None
            Number of passes over the data in batches. If None, as many as make 1500 steps, at least 3.
        learning_rate : float, default=0.03
            Learning rate of Adam; it decays to a twentieth, as does `natural_step`.
        natural_step : float, default=0.1
            Step size ρ of q in (0, 1]. At the end q is improved on all rows if their features are at most 2·10⁷ values.
        callback : callable or None, default=None
            Function called with the model after each epoch of a training in batches.
        random_state : optional
            Seed of the inducing points and of the order of the rows.
        verbose : int, default=0
            If 1, show a progress bar.

        Returns
        -------
        VariationalGP
            The model itself.

        Notes
        -----
        Ctrl-C keeps the best values so far (the latest, in batches), sets `fit_report_.interrupted`, warns and returns.
        """
        _check_training_options(init, epochs, learning_rate, natural_step)
        if init != "current" and isinstance(self.features, InducingPoints) and isinstance(self.inducing, int):
            self.features = None  # they belong to other data
        data = self.observe(X, Y, noise, random_state=random_state)
        initialization = initialize(self, data)
        options = {"bounds": initialization.bounds, "scales": initialization.scales}
        initial_states = initialization.initial_states(self, data, init)
        if batch_size is None:
            collapsed, log_prior = CollapsedBound(self, data, update_basis=True), LogPrior(self)
            with self.report_hyperparameters_on_failure():
                options |= {"initial_states": initial_states, "scale": data.num_observed, "verbose": verbose}
                options |= {"restarts": restarts, "max_iter": max_iter, "tolerance": tolerance}
                if init != "current":
                    vector = ParameterVector(self, initialization.bounds, initialization.scales)
                    options["initial_points"] = grid_around(self, data, vector, initialization)
                self.fit_report_ = maximize(self, lambda: collapsed() + log_prior(), **options)
            self._fit_q(data)
        else:
            size = check_integer("batch_size", batch_size)
            epochs = max(3, math.ceil(DEFAULT_BATCH_STEPS * size / data.num_rows)) if epochs is None else epochs
            self.load_state_dict(initial_states[0], strict=False)
            options |= {"callback": callback and partial(self._call_back, callback, data), "verbose": verbose}
            sizes = size, epochs, learning_rate, natural_step
            training = BatchTraining(self, data, *sizes, random_state=random_state, **options)
            with self.report_hyperparameters_on_failure():
                self.fit_report_ = training.run()
            self._store_fitted_data(data)
        self.fit_report_.num_rows, self.fit_report_.num_observed = data.num_rows, data.num_observed
        self.fit_report_.log_evidence = self._fitted_data[2]
        return self

    def posterior(self, variance: str = "features", num_landmarks: int = DEFAULT_NUM_LANDMARKS) -> VariationalPosterior:
        """Return the posterior of the data of `fit`; options as for `condition`, with at most 1000 landmarks.

        Parameters
        ----------
        variance : {"features", "guarded"}, default="features"
            Variance far from the data, as for `condition`.
        num_landmarks : int, default=1000
            Number of training rows that bound the variance from below.

        Returns
        -------
        VariationalPosterior
            Posterior with the fitted q.
        """
        if self._fitted_data is None:
            raise OptionError("The model has no data. Call fit(X, Y) or condition(X, Y).")
        check_one_of("variance", variance, VARIANCES)
        (landmarks, noise, elbo), model = self._fitted_data, self.frozen()
        variance_floor = None
        if variance == "guarded" and not isinstance(self.features, InducingPoints) and self.features.kernel is not None:
            chosen = landmarks.X[:num_landmarks], landmarks.observed[:num_landmarks]
            variance_floor = VarianceFloor(model.kernel, *chosen)
        process = KernelProcess(model.kernel, self.num_outputs)
        parts = model.features, self.q_, model.mean, model.likelihood, noise, landmarks.X.shape[1]
        return VariationalPosterior(process, *parts, variance_floor=variance_floor, elbo=elbo)

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """Predict the latent function at X (m, d), or with `noise` a new observation, by `posterior().predict`.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            Inputs.
        cov : {"none", "diag", "output", "full"}, default="diag"
            Form of the covariance.
        noise : bool, default=False
            Whether to predict new observations.

        Returns
        -------
        Prediction
            Mean and covariance.
        """
        return self.posterior().predict(X, cov, noise)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, p) at X (m, d) by `posterior().sample`.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            Inputs.
        k : int, default=1
            Number of draws.
        noise : bool, default=False
            Whether to draw new observations.
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        Tensor of shape (k, m, p)
            Draws.
        """
        return self.posterior().sample(X, k, noise=noise, random_state=random_state)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """Draw k random functions by `posterior().sample_functions`.

        Parameters
        ----------
        k : int, default=1
            Number of functions.
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        FunctionDraws
            Functions that can be evaluated at any points.
        """
        return self.posterior().sample_functions(k, random_state=random_state)

    def initialize(self, X=None, Y=None, *, kernel: bool = True, **values) -> VariationalGP:
        """Set mean, likelihood and, if `kernel`, kernel hyperparameters from the data, without training; without data, set
        `values` by qualified name as `gpytorch.Module.initialize` does."""
        if X is None:
            return super().initialize(**values)
        set_initial_values(self, self.observe(X, Y), kernel=kernel)
        return self

    def fit_variational_distribution(self, X, Y, noise=None) -> VariationalGP:
        """Fit q to data (as for `elbo`) at the current hyperparameters, in place; `posterior` then uses them.

        Parameters
        ----------
        X, Y, noise
            As for `elbo`.

        Returns
        -------
        self : VariationalGP
            Model with the fitted q.
        """
        self._fit_q(self.observe(X, Y, noise))
        return self

    def copy_hyperparameters_from(self, other: VariationalGP) -> None:
        """Copy the hyperparameters of another model with the same kernel structure, mean and likelihood; not its q.

        Parameters
        ----------
        other : VariationalGP
            Model with the values.
        """
        for part in ("kernel", "mean", "likelihood"):
            getattr(self, part).load_state_dict(getattr(other, part).state_dict())

    def initial_weights(self, bound: VariationalBound) -> WeightGaussian:
        """Return the initial q: the last one if it fits the map, else the prior.

        Parameters
        ----------
        bound : VariationalBound
            Bound of the data.

        Returns
        -------
        WeightGaussian
            Distribution of the weights.
        """
        num_weights = bound.probe().num_weights
        rank = family_rank(self.family, self.rank, num_weights)
        if self.q_ is None or (self.q_.num_weights, self.q_.rank) != (num_weights, rank):
            self.q_ = prior_weights(num_weights, rank, bound.data.X.device)
        return self.q_

    def observe(self, X, Y, noise=None, every_output: bool = True, random_state=0) -> Observations:
        """Validate data for this model, in float64; inducing points are chosen from them if there are none yet.

        Parameters
        ----------
        X, Y, noise
            As for `elbo`.
        every_output : bool, default=True
            Whether every output must have observations.
        random_state : int, default=0
            Seed of the choice of inducing points.

        Returns
        -------
        Observations
            Checked data.
        """
        data = validate_observations(X, Y, self.num_outputs, noise, every_output=every_output).double()
        self.likelihood.check(data.Y)
        if data.noise is not None and self.noise_model is None:
            raise InputError("Known noise is supported with a Gaussian likelihood only. Use noise=None.")
        self.to(data.X.device)
        self.mean.set_num_dims(data.X.shape[1])
        check_inputs(self, data.X)
        if self.features is None:
            points = inducing_points(self.inducing, data.X, random_state)
            self.features = InducingPoints(self.kernel, points, self.learn_inducing)
        return data

    def register_priors(self, data: Observations) -> None:
        """Register a weakly informative prior on each trained parameter that has none, in the units of the data.

        Parameters
        ----------
        data : Observations
            Data whose units the priors have.
        """
        register_data_priors(self, data.X, data.Y)
        register_likelihood_priors(self.likelihood, data.Y)

    @contextmanager
    def report_hyperparameters_on_failure(self):
        """Append the hyperparameters to the message of a failed factorization.

        Returns
        -------
        context manager
            Context of a factorization.
        """
        try:
            yield
        except FactorizationError as error:
            values = {**named_hyperparameters(self.kernel), **self.likelihood.variables()}
            raise FactorizationError(str(error), values) from error

    def _bound(self, data: Observations) -> VariationalBound:
        return VariationalBound(self.features, self.mean, self.likelihood, data)

    @torch.no_grad()
    def _fit_q(self, data: Observations, num_landmarks: int = DEFAULT_NUM_LANDMARKS) -> None:
        """Maximize the bound over q, and store the data that a posterior needs."""
        with self.report_hyperparameters_on_failure():
            CollapsedBound(self, data).maximize_over_q()
        self._store_fitted_data(data, num_landmarks=num_landmarks)

    def _call_back(self, callback: Callable[[VariationalGP], None], data: Observations, elbo: float) -> None:
        """Call back with a model that can predict."""
        self._store_fitted_data(data, elbo)
        callback(self)

    @torch.no_grad()
    def _store_fitted_data(
        self, data: Observations, elbo: float | None = None, num_landmarks: int = DEFAULT_NUM_LANDMARKS
    ) -> None:
        noise = None
        if self.noise_model is not None:
            noise = Model(self.kernel, self.mean, self.noise_model).predictive_noise(data)
        bound = self._bound(data)
        elbo = float(bound.value(self.initial_weights(bound))) if elbo is None else elbo
        self._fitted_data = choose_landmarks(data, num_landmarks), noise, elbo
        self.observations_ = data


def _check_kernel_and_features(kernel: Kernel, features: FeatureMap | None, inducing) -> None:
    check_kernel(kernel)
    if len(kernel.batch_shape):
        raise KernelTypeError(f"kernel must have an empty batch shape, got {tuple(kernel.batch_shape)}.")
    if features is not None and inducing is not None:
        raise OptionError("features and inducing are not supported together. Give one of them.")
    if features is not None and features.kernel is not kernel:
        raise OptionError(
            "features must be made from this kernel, got those of another. Use VariationalGP(kernel, features=ORFF(kernel))."
        )


def _check_training_options(init: str, epochs: int | None, learning_rate: float, natural_step: float) -> None:
    check_one_of("init", init, ("auto", "data", "current"))
    if epochs is not None:
        check_integer("epochs", epochs)
    check_positive("learning_rate", learning_rate)
    if not 0 < natural_step <= 1:
        raise OptionError(f"natural_step must lie in (0, 1], got {natural_step}.")
