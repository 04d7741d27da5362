"""The table of `criticize`: what each argument does, every estimator, and sizes and power in simulations."""

import datetime

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ovkgp
from ovkgp.criticism import compare, criticize, recalibrate
from ovkgp.exceptions import InputError, OptionError
from tests.estimator_cases import default_cases

rng = np.random.default_rng(0)
X = rng.uniform(0, 6, (60, 1))
F = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])])
Y = F + 0.3 * rng.normal(size=(60, 2))
NEW_X = rng.uniform(0, 6, (40, 1))
NEW_Y = np.column_stack([np.sin(NEW_X[:, 0]), np.cos(NEW_X[:, 0])]) + 0.3 * rng.normal(size=(40, 2))
TRAINED = {"hyperparameters": "evidence", "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return ovkgp.GPRegressor("independent", **TRAINED).fit(X, Y)


@pytest.fixture(scope="module")
def gappy():
    gaps = np.where(np.arange(120).reshape(60, 2) % 7 == 0, np.nan, Y)
    return ovkgp.GPRegressor("independent", **TRAINED).fit(X, gaps), gaps


def names_of(table):
    return [check.name for check in table]


def test_table_of_training_rows_has_every_check(model):
    table = criticize(model, random_state=0)
    assert names_of(table) == [
        "Gaussianity of residuals",
        "PIT of output 0",
        "PIT of output 1",
        "residuals and inputs",
        "noise level and inputs",
        "residuals and order",
        "dependence between outputs",
        *(f"joint calibration: {prerank}" for prerank in ("location", "scale", "dependence")),
        "Mahalanobis distance",
        "pivoted Cholesky errors",
        "scales of variation",
        "predictive checks",
        "coverage of output 0",
        "coverage of output 1",
        "log score",
        "CRPS",
        "energy score",
        "degrees of freedom",
        "influential rows",
        "rank of the output matrix",
        "number of features",
    ]
    omitted = [check.name for check in table if not check.applies]
    assert omitted == [
        "Mahalanobis distance",
        "predictive checks",
        "energy score",
        "rank of the output matrix",
        "number of features",
    ]
    assert "trained on the same rows" in table.notes[0]


def test_result_depends_on_the_seed_only(model):
    first, second = (criticize(model, random_state=3).to_frame() for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_held_out_rows_have_more_checks(model):
    table = criticize(model, NEW_X, NEW_Y, random_state=0)
    assert table["Mahalanobis distance"].pvalue is not None
    assert table["energy score"].statistic > 0
    assert not table["influential rows"].applies
    assert "40 of 40 held-out rows" in table.notes[0]


def test_order_of_training_rows_does_not_matter(model):
    order = rng.permutation(60)
    straight, shuffled = criticize(model, X, Y, random_state=0), criticize(model, X[order], Y[order], random_state=0)
    for name in ("coverage of output 0", "log score", "degrees of freedom", "influential rows"):
        assert shuffled[name].statistic == pytest.approx(straight[name].statistic)
    influential = [
        int(text.split(" ")[0]) for text in straight["influential rows"].conclusion.split(": ")[1].split(", ")
    ]
    moved = [int(text.split(" ")[0]) for text in shuffled["influential rows"].conclusion.split(": ")[1].split(", ")]
    assert [order[row] for row in moved] == influential


EXTRA = {
    "numbers": Y[:, 0] - F[:, 0],
    "frame": pd.DataFrame({"error": Y[:, 0] - F[:, 0]}),
    "series": pd.Series(Y[:, 0] - F[:, 0], name="error"),
    "dictionary": {"error": Y[:, 0] - F[:, 0]},
    "texts": {"error": np.where(Y[:, 0] > F[:, 0], "above", "below")},
    "categories": {"error": pd.Categorical(np.where(Y[:, 0] > F[:, 0], "above", "below"))},
    "booleans": {"error": Y[:, 0] > F[:, 0]},
    "dates": {"error": pd.Timestamp("2020-01-01") + pd.to_timedelta(Y[:, 0] - F[:, 0], unit="D")},
    "zoned dates": {"error": pd.Timestamp("2020-01-01", tz="UTC") + pd.to_timedelta(Y[:, 0] - F[:, 0], unit="D")},
    "durations": {"error": pd.to_timedelta(Y[:, 0] - F[:, 0], unit="h")},
    "python dates": {"error": [datetime.date(2020, 6, 1) + datetime.timedelta(int(50 * e)) for e in Y[:, 0] - F[:, 0]]},
    "missing dates": {"error": pd.Series(pd.to_timedelta(Y[:, 0] - F[:, 0], unit="h")).where(np.arange(60) > 4)},
    "missing numbers": {"error": np.where(np.arange(60) < 5, np.nan, Y[:, 0] - F[:, 0])},
}


@pytest.mark.parametrize("kind", EXTRA)
def test_extra_column_that_determines_errors_is_found(model, kind):
    table = criticize(model, extra=EXTRA[kind], random_state=0)
    (check,) = (check for check in table if check.name in ("residuals and error", "residuals and extra 0"))
    assert check.rejected
    assert check.recommendation == "Add the column to the inputs X."


def test_extra_columns_without_information_do_not_apply(model):
    columns = {"constant": np.ones(60), "empty": np.full(60, np.nan), "noise": rng.normal(size=60)}
    table = criticize(model, extra=columns, random_state=0)
    assert not table["residuals and constant"].applies
    assert not table["residuals and empty"].applies
    assert not table["residuals and noise"].rejected


def test_extra_is_checked(model):
    with pytest.raises(InputError, match="extra has 59 rows, expected 60"):
        criticize(model, extra=np.ones((59, 1)))
    with pytest.raises(InputError, match="infinity in column 'a'"):
        criticize(model, extra={"a": np.append(np.ones(59), np.inf)})
    with pytest.raises(InputError, match="60 categories in column 'a'"):
        criticize(model, extra={"a": [f"station {i}" for i in range(60)]})


def test_groups_are_held_out_together(model):
    groups = np.repeat(["a", "b", "c"], 20)
    table = criticize(model, X, Y, groups=groups, random_state=0)
    assert table["residuals and groups"].pvalue is not None
    assert "other groups" in table.notes[1]
    expected = ovkgp.criticism.coverage(model, X, Y, [0.9], groups=groups).observed[0]
    assert [table[f"coverage of output {a}"].statistic for a in (0, 1)] == pytest.approx(expected)
    # degrees of freedom are those of the fit
    assert table["degrees of freedom"].statistic == pytest.approx(
        criticize(model, random_state=0)["degrees of freedom"].statistic
    )


@pytest.mark.filterwarnings("error")
def test_frames_with_dates_and_groups_are_read():
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(60), unit="D")
    inputs, outputs = pd.DataFrame({"day": days, "depth": X[:, 0]}), pd.DataFrame(Y, columns=["u", "v"])
    model, groups = ovkgp.GPRegressor("independent", **TRAINED).fit(inputs, outputs), np.repeat([1, 2, 3], 20)
    given = criticize(model, inputs, outputs, groups=groups, random_state=0)
    assert "PIT of u" in names_of(given)
    later = inputs.assign(day=days + pd.Timedelta(days=60))
    assert criticize(model, later, outputs, random_state=0)["Mahalanobis distance"].pvalue is not None


def test_groups_with_their_own_level_are_found():
    groups = np.repeat(["a", "b", "c"], 20)
    shifted = Y + np.repeat([0.8, -0.8, 0.0], 20)[:, None]
    model = ovkgp.GPRegressor("independent", **TRAINED).fit(X, shifted)
    table = criticize(model, X, shifted, groups=groups, random_state=0)
    assert table["residuals and groups"].rejected


def test_groups_are_checked(model):
    with pytest.raises(InputError, match="groups has shape"):
        criticize(model, X, Y, groups=["a", "b"])
    with pytest.raises(InputError, match="2 different labels"):
        criticize(model, X, Y, groups=np.ones(60))
    with pytest.raises(InputError, match="missing labels"):
        criticize(model, X, Y, groups=[None, *"ab" * 29, "a"])
    with pytest.raises(InputError, match="groups must be passed with X and Y"):
        criticize(model, groups=np.arange(60) % 2)
    with pytest.raises(InputError, match="groups needs the training rows"):
        criticize(model, NEW_X, NEW_Y, groups=np.arange(40) % 2)
    with pytest.raises(InputError, match="groups needs all training rows"):
        criticize(model, X[:40], Y[:40], groups=np.arange(40) % 2)


def test_missing_outputs_are_filled(gappy):
    model, gaps = gappy
    table = criticize(model, X, gaps, extra={"wind": rng.normal(size=60)}, random_state=0)
    assert table.notes[-1].startswith("18 missing entries")
    assert not table.rejected
    with pytest.raises(InputError, match="Pass X and Y"):
        criticize(model, extra={"wind": np.ones(60)})


def test_rows_without_observations_have_no_scores(gappy):
    model, gaps = gappy
    inputs, outputs = np.vstack([NEW_X[:3], X]), np.vstack([np.full((3, 2), np.nan), gaps])
    table, expected = criticize(model, inputs, outputs, random_state=0), criticize(model, X, gaps, random_state=0)
    for name in ("coverage of output 0", "log score", "degrees of freedom", "influential rows"):
        assert table[name].statistic == pytest.approx(expected[name].statistic)


def test_arguments_are_checked(model):
    with pytest.raises(InputError, match="X and Y must be passed together"):
        criticize(model, NEW_X)
    for alpha in (1.5, 1e-4):
        with pytest.raises(OptionError, match="alpha"):
            criticize(model, alpha=alpha)
    with pytest.raises(InputError, match="not a pipeline"):
        criticize(make_pipeline(StandardScaler(), model))
    with pytest.raises(InputError, match="are training rows"):
        criticize(model, np.vstack([X, NEW_X]), np.vstack([Y, NEW_Y]))


def test_number_of_permutations_allows_for_the_correction(model):
    """With 1000 permutations, Holm's correction for 40 tests would never reject at level .01."""
    noise = np.random.default_rng(3).normal(size=(60, 30))
    extra = np.column_stack([noise, Y[:, 0] - F[:, 0]])
    table = criticize(model, extra=extra, alpha=0.01, random_state=0)
    assert [check.name for check in table.rejected] == ["residuals and extra 30"]


def test_few_rows_have_scores_only(model):
    table = criticize(model, NEW_X[:12], NEW_Y[:12], random_state=0)
    assert not table["residuals"].applies
    assert table.conclusion == "No test applies."
    assert table["log score"].statistic is not None


def test_degrees_of_freedom_are_the_trace_of_the_smoother(benchmark_of):
    cases = benchmark_of("criticism_models")
    Xs, Ys, _ = cases.draw_data("right, 2 outputs", 0, n=50)
    table = criticize(cases.fit_fixed(Xs, Ys), random_state=0)
    K = np.exp(-0.5 * ((Xs - Xs.T) / 1.5) ** 2)
    expected = 2 * np.trace(np.linalg.solve(K + 0.09 * np.eye(50), K))
    assert table["degrees of freedom"].statistic == pytest.approx(expected, rel=1e-6)


def test_influence_is_cooks_distance(benchmark_of):
    """t² h/(1 − h) is the squared change of the fit by an omitted row, over noise variance and 1 − h."""
    cases = benchmark_of("criticism_models")
    Xs, Ys, _ = cases.draw_data("right", 0, n=30)
    Ys[4] += 3
    table = criticize(cases.fit_fixed(Xs, Ys), random_state=0)
    y = Ys - Ys.mean()
    K = np.exp(-0.5 * ((Xs - Xs.T) / 1.5) ** 2)
    inverse = np.linalg.inv(K + 0.09 * np.eye(30))
    leverage = 1 - 0.09 * np.diag(inverse)
    errors = (inverse @ y) / np.sqrt(np.diag(inverse))
    expected = errors**2 * leverage / (1 - leverage)
    assert table["influential rows"].statistic == pytest.approx(expected.max(), rel=1e-6)
    assert table["influential rows"].conclusion.startswith(f"Rows with the largest influence: {np.argmax(expected)} (")


def test_correlated_noise_has_no_leverage():
    model = ovkgp.GPRegressor("decomposable", noise="full", **TRAINED).fit(X, Y)
    table = criticize(model, random_state=0)
    assert table["degrees of freedom"].conclusion == "the noise of the outputs is correlated"
    assert table["rank of the output matrix"].statistic in (1, 2)


def test_number_of_features_is_shown():
    model = ovkgp.GPRegressor("independent", approximation="orff", num_frequencies=30, **TRAINED).fit(X, Y)
    table = criticize(model, NEW_X, NEW_Y, random_state=0)
    assert table["number of features"].statistic > 0


def test_mixture_is_described(monkeypatch):
    table = criticize(ovkgp.GPRegressor(random_state=0).fit(X, Y), random_state=0)
    assert "heaviest component of the mixture" in table.notes[0]
    assert not table.rejected


def fit_to(kind, target="table", **options):
    """Return a function that fits an estimator, with rows to check it at."""
    curves = F[:, :1] * np.linspace(0, 1, 6) + F[:, 1:] + 0.1 * rng.normal(size=(60, 6))
    labels = np.where(F[:, 0] > 0, 1, -1)
    targets = {
        "table": Y,
        "target": Y[:, 0],
        "counts": rng.poisson(np.exp(F)).astype(float),
        "labels": labels,
        "curves": curves,
        "tasks": np.stack([Y, 2 * Y], 1),
    }

    def fit():
        y = targets.get(target)
        model = kind(**options)
        model.fit(X[:40]) if y is None else model.fit(X[:40], y[:40])
        return model, X[40:], None if y is None else y[40:]

    fit.kind = kind
    return fit


WITH_RESIDUALS = {
    "mixture": fit_to(ovkgp.GPRegressor, random_state=0),
    "lmc": fit_to(ovkgp.GPRegressor, kernel="lmc", **TRAINED),
    "ridge": fit_to(ovkgp.OVKRidge, lam=0.1),
    "draws": fit_to(ovkgp.GPRegressor, hyperparameters="laplace", sampling={"draws": 20}, random_state=0),
    "features": fit_to(ovkgp.GPRegressor, kernel="independent", approximation="orff", num_frequencies=20, **TRAINED),
    "landmarks": fit_to(
        ovkgp.GPRegressor, kernel="decomposable", approximation="nystrom", num_frequencies=9, **TRAINED
    ),
    "variational": fit_to(
        ovkgp.GPRegressor, kernel="independent", approximation="variational", num_frequencies=9, **TRAINED
    ),
    "student": fit_to(ovkgp.GPRegressor, kernel="independent", likelihood="student_t", num_frequencies=9, **TRAINED),
    "counts": fit_to(
        ovkgp.GPRegressor, "counts", kernel="independent", likelihood="poisson", num_frequencies=9, **TRAINED
    ),
    "feature ridge": fit_to(ovkgp.ORFFRidge, lam=0.1, num_frequencies=20, random_state=0),
    "manifold": fit_to(ovkgp.ManifoldRidge, lam=0.1, num_neighbors=4, random_state=0),
    "classes": fit_to(ovkgp.SimplexClassifier, "labels", lam=0.1, random_state=0),
    "quantiles": fit_to(ovkgp.InfiniteQuantileRegressor, "target", lam=1e-2, num_tasks=5, random_state=0),
    "curves": fit_to(ovkgp.FunctionGPRegressor, "curves", output_basis="kernel", random_state=0),
    "curves, features": fit_to(ovkgp.FeatureProjectionRegressor, "curves", num_features=20, random_state=0),
    "curves, triple basis": fit_to(ovkgp.TripleBasisRegressor, "curves", num_features=20, random_state=0),
}
WITHOUT_RESIDUALS = {
    "constrained": fit_to(ovkgp.ConstrainedORFF, num_frequencies=9, random_state=0),
    "tasks": fit_to(ovkgp.VectorTaskRegressor, "tasks", tasks=[0.0, 1.0]),
    "curves, averages": fit_to(ovkgp.KernelCurveRegressor, "curves", lengthscale=0.5),
}
for name, (kind, target, options) in default_cases(
    fit.kind for fit in [*WITH_RESIDUALS.values(), *WITHOUT_RESIDUALS.values()]
).items():
    default = kind(**options)
    has_distributions = default.has_predictive or (default.kind == "labels" and not default.has_costs)
    (WITH_RESIDUALS if has_distributions else WITHOUT_RESIDUALS)[name] = fit_to(kind, target, **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", WITH_RESIDUALS)
def test_estimator_is_criticized_at_stored_and_held_out_rows(name):
    model, new, targets = WITH_RESIDUALS[name]()
    held_out = criticize(model, new, targets, random_state=0)
    assert any(check.pvalue is not None for check in held_out)
    assert all(check.conclusion for check in held_out)
    assert str(held_out)
    if model.training_data() is None:
        with pytest.raises(OptionError, match="stores no training rows"):
            criticize(model)
        return
    stored = criticize(model, random_state=0)
    assert [check for check in stored if check.pvalue is not None]
    assert np.isfinite([check.pvalue for check in stored if check.pvalue is not None]).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", WITHOUT_RESIDUALS)
def test_estimator_without_distributions_raises(name):
    model, new, targets = WITHOUT_RESIDUALS[name]()
    with pytest.raises(OptionError) as stored:
        criticize(model)
    with pytest.raises(OptionError) as held_out:
        criticize(model, new, targets)
    for error in (stored, held_out):
        assert any(words in str(error.value) for words in ("no outputs", "no predictive", "no probabilities"))


NUM_DATASETS = 40  # of the simulations here; benchmarks/criticism.py has 200


@pytest.mark.slow
@pytest.mark.parametrize("case", ["right", "right, 2 outputs"])
@pytest.mark.parametrize(("fit", "size"), [("fit_fixed", 0.07), ("fit_trained", 0.1)])
def test_right_model_is_rarely_rejected(benchmark_of, case, fit, size):
    cases = benchmark_of("criticism_models")
    rejected, _ = cases.count_rejected(case, getattr(cases, fit), NUM_DATASETS)
    assert rejected <= binom.isf(0.01, NUM_DATASETS, size)  # 7 of 40 at .07, 9 at .1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "check"),
    [
        ("matern12", "scales of variation"),
        ("growing noise", "noise level and inputs"),
        ("heavy tails", "PIT of output 0"),
        ("correlated outputs", "dependence between outputs"),
        ("omitted column", "residuals and extra"),
    ],
)
def test_wrong_model_is_rejected_by_its_check(benchmark_of, case, check):
    cases = benchmark_of("criticism_models")
    rejected, by_check = cases.count_rejected(case, cases.fit_trained, NUM_DATASETS)
    bound = binom.ppf(0.01, NUM_DATASETS, 0.8)  # 26 of 40
    assert rejected >= bound
    assert by_check[check] >= bound


@pytest.mark.filterwarnings("error")
def test_criticism_reads_dates_and_frames_as_predict_does():
    """Dates as days since the fit's first one, and columns by name, also at new rows."""
    days = np.arange(80.0)
    values = np.column_stack([np.sin(days / 9), np.cos(days / 9)]) + 0.1 * np.random.default_rng(1).normal(size=(80, 2))
    dates = pd.DataFrame({"day": pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D")})
    numbers, outputs = pd.DataFrame({"day": days}), pd.DataFrame(values, columns=["u", "v"])
    results = []
    for table in (dates, numbers):
        rows, new = (table[::2], outputs[::2]), (table[1::2], outputs[1::2])
        models = [ovkgp.GPRegressor(kernel, random_state=0).fit(*rows) for kernel in ("independent", "decomposable")]
        interval = recalibrate(models[0], *new).predict_interval(new[0])
        robust = ovkgp.GPRegressor("independent", likelihood="student_t", random_state=0).fit(*rows)
        checks = [*criticize(models[0], *new, random_state=0), *criticize(robust, *new, random_state=0)]
        statistics = [check.statistic for check in checks if check.statistic is not None]
        results.append([compare(*models, *new).difference, *np.ravel(interval), *statistics])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)
