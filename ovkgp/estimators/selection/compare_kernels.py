"""`compare_kernels`: evidence, leave-one-out and cross-validation of several kernels on the same rows and folds.

The evidence is the prior density of all data. Leave-one-out predicts a row, or a group of rows, from all others, with
hyperparameters trained on all rows. Cross-validation predicts them with hyperparameters trained without them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count
from typing import Any

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import Kernel
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold, check_cv
from tqdm import tqdm

from ovkgp.checks import as_seed, check_one_of
from ovkgp.estimators.common.validation import input_table, output_table
from ovkgp.estimators.regression.gp_regressor import GPRegressor
from ovkgp.estimators.selection.interruptible_folds import Folds, record_interrupts
from ovkgp.estimators.selection.predictive_scores import (
    compute_loo_densities,
    compute_psis_loo_densities,
    count_observed,
    score_heldout_rows,
)
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.posteriors.leave_one_out import group_index
from ovkgp.scales import root_mean_square

METHODS = ("none", "laplace", "svi", "nuts")
SCORES = ("elpd_loo", "elpd_loo_point", "cv_log_density", "log_evidence", "penalized_evidence")
COLUMNS = (
    "log_evidence",
    "penalized_evidence",
    "elpd_loo",
    "elpd_loo_se",
    "khat_max",
    "elpd_loo_point",
    "cv_log_density",
    "cv_log_density_se",
    "cv_rmse",
    "score_diff",
    "score_diff_se",
    "seconds",
    "warnings",
    "error",
)
OPTIONS_NOT_IN_NAMES = ("kernel", "random_state", "verbose")
"""Options that do not appear in the default name of a candidate."""


def compare_kernels(
    candidates,
    X,
    Y,
    *,
    cv=5,
    groups=None,
    method: str = "laplace",
    score: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    random_state=None,
    verbose: int = 0,
) -> pd.DataFrame:
    """Compare kernels and likelihoods by evidence, PSIS-LOO and cross-validation in one table, the best first.

    Parameters
    ----------
    candidates : list or dict
        Structure names of `GPRegressor` ("independent", "decomposable", "lmc", …), kernel objects or `GPRegressor` instances,
        with any likelihood; a dictionary maps names to them. Candidates are not modified.
    X : array-like of shape (n, d)
        Inputs.
    Y : array-like of shape (n, p) or (n,)
        Outputs; NaN marks a missing output.
    cv : int, splitter or None, default=5
        Number of folds (of shuffled rows, or of `groups`), or a scikit-learn splitter. If None, there is no cross-validation.
    groups : array-like of shape (n,) or None, default=None
        Labels of rows that belong together (tracks, stations). If given, all rows of a label are held out together, by
        leave-one-out and by cross-validation. If None, single rows are.
    method : {"laplace", "svi", "nuts", "none"}, default="laplace"
        Sampler of the hyperparameters for PSIS-LOO. "none" uses the trained hyperparameters.
    score : {"elpd_loo", "elpd_loo_point", "cv_log_density", "log_evidence", "penalized_evidence"} or None, default=None
        Column to sort by. If None, "cv_log_density", which makes the fewest assumptions, or "elpd_loo" if `cv` is None.
    sampling : dict or None, default=None
        Further options of `sample_hyperparameters`, such as `{"draws": 500}`. The default number of draws is 200.
    random_state : int, RandomState instance or None, default=None
        Seed of folds and draws, and of candidates without a `random_state`.
    verbose : int, default=0
        If 1, progress is shown.

    Returns
    -------
    pandas.DataFrame
        One row per candidate. All densities are in the units of Y; larger is better, except for cv_rmse.

        - log_evidence: log p(Y) at the trained hyperparameters, or its lower bound for a variational model
        - penalized_evidence: log_evidence minus the number of trained parameters
        - elpd_loo, elpd_loo_se: Σ log p(y_i | all other rows or groups), averaged over hyperparameters by PSIS, and its standard error
        - khat_max: largest Pareto k̂; above 0.7 elpd_loo is unreliable. None where nothing was drawn; absent if that is so everywhere
        - elpd_loo_point: Σ log p(y_i | all other rows or groups) at the trained hyperparameters, in closed form, or by PSIS over draws
          of the functions of a variational model
        - cv_log_density, cv_log_density_se: mean log p(y_ij) over entries of held-out rows, and its standard error
        - cv_rmse: root mean squared error over entries of held-out rows
        - score_diff, score_diff_se: difference of `score` from the best, and its standard error (NaN for evidences)
        - seconds, warnings, error: wall time, warnings and errors

    Raises
    ------
    InputError
        If the data are invalid or all candidates failed.
    OptionError
        If an option is invalid or there are no candidates.

    Notes
    -----
    Standard errors are those of sums of independent terms, centered by the mean of each output: they equal ArviZ's for one output
    and do not depend on units for several. Terms are rows or groups. Densities of continuous outputs and probabilities of counts
    or labels are comparable only if the values are integers. A candidate that fails keeps the scores computed before, with the reason under error. Ctrl-C returns the table of the finished
    candidates, with a warning.

    Complexity: for each candidate one training on all rows and one per fold, the sampler, and one factorization per draw.
    One model is in memory at a time.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> Y = np.sin(X) @ [[1.0, -2.0]] + 0.1 * rng.normal(size=(30, 2))  # two copies of one function
    >>> table = ovkgp.compare_kernels(["independent", "decomposable"], X, Y, cv=2, method="none", random_state=0)
    >>> table.index[0], bool(table.score_diff.iloc[1] < 0)
    ('decomposable', True)
    """
    check_one_of("method", method, METHODS)
    score = score or ("elpd_loo" if cv is None else "cv_log_density")
    check_one_of("score", score, SCORES)
    models, seed = make_regressors(candidates), as_seed(random_state)
    X = input_table(GPRegressor(), X, reset=True)
    Y = output_table(Y, X)[0]
    if score == "cv_log_density" and cv is None:
        raise OptionError('score="cv_log_density" is not supported with cv=None. Set cv, or use another score.')
    folds = _make_folds(cv, X, Y, seed, groups)
    progress = tqdm(total=len(models) * (2 + folds.get_n_splits()), disable=not verbose)
    trials: dict[str, _Trial] = {}
    try:
        with progress, record_interrupts(folds):
            for name, model in models.items():
                progress.set_description(name)
                model = clone(model) if model.random_state is not None else clone(model).set_params(random_state=seed)
                trial = _Trial(model, X, Y, folds, progress, "rows" if groups is None else np.asarray(groups))
                trial.run(method, {"draws": 200} | dict(sampling or {}), seed)
                trials[name] = trial
    except KeyboardInterrupt:
        if not trials:
            raise
        message = (
            f"The comparison was interrupted after {len(trials)} of {len(models)} candidates; the table has only these."
        )
        warnings.warn(message, FitWarning, stacklevel=2)
    return _make_table(trials, score)


def make_regressors(candidates) -> dict[str, GPRegressor]:
    """Return the candidates as regressors by name."""
    if isinstance(candidates, Mapping):
        models = {str(name): _make_regressor(candidate) for name, candidate in candidates.items()}
    elif isinstance(candidates, (str, Kernel, GPRegressor)) or not isinstance(candidates, Iterable):
        raise OptionError(f"candidates must be a list or a dictionary of candidates, got {candidates!r}.")
    else:
        models = {}
        for candidate in candidates:
            model = _make_regressor(candidate)
            models[_make_unique(_make_name(model), models)] = model
    if not models:
        raise OptionError("candidates must have at least one entry, got none.")
    return models


def _make_regressor(candidate) -> GPRegressor:
    if isinstance(candidate, GPRegressor):
        if candidate.distributed:
            raise OptionError(f"compare_kernels runs in one process, got {candidate!r}. Use distributed=False.")
        return candidate
    if isinstance(candidate, (str, Kernel)):
        return GPRegressor(candidate)
    raise OptionError(f"A candidate must be the name of a structure, a kernel or a GPRegressor, got {candidate!r}.")


def _make_name(model: GPRegressor) -> str:
    """Return the name of the kernel and the options that differ from their defaults."""
    defaults, kernel = GPRegressor().get_params(), model.kernel
    given = {name: value for name, value in model.get_params(deep=False).items() if name not in OPTIONS_NOT_IN_NAMES}
    is_scalar = {name: isinstance(value, (str, int, float)) for name, value in given.items()}
    changed = [
        f"{name}={value if is_scalar[name] else type(value).__name__}"
        for name, value in given.items()
        if value is not defaults[name] and not (is_scalar[name] and value == defaults[name])
    ]
    return ", ".join([kernel if isinstance(kernel, str) else type(kernel).__name__, *changed])


def _make_unique(name: str, used: Mapping[str, Any]) -> str:
    candidates = chain([name], (f"{name} ({number})" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in used)


def _make_folds(cv, X: np.ndarray, Y: np.ndarray, seed: int, groups=None) -> Folds:
    index = None if groups is None else group_index(groups, len(X)).numpy()
    if cv is None:
        return Folds(None, [])
    if isinstance(cv, (int, np.integer)) and not isinstance(cv, bool):
        if index is not None and cv > index.max() + 1:
            raise OptionError(f"cv must be at most the number of groups, {index.max() + 1}, got {cv}.")
        # Rows are often sorted, and a contiguous held-out block would require extrapolation
        cv = KFold(cv, shuffle=True, random_state=seed % 2**32) if index is None else GroupKFold(cv)
    cv = check_cv(cv)
    splits = list(cv.split(X, Y, index))
    tested = np.concatenate([test for _, test in splits]) if splits else np.array([], dtype=int)
    if len(np.unique(tested)) != len(tested):
        raise OptionError(
            "The test folds of cv must not overlap. Use a splitter that tests each row once, such as KFold."
        )
    return Folds(cv, splits)


class _Trial:
    """Scores of one candidate (a row of the table), and the terms of the scores that are sums."""

    def __init__(self, model: GPRegressor, X: np.ndarray, Y: np.ndarray, folds: Folds, progress: tqdm, groups):
        self.model, self.X, self.Y, self.folds, self.progress, self.groups = model, X, Y, folds, progress, groups
        self.row: dict[str, Any] = {"warnings": "", "error": ""}
        self.terms: dict[str, np.ndarray] = {}

    def run(self, method: str, sampling: dict, seed: int) -> None:
        """Compute all scores; a failed step is recorded, and the others still run."""
        start_time = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if (fitted := self._attempt(self._fit, self.X, self.Y)) is not None:
                self._attempt(self._score_evidence, fitted)
                self._attempt(self._score_leave_one_out, fitted, method, sampling, seed)
                self._attempt(self._score_folds)
        self.row["seconds"] = time.monotonic() - start_time
        self.row["warnings"] = " | ".join(
            dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, UserWarning))
        )
        del self.model, self.X, self.Y

    def _attempt(self, step: Callable, *arguments):
        result = None
        try:
            result = step(*arguments)
        except Exception as error:  # no error of one candidate may end the comparison
            self.row["error"] += f"{' | ' if self.row['error'] else ''}{type(error).__name__}: {error}"
        self.folds.check_not_interrupted()  # an interrupted estimator may return without an error
        return result

    def _fit(self, X: np.ndarray, Y: np.ndarray) -> GPRegressor:
        fitted = clone(self.model).fit(X, Y)
        self.folds.check_not_interrupted()
        self.progress.update()
        return fitted

    def _score_evidence(self, fitted: GPRegressor) -> None:
        evidence = fitted.log_evidence_
        if fitted.averages_draws:  # then log_evidence_ is the mean over the draws, which is lower
            scaling, observed = fitted.scaling_, np.isfinite(self.Y).sum(0)
            with torch.no_grad():
                at_mode = fitted.gp_.log_evidence(scaling.inputs(self.X), scaling.outputs(self.Y))
            evidence = scaling.log_density(float(at_mode), observed)
        self.row["log_evidence"] = evidence
        self.row["penalized_evidence"] = evidence - _count_trained_parameters(fitted)

    def _score_leave_one_out(self, fitted: GPRegressor, method: str, sampling: dict, seed: int) -> None:
        point, khats = compute_loo_densities(fitted, self.X, self.Y, self.groups)
        self.row["elpd_loo_point"], self.terms["elpd_loo_point"] = point.sum(), self._center_by_output(point)
        averaged = point
        if method != "none" and _count_trained_parameters(fitted):
            options = {"groups": self.groups, "random_state": seed, **sampling}
            averaged, khats = compute_psis_loo_densities(fitted, self.X, self.Y, method, **options)
        self.terms["elpd_loo"] = self._center_by_output(averaged)
        self.row |= {
            "elpd_loo": averaged.sum(),
            "elpd_loo_se": compute_standard_error(self.terms["elpd_loo"]),
            "khat_max": None if khats is None else float(khats.max()),
        }
        self.progress.update()

    def _center_by_output(self, terms: np.ndarray) -> np.ndarray:
        """Subtract a mean per observed entry of each output, which depends on its units and adds no uncertainty."""
        counts = count_observed(self.Y, self.groups)
        return terms - counts @ np.linalg.lstsq(counts, terms)[0]

    def _score_folds(self) -> None:
        if not self.folds.splits:
            return
        density, error = np.full(self.Y.shape, np.nan), np.full(self.Y.shape, np.nan)
        for train, test in self.folds.splits:
            density[test], error[test] = score_heldout_rows(
                self._fit(self.X[train], self.Y[train]), self.X[test], self.Y[test]
            )
        observed = np.isfinite(density)
        # One term per row or group, since its entries are dependent
        centered = np.where(observed, density - np.nanmean(density, 0), 0.0).sum(1)
        index = group_index(self.groups, len(centered)).numpy()
        self.terms["cv_log_density"] = (
            np.bincount(index, centered)[np.bincount(index, observed.any(1)) > 0] / observed.sum()
        )
        self.row["cv_log_density"] = density[observed].mean()
        self.row["cv_log_density_se"] = compute_standard_error(self.terms["cv_log_density"])
        self.row["cv_rmse"] = float(root_mean_square(error))


def _count_trained_parameters(fitted: GPRegressor) -> int:
    if fitted.hyperparameters == "fixed":
        return 0
    return sum(parameter.numel() for parameter in fitted.gp_.parameters() if parameter.requires_grad)


def compute_standard_error(terms: np.ndarray) -> float:
    """Compute the standard error of the sum of n independent terms, √n times their standard deviation; NaN if n = 1."""
    return float(np.sqrt(len(terms)) * np.std(terms)) if len(terms) > 1 else np.nan


def _make_table(trials: Mapping[str, _Trial], score: str) -> pd.DataFrame:
    if not any("log_evidence" in trial.row for trial in trials.values()):
        reasons = "; ".join(f"{name}: {trial.row['error']}" for name, trial in trials.items())
        raise InputError(f"All candidates failed: {reasons}")
    table = pd.DataFrame([trial.row for trial in trials.values()], index=pd.Index(list(trials), name="kernel"))
    table = table.reindex(columns=COLUMNS).sort_values(score, ascending=False, kind="stable")
    if table["khat_max"].isna().all():
        table = table.drop(columns="khat_max")
    elif table["khat_max"].isna().any():
        table["khat_max"] = table["khat_max"].astype(object).where(table["khat_max"].notna(), None)
    best = table.index[0]
    table["score_diff"] = table[score] - table[score].iloc[0]
    for name, trial in trials.items():
        ours, theirs = trial.terms.get(score), trials[best].terms.get(score)
        if ours is not None and theirs is not None:
            table.loc[name, "score_diff_se"] = compute_standard_error(ours - theirs)
    return table
