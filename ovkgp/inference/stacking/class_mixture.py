"""Classification with a mixture of Gaussian process classifiers of one column of labels, each by a Laplace approximation.

On standardized inputs, the latent function of two classes (log odds), or each of those of C classes (softmax), has the covariance

    k(x, z) = 10 + v x·z + s² κ(|x − z|/ℓ),

with a constant whose variance 10 leaves the frequencies of the classes to the data. The hyperparameters of a candidate maximize the
approximate evidence times priors that are normal in the logarithm, and the mixture has the weights of the largest density of the labels
given all others. Laplace approximations are underconfident, so that the probabilities π of the mixture become π^τ / Σ π^τ, with a
power τ that also maximizes the leave-one-out density. Leave-one-out predictions divide the approximate posterior by the site of a row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.likelihoods import Bernoulli, Softmax
from ovkgp.inference.likelihoods.latent_laplace import BinaryLabels, ClassLabels, LatentMode
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.stacking.candidates import IndependentCandidate
from ovkgp.inference.stacking.output_draws import MAX_GAIN_PER_ROW
from ovkgp.inference.stacking.output_kernel import OutputDensity, OutputParameters
from ovkgp.inference.stacking.stack import stacking_weights
from ovkgp.inference.training.lbfgs import ObjectiveEvaluator
from ovkgp.inference.training.newton import refine_mode
from ovkgp.inference.training.numpy_values import KernelNode
from ovkgp.inference.training.priors import PriorSettings

CONSTANT_VARIANCE = 10.0  # prior variance of the constant term of each latent function
CLASS_PRIORS = PriorSettings(lengthscale=(0.7, 1.0), variance=(1.4, 1.5), slope_variance=(0.0, 2.0))
MODE_TOLERANCE, SEARCH_TOLERANCE = 1e-9, 1e-3  # gain of a Newton step, in nats, at which the search for a mode ends
SEARCH_GAIN, MAX_EVALUATIONS = (
    0.02,
    60,
)  # remaining gain of log π, in nats, and number of evaluations, at which training ends
POWER_PRIOR_SCALE, MAX_LOG_POWER = 0.5, 2.0  # of log τ, which is zero a priori
MAX_ROWS, MAX_MATRIX_ENTRIES = 4000, 32_000_000
"""Maximum number of rows of a posterior, and of the entries of its matrices (one per class, 256 MB)."""
MAX_LENGTHSCALES = 300  # number of inputs up to which there is a candidate with a lengthscale per input
MIN_WEIGHT = 0.05  # weight on a subset of the rows below which a candidate is dropped
MIN_PROBABILITY = 1e-300
NAMES = {"outputscale": "variance", "variance": "slope variance"}  # of hyperparameters, by the names of GPyTorch
CHUNK_ENTRIES = 2**21  # entries of an array of differences, by which predictions are split


def class_candidates(num_inputs: int, base: str = "matern52") -> list[IndependentCandidate]:
    """Return the candidates: one lengthscale, and one per input unless there are very many, each with a linear term."""
    one = IndependentCandidate(f"linear + {base}", base, has_lengthscales=False, is_linear=True, priors=CLASS_PRIORS)
    if num_inputs > MAX_LENGTHSCALES:
        return [one]
    return [one, replace(one, name=f"{one.name}, ARD", has_lengthscales=True)]


@dataclass(frozen=True, eq=False)
class ClassComponent:
    """A trained candidate: hyperparameters θ (k,), coefficients a of the mode, (n,) or (C, n), weight, and report of the training."""

    candidate: IndependentCandidate
    theta: np.ndarray
    coefficients: np.ndarray
    weight: float
    report: FitReport

    def hyperparameters(self, X: np.ndarray) -> dict[str, np.ndarray]:
        """Return lengthscales (d,) and variances () by name, at the rows X (n, d) of the data."""
        spans = make_parameters(self.candidate, X).spans
        found = {path.rpartition("raw_")[-1]: self.theta[span] for path, span in spans.items()}
        found["lengthscale"] = np.broadcast_to(found["lengthscale"], X.shape[1])
        return {NAMES.get(name, name): values for name, values in found.items()}


@dataclass(eq=False)
class ClassMixture:
    """Mixture of trained candidates of labels (n,) in 0, …, C − 1 at standardized inputs X (n, d).

    `power` is τ, and `log_loss` that of the tempered leave-one-out probabilities of the labels.
    """

    X: np.ndarray
    labels: np.ndarray
    num_classes: int
    components: list[ClassComponent]
    power: float
    log_loss: float

    @cached_property
    def modes(self) -> list[tuple[KernelNode, LatentMode]]:
        """Covariance and Gaussian approximation of each component, computed from the coefficients of the mode."""
        model, modes = make_labels(self.labels, self.num_classes), []
        for part in self.components:
            kernel = make_parameters(part.candidate, self.X).kernel
            modes.append((kernel, model.approximate(kernel.matrix(part.theta)[0], part.coefficients)))
        return modes

    def __getstate__(self) -> dict:
        """Omit the matrices, which are computed again."""
        return {name: value for name, value in vars(self).items() if name != "modes"}

    def latent(self, Z: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield mean and covariance of the latent functions at Z (m, d) of each component: (m,) twice, or (m, C) and (m, C, C)."""
        size = max(CHUNK_ENTRIES // max(self.X.size, 1), 1)
        for part, (kernel, mode) in zip(self.components, self.modes, strict=True):
            chunks = range(0, max(len(Z), 1), size)
            found = [_predict(kernel, mode, part.theta[None], Z[start : start + size]) for start in chunks]
            yield tuple(np.concatenate(column) for column in zip(*found, strict=True))

    def log_probabilities(self, Z: np.ndarray) -> np.ndarray:
        """Return the logarithms of the probabilities of the classes (m, C) at Z (m, d)."""
        pairs = zip(self.components, self.latent(Z), strict=True)
        return temper(sum(part.weight * average_probabilities(*moments) for part, moments in pairs), self.power)

    def scores(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the mixture's log odds (m,), or of its latent functions minus their mean, (m, C)."""
        means, squares = 0.0, 0.0
        for part, (mean, variance) in zip(self.components, self.latent(Z), strict=True):
            if self.num_classes > 2:
                center = np.eye(self.num_classes) - 1 / self.num_classes
                mean, variance = mean @ center, np.einsum("ak,mkl,al->ma", center, variance, center, optimize=True)
            means, squares = means + part.weight * mean, squares + part.weight * (variance + mean**2)
        return means, np.sqrt(np.maximum(squares - means**2, 0.0))


def fit_class_mixture(
    X: np.ndarray, labels: np.ndarray, num_classes: int, candidates, training_rows: int | None, seed: int, progress=iter
) -> ClassMixture:
    """Train the candidates on at most `training_rows` rows, and condition their mixture on all, up to `max_posterior_rows`.

    Complexity: O(C n³) per evaluation of the evidence and per Newton step, with `training_rows` rows in training.
    """
    order, limit = stratified_order(labels, seed), max_posterior_rows(num_classes)
    kept = np.sort(order[:limit])
    subset = kept if training_rows is None else np.sort(order[: min(training_rows, limit)])
    trained = [train_candidate(candidate, X[subset], labels[subset], num_classes) for candidate in progress(candidates)]
    if len(subset) < len(kept):
        weights = stacking_weights(np.stack([part.log_densities() for part in trained], 1))
        likely = [part for part, weight in zip(trained, weights, strict=True) if weight > MIN_WEIGHT]
        trained = [part.extend(X[kept], labels[kept]) for part in likely]
    weights = stacking_weights(np.stack([part.log_densities() for part in trained], 1))
    held_out = sum(weight * part.held_out for part, weight in zip(trained, weights, strict=True))
    power = fit_power(held_out, labels[kept])
    log_loss = -float(temper(held_out, power)[np.arange(len(kept)), labels[kept]].mean())
    components = [
        ClassComponent(part.candidate, part.theta, part.mode.coefficients, float(weight), part.report)
        for part, weight in zip(trained, weights, strict=True)
    ]
    return ClassMixture(X[kept], labels[kept], num_classes, components, power, log_loss)


@dataclass(eq=False)
class TrainedCandidate:
    """Hyperparameters θ (k,) of a candidate, the mode of its latent functions at rows X (n, d), and leave-one-out probabilities (n, C)."""

    candidate: IndependentCandidate
    theta: np.ndarray
    mode: LatentMode
    X: np.ndarray
    labels: np.ndarray
    num_classes: int
    report: FitReport

    @cached_property
    def held_out(self) -> np.ndarray:
        """Probabilities of the classes (n, C) at each row without its label."""
        return average_probabilities(*self.mode.leave_one_out())

    def log_densities(self) -> np.ndarray:
        """Return the log probabilities (n,) of the labels, each given the others."""
        return np.log(self.held_out[np.arange(len(self.labels)), self.labels])

    def extend(self, X: np.ndarray, labels: np.ndarray) -> TrainedCandidate:
        """Find the mode at other rows with the same hyperparameters, beginning with predictions there."""
        known = ClassComponent(self.candidate, self.theta, self.mode.coefficients, 1.0, self.report)
        (init, _), *_ = ClassMixture(self.X, self.labels, self.num_classes, [known], 1.0, 0.0).latent(X)
        model, K = (
            make_labels(labels, self.num_classes),
            make_parameters(self.candidate, X).kernel.matrix(self.theta)[0],
        )
        return replace(self, mode=model.find_mode(K, init.T, MODE_TOLERANCE), X=X, labels=labels)


def train_candidate(
    candidate: IndependentCandidate, X: np.ndarray, labels: np.ndarray, num_classes: int
) -> TrainedCandidate:
    """Maximize the approximate evidence times priors from the locations of the priors."""
    began = time.perf_counter()
    model, parameters = make_labels(labels, num_classes), make_parameters(candidate, X)
    evidence = LaplaceEvidence(model, parameters.kernel)
    evaluator = ObjectiveEvaluator(parameters, OutputDensity(parameters, evidence))
    point = evaluator.evaluate(np.clip(parameters.loc, *parameters.bounds.T))
    if point is None:
        raise FactorizationError(
            "The covariance matrix is not positive definite at the initial values of the hyperparameters. Check the data for duplicates and extreme scales.",
        )
    metric = np.diag(parameters.scale**-2)
    found = refine_mode(evaluator, point, metric, MAX_EVALUATIONS, SEARCH_GAIN)
    theta = parameters.theta(found.best.x)
    mode = model.find_mode(parameters.kernel.matrix(theta)[0], evidence.values, MODE_TOLERANCE)
    converged = found.gain <= MAX_GAIN_PER_ROW * len(X)
    report = FitReport(
        found.best.value,
        converged,
        "converged" if converged else f"stopped after {evaluator.evaluations} evaluations of the evidence",
        iterations=found.steps,
        evaluations=evaluator.evaluations,
        failures=evaluator.failures,
        gradient_norm=evaluator.slope(found.best) / len(X),
        seconds=time.perf_counter() - began,
        num_rows=len(X),
        log_evidence=mode.log_evidence,
        active_bounds=parameters.active_bounds(found.best.x),
    )
    return TrainedCandidate(candidate, theta, mode, X, labels, num_classes, report)


class LaplaceEvidence:
    """log q as a function of θ and of a vector to which it adds derivatives; each mode is the initial point of the next search."""

    def __init__(self, model: BinaryLabels | ClassLabels, kernel: KernelNode):
        self.model, self.kernel, self.values = model, kernel, None

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        """Return log q and add its derivatives by θ to `out`."""
        K, backward = self.kernel.matrix(theta)
        mode = self.model.find_mode(K, self.values, SEARCH_TOLERANCE)
        self.values = mode.values
        backward(np.ascontiguousarray(mode.by_covariance(K)), out)
        return mode.log_evidence


def make_labels(labels: np.ndarray, num_classes: int) -> BinaryLabels | ClassLabels:
    """Return the model of labels (n,) in 0, …, C − 1: one latent function for two classes, else one per class."""
    return BinaryLabels(labels) if num_classes == 2 else ClassLabels(labels, num_classes)


def make_parameters(candidate: IndependentCandidate, X: np.ndarray) -> OutputParameters:
    """Return the hyperparameters of a candidate at rows X (n, d), with priors, bounds and the node of its covariance."""
    return OutputParameters(candidate, X, is_noise_known=True, constant_variance=CONSTANT_VARIANCE)


def average_probabilities(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the expected probabilities (m, C) under Gaussian latent functions: moments (m,), or (m, C) and (m, C, C)."""
    mean, covariance = (torch.from_numpy(np.ascontiguousarray(part)) for part in (mean, covariance))
    if mean.ndim == 1:
        # a difference from one would lose the digits of a small probability
        both = Bernoulli(1).probability(torch.stack([-mean, mean], 1), torch.stack([covariance, covariance], 1)).numpy()
        return both / both.sum(1, keepdims=True)
    return Softmax(mean.shape[1]).moments(mean, covariance)[0].numpy()


def temper(probabilities: np.ndarray, power: float) -> np.ndarray:
    """Return the logarithm of π^τ / Σ π^τ for rows of probabilities (m, C)."""
    return log_softmax(power * np.log(np.maximum(probabilities, MIN_PROBABILITY)), axis=1)


def fit_power(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the power τ of the largest density of labels (n,), times a normal prior of log τ."""
    log_p = np.log(np.maximum(probabilities, MIN_PROBABILITY))
    log_ratios = log_p - log_p[np.arange(len(labels)), labels, None]  # of each class to the label

    def loss(log_power: float) -> float:
        penalty = 0.5 * (log_power / POWER_PRIOR_SCALE) ** 2
        return penalty + float(logsumexp(math.exp(log_power) * log_ratios, axis=1).sum())

    bounds = (-MAX_LOG_POWER, MAX_LOG_POWER)
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3}).x)


def max_posterior_rows(num_classes: int) -> int:
    """Return the maximum number of rows of a posterior."""
    matrices = 1 if num_classes == 2 else num_classes
    return min(MAX_ROWS, int(math.sqrt(MAX_MATRIX_ENTRIES / matrices)))


def stratified_order(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return a random order (n,) of rows in which all classes are distributed evenly."""
    rng, position = np.random.default_rng(seed), np.empty(len(labels))
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        position[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    return np.argsort(position, kind="stable")


def _predict(kernel: KernelNode, mode: LatentMode, thetas: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    prior = np.broadcast_to(kernel.variances(thetas, Z)[0], len(Z))
    return mode.predict(kernel.cross(thetas, Z)[0], prior)
