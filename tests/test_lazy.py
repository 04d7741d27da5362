"""Tests of `ovkgp.lazy`."""

import subprocess
import sys

import pytest

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
