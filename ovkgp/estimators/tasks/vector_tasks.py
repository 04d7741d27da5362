"""Vectors at every point of a space of tasks: style transfer as a Gaussian process (vITL, LT-100..104)."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.estimators.common.base import TableRegressor
from ovkgp.estimators.common.options import all_or_nothing, check_convention, check_lam, check_option, noise_of
from ovkgp.estimators.common.task_options import check_kernel, task_kernel
from ovkgp.estimators.common.validation import as_array, input_table, numbers
from ovkgp.estimators.ridge.base import positive, scaled_kernel
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.tasks.functional_ridge_grid import GridPosterior, condition_on_grid, pairs, train_on_grid
from ovkgp.inference.tasks.solvers.square import NORMALISATIONS
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel


def task_points(tasks, num_columns: int) -> np.ndarray:
    """The tasks (T, q) of an option: points (T,) or (T, q), or 0, 1, … for each column of Y where it is None.

    Example:
        >>> from ovkgp.estimators.tasks.vector_tasks import task_points
        >>> task_points(None, 3).tolist()
        [[0.0], [1.0], [2.0]]
    """
    if tasks is None:
        return np.arange(float(num_columns))[:, None]
    points = numbers(as_array(tasks), "tasks")
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.size == 0 or not np.isfinite(points).all():
        raise InputError(f"tasks must be finite points of shape (T,) or (T, q), got {np.shape(tasks)}.")
    return points


def by_task(Y: np.ndarray, num_tasks: int) -> np.ndarray:
    """Y (n, T·p), task-major, as (n, T, p)."""
    if Y.shape[1] % num_tasks:
        raise InputError(
            f"Y has {Y.shape[1]} columns for {num_tasks} tasks: give (n, T, p), or (n, T·p) with the p outputs of the first task first."
        )
    return Y.reshape(len(Y), num_tasks, -1)


def second_moments(Y: np.ndarray) -> np.ndarray:
    """YᵀY over its observed entries, (p, p): uncentred means of products, of Y (n, T, p)."""
    rows = Y.reshape(-1, Y.shape[-1])
    observed = np.isfinite(rows).astype(float)
    rows = np.where(observed > 0, rows, 0.0)
    return rows.T @ rows / np.maximum(observed.T @ observed, 1.0)


def output_matrix(option, Y: np.ndarray) -> Tensor:
    """A (p, p): "identity"; a rank r, for V J_r Vᵀ with the eigenvectors V of YᵀY (LT-102); or a matrix.

    Args:
        option: as above.
        Y: (n, T, p), NaN where missing.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.tasks.vector_tasks import output_matrix
        >>> output_matrix(1, np.array([[[3.0, 0.0]], [[1.0, 0.0]]]))
        tensor([[1., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    p = Y.shape[-1]
    if isinstance(option, str):
        if option != "identity":
            raise OptionError(f'output_matrix must be "identity", a rank or a ({p}, {p}) matrix; got {option!r}.')
        return torch.eye(p, dtype=torch.float64)
    if isinstance(option, Integral) and not isinstance(option, bool):
        if not 1 <= option <= p:
            raise OptionError(f"the rank of the output matrix must be 1 to {p}, the number of outputs; got {option}.")
        _, vectors = np.linalg.eigh(second_moments(Y))
        leading = vectors[:, -int(option) :]
        return torch.from_numpy(leading @ leading.T)
    return _matrix(option, p)


def _matrix(option, p: int) -> Tensor:
    matrix = numbers(as_array(option), "output_matrix")
    if matrix.shape != (p, p):
        raise InputError(f"output_matrix must be ({p}, {p}), for {p} outputs a task; got {matrix.shape}.")
    scale = np.abs(matrix).max()
    if not np.isfinite(scale) or np.abs(matrix - matrix.T).max() > 1e-8 * scale:
        raise InputError("output_matrix must be finite and symmetric.")
    if np.linalg.eigvalsh(matrix)[0] < -1e-8 * scale:
        raise InputError("output_matrix must be positive semi-definite: it has a negative eigenvalue.")
    return torch.from_numpy((matrix + matrix.T) / 2)


def pair_kernel(options, X: Tensor, tasks: Tensor, matrix: Tensor) -> DecomposableKernel:
    """k_X(x, x') k_Θ(θ, θ') A on pairs, in float64, nothing of it trained.

    Args:
        options: an estimator, for `kernel`, `lengthscale`, `task_kernel` and `task_lengthscale`.
        X: (n, d), between which a median distance is measured.
        tasks: (T, q), likewise.
        matrix: A (p, p).

    Example:
        >>> import torch
        >>> import ovkgp
        >>> from ovkgp.estimators.tasks.vector_tasks import pair_kernel
        >>> X, tasks = torch.randn(6, 2).double(), torch.randn(4, 2).double()
        >>> kernel = pair_kernel(ovkgp.VectorTaskRegressor(), X, tasks, torch.eye(3).double())
        >>> kernel(torch.cat([X[:4], tasks], 1)).shape  # four pairs, three outputs
        torch.Size([12, 12])
    """
    inputs = task_kernel(options.kernel, options.lengthscale, X)
    over_tasks = task_kernel(options.task_kernel, options.task_lengthscale, tasks, "task_kernel")
    q = tasks.shape[1]
    if q > 1 and over_tasks.ard_num_dims != q:
        over_tasks = _one_a_column(options.task_kernel, over_tasks, tasks)
    kernel = DecomposableKernel(FunctionValuedKernel(inputs, over_tasks), output_matrix=matrix)
    return kernel.double().requires_grad_(False)


def _one_a_column(option, kernel: Kernel, tasks: Tensor) -> Kernel:
    """The same kernel with a lengthscale for each column, by which a function-valued kernel knows how many are the task."""
    q = tasks.shape[1]
    if isinstance(option, Kernel):
        raise InputError(f"tasks have {q} columns: make the task kernel with ard_num_dims={q}.")
    return task_kernel(option, np.full(q, kernel.lengthscale.item()), tasks, "task_kernel")


def pair_gp(kernel: Kernel, noise: float, scale: float, *, trained: bool) -> OperatorValuedGP:
    """The model s² (K, σ²): mean zero, one noise for all.

    Args:
        kernel: of `pair_kernel`.
        noise, scale: σ² and s².
        trained: whether lengthscales, s² and s²σ² are to be trained; A is not.
    """
    gp = OperatorValuedGP(scaled_kernel(kernel, scale), mean="zero", noise="shared" if trained else noise * scale)
    if trained:
        gp.noise_model.set(noise * scale)
        gp.kernel.requires_grad_(True)
    else:
        gp.kernel.requires_grad_(False)
    return gp


def outputscale(gp: OperatorValuedGP) -> float:
    """s² of a `pair_gp`."""
    return gp.kernel.outputscale.item()


LEARNING = ("fixed", "evidence")
SCALES = ("evidence", "given")


class VectorTaskRegressor(TableRegressor):
    """Learn x ↦ (θ ↦ vector) from vectors at some tasks θ, and predict at any task, with the uncertainty (LT-100).

        min_h (1/nT) Σ_ij ½ ‖y_ij − h(x_i)(θ_j)‖² + (λ/2) ‖h‖²,      K((x, θ), (x', θ')) = k_X(x, x') k_Θ(θ, θ') A

    is the posterior mean of a Gaussian process with noise λnT. Its standard deviation needs a scale that λ does not say: (s²K, s²σ²)
    has the same mean for every s², and the evidence is largest at s² = yᵀ(K + σ²)⁻¹y / N.

    Args:
        tasks: θ, (T,) or (T, q) points of the space of tasks; None for the columns of Y at 0, 1, 2, ….
        kernel: k_X: "rbf", "matern12", "matern32", "matern52", "rq", "laplace" or a scalar GPyTorch kernel.
        lengthscale: of a kernel by name: "median", a number, or one a column.
        task_kernel, task_lengthscale: k_Θ, likewise; an object for q > 1 needs ard_num_dims=q.
        output_matrix: A: "identity", a rank r (the projection on the r leading eigenvectors of YᵀY, LT-102), or a (p, p) matrix.
        lam: λ > 0.
        convention: what λ means; "samples" is the objective above, with pairs (x_i, θ_j) as samples. See
            `ovkgp.estimators.common.options`.
        normalisation: what a missing pair does to the noise: "fixed" (λnT, as if it were there), "pooled" (λ times the pairs that
            are), "per_sample" (λn times those in the row) (LT-75).
        fit_intercept: take the mean of each output, over rows and tasks, away first. The papers do not, but between distant tasks a mean of
            zero shows: for values that are far from it, such as landmarks, it is better.
        scale: "evidence" for s² above, "given" for 1.
        hyperparameters: "fixed", or "evidence" to train lengthscales, s² and noise from there; `lam_` is then what they imply.
        verbose: 1 shows a progress bar.

    X and tasks are taken as they are: columns of different units want one lengthscale each, or a `StandardScaler` before.

    Y is (n, T, p), or (n, T·p) with the p outputs of the first task first; NaN where missing, whole vectors or single entries. Rows
    for style transfer come from `single_rows` and `joint_rows` of `ovkgp.datasets.landmarks`, paths through the space of
    tasks from its `radial_tasks` and `angular_tasks`. Joint rows repeat each target T times: intervals from them are those of a composite
    likelihood, and too short.

    Attributes:
        tasks_: θ (T, q); output_matrix_: A (p, p).
        lam_, noise_, scale_: λ, σ² before the scale, s²; the noise of an entry is s²σ².
        missing_: the share of pairs (x_i, θ_j) that were not observed (LT-E-40).
        gp_: the `OperatorValuedGP` on pairs (x, θ), and posterior_, its posterior, which can be asked at any pairs.
        fit_report_: of the training; None where nothing was trained.
        offset_: the intercept (p,).
        n_outputs_, output_names_, n_features_in_, feature_names_in_.

    Cost: O(n³ + T³ + p³ + nTp (n + T + p)) time where nothing is missing; nothing of size nT × nT is formed. With missing pairs
    O(N³ + p³) for N observed pairs. Single entries missing: O((Np)³) up to 5000 of them, conjugate gradients beyond.

    Example:
        The face of a person at an emotion that it was never seen at (style transfer):

        >>> import ovkgp
        >>> from ovkgp.datasets import make_landmarks
        >>> from ovkgp.datasets.landmarks import radial_tasks, single_rows
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
        normalisation="fixed",
        fit_intercept=False,
        scale="evidence",
        hyperparameters="fixed",
        verbose=0,
    ):
        self.tasks = tasks
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.task_kernel = task_kernel
        self.task_lengthscale = task_lengthscale
        self.output_matrix = output_matrix
        self.lam = lam
        self.convention = convention
        self.normalisation = normalisation
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.hyperparameters = hyperparameters
        self.verbose = verbose

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y) -> VectorTaskRegressor:
        """Fit to X (n, d) and y (n, T, p), (n, T·p), or (n,) for one task and one output; NaN where missing."""
        with all_or_nothing(self):
            self._require_options()
            X, Y = self._enter_by_task(X, y)
            observed = np.isfinite(Y).any(-1)
            self.missing_ = float(1 - observed.mean())
            rows = observed.any(1)
            X, Y, observed = torch.from_numpy(X[rows]).double(), torch.from_numpy(Y[rows]), observed[rows]
            self.offset_ = np.nanmean(Y.numpy(), (0, 1)) if self.fit_intercept else np.zeros(Y.shape[-1])
            Y = Y - torch.from_numpy(self.offset_)
            matrix = output_matrix(self.output_matrix, Y.numpy())
            kernel = pair_kernel(self, X, torch.from_numpy(self.tasks_), matrix)
            self.output_matrix_ = matrix.numpy()
            self._settle(kernel, X, Y, torch.from_numpy(observed))
        return self

    def _settle(self, kernel, X: Tensor, Y: Tensor, observed: Tensor) -> None:
        """σ², s², the model and its posterior."""
        self.lam_, self.fit_report_ = float(check_lam(self.lam)[0]), None
        self.noise_, ratios = self._noise(observed)
        self.scale_ = 1.0
        self._condition(pair_gp(kernel, self.noise_, 1.0, trained=False), X, Y, ratios)
        trains = self.hyperparameters == "evidence"
        if self.scale == "evidence" or trains:
            self.scale_ = positive(self._best_scale(Y), Y.numpy())
            gp = pair_gp(kernel, self.noise_, self.scale_, trained=trains)
            if trains:
                self._train(gp, X, Y, ratios, observed)
            self._condition(gp, X, Y, ratios)

    def _noise(self, observed: Tensor) -> tuple[float, Tensor | None]:
        """σ² and, where it is not the same in all rows, the noise of each as a multiple (n,) of σ²."""
        n, num_tasks = observed.shape
        counts = {"fixed": n * num_tasks, "pooled": int(observed.sum()), "per_sample": n * num_tasks}
        noise = noise_of(self.lam_, self.convention, n, counts[self.normalisation])
        if self.normalisation != "per_sample" or bool(observed.all()):
            return noise, None
        each = [noise_of(self.lam_, self.convention, n, n * int(count)) for count in observed.sum(1)]
        ratios = torch.tensor(each, dtype=torch.float64) / noise
        return noise, None if bool((ratios == 1).all()) else ratios  # some conventions do not count entries

    def _train(self, gp, X: Tensor, Y: Tensor, ratios: Tensor | None, observed: Tensor) -> None:
        if ratios is not None:
            raise OptionError(
                'the noise of each row is known with normalisation="per_sample", and is not trained: use "fixed" or "pooled".'
            )
        tasks = torch.from_numpy(self.tasks_)
        if bool(torch.isfinite(Y).all()):
            self.fit_report_ = train_on_grid(gp, X, tasks, Y, verbose=self.verbose)
        else:
            gp.fit(pairs(X, tasks), Y.flatten(0, 1), start="current", verbose=self.verbose)
            self.fit_report_ = gp.fit_report_
        self.scale_ = outputscale(gp)
        noise = gp.noise.item() / self.scale_
        self.lam_, self.noise_ = (
            self.lam_ * noise / self.noise_,
            noise,
        )  # the noise is proportional to λ in every convention
        gp.requires_grad_(False)

    def _condition(self, gp, X: Tensor, Y: Tensor, ratios: Tensor | None) -> None:
        tasks, self.gp_ = torch.from_numpy(self.tasks_), gp
        if bool(torch.isfinite(Y).all()):
            self.posterior_ = condition_on_grid(gp, X, tasks, Y)
            return
        noise = None if ratios is None else (gp.noise * ratios)[:, None, None].expand(Y.shape).flatten(0, 1)
        self.posterior_ = gp.condition(pairs(X, tasks), Y.flatten(0, 1), noise=noise)

    def _best_scale(self, Y: Tensor) -> float:
        """yᵀ (K + σ²)⁻¹ y / N, where the evidence is largest (LT §6.0)."""
        observed = torch.isfinite(Y)
        rows = observed.any(-1)  # the posterior leaves out pairs of which nothing was seen
        return float((torch.nan_to_num(Y[rows]) * self.posterior_.solver.alpha).sum() / observed.sum())

    # --- asking -----------------------------------------------------------------------------------------------------

    def predict(self, X, tasks=None, return_std=False, noise=True):
        """The posterior mean at X (m, d) and tasks.

        Args:
            tasks: points (T', q) or, for q = 1, (T',), for an answer (m, T', p); None for those of the fit, in the layout that y had.
            return_std: also the standard deviation, of the same shape.
            noise: of a new observation (True), or of the latent function (False).
        """
        check_is_fitted(self, "posterior_")
        X = torch.tensor(input_table(self, X, reset=False), dtype=torch.float64)  # a copy: frames are read-only
        points = torch.from_numpy(self._points(tasks))
        mean, variance = self._latent(X, points, "diag" if return_std else "none")
        mean = self._shaped(mean.numpy() + self.offset_, tasks)
        if not return_std:
            return mean
        variance = variance + self.posterior_.output_noise.diagonal() if noise else variance
        return mean, self._shaped(variance.sqrt().numpy(), tasks)

    def _latent(self, X: Tensor, tasks: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Mean and variance (m, T', p), a few rows at a time."""
        if isinstance(self.posterior_, GridPosterior):
            size = max(1, self.posterior_.rows_at_once(form) // len(tasks))
            means, variances = zip(*(self.posterior_.on_grid(part, tasks, form) for part in X.split(size)), strict=True)
            return torch.cat(means), None if form == "none" else torch.cat(variances)
        prediction = self.posterior_.predict(pairs(X, tasks), form)
        shape = len(X), len(tasks), -1
        return prediction.mean.reshape(shape), None if form == "none" else prediction.std.square().reshape(shape)

    def save(self, path) -> None:
        """Write the fitted model to one file; `ovkgp.load(path)` gives it back, equal to the bit. See `OVKRidge.save`."""
        from ovkgp.estimators.storage.storage import save  # which makes regressors, and so imports this module

        save(self, path)

    # --- shapes and options -----------------------------------------------------------------------------------------

    def _enter_by_task(self, X, y) -> tuple[np.ndarray, np.ndarray]:
        """X (n, d) and Y (n, T, p), float64."""
        tensor = _tensor(y)
        X, Y = self._enter(X, y if tensor is None else tensor.reshape(len(tensor), -1))
        self._is_tensor = tensor is not None
        shape = Y.shape if tensor is None else tensor.shape
        self.tasks_ = task_points(self.tasks, shape[1])
        if self._is_tensor and shape[1] != len(self.tasks_):
            raise InputError(
                f"y is (n, {shape[1]}, {shape[2]}) for {len(self.tasks_)} tasks: its second axis is the tasks."
            )
        return X, by_task(Y.astype(np.float64), len(self.tasks_))

    def _points(self, tasks) -> np.ndarray:
        if tasks is None:
            return self.tasks_
        points = task_points(tasks, 0)
        if points.shape[1] != self.tasks_.shape[1]:
            raise InputError(
                f"tasks have {points.shape[1]} column(s); the model was fitted with {self.tasks_.shape[1]}."
            )
        return points

    def _shaped(self, values: np.ndarray, tasks) -> np.ndarray:
        if tasks is not None or self._is_tensor:
            return values
        return self._flat(values.reshape(len(values), -1))

    def score(self, X, y, sample_weight=None) -> float:
        """R² over the observed entries of each output at each task, averaged over them."""
        tensor = _tensor(y)
        return super().score(X, y if tensor is None else tensor.reshape(len(tensor), -1), sample_weight)

    def _require_options(self) -> None:
        for name in ("kernel", "task_kernel"):
            check_kernel(self, name)
        check_convention(self.convention)
        if len(check_lam(self.lam)) > 1:
            raise OptionError(
                'lam must be one number; choose among several by cross-validation or hyperparameters="evidence".'
            )
        check_option("normalisation", self.normalisation, NORMALISATIONS)
        check_option("scale", self.scale, SCALES)
        check_option("hyperparameters", self.hyperparameters, LEARNING)


def _tensor(y) -> np.ndarray | None:
    """y (n, T, p) as an array; None where it is a table or a column."""
    values = as_array(y)
    array = None if values is None or hasattr(values, "columns") else np.asarray(values)
    return array if array is not None and array.ndim == 3 else None
