"""Series: exact evidence and gradient in time proportional to the number of stamps, beside dense algebra and celerite2.

    python benchmarks/series.py [--quick] [--only NAME]

celerite2 is compared where it is installed; it has one output and Matérn-3/2 as an approximation by two exponentials.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from timing import memory_growth, run_sections, seconds

from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import DecomposableKernel

try:
    import celerite2
    from celerite2 import terms
except ImportError:
    celerite2 = None


def draw(n: int, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw irregular stamps, ten per lengthscale, and p noisy outputs of which a tenth is missing."""
    generator = torch.Generator().manual_seed(0)
    t = (torch.rand(n, generator=generator, dtype=torch.float64) * n / 10).sort().values
    Y = torch.sin(t)[:, None] + 0.1 * torch.randn(n, p, generator=generator, dtype=torch.float64)
    Y[torch.rand(n, p, generator=generator) < 0.1] = math.nan if p > 1 else 0.0
    return t[:, None], Y


def step(gp: OperatorValuedGP, X: torch.Tensor, Y: torch.Tensor) -> None:
    """Compute the evidence and its gradient."""
    gp.zero_grad()
    gp.log_evidence(X, Y).backward()


def scaling(quick: bool) -> None:
    """CPU seconds and memory of an evidence with gradient of 4 outputs, by the number of stamps, and their slope."""
    print("\nIrregular stamps, 4 outputs, 10 % missing, Matérn-5/2 ICM: evidence and gradient")
    sizes = (1000, 4000, 16_000) if quick else (1000, 10_000, 30_000, 100_000)
    spent = []
    for n in sizes:
        X, Y = draw(n, 4)
        gp = OperatorValuedGP(DecomposableKernel(MaternKernel(nu=2.5), num_outputs=4, rank=2), strategy="state_space")
        step(gp, *draw(100, 4))
        start = time.process_time()
        step(gp, X, Y)
        spent.append(time.process_time() - start)
        growth = memory_growth(lambda gp=gp, X=X, Y=Y: step(gp, X, Y))
        print(f"    n = {n:>7}: {spent[-1]:8.3f} CPU s, {growth / 1e9:.2f} GB", flush=True)
    slope = np.polyfit(np.log(sizes[1:]), np.log(spent[1:]), 1)[0]
    print(f"    slope of log time in log n from {sizes[1]} stamps: {slope:.2f} (at 10⁵ stamps: < 20 s, < 2 GB)")


def peers(quick: bool) -> None:
    """Evidence and gradient of one output beside the dense strategy, and the evidence alone beside celerite2."""
    print("\nOne output, complete, Matérn-3/2")
    n = 1000 if quick else 3000
    X, Y = draw(n, 1)
    models = {
        name: OperatorValuedGP(ScaleKernel(MaternKernel(nu=1.5)), strategy=name) for name in ("state_space", "dense")
    }
    ours, dense = seconds(*(lambda gp=gp: step(gp, X, Y) for gp in models.values()), repeats=3)
    print(f"    n = {n}, evidence and gradient: {ours:.3f} s, dense {dense:.3f} s, ratio {dense / ours:.1f}")
    if celerite2 is None:
        print("    celerite2 is not installed")
        return
    n = 10_000 if quick else 100_000
    X, Y = draw(n, 1)
    t, y = X[:, 0].numpy(), Y[:, 0].numpy()

    def theirs() -> float:
        gp = celerite2.GaussianProcess(terms.Matern32Term(sigma=1.0, rho=1.0))
        gp.compute(t, diag=0.01)
        return gp.log_likelihood(y)

    kernel = ScaleKernel(MaternKernel(nu=1.5)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.0, 1.0
    gp = OperatorValuedGP(kernel, mean="zero", noise=0.01, strategy="state_space")
    with torch.no_grad():
        ours, other = seconds(lambda: gp.log_evidence(X, Y), theirs, repeats=3)
        gap = float(gp.log_evidence(X, Y)) - theirs()
    print(
        f"    n = {n}, evidence alone: {ours:.3f} s, celerite2 {other:.3f} s, ratio {other / ours:.2f}; values differ by {gap:.1e}"
    )


if __name__ == "__main__":
    run_sections({"scaling": scaling, "peers": peers}, __doc__.splitlines()[0])
