"""ORFF with four outputs: which posteriors of hyperparameters are in reach at 10⁴ and 10⁵ rows, and in what time.

A module for `hyperparameters.py`; run by itself it does nothing.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, VariationalGP, sample_hyperparameters
from ovkgp.kernels import DecomposableKernel

OUTPUTS, FREQUENCIES = 4, 200


def features(quick: bool = False) -> None:
    """Run all methods, at full sizes or a tenth of them."""
    large, small = (10_000, 1000) if quick else (100_000, 10_000)
    X, Y = data(large)
    print(f"\nORFF, p = {OUTPUTS}, D = {FREQUENCIES}, RBF in two dimensions")
    print(f"{'':<66}{'seconds':>9}{'draws':>7}{'gradients':>11}{'diverging':>11}{'worst R̂':>9}{'k̂':>7}")
    gp = model()
    start = time.perf_counter()
    gp.fit(X, Y, training_rows=2000, random_state=0)
    report("training on 2000 rows (the mode of the lengthscales)", time.perf_counter() - start)
    start = time.perf_counter()
    statistics = gp.statistics(X, Y)
    report(f"statistics of {large} rows, once", time.perf_counter() - start)
    draws, chains = (100, 2) if quick else (500, 2)
    sampled(
        "NUTS over output matrix, noise, mean: no data pass", gp, statistics, draws=draws, tune=draws, chains=chains
    )
    sampled(f"Laplace, lengthscales too, n = {large}", gp, X, Y, method="laplace", draws=100)
    variational = VariationalGP(gp.kernel, "gaussian", features=features_of(gp.kernel), family="mean_field")
    label = f"SVI in batches of 1000, lengthscales too, n = {large}"
    sampled(label, variational, X, Y, method="svi", guide="normal", batch_size=1000, draws=500)
    few = 20 if quick else 30
    sampled(f"NUTS, lengthscales too, n = {small}", gp, X[:small], Y[:small], draws=few, tune=few, chains=1)


def sampled(label: str, gp, X, Y=None, **options) -> None:
    start = time.perf_counter()
    found = sample_hyperparameters(
        gp, X, Y, random_state=0, log_likelihood=False, posterior_predictive=False, **options
    )
    report(label, time.perf_counter() - start, found["posterior"])
    for name in ("lengthscale", "noise"):
        if name in found["posterior"]:
            values = found["posterior"][name].values.reshape(-1, *found["posterior"][name].shape[2:])
            print(
                f"    {name:<12} mean {np.array2string(values.mean(0), precision=4)}, sd {np.array2string(values.std(0), precision=5)}"
            )


def report(label: str, spent: float, posterior=None) -> None:
    if posterior is None:
        print(f"{label:<66}{spent:>9.1f}", flush=True)
        return
    found = {name: posterior.attrs.get(name, "") for name in ("evaluations", "num_divergences", "rhat_max", "khat")}
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    numbers = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in found.values()]
    print(
        f"{label:<66}{spent:>9.1f}{draws:>7}"
        + "".join(f"{n:>{w}}" for n, w in zip(numbers, (11, 11, 9, 7), strict=True)),
        flush=True,
    )


def model() -> OperatorValuedGP:
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=OUTPUTS, rank=2)
    return OperatorValuedGP(kernel, features=features_of(kernel))


def features_of(kernel) -> ORFF:
    return ORFF(kernel, num_frequencies=FREQUENCIES, random_state=0)


def data(n: int) -> tuple[Tensor, Tensor]:
    """Four mixtures of two smooth functions of two inputs, with noise."""
    generator = torch.Generator().manual_seed(0)
    X = 6 * torch.rand(n, 2, generator=generator, dtype=torch.float64)
    latent = torch.stack([torch.sin(X[:, 0]) * torch.cos(X[:, 1]), torch.cos(X[:, 0] + X[:, 1])], -1)
    mixing = torch.randn(2, OUTPUTS, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, OUTPUTS, generator=generator, dtype=torch.float64)
    return X, latent @ mixing + 0.3 * noise
