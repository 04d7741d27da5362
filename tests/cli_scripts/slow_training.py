"""The command line with slow training, so that a test can send a signal in time.

    python slow_training.py fit RECIPE DATA …

Each iteration waits a tenth of a second, and checkpoints are written without delay.
"""

import time

from ovkgp.cli import main
from ovkgp.inference.training import maximize as training

on_iteration = training._Training.on_iteration


def wait(self, run):
    time.sleep(0.1)
    on_iteration(self, run)


if __name__ == "__main__":
    training._Training.on_iteration = wait
    training.CHECKPOINT_SECONDS = 0.0
    main()
