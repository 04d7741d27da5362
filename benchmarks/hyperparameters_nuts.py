"""NUTS over hyperparameters: effective samples a second, ours and GPyTorch's, on the same model, priors and data.

A module for `hyperparameters.py`; run by itself it does nothing. The effective samples are those of the slowest variable
(the bulk estimate of ArviZ), the seconds those of the whole run, warm-up included.
"""

from __future__ import annotations

import time

import arviz as az
import gpytorch
import numpy as np
import pyro
import torch
from gpytorch.kernels import MultitaskKernel, RBFKernel, ScaleKernel
from gpytorch.priors import LogNormalPrior, NormalPrior
from linear_operator.utils.errors import NanError, NotPSDError
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor

from ovkgp.inference import OperatorValuedGP, sample_hyperparameters
from ovkgp.inference.training.priors import get_variances, set_variances
from ovkgp.kernels import DecomposableKernel

LENGTHSCALE, OUTPUTSCALE, NOISE, DIAGONAL = (0.0, 1.0), (0.0, 1.0), (-3.0, 1.5), (-1.0, 1.5)
"""Location and scale of the logarithms, on both sides; loadings are standard normal."""
TARGET = "≥ 10 x"
MIN_DRAWS = 4
"""Fewer have no effective size."""


def one(quick: bool = False) -> None:
    """Lengthscale, outputscale and noise of one output at n = 30."""
    X, Y = data(30, 1)
    gp = OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero")
    with_priors(gp, gp.kernel.base_kernel)
    gp.kernel.register_prior("outputscale_prior", log_normal(*OUTPUTSCALE), "outputscale")
    draws = 200 if quick else 500
    compare("3 hyperparameters, n = 30", gp, X, Y, SingleGP(X, Y[:, 0]), Y[:, 0], draws, draws, limit=300.0)


def icm(quick: bool = False) -> None:
    """Lengthscale, a rank-two output matrix and noise of four outputs at n = 200."""
    X, Y = data(200, 4)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=4, rank=2), mean="zero")
    with_priors(gp, gp.kernel.base_kernel)
    matrix = gp.kernel.output_module
    matrix.register_prior("loadings_prior", NormalPrior(*numbers(0.0, 1.0)), "loadings")
    matrix.register_prior("diagonal_prior", log_normal(*DIAGONAL), "diagonal")
    draws, theirs = (200, 10) if quick else (500, 100)
    compare("ICM of rank 2, n = 200, p = 4", gp, X, Y, MultitaskGP(X, Y), Y, draws, theirs, limit=60 if quick else 600)


def compare(label: str, gp, X: Tensor, Y: Tensor, theirs, target: Tensor, draws: int, few: int, limit: float) -> None:
    """Print both sides; the peer stops after `few` draws or `limit` seconds."""
    print(f"\n{label}: NUTS, one chain")
    print(f"{'':<12}{'draws':>7}{'seconds':>10}{'gradients':>11}{'ms each':>9}{'least ESS':>11}{'ESS / s':>10}")
    start = time.perf_counter()
    found = sample_hyperparameters(
        *(gp, X, Y), draws=draws, tune=draws, chains=1, random_state=0, log_likelihood=False, posterior_predictive=False
    )
    spent = time.perf_counter() - start
    values = {name: found["posterior"][name].values for name in found["posterior"].data_vars}
    ours = row("ours", draws, spent, int(found["posterior"].attrs["evaluations"]), values)
    samples, spent, gradients = peer_draws(theirs, X, target, few, limit)
    if samples is None:
        each = 1e3 * spent / gradients
        print(
            f"{'GPyTorch':<12}fewer than {MIN_DRAWS} draws in {spent:.0f} s: {gradients} gradients, {each:.1f} ms each"
        )
        print(f"{'ratio':<12}more than {ours * spent / MIN_DRAWS:.0f} x   {TARGET}", flush=True)
        return
    peer = row("GPyTorch", len(next(iter(samples.values()))[0]), spent, gradients, samples)
    print(f"{'ratio':<12}{ours / peer:>58.1f} x   {TARGET}", flush=True)


def row(label: str, draws: int, spent: float, gradients: int, values: dict[str, np.ndarray]) -> float:
    """Print one side; its effective samples a second."""
    least = min(float(np.min(np.asarray(az.ess(az.convert_to_dataset({"x": v}))["x"]))) for v in values.values())
    each = 1e3 * spent / max(gradients, 1)
    print(
        f"{label:<12}{draws:>7}{spent:>10.1f}{gradients:>11}{each:>9.2f}{least:>11.1f}{least / spent:>10.2f}",
        flush=True,
    )
    return least / spent


# --- the peer ---------------------------------------------------------------------------------------------------------


class SingleGP(gpytorch.models.ExactGP):
    """One output with priors, as GPyTorch's fully Bayesian tutorial builds it."""

    def __init__(self, X: Tensor, y: Tensor):
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = ScaleKernel(RBFKernel())
        self.double()
        self.covar_module.base_kernel.register_prior("lengthscale_prior", log_normal(*LENGTHSCALE), "lengthscale")
        self.covar_module.register_prior("outputscale_prior", log_normal(*OUTPUTSCALE), "outputscale")
        self.likelihood.register_prior("noise_prior", log_normal(*NOISE), "noise")

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def values(self, samples: dict[str, Tensor]) -> dict[str, Tensor]:
        """Named values (draws, ...) from Pyro's sites."""
        return {name.rsplit(".", 1)[-1]: value for name, value in samples.items()}


class MultitaskGP(gpytorch.models.ExactGP):
    """An ICM with priors, with one noise variance a task."""

    def __init__(self, X: Tensor, Y: Tensor):
        p = Y.shape[1]
        super().__init__(
            X, Y, gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=p, rank=0, has_global_noise=False)
        )
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), num_tasks=p)
        self.covar_module = MultitaskKernel(RBFKernel(), num_tasks=p, rank=2)
        self.double()
        tasks = self.covar_module.task_covar_module
        self.covar_module.data_covar_module.register_prior("lengthscale_prior", log_normal(*LENGTHSCALE), "lengthscale")
        tasks.register_prior("loadings_prior", NormalPrior(*numbers(0.0, 1.0)), "covar_factor")
        tasks.register_prior("diagonal_prior", log_normal(*DIAGONAL), "var")
        self.likelihood.register_prior("noise_prior", log_normal(*NOISE), "task_noises")

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))

    def values(self, samples: dict[str, Tensor]) -> dict[str, Tensor]:
        """The output matrix instead of its loadings, whose signs mean nothing."""
        found = {name.rsplit(".", 1)[-1]: value for name, value in samples.items()}
        loadings, diagonal = found.pop("loadings_prior"), found.pop("diagonal_prior")
        return {**found, "output_matrix": loadings @ loadings.mT + torch.diag_embed(diagonal)}


class OutOfTime(Exception):
    """The peer has had its time."""


def peer_draws(
    model, X: Tensor, Y: Tensor, draws: int, limit: float
) -> tuple[dict[str, np.ndarray] | None, float, int]:
    """Named draws (1, draws, ...) of GPyTorch's integration with Pyro, the seconds and the number of gradients; None for
    draws that are too few to assess."""
    count, kept, start = [0], [], time.perf_counter()

    def joint(x, y):
        count[0] += 1
        with gpytorch.settings.fast_computations(False, False, False):
            sampled = model.pyro_sample_from_prior()
            try:
                density = sampled.likelihood(sampled(x)).log_prob(y)
            except (NanError, NotPSDError):  # a step too far would end the whole run: let it be rejected
                density = torch.tensor(-torch.inf, dtype=torch.float64)
            pyro.factor("y", density)
        return y

    def hook(kernel, params, stage, i):
        if stage.startswith("Sample"):
            kept.append({name: value.clone() for name, value in params.items()})
        if time.perf_counter() - start > limit:
            raise OutOfTime

    model.train()
    pyro.set_rng_seed(0)
    kernel = NUTS(joint, init_strategy=init_to_median)
    try:
        MCMC(kernel, num_samples=draws, warmup_steps=draws, disable_progbar=True, hook_fn=hook).run(X, Y)
    except OutOfTime:
        print(f"    (the peer was stopped after {limit:.0f} s)")
    spent = time.perf_counter() - start
    if len(kept) < MIN_DRAWS:
        return None, spent, count[0]
    raw = {name: torch.stack([draw[name] for draw in kept]) for name in kept[0]}
    sites = {name: kernel.transforms[name].inv(value) for name, value in raw.items()}
    return {name: value.detach().numpy()[None] for name, value in model.values(sites).items()}, spent, count[0]


# --- what both share --------------------------------------------------------------------------------------------------


def data(n: int, p: int) -> tuple[Tensor, Tensor]:
    """Shifted sines with a tenth of noise."""
    generator = torch.Generator().manual_seed(0)
    X = 5 * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return X, torch.sin(X + torch.arange(p)) + 0.1 * noise


def with_priors(gp: OperatorValuedGP, base) -> None:
    base.register_prior("lengthscale_prior", log_normal(*LENGTHSCALE), "lengthscale")
    gp.noise_model.register_prior("variances_prior", log_normal(*NOISE), get_variances, set_variances)


def log_normal(loc: float, scale: float) -> LogNormalPrior:
    return LogNormalPrior(*numbers(loc, scale))


def numbers(*values: float) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)
