"""``ovkgp fit`` end to end on small tables: every recipe, wide and long tables, and invalid input."""

import shlex
import tempfile

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_error, invoke, make_table, succeed, write_table

import ovkgp
from ovkgp.cli import fit_job
from ovkgp.recipes import list_recipes

STYLES = [f"s{i}" for i in range(7)]
QUICK = {
    "bayesian_multitask": ("sampling.draws=10", "sampling.tune=10", "sampling.chains=1", "hyperparameters=laplace"),
    "large_scale": ("num_frequencies=10",),
    "mixed_outputs": ("num_frequencies=8",),
    "multitask_lmc": ("rank=2",),
    "outlier_forest": ("num_trees=5",),
    "quantiles": ("lam=0.01", "lengthscale=1.0", "num_tasks=5"),
    "robust": ("num_frequencies=8", "rank=1"),
    "style_transfer": ("hyperparameters=fixed",),
}
OUTPUTS = {
    "classifier": "label",
    "cost_sensitive": "label",
    "level_sets": None,
    "outlier_forest": None,
    "outliers": None,
    "quantiles": "u",
    "style_transfer": ",".join(STYLES),
    "mixed_outputs": "u,n",
    "emulator": "u,n",  # complete
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    frame = make_table()
    for i, style in enumerate(STYLES):
        frame[style] = frame["a"] + 0.1 * i
    frame.to_csv(path, index=False)
    return path


def fit(recipe, table, out, *more, outputs="u,v", quick=True):
    overrides = [part for text in QUICK.get(recipe, ()) for part in ("--set", text)] if quick else []
    names = [] if outputs is None else ["--outputs", outputs]
    return ["fit", recipe, table, "--inputs", "a,b", *names, "--out", out, *overrides, *more]


def predicted(model):
    """Predict with a model file for the inputs of the table."""
    return ovkgp.load(model).predict(make_table()[["a", "b"]])


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("curves_robust", "mixed_outputs", "robust") else [])
        for name in list_recipes()
        if name != "forecast"  # which does not predict rows of a table: test_forecast.py
    ],
)
def test_fit_command_fits_every_recipe(table, tmp_path, recipe):
    model, found = tmp_path / "model.ovkgp", tmp_path / "found.csv"
    output = succeed(*fit(recipe, table, model, outputs=OUTPUTS.get(recipe, "u,v")))
    assert f"Model written to {model}" in output.replace("\n", "")
    assert sorted(tmp_path.iterdir()) == [model]  # no checkpoint remains
    succeed("predict", model, table, "--out", found)
    predictions = pd.read_csv(found)
    np.testing.assert_array_equal(predictions[["a", "b"]], make_table()[["a", "b"]])
    assert len(predictions.columns) > 3 and not predictions.isna().any(axis=None)


def test_fit_command_prints_next_commands(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = succeed(*fit("multitask", table, "my model.ovkgp"))
    assert "u" in output and "v" in output and "log evidence" in output
    predict, report = (shlex.split(line) for line in output.splitlines() if line.startswith("  ovkgp"))
    succeed(*[str(table) if word == "NEW.csv" else word for word in predict[1:]])
    assert (tmp_path / "predictions.csv").is_file()
    assert report[1:4] == ["report", "my model.ovkgp", "--data"] and report[4] == str(table)


def test_fit_command_quiet_prints_nothing(table, tmp_path):
    assert succeed(*fit("multitask", table, tmp_path / "m", "--quiet")) == ""


def test_fitted_model_stores_columns_but_no_run_options(table, tmp_path):
    succeed(*fit("multitask", table, tmp_path / "m"))
    model = ovkgp.load(tmp_path / "m")
    assert model.feature_names_in_.tolist() == ["a", "b"] and model.output_names_ == ["u", "v"]
    assert (model.verbose, model.distributed) == (0, False)
    frame = make_table()
    twin = ovkgp.load_recipe("multitask").fit(frame[["a", "b"]], frame[["u", "v"]])
    np.testing.assert_array_equal(model.predict(frame[["a", "b"]]), twin.predict(frame[["a", "b"]]))


def test_fit_command_takes_custom_recipe_and_options(table, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(succeed("models", "multitask"))
    succeed(*fit(mine, table, tmp_path / "m", "--set", "rank=1", "--set", "base_kernel=rbf", "--seed", 5))
    model = ovkgp.load(tmp_path / "m")
    assert (model.rank, model.base_kernel, model.random_state) == (1, "rbf", 5)


def test_fit_command_depends_on_seed(table, tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        succeed(*fit("large_scale", table, tmp_path / name, "--seed", seed))
    one, again, other = (predicted(tmp_path / name) for name in ("one", "again", "other"))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_fit_command_long_table_equals_wide_table(tmp_path):
    wide = make_table()[["a", "b", "u", "v"]]
    wide.to_csv(tmp_path / "wide.csv", index=False)
    wide.melt(["a", "b"], var_name="quantity").to_csv(tmp_path / "long.csv", index=False)
    succeed(*fit("multitask", tmp_path / "wide.csv", tmp_path / "wide"))
    output = succeed(*fit("multitask", tmp_path / "long.csv", tmp_path / "long", "--task", "quantity", outputs="value"))
    assert f"--data {tmp_path / 'long.csv'} --task quantity --outputs value --out report.html" in output
    models = [ovkgp.load(tmp_path / name) for name in ("wide", "long")]
    assert models[1].output_names_ == ["u", "v"]
    # the rows are the same in the same order
    np.testing.assert_allclose(*(model.predict(wide[["a", "b"]]) for model in models), rtol=1e-9)


def test_fit_command_keeps_labels(table, tmp_path):
    for column in ("label", "is_high"):
        frame = make_table()
        frame["is_high"] = (frame["a"] > 2).astype(int)
        frame.to_csv(tmp_path / "t.csv", index=False)
        succeed(*fit("cost_sensitive", tmp_path / "t.csv", tmp_path / "m", outputs=column))
        assert ovkgp.load(tmp_path / "m").classes_.tolist() == sorted(frame[column].unique().tolist())


@pytest.mark.parametrize("name", ["table.tsv", "table.parquet"])
def test_fit_command_reads_other_formats(tmp_path, name):
    succeed(*fit("multitask", write_table(tmp_path, name), tmp_path / "m"))
    succeed(*fit("multitask", write_table(tmp_path), tmp_path / "csv"))
    np.testing.assert_array_equal(predicted(tmp_path / "m"), predicted(tmp_path / "csv"))


def test_fit_command_takes_separator(tmp_path):
    make_table().to_csv(tmp_path / "t.csv", index=False, sep=";")
    succeed(*fit("multitask", tmp_path / "t.csv", tmp_path / "m", "--separator", ";"))
    assert_error(invoke(*fit("multitask", tmp_path / "t.csv", tmp_path / "m")), "--separator")


# --- streams ----------------------------------------------------------------------------------------------------------


def test_fit_command_streams_on_request_and_large_files(table, tmp_path, monkeypatch):
    calls, fit_stream = [], ovkgp.GPRegressor.fit_stream
    monkeypatch.setattr(
        ovkgp.GPRegressor, "fit_stream", lambda self, *a, **o: calls.append(a) or fit_stream(self, *a, **o)
    )
    succeed(*fit("large_scale", table, tmp_path / "whole"))
    assert calls == []
    succeed(*fit("large_scale", table, tmp_path / "requested", "--stream"))
    assert len(calls) == 1
    monkeypatch.setattr(fit_job, "STREAMING_THRESHOLD_BYTES", 100)
    succeed(*fit("large_scale", table, tmp_path / "large"))
    assert len(calls) == 2
    succeed(*fit("large_scale", table, tmp_path / "small", "--no-stream"))
    succeed(*fit("cost_sensitive", table, tmp_path / "cost", outputs="label"))  # not streamable
    assert len(calls) == 2
    stream = ovkgp.load(tmp_path / "requested")
    assert stream.feature_names_in_.tolist() == ["a", "b"] and stream.output_names_ == ["u", "v"]
    requested, large, whole = (predicted(tmp_path / name) for name in ("requested", "large", "whole"))
    np.testing.assert_array_equal(requested, large)
    np.testing.assert_allclose(requested, whole, atol=1e-4)  # trained on the same rows in another order


@pytest.mark.parametrize(
    ("recipe", "outputs", "more", "text"),
    [
        ("quantiles", "u", [], "only GPRegressor and ORFFRidge"),
        ("multitask", "u,v", ["--set", "approximation=exact"], "feature map"),
        ("robust", "u,v", [], "Gaussian likelihood"),
        ("bayesian_multitask", "u,v", [], "sampling hyperparameters"),
        ("multitask", "u", ["--task", "label"], "--task"),
    ],
)
def test_fit_command_rejects_stream(table, tmp_path, recipe, outputs, more, text):
    command = fit(recipe, table, tmp_path / "m", "--stream", *more, outputs=outputs)
    assert_error(invoke(*command), "--stream", text)


def test_fit_command_streams_orff_ridge(table, tmp_path):
    (tmp_path / "ridge.toml").write_text('[model]\nestimator = "ORFFRidge"\n[model.options]\nnum_frequencies = 10\n')
    succeed(*fit(tmp_path / "ridge.toml", table, tmp_path / "m", "--stream"))
    assert type(ovkgp.load(tmp_path / "m")).__name__ == "ORFFRidge"


# --- bad input --------------------------------------------------------------------------------------------------------

BAD_TABLES = {
    "": "empty",
    "a,b,u,v\n": "no rows",
    "a,b,u\n1,2,3\n": "has no column 'v'",
    "a,b,u,u,v\n1,2,3,4,5\n": "more than one column 'u'",
    "a,b,u,v\n1,2,3,4\n1,red,3,4\n": "line 3: input 'b' is not a number: 'red'",
    "a,b,u,v\n1,2,3,4\n1,2,3,blue\n": "line 3: output 'v' is not a number: 'blue'",
    "a,b,u,v\n1,,3,4\n": "line 2: input 'b' is missing",
    "a,b,u,v\n1,2,3\n": "line 2: 3 fields",
    "a,b,u,v\n1,2,3,\n2,3,4,NA\n": "no observed values for output 'v'",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_fit_command_rejects_invalid_tables(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    assert_error(invoke(*fit("multitask", tmp_path / "t.csv", tmp_path / "m")), BAD_TABLES[text])
    assert not (tmp_path / "m").exists()


def test_fit_command_skips_bad_rows(table, tmp_path):
    text = table.read_text().splitlines(keepends=True)
    (tmp_path / "t.csv").write_text("".join([*text[:10], "x,red,1,2\n", *text[10:]]))
    command = fit("multitask", tmp_path / "t.csv", tmp_path / "m")
    assert_error(invoke(*command), "line 11", "--skip-bad-rows")
    output = succeed(*command, "--skip-bad-rows", "--quiet")
    assert output.startswith("Note: ") and "1 of 31 rows skipped: line 11 (4 fields" in output
    succeed(*fit("multitask", table, tmp_path / "good", "--quiet"))
    np.testing.assert_array_equal(predicted(tmp_path / "m"), predicted(tmp_path / "good"))


@pytest.mark.parametrize("text", ["a,b,u,v\n1,2,3,4\n", "a,b,u,v\n1,2,3,7\n2,3,4,7\n4,4,5,7\n1,1,2,7\n"])
def test_fit_command_fits_one_row_and_constant_output(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    succeed(*fit("multitask", tmp_path / "t.csv", tmp_path / "m", "--quiet"))
    succeed("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert np.isfinite(found).all(axis=None) and (found["v_std"] >= 0).all()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("multitsk", {}), "'multitsk' (did you mean 'multitask'?)"),
        (("nothing.toml", {}), "nothing.toml"),
        (("multitask", {"outputs": None}), "needs outputs"),
        (("level_sets", {"outputs": "u"}), "inputs alone"),
        (("quantiles", {"outputs": "u,v"}), "one output column"),
        (("cost_sensitive", {"outputs": "u"}), "class labels"),
        (("cost_sensitive", {"outputs": "n"}), "Only binary classification is supported"),
        (("vector_field", {"outputs": "u"}), "helmholtz"),
        (("style_transfer", {"outputs": "u,v"}), "7 tasks"),
        (("multitask", {"outputs": "u,"}), "outputs must"),
        (("multitask", {"outputs": "u,a"}), "'a'"),
    ],
)
def test_fit_command_rejects_incompatible_columns(table, tmp_path, command, text):
    recipe, options = command
    assert_error(invoke(*fit(recipe, table, tmp_path / "m", **options)), text)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--set", "rnk=3"], "'rnk' is not an option of GPRegressor (did you mean 'rank'?)"),
        (["--set", "rank=many"], "rank must be an integer"),
        (["--set", "rank"], "key=value"),
        (["--seed", "-1"], "--seed"),
        (["--separator", "::"], "separator"),
        (["--resume"], "no checkpoint"),
    ],
)
def test_fit_command_rejects_invalid_options(table, tmp_path, more, text):
    assert_error(invoke(*fit("multitask", table, tmp_path / "m", *more)), text)


def test_fit_command_rejects_invalid_files(table, tmp_path):
    assert_error(invoke(*fit("multitask", tmp_path / "no.csv", tmp_path / "m")), "no.csv")
    assert_error(invoke(*fit("multitask", tmp_path, tmp_path / "m")), "is a folder")
    assert_error(invoke(*fit("multitask", table, tmp_path)), "is a folder")
    assert_error(invoke(*fit("multitask", table, table)), "would replace")


def no_training(*args, **kwargs):
    raise AssertionError("training began")


def test_fit_command_checks_output_before_training(table, tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ovkgp.GPRegressor, "fit", no_training)
    assert_error(invoke(*fit("multitask", table, tmp_path / "no" / "m")), "does not exist")
    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    assert_error(invoke(*fit("multitask", table, tmp_path / "m")), "permission denied")


def test_fit_command_rejects_unreadable_table(table, tmp_path, monkeypatch):
    import builtins

    real = builtins.open

    def deny(path, *args, **kwargs):
        if str(path) == str(table):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", deny)
    assert_error(invoke(*fit("multitask", table, tmp_path / "m")), str(table), "permission denied")


def test_fit_command_keeps_training_if_disk_is_full(table, tmp_path, monkeypatch):
    def fail(self, path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ovkgp.GPRegressor, "save", fail)
        result = invoke(*fit("multitask", table, tmp_path / "m"))
    assert_error(result, "no space left on device", "m.training", "--resume")
    output = succeed(*fit("multitask", table, tmp_path / "m", "--resume"))
    assert "Model written" in output and list(tmp_path.iterdir()) == [tmp_path / "m"]


@pytest.mark.parametrize("recipe", ["robust", "quantiles", "level_sets", "mixed_outputs"])
def test_fit_command_rejects_resume(table, tmp_path, recipe):
    result = invoke(*fit(recipe, table, tmp_path / "m", "--resume", outputs=OUTPUTS.get(recipe, "u,v")))
    assert_error(result, "no checkpoint" if recipe == "mixed_outputs" else "does not support --resume")


def test_fit_command_usage_error_is_one_line():
    result = invoke("fit", "multitask", "table.csv")
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == "Error: Missing option '--inputs'."


def test_fit_command_takes_any_column_names(tmp_path):
    frame = make_table().rename(columns={"a": "X loc", "u": "Cd (mg, kg)", "v": "Ni é中"})
    path, model, found = tmp_path / "table.csv", tmp_path / "model.ovkgp", tmp_path / "found.csv"
    frame.to_csv(path, index=False)
    names = ["--inputs", "X loc, b", "--outputs", '"Cd (mg, kg)",Ni é中']
    succeed("fit", "multitask", path, *names, "--out", model)
    succeed("predict", model, path, "--out", found)
    columns = ["X loc", "b", *(f"{y}_{quantity}" for y in ("Cd (mg, kg)", "Ni é中") for quantity in ("mean", "std"))]
    assert list(pd.read_csv(found).columns)[:4] == columns[:4] and set(columns) <= set(pd.read_csv(found).columns)


def test_fit_command_notes_constant_output(tmp_path):
    frame = make_table()
    frame["v"] = 3.0
    frame.to_csv(tmp_path / "table.csv", index=False)
    result = invoke(*fit("multitask", tmp_path / "table.csv", tmp_path / "model.ovkgp"))
    assert result.exit_code == 0 and "Note: " in result.output and "'v'" in result.output
