"""Speech inversion: vocal tract curves from cepstral coefficients of synthetic words (Fig. 5.7, 8.2, Tables 7.4, 7.5 of Bouche's thesis).

    python benchmarks/functional_speech.py [fig57] [table74] [table75] [fig82] [bands] [--splits 2] [--curves LP LA …] [--quick]

413 words: 13 cepstral coefficients (windows of 10 ms every 5 ms) predict each of eight curves. Words are extended to the longest one by
reflection; outputs are scaled to [−1, 1] with the training minimum and maximum; the error of a curve is the sum of squares over its
original frames. The thesis has 250/163 words and 10 splits (Tables), or 300/113 (Fig. 5.7); its splits are unknown. All options are
chosen on training words: kernel width and λ by leave-one-out errors of the square loss, λ, κ and ε of other losses by the mean error of
two fifths of the training words (the median, which the thesis has with outliers, favors constants, since most words hardly move the
lips). `bands` is the coverage of `FunctionGPRegressor`. Robust fits use every third frame. Data: folder `speech` of the
environment variable OVKGP_DATA. One thread.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from claims import Claim, claim, heading, note, row, run_experiments
from functional_toys import choose
from gpytorch.kernels import LinearKernel, ScaleKernel
from scipy.fft import dct, rfft

import ovkgp
from ovkgp.datasets import corrupt_points, negate_curves
from ovkgp.estimators.functional.coordinates import project_curves
from ovkgp.functional import Fourier, FunctionalData, Learned
from ovkgp.kernels import GaussianCurveKernel

NAMES = ("LP", "LA", "TBCL", "TBCD", "VEL", "GLO", "TTCL", "TTCD")  # published labels of the first eight rows
PRINTED_CLEAN = {
    "square": (6.58, 4.65, 4.26, 4.67, 2.94, 7.25, 3.76, 5.93),
    "H2": (6.59, 4.65, 4.26, 4.68, 2.94, 7.26, 3.76, 5.94),
    "H1": (6.59, 4.66, 4.27, 4.70, 2.95, 7.25, 3.74, 5.93),
    "l2": (6.58, 4.64, 4.26, 4.67, 2.94, 7.25, 3.73, 5.92),
    "linf": (6.58, 4.64, 4.26, 4.67, 2.94, 7.25, 3.73, 5.92),
}
PRINTED_CONTAMINATED = {
    "type 1": {
        "square": (9.40, 5.72, 6.71, 5.80, 4.37, 9.61, 15.06, 8.15),
        "H2": (9.40, 5.63, 6.14, 5.86, 3.76, 9.51, 9.51, 7.96),
        "H1": (9.19, 5.52, 5.98, 5.83, 3.76, 9.53, 9.48, 8.02),
    },
    "type 3": {
        "square": (7.53, 5.06, 5.06, 5.18, 3.52, 7.94, 5.89, 6.63),
        "H2": (7.62, 5.11, 5.16, 5.26, 3.54, 8.02, 5.91, 6.74),
        "H1": (7.00, 5.09, 4.72, 5.08, 3.41, 7.76, 6.62, 6.36),
    },
}
WIDTHS = (2.0, 3.0, 4.0, 5.0, 7.5, 10.0)  # σ of exp(−‖·‖²/σ²), averaged over frames
LAMS = np.geomspace(1e-10, 1e-5, 16)
OUTPUT = {"output_kernel": "laplace", "output_lengthscale": 0.1}
LOOSE = 1e-3  # relative duality gap at which fits end


# --- data -------------------------------------------------------------------------------------------------------------


def cepstral_coefficients(signal: np.ndarray, rate: int = 10_000, num_coefficients: int = 13) -> np.ndarray:
    """Return mel-frequency cepstral coefficients (frames, 13) of windows of 10 ms every 5 ms; the first is the log energy."""
    window, step, size, num_filters = rate // 100, rate // 200, 512, 26
    signal = np.append(signal[0], signal[1:] - 0.97 * signal[:-1])
    count = 1 + math.ceil(max(len(signal) - window, 0) / step)
    signal = np.pad(signal, (0, (count - 1) * step + window - len(signal)))
    frames = np.lib.stride_tricks.sliding_window_view(signal, window)[::step]
    power = np.abs(rfft(frames, size)) ** 2 / size
    tiny = np.finfo(float).eps
    energies = np.log(np.maximum(power @ mel_filters(num_filters, size, rate).T, tiny))
    coefficients = dct(energies, norm="ortho")[:, :num_coefficients]
    coefficients *= 1 + 11 * np.sin(np.pi * np.arange(num_coefficients) / 22)
    coefficients[:, 0] = np.log(np.maximum(power.sum(1), tiny))
    return coefficients


def mel_filters(count: int, size: int, rate: int) -> np.ndarray:
    """Return triangular filters (count, size / 2 + 1), equidistant on the mel scale."""
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), count + 2)
    edges = np.floor((size + 1) * 700 * (10 ** (mels / 2595) - 1) / rate)
    bins = np.arange(size // 2 + 1)
    low, middle, high = (edges[i : i + count, None] for i in range(3))
    rising, falling = (bins - low) / np.maximum(middle - low, 1), (high - bins) / np.maximum(high - middle, 1)
    return np.clip(np.minimum(rising, falling), 0, None)


class Words(NamedTuple):
    """Inputs (n, m, 13) and outputs (n, m, 8) extended by reflection, and the number of frames (n,)."""

    X: np.ndarray
    Y: np.ndarray
    lengths: np.ndarray


@lru_cache(maxsize=1)
def load_words() -> Words:
    """Read the words without duplicates."""
    folder = Path(os.environ["OVKGP_DATA"]) / "speech"
    audio, tract = np.load(folder / "audio.npz"), np.load(folder / "vocal_tract.npz")
    kept = np.flatnonzero(tract["duplicate_of"] < 0)
    sounds, curves, starts, offsets = audio["data"], tract["data"], audio["offsets"], tract["offsets"]
    longest = int(np.diff(offsets)[kept].max())

    def extend(values: np.ndarray) -> np.ndarray:
        return np.pad(values, ((0, longest - len(values)), (0, 0)), mode="symmetric")

    X = [extend(cepstral_coefficients(sounds[starts[i] : starts[i + 1]].astype(float))) for i in kept]
    Y = [extend(curves[:8, offsets[i] : offsets[i + 1]].T) for i in kept]
    return Words(np.stack(X), np.stack(Y), np.diff(offsets)[kept])


class Split(NamedTuple):
    """Coordinates of the input kernel by width, scaled outputs (n, m, 8) of training and test words, and test lengths."""

    inputs: dict[float, tuple[np.ndarray, np.ndarray]]
    train: np.ndarray
    test: np.ndarray
    lengths: np.ndarray

    def error(self, predicted: np.ndarray, name: str) -> float:
        """Return the squared error summed over the original frames, averaged over words; (k, m) or every third frame."""
        frames = np.arange(self.test.shape[1])
        squares = np.square(predicted - self.test[:, :, NAMES.index(name)])
        return float((squares * (frames < self.lengths[:, None])).sum(1).mean())


@lru_cache(maxsize=2)
def make_split(seed: int, num_train: int, num_test: int | None = None, widths: Sequence[float] = WIDTHS) -> Split:
    """Split words, scale channels and outputs with the training words, and compute kernels.

    Coordinates z of the words have zᵀz' = k(x, x') at training words, and for test words the same with training words, so that
    a linear kernel of z is the kernel of the words in all predictions.
    """
    words = load_words()
    order = np.random.default_rng(seed).permutation(len(words.X))
    train, test = order[:num_train], order[num_train:][:num_test]
    scale = words.X[train].reshape(-1, words.X.shape[2]).std(0, ddof=1)
    X = torch.from_numpy((words.X / scale).reshape(len(words.X), -1))
    low, high = (end(words.Y[train], axis=(0, 1)) for end in (np.min, np.max))
    Y = 2 * (words.Y - low) / (high - low) - 1
    inputs = {}
    for width in widths:
        kernel = GaussianCurveKernel(num_channels=words.X.shape[2]).double()
        kernel.lengthscale = width / math.sqrt(2)
        with torch.no_grad():
            K, new = kernel(X[train]).to_dense().numpy(), kernel(X[test], X[train]).to_dense().numpy()
        values, vectors = np.linalg.eigh(K)
        roots = np.sqrt(np.maximum(values, 1e-12 * values[-1]))
        inputs[width] = vectors * roots, new @ (vectors / roots)
    return Split(inputs, Y[train], Y[test], words.lengths[test])


def linear() -> LinearKernel:
    """Return the kernel zᵀz'."""
    kernel = LinearKernel().double()
    kernel.variance = 1.0
    return kernel


def grid_of(Y: np.ndarray) -> np.ndarray:
    return np.linspace(0, 1, Y.shape[1])


def choose_width(split: Split, Y: np.ndarray, make: Callable) -> tuple[float, object]:
    """Return the width with the smallest leave-one-out error of curves Y (n, m), and its model."""
    fitted = {width: make().fit(inputs[0], Y, grid_of(Y)) for width, inputs in split.inputs.items()}
    best = min(fitted, key=lambda width: fitted[width].path_.loo_error.min())
    return best, fitted[best]


# --- experiments ------------------------------------------------------------------------------------------------------


def fig57(
    splits: int = 2,
    num_train: int = 300,
    num_test: int | None = None,
    names: Sequence[str] = NAMES,
    num_functions: int = 30,
    widths: Sequence[float] = WIDTHS,
) -> list[Claim]:
    """Compare dictionaries with the functional ridge regression."""
    methods = ("learned KPL", "Fourier KPL", "FKRR", "mean curve")
    errors, seconds = np.zeros((len(names), splits, 4)), np.zeros(4)
    for seed in range(splits):
        split = make_split(seed, num_train, num_test, tuple(widths))
        for i, name in enumerate(names):
            Y = split.train[:, :, NAMES.index(name)]
            data = FunctionalData(Y - Y.mean(0), grid_of(Y))
            shared = {"kernel": linear(), "lam": LAMS}
            began = time.process_time()
            learned = Learned(data, num_functions, max_iter=100, tol=1e-4, random_state=0)
            makes = [
                [partial(ovkgp.KernelProjectionRegressor, learned, **shared)],
                [partial(ovkgp.KernelProjectionRegressor, Fourier(F), **shared) for F in (20, 50)],
                [partial(ovkgp.FunctionalRidge, "laplace", s, **shared) for s in (0.05, 0.1)],
            ]
            for j, options in enumerate(makes):
                began = time.process_time() if j else began
                found = [choose_width(split, Y, make) for make in options]
                width, model = min(found, key=lambda pair: held_out_error(pair[1], data))
                errors[i, seed, j] = split.error(model.predict(split.inputs[width][1]), name)
                seconds[j] += (time.process_time() - began) / (len(names) * splits)
            errors[i, seed, 3] = split.error(Y.mean(0), name)
    heading(
        f"Fig. 5.7 (no printed numbers): squared error of a curve, {num_train} words, {splits} splits",
        "curve",
        *methods,
    )
    for name, values in zip(names, errors.mean(1), strict=True):
        row(name, *(f"{value:.2f}" for value in values))
    row("CPU s per curve", *(f"{value:.1f}" for value in seconds[:3]), "-")
    note("KAM is omitted: `KernelAdditiveRegressor` has input curves with one channel.")
    learned, fourier, ridge, mean = errors.mean((0, 1))
    return [
        claim(
            "all estimators have less than half of the error of the mean curve", 2 * max(learned, fourier, ridge) < mean
        ),
        claim(
            f"learned KPL and FKRR are within 5 % of each other ({learned:.2f} and {ridge:.2f})",
            abs(learned / ridge - 1) < 0.05,
        ),
        claim(f"Fourier KPL is not better than the better of both ({fourier:.2f})", fourier > min(learned, ridge)),
    ]


def held_out_error(model, data: FunctionalData) -> float:
    """Return the leave-one-out error of a curve in L², with the part outside of the basis."""
    projected = project_curves(model.coordinates_, data, model.quadrature)
    return float(model.path_.loo_error.min()) * projected.Z.shape[1] + projected.outside / len(data)


def thin(Y: np.ndarray) -> np.ndarray:
    """Keep every third frame."""
    return Y[:, ::3]


def fit_robust(candidate, Z: np.ndarray, Y: np.ndarray, *, frames: np.ndarray, **options) -> Callable:
    """Fit one loss to every third frame; predictions are at all frames."""
    lam, value = candidate
    grid = frames[::3]
    if not options:
        model = ovkgp.FunctionalRidge(kernel=linear(), lam=lam, **OUTPUT).fit(Z, Y, grid)
    else:
        parameter = "kappa" if options.get("loss", "huber") == "huber" else "epsilon"
        options = options | {parameter: value, "tolerance": LOOSE, "max_iter": 3000}
        model = ovkgp.RobustFunctionalRegressor(kernel=linear(), lam=lam, **OUTPUT, **options).fit(Z, Y, grid)
    return lambda new, points=grid: model.predict(new, points)


LOSSES = {
    "square": {},
    "H2": {"p": 2},
    "H1": {"p": 1},
    "l2": {"loss": "insensitive", "p": 2},
    "linf": {"loss": "insensitive", "p": math.inf},
}


def parameters_of(loss: str, lam: float, Z: np.ndarray, Y: np.ndarray) -> list[float]:
    """Return candidates for κ or ε, from the training residuals of the square loss."""
    if loss in ("l2", "linf"):
        return [0.03, 0.1]
    center = np.median(Y, 0)
    model = ovkgp.FunctionalRidge(kernel=linear(), lam=lam, fit_intercept=False, **OUTPUT).fit(
        Z, Y - center, grid_of(Y)
    )
    residuals = np.abs(Y - center - model.predict(Z))
    largest = residuals.max() if loss == "H1" else np.sqrt(np.square(residuals).mean(1)).max()
    return [fraction * float(largest) for fraction in (0.05, 0.2, 0.7)]


def compare_losses(
    split: Split,
    name: str,
    Y: np.ndarray,
    losses: Sequence[str],
    factors: Sequence[float],
) -> list[float]:
    """Return test errors of several losses for training curves Y (n, m).

    The kernel width is that of the square loss, and so is λ₀; λ is one of `factors` times λ₀. κ are fractions of the largest residual of
    the square loss, beyond which a Huber loss is square.
    """
    frames = np.minimum(grid_of(Y), grid_of(Y)[::3][-1])
    make = partial(ovkgp.FunctionalRidge, "laplace", 0.1, kernel=linear(), lam=LAMS)
    width, model = choose_width(split, thin(Y), make)
    inputs, new = split.inputs[width]
    errors = []
    for loss in losses:
        fit = partial(fit_robust, frames=grid_of(Y), **LOSSES[loss])
        candidates = [(factor * model.lam_, 0.0) for factor in factors]
        if loss != "square":
            candidates = [(lam, value) for lam, _ in candidates for value in parameters_of(loss, lam, inputs, thin(Y))]
        predict = choose(fit, candidates, inputs, thin(Y), average=np.mean, folds=2)
        errors.append(split.error(predict(new, frames), name))
    return errors


def print_losses(title: str, names: Sequence[str], losses: Sequence[str], errors: np.ndarray, printed: dict) -> None:
    """Print errors (names, splits, losses), beside the printed ones."""
    heading(title, "curve", *losses)
    for name, values in zip(names, errors, strict=True):
        index = NAMES.index(name)
        row(name, *(f"{v.mean():.2f} [{printed[one][index]:.2f}]" for one, v in zip(losses, values.T, strict=True)))


def table74(
    splits: int = 1,
    num_train: int = 250,
    num_test: int | None = None,
    names: Sequence[str] = NAMES,
    widths: Sequence[float] = WIDTHS,
) -> list[Claim]:
    """Compare losses on clean training curves."""
    losses, errors = tuple(PRINTED_CLEAN), np.zeros((len(names), splits, 5))
    for seed in range(splits):
        split = make_split(seed, num_train, num_test, tuple(widths))
        for i, name in enumerate(names):
            Y = split.train[:, :, NAMES.index(name)]
            errors[i, seed] = compare_losses(split, name, Y, losses, (1.0,))
    title = f"Table 7.4: squared error of a curve [printed], {num_train} words, {splits} splits"
    print_losses(title, names, losses, errors, PRINTED_CLEAN)
    square, printed = errors[:, :, 0].mean(1), np.array([PRINTED_CLEAN["square"][NAMES.index(name)] for name in names])
    ratios = errors.mean(1) / square[:, None]
    largest = np.abs(square / printed - 1).max()
    return [
        claim(
            f"square loss: within 15 % of the printed errors (largest difference {100 * largest:.0f} %)", largest < 0.15
        ),
        claim(
            f"all losses are within 5 % of the square loss ({ratios.min():.3f} to {ratios.max():.3f} times)",
            np.abs(ratios - 1).max() < 0.05,
        ),
    ]


def table75(
    splits: int = 1,
    num_train: int = 250,
    num_test: int | None = None,
    names: Sequence[str] = NAMES,
    widths: Sequence[float] = WIDTHS,
) -> list[Claim]:
    """Compare losses with outlying training curves (type 1) and values (type 3)."""
    losses, claims = ("square", "H2", "H1"), []
    kinds = {
        "type 1": lambda Y, s: negate_curves(Y, 0.1, random_state=s)[0],
        "type 3": lambda Y, s: corrupt_points(Y, 0.1, curve_fraction=0.1, kind="symmetric", random_state=s)[0],
    }
    for kind, corrupt in kinds.items():
        errors = np.zeros((len(names), splits, 3))
        for seed in range(splits):
            split = make_split(seed, num_train, num_test, tuple(widths))
            for i, name in enumerate(names):
                Y = corrupt(split.train[:, :, NAMES.index(name)], seed)
                errors[i, seed] = compare_losses(split, name, Y, losses, (1.0, 30.0))
        printed = PRINTED_CONTAMINATED[kind]
        print_losses(
            f"Table 7.5, {kind}: squared error of a curve [printed], {splits} splits", names, losses, errors, printed
        )
        square, H2, H1 = errors.mean((0, 1))
        ours = np.array([H2, H1]) / square
        rows = [NAMES.index(name) for name in names]
        theirs = [
            np.mean([printed[one][i] for i in rows]) / np.mean([printed["square"][i] for i in rows])
            for one in losses[1:]
        ]
        note(f"average over the square loss: H2 {ours[0]:.3f} [{theirs[0]:.3f}], H1 {ours[1]:.3f} [{theirs[1]:.3f}]")
        if kind == "type 1":
            claims.append(
                claim(
                    "outlying curves: both Huber losses have smaller errors than the square loss, on average",
                    ours.max() < 1,
                )
            )
        else:
            claims.append(
                claim("outlying values: H1 has a smaller error than the square loss, on average", ours[1] < 1)
            )
            claims.append(claim("outlying values: H1 has a smaller error than H2, on average", H1 < H2))
    return claims


def fig82(
    splits: int = 2,
    num_train: int = 300,
    num_test: int | None = None,
    names: Sequence[str] = NAMES,
    widths: Sequence[float] = WIDTHS,
) -> list[Claim]:
    """Compare numbers of Nyström features with the kernel itself."""
    counts = [max(2, round(fraction * num_train)) for fraction in (0.05, 0.2, 0.4, 2 / 3, 1.0)]
    errors = np.zeros((len(names), len(counts)))
    for seed in range(splits):
        split = make_split(seed, num_train, num_test, tuple(widths))
        for i, name in enumerate(names):
            Y = split.train[:, :, NAMES.index(name)]
            options = {"dictionary": "pca", "num_functions": 30, "kernel": linear()}
            width, model = choose_width(split, Y, partial(ovkgp.KernelProjectionRegressor, **options, lam=LAMS))
            inputs, new = split.inputs[width]
            for j, count in enumerate(counts):
                features = {"features": "nystrom", "num_features": count, "random_state": seed}
                fitted = ovkgp.FeatureProjectionRegressor(**options, **features, lam=model.lam_).fit(
                    inputs, Y, grid_of(Y)
                )
                errors[i, j] += split.error(fitted.predict(new), name) / splits
    heading(
        f"Fig. 8.2: squared error of a curve by the number of features, {num_train} words, {splits} splits",
        "curve",
        *map(str, counts),
    )
    for name, values in zip(names, errors, strict=True):
        row(name, *(f"{value:.2f}" for value in values))
    ratio = errors[:, -2].mean() / errors[:, -1].mean()
    return [
        claim(f"two thirds of the words as features have {ratio:.3f} times the error of all", ratio < 1.1),
        claim("errors fall with the number of features, on average", bool((np.diff(errors.mean(0)) < 0.02).all())),
    ]


def bands(
    splits: int = 1,
    num_train: int = 200,
    num_test: int | None = None,
    names: Sequence[str] = NAMES[:2],
    widths: Sequence[float] = WIDTHS,
) -> list[Claim]:
    """Measure errors and the coverage of 90 % bands of Gaussian processes, beside the ridge regression.

    Without options, input curves are reduced to ten principal components; with a kernel between curves they are not.
    """
    words, claims, step = load_words(), [], 6
    frames = np.arange(0, words.X.shape[1], step)
    for name in names:
        found: dict[str, list] = {"no options": [], "curve kernel": [], "FKRR": []}
        for seed in range(splits):
            split = make_split(seed, num_train, num_test, tuple(widths))
            order = np.random.default_rng(seed).permutation(len(words.X))
            train, test = order[:num_train], order[num_train:][:num_test]
            scaled = words.X[:, ::step] / words.X[train].reshape(-1, words.X.shape[2]).std(0, ddof=1)
            curves, flat = FunctionalData(scaled, frames / words.X.shape[1]), scaled.reshape(len(scaled), -1)
            Y, truth = (values[:, frames, NAMES.index(name)] for values in (split.train, split.test))
            inside = frames < split.lengths[:, None]
            lams = np.geomspace(1e-8, 1e-3, 16)
            width, ridge = choose_width(
                split, Y, partial(ovkgp.FunctionalRidge, "laplace", 0.1, kernel=linear(), lam=lams)
            )
            kernel = GaussianCurveKernel(num_channels=words.X.shape[2]).double()
            kernel.lengthscale = width / math.sqrt(2)
            trained = {"kernel": ScaleKernel(kernel).double(), "output_basis": "kernel"}
            models = {  # with the kernel itself, since its coordinates have too small prior variances of test words
                "no options": (ovkgp.FunctionGPRegressor(random_state=0), curves),
                "curve kernel": (ovkgp.FunctionGPRegressor(random_state=0, **trained), flat),
                "FKRR": (ovkgp.FunctionalRidge("laplace", 0.1, kernel=kernel, lam=ridge.lam_), flat),
            }
            for label, (model, inputs) in models.items():
                began = time.process_time()
                model.fit(inputs[train], Y, grid=frames / words.X.shape[1])
                seconds = time.process_time() - began
                lower, upper = model.predict_interval(inputs[test], 0.9)
                error = step * (np.square(model.predict(inputs[test]) - truth) * inside).sum(1).mean()
                found[label].append([error, ((lower <= truth) & (truth <= upper))[inside].mean(), seconds])
        columns = "squared error", "coverage", "CPU s"
        heading(f"{name}, 90 % bands, {num_train} words, every sixth frame, {splits} splits", "model", *columns)
        for label, values in found.items():
            row(label, *np.mean(values, 0))
        for label in ("no options", "curve kernel"):
            covered = np.mean(found[label], 0)[1]
            text = f"{name}, {label}: 90 % bands cover {100 * covered:.1f} % of values"
            claims.append(claim(text, 0.85 <= covered <= 0.95))
        errors = [np.mean(found[label], 0)[0] for label in ("curve kernel", "FKRR")]
        claims.append(
            claim(f"{name}: the error with a curve kernel is within 5 % of FKRR", errors[0] < 1.05 * errors[1])
        )
    return claims


EXPERIMENTS = {"fig57": fig57, "table74": table74, "table75": table75, "fig82": fig82, "bands": bands}
SMALL = {"splits": 1, "num_train": 60, "num_test": 60, "names": ("LP", "TTCL"), "widths": (3.0, 5.0)}
QUICK = {name: dict(SMALL) for name in EXPERIMENTS} | {"fig57": SMALL | {"num_functions": 15}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", choices=[[], *EXPERIMENTS], help="all by default")
    parser.add_argument(
        "--splits", type=int, help="random splits; 2 of the figures, 1 of the tables and bands by default"
    )
    parser.add_argument("--quick", action="store_true", help="60 words and two curves, less than a minute")
    parser.add_argument("--curves", nargs="+", choices=NAMES, help="curves; all (two of bands) by default")
    options = parser.parse_args()
    if "OVKGP_DATA" not in os.environ:
        print("OVKGP_DATA is not set: no speech data")
        return
    warnings.simplefilter("ignore")
    sizes = {} if options.splits is None else {"splits": options.splits}
    sizes |= {} if options.curves is None else {"names": tuple(options.curves)}
    run_experiments(
        (
            (name, partial(EXPERIMENTS[name], **((QUICK[name] if options.quick else {}) | sizes)))
            for name in options.experiments or EXPERIMENTS
        ),
        strict=not options.quick,
    )


if __name__ == "__main__":
    main()
