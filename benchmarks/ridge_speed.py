"""Seconds beside scikit-learn's: kernel ridge, random features, and a path of λ with leave-one-out errors.

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

import numpy as np
from claims import Claim, claim
from sklearn.kernel_approximation import RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from timing import line, seconds, timed

from ovkgp import ORFFRidge, OVKRidge

LENGTHSCALE, GAMMA, LAM = 1.0, 0.5, 0.1


def speed(num_rows: int = 2000, num_outputs: int = 10, num_frequencies: int = 250, num_lams: int = 20) -> list[Claim]:
    """Fits and predictions of the same estimator, ours and theirs."""
    rng = np.random.default_rng(0)
    X, Xs = rng.uniform(-1, 1, (2, num_rows, 5))
    Y, lams = np.sin(X @ rng.standard_normal((5, num_outputs))), np.logspace(-4, 1, num_lams)
    title = f"n = {num_rows}, p = {num_outputs}, D = {num_frequencies}"
    print(f"\n{title:<52}{'ours':>14}{'scikit-learn':>15}{'theirs / ours':>15}")
    exact, theirs = OVKRidge(lam=LAM, lengthscale=LENGTHSCALE), KernelRidge(alpha=LAM, kernel="rbf", gamma=GAMMA)
    line("exact kernel, one λ: fit", *seconds(lambda: exact.fit(X, Y), lambda: theirs.fit(X, Y), repeats=3), "")
    difference = abs(exact.predict(Xs) - theirs.predict(Xs)).max()
    line("    predict", *seconds(lambda: exact.predict(Xs), lambda: theirs.predict(Xs), repeats=3), "")
    features = ORFFRidge(lam=LAM, lengthscale=LENGTHSCALE, num_frequencies=num_frequencies, random_state=0)
    sampler = RBFSampler(gamma=GAMMA, n_components=2 * num_frequencies, random_state=0)
    pipeline = make_pipeline(sampler, Ridge(alpha=LAM, fit_intercept=False))
    line("features, one λ: fit", *seconds(lambda: features.fit(X, Y), lambda: pipeline.fit(X, Y), repeats=3), "")
    line("    predict", *seconds(lambda: features.predict(Xs), lambda: pipeline.predict(Xs), repeats=3), "")
    return [
        claim(
            f"the exact kernel gives scikit-learn's predictions (largest difference {difference:.1e})",
            difference < 1e-6,
        ),
        *_path(X, Y, lams, num_frequencies),
    ]


def _path(X: np.ndarray, Y: np.ndarray, lams: np.ndarray, num_frequencies: int) -> list[Claim]:
    """Ours with the leave-one-out error of each λ; theirs are bare fits."""
    ours = OVKRidge(lam=lams, lengthscale=LENGTHSCALE)
    features = ORFFRidge(lam=lams, lengthscale=LENGTHSCALE, num_frequencies=num_frequencies, random_state=0)
    separate = OVKRidge(lengthscale=LENGTHSCALE)
    spent, _ = timed(lambda: ours.fit(X, Y))
    theirs, _ = timed(lambda: [KernelRidge(alpha=lam, kernel="rbf", gamma=GAMMA).fit(X, Y) for lam in lams])
    line(f"exact, {len(lams)} λ with LOO (theirs: {len(lams)} bare fits)", spent, theirs, "")
    single, _ = timed(lambda: separate.set_params(lam=float(lams[0])).fit(X, Y))
    line(f"    the same, and one ovkgp fit x {len(lams)}", spent, single * len(lams), "")
    scalar_features = RBFSampler(gamma=GAMMA, n_components=2 * num_frequencies, random_state=0)
    spent_features, _ = timed(lambda: features.fit(X, Y))
    theirs, _ = timed(
        lambda: [make_pipeline(scalar_features, Ridge(alpha=lam, fit_intercept=False)).fit(X, Y) for lam in lams]
    )
    line(f"features, {len(lams)} λ with LOO (theirs: {len(lams)} bare fits)", spent_features, theirs, "")
    return [
        claim(
            f"a path with leave-one-out errors is faster than one ovkgp fit x {len(lams)}", spent < single * len(lams)
        ),
    ]
