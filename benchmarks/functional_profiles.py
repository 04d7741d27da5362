"""Ocean profiles: temperature and salinity against depth from few places, with whole regions or floats held out.

    python benchmarks/functional_profiles.py [levitus] [argo] [--splits 3] [--quick]

`levitus`: a climatology whose profiles end at the sea floor, from the position; blocks of 15 × 15 degrees are held out. `argo`: casts
of floats, each at its own depths, from position and season; six floats are held out. The coordinate of depth is its square root.
Beside `FunctionGPRegressor` without options, and with noise that varies along depth: one scikit-learn process per principal component of
both variables together (values below the sea floor are filled with the deepest ones), and one process per depth and variable. Scores
per variable: R² over all values against the training mean at each depth, mean log density of a value (for casts, of a normal
distribution with the predicted moments), and coverage of 90 % intervals.
Data: folder `profiles` of the environment variable OVKGP_DATA. One thread; nothing is chosen on held-out profiles.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from claims import Claim, claim, heading, note, row, run_experiments
from functional_gp import component_regression
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import ovkgp
from ovkgp.functional import FunctionalData

VARIABLES = ("temperature", "salinity")
TEST_FLOATS = (1900659, 1900783, 3900707, 6900475, 6900723, 6902744)
LEVELS = np.concatenate([np.arange(10, 200, 15), np.arange(200, 1001, 50)]).astype(
    float
)  # of the scores of casts, in dbar
NORMAL_90 = norm.ppf(0.95)


def read(name: str):
    return np.load(Path(os.environ["OVKGP_DATA"]) / "profiles" / name)


def fill_down(values: np.ndarray) -> np.ndarray:
    """Fill missing values (n, m, 2) with the nearest valid one above, or below at the top of a profile."""
    filled = values.copy()
    for j in range(1, filled.shape[1]):
        filled[:, j] = np.where(np.isnan(filled[:, j]), filled[:, j - 1], filled[:, j])
    for j in range(filled.shape[1] - 2, -1, -1):
        filled[:, j] = np.where(np.isnan(filled[:, j]), filled[:, j + 1], filled[:, j])
    return filled


def by_components(X: np.ndarray, Y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict profiles (k, m, 2) by principal components of both variables together, each of unit variance."""
    Y = fill_down(Y)
    scale, center, spread = Y.std((0, 1)), X.mean(0), X.std(0)
    flat = ((Y / scale).reshape(len(Y), -1), (X - center) / spread, (new - center) / spread)
    mean, std = component_regression(flat[1], flat[0], flat[2])
    return mean.reshape(len(new), -1, 2) * scale, std.reshape(len(new), -1, 2) * scale


def by_depth(X: np.ndarray, Y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict profiles (k, m, 2) by one process per depth and variable, from the profiles with a value there."""
    mean, std = (np.full((len(new), *Y.shape[1:]), np.nan) for _ in range(2))
    center, spread = X.mean(0), X.std(0)
    X, new = (X - center) / spread, (new - center) / spread
    for j in range(Y.shape[1]):
        for k in range(Y.shape[2]):
            rows = ~np.isnan(Y[:, j, k])
            if rows.sum() < 3:
                mean[:, j, k], std[:, j, k] = np.nanmean(Y[:, j, k]), np.nanstd(Y[:, :, k])
                continue
            kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
            process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
            mean[:, j, k], std[:, j, k] = process.fit(X[rows], Y[rows, j, k]).predict(new, return_std=True)
    return mean, std


def score(mean, std, truth: np.ndarray, reference: np.ndarray, ends=None, predictive=None) -> np.ndarray:
    """Return R², log density and coverage of each variable, (2, 3).

    Without interval ends (k, m, 2) and a predictive distribution they are those of normal distributions.
    """
    density = norm.logpdf(truth, mean, std)
    if predictive is not None:
        density = predictive.log_density(truth.reshape(len(truth), -1)).reshape(truth.shape)
    lower, upper = (mean - NORMAL_90 * std, mean + NORMAL_90 * std) if ends is None else ends
    found = []
    for k in range(2):
        observed = ~np.isnan(truth[:, :, k])
        y, center = truth[:, :, k][observed], mean[:, :, k][observed]
        total = np.square(truth[:, :, k] - reference[:, k])[observed].sum()
        inside = (lower[:, :, k][observed] <= y) & (y <= upper[:, :, k][observed])
        found.append([1 - np.square(y - center).sum() / total, density[:, :, k][observed].mean(), inside.mean()])
    return np.array(found)


def report(title: str, found: dict[str, np.ndarray], seconds: dict[str, float], splits: int) -> list[Claim]:
    """Print scores (splits, 2, 3) of each model, and compare the first with the others."""
    columns = [f"{variable[:4]}. {what}" for variable in VARIABLES for what in ("R²", "log density", "coverage")]
    heading(f"{title}, {splits} splits", "model", *columns, "CPU s")
    for name, values in found.items():
        row(name, *values.mean(0).ravel(), f"{seconds[name] / splits:.1f}")
    ours, claims = found["ours"].mean(0), []
    for k, variable in enumerate(VARIABLES):
        others = [values.mean(0)[k] for name, values in found.items() if "GP" in name]
        claims.append(claim(f"{variable}: R² above the mean at each depth", ours[k, 0] > 0))
        claims.append(
            claim(
                f"{variable}: R² not below that of the other models, up to .02",
                ours[k, 0] > max(one[0] for one in others) - 0.02,
            )
        )
        claims.append(
            claim(f"{variable}: larger log density than the other models", ours[k, 1] > max(one[1] for one in others))
        )
        claims.append(claim(f"{variable}: 90 % intervals cover {100 * ours[k, 2]:.1f} %", 0.85 <= ours[k, 2] <= 0.95))
    return claims


def fit_ours(X: np.ndarray, Y, grid, new: np.ndarray, points: np.ndarray, **options):
    """Return mean, standard deviation and ends of 90 % intervals of profiles (k, m, 2), and their distribution on the grid of the fit."""
    model = ovkgp.FunctionGPRegressor(random_state=0, **options).fit(X, Y, grid=grid)
    mean, std = model.predict(new, grid=points, return_std=True)
    return mean, std, model.predict_interval(new, 0.9, grid=points), None if grid is None else model.predictive(new)


def levitus(splits: int = 3, num_train: int = 100, num_test: int = 400) -> list[Claim]:
    """Predict profiles of held-out regions from the position."""
    data = read("levitus.npz")
    lon, lat = np.deg2rad(data["lon"]), np.deg2rad(data["lat"])
    X = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    Y = np.stack([data[name].astype(float) for name in VARIABLES], -1)
    points, upper = np.sqrt(data["depth"].astype(float)), data["depth"] <= 300
    found, seconds, by_part = {}, {}, []
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        train = rng.permutation(np.flatnonzero(~data["test_block"]))[:num_train]
        test = rng.permutation(np.flatnonzero(data["test_block"]))[:num_test]
        kept = (~np.isnan(Y[train]).all((0, 2))) & (np.isfinite(Y[train][:, :, 0]).sum(0) > 2)
        reference, truth = np.nanmean(Y[train], 0)[kept], Y[test][:, kept]
        curves = X[train], Y[train][:, kept]
        models = {
            "ours": partial(fit_ours, *curves, points[kept], X[test], points[kept]),
            "varying noise": partial(fit_ours, *curves, points[kept], X[test], points[kept], noise="varying"),
            "PCA + GP": partial(by_components, *curves, X[test]),
            "GP per depth": partial(by_depth, *curves, X[test]),
        }
        for name, predict in models.items():
            start = time.process_time()
            mean, std, *rest = predict()
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - start
            found.setdefault(name, []).append(score(mean, std, truth, reference, *rest))
            if name == "ours":
                parts = [
                    score(mean[:, p], std[:, p], truth[:, p], reference[p], [end[:, p] for end in rest[0]])[:, 2]
                    for p in (upper[kept], ~upper[kept])
                ]
                by_part.append(np.stack(parts))
    claims = report(
        f"climatology, {num_train} places", {name: np.stack(one) for name, one in found.items()}, seconds, splits
    )
    shallow, deep = np.mean(by_part, 0)
    note(
        f"coverage of ours down to 300 m: {shallow[0]:.2f}, {shallow[1]:.2f}; below: {deep[0]:.2f}, {deep[1]:.2f} (temperature, salinity)"
    )
    return claims


def read_casts():
    """Return inputs (n, 5), casts as lists of depths and values, values at `LEVELS` (n, m, 2), and labels of the floats."""
    data = read("argo.npz")
    offsets = data["offsets"]
    values = np.stack([data[name].astype(float) for name in VARIABLES], -1)
    season = 2 * np.pi * data["day"] / 365.25
    X = np.stack([data["lon"], data["lat"], np.sin(season), np.cos(season), data["day"] / 365.25], 1).astype(float)
    grids, casts, at_levels = [], [], []
    for start, end in pairwise(offsets):
        pressure = data["pressure"][start:end].astype(float)
        grids.append(pressure)
        casts.append(values[start:end])
        columns = [np.interp(LEVELS, pressure, values[start:end, k], left=np.nan, right=np.nan) for k in range(2)]
        at_levels.append(np.stack(columns, -1))
    return X, grids, casts, np.stack(at_levels), data["float_id"].astype(int)


def argo(splits: int = 3, num_train: int = 60, num_test: int = 318, samples_per_cast: int = 12) -> list[Claim]:
    """Predict casts of held-out floats from position and season, from few samples of few casts."""
    X, grids, casts, at_levels, floats = read_casts()
    points, is_test = np.sqrt(LEVELS), np.isin(floats, TEST_FLOATS)
    found, seconds = {}, {}
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        train = rng.permutation(np.flatnonzero(~is_test))[:num_train]
        test = rng.permutation(np.flatnonzero(is_test))[:num_test]
        ragged, thinned, depths = [], [], []
        for i in train:
            inside = np.flatnonzero(grids[i] <= LEVELS[-1] + 50)
            kept = np.sort(rng.choice(inside, min(samples_per_cast, len(inside)), replace=False))
            depths.append(np.sqrt(grids[i][kept]))
            ragged.append(casts[i][kept])
            columns = [np.interp(points, depths[-1], ragged[-1][:, k], left=np.nan, right=np.nan) for k in range(2)]
            thinned.append(np.stack(columns, -1))
        domain = (0.0, np.sqrt(LEVELS[-1] + 50))
        data, thinned = FunctionalData(ragged, depths, domain), np.stack(thinned)
        reference, truth = np.nanmean(thinned, 0), at_levels[test]
        models = {
            "ours": partial(fit_ours, X[train], data, None, X[test], points),
            "PCA + GP": partial(by_components, X[train], thinned, X[test]),
            "GP per depth": partial(by_depth, X[train], thinned, X[test]),
        }
        for name, predict in models.items():
            start = time.process_time()
            mean, std, *rest = predict()
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - start
            found.setdefault(name, []).append(score(mean, std, truth, reference, *rest))
    title = f"Argo casts, {num_train} casts of {samples_per_cast} samples, six floats held out"
    return report(title, {name: np.stack(one) for name, one in found.items()}, seconds, splits)


EXPERIMENTS = {"levitus": levitus, "argo": argo}
QUICK = {
    "levitus": {"splits": 1, "num_train": 30, "num_test": 100},
    "argo": {"splits": 1, "num_train": 25, "num_test": 100, "samples_per_cast": 8},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", choices=[[], *EXPERIMENTS], help="all by default")
    parser.add_argument("--splits", type=int, help="random training sets; 3 by default")
    parser.add_argument("--quick", action="store_true", help="one small training set each, less than a minute")
    options = parser.parse_args()
    if "OVKGP_DATA" not in os.environ:
        print("OVKGP_DATA is not set: no profiles")
        return
    warnings.simplefilter("ignore")
    sizes = {} if options.splits is None else {"splits": options.splits}
    run_experiments(
        (
            (name, partial(EXPERIMENTS[name], **((QUICK[name] if options.quick else {}) | sizes)))
            for name in options.experiments or EXPERIMENTS
        ),
        strict=not options.quick,
    )


if __name__ == "__main__":
    main()
