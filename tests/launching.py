"""Helpers that run scripts of `distributed_scripts` in several processes, with or without torchrun."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SCRIPTS = TESTS / "distributed_scripts"
MAX_SECONDS = 240
"""Timeout of a subprocess, generous for busy machines."""


def free_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return str(unused.getsockname()[1])


def environment(**more):
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def torchrun(size, script, *arguments):
    """Run a script on `size` processes under torchrun; if it fails, its output is in the error."""
    options = [f"--nproc_per_node={size}", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment(), timeout=MAX_SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def bare(size, script, *arguments):
    """Run a script on `size` processes without a launcher, which would end the survivors, and return the exit codes."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(size)}
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    started = [subprocess.Popen(command, env=environment(RANK=str(rank), **group)) for rank in range(size)]
    try:
        return [process.wait(timeout=MAX_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
