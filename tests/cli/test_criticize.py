"""``ovkgp criticize`` end to end: the table, extra columns and groups, files, and invalid input."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_error, invoke, make_table, succeed

import ovkgp
from ovkgp.criticism import criticize


def make_rows(seed):
    """Make rows of inputs a, b, outputs u, v, and columns that are no inputs."""
    frame = make_table(60, seed)[["a", "b", "u", "v"]]
    rng = np.random.default_rng(seed)
    frame["v"] = np.cos(frame["b"]) + 0.1 * rng.standard_normal(60)
    frame["wind"] = rng.standard_normal(60)
    frame["u"] += 0.3 * frame["wind"]
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(60), unit="D")
    frame["station"] = np.repeat(["north", "south", "east"], 20)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, seed in (("fit", 0), ("new", 1)):
        make_rows(seed).to_csv(folder / f"{name}.csv", index=False)
    frame = pd.read_csv(folder / "fit.csv")
    options = {"hyperparameters": "evidence", "random_state": 0}
    ovkgp.GPRegressor("independent", **options).fit(frame[["a", "b"]], frame[["u", "v"]]).save(folder / "model.ovkgp")
    return folder


def read(path):
    return pd.read_csv(path).set_index("check")


def test_criticize_command_prints_and_writes_the_table(folder):
    output = succeed("criticize", folder / "model.ovkgp", folder / "new.csv", "--out", folder / "checks.csv")
    frame = pd.read_csv(folder / "new.csv")
    expected = criticize(ovkgp.load(folder / "model.ovkgp"), frame[["a", "b"]], frame[["u", "v"]], random_state=0)
    assert output.strip() == str(expected).strip()
    written = pd.read_csv(folder / "checks.csv")
    assert written["check"].tolist() == [check.name for check in expected]
    np.testing.assert_allclose(written["p"], expected.to_frame()["p"])


def test_criticize_command_tests_extra_columns_and_groups(folder):
    names = ["--extra", "wind,day,station", "--groups", "station", "--out", folder / "more.csv", "--quiet"]
    assert succeed("criticize", folder / "model.ovkgp", folder / "fit.csv", *names) == ""
    found = read(folder / "more.csv")
    assert found.loc["residuals and wind", "rejected"]
    assert not found.loc["residuals and day", "rejected"]
    assert found.loc["residuals and day", "applies"]
    assert {"residuals and station", "residuals and groups"} <= set(found.index)


def test_criticize_command_uses_its_level(folder):
    command = ["criticize", folder / "model.ovkgp", folder / "fit.csv", "--extra", "wind"]
    assert "level 0.05" in succeed(*command)
    assert "residuals and wind" in succeed(*command, "--alpha", "0.01").splitlines()[0]


def test_criticize_command_reports_errors(folder):
    command = ["criticize", folder / "model.ovkgp"]
    assert_error(invoke(*command, folder / "absent.csv"), "absent.csv")
    assert_error(invoke(*command, folder / "fit.csv", "--extra", "rain"), "rain")
    assert_error(invoke(*command, folder / "new.csv", "--groups", "station"), "groups needs the training rows")
    assert_error(invoke(*command, folder / "fit.csv", "--alpha", "2"), "--alpha")
    assert_error(invoke(*command, folder / "fit.csv", "--out", folder / "checks.pdf"), ".csv")


def test_criticize_command_rejects_extra_columns_of_labels(folder):
    frame = pd.read_csv(folder / "fit.csv")
    model = ovkgp.SimplexClassifier(lam=0.1, random_state=0).fit(frame[["a", "b"]], frame["station"])
    model.save(folder / "classes.ovkgp")
    assert "PIT of" in succeed("criticize", folder / "classes.ovkgp", folder / "fit.csv", "--outputs", "station")
    command = ["criticize", folder / "classes.ovkgp", folder / "fit.csv", "--outputs", "station"]
    assert_error(invoke(*command, "--extra", "wind"), "--extra and --groups are not supported by SimplexClassifier")
