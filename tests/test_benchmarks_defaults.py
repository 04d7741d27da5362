"""Tests of the benchmark of the defaults: reproducible disjoint splits, scores of known predictors, resumed runs and references."""

import importlib

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm


@pytest.fixture
def defaults(benchmark_of):
    return benchmark_of("defaults")


@pytest.fixture
def tables(benchmark_of):
    return benchmark_of("defaults_tables")


@pytest.fixture
def peers(benchmark_of):
    return benchmark_of("defaults_peers")


@pytest.fixture
def checks(benchmark_of):
    return benchmark_of("defaults_checks")


def make_table(tables, name="numbered", num_rows=150, p=2):
    """Return a table whose inputs are the row numbers."""
    X = np.arange(num_rows, dtype=float)[:, None]
    return tables.Table(name, "functions", X, np.sin(X / 20 + np.arange(p)))


def predict_constants(X, Y, X_test):
    """Predict the mean of the training outputs, with their standard deviation."""
    peers = importlib.import_module("defaults_peers")
    shape = len(X_test), Y.shape[1]
    return peers.gaussian_predictions(np.broadcast_to(np.nanmean(Y, 0), shape), np.broadcast_to(np.nanstd(Y, 0), shape))


def test_halves_are_disjoint_and_complete(tables):
    assert not set(tables.HALVES["A"]) & set(tables.HALVES["B"])
    assert [len(names) for names in tables.HALVES.values()] == [18, 17]


def test_splits_are_reproducible_and_disjoint(tables):
    table = make_table(tables)
    first, second = (list(tables.make_splits(table, 30)) for _ in range(2))
    assert [number for number, _ in first] == [0, 1]
    for (_, split), (_, again) in zip(first, second, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(split, again, strict=True))
        assert split.X.shape == (30, 1) and split.X_test.shape == (120, 1)
        assert not set(split.X[:, 0]) & set(split.X_test[:, 0])
    assert not np.array_equal(first[0][1].X, first[1][1].X)
    other = next(tables.make_splits(make_table(tables, "other"), 30))[1]
    assert not np.array_equal(first[0][1].X, other.X)  # the name is the seed


def test_splits_follow_the_size_of_the_table(tables):
    assert len(list(tables.make_splits(make_table(tables, num_rows=38), 30))) == 2
    assert not list(tables.make_splits(make_table(tables, num_rows=37), 30))
    (only,) = tables.make_splits(make_table(tables, num_rows=800), 250)
    assert only[1].X_test.shape == (400, 1)
    more = list(tables.make_splits(make_table(tables), 30, num_splits=4))
    assert len(more) == 4
    for (_, split), (_, same) in zip(tables.make_splits(make_table(tables), 30), more, strict=False):
        assert np.array_equal(split.X, same.X)  # further splits do not change the first ones


def test_removed_outputs_have_the_fraction_and_keep_rows(tables):
    table = make_table(tables)
    complete, incomplete = (next(tables.make_splits(table, 60, missing))[1] for missing in (0.0, 0.3))
    assert np.isnan(incomplete.Y).sum(0).tolist() == [18, 18]
    observed = np.isfinite(incomplete.Y)
    assert np.array_equal(complete.Y[observed], incomplete.Y[observed])
    assert np.array_equal(complete.X, incomplete.X) and np.array_equal(complete.Y_test, incomplete.Y_test)
    assert (observed[:, 0] != observed[:, 1]).any()


def test_loaded_tables_follow_the_protocol(tables, tmp_path):
    (tmp_path / "multitarget").mkdir()
    frame = pd.DataFrame({"x_a": [1.0, 2, 3, 4], "x_b": [1.0, np.nan, 3, 4]})
    for j in range(7):
        frame[f"y_{j}"] = np.exp([0.0, 1, 2, 3]) + 0.0 * j
    frame.to_csv(tmp_path / "multitarget" / "meuse.csv", index=False)
    table = tables.load_table(tmp_path, "meuse")
    assert table.half == "A" and table.X.tolist() == [[1, 1], [3, 3], [4, 4]]
    assert table.Y.shape == (3, 6) and np.allclose(table.Y, np.array([[0.0], [2.0], [3.0]]))
    flows = frame.assign(y_NASI2_48H_0=[1.0, 2.0, 78.9, 3.0])
    flows.to_csv(tmp_path / "multitarget" / "riverflow.csv", index=False)
    assert tables.load_table(tmp_path, "riverflow").X.tolist() == [[1, 1], [4, 4]]


def test_scores_equal_the_formulas_in_any_unit(defaults, tables, peers):
    rng = np.random.default_rng(0)
    Y, Y_test = rng.standard_normal((500, 2)), rng.standard_normal((4000, 2))
    Y = (Y - Y.mean(0)) / Y.std(0)
    for unit in (1.0, np.array([100.0, 0.01])):
        split = tables.Split(np.zeros((500, 1)), Y * unit, np.zeros((4000, 1)), Y_test * unit)
        mean, std = 0.3 * unit * np.ones((4000, 2)), 0.5 * unit * np.ones((4000, 2))
        found = defaults.score(peers.gaussian_predictions(mean, std), split)
        assert found["log_density"] == pytest.approx(norm.logpdf(Y_test, 0.3, 0.5).mean())
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean((Y_test - 0.3) ** 2)))
        expected = norm.cdf(0.3 + 0.5 * norm.ppf(0.95)) - norm.cdf(0.3 - 0.5 * norm.ppf(0.95))
        assert found["coverage"] == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 8000))


def test_failures_are_recorded_and_counted(defaults, tables, capsys):
    def fail(X, Y, X_test):
        raise ValueError("no fit\nfor these data")

    contenders = {"ovkgp": predict_constants, "failing": fail}
    results = defaults.run_tables([make_table(tables)], [30], contenders)
    failed = results[results["contender"] == "failing"]
    assert failed["error"].tolist() == ["ValueError: no fit"] * 2 and failed["log_density"].isna().all()
    assert defaults.differences(results, "failing").empty and not defaults.print_results(results)
    assert "2 of 2" in capsys.readouterr().out


def test_differences_are_paired_by_split(defaults):
    rows = [("a", 30, 0, 1.0, 0.5), ("a", 30, 1, 3.0, np.nan), ("a", 60, 0, 2.0, 1.0), ("b", 30, 0, 0.0, 1.0)]
    results = pd.DataFrame(
        [
            (table, n, split, name, score)
            for table, n, split, *scores in rows
            for name, score in zip(("ovkgp", "peer"), scores, strict=True)
        ],
        columns=["table", "n", "split", "contender", "log_density"],
    )
    assert defaults.differences(results, "peer").to_dict() == {"a": 0.75, "b": -1.0}


def test_resuming_skips_rows_of_the_file(defaults, tables, tmp_path):
    calls = []

    def counted(X, Y, X_test):
        calls.append(len(X))
        return predict_constants(X, Y, X_test)

    path, table = tmp_path / "results.csv", make_table(tables)
    first = defaults.run_tables([table], [30], {"ovkgp": counted}, out=path)
    assert calls == [30, 30]
    second = defaults.run_tables([table], [30, 60], {"ovkgp": counted}, out=path)
    assert calls == [30, 30, 60, 60]
    pd.testing.assert_frame_equal(second.iloc[:2], first)
    defaults.run_tables([table], [30], {"ovkgp": counted}, missing=0.3, out=path)
    assert len(calls) == 6  # other training outputs are another case
    assert len(defaults.read_results(path)) == 6


def test_earlier_results_are_compared_on_the_same_splits(defaults, tables, tmp_path, capsys):
    def shift(X, Y, X_test):
        return predict_constants(X, Y + 1, X_test)

    path, table = tmp_path / "before.csv", make_table(tables)
    defaults.run_tables([table], [30, 60], {"ovkgp": shift, "ridge": shift}, out=path)
    results = defaults.run_tables([table, make_table(tables, "other")], [30], {"ovkgp": predict_constants})
    both = defaults.add_earlier_results(results, path)
    assert set(both["contender"]) == {"ovkgp", "before", "ridge"} and set(both["n"]) == {30}
    ahead = defaults.differences(both, "before")
    assert list(ahead.index) == ["numbered"] and ahead.item() > 0  # "other" has no earlier result
    claims = defaults.print_results(both)
    assert any("before" in found.text for found in claims)
    with pytest.raises(FileNotFoundError, match="before"):
        defaults.add_earlier_results(results, tmp_path / "absent.csv")


@pytest.mark.parametrize("name", ["ovkgp", "gpytorch_prior", "gpytorch", "gpytorch_icm", "sklearn_rbf", "ridge"])
def test_contenders_predict_missing_outputs_better_than_constants(defaults, tables, peers, name):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 2))
    Y = np.stack([X[:, 0] + 0.2 * X[:, 1], 100 * X[:, 1]], 1) + rng.normal(scale=[0.05, 5], size=(60, 2))
    split = next(tables.make_splits(tables.Table("plane", "functions", X, Y), 30, 0.2))[1]
    found = defaults.measure(peers.CONTENDERS[name], split)
    assert found["error"] == "" and found["rmse"] < 0.3 and found["coverage"] > 0.6


def test_best_mode_follows_many_periods(checks):
    for spacing, periods in (("even", 30), ("random", 20)):
        series = checks.Series(200, spacing, 0.05, 2, "raw", periods)
        _, Y, grid, truth = checks.make_series(series)
        assert Y.shape == (200, 2) and grid.shape == (1009, 1)
        assert checks.explained_variance(checks.best_mode(series), truth) > 0.9


@pytest.mark.parametrize("is_curl_free", [True, False])
def test_field_covariance_equals_derivatives_of_the_potential(checks, is_curl_free):
    x, z, ell, step = np.array([0.3, -0.8]), np.array([-0.2, 0.4]), 0.7, 1e-3

    def potential(a, b):
        return np.exp(-0.5 * ((a - b) ** 2).sum() / ell**2)

    E = step * (np.eye(2) if is_curl_free else np.array([[0.0, -1.0], [1.0, 0.0]]))
    expected = [
        [sum(s * t * potential(x + s * e, z + t * f) for s in (1, -1) for t in (1, -1)) / (4 * step**2) for f in E]
        for e in E
    ]
    covariance = checks.field_covariance(np.stack([x, z]), ell, is_curl_free)
    assert covariance[:2, 2:] == pytest.approx(
        ell**2 * np.array(expected), abs=1e-5
    )  # error of the differences: O(step²)
    assert np.diag(covariance) == pytest.approx(np.ones(4))
