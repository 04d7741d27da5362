"""Helpers for tests of the command line: run commands in this process or in another one, and make small tables."""

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
MAX_SECONDS = 240
"""Timeout of a subprocess, generous for busy machines."""


def invoke(*arguments, **options):
    """Run a command in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"}, **options)


def succeed(*arguments):
    """Run a command that must succeed and return its output."""
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def start_process(*arguments, program=("-m", "ovkgp")):
    """Start a command in another process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, (*program, *arguments))], env=environment, **pipes)


def assert_error(result, *texts, code=2):
    """Assert that a command printed one line with an error that contains the texts."""
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1, result.output
    assert result.output.startswith("Error: ")
    for text in texts:
        assert text in result.output, result.output


def make_table(num_rows=30, seed=0):
    """Make a table of inputs a, b; outputs u, v with missing values; a site name, a label and a count."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0, 4, (2, num_rows))
    u, v = np.sin(a) + 0.1 * rng.standard_normal(num_rows), np.cos(b) + 0.1 * rng.standard_normal(num_rows)
    v[::7] = np.nan
    site, label = [f"site {i}" for i in range(num_rows)], np.where(a > 2, "high", "low")
    return pd.DataFrame({"site": site, "a": a, "b": b, "u": u, "v": v, "label": label, "n": rng.poisson(3, num_rows)})


def write_table(folder, name="table.csv", **options):
    """Write the table of `make_table` to a file."""
    path, frame = Path(folder) / name, make_table(**options)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path
