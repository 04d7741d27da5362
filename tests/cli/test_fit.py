"""``ovkgp fit`` end to end on small tables: every recipe, wide and long, and its answers to bad input."""

import shlex
import tempfile

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_one_sentence, invoke, scalar_features, succeed, write_waves

import ovkgp
from ovkgp.cli import fit_job as fitting
from ovkgp.recipes import list_recipes

STYLES = [f"s{i}" for i in range(7)]
QUICK = {
    "bayesian_multitask": ("sampling.draws=10", "sampling.tune=10", "sampling.chains=1", "hyperparameters=laplace"),
    "large_scale": ("num_frequencies=10",),
    "mixed_outputs": ("num_frequencies=8",),
    "multitask_lmc": ("rank=2",),
    "quantiles": ("lam=0.01", "lengthscale=1.0", "num_tasks=5"),
    "robust": ("num_frequencies=8", "rank=1"),
    "style_transfer": ("hyperparameters=fixed",),
}
OUTPUTS = {
    "cost_sensitive": "label",
    "level_sets": None,
    "quantiles": "u",
    "style_transfer": ",".join(STYLES),
    "mixed_outputs": "u,n",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    frame = scalar_features()
    for i, style in enumerate(STYLES):
        frame[style] = frame["a"] + 0.1 * i
    frame.to_csv(path, index=False)
    return path


def fit(recipe, table, out, *more, outputs="u,v", quick=True):
    settings = [part for text in QUICK.get(recipe, ()) for part in ("--set", text)] if quick else []
    names = [] if outputs is None else ["--outputs", outputs]
    return ["fit", recipe, table, "--inputs", "a,b", *names, "--out", out, *settings, *more]


def predicted(model):
    """What a model file says of the inputs of the table."""
    return ovkgp.load(model).predict(scalar_features()[["a", "b"]])


@pytest.mark.parametrize("recipe", list_recipes())
def test_every_recipe_from_the_table_to_predictions(table, tmp_path, recipe):
    model, found = tmp_path / "model.ovkgp", tmp_path / "found.csv"
    said = succeed(*fit(recipe, table, model, outputs=OUTPUTS.get(recipe, "u,v")))
    assert f"Model written to {model}" in said.replace("\n", "")
    assert sorted(tmp_path.iterdir()) == [model]  # no checkpoint stays behind
    succeed("predict", model, table, "--out", found)
    answers = pd.read_csv(found)
    np.testing.assert_array_equal(answers[["a", "b"]], scalar_features()[["a", "b"]])
    assert len(answers.columns) > 3 and not answers.isna().any(axis=None)


def test_the_next_commands_run(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = succeed(*fit("multitask", table, "my model.ovkgp"))
    assert "u" in said and "v" in said and "log evidence" in said
    predict, report = (shlex.split(line) for line in said.splitlines() if line.startswith("  ovkgp"))
    succeed(*[str(table) if word == "NEW.csv" else word for word in predict[1:]])
    assert (tmp_path / "predictions.csv").is_file()
    assert report[1:4] == ["report", "my model.ovkgp", "--data"] and report[4] == str(table)


def test_quiet_says_nothing(table, tmp_path):
    assert succeed(*fit("multitask", table, tmp_path / "m", "--quiet")) == ""


def test_the_model_knows_its_columns_and_nothing_of_this_run(table, tmp_path):
    succeed(*fit("multitask", table, tmp_path / "m"))
    model = ovkgp.load(tmp_path / "m")
    assert model.feature_names_in_.tolist() == ["a", "b"] and model.output_names_ == ["u", "v"]
    assert (model.verbose, model.distributed) == (0, False)
    frame = scalar_features()
    twin = ovkgp.load_recipe("multitask").fit(frame[["a", "b"]], frame[["u", "v"]])
    np.testing.assert_array_equal(model.predict(frame[["a", "b"]]), twin.predict(frame[["a", "b"]]))


def test_a_recipe_of_ones_own_and_options(table, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(succeed("models", "multitask"))
    succeed(*fit(mine, table, tmp_path / "m", "--set", "rank=1", "--set", "base_kernel=rbf", "--seed", 5))
    model = ovkgp.load(tmp_path / "m")
    assert (model.rank, model.base_kernel, model.random_state) == (1, "rbf", 5)


def test_the_seed_decides(table, tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        succeed(*fit("large_scale", table, tmp_path / name, "--seed", seed))
    one, again, other = (predicted(tmp_path / name) for name in ("one", "again", "other"))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_long_and_wide_tables_are_one_model(tmp_path):
    wide = scalar_features()[["a", "b", "u", "v"]]
    wide.to_csv(tmp_path / "wide.csv", index=False)
    wide.melt(["a", "b"], var_name="what").to_csv(tmp_path / "long.csv", index=False)
    succeed(*fit("multitask", tmp_path / "wide.csv", tmp_path / "wide"))
    said = succeed(*fit("multitask", tmp_path / "long.csv", tmp_path / "long", "--task", "what", outputs="value"))
    assert f"--data {tmp_path / 'long.csv'} --task what --outputs value --out report.html" in said
    models = [ovkgp.load(tmp_path / name) for name in ("wide", "long")]
    assert models[1].output_names_ == ["u", "v"]
    # the rows are the same in the same order
    np.testing.assert_allclose(*(model.predict(wide[["a", "b"]]) for model in models), rtol=1e-9)


def test_labels_come_back_as_they_were(table, tmp_path):
    for column in ("label", "is_high"):
        frame = scalar_features()
        frame["is_high"] = (frame["a"] > 2).astype(int)
        frame.to_csv(tmp_path / "t.csv", index=False)
        succeed(*fit("cost_sensitive", tmp_path / "t.csv", tmp_path / "m", outputs=column))
        assert ovkgp.load(tmp_path / "m").classes_.tolist() == sorted(frame[column].unique().tolist())


@pytest.mark.parametrize("name", ["table.tsv", "table.parquet"])
def test_other_files(tmp_path, name):
    succeed(*fit("multitask", write_waves(tmp_path, name), tmp_path / "m"))
    succeed(*fit("multitask", write_waves(tmp_path), tmp_path / "csv"))
    np.testing.assert_array_equal(predicted(tmp_path / "m"), predicted(tmp_path / "csv"))


def test_another_separator(tmp_path):
    scalar_features().to_csv(tmp_path / "t.csv", index=False, sep=";")
    succeed(*fit("multitask", tmp_path / "t.csv", tmp_path / "m", "--separator", ";"))
    assert_one_sentence(invoke(*fit("multitask", tmp_path / "t.csv", tmp_path / "m")), "is --separator right?")


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_and_large_files(table, tmp_path, monkeypatch):
    calls, fit_stream = [], ovkgp.GPRegressor.fit_stream
    monkeypatch.setattr(
        ovkgp.GPRegressor, "fit_stream", lambda self, *a, **o: calls.append(a) or fit_stream(self, *a, **o)
    )
    succeed(*fit("large_scale", table, tmp_path / "whole"))
    assert calls == []
    succeed(*fit("large_scale", table, tmp_path / "asked", "--stream"))
    assert len(calls) == 1
    monkeypatch.setattr(fitting, "LARGE_FILE", 100)
    succeed(*fit("large_scale", table, tmp_path / "large"))
    assert len(calls) == 2
    succeed(*fit("large_scale", table, tmp_path / "small", "--no-stream"))
    succeed(*fit("cost_sensitive", table, tmp_path / "cost", outputs="label"))  # which cannot
    assert len(calls) == 2
    stream = ovkgp.load(tmp_path / "asked")
    assert stream.feature_names_in_.tolist() == ["a", "b"] and stream.output_names_ == ["u", "v"]
    asked, large, whole = (predicted(tmp_path / name) for name in ("asked", "large", "whole"))
    np.testing.assert_array_equal(asked, large)
    np.testing.assert_allclose(asked, whole, atol=1e-4)  # trained on the same rows in another order


@pytest.mark.parametrize(
    ("recipe", "outputs", "more", "words"),
    [
        ("quantiles", "u", [], "only GPRegressor and ORFFRidge learn from chunks"),
        ("multitask", "u,v", ["--set", "approximation=exact"], "chunks need a feature map"),
        ("robust", "u,v", [], "chunks are for Gaussian noise"),
        ("bayesian_multitask", "u,v", [], "draws of hyperparameters look at all rows"),
        ("multitask", "u", ["--task", "label"], "a long table with --task is read whole"),
    ],
)
def test_what_cannot_be_streamed(table, tmp_path, recipe, outputs, more, words):
    command = fit(recipe, table, tmp_path / "m", "--stream", *more, outputs=outputs)
    assert_one_sentence(invoke(*command), "--stream reads a table in chunks", words)


def test_ridge_on_random_features_streams(table, tmp_path):
    (tmp_path / "ridge.toml").write_text('[model]\nestimator = "ORFFRidge"\n[model.options]\nnum_frequencies = 10\n')
    succeed(*fit(tmp_path / "ridge.toml", table, tmp_path / "m", "--stream"))
    assert type(ovkgp.load(tmp_path / "m")).__name__ == "ORFFRidge"


# --- bad input --------------------------------------------------------------------------------------------------------

BAD_TABLES = {
    "": "is empty",
    "a,b,u,v\n": "has a header and no rows",
    "a,b,u\n1,2,3\n": "has no column 'v'",
    "a,b,u,u,v\n1,2,3,4,5\n": "more than one column 'u'",
    "a,b,u,v\n1,2,3,4\n1,red,3,4\n": "line 3: input 'b' is not a number: 'red'",
    "a,b,u,v\n1,2,3,4\n1,2,3,blue\n": "line 3: output 'v' is not a number: 'blue'",
    "a,b,u,v\n1,,3,4\n": "line 2: input 'b' is missing",
    "a,b,u,v\n1,2,3\n": "line 2: 3 fields where the header has 4",
    "a,b,u,v\n1,2,3,\n2,3,4,NA\n": "nobody observed output 'v'",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_tables_that_cannot_be_used(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    assert_one_sentence(invoke(*fit("multitask", tmp_path / "t.csv", tmp_path / "m")), BAD_TABLES[text])
    assert not (tmp_path / "m").exists()


def test_bad_rows_are_left_out_and_counted(table, tmp_path):
    text = table.read_text().splitlines(keepends=True)
    (tmp_path / "t.csv").write_text("".join([*text[:10], "x,red,1,2\n", *text[10:]]))
    command = fit("multitask", tmp_path / "t.csv", tmp_path / "m")
    assert_one_sentence(invoke(*command), "line 11", "--skip-bad-rows")
    said = succeed(*command, "--skip-bad-rows", "--quiet")
    assert said.startswith("Note: ") and "1 of 31 rows left out: line 11 (4 fields" in said
    succeed(*fit("multitask", table, tmp_path / "good", "--quiet"))
    np.testing.assert_array_equal(predicted(tmp_path / "m"), predicted(tmp_path / "good"))


@pytest.mark.parametrize("text", ["a,b,u,v\n1,2,3,4\n", "a,b,u,v\n1,2,3,7\n2,3,4,7\n4,4,5,7\n1,1,2,7\n"])
def test_one_row_and_a_constant_output_are_fitted(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    succeed(*fit("multitask", tmp_path / "t.csv", tmp_path / "m", "--quiet"))
    succeed("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert np.isfinite(found).all(axis=None) and (found["v_sd"] >= 0).all()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("multitsk", {}), "there is no recipe 'multitsk' (did you mean 'multitask'?)"),
        (("nothing.toml", {}), "nothing.toml"),
        (("multitask", {"outputs": None}), "needs outputs: name their columns with --outputs"),
        (("level_sets", {"outputs": "u"}), "learns from inputs alone"),
        (("quantiles", {"outputs": "u,v"}), "takes one output column"),
        (("cost_sensitive", {"outputs": "u"}), "and no classes"),
        (("cost_sensitive", {"outputs": "n"}), "Only binary classification is supported"),
        (("vector_field", {"outputs": "u"}), "as many outputs as inputs"),
        (("style_transfer", {"outputs": "u,v"}), "7 tasks"),
        (("multitask", {"outputs": "u,"}), "outputs must be one or more names"),
        (("multitask", {"outputs": "u,a"}), "'a' named both as input and as output"),
    ],
)
def test_recipes_and_columns_that_do_not_go_together(table, tmp_path, command, words):
    recipe, options = command
    assert_one_sentence(invoke(*fit(recipe, table, tmp_path / "m", **options)), words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "rnk=3"], "'rnk' is not an option of GPRegressor (did you mean 'rank'?)"),
        (["--set", "rank=many"], "rank must be a whole number"),
        (["--set", "rank"], "--set takes key=value"),
        (["--seed", "-1"], "--seed must lie between"),
        (["--separator", "::"], "separator must be one ASCII character"),
        (["--resume"], "there is nothing to resume"),
    ],
)
def test_options_that_are_wrong(table, tmp_path, more, words):
    assert_one_sentence(invoke(*fit("multitask", table, tmp_path / "m", *more)), words)


def test_files_that_are_not_there_or_not_files(table, tmp_path):
    assert_one_sentence(invoke(*fit("multitask", tmp_path / "no.csv", tmp_path / "m")), "there is no file", "no.csv")
    assert_one_sentence(invoke(*fit("multitask", tmp_path, tmp_path / "m")), "is a folder: name one file in it")
    assert_one_sentence(invoke(*fit("multitask", table, tmp_path)), "is a folder: name a file in it")
    assert_one_sentence(invoke(*fit("multitask", table, table)), "which is read")


def no_training(*args, **kwargs):
    raise AssertionError("training began")


def test_a_place_that_cannot_be_written_is_found_before_the_training(table, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ovkgp.GPRegressor, "fit", no_training)
    assert_one_sentence(invoke(*fit("multitask", table, tmp_path / "no" / "m")), "there is no folder")
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert_one_sentence(invoke(*fit("multitask", table, tmp_path / "m")), "cannot write", "permission denied")


def test_a_table_without_permission(table, tmp_path, monkeypatch):
    import builtins

    real = builtins.open

    def refuse(path, *args, **kwargs):
        if str(path) == str(table):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", refuse)
    assert_one_sentence(invoke(*fit("multitask", table, tmp_path / "m")), str(table), "permission denied")


def test_a_full_disk_at_the_end_keeps_the_training(table, tmp_path, monkeypatch):
    def fail(self, path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ovkgp.GPRegressor, "save", fail)
        result = invoke(*fit("multitask", table, tmp_path / "m"))
    assert_one_sentence(result, "no space left on device", "m.training", "--resume")
    said = succeed(*fit("multitask", table, tmp_path / "m", "--resume"))
    assert "Model written" in said and list(tmp_path.iterdir()) == [tmp_path / "m"]


@pytest.mark.parametrize("recipe", ["robust", "quantiles", "level_sets", "mixed_outputs"])
def test_recipes_that_cannot_be_resumed(table, tmp_path, recipe):
    result = invoke(*fit(recipe, table, tmp_path / "m", "--resume", outputs=OUTPUTS.get(recipe, "u,v")))
    words = "there is nothing to resume" if recipe == "mixed_outputs" else "keeps no checkpoints, and cannot be resumed"
    assert_one_sentence(result, words)


def test_usage_errors_are_one_sentence_and_a_hint():
    result = invoke("fit", "multitask", "table.csv")
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == "Error: Missing option '--inputs'."


def test_columns_with_commas_spaces_and_letters_of_any_kind(tmp_path):
    frame = scalar_features().rename(columns={"a": "X loc", "u": "Cd (mg, kg)", "v": "Ni é中"})
    path, model, found = tmp_path / "table.csv", tmp_path / "model.ovkgp", tmp_path / "found.csv"
    frame.to_csv(path, index=False)
    names = ["--inputs", "X loc, b", "--outputs", '"Cd (mg, kg)",Ni é中']
    succeed("fit", "multitask", path, *names, "--out", model)
    succeed("predict", model, path, "--out", found)
    columns = ["X loc", "b", *(f"{name}_{what}" for name in ("Cd (mg, kg)", "Ni é中") for what in ("mean", "sd"))]
    assert list(pd.read_csv(found).columns)[:4] == columns[:4] and set(columns) <= set(pd.read_csv(found).columns)


def test_a_constant_output_is_noted(tmp_path):
    frame = scalar_features()
    frame["v"] = 3.0
    frame.to_csv(tmp_path / "table.csv", index=False)
    result = invoke(*fit("multitask", tmp_path / "table.csv", tmp_path / "model.ovkgp"))
    assert result.exit_code == 0 and "'v' of Y never changes" in result.output
