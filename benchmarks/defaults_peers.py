"""Contenders of `defaults.py`: ovkgp without options, scikit-learn, GPyTorch and ridge, each with the settings of its documentation.

A contender is a function of training inputs (n, d), training outputs (n, p) with NaN for missing entries and test inputs (m, d). All peers receive
standardized data and fit each output to the rows that have it; the ICM masks missing entries. Imported by `defaults.py`; not a script.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import RidgeCV

import ovkgp

LEVEL = 0.9
"""Level of the intervals."""

MAX_ITER = 200
"""Maximum number of iterations of L-BFGS for GPyTorch."""


class Predictions(NamedTuple):
    """Mean (m, p), and functions of the log density of entries (m, p) and of the ends of the 90 % intervals."""

    mean: np.ndarray
    log_density: Callable[[np.ndarray], np.ndarray]
    interval: Callable[[], tuple[np.ndarray, np.ndarray]]


Contender = Callable[[np.ndarray, np.ndarray, np.ndarray], Predictions]


def gaussian_predictions(mean: np.ndarray, std: np.ndarray) -> Predictions:
    """Return the predictions of normal distributions."""
    width = norm.ppf((1 + LEVEL) / 2) * std
    return Predictions(mean, lambda Y: norm.logpdf(Y, mean, std), lambda: (mean - width, mean + width))


def ours(**options) -> Contender:
    """Return the contender `GPRegressor` with the given options."""

    def predict(X: np.ndarray, Y: np.ndarray, X_test: np.ndarray) -> Predictions:
        model = ovkgp.GPRegressor(**options).fit(X, Y)
        mean, _ = model.predict(X_test, return_std=True)
        return Predictions(
            mean,
            lambda Y_test: model.predictive(X_test).log_density(Y_test),
            lambda: model.predict_interval(X_test, LEVEL),
        )

    return predict


def _per_output(fit: Callable) -> Contender:
    """Return the contender that applies `fit`, a function of standardized X, y and test inputs, to each output; it returns mean and std."""

    def predict(X: np.ndarray, Y: np.ndarray, X_test: np.ndarray) -> Predictions:
        columns = []
        for y in Y.T:
            observed = np.isfinite(y)
            inputs, locations = _standardize(X[observed], X_test)
            center, scale = y[observed].mean(), y[observed].std() or 1.0
            mean, std = fit(inputs, (y[observed] - center) / scale, locations)
            columns.append((center + scale * mean, scale * std))
        return gaussian_predictions(*(np.stack(parts, 1) for parts in zip(*columns, strict=True)))

    return predict


def _standardize(X: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardize the inputs on the training rows; constant columns are omitted."""
    center, scale = X.mean(0), X.std(0)
    varies = scale > 1e-12 * np.abs(center)
    return tuple(((Z - center) / np.where(varies, scale, 1))[:, varies] for Z in (X, X_test))


def _scikit_learn(base: Callable) -> Contender:
    def fit(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kernel = ConstantKernel() * base(np.ones(X.shape[1])) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0).fit(X, y)
        return model.predict(X_test, return_std=True)

    return _per_output(fit)


@_per_output
def ridge(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit ridge regression with leave-one-out λ; the standard deviation is that of the leave-one-out residuals."""
    alphas = np.geomspace(1e-4, 1e4, 33)
    model = RidgeCV(alphas, store_cv_results=True).fit(X, y)
    std = np.sqrt(model.cv_results_[:, list(alphas).index(model.alpha_)].mean())
    return model.predict(X_test), np.full(len(X_test), std)


class _Independent(gpytorch.models.ExactGP):
    def __init__(self, X, y, likelihood, with_prior: bool):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(_matern(X.shape[1], with_prior))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _Multitask(gpytorch.models.ExactGP):
    def __init__(self, X, Y, likelihood):
        super().__init__(X, Y, likelihood)
        num_tasks = Y.shape[1]
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=num_tasks)
        self.covar_module = gpytorch.kernels.MultitaskKernel(
            _matern(X.shape[1], True), num_tasks=num_tasks, rank=min(2, num_tasks)
        )

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


def _matern(d: int, with_prior: bool) -> gpytorch.kernels.Kernel:
    """Return a Matérn-5/2 kernel with one lengthscale per input, with the log-normal prior of BoTorch: location √2 + ½ log d, scale √3."""
    if not with_prior:
        return gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=d)
    prior = gpytorch.priors.LogNormalPrior(2**0.5 + 0.5 * np.log(d), 3**0.5)
    kernel = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=d, lengthscale_prior=prior)
    kernel.lengthscale = d**0.5
    return kernel


def _train(model: gpytorch.models.ExactGP) -> None:
    """Maximize the log posterior by L-BFGS-B."""
    parameters = list(model.parameters())
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    inputs, outputs = model.train_inputs[0], model.train_targets

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), parameters)
        try:
            value = -objective(model(inputs), outputs).sum()
            gradient = torch.autograd.grad(value, parameters, allow_unused=True)
        except (RuntimeError, gpytorch.utils.errors.NotPSDError):  # a step too far, as the line search may take
            return 1e8, np.zeros_like(vector)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradient, strict=True)]
        return value.item(), torch.nn.utils.parameters_to_vector([part.contiguous() for part in parts]).numpy()

    initial = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    found = minimize(evaluate, initial, jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITER})
    torch.nn.utils.vector_to_parameters(torch.from_numpy(found.x), parameters)


def _gpytorch(with_prior: bool) -> Contender:
    def fit(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = _Independent(torch.from_numpy(X), torch.from_numpy(y), likelihood, with_prior).double()
        _train(model)
        return _evaluate(model, X_test)

    return _per_output(fit)


def gpytorch_icm(X: np.ndarray, Y: np.ndarray, X_test: np.ndarray) -> Predictions:
    """Fit GPyTorch's multitask model of rank 2, with missing entries masked; one output has an independent model."""
    if Y.shape[1] == 1:
        return _gpytorch(True)(X, Y, X_test)
    inputs, locations = _standardize(X, X_test)
    center, scale = np.nanmean(Y, 0), np.nanstd(Y, 0)
    scale = np.where(scale > 0, scale, 1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=Y.shape[1])
    torch.manual_seed(0)
    model = _Multitask(torch.from_numpy(inputs), torch.from_numpy((Y - center) / scale), likelihood).double()
    with gpytorch.settings.observation_nan_policy("mask" if np.isnan(Y).any() else "ignore"):
        _train(model)
        mean, std = _evaluate(model, locations)
    return gaussian_predictions(center + scale * mean, scale * std)


@torch.no_grad()
def _evaluate(model: gpytorch.models.ExactGP, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of new observations."""
    model.eval(), model.likelihood.eval()
    observed = model.likelihood(model(torch.from_numpy(X)))
    return observed.mean.numpy(), observed.stddev.numpy()


def prototype(path: str) -> Contender:
    """Return the contender of the class `Recipe` in the file at `path`; outputs with missing entries are fitted one by one."""
    spec = importlib.util.spec_from_file_location("prototype_of_defaults", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def predict(X: np.ndarray, Y: np.ndarray, X_test: np.ndarray) -> Predictions:
        groups = [[j] for j in range(Y.shape[1])] if np.isnan(Y).any() else [list(range(Y.shape[1]))]
        models = []
        for group in groups:
            observed = np.isfinite(Y[:, group]).all(1)
            models.append(module.Recipe().fit(X[observed], Y[np.ix_(observed, group)]))
        return Predictions(
            np.concatenate([model.predict(X_test)[0] for model in models], 1),
            lambda Y_test: np.concatenate(
                [model.log_density(X_test, Y_test[:, group]) for model, group in zip(models, groups, strict=True)], 1
            ),
            lambda: tuple(
                np.concatenate(ends, 1)
                for ends in zip(*(model.interval(X_test, LEVEL) for model in models), strict=True)
            ),
        )

    return predict


CONTENDERS: dict[str, Contender] = {
    "ovkgp": ours(random_state=0),
    "helmholtz": ours(kernel="helmholtz", random_state=0),
    "gpytorch_prior": _gpytorch(True),
    "gpytorch": _gpytorch(False),
    "gpytorch_icm": gpytorch_icm,
    "sklearn_rbf": _scikit_learn(RBF),
    "sklearn_matern": _scikit_learn(lambda lengthscale: Matern(lengthscale, nu=2.5)),
    "ridge": ridge,
}
"""Contenders by name; "helmholtz" is for vector fields only."""
