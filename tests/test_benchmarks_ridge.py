"""Tests of the ridge experiments: they run at toy sizes, and claims that hold at any size are true."""

import importlib

import numpy as np
import pytest
from experiment_checks import check_experiment

TOYS = {
    "bt82": {"rows": (40, 80), "num_frequencies": 20, "exact_rows": 40, "frequencies": (10, 20), "fixed_rows": 40},
    "bt83": {
        "num_rows": 80,
        "exact_rows": 30,
        "num_frequencies": 30,
        "seeds": (0, 1),
        "seeds_rows": 30,
        "test_rows": 100,
    },
    "ba12": {"num_rows": 40, "frequencies": (5, 10), "clock_rows": (30, 60)},
    "ba13": {"rows": (30, 60), "exact_rows": 30, "num_frequencies": 20, "seeds": (0,), "held_out": 100},
    "bt81": {"num_rows": 200, "frequencies": (5, 40), "clock_rows": (60, 120), "clock_frequencies": 10},
    "moons": {"num_rows": 40, "num_frequencies": 20, "draws": 1},
    "speed": {"num_rows": 60, "num_outputs": 2, "num_frequencies": 10, "num_lams": 3},
}

CERTAIN = {
    "moons": ["one solution"],
    "speed": ["scikit-learn's predictions"],
    "ba13": ["error falls", "beats one variance"],
    "bt81": ["falls all the way"],
}
"""Text of the claims that do not depend on the size."""


@pytest.fixture
def ridge(benchmark_of):
    return benchmark_of("ridge")


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.slow
def test_experiment_runs_and_size_independent_claims_hold(ridge, capsys, name):
    claims = ridge.EXPERIMENTS[name](**TOYS[name])
    check_experiment(claims, capsys.readouterr().out, CERTAIN.get(name, []))


def test_sarcos_is_omitted_without_its_file(ridge, capsys, tmp_path):
    assert ridge.EXPERIMENTS["bt84"](folder=str(tmp_path)) == []
    assert capsys.readouterr().out.count("OVKGP_DATA") == 1


def test_coupling_improves_nearly_equal_tasks(ridge, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1400, 21))
    Y = np.tanh(X[:, :3] @ rng.standard_normal((3, 1))) + 0.1 * rng.standard_normal((1400, 7))
    (tmp_path / "sarcos").mkdir()
    np.savez(tmp_path / "sarcos" / "sarcos_test.npz", X=X, Y=Y)
    sarcos = importlib.import_module("ridge_sarcos")
    monkeypatch.setattr(sarcos, "MIN_FEATURES", 100)
    X, Y, tuning = sarcos._load(tmp_path / "sarcos" / "sarcos_test.npz")
    independent = sarcos.Settings(4.0, 0.1)
    coupled = independent._replace(output_matrix=sarcos._graph(tuning[1], gamma=1.0, ridge=0.03))
    errors = sarcos._both(X, Y, 20, 0, independent, coupled)
    assert errors[1] < 0.8 * errors[0]


def test_sizes_name_options_of_their_experiments(ridge):
    for sizes in (ridge.QUICK, ridge.FULL):
        for name, options in sizes.items():
            code = ridge.EXPERIMENTS[name].__code__
            assert set(options) <= set(code.co_varnames[: code.co_argcount])
