"""One objective, ours beside L-BFGS on the nm × nm Gram matrix, and beside the authors' public `torch_itl` where it is installed.

The peer takes the double representer theorem literally (LT-83, LT-84): coefficients α (n m), plain pinball loss, strong Wolfe, float64.
A module for `itl_speed.py`; run by itself it does nothing.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from claims import Claim, claim, heading, infeasible, note, row
from timing import timed

from ovkgp import InfiniteQuantileRegressor
from ovkgp.losses import TaskMeasure

LENGTHSCALE, TASK_LENGTHSCALE, LAM = 2.0, 0.3, 1e-4
INNER, PUBLIC_EPOCHS = 20, 2
"""Iterations of an epoch of torch's L-BFGS; and the most epochs of `torch_itl`, which is slow."""


def data(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standardised rows in five dimensions, with noise that varies."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num_rows, 5))
    noise = (0.3 + 0.3 * abs(X[:, 0])) * rng.standard_normal(num_rows)
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + X[:, 2] * X[:, 3] + noise
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


def beside_the_gram(num_rows: int, num_tasks: int, epochs: int) -> list[Claim]:
    """Run both on the same data, nodes and kernels; the other implementations run `epochs` epochs."""
    X, y = data(num_rows)
    nodes = torch.linspace(0.01, 0.99, num_tasks, dtype=torch.float64)
    heading(
        f"one objective, n = {num_rows}, m = {num_tasks}, λ = {LAM:g}, RBF", "", "seconds", "objective", "slower by"
    )
    spent, model = timed(lambda: _ours(X, y, nodes))
    values, square = model.function_(torch.from_numpy(X), nodes), model.function_.norm() ** 2
    ours = objective(values, torch.from_numpy(y), nodes, square).item()
    row("ours", spent, f"{ours:.6f}", "1")
    if 8 * (num_rows * num_tasks) ** 2 > 0.7 * available_memory():
        row("Gram, L-BFGS", infeasible(num_rows, num_tasks), "", "")
        return []
    seconds, theirs = timed(lambda: _gram_lbfgs(X, y, nodes, epochs))
    row("Gram, L-BFGS", seconds, f"{theirs:.6f}", f"{seconds / spent:.0f}")
    note(f"at most {epochs} epochs of {INNER} iterations")
    if importlib.util.find_spec("torch_itl") and num_rows * num_tasks <= 5000:
        public, reached = timed(lambda: _public(X, y, nodes, PUBLIC_EPOCHS))
        row("torch_itl", public, f"{reached:.6f}", f"{public / spent:.0f}")
        note(f"{PUBLIC_EPOCHS} epochs")
    name = f"n = {num_rows}, m = {num_tasks}"
    return [
        claim(f"{name}: at least 20 times faster than L-BFGS on the Gram matrix", seconds >= 20 * spent),
        claim(f"{name}: at an objective that is at least as low", ours <= theirs),
    ]


def _ours(X: np.ndarray, y: np.ndarray, nodes: torch.Tensor) -> InfiniteQuantileRegressor:
    """The estimator without intercept and prior mean, for the objective of the paper."""
    return InfiniteQuantileRegressor(
        lengthscale=LENGTHSCALE,
        task_lengthscale=TASK_LENGTHSCALE,
        lam=LAM,
        measure=TaskMeasure(nodes),
        noncrossing=None,
        calibrate=False,
        prior_mean="zero",
        intercept=False,
    ).fit(X, y)


def objective(values: torch.Tensor, y: torch.Tensor, nodes: torch.Tensor, square: torch.Tensor | float) -> torch.Tensor:
    """(1/nm) Σ_ij ρ_θj(y_i − h_ij) + (λ/2) ‖h‖² for values h (n, m) and ‖h‖² (LT-84)."""
    r = y[:, None] - values
    return torch.maximum(nodes * r, (nodes - 1) * r).mean() + LAM / 2 * square


def _gram_lbfgs(X: np.ndarray, y: np.ndarray, nodes: torch.Tensor, epochs: int) -> float:
    """The double representer theorem taken literally: α (nm,), zero at first, and K made once (LT-83, LT-84)."""
    K, y = gram(X, nodes), torch.from_numpy(y)
    alpha = torch.zeros(len(K), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([alpha], max_iter=INNER, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        values = K @ alpha
        loss = objective(values.view(len(y), -1), y, nodes, alpha @ values)
        loss.backward()
        return loss

    found = math.inf
    for _ in range(epochs):
        before, found = found, optimiser.step(closure).item()
        if abs(before - found) <= 1e-7 * found:
            break
    return closure().item()


def gram(X: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
    """K (nm, nm) of the product of the two kernels."""
    x = torch.from_numpy(X)
    inputs = torch.exp(-torch.cdist(x, x).square() / (2 * LENGTHSCALE**2))
    return torch.kron(inputs, torch.exp(-(nodes[:, None] - nodes).square() / (2 * TASK_LENGTHSCALE**2)))


def _public(X: np.ndarray, y: np.ndarray, nodes: torch.Tensor, epochs: int) -> float:
    """The authors' package, which makes the Gram matrix again at each evaluation."""
    from torch_itl.estimator import IQR
    from torch_itl.kernel import Gaussian
    from torch_itl.model import DecomposableIdentity
    from torch_itl.sampler import LinearSampler

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        kernels = (Gaussian(1 / (2 * scale**2)) for scale in (LENGTHSCALE, TASK_LENGTHSCALE))
        sampler = LinearSampler(0.0, 1.0)
        sampler.m = len(nodes)
        model = IQR(DecomposableIdentity(*kernels, 1), LAM, 0.0, sampler)
        x, y = torch.from_numpy(X), torch.from_numpy(y)
        model.fit_alpha_gd(x, y, n_epochs=epochs, line_search_fn="strong_wolfe")
        return model.objective(x, y, model.model.thetas).item()
    finally:
        torch.set_default_dtype(before)


def available_memory() -> float:
    """Return the available memory in bytes; infinite on systems other than Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
