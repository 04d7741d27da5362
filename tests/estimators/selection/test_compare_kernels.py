"""Tests of `compare_kernels`: scores, order, and independence of the candidates."""

import contextlib
import signal
import warnings

import arviz
import numpy as np
import pandas as pd
import pytest
from gpytorch.kernels import RBFKernel
from sklearn.model_selection import KFold, ShuffleSplit, cross_val_predict

import ovkgp
from ovkgp.estimators.selection.compare_kernels import COLUMNS, compare_kernels, compute_standard_error, make_regressors
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.kernels import DecomposableKernel


def related(n=40, seed=0):
    """Return data whose outputs are multiples of one function; half of the second output is missing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    Y = np.sin(2 * X) @ [[1.0, -20.0]] + [0.1, 2.0] * rng.normal(size=(n, 2))
    Y[n // 2 :, 1] = np.nan
    return X, Y


@pytest.fixture(scope="module")
def table():
    X, Y = related()
    return compare_kernels(["independent", "decomposable"], X, Y, cv=3, sampling={"draws": 60}, random_state=0)


def test_compare_kernels_prefers_shared_function_by_every_score(table):
    assert tuple(table.columns) == COLUMNS
    assert list(table.index) == ["decomposable", "independent"]
    best, other = table.iloc[0], table.iloc[1]
    for score in ("log_evidence", "penalized_evidence", "elpd_loo", "elpd_loo_point", "cv_log_density"):
        assert best[score] > other[score], score
    assert best.cv_rmse < other.cv_rmse
    assert (table.error == "").all() and (table.seconds > 0).all()


def test_score_diff_is_relative_to_best(table):
    assert table.score_diff.iloc[0] == 0 and table.score_diff_se.iloc[0] == 0
    assert table.score_diff.iloc[1] == pytest.approx(table.cv_log_density.iloc[1] - table.cv_log_density.iloc[0])
    # significant by construction of the data
    assert table.score_diff.iloc[1] < -2 * table.score_diff_se.iloc[1] < 0


def test_compare_kernels_matches_gp_regressor():
    X, Y = related()
    found = compare_kernels({"a": "independent"}, X, Y, cv=3, method="none", random_state=0).loc["a"]
    model = ovkgp.GPRegressor("independent", hyperparameters="evidence", random_state=0).fit(X, Y)
    assert found.log_evidence == pytest.approx(model.log_evidence_, rel=1e-10)
    trained = sum(parameter.numel() for parameter in model.gp_.parameters())
    assert found.penalized_evidence == pytest.approx(model.log_evidence_ - trained, rel=1e-10)
    assert found.elpd_loo == found.elpd_loo_point and "khat_max" not in found
    folds = KFold(3, shuffle=True, random_state=0)
    predicted = cross_val_predict(ovkgp.GPRegressor("independent", random_state=0), X, Y, cv=folds)
    assert found.cv_rmse == pytest.approx(np.sqrt(np.nanmean((predicted - Y) ** 2)), rel=1e-8)


@pytest.mark.parametrize("units", [[1000.0, 1000.0], [1.0, 1000.0]])
def test_compare_kernels_ranking_is_invariant_to_units(units):
    X, Y = related(24)
    options = {"cv": 2, "method": "none", "random_state": 0, "score": "cv_log_density"}
    one, other = (compare_kernels(["independent", "decomposable"], X, s * Y, **options) for s in (1.0, np.array(units)))
    counts = np.isfinite(Y).sum(0)
    shift, number = float(counts @ np.log(units)), counts.sum()
    assert list(one.index) == list(other.index)
    for name, moved in {"log_evidence": shift, "elpd_loo": shift, "cv_log_density": shift / number}.items():
        np.testing.assert_allclose(other[name], one[name] - moved, rtol=1e-6)
    for name in ("elpd_loo_se", "cv_log_density_se", "score_diff", "score_diff_se"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-6)


def test_elpd_loo_standard_error_matches_arviz_for_one_output():
    X, Y = related(24)
    found = compare_kernels(["independent"], X, Y[:, :1], cv=None, sampling={"draws": 50}, random_state=0).iloc[0]
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, Y[:, :1])
    data = sample_hyperparameters(
        model.gp_,
        model.scaling_.inputs(X),
        model.scaling_.outputs(Y[:, :1]),
        "laplace",
        draws=50,
        prior_draws=0,
        posterior_predictive=False,
        random_state=0,
    )
    theirs = arviz.loo(data)
    assert found.elpd_loo_se == pytest.approx(theirs.se, rel=1e-8)
    assert found.elpd_loo == pytest.approx(theirs.elpd_loo - 24 * np.log(model.scaling_.output_scale[0]), rel=1e-8)


def test_standard_error_matches_simulation():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4000, 50)).sum(1)
    assert compute_standard_error(rng.normal(size=50)) == pytest.approx(draws.std(), rel=0.35)
    assert compute_standard_error(np.array([1.0, 3.0, 5.0, 7.0])) == pytest.approx(np.sqrt(4) * np.sqrt(5))
    assert np.isnan(compute_standard_error(np.ones(1)))


def test_compare_kernels_sorts_by_score_without_error_for_evidence():
    X, Y = related(20)
    found = compare_kernels(
        ["independent", "decomposable"], X, Y, cv=None, method="none", score="log_evidence", random_state=0
    )
    assert found.log_evidence.is_monotonic_decreasing
    assert found.score_diff_se.isna().all() and found.cv_log_density.isna().all()


def test_compare_kernels_keeps_failed_candidates_with_reason():
    X, Y = related(20)
    candidates = {"field": "curl_free", "fine": "independent", "wrong": RBFKernel(), "unknown": "nonsense"}
    found = compare_kernels(candidates, X, Y, cv=2, method="none", random_state=0)
    assert found.index[0] == "fine" and found.error["fine"] == ""
    assert "outputs as inputs" in found.error["field"]
    assert "kernel" in found.error["wrong"] and "1 outputs" in found.error["wrong"]
    assert "nonsense" in found.error["unknown"]
    assert found.loc["wrong", ["log_evidence", "elpd_loo", "score_diff"]].isna().all()


def test_compare_kernels_keeps_other_scores_if_one_fails():
    X, Y = related(20)
    options = {"draws": 20, "log_likelihood": False}
    found = compare_kernels(["independent"], X, Y, cv=2, sampling=options, random_state=0).iloc[0]
    assert np.isnan(found.elpd_loo) and 'method="none"' in found.error
    assert np.isfinite([found.log_evidence, found.elpd_loo_point, found.cv_log_density]).all()


def test_compare_kernels_reports_reasons_if_all_candidates_fail():
    X, Y = related(20)
    with pytest.raises(InputError, match=r"failed.*curl_free.*outputs as inputs"):
        compare_kernels(["curl_free"], X, Y)


def test_compare_kernels_does_not_modify_candidates():
    X, Y = related(20)
    kernel, model = DecomposableKernel(RBFKernel(), 2, 1), ovkgp.GPRegressor("lmc", rank=2, random_state=4)
    before = kernel.base_kernel.lengthscale.item()
    found = compare_kernels([kernel, model], X, Y, cv=None, method="none", random_state=0)
    assert set(found.index) == {"DecomposableKernel", "lmc"}
    assert kernel.base_kernel.lengthscale.item() == before and not hasattr(model, "gp_")


def test_compare_kernels_neither_counts_nor_samples_fixed_hyperparameters():
    X, Y = related(20)
    model = ovkgp.GPRegressor(DecomposableKernel(RBFKernel(), 2, 1), hyperparameters="fixed", noise=0.5)
    found = compare_kernels([model], X, Y, cv=None, random_state=0).iloc[0]
    assert found.penalized_evidence == found.log_evidence
    assert found.elpd_loo == found.elpd_loo_point and found.error == ""


def test_compare_kernels_accepts_series_and_frame():
    X, Y = related(24)
    frame, series = pd.DataFrame(X, columns=["x"]), pd.Series(Y[:, 0], name="y")
    found = compare_kernels(["independent", "decomposable"], frame, series, cv=2, method="none", random_state=0)
    assert (found.error == "").all()


def test_compare_kernels_is_reproducible_with_random_state():
    X, Y = related(20)
    options = {"cv": 2, "sampling": {"draws": 30}, "random_state": 7}
    one, two = (compare_kernels(["independent"], X, Y, **options).drop(columns="seconds") for _ in range(2))
    pd.testing.assert_frame_equal(one, two)


def test_compare_kernels_leaves_global_generators_unchanged():
    X, Y = related(20)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    compare_kernels(["independent"], X, Y, cv=2, sampling={"draws": 20}, random_state=0)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize(
    "candidates, options, key",
    [
        ([], {}, "candidates"),
        ("independent", {}, "candidates must be a list"),
        (RBFKernel(), {}, "candidates must be a list"),
        ([3], {}, "candidate must be"),
        (["lmc"], {"method": "vi"}, "method"),
        (["lmc"], {"score": "aic"}, "score"),
        (["lmc"], {"score": "cv_log_density", "cv": None}, "cv=None"),
        (["lmc"], {"cv": ShuffleSplit(5, test_size=0.5)}, "overlap"),
    ],
)
def test_compare_kernels_rejects_invalid_options(candidates, options, key):
    X, Y = related(20)
    with pytest.raises(OptionError, match=key):
        compare_kernels(candidates, X, Y, **options)


def test_compare_kernels_rejects_missing_inputs():
    X, Y = related(20)
    X[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        compare_kernels(["lmc"], X, Y)


def test_default_names_list_changed_options():
    models = make_regressors([ovkgp.GPRegressor("lmc", rank=3, noise=np.ones(2), random_state=1), "lmc", "lmc"])
    assert list(models) == ["lmc, noise=ndarray, rank=3", "lmc", "lmc (2)"]


class Interrupting(ovkgp.GPRegressor):
    """Regressor that raises SIGINT and catches it, as an interrupted training does."""

    def fit(self, X, Y, noise=None, *, checkpoint=None):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return super().fit(X, Y)


def test_interrupted_comparison_returns_finished_candidates():
    X, Y = related(20)
    candidates = {"one": "independent", "two": Interrupting("independent"), "three": "independent"}
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(FitWarning, match="after 1 of 3"):
        found = compare_kernels(candidates, X, Y, cv=None, method="none", random_state=0)
    assert list(found.index) == ["one"]
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):
        compare_kernels([Interrupting("independent")], X, Y)


def test_verbose_comparison_shows_progress(capsys):
    X, Y = related(20)
    compare_kernels(["independent"], X, Y, cv=2, method="none", random_state=0, verbose=1)
    assert "independent" in capsys.readouterr().err


def test_log_evidence_of_sampled_candidate_is_at_mode():
    X, Y = related(24)
    drawn = ovkgp.GPRegressor(
        "independent", hyperparameters="laplace", sampling={"draws": 30, "posterior_predictive": False}, random_state=0
    )
    candidates = {"trained": ovkgp.GPRegressor("independent", random_state=0), "drawn": drawn}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = compare_kernels(candidates, X, Y, cv=None, method="none", random_state=0)
    assert table.log_evidence["drawn"] == pytest.approx(table.log_evidence["trained"], rel=1e-10)


def test_khat_is_none_where_nothing_was_drawn():
    X, Y = related(20)
    fixed = ovkgp.GPRegressor(DecomposableKernel(RBFKernel(), 2, 1), hyperparameters="fixed", noise=0.5)
    candidates = {"fixed": fixed, "trained": "independent"}
    found = compare_kernels(candidates, X, Y, cv=None, sampling={"draws": 30}, random_state=0)
    assert found.khat_max["fixed"] is None and np.isfinite(found.khat_max["trained"])


def test_compare_kernels_holds_out_groups():
    """Rows come in tight groups, which a model with a short lengthscale explains only if it has seen the group."""
    rng = np.random.default_rng(0)
    tracks = np.repeat(np.arange(10), 4)
    X, Y = tracks[:, None] + 0.01 * rng.normal(size=(40, 1)), rng.normal(size=(10, 2))[tracks]
    Y = Y + 0.1 * rng.normal(size=Y.shape)
    options = {"cv": 5, "method": "none", "random_state": 0}
    candidates = {"a": ovkgp.GPRegressor("decomposable", rank=2)}
    rows, groups = (compare_kernels(candidates, X, Y, groups=labels, **options).loc["a"] for labels in (None, tracks))
    assert rows.cv_rmse < 0.3 < 0.7 < groups.cv_rmse
    assert groups.elpd_loo < rows.elpd_loo - 10
    names = np.array([f"track {number}" for number in tracks])
    again = compare_kernels(candidates, X, Y, groups=names, **options).loc["a"]
    assert again.elpd_loo == pytest.approx(groups.elpd_loo, rel=1e-6)
    with pytest.raises(OptionError, match="number of groups"):
        compare_kernels(candidates, X, Y, groups=tracks, cv=11)


@pytest.mark.slow
def test_compare_kernels_compares_likelihoods():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (60, 1))
    y = rng.poisson(np.exp(0.5 + 2 * np.sin(2 * X[:, 0])))
    counts = ovkgp.GPRegressor("independent", likelihood="poisson", num_frequencies=10)
    candidates = {"poisson": counts, "gaussian": "independent"}
    found = compare_kernels(candidates, X, y, cv=2, method="none", random_state=0)
    assert (found.error == "").all() and list(found.index) == ["poisson", "gaussian"]
    scores = ["log_evidence", "elpd_loo", "elpd_loo_point", "cv_log_density", "elpd_loo_se"]
    assert np.isfinite(found[scores].to_numpy(dtype=float)).all()
    assert (found.loc["poisson", scores[:4]] > found.loc["gaussian", scores[:4]]).all()
    assert found.khat_max["poisson"] < 0.7 and found.khat_max["gaussian"] is None
    grouped = compare_kernels({"poisson": counts}, X, y, cv=2, method="none", groups=np.arange(60) // 6, random_state=0)
    assert "groups is not supported" in grouped.error["poisson"] and np.isfinite(grouped.cv_log_density["poisson"])
