"""Many outputs: quadratic tasks, and outputs of rank one under correlated noise (BT-83, BA-13).

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ridge_tables import Claim, claim, heading, note, row, spread
from sklearn.metrics import r2_score

from ovkgp import ORFFRidge, OVKRidge
from ovkgp.datasets import make_low_rank_outputs, make_quadratic_tasks
from ovkgp.estimators.ridge import RidgeEstimator

# --- quadratic tasks --------------------------------------------------------------------------------------------------

NUM_TASKS = 4
LENGTHSCALE = float(np.sqrt(1 / (2 * 0.05)))
"""γ = 1/(2ℓ²) = .05."""

PRINTED_ROWS = tuple(np.logspace(1, 5, 10).astype(int))
PRINTED_FEATURES = (0.237, 0.528, 0.679, 0.725, 0.765, 0.801, 0.819, 0.828, 0.833, 0.835)
PRINTED_EXACT = (0.235, 0.535, 0.690, 0.736, 0.777, 0.810)


def bt83(
    draws: int = 20,
    num_rows: int = 100_000,
    exact_rows: int = 1668,
    num_frequencies: int = 1000,
    test_rows: int = 5000,
) -> list[Claim]:
    """R² of four quadratic tasks against the rows, beside the printed ones.

    The outputs of k(x, z) I share nothing but the rows: one model of 4·draws outputs is `draws` models of four tasks.
    """
    rows = [n for n in PRINTED_ROWS if n <= num_rows]
    options = {"num_tasks": NUM_TASKS * draws, "noise": 0.01, "rescaled": True}
    X, Y, _ = make_quadratic_tasks(test_rows + rows[-1], random_state=0, **options)
    Xs, Ys, X, Y = X[:test_rows], Y[:test_rows], X[test_rows:], Y[test_rows:]
    fixed = {"kernel": "independent", "lam": 0.1, "lengthscale": LENGTHSCALE}
    features = ORFFRidge(num_frequencies=num_frequencies, random_state=0, **fixed)
    heading(
        f"BT-83: R^20 to R^4, D = {num_frequencies}, γ = .05, λ = .1: test R², ours over {draws} draws of the tasks",
        "N",
        "ORFF",
        "printed",
        "exact",
        "printed",
    )
    found, exact, before = [], [], 0
    for i, n in enumerate(rows):
        features.partial_fit(X[before:n], Y[before:n])  # the rows so far are in its statistics
        found.append(_by_draw(features, Xs, Ys))
        if n <= exact_rows:
            exact.append(_by_draw(OVKRidge(**fixed).fit(X[:n], Y[:n]), Xs, Ys))
        cells = (spread(exact[i]), PRINTED_EXACT[i]) if n <= exact_rows else ("-", "-")
        row(f"{n}", spread(found[i]), PRINTED_FEATURES[i], *cells)
        before = n
    note("The printed row is one draw. Inputs and frequencies are one draw for all of ours.")
    return [
        claim(f"{name}: the printed figures are within 2 sd of ours at every N", _inside(ours, printed))
        for name, ours, printed in (("features", found, PRINTED_FEATURES), ("exact", exact, PRINTED_EXACT))
    ] + [
        claim("for few features the exact kernel is better at equal N", np.mean(exact[-1]) > np.mean(found[len(exact) - 1])),
        claim("features reach more rows, and then a better R²", np.mean(found[-1]) > np.mean(exact[-1])),
    ]


def _by_draw(model: RidgeEstimator, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """R², averaged over the four tasks of each draw."""
    return r2_score(Y, model.predict(X), multioutput="raw_values").reshape(-1, NUM_TASKS).mean(1)


def _inside(ours: list[np.ndarray], printed: Sequence[float]) -> bool:
    return all(abs(one.mean() - value) <= 2 * one.std(ddof=1) for one, value in zip(ours, printed, strict=False))


# --- outputs of rank one ----------------------------------------------------------------------------------------------

PRINTED = {
    100: (0.0921, 0.0436, 0.1312, 0.1222),
    1000: (0.0597, 0.0213, 0.1085, 0.0990),
    10_000: (0.0356, 0.0101, 0.0876, 0.0825),
    100_000: (0.0289, np.nan, 0.0717, np.nan),
}
"""Root mean squared errors of Table 3: features, exact, features with noise, exact with noise."""


def ba13(
    rows: Sequence[int] = (100, 1000, 10_000),
    exact_rows: int = 1000,
    num_frequencies: int = 500,
    seeds: Sequence[int] = (0, 1, 2),
    test_rows: int = 2000,
) -> list[Claim]:
    """Errors of twenty outputs of rank one, without and with correlated noise, beside Table 3."""
    lams = np.logspace(-8, 2, 6)
    errors: dict[int, list] = {n: [] for n in rows}
    for seed in seeds:
        X, clean, truth = make_low_rank_outputs(max(rows) + test_rows, noise=0.0, random_state=seed)
        noisy = clean + (make_low_rank_noise := _noise(truth, len(X), seed))
        del make_low_rank_noise
        test = X[-test_rows:], clean[-test_rows:]
        shared = {"kernel": "decomposable", "output_matrix": truth.output_matrix, "lengthscale": truth.lengthscale}
        for n in rows:
            models = _models(shared, lams, num_frequencies, seed, truth.noise_covariance, n <= exact_rows)
            errors[n].append([_error(model, X[:n], (noisy if is_noisy else clean)[:n], *test) for model, is_noisy in models])
    return _report(errors, rows, len(seeds), num_frequencies)
