"""The command line in tests: commands run in this process or in one of their own, small tables, and models fitted once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from ovkgp.cli import app

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "cli_scripts"
LONGEST = 240
"""Seconds after which a hang is a failure, on however busy a machine."""


def invoke(*arguments, **options):
    """A command in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"}, **options)


def succeed(*arguments):
    """What a command that must succeed has printed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def shell(*arguments, program=("-m", "ovkgp")):
    """A command in a process of its own, begun."""
    place = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, (*program, *arguments))], env=place, **pipes)


def assert_one_sentence(result, *words, code=2):
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1, result.output
    assert result.output.startswith("Error: ")
    for word in words:
        assert word in result.output, result.output


def scalar_features(num_rows=30, seed=0):
    """Two inputs a, b; outputs u, v with gaps; a site's name, a label and a count."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0, 4, (2, num_rows))
    u, v = np.sin(a) + 0.1 * rng.standard_normal(num_rows), np.cos(b) + 0.1 * rng.standard_normal(num_rows)
    v[::7] = np.nan
    site, label = [f"site {i}" for i in range(num_rows)], np.where(a > 2, "high", "low")
    return pd.DataFrame({"site": site, "a": a, "b": b, "u": u, "v": v, "label": label, "n": rng.poisson(3, num_rows)})


def write_waves(folder, name="table.csv", **options):
    """The table of `scalar_features` as a file."""
    path, frame = Path(folder) / name, scalar_features(**options)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path
