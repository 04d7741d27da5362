"""NUTS of NumPyro over the models of `hyperparameters_nuts.py`, which runs this script with the Python of OVKGP_NUMPYRO.

    python benchmarks/hyperparameters_numpyro.py DATA.npz DRAWS.npz

DATA has X (n, d), Y (n, p), the number of draws and the priors (location and scale); DRAWS gets the draws of two runs and their CPU
seconds. The first run compiles; the second one does not, except for a few steps of its beginning. Neither file needs torch or ovkgp. One thread, float64.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.infer import NUTS

jax.config.update("jax_enable_x64", True)


def main(source: str, target: str) -> None:
    given = dict(np.load(source))
    X, Y, draws = given["X"], given["Y"], int(given["draws"])
    squares = jnp.asarray(((X[:, None] - X[None]) ** 2).sum(-1))

    def log_normal(name: str, shape=()):
        return numpyro.sample(name, dist.LogNormal(*given[f"{name}_prior"]).expand(shape).to_event(len(shape)))

    def one() -> None:
        K = log_normal("outputscale") * jnp.exp(-squares / (2 * log_normal("lengthscale") ** 2))
        C = K + log_normal("noise") * jnp.eye(len(X))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(X)), C), obs=Y[:, 0])

    def icm() -> None:
        p, rank = Y.shape[1], int(given["rank"])
        K = jnp.exp(-squares / (2 * log_normal("lengthscale") ** 2))
        W = numpyro.sample("loadings", dist.Normal(0.0, 1.0).expand((p, rank)).to_event(2))
        matrix = numpyro.deterministic("output_matrix", W @ W.T + jnp.diag(log_normal("diagonal", (p,))))
        C = jnp.kron(K, matrix) + jnp.diag(jnp.tile(log_normal("noise", (p,)), len(X)))
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand((p,)).to_event(1))
        numpyro.sample("y", dist.MultivariateNormal(jnp.tile(mean, len(X)), C), obs=Y.ravel())

    kernel = NUTS(icm if "rank" in given else one)

    @jax.jit
    def sample(state):  # `MCMC.run` would compile again at each call
        move = lambda state: kernel.sample(state, (), {})  # noqa: E731
        state = jax.lax.fori_loop(0, draws, lambda _, state: move(state), state)
        return jax.lax.scan(lambda state, _: ((state := move(state)), state.z), state, length=draws)[1]

    found = {}
    for run in range(2):
        begin = time.process_time()
        state = kernel.init(jax.random.key(run), draws, init_params=None, model_args=(), model_kwargs={})
        values = jax.jit(jax.vmap(kernel.postprocess_fn((), {})))(sample(state))
        samples = {name: np.asarray(value) for name, value in values.items()}
        found[f"seconds_{run}"] = time.process_time() - begin
        found |= {f"{name}_{run}": values for name, values in samples.items() if name not in ("loadings", "diagonal")}
    np.savez(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
