"""Tests of `BayesSearchCV`: candidates, results, failures, interruption and resumption."""

import random
import signal
import subprocess
import sys
import time
import warnings

import joblib
import numpy as np
import optuna
import pytest
import sklearn
import torch
from scipy.stats import qmc
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.selection.bayes_search import BayesSearchCV
from ovkgp.exceptions import FitWarning, InputError, OptionError

ALPHA = {"alpha": (1e-3, 1e3, "log")}


@parametrize_with_checks([BayesSearchCV(Ridge(), ALPHA, n_startup=2, n_iter=3, cv=2)])
@pytest.mark.slow
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BayesSearchCV(LogisticRegression(), {"C": (0.01, 10.0, "log")}, n_startup=2, n_iter=2, cv=2)])
def test_scikit_learn_checks_pass_for_classifier(estimator, check):
    check(estimator)


class Surface(RegressorMixin, BaseEstimator):
    """Estimator whose score is a known function of its parameters with maximum 0."""

    def __init__(self, a=1.0, b=0.0, c="x", fails_above=np.inf):
        self.a, self.b, self.c, self.fails_above = a, b, c, fails_above

    def fit(self, X, y):
        if self.b > self.fails_above:
            raise ArithmeticError(f"b = {self.b} is too large")
        self.fitted_ = True
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def score(self, X, y):
        return -((np.log10(self.a) - 0.7) ** 2) - 4 * (self.b - 0.3) ** 2 - (0.0 if self.c == "y" else 0.5)


SURFACE = {"a": (1e-3, 1e3, "log"), "b": (-1.0, 1.0), "c": ["x", "y", "z"]}
X, y = make_regression(40, 5, noise=5.0, random_state=0)


def search(estimator=None, space=None, **options):
    options = {"n_startup": 5, "n_iter": 8, "cv": 2, "random_state": 0} | options
    return BayesSearchCV(Surface() if estimator is None else estimator, SURFACE if space is None else space, **options)


def best_of_random(budget, seed):
    rng = np.random.default_rng(seed)
    draws = (Surface(10 ** rng.uniform(-3, 3), rng.uniform(-1, 1), rng.choice(["x", "y", "z"])) for _ in range(budget))
    return max(surface.score(None, None) for surface in draws)


# --- candidates -----------------------------------------------------------------------------------------------------


def test_lt_106_first_27_candidates_are_scrambled_sobol_points():
    space = {"a": (1e-3, 1e3, "log"), "b": (-1.0, 1.0)}
    found = search(space=space, n_startup=27, n_iter=27, random_state=5).fit(X, y).cv_results_
    rng = np.random.default_rng(np.random.SeedSequence(5))
    points = qmc.Sobol(2, scramble=True, rng=rng).random_base2(5)[:27]
    np.testing.assert_allclose(np.log10(found["param_a"].data.astype(float)), 6 * points[:, 0] - 3, atol=1e-12)
    np.testing.assert_allclose(found["param_b"].data.astype(float), 2 * points[:, 1] - 1, atol=1e-12)


def test_lt_106_default_budgets_are_27_and_50():
    assert (BayesSearchCV(Ridge(), ALPHA).n_startup, BayesSearchCV(Ridge(), ALPHA).n_iter) == (27, 77)


@pytest.mark.slow
def test_search_beats_random_search_with_same_budget():
    ours = [search(n_startup=10, n_iter=20, random_state=seed).fit(X, y).best_score_ for seed in range(2)]
    theirs = [best_of_random(20, seed) for seed in range(200)]
    assert min(ours) > -0.01  # the optimum is 0
    assert max(ours) < 0
    assert np.mean(np.array(theirs) < min(ours)) > 0.9


def test_search_candidates_depend_on_random_state():
    first, again, other = (search(random_state=seed).fit(X, y).cv_results_["params"] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_search_scores_all_candidates_on_same_folds():
    space = {"alpha": [1.0, 1.0 + 1e-13, 1.0 + 2e-13, 1.0 + 3e-13]}
    found = search(Ridge(), space, cv=KFold(3, shuffle=True), n_startup=4, n_iter=4).fit(X, y).cv_results_
    assert len(found["params"]) == 4
    np.testing.assert_allclose(found["mean_test_score"], found["mean_test_score"][0], rtol=1e-9)


@pytest.mark.parametrize("n_startup", [2, 20])
def test_search_evaluates_each_point_of_a_finite_space_once(n_startup):
    space = {
        "alpha": (1, 4),
        "fit_intercept": [False, True],
        "tol": optuna.distributions.FloatDistribution(0.1, 0.3, step=0.1),
    }
    found = search(Ridge(), space, n_startup=n_startup, n_iter=30).fit(X, y).cv_results_["params"]
    assert len(found) == len({tuple(params.values()) for params in found}) == 24


def test_search_evaluates_n_iter_candidates_in_total():
    for n_startup, n_iter in ((3, 6), (6, 3)):
        assert len(search(n_startup=n_startup, n_iter=n_iter).fit(X, y).cv_results_["params"]) == n_iter


# --- results --------------------------------------------------------------------------------------------------------


def test_cv_results_match_cross_validate():
    found = search(Ridge(), ALPHA, cv=3, return_train_score=True).fit(X, y)
    assert len(found.cv_results_["params"]) == 8
    for k, params in enumerate(found.cv_results_["params"]):
        direct = cross_validate(Ridge(**params), X, y, cv=3, return_train_score=True)
        for split in range(3):
            assert found.cv_results_[f"split{split}_test_score"][k] == direct["test_score"][split]
            assert found.cv_results_[f"split{split}_train_score"][k] == direct["train_score"][split]
    assert found.best_index_ == np.argmax(found.cv_results_["mean_test_score"])
    assert found.best_score_ == found.cv_results_["mean_test_score"][found.best_index_]
    np.testing.assert_array_equal(found.predict(X), Ridge(**found.best_params_).fit(X, y).predict(X))
    assert found.n_features_in_ == 5 and found.n_splits_ == 3


def test_search_sets_nested_parameters_of_pipeline():
    found = search(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": (1, 9)}).fit(X, y)
    assert found.best_estimator_[-1].alpha == found.best_params_["ridge__alpha"]
    assert isinstance(found.best_params_["ridge__alpha"], int)


def test_search_accepts_pipeline_step_as_choice_without_fitting_it():
    ridge = Ridge()
    pipeline = make_pipeline(StandardScaler(), Ridge())
    found = search(pipeline, {"ridge": [ridge], "ridge__alpha": (0.1, 1.0)}, n_startup=2, n_iter=3).fit(X, y)
    assert not hasattr(ridge, "coef_")
    assert found.best_estimator_[-1].alpha == found.best_params_["ridge__alpha"]


def test_search_exposes_classes_and_probabilities_of_classifier():
    inputs, labels = make_classification(60, random_state=0)
    found = search(LogisticRegression(), {"C": (0.01, 10.0, "log")}, scoring="neg_log_loss").fit(inputs, labels)
    assert found.classes_.tolist() == [0, 1]
    assert found.predict_proba(inputs).shape == (60, 2)
    assert found.score(inputs, labels) == pytest.approx(
        np.mean(found.predict_log_proba(inputs)[np.arange(60), labels]), rel=1e-9
    )


def test_search_maximizes_refit_metric_among_several():
    metrics = ["r2", "neg_mean_absolute_error"]
    found = search(Ridge(), ALPHA, scoring=metrics, refit="neg_mean_absolute_error").fit(X, y)
    assert found.multimetric_
    assert found.best_index_ == np.argmax(found.cv_results_["mean_test_neg_mean_absolute_error"])
    assert found.score(X, y) < 0
    with pytest.raises(ValueError, match="refit"):
        search(Ridge(), ALPHA, scoring=metrics).fit(X, y)


def test_multimetric_scorer_requires_refit_name():
    def metrics(model, inputs, outputs):
        error = outputs - model.predict(inputs)
        return {"mse": -np.mean(error**2), "mae": -np.mean(np.abs(error))}

    found = search(Ridge(), ALPHA, scoring=metrics, refit="mae").fit(X, y)
    assert found.best_score_ == max(found.cv_results_["mean_test_mae"])
    with pytest.raises(ValueError, match="refit"):
        search(Ridge(), ALPHA, scoring=metrics).fit(X, y)


def test_refit_accepts_callable_and_false():
    worst = search(Ridge(), ALPHA, refit=lambda results: int(results["mean_test_score"].argmin())).fit(X, y)
    assert worst.best_index_ == np.argmin(worst.cv_results_["mean_test_score"])
    bare = search(Ridge(), ALPHA, refit=False).fit(X, y)
    assert bare.best_params_ == bare.cv_results_["params"][bare.best_index_]
    with pytest.raises(AttributeError, match="'predict'"):
        bare.predict(X)


def test_groups_are_passed_to_folds():
    groups = np.repeat(np.arange(4), 10)
    found = search(Ridge(), ALPHA, cv=GroupKFold(4)).fit(X, y, groups=groups)
    assert found.n_splits_ == 4
    assert found.cv_results_["split0_test_score"][0] == pytest.approx(
        cross_validate(Ridge(**found.cv_results_["params"][0]), X, y, groups=groups, cv=GroupKFold(4))["test_score"][0]
    )


def test_sample_weight_is_passed_to_fit():
    weight = np.tile([1.0, 0.0], 20)
    found = search(Ridge(), ALPHA).fit(X, y, sample_weight=weight)
    expected = Ridge(**found.best_params_).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(found.best_estimator_.coef_, expected.coef_)


def test_metadata_routing_passes_weights_and_groups():
    weight, groups = np.tile([1.0, 3.0], 20), np.repeat(np.arange(4), 10)
    with sklearn.config_context(enable_metadata_routing=True):
        ridge = Ridge().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        options = {"cv": GroupKFold(4).set_split_request(groups=True), "n_startup": 2, "n_iter": 2}
        found = search(ridge, ALPHA, **options).fit(X, y, sample_weight=weight, groups=groups)
    train, test = next(GroupKFold(4).split(X, y, groups))
    model = Ridge(**found.cv_results_["params"][0]).fit(X[train], y[train], weight[train])
    assert found.cv_results_["split0_test_score"][0] == pytest.approx(model.score(X[test], y[test], weight[test]))


def test_search_results_do_not_depend_on_n_jobs():
    with joblib.parallel_backend("threading"):
        one, two = (search(Ridge(), ALPHA, n_jobs=jobs).fit(X, y).cv_results_ for jobs in (None, 2))
    np.testing.assert_array_equal(one["mean_test_score"], two["mean_test_score"])


def test_search_stops_after_timeout():
    found = search(timeout=1e-9).fit(X, y)
    assert len(found.cv_results_["params"]) == 1 and not found.interrupted_


def test_search_fits_gp_regressor_with_missing_outputs():
    inputs = np.linspace(0, 6, 24)[:, None]
    inputs = np.random.default_rng(0).permutation(inputs)  # folds of consecutive rows would be extrapolated
    outputs = np.hstack([np.sin(inputs), np.cos(inputs)])
    outputs[3, 0] = np.nan
    space = {"base_kernel": ["rbf", "matern12"], "rank": (1, 2)}
    found = search(ovkgp.GPRegressor("decomposable", random_state=0), space, n_startup=3, n_iter=4).fit(inputs, outputs)
    assert found.predict(inputs).shape == (24, 2)
    assert found.best_score_ > 0


# --- failures -------------------------------------------------------------------------------------------------------


def test_search_continues_after_failed_candidates():
    with pytest.warns(FitFailedWarning, match="is too large"):
        found = search(Surface(fails_above=0.0), n_startup=8, n_iter=16).fit(X, y)
    failed = np.isnan(found.cv_results_["mean_test_score"])
    assert failed.sum() >= 2 and len(failed) == 16
    assert (found.cv_results_["param_b"].data[failed].astype(float) > 0).all()
    assert found.best_params_["b"] <= 0
    # The surrogate learns from failures: fewer of its candidates fail than of the Sobol points, half of which fail.
    assert failed[8:].mean() < 0.5


def test_finite_error_score_is_used_as_score():
    with pytest.warns(FitFailedWarning):
        found = search(Surface(fails_above=0.0), error_score=-100.0).fit(X, y)
    assert found.cv_results_["mean_test_score"].min() == -100.0


def test_error_score_raise_propagates_estimator_error():
    with pytest.raises(ArithmeticError, match="too large"):
        search(Surface(fails_above=-2.0), error_score="raise").fit(X, y)


def test_search_raises_if_no_score_is_finite():
    with pytest.raises(InputError, match=r"8 candidates.*not finite"):
        search(Ridge(), ALPHA, scoring=lambda model, inputs, outputs: np.nan).fit(X, y)


@pytest.mark.parametrize("error_score", [np.nan, -1.0])
def test_search_reports_reason_if_all_candidates_fail(error_score):
    with pytest.raises(InputError, match=r"(?s)8 candidates.*too large"):
        search(Surface(fails_above=-2.0), error_score=error_score).fit(X, y)


@pytest.mark.parametrize(
    "options, key",
    [
        ({"space": {"alpha": (0.1, 1.0)}}, "'alpha'"),
        ({"space": {}}, "search_spaces"),
        ({"n_startup": 0}, "n_startup"),
        ({"n_iter": -1}, "n_iter"),
        ({"n_iter": 2.5}, "n_iter"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "1h"}, "timeout"),
    ],
)
def test_search_rejects_invalid_options(options, key):
    with pytest.raises(OptionError, match=key):
        search(**options).fit(X, y)


def test_missing_optuna_error_names_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install ovkgp\[search\]"):
        search().fit(X, y)


# --- global state ---------------------------------------------------------------------------------------------------


def global_numpy_state():
    return np.random.get_state()[1].tolist()  # noqa: NPY002 - the state that must not change


def test_search_restores_global_state(capsys):
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        states = random.getstate(), global_numpy_state(), torch.get_rng_state(), torch.get_num_threads()
        handler = signal.getsignal(signal.SIGINT)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            search().fit(X, y)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(before)
    assert states[0] == random.getstate() and torch.equal(states[2], torch.get_rng_state())
    assert states[1] == global_numpy_state() and states[3] == torch.get_num_threads()
    assert signal.getsignal(signal.SIGINT) is handler
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_verbose_search_shows_best_score(capsys):
    found = search(verbose=1).fit(X, y)
    shown = capsys.readouterr().err
    assert "8/8" in shown and f"best={found.best_score_:.6g}" in shown


# --- interruption and resumption ------------------------------------------------------------------------------------


class Interrupted(Surface):
    """Surface that raises SIGINT once, in the fit that `fits_until_interrupt` counts down to."""

    fits_until_interrupt: list[int] = []  # noqa: RUF012 - shared by all clones on purpose
    ignores_interrupt = False

    def fit(self, X, y):
        if self.fits_until_interrupt:
            self.fits_until_interrupt[0] -= 1
            if self.fits_until_interrupt[0] == 0:
                self.fits_until_interrupt.clear()
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    if not self.ignores_interrupt:
                        raise
        return super().fit(X, y)


class InterruptIgnored(Interrupted):
    """Surface that catches Ctrl-C and returns, as the estimators of this package do."""

    ignores_interrupt = True


def interrupted(kind, fit_number, **options):
    kind.fits_until_interrupt[:] = [fit_number]
    try:
        return search(kind(), **options).fit(X, y)
    finally:
        kind.fits_until_interrupt.clear()


@pytest.mark.parametrize("kind", [Interrupted, InterruptIgnored])
def test_interrupted_search_refits_best_trial(kind):
    whole = search().fit(X, y).cv_results_
    with pytest.warns(FitWarning, match="after 6 of 8"):
        found = interrupted(kind, 13)  # two folds per trial: the first fold of the seventh
    assert found.interrupted_
    assert found.cv_results_["params"] == whole["params"][:6]
    assert found.best_estimator_.fitted_


def test_search_propagates_interrupt_before_first_trial():
    with pytest.raises(KeyboardInterrupt):
        interrupted(Interrupted, 1)


def same_trials(found, whole):
    assert found["params"] == whole["params"]
    np.testing.assert_array_equal(found["mean_test_score"], whole["mean_test_score"])


def test_resumed_search_matches_uninterrupted_search(tmp_path):
    study = tmp_path / "search.journal"
    whole = search().fit(X, y).cv_results_
    with pytest.warns(FitWarning, match="after 6"):
        interrupted(Interrupted, 13, study=study)
    resumed = search(Interrupted(), study=study).fit(X, y)
    assert resumed.n_resumed_ == 6 and not resumed.interrupted_
    same_trials(resumed.cv_results_, whole)
    assert resumed.best_score_ == whole["mean_test_score"].max()


def test_finished_study_is_reloaded_and_extended(tmp_path):
    study = tmp_path / "search.journal"
    first = search(study=study).fit(X, y)
    again = search(study=study).fit(X, y)
    assert again.n_resumed_ == 8
    same_trials(again.cv_results_, first.cv_results_)
    np.testing.assert_array_equal(again.cv_results_["mean_fit_time"], first.cv_results_["mean_fit_time"])
    more = search(study=study, n_iter=10).fit(X, y)
    assert more.n_resumed_ == 8
    same_trials(more.cv_results_, search(n_iter=10).fit(X, y).cv_results_)


def test_study_stores_failures_and_train_scores(tmp_path):
    options = {"study": tmp_path / "s", "return_train_score": True}
    with pytest.warns(FitFailedWarning):
        first = search(Surface(fails_above=0.0), **options).fit(X, y).cv_results_
    with pytest.warns(FitFailedWarning, match="too large"):
        again = search(Surface(fails_above=0.0), **options).fit(X, y).cv_results_
    for name in ("mean_test_score", "split1_train_score", "rank_test_score"):
        np.testing.assert_array_equal(first[name], again[name])


def test_study_resumes_with_stored_seed_without_random_state(tmp_path):
    study = tmp_path / "s"
    first = search(study=study, random_state=None, n_iter=5).fit(X, y)
    more = search(study=study, random_state=None, n_startup=7, n_iter=7).fit(X, y)
    assert more.cv_results_["params"][:5] == first.cv_results_["params"]
    # Sobol points of one sequence: no two are in the same eighth of the range of b
    eighths = [int((params["b"] + 1) * 4) for params in more.cv_results_["params"]]
    assert len(set(eighths)) == 7


@pytest.mark.parametrize(
    "changed, key",
    [
        ({"estimator": Surface(fails_above=3.0)}, r": estimator\)"),
        ({"space": SURFACE | {"b": (-1.0, 2.0)}}, r": search_spaces\)"),
        ({"cv": 3}, r": folds\)"),
        ({"scoring": "r2"}, r": scoring\)"),
        ({"random_state": 1}, "random_state"),
    ],
)
def test_study_rejects_changed_options(tmp_path, changed, key):
    study = tmp_path / "s"
    search(study=study, n_startup=1, n_iter=1).fit(X, y)
    before = study.read_bytes()
    with pytest.raises(OptionError, match=key):
        search(study=study, **changed).fit(X, y)
    assert study.read_bytes() == before


def test_study_rejects_changed_data(tmp_path):
    search(study=tmp_path / "s", n_startup=1, n_iter=1).fit(X, y)
    with pytest.raises(OptionError, match=r": data\)"):
        search(study=tmp_path / "s").fit(X, y + 1e-9)


SCRIPT = """
import sys
import numpy as np
from sklearn.linear_model import Ridge
from ovkgp.estimators.selection.bayes_search import BayesSearchCV

assert "optuna" not in sys.modules  # loaded by `fit`
X = np.random.default_rng(0).normal(size=(30, 3))
space = {"alpha": (1e-3, 1e3, "log")}
BayesSearchCV(Ridge(), space, n_startup=5, n_iter=500, cv=2, random_state=0, study=sys.argv[1]).fit(X, X[:, 0])
"""


@pytest.mark.slow
def test_study_resumes_after_killed_process(tmp_path):
    study = tmp_path / "s"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(study)])
    deadline = time.monotonic() + 60
    while not (study.exists() and study.read_text().count("fit_time") >= 6):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = study.read_text().count("fit_time")
    inputs = np.random.default_rng(0).normal(size=(30, 3))
    options = {"n_iter": done + 1, "cv": 2}
    resumed = search(Ridge(), ALPHA, study=study, **options).fit(inputs, inputs[:, 0])
    assert done - 1 <= resumed.n_resumed_ <= done
    same_trials(resumed.cv_results_, search(Ridge(), ALPHA, **options).fit(inputs, inputs[:, 0]).cv_results_)
