"""The command line with a training that takes its time, so that there is time for a signal.

    python slow_training.py fit RECIPE DATA …

Each iteration waits a tenth of a second, and every fifth is written to the checkpoint.
"""

import time

from ovkgp.cli import main
from ovkgp.inference.training import maximize as training

after_iteration = training._Training.after_iteration


def wait(self, climb):
    time.sleep(0.1)
    after_iteration(self, climb)


if __name__ == "__main__":
    training._Training.after_iteration = wait
    training.CHECKPOINT_SECONDS = 0.0
    main()
