"""The table of candidates: right numbers, right order, and nothing that one candidate does harms another."""

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
from ovkgp.estimators.selection.compare_kernels import COLUMNS, compare_kernels, regressors, standard_error
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.kernels import DecomposableKernel


def related(n=40, seed=0):
    """Two outputs that are one function, half of the second missing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    Y = np.sin(2 * X) @ [[1.0, -20.0]] + [0.1, 2.0] * rng.normal(size=(n, 2))
    Y[n // 2 :, 1] = np.nan
    return X, Y


@pytest.fixture(scope="module")
def table():
    X, Y = related()
    return compare_kernels(["independent", "decomposable"], X, Y, cv=3, sampling={"draws": 60}, random_state=0)


def test_outputs_that_are_one_function_are_found_by_every_score(table):
    assert tuple(table.columns) == COLUMNS
    assert list(table.index) == ["decomposable", "independent"]
    best, other = table.iloc[0], table.iloc[1]
    for score in ("log_evidence", "penalised_evidence", "elpd_loo", "elpd_loo_point", "cv_log_density"):
        assert best[score] > other[score], score
    assert best.cv_rmse < other.cv_rmse
    assert (table.error == "").all() and (table.seconds > 0).all()


def test_differences_are_to_the_best(table):
    assert table.difference.iloc[0] == 0 and table.difference_se.iloc[0] == 0
    assert table.difference.iloc[1] == pytest.approx(table.cv_log_density.iloc[1] - table.cv_log_density.iloc[0])
    # far apart, as the data were made
    assert table.difference.iloc[1] < -2 * table.difference_se.iloc[1] < 0


def test_the_numbers_are_those_of_the_regressor():
    X, Y = related()
    found = compare_kernels({"a": "independent"}, X, Y, cv=3, method="none", random_state=0).loc["a"]
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, Y)
    assert found.log_evidence == pytest.approx(model.log_evidence_, rel=1e-10)
    trained = sum(parameter.numel() for parameter in model.gp_.parameters())
    assert found.penalised_evidence == pytest.approx(model.log_evidence_ - trained, rel=1e-10)
    assert found.elpd_loo == found.elpd_loo_point and np.isnan(found.khat_max)
    folds = KFold(3, shuffle=True, random_state=0)
    predicted = cross_val_predict(ovkgp.GPRegressor("independent", random_state=0), X, Y, cv=folds)
    assert found.cv_rmse == pytest.approx(np.sqrt(np.nanmean((predicted - Y) ** 2)), rel=1e-8)


@pytest.mark.parametrize("units", [[1000.0, 1000.0], [1.0, 1000.0]])
def test_other_units_move_all_candidates_alike(units):
    X, Y = related(24)
    options = {"cv": 2, "method": "none", "random_state": 0, "score": "cv_log_density"}
    one, other = (compare_kernels(["independent", "decomposable"], X, s * Y, **options) for s in (1.0, np.array(units)))
    counts = np.isfinite(Y).sum(0)
    shift, number = float(counts @ np.log(units)), counts.sum()
    assert list(one.index) == list(other.index)
    for name, moved in {"log_evidence": shift, "elpd_loo": shift, "cv_log_density": shift / number}.items():
        np.testing.assert_allclose(other[name], one[name] - moved, rtol=1e-6)
    for name in ("elpd_loo_se", "cv_log_density_se", "difference", "difference_se"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-6)


def test_the_standard_error_of_one_output_is_arviz_s():
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


def test_a_difference_has_the_standard_error_of_paired_terms():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4000, 50)).sum(1)
    assert standard_error(rng.normal(size=50)) == pytest.approx(draws.std(), rel=0.35)
    assert np.isnan(standard_error(np.ones(1)))


def test_the_table_is_sorted_by_the_chosen_score_and_evidences_have_no_error():
    X, Y = related(20)
    found = compare_kernels(
        ["independent", "decomposable"], X, Y, cv=None, method="none", score="log_evidence", random_state=0
    )
    assert found.log_evidence.is_monotonic_decreasing
    assert found.difference_se.isna().all() and found.cv_log_density.isna().all()


def test_a_candidate_that_fails_is_a_row_with_a_reason():
    X, Y = related(20)
    candidates = {"field": "curl_free", "fine": "independent", "wrong": RBFKernel(), "unknown": "nonsense"}
    found = compare_kernels(candidates, X, Y, cv=2, method="none", random_state=0)
    assert found.index[0] == "fine" and found.error["fine"] == ""
    assert "as many outputs as inputs" in found.error["field"]
    assert "1 outputs and Y has 2 columns" in found.error["wrong"]
    assert "nonsense" in found.error["unknown"]
    assert found.loc["wrong", ["log_evidence", "elpd_loo", "difference"]].isna().all()


def test_a_score_that_cannot_be_had_leaves_the_others():
    X, Y = related(20)
    options = {"draws": 20, "log_likelihood": False}
    found = compare_kernels(["independent"], X, Y, cv=2, sampling=options, random_state=0).iloc[0]
    assert np.isnan(found.elpd_loo) and 'method="none"' in found.error
    assert np.isfinite([found.log_evidence, found.elpd_loo_point, found.cv_log_density]).all()


def test_if_all_fail_the_reasons_are_told():
    X, Y = related(20)
    with pytest.raises(InputError, match=r"every candidate failed.*curl_free.*as many outputs"):
        compare_kernels(["curl_free"], X, Y)


def test_kernels_and_regressors_are_candidates_and_are_not_changed():
    X, Y = related(20)
    kernel, model = DecomposableKernel(RBFKernel(), 2, 1), ovkgp.GPRegressor("lmc", rank=2, random_state=4)
    before = kernel.base_kernel.lengthscale.item()
    found = compare_kernels([kernel, model], X, Y, cv=None, method="none", random_state=0)
    assert set(found.index) == {"DecomposableKernel", "lmc"}
    assert kernel.base_kernel.lengthscale.item() == before and not hasattr(model, "gp_")


def test_fixed_hyperparameters_are_neither_counted_nor_drawn():
    X, Y = related(20)
    model = ovkgp.GPRegressor(DecomposableKernel(RBFKernel(), 2, 1), hyperparameters="fixed", noise=0.5)
    found = compare_kernels([model], X, Y, cv=None, random_state=0).iloc[0]
    assert found.penalised_evidence == found.log_evidence
    assert found.elpd_loo == found.elpd_loo_point and found.error == ""


def test_one_output_in_a_series_and_a_frame():
    X, Y = related(24)
    frame, series = pd.DataFrame(X, columns=["x"]), pd.Series(Y[:, 0], name="y")
    found = compare_kernels(["independent", "decomposable"], frame, series, cv=2, method="none", random_state=0)
    assert (found.error == "").all()


def test_the_same_random_state_gives_the_same_table():
    X, Y = related(20)
    options = {"cv": 2, "sampling": {"draws": 30}, "random_state": 7}
    one, two = (compare_kernels(["independent"], X, Y, **options).drop(columns="seconds") for _ in range(2))
    pd.testing.assert_frame_equal(one, two)


def test_global_generators_are_left_alone():
    X, Y = related(20)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    compare_kernels(["independent"], X, Y, cv=2, sampling={"draws": 20}, random_state=0)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize(
    "candidates, options, said",
    [
        ([], {}, "no candidate"),
        ("independent", {}, "must be a list or a dictionary"),
        (RBFKernel(), {}, "must be a list or a dictionary"),
        ([3], {}, "name of a structure, a kernel or a GPRegressor"),
        (["lmc"], {"method": "vi"}, "method must be one of"),
        (["lmc"], {"score": "aic"}, "score must be one of"),
        (["lmc"], {"score": "cv_log_density", "cv": None}, "needs folds"),
        (["lmc"], {"cv": ShuffleSplit(5, test_size=0.5)}, "overlap"),
    ],
)
def test_options_are_refused_before_work_begins(candidates, options, said):
    X, Y = related(20)
    with pytest.raises(OptionError, match=said):
        compare_kernels(candidates, X, Y, **options)


def test_bad_data_are_refused():
    X, Y = related(20)
    X[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        compare_kernels(["lmc"], X, Y)


def test_names_tell_what_was_changed():
    models = regressors([ovkgp.GPRegressor("lmc", rank=3, noise=np.ones(2), random_state=1), "lmc", "lmc"])
    assert list(models) == ["lmc, noise=ndarray, rank=3", "lmc", "lmc (2)"]


class Interrupting(ovkgp.GPRegressor):
    """Presses Ctrl-C, and swallows it, as a training does that keeps the best it has."""

    def fit(self, X, Y, noise=None, *, checkpoint=None):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return super().fit(X, Y)


def test_ctrl_c_gives_the_candidates_that_were_finished():
    X, Y = related(20)
    candidates = {"one": "independent", "two": Interrupting("independent"), "three": "independent"}
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(FitWarning, match="after 1 of 3 candidates"):
        found = compare_kernels(candidates, X, Y, cv=None, method="none", random_state=0)
    assert list(found.index) == ["one"]
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):
        compare_kernels([Interrupting("independent")], X, Y)


def test_verbose_shows_a_bar(capsys):
    X, Y = related(20)
    compare_kernels(["independent"], X, Y, cv=2, method="none", random_state=0, verbose=1)
    assert "independent" in capsys.readouterr().err


def test_the_evidence_of_a_candidate_with_draws_is_that_at_its_mode():
    X, Y = related(24)
    drawn = ovkgp.GPRegressor(
        "independent", hyperparameters="laplace", sampling={"draws": 30, "posterior_predictive": False}, random_state=0
    )
    candidates = {"plain": ovkgp.GPRegressor("independent", random_state=0), "drawn": drawn}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = compare_kernels(candidates, X, Y, cv=None, method="none", random_state=0)
    assert table.log_evidence["drawn"] == pytest.approx(table.log_evidence["plain"], rel=1e-10)
