"""Scripts of `distributed_scripts` in several processes: under torchrun, or bare, so that the survivors can be heard."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SCRIPTS = TESTS / "distributed_scripts"
LONGEST = 240
"""Seconds after which a hang is a failure, on however busy a machine."""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def environment(**more):
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def torchrun(size, script, *arguments):
    """Run a script on `size` processes and wait for it; its output is in the error where it fails."""
    options = [f"--nproc_per_node={size}", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment(), timeout=LONGEST, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def bare(size, script, *arguments):
    """The exit codes of a script on `size` processes that nobody looks after."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(size)}
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    started = [subprocess.Popen(command, env=environment(RANK=str(rank), **place)) for rank in range(size)]
    try:
        return [process.wait(timeout=LONGEST) for process in started]
    finally:
        for process in started:
            process.kill()
