"""``ovkgp predict`` end to end: columns, files, chunks, and invalid input."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_error, invoke, make_table, succeed, write_table

import ovkgp
from ovkgp.cli.prediction_job import predict_file, resolve_inputs
from ovkgp.datasets import csv_tables
from ovkgp.estimators.common.prediction_columns import PredictionRequest
from ovkgp.exceptions import OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a table, a model fitted to it, and one fitted without names."""
    folder, frame = tmp_path_factory.mktemp("models"), make_table()
    write_table(folder)
    X, Y = frame[["a", "b"]], frame[["u", "v"]]
    ovkgp.OVKRidge(lam=0.1).fit(X, Y).save(folder / "model.ovkgp")
    ovkgp.OVKRidge(lam=0.1).fit(X.to_numpy(), Y.to_numpy()).save(folder / "nameless.ovkgp")
    return folder


def predict(folder, *more, model="model.ovkgp", data="table.csv", out="p.csv"):
    return ["predict", folder / model, folder / data, "--out", folder / out, *more]


@pytest.mark.parametrize("out", ["p.csv", "p.tsv", "p.parquet", "p.pq"])
def test_predict_command_writes_all_formats(folder, out):
    assert succeed(*predict(folder, out=out)).startswith("30 rows of predictions written to")
    path = folder / out
    found = pd.read_parquet(path) if out[2] == "p" else pd.read_csv(path, sep="\t" if out == "p.tsv" else ",")
    model, X = ovkgp.load(folder / "model.ovkgp"), make_table()[["a", "b"]]
    assert list(found)[:7] == ["a", "b", "u_mean", "u_std", "u_q05", "u_q50", "u_q95"]
    np.testing.assert_array_equal(found[["u_mean", "v_mean"]], model.predict(X))
    np.testing.assert_array_equal(found["v_q95"], model.predict_quantiles(X, 0.95)[:, 1])


def test_predict_command_takes_options(folder):
    succeed(*predict(folder, "--quantiles", "0.1,0.9", "--level", "0.5", "--latent", "--quiet"))
    found = pd.read_csv(folder / "p.csv")
    assert list(found)[2:8] == ["u_mean", "u_std", "u_q10", "u_q90", "u_low", "u_high"]
    noisy = ovkgp.load(folder / "model.ovkgp").predict(make_table()[["a", "b"]], return_std=True)[1]
    assert (found["u_std"] < noisy[:, 0]).all()


def test_kept_columns_stay_with_rows(folder):
    succeed(*predict(folder, "--keep", "site,a,label"))
    found = pd.read_csv(folder / "p.csv")
    assert list(found)[:5] == ["site", "label", "a", "b", "u_mean"]
    pd.testing.assert_frame_equal(found[["site", "label", "a"]], make_table()[["site", "label", "a"]])


def test_predict_command_skips_chunk_of_bad_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("ovkgp.cli.tables.CHUNK_ROWS", 8)
    frame = make_table()
    ovkgp.SimplexClassifier(lam=0.1).fit(frame[["a", "b"]], frame["label"]).save(tmp_path / "model.ovkgp")
    frame.loc[:7, "a"] = np.nan
    frame.head(13).to_parquet(tmp_path / "table.parquet")
    command = predict(tmp_path, "--keep", "site", "--skip-bad-rows", data="table.parquet")
    assert "5 rows of predictions written to" in succeed(*command)
    assert pd.read_csv(tmp_path / "p.csv")["site"].tolist() == [f"site {i}" for i in range(8, 13)]


def test_kept_columns_keep_type(folder):
    write_table(folder, "table.parquet")
    succeed(*predict(folder, "--keep", "n,site", data="table.parquet", out="p.parquet"))
    found = pd.read_parquet(folder / "p.parquet")
    assert found["n"].dtype == "int64" and found["site"].tolist() == make_table()["site"].tolist()


@pytest.mark.parametrize("keep", [[], ["--keep", "site"]])
def test_predictions_do_not_depend_on_chunks(folder, monkeypatch, keep):
    succeed(*predict(folder, *keep, out="whole.csv"))
    monkeypatch.setattr("ovkgp.cli.tables.CHUNK_ROWS", 7)
    succeed(*predict(folder, *keep, out="chunks.csv"))
    whole, chunks = (pd.read_csv(folder / f"{name}.csv") for name in ("whole", "chunks"))
    pd.testing.assert_frame_equal(whole, chunks, rtol=1e-12)  # products of other sizes round differently


def test_predict_file_uses_constant_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 1 << 15)
    monkeypatch.setattr("ovkgp.cli.tables.CHUNK_ROWS", 512)
    model, table = ovkgp.load(folder / "model.ovkgp"), tmp_path / "t.csv"

    def peak(num_rows):
        table.write_text("a,b\n" + "".join(f"{i / num_rows},0.5\n" for i in range(num_rows)))
        tracemalloc.start()
        assert predict_file(model, table, tmp_path / "p.parquet", PredictionRequest()) == num_rows
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)  # loads modules
    assert peak(40_000) < 1.5 * peak(5_000)


def test_predict_command_requires_inputs_for_model_without_names(folder):
    result = invoke(*predict(folder, model="nameless.ovkgp"))
    assert_error(result, "fitted without names", "2 input columns")
    succeed(*predict(folder, "--inputs", "a,b", model="nameless.ovkgp"))
    assert list(pd.read_csv(folder / "p.csv"))[:3] == ["a", "b", "y0_mean"]


def test_resolve_inputs_checks_names_and_number(folder):
    model, nameless = (ovkgp.load(folder / name) for name in ("model.ovkgp", "nameless.ovkgp"))
    assert resolve_inputs(model, None) == resolve_inputs(model, "a, b") == resolve_inputs(nameless, "a,b") == ("a", "b")
    with pytest.raises(OptionError, match="a, b"):
        resolve_inputs(model, "b,a")
    with pytest.raises(OptionError, match="2 inputs of the model, got 1"):
        resolve_inputs(nameless, "a")


def test_predict_command_skips_bad_rows(folder, tmp_path):
    (folder / "bad.csv").write_text("id,a,b\nx,1,2\ny,red,2\nz,3,\nw,3,4\n")
    for keep in ([], ["--keep", "id"]):
        result = invoke(*predict(folder, *keep, data="bad.csv"))
        assert_error(result, "line 3", "'a'", "'red'", "--skip-bad-rows")
        output = succeed(*predict(folder, "--skip-bad-rows", *keep, data="bad.csv"))
        assert "Note: " in output and "2 of 4 rows skipped: line 3" in output and "2 rows of predictions" in output
        assert pd.read_csv(folder / "p.csv")["a"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"data": "no.csv"}, "no.csv"),
        ({"data": "."}, "is a folder"),
        ({"model": "no.ovkgp"}, "no.ovkgp"),
        ({"model": "."}, "is a folder"),
        ({"model": "table.csv"}, "table.csv"),
        ({"out": "p.xlsx"}, ".csv, .tsv, .parquet or .pq"),
        ({"out": "no/p.csv"}, "does not exist"),
        ({"out": "table.csv"}, "would replace"),
        ({"out": "."}, "is a folder"),
    ],
)
def test_predict_command_rejects_invalid_files(folder, more, text):
    assert_error(invoke(*predict(folder, **more)), text)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--quantiles", "5,95"], "--quantiles"),
        (["--level", "1"], "--level must be one number"),
        (["--level", "0.5,0.9"], "--level must be one number"),
        (["--costs", "0.5"], "--costs is not supported by a regressor"),
        (["--keep", "stie"], "'stie' (did you mean 'site'?)"),
        (["--keep", "site,site"], "site"),
    ],
)
def test_predict_command_rejects_invalid_options(folder, more, text):
    assert_error(invoke(*predict(folder, *more)), text)


def test_predict_command_rejects_invalid_columns(folder):
    (folder / "few.csv").write_text("A,c\n1,2\n")
    assert_error(invoke(*predict(folder, data="few.csv")), "'a', 'b' (did you mean 'A'?)")
    (folder / "twice.csv").write_text("a,b,a\n1,2,3\n")
    assert_error(invoke(*predict(folder, data="twice.csv")), "'a'")
    (folder / "clash.csv").write_text("a,b,u_mean\n1,2,3\n")
    result = invoke(*predict(folder, "--keep", "u_mean", data="clash.csv"))
    assert_error(result, "two columns 'u_mean'")


def test_predict_command_rejects_damaged_models(folder):
    from safetensors.numpy import save_file

    whole = (folder / "model.ovkgp").read_bytes()
    for name, data, text in [
        ("cut.ovkgp", whole[:-100], "cut.ovkgp"),
        ("changed.ovkgp", whole[:-1] + bytes([whole[-1] ^ 1]), "changed.ovkgp"),
        ("empty.ovkgp", b"", "empty.ovkgp"),
    ]:
        (folder / name).write_bytes(data)
        assert_error(invoke(*predict(folder, model=name)), text)
    save_file({"weights": np.ones(3)}, folder / "other.safetensors")
    assert_error(invoke(*predict(folder, model="other.safetensors")), "other.safetensors")


def test_predict_command_keeps_old_file_if_interrupted(folder, monkeypatch):
    (folder / "p.csv").write_text("old")

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("ovkgp.estimators.common.base.PosteriorRegressor.prediction_columns", interrupt)
    result = invoke(*predict(folder))
    assert (result.exit_code, result.output) == (130, "Interrupted; nothing was written.\n")
    assert (folder / "p.csv").read_text() == "old" and not list(folder.glob(".p*"))


@pytest.mark.parametrize(
    ("recipe", "suffix"),
    [
        ("multitask", "csv"),
        ("large_scale", "parquet"),
        ("quantiles", "csv"),
        ("level_sets", "parquet"),
        ("outliers", "csv"),
        ("cost_sensitive", "csv"),
    ],
)
def test_commands_take_dates(tmp_path, recipe, suffix):
    frame = make_table().assign(when=pd.date_range("2024-01-05 03:00", periods=30, freq="37h"))
    frame.to_csv(tmp_path / "table.csv", index=False)
    frame.to_parquet(tmp_path / "table.parquet")
    target = {"level_sets": [], "outliers": [], "cost_sensitive": ["--outputs", "label"]}.get(
        recipe, ["--outputs", "u"]
    )
    data, model = tmp_path / f"table.{suffix}", tmp_path / "model.ovkgp"
    succeed("fit", recipe, data, "--inputs", "when,a", *target, "--out", model, "--seed", "0")
    assert ovkgp.load(model).input_times_ == ["2024-01-05T03:00:00", None]
    out = succeed("predict", model, data, "--out", tmp_path / f"p.{suffix}") and tmp_path / f"p.{suffix}"
    found = pd.read_csv(out, parse_dates=["when"]) if suffix == "csv" else pd.read_parquet(out)
    assert found.when.tolist() == frame.when.tolist()
    succeed("predict", model, out, "--out", tmp_path / "again.csv")  # the dates that it writes, it reads
    succeed("report", model, "--data", data, "--out", tmp_path / "report.html")
    assert "days since 2024-01-05T03:00:00" in (tmp_path / "report.html").read_text()
    frame.assign(when=range(30)).to_csv(tmp_path / "numbers.csv", index=False)
    assert_error(invoke("predict", model, tmp_path / "numbers.csv", "--out", out), "must hold dates")


def test_long_tables_take_dates(tmp_path):
    dates = pd.date_range("2024-01-05 03:00", periods=30, freq="37h", tz="UTC")
    long = pd.DataFrame({"when": dates.repeat(2), "task": ["u", "v"] * 30, "y": np.arange(60) % 7})
    long.to_csv(tmp_path / "long.csv", index=False)
    model = tmp_path / "model.ovkgp"
    succeed(
        "fit",
        "multitask",
        tmp_path / "long.csv",
        "--inputs",
        "when",
        "--task",
        "task",
        "--outputs",
        "y",
        "--out",
        model,
    )
    loaded = ovkgp.load(model)
    assert loaded.input_times_ == ["2024-01-05T03:00:00+00:00"] and loaded.training_data()[0].shape == (30, 1)


def test_predict_command_on_a_grid_of_inputs(folder, monkeypatch):
    monkeypatch.setattr("ovkgp.cli.tables.CHUNK_ROWS", 4)
    options = ["predict", folder / "model.ovkgp", "--grid", "b=-1:3:5, a=0:4:3", "--out", folder / "grid.csv"]
    assert succeed(*options).startswith("15 rows of predictions")
    found = pd.read_csv(folder / "grid.csv")
    points = np.stack(np.meshgrid([0, 2, 4], [-1, 0, 1, 2, 3], indexing="ij"), -1).reshape(-1, 2)
    np.testing.assert_array_equal(found[["a", "b"]], points)
    model = ovkgp.load(folder / "model.ovkgp")
    np.testing.assert_allclose(found[["u_mean", "v_mean"]], model.predict(found[["a", "b"]]), rtol=1e-12)


def test_predict_command_on_a_grid_of_a_model_without_names(folder):
    options = ["predict", folder / "nameless.ovkgp", "--inputs", "a,b", "--grid", "a=1,b=0:4:3", "--quiet"]
    succeed(*options, "--out", folder / "grid.csv")
    np.testing.assert_array_equal(pd.read_csv(folder / "grid.csv")[["a", "b"]], [[1, 0], [1, 2], [1, 4]])


def test_predict_command_on_a_grid_of_dates(tmp_path):
    frame = pd.DataFrame({"day": pd.date_range("2026-01-01", periods=20), "x": np.arange(20.0)})
    ovkgp.OVKRidge(lam=0.1).fit(frame, np.sin(frame["x"]).rename("y")).save(tmp_path / "m.ovkgp")
    grid = "x=1,day=2026-01-01:2026-01-11:3"
    succeed("predict", tmp_path / "m.ovkgp", "--grid", grid, "--out", tmp_path / "p.parquet")
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert list(found["day"]) == [pd.Timestamp(f"2026-01-{day}") for day in ("01", "06", "11")]
    expected = ovkgp.load(tmp_path / "m.ovkgp").predict(found[["day", "x"]])
    np.testing.assert_allclose(found["y_mean"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ([], ["DATA is missing", "--grid"]),
        (["table.csv", "--grid", "a=1,b=2"], ["both"]),
        (["--grid", "a=1,b=2", "--keep", "site"], ["--keep"]),
        (["--grid", "a=1"], ["'b'"]),
        (["--grid", "a=1,b=2,c=3"], ["a, b", "c=3"]),
        (["--grid", "a=1,a=2,b=3"], ["two ranges", "'a'"]),
        (["--grid", "a=1,b=0:4"], ["b=0:4"]),
        (["--grid", "a=1,b=0:4:0"], ["b=0:4:0"]),
        (["--grid", "a=1,b=nan"], ["b=nan"]),
        (["--grid", "a=0:1:100000,b=0:1:100000"], ["10000000000 points"]),
        (["--grid", "a=1,b=2026-01-01"], ["b"]),
    ],
)
def test_predict_command_rejects_wrong_grids(folder, options, texts):
    options = [folder / one if one == "table.csv" else one for one in options]
    assert_error(invoke("predict", folder / "model.ovkgp", *options, "--out", folder / "p.csv"), *texts)
