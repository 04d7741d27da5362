"""Forecasts of wind speed and power, on a surrogate farm (Bouche's thesis, chapter 9: BO-130 to BO-134).

    python benchmarks/series_wind.py [--quick] [--only NAME]

Measurements and weather predictions are those of `ovkgp.datasets.make_wind_farm`, since farms of the thesis are not public. Blocks of
10 000 rows for training, validation and test follow each other (two splits). Options are selected on the validation block, and the model
is fitted again to training and validation rows. Grids are those of the thesis (chapter 9 and its appendix), with λ as the noise
variance: with nλ, as printed in (9.4), the smallest value of the grid would be selected on the validation rows of each horizon.
Power of the surrogate depends on the weather by a static curve, which favors indirect forecasts: that direct ones have the smallest
average degradation on real farms is not reproduced.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import torch
from claims import Claim, claim
from gpytorch.kernels import MaternKernel, RBFKernel
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lasso_path
from timing import run_sections

from ovkgp.datasets import make_wind_farm
from ovkgp.estimators.series import (
    ForecastWindows,
    HSICSelector,
    PersistenceRegressor,
    PowerCurve,
    rolling_splits,
)
from ovkgp.features import Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import FunctionValuedKernel
from ovkgp.metrics import normalized_rmse, rmse_degradation

HORIZONS = [1, 3, 6, 12, 18, 24]  # steps of 10 minutes
BLOCK = 10_000
NUM_LANDMARKS = 300
GAMMAS, LAMS = np.geomspace(1e-6, 1e-3, 30), np.geomspace(1e-4, 5, 30)
LASSO_LAMS = np.geomspace(1e-5, 1, 30)
LASSO_OPTIONS = {"tol": 1e-3, "max_iter": 500}
TASK_LENGTHSCALES = (0.25, 0.5, 1.0, 2.0)  # in units of 4 hours
HYBRID = ("LASSO", "Nyström KRR", "function-valued", "boosting")


@dataclass
class Split:
    """Inputs and outputs of training, validation and test rows, standardized with training rows."""

    X: list[pd.DataFrame]
    Y: list[pd.DataFrame]
    groups: np.ndarray

    def scaled(
        self, rows: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
        """Return standardized inputs, of selected columns, and outputs, with mean and standard deviation of the outputs."""
        columns = slice(None) if rows is None else rows
        inputs = [part.to_numpy()[:, columns] for part in self.X]
        mean, std = inputs[0].mean(0), inputs[0].std(0)
        center, scale = self.Y[0].to_numpy().mean(0), self.Y[0].to_numpy().std(0)
        return (
            [(part - mean) / std for part in inputs],
            [(part.to_numpy() - center) / scale for part in self.Y],
            center,
            scale,
        )


def make_splits(target: str, quick: bool) -> list[Split]:
    """Make consecutive blocks of windows."""
    block = 1500 if quick else BLOCK
    farm = make_wind_farm(6 * block + 100, random_state=0)
    directions = ["direction", "forecast direction"]
    windows = ForecastWindows(HORIZONS, target=target, directions=directions).fit(*farm)
    X, Y = windows.make_pairs(*farm)
    blocks = rolling_splits(len(X), 2 * block, block, step=3 * block, window=2 * block)
    splits = []
    for before, test in blocks.split(X):
        rows = before[:block], before[block:], test
        splits.append(Split([X.iloc[r] for r in rows], [Y.iloc[r] for r in rows], windows.groups_))
    return splits


def predict_lasso(split: Split) -> np.ndarray:
    """Predict with a LASSO for each horizon; λ/2 is scikit-learn's alpha."""
    (X, V, T), (Y, W, _), center, scale = split.scaled()
    both, target = np.vstack([X, V]), np.vstack([Y, W])
    mean, offset = both.mean(0), target.mean(0)
    grams = [part.T @ part for part in (X, both - mean)]
    predicted = []
    for a in range(Y.shape[1]):
        alphas, coefficients, _ = lasso_path(
            X, Y[:, a], alphas=LASSO_LAMS / 2, precompute=grams[0], Xy=X.T @ Y[:, a], copy_X=False, **LASSO_OPTIONS
        )
        errors = ((V @ coefficients - W[:, [a]]) ** 2).mean(0)
        alpha = alphas[errors.argmin()]
        residual = target[:, a] - offset[a]
        final = lasso_path(
            both - mean, residual, alphas=[alpha], precompute=grams[1], Xy=(both - mean).T @ residual, **LASSO_OPTIONS
        )[1][:, 0]
        predicted.append((T - mean) @ final + offset[a])
    return np.stack(predicted, 1) * scale + center


def make_kernel(gamma: float) -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor((2 * gamma) ** -0.5, dtype=torch.float64)
    return kernel


def fit_nystrom(kernel, noise: float, X: np.ndarray, Y: np.ndarray, landmarks: np.ndarray):
    """Condition the Gaussian process whose mean is kernel ridge regression on landmarks."""
    features = Nystrom(kernel, torch.from_numpy(landmarks))
    gp = OperatorValuedGP(kernel, mean="zero", noise=noise, features=features)
    return gp.condition(torch.from_numpy(X), torch.from_numpy(Y))


def spectra(X: np.ndarray, V: np.ndarray, Y: np.ndarray, landmarks: np.ndarray, gammas: np.ndarray):
    """Yield γ, eigenvalues of ΦᵀΦ, and rotated validation features and ΦᵀY."""
    for gamma in gammas:
        features = Nystrom(make_kernel(gamma), torch.from_numpy(landmarks))
        with torch.no_grad():
            train, validation = (features(torch.from_numpy(part)).to_dense().numpy() for part in (X, V))
        values, vectors = np.linalg.eigh(train.T @ train)
        yield gamma, np.maximum(values, 0), validation @ vectors, vectors.T @ (train.T @ Y)


def select_variables(split: Split, num_groups: int = 5) -> np.ndarray:
    """Select columns by backward elimination with HSIC, on the training rows."""
    selector = HSICSelector(num_groups, groups=split.groups, random_state=0).fit(split.X[0].to_numpy(), split.Y[0])
    scores = {str(g): round(float(s), 3) for g, s in zip(selector.groups_, selector.scores_, strict=True) if s >= 0}
    print(f"    selected variables and HSIC scores: {scores}")
    return selector.get_support(indices=True)


def predict_kernels(split: Split, columns: np.ndarray, gammas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict with Nyström ridge regression for each horizon, and with one function-valued model of all horizons."""
    (X, V, T), (Y, W, _), center, scale = split.scaled(columns)
    n, p = Y.shape
    rng = np.random.default_rng(0)
    landmarks = X[rng.choice(n, NUM_LANDMARKS, replace=False)]
    tasks = torch.tensor(HORIZONS, dtype=torch.float64) / 24
    rotations = {}
    for length in TASK_LENGTHSCALES:
        kernel = MaternKernel(nu=1.5).double()
        kernel.lengthscale = length
        rotations[length] = kernel, *np.linalg.eigh(kernel(tasks).to_dense().detach().numpy())
    single, joint = [(np.inf, None)] * p, (np.inf, None)
    for gamma, values, validation, cross in spectra(X, V, Y, landmarks, gammas):
        for lam in LAMS:
            errors = ((validation @ (cross / (values + lam)[:, None]) - W) ** 2).mean(0)
            single = [min(old, (errors[a], (gamma, lam))) for a, old in enumerate(single)]
            for length, (_, scales, basis) in rotations.items():
                weights = cross @ basis * scales / (values[:, None] * scales + lam)
                error = ((validation @ weights @ basis.T - W) ** 2).mean()
                joint = min(joint, (error, (gamma, lam, length)), key=lambda pair: pair[0])
    both, target = np.vstack([X, V]), np.vstack([Y, W])
    landmarks, points = both[rng.choice(2 * n, NUM_LANDMARKS, replace=False)], torch.from_numpy(T)
    predicted = np.empty((len(T), p))
    for a, (_, (gamma, lam)) in enumerate(single):
        posterior = fit_nystrom(make_kernel(gamma), lam, both, target[:, [a]], landmarks)
        predicted[:, a] = posterior.predict(points).mean.numpy()[:, 0]
    gamma, lam, length = joint[1]
    kernel = FunctionValuedKernel(make_kernel(gamma), rotations[length][0], tasks=tasks)
    together = fit_nystrom(kernel, lam, both, target, landmarks).predict(points).mean.numpy()
    return predicted * scale + center, together * scale + center


def predict_boosting(split: Split, columns: np.ndarray) -> np.ndarray:
    """Predict with boosted trees for each horizon; the depth is selected."""
    (X, V, T), (Y, W, _), center, scale = split.scaled(columns)
    predicted = []
    for a in range(Y.shape[1]):
        models = [
            HistGradientBoostingRegressor(max_depth=depth, early_stopping=False, random_state=0).fit(X, Y[:, a])
            for depth in (3, 6)
        ]
        best = min(models, key=lambda model: ((model.predict(V) - W[:, a]) ** 2).mean())
        best.fit(np.vstack([X, V]), np.r_[Y[:, a], W[:, a]])
        predicted.append(best.predict(T))
    return np.stack(predicted, 1) * scale + center


def predict_all(split: Split, target: str, gammas: np.ndarray) -> dict[str, np.ndarray]:
    """Predict the test rows of a split with all models."""
    test = split.X[2]
    columns = select_variables(split)
    kernels, joint = predict_kernels(split, columns, gammas)
    found = {
        "persistence": PersistenceRegressor(f"{target}[t]").fit(split.X[0], split.Y[0]).predict(test),
        "LASSO": predict_lasso(split),
        "Nyström KRR": kernels,
        "function-valued": joint,
        "boosting": predict_boosting(split, columns),
    }
    if target == "speed":
        found["weather prediction"] = test[[f"speed_100m[t+{h}]" for h in HORIZONS]].to_numpy()
    return found


@cache
def predict_splits(target: str, quick: bool) -> tuple[list[Split], list[dict[str, np.ndarray]]]:
    """Return the splits of a target, and predictions of their test rows by model."""
    splits = make_splits(target, quick)
    return splits, [predict_all(split, target, GAMMAS[::6] if quick else GAMMAS) for split in splits]


def print_errors(errors: dict[str, np.ndarray]) -> dict[str, float]:
    """Print NRMSE by horizon (×100, averaged over splits) and the average degradation; return the degradations."""
    degradation = dict(zip(errors, rmse_degradation([*errors.values()]), strict=True))
    print(f"    {'NRMSE × 100':<22}" + "".join(f"{10 * h:>8} min" for h in HORIZONS) + f"{'degradation':>14}")
    for name in sorted(errors, key=degradation.get):
        values = "".join(f"{100 * value:>12.2f}" for value in errors[name].mean(0))
        print(f"    {name:<22}{values}{100 * degradation[name]:>14.2f}", flush=True)
    return degradation


def score(predictions: list[dict[str, np.ndarray]], splits: list[Split]) -> dict[str, np.ndarray]:
    """Return NRMSE (splits, horizons) by model."""
    return {
        name: np.stack(
            [
                normalized_rmse(s.Y[2], found[name], multioutput="raw_values")
                for s, found in zip(splits, predictions, strict=True)
            ]
        )
        for name in predictions[0]
    }


def wind_speed(quick: bool) -> list[Claim]:
    """Wind speed (Tables 9.4 and 9.6)."""
    print("\nWind speed")
    splits, predictions = predict_splits("speed", quick)
    errors = score(predictions, splits)
    degradation = print_errors(errors)
    means = {name: values.mean(0) for name, values in errors.items()}
    baselines = np.minimum(means["persistence"], means["weather prediction"])
    return [
        claim(
            "LASSO and Nyström KRR beat both baselines at each horizon",
            all((means[name] < baselines).all() for name in ("LASSO", "Nyström KRR")),
        ),
        claim(
            "persistence is the better baseline at 10 minutes",
            means["persistence"][0] < means["weather prediction"][0],
        ),
        claim(
            "the weather prediction is the better baseline at 4 hours",
            means["weather prediction"][-1] < means["persistence"][-1],
        ),
        claim(
            "LASSO and Nyström KRR have a smaller degradation than boosting",
            max(degradation["LASSO"], degradation["Nyström KRR"]) < degradation["boosting"],
        ),
        claim(
            "boosting has a smaller degradation than both baselines",
            degradation["boosting"] < min(degradation["persistence"], degradation["weather prediction"]),
        ),
    ]


def wind_power(quick: bool) -> list[Claim]:
    """Wind power, directly and by a power curve of predicted speeds (Tables 9.5 and 9.7)."""
    print("\nWind power: direct (D) and by the power curve of a predicted speed (I)")
    (speeds, indirect), (powers, direct) = predict_splits("speed", quick), predict_splits("power", quick)
    predictions = []
    for split, of_speed, of_power in zip(speeds, indirect, direct, strict=True):
        past = pd.concat(split.X[:2])
        curve = PowerCurve().fit(past[["speed[t]"]].to_numpy(), past["power[t]"].to_numpy())
        found = {f"D {name}": values for name, values in of_power.items()}
        for name, values in of_speed.items():
            found[f"I {name}"] = curve.predict(values.reshape(-1, 1)).reshape(values.shape)
        predictions.append(found)
    errors = score(predictions, powers)
    degradation = print_errors(errors)
    best = min(degradation, key=degradation.get)
    baselines = [degradation[name] for name in ("D persistence", "I persistence", "I weather prediction")]
    return [
        claim(
            f"direct Nyström KRR, for each horizon or function-valued, has the smallest degradation (here {best})",
            best in ("D Nyström KRR", "D function-valued"),
        ),
        claim("direct beats indirect for Nyström KRR", degradation["D Nyström KRR"] < degradation["I Nyström KRR"]),
        claim(
            "direct beats indirect for Nyström KRR at 10 minutes (Table 9.7)",
            errors["D Nyström KRR"].mean(0)[0] < errors["I Nyström KRR"].mean(0)[0],
        ),
        claim("indirect beats direct for LASSO", degradation["I LASSO"] < degradation["D LASSO"]),
        claim(
            "all models beat all baselines",
            max(degradation[f"{way} {name}"] for way in "DI" for name in HYBRID) < min(baselines),
        ),
    ]


def speed(quick: bool) -> list[Claim]:
    """CPU seconds of a Nyström fit with 20 000 rows and 300 landmarks, and of the selection by HSIC (Table 9.8)."""
    print("\nCPU seconds")
    n = 2000 if quick else 20_000
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(n, 200)), rng.normal(size=(n, len(HORIZONS)))
    tasks = torch.tensor(HORIZONS, dtype=torch.float64) / 24
    kernels = {
        "one horizon": (make_kernel(1e-3), Y[:, :1]),
        "function-valued, 6 horizons": (
            FunctionValuedKernel(make_kernel(1e-3), MaternKernel(nu=1.5).double(), tasks=tasks),
            Y,
        ),
    }
    spent = {}
    for name, (kernel, outputs) in kernels.items():
        fit_nystrom(kernel, 1.0, X[:500], outputs[:500], X[:NUM_LANDMARKS])
        start = time.process_time()
        fit_nystrom(kernel, 1.0, X, outputs, X[:NUM_LANDMARKS]).predict(torch.from_numpy(X[:1]))
        spent[name] = time.process_time() - start
        print(
            f"    Nyström fit, {name}, {n} × {NUM_LANDMARKS} landmarks: {spent[name]:.2f} s (thesis: .45 s per horizon on a laptop)"
        )
    split = make_splits("power", quick)[0]
    start = time.process_time()
    select_variables(split)
    print(
        f"    selection by HSIC, {len(split.X[0])} rows, {split.X[0].shape[1]} columns in {len(set(split.groups))} groups: {time.process_time() - start:.1f} s"
    )
    return [claim("each Nyström fit takes less than 2 CPU seconds", max(spent.values()) < 2)]


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)  # of the smallest λ of the LASSO
    run_sections({"speed": speed, "wind_speed": wind_speed, "wind_power": wind_power}, __doc__.splitlines()[0])
