"""Whitened residuals of Gaussian models, at training rows and at rows that were held out of the fit."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.criticism.residuals import MAX_JOINT_ENTRIES, MAX_JOINT_ROWS, JointErrors, Residuals
from ovkgp.features import ORFFKernel
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.strategies.exact import observed_covariance
from ovkgp.inference.strategies.selection import select_strategy

MAX_PARAMETERS = 40  # trained numbers whose derivatives are computed; with more, only scale and noise
MAX_WHITENED_ROWS = 2000  # training rows; a random subset of more rows is a Gaussian vector, too
STEP = 1e-4  # of finite differences of the covariance in raw hyperparameters


@torch.no_grad()
def whiten_training_rows(estimator, X: np.ndarray, data: Observations, rng: np.random.Generator) -> Residuals:
    """Whiten the residuals of training rows, at the hyperparameters of `gp_`.

    For a mixture `gp_` is its heaviest candidate at the mode; the correlation R between outputs of independent candidates is then
    removed by R^(−½) in each row.
    """
    gp, model = estimator.gp_, estimator.gp_.frozen().model
    rows = np.flatnonzero(data.observed.any(1).numpy())
    rows = np.sort(rng.permutation(rows)[:MAX_WHITENED_ROWS])
    size, data = data.num_rows, data.rows(torch.from_numpy(rows))
    whitened = select_strategy(model, data, gp.strategy).whitened_residuals(model, data).numpy()
    correlation, is_known = _output_correlation(estimator), has_known_hyperparameters(estimator)
    if correlation is not None:
        whitened = _remove_correlation(whitened, correlation)
    count = max(2, MAX_JOINT_ENTRIES // data.num_outputs)
    some = np.sort(rng.permutation(data.num_rows)[:count])
    joint = _joint_errors(gp, data.rows(torch.from_numpy(some)), correlation, is_known)
    source = _describe_source(estimator, len(rows), size, is_known)
    return Residuals(X[rows], whitened, rows, source, False, is_known, True, joint)


def _describe_source(estimator, num_rows: int, size: int, is_known: bool) -> str:
    """Describe how residuals of training rows were computed."""
    is_mixture = isinstance(estimator.posterior_, MixturePosterior)
    model = "the heaviest component of the mixture, at its mode" if is_mixture else "the model"
    rows = "the training rows" if num_rows == size else f"{num_rows} of {size} training rows"
    trained = "trained on the same rows, so that tests estimate means and variances of the residuals"
    kind = "given" if is_known else trained
    return f"Residuals of {rows} are whitened by the covariance of {model}; hyperparameters were {kind}."


@torch.no_grad()
def whiten_new_rows(estimator, X: np.ndarray, Y: np.ndarray, rng: np.random.Generator) -> Residuals:
    """Whiten the errors of the joint prediction of at most 500 random new rows, in original units."""
    rows = np.flatnonzero(np.isfinite(Y).any(1))
    rows = np.sort(rng.permutation(rows)[: max(2, MAX_JOINT_ROWS * 2 // max(2, Y.shape[1]))])
    scaling = estimator.scaling_
    prediction = estimator.posterior_.predict(scaling.inputs(X[rows]), "full", noise=True)
    gap = (scaling.outputs(Y[rows]) - prediction.mean).numpy()
    observed = np.isfinite(gap)
    index = np.flatnonzero(observed.ravel())
    covariance = prediction.cov.numpy()[np.ix_(index, index)]
    values, vectors = np.linalg.eigh(covariance)
    errors, floor = gap.ravel()[index], values.max() * 1e-12
    whitened = np.full(gap.size, np.nan)
    whitened[index] = vectors @ (vectors.T @ errors / np.sqrt(values.clip(floor)))
    is_known = has_known_hyperparameters(estimator)
    source = (
        f"Residuals of {len(rows)} of {len(X)} held-out rows are whitened by the covariance of their joint prediction."
    )
    some = np.sort(rng.permutation(len(index))[:MAX_JOINT_ENTRIES])
    joint = JointErrors(errors[some], covariance[np.ix_(some, some)])
    return Residuals(X[rows], whitened.reshape(gap.shape), rows, source, True, is_known, True, joint)


def has_known_hyperparameters(estimator) -> bool:
    """Whether kernel and noise were given, so that nothing but the mean was estimated."""
    options = estimator.get_params(deep=False)
    is_given = isinstance(options.get("kernel"), Kernel) and not isinstance(options.get("noise"), str)
    return is_given and options.get("hyperparameters") == "fixed"


def _output_correlation(estimator) -> np.ndarray | None:
    """Return the correlation (p, p) of new observations of the first candidate of a mixture, None if it is coupled."""
    parts = getattr(estimator.posterior_, "parts", None)
    found = getattr(parts[0], "correlation", None) if isinstance(parts, list | tuple) and len(parts) else None
    return None if found is None else np.asarray(found)


def _remove_correlation(values: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Multiply each row (p,) by R^(−½), restricted to its observed entries."""
    observed, result = np.isfinite(values), values.copy()
    for pattern in np.unique(observed, axis=0):
        if pattern.any():
            rows = (observed == pattern).all(1)
            result[np.ix_(rows, pattern)] = values[np.ix_(rows, pattern)] @ _power(
                correlation[np.ix_(pattern, pattern)], -0.5
            )
    return result


def _power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values.clip(values.max() * 1e-12) ** exponent) @ vectors.T


def _joint_errors(gp: OperatorValuedGP, data: Observations, correlation, is_known: bool) -> JointErrors:
    """Compute errors, covariance and, unless hyperparameters are known, its derivatives in them."""
    model = gp.frozen().model
    covariance = _covariance(model, data)
    errors = (data.Y - model.mean(data.X))[data.observed].numpy()
    derivatives = () if is_known else _derivatives(gp, data, covariance)
    if correlation is not None:  # C^(½) (R ⊗ I) C^(½), as the mixture joins its outputs
        rows, outputs = data.observed.nonzero(as_tuple=True)
        root, same_row = _power(covariance, 0.5), (rows[:, None] == rows).numpy()
        covariance = root @ np.where(same_row, correlation[outputs[:, None], outputs], 0.0) @ root
    return JointErrors(errors, covariance, derivatives)


def _covariance(model: Model, data: Observations) -> np.ndarray:
    """Return K + Σ between the observed entries, of the features if there are any."""
    if model.features is not None:
        model = model._replace(kernel=ORFFKernel(model.features), features=None)
    return observed_covariance(model, data).detach().numpy()


def _derivatives(gp: OperatorValuedGP, data: Observations, covariance: np.ndarray) -> tuple[np.ndarray, ...]:
    """Differentiate the covariance in each trained hyperparameter; without any, or with many, in scale and noise."""
    gp = deepcopy(gp)
    trained = [p for name, p in gp.named_parameters() if p.requires_grad and not name.startswith("mean.")]
    found = [covariance, np.eye(len(covariance))]
    if sum(parameter.numel() for parameter in trained) > MAX_PARAMETERS:
        return tuple(found)
    for parameter in trained:
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            before = float(flat[i])
            flat[i] = before + STEP
            found.append((_covariance(gp.frozen().model, data) - covariance) / STEP)
            flat[i] = before
    return tuple(found)
