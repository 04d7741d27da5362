"""Many outputs: quadratic tasks, and outputs of rank one under correlated noise (BT-83, BA-13).

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from claims import Claim, claim, heading, mean_and_std, note, row
from sklearn.metrics import r2_score

from ovkgp import ORFFRidge, OVKRidge
from ovkgp.datasets import make_low_rank_outputs, make_quadratic_tasks
from ovkgp.estimators.ridge.base import RidgeEstimator

# --- quadratic tasks --------------------------------------------------------------------------------------------------

NUM_TASKS = 4
LENGTHSCALE = float(np.sqrt(1 / (2 * 0.05)))
"""γ = 1/(2ℓ²) = .05."""

PRINTED_ROWS = tuple(np.logspace(1, 5, 10).astype(int).tolist())
PRINTED_FEATURES = (0.237, 0.528, 0.679, 0.725, 0.765, 0.801, 0.819, 0.828, 0.833, 0.835)
PRINTED_EXACT = (0.235, 0.535, 0.690, 0.736, 0.777, 0.810)


def bt83(
    num_rows: int = 100_000,
    exact_rows: int = 1668,
    num_frequencies: int = 1000,
    seeds: Sequence[int] = (0, 1, 2, 3),
    seeds_rows: int = 1668,
    draws: int = 10,
    test_rows: int = 5000,
) -> list[Claim]:
    """R² of four quadratic tasks against the rows, beside the printed ones.

    The outputs of k(x, z) I share nothing but the rows: one model of 4·draws outputs is `draws` models of four tasks.
    """
    rows = [n for n in PRINTED_ROWS if n <= num_rows]
    found, exact = {n: [] for n in rows}, {n: [] for n in rows if n <= exact_rows}
    for seed in seeds:
        few = [n for n in rows if seed == seeds[0] or n <= seeds_rows]
        for n, model, scores in _growing(few, exact_rows, num_frequencies, seed, draws, test_rows):
            (found if model == "features" else exact)[n].extend(scores)
    heading(
        f"BT-83: R^20 to R^4, D = {num_frequencies}, γ = .05, λ = .1: test R²",
        "N",
        "ORFF",
        "printed",
        "exact",
        "printed",
    )
    for n, features, kernel in zip(rows, PRINTED_FEATURES, (*PRINTED_EXACT, *4 * ("-",)), strict=False):
        row(f"{n}", mean_and_std(found[n]), features, *((mean_and_std(exact[n]), kernel) if n in exact else ("-", "-")))
    note(
        f"Mean ± sd over {draws} draws of the tasks for each of {len(seeds)} draws of inputs and frequencies (one beyond"
    )
    note(f"N = {seeds_rows}). The printed row is one draw.")
    last = max(exact)
    return [
        *(
            claim(f"{name}: the printed figures are within 2 sd of ours at every N", _inside(ours, printed))
            for name, ours, printed in (("features", found, PRINTED_FEATURES), ("exact", exact, PRINTED_EXACT))
        ),
        claim(f"at equal N the exact kernel is better (N = {last})", np.mean(exact[last]) > np.mean(found[last])),
        claim(
            f"features reach N = {rows[-1]}, and then a better R² than the exact kernel at N = {last} (same draw)",
            np.mean(found[rows[-1]]) > np.mean(exact[last][:draws]),
        ),
    ]


def _growing(
    rows: Sequence[int], exact_rows: int, num_frequencies: int, seed: int, draws: int, test_rows: int
) -> Iterator[tuple[int, str, np.ndarray]]:
    """N, the model and its R² in each draw of the tasks, for more and more rows."""
    options = {"num_tasks": NUM_TASKS * draws, "noise": 0.01, "rescaled": True, "random_state": seed}
    X, Y, _ = make_quadratic_tasks(test_rows + rows[-1], **options)
    test, X, Y = (X[:test_rows], Y[:test_rows]), X[test_rows:], Y[test_rows:]
    fixed = {"kernel": "independent", "lam": 0.1, "lengthscale": LENGTHSCALE}
    features = ORFFRidge(num_frequencies=num_frequencies, random_state=seed, **fixed)
    for before, n in pairwise((0, *rows)):
        features.partial_fit(X[before:n], Y[before:n])  # the rows so far are in its statistics
        yield n, "features", _by_draw(features, *test)
        if n <= exact_rows:
            yield n, "exact", _by_draw(OVKRidge(**fixed).fit(X[:n], Y[:n]), *test)


def _by_draw(model: RidgeEstimator, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """R², averaged over the four tasks of each draw."""
    return r2_score(Y, model.predict(X), multioutput="raw_values").reshape(-1, NUM_TASKS).mean(1)


def _inside(ours: dict[int, list[float]], printed: Sequence[float]) -> bool:
    return all(
        abs(np.mean(one) - value) <= 2 * np.std(one, ddof=1) for one, value in zip(ours.values(), printed, strict=False)
    )


# --- outputs of rank one ----------------------------------------------------------------------------------------------

PRINTED = {
    100: (0.0921, 0.0436, 0.1312, 0.1222),
    1000: (0.0597, 0.0213, 0.1085, 0.0990),
    10_000: (0.0356, 0.0101, 0.0876, 0.0825),
    100_000: (0.0289, np.nan, 0.0717, np.nan),
}
"""Root mean squared errors of Table 3: features, exact, features with noise, exact with noise."""


COLUMNS = ("ORFF", "exact", "ORFF, noisy", "exact, noisy", "ORFF, Σ known", "exact, Σ known")


def ba13(
    rows: Sequence[int] = (100, 1000, 10_000),
    exact_rows: int = 1000,
    num_frequencies: int = 500,
    seeds: Sequence[int] = (0, 1, 2),
    held_out: int = 2000,
) -> list[Claim]:
    """Errors of twenty outputs of rank one, without and with correlated noise, beside Table 3."""
    errors = np.full((len(seeds), len(rows), len(COLUMNS)), np.nan)
    for s, seed in enumerate(seeds):
        X, noisy, truth = make_low_rank_outputs(max(rows) + held_out, random_state=seed)
        clean = truth(X)
        given = {"kernel": "decomposable", "output_matrix": truth.output_matrix, "lengthscale": truth.lengthscale}
        metric = {"output_metric": truth.noise_covariance}
        makers = (
            partial(ORFFRidge, num_frequencies=num_frequencies, random_state=seed, **given),
            partial(OVKRidge, **given),
        )
        for i, n in enumerate(rows):
            for j, (Y, options) in enumerate(((clean, {}), (noisy, {}), (noisy, metric))):
                for k, make in enumerate(makers[: 1 + (n <= exact_rows)]):
                    mean = _best_mean(make(**options), X, Y, n, held_out)
                    errors[s, i, 2 * j + k] = np.sqrt(np.square(mean - clean[-held_out // 2 :]).mean())
    return _table_3(errors, rows, num_frequencies)


def _best_mean(model: RidgeEstimator, X: np.ndarray, Y: np.ndarray, n: int, held_out: int) -> np.ndarray:
    """Predictions at the last rows, with the λ that is best at the rows just before them."""
    path = model.fit(X[:n], Y[:n]).path(X[:n], Y[:n], np.logspace(-8, 2, 6))
    choose = slice(-held_out, -held_out // 2)
    errors = np.square(path.predict(X[choose]) - Y[choose]).mean((1, 2))
    return path.predict(X[-held_out // 2 :])[errors.argmin()]


def _table_3(errors: np.ndarray, rows: Sequence[int], num_frequencies: int) -> list[Claim]:
    title = f"BA-13: R^20 to R^20, rank one, D = {num_frequencies}: root mean squared error x 100, {len(errors)} draws"
    heading(title, "N", *COLUMNS)
    means = errors.mean(0)
    for n, found in zip(rows, 100 * means, strict=True):
        row(f"{n}", *("-" if np.isnan(value) else f"{value:.2f}" for value in found))
        row("    printed", *(f"{100 * value:.2f}" if np.isfinite(value) else "-" for value in PRINTED.get(n, ())))
    note(
        "Errors are against the function without noise; its mean square depends on the draw, so levels do too. λ by the"
    )
    note("error on 1000 held-out rows. The number of features of the fit is not printed. The exact kernel takes O(N³)")
    note("seconds, and is skipped for the largest N.")
    features, exact, noisy, exact_noisy, known, exact_known = means.T
    least = np.isfinite(exact)
    return [
        claim("the error falls with N, without noise and with it", (np.diff(means[:, [0, 2]], axis=0) < 0).all()),
        claim("at equal N the exact kernel is better than few features", (exact < features)[least].all()),
        claim("the full noise covariance beats one variance, features", (known < noisy).all()),
        claim("and exact", (exact_known < exact_noisy)[least].all()),
    ]
