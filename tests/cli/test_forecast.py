"""``ovkgp forecast`` end to end: a series with dates, exogenous columns, and invalid input."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import ROOT, assert_error, invoke, succeed

import ovkgp

OPTIONS = ("--set", "trend=none", "--set", "kernel=matern12", "--set", "seasonal=none", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a table, a model of two series, and one with an exogenous column."""
    folder, rng = tmp_path_factory.mktemp("series"), np.random.default_rng(0)
    sale = (rng.random(40) < 0.3).astype(float)
    frame = pd.DataFrame({"month": pd.date_range("2015-01-01", periods=40, freq="MS"), "sale": sale})
    frame["u"], frame["v"] = rng.normal(size=40), 3 * sale + 0.1 * rng.normal(size=40)
    frame.loc[3:6, "u"] = np.nan
    frame.to_csv(folder / "table.csv", index=False)
    fit = "fit", "forecast", folder / "table.csv"
    succeed(*fit, "--inputs", "month", "--outputs", "u,v", "--out", folder / "series.ovkgp", *OPTIONS)
    succeed(*fit, "--inputs", "month,sale", "--outputs", "v", "--out", folder / "sale.ovkgp", *OPTIONS)
    pd.DataFrame({"sale": [1.0, 0.0]}).to_csv(folder / "plan.csv", index=False)
    return folder


@pytest.mark.parametrize("out", ["f.csv", "f.parquet"])
def test_forecast_command_writes_stamps_and_intervals(folder, out):
    text = succeed("forecast", folder / "series.ovkgp", "--steps", 3, "--level", 0.8, "--out", folder / out)
    assert text.startswith("3 steps of forecasts written to")
    found = pd.read_csv(folder / out) if out.endswith("csv") else pd.read_parquet(folder / out)
    parts = ("mean", "std", "low", "high")
    assert list(found) == ["month", *(f"{name}_{part}" for name in "uv" for part in parts)]
    forecast = ovkgp.load(folder / "series.ovkgp").forecast(3, level=0.8)
    np.testing.assert_allclose(found[["u_mean", "v_mean"]], forecast.mean, rtol=1e-12)
    np.testing.assert_allclose(found["v_high"], forecast.upper["v"], rtol=1e-12)
    assert list(pd.to_datetime(found["month"])) == list(forecast.stamps)


def test_forecast_command_reads_exogenous_columns(folder):
    options = "--steps", 2, "--out", folder / "f.csv"
    succeed("forecast", folder / "sale.ovkgp", *options, "--future", folder / "plan.csv")
    assert np.diff(pd.read_csv(folder / "f.csv")["v_mean"]) == pytest.approx(-3, abs=0.3)
    assert_error(invoke("forecast", folder / "sale.ovkgp", *options), "sale")
    assert_error(invoke("forecast", folder / "series.ovkgp", *options, "--future", folder / "plan.csv"), "--future")


def test_other_commands_refer_to_forecast(folder):
    table = folder / "table.csv"
    assert_error(invoke("predict", folder / "series.ovkgp", table, "--out", folder / "p.csv"), "ovkgp forecast")
    assert_error(invoke("report", folder / "series.ovkgp", "--out", folder / "r.html"), "ovkgp forecast")
    X = np.linspace(0, 1, 20)[:, None]
    ovkgp.OVKRidge(lam=0.1).fit(X, X).save(folder / "ridge.ovkgp")
    assert_error(invoke("forecast", folder / "ridge.ovkgp", "--steps", 2, "--out", folder / "f.csv"), "OVKRidge")
    fit = "fit", "forecast", table, "--inputs", "month", "--outputs", "u", "--task", "v"
    assert_error(invoke(*fit, "--out", folder / "m.ovkgp"), "--task")


@pytest.mark.parametrize("estimator", ["VectorAutoregressor", "PersistenceForecaster"])
def test_forecast_command_with_models_without_exogenous_columns(folder, estimator):
    (folder / "other.toml").write_text(
        (ROOT / "models" / "forecast.toml").read_text("utf-8").partition("[model]")[0]
        + f'[model]\nestimator = "{estimator}"\n',
        encoding="utf-8",
    )
    table, model = folder / "table.csv", folder / "other.ovkgp"
    succeed("fit", folder / "other.toml", table, "--inputs", "month", "--outputs", "u,v", "--out", model)
    succeed("forecast", model, "--steps", 2, "--out", folder / "other.csv")
    forecast = ovkgp.load(model).forecast(2, random_state=0)
    found = pd.read_csv(folder / "other.csv")
    np.testing.assert_allclose(found[["u_mean", "v_mean"]], forecast.mean, rtol=1e-12)
    assert_error(invoke("forecast", model, "--steps", 2, "--future", table, "--out", folder / "p.csv"), "--future")
    options = [
        "fit",
        folder / "other.toml",
        table,
        "--inputs",
        "month,sale",
        "--outputs",
        "v",
        "--out",
        folder / "p.ovkgp",
    ]
    assert_error(invoke(*options), "exogenous columns")
