"""Tests of the package: modules that an import loads, version, entry points and layers."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ovkgp

ROOT = Path(__file__).parents[1]
REFERENCES = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([command, "--help"] for command in ("demo", "fit", "predict", "report", "models", "features")),
        ["models"],
        ["models", "multitask"],
        ["demo", "--seed", "-1"],
        ["features", "--seed", "-1"],
        ["fit", "nonsense", "t.csv", "--inputs", "a", "--outputs", "u", "--out", "m"],
        ["fit", "multitask", "no.csv", "--inputs", "a", "--outputs", "u", "--out", "m"],
        ["predict", "no.ovkgp", "no.csv", "--out", "p.csv"],
    ],
)
def test_command_line_loads_no_torch(arguments):
    code = f"import sys; sys.argv = ['ovkgp', *{arguments!r}]\nfrom ovkgp.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert modules_loaded_by(code) == set()


def test_subpackages_are_attributes():
    assert {"kernels", "features", "exceptions"} <= set(dir(ovkgp))
    assert ovkgp.kernels.__name__ == "ovkgp.kernels"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ovkgp.nonsense


def test_version_equals_that_of_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert ovkgp.__version__ == project["version"]
    assert project["scripts"]["ovkgp"] == "ovkgp.cli:main"


def test_python_m_runs_command_line():
    done = python("-m", "ovkgp", "--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert python("-m", "ovkgp", "--version").stdout.strip() == f"ovkgp {ovkgp.__version__}"


def test_unknown_command_is_a_usage_error():
    assert python("-m", "ovkgp", "nonsense").returncode == 2


def test_package_is_typed():
    assert (Path(ovkgp.__file__).parent / "py.typed").is_file()


def test_imports_respect_layers():
    command = shutil.which("lint-imports", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert command is not None, "import-linter comes with the extra `dev`"
    done = subprocess.run([command, "--no-cache"], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout


def codes_cited(text: str) -> set[str]:
    """The codes of the literature in a text, with lists and ranges written out: BT-E-16, 17 and BT-57..61."""
    codes = set()
    for source, numbers in re.findall(r"\b((?:BT|BA|LT|BO|KT)-(?:E-)?)(\d+(?:(?:, |\.\.)\d+)*)\b", text):
        for part in numbers.split(", "):
            first, _, last = part.partition("..")
            codes |= {f"{source}{number:02}" for number in range(int(first), int(last or first) + 1)}
    return codes


def test_codes_cited_expands_ranges():
    text = "curl-free (BT-09, 27..29), its errata (BT-E-16, 17), BO-04 and BT-110."
    assert codes_cited(text) == {
        *("BT-09", "BT-27", "BT-28", "BT-29", "BT-E-16", "BT-E-17", "BO-04", "BT-110"),
    }


@pytest.mark.parametrize("folder", ["ovkgp", "tests"])
def test_cited_codes_are_explained(folder):
    explained = re.findall(r"^\| ((?:BT|BA|LT|BO|KT)-(?:E-)?\d+) \|", REFERENCES, flags=re.MULTILINE)
    assert len(explained) == len(set(explained))
    here = Path(__file__).resolve()
    files = [file for file in (ROOT / folder).rglob("*.py") if file.resolve() != here]
    cited = set().union(*(codes_cited(file.read_text(encoding="utf-8")) for file in files))
    assert len(cited) > 20
    assert cited - set(explained) == set()


def test_errata_name_existing_tests():
    named = re.findall(r"`((?:\w+/)+test_\w+\.py)::(test_\w+)`", REFERENCES)
    errata = re.findall(r"^\| ((?:BT|LT|BO|KT)-E-\d+) \|.*::(test_\w+)` \|$", REFERENCES, flags=re.MULTILINE)
    assert len(named) == len(errata) > 50
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), (file, name)
    for code, name in errata:
        assert int(code.rpartition("-")[2]) in map(int, re.findall(r"\d+", name)), (code, name)


STARRED = (1, 2, 3, 4, 5, 6, 8, 9, 13, 20, 22, 23, 24, 26, 29, 32, 33, 36, 38, 40)
"""Errata of LT that change a result: all of them have a row, and so a test."""


def test_errata_include_all_that_change_results():
    rows = re.findall(r"^\| LT-E-(\d+) \|", REFERENCES, flags=re.MULTILINE)
    assert set(STARRED) <= set(map(int, rows))
