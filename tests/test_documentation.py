"""Run the Python blocks and commands of README and docs, and check the table of kernels and inference."""

import contextlib
import io
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from cli_cases import succeed
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.kernels import DecomposableKernel, ExponentiatedChi2Kernel, TransformableKernel

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("guide", "kernels", "shapes")))


def read_page(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", read_page(page), flags=re.MULTILINE | re.DOTALL)


def run_page(page: str, folder: Path, monkeypatch) -> tuple[dict, str]:
    """Run the Python blocks of a page in order; return their variables and printed text."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(matplotlib, "rcParams", matplotlib.rcParams.copy())
    matplotlib.use("Agg")
    scope = {"__name__": page}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in code_blocks(page, "python"):
            exec(compile(block, page, "exec"), scope)
    return scope, printed.getvalue()


def test_readme_examples_run(tmp_path, monkeypatch):
    scope, printed = run_page("README.md", tmp_path, monkeypatch)
    assert "decomposable" in printed
    assert scope["mean"].shape == scope["std"].shape == (2, 3)
    truth = [[math.sin(x), 100 + 50 * math.sin(x + 0.4), math.cos(x)] for x in (1.0, 2.0)]
    assert (abs(scope["mean"] - truth) < 3 * scope["std"]).all()
    assert (tmp_path / "report.html").stat().st_size > 10_000
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.predict([[1.0]]), scope["model"].predict([[1.0]]), rtol=1e-12)


def test_quickstart_has_at_most_ten_lines():
    lines = [line for line in code_blocks("README.md", "python")[0].splitlines() if line.strip()]
    assert len(lines) <= 10


@pytest.mark.slow
def test_guide_examples_run(tmp_path, monkeypatch):
    scope, printed = run_page("docs/guide.md", tmp_path, monkeypatch)
    assert "True" in printed and "False" not in printed
    assert scope["regressor"].score(scope["inputs"], scope["outputs"]) > 0.97
    assert scope["mean"].shape == scope["std"].shape == (50, 3) and scope["between"].shape == (50, 3, 3)
    assert (scope["latent_std"] < scope["std"]).all()
    truth = scope["toy"].quantiles(scope["x_grid"], [0.1, 0.5, 0.9])
    assert scope["curves"].shape == (50, 3)
    assert (abs(scope["curves"] - truth) < 1.64 * scope["curve_std"]).mean() > 0.7
    assert scope["roc"].sensitivity[0] < 0.4 < 0.9 < scope["roc"].sensitivity[-1]
    assert abs(scope["stream"].predict([[1.0]])[0, 0] - math.sin(1.0)) < 0.05
    assert (scope["currents"].mean - scope["swirl"][:5]).abs().max() < 0.05
    assert scope["stream_function"].mean.shape == (5, 1) and set(scope["parts"]) == {"curl_free", "divergence_free"}


def test_kernels_examples_run(tmp_path, monkeypatch):
    scope, printed = run_page("docs/kernels.md", tmp_path, monkeypatch)
    assert "True" in printed and "False" not in printed
    expected = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]) * math.exp(-0.5)
    torch.testing.assert_close(scope["prediction"].mean.detach(), expected, atol=0.1, rtol=0)
    assert (scope["prediction_with_gaps"].stddev > scope["prediction"].stddev).all()
    hours = scope["day"](torch.tensor([[23.0], [1.0], [12.0]])).to_dense()
    torch.testing.assert_close(hours[0].detach(), torch.tensor([1.0, 0.80, 0.04]), atol=0.01, rtol=0)
    assert scope["lmc"](scope["X"]).shape == (900, 900)
    assert scope["hour_and_location"](torch.rand(5, 3)).shape == (20, 20)
    weights = torch.randn(scope["orff"].num_features)
    assert torch.equal(scope["again"](scope["X"]) @ weights, scope["orff"](scope["X"]) @ weights)
    assert torch.equal(scope["copy"](scope["X"]) @ weights, scope["orff"](scope["X"]) @ weights)
    error = (scope["Phi"] @ scope["Phi"].mT).to_dense() - scope["sinc"](scope["X"][:5]).to_dense()
    assert error.abs().max() < 0.05  # about 5 standard deviations at 20 000 frequencies


def test_shapes_examples_run(tmp_path, monkeypatch):
    scope, _ = run_page("docs/shapes.md", tmp_path, monkeypatch)
    assert scope["batched"].shape == (7, 12, 12)


@pytest.mark.parametrize("page", PAGES)
def test_page_has_only_tested_block_languages(page):
    languages = set(re.findall(r"^```(\w+)$", read_page(page), flags=re.MULTILINE))
    assert languages <= {"python", "sh", "bibtex"}
    assert "@@" not in read_page(page)  # unfilled template


def readme_commands() -> list[str]:
    return [line for block in code_blocks("README.md", "sh") for line in block.splitlines() if line.strip()]


def test_readme_commands_run(tmp_path, monkeypatch):
    """Commands of one process are run in this one, which is faster; `test_cli` runs `ovkgp` in another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    X, Y, _ = ovkgp.datasets.make_drifters(40, random_state=0)
    rows = [",".join("" if np.isnan(v) else f"{v:.5f}" for v in row) for row in np.hstack([X, Y])]
    (tmp_path / "demo" / "drifters.csv").write_text("\n".join(["east,north,u,v", *rows, ""]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    for command in readme_commands():
        program, *arguments = shlex.split(command, comments=True)
        if program == "ovkgp":
            succeed(*arguments)
            continue
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    names = {path.name for path in tmp_path.iterdir()}
    assert {"currents.ovkgp", "predicted.csv", "currents.html", "large.ovkgp"} <= names
    header = (tmp_path / "predicted.csv").read_text().splitlines()[0].split(",")
    assert {"east", "north", "u_mean", "v_std", "u_q05", "v_q95"} <= set(header)


def test_readme_lists_every_recipe_and_tutorial():
    text = read_page("README.md")
    assert all(f"`{name}`" in text for name in ovkgp.recipes.list_recipes())
    notebooks = [path.name for path in (ROOT / "tutorials").glob("*.ipynb")]
    assert len(notebooks) == 14
    assert all(f"(tutorials/{name})" in text for name in notebooks)


@pytest.mark.parametrize(
    "page", [*PAGES, "CONTRIBUTING.md", "docs/architecture.md", "docs/references.md", "docs/speed.md"]
)
def test_page_links_exist(page):
    prose = re.sub(r"^```.*?^```", "", read_page(page), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)", prose)
    missing = [to for to in targets if not to.startswith("http") and not ((ROOT / page).parent / to).exists()]
    assert missing == []


# --- the table of kernels and inference ------------------------------------------------------------------------------

INFERENCE_OPTIONS = {
    "exact": {"approximation": "exact"},
    "random features": {"approximation": "orff", "num_frequencies": 15},
    "Nyström": {"approximation": "nystrom", "num_frequencies": 10},
    "other likelihoods": {"likelihood": "student_t", "num_frequencies": 8},
    "NUTS": {"hyperparameters": "nuts", "sampling": {"draws": 4, "tune": 4, "chains": 1, "prior_draws": 0}},
    "streaming": {"num_frequencies": 15},
}


def read_kernel_table() -> dict[str, dict[str, str]]:
    """Read the table of the README as {kernel: {inference: "yes" or "no"}}."""
    lines = read_page("README.md").partition("| kernel | prior for |")[2].splitlines()
    heads = [cell.strip() for cell in lines[0].strip("| ").split("|")]
    rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in lines[2:] if line.startswith("|"))
    found = {}
    for first, _, *cells in rows:
        if len(cells) != len(heads):
            break
        found[first.strip('`"')] = dict(zip(heads, cells, strict=True))
    return found


def make_kernel(name: str):
    objects = {
        "TransformableKernel": lambda: TransformableKernel(
            RBFKernel(ard_num_dims=2), [lambda x: x, lambda x: x.flip(-1)]
        ),
        "DecomposableKernel(ExponentiatedChi2Kernel())": lambda: DecomposableKernel(
            ExponentiatedChi2Kernel(), num_outputs=2
        ),
    }
    return objects[name]() if name in objects else name


def fit_model(name: str, inference: str):
    rng = np.random.default_rng(0)
    X = rng.uniform(0.1, 2, (16, 2))
    Y = np.stack([np.sin(X[:, 1]), np.cos(X[:, 0])], 1) + 0.05 * rng.standard_normal((16, 2))
    model = ovkgp.GPRegressor(make_kernel(name), random_state=0, **INFERENCE_OPTIONS[inference])
    return (model.fit_stream([(X, Y)]) if inference == "streaming" else model.fit(X, Y)), X


def test_kernel_table_has_all_columns():
    table = read_kernel_table()
    assert len(table) == 8 and all(set(row) == set(INFERENCE_OPTIONS) for row in table.values())


def is_long(name, inference):
    """Whether a fit is tested by `make test-all` only: variational and sampled models of all but one kernel."""
    return inference in ("other likelihoods", "NUTS") and name != "helmholtz"


@pytest.mark.parametrize(
    ("name", "inference"),
    [
        pytest.param(name, inference, marks=[pytest.mark.slow] if is_long(name, inference) else [])
        for name in read_kernel_table()
        for inference in INFERENCE_OPTIONS
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # too few draws
def test_kernel_table_entry(name, inference):
    if read_kernel_table()[name][inference] == "no":
        with pytest.raises(ovkgp.exceptions.OvkgpError):
            fit_model(name, inference)
        return
    model, X = fit_model(name, inference)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (16, 2)
    assert np.isfinite(mean).all() and (std > 0).all()
