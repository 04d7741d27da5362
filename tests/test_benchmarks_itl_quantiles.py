"""Tests of the experiments on quantile regression: they run at toy sizes, and claims that hold at any size are true."""

import numpy as np
import pytest
from experiment_checks import check_experiment

TOYS = {
    "lt134": {"num_rows": 20, "num_tasks": 6, "strengths": (0.0, 10.0), "large_rows": 150, "seeds": (0,)},
    "lt136": {"num_rows": 60, "num_tasks": 8, "kappas": (10.0, 0.5, 1e-3, 0.0)},
    "lt137": {"num_rows": 60, "nodes": (2, 5, 8, 40), "seeds": (0,)},
}
CERTAIN = {"lt136": ["gives the quantiles of κ = 0"]}
"""Text of the claims that do not depend on the size."""


@pytest.mark.parametrize("name", TOYS)
def test_experiment_runs_and_size_independent_claims_hold(benchmark_of, capsys, tmp_path, name):
    claims = getattr(benchmark_of("itl_toys"), name)(**TOYS[name], out=str(tmp_path / "new"))
    check_experiment(claims, capsys.readouterr().out, CERTAIN.get(name, []))
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".png"]


@pytest.fixture
def tables(tmp_path):
    """Two tables under the names of the paper's."""
    pytest.importorskip("optuna")
    folder = tmp_path / "quantile"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("crabs", "topo"):
        X = rng.standard_normal((30, 2))
        y = X[:, 0] + 0.01 * rng.standard_normal(30)
        np.savetxt(folder / f"{name}.csv", np.column_stack([X, y]), delimiter=",", header="x_a,x_b,y", comments="")
    return str(tmp_path)


@pytest.mark.slow
def test_table_is_measured_with_data(benchmark_of, capsys, tables):
    lt135 = benchmark_of("itl_tables").lt135
    claims = lt135(tables, splits=2, names=("crabs", "topo"), couplings=("infinite", "joint"), trials=2)
    check_experiment(claims, capsys.readouterr().out, ["within the printed", "percentiles fall", "crabs"])


def test_table_is_omitted_without_data(benchmark_of, capsys):
    assert benchmark_of("itl_tables").lt135(None) == []
    assert "OVKGP_DATA" in capsys.readouterr().out


@pytest.mark.slow
def test_defaults_are_measured_with_data(benchmark_of, capsys, tables):
    claims = benchmark_of("itl_defaults").quantile_tables(tables, names=("crabs", "topo"))
    check_experiment(claims, capsys.readouterr().out, [])


def test_defaults_are_omitted_without_data(benchmark_of, capsys):
    assert benchmark_of("itl_defaults").quantile_tables(None) == []
    assert "OVKGP_DATA" in capsys.readouterr().out


@pytest.mark.slow
def test_defaults_find_sines(benchmark_of, capsys):
    claims = benchmark_of("itl_defaults").quantile_sines(settings=2, sizes=(60,))
    check_experiment(claims, capsys.readouterr().out, ["within .01 of the best mode in 2"])


@pytest.mark.slow
def test_defaults_fit_more_rows(benchmark_of, capsys):
    claims = benchmark_of("itl_defaults").quantile_rows(sizes=(200, 400), exact=100, target=200)
    check_experiment(claims, capsys.readouterr().out, ["200 rows in"])


def test_excess_of_true_quantiles_is_zero(benchmark_of):
    toys = benchmark_of("itl_toys")
    sample = toys.make_sine_quantiles(50, random_state=0)

    class Oracle:
        def predict(self, X, levels):
            return sample.quantiles(X, levels) + self.off

    oracle = Oracle()
    oracle.off = 0.0
    assert abs(toys._excess(oracle, sample)) < 1e-12
    oracle.off = 0.2
    levels = np.array([0.2, 0.5])
    z = (oracle.predict(sample.X, levels) - sample.quantiles.location(sample.X)) / sample.quantiles.scale(sample.X)
    draws = np.random.default_rng(0).standard_normal(100_000)
    residuals = draws[:, None] - z[0]
    drawn = np.maximum(levels * residuals, (levels - 1) * residuals).mean(0)
    exact = z[0] * (sample.quantiles.distribution.cdf(z[0]) - levels) + sample.quantiles.distribution.pdf(z[0])
    np.testing.assert_allclose(exact, drawn, rtol=0.01)  # the formula of the loss, by chance
    assert toys._excess(oracle, sample, levels) > 0.01
