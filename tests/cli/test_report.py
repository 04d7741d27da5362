"""``ovkgp report`` end to end: the page, the data it is about, and its answers to bad input."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_one_sentence, invoke, scalar_features, succeed, write_waves

import ovkgp
from ovkgp.cli.prediction_job import read_known
from ovkgp.exceptions import InputError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("models"), scalar_features()
    write_waves(folder)
    X, Y = frame[["a", "b"]], frame[["u", "v"]]
    ovkgp.GPRegressor("independent", random_state=0).fit(X, Y).save(folder / "model.ovkgp")
    return folder


@pytest.fixture
def written(monkeypatch):
    """What the report was asked for, in place of the page."""
    calls = []

    def write(estimator, path, **options):
        path.write_text("page")
        calls.append(options)

    monkeypatch.setattr("ovkgp.plotting.write_report", write, raising=False)
    return calls


def test_a_page_about_a_model(folder):
    said = succeed(
        "report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "table.csv", "--title", "Waves"
    )
    assert said == f"Report written to {folder / 'r.html'}.\n"
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert "<html" in page and "Waves" in page and "http" not in page.partition("<img")[2].partition(">")[0]


def test_data_are_read_with_the_names_of_the_model(folder, written):
    succeed("report", folder / "model.ovkgp", "--out", folder / "r.html", "--quiet")
    succeed("report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "table.csv")
    assert written[0] == {"X": None, "Y": None, "title": None}
    pd.testing.assert_frame_equal(written[1]["X"], scalar_features()[["a", "b"]])
    pd.testing.assert_frame_equal(written[1]["Y"], scalar_features()[["u", "v"]])


def test_data_of_a_long_table(folder, written):
    long = scalar_features()[["a", "b", "v"]].melt(["a", "b"], var_name="what")
    long.to_csv(folder / "long.csv", index=False)
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "long.csv"]
    succeed(*command, "--task", "what", "--outputs", "value")
    assert list(written[0]["Y"]) == ["u", "v"] and written[0]["Y"]["u"].isna().all()
    assert_one_sentence(invoke(*command, "--task", "what"), "name it with --outputs")
    long.assign(what="w").to_csv(folder / "long.csv", index=False)
    assert_one_sentence(invoke(*command, "--task", "what", "--outputs", "value"), "has the task 'w'")


def test_data_of_other_models(tmp_path):
    table, frame = write_waves(tmp_path), scalar_features()
    X = frame[["a", "b"]]
    classifier = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, frame["label"])
    assert read_known(classifier, table, None, None, None, True, ",")[1].tolist() == frame["label"].tolist()
    level_sets = ovkgp.InfiniteOneClassSVM(random_state=0).fit(X)
    assert read_known(level_sets, table, None, None, None, True, ",")[1] is None
    with pytest.raises(OptionError, match="learns from inputs alone"):
        read_known(level_sets, table, None, ("u",), None, True, ",")
    nameless = ovkgp.OVKRidge().fit(X.to_numpy(), frame[["u", "n"]].to_numpy())
    found = read_known(nameless, table, "a,b", ("u", "n"), None, True, ",")
    assert list(found[1]) == ["u", "n"]
    with pytest.raises(InputError, match="has no column 'y0', 'y1'"):
        read_known(nameless, table, "a,b", None, None, True, ",")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": "no.ovkgp"}, "there is no model file"),
        ({"model": "table.csv"}, "is not a model file"),
        ({"out": "r.pdf"}, "must end in .html or .htm"),
        ({"out": "no/r.html"}, "there is no folder"),
        ({"data": "no.csv"}, "there is no file"),
        ({"data": "empty.csv"}, "is empty"),
        ({"data": "short.csv"}, "has no column 'u', 'v'"),
    ],
)
def test_files_that_are_wrong(folder, more, words):
    (folder / "empty.csv").write_text("")
    (folder / "short.csv").write_text("a,b\n1,2\n")
    files = {"model": "model.ovkgp", "out": "r.html", "data": "table.csv"} | more
    result = invoke("report", folder / files["model"], "--out", folder / files["out"], "--data", folder / files["data"])
    assert_one_sentence(result, words)


def test_bad_rows(folder, written):
    (folder / "bad.csv").write_text("a,b,u,v\n1,2,3,4\n,2,3,4\n")
    command = ["report", folder / "model.ovkgp", "--out", folder / "r.html", "--data", folder / "bad.csv"]
    assert_one_sentence(invoke(*command), "line 3: input 'a' is missing")
    assert "1 of 2 rows left out" in succeed(*command, "--skip-bad-rows")
    assert np.array_equal(written[0]["X"], [[1.0, 2.0]])
