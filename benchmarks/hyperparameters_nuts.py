"""NUTS over hyperparameters compared with GPyTorch and Pyro, NumPyro and nutpie, on the same model, priors and data.

A module for `hyperparameters.py`; run by itself it does nothing. The effective samples are those of the slowest variable
(the bulk estimate of ArviZ), the seconds those of the CPU for the whole run, warm-up included. NumPyro runs with the Python that
OVKGP_NUMPYRO names (`hyperparameters_numpyro.py`), nutpie on our density if it is installed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

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
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.training.priors import get_variances, set_variances
from ovkgp.kernels import DecomposableKernel

LENGTHSCALE, OUTPUTSCALE, NOISE, DIAGONAL = (0.0, 1.0), (0.0, 1.0), (-3.0, 1.5), (-1.0, 1.5)
"""Location and scale of the logarithms, on all sides; loadings and means are standard normal."""
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


def three(quick: bool = False) -> None:
    """Lengthscale, a rank-one output matrix, noise and mean of three outputs at n = 100: 13 hyperparameters."""
    X, Y = data(100, 3)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=3, rank=1), mean="constant")
    with_priors(gp, gp.kernel.base_kernel)
    with_matrix_priors(gp)
    gp.mean.register_prior("constant_prior", NormalPrior(*numbers(0.0, 1.0)), "constant")
    draws = 100 if quick else 500
    theirs = MultitaskGP(X, Y, rank=1, mean=gpytorch.means.ConstantMean)
    compare("ICM of rank 1, n = 100, p = 3", gp, X, Y, theirs, Y, draws, 10, limit=20 if quick else 120, rank=1)


def icm(quick: bool = False) -> None:
    """Lengthscale, a rank-two output matrix and noise of four outputs at n = 200."""
    X, Y = data(200, 4)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=4, rank=2), mean="zero")
    with_priors(gp, gp.kernel.base_kernel)
    with_matrix_priors(gp)
    draws, few = (200, 10) if quick else (500, 100)
    compare("ICM of rank 2, n = 200, p = 4", gp, X, Y, MultitaskGP(X, Y), Y, draws, few, limit=60 if quick else 600)


def compare(
    label, gp, X: Tensor, Y: Tensor, theirs, target: Tensor, draws: int, few: int, limit: float, rank=None
) -> None:
    """Print all sides; GPyTorch stops after `few` draws or `limit` seconds."""
    print(f"\n{label}: NUTS, one chain")
    print(f"{'':<20}{'draws':>7}{'CPU s':>10}{'gradients':>11}{'ms each':>9}{'least ESS':>11}{'ESS / s':>10}")
    for run, name in enumerate(("ours, first call", "ours")):
        begin = time.process_time()
        found = sample_hyperparameters(gp, X, Y, draws=draws, tune=draws, chains=1, random_state=run)
        spent = time.process_time() - begin
        values = {name: found["posterior"][name].values for name in found["posterior"].data_vars}
        ours = row(name, draws, spent, int(found["posterior"].attrs["evaluations"]), values)
    begin = time.process_time()
    for name in ("log_likelihood", "posterior_predictive", "prior"):
        found[name].load()
    print(
        f"{'':<20}reading the groups log_likelihood, posterior_predictive and prior: {time.process_time() - begin:.1f} s"
    )
    if rank is not None or Y.shape[1] == 1:
        numpyro_rows(X, Y, draws, rank, ours)
    nutpie_row(gp, X, Y, draws, ours)
    samples, spent, gradients = peer_draws(theirs, X, target, few, limit)
    if samples is None:
        each = 1e3 * spent / gradients
        print(
            f"{'GPyTorch':<20}fewer than {MIN_DRAWS} draws in {spent:.0f} s: {gradients} gradients, {each:.1f} ms each"
        )
        print(f"{'ratio':<20}more than {ours * spent / MIN_DRAWS:.0f} x   {TARGET}", flush=True)
        return
    peer = row("GPyTorch", len(next(iter(samples.values()))[0]), spent, gradients, samples)
    print(f"{'ratio':<20}{ours / peer:>58.1f} x   {TARGET}", flush=True)


def row(label: str, draws: int, spent: float, gradients: int | None, values: dict[str, np.ndarray]) -> float:
    """Print one side; its effective samples a second."""
    least = min(float(np.min(np.asarray(az.ess(az.convert_to_dataset({"x": v}))["x"]))) for v in values.values())
    each = f"{gradients:>11}{1e3 * spent / max(gradients, 1):>9.2f}" if gradients else f"{'':>20}"
    print(f"{label:<20}{draws:>7}{spent:>10.2f}{each}{least:>11.1f}{least / spent:>10.2f}", flush=True)
    return least / spent


def numpyro_rows(X: Tensor, Y: Tensor, draws: int, rank: int | None, ours: float) -> None:
    """Print NumPyro's first and second call, if OVKGP_NUMPYRO names a Python that has it."""
    python = os.environ.get("OVKGP_NUMPYRO")
    if python is None:
        print(f"{'NumPyro':<20}not run: OVKGP_NUMPYRO names no Python")
        return
    given = {"X": X.numpy(), "Y": Y.numpy(), "draws": draws} | ({} if rank is None else {"rank": rank})
    given |= {"lengthscale_prior": LENGTHSCALE, "outputscale_prior": OUTPUTSCALE}
    given |= {"noise_prior": NOISE, "diagonal_prior": DIAGONAL}
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("data.npz", "draws.npz")]
        np.savez(files[0], **given)
        subprocess.run([python, str(Path(__file__).with_name("hyperparameters_numpyro.py")), *files], check=True)
        found = dict(np.load(files[1]))
    for run, label in enumerate(("NumPyro, first call", "NumPyro")):
        seconds = float(found.pop(f"seconds_{run}"))
        values = {name: v[None] for name, v in found.items() if name.endswith(f"_{run}")}
        theirs = row(label, draws, seconds, None, values)
        print(f"{'ratio':<20}{ours / theirs:>58.2f} x", flush=True)


def nutpie_row(gp, X: Tensor, Y: Tensor, draws: int, ours: float) -> None:
    """Print nutpie on our density, if it is installed."""
    if find_spec("nutpie") is None:
        print(f"{'nutpie':<20}not installed")
        return
    from nutpie import sample
    from nutpie.compiled_pyfunc import from_pyfunc

    density = LogPosterior(gp, X, Y)
    size = len(density)
    model = from_pyfunc(
        size,
        lambda: density,
        lambda *args: lambda u: {"u": u},
        expanded_dtypes=[np.float64],
        expanded_shapes=[(size,)],
        expanded_names=["u"],
    )
    begin = time.process_time()
    found = sample(model, draws=draws, tune=draws, chains=1, seed=0, progress_bar=False)
    spent = time.process_time() - begin
    rows = [density.variables(u) for u in found["posterior"]["u"].values[0]]
    values = {name: np.stack([one[name] for one in rows])[None] for name in rows[0]}
    print(f"{'ratio':<20}{ours / row('nutpie', draws, spent, density.evaluations, values):>58.2f} x", flush=True)


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

    def __init__(self, X: Tensor, Y: Tensor, rank: int = 2, mean=gpytorch.means.ZeroMean):
        p = Y.shape[1]
        super().__init__(
            X, Y, gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=p, rank=0, has_global_noise=False)
        )
        self.mean_module = gpytorch.means.MultitaskMean(mean(), num_tasks=p)
        self.covar_module = MultitaskKernel(RBFKernel(), num_tasks=p, rank=rank)
        self.double()
        tasks = self.covar_module.task_covar_module
        self.covar_module.data_covar_module.register_prior("lengthscale_prior", log_normal(*LENGTHSCALE), "lengthscale")
        tasks.register_prior("loadings_prior", NormalPrior(*numbers(0.0, 1.0)), "covar_factor")
        tasks.register_prior("diagonal_prior", log_normal(*DIAGONAL), "var")
        self.likelihood.register_prior("noise_prior", log_normal(*NOISE), "task_noises")
        for part in self.mean_module.base_means if mean is gpytorch.means.ConstantMean else ():
            part.register_prior("mean_prior", NormalPrior(*numbers(0.0, 1.0)), "constant")

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
    count, kept, start = [0], [], time.process_time()

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
        if time.process_time() - start > limit:
            raise OutOfTime

    model.train()
    pyro.set_rng_seed(0)
    kernel = NUTS(joint, init_strategy=init_to_median)
    try:
        MCMC(kernel, num_samples=draws, warmup_steps=draws, disable_progbar=True, hook_fn=hook).run(X, Y)
    except OutOfTime:
        print(f"    (the peer was stopped after {limit:.0f} s)")
    spent = time.process_time() - start
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


def with_matrix_priors(gp: OperatorValuedGP) -> None:
    matrix = gp.kernel.output_module
    matrix.register_prior("loadings_prior", NormalPrior(*numbers(0.0, 1.0)), "loadings")
    matrix.register_prior("diagonal_prior", log_normal(*DIAGONAL), "diagonal")


def log_normal(loc: float, scale: float) -> LogNormalPrior:
    return LogNormalPrior(*numbers(loc, scale))


def numbers(*values: float) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)
