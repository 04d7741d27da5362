"""Curves as outputs: white-matter profiles (DTI) with the estimators of Bouche's thesis, and the time of a path of λ.

    python benchmarks/functional.py [dti] [robust] [speed] [gaps] [--splits 20] [--quick]

`dti` is Table 5.1: the squared error summed over the observed points of a curve, averaged over test curves, of random splits 70/30
(the splits of the source are unknown). All options are chosen on training curves: λ by leave-one-curve-out errors or, where there
are none, on a fifth of the training curves. `robust` is Table 7.3. `gaps` compares
CPU seconds with missing values and without. Data: folder `dti` of the environment variable OVKGP_DATA.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from claims import Claim, claim, count_claims
from threadpoolctl import threadpool_limits

import ovkgp
from ovkgp.estimators.functional.coordinates import project_curves
from ovkgp.functional import FunctionalData, Wavelets
from ovkgp.losses import LogCosh

LAMS = np.geomspace(1e-6, 1e-2, 25)
SIGMA = 0.9 / np.sqrt(2)  # exp(−d²/.81) as a lengthscale
MAX_PATH_FITS = 1.5  # limit of the CPU time of a path of 30 λ, in fits
PRINTED = {"KE": 0.231, "3BE": 0.227, "KAM": 0.222, "FKRR": 0.215, "KPL": 0.211, "KPL log-cosh": 0.209}
PRINTED_ROBUST = {
    1e-5: {"square": 0.25, "H2": 0.221, "H1": 0.221, "l2": 0.241, "linf": 0.25},
    1e-3: {"square": 0.218, "H2": 0.223, "H1": 0.221, "l2": 0.22, "linf": 0.218},
}


def load_dti() -> tuple[FunctionalData, FunctionalData]:
    """Read input and output profiles; the gaps of the inputs are interpolated."""
    folder = Path(os.environ["OVKGP_DATA"]) / "dti"
    tables = [np.genfromtxt(folder / name, delimiter=",", skip_header=1) for name in ("cca.csv", "rcst.csv")]
    curves = [FunctionalData(table, np.linspace(0, 1, table.shape[1])) for table in tables]
    return curves[0].resample(curves[0].grid, extrapolate=True), curves[1]


def split(num_curves: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of training and test curves, 70/30."""
    order = np.random.default_rng(seed).permutation(num_curves)
    count = round(0.7 * num_curves)
    return order[:count], order[count:]


def error(predicted: np.ndarray, curves: FunctionalData) -> float:
    """Return the squared error summed over observed points, averaged over curves."""
    return float(np.nansum(np.square(predicted - curves.values), 1).mean())


def filled(curves: FunctionalData) -> FunctionalData:
    """Interpolate gaps linearly."""
    return curves.resample(curves.grid, extrapolate=True)


def best_by_path(models: list) -> object:
    """Return the model with the smallest leave-one-out error of the same coordinates."""
    return min(models, key=lambda model: model.path_.loo_error.min())


def data_error(model, curves: FunctionalData) -> float:
    """Return the leave-one-curve-out error of complete curves in L², including what is outside of the basis."""
    projected = project_curves(model.coordinates_, curves.center(model.mean_curve_)[0], model.quadrature)
    return float(model.path_.loo_error.min()) * projected.Z.shape[1] + projected.outside / len(curves)


def fit_mean(X, Y):
    return lambda new: np.tile(np.nanmean(Y.values, 0), (len(new), 1))


def fit_ke(X, Y):
    model = ovkgp.KernelCurveRegressor(lengthscale=np.linspace(0.05, 2, 200) / np.sqrt(2)).fit(X.values, filled(Y))
    return lambda new: model.predict(new.values)


def fit_3be(X, Y):
    wavelets = [Wavelets(levels, "db2", boundary="symmetric") for levels in (4, 5)]
    models = [
        ovkgp.TripleBasisRegressor(
            wavelets[0],
            dictionary=wavelets[0],
            lengthscale=sigma,
            method="plug_in",
            lam=LAMS,
            convention="sum",
            random_state=0,
        ).fit(X, filled(Y))
        for sigma in (0.1, 0.2, 0.5, 1.0)
    ]
    model = best_by_path(models)
    return lambda new: model.predict(new)


def fit_kam(X, Y):
    width = 0.1 / np.sqrt(2)
    options = {"position_lengthscale": width, "value_lengthscale": width, "output_lengthscale": width}
    model = ovkgp.KernelAdditiveRegressor(20, lam=LAMS, convention="sum", **options).fit(X, filled(Y))
    return lambda new: model.predict(new)


def fit_fkrr(X, Y):
    complete = filled(Y)
    models = [
        ovkgp.FunctionalRidge("laplace", sigma, lengthscale=SIGMA, lam=LAMS).fit(X.values, complete)
        for sigma in (0.5, 1.0, 2.0, 5.0, 10.0)
    ]
    model = min(models, key=lambda model: data_error(model, complete))
    return lambda new: model.predict(new.values)


def kpl_options(Y: FunctionalData, X: FunctionalData) -> dict:
    """Choose wavelets and the decay b of B = diag(b^(−level)) by leave-one-out errors of interpolated curves."""
    complete, best = filled(Y), (math.inf, None)
    for name in ("db2", "db3"):
        for levels in (4, 5):
            wavelets = Wavelets(levels, name, boundary="symmetric")
            for b in (1.0, 1.4, 2.0):
                options = {"dictionary": wavelets, "output_matrix": b ** -wavelets.levels.astype(float)}
                model = ovkgp.KernelProjectionRegressor(**options, lengthscale=SIGMA, lam=LAMS).fit(X.values, complete)
                if (found := data_error(model, complete)) < best[0]:
                    best = found, options | {"lengthscale": SIGMA, "lam": model.lam_}
    return best[1]


def fit_kpl(X, Y):
    model = ovkgp.KernelProjectionRegressor(**kpl_options(Y, X)).fit(X.values, Y)
    return lambda new: model.predict(new.values)


def fit_logcosh(X, Y):
    """Choose ν and λ on a fifth of the training curves, with the wavelets of the square loss."""
    options, count = kpl_options(Y, X), round(0.8 * len(Y))
    best = (math.inf, None)
    for nu in (0.5, 2.0, 5.0, 10.0):
        for factor in (0.3, 1.0, 3.0):
            chosen = options | {"loss": LogCosh(nu), "lam": factor * nu * options["lam"], "tolerance": 1e-4}
            model = ovkgp.KernelProjectionRegressor(**chosen).fit(X.values[:count], Y[:count])
            if (found := error(model.predict(X.values[count:]), Y[count:])) < best[0]:
                best = found, chosen
    model = ovkgp.KernelProjectionRegressor(**best[1]).fit(X.values, Y)
    return lambda new: model.predict(new.values)


FITS: dict[str, Callable] = {
    "mean curve": fit_mean,
    "KE": fit_ke,
    "3BE": fit_3be,
    "KAM": fit_kam,
    "FKRR": fit_fkrr,
    "KPL": fit_kpl,
    "KPL log-cosh": fit_logcosh,
}


def run_dti(num_splits: int) -> list[Claim]:
    """Print Table 5.1 and paired differences, and return the claims about them."""
    X, Y = load_dti()
    errors, times = {name: [] for name in FITS}, dict.fromkeys(FITS, 0.0)
    for seed in range(num_splits):
        train, test = split(len(Y), seed)
        for name, fit in FITS.items():
            began = time.process_time()
            predict = fit(X[train], Y[train])
            times[name] += time.process_time() - began
            errors[name].append(error(predict(X[test]), Y[test]))
    print(f"\nDTI, Table 5.1: squared error of a curve, {num_splits} splits")
    print(f"{'estimator':14} {'error':>14} {'printed':>8} {'CPU-s per fit':>14}")
    for name, values in errors.items():
        spread = f"{np.mean(values):.4f} ±{np.std(values):.3f}"
        print(f"{name:14} {spread:>14} {PRINTED.get(name, math.nan):8.3f} {times[name] / num_splits:14.2f}")
    print("\npaired differences (negative: the first is better), mean ± standard error, fraction of splits")
    claims = []
    for first in ("KPL", "KPL log-cosh"):
        for second in ("FKRR", "KE", "3BE", "KAM", "mean curve"):
            gap = np.array(errors[first]) - np.array(errors[second])
            print(
                f"{first:13} - {second:11} {gap.mean():+.4f} ± {gap.std(ddof=1) / np.sqrt(len(gap)):.4f}  {np.mean(gap < 0):.2f}"
            )
            claims.append(Claim(f"DTI: {first} is below {second} on average", bool(gap.mean() < 0)))
    return claims if num_splits >= 10 else []


def run_robust(num_splits: int) -> None:
    """Print Table 7.3: losses at two λ, their parameters by cross-validation on training curves."""
    X, Y = load_dti()
    Y = filled(Y)
    shared = {"lengthscale": 1 / np.sqrt(2.5), "output_kernel": "laplace", "output_lengthscale": 0.1, "tolerance": 1e-4}
    kappas, epsilons = np.geomspace(1e-3, 1e-1, 8), np.geomspace(1e-3, 10**-0.5, 8)
    losses = {
        "square": None,
        "H2": {"p": 2, "kappa": kappas},
        "H1": {"p": 1, "kappa": kappas},
        "l2": {"loss": "insensitive", "p": 2, "epsilon": epsilons},
        "linf": {"loss": "insensitive", "p": math.inf, "epsilon": epsilons},
    }
    observed = load_dti()[1]
    for lam, printed in PRINTED_ROBUST.items():
        print(f"\nDTI, Table 7.3, λ = {lam:g}: squared error of a curve and sparsity, {num_splits} splits")
        for name, options in losses.items():
            errors, sparsity, began = [], [], time.process_time()
            for seed in range(num_splits):
                train, test = split(len(Y), seed)
                if options is None:
                    ridge = {key: shared[key] for key in ("lengthscale", "output_kernel", "output_lengthscale")}
                    model = ovkgp.FunctionalRidge(lam=lam, **ridge).fit(X.values[train], Y[train])
                else:
                    model = ovkgp.RobustFunctionalRegressor(lam=lam, **shared, **options).fit(X.values[train], Y[train])
                    sparsity.append(model.sparsity_)
                errors.append(error(model.predict(X.values[test]), observed[test]))
            seconds = (time.process_time() - began) / num_splits
            sparse = f"{np.mean(sparsity):.3f}" if sparsity else "-"
            print(
                f"{name:7} {np.mean(errors):.4f} ±{np.std(errors):.3f}  printed {printed[name]:.3f}  sparsity {sparse}  {seconds:.1f} CPU-s"
            )


def run_speed() -> list[Claim]:
    """Compare a path of 30 λ with one fit."""
    claims = []
    rng = np.random.default_rng(0)
    n, m = 1000, 100
    X, grid = rng.standard_normal((n, 5)), np.linspace(0, 1, m)
    Y = np.sin(X[:, :1] + 5 * grid) + 0.1 * rng.standard_normal((n, m))
    for name, make in (
        ("KernelProjectionRegressor", ovkgp.KernelProjectionRegressor),
        ("FunctionalRidge", ovkgp.FunctionalRidge),
    ):
        times = {1: math.inf, 30: math.inf}
        for _ in range(3):
            for count in times:
                lam = 1e-3 if count == 1 else np.geomspace(1e-6, 1e-1, count)
                began = time.process_time()
                make(lam=lam).fit(X, Y, grid)
                times[count] = min(times[count], time.process_time() - began)
        print(
            f"{name}: n = {n}, m = {m}: one λ {times[1]:.2f} CPU-s, 30 λ {times[30]:.2f} CPU-s, ratio {times[30] / times[1]:.2f}"
        )
        claims.append(Claim(f"{name}: 30 λ take less than {MAX_PATH_FITS} fits", times[30] < MAX_PATH_FITS * times[1]))
    return claims


def add_gaps(Y: np.ndarray, kind: str) -> np.ndarray:
    """Remove values: 5 % or 30 % at random, or the end of each curve, of up to half of its length."""
    rng, Y = np.random.default_rng(1), Y.copy()
    if kind == "cut ends":
        for row in Y:
            row[rng.integers(len(row) // 2, len(row) + 1) :] = np.nan
        return Y
    Y[rng.random(Y.shape) < float(kind.rstrip(" %")) / 100] = np.nan
    return Y


def run_gaps(sizes: Sequence[tuple[int, int]] = ((60, 52), (77, 50), (400, 100))) -> list[Claim]:
    """Compare CPU seconds of fits with and without missing values, and the prediction of 20 bands."""
    makers: dict[str, Callable] = {
        "FunctionGPRegressor": ovkgp.FunctionGPRegressor,
        "FunctionalRidge": ovkgp.FunctionalRidge,
        "KernelProjectionRegressor": ovkgp.KernelProjectionRegressor,
        "FunctionalRidge, 9 λ": lambda: ovkgp.FunctionalRidge(lam=np.geomspace(1e-5, 1e-1, 9)),
    }
    claims = []
    print("\nCPU seconds of a fit, and of 20 bands in brackets; times those of complete curves")
    for n, m in sizes:
        rng = np.random.default_rng(0)
        X, grid = rng.standard_normal((n, 2)), np.linspace(0, 1, m)
        Y = (1 + X[:, 1:]) * np.sin(2 * np.pi * (grid + 0.3 * X[:, :1])) + 0.05 * rng.standard_normal((n, m))
        j = np.arange(1, 7)[:, None]
        Y += 0.3 * rng.standard_normal((n, 6)) @ (np.sin(np.pi * j * grid) / j)
        for name, make in makers.items():
            seconds, bands = {}, {}
            for kind in ("complete", "5 %", "30 %", "cut ends"):
                values = Y if kind == "complete" else add_gaps(Y, kind)
                seconds[kind] = math.inf
                for _ in range(1 if n > 100 and ("9 λ" in name or name.startswith("FunctionGP")) else 3):
                    began = time.process_time()
                    model = make().fit(X, values, grid)
                    seconds[kind] = min(seconds[kind], time.process_time() - began)
                began = time.process_time()
                model.predict(X[:20], return_std=True)
                bands[kind] = time.process_time() - began
            ratios = {kind: value / seconds["complete"] for kind, value in seconds.items()}
            cells = [f"{kind} {seconds[kind]:.2f} ({bands[kind]:.2f}) ×{ratios[kind]:.1f}" for kind in seconds]
            print(f"{n:4} × {m:3} {name:26} " + "   ".join(cells), flush=True)
            if "9 λ" not in name:
                claims.append(claim(f"{name}, {n} × {m}: gaps cost at most 10 times", max(ratios.values()) <= 10))
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["dti", "robust", "speed"])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="speed, and one split of dti, less than a minute")
    options = parser.parse_args()
    if options.quick:
        options.sections, options.splits = [name for name in options.sections if name != "robust"], 1
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if {"dti", "robust"} & set(options.sections) and "OVKGP_DATA" not in os.environ:
            print("OVKGP_DATA is not set: no real data")
            options.sections = [name for name in options.sections if name in ("speed", "gaps")]
        claims = []
        for name in options.sections:
            found = {
                "dti": lambda: run_dti(options.splits),
                "robust": lambda: run_robust(min(options.splits, 10)),
                "speed": run_speed,
                "gaps": run_gaps,
            }[name]()
            claims += found or []
        count_claims(claims, strict=not options.quick)


if __name__ == "__main__":
    main()
