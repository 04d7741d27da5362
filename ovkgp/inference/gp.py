"""Gaussian process with an operator-valued kernel.

`fit` trains the hyperparameters by maximizing the evidence, `log_evidence` computes it and `condition` returns the
posterior.
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

from ovkgp.checks import check_integer
from ovkgp.exceptions import FactorizationError, FitWarning, InputError, KernelTypeError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.mean_noise import Model, OutputNoise, make_output_mean
from ovkgp.inference.model.observations import Observations, validate_observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.model.parameter_vector import hyperparameters as named_hyperparameters
from ovkgp.inference.model.row_sample import draw_training_subset
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut, expand_rows, group_index
from ovkgp.inference.posteriors.mixture import condition_on_draws
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.selection import (
    check_strategy,
    select_strategy,
    strategy_for_statistics,
    streaming_strategy,
)
from ovkgp.inference.training.checkpoints import fingerprint_problem
from ovkgp.inference.training.initial_grid import grid_around
from ovkgp.inference.training.initialization import initialize, register_data_priors, set_initial_values
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.inference.training.maximize import FitReport, can_train_independently, maximize_density, train_independently
from ovkgp.kernels import ManifoldKernel, num_outputs

VARIANCES = ("features", "guarded")
INITIALIZATIONS = ("auto", "data", "current")
STATISTICS_TYPES = (Statistics, OutputStatistics)
MIN_WARM_UP_ROWS, TOLERANCE_FACTOR_AFTER_WARM_UP = 400, 3
"""Data with more than twice as many rows (observed entries, for the dense strategy), or with more missing entries that are
factorized, are first trained on a quarter of the rows. The training on all rows then begins near the optimum and stops at
a tolerance larger by this factor."""


class OperatorValuedGP(Module):
    """Gaussian process with p outputs.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        Kernel of `ovkgp.kernels` or GPyTorch. Copied, in float64.
    mean : {"zero", "constant", "linear"} or gpytorch.means.Mean, default="constant"
        Prior mean. "constant" has one parameter per output.
    noise : {"shared", "per_output", "full"}, float, array-like or CurveNoise, default="per_output"
        Noise covariance Σ. A string is trained; a variance, a vector (p,) of variances or a matrix (p, p) is fixed. A
        `CurveNoise` (copied) has smooth deviations of each row along the grid of a `FunctionValuedKernel`.
        Variances known for each entry of Y are passed to `fit`, `condition` and `log_evidence` as `noise=` and replace
        those of the model.
    features : FeatureMap or None, default=None
        Feature map of this kernel, such as `ORFF(kernel)`, for large data. If None, the exact kernel is used.
    strategy : {"auto", "independent", "features", "state_space", "kronecker", "kronecker_missing", "dense", "iterative"}, default="auto"
        Linear algebra. If "auto", it is selected from the structure (see `ovkgp.inference.strategies.selection`).

    Attributes
    ----------
    fit_report_ : FitReport or None
        Report of the last training.

    Notes
    -----
    Values are trained and predicted in the units of the data. Complexity: O(n³ + p³) for a separable kernel, O(N³) for
    N observed entries of another kernel, O(n M²) for a feature map with M scalar features, O(n p³) for Markov kernels of one input.

    Examples
    --------
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
    has_gaussian_evidence = True
    """Whether `evidence` is log N(Y | m, K + Σ); a subclass must declare it again to be trained with NumPy gradients.
    """

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
            raise KernelTypeError(f"kernel must be a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
        if features is not None and features.kernel is not kernel:
            raise OptionError(
                "features belongs to another kernel. Make the feature map from this one: OperatorValuedGP(kernel, features=ORFF(kernel))."
            )
        if len(kernel.batch_shape):
            raise KernelTypeError(f"Batched kernels are not supported, got batch_shape={tuple(kernel.batch_shape)}.")
        self.kernel, self.features, mean = deepcopy((kernel, features, mean))
        self.num_outputs = num_outputs(self.kernel)
        self.mean = make_output_mean(mean, self.num_outputs)
        self.noise_model = _make_noise(noise, self.num_outputs)
        self.strategy = check_strategy(strategy)
        self.double()

    @property
    def noise(self) -> Tensor:
        """Noise covariance Σ, a tensor of shape (), (p,) or (p, p)."""
        return self.noise_model.value

    @property
    def model(self) -> Model:
        """Kernel, mean, noise and feature map, as the strategies use them."""
        return Model(self.kernel, self.mean, self.noise_model, self.features)

    def copy_hyperparameters_from(self, other: OperatorValuedGP) -> None:
        """Copy the hyperparameters of another model.

        Parameters
        ----------
        other : OperatorValuedGP
            Model with the same kernel structure, mean and noise.
        """
        for part in ("kernel", "mean", "noise_model"):
            getattr(self, part).load_state_dict(getattr(other, part).state_dict())

    def frozen(self) -> OperatorValuedGP:
        """Copy the model without trainable parameters.

        Returns
        -------
        OperatorValuedGP
        """
        return deepcopy(self).requires_grad_(False)

    def log_evidence(self, X, Y=None, noise=None) -> Tensor:
        """Compute log p(Y) of the observed entries, differentiable in the hyperparameters.

        Parameters
        ----------
        X : array-like of shape (n, d) or Statistics
            Inputs. Statistics are valid for the frequencies with which they were computed: their evidence is
            differentiable in noise, mean and output matrix only.
        Y : array-like of shape (n, p), optional
            Outputs, NaN if missing. Must be None with statistics.
        noise : array-like of shape (n, p), optional
            Known noise variances.

        Returns
        -------
        Tensor
            A scalar.
        """
        return self.evidence(X, Y, noise)()

    def evidence(self, X, Y=None, noise=None) -> Callable[[], Tensor]:
        """Return a function that computes `log_evidence` at the current hyperparameters.

        Data are validated and the strategy is selected once; every call computes the evidence again.

        Parameters
        ----------
        X, Y, noise
            See `log_evidence`.

        Returns
        -------
        Callable
            Function without arguments that returns a scalar tensor.
        """
        if isinstance(X, STATISTICS_TYPES):
            _reject_data_with_statistics(Y, noise)
            return lambda: strategy_for_statistics(X).log_evidence_from_statistics(self.model, X)
        data = self.observe(X, Y, noise).double()
        return self._evidence(select_strategy(self.model, data, self.strategy), data)

    def _evidence(self, strategy, data: Observations) -> Callable[[], Tensor]:
        def log_evidence() -> Tensor:
            with self.report_hyperparameters_on_failure():
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
        """Compute the posterior given data, at the current hyperparameters or averaged over draws of them.

        Parameters
        ----------
        X : array-like of shape (n, d) or Statistics
            Inputs.
        Y : array-like of shape (n, p), optional
            Outputs, NaN if missing. Must be None with statistics.
        hyperparameters : optional
            Draws returned by `sample_hyperparameters`, or a dictionary from names of raw parameters to arrays (draws,
            *shape). The result is then a `MixturePosterior`, at the cost of one conditioning per draw. Statistics allow
            draws of parameters on which they do not depend. If None, the current hyperparameters are used.
        noise : array-like of shape (n, p), optional
            Known noise variances.
        variance : {"features", "guarded"}, default="features"
            Variance with a feature map. "features" is the variance of its weights; "guarded" is never below that of the
            exact kernel given `num_landmarks` inputs. Ignored without a feature map.
        num_landmarks : int, default=1000
            Number of inputs for `variance="guarded"`.
        max_draws : int, default=200
            Maximum number of draws. More draws are thinned evenly over the chains.

        Returns
        -------
        Posterior
        """
        if hyperparameters is not None:
            options = {"variance": variance, "num_landmarks": num_landmarks}
            return self._condition_on_draws(X, Y, noise, hyperparameters, max_draws, options)
        if variance not in VARIANCES:
            raise OptionError(f"variance must be one of {', '.join(map(repr, VARIANCES))}, got {variance!r}.")
        landmarks = num_landmarks if variance == "guarded" else 0
        with torch.no_grad(), self.report_hyperparameters_on_failure():
            if isinstance(X, STATISTICS_TYPES):
                _reject_data_with_statistics(Y, noise)
                return strategy_for_statistics(X).condition_on_statistics(self.frozen().model, X, landmarks)
            data = self.observe(X, Y, noise)
            model = self.frozen().model
            return select_strategy(model, data, self.strategy).condition(model, data, landmarks)

    def update(self, posterior: Posterior, X, Y, noise=None, *, drop: int = 0) -> Posterior:
        """Compute the posterior given the data of a posterior and further rows, at its hyperparameters.

        It equals that of `condition` on all rows.

        Parameters
        ----------
        posterior : Posterior
            Result of `condition` on X and Y, or of `update`. It is not changed.
        X, Y, noise
            Further rows, as for `condition`. Outputs without observed values are allowed.
        drop : int, default=0
            Number of the first stored rows that are dropped. Rows without observed outputs are not stored.

        Returns
        -------
        Posterior

        Notes
        -----
        Complexity: O(s³) per row for the state-space strategy if no row is earlier than the last one, O(N² K) for the dense
        strategy and K new observed entries, besides a copy of the data. That of `condition` otherwise, and if rows are dropped.
        """
        if posterior.conditioning is None:
            raise OptionError(
                "update needs a posterior with its data, of one model with a Gaussian likelihood. Use gp.condition(X, Y)."
            )
        before, model, data = posterior.conditioning
        added = validate_observations(X, Y, self.num_outputs, noise, every_output=False).double().clone()
        if added.X.shape[1] != data.X.shape[1]:
            raise InputError(f"X must have {data.X.shape[1]} columns, as in the posterior, got {added.X.shape[1]}.")
        if (added.noise is None) != (data.noise is None):
            raise InputError("noise must be passed for further rows if and only if it was passed to condition.")
        joined = data.rows(slice(check_integer("drop", drop, 0), None)).followed_by(added)
        if joined.num_rows == 0:
            raise InputError(f"drop must leave at least one row, got {drop} of {data.num_rows}.")
        with torch.no_grad(), self.report_hyperparameters_on_failure():
            strategy = select_strategy(model, joined, self.strategy)
            if strategy is before and drop == 0 and hasattr(strategy, "extend"):
                return strategy.extend(posterior, added, joined) if added.num_rows else posterior
            return strategy.condition(model, joined)

    def _condition_on_draws(self, X, Y, noise, draws, max_draws: int, options: dict) -> Posterior:
        if not isinstance(X, STATISTICS_TYPES):
            data = self.observe(X, Y, noise).double().clone()  # posteriors may be recomputed after the arrays change
            condition = partial(OperatorValuedGP.condition, X=data.X, Y=data.Y, noise=data.noise, **options)
            model = deepcopy(self)
            if data.noise is not None:  # the model's noise is not used: no draws of it are needed
                model.noise_model.requires_grad_(False)
            return condition_on_draws(model, draws, condition, max_draws=max_draws)
        _reject_data_with_statistics(Y, noise)
        condition = partial(OperatorValuedGP.condition, X=X, **options)
        try:
            return condition_on_draws(self, draws, condition, max_draws=max_draws, allow_missing=True)
        except InputError as error:
            raise InputError(
                "hyperparameters do not match the statistics, which are valid for one value of the lengthscales: "
                f"{error} Draw with sample_hyperparameters(gp, statistics), or condition on X and Y."
            ) from error

    def statistics(
        self, X, Y, noise=None, *, into: Statistics | OutputStatistics | None = None
    ) -> Statistics | OutputStatistics:
        """Compute the statistics of the data for the feature map, in one pass and in memory independent of n.

        Statistics add up: `gp.statistics(X1, Y1) + gp.statistics(X2, Y2)` are those of all rows, in any order. They are
        valid for the current hyperparameters of the kernel; `condition` and `log_evidence` accept them instead of data.

        Parameters
        ----------
        X, Y, noise
            See `condition`. Outputs without observed values are allowed; rows without any add nothing.
        into : Statistics or OutputStatistics, optional
            Statistics to which those of the data are added.

        Returns
        -------
        Statistics or OutputStatistics
        """
        if self.features is None:
            raise OptionError("Statistics need a feature map. Use OperatorValuedGP(kernel, features=ORFF(kernel)).")
        data = self.observe(X, Y, noise, every_output=False)
        with torch.no_grad():
            return streaming_strategy(self.model).statistics(self.model, data, into)

    def leave_one_out(self, X, Y, noise=None, *, groups="entries") -> LeaveOneOut | LeaveGroupOut:
        """Compute the predictive density of each observed entry, row or group of rows given all others, in closed form.

        Parameters
        ----------
        X, Y, noise
            See `condition`.
        groups : {"entries", "rows"} or array-like of shape (n,), default="entries"
            What is held out together: single entries (the other outputs of their row are then known), rows, or all rows
            with the same label (tracks, stations).

        Returns
        -------
        LeaveOneOut or LeaveGroupOut
            Means and standard deviations (n, p), NaN where Y is missing. Log densities (n, p) of entries; joint ones of
            rows (n,), NaN for rows without observed outputs, or of groups (G,) in the order of the sorted labels, 0 for
            groups without observed outputs.

        Notes
        -----
        Complexity: one factorization, and O(Σ m³) for groups of m observed entries.
        """
        with torch.no_grad():
            data = self.observe(X, Y, noise)
            strategy = select_strategy(self.model, data, self.strategy)
            if isinstance(groups, str) and groups == "entries":
                return strategy.leave_one_out(self.model, data).expand_rows(data.kept)
            num_rows = data.num_rows if data.kept is None else len(data.kept)
            index = group_index(groups, num_rows).to(data.Y.device)
            labels, kept = (index if data.kept is None else index[data.kept]).unique(return_inverse=True)
            found = strategy.leave_groups_out(self.model, data, kept)
            fill = torch.nan if isinstance(groups, str) else 0.0
            densities = (part.new_full((int(index.max()) + 1,), fill) for part in found[2:])
            densities = (whole.index_copy(0, labels, part) for whole, part in zip(densities, found[2:], strict=True))
            return LeaveGroupOut(*(expand_rows(part, data.kept) for part in found[:2]), *densities)

    def fit(
        self,
        X,
        Y,
        noise=None,
        *,
        training_rows: int | None = 10_000,
        init: str = "auto",
        restarts: int = 1,
        max_iter: int = 200,
        tolerance: float = 1e-5,
        checkpoint=None,
        random_state=None,
        verbose: int = 0,
    ) -> OperatorValuedGP:
        """Train the hyperparameters in place by maximizing the evidence, plus log priors if priors are registered.

        Ctrl-C keeps the best values so far, sets `fit_report_.interrupted`, warns and returns.

        Parameters
        ----------
        X, Y, noise
            See `condition`.
        training_rows : int or None, default=10_000
            Maximum number of rows used to train. If the data have more rows, a random subset is used. If None, all rows
            are used.
        init : {"auto", "data", "current"}, default="auto"
            Initial hyperparameters. "data" derives them from the data (principal components of Y; the best of several
            lengthscales and noises), "current" uses the current values, "auto" the best of all. For "auto", default values
            of kernel and noise are those of standardized data: training does not depend on the units of X and Y.
        restarts : int, default=1
            Number of optimization runs. The first begins at the best of several lengthscales and noises, the next ones at the
            other lengthscales in the order of their objective, and those after them at random perturbations.
        max_iter : int, default=200
            Maximum number of L-BFGS iterations per run.
        tolerance : float, default=1e-5
            Convergence tolerance of L-BFGS, per observed entry.
        checkpoint : path-like, optional
            File to which progress is saved. A later call with the same file resumes from it.
        random_state : int, numpy.random.Generator or None, default=None
            Seed of the subset and the restarts.
        verbose : int, default=0
            If 1, a progress bar is shown.

        Returns
        -------
        OperatorValuedGP
            The model itself.
        """
        if init not in INITIALIZATIONS:
            raise OptionError(f'init must be "auto", "data" or "current", got {init!r}.')
        if checkpoint is not None and random_state is None:
            random_state = 0  # a resumed training must use the same subset of the rows
        data = self.observe(X, Y, noise).double()
        if training_rows is not None:
            data = draw_training_subset(data, training_rows, random_state)
        strategy = select_strategy(self.model, data, self.strategy)
        began, is_resumed = time.monotonic(), checkpoint is not None and Path(checkpoint).exists()
        options = {"restarts": restarts, "max_iter": max_iter, "tolerance": tolerance, "verbose": verbose}
        if init == "auto" and not is_resumed and self._warm_up(strategy, data, random_state=random_state, **options):
            if self.fit_report_.interrupted:
                return self
            restarts, init, tolerance = 1, "current", TOLERANCE_FACTOR_AFTER_WARM_UP * tolerance
        warm_up_seconds = time.monotonic() - began

        initialization = initialize(self, data)
        vector = ParameterVector(self, initialization.bounds, initialization.scales)
        # evidence plus log prior as a function of the vector of trained parameters
        density = LogDensity(self, self._evidence(strategy, data), data, vector, jacobian=False)
        self.fit_report_ = maximize_density(
            density,
            initial_states=initialization.initial_states(self, data, init),
            initial_points=() if init == "current" else grid_around(self, data, vector, initialization),
            restarts=restarts,
            max_iter=max_iter,
            tolerance=tolerance,
            scale=data.num_observed,
            checkpoint=checkpoint,
            signature="" if checkpoint is None else fingerprint_problem(density, data, initialization),
            random_state=random_state,
            verbose=verbose,
        )
        self.fit_report_.num_rows, self.fit_report_.num_observed = data.num_rows, data.num_observed
        self.fit_report_.seconds += warm_up_seconds
        with torch.no_grad():
            self.fit_report_.log_evidence = float(strategy.log_evidence(self.model, data))
        return self

    def _warm_up(self, strategy, data: Observations, **options) -> bool:
        """Train independent outputs one by one, or large data on fewer rows first; return whether either was done."""
        size = data.num_observed if strategy.name in ("dense", "iterative") else data.num_rows
        if strategy.name == "kronecker_missing":
            size = max(size, 2 * data.num_missing)
        is_independent = can_train_independently(self)
        if not is_independent and size <= 2 * MIN_WARM_UP_ROWS:
            return False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "training stopped", FitWarning)  # the training on all rows follows
            if is_independent:
                train_independently(self, data, **options)
            else:
                num_rows = max(MIN_WARM_UP_ROWS * data.num_rows // size, data.num_rows // 4)
                subset = draw_training_subset(data, num_rows, options["random_state"])
                self.fit(subset.X, subset.Y, subset.noise, **options)
        return True

    def initialize(self, X=None, Y=None, *, kernel: bool = True, **values) -> OperatorValuedGP:
        """Set hyperparameters from the data, without training, or to given values as GPyTorch's modules do.

        Parameters
        ----------
        X, Y
            See `condition`.
        kernel : bool, default=True
            Whether to set the hyperparameters of the kernel, in addition to mean and noise.
        **values
            Values by qualified name, as for `gpytorch.Module.initialize`, if X and Y are omitted.

        Returns
        -------
        OperatorValuedGP
            The model itself.
        """
        if X is None:
            return super().initialize(**values)
        set_initial_values(self, self.observe(X, Y, None).double(), kernel=kernel)
        return self

    def register_priors(self, data: Observations) -> None:
        """Register a weakly informative prior on each trained parameter that has none, in the units of the data.

        Parameters
        ----------
        data : Observations
            Data whose units the priors have.
        """
        register_data_priors(self, data.X, data.Y)

    @contextmanager
    def report_hyperparameters_on_failure(self):
        """Add the current hyperparameters to the message of a failed factorization.

        Returns
        -------
        context manager
            Context of a factorization.
        """
        try:
            yield
        except FactorizationError as error:
            values = {**named_hyperparameters(self.kernel), "noise": self.noise.detach()}
            raise FactorizationError(str(error), values) from error

    def observe(self, X, Y, noise=None, every_output: bool = True) -> Observations:
        """Validate data for this model.

        Parameters
        ----------
        X, Y, noise
            See `condition`.
        every_output : bool, default=True
            Whether each output must have at least one observed value.

        Returns
        -------
        Observations
        """
        # with noise along curves, outputs are points of one function
        every_output = every_output and not isinstance(self.noise_model, CurveNoise)
        data = validate_observations(X, Y, self.num_outputs, noise, every_output=every_output)
        self.to(data.X.device)
        self.mean.set_num_dims(data.X.shape[1])
        check_inputs(self, data.X)
        return data


def _make_noise(noise, num_outputs: int) -> OutputNoise | CurveNoise:
    if not isinstance(noise, CurveNoise):
        return OutputNoise(noise, num_outputs)
    if noise.num_outputs != num_outputs:
        raise OptionError(f"noise has {noise.num_outputs} outputs, the kernel has {num_outputs}. Use the same grid.")
    return deepcopy(noise)


def check_inputs(model, X: Tensor) -> None:
    """Check that the kernel of a model can be evaluated at inputs X (n, d)."""
    kernel = model.kernel
    if model.features is not None and isinstance(kernel, ManifoldKernel):  # evaluated at all its points
        kernel = kernel.base_kernel
    try:
        with torch.no_grad():
            kernel(X[:1].double(), diag=True)
    except (RuntimeError, IndexError) as error:
        raise InputError(
            f"X has {X.shape[1]} columns, at which the kernel {type(model.kernel).__name__} cannot be evaluated ({error}). Check its ard_num_dims and active_dims."
        ) from error


def _reject_data_with_statistics(Y, noise) -> None:
    if Y is not None or noise is not None:
        raise InputError("Y and noise must be None with statistics, which include them. Pass statistics, or X and Y.")
