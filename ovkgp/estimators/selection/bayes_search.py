"""`BayesSearchCV`, Bayesian optimization of an estimator's parameters under cross-validation (LT-106)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from numbers import Real

import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import check_cv, cross_validate
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils import get_tags, indexable
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.selection.interruptible_folds import Folds, record_interrupts
from ovkgp.estimators.selection.search_space import (
    Point,
    check_parameters,
    count_points,
    decode_point,
    make_space,
    propose,
    silence_optuna,
)
from ovkgp.estimators.selection.study_journal import SearchJournal, Trial, compute_fingerprint
from ovkgp.exceptions import FitWarning, InputError, OptionError


class BayesSearchCV(BaseSearchCV):
    """Bayesian optimization of the parameters of any scikit-learn estimator under cross-validation.

    The first `n_startup` of `n_iter` candidates are scrambled Sobol points of the search space. Each of the others maximizes the
    expected improvement of the mean score under a Gaussian process (Matérn-5/2, ARD) fitted to all scores so far. All candidates are
    scored on the same folds; the best is refitted to all data. Requires optuna: `pip install ovkgp[search]`.

    Parameters
    ----------
    estimator : estimator
        Any scikit-learn estimator. It is cloned.
    search_spaces : dict
        Values per parameter name (`step__name` if nested): `(low, high)`, integers if both bounds are integers;
        `(low, high, "log")`; a list of choices; or an optuna distribution.
    n_startup : int, default=27
        Number of candidates that are Sobol points (LT-106).
    n_iter : int, default=77
        Number of candidates in total (LT-106). A finite space with fewer points is searched completely, each point once.
    scoring : str, callable, list, tuple or dict, default=None
        As in `GridSearchCV`. Of several metrics, the one named by `refit` is maximized, otherwise the first.
    cv : int, splitter or iterable, default=None
        As in `GridSearchCV`.
    refit : bool, str or callable, default=True
        As in `GridSearchCV`.
    random_state : int, RandomState instance or None, default=None
        Seed of the candidates.
    study : path-like or None, default=None
        File that stores the trials. A later `fit` of the same search with the same file resumes it and takes the same steps as
        an uninterrupted search; a larger `n_iter` extends a finished search.
    verbose : int, default=0
        If 1, a progress bar with the best score is shown; if 2, also the messages of `cross_validate`.
    n_jobs : int or None, default=None
        Number of folds fitted in parallel.
    error_score : "raise" or float, default=np.nan
        Score of a fold whose fit fails. A failed candidate does not end the search unless "raise".
    return_train_score : bool, default=False
        Whether `cv_results_` includes the scores on the training folds.
    timeout : float or None, default=None
        Number of seconds after which no further candidate is evaluated.

    Attributes
    ----------
    cv_results_, best_estimator_, best_params_, best_score_, best_index_, scorer_, n_splits_, refit_time_, multimetric_
        As in `GridSearchCV`; candidates are in the order of their evaluation.
    classes_, n_features_in_, feature_names_in_
        As in `GridSearchCV`.
    interrupted_ : bool
        Whether Ctrl-C ended the search.
    n_resumed_ : int
        Number of trials read from the study file.

    Notes
    -----
    Ctrl-C discards the current candidate, warns, and refits the best candidate so far. Unlike in `GridSearchCV`, weights passed to
    `fit` reach the scorer only if metadata routing requests it.

    Complexity: n_iter cross-validations and one fit, plus O(n³) for the n-th candidate (0.1 to 0.5 s each).

    References
    ----------
    LT-106

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 10))
    >>> y = X[:, 0] + rng.normal(size=30)
    >>> search = ovkgp.BayesSearchCV(Ridge(), {"alpha": (1e-2, 1e3, "log")}, n_startup=5, n_iter=8, random_state=0).fit(X, y)
    >>> len(search.cv_results_["params"]), 1 < search.best_params_["alpha"] < 1000, search.predict(X).shape
    (8, True, (30,))
    """

    _parameter_constraints: dict = {  # noqa: RUF012 - the name and kind that scikit-learn wants
        name: allowed for name, allowed in BaseSearchCV._parameter_constraints.items() if name != "pre_dispatch"
    }

    def __init__(
        self,
        estimator,
        search_spaces,
        *,
        n_startup=27,
        n_iter=77,
        scoring=None,
        cv=None,
        refit=True,
        random_state=None,
        study=None,
        verbose=0,
        n_jobs=None,
        error_score=np.nan,
        return_train_score=False,
        timeout=None,
    ):
        self.estimator = estimator
        self.search_spaces = search_spaces
        self.n_startup = n_startup
        self.n_iter = n_iter
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.random_state = random_state
        self.study = study
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.error_score = error_score
        self.return_train_score = return_train_score
        self.timeout = timeout

    def fit(self, X, y=None, **params) -> BayesSearchCV:
        """Search, and refit the best candidate.

        Parameters
        ----------
        X, y : array-like
            Data in any form that the estimator accepts.
        **params
            Passed to `fit` of the estimator, except `groups`, which is passed to `cv`; with metadata routing, as requested.

        Returns
        -------
        BayesSearchCV
            The fitted search.

        Raises
        ------
        OptionError
            If an option is invalid or the study file belongs to another search.
        InputError
            If the study file cannot be written or read, or all candidates failed.
        """
        self._validate_params()
        space = self._check_options()
        scorers, refit_metric = self._get_scorers()
        if y is None and get_tags(self.estimator).target_tags.required:
            raise InputError(f"{type(self.estimator).__name__} requires y to be passed, but the target y is None.")
        X, y = indexable(X, y)
        routed = self._get_routed_params_for_fit(params)
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        folds = Folds(cv, list(cv.split(X, y, **routed.splitter.split)))
        aspects = {"estimator": self.estimator, "search_spaces": space, "scoring": self.scoring}
        aspects |= {"data": [X, y, params], "folds": folds.splits}
        journal = SearchJournal(
            self.study,
            space,
            {name: compute_fingerprint(value) for name, value in aspects.items()} if self.study is not None else {},
            as_seed(self.random_state),
            is_fixed=self.random_state is not None,
        )
        self.n_splits_, self.n_resumed_ = len(folds.splits), len(journal.trials)
        if not get_config()["enable_metadata_routing"]:
            params = {name: value for name, value in params.items() if name != "groups"}  # already used by the folds

        def score(point: Point, error_score) -> dict[str, list[float]]:
            return self._cross_validate(decode_point(space, point), X, y, folds, params, error_score)

        self._search(journal, folds, score)
        if not math.isfinite(_find_best_score(journal.trials)):
            self._raise_failure(journal.trials, score)
        self._set_results(space, journal.trials, scorers, refit_metric)
        if self.refit:
            self._refit(X, y, routed.estimator.fit)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags = deepcopy(
            get_tags(self.estimator).target_tags
        )  # several outputs, if the estimator supports them
        tags.array_api_support = False  # scores and points are NumPy arrays
        return tags

    def _check_options(self) -> dict:
        """Check all options before the first fit, and return the search space."""
        check_integer("n_startup", self.n_startup)
        check_integer("n_iter", self.n_iter)
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise OptionError(f"timeout must be a positive number of seconds or None, got {self.timeout!r}.")
        space = make_space(self.search_spaces)
        check_parameters(self.estimator, space)
        with silence_optuna():  # raises now, not after the first trials, if optuna is missing
            return space

    def _search(self, journal: SearchJournal, folds: Folds, score: Callable) -> None:
        """Evaluate candidates until there are enough, the time is over, or Ctrl-C."""
        start_time, trials = time.monotonic(), journal.trials
        total = int(min(self.n_iter, count_points(journal.space)))
        self.interrupted_, timeout = False, math.inf if self.timeout is None else self.timeout
        bar = tqdm(total=total, initial=min(len(trials), total), desc="search", disable=not self.verbose)
        try:
            with bar, record_interrupts(folds):
                while len(trials) < total and not (trials and time.monotonic() - start_time >= timeout):
                    points, scores = [trial.point for trial in trials], [trial.score for trial in trials]
                    trial = self._evaluate(propose(journal.space, points, scores, self.n_startup, journal.seed), score)
                    folds.check_not_interrupted()
                    journal.add(trial)
                    bar.update()
                    bar.set_postfix(best=f"{_find_best_score(trials):.6g}")
        except KeyboardInterrupt:
            if not math.isfinite(_find_best_score(trials)):
                raise
            self.interrupted_ = True
            warnings.warn(
                f"The search was interrupted after {len(trials)} of {total} trials; the best of them is used.",
                FitWarning,
                stacklevel=3,
            )

    def _evaluate(self, point: Point, score: Callable) -> Trial:
        """Cross-validate a candidate."""
        try:
            results = score(point, self.error_score)
        except ValueError as error:  # all folds failed
            if self.error_score == "raise":
                raise
            return Trial(point, float(self.error_score), error=str(error))
        metrics = _list_metrics(results)
        if metrics != ["score"]:
            self._check_refit_for_multimetric(metrics)
        chosen = self.refit if isinstance(self.refit, str) and self.refit in metrics else metrics[0]
        return Trial(point, float(np.mean(results[f"test_{chosen}"])), results)

    def _cross_validate(self, candidate: dict, X, y, folds: Folds, params: dict, error_score) -> dict[str, list[float]]:
        """Return times and scores of a candidate per fold."""
        model = clone(self.estimator).set_params(**clone(candidate, safe=False))
        results = cross_validate(
            model,
            X,
            y,
            scoring=self.scoring,
            cv=folds,
            n_jobs=self.n_jobs,
            verbose=max(int(self.verbose) - 1, 0),
            params=params,
            return_train_score=self.return_train_score,
            error_score=error_score,
        )
        return {name: np.asarray(values, dtype=float).tolist() for name, values in results.items()}

    @staticmethod
    def _raise_failure(trials: list[Trial], score: Callable) -> None:
        """Raise the reason why no candidate has a score; a candidate that failed on some folds only is evaluated again to find it."""
        if not trials[-1].error:
            score(trials[-1].point, "raise")
        reason = trials[-1].error or "The score is not finite."
        raise InputError(f"All {len(trials)} candidates of the search failed. Error of the last one: {reason}")

    def _set_results(self, space: dict, trials: list[Trial], scorers, refit_metric: str) -> None:
        """Set all attributes except the refitted estimator."""
        metrics = next(_list_metrics(trial.results) for trial in trials if trial.results)
        self.multimetric_ = metrics != ["score"]
        self._warn_about_failures(trials)
        out = [fold for trial in trials for fold in self._split_by_fold(trial.results, metrics)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "One or more of the", UserWarning)  # already reported, with the reason
            results = self._format_results([decode_point(space, trial.point) for trial in trials], self.n_splits_, out)
        refit_metric = self.refit if self.multimetric_ else refit_metric
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, refit_metric, results)
            self.best_params_ = results["params"][self.best_index_]
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{refit_metric}"][self.best_index_]
        self.scorer_ = getattr(scorers, "_scorers", scorers)  # several metrics are one object
        self.cv_results_ = results

    def _warn_about_failures(self, trials: list[Trial]) -> None:
        failed = [trial for trial in trials if trial.error or not np.isfinite(trial.score)]
        if failed:
            reason = next((trial.error for trial in failed if trial.error), "The score is not finite.")
            warnings.warn(
                f"{len(failed)} of {len(trials)} candidates failed and have the score {self.error_score}. Error of the first one: {reason}",
                FitFailedWarning,
                stacklevel=4,
            )

    def _split_by_fold(self, results: dict[str, list[float]], metrics: list[str]) -> list[dict]:
        """Return the results of a candidate in scikit-learn's format; those of a failed candidate are the error score."""
        kinds = ("test", "train") if self.return_train_score else ("test",)
        folds = []
        for k in range(self.n_splits_):
            fold = {name: results[name][k] if results else 0.0 for name in ("fit_time", "score_time")}
            for kind in kinds:
                scores = {m: results[f"{kind}_{m}"][k] if results else self.error_score for m in metrics}
                fold[f"{kind}_scores"] = scores if self.multimetric_ else scores["score"]
            folds.append(fold)
        return folds

    def _refit(self, X, y, params: dict) -> None:
        self.best_estimator_ = clone(self.estimator).set_params(**clone(self.best_params_, safe=False))
        start_time = time.monotonic()
        self.best_estimator_.fit(X, **params) if y is None else self.best_estimator_.fit(X, y, **params)
        self.refit_time_ = time.monotonic() - start_time
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_


def _list_metrics(results: dict[str, list[float]]) -> list[str]:
    return [name.removeprefix("test_") for name in results if name.startswith("test_")]


def _find_best_score(trials: list[Trial]) -> float:
    """Return the best score of the candidates that did not fail; NaN if all failed."""
    return max((trial.score for trial in trials if trial.results and math.isfinite(trial.score)), default=math.nan)
