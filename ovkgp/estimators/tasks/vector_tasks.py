"""`VectorTaskRegressor`, a Gaussian process of vectors at every point of a space of tasks (vITL, LT-100..104)."""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.checks import as_numbers
from ovkgp.estimators.common.base import TableRegressor
from ovkgp.estimators.common.descriptions import EXACT_KERNEL, NO_LEAVE_ONE_OUT, Description, describe_mean
from ovkgp.estimators.common.fit_checks import warn_about_rows
from ovkgp.estimators.common.loss_options import MODE_ATTRIBUTES, fit_constants, is_square, make_loss, tune_loss
from ovkgp.estimators.common.named_kernels import scale_kernel, usable_scale
from ovkgp.estimators.common.options import (
    CONVENTIONS,
    FRACTION,
    POSITIVE,
    VERBOSE,
    integer,
    noise_of,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.summary import Hyperparameter, list_gp_parameters
from ovkgp.estimators.common.task_options import TASK_KERNEL_CONSTRAINTS, task_kernel
from ovkgp.estimators.common.validation import WeightedData, as_array, check_size, input_table
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods.factory import likelihood_of_loss
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import KernelProcess
from ovkgp.inference.tasks.functional_ridge_grid import GridPosterior, condition_on_grid, make_pairs, train_on_grid
from ovkgp.inference.tasks.mode_posterior import (
    ModePosterior,
    find_evidence_scale,
    make_pair_problems,
    solve_pair_problems,
)
from ovkgp.inference.tasks.solvers.square import NORMALIZATIONS
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel
from ovkgp.losses import Loss

LOSS_NAMES = ("square", "huber", "epsilon_insensitive", "log_cosh")


def _condition_again(estimator: VectorTaskRegressor) -> None:
    """Compute `gp_` and `posterior_` of a loaded estimator."""
    kernel, noise, *data = estimator._problem
    gp = OperatorValuedGP(kernel, mean="zero", noise=noise).requires_grad_(False)
    gp.fit_report_ = estimator.fit_report_
    (estimator._set_mode if hasattr(estimator, "_coefficients") else estimator._condition)(gp, *data)


@storable(
    *("n_features_in_", "n_outputs_", "output_names_", "_is_flat", "_has_names", "_is_tensor", "tasks_", "offset_"),
    *("output_matrix_", "missing_", "lam_", "noise_", "scale_", "fit_report_", "_problem"),
    optional=(*(name for name in MODE_ATTRIBUTES if name != "fit_report_"), "_coefficients"),
    finish=_condition_again,
)
class VectorTaskRegressor(TableRegressor):
    """Gaussian-process regression x ↦ (θ ↦ vector) from vectors at some tasks θ, with predictions at any task (LT-100).

        min_h (1/nT) Σ_ij ½ ‖y_ij − h(x_i)(θ_j)‖² + (λ/2) ‖h‖²,      K((x, θ), (x', θ')) = k_X(x, x') k_Θ(θ, θ') A

    is the posterior mean with noise σ² = λnT. λ does not determine the scale of the standard deviation: (s²K, s²σ²) has
    the same mean for every s², and the evidence is maximal at s² = yᵀ(K + σ²)⁻¹y / N.

    Parameters
    ----------
    tasks : array-like of shape (T,) or (T, q), or None, default=None
        Points θ of the space of tasks. If None, the columns of Y are the tasks 0, 1, 2, ….
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        k_X, by name or as a scalar GPyTorch kernel.
    lengthscale : "median", float or array-like of shape (d,), default="median"
        Lengthscale of a kernel by name.
    task_kernel, task_lengthscale : as `kernel` and `lengthscale`, or "quantile_0.2", default="rbf", "median"
        k_Θ. "quantile_0.2" is the .2-quantile of the distances between tasks (LT-41). A kernel object for q > 1 needs ard_num_dims=q.
    output_matrix : "identity", int or array-like of shape (p, p), default="identity"
        A; a rank r is the projection on the r leading eigenvectors of YᵀY (LT-102).
    lam : float, default=1e-3
        λ > 0.
    convention : str, default="samples"
        Meaning of λ; "samples" is the objective above, with pairs (x_i, θ_j) as samples. See
        `ovkgp.estimators.common.options`.
    normalization : {"fixed", "pooled", "per_sample"}, default="fixed"
        Noise if pairs are missing: "fixed" is λnT, as without missing pairs, "pooled" is λ times the number of observed
        pairs, "per_sample" is λn times the number of observed pairs of the row (LT-75).
    fit_intercept : bool, default=False
        Whether to subtract the mean of each output over rows and tasks. The papers do not, but it improves predictions
        between distant tasks for values far from zero, such as landmarks.
    scale : {"evidence", "given"}, default="evidence"
        "evidence" uses s² above, "given" s² = 1.
    hyperparameters : {"fixed", "evidence"}, default="fixed"
        "evidence" trains lengthscales, s² and noise, from the best of several initial values; `lam_` is the resulting λ.
    verbose : int, default=0
        If 1, progress is shown.
    loss : {"square", "huber", "epsilon_insensitive", "log_cosh"} or Loss, default="square"
        Loss ℓ of each entry of y_ij − h(x_i)(θ_j), in place of the square; σ² keeps its value, and the fit is the mode of the posterior
        under the likelihood exp(−ℓ/σ²). "huber" and "log_cosh" bound the influence of outliers, "epsilon_insensitive" ignores errors
        up to ε. The parameter of a name is relative to the robust standard deviation s of residuals, as in `OVKRidge`: κ = 1.345 s,
        ν = 1/s, ε = s/2. A `Loss` of `ovkgp.losses` without levels is used as it is, in units of y.
    tolerance : float, default=1e-6
        Relative duality gap at which the solver of other losses than "square" stops.
    restarts : int, default=1
        Number of optimization runs of `hyperparameters="evidence"`, as for `GPRegressor`; the best is kept.

    Attributes
    ----------
    tasks_ : ndarray of shape (T, q)
        θ.
    output_matrix_ : ndarray of shape (p, p)
        A.
    lam_, noise_, scale_ : float
        λ, σ² before the scale, and s²; the noise variance of an entry is s²σ².
    missing_ : float
        Fraction of the pairs (x_i, θ_j) that were not observed (LT-E-40).
    gp_, posterior_ : OperatorValuedGP, Posterior
        Model on pairs (x, θ) and its posterior, which can be evaluated at any pairs.
    fit_report_ : FitReport or None
        Report of the training; None for "fixed".
    offset_ : ndarray of shape (p,)
        Intercept.
    loss_, gap_, sparsity_ : Loss, float, float
        For losses other than "square": the loss, the relative duality gap, and the fraction of entries with dual variables 0; `fit_report_`
        is then the report of the solver.
    n_outputs_, output_names_, n_features_in_, feature_names_in_
        Names and numbers of columns.

    Notes
    -----
    With another loss than "square", standard deviations and quantiles are those of its normalized likelihood, by a Gaussian
    approximation with the mode as mean and a variational covariance, computed when they are first requested. s² then maximizes
    −J/s² − N log Z(s²σ²), with the minimum J of the objective divided by σ² and the normalizer Z of the likelihood.

    X and tasks are not scaled: for columns of different units use one lengthscale per column or a `StandardScaler`.

    Rows for style transfer come from `single_rows` and `joint_rows` of `ovkgp.datasets`, paths through the
    space of tasks from its `radial_tasks` and `angular_tasks`. Joint rows repeat each target T times: intervals from
    them are those of a composite likelihood, and too narrow.

    Complexity: O(n³ + T³ + p³ + nTp (n + T + p)) time for complete data, without any nT × nT matrix; O(N³ + p³) with
    missing pairs, for N observed ones; with single missing entries O((Np)³) up to 5000 of them, conjugate gradients
    beyond.

    Examples
    --------
    Predict the face of a person at an emotion at which it was never observed (style transfer):

    >>> import ovkgp
    >>> from ovkgp.datasets import make_landmarks
    >>> from ovkgp.datasets import radial_tasks, single_rows
    >>> faces, emotions, identities, truth = make_landmarks(20, random_state=0)
    >>> X, Y, _ = single_rows(faces, task=0)  # neutral faces, and the same people at all seven emotions
    >>> model = ovkgp.VectorTaskRegressor(tasks=emotions, lam=2e-5).fit(X[:30], Y[:30])
    >>> model.predict(X[30:]).shape
    (10, 7, 136)
    >>> from_neutral_to_half_happy = radial_tasks(emotions[4], [0.0, 0.25, 0.5])
    >>> mean, std = model.predict(X[30:], from_neutral_to_half_happy, return_std=True)
    >>> mean.shape, std.shape
    ((10, 3, 136), (10, 3, 136))
    """

    kind = "tasks"
    description = Description(
        "vectors at every point of a space of tasks",
        "The model predicts a vector for each input x and each task θ, including tasks that are not in the training data. It is a Gaussian process on pairs (x, θ).",
        "K((x, θ), (x′, θ′)) = s^2 k_X(x, x′) k_Θ(θ, θ′) A",
    )
    calibration_note = NO_LEAVE_ONE_OUT
    reported = (
        ("lam_", "penalty λ"),
        ("scale_", "scale of prior and noise s²"),
        ("task_lengthscale", "lengthscale of the tasks"),
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **TASK_KERNEL_CONSTRAINTS,
        "tasks": ["array-like", None],
        "output_matrix": [one_of("identity"), integer(), "array-like"],
        "lam": [POSITIVE],
        "convention": [one_of(*CONVENTIONS)],
        "normalization": [one_of(*NORMALIZATIONS)],
        "fit_intercept": ["boolean"],
        "scale": [one_of("evidence", "given")],
        "hyperparameters": [one_of("fixed", "evidence")],
        "verbose": VERBOSE,
        "loss": [one_of(*LOSS_NAMES), Loss],
        "tolerance": [FRACTION],
        "restarts": [integer()],
    }

    def __init__(
        self,
        tasks=None,
        kernel="rbf",
        lengthscale="median",
        task_kernel="rbf",
        task_lengthscale="median",
        output_matrix="identity",
        lam=1e-3,
        convention="samples",
        normalization="fixed",
        fit_intercept=False,
        scale="evidence",
        hyperparameters="fixed",
        verbose=0,
        loss="square",
        tolerance=1e-6,
        restarts=1,
    ):
        self.tasks = tasks
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.task_kernel = task_kernel
        self.task_lengthscale = task_lengthscale
        self.output_matrix = output_matrix
        self.lam = lam
        self.convention = convention
        self.normalization = normalization
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.hyperparameters = hyperparameters
        self.verbose = verbose
        self.loss = loss
        self.tolerance = tolerance
        self.restarts = restarts

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        if is_square(self.loss):
            return
        if getattr(self.loss, "num_task_dims", None) is not None:
            raise OptionError(
                f"loss={type(self.loss).__name__} depends on a level, which is not supported. Use Huber, EpsilonInsensitive or LogCosh, or InfiniteQuantileRegressor for quantiles."
            )
        if self.hyperparameters == "evidence":
            raise OptionError(
                'hyperparameters="evidence" is not supported with losses other than "square". Train with loss="square" and pass the kernels.'
            )

    def fit(self, X, y) -> VectorTaskRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, T, p), (n, T·p) or (n,)
            Vectors at the tasks, NaN where vectors or single entries are missing. In (n, T·p) the p outputs of the
            first task come first; (n,) is for one task and one output.

        Returns
        -------
        self : VectorTaskRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, Y = self._validate_by_task(X, y)
            check_size([Y], "y")
            warn_about_rows(X, Y)
            observed = np.isfinite(Y).any(-1)
            self.missing_ = float(1 - observed.mean())
            rows = observed.any(1)
            X, Y, observed = torch.from_numpy(X[rows]).double(), torch.from_numpy(Y[rows]), observed[rows]
            self.offset_ = self._intercept(Y.numpy()) if self.fit_intercept else np.zeros(Y.shape[-1])
            Y = Y - torch.from_numpy(self.offset_)
            matrix = make_output_matrix(self.output_matrix, Y.numpy())
            kernel = make_pair_kernel(self, X, torch.from_numpy(self.tasks_), matrix)
            self.output_matrix_ = matrix.numpy()
            (self._fit_scale if is_square(self.loss) else self._fit_mode)(kernel, X, Y, torch.from_numpy(observed))
        return self

    def _intercept(self, Y: np.ndarray) -> np.ndarray:
        """Return the mean of each output, or its median for a robust loss."""
        if is_square(self.loss):
            return np.nanmean(Y, (0, 1))
        rows = Y.reshape(-1, Y.shape[-1])
        return fit_constants(self.loss, WeightedData(rows, rows), np.full(Y.shape[-1], 0.5))

    def _fit_mode(self, kernel, X: Tensor, Y: Tensor, observed: Tensor) -> None:
        """Set σ², the mode under another loss, s², the model and its posterior."""
        self.lam_ = float(self.lam)
        self.noise_, ratios = self._noise(observed)
        weights = None if ratios is None else (1 / ratios)[:, None, None].expand(Y.shape)
        tasks = torch.from_numpy(self.tasks_)
        problems = make_pair_problems(kernel, X, tasks, Y, make_loss(self.loss), self.noise_, weights)
        problems, finite = tune_loss(self.loss, problems), torch.isfinite(Y)
        self.loss_ = problems[0].loss.loss
        options = {"tolerance": self.tolerance, "verbose": self.verbose}
        mode = solve_pair_problems(problems, finite, self.noise_, **options)
        self.gap_, self.sparsity_, self.fit_report_ = mode.gap, mode.sparsity, mode.report
        self.scale_, half = 1.0, torch.full((1,), 0.5, dtype=torch.float64)
        if self.scale == "evidence" and likelihood_of_loss(self.loss_, self.noise_, half) is not None:
            counts = finite.sum().double().reshape(1)
            scale = find_evidence_scale(mode, self.loss_, half, self.noise_, counts)
            self.scale_ = usable_scale(scale, Y.numpy())
        self._coefficients = mode.coefficients / self.scale_
        self._set_mode(make_pair_gp(kernel, self.noise_, self.scale_, trained=False), X, Y, ratios)

    def _set_mode(self, gp, X: Tensor, Y: Tensor, ratios: Tensor | None) -> None:
        """Set `gp_` and `posterior_` from the coefficients of the mode."""
        self.gp_, self._problem = gp, (gp.kernel, gp.noise.item(), X, Y, ratios)
        levels, model = torch.full((self.output_matrix_.shape[0],), 0.5, dtype=torch.float64), gp.frozen().model
        likelihood = likelihood_of_loss(self.loss_, gp.noise.item(), levels)
        reason = f"with loss={type(self.loss_).__name__}, which has no normalized likelihood."
        if ratios is not None:
            likelihood, reason = None, 'with normalization="per_sample", missing pairs and losses other than "square".'
        pairs = make_pairs(X, torch.from_numpy(self.tasks_))
        kept = torch.isfinite(Y).any(-1).flatten()
        data = Observations(pairs[kept], Y.flatten(0, 1)[kept])
        process = KernelProcess(model.kernel, len(levels))
        coefficients = self._coefficients.flatten(0, 1)[kept]
        self.posterior_ = ModePosterior(process, model.mean, data, coefficients, likelihood, reason)

    def _fit_scale(self, kernel, X: Tensor, Y: Tensor, observed: Tensor) -> None:
        """Set σ², s², the model and its posterior."""
        self.lam_, self.fit_report_ = float(self.lam), None
        self.noise_, ratios = self._noise(observed)
        self.scale_ = 1.0
        self._condition(make_pair_gp(kernel, self.noise_, 1.0, trained=False), X, Y, ratios)
        is_trained = self.hyperparameters == "evidence"
        if self.scale == "evidence" or is_trained:
            self.scale_ = usable_scale(self._best_scale(Y), Y.numpy())
            gp = make_pair_gp(kernel, self.noise_, self.scale_, trained=is_trained)
            if is_trained:
                self._train(gp, X, Y, ratios, observed)
            self._condition(gp, X, Y, ratios)

    def _noise(self, observed: Tensor) -> tuple[float, Tensor | None]:
        """Return σ² and, if rows differ in noise, the ratios (n,) of their noise to σ²."""
        n, num_tasks = observed.shape
        counts = {"fixed": n * num_tasks, "pooled": int(observed.sum()), "per_sample": n * num_tasks}
        noise = noise_of(self.lam_, self.convention, n, counts[self.normalization])
        if self.normalization != "per_sample" or bool(observed.all()):
            return noise, None
        each = [noise_of(self.lam_, self.convention, n, n * int(count)) for count in observed.sum(1)]
        ratios = torch.tensor(each, dtype=torch.float64) / noise
        return noise, None if bool((ratios == 1).all()) else ratios  # some conventions do not count entries

    def _train(self, gp, X: Tensor, Y: Tensor, ratios: Tensor | None, observed: Tensor) -> None:
        if ratios is not None:
            raise OptionError(
                'hyperparameters="evidence" is not supported with normalization="per_sample" and missing pairs, which fix the noise of each row. Use normalization="fixed" or "pooled".'
            )
        tasks, options = torch.from_numpy(self.tasks_), {"verbose": self.verbose, "restarts": self.restarts}
        if bool(torch.isfinite(Y).all()):
            self.fit_report_ = train_on_grid(gp, X, tasks, Y, **options)
        else:
            gp.fit(make_pairs(X, tasks), Y.flatten(0, 1), random_state=0, **options)
            self.fit_report_ = gp.fit_report_
        self.scale_ = gp.kernel.outputscale.item()
        noise = gp.noise.item() / self.scale_
        # the noise is proportional to λ in every convention
        self.lam_ = self.lam_ * noise / self.noise_
        self.noise_ = noise
        gp.requires_grad_(False)

    def _condition(self, gp, X: Tensor, Y: Tensor, ratios: Tensor | None) -> None:
        tasks, self.gp_ = torch.from_numpy(self.tasks_), gp
        vars(self).pop("_coefficients", None)  # of an earlier fit with another loss
        self._problem = gp.kernel, gp.noise.item(), X, Y, ratios
        if bool(torch.isfinite(Y).all()):
            self.posterior_ = condition_on_grid(gp, X, tasks, Y)
            return
        noise = None if ratios is None else (gp.noise * ratios)[:, None, None].expand(Y.shape).flatten(0, 1)
        self.posterior_ = gp.condition(make_pairs(X, tasks), Y.flatten(0, 1), noise=noise)

    def _best_scale(self, Y: Tensor) -> float:
        """Return yᵀ (K + σ²)⁻¹ y / N, which maximizes the evidence (LT §6.0)."""
        observed = torch.isfinite(Y)
        rows = observed.any(-1)  # the posterior omits pairs without observed entries
        return float((torch.nan_to_num(Y[rows]) * self.posterior_.solver.alpha).sum() / observed.sum())

    def predict(self, X, tasks=None, return_std=False, noise=True):
        """Predict the posterior mean.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        tasks : array-like of shape (T', q) or (T',), or None, default=None
            Points of the space of tasks. If None, those of the fit.
        return_std : bool, default=False
            Whether to also return the standard deviation.
        noise : bool, default=True
            Whether the standard deviation includes the noise of a new observation.

        Returns
        -------
        mean : ndarray of shape (m, T', p)
            Posterior mean; in the layout of y if `tasks` is None.
        std : ndarray of the same shape
            Standard deviation, if `return_std`.
        """
        check_is_fitted(self, "posterior_")
        X = self._inputs(X)
        points = torch.from_numpy(self._points(tasks))
        mean, variance = self._latent(X, points, "diag" if return_std else "none")
        mean = self._shaped(mean.numpy() + self.offset_, tasks)
        if not return_std:
            return mean
        variance = variance + self._noise_variances() if noise else variance
        return mean, self._shaped(variance.sqrt().numpy(), tasks)

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict mean, standard deviation and quantiles of each task and output; predictions are Gaussian."""
        request.reject_options("a regressor", "costs")
        check_is_fitted(self, "posterior_")
        if isinstance(self.posterior_, ModePosterior) and self.posterior_.likelihood is None:
            return super().prediction_columns(X, request)
        found = self.predict(X, return_std=True, noise=not request.latent)
        mean, std = (values.reshape(len(values), -1) for values in found)
        if isinstance(self.posterior_, ModePosterior) and request.levels:
            pairs = make_pairs(self._inputs(X), torch.from_numpy(self.tasks_))
            quantiles = (
                self.posterior_.predict(pairs, "diag", noise=not request.latent).quantile(request.levels).numpy()
            )
            quantiles = (quantiles + self.offset_).reshape(len(request.levels), *mean.shape)
        else:
            quantiles = mean + norm.ppf(request.levels).reshape(-1, 1, 1) * std
        return request.name_columns(self.output_names_, mean, std, quantiles)

    def _noise_variances(self) -> Tensor:
        """Return the noise variance (p,) of a new observation."""
        posterior = self.posterior_
        if isinstance(posterior, ModePosterior):
            return posterior.likelihood.noise_covariance().diagonal()
        return posterior.output_noise.diagonal()

    def _inputs(self, X) -> Tensor:
        return torch.tensor(input_table(self, X, reset=False), dtype=torch.float64)  # a copy: frames are read-only

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the training rows X (n, d) and Y (n, T·p); None if some were missing, which are stored as pairs (x, θ)."""
        check_is_fitted(self, "posterior_")
        posterior = self.posterior_
        if isinstance(posterior, ModePosterior) and bool(torch.isfinite(self._problem[3]).all()):
            return self._problem[2].numpy(), (self._problem[3].numpy() + self.offset_).reshape(
                len(self._problem[2]), -1
            )
        if not isinstance(posterior, GridPosterior):
            return None
        Y = posterior.data.Y.numpy() + self.offset_
        return posterior.inputs.numpy(), Y.reshape(len(posterior.inputs), -1)

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, scale, noise and the parameters of the kernel."""
        return [*super().list_parameters(), *list_gp_parameters(self, self.noise_ * self.scale_)]

    def _facts(self) -> dict[str, str | None]:
        own = {"Prior mean": describe_mean(self.gp_.mean, self.offset_), "Approximation": EXACT_KERNEL}
        return super()._facts() | own

    def _latent(self, X: Tensor, tasks: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Return mean and variance (m, T', p), computed in chunks of rows."""
        if isinstance(self.posterior_, GridPosterior):
            size = max(1, self.posterior_.max_chunk_rows(form) // len(tasks))
            means, variances = zip(*(self.posterior_.on_grid(part, tasks, form) for part in X.split(size)), strict=True)
            return torch.cat(means), None if form == "none" else torch.cat(variances)
        prediction = self.posterior_.predict(make_pairs(X, tasks), form)
        shape = len(X), len(tasks), -1
        return prediction.mean.reshape(shape), None if form == "none" else prediction.std.square().reshape(shape)

    def _validate_by_task(self, X, y) -> tuple[np.ndarray, np.ndarray]:
        """Check the data; return X (n, d) and Y (n, T, p) in float64."""
        tensor = _as_tensor(y)
        X, Y = self._enter(X, y if tensor is None else tensor.reshape(len(tensor), int(np.prod(tensor.shape[1:]))))
        self._is_tensor = tensor is not None
        shape = Y.shape if tensor is None else tensor.shape
        self.tasks_ = check_tasks(self.tasks, shape[1])
        if self._is_tensor and shape[1] != len(self.tasks_):
            raise InputError(
                f"y has shape (n, {shape[1]}, {shape[2]}), expected {len(self.tasks_)} tasks along its second axis."
            )
        return X, split_tasks(Y.astype(np.float64), len(self.tasks_))

    def _points(self, tasks) -> np.ndarray:
        if tasks is None:
            return self.tasks_
        points = check_tasks(tasks, 0)
        if points.shape[1] != self.tasks_.shape[1]:
            raise InputError(f"tasks must have {self.tasks_.shape[1]} column(s) as in the fit, got {points.shape[1]}.")
        return points

    def _shaped(self, values: np.ndarray, tasks) -> np.ndarray:
        if tasks is not None or self._is_tensor:
            return values
        return self._flat(values.reshape(len(values), -1))

    def score(self, X, y, sample_weight=None) -> float:
        """Return R² of the observed entries of each output at each task, averaged over outputs and tasks."""
        tensor = _as_tensor(y)
        return super().score(
            X, y if tensor is None else tensor.reshape(len(tensor), int(np.prod(tensor.shape[1:]))), sample_weight
        )


def _as_tensor(y) -> np.ndarray | None:
    """Return y (n, T, p) as an array; None for a table or a column."""
    values = as_array(y)
    array = None if values is None or hasattr(values, "columns") else np.asarray(values)
    return array if array is not None and array.ndim == 3 else None


def check_tasks(tasks, num_columns: int) -> np.ndarray:
    """Return points (T, q) from points (T,) or (T, q); if None, 0, 1, … for each column of Y."""
    if tasks is None:
        return np.arange(float(num_columns))[:, None]
    points = as_numbers(as_array(tasks), "tasks")
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.size == 0 or not np.isfinite(points).all():
        raise InputError(f"tasks must be finite points of shape (T,) or (T, q), got {np.shape(tasks)}.")
    return points


def split_tasks(Y: np.ndarray, num_tasks: int) -> np.ndarray:
    """Reshape Y (n, T·p), task-major, to (n, T, p)."""
    if Y.shape[1] % num_tasks:
        raise InputError(
            f"Y has {Y.shape[1]} columns, expected a multiple of {num_tasks} tasks. Pass (n, T, p), or (n, T·p) with the p outputs of the first task first."
        )
    return Y.reshape(len(Y), num_tasks, -1)


def make_output_matrix(option, Y: np.ndarray) -> Tensor:
    """Make A (p, p) from "identity", a rank r (V J_r Vᵀ with the eigenvectors V of YᵀY, LT-102) or a matrix."""
    p = Y.shape[-1]
    if isinstance(option, str):
        return torch.eye(p, dtype=torch.float64)
    if isinstance(option, Integral) and not isinstance(option, bool):
        if not 1 <= option <= p:
            raise OptionError(f"The rank of output_matrix must be 1 to {p}, the number of outputs, got {option}.")
        _, vectors = np.linalg.eigh(second_moments(Y))
        leading = vectors[:, -int(option) :]
        return torch.from_numpy(leading @ leading.T)
    return _check_matrix(option, p)


def second_moments(Y: np.ndarray) -> np.ndarray:
    """Compute uncentered mean products (p, p) over the observed entries of Y (n, T, p)."""
    rows = Y.reshape(-1, Y.shape[-1])
    observed = np.isfinite(rows).astype(float)
    rows = np.where(observed > 0, rows, 0.0)
    return rows.T @ rows / np.maximum(observed.T @ observed, 1.0)


def _check_matrix(option, p: int) -> Tensor:
    matrix = as_numbers(as_array(option), "output_matrix")
    if matrix.shape != (p, p):
        raise InputError(f"output_matrix has shape {matrix.shape}, expected ({p}, {p}) for {p} outputs per task.")
    scale = np.abs(matrix).max()
    if not np.isfinite(scale) or np.abs(matrix - matrix.T).max() > 1e-8 * scale:
        raise InputError("output_matrix must be finite and symmetric.")
    if np.linalg.eigvalsh(matrix)[0] < -1e-8 * scale:
        raise InputError("output_matrix must be positive semi-definite, but has a negative eigenvalue.")
    return torch.from_numpy((matrix + matrix.T) / 2)


def make_pair_kernel(options, X: Tensor, tasks: Tensor, matrix: Tensor) -> DecomposableKernel:
    """Make k_X(x, x') k_Θ(θ, θ') A on pairs, in float64 and not trained, with median distances of X and tasks."""
    inputs = task_kernel(options.kernel, options.lengthscale, X)
    over_tasks = task_kernel(options.task_kernel, options.task_lengthscale, tasks, "task_kernel")
    q = tasks.shape[1]
    if q > 1 and over_tasks.ard_num_dims != q:
        if isinstance(options.task_kernel, Kernel):
            raise InputError(f"task_kernel must have ard_num_dims={q} for tasks with {q} columns.")
        # a function-valued kernel infers the number of task columns from the lengthscales
        lengthscales = np.full(q, over_tasks.lengthscale.item())
        over_tasks = task_kernel(options.task_kernel, lengthscales, tasks, "task_kernel")
    kernel = DecomposableKernel(FunctionValuedKernel(inputs, over_tasks), output_matrix=matrix)
    return kernel.double().requires_grad_(False)


def make_pair_gp(kernel: Kernel, noise: float, scale: float, *, trained: bool) -> OperatorValuedGP:
    """Make the model s² (K, σ²) with mean zero and shared noise, `trained` or not; A is never trained."""
    gp = OperatorValuedGP(scale_kernel(kernel, scale), mean="zero", noise="shared" if trained else noise * scale)
    if trained:
        gp.noise_model.set(noise * scale)
    gp.kernel.requires_grad_(trained)
    return gp
