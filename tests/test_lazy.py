"""Tests of `ovkgp.lazy`."""

import subprocess
import sys

import pytest

import ovkgp

SCRIPT = """
import warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {0}
    import gpytorch, torch
    own = [str(entry.message) for entry in caught if "jit.script" in str(entry.message)]
    torch.jit.script(lambda x: x) if {1} else None
    later = [str(entry.message) for entry in caught if "jit.script" in str(entry.message)]
print(len(own), len(later))
"""


def test_top_level_names_are_those_of_the_stubs():
    assert set(ovkgp.estimators.__all__) <= set(ovkgp.__all__) <= set(dir(ovkgp))
    assert ovkgp.__all__ == sorted(ovkgp.__all__)
    assert all(hasattr(ovkgp, name) for name in ovkgp.__all__)
    assert ovkgp.GPRegressor is ovkgp.estimators.GPRegressor
    with pytest.raises(AttributeError, match="no attribute 'GPRegresor'"):
        _ = ovkgp.GPRegresor


def test_using_an_estimator_loads_no_other():
    script = "import sys, ovkgp; ovkgp.OVKRidge; print(any(name.startswith('ovkgp.estimators.tasks') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    "line",
    ["import ovkgp; ovkgp.GPRegressor()", pytest.param("from ovkgp.datasets import samples", marks=pytest.mark.slow)],
)
def test_importing_gpytorch_gives_no_deprecation_warning(line):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(line, False)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["0", "0"], done.stderr


def test_own_use_of_torch_jit_still_warns():
    script = SCRIPT.replace("torch.jit.script(lambda x: x)", "torch.jit.script(torch.nn.Identity())")
    done = subprocess.run(
        [sys.executable, "-c", script.format("import ovkgp", True)], capture_output=True, text=True, timeout=120
    )
    own, later = map(int, done.stdout.split())
    assert own == 0 and later >= 1
