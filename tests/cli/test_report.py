"""``ovkgp report`` end to end: the page, the evaluation data, and invalid input."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_error, invoke, make_table, succeed, write_table

import ovkgp
from ovkgp.cli.prediction_job import read_evaluation_data
from ovkgp.exceptions import InputError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("models"), make_table()
    write_table(folder)
    X, Y = frame[["a", "b"]], frame[["u", "v"]]
    ovkgp.GPRegressor("independent", random_state=0).fit(X, Y).save(folder / "model.ovkgp")
    return folder


@pytest.fixture
def written(monkeypatch):
    """Arguments of each report, instead of the page."""
    calls = []

    def write(estimator, path, **options):
        path.write_text("page")
        calls.append(options)

    monkeypatch.setattr("ovkgp.plotting.write_report", write, raising=False)
    return calls


def test_report_command_writes_page(folder):
    output = succeed(
        "report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "table.csv", "--title", "Sines"
    )
    assert output == f"Report written to {folder / 'r.html'}.\n"
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert "<html" in page and "Sines" in page and "http" not in page.partition("<img")[2].partition(">")[0]


def test_report_command_includes_criticism(folder):
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html"]
    succeed(*command, "--criticize")
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert '<section id="criticism">' in page and "PIT of u" in page
    succeed(*command)
    assert '<section id="criticism">' not in (folder / "r.html").read_text(encoding="utf-8")


def test_report_command_reads_columns_of_model(folder, written):
    succeed("report", folder / "model.ovkgp", "--out", folder / "r.html", "--quiet")
    succeed("report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "table.csv")
    assert written[0] == {"X": None, "Y": None, "groups": None, "title": None}
    pd.testing.assert_frame_equal(written[1]["X"], make_table()[["a", "b"]])
    pd.testing.assert_frame_equal(written[1]["Y"], make_table()[["u", "v"]])


def test_report_command_reads_long_table(folder, written):
    long = make_table()[["a", "b", "v"]].melt(["a", "b"], var_name="quantity")
    long.to_csv(folder / "long.csv", index=False)
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "long.csv"]
    succeed(*command, "--task", "quantity", "--outputs", "value")
    assert list(written[0]["Y"]) == ["u", "v"] and written[0]["Y"]["u"].isna().all()
    assert_error(invoke(*command, "--task", "quantity"), "--outputs")
    long.assign(quantity="w").to_csv(folder / "long.csv", index=False)
    assert_error(invoke(*command, "--task", "quantity", "--outputs", "value"), "task 'w'")


def test_report_command_holds_out_groups(folder, written):
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html"]
    make_table().assign(track=np.arange(30) // 5).to_csv(folder / "tracks.csv", index=False)
    make_table().assign(track=np.arange(30) // 5).to_parquet(folder / "tracks.parquet")
    for name in ("tracks.csv", "tracks.parquet"):
        succeed(*command, "--data", folder / name, "--groups", "track")
        found = written.pop()
        assert found["groups"].tolist() == [str(i // 5) for i in range(30)]
        pd.testing.assert_frame_equal(found["X"], make_table()[["a", "b"]])
        pd.testing.assert_frame_equal(found["Y"], make_table()[["u", "v"]])
    assert_error(invoke(*command, "--groups", "track"), "--data")
    assert_error(invoke(*command, "--data", folder / "tracks.csv", "--groups", "trak"), "trak")
    more = ["--data", folder / "tracks.csv", "--groups", "track", "--task", "site", "--outputs", "u"]
    assert_error(invoke(*command, *more), "--groups", "--task")


def test_report_command_writes_page_of_groups(folder):
    make_table().assign(track=np.arange(30) // 5).to_csv(folder / "tracks.csv", index=False)
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html", "--data"]
    succeed(*command, folder / "tracks.csv", "--groups", "track")
    assert "group" in (folder / "r.html").read_text(encoding="utf-8")
    make_table(seed=1).to_csv(folder / "new.csv", index=False)  # not the training rows
    assert_error(invoke(*command, folder / "new.csv", "--groups", "label"), "training rows")


def test_report_command_rejects_groups_of_models_without_leave_one_out(tmp_path):
    table, frame = write_table(tmp_path), make_table()
    model = ovkgp.InfiniteOneClassSVM(random_state=0).fit(frame[["a", "b"]])
    with pytest.raises(OptionError, match="--groups"):
        read_evaluation_data(model, table, None, None, None, True, ",", "site")


def test_read_evaluation_data_depends_on_model(tmp_path):
    table, frame = write_table(tmp_path), make_table()
    X = frame[["a", "b"]]
    classifier = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, frame["label"])
    assert read_evaluation_data(classifier, table, None, None, None, True, ",")[1].tolist() == frame["label"].tolist()
    level_sets = ovkgp.InfiniteOneClassSVM(random_state=0).fit(X)
    assert read_evaluation_data(level_sets, table, None, None, None, True, ",")[1] is None
    with pytest.raises(OptionError, match="inputs alone"):
        read_evaluation_data(level_sets, table, None, ("u",), None, True, ",")
    nameless = ovkgp.OVKRidge().fit(X.to_numpy(), frame[["u", "n"]].to_numpy())
    found = read_evaluation_data(nameless, table, "a,b", ("u", "n"), None, True, ",")
    assert list(found[1]) == ["u", "n"]
    with pytest.raises(InputError, match="'y0', 'y1'"):
        read_evaluation_data(nameless, table, "a,b", None, None, True, ",")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"model": "no.ovkgp"}, "no.ovkgp"),
        ({"model": "table.csv"}, "table.csv"),
        ({"out": "r.pdf"}, ".html or .htm"),
        ({"out": "no/r.html"}, "does not exist"),
        ({"data": "no.csv"}, "no.csv"),
        ({"data": "empty.csv"}, "empty"),
        ({"data": "short.csv"}, "'u', 'v'"),
    ],
)
def test_report_command_rejects_invalid_files(folder, more, text):
    (folder / "empty.csv").write_text("")
    (folder / "short.csv").write_text("a,b\n1,2\n")
    files = {"model": "model.ovkgp", "out": "r.html", "data": "table.csv"} | more
    result = invoke("report", folder / files["model"], "--out", folder / files["out"], "--data", folder / files["data"])
    assert_error(result, text)


def test_report_command_skips_bad_rows(folder, written):
    (folder / "bad.csv").write_text("a,b,u,v\n1,2,3,4\n,2,3,4\n")
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "bad.csv"]
    assert_error(invoke(*command), "line 3", "'a' is missing")
    assert "1 of 2 rows skipped" in succeed(*command, "--skip-bad-rows")
    assert np.array_equal(written[0]["X"], [[1.0, 2.0]])
