"""Quantiles of a noisy sine: crossings with and without a penalty (LT-134, BT-103), smoothing (LT-136), and nodes (LT-137).

A module for `itl.py`; run by itself it does nothing. The true quantiles are known, and so is the least expected loss (LT-116).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from claims import Claim, claim, heading, note, row
from figures import pyplot, save
from timing import timed

from ovkgp import InfiniteQuantileRegressor
from ovkgp.datasets import make_sine_quantiles
from ovkgp.datasets.quantiles import QuantileSample

FINE = np.arange(1, 200) / 200
FIVE = np.array([0.05, 0.275, 0.5, 0.725, 0.95])
"""The levels of BT-103."""
FOUND = {0.0: 0.0348, 0.01: 0.0133, 0.1: 0.0012, 1.0: 0.0009, 10.0: 0.0009}
"""The mean crossing over 100 levels at each λ_nc in another run of LT-134 (γ_X = 10, γ_Θ = 5, λ = 1e-3)."""
GAMMA_X, GAMMA_TASKS = 10.0, 5.0


def _scale(gamma: float, deviation: float = 1.0) -> float:
    """The lengthscale of exp(−γ d²), in standard deviations of the inputs."""
    return 1 / np.sqrt(2 * gamma) / deviation


def _excess(model, test: QuantileSample, levels: np.ndarray = FINE) -> float:
    """Expected pinball loss of fitted curves at the inputs of a test, over the least possible, minus one.

    The expectation over y is exact: E ρ_θ(y − q) of a normal y is σ ((z (Φ(z) − θ)) + φ(z)), z = (q − μ)/σ.
    """
    distribution = test.quantiles
    x = test.X[:, 0]
    z = (model.predict(test.X, levels) - distribution.location(x)[:, None]) / distribution.scale(x)[:, None]
    losses = distribution.scale(x)[:, None] * (
        z * (distribution.distribution.cdf(z) - levels) + distribution.distribution.pdf(z)
    )
    least = (
        distribution.scale(x).mean() * distribution.distribution.pdf(distribution.distribution.ppf(levels)).mean()
    )  # z of the true quantiles
    return losses.mean() / least - 1


def _known(figure: float | None, form: str) -> str:
    """A figure from elsewhere; a dash where there is none."""
    return "-" if figure is None else format(figure, form)


# --- crossings --------------------------------------------------------------------------------------------------------


def lt134(
    num_rows: int = 40,
    num_tasks: int = 20,
    strengths: Sequence[float] = (0.0, 0.01, 0.1, 1.0, 10.0),
    large_rows: int = 2500,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | None = None,
) -> list[Claim]:
    """A few rows with and without the penalty on crossings; many rows against the oracle; write a figure if a folder is given."""
    grid = np.linspace(0.0, 1.5, 301)[:, None]
    heading(
        f"LT-134: the sine, n = {num_rows}, m = {num_tasks}, {len(seeds)} draws: crossing over 100 levels",
        "λ_nc",
        "on a grid of x",
        "at the data",
        "another run",
        "train pinball",
        "share that crosses",
    )
    found = {
        strength: np.mean([_crossing(num_rows, num_tasks, strength, s, grid) for s in seeds], 0)
        for strength in strengths
    }
    for strength, values in found.items():
        row(
            f"{strength:g}",
            values[0],
            values[1],
            _known(FOUND.get(strength), ".4f"),
            values[2],
            f"{100 * values[3]:.2f} %",
        )
    none, last = found[strengths[0]], found[strengths[-1]]
    claims = [
        claim(
            f"λ_nc = {strengths[-1]:g} leaves {100 * last[1] / none[1]:.1f} % of the crossing at the data, and loses "
            f"{100 * (last[2] / none[2] - 1):.2f} % of the pinball loss",
            last[1] < 0.05 * none[1] and last[2] < 1.01 * none[2],
        )
    ]
    if out is not None:
        note(f"figure: {_figure(Path(out), num_rows, num_tasks, strengths[-1], grid)}")
    return claims + _against_oracle(large_rows, seeds)


def _crossing(num_rows: int, num_tasks: int, strength: float, seed: int, grid: np.ndarray) -> tuple[float, ...]:
    """Crossing on a grid and at the data, training loss, and the fraction of pairs that cross on the grid."""
    model, X, y = _small(num_rows, num_tasks, strength, seed)
    levels = np.linspace(0.005, 0.995, 100)
    on_grid, at_data = model.crossing(grid, levels), model.crossing(X, levels)
    loss = model.pinball_loss(X, y, model.measure_.nodes.numpy()) @ model.measure_.weights.numpy()
    return on_grid.total, at_data.total, loss, on_grid.share


def _small(num_rows: int, num_tasks: int, strength: float, seed: int):
    X, y, _ = make_sine_quantiles(num_rows, random_state=seed)
    model = InfiniteQuantileRegressor(
        lengthscale=_scale(GAMMA_X, X.std()),
        task_lengthscale=_scale(GAMMA_TASKS),
        lam=1e-3,
        num_tasks=num_tasks,
        noncrossing="penalty" if strength else None,
        lam_nc=strength,
        calibrate=False,
        prior_mean="zero",
    )
    return model.fit(X, y), X, y


def _against_oracle(num_rows: int, seeds: Sequence[int]) -> list[Claim]:
    heading(
        f"BT-103: n = {num_rows}, 1000 test points: loss over the least possible at {', '.join(f'{level:g}' for level in FIVE)}",
        "draw",
        "excess",
        "all levels",
        "share that crosses",
        "seconds",
    )
    excesses, shares = [], []
    for seed in seeds:
        X, y, _ = make_sine_quantiles(num_rows, random_state=seed)
        test = make_sine_quantiles(1000, random_state=1000 + seed)
        spent, model = timed(
            lambda X=X, y=y: InfiniteQuantileRegressor(
                num_frequencies=100, noncrossing=None, calibrate=False, random_state=0
            ).fit(X, y)
        )
        excesses.append(_excess(model, test, FIVE))
        shares.append(model.crossing(test.X).share)
        row(
            f"{seed}",
            f"{100 * excesses[-1]:.2f} %",
            f"{100 * _excess(model, test):.2f} %",
            f"{100 * shares[-1]:.2f} %",
            f"{spent:.1f}",
        )
    note("100 random frequencies, nothing sorted; the thesis has no oracle, and takes 30 s (JQR 1330 s) for D = 100.")
    return [
        claim(f"the loss is within 3 % of the oracle's ({100 * max(excesses):.2f} % at most)", max(excesses) < 0.03),
        claim(f"less than 1 % of neighboring percentiles cross ({100 * max(shares):.2f} %)", max(shares) < 0.01),
    ]


def _figure(folder: Path, num_rows: int, num_tasks: int, strength: float, grid: np.ndarray) -> Path:
    """Curves without and with the penalty."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    levels = np.linspace(0.02, 0.98, 25)
    for axis, value in zip(axes, (0.0, strength), strict=True):
        model, X, y = _small(num_rows, num_tasks, value, 0)
        for curve, level in zip(model.predict(grid, levels).T, levels, strict=True):
            axis.plot(grid[:, 0], curve, color=plt.cm.viridis(level), linewidth=0.9)
        axis.scatter(X[:, 0], y, s=12, color="black", zorder=3)
        axis.set_title(f"25 quantiles, $\\lambda_{{nc}}$ = {value:g}", fontsize=11)
        axis.set_xlabel("x")
    axes[0].set_ylabel("y")
    return save(figure, folder, "sine_quantiles")


# --- smoothing --------------------------------------------------------------------------------------------------------

SMOOTHED = {10.0: (225, 258), 0.1: (1313, 1438), 1e-3: (931, 1169), 0.0: (879, 1125)}
"""Printed, by κ: seconds and iterations of L-BFGS with n = 10 000 and 100 nodes on a graphics card."""


def lt136(
    num_rows: int = 1000, num_tasks: int = 100, kappas: Sequence[float] = tuple(SMOOTHED), out: str | None = None
) -> list[Claim]:
    """Time, iterations and error of the smoothed loss against κ; write a figure if a folder is given."""
    X, y, _ = make_sine_quantiles(num_rows, random_state=0)
    test = make_sine_quantiles(2000, random_state=1)
    heading(
        f"LT-136: smoothing, n = {num_rows}, m = {num_tasks}, duality gap 1e-4",
        "κ",
        "seconds",
        "iterations",
        "excess loss",
        "printed seconds",
        "printed iterations",
    )
    excesses, models = {}, {}
    for kappa in kappas:
        options = {"loss": "smoothed_pinball", "kappa": kappa} if kappa else {}
        spent, models[kappa] = timed(lambda o=options: _sine_model(num_tasks, **o).fit(X, y))
        excesses[kappa] = _excess(models[kappa], test)
        printed = SMOOTHED.get(kappa, (None, None))
        row(
            f"{kappa:g}",
            f"{spent:.2f}",
            f"{models[kappa].n_iter_}",
            f"{100 * excesses[kappa]:.2f} %",
            *(_known(value, "g") for value in printed),
        )
    note(
        "κ in standard deviations of y; printed for n = 10 000 on a graphics card, whose figure shows the curves alone."
    )
    if out is not None:
        note(f"figure: {_sweep_figure(Path(out), models, test)}")
    small = min(kappa for kappa in kappas if kappa > 0)
    gap = abs(excesses[small] - excesses[min(kappas)])
    return [
        claim(
            f"κ = {small:g} gives the quantiles of κ = {min(kappas):g} (losses differ by {100 * gap:.3f} %)", gap < 1e-3
        ),
        claim(
            f"a large κ does not: {100 * excesses[max(kappas)]:.0f} % above the oracle, {100 * excesses[small]:.1f} % at κ = {small:g}",
            excesses[max(kappas)] > 3 * excesses[small] and excesses[small] < 0.03,
        ),
    ]


def _sine_model(num_tasks: int, **options) -> InfiniteQuantileRegressor:
    return InfiniteQuantileRegressor(
        lengthscale=0.5, lam=1e-4, num_tasks=num_tasks, calibrate=False, random_state=0, **options
    )


def _sweep_figure(folder: Path, models: dict, test: QuantileSample) -> Path:
    plt = pyplot()
    grid, levels = np.linspace(0, 1.5, 200)[:, None], np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    figure, axes = plt.subplots(1, len(models), figsize=(3.4 * len(models), 3.2), sharey=True, layout="constrained")
    for axis, (kappa, model) in zip(np.atleast_1d(axes), models.items(), strict=True):
        axis.plot(grid[:, 0], test.quantiles(grid, levels), color="0.7", linestyle="--", linewidth=1)
        for curve, level in zip(model.predict(grid, levels).T, levels, strict=True):
            axis.plot(grid[:, 0], curve, color=plt.cm.viridis(level), linewidth=1.2)
        axis.set_title(f"κ = {kappa:g} (dashed: true)", fontsize=10)
    return save(figure, folder, "smoothed_quantiles")


# --- nodes ------------------------------------------------------------------------------------------------------------

RISKS = {5: 0.2021, 10: 0.2025, 20: 0.2024}
"""The risk over all levels at each m in another run of LT-137; the oracle's is .1975."""


def lt137(
    num_rows: int = 1000,
    nodes: Sequence[int] = (1, 2, 3, 5, 10, 20, 34, 50, 100),
    seeds: Sequence[int] = (0, 1, 2),
    out: str | None = None,
) -> list[Claim]:
    """The loss against the number of nodes m of the integral over levels; write a figure if a folder is given."""
    asked = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    heading(
        f"LT-137: nodes, n = {num_rows}, {len(seeds)} draws, 2000 test points: loss over the oracle's",
        "m",
        "five levels",
        "all levels",
        "risk",
        "another run",
        "seconds",
    )
    excesses = {}
    for m in nodes:
        spent, pairs = timed(lambda m=m: np.array([_node_excess(num_rows, m, seed, asked) for seed in seeds]))
        five, every = pairs.mean(0)
        excesses[m] = every
        row(
            f"{m}",
            f"{100 * five:.2f} %",
            f"{100 * every:.2f} %",
            f"{0.1975 * (1 + every):.4f}",
            _known(RISKS.get(m), ".4f"),
            f"{spent / len(seeds):.2f}",
        )
    note("Gauss-Legendre nodes. Printed: no change beyond m = 34, about √n.")
    if out is not None:
        note(f"figure: {_nodes_figure(Path(out), excesses)}")
    last, root = excesses[nodes[-1]], excesses[min(nodes, key=lambda m: abs(m - np.sqrt(num_rows)))]
    few = [m for m in nodes if abs(excesses[m] - last) < 1e-3]
    return [
        claim(
            f"nothing changes beyond m = √n (by {100 * abs(root - last):.3f} % of the oracle's loss)",
            abs(root - last) < 1e-3,
        ),
        claim(f"already m = {min(few)} is as good, to 0.1 %", min(few) < np.sqrt(num_rows)),
    ]


def _node_excess(num_rows: int, num_tasks: int, seed: int, levels: np.ndarray) -> tuple[float, float]:
    X, y, _ = make_sine_quantiles(num_rows, random_state=seed)
    test = make_sine_quantiles(2000, random_state=1000 + seed)
    model = _sine_model(num_tasks).fit(X, y)
    return _excess(model, test, levels), _excess(model, test)


def _nodes_figure(folder: Path, excesses: dict[int, float]) -> Path:
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    axis.semilogx(list(excesses), [100 * value for value in excesses.values()], marker="o")
    axis.set_xlabel("nodes m")
    axis.set_ylabel("% above the oracle's loss")
    return save(figure, folder, "quantile_nodes")
