"""Tests of `ovkgp.plotting` and of its lazy names."""

import subprocess
import sys

import pytest

import ovkgp.criticism
import ovkgp.plotting

SILENT = """
import sys
import ovkgp.plotting, ovkgp.criticism
assert not {"torch", "matplotlib", "arviz"} & set(sys.modules), "loaded too early"
"""


def test_import_loads_neither_torch_nor_matplotlib():
    subprocess.run([sys.executable, "-c", SILENT], check=True)


@pytest.mark.parametrize("package", [ovkgp.plotting, ovkgp.criticism])
def test_exported_names_exist(package):
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)
    with pytest.raises(AttributeError, match="plot_nothing"):
        package.plot_nothing  # noqa: B018
