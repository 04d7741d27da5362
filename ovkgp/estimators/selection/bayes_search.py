"""Bayesian optimisation of an estimator's parameters under cross-validation (LT-106): a scrambled Sobol start, then the largest
expected improvement under a Gaussian process, one candidate at a time.
"""

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
from ovkgp.estimators.selection.cross_validation import Folds, interrupts_noted
from ovkgp.estimators.selection.search_space import (
    Point,
    check_parameters,
    make_space,
    parameters,
    propose,
    quiet_optuna,
)
from ovkgp.estimators.selection.study_journal import SearchJournal, Trial, fingerprint
from ovkgp.exceptions import FitWarning, InputError, OptionError


class BayesSearchCV(BaseSearchCV):
    """Bayesian optimisation of any scikit-learn estimator's parameters under cross-validation.

    The first `n_startup` candidates are scrambled Sobol points of the search space; the other `n_iter` maximise, one after
    another, the expected improvement of the mean score under a Gaussian process (Matérn-5/2, ARD) of all scores so far. All are
    scored on the same folds. Then the best is refitted to all data. Needs optuna: `pip install ovkgp[search]`.

    Args:
        estimator: any estimator; it is cloned.
        search_spaces: a dictionary from names of parameters (`step__name` for nested ones) to (low, high), whole numbers where
            both are; (low, high, "log"); a list of choices; or a distribution of optuna.
        n_startup, n_iter: how many candidates of each kind; the defaults are those of LT-106.
        scoring: as in `GridSearchCV`. With several metrics the one named by `refit` is maximised, else the first.
        cv: as in `GridSearchCV`.
        refit: as in `GridSearchCV`.
        random_state: of the candidates; as in scikit-learn.
        study: the path of a file that keeps the trials. A later `fit` of the same search with the same file goes on from
            there, step by step as if it had never been stopped, and a larger `n_iter` extends a finished search.
        verbose: 0 is quiet, 1 shows a progress bar with the best score, 2 also what `cross_validate` says.
        n_jobs: how many folds are fitted at a time.
        error_score: the score of a fold that failed, or "raise". A candidate that fails does not end the search.
        return_train_score: whether `cv_results_` has the scores on the training folds.
        timeout: seconds after which no further candidate is begun.

    Ctrl-C drops the candidate under way, warns, and refits the best of the trials so far. Unlike `GridSearchCV`, weights given to
    `fit` reach the scorer only where metadata routing asks for it.

    Attributes:
        cv_results_, best_estimator_, best_params_, best_score_, best_index_, scorer_, n_splits_, refit_time_, multimetric_,
            classes_, n_features_in_, feature_names_in_: as in `GridSearchCV`, candidates in the order in which they were tried.
        interrupted_: whether Ctrl-C ended the search.
        n_resumed_: how many of the trials came from the study file.

    Cost: (n_startup + n_iter) cross-validations and one fit; beside them O(n³) for the n-th candidate, 0.1 to 0.5 s each.

    Example:
        >>> import numpy as np
        >>> from sklearn.linear_model import Ridge
        >>> from ovkgp.estimators.selection.bayes_search import BayesSearchCV
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(30, 10))
        >>> y = X[:, 0] + rng.normal(size=30)
        >>> search = BayesSearchCV(Ridge(), {"alpha": (1e-2, 1e3, "log")}, n_startup=5, n_iter=3, random_state=0).fit(X, y)
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
        n_iter=50,
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
        """Search, and refit the best.

        Args:
            X, y: the data, as the estimator takes them.
            **params: passed on to the estimator's `fit`, `groups` to `cv`; or as metadata routing says.

        Raises:
            OptionError: an option is not allowed, or the study file belongs to another search.
            InputError: the study file cannot be written or read, or every candidate failed.
        """
        self._validate_params()
        space = self._require_options()
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
            {name: fingerprint(value) for name, value in aspects.items()} if self.study is not None else {},
            as_seed(self.random_state),
            is_fixed=self.random_state is not None,
        )
        self.n_splits_, self.n_resumed_ = len(folds.splits), len(journal.trials)
        if not get_config()["enable_metadata_routing"]:
            params = {name: value for name, value in params.items() if name != "groups"}  # which made the folds
        self._search(journal, folds, lambda point: self._try(point, parameters(space, point), X, y, folds, params))
        if not math.isfinite(_best(journal.trials)):
            self._explain(
                journal.trials, lambda point: self._scores(parameters(space, point), X, y, folds, params, "raise")
            )
        self._conclude(space, journal.trials, scorers, refit_metric)
        if self.refit:
            self._refit(X, y, routed.estimator.fit)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags = deepcopy(get_tags(self.estimator).target_tags)  # several outputs, where it takes them
        tags.array_api_support = False  # scores and points are NumPy's
        return tags

    # --- the search -------------------------------------------------------------------------------------------------

    def _require_options(self) -> dict:
        """The search space, after everything that can be checked before work begins."""
        check_integer("n_startup", self.n_startup)
        check_integer("n_iter", self.n_iter, 0)
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise OptionError(f"timeout must be a positive number of seconds or None, got {self.timeout!r}.")
        space = make_space(self.search_spaces)
        check_parameters(self.estimator, space)
        with quiet_optuna():  # a missing extra is found out now, not after the first trials
            return space

    def _search(self, journal: SearchJournal, folds: Folds, attempt: Callable[[Point], Trial]) -> None:
        """Try candidates until there are enough, time is up, or Ctrl-C."""
        began, total, trials = time.monotonic(), self.n_startup + self.n_iter, journal.trials
        self.interrupted_ = False
        bar = tqdm(total=total, initial=min(len(trials), total), desc="search", disable=not self.verbose)
        try:
            with bar, interrupts_noted(folds):
                while len(trials) < total and not (trials and self._is_late(began)):
                    points, scores = [trial.point for trial in trials], [trial.score for trial in trials]
                    trial = attempt(propose(journal.space, points, scores, self.n_startup, journal.seed))
                    folds.check_going()
                    journal.add(trial)
                    bar.update()
                    bar.set_postfix(best=f"{_best(trials):.6g}")
        except KeyboardInterrupt:
            if not math.isfinite(_best(trials)):
                raise
            self.interrupted_ = True
            warnings.warn(
                f"the search was interrupted after {len(trials)} of {total} trials; the best of them is taken.",
                FitWarning,
                stacklevel=3,
            )

    def _is_late(self, began: float) -> bool:
        return self.timeout is not None and time.monotonic() - began >= self.timeout

    def _try(self, point: Point, candidate: dict, X, y, folds: Folds, params: dict) -> Trial:
        """Cross-validate a candidate."""
        try:
            results = self._scores(candidate, X, y, folds, params, self.error_score)
        except ValueError as error:  # which says that all folds failed
            if self.error_score == "raise":
                raise
            return Trial(point, float(self.error_score), error=str(error))
        metrics = _metrics(results)
        if metrics != ["score"]:
            self._check_refit_for_multimetric(metrics)
        chosen = self.refit if isinstance(self.refit, str) and self.refit in metrics else metrics[0]
        return Trial(point, float(np.mean(results[f"test_{chosen}"])), results)

    def _scores(self, candidate: dict, X, y, folds: Folds, params: dict, error_score) -> dict[str, list[float]]:
        """Times and scores of a candidate, for each fold."""
        model = clone(self.estimator).set_params(**clone(candidate, safe=False))
        found = cross_validate(
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
        return {name: np.asarray(values, dtype=float).tolist() for name, values in found.items()}

    # --- what it found ----------------------------------------------------------------------------------------------

    @staticmethod
    def _explain(trials: list[Trial], attempt: Callable[[Point], object]) -> None:
        """Raise, if no candidate has a score, with the reason; one that failed on some folds only is tried again for it."""
        if not trials[-1].error:
            attempt(trials[-1].point)
        reason = trials[-1].error or "a score that is not finite."
        raise InputError(f"all {len(trials)} candidates of the search failed; the last one with: {reason}")

    def _conclude(self, space: dict, trials: list[Trial], scorers, refit_metric: str) -> None:
        """Set everything but the refitted estimator."""
        metrics = next(_metrics(trial.results) for trial in trials if trial.results)
        self.multimetric_ = metrics != ["score"]
        self._warn_of_failures(trials)
        out = [fold for trial in trials for fold in self._by_fold(trial.results, metrics)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "One or more of the", UserWarning)  # said already, with the reason
            results = self._format_results([parameters(space, trial.point) for trial in trials], self.n_splits_, out)
        refit_metric = self.refit if self.multimetric_ else refit_metric
        if self.refit or not self.multimetric_:
            self.best_index_ = self._select_best_index(self.refit, refit_metric, results)
            self.best_params_ = results["params"][self.best_index_]
            if not callable(self.refit):
                self.best_score_ = results[f"mean_test_{refit_metric}"][self.best_index_]
        self.scorer_ = getattr(scorers, "_scorers", scorers)  # several metrics come as one object
        self.cv_results_ = results

    def _warn_of_failures(self, trials: list[Trial]) -> None:
        failed = [trial for trial in trials if trial.error or not np.isfinite(trial.score)]
        if failed:
            reason = next((trial.error for trial in failed if trial.error), "a score that is not finite.")
            warnings.warn(
                f"{len(failed)} of {len(trials)} candidates failed and have the score {self.error_score}; the first with: "
                f"{reason}",
                FitFailedWarning,
                stacklevel=4,
            )

    def _by_fold(self, results: dict[str, list[float]], metrics: list[str]) -> list[dict]:
        """The results of a candidate as scikit-learn's own searches have them; of a failed one, the error score."""
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
        began = time.monotonic()
        self.best_estimator_.fit(X, **params) if y is None else self.best_estimator_.fit(X, y, **params)
        self.refit_time_ = time.monotonic() - began
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_


def _metrics(results: dict[str, list[float]]) -> list[str]:
    return [name.removeprefix("test_") for name in results if name.startswith("test_")]


def _best(trials: list[Trial]) -> float:
    """The best score of a candidate that did not fail; NaN if there is none."""
    return max((trial.score for trial in trials if trial.results and math.isfinite(trial.score)), default=math.nan)
