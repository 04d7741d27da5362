"""Recipes and command line of an installed wheel."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ovkgp.recipes import list_recipes

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder that contains only the installed package."""
    built, target = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    made = run(*PIP, "wheel", "--no-deps", "-w", built, ROOT)
    if made.returncode and "No matching distribution found for hatchling" in made.stderr:
        pytest.skip("hatchling, which builds the wheel, is not available")
    assert made.returncode == 0, made.stderr
    (wheel,) = built.glob("*.whl")
    installation = run(*PIP, "install", "--no-deps", "--target", target, wheel)
    assert installation.returncode == 0, installation.stderr
    return target


def run_python(installed, tmp_path, *command):
    """Run Python with the installed package first on the path, from another folder, and return its output."""
    done = run(sys.executable, *command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_contains_recipes(installed, tmp_path):
    code = "import ovkgp.recipes as r; print(r.recipe_path('multitask')); print(*map(r.load_recipe, r.list_recipes()), sep='\\n')"
    path, *recipes = run_python(installed, tmp_path, "-c", code).splitlines()
    assert Path(path) == installed / "ovkgp" / "recipes" / "models" / "multitask.toml"
    assert [recipe.split("'")[1] for recipe in recipes] == list(list_recipes())


@pytest.mark.slow
def test_wheel_fits_recipe(installed, tmp_path):
    code = (
        "import numpy as np, ovkgp, ovkgp.recipes as r; X = np.linspace(0, 6, 30)[:, None]; "
        "Y = np.hstack([np.sin(X), np.cos(X)]); print(ovkgp.__file__); "
        "print(r.load_recipe('multitask').fit(X, Y).score(X, Y) > 0.99)"
    )
    path, is_good = run_python(installed, tmp_path, "-c", code).splitlines()
    assert Path(path).is_relative_to(installed) and is_good == "True"


@pytest.mark.slow
def test_wheel_command_lists_recipes(installed, tmp_path):
    listed = run_python(installed, tmp_path, "-m", "ovkgp", "models")
    assert all(name in listed for name in list_recipes())


@pytest.mark.slow
def test_wheel_command_fits_and_reports(installed, tmp_path):
    rows = [f"{x / 5},{math.sin(x / 5)},{math.cos(x / 5)}" for x in range(30)]
    (tmp_path / "table.csv").write_text("\n".join(["x,u,v", *rows, ""]))
    columns = ("--inputs", "x", "--outputs", "u,v")
    run_python(installed, tmp_path, "-m", "ovkgp", "fit", "multitask", "table.csv", *columns, "--out", "model.ovkgp")
    run_python(installed, tmp_path, "-m", "ovkgp", "report", "model.ovkgp", "--out", "report.html")
    assert "<h1" in (tmp_path / "report.html").read_text(encoding="utf-8")
