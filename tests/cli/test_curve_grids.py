"""Tests of `ovkgp.cli.curve_grids`, and of the commands on wide tables of curves."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_error, invoke, succeed

import ovkgp
from ovkgp.cli.curve_grids import expand_columns, find_grid, parse_grid
from ovkgp.exceptions import InputError, OptionError

GRID = np.linspace(0, 2, 9)
NAMES = [f"y_{point:g}" for point in GRID]
RECIPE = """
[recipe]
title = "Ridge regression of curves"
purpose = "A fast estimator with bands."
data = "curves"
paper = "none"

[model]
estimator = "FunctionalRidge"

[model.options]
lam = 1e-3
"""


def make_curves(num_rows=20, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num_rows, 2))
    Y = np.sin(3 * GRID + X[:, :1]) + 0.5 * X[:, 1:] * GRID + 0.05 * rng.standard_normal((num_rows, len(GRID)))
    Y[1, 5:] = np.nan  # a curve that stops early
    frame = pd.DataFrame(np.hstack([X, Y]), columns=["x_a", "x_b", *NAMES])
    frame.insert(0, "site", [f"site {i}" for i in range(num_rows)])
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("curves")
    (path / "ridge.toml").write_text(RECIPE)
    frame = make_curves()
    frame.to_csv(path / "wide.csv", index=False)
    frame.to_parquet(path / "wide.parquet")
    lettered = frame.rename(columns=dict(zip(NAMES, "abcdefghi", strict=True)))
    row = pd.DataFrame([[None, None, None, *GRID]], columns=lettered.columns)
    pd.concat([row, lettered]).to_csv(path / "row.csv", index=False)
    frame.drop(columns="site").melt(["x_a", "x_b"], var_name="t", value_name="value").assign(
        t=lambda table: table["t"].str.removeprefix("y_")
    ).to_csv(path / "long.csv", index=False)
    return path


def fit(folder, table, out, *more, recipe=None, inputs="x_*", outputs="y_*"):
    recipe = folder / "ridge.toml" if recipe is None else recipe
    return ["fit", recipe, folder / table, "--inputs", inputs, "--outputs", outputs, "--out", out, *more]


@pytest.fixture(scope="module")
def model(folder):
    succeed(*fit(folder, "wide.csv", folder / "m.ovkgp"))
    return folder / "m.ovkgp"


def test_expand_columns_matches_each_column_once_in_file_order(folder):
    def expand(inputs, outputs, others=()):
        return expand_columns(folder / "wide.csv", ",", inputs, outputs, others)

    assert expand(("x_*",), ("y_0*", "y_2")) == (("x_a", "x_b"), ("y_0", "y_0.25", "y_0.5", "y_0.75", "y_2"))
    assert expand(("*",), ("y_*",), ["site"]) == (("x_a", "x_b"), tuple(NAMES))
    assert expand(("x_a",), ("?_*",), ["site"])[1] == ("x_b", *NAMES)
    assert expand(("x_a",), None) == (("x_a",), None)
    assert expand_columns(folder / "wide.parquet", ",", ("x_[b]",), None)[0] == ("x_b",)


def test_expand_columns_prefers_a_column_of_that_name(tmp_path):
    (tmp_path / "t.csv").write_text("T [C],T C,y\n1,2,3\n")
    assert expand_columns(tmp_path / "t.csv", ",", ("T [C]",), ("y*",)) == (("T [C]",), ("y",))
    with pytest.raises(OptionError, match="no column"):
        expand_columns(tmp_path / "t.csv", ",", ("z*",), None)


def test_parse_grid_reads_ranges_lists_and_files(tmp_path):
    (tmp_path / "grid.txt").write_text("0, 0.5\n2\n")
    np.testing.assert_array_equal(parse_grid("0:1:5"), np.linspace(0, 1, 5))
    np.testing.assert_array_equal(parse_grid("-1,0.5,1e2"), [-1, 0.5, 100])
    np.testing.assert_array_equal(parse_grid(str(tmp_path / "grid.txt")), [0, 0.5, 2])
    (tmp_path / "bad.txt").write_text("a b")
    for wrong in ("0:1", "0:1:x", "0:1:0", "a,b", "1,1", "0,nan", "2:1:3", str(tmp_path / "bad.txt")):
        with pytest.raises(ValueError, match=r"grid|bad\.txt"):
            parse_grid(wrong)


def test_find_grid_prefers_the_option_over_names(capsys):
    np.testing.assert_array_equal(find_grid(None, NAMES), GRID)
    np.testing.assert_array_equal(find_grid("5,6", ["y_1", "y_2"]), [5, 6])
    np.testing.assert_array_equal(find_grid("row", ["u", "v"], np.array([3.0, 4.0])), [3, 4])
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(find_grid(None, ["u", "v", "w"]), [0, 0.5, 1])
    assert "--grid" in capsys.readouterr().err  # the grid is a guess
    with pytest.raises(OptionError, match="3 points, expected 2"):
        find_grid("0:1:3", ["u", "v"])
    with pytest.raises(InputError, match="increasing"):
        find_grid(None, ["y_2", "y_1"])


def test_fit_command_reads_the_grid_from_names_option_row_or_tasks(folder, model, tmp_path):
    frame = make_curves()
    X = frame[["x_a", "x_b"]]
    expected = ovkgp.FunctionalRidge(lam=1e-3).fit(X, frame[NAMES], GRID).predict(X)
    loaded = ovkgp.load(model)
    assert loaded.output_names_ == NAMES and loaded.feature_names_in_.tolist() == ["x_a", "x_b"]
    np.testing.assert_allclose(loaded.predict(X), expected)
    letters = {"outputs": "[a-i]"}
    succeed(*fit(folder, "row.csv", tmp_path / "row", "--grid", "row", **letters))
    succeed(*fit(folder, "wide.parquet", tmp_path / "range", "--grid", "0:4:9"))
    succeed(*fit(folder, "long.csv", tmp_path / "long", "--task", "t", outputs="value"))
    for name, scale in (("row", 1), ("range", 2), ("long", 1)):
        found = ovkgp.load(tmp_path / name)
        np.testing.assert_allclose(found.grid_, scale * GRID)
        if name != "range":
            np.testing.assert_allclose(found.predict(X), expected, rtol=1e-6)


def test_fit_command_reads_points_of_a_plane_from_names(folder, tmp_path):
    fields = make_curves().rename(columns={name: f"u_{i // 3}_{i % 3}" for i, name in enumerate(NAMES)})
    fields.dropna().to_csv(tmp_path / "fields.csv", index=False)
    command = fit(folder, "wide.csv", tmp_path / "m", outputs="u_*")
    succeed(*command[:2], tmp_path / "fields.csv", *command[3:])
    np.testing.assert_array_equal(ovkgp.load(tmp_path / "m").grid_, [[i // 3, i % 3] for i in range(9)])
    wrong = invoke("predict", tmp_path / "m", tmp_path / "fields.csv", "--grid", "0:1:3", "--out", tmp_path / "p.csv")
    assert_error(wrong, "grid", "R^2")


def test_find_grid_reads_dates_as_days_and_notes_planes(capsys):
    dates = ["2020-01-01", "2020-01-02", "2020-02-01", "2020-02-02"]
    np.testing.assert_array_equal(find_grid(None, dates), [18262, 18263, 18293, 18294])
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(find_grid(None, ["u_0_0", "u_0_1", "u_1_0", "u_1_1"])[1], [0, 1])
    assert "plane" in capsys.readouterr().err
    with pytest.raises(InputError, match="no grid"):
        find_grid(None, ["u_0_1", "u_1_2", "u_2_5"])


def test_fit_command_notes_once_that_the_grid_is_unknown(folder, tmp_path):
    lines = (folder / "row.csv").read_text().splitlines()
    (tmp_path / "letters.csv").write_text("\n".join([lines[0], *lines[2:]]))
    command = fit(folder, "row.csv", tmp_path / "m", outputs="[a-i]")
    output = succeed(*command[:2], tmp_path / "letters.csv", *command[3:])
    assert output.count("Note: ") == output.count("equidistant on [0, 1]") == 1
    np.testing.assert_allclose(ovkgp.load(tmp_path / "m").grid_, GRID / 2)


def test_fit_command_fits_the_recipe_curves_with_missing_values(folder, tmp_path):
    options = ["--set", "output_basis=kernel", "--set", "task_kernel=rbf", "--set", "kernel=rbf"]
    succeed(*fit(folder, "wide.csv", tmp_path / "m", *options, "--set", "deviations=false", recipe="curves"))
    found = ovkgp.load(tmp_path / "m")
    np.testing.assert_allclose(found.grid_, GRID)
    succeed("predict", tmp_path / "m", folder / "wide.csv", "--out", tmp_path / "p.csv", "--grid", "0.1,1.9")
    table, frame = pd.read_csv(tmp_path / "p.csv"), make_curves()
    np.testing.assert_allclose(table["y_1.9_mean"], found.predict(frame[["x_a", "x_b"]], [0.1, 1.9])[:, 1])
    assert list(table.columns[:4]) == ["x_a", "x_b", "y_0.1_mean", "y_0.1_std"]


def test_predict_command_writes_bands_on_another_grid(folder, model, tmp_path):
    command = ["predict", model, folder / "wide.csv", "--out", tmp_path / "p.csv", "--quantiles", "0.5"]
    X, found = make_curves()[["x_a", "x_b"]], ovkgp.load(model)
    succeed(*command, "--grid", "0:2:3", "--simultaneous", "--level", "0.8", "--keep", "site")
    table = pd.read_csv(tmp_path / "p.csv")
    suffixes = ["mean", "std", "q50", "low", "high"]
    assert list(table.columns) == ["site", "x_a", "x_b", *(f"y_{t}_{end}" for t in (0, 1, 2) for end in suffixes)]
    lower, upper = found.predict_interval(X, 0.8, simultaneous=True, grid=[0, 1, 2])
    np.testing.assert_allclose(table[["y_0_low", "y_1_low", "y_2_low"]], lower)
    np.testing.assert_allclose(table[["y_0_high", "y_1_high", "y_2_high"]], upper)
    succeed(*command, "--level", "0.8", "--latent")
    pointwise = pd.read_csv(tmp_path / "p.csv")
    lower, _ = found.predict_interval(X, 0.8, noise=False)
    np.testing.assert_allclose(pointwise[[f"{name}_low" for name in NAMES]], lower)


def test_simultaneous_bands_have_level_90_percent_by_default(folder, model, tmp_path):
    succeed("predict", model, folder / "wide.csv", "--out", tmp_path / "p.csv", "--simultaneous")
    wanted = ovkgp.load(model).predict_interval(make_curves()[["x_a", "x_b"]], 0.9, simultaneous=True)[0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")[[f"{name}_low" for name in NAMES]], wanted)


@pytest.mark.parametrize(
    ("options", "more", "texts"),
    [
        ({"outputs": "z_*"}, (), ("--outputs", "matches 'z_*'")),
        ({"inputs": "z_*"}, (), ("--inputs", "matches 'z_*'")),
        ({}, ("--grid", "0:1:5"), ("5 points, expected 9",)),
        ({}, ("--grid", "1,0"), ("increasing",)),
        ({"outputs": "y_2,y_1"}, (), ("increasing", "--grid")),
        ({}, ("--grid", "row"), ("first row", "empty inputs")),
        ({}, ("--grid", "nowhere.txt"), ("--grid", "file")),
        ({"recipe": "multitask"}, ("--grid", "0:1:9"), ("--grid", "multitask")),
    ],
)
def test_fit_command_rejects_invalid_columns_and_grids(folder, tmp_path, options, more, texts):
    assert_error(invoke(*fit(folder, "wide.csv", tmp_path / "m", *more, **options)), *texts)
    assert list(tmp_path.iterdir()) == []


def test_predict_command_rejects_invalid_grids(folder, model, tmp_path):
    predict = ["predict", model, folder / "wide.csv", "--out", tmp_path / "p.csv"]
    assert_error(invoke(*predict, "--grid", "0:3:4"), "domain [0, 2]")
    assert_error(invoke(*predict, "--grid", "1,0"), "increasing")
    table = ovkgp.OVKRidge().fit(make_curves()[["x_a", "x_b"]], make_curves()[NAMES[:2]])
    table.save(tmp_path / "table.ovkgp")
    for option in (["--grid", "0:1:3"], ["--simultaneous"]):
        others = ["predict", tmp_path / "table.ovkgp", folder / "wide.csv", "--out", tmp_path / "p.csv"]
        assert_error(invoke(*others, *option), option[0], "OVKRidge")


@pytest.mark.slow
def test_report_command_compares_curves_with_a_grid_row(folder, tmp_path):
    outputs = ["--grid", "row"]
    succeed(*fit(folder, "row.csv", tmp_path / "m.ovkgp", *outputs, outputs="[a-i]"))
    make_curves(25, seed=1).rename(columns=dict(zip(NAMES, "abcdefghi", strict=True))).to_csv(
        tmp_path / "new.csv", index=False
    )
    lines = (tmp_path / "new.csv").read_text().splitlines()
    lines.insert(1, ",,," + ",".join(map(str, GRID)))
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    for name, more in (("new", []), ("rows", outputs)):
        data = ["--data", tmp_path / f"{name}.csv", *more]
        succeed("report", tmp_path / "m.ovkgp", *data, "--out", tmp_path / f"{name}.html")
    pages = [(tmp_path / f"{name}.html").read_text().replace(f"{name}.html", "") for name in ("new", "rows")]
    assert "simultaneous bands" in pages[0] and pages[0] == pages[1]
    wrong = invoke("report", tmp_path / "m.ovkgp", "--grid", "0:1:9", "--out", tmp_path / "r.html")
    assert_error(wrong, "--grid must be 'row'")


def test_grid_row_needs_a_text_table_with_numbers(folder, tmp_path):
    text = (folder / "row.csv").read_text()
    (tmp_path / "bad.csv").write_text(text.replace(",0.25,", ",quarter,", 1))
    command = fit(folder, "row.csv", tmp_path / "m", "--grid", "row", outputs="[a-i]")
    assert_error(invoke(*command[:2], tmp_path / "bad.csv", *command[3:]), "'b'", "quarter")
    (tmp_path / "short.csv").write_text("x_a,x_b,a,b\n,,0\n1,1,1,1\n")
    assert_error(invoke(*command[:2], tmp_path / "short.csv", *command[3:]), "first row", "3 fields")
    assert_error(invoke(*fit(folder, "wide.parquet", tmp_path / "m", "--grid", "row")), "text table")
