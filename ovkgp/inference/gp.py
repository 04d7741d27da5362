"""A Gaussian process with an operator-valued kernel: kernel + mean + noise (+ feature map), and three verbs.

`fit` trains the hyperparameters by evidence, `log_evidence` is that evidence, differentiable, and `condition` gives the
posterior. The linear algebra is chosen from the structure at hand (`ovkgp.inference.strategies.selection`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.exceptions import FactorizationError, FitWarning, InputError, KernelTypeError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.model.mean_noise import Model, OutputNoise, output_mean
from ovkgp.inference.model.observations import Observations, as_floating, observations
from ovkgp.inference.model.parameter_vector import hyperparameters as named_hyperparameters
from ovkgp.inference.model.row_sample import training_subset
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.mixture import condition_on_draws
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.selection import (
    check_strategy,
    select_strategy,
    strategy_for_statistics,
    streaming_strategy,
)
from ovkgp.inference.training.initialization import (
    log_prior,
    parameter_bounds,
    parameter_scales,
    problem_name,
    start_from_data,
    starting_points,
)
from ovkgp.inference.training.maximize import FitReport, can_train_independently, maximise, train_independently
from ovkgp.kernels import ManifoldKernel, num_outputs

VARIANCES = ("features", "guarded")
GATHERED = (Statistics, OutputStatistics)
WARM_ROWS, WARMED_TOLERANCE = 400, 3
"""More than twice so many rows (observed entries, on the dense road) are preceded by a training on a quarter of them; the
training on all then starts close to its end, and stops at a tolerance larger by this factor."""


class OperatorValuedGP(Module):
    """A Gaussian process with p outputs.

    Args:
        kernel: any kernel of `ovkgp.kernels` or GPyTorch; copied, in float64.
        mean: "zero", "constant" (one an output), "linear" or a GPyTorch mean.
        noise: "shared", "per_output" or "full" (trained), or a variance, (p,) or (p, p) (fixed).
        features: a feature map *of this kernel*, such as `ORFF(kernel)`, for data of any size; None for the exact kernel.
        strategy: "auto", or one of "kronecker", "dense", "iterative", "features" to insist on.

    Trained and predicted values live in the units of the data as given. A noise known for each entry of Y is passed to
    `fit`, `condition` and `log_evidence` as `noise=`, an (n, p) array of variances, and replaces the model's.

    Cost: see `ovkgp.inference.strategies.selection`; n³ + p³ for a separable kernel, (observed entries)³ for others, n M² for a feature
    map with M waves.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.kernels import DecomposableKernel
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.cos()], -1)
        >>> Y[5:15, 0] = torch.nan  # missing outputs
        >>> gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2, rank=2)).fit(X, Y)
        >>> prediction = gp.condition(X, Y).predict([[1.5], [2.0]])
        >>> prediction.mean.shape, bool((prediction.std < 0.1).all())
        (torch.Size([2, 2]), True)
    """

    fit_report_: FitReport | None = None
    """How the last training went."""

    def __init__(
        self,
        kernel: Kernel,
        mean: str | Mean = "constant",
        noise="per_output",
        features: FeatureMap | None = None,
        strategy: str = "auto",
    ):
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise KernelTypeError(f"expected a kernel, got {type(kernel).__name__}.")
        if features is not None and features.kernel is not kernel:
            raise OptionError(
                "the feature map belongs to another kernel; make it from this one: "
                "OperatorValuedGP(kernel, features=ORFF(kernel))."
            )
        if len(kernel.batch_shape):
            raise KernelTypeError(f"a kernel with batch shape {tuple(kernel.batch_shape)} is several models; give one.")
        self.kernel, self.features, mean = deepcopy((kernel, features, mean))
        self.num_outputs = num_outputs(self.kernel)
        self.mean = output_mean(mean, self.num_outputs)
        self.noise_model = OutputNoise(noise, self.num_outputs)
        self.strategy = check_strategy(strategy)
        self.double()

    @property
    def noise(self) -> Tensor:
        """Σ, as a tensor (), (p,) or (p, p)."""
        return self.noise_model.value

    @property
    def model(self) -> Model:
        """What the roads see."""
        return Model(self.kernel, self.mean, self.noise_model, self.features)

    def adopt(self, other: OperatorValuedGP) -> None:
        """Take the hyperparameters of another model of the same kernel structure, mean and noise."""
        for part in ("kernel", "mean", "noise_model"):
            getattr(self, part).load_state_dict(getattr(other, part).state_dict())

    def frozen(self) -> OperatorValuedGP:
        """A copy that nobody trains."""
        return deepcopy(self).requires_grad_(False)

    def log_evidence(self, X, Y=None, noise=None) -> Tensor:
        """log p(Y) of the observed entries, differentiable in the hyperparameters.

        Args:
            X: inputs (n, d), or `Statistics` (and no Y). Statistics hold for the frequencies at which they were gathered:
                their evidence is differentiable in noise, mean and output matrix only.
            Y: outputs (n, p), NaN where missing.
            noise: known variances (n, p).
        """
        return self.evidence(X, Y, noise)()

    def evidence(self, X, Y=None, noise=None) -> Callable[[], Tensor]:
        """log p(Y) as a function of the present hyperparameters: data are checked and the road is chosen once, and every
        call computes `log_evidence` anew."""
        if isinstance(X, GATHERED):
            _refuse_data_beside(Y, noise)
            return lambda: strategy_for_statistics(X).log_evidence_of(self.model, X)
        data = self.observe(X, Y, noise).double()
        strategy = select_strategy(self.model, data, self.strategy)

        def log_evidence() -> Tensor:
            with self.naming_failures():
                return strategy.log_evidence(self.model, data)

        return log_evidence

    def condition(
        self,
        X,
        Y=None,
        hyperparameters=None,
        noise=None,
        *,
        variance: str = "features",
        num_landmarks: int = 1000,
        max_draws: int = 200,
    ) -> Posterior:
        """The posterior given data, at the present hyperparameters or averaged over draws of them.

        Args:
            X: inputs (n, d), or `Statistics` (and no Y).
            Y: outputs (n, p), NaN where missing.
            hyperparameters: None, for the present ones; or draws, as `sample_hyperparameters` returns them or as a dictionary
                from names of raw parameters to arrays (draws, *shape). The answer is then a `MixturePosterior`, at a cost
                of one conditioning for each draw. Statistics allow draws of what they do not depend on.
            noise: known variances (n, p).
            variance: with a feature map, "features" for the variance of its weights alone, "guarded" for one that never
                falls below the exact kernel's given `num_landmarks` of the inputs (`ovkgp.inference.posteriors.weight_posterior`).
            max_draws: more draws of hyperparameters are thinned to so many, evenly over the chains.
        """
        if hyperparameters is not None:
            options = {"variance": variance, "num_landmarks": num_landmarks}
            return self._condition_on_draws(X, Y, noise, hyperparameters, max_draws, options)
        if variance not in VARIANCES:
            raise OptionError(f"variance must be one of {', '.join(map(repr, VARIANCES))}, got {variance!r}.")
        landmarks = num_landmarks if variance == "guarded" else 0
        with torch.no_grad(), self.naming_failures():
            if isinstance(X, GATHERED):
                _refuse_data_beside(Y, noise)
                return strategy_for_statistics(X).condition_on(self.frozen().model, X, landmarks)
            data = self.observe(X, Y, noise)
            model = self.frozen().model
            return select_strategy(model, data, self.strategy).condition(model, data, landmarks)

    def _condition_on_draws(self, X, Y, noise, draws, max_draws: int, options: dict) -> Posterior:
        if not isinstance(X, GATHERED):
            data = self.observe(X, Y, noise).double().clone()  # posteriors made anew see what was given
            condition = partial(OperatorValuedGP.condition, X=data.X, Y=data.Y, noise=data.noise, **options)
            model = deepcopy(self)
            if data.noise is not None:  # known for each entry, so that nobody draws the model's
                model.noise_model.requires_grad_(False)
            return condition_on_draws(model, draws, condition, max_draws=max_draws)
        _refuse_data_beside(Y, noise)
        condition = partial(OperatorValuedGP.condition, X=X, **options)
        try:
            return condition_on_draws(self, draws, condition, max_draws=max_draws, allow_missing=True)
        except InputError as error:
            raise InputError(
                f"these draws do not go with these statistics, which hold for one value of the lengthscales: {error} Draw with "
                "sample_hyperparameters(gp, statistics), or condition on X and Y."
            ) from error

    def statistics(
        self, X, Y, noise=None, *, into: Statistics | OutputStatistics | None = None
    ) -> Statistics | OutputStatistics:
        """What the feature map needs to know of the data, in one pass and in memory that does not grow with n.

        Statistics add up: `gp.statistics(X1, Y1) + gp.statistics(X2, Y2)` are those of all rows, in any order. They hold
        for the present hyperparameters of the kernel; `condition` and `log_evidence` take them in place of data.

        Args:
            X, Y, noise: as for `condition`; outputs that nobody observed here may be observed elsewhere.
            into: statistics to add to.
        """
        if self.features is None:
            raise OptionError("statistics need a feature map: OperatorValuedGP(kernel, features=ORFF(kernel)).")
        data = self.observe(X, Y, noise, every_output=False)
        with torch.no_grad():
            return streaming_strategy(self.model).statistics(self.model, data, into)

    def leave_one_out(self, X, Y, noise=None) -> LeaveOneOut:
        """The predictive density of each observed entry given all the others, in closed form."""
        with torch.no_grad():
            data = self.observe(X, Y, noise)
            kept = ~torch.isnan(as_floating(Y, "Y").reshape(len(Y), -1)).all(1)
            return select_strategy(self.model, data, self.strategy).leave_one_out(self.model, data).spread(kept)

    def fit(
        self,
        X,
        Y,
        noise=None,
        *,
        training_rows: int | None = 10_000,
        start: str = "auto",
        restarts: int = 1,
        max_iter: int = 200,
        tolerance: float = 1e-5,
        checkpoint=None,
        random_state=None,
        verbose: int = 0,
    ) -> OperatorValuedGP:
        """Train the hyperparameters, in place, to the largest evidence (plus log-priors, where priors are registered).

        Args:
            X, Y, noise: as for `condition`.
            training_rows: beyond so many rows, a random subset of this size is used; None uses all.
            start: "data" starts from the data (median distances, principal components of Y), "current" from the
                present values, "auto" from the better of the two.
            restarts: how many runs; the later ones start from random perturbations.
            max_iter, tolerance: of L-BFGS; the tolerance is per observed entry.
            checkpoint: a file to which progress is saved; a later call with the same file goes on from there.
            random_state: of the subset and the restarts.
            verbose: 0 is quiet, 1 shows a progress bar.

        Ctrl-C keeps the best values so far, sets `fit_report_.interrupted`, warns and returns.
        """
        if start not in ("auto", "data", "current"):
            raise OptionError(f'start must be "auto", "data" or "current", got {start!r}.')
        if checkpoint is not None and random_state is None:
            random_state = 0  # a resumed training must find the same subset of the rows
        data = training_subset(self.observe(X, Y, noise), training_rows, random_state).double()
        strategy = select_strategy(self.model, data, self.strategy)
        began, is_resumed = time.monotonic(), checkpoint is not None and Path(checkpoint).exists()
        options = {"restarts": restarts, "max_iter": max_iter, "tolerance": tolerance, "verbose": verbose}
        if start == "auto" and not is_resumed and self._warm(strategy, data, random_state=random_state, **options):
            if self.fit_report_.interrupted:
                return self
            restarts, start, tolerance = 1, "current", WARMED_TOLERANCE * tolerance

        warming = time.monotonic() - began

        def objective() -> Tensor:
            return strategy.log_evidence(self.model, data) + log_prior(self)

        self.fit_report_ = maximise(
            self,
            objective,
            bounds=parameter_bounds(self, data),
            sizes=parameter_scales(self, data),
            starts=starting_points(self, data, start),
            restarts=restarts,
            max_iter=max_iter,
            tolerance=tolerance,
            scale=data.num_observed,
            checkpoint=checkpoint,
            signature="" if checkpoint is None else problem_name(self, data, objective),
            random_state=random_state,
            verbose=verbose,
        )
        self.fit_report_.num_rows, self.fit_report_.num_observed = data.num_rows, data.num_observed
        self.fit_report_.seconds += warming
        with torch.no_grad():
            self.fit_report_.log_evidence = float(strategy.log_evidence(self.model, data))
        return self

    def _warm(self, strategy, data: Observations, **options) -> bool:
        """Whether there was something cheaper to do first: outputs that share nothing one by one, or fewer rows."""
        size = data.num_observed if strategy.name in ("dense", "iterative") else data.num_rows
        apart = can_train_independently(self)
        if not apart and size <= 2 * WARM_ROWS:
            return False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "training stopped", FitWarning)  # it goes on with all rows
            if apart:
                train_independently(self, data, **options)
            else:
                fewer = max(WARM_ROWS * data.num_rows // size, data.num_rows // 4)
                few = training_subset(data, fewer, options["random_state"])
                self.fit(few.X, few.Y, few.noise, **options)
        return True

    def start(self, X, Y, *, kernel: bool = True) -> OperatorValuedGP:
        """Set mean, noise and (unless `kernel` is False) kernel hyperparameters from the data, without training."""
        start_from_data(self, self.observe(X, Y, None).double(), kernel)
        return self

    @contextmanager
    def naming_failures(self):
        """A failed factorisation says at which hyperparameters it failed."""
        try:
            yield
        except FactorizationError as error:
            values = {**named_hyperparameters(self.kernel), "noise": self.noise.detach()}
            listed = "; ".join(f"{name} = {value.squeeze().tolist()}" for name, value in values.items())
            raise FactorizationError(f"{error} This was at {listed}.") from error

    def observe(self, X, Y, noise=None, every_output: bool = True) -> Observations:
        """Data for this model, checked; see `ovkgp.inference.model.observations.observations`."""
        data = observations(X, Y, self.num_outputs, noise, every_output=every_output)
        self.to(data.X.device)
        self.mean.see(data.X.shape[1])
        check_inputs(self, data.X)
        return data


def check_inputs(model, X: Tensor) -> None:
    """Refuse inputs that the kernel of a model cannot take, in words."""
    is_dear = model.features is not None and isinstance(model.kernel, ManifoldKernel)  # made of all its points
    kernel = model.kernel.base_kernel if is_dear else model.kernel
    try:
        with torch.no_grad():
            kernel(X[:1].double(), diag=True)
    except (RuntimeError, IndexError) as error:
        raise InputError(
            f"the kernel {type(model.kernel).__name__} cannot be evaluated at inputs with {X.shape[1]} columns ({error}): "
            "check its ard_num_dims and active_dims."
        ) from error


def _refuse_data_beside(Y, noise) -> None:
    if Y is not None or noise is not None:
        raise InputError("statistics stand for all data, Y and noise included: give them alone, or X and Y.")
