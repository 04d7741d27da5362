"""`FunctionGPRegressor` without options: simulated curves, an emulator, white-matter profiles, and CPU seconds.

    python benchmarks/functional_gp.py [simulated] [emulator] [tables] [dti] [speed] [libraries] [--sets 8] [--splits 10] [--quick]

`simulated`: curves with smooth individual deviations, beside one scikit-learn process per principal component. `emulator`: a
reaction-diffusion field of 2500 values from 10 and 25 runs. `tables`: 31 and 26 outputs of simulators without an order. `dti`: squared errors of Table 5.1 of Bouche's thesis, random splits 70/30.
`speed`: 2000 curves of 500 points, and an emulator of 200 runs and 2500 outputs. `libraries`: BoTorch and scikit-fda, if they are
installed, on curves with gaps. Data: folders `emulator` and `dti` of the environment
variable OVKGP_DATA. One thread; nothing is chosen on test rows.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from claims import claim, count_claims, heading, mean_and_std, row
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from threadpoolctl import threadpool_limits

import ovkgp
from ovkgp.functional import FunctionalData

MAX_INPUTS_PER_OUTPUT = 10


def simulate(num_curves: int, num_points: int, seed: int, is_drawn: bool = True):
    """Return a grid, inputs (n, 2), and curves with smooth deviations of standard deviation .3 and noise .05.

    The function of the inputs is drawn from a Matérn-5/2 process, or is (1 + x_2) sin(2π(t + .3 x_1)).
    """
    rng = np.random.default_rng(seed)
    grid, X = np.linspace(0, 1, num_points), rng.uniform(-1, 1, (num_curves, 2))
    lags = np.abs(grid[:, None] - grid)

    def root(K):
        return np.linalg.cholesky(K + 1e-8 * np.eye(len(K)))

    def matern(r):
        return (1 + r + r**2 / 3) * np.exp(-r)

    f = np.sin(2 * np.pi * (grid + 0.3 * X[:, :1])) * (1 + X[:, 1:])
    if is_drawn:
        between = np.sqrt(((X[:, None] - X) ** 2).sum(-1))
        scores = rng.standard_normal(f.shape)
        f = root(matern(5**0.5 * between)) @ scores @ root(matern(5**0.5 * lags / 0.3)).T
    smooth = rng.standard_normal(f.shape) @ root(np.exp(-0.5 * lags**2 / 0.15**2)).T
    return grid, X, f + 0.3 * smooth + 0.05 * rng.standard_normal(f.shape)


def component_regression(X: np.ndarray, Y: np.ndarray, new: np.ndarray, explained: float = 0.99, restarts: int = 1):
    """Predict means and standard deviations by one scikit-learn process per principal component."""
    pca = PCA(explained, svd_solver="full").fit(Y)
    means, variances = [], []
    for score in pca.transform(Y).T:
        kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=restarts, random_state=0)
        mean, std = process.fit(X, score).predict(new, return_std=True)
        means.append(mean)
        variances.append(std**2)
    variance = np.stack(variances, -1) @ pca.components_**2
    return pca.mean_ + np.stack(means, -1) @ pca.components_, np.sqrt(variance)


def crps(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> float:
    """Return the mean CRPS of Gaussian predictions."""
    z = (y - mean) / std
    return float((std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))).mean())


def scores_of(model, X: np.ndarray, Y: np.ndarray, grid=None) -> list[float]:
    """Return CRPS, log density, and pointwise and simultaneous coverage of 90 % bands."""
    mean, std = model.predict(X, return_std=True)
    covered = []
    for simultaneous in (False, True):
        lower, upper = model.predict_interval(X, 0.9, simultaneous=simultaneous)
        inside = (lower <= Y) & (upper >= Y)
        covered.append(inside.all(1).mean() if simultaneous else inside.mean())
    return [crps(mean, std, Y), model.predictive(X).log_density(Y.reshape(len(Y), -1)).mean(), *covered]


def simulated(sets: int = 8, splits: int = 10) -> list:
    """Compare predictions of simulated curves with those by principal components."""
    claims = []
    for is_drawn, title in ((True, "drawn from a Matérn process"), (False, "sine with an amplitude")):
        heading(f"{title}, {sets} sets", "model", "CRPS", "log density", "coverage", "simultaneous", "CPU s")
        found = {"ours": [], "PCA + GP": []}
        for seed in range(100, 100 + sets):
            grid, X, Y = simulate(100, 30, seed, is_drawn)
            start = time.process_time()
            model = ovkgp.FunctionGPRegressor(random_state=0).fit(X[:40], Y[:40], grid=grid)
            found["ours"].append([*scores_of(model, X[40:], Y[40:]), time.process_time() - start])
            start = time.process_time()
            mean, std = component_regression(X[:40], Y[:40], X[40:])
            inside = np.abs(mean - Y[40:]) <= 1.645 * std
            density = norm.logpdf(Y[40:], mean, std).mean()
            values = crps(mean, std, Y[40:]), density, inside.mean(), inside.all(1).mean()
            found["PCA + GP"].append([*values, time.process_time() - start])
        for name, values in found.items():
            row(name, *np.mean(values, 0))
        ours, theirs = (np.array(found[name]).mean(0) for name in found)
        is_better = ours[0] < theirs[0] and ours[1] > theirs[1]
        claims.append(claim(f"{title}: smaller CRPS and larger log density than PCA + GP, on average", is_better))
        covers = bool((np.abs(ours[2:4] - 0.9) <= 0.05).all())
        claims.append(claim(f"{title}: 90 % bands cover 85 to 95 % of values and of curves", covers))
    return claims


def emulator(sets: int = 8, splits: int = 10) -> list:
    """Emulate a reaction-diffusion field from 10 and 25 runs."""
    data = np.load(Path(os.environ["OVKGP_DATA"]) / "emulator" / "reaction_diffusion.npz")
    X, Y = data["X"], data["Y"].astype(np.float64)
    axis = data["axis"]
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    claims = []
    for runs in (10, 25):
        heading(f"reaction-diffusion from {runs} runs, {splits} splits", "model", "1 − R²", "log density", "coverage")
        found = {"ours": [], "PCA + GP": []}
        for seed in range(splits):
            order = np.random.default_rng(seed).permutation(len(X))
            train, test = order[:runs], order[50:]
            total = np.square(Y[test] - Y[train].mean(0)).sum()
            model = ovkgp.FunctionGPRegressor(random_state=0).fit(X[train], Y[train], grid=points)
            lower, upper = model.predict_interval(X[test], 0.9)
            inside = ((lower <= Y[test]) & (Y[test] <= upper)).mean()
            density = model.predictive(X[test]).log_density(Y[test]).mean()
            found["ours"].append([np.square(model.predict(X[test]) - Y[test]).sum() / total, density, inside])
            mean, std = component_regression(X[train], Y[train], X[test])
            inside = (np.abs(mean - Y[test]) <= 1.645 * std).mean()
            density = norm.logpdf(Y[test], mean, std).mean()
            found["PCA + GP"].append([np.square(mean - Y[test]).sum() / total, density, inside])
        for name, values in found.items():
            row(name, *map(_cell, np.array(values).T))
        ours, theirs = (np.array(found[name]) for name in found)
        wins = int((ours[:, 0] < theirs[:, 0]).sum()), int((ours[:, 1] > theirs[:, 1]).sum())
        claims.append(
            claim(
                f"{runs} runs: smaller error in {wins[0]} and larger density in {wins[1]} of {splits} splits",
                min(wins) > splits / 2,
            )
        )
    return claims  # fmt: skip


def tables(sets: int = 8, splits: int = 10) -> list:
    """Emulate simulators with unordered outputs, standardized on the training runs, by principal components."""
    claims, splits = [], min(splits, 3)
    for name, title in (("fission_gas", "fission gas, 2 → 31"), ("circadapt", "circulation, 21 → 26")):
        path = Path(os.environ["OVKGP_DATA"]) / "emulator" / f"{name}.csv"
        with path.open() as file:
            columns = file.readline().strip().split(",")
        values = np.genfromtxt(path, delimiter=",", skip_header=1)
        is_input = np.array([column.startswith("x_") for column in columns])
        columns = "R² per output", "log density", "coverage", "CPU s"
        heading(f"{title}, 70/30, {splits} splits, outputs of unit variance", "model", *columns)
        peers = {"PCA + GP": component_regression, "GP per output": output_regression}
        if is_input.sum() > MAX_INPUTS_PER_OUTPUT:  # 26 processes with 21 lengthscales take too long
            peers = {"PCA + GP": partial(component_regression, restarts=0)}
        found = {"ours, pca": [], **{peer: [] for peer in peers}}
        for seed in range(splits):
            order = np.random.default_rng(seed).permutation(len(values))
            train, test = np.split(order, [round(0.7 * len(values))])
            scaled = (values - values[train].mean(0)) / values[train].std(0)
            (X, new), (Y, truth) = ((scaled[:, mask][train], scaled[:, mask][test]) for mask in (is_input, ~is_input))
            start = time.process_time()
            model = ovkgp.FunctionGPRegressor(output_basis="pca", random_state=0).fit(X, Y)
            lower, upper = model.predict_interval(new, 0.9)
            inside = ((lower <= truth) & (truth <= upper)).mean()
            density = model.predictive(new).log_density(truth).mean()
            r2 = _mean_r2(model.predict(new), truth)
            found["ours, pca"].append([r2, density, inside, time.process_time() - start])
            for peer, predict in peers.items():
                start = time.process_time()
                mean, std = predict(X, Y, new)
                inside = (np.abs(mean - truth) <= 1.645 * std).mean()
                density = norm.logpdf(truth, mean, std).mean()
                found[peer].append([_mean_r2(mean, truth), density, inside, time.process_time() - start])
        for model_name, results in found.items():
            row(model_name, *map(_cell, np.array(results).T))
        ours, *others = (np.array(results).mean(0) for results in found.values())
        claims += [
            claim(
                f"{title}: R² not below the other models, up to .005", ours[0] > max(one[0] for one in others) - 0.005
            ),
            claim(f"{title}: larger log density than PCA + GP", ours[1] > others[0][1]),
            claim(f"{title}: 90 % intervals cover {100 * ours[2]:.1f} %", 0.85 <= ours[2] <= 0.95),
        ]
    return claims


def _mean_r2(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return R² of each output against the training mean, which is 0, averaged over outputs."""
    return float((1 - np.square(predicted - truth).sum(0) / np.square(truth).sum(0)).mean())


def output_regression(X: np.ndarray, Y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict means and standard deviations by one scikit-learn process per output, with one initial point."""
    found = []
    for target in Y.T:
        kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        found.append(process.fit(X, target).predict(new, return_std=True))
    return tuple(np.stack(column, -1) for column in zip(*found, strict=True))


def dti(sets: int = 8, splits: int = 10) -> list:
    """Predict white-matter profiles from other ones."""
    folder = Path(os.environ["OVKGP_DATA"]) / "dti"
    tables = [np.genfromtxt(folder / name, delimiter=",", skip_header=1) for name in ("cca.csv", "rcst.csv")]
    inputs, outputs = (FunctionalData(table, np.linspace(0, 1, table.shape[1])) for table in tables)
    heading(f"white-matter profiles, {splits} splits", "model", "squared error", "coverage", "CPU s")
    found = {"ours": [], "mean curve": []}
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(inputs))
        train, test = order[:70], order[70:]
        start, truth = time.process_time(), outputs.values[test]
        model = ovkgp.FunctionGPRegressor(random_state=0).fit(inputs[train], outputs[train])
        seconds = time.process_time() - start
        lower, upper = model.predict_interval(inputs[test], 0.9)
        observed = ~np.isnan(truth)
        inside = ((lower <= truth) & (truth <= upper))[observed].mean()
        found["ours"].append([np.nansum((model.predict(inputs[test]) - truth) ** 2, 1).mean(), inside, seconds])
        mean = np.nanmean(outputs.values[train], 0)
        found["mean curve"].append([np.nansum((mean - truth) ** 2, 1).mean(), np.nan, 0.0])
    for name, values in found.items():
        row(name, *map(_cell, np.array(values).T))
    errors = [np.array(found[name])[:, 0].mean() for name in found]
    return [
        claim("smaller error than the mean curve, on average (printed: KPL .211, FKRR .215)", errors[0] < errors[1])
    ]


def speed(sets: int = 8, splits: int = 10) -> list:
    """Measure CPU seconds of large fits."""
    heading("CPU seconds", "work", "seconds")
    grid, X, Y = simulate(2000, 500, 0, False)
    kernel = {"output_basis": "kernel"}
    trained = _cpu_seconds(lambda: ovkgp.FunctionGPRegressor(**kernel, random_state=0).fit(X, Y, grid=grid))
    row("2000 × 500, kernel", trained[0])
    given = _cpu_seconds(lambda: trained[1].gp_.condition(trained[1]._data.X, trained[1]._data.Y))
    row("given parameters", given[0])
    mixed = _cpu_seconds(lambda: ovkgp.FunctionGPRegressor(random_state=0).fit(X, Y, grid=grid))
    row("2000 × 500, auto", mixed[0])
    rng = np.random.default_rng(0)
    axis = np.linspace(0, 1, 50)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    X = rng.uniform(size=(200, 2))
    Y = np.exp(-((points[:, 0] - X[:, :1]) ** 2) / 0.1 - (points[:, 1] - X[:, 1:]) ** 2 / 0.1)
    emulated = _cpu_seconds(lambda: ovkgp.FunctionGPRegressor(random_state=0).fit(X, Y, grid=points))
    row("200 × 2500, auto", emulated[0])
    return [
        claim("2000 curves of 500 points: below 20 s given hyperparameters", given[0] < 20),
        claim("2000 curves of 500 points: trained below 120 s", max(trained[0], mixed[0]) < 120),
        claim("200 runs, 2500 outputs: trained below 10 s", emulated[0] < 10),
    ]


def libraries(sets: int = 8, splits: int = 10) -> list:
    """Compare with BoTorch's `LatentKroneckerGP` and scikit-fda's regression on curves with a fifth of the values missing."""
    grid, X, Y = simulate(120, 30, 0, False)
    rng, sizes = np.random.default_rng(0), (60, 60)
    train, test = np.split(np.arange(len(X)), [sizes[0]])
    gaps = np.where(rng.uniform(size=Y[train].shape) < 0.2, np.nan, Y[train])
    heading(f"{sizes[0]} curves of 30 points, 20 % missing", "model", "squared error", "CRPS", "coverage", "CPU s")
    start = time.process_time()
    model = ovkgp.FunctionGPRegressor(random_state=0).fit(X[train], gaps, grid=grid)
    mean, std = model.predict(X[test], return_std=True)
    ours = _score_gaussian(mean, std, Y[test])
    row("ours", *ours, time.process_time() - start)
    try:
        start = time.process_time()
        theirs = np.square(latent_kronecker(X[train], gaps, X[test], grid) - Y[test]).mean()
        row("BoTorch", theirs, "-", "-", time.process_time() - start)
    except ImportError:
        theirs = None
        row("BoTorch", "not installed")
    start = time.process_time()
    mean = scalar_regression(X[train], gaps, X[test], grid)
    if isinstance(mean, str):
        row("scikit-fda", mean)
    else:
        row("scikit-fda", np.square(mean - Y[test]).mean(), "-", "-", time.process_time() - start)
    if theirs is None:
        return []
    return [claim("smaller squared error than LatentKroneckerGP", ours[0] < theirs)]


def _score_gaussian(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return squared error, CRPS and coverage of 90 % intervals."""
    return np.square(mean - y).mean(), crps(mean, std, y), (np.abs(mean - y) <= 1.645 * std).mean()


def latent_kronecker(
    X: np.ndarray, Y: np.ndarray, new: np.ndarray, grid: np.ndarray, num_draws: int = 256
) -> np.ndarray:
    """Predict curves by the mean of draws of BoTorch's model."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models.latent_kronecker_gp import LatentKroneckerGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(0)
    X, Y, new, points = (torch.as_tensor(one, dtype=torch.float64) for one in (X, Y, new, grid[:, None]))
    low, high = X.amin(0), X.amax(0)
    model = LatentKroneckerGP((X - low) / (high - low), points, Y)
    with model.use_iterative_methods():
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with torch.no_grad():
            draws = model.posterior((new - low) / (high - low), points).rsample(torch.Size([num_draws]))
    return draws.reshape(num_draws, len(new), -1).mean(0).numpy()


def scalar_regression(X: np.ndarray, Y: np.ndarray, new: np.ndarray, grid: np.ndarray) -> np.ndarray | str:
    """Predict curves by scikit-fda's linear regression with a functional response, or return why there is none."""
    try:
        import skfda
        from skfda.ml.regression import LinearRegression
        from skfda.representation.basis import BSplineBasis
    except ImportError:
        return "not installed"
    except Exception as error:  # version 0.10.1 fails on a fresh installation
        return f"import fails: {type(error).__name__}"
    basis = BSplineBasis((float(grid[0]), float(grid[-1])), n_basis=10)
    curves = skfda.FDataGrid(FunctionalData(Y, grid).resample(grid, extrapolate=True).values, grid).to_basis(basis)
    model = LinearRegression().fit(X, curves)
    return model.predict(new)(grid)[..., 0]


def _cell(values: np.ndarray) -> str | float:
    """Format values over splits; a single one without a standard deviation."""
    return mean_and_std(values) if len(values) > 1 else float(values[0])


def _cpu_seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


EXPERIMENTS = {
    "simulated": simulated,
    "emulator": emulator,
    "tables": tables,
    "dti": dti,
    "speed": speed,
    "libraries": libraries,
}
NEEDS_DATA = ("emulator", "tables", "dti")
QUICK = ("simulated", "emulator", "dti", "libraries")
"""Experiments of --quick, with one data set or split."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *EXPERIMENTS], help="experiments; all by default")
    parser.add_argument("--sets", type=int, default=8, help="simulated data sets")
    parser.add_argument("--splits", type=int, default=10, help="random splits of real data")
    parser.add_argument("--quick", action="store_true", help="one data set and split, less than a minute")
    options = parser.parse_args()
    if options.quick:
        options.sets = options.splits = 1
    names = options.names or (QUICK if options.quick else tuple(EXPERIMENTS))
    if "OVKGP_DATA" not in os.environ and set(NEEDS_DATA) & set(names):
        print("OVKGP_DATA is not set: no real data")
        names = [name for name in names if name not in NEEDS_DATA]
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        claims = [one for name in names for one in EXPERIMENTS[name](options.sets, options.splits)]
    count_claims(claims, strict=not options.quick)


if __name__ == "__main__":
    main()
