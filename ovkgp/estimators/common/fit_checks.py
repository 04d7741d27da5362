"""Problems of a fitted estimator that a user should know of: one list for warnings of `fit`, `summary()` and the report."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from linear_operator import to_dense

from ovkgp.estimators.common.formatting import quote_names
from ovkgp.estimators.common.named_kernels import FIELDS, is_linear
from ovkgp.estimators.common.summary import ColumnNames, list_active_bounds, pluralize
from ovkgp.exceptions import FitWarning
from ovkgp.features.operators import FeatureOperator, StackedFeatures
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.stacking.stack import CandidateScore, StackPosterior
from ovkgp.kernels import IndependentKernel
from ovkgp.kernels.evaluation import evaluate_kernel, squared_distances

MAX_NOISE_FRACTION = 0.95  # noise above this fraction of the variance of an output leaves nothing to the function
MAX_NEIGHBOR_RATIO = (
    0.5  # mean squared difference of neighbors over twice the variance: 1 for noise, 0 for a smooth function
)
MIN_NEIGHBOR_ROWS = 20  # rows that the ratio needs
MAX_NEIGHBOR_ROWS = 1000  # rows between which neighbors are searched
MAX_NOISE_RATIO = 4.0  # noise variance over that between neighbors, which is at least the noise of a good model
MIN_UNEXPLAINED_FRACTION = 0.5  # leave-one-out error over the variance of an output that a field cannot represent
MAX_RESOLVED_FRACTION = 0.55  # effective rank of the prior at the inputs, relative to the number of features
MAX_RANK_ENTRIES = 600  # rows times outputs from which the effective rank is estimated
MIN_OUTPUT_DIFFERENCE = 1e-10  # 1 − r² of outputs that are multiples of each other
MIN_COPIED_FRACTION, MIN_COPIES = (
    0.05,
    10,
)  # copies of other rows that are reported: this fraction, or this number if less
ONE_ROW = "There is only one training row: predictions elsewhere are those of the prior. Add rows, or check how they were selected."
MIN_REPORTED_WEIGHT = 0.05  # weight of the candidates of a mixture whose training is checked
MIN_ROWS_PER_INPUT = 2  # rows that are needed to tell which inputs matter


@np.errstate(over="ignore", invalid="ignore")  # variances of outputs beyond 1e±154
def list_fit_problems(estimator) -> list[str]:
    """List what is wrong with the fit of a `GPRegressor`, as sentences: what `fit` warns of.

    Training without convergence, active bounds, few rows, features that are too few for the lengthscale, copied rows and outputs,
    signals taken for noise, and outputs that the prior cannot represent. Complexity: O(n log n), and O(1000²·d) for neighbors.
    """
    found = [*list_training_problems(estimator), *_active_bounds(estimator)]
    found += [*_few_rows(estimator), *_unresolved_lengthscales(estimator)]
    if (data := _stored_observations(estimator)) is None:
        return found
    X, Y = data.X.numpy(), data.Y.numpy()
    found += list_copied_rows(X, Y)
    if estimator.noise_ is None:
        return found
    missed = _missed_signals(estimator, X, Y)
    unrepresented = [] if missed else _unrepresented_outputs(estimator, data)
    return [*found, *_copied_outputs(estimator, Y), *missed, *unrepresented]


def list_fit_notes(estimator) -> list[str]:
    """List what a user of any fitted estimator may want to know, of which `fit` does not warn.

    Few rows for the number of inputs, outputs without signal, and hyperparameters whose draws were replaced by their mode.
    """
    return [*_few_rows_per_input(estimator), *_noisy_outputs(estimator), *_replaced_draws(estimator)]


def list_training_problems(estimator) -> list[str]:
    """List why the training of any estimator ended early: for a mixture, of all candidates with a weight of at least 5 %."""
    if (report := estimator.fit_report) is None:
        return []
    if report.interrupted:
        return ["Training was interrupted; the best parameters so far are kept. Fit again to complete it."]
    scores = _heavy_candidates(estimator)
    if names := [name for name, score in scores.items() if not score.report.converged]:
        subject = "the candidate" if len(names) == 1 else "the candidates"
        return [
            f"Training of {subject} {quote_names(names)} did not converge; other values may fit better. Check the data for extreme scales, or use restarts=3."
        ]
    if scores or report.converged:
        return []
    reason = report.messages[0]
    return [f"Training did not converge ({reason}); other values may fit better. Fit again with more iterations."]


def list_copied_rows(X: np.ndarray, Y: np.ndarray, num_rows: int | None = None) -> list[str]:
    """Report rows of X (n, d), Y (n, p) that are copies, unless rows with equal inputs differ, as repeated measurements and labels do.

    They are at least 5 % of the rows or at least 10. `num_rows` is the number of rows before copies were merged; None is n.
    """
    rows = np.c_[X, np.nan_to_num(Y, nan=np.inf)]
    num_distinct, num_inputs = (len(np.unique(part, axis=0)) for part in (rows, X))
    num_rows = len(rows) if num_rows is None else num_rows
    num_copies = num_rows - num_distinct
    if num_copies < max(1, min(MIN_COPIED_FRACTION * num_rows, MIN_COPIES)) or num_distinct > num_inputs:
        return []
    verb = "is an exact copy of another" if num_copies == 1 else "are exact copies of others"
    return [
        f"{pluralize(num_copies, 'row')} of {num_rows} {verb}, which the model takes for independent observations, so that it is overconfident. Remove copies (a join may have made them)."
    ]


def warn_about_rows(X: np.ndarray, Y: np.ndarray) -> None:
    """Warn if there is only one row of X (n, d) and Y (n, ...), NaN where missing, or if many rows are exact copies of others."""
    found = [ONE_ROW] if len(X) == 1 else list_copied_rows(X, np.reshape(Y, (len(X), -1)))
    for message in found:
        warnings.warn(message, FitWarning, stacklevel=4)


def _heavy_candidates(estimator) -> dict[str, CandidateScore]:
    """Return the scores of the candidates of a mixture with a weight of at least 5 %, by name, if they have reports."""
    is_stack = isinstance(getattr(estimator, "posterior_", None), StackPosterior)
    scores = estimator.candidates_ if is_stack else {}
    return {name: one for name, one in scores.items() if one.weight >= MIN_REPORTED_WEIGHT and one.report is not None}


def _stored_observations(estimator) -> Observations | None:
    """Return the training rows in standardized units; a variational model that was loaded has none."""
    data = estimator.training_observations()
    return getattr(estimator.gp_, "observations_", None) if data is None else data


def _active_bounds(estimator) -> list[str]:
    """Report hyperparameters at a bound; those of other candidates than that of `gp_` with the name of the candidate."""
    names, report = ColumnNames.of(estimator), estimator.fit_report_
    found = [] if report is None else list_active_bounds(estimator.gp_, report.active_bounds, names)
    if heavy := _heavy_candidates(estimator):
        shown = next(iter(estimator.candidates_))
        found = found if shown in heavy else []
        for candidate in estimator.posterior_.candidates:
            if candidate.name != shown and candidate.name in heavy and heavy[candidate.name].report.active_bounds:
                gp = candidate.make_gp(len(names.inputs), len(names.outputs))
                own = list_active_bounds(gp, heavy[candidate.name].report.active_bounds, names)
                found += [f"{text} in the candidate '{candidate.name}'" for text in own]
    if not found:
        return []
    return [
        f"Training ended at a bound: {'; '.join(found)}. Check the outputs for duplicated or noise-free rows and the inputs for constant columns."
    ]


def _few_rows(estimator) -> list[str]:
    """Compare the number of observed values with that of trained hyperparameters, per output if outputs are independent."""
    counts, gp = np.asarray(estimator._num_observed), estimator.gp_
    if counts.max() == 1:
        return [ONE_ROW]
    if estimator.fit_report_ is None:
        return []
    trained = [raw for name, raw in gp.named_parameters() if raw.requires_grad and not name.startswith("features.")]
    is_independent = len(counts) == 1 or isinstance(gp.kernel, IndependentKernel)
    num_parameters, num_values = sum(raw.numel() for raw in trained), int(counts.sum())
    if is_independent:
        num_parameters, num_values = num_parameters // len(counts), int(counts.min())
    if num_values >= num_parameters:
        return []
    each = " of an output" if is_independent and len(counts) > 1 else ""
    return [
        f"The model has {num_parameters} hyperparameters and only {pluralize(num_values, 'observed value')}{each}, so that priors determine most of them. Add rows, or pass a kernel object with one lengthscale."
    ]


@torch.no_grad()
def _unresolved_lengthscales(estimator) -> list[str]:
    """Compare the number of scalar features with the effective rank 1 / mean ρ² of the correlations ρ between inputs."""
    statistics, features = getattr(estimator, "statistics_", None), getattr(estimator.gp_, "features", None)
    if statistics is None or features is None or is_linear(estimator.gp_.kernel):
        return []
    p, landmarks = estimator.n_outputs_, getattr(statistics, "parts", (statistics,))[0].landmarks.X.double()
    rows = landmarks[:: max(1, len(landmarks) * p // MAX_RANK_ENTRIES)]
    template = features(rows[:1])
    parts = template.parts if isinstance(template, StackedFeatures) else (template,)
    counts = [
        part.features.shape[-1] if isinstance(part, FeatureOperator) and part.is_separable else part.shape[-1]
        for part in parts
    ]
    num_features = max(counts) if isinstance(estimator.gp_.kernel, IndependentKernel) else sum(counts)
    rank = max(_effective_ranks(estimator.gp_.kernel, rows, p))
    if rank <= MAX_RESOLVED_FRACTION * num_features:
        return []
    return [
        f"The lengthscale is too short for {num_features} features: the function has about {rank:.0f} degrees of freedom at the inputs. Increase num_frequencies."
    ]


def _effective_ranks(kernel, X: torch.Tensor, num_outputs: int) -> list[float]:
    """Return 1 / mean ρ² over pairs of different rows for each output, ρ the prior correlation; 1 with one row."""
    n = len(X)
    if n < 2:
        return [1.0] * num_outputs
    covariance = to_dense(evaluate_kernel(kernel, X)).reshape(n, num_outputs, n, num_outputs)
    found = []
    for block in covariance.diagonal(dim1=1, dim2=3).permute(2, 0, 1):
        variances = block.diagonal().clamp_min(1e-300)
        squares = (block.square() / torch.outer(variances, variances)).fill_diagonal_(0.0)
        found.append(n * (n - 1) / max(float(squares.sum()), 1e-12))
    return found


def _copied_outputs(estimator, Y: np.ndarray) -> list[str]:
    """Name outputs of a coupled model that are multiples of another, including their noise."""
    if Y.shape[1] == 1 or isinstance(estimator.gp_.kernel, IndependentKernel):
        return []
    labels, pairs = estimator.output_labels(), []
    for a, b in zip(*np.triu_indices(Y.shape[1], 1), strict=True):
        both = np.isfinite(Y[:, [a, b]]).all(1)
        first, second = (Y[both, index] - Y[both, index].mean() for index in (a, b)) if both.sum() > 2 else ([], [])
        size = np.dot(first, first) * np.dot(second, second)
        if size > 0 and 1 - np.dot(first, second) ** 2 / size < MIN_OUTPUT_DIFFERENCE:
            pairs.append(quote_names([labels[a], labels[b]]))
    if not pairs:
        return []
    return [
        f"Outputs are exact multiples of each other ({'; '.join(pairs)}), so that coupled outputs take their noise for signal. Remove one of them."
    ]


def _unrepresented_outputs(estimator, data: Observations) -> list[str]:
    """Name outputs whose noise or, for a vector field, leave-one-row-out error is much larger than the differences of neighbors.

    A field that cannot represent the outputs may also fit them with a short lengthscale, without noise.
    """
    X, Y = data.X.numpy(), data.Y.numpy()
    errors, source, least = np.diag(estimator.noise_) / estimator.scaling_.output_scale**2, "noise", 0.0
    if estimator.kernel_ in FIELDS and estimator.approximation_ == "exact" and data.num_rows > 1:
        held_out = estimator.gp_.leave_one_out(data.X, data.Y, data.noise, groups="rows")
        errors = np.nanmean((data.Y - held_out.mean).numpy() ** 2, 0)
        source, least = (
            "leave-one-out error",
            MIN_UNEXPLAINED_FRACTION,
        )  # neighbors may be close and other rows far apart
    names = [
        name
        for a, name in enumerate(estimator.output_labels())
        if np.nanvar(Y[:, a]) > 0
        and errors[a] > least * np.nanvar(Y[:, a])
        and 0 < _neighbor_ratio(X, Y[:, a]) < errors[a] / (MAX_NOISE_RATIO * np.nanvar(Y[:, a]))
    ]
    if not names:
        return []
    return [
        f'The {source} of {quote_names(names)} is more than {MAX_NOISE_RATIO:.0f} times the variance between neighboring rows: the prior cannot represent the signal. Use kernel="auto", or other priors.'
    ]


def _missed_signals(estimator, X: np.ndarray, Y: np.ndarray) -> list[str]:
    """Name outputs that are called noise although neighbors have similar values."""
    names = [name for name, ratio in _find_noisy_outputs(estimator, X, Y) if ratio < MAX_NEIGHBOR_RATIO]
    if not names:
        return []
    verb = "is" if len(names) == 1 else "are"
    fix = "Rescale the inputs, or pass a kernel object with other priors."
    if estimator.kernel_ in FIELDS:
        fix = 'Use kernel="auto": the outputs may not be such a field.'
    return [f"{quote_names(names)} {verb} explained as noise, although neighboring rows have similar values. {fix}"]


def _noisy_outputs(estimator) -> list[str]:
    """Name outputs of which nearly all variation is noise, also for their neighbors."""
    if not isinstance(getattr(estimator, "noise_", None), np.ndarray):
        return []
    is_trained = isinstance(estimator.noise, str) and estimator.hyperparameters != "fixed"
    if not is_trained or (data := estimator.training_observations()) is None:
        return []
    found = _find_noisy_outputs(estimator, data.X.numpy(), data.Y.numpy())
    if not (names := [name for name, ratio in found if ratio >= MAX_NEIGHBOR_RATIO]):
        return []
    return [f"Nearly all variation of {quote_names(names)} is attributed to noise: the inputs explain little of it."]


def _find_noisy_outputs(estimator, X: np.ndarray, Y: np.ndarray) -> list[tuple[str, float]]:
    """Return outputs whose noise is nearly all of their variance, and their ratio of the differences of neighbors."""
    variances, noise = np.nanvar(Y, 0), np.diag(estimator.noise_) / estimator.scaling_.output_scale**2
    return [
        (name, _neighbor_ratio(X, Y[:, a]))
        for a, name in enumerate(estimator.output_labels())
        if variances[a] > 0 and noise[a] > MAX_NOISE_FRACTION * variances[a]
    ]


def _few_rows_per_input(estimator) -> list[str]:
    """Compare the number of rows with that of inputs that vary."""
    if estimator.kind not in ("table", "target") or (rows := estimator.training_data()) is None:
        return []
    X = np.asarray(rows[0])
    num_inputs = int((np.ptp(X, axis=0) > 0).sum()) if X.ndim == 2 and len(X) else 0
    if num_inputs < 2 or len(X) >= MIN_ROWS_PER_INPUT * num_inputs:
        return []
    return [f"{pluralize(len(X), 'row')} for {num_inputs} inputs may be too few to identify the relevant inputs."]


def _replaced_draws(estimator) -> list[str]:
    """Name candidates whose draws lie far below the mode of their hyperparameters."""
    names = [name for name, score in _heavy_candidates(estimator).items() if score.rough_outputs]
    if not names:
        return []
    return [
        f"The posterior of the hyperparameters of {quote_names(names)} is far from Gaussian in the logarithm, so that only its mode is used for some outputs, and intervals may be too narrow."
    ]


def _neighbor_ratio(X: np.ndarray, y: np.ndarray) -> float:
    """Return the mean squared difference of nearest neighbors over twice the variance; 1 with few rows."""
    rows = np.flatnonzero(np.isfinite(y))
    if len(rows) < MIN_NEIGHBOR_ROWS:
        return 1.0
    rows = np.random.default_rng(0).permutation(rows)[:MAX_NEIGHBOR_ROWS]
    points = torch.from_numpy(X[rows])
    nearest = squared_distances(points, points).fill_diagonal_(torch.inf).argmin(1).numpy()
    return float(np.mean((y[rows] - y[rows][nearest]) ** 2) / (2 * y[rows].var()))
