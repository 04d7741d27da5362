"""Data sets of 200 rows, of a right model and of models that are wrong in one way each."""

from collections import Counter

import gpytorch
import numpy as np

import ovkgp
from ovkgp.criticism import criticize

NUM_ROWS = 200


def draw_function(X, rng, lengthscale=1.5, kernel="rbf"):
    """Draw a Gaussian process with unit variance at X (n, 1)."""
    distance = np.abs(X - X.T) / lengthscale
    covariance = np.exp(-0.5 * distance**2) if kernel == "rbf" else np.exp(-distance)
    return np.linalg.cholesky(covariance + 1e-9 * np.eye(len(X))) @ rng.normal(size=len(X))


def draw_data(case, seed, n=NUM_ROWS):
    """Draw X (n, 1), Y (n, p) and an extra column (n,)."""
    rng = np.random.default_rng([seed, 30])
    X, extra = rng.uniform(0, 10, (n, 1)), rng.normal(size=n)
    if case == "matern12":
        return X, draw_function(X, rng, 1.0, "matern12") + 0.05 * rng.normal(size=n), extra
    if case == "correlated outputs":
        root = np.linalg.cholesky([[1.0, 0.7], [0.7, 1.0]])
        f = np.column_stack([draw_function(X, rng) for _ in range(2)])
        return X, (f + 0.3 * rng.normal(size=(n, 2))) @ root.T, extra
    if case == "right, 2 outputs":
        return X, np.column_stack([draw_function(X, rng) for _ in range(2)]) + 0.3 * rng.normal(size=(n, 2)), extra
    f, noise = draw_function(X, rng), rng.normal(size=n)
    if case == "growing noise":
        noise = noise * 3 ** (X[:, 0] / 10 - 0.5)
    elif case == "heavy tails":
        noise = rng.standard_t(3, size=n) / np.sqrt(3)
    elif case == "omitted column":  # 30 % of the variance of the outputs
        return X, f + 0.3 * noise + np.sqrt(0.3 / 0.7 * 1.09) * extra, extra
    return X, f + 0.3 * noise, extra


def fit_fixed(X, Y):
    """Condition the true model of `draw_data("right")`."""
    Y = np.reshape(Y, (len(X), -1))
    base = gpytorch.kernels.RBFKernel()
    base.lengthscale = 1.5
    p = Y.shape[1]
    kernel = base if p == 1 else ovkgp.kernels.DecomposableKernel(base, output_matrix=np.eye(p))
    return ovkgp.GPRegressor(kernel, noise=0.09, hyperparameters="fixed", random_state=0).fit(X, Y)


def fit_trained(X, Y):
    """Train an RBF kernel with independent outputs."""
    return ovkgp.GPRegressor("independent", "rbf", hyperparameters="evidence", random_state=0).fit(X, Y)


def count_rejected(case, fit, num_datasets, first_seed=0):
    """Count the data sets in which any test rejects the model, and those in which each test does."""
    rejected, by_check = 0, Counter()
    for seed in range(first_seed, first_seed + num_datasets):
        X, Y, extra = draw_data(case, seed)
        table = criticize(fit(X, Y), extra={"extra": extra}, random_state=seed)
        rejected += bool(table.rejected)
        by_check.update(check.name for check in table.rejected)
    return rejected, by_check


def draw_counts(case, seed, n=300):
    """Draw inputs (n, 1) and counts (n,) with a known rate, or labels of the case "labels"."""
    rng = np.random.default_rng([seed, 5])
    X = rng.uniform(0, 6, (n, 1))
    f = np.sin(X[:, 0]) + 1
    if case == "labels":
        return X, np.where(rng.random(n) < 1 / (1 + np.exp(4 - 4 * f)), "b", "a")
    if case == "overdispersed":
        return X, rng.negative_binomial(2, 2 / (2 + np.exp(f)))
    return X, rng.poisson(np.exp(f)) * (rng.random(n) < (0.8 if case == "extra zeros" else 1.0))


def count_rejected_counts(case, num_datasets, first_seed=0):
    """Count rejections as `count_rejected` does, of a Poisson model or a classifier of 200 rows, at 100 other rows."""
    options = {"likelihood": "poisson", "hyperparameters": "evidence", "num_frequencies": 30, "random_state": 0}
    rejected, by_check = 0, Counter()
    for seed in range(first_seed, first_seed + num_datasets):
        X, y = draw_counts(case, seed)
        model = (
            ovkgp.SimplexClassifier(random_state=0) if case == "labels" else ovkgp.GPRegressor("independent", **options)
        )
        table = criticize(model.fit(X[:200], y[:200]), X[200:], y[200:], random_state=seed)
        rejected += bool(table.rejected)
        by_check.update(check.name for check in table.rejected)
    return rejected, by_check
