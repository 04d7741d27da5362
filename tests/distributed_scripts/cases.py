"""Models and tables for fits on several processes. Tables are split into shards by rank; one process has all rows."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.datasets import stream
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, IndependentKernel

NUM_ROWS = 90
FULL = 0.05 * np.array([[1.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 1.0]])


def table(num_outputs=3, missing=0.0, seed=0):
    """Return X (90, 2) and noisy sines Y (90, p). Outputs are missing in the last third only, so that shards differ."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 4, (NUM_ROWS, 2))
    Y = np.sin(X[:, :1] + np.arange(num_outputs)) * np.cos(X[:, 1:]) + 0.1 * rng.standard_normal(
        (NUM_ROWS, num_outputs)
    )
    gone = rng.random(Y.shape) < missing
    gone[: 2 * NUM_ROWS // 3] = False
    Y[gone] = np.nan
    return X, Y


def grid():
    """Return points (9, 2) for predictions."""
    return np.stack(np.meshgrid(*[np.linspace(0, 4, 3)] * 2), -1).reshape(-1, 2)


def shard(array, rank, size):
    """Return the rows of one rank: consecutive blocks of different lengths."""
    cuts = [len(array) * (k + 1) ** 2 // size**2 for k in range(size)]
    return array[([0, *cuts])[rank] : cuts[rank]]


def chunks(X, Y, rows=17):
    return [(X[i : i + rows], Y[i : i + rows]) for i in range(0, len(X), rows)]


def decomposable():
    return DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=2)


def fixed(kernel, noise=0.05, **options):
    """Return a regressor whose hyperparameters are those of the kernel."""
    return ovkgp.GPRegressor(
        kernel, noise=noise, hyperparameters="fixed", num_frequencies=20, random_state=0, distributed=True, **options
    )


def trained(kernel, random_state=0):
    return ovkgp.GPRegressor(kernel, num_frequencies=20, training_rows=40, random_state=random_state, distributed=True)


CASES = {
    "decomposable, complete": (lambda: fixed(decomposable()), table()),
    "decomposable, missing": (lambda: fixed(decomposable()), table(missing=0.4)),
    "decomposable, missing, full noise": (lambda: fixed(decomposable(), FULL), table(missing=0.4)),
    "nystrom": (lambda: fixed(decomposable(), approximation="nystrom"), table(missing=0.4)),
    "independent": (lambda: fixed(IndependentKernel([RBFKernel() for _ in range(3)])), table(missing=0.4)),
    "curl-free": (lambda: fixed(CurlFreeKernel(RBFKernel(ard_num_dims=2))), table(2)),
    "curl-free, missing": (lambda: fixed(CurlFreeKernel(RBFKernel(ard_num_dims=2))), table(2, missing=0.4)),
    "trained": (lambda: trained("decomposable"), table(missing=0.4)),
}


def collect_results(model):
    """Return predictions, evidence and parameters of a fitted model as arrays."""
    mean, std = model.predict(grid(), return_std=True)
    state = [parameter.detach().numpy().ravel() for parameter in model.gp_.parameters()]
    return {
        "mean": mean,
        "std": std,
        "evidence": np.array(model.log_evidence_),
        "parameters": np.concatenate([*state, *vars(model.scaling_).values()]),
    }


def fit_all(rank=0, size=1):
    """Return the results of every case from the shard of one rank, with keys "case/result"."""
    found = {}
    for name, (make, (X, Y)) in CASES.items():
        model = make().fit_stream(chunks(shard(X, rank, size), shard(Y, rank, size)))
        found |= {f"{name}/{key}": value for key, value in collect_results(model).items()}
    for fit in (fit_then_add, fit_rare_output, fit_ridges, fit_files, fit_dates):
        found |= fit(rank, size)
    return found


def fit_then_add(rank, size):
    """Fit the first rows, which are complete, then call `partial_fit` with rows that only the last rank has."""
    X, Y = table(missing=0.4)
    model = fixed(decomposable(), FULL).fit(shard(X[:40], rank, size), shard(Y[:40], rank, size))
    more = slice(40, None) if rank == size - 1 else slice(0, 0)
    model.partial_fit(X[more], Y[more])
    return {f"partial/{key}": value for key, value in collect_results(model).items()}


def fit_rare_output(rank, size):
    """Fit a table whose last output is observed in the last row only."""
    X, Y = table()
    Y[:-1, 2] = np.nan
    model = fixed(IndependentKernel([RBFKernel() for _ in range(3)]))
    model.fit(shard(X, rank, size), shard(Y, rank, size))
    return {f"rare output/{key}": value for key, value in collect_results(model).items()}


def fit_ridges(rank, size):
    """Fit ORFFRidge, whose frequencies, intercept and λ are those of all rows."""
    found = {}
    for name, (X, Y) in {"complete": table(), "missing": table(missing=0.4)}.items():
        ridge = ovkgp.ORFFRidge(decomposable(), lam=0.05, num_frequencies=20, fit_intercept=True, random_state=0)
        ridge.set_params(convention="mean", distributed=True)
        ridge.fit_stream(chunks(shard(X, rank, size), shard(Y, rank, size)))
        mean, std = ridge.predict(grid(), return_std=True)
        found |= {f"ridge, {name}/mean": mean, f"ridge, {name}/std": std, f"ridge, {name}/coef": ridge.coef_}
    return found


def fit_dates(rank, size):
    """Fit a table of dates, which count from the first chunk of the first rank on all ranks."""
    X, Y = table()
    frame, points = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(grid(), columns=["a", "b"])
    for one in (frame, points):
        one["b"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(one["b"], "D").dt.round("us")
    ridge = ovkgp.ORFFRidge(decomposable(), lam=0.05, num_frequencies=20, random_state=0, distributed=True)
    ridge.fit_stream(chunks(shard(frame, rank, size), shard(Y, rank, size), rows=9))
    return {"ridge, dates/mean": ridge.predict(points), "ridge, dates/origin": np.array(ridge.input_times_[1])}


def fit_files(rank, size):
    """Fit a text table and a Parquet file, of which each rank reads one part."""
    X, Y = table(missing=0.4)
    frame, found = pd.DataFrame(np.hstack([X, Y]), columns=["a", "b", "u", "v", "w"]), {}
    points = pd.DataFrame(grid(), columns=["a", "b"])
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "table.csv"), Path(folder, "table.parquet")
        frame.to_csv(paths[0], index=False)
        frame.to_parquet(paths[1])
        for path in paths:
            rows = stream(path, inputs="a,b", outputs="u,v,w", chunk_rows=16, shard=(rank, size))
            options = {"lam": 0.05, "num_frequencies": 20, "random_state": 0, "distributed": True}
            ridge = ovkgp.ORFFRidge(decomposable(), **options).fit_stream(rows)
            found[f"file, {path.suffix}/mean"], found[f"file, {path.suffix}/std"] = ridge.predict(
                points, return_std=True
            )
    return found
