"""Labels: handwritten digits by the simplex code, and two moons with four labels (BT-81, Fig. B.1).

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from claims import Claim, claim, heading, note, row
from figures import pyplot, save
from sklearn.datasets import load_digits
from timing import timed

from ovkgp import ManifoldRidge, SimplexClassifier
from ovkgp.datasets import Sample, make_two_moons
from ovkgp.features import ORFFKernel

# --- digits -----------------------------------------------------------------------------------------------------------


def bt81(
    num_rows: int = 1000,
    frequencies: Sequence[int] = (10, 30, 100, 300, 1000),
    clock_rows: Sequence[int] = (500, 1000, 2000, 4000),
    clock_frequencies: int = 250,
) -> list[Claim]:
    """Errors of digits against the features, and seconds against the rows."""
    X, y = load_digits(return_X_y=True)
    X = X / 8 - 1
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:num_rows], order[num_rows:]
    lams = np.logspace(-4, 1, 6)

    def error(num_frequencies: int | None) -> float:
        model = SimplexClassifier(lam=lams, num_frequencies=num_frequencies, cv=2, random_state=0).fit(
            X[train], y[train]
        )
        return 100 * np.mean(model.classes_[model.scores(X[test]).argmax(1)] != y[test])

    heading(f"BT-81: digits, N = {num_rows}: test errors in %", "D", "ORFF", "exact")
    exact, errors = error(None), []
    for D in frequencies:
        errors.append(error(D))
        row(f"{D}", errors[-1], exact)
    note("scikit-learn's digits, 8 x 8 pixels in [-1, 1], instead of MNIST's 28 x 28: so the lengthscale is the median")
    note(
        "distance, not 20, and errors are not comparable. λ by leave-one-out errors; the class is that of the largest score."
    )
    return [
        claim("the error of the features falls to that of the exact kernel (within 1 %)", errors[-1] <= exact + 1.0),
        claim("and falls all the way", errors[-1] < errors[0]),
        _clock(X, y, clock_rows, clock_frequencies),
    ]


def _clock(X: np.ndarray, y: np.ndarray, rows: Sequence[int], num_frequencies: int) -> Claim:
    heading(f"BT-81: seconds of one fit, D = {num_frequencies}", "N", "ORFF", "exact", "exact / ORFF")
    rng, times = np.random.default_rng(0), []
    for n in rows:
        chosen = rng.integers(len(X), size=n)
        X_n, y_n = X[chosen] + 0.01 * rng.standard_normal((n, X.shape[1])), y[chosen]
        models = (SimplexClassifier(lam=0.1, num_frequencies=D, cv=2, random_state=0) for D in (num_frequencies, None))
        times.append([timed(lambda model=model, X=X_n, y=y_n: model.fit(X, y))[0] for model in models])
        row(f"{n}", *(f"{spent:.2f}" for spent in times[-1]), times[-1][1] / times[-1][0])
    note(
        "There are 1797 digits: rows are drawn again, with a little noise, for the clock only. A fit is three, two of them"
    )
    note("on half the rows to calibrate probabilities.")
    growth = np.array(times[-1]) / times[0]
    return claim(
        f"features scale better: {growth[0]:.1f} times the seconds, the exact kernel {growth[1]:.1f}",
        growth[0] < growth[1],
    )


# --- two moons --------------------------------------------------------------------------------------------------------

LAM, LAM_MANIFOLD = 0.1, 0.075


def moons(num_rows: int = 200, num_frequencies: int = 100, draws: int = 10, out: str | None = None) -> list[Claim]:
    """Weights and kernel side by side, with and without the penalty; write a figure if a folder is given."""
    heading(
        f"Fig. B.1: two moons, {num_rows} points, 2 labels each, {draws} draws",
        "λ_M",
        "weights - kernel",
        "accuracy, ORFF",
        "accuracy, exact",
    )
    found = {}
    for lam_manifold in (0.0, LAM_MANIFOLD):
        table = np.array([_one_draw(num_rows, num_frequencies, lam_manifold, seed) for seed in range(draws)])
        found[lam_manifold] = table[:, 0].max(), *table[:, 1:].mean(0)
        row(f"{lam_manifold:g}", f"{found[lam_manifold][0]:.1e}", *found[lam_manifold][1:])
    note(
        f"λ_K = {LAM}, lengthscale .3, the Laplacian of 10 nearest neighbors. Weights: Algorithm 6 on D = {num_frequencies} features;"
    )
    note(
        "kernel: the same estimator on the kernel ΦΦᵀ of these features, without using that it is one; largest difference."
    )
    if out is not None:
        note(f"figure: {_figure(Path(out), num_rows)}")
    (gap, *plain), (gap_manifold, *helped) = found.values()
    return [
        claim("with λ_K > 0 weights and kernel are one solution (to 1e-8)", max(gap, gap_manifold) < 1e-8),
        claim("points without labels help, with features and with the exact kernel", all(np.array(helped) > plain)),
    ]


def _ridge(sample: Sample, lam_manifold: float, **options) -> ManifoldRidge:
    options = {"lam": LAM, "lam_manifold": lam_manifold, "lengthscale": 0.3, "random_state": 0, **options}
    return ManifoldRidge(**options).fit(sample.X, sample.Y)


def _one_draw(num_rows: int, num_frequencies: int, lam_manifold: float, seed: int) -> tuple[float, float, float]:
    """The difference between weights and kernel, and the accuracies of features and exact kernel at other points."""
    sample, other = (make_two_moons(n, random_state=s) for n, s in ((num_rows, seed), (1000, 1000 + seed)))
    weights, exact = (_ridge(sample, lam_manifold, num_frequencies=D) for D in (num_frequencies, None))
    kernel = _ridge(sample, lam_manifold, kernel=ORFFKernel(weights.gp_.features.features), lengthscale="median")
    means = [model.predict(other.X) for model in (weights, kernel, exact)]
    truth = other.truth(other.X) > 0
    return abs(means[0] - means[1]).max(), *(((mean > 0) == truth).mean() for mean in means[::2])


def _figure(folder: Path, num_rows: int) -> Path:
    """Mean and std over the plane, without and with the penalty."""
    plt = pyplot()
    sample = make_two_moons(num_rows, random_state=0)
    x, y = np.linspace(-1.6, 2.6, 160), np.linspace(-1.1, 1.6, 110)
    plane = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 6.6), sharex=True, sharey=True, layout="constrained")
    for line, lam_manifold in zip(axes, (0.0, LAM_MANIFOLD), strict=True):
        fields = _ridge(sample, lam_manifold).predict(plane, return_std=True, noise=False)
        for axis, values, name in zip(line, fields, ("mean", "std"), strict=True):
            _panel(axis, x, y, values.reshape(len(y), len(x)), name, sample)
            axis.set_title(f"{name}, $\\lambda_M$ = {lam_manifold:g}", fontsize=11)
    return save(figure, folder, "moons")


def _panel(axis, x: np.ndarray, y: np.ndarray, values: np.ndarray, name: str, sample: Sample) -> None:
    colors, least, dots = ("RdBu_r", -1.0, "0.35") if name == "mean" else ("viridis", 0.0, "0.1")
    shades = axis.pcolormesh(x, y, values, cmap=colors, vmin=least, vmax=1.0, shading="gouraud")
    axis.figure.colorbar(shades, ax=axis, shrink=0.85)
    axis.scatter(*sample.X.T, s=7, color=dots, linewidths=0, label="no label")
    for label, color, marker in ((-1.0, "tab:blue", "o"), (1.0, "tab:red", "s")):
        chosen = sample.X[sample.Y[:, 0] == label].T
        axis.scatter(
            *chosen, s=90, color=color, marker=marker, edgecolor="white", linewidths=1.5, label=f"label {label:+.0f}"
        )
    if name == "mean":
        axis.contour(x, y, values, levels=[0.0], colors="black", linewidths=1.2)
        axis.legend(loc="lower right", fontsize=8, ncols=3, framealpha=1.0)
    axis.set_aspect("equal")
    axis.tick_params(labelsize=8)
