"""Limits on the layout of the package, by `tools/structure.py`."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "structure.py"


@pytest.fixture(scope="module")
def structure():
    spec = importlib.util.spec_from_file_location("structure", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_package_has_few_files_and_no_crowded_folder(structure):
    modules = structure.find_modules()
    assert len(modules) <= 414
    assert max(Counter(path.parent for path in modules.values()).values()) <= 20


def test_package_has_few_modules_with_one_importer(structure):
    modules = structure.find_modules()
    single = structure.find_single_importers(modules, structure.build_graph(modules))
    assert len(single) <= 47


def test_package_has_no_import_cycles(structure):
    modules = structure.find_modules()
    assert structure.find_cycles(modules, structure.build_graph(modules)) == []


LONG_MODULES = {  # estimators with long public docstrings, which are read from top to bottom
    "ovkgp.estimators.regression.gp_regressor": 660,
    "ovkgp.estimators.quantiles.regressor": 636,
}


def test_modules_are_short(structure):
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in structure.find_modules().items()
    }
    assert {name: count for name, count in lines.items() if count > LONG_MODULES.get(name, 600)} == {}


def test_upper_layers_rarely_test_types(structure):
    """Commands, plots, criticism and recipes use the protocol `Estimator`, and test types of other values only."""
    folders = [structure.PACKAGE / name for name in ("cli", "plotting", "criticism", "recipes")]
    lines = [
        line for folder in folders for path in folder.rglob("*.py") for line in path.read_text("utf-8").splitlines()
    ]
    found = [line for line in lines if re.search("isinstance|hasattr|__name__", line)]
    assert len(found) <= 25
    assert not [line for line in found if re.search(r"(isinstance|hasattr|type)\((estimator|model)\b", line)]


def test_graph_follows_reexported_names(structure):
    modules = structure.find_modules()
    graph = structure.build_graph(modules)
    # `from ovkgp.kernels import HelmholtzKernel` is an import of the module that defines it
    assert graph.has_edge("ovkgp.inference.model.parameter_vector", "ovkgp.kernels.fields")


def test_words_are_counted(structure, tmp_path, capsys):
    (tmp_path / "patterns").write_text("numpydoc never occurs here\n^class GPRegressor\\b\n", encoding="utf-8")
    structure.print_words(tmp_path / "patterns")
    counts = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert counts == [0, 1, 1]
