"""Script for torchrun: fit every case from the shards of all processes, and collect the errors of invalid calls.

    torchrun --nproc_per_node=2 fit_shards.py FOLDER

writes rank0.npz, rank1.npz, … with the results, and rank0.json, … with the errors.
"""

import json
import sys
from pathlib import Path

import numpy as np
from distributed_scripts.cases import decomposable, fit_all, fixed, shard, table, trained

import ovkgp
from ovkgp.inference.statistics.distributed import process_group


def error_of(work):
    """Return class and message of the error that work raises."""
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def errors(ranks):
    """Return the errors on this rank if the last rank has bad data, no rank has data, or ranks call different methods."""
    X, Y = (shard(part, ranks.rank, ranks.size).copy() for part in table())
    model = fixed(decomposable()).fit(X, Y)
    before = model.predict(X)
    bad, unobserved, is_last = X.copy(), Y.copy(), ranks.rank == ranks.size - 1
    unobserved[:, 1] = np.nan
    if is_last:
        bad[3, 0] = np.nan
    found = {
        "bad row": error_of(lambda: model.fit(bad, Y)),
        "bad row, added": error_of(lambda: model.partial_fit(bad, Y)),
        "width": error_of(lambda: model.fit(X[:, :1] if is_last else X, Y)),
        "unobserved": error_of(lambda: model.fit(X, unobserved)),
        "no rows": error_of(lambda: model.fit(X[:0], Y[:0])),
        "one-shot": error_of(lambda: model.fit_stream(iter([(X, Y)]) if is_last else [(X, Y)])),
        "option": error_of(lambda: ovkgp.GPRegressor(rank=0, kernel="decomposable", distributed=True).fit(X, Y)),
        "different calls": error_of(lambda: ranks.gather(1, "here" if is_last else "there")),
    }
    return found | {"kept": bool(np.array_equal(model.predict(X), before))}


def main(folder):
    with process_group() as ranks:
        found = fit_all(ranks.rank, ranks.size)
        X, Y = (shard(part, ranks.rank, ranks.size) for part in table())
        free = trained("independent", random_state=None).fit(X, Y)  # one fresh seed for all
        found["fresh/mean"] = free.predict(table()[0])
        messages = errors(ranks)
    refitted = fixed(decomposable()).fit(X, Y)  # a group for this call only
    found["again/mean"] = refitted.predict(table()[0])
    np.savez(folder / f"rank{ranks.rank}.npz", **found)
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(messages))
    if ranks.rank == 0:
        refitted.save(folder / "model.ovkgp")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
