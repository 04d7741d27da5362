"""Simulated curves of Bouche's and Lambert's theses: robustness, sparsity, redundant dictionaries, and the claims of their figures.

    python benchmarks/functional_toys.py [NAME ...] [--quick]

By name: `fig54`, spline bumps to mixtures of Gaussian processes with outliers, wrong labels, gaps and noise; `fig75`, sparsity of
ε-insensitive losses; `fig76`, Huber losses with outlying curves and values; `fig77`, Huber losses over λ and κ; `fig81`, redundant
dictionaries and their effective rank; `fig83`, selection of functions; `fig84`, Huber losses with features and a dictionary; `lt130`,
lip movements with negated curves; `lt131`, outliers elsewhere in the input space; `lt132` and `lt133`, sparsity of lip movements and of
mixtures with outlying values. The figures have no printed numbers; their claims are checked. λ, κ and ε are chosen by errors of held-out training curves. One thread.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from claims import Claim, claim, heading, note, row, run_experiments
from scipy.linalg import solve_sylvester
from scipy.spatial.distance import cdist

import ovkgp
from ovkgp.datasets import (
    add_outlying_curves,
    corrupt_points,
    drop_points,
    make_lip_curves,
    make_mixture_curves,
    make_spline_curves,
    negate_curves,
    permute_curves,
)
from ovkgp.functional import Fourier, FunctionalData, RandomProcesses
from ovkgp.kernels import GaussianCurveKernel
from ovkgp.losses import Huber, LogCosh

ROOT2 = math.sqrt(2)
MIXTURE = {"lengthscale": 1 / math.sqrt(0.02), "output_kernel": "rbf", "output_lengthscale": 1 / math.sqrt(200)}
"""Kernels exp(−.01 d²) of inputs and exp(−100 d²) along curves, of the mixtures of Gaussian processes (chapter 7)."""
LOOSE = 1e-3  # relative duality gap at which fits end


def choose(
    fit: Callable, candidates: Iterable, X: np.ndarray, Y: np.ndarray, *, average: Callable = np.median, folds: int = 1
):
    """Fit with the candidate of the smallest error of held-out curves, averaged over curves.

    `fit(candidate, X, Y)` returns a function that predicts curves. One fifth of the curves is held out `folds` times.
    """
    candidates = list(candidates)
    if len(candidates) == 1:
        return fit(candidates[0], X, Y)
    parts, errors = np.random.default_rng(0).permutation(len(X)) % 5, []
    for candidate in candidates:
        found = []
        for part in range(folds):
            train, test = parts != part, parts == part
            predicted = fit(candidate, X[train], Y[train])(X[test])
            found += [np.nanmean(np.square(predicted - Y[test]), 1)]
        errors.append(average(np.concatenate(found)))
    return fit(candidates[int(np.argmin(errors))], X, Y)


def normalized_error(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean squared error over the variance of the truth."""
    return float(np.square(predicted - truth).mean() / truth.var())


def interpolate(Y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Fill gaps linearly."""
    return FunctionalData(Y, grid).resample(grid, extrapolate=True).values if np.isnan(Y).any() else Y


# --- Fig. 5.4 ---------------------------------------------------------------------------------------------------------


def spline_fits(grid: np.ndarray, input_grid: np.ndarray, step: int) -> dict[str, tuple[Callable, Sequence]]:
    """Return functions that fit each estimator at one λ, and candidates for λ."""
    shared, lams = {"lengthscale": 20 / ROOT2}, np.geomspace(1e-8, 1e-3, 6)
    fourier = {"dictionary": Fourier(15), **shared}

    def kpl(lam, X, Y, **options):
        return ovkgp.KernelProjectionRegressor(**fourier, lam=lam, **options).fit(X, Y, grid).predict

    def fkrr(lam, X, Y):
        return ovkgp.FunctionalRidge("laplace", 0.5, lam=lam, **shared).fit(X, interpolate(Y, grid), grid).predict

    def triple(lam, X, Y):
        options = {"dictionary": Fourier(15), "lengthscale": 3 / ROOT2, "random_state": 0, "method": "plug_in"}
        model = ovkgp.TripleBasisRegressor(Fourier(10, (0.0, 5.0)), lam=lam, **options)
        model.fit(FunctionalData(X, input_grid), interpolate(Y, grid), grid)
        return lambda new: model.predict(FunctionalData(new, input_grid))

    def additive(lam, X, Y):
        widths = {
            "position_lengthscale": 0.2 / ROOT2,
            "output_lengthscale": 0.1 / ROOT2,
            "value_lengthscale": 2.5 / ROOT2,
        }
        model = ovkgp.KernelAdditiveRegressor(20, lam=lam, **widths)
        model.fit(FunctionalData(X[:, ::step], input_grid[::step]), interpolate(Y, grid), grid)
        return lambda new: model.predict(FunctionalData(new[:, ::step], input_grid[::step]))

    log_cosh = partial(kpl, loss=LogCosh(25.0), tolerance=1e-3)
    return {
        "KPL exact": (kpl, lams),
        "KPL plug-in": (partial(kpl, method="plug_in"), lams),
        "KPL log-cosh": (log_cosh, np.geomspace(1e-6, 1e-2, 5)),
        "3BE": (triple, lams),
        "KAM": (additive, np.geomspace(1e-9, 1e-5, 3)),
        "FKRR": (fkrr, lams),
    }


def fig54(
    num_train: int = 200, num_test: int = 300, runs: int = 1, additive_step: int = 8, levels: Sequence[int] = (0, 1, 2)
) -> list[Claim]:
    """Compare estimators with corrupted training curves."""
    rng_seed = 100
    corruptions = {
        "local outliers": ((0.0, 0.1, 0.3), lambda Y, t, s: corrupt_points(Y, t, random_state=s)[0]),
        "wrong labels": ((0.0, 0.1, 0.3), lambda Y, t, s: permute_curves(Y, t, random_state=s)[0]),
        "missing values": ((0.0, 0.5, 0.8), lambda Y, t, s: drop_points(Y, t, random_state=s)[0]),
        "noise": ((0.0, 0.5, 1.5), lambda Y, t, s: Y + t * np.random.default_rng(s).standard_normal(Y.shape)),
    }
    errors = {}
    for title, (amounts, corrupt) in corruptions.items():
        amounts = [amounts[i] for i in levels]
        columns = [f"{amount:g}" for amount in amounts]
        heading(f"Fig. 5.4, {title}: mean squared error, n = {num_train}, {runs} runs", "estimator", *columns)
        for name in spline_fits(np.zeros(1), np.zeros(1), 1):
            errors[title, name] = np.zeros(len(amounts))
        for run in range(runs):
            sample = make_spline_curves(num_train + num_test, random_state=rng_seed + run)
            X, test = sample.X[:num_train], slice(num_train, None)
            for index, amount in enumerate(amounts):
                Y = corrupt(sample.Y[:num_train], amount, run)
                for name, (fit, lams) in spline_fits(sample.grid, sample.input_grid, additive_step).items():
                    predicted = choose(fit, lams, X, Y)(sample.X[test])
                    errors[title, name][index] += np.square(predicted - sample.truth[test]).mean() / runs
        for name in spline_fits(np.zeros(1), np.zeros(1), 1):
            row(name, *(f"{value:.4f}" for value in errors[title, name]))
    last = {key: values[-1] for key, values in errors.items()}

    def smallest(title: str, names: Sequence[str], others: Sequence[str]) -> bool:
        return max(last[title, name] for name in names) < min(last[title, name] for name in others)

    ridge = ("KPL exact", "KPL plug-in", "3BE", "KAM", "FKRR")
    claims = [
        claim(f"{t}: log-cosh has the smallest error", smallest(t, ["KPL log-cosh"], ridge))
        for t in ("local outliers", "wrong labels")
    ]
    gaps = "missing values"
    claims.append(
        claim("missing values: FKRR has the smallest error", smallest(gaps, ["FKRR"], [*ridge[:-1], "KPL log-cosh"]))
    )
    claims.append(
        claim(
            "missing values: exact KPL has at most half of the error of plug-in KPL",
            2 * last[gaps, "KPL exact"] < last[gaps, "KPL plug-in"],
        )
    )
    flat = errors[gaps, "FKRR"]
    claims.append(
        claim(
            f"missing values: the error of FKRR is nearly constant (grows {flat[-1] / flat[0]:.2f} times)",
            flat[-1] < 2 * flat[0],
        )
    )
    claims.append(
        claim(
            "noise: dictionary estimators have smaller errors than FKRR and KAM",
            smallest("noise", ridge[:3], ["FKRR", "KAM"]),
        )
    )
    return claims


# --- Fig. 7.5 to 7.7 --------------------------------------------------------------------------------------------------


def mixture(num_curves: int, seed: int, num_points: int = 100):
    """Return the grid, inputs and outputs of training curves, and inputs and outputs of test curves."""
    sample = make_mixture_curves(2 * num_curves, num_points=num_points, amplitude=0.75, random_state=seed)
    train, test = slice(0, num_curves), slice(num_curves, None)
    return sample.grid, sample.X[train], sample.Y[train], sample.X[test], sample.truth[test]


def fit_square(lam: float, X: np.ndarray, Y: np.ndarray, *, grid: np.ndarray, kernels=MIXTURE) -> Callable:
    return ovkgp.FunctionalRidge(lam=lam, **kernels).fit(X, Y, grid).predict


def fit_huber(candidate, X: np.ndarray, Y: np.ndarray, *, grid: np.ndarray, p: int, kernels=MIXTURE) -> Callable:
    lam, kappa = candidate
    model = ovkgp.RobustFunctionalRegressor(lam=lam, p=p, kappa=kappa, tolerance=LOOSE, **kernels)
    return model.fit(X, Y, grid).predict


def fig75(num_curves: int = 100, num_points: int = 100, noise: float = 0.5, runs: int = 2) -> list[Claim]:
    """Compute errors and sparsity of ε-insensitive losses over λ and ε."""
    lams, epsilons = np.geomspace(1e-5, 1e-2, 4), (0.0, 0.1, 0.3, 0.6, 1.0)
    claims = []
    for p, name in ((2, "ℓ²"), (math.inf, "ℓ∞")):
        errors, sparsity = np.zeros((4, len(epsilons))), np.zeros((4, len(epsilons)))
        for run in range(runs):
            grid, X, Y, new, truth = mixture(num_curves, 65 + run, num_points)
            Y = Y + noise * np.random.default_rng(run).standard_normal(Y.shape)
            for i, lam in enumerate(lams):
                for j, epsilon in enumerate(epsilons):
                    if epsilon == 0:
                        predict = fit_square(lam, X, Y, grid=grid)
                    else:
                        options = {"loss": "insensitive", "p": p, "epsilon": epsilon, "tolerance": LOOSE}
                        model = ovkgp.RobustFunctionalRegressor(lam=lam, **options, **MIXTURE).fit(X, Y, grid)
                        predict, sparsity[i, j] = model.predict, sparsity[i, j] + model.sparsity_ / runs
                    errors[i, j] += normalized_error(predict(new), truth) / runs
        heading(
            f"Fig. 7.5, {name}, noise {noise:g}: normalized error (fraction of dual variables that are 0), {runs} runs",
            "λ",
            *(f"ε = {epsilon:g}" for epsilon in epsilons),
        )
        for lam, some, zeros in zip(lams, errors, sparsity, strict=True):
            row(f"{lam:.0e}", *(f"{e:.3f} ({z:.2f})" for e, z in zip(some, zeros, strict=True)))
        claims.append(
            claim(f"{name}: sparsity grows with ε at every λ", bool((np.diff(sparsity, axis=1) >= -0.01).all()))
        )
        best = errors[:, 0].min()
        free = sparsity[errors <= 1.05 * best].max()
        claims.append(
            claim(
                f"{name}: {100 * free:.0f} % of dual variables can be 0 at an error within 5 % of the best square loss",
                free > 0.1,
            )
        )
        claims.append(
            claim(
                f"{name}: at the smallest λ some ε > 0 has a smaller error than the square loss",
                errors[0, 1:].min() < errors[0, 0],
            )
        )
    return claims


def fig76(num_curves: int = 100, num_points: int = 100, runs: int = 2, only_largest: bool = False) -> list[Claim]:
    """Compare square and Huber losses with outlying curves (type 2) and values (type 3)."""
    sweeps = {
        "type 2, intensity ζ at τ = .1": (
            (0.0, 2.0, 4.0),
            lambda Y, t, s: add_outlying_curves(Y, 0.1, t, random_state=s)[0],
        ),
        "type 2, fraction τ at ζ = 3": (
            (0.0, 0.1, 0.2),
            lambda Y, t, s: add_outlying_curves(Y, t, 3.0, random_state=s)[0],
        ),
        "type 3, fraction τ at ξ = .1": (
            (0.0, 0.5, 1.0),
            lambda Y, t, s: corrupt_points(Y, 0.1, curve_fraction=t, kind="symmetric", random_state=s)[0],
        ),
        "type 3, fraction ξ at τ = 1": (
            (0.0, 0.15, 0.3),
            lambda Y, t, s: corrupt_points(Y, t, kind="symmetric", random_state=s)[0],
        ),
    }
    lams, kappas = np.geomspace(1e-6, 1e-3, 4), np.geomspace(1e-3, 1e-1, 4)
    pairs, claims, last = [(lam, kappa) for lam in lams for kappa in kappas], [], {}
    for title, (amounts, corrupt) in sweeps.items():
        amounts = amounts[-1:] if only_largest else amounts
        errors = {"square": np.zeros(len(amounts)), "H2": np.zeros(len(amounts)), "H1": np.zeros(len(amounts))}
        for run in range(runs):
            grid, X, clean, new, truth = mixture(num_curves, 65 + run, num_points)
            for index, amount in enumerate(amounts):
                Y = corrupt(clean, amount, run)
                found = {
                    "square": choose(partial(fit_square, grid=grid), np.geomspace(1e-6, 1e-2, 9), X, Y),
                    "H2": choose(partial(fit_huber, grid=grid, p=2), pairs, X, Y),
                    "H1": choose(partial(fit_huber, grid=grid, p=1), pairs, X, Y),
                }
                for name, predict in found.items():
                    errors[name][index] += normalized_error(predict(new), truth) / runs
        heading(f"Fig. 7.6, {title}: normalized error, {runs} runs", "loss", *(f"{amount:g}" for amount in amounts))
        for name, values in errors.items():
            row(name, *(f"{value:.4f}" for value in values))
        last[title] = {name: values[-1] for name, values in errors.items()}
    for title, values in last.items():
        square, H2, H1 = values.values()
        if title.startswith("type 2"):
            claims.append(
                claim(
                    f"{title}: both Huber losses have less than half of the error of the square loss",
                    2 * max(H1, H2) < square,
                )
            )
        else:
            claims.append(claim(f"{title}: H1 has less than half of the error of the square loss", square > 2 * H1))
            claims.append(
                claim(f"{title}: H2 gains less than H1 ({square / H2:.1f} and {square / H1:.1f} times)", H2 > H1)
            )
    return claims


def fig77(num_curves: int = 100, num_points: int = 100, runs: int = 2) -> list[Claim]:
    """Compute errors of Huber losses over λ and κ with outlying curves."""
    lams, kappas = np.geomspace(1e-6, 1e-3, 4), np.array([0.01, 0.03, 0.1, 0.3, 100.0])
    claims = []
    for p in (2, 1):
        errors, square = np.zeros((len(lams), len(kappas))), np.zeros(len(lams))
        for run in range(runs):
            grid, X, clean, new, truth = mixture(num_curves, 65 + run, num_points)
            Y = add_outlying_curves(clean, 0.1, 3.0, random_state=run)[0]
            center = np.median(Y, 0)  # the intercept of the Huber losses
            for i, lam in enumerate(lams):
                ridge = ovkgp.FunctionalRidge(lam=lam, fit_intercept=False, **MIXTURE).fit(X, Y - center, grid)
                square[i] += normalized_error(center + ridge.predict(new), truth) / runs
                for j, kappa in enumerate(kappas):
                    predicted = fit_huber((lam, kappa), X, Y, grid=grid, p=p)(new)
                    errors[i, j] += normalized_error(predicted, truth) / runs
        columns = (f"κ = {kappa:g}" for kappa in kappas)
        heading(f"Fig. 7.7, H{p}, 10 % outlying curves: normalized error, {runs} runs", "λ", *columns, "square")
        for lam, values, one in zip(lams, errors, square, strict=True):
            row(f"{lam:.0e}", *values, one)
        claims.append(
            claim(
                f"H{p}: at the largest κ the error is that of the square loss",
                np.allclose(errors[:, -1], square, rtol=0.02),
            )
        )
        claims.append(
            claim(
                f"H{p}: at every λ some κ has a smaller error than the square loss",
                bool((errors.min(1) < square).all()),
            )
        )
        claims.append(
            claim(
                f"H{p}: the best error is less than half of the best of the square loss",
                errors.min() < square.min() / 2,
            )
        )
    return claims


# --- chapter 8 --------------------------------------------------------------------------------------------------------


def fig81(
    num_curves: int = 100, sizes: Sequence[int] = (1, 5, 20, 50, 100), runs: int = 2, limit: float = 0.05
) -> list[Claim]:
    """Compare a redundant dictionary with its effective rank (BO-80), and with the Sylvester equation of all functions."""
    names, lams = ("all functions", "effective rank", "Sylvester"), np.geomspace(1e-8, 1e-3, 6)
    heading(f"Fig. 8.1: normalized error and CPU seconds of one fit, {runs} runs", "functions", *names)
    errors, seconds = np.zeros((len(sizes), 3)), np.zeros((len(sizes), 3))
    for i, size in enumerate(sizes):
        for run in range(runs):
            grid, X, Y, new, truth = mixture(num_curves, 65 + run)
            dictionary = RandomProcesses(size, random_state=run)
            options = {"dictionary": dictionary, "lengthscale": MIXTURE["lengthscale"]}
            threshold = 5e-5 * dictionary.num_functions
            fits = (
                lambda lam, X, Y, o=options, g=grid: ovkgp.KernelProjectionRegressor(**o, lam=lam).fit(X, Y, g).predict,
                lambda lam, X, Y, o=options, g=grid, t=threshold: (
                    ovkgp.KernelProjectionRegressor(**o, rank_threshold=t, lam=lam).fit(X, Y, g).predict
                ),
                lambda lam, X, Y, d=dictionary, g=grid: solve_naively(d(g), X, Y, lam),
            )
            for j, fit in enumerate(fits):
                predict = choose(fit, lams, X, Y, average=np.mean)
                start = time.process_time()
                fit(1e-6, X, Y)
                seconds[i, j] += (time.process_time() - start) / runs
                errors[i, j] += normalized_error(predict(new), truth) / runs
        row(f"{9 * size}", *(f"{e:.4f} in {s:.3f} s" for e, s in zip(errors[i], seconds[i], strict=True)))
    ratio = errors[-1, 1] / errors[-1, 0]
    growth = seconds[-1, 2] / seconds[-1, 1]
    return [
        claim(
            f"{9 * sizes[-1]} functions: the effective rank has {ratio:.3f} times the error of all functions",
            ratio < 1 + limit,
        ),
        claim(
            f"{9 * sizes[-1]} functions: the Sylvester equation takes {growth:.0f} times the CPU seconds", growth > 3
        ),
        claim("errors fall from the smallest to the largest dictionary", errors[-1, 1] < errors[0, 1]),
    ]


def solve_naively(Phi: np.ndarray, X: np.ndarray, Y: np.ndarray, lam: float) -> Callable:
    """Solve G A K + nλA = V, that is G A + A nλK⁻¹ = V K⁻¹, with all functions Φ (m, d) and no structure."""
    mean, gamma = Y.mean(0), 1 / (2 * MIXTURE["lengthscale"] ** 2)
    K = np.exp(-gamma * cdist(X, X, "sqeuclidean")) + 1e-10 * np.eye(len(X))
    inverse = np.linalg.inv(K)
    G, V = Phi.T @ Phi / len(Phi), Phi.T @ (Y - mean).T / len(Phi)
    A = solve_sylvester(G, len(X) * lam * inverse, V @ inverse)
    return lambda new: mean + np.exp(-gamma * cdist(new, X, "sqeuclidean")) @ A.T @ Phi.T


def fig83(num_curves: int = 100, num_per_scale: int = 40, runs: int = 1, num_lams: int = 7) -> list[Claim]:
    """Select functions of a redundant dictionary."""
    shares = np.geomspace(3e-3, 0.3, num_lams)  # of the smallest λ without functions
    errors, counts, seconds = np.zeros(num_lams), np.zeros(num_lams), 0.0
    for run in range(runs):
        grid, X, Y, new, truth = mixture(num_curves, 65 + run)
        options = {"lengthscale": MIXTURE["lengthscale"], "features": "nystrom", "num_features": 100, "random_state": 0}
        dictionary = RandomProcesses(num_per_scale, random_state=run)
        make = partial(ovkgp.FeatureProjectionRegressor, dictionary, penalty="group", tolerance=LOOSE, **options)
        lam_max = make(lam=1e3).fit(X, Y, grid).lam_max_
        start = time.process_time()
        for i, share in enumerate(shares):
            model = make(lam=share * lam_max).fit(X, Y, grid)
            errors[i] += normalized_error(model.predict(new), truth) / runs
            counts[i] += len(model.selected_) / runs
        seconds += (time.process_time() - start) / runs
    heading(
        f"Fig. 8.3: functions selected out of {9 * num_per_scale}, {runs} runs",
        "λ / λ_max",
        "functions",
        "normalized error",
    )
    for share, count, error in zip(shares, counts, errors, strict=True):
        row(f"{share:.0e}", f"{count:.0f}", f"{error:.4f}")
    note(f"{seconds:.1f} CPU seconds for {num_lams} λ")
    close = counts[errors <= errors.min() + 0.01].min()
    return [
        claim(f"{close:.0f} of {9 * num_per_scale} functions have an error within .01 of the best", close <= 60),
        claim("fewer functions are selected at larger λ", bool((np.diff(counts) <= 0.02 * 9 * num_per_scale).all())),
    ]


def fig84(num_curves: int = 100, num_points: int = 100, runs: int = 2) -> list[Claim]:
    """Compare square and Huber losses of features and a Fourier dictionary with outlying curves and values."""
    cases = {
        "clean": lambda Y, s: Y,
        "type 2, τ = .1, ζ = 4": lambda Y, s: add_outlying_curves(Y, 0.1, 4.0, random_state=s)[0],
        "type 3, τ = 1, ξ = .1": lambda Y, s: corrupt_points(Y, 0.1, kind="symmetric", random_state=s)[0],
    }
    options = {"lengthscale": MIXTURE["lengthscale"], "features": "nystrom", "num_features": 80, "random_state": 0}
    heading(f"Fig. 8.4: normalized error with 79 Fourier functions, {runs} runs", "case", "square", "H1")
    errors = {}
    for title, corrupt in cases.items():
        errors[title] = np.zeros(2)
        for run in range(runs):
            grid, X, clean, new, truth = mixture(num_curves, 65 + run, num_points)
            Y = corrupt(clean, run)

            def square(lam, X, Y, grid=grid):
                model = ovkgp.FeatureProjectionRegressor(Fourier(40), lam=lam, **options)
                return model.fit(X, Y, grid).predict

            def huber(candidate, X, Y, grid=grid):
                lam, kappa = candidate
                robust = {"loss": Huber(kappa), "tolerance": LOOSE}
                model = ovkgp.FeatureProjectionRegressor(Fourier(40), lam=lam, **options, **robust)
                return model.fit(X, Y, grid).predict

            pairs = [(lam, kappa) for lam in np.geomspace(1e-6, 1e-4, 3) for kappa in (0.01, 0.03, 0.1)]
            found = choose(square, np.geomspace(1e-6, 1e-2, 7), X, Y), choose(huber, pairs, X, Y)
            errors[title] += [normalized_error(predict(new), truth) / runs for predict in found]
        row(title, *(f"{value:.4f}" for value in errors[title]))
    _, outlying, local = errors.values()
    return [
        claim("outlying curves: H1 has less than half of the error of the square loss", outlying[1] < outlying[0] / 2),
        claim("outlying values: H1 has less than half of the error of the square loss", local[1] < local[0] / 2),
    ]


# --- Lambert's thesis -------------------------------------------------------------------------------------------------


def lt130(
    num_curves: int = 32, num_points: int = 60, num_outliers: int = 4, scales: Sequence[float] = (0.5, 1.0, 2.0, 5.0)
) -> list[Claim]:
    """Compute leave-one-out errors of simulated lip movements over κ, with negated curves among the training curves."""
    sample = make_lip_curves(num_curves, num_points=num_points, random_state=0)
    grid, X, truth = sample.grid, sample.X, sample.truth
    fractions = np.array([0.01, 0.03, 0.1, 0.3, 1.2])  # of the κ from which the loss is square
    kernels = {"lengthscale": "median", "output_kernel": "rbf", "output_lengthscale": 1 / math.sqrt(2 * 50)}
    claims = []
    columns = (*(f"{f:g} κ_max" for f in fractions), "square")
    heading("Fig. 4.6 (LT-130), simulated lip movements: leave-one-out error over the variance, H1", "s", *columns)
    for scale in scales:
        Y, mask = negate_curves(sample.Y, num_outliers / num_curves, scale=scale, shift=False, random_state=1)
        center = np.median(Y, 0)
        ridge = ovkgp.FunctionalRidge(lam=np.geomspace(1e-6, 1e-1, 12), **kernels).fit(X, Y, grid)
        residuals = np.abs(
            Y
            - center
            - ovkgp.FunctionalRidge(lam=ridge.lam_, fit_intercept=False, **kernels).fit(X, Y - center, grid).predict(X)
        )
        errors = np.zeros(len(fractions) + 1)
        for held_out in np.flatnonzero(~mask):
            train = np.arange(num_curves) != held_out
            new, target = X[held_out : held_out + 1], truth[held_out]
            for i, fraction in enumerate(fractions):
                predict = fit_huber(
                    (ridge.lam_, fraction * residuals.max()), X[train], Y[train], grid=grid, p=1, kernels=kernels
                )
                errors[i] += np.square(predict(new)[0] - target).mean()
            middle = np.median(Y[train], 0)
            model = ovkgp.FunctionalRidge(lam=ridge.lam_, fit_intercept=False, **kernels).fit(
                X[train], Y[train] - middle, grid
            )
            errors[-1] += np.square(middle + model.predict(new)[0] - target).mean()
        errors /= (~mask).sum() * truth.var()
        row(f"{scale:g}", *errors)
        claims.append(
            claim(
                f"s = {scale:g}: some κ has a smaller error than the square loss ({errors[:-1].min():.3f} and {errors[-1]:.3f})",
                errors[:-1].min() < errors[-1],
            )
        )
        claims.append(
            claim(
                f"s = {scale:g}: from κ_max on the error is that of the square loss",
                abs(errors[-2] / errors[-1] - 1) < 0.05,
            )
        )
    return claims


def lt131(
    num_inliers: int = 250,
    num_outliers: int = 25,
    scales: Sequence[float] = (2.0, 4.0, 6.0, 10.0),
    num_points: int = 60,
) -> list[Claim]:
    """Compare square and Huber losses where outliers have other inputs than the test curves."""
    sample = make_mixture_curves(
        2 * num_inliers, num_points=num_points, amplitude=2.0, input_noise=0.1, noise=0.1, random_state=0
    )
    grid, train, test = sample.grid, slice(0, num_inliers), slice(num_inliers, None)
    kernel = GaussianCurveKernel()
    kernel.lengthscale = 1 / math.sqrt(2 * 0.1)
    kernels = {"kernel": kernel, "output_kernel": "rbf", "output_lengthscale": 1 / math.sqrt(2 * 40)}
    columns = "square", "H1", "H2", "zero curve"
    heading(f"Fig. 4.7 (LT-131): squared error, {num_inliers} curves and {num_outliers} outliers", "s", *columns)
    ratios = []
    for scale in scales:
        outliers = make_mixture_curves(
            num_outliers, num_points=num_points, amplitude=scale, lengthscales=(0.01, 0.1, 1.0, 4.0), random_state=1
        )
        X, Y = np.concatenate([sample.X[train], outliers.X]), np.concatenate([sample.Y[train], outliers.Y])
        lam = ovkgp.FunctionalRidge(lam=np.geomspace(1e-7, 1e-2, 11), **kernels).fit(X, Y, grid).lam_
        found = [fit_square(lam, X, Y, grid=grid, kernels=kernels)]
        for p in (1, 2):
            option = {"kappa": list(np.geomspace(0.02, 2.0, 5)), "p": p, "tolerance": LOOSE}
            found.append(ovkgp.RobustFunctionalRegressor(lam=lam, **option, **kernels).fit(X, Y, grid).predict)
        errors = [np.square(predict(sample.X[test]) - sample.truth[test]).mean() for predict in found]
        row(f"{scale:g}", *(f"{one:.4f}" for one in (*errors, np.square(sample.truth[test]).mean())))
        ratios.append(min(errors[1:]) / errors[0])
    text = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return [
        claim(
            f"Huber losses have between half and 1.1 times the error of a tuned square loss ({text} times): a small gain",
            all(0.5 < one < 1.1 for one in ratios),
        )
    ]


def lt132(num_curves: int = 32, num_points: int = 60, scales: Sequence[float] = (0.2, 0.5, 0.8, 1.2)) -> list[Claim]:
    """Compute leave-one-out errors of simulated lip movements and sparsity over ε, with outlying values in half of the curves."""
    sample = make_lip_curves(num_curves, num_points=num_points, random_state=0)
    grid, X, truth, size = sample.grid, sample.X, sample.truth, sample.truth.std()
    epsilons = (0.1, 0.4, 0.7, 1.0)  # in standard deviations of the curves, as the scales
    columns = (f"ε = {epsilon:g}" for epsilon in epsilons)
    heading(
        "Fig. 4.8 (LT-132), simulated lip movements: leave-one-out error over the variance (fraction of dual curves that are 0)",
        *("s", "square", *columns),
    )
    errors, sparsity = np.zeros((len(scales), len(epsilons) + 1)), np.zeros((len(scales), len(epsilons)))
    kernels = {"lengthscale": "median", "output_kernel": "rbf", "output_lengthscale": 1 / math.sqrt(2 * 50)}
    for i, scale in enumerate(scales):
        outliers = {"curve_fraction": 0.5, "kind": "additive", "scale": scale * size, "random_state": i}
        Y = corrupt_points(sample.Y, 0.2, **outliers)[0]
        lam = ovkgp.FunctionalRidge(lam=np.geomspace(1e-6, 1e-1, 12), **kernels).fit(X, Y, grid).lam_
        models = [ovkgp.FunctionalRidge(lam=lam, **kernels)]
        for epsilon in epsilons:
            options = {"loss": "insensitive", "p": 2, "epsilon": epsilon * size, "tolerance": LOOSE}
            models.append(ovkgp.RobustFunctionalRegressor(lam=lam, **options, **kernels))
        for j, model in enumerate(models):
            for held_out in range(num_curves):
                train = np.arange(num_curves) != held_out
                predicted = model.fit(X[train], Y[train], grid).predict(X[[held_out]])[0]
                errors[i, j] += np.square(predicted - truth[held_out]).mean() / (num_curves * truth.var())
            if j:
                sparsity[i, j - 1] = model.sparsity_
        cells = (f"{e:.4f} ({z:.2f})" for e, z in zip(errors[i, 1:], sparsity[i], strict=True))
        row(f"{scale:g}", f"{errors[i, 0]:.4f}", *cells)
    return [
        claim("lip movements: the error is larger at the largest ε", bool((errors[:, -1] > errors[:, 0]).all())),
        claim("lip movements: sparsity grows with ε", bool((np.diff(sparsity, axis=1) >= -0.01).all())),
        claim(
            "lip movements: the size of the outliers has little influence (up to a tenth of the variance)",
            bool((np.ptp(errors, axis=0) < 0.1).all()),
        ),
    ]


def lt133(num_curves: int = 100, num_points: int = 60, scales: Sequence[float] = (0.4, 1.2, 1.7)) -> list[Claim]:
    """Compute errors and sparsity of the ε-insensitive loss of curves over ε, with outlying values."""
    sample = make_mixture_curves(2 * num_curves, num_points=num_points, amplitude=2.0, random_state=0)
    grid, train, test = sample.grid, slice(0, num_curves), slice(num_curves, None)
    epsilons = (0.05, 0.25, 0.5, 1.0)
    columns = (f"ε = {epsilon:g}" for epsilon in epsilons)
    heading("Fig. 4.9 (LT-133): normalized error (fraction of dual curves that are 0)", "s", "square", *columns)
    errors, sparsity = np.zeros((len(scales), len(epsilons) + 1)), np.zeros((len(scales), len(epsilons)))
    kernel = GaussianCurveKernel()
    kernel.lengthscale = 1 / math.sqrt(2 * 0.1)
    kernels = {"kernel": kernel, "output_kernel": "rbf", "output_lengthscale": 1 / math.sqrt(2 * 40)}
    for i, scale in enumerate(scales):
        Y = corrupt_points(sample.Y[train], 0.2, curve_fraction=0.5, kind="additive", scale=scale, random_state=i)[0]
        ridge = ovkgp.FunctionalRidge(lam=np.geomspace(1e-7, 1e-2, 11), **kernels).fit(sample.X[train], Y, grid)
        errors[i, 0] = normalized_error(ridge.predict(sample.X[test]), sample.truth[test])
        for j, epsilon in enumerate(epsilons):
            options = {"loss": "insensitive", "p": 2, "epsilon": epsilon, "tolerance": LOOSE}
            model = ovkgp.RobustFunctionalRegressor(lam=ridge.lam_, **options, **kernels).fit(sample.X[train], Y, grid)
            errors[i, j + 1] = normalized_error(model.predict(sample.X[test]), sample.truth[test])
            sparsity[i, j] = model.sparsity_
        cells = (f"{e:.4f} ({z:.2f})" for e, z in zip(errors[i, 1:], sparsity[i], strict=True))
        row(f"{scale:g}", f"{errors[i, 0]:.4f}", *cells)
    return [
        claim("the error grows with ε", bool((np.diff(errors[:, 1:], axis=1) >= -1e-4).all())),
        claim("sparsity grows with ε", bool((np.diff(sparsity, axis=1) >= -0.01).all())),
        claim(
            "at the largest ε the error depends little on the size of the outliers",
            np.ptp(errors[:, -1]) < 0.5 * errors[:, -1].mean(),
        ),
    ]


EXPERIMENTS = {
    "fig54": fig54,
    "fig75": fig75,
    "fig76": fig76,
    "fig77": fig77,
    "fig81": fig81,
    "fig83": fig83,
    "fig84": fig84,
    "lt130": lt130,
    "lt131": lt131,
    "lt132": lt132,
    "lt133": lt133,
}
QUICK = {
    "fig54": {"num_train": 60, "num_test": 60, "runs": 1, "additive_step": 20, "levels": (0, 2)},
    "fig75": {"num_curves": 40, "num_points": 40, "runs": 1},
    "fig76": {"num_curves": 40, "num_points": 40, "runs": 1, "only_largest": True},
    "fig77": {"num_curves": 40, "num_points": 40, "runs": 1},
    "fig81": {"num_curves": 50, "sizes": (1, 5, 40), "runs": 1},
    "fig83": {"num_curves": 50, "num_per_scale": 10, "runs": 1, "num_lams": 4},
    "fig84": {"num_curves": 40, "num_points": 40, "runs": 1},
    "lt130": {"num_curves": 16, "num_points": 30, "num_outliers": 2, "scales": (1.0, 5.0)},
    "lt131": {"num_inliers": 60, "num_outliers": 6, "scales": (2.0, 10.0), "num_points": 30},
    "lt132": {"num_curves": 12, "num_points": 30, "scales": (0.2, 1.2)},
    "lt133": {"num_curves": 40, "num_points": 30, "scales": (0.4, 1.7)},
}
"""Options that differ from the defaults of the experiments."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *EXPERIMENTS], help="experiments; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, less than a minute")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    run_experiments(
        (
            (name, partial(EXPERIMENTS[name], **(QUICK[name] if options.quick else {})))
            for name in options.names or EXPERIMENTS
        ),
        strict=not options.quick,
    )


if __name__ == "__main__":
    main()
