"""``ovkgp predict`` end to end: columns, files, chunks, and its answers to bad input."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_one_sentence, invoke, scalar_features, succeed, write_waves

import ovkgp
from ovkgp.cli.prediction_columns import PredictionRequest
from ovkgp.cli.prediction_job import InputFile, input_names, predict_file
from ovkgp.datasets import csv_tables as csv_blocks
from ovkgp.datasets import text_tables
from ovkgp.exceptions import OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, a model fitted to it, and one fitted without names."""
    folder, frame = tmp_path_factory.mktemp("models"), scalar_features()
    write_waves(folder)
    X, Y = frame[["a", "b"]], frame[["u", "v"]]
    ovkgp.OVKRidge(lam=0.1).fit(X, Y).save(folder / "model.ovkgp")
    ovkgp.OVKRidge(lam=0.1).fit(X.to_numpy(), Y.to_numpy()).save(folder / "nameless.ovkgp")
    return folder


def predict(folder, *more, model="model.ovkgp", data="table.csv", out="p.csv"):
    return ["predict", folder / model, folder / data, "--out", folder / out, *more]


@pytest.mark.parametrize("out", ["p.csv", "p.tsv", "p.parquet", "p.pq"])
def test_all_kinds_of_files_hold_what_the_model_says(folder, out):
    assert succeed(*predict(folder, out=out)).startswith("30 rows of predictions written to")
    path = folder / out
    found = pd.read_parquet(path) if out[2] == "p" else pd.read_csv(path, sep="\t" if out == "p.tsv" else ",")
    model, X = ovkgp.load(folder / "model.ovkgp"), scalar_features()[["a", "b"]]
    assert list(found)[:7] == ["a", "b", "u_mean", "u_sd", "u_q05", "u_q50", "u_q95"]
    np.testing.assert_array_equal(found[["u_mean", "v_mean"]], model.predict(X))
    np.testing.assert_array_equal(found["v_q95"], model.predict_quantiles(X, 0.95)[:, 1])


def test_options(folder):
    succeed(*predict(folder, "--quantiles", "0.1,0.9", "--level", "0.5", "--latent", "--quiet"))
    found = pd.read_csv(folder / "p.csv")
    assert list(found)[2:8] == ["u_mean", "u_sd", "u_q10", "u_q90", "u_low", "u_high"]
    noisy = ovkgp.load(folder / "model.ovkgp").predict(scalar_features()[["a", "b"]], return_std=True)[1]
    assert (found["u_sd"] < noisy[:, 0]).all()


def test_kept_columns_stay_with_their_rows(folder):
    succeed(*predict(folder, "--keep", "site,a,label"))
    found = pd.read_csv(folder / "p.csv")
    assert list(found)[:5] == ["site", "label", "a", "b", "u_mean"]
    pd.testing.assert_frame_equal(found[["site", "label", "a"]], scalar_features()[["site", "label", "a"]])


def test_a_classifier_after_a_chunk_of_bad_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "CHUNK", 8)
    frame = scalar_features()
    ovkgp.SimplexClassifier(lam=0.1).fit(frame[["a", "b"]], frame["label"]).save(tmp_path / "model.ovkgp")
    frame.loc[:7, "a"] = np.nan
    frame.head(13).to_parquet(tmp_path / "table.parquet")
    command = predict(tmp_path, "--keep", "site", "--skip-bad-rows", data="table.parquet")
    assert "5 rows of predictions written to" in succeed(*command)
    assert pd.read_csv(tmp_path / "p.csv")["site"].tolist() == [f"site {i}" for i in range(8, 13)]


def test_kept_columns_keep_their_kind(folder):
    write_waves(folder, "table.parquet")
    succeed(*predict(folder, "--keep", "n,site", data="table.parquet", out="p.parquet"))
    found = pd.read_parquet(folder / "p.parquet")
    assert found["n"].dtype == "int64" and found["site"].tolist() == scalar_features()["site"].tolist()


@pytest.mark.parametrize("keep", [[], ["--keep", "site"]])
def test_chunks_change_nothing(folder, monkeypatch, keep):
    succeed(*predict(folder, *keep, out="whole.csv"))
    monkeypatch.setattr("ovkgp.cli.prediction_job.CHUNK", 7)
    monkeypatch.setattr(text_tables, "CHUNK", 7)
    succeed(*predict(folder, *keep, out="chunks.csv"))
    whole, chunks = (pd.read_csv(folder / f"{name}.csv") for name in ("whole", "chunks"))
    pd.testing.assert_frame_equal(whole, chunks, rtol=1e-12)  # products of other sizes round otherwise


def test_memory_does_not_grow_with_the_table(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_blocks, "BLOCK", 1 << 15)
    monkeypatch.setattr("ovkgp.cli.prediction_job.CHUNK", 512)
    model, table = ovkgp.load(folder / "model.ovkgp"), tmp_path / "t.csv"

    def peak(num_rows):
        table.write_text("a,b\n" + "".join(f"{i / num_rows},0.5\n" for i in range(num_rows)))
        tracemalloc.start()
        assert predict_file(model, InputFile(table), tmp_path / "p.parquet", PredictionRequest()) == num_rows
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)  # modules are loaded
    assert peak(40_000) < 1.5 * peak(5_000)


def test_a_model_without_names(folder):
    result = invoke(*predict(folder, model="nameless.ovkgp"))
    assert_one_sentence(result, "fitted without names: name its 2 input columns with --inputs")
    succeed(*predict(folder, "--inputs", "a,b", model="nameless.ovkgp"))
    assert list(pd.read_csv(folder / "p.csv"))[:3] == ["a", "b", "y0_mean"]


def test_names_of_inputs(folder):
    model, nameless = (ovkgp.load(folder / name) for name in ("model.ovkgp", "nameless.ovkgp"))
    assert input_names(model, None) == input_names(model, "a, b") == input_names(nameless, "a,b") == ("a", "b")
    with pytest.raises(OptionError, match="the model takes the inputs a, b: leave --inputs out"):
        input_names(model, "b,a")
    with pytest.raises(OptionError, match="takes 2 inputs, but --inputs names 1"):
        input_names(nameless, "a")


def test_rows_that_cannot_be_read(folder, tmp_path):
    (folder / "bad.csv").write_text("id,a,b\nx,1,2\ny,red,2\nz,3,\nw,3,4\n")
    for keep in ([], ["--keep", "id"]):
        result = invoke(*predict(folder, *keep, data="bad.csv"))
        assert_one_sentence(result, "line 3: input 'a' is not a number: 'red'", "--skip-bad-rows")
        said = succeed(*predict(folder, "--skip-bad-rows", *keep, data="bad.csv"))
        assert "Note: " in said and "2 of 4 rows left out: line 3" in said and "2 rows of predictions" in said
        assert pd.read_csv(folder / "p.csv")["a"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"data": "no.csv"}, "there is no file"),
        ({"data": "."}, "is a folder"),
        ({"model": "no.ovkgp"}, "there is no model file"),
        ({"model": "."}, "is a folder"),
        ({"model": "table.csv"}, "is not a model file, or was cut short"),
        ({"out": "p.xlsx"}, "must end in .csv, .tsv, .parquet or .pq"),
        ({"out": "no/p.csv"}, "there is no folder"),
        ({"out": "table.csv"}, "which is read"),
        ({"out": "."}, "is a folder"),
    ],
)
def test_files_that_are_wrong(folder, more, words):
    assert_one_sentence(invoke(*predict(folder, **more)), words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--quantiles", "5,95"], "--quantiles must be numbers between 0 and 1"),
        (["--level", "1"], "--level must be one number between 0 and 1"),
        (["--level", "0.5,0.9"], "--level must be one number between 0 and 1"),
        (["--costs", "0.5"], "--costs means nothing to a regressor"),
        (["--keep", "stie"], "has no column 'stie' (did you mean 'site'?)"),
        (["--keep", "site,site"], "more than once"),
    ],
)
def test_options_that_are_wrong(folder, more, words):
    assert_one_sentence(invoke(*predict(folder, *more)), words)


def test_columns_that_are_not_there(folder):
    (folder / "few.csv").write_text("A,c\n1,2\n")
    assert_one_sentence(invoke(*predict(folder, data="few.csv")), "has no column 'a', 'b' (did you mean 'A'?)")
    (folder / "twice.csv").write_text("a,b,a\n1,2,3\n")
    assert_one_sentence(invoke(*predict(folder, data="twice.csv")), "more than one column 'a'")
    (folder / "clash.csv").write_text("a,b,u_mean\n1,2,3\n")
    result = invoke(*predict(folder, "--keep", "u_mean", data="clash.csv"))
    assert_one_sentence(result, "the table would have two columns 'u_mean'")


def test_models_that_are_damaged_or_something_else(folder):
    from safetensors.numpy import save_file

    whole = (folder / "model.ovkgp").read_bytes()
    for name, data, words in [
        ("cut.ovkgp", whole[:-100], "was cut short"),
        ("changed.ovkgp", whole[:-1] + bytes([whole[-1] ^ 1]), "was changed after it was written"),
        ("empty.ovkgp", b"", "is empty"),
    ]:
        (folder / name).write_bytes(data)
        assert_one_sentence(invoke(*predict(folder, model=name)), words)
    save_file({"weights": np.ones(3)}, folder / "other.safetensors")
    assert_one_sentence(invoke(*predict(folder, model="other.safetensors")), "not a model written by ovkgp")


def test_a_failure_leaves_the_old_predictions(folder, monkeypatch):
    (folder / "p.csv").write_text("old")

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("ovkgp.cli.prediction_job.answers", interrupt)
    result = invoke(*predict(folder))
    assert (result.exit_code, result.output) == (130, "Interrupted; nothing was written.\n")
    assert (folder / "p.csv").read_text() == "old" and not list(folder.glob(".p*"))
