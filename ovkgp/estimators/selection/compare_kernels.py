"""Which kernel? Evidence, leave-one-out and cross-validation of several candidates side by side, on the same rows and folds.

The three answer different questions: the evidence how likely all data were beforehand, leave-one-out how well an entry is told by all
others (those of its own row too), cross-validation how well whole rows are told by other rows, trained anew without them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import Kernel
from sklearn.base import clone
from sklearn.model_selection import KFold, check_cv
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.estimators.common.options import check_option, is_variational
from ovkgp.estimators.common.validation import input_table, output_table
from ovkgp.estimators.regression.gp_regressor import GPRegressor
from ovkgp.estimators.selection.cross_validation import Folds, interrupts_noted
from ovkgp.estimators.selection.predictive_scores import left_out_entries, left_out_entries_drawn, left_out_rows
from ovkgp.exceptions import FitWarning, InputError, OptionError

UNNAMED = ("kernel", "random_state", "verbose")
"""Options that the name of a candidate does not tell."""


def regressors(candidates) -> dict[str, GPRegressor]:
    """Candidates as regressors by name.

    Example:
        >>> import ovkgp
        >>> from ovkgp.estimators.selection.compare_kernels import regressors
        >>> list(regressors(["lmc", ovkgp.GPRegressor("lmc", rank=3), "lmc"]))
        ['lmc', 'lmc, rank=3', 'lmc (2)']
    """
    if isinstance(candidates, Mapping):
        models = {str(name): _regressor(candidate) for name, candidate in candidates.items()}
    elif isinstance(candidates, (str, Kernel, GPRegressor)) or not isinstance(candidates, Iterable):
        raise OptionError(f"candidates must be a list or a dictionary of candidates, got {candidates!r}.")
    else:
        models = {}
        for candidate in candidates:
            model = _regressor(candidate)
            models[_free_name(_name(model), models)] = model
    if not models:
        raise OptionError("there is no candidate to compare.")
    return models


def _regressor(candidate) -> GPRegressor:
    if isinstance(candidate, GPRegressor):
        if is_variational(candidate) or candidate.distributed:
            raise OptionError(
                "compare_kernels is for Gaussian outputs that are not approximated by variational inference, in one process; got "
                + repr(candidate)
            )
        return candidate
    if isinstance(candidate, (str, Kernel)):
        return GPRegressor(candidate)
    raise OptionError(f"a candidate is the name of a structure, a kernel or a GPRegressor, got {candidate!r}.")


def _name(model: GPRegressor) -> str:
    """The kernel, and the options that were changed."""
    usual, kernel = GPRegressor().get_params(), model.kernel
    given = {name: value for name, value in model.get_params(deep=False).items() if name not in UNNAMED}
    plain = {name: isinstance(value, (str, int, float)) for name, value in given.items()}
    changed = [
        f"{name}={value if plain[name] else type(value).__name__}"
        for name, value in given.items()
        if value is not usual[name] and not (plain[name] and value == usual[name])
    ]
    return ", ".join([kernel if isinstance(kernel, str) else type(kernel).__name__, *changed])


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} ({number})"
    return free


METHODS = ("none", "laplace", "svi", "nuts")
SCORES = ("elpd_loo", "elpd_loo_point", "cv_log_density", "log_evidence", "penalised_evidence")
COLUMNS = (
    "log_evidence",
    "penalised_evidence",
    "elpd_loo",
    "elpd_loo_se",
    "khat_max",
    "elpd_loo_point",
    "cv_log_density",
    "cv_log_density_se",
    "cv_rmse",
    "difference",
    "difference_se",
    "seconds",
    "warnings",
    "error",
)


def compare_kernels(
    candidates,
    X,
    Y,
    *,
    cv=5,
    method: str = "laplace",
    score: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    random_state=None,
    verbose: int = 0,
) -> pd.DataFrame:
    """Evidence, PSIS-LOO and cross-validation of several kernels in one table, the best first.

    Args:
        candidates: names of structures of `GPRegressor` ("independent", "decomposable", "lmc", …), kernel objects or
            `GPRegressor` instances with Gaussian outputs: a list of these, or a dictionary from names to them. None is changed.
        X, Y: inputs (n, d) and outputs (n, p) or (n,), NaN where an output is missing.
        cv: the number of folds (of shuffled rows), or a splitter of scikit-learn; None for no cross-validation.
        method: how hyperparameters are drawn for PSIS-LOO: "laplace", "svi" or "nuts"; "none" takes the trained ones.
        score: the column to sort by, one of "elpd_loo", "elpd_loo_point", "cv_log_density", "log_evidence",
            "penalised_evidence"; by default that of the folds, which assumes least, and without folds "elpd_loo".
        sampling: further options of `sample_hyperparameters`, such as {"draws": 500}; 200 draws unless told.
        random_state: of folds, draws, and of those candidates that have none.
        verbose: 1 shows progress.

    Returns:
        a table with a row for each candidate, in the units of Y (all are log densities of the same numbers, however a
        candidate scales them inside), larger being better but for cv_rmse:

        | column | what it is |
        |---|---|
        | log_evidence | log p(Y) at the trained hyperparameters |
        | penalised_evidence | the same less one for each trained parameter |
        | elpd_loo, elpd_loo_se | Σ log p(y_ij, all others given), hyperparameters averaged by PSIS, and its standard error |
        | khat_max | the largest Pareto shape; above 0.7 the elpd_loo is not to be trusted |
        | elpd_loo_point | the same sum in closed form at the trained hyperparameters |
        | cv_log_density, cv_log_density_se | the mean of log p(y_ij) over entries of rows left out, and its standard error |
        | cv_rmse | root mean squared error of these |
        | difference, difference_se | of `score` to the best, and the standard error of that (NaN for evidences) |
        | seconds, warnings, error | wall time, and what went wrong |

        Standard errors are those of sums of independent terms, about the mean of each output: for one output ArviZ's, and
        for several they do not depend on units. The terms are entries for elpd_loo and rows for cv_log_density. A
        candidate that fails keeps what it had, with the reason under error. Ctrl-C gives the table of the candidates
        that were finished, with a warning.

    Raises:
        InputError: the data are bad, or every candidate failed.
        OptionError: an option is not allowed, or there is no candidate.

    Cost: for each candidate a training on all rows and one for each fold, the sampler, and a factorisation a draw. One
    candidate's model is in memory at a time.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.selection.compare_kernels import compare_kernels
        >>> rng = np.random.default_rng(0)
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> Y = np.sin(X) @ [[1.0, -2.0]] + 0.1 * rng.normal(size=(30, 2))  # two copies of one function
        >>> table = compare_kernels(["independent", "decomposable"], X, Y, cv=2, method="none", random_state=0)
        >>> table.index[0], bool(table.difference.iloc[1] < 0)
        ('decomposable', True)
    """
    check_option("method", method, METHODS)
    score = score or ("elpd_loo" if cv is None else "cv_log_density")
    check_option("score", score, SCORES)
    models, seed = regressors(candidates), as_seed(random_state)
    X = input_table(GPRegressor(), X, reset=True)
    Y = output_table(Y, X)[0]
    if score == "cv_log_density" and cv is None:
        raise OptionError('score="cv_log_density" needs folds: give cv, or another score.')
    folds = _folds(cv, X, Y, seed)
    steps = tqdm(total=len(models) * (2 + folds.get_n_splits()), disable=not verbose)
    trials: dict[str, _Trial] = {}
    try:
        with steps, interrupts_noted(folds):
            for name, model in models.items():
                steps.set_description(name)
                trial = _Trial(_seeded(model, seed), X, Y, folds, steps)
                trial.run(method, {"draws": 200} | dict(sampling or {}), seed)
                trials[name] = trial
    except KeyboardInterrupt:
        if not trials:
            raise
        words = (
            f"the comparison was interrupted after {len(trials)} of {len(models)} candidates; these are in the table."
        )
        warnings.warn(words, FitWarning, stacklevel=2)
    return _table(trials, score)


class _Trial:
    """One candidate: what was found, column by column, and the terms of the scores that are sums."""

    def __init__(self, model: GPRegressor, X: np.ndarray, Y: np.ndarray, folds: Folds, steps: tqdm):
        self.model, self.X, self.Y, self.folds, self.steps = model, X, Y, folds, steps
        self.row: dict[str, Any] = {"warnings": "", "error": ""}
        self.terms: dict[str, np.ndarray] = {}

    def run(self, method: str, sampling: dict, seed: int) -> None:
        """Everything there is to find out. What fails is written down, and the rest is still done."""
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if (fitted := self._attempt(self._fit, self.X, self.Y)) is not None:
                self._attempt(self._weigh, fitted)
                self._attempt(self._leave_out_entries, fitted, method, sampling, seed)
                self._attempt(self._leave_out_rows)
        self.row["seconds"] = time.monotonic() - began
        self.row["warnings"] = " | ".join(
            dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, UserWarning))
        )
        del self.model, self.X, self.Y

    def _attempt(self, step: Callable, *arguments):
        found = None
        try:
            found = step(*arguments)
        except Exception as error:  # whatever it is, the other candidates are not to suffer
            self.row["error"] += f"{' | ' if self.row['error'] else ''}{type(error).__name__}: {error}"
        self.folds.check_going()  # what was interrupted keeps what it has, and may say nothing more
        return found

    def _fit(self, X: np.ndarray, Y: np.ndarray) -> GPRegressor:
        fitted = clone(self.model).fit(X, Y)
        self.folds.check_going()
        self.steps.update()
        return fitted

    def _weigh(self, fitted: GPRegressor) -> None:
        evidence = fitted.log_evidence_
        if hasattr(fitted, "draws_"):  # which is the mean over the draws, and lower
            scaling, observed = fitted.scaling_, np.isfinite(self.Y).sum(0)
            with torch.no_grad():
                at_mode = fitted.gp_.log_evidence(scaling.inputs(self.X), scaling.outputs(self.Y))
            evidence = scaling.log_density(float(at_mode), observed)
        self.row["log_evidence"] = evidence
        self.row["penalised_evidence"] = evidence - _num_trained(fitted)

    def _leave_out_entries(self, fitted: GPRegressor, method: str, sampling: dict, seed: int) -> None:
        point = left_out_entries(fitted, self.X, self.Y)
        self.row["elpd_loo_point"], self.terms["elpd_loo_point"] = point.sum(), self._about_means(point)
        drawn, khat = point, np.nan
        if method != "none" and _num_trained(fitted):
            found = left_out_entries_drawn(fitted, self.X, self.Y, method, random_state=seed, **sampling)
            drawn, khat = found.log_density, found.khat.max()
        self.terms["elpd_loo"] = self._about_means(drawn)
        self.row |= {"elpd_loo": drawn.sum(), "elpd_loo_se": standard_error(self.terms["elpd_loo"]), "khat_max": khat}
        self.steps.update()

    def _about_means(self, entries: np.ndarray) -> np.ndarray:
        """Terms of a sum about the mean of each output, whose units, which move it, are no uncertainty."""
        columns = np.nonzero(np.isfinite(self.Y))[1]
        sums, counts = (np.bincount(columns, weights) for weights in (entries, None))
        return entries - (sums / counts)[columns]

    def _leave_out_rows(self) -> None:
        if not self.folds.splits:
            return
        density, error = np.full(self.Y.shape, np.nan), np.full(self.Y.shape, np.nan)
        for train, test in self.folds.splits:
            density[test], error[test] = left_out_rows(
                self._fit(self.X[train], self.Y[train]), self.X[test], self.Y[test]
            )
        observed = np.isfinite(density)
        about_means = np.where(observed, density - np.nanmean(density, 0), 0.0).sum(
            1
        )  # the entries of a row belong together
        self.terms["cv_log_density"] = about_means[observed.any(1)] / observed.sum()
        self.row["cv_log_density"] = density[observed].mean()
        self.row["cv_log_density_se"] = standard_error(self.terms["cv_log_density"])
        self.row["cv_rmse"] = np.sqrt(np.nanmean(error**2))


def _num_trained(fitted: GPRegressor) -> int:
    if fitted.hyperparameters == "fixed":
        return 0
    return sum(parameter.numel() for parameter in fitted.gp_.parameters() if parameter.requires_grad)


def standard_error(terms: np.ndarray) -> float:
    """Of the sum of n independent terms: √n times their standard deviation; NaN for one.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.selection.compare_kernels import standard_error
        >>> standard_error(np.array([1.0, 3.0, 5.0, 7.0]))  # √4 · √5, as ArviZ has it
        4.47213595499958
    """
    return float(np.sqrt(len(terms)) * np.std(terms)) if len(terms) > 1 else np.nan


def _table(trials: Mapping[str, _Trial], score: str) -> pd.DataFrame:
    if not any("log_evidence" in trial.row for trial in trials.values()):
        reasons = "; ".join(f"{name}: {trial.row['error']}" for name, trial in trials.items())
        raise InputError(f"every candidate failed. {reasons}")
    table = pd.DataFrame([trial.row for trial in trials.values()], index=pd.Index(list(trials), name="kernel"))
    table = table.reindex(columns=COLUMNS).sort_values(score, ascending=False, kind="stable")
    best = table.index[0]
    table["difference"] = table[score] - table[score].iloc[0]
    for name, trial in trials.items():
        ours, theirs = trial.terms.get(score), trials[best].terms.get(score)
        if ours is not None and theirs is not None:
            table.loc[name, "difference_se"] = standard_error(ours - theirs)
    return table


def _folds(cv, X: np.ndarray, Y: np.ndarray, seed: int) -> Folds:
    if cv is None:
        return Folds(None, [])
    if isinstance(cv, (int, np.integer)) and not isinstance(cv, bool):
        # Rows often come in order, and a block left out of a curve asks for extrapolation
        cv = KFold(cv, shuffle=True, random_state=seed % 2**32)
    cv = check_cv(cv)
    splits = list(cv.split(X, Y))
    tested = np.concatenate([test for _, test in splits]) if splits else np.array([], dtype=int)
    if len(np.unique(tested)) != len(tested):
        raise OptionError("the folds of cv overlap: give a splitter that leaves out each row once, such as KFold.")
    return Folds(cv, splits)


def _seeded(model: GPRegressor, seed: int) -> GPRegressor:
    model = clone(model)
    return model.set_params(random_state=seed) if model.random_state is None else model
