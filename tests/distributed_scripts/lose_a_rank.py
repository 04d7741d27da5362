"""Script for several processes without torchrun: one is killed during a fit, the others write their error to a file.

    lose_a_rank.py FOLDER DYING WHEN

with WHEN "training" or "reading": rank DYING is killed before the training, or in the second pass over its chunks.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from distributed_scripts.cases import decomposable, fixed, shard, table

from ovkgp.estimators.regression.gp_regressor import GPRegressor
from ovkgp.exceptions import DistributedError
from ovkgp.inference.statistics.distributed import process_group


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class Fatal:
    """Chunks that kill the process in the second pass."""

    def __init__(self, X, Y):
        self.pair, self.num_passes = (X, Y), 0

    def __iter__(self):
        self.num_passes += 1
        if self.num_passes == 2:
            die()
        yield self.pair


def main(folder, dying, when):
    with process_group() as ranks:
        pair = [shard(part, ranks.rank, ranks.size) for part in table()]
        chunks = Fatal(*pair) if (when, dying) == ("reading", ranks.rank) else [pair]
        if when == "training":
            GPRegressor._train = die  # only rank 0 trains
        started = time.monotonic()
        try:
            fixed(decomposable()).fit_stream(chunks)
        except DistributedError as error:
            found = {"message": str(error), "seconds": time.monotonic() - started}
            (folder / f"rank{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
