"""Variational training on SARCOS: how soon the test log density is within 1 % of where it ends, ours and GPyTorch's LMC.

A module for `hyperparameters.py`; run by itself it does nothing. Both sides have the same rows, inducing points and batches,
and Matérn-5/2 kernels with ARD: ours an ICM of rank `LATENTS`, GPyTorch's an LMC with `LATENTS` processes, each with
separate lengthscales. Time that goes into watching the test density is not counted.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor

from ovkgp.inference import VariationalGP
from ovkgp.kernels import DecomposableKernel

LATENTS, INDUCING, BATCH, CLOSE = 3, 100, 256, 0.01


class Watch:
    """Test log densities an entry against the seconds of training alone."""

    def __init__(self):
        self.spent, self.began, self.trace = 0.0, time.perf_counter(), []

    def note(self, density) -> None:
        """Evaluate a density while the clock stands."""
        self.spent += time.perf_counter() - self.began
        self.trace.append((self.spent, density()))
        self.began = time.perf_counter()

    @property
    def final(self) -> float:
        return self.trace[-1][1]

    def reached(self, level: float) -> float:
        """The seconds after which the density stays at a level."""
        late = [i for i, (_, value) in enumerate(self.trace) if value < level]
        first = late[-1] + 1 if late else 0
        return self.trace[first][0] if first < len(self.trace) else math.inf


def variational(quick: bool = False, folder: str | None = None) -> None:
    """Both sides on the rows of SARCOS's test file."""
    path = None if folder is None else Path(folder) / "sarcos" / "sarcos_test.npz"
    if path is None or not path.exists():
        print("\nvariational: skipped; give --data FOLDER with sarcos/sarcos_test.npz, or set OVKGP_DATA")
        return
    X, Y, Xs, Ys = rows(path, 1000 if quick else 4000)
    epochs = 10 if quick else 60
    ours = Watch()
    train_ours(X, Y, epochs, lambda gp: ours.note(lambda: ours_density(gp, Xs, Ys)))
    theirs = Watch()
    train_theirs(X, Y, epochs, lambda model, noise: theirs.note(lambda: their_density(model, noise, Xs, Ys)))
    print(
        f"\nSARCOS, {len(X)} rows, 7 outputs, {LATENTS} processes, {INDUCING} inducing points, {epochs} epochs of {BATCH}"
    )
    print(f"{'':<12}{'final density':>15}{'seconds':>10}{'to within 1 %':>15}{'to the peer’s end':>19}")
    both = {"ours": (ours, theirs), "GPyTorch": (theirs, ours)}
    for label, (side, other) in both.items():
        close = side.reached(side.final - CLOSE * abs(side.final))
        print(f"{label:<12}{side.final:>15.4f}{side.spent:>10.1f}{close:>15.1f}{side.reached(other.final):>19.1f}")
    ratio = theirs.reached(theirs.final - CLOSE * abs(theirs.final)) / ours.reached(theirs.final)
    print(
        f"{'ratio':<12}{ratio:>58.1f} x   (time to within 1 % of the peer's end, theirs / ours to all of it)",
        flush=True,
    )


def rows(path: Path, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardised inputs and torques: training and test."""
    table = np.load(path)
    X, Y = (np.asarray(table[name], dtype=np.float64) for name in ("X", "Y"))
    order = np.random.default_rng(0).permutation(len(X))
    X, Y = ((t - t.mean(0)) / t.std(0) for t in (X, Y))
    return tuple(torch.from_numpy(t[i]) for i in (order[:most], order[4000:]) for t in (X, Y))


# --- ours -------------------------------------------------------------------------------------------------------------


def train_ours(X: Tensor, Y: Tensor, epochs: int, watch) -> None:
    kernel = DecomposableKernel(MaternKernel(2.5, ard_num_dims=X.shape[1]), num_outputs=Y.shape[1], rank=LATENTS)
    gp = VariationalGP(kernel, "gaussian", inducing=INDUCING)
    gp.fit(X, Y, batch_size=BATCH, epochs=epochs, random_state=0, callback=watch)


def ours_density(gp: VariationalGP, Xs: Tensor, Ys: Tensor) -> float:
    prediction = gp.predict(Xs)
    return gaussian(Ys, prediction.mean, prediction.variance + gp.noise.detach())


# --- the peer ---------------------------------------------------------------------------------------------------------


class LMC(gpytorch.models.ApproximateGP):
    """GPyTorch's linear model of coregionalization, as in its tutorial."""

    def __init__(self, points: Tensor, num_tasks: int):
        points = points.expand(LATENTS, -1, -1)
        weights = gpytorch.variational.CholeskyVariationalDistribution(points.shape[1], batch_shape=(LATENTS,))
        base = gpytorch.variational.VariationalStrategy(self, points, weights, learn_inducing_locations=True)
        super().__init__(
            gpytorch.variational.LMCVariationalStrategy(base, num_tasks=num_tasks, num_latents=LATENTS, latent_dim=-1)
        )
        batch = torch.Size([LATENTS])
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        self.covar_module = ScaleKernel(
            MaternKernel(2.5, ard_num_dims=points.shape[-1], batch_shape=batch), batch_shape=batch
        )
        self.double()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def train_theirs(X: Tensor, Y: Tensor, epochs: int, watch) -> None:
    torch.manual_seed(0)
    model = LMC(X[torch.randperm(len(X))[:INDUCING]].clone(), Y.shape[1])
    noise = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=Y.shape[1], rank=0, has_global_noise=False)
    noise.double()
    bound = gpytorch.mlls.VariationalELBO(noise, model, num_data=len(X))
    adam = torch.optim.Adam([*model.parameters(), *noise.parameters()], lr=0.02)
    for _ in range(epochs):
        model.train(), noise.train()
        for batch in torch.randperm(len(X)).split(BATCH):
            adam.zero_grad()
            loss = -bound(model(X[batch]), Y[batch])
            loss.backward()
            adam.step()
        watch(model, noise)


@torch.no_grad()
def their_density(model: LMC, noise, Xs: Tensor, Ys: Tensor) -> float:
    model.eval(), noise.eval()
    prediction = model(Xs)
    return gaussian(Ys, prediction.mean, prediction.variance + noise.task_noises)


def gaussian(Y: Tensor, mean: Tensor, variance: Tensor) -> float:
    """The mean log density of an entry."""
    return float(-0.5 * ((Y - mean).square() / variance + variance.log() + math.log(2 * math.pi)).mean())
