"""Evidence, training, statistics and predictions against GPyTorch's, in one run and on one thread.

    python benchmarks/posteriors.py [--quick] [--only NAME] [--data FOLDER]

Prints ours, GPyTorch's, the ratio and the target. Sections by name: `features`, evidence and gradient by random features
and their growth with n; `exact`, evidence, gradient and training of an ICM; `statistics`, a pass over many rows against
the bare loop, and its memory; `prediction`, mean and std of an exact model at many points; `missing`, curves with
missing values against the same curves complete, and against dense algebra (both ours, in CPU seconds); `data`, errors, log densities
and coverage on SARCOS and Jura, where their folder is given (or in OVKGP_DATA). Both sides work in float64.
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, MultitaskKernel, RBFKernel, RFFKernel, ScaleKernel
from scipy.stats import norm
from timing import line, memory_growth, peak, run_sections, seconds, timed
from torch import Tensor

from ovkgp import GPRegressor
from ovkgp.features import ORFF
from ovkgp.features.operators import FEATURE_CHUNK_ENTRIES
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel

# --- the two sides ----------------------------------------------------------------------------------------------------


class MultitaskGP(gpytorch.models.ExactGP):
    """GPyTorch's multitask model as its tutorial builds it: constant means, and noise with one variance a task."""

    def __init__(self, X: Tensor, Y: Tensor, base_kernel: Kernel, rank: int = 2):
        p = Y.shape[1]
        super().__init__(X, Y, gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=p, rank=0))
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=p)
        self.covar_module = MultitaskKernel(base_kernel, num_tasks=p, rank=rank)
        self.double()

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


class SingleGP(gpytorch.models.ExactGP):
    """GPyTorch's model of one output."""

    def __init__(self, X: Tensor, y: Tensor, base_kernel: Kernel):
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), ScaleKernel(base_kernel)
        self.double()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def their_evidence(model: gpytorch.models.ExactGP) -> Tensor:
    """log p(Y), differentiable; GPyTorch's own is divided by the number of observations."""
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    (X,), Y = model.train_inputs, model.train_targets
    return mll(model(X), Y) * Y.numel()


def their_step(model: gpytorch.models.ExactGP) -> None:
    model.zero_grad()
    their_evidence(model).backward()


def our_step(gp: OperatorValuedGP, X: Tensor, Y: Tensor) -> None:
    gp.zero_grad()
    gp.log_evidence(X, Y).backward()


@torch.no_grad()
def transplant(gp: OperatorValuedGP, model: MultitaskGP) -> None:
    """Give GPyTorch's model the hyperparameters of ours, and see that both then have the same evidence."""
    tasks, noise = model.covar_module.task_covar_module, model.likelihood
    tasks.covar_factor.copy_(gp.kernel.output_module.loadings)
    tasks.var = gp.kernel.output_module.diagonal
    model.covar_module.data_covar_module.lengthscale = gp.kernel.base_kernel.lengthscale
    for mean, constant in zip(model.mean_module.base_means, gp.mean.constant, strict=True):
        mean.constant = constant
    noise.noise = gp.noise.min() / 2  # the noise of a task is the sum of two there
    noise.task_noises = gp.noise - noise.noise
    (X,), Y = model.train_inputs, model.train_targets
    torch.testing.assert_close(their_evidence(model), gp.log_evidence(X, Y), rtol=1e-7, atol=1e-5)


def icm(p: int, base_kernel: Kernel, features: int | None = None) -> OperatorValuedGP:
    """Our model with GPyTorch's parametrization: k(x, z) (W Wᵀ + diag v), W (p, 2), constant means, noise per output."""
    base_kernel.lengthscale = 0.3
    kernel = DecomposableKernel(base_kernel, num_outputs=p, rank=2).double()
    features = None if features is None else ORFF(kernel, features, random_state=0)
    gp = OperatorValuedGP(kernel, features=features)
    gp.noise_model.set(torch.full((p,), 0.05, dtype=torch.float64))
    return gp


@torch.no_grad()
def draw(gp: OperatorValuedGP, n: int, d: int) -> tuple[Tensor, Tensor]:
    """Inputs in the unit cube, and outputs drawn from the model itself."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    scores, errors = torch.randn(2, n, gp.num_outputs, generator=generator, dtype=torch.float64)
    K = gp.kernel.base_kernel(X).to_dense() + 1e-8 * torch.eye(n, dtype=torch.float64)
    factor = gp.kernel.output_module.factor()
    return X, torch.linalg.cholesky(K) @ scores[:, : factor.shape[1]] @ factor.mT + errors * gp.noise.sqrt()


def heading(title: str, theirs: str) -> None:
    print(f"\n{title:<52}{'ours':>11}{theirs:>16}{'theirs / ours':>14}", flush=True)


# --- evidence by random features --------------------------------------------------------------------------------------


def features(quick: bool) -> None:
    n, d, p, D = (400, 4, 3, 50) if quick else (1600, 4, 3, 100)
    heading(f"random features, n = {n}, p = {p}, D = {D}", "RFFKernel")
    gp = icm(p, RBFKernel(ard_num_dims=d), features=D)
    X, Y = draw(gp, n, d)
    model = MultitaskGP(X, Y, RFFKernel(num_samples=D, num_dims=d, ard_num_dims=d))
    scaled = gp.features.frequencies * gp.kernel.base_kernel.lengthscale
    model.covar_module.data_covar_module.randn_weights = scaled.detach().mT  # the same frequencies
    transplant(gp, model)
    times = seconds(partial(our_step, gp, X, Y), partial(their_step, model), repeats=3)
    line("evidence and gradient", *times, "want >= 30")
    sizes = [n, 10 * n, 100 * n]
    many = torch.rand(sizes[-1], d, dtype=torch.float64), torch.randn(sizes[-1], p, dtype=torch.float64)
    growth = seconds(*(partial(our_step, gp, many[0][:size], many[1][:size]) for size in sizes), repeats=5)
    for before, after, size in zip(growth, growth[1:], sizes[1:], strict=False):
        print(
            f"ours, n = {size:<42}{after * 1e3:>11.2f} ms{after / before:>25.2f} x   of a tenth of the rows; want about 10"
        )


# --- evidence and training of an exact model --------------------------------------------------------------------------


def exact(quick: bool) -> None:
    n, p, d = (300, 4, 2) if quick else (1000, 10, 2)
    heading(f"exact ICM, n = {n}, p = {p}, rank 2", "MultitaskKernel")
    gp = icm(p, RBFKernel())
    X, Y = draw(gp, n, d)
    model = MultitaskGP(X, Y, RBFKernel())
    transplant(gp, model)
    K = gp.kernel.base_kernel(X).to_dense().detach()
    works = partial(our_step, gp, X, Y), partial(their_step, model), partial(torch.linalg.eigh, K)
    ours, theirs, bare = seconds(*works, repeats=5)
    line("evidence and gradient", ours, theirs, "want >= 1.4")
    line("the same, and one bare torch.linalg.eigh", ours, bare, f"ours / eigh {ours / bare:.2f}, want <= 1.8")
    training(X, Y)


def training(X: Tensor, Y: Tensor) -> None:
    """Train from the default initial values to the same evidence: ovkgp until convergence, GPyTorch's Adam until it is reached."""
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=Y.shape[1], rank=2))
    our_time, _ = timed(lambda: gp.fit(X, Y, random_state=0))
    reached = gp.log_evidence(X, Y).item()
    torch.manual_seed(0)
    model = MultitaskGP(X, Y, RBFKernel())
    goal = reached - max(0.1, 1e-4 * abs(reached))
    their_time, (best, steps) = timed(lambda: adam(model, 1000, goal))
    line("training", our_time, their_time, "want >= 5", "s ", 1.0)
    print(
        f"    log evidence: ours {reached:.2f}; Adam(lr=0.1) {best:.2f} after {steps} steps (to {goal:.2f}, or 1000 steps)"
    )


def adam(model: gpytorch.models.ExactGP, steps: int, goal: float = math.inf) -> tuple[float, int]:
    """Train as GPyTorch's tutorials do, and stop once the evidence is at the goal; the best evidence and the steps."""
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    best = -math.inf
    for step in range(steps):
        optimiser.zero_grad()
        evidence = their_evidence(model)
        best = max(best, evidence.item())
        if best >= goal:
            return best, step
        (-evidence / model.train_targets.numel()).backward()
        optimiser.step()
    return best, steps


# --- statistics in one pass -------------------------------------------------------------------------------------------


def bare_gram(X: Tensor, frequencies: Tensor) -> np.ndarray:
    """Compute the minimum work of a pass: cosines and sines in one buffer, chunk by chunk, and their products."""
    D = len(frequencies)
    chunk = FEATURE_CHUNK_ENTRIES // (2 * D)
    buffer, total = torch.empty(chunk, 2 * D, dtype=torch.float64), np.zeros((2 * D, 2 * D))
    for part in X.split(chunk):
        rows, angles = buffer[: len(part)], part.double() @ frequencies.mT
        torch.cos(angles, out=rows[:, :D])
        torch.sin(angles, out=rows[:, D:])
        scalar_features = rows.numpy()
        total += scalar_features.T @ scalar_features
    return total


@torch.no_grad()
def statistics(quick: bool) -> None:
    n, d, p, D = (50_000, 8, 3, 500) if quick else (1_000_000, 8, 3, 500)
    heading(f"statistics, n = {n}, d = {d}, p = {p}, D = {D}, float32", "bare loop")
    gp = icm(p, RBFKernel(ard_num_dims=d), features=D)
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.rand(n, size, generator=generator) for size in (d, p))
    frequencies = gp.features.frequencies
    few = gp.statistics(X[:5000], Y[:5000]).gram[: 2 * D, : 2 * D].numpy()
    np.testing.assert_allclose(few, bare_gram(X[:5000], frequencies), rtol=1e-9, atol=1e-9)
    ours, bare = seconds(lambda: gp.statistics(X, Y), lambda: bare_gram(X, frequencies), repeats=2)
    line("one pass", ours, bare, f"ours / bare {ours / bare:.2f}, want <= 1.4", "s ", 1.0)
    tenth = n // 10
    small, large = (memory_growth(partial(gp.statistics, X[:rows], Y[:rows])) for rows in (tenth, n))
    print(
        f"{'peak memory of ours above the data':<52}{large / 1e6:>11.1f} MB   and {small / 1e6:.1f} MB at n = {tenth}; want equal"
    )


# --- prediction at many points ----------------------------------------------------------------------------------------


@torch.no_grad()
def prediction(quick: bool) -> None:
    n, p, d, m, few = (300, 4, 2, 2000, 100) if quick else (2000, 4, 2, 100_000, 200)
    heading(f"mean and std at {m} points, exact ICM, n = {n}, p = {p}", "GPyTorch")
    gp = icm(p, RBFKernel())
    X, Y = draw(gp, n, d)
    posterior, model = gp.condition(X, Y), MultitaskGP(X, Y, RBFKernel())
    transplant(gp, model)
    model.eval()
    Xs = torch.rand(m, d, dtype=torch.float64)
    check(posterior.predict(Xs[:10]), model(Xs[:10]))  # and fills GPyTorch's caches
    times = timed(lambda: posterior.predict(Xs))[0], timed(lambda: moments(model(Xs[:few])))[0]
    memory = memory_growth(lambda: posterior.predict(Xs)), memory_growth(lambda: moments(model(Xs[:few])))
    line(f"seconds (GPyTorch: {few} points x {m // few}, see below)", times[0], times[1] * m / few, "", "s ", 1.0)
    print(f"{'peak memory above the model':<52}{memory[0] / 1e6:>11.1f} MB   want < 500 MB")
    print(
        f"    GPyTorch solves for all points at once: {8e-9 * n * p * m * p:.1f} GB in float64 at {m} points. Measured on {few}: "
        f"{times[1]:.2f} s and {memory[1] / 1e6:.0f} MB; its seconds above assume a loop over as many at a time."
    )


def missing(quick: bool) -> None:
    """Training of k_X ⊗ k_Θ on complete curves and with missing values, evidence with gradient, memory and accuracy."""
    print(
        "\nmissing values: CPU seconds of a fit and of one evidence with its gradient; dense: the same on observed entries"
    )
    print(
        "peak: live tensors of one evidence with gradient, in units of nm + n² + m² + k² numbers; errors: against dense"
    )
    names = (
        "complete fit",
        "missing fit",
        "ratio",
        "complete",
        "missing",
        "ratio",
        "dense",
        "peak",
        "err. value",
        "err. grad",
    )
    print(f"{'curves':<34}{'k':>6}" + "".join(f"{name:>13}" for name in names))
    for label, n, m, noise in (
        ("DTI-like, 70 × 55, 161 missing", 70, 55, "shared"),
        ("cut ends, 60 × 52", 60, 52, "shared"),
        (
            "cut ends, 60 × 52, full noise",
            60,
            52,
            torch.from_numpy(grid_covariance(52, 0.3) * 0.02 + 0.04 * np.eye(52)),
        ),
        ("300 × 200, 5 % missing", 300, 200, "shared"),
    ):
        if quick and n > 100:
            continue
        X, complete, observed = curves(n, m, 161 if n == 70 else n * m // 20 if n == 300 else None)
        Y = torch.where(observed, complete, torch.nan)
        sides = {"kronecker": complete, "kronecker_missing": Y}
        fits = [
            cpu(partial(curve_model(m, noise, name).fit, X, table, random_state=0)) for name, table in sides.items()
        ]
        models = [curve_model(m, noise, name).initialize(X, table) for name, table in sides.items()]
        steps = [partial(our_step, gp, X, table) for gp, table in zip(models, sides.values(), strict=True)]
        times = [
            min(times)
            for times in zip(*([cpu(step) for step in steps] for _ in range(2 if n > 100 else 5)), strict=True)
        ]
        k = int((~observed).sum())
        size = peak(steps[1]) / (8 * (n * m + n**2 + m**2 + k**2))
        found = [*fits, fits[1] / fits[0], *times, times[1] / times[0]]
        if n > 100:
            others = [math.nan, size, math.nan, math.nan]
        else:
            dense = curve_model(m, noise, "dense").initialize(X, Y)
            spent = cpu(partial(our_step, dense, X, Y))
            others = [spent, size, *evidence_errors(models[1], dense, X, Y)]
        cells = "".join(f"{value:>13.4g}" for value in (*found, *others))
        print(f"{label:<34}{k:>6}{cells}", flush=True)
    accuracy()


def accuracy() -> None:
    """Errors against dense algebra for a Gaussian k_Θ on a fine grid, singular to rounding, and little noise."""
    print(
        "\nsmooth k_Θ, 30 × 40, 12 % missing: relative difference to dense algebra (largest entry), by noise variance"
    )
    print(
        f"{'noise':>10}{'condition':>12}{'evidence':>12}{'gradient':>12}{'mean':>12}{'variance':>12}{'leave-one-out':>15}"
    )
    X, complete, observed = curves(30, 40, 144)
    Y = torch.where(observed, complete, torch.nan)
    for noise in (1e-1, 1e-2, 1e-4, 1e-6, 1e-8):
        models = [curve_model(40, noise, name, smooth=True) for name in ("kronecker_missing", "dense")]
        errors = evidence_errors(*models, X, Y)
        ours, dense = (gp.condition(X, Y) for gp in models)
        predictions = [posterior.predict(X[:10] + 0.01) for posterior in (ours, dense)]
        held_out = [gp.leave_one_out(X, Y).std for gp in models]
        found = [
            relative(*(p.mean for p in predictions)),
            relative(*(p.variance for p in predictions)),
            relative(*held_out),
        ]
        chol = dense.solver.chol
        condition = torch.linalg.cond(chol).item() ** 2
        print(
            f"{noise:>10.0e}{condition:>12.1e}"
            + "".join(f"{e:>12.1e}" for e in (*errors, *found[:2]))
            + f"{found[2]:>15.1e}"
        )


def curves(n: int, m: int, num_missing: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Draw curves (n, m) over inputs (n, 2), and a mask of observed values; None cuts one end of a third of the curves."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 2))
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / 0.4**2)
    roots = [np.linalg.cholesky(matrix + 1e-8 * np.eye(len(matrix))) for matrix in (K, grid_covariance(m, 0.15))]
    Y = roots[0] @ rng.normal(size=(n, m)) @ roots[1].T + 0.2 * rng.normal(size=(n, m))
    observed = np.ones((n, m), dtype=bool)
    if num_missing is not None:
        observed.flat[rng.permutation(n * m)[:num_missing]] = False
    else:
        for i in rng.permutation(n)[: n // 3]:
            cut = int(rng.uniform(0.1, 0.3) * m)
            observed[i, slice(cut) if rng.uniform() < 0.5 else slice(m - cut, m)] = False
    return torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(observed)


def grid_covariance(m: int, lengthscale: float) -> np.ndarray:
    grid = np.linspace(0, 1, m)
    return np.exp(-0.5 * (grid[:, None] - grid) ** 2 / lengthscale**2)


def curve_model(m: int, noise, strategy: str, smooth: bool = False) -> OperatorValuedGP:
    tasks = torch.linspace(0, 1, m, dtype=torch.float64).unsqueeze(-1)
    if not smooth:
        kernel = FunctionValuedKernel(ScaleKernel(MaternKernel(2.5, ard_num_dims=2)), MaternKernel(2.5), tasks)
        return OperatorValuedGP(kernel, noise=noise, strategy=strategy)
    kernel = FunctionValuedKernel(ScaleKernel(RBFKernel()), RBFKernel(), tasks).double()
    kernel.input_kernel.base_kernel.lengthscale, kernel.task_kernel.lengthscale = 0.4, 0.2
    return OperatorValuedGP(kernel, noise=noise, strategy=strategy)


def evidence_errors(ours: OperatorValuedGP, dense: OperatorValuedGP, X: Tensor, Y: Tensor) -> tuple[float, float]:
    """Relative differences of the evidence and of its gradient between two models with equal hyperparameters."""
    values, gradients = [], []
    for gp in (ours, dense):
        gp.zero_grad()
        value = gp.log_evidence(X, Y)
        value.backward()
        values.append(value.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in gp.parameters() if p.grad is not None]))
    return relative(*values), relative(*gradients)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference relative to the largest entry."""
    return ((ours - theirs).abs().nan_to_num().max() / theirs.abs().nan_to_num().max()).item()


def cpu(work) -> float:
    """Measure the CPU seconds of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def moments(distribution) -> tuple[Tensor, Tensor]:
    return distribution.mean, distribution.stddev


def check(ours, theirs) -> None:
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.std, theirs.stddev, rtol=1e-4, atol=1e-6)


# --- real data --------------------------------------------------------------------------------------------------------


def regressor(kernel: str, X, Y, Xs):
    return GPRegressor(kernel=kernel, random_state=0).fit(X, Y).predict(Xs, return_std=True)


def standardised(X, Y, Xs, work):
    """Mean and std of `work` on standardised tensors, back in the units of Y."""
    center, scale = np.nanmean(Y, 0), np.nanstd(Y, 0)
    center_x, scale_x = X.mean(0), X.std(0)
    mean, std = work(
        *map(torch.from_numpy, ((X - center_x) / scale_x, (Y - center) / scale, (Xs - center_x) / scale_x))
    )
    return center + scale * mean.numpy(), scale * std.numpy()


def gpytorch_multitask(X: Tensor, Y: Tensor, Xs: Tensor):
    torch.manual_seed(0)
    model = MultitaskGP(X, Y, MaternKernel(nu=2.5, ard_num_dims=X.shape[1]))
    with gpytorch.settings.observation_nan_policy("mask" if Y.isnan().any() else "ignore"):
        return trained_prediction(model, Xs)


def gpytorch_independent(X: Tensor, Y: Tensor, Xs: Tensor):
    parts = []
    for y in Y.unbind(1):
        observed = ~y.isnan()
        model = SingleGP(X[observed], y[observed], MaternKernel(nu=2.5, ard_num_dims=X.shape[1]))
        with gpytorch.settings.fast_computations(False, False, False):  # Cholesky, as exact as ours
            parts.append(trained_prediction(model, Xs))
    return tuple(torch.stack(part, 1) for part in zip(*parts, strict=True))


def trained_prediction(model: gpytorch.models.ExactGP, Xs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of new observations after 100 steps of Adam, 200 points at a time."""
    adam(model, 100)
    model.eval()
    with torch.no_grad():
        parts = [moments(model.likelihood(model(part))) for part in Xs.split(200)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


MODELS = {
    "GPRegressor()": partial(regressor, "auto"),
    'GPRegressor(kernel="decomposable")': partial(regressor, "decomposable"),
    'GPRegressor(kernel="independent")': partial(regressor, "independent"),
    "GPyTorch multitask, Adam": partial(standardised, work=gpytorch_multitask),
    "GPyTorch independent, Adam": partial(standardised, work=gpytorch_independent),
}


SPLITS = (0, 1, 2)
"""Seeds of the splits of SARCOS."""


def data(quick: bool, folder: str | None = None) -> None:
    if folder is None:
        print("\nreal data: skipped; give --data FOLDER or set OVKGP_DATA")
        return
    print(f"\n{'real data':<30}{'model':<38}{'error':>10}{'log density':>13}{'coverage':>10}{'seconds':>9}")
    sarcos(Path(folder), quick)
    for logs in (False, True):
        jura(Path(folder), logs)
    print(
        "    error: SMSE averaged over the torques (SARCOS), MAE of Cd in mg/kg (Jura; of the median where logs are modelled)."
    )
    print(
        "    log density of a new observation in its raw units, mean over entries; coverage of its 90 % interval, want 0.90."
    )


def sarcos(folder: Path, quick: bool) -> None:
    """21 inputs, 7 torques; splits of the test file, means over the splits."""
    with np.load(folder / "sarcos" / "sarcos_test.npz", allow_pickle=False) as arrays:
        X, Y = arrays["X"], arrays["Y"]
    rows, seeds = (200, SPLITS[:1]) if quick else (2000, SPLITS)
    for name, model in MODELS.items():
        results = []
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(X))
            train, test = order[:rows], order[2000:]
            spent, (mean, std) = timed(partial(model, X[train], Y[train], X[test]))
            error = np.mean(np.mean((Y[test] - mean) ** 2, 0) / Y[test].var(0))
            results.append((error, *density_and_coverage(Y[test], mean, std), spent))
        row(f"SARCOS, {rows} rows, {len(seeds)} split(s)", name, results)


def jura(folder: Path, logs: bool) -> None:
    """Cd at the validation sites, given Ni and Zn there and all three elsewhere; inputs are the coordinates."""
    known, asked = (read_csv(folder / "jura" / f"{part}.csv") for part in ("prediction", "validation"))
    table = {name: np.concatenate([known[name], asked[name]]) for name in known}
    X = np.column_stack([table["xloc"], table["yloc"]])
    Y = np.column_stack([table[name] for name in ("Cd", "Ni", "Zn")])
    Y[len(known["Cd"]) :, 0] = np.nan
    truth = asked["Cd"]
    for name, model in MODELS.items():
        spent, (mean, std) = timed(partial(model, X, np.log(Y) if logs else Y, X[len(known["Cd"]) :]))
        mean, std = mean[:, 0], std[:, 0]
        error = np.mean(np.abs(truth - (np.exp(mean) if logs else mean)))
        density, coverage = density_and_coverage(np.log(truth) if logs else truth, mean, std)
        density -= np.mean(np.log(truth)) if logs else 0.0  # the density of Cd itself, not of its logarithm
        row(f"Jura, {'logs' if logs else 'raw'}", name, [(error, density, coverage, spent)])


def read_csv(path: Path) -> dict[str, np.ndarray]:
    table = np.genfromtxt(path, delimiter=",", names=True)
    return {name: table[name] for name in table.dtype.names}


def density_and_coverage(Y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[float, float]:
    inside = np.abs(Y - mean) <= norm.ppf(0.95) * std
    return norm.logpdf(Y, mean, std).mean(), inside.mean()


def row(label: str, model: str, results: list[tuple[float, ...]]) -> None:
    error, density, coverage, spent = np.mean(results, 0)
    print(f"{label:<30}{model:<38}{error:>10.4f}{density:>13.3f}{coverage:>10.3f}{spent:>9.1f}", flush=True)


SECTIONS = {
    "features": features,
    "exact": exact,
    "statistics": statistics,
    "prediction": prediction,
    "missing": missing,
    "data": data,
}


if __name__ == "__main__":
    run_sections(SECTIONS, __doc__.splitlines()[0], "sarcos/ and jura/", with_data="data")
