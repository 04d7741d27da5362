"""The package as a whole: what an import loads, the version, the entry points and the layers."""

import contextlib
import io
import math
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import ovkgp

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "gpytorch", "arviz", "matplotlib", "scipy", "sklearn")


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120)


def modules_loaded_by(code: str) -> set[str]:
    """The heavy top-level modules in memory after `code` ran in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint('loaded:', *[m for m in {HEAVY!r} if m in sys.modules])"
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].removeprefix("loaded:").split())


def test_import_loads_nothing_heavy():
    assert modules_loaded_by("import ovkgp; ovkgp.__version__; dir(ovkgp)") == set()


def test_kernels_and_features_load_no_plotting():
    loaded = modules_loaded_by("import ovkgp; ovkgp.kernels; ovkgp.features")
    assert "torch" in loaded
    assert loaded.isdisjoint({"arviz", "matplotlib"})


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"], ["demo", "--seed", "-1"]])
def test_command_line_loads_no_torch(arguments):
    code = f"import sys; sys.argv = ['ovkgp', *{arguments!r}]\nfrom ovkgp.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert modules_loaded_by(code) == set()


def test_subpackages_are_attributes():
    assert {"kernels", "features", "exceptions"} <= set(dir(ovkgp))
    assert ovkgp.kernels.__name__ == "ovkgp.kernels"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ovkgp.nonsense


def test_version_is_the_one_of_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert ovkgp.__version__ == project["version"]
    assert project["scripts"]["ovkgp"] == "ovkgp.cli:main"


def test_python_dash_m():
    done = python("-m", "ovkgp", "--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert python("-m", "ovkgp", "--version").stdout.strip() == f"ovkgp {ovkgp.__version__}"


def test_unknown_command_is_a_usage_error():
    assert python("-m", "ovkgp", "nonsense").returncode == 2


def test_package_is_typed():
    assert (Path(ovkgp.__file__).parent / "py.typed").is_file()


def test_layers_are_kept():
    command = shutil.which("lint-imports", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if command is None:
        pytest.skip("import-linter is not installed")
    done = subprocess.run([command, "--no-cache"], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout


def test_examples_of_the_readme_run():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    scope = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), scope)
    expected = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]) * math.exp(-0.5)
    torch.testing.assert_close(scope["prediction"].mean.detach(), expected, atol=0.1, rtol=0)
    error = (scope["Phi"] @ scope["Phi"].mT).to_dense() - scope["sinc"](scope["X"][:5]).to_dense()
    assert error.abs().max() < 0.05  # some 5 standard deviations at 20 000 frequencies
