"""Densities with known moments, with the interface of `LogPosterior`, for tests of samplers."""

import random

import numpy as np
import pyro
import torch
from scipy.optimize import minimize

from ovkgp.inference.training.log_posterior import LogPosterior, Mode


class KnownDensity(LogPosterior):
    """log π(u) from a function that gives value and gradient.

    Args:
        function: u (k,) → value and gradient (k,); −inf where it cannot be evaluated.
        initial: initial point of the search for the mode.
        interrupt_at: the number of the call at which Ctrl-C is pressed, or None.
    """

    def __init__(self, function, initial, interrupt_at=None):
        self.function, self.initial, self.interrupt_at = function, np.asarray(initial, dtype=float), interrupt_at
        self.evaluations = self.failures = 0
        self.log_num_modes = 0.0

    def __len__(self):
        return len(self.initial)

    def initial_point(self):
        return self.initial.copy()

    def __call__(self, u):
        self.evaluations += 1
        if self.evaluations == self.interrupt_at:
            raise KeyboardInterrupt
        value, gradient = self.function(np.asarray(u))
        if not np.isfinite(value):
            self.failures += 1
            return -np.inf, np.zeros(len(self))
        return value, gradient

    def mode(self):
        found = minimize(lambda u: tuple(-part for part in self.function(u)), self.initial, jac=True, tol=1e-12)
        return Mode(found.x, -float(found.fun), True)

    def raw(self, u):
        return {"scale": np.asarray(u[:1]), "rest": np.asarray(u[1:])}


class Gaussian(KnownDensity):
    """N(mean, covariance), normalized."""

    def __init__(self, mean, covariance, **options):
        self.mean, self.covariance = np.asarray(mean, dtype=float), np.asarray(covariance, dtype=float)
        self.precision = np.linalg.inv(self.covariance)
        self.constant = -np.linalg.slogdet(2 * np.pi * self.covariance)[1] / 2
        super().__init__(self.density, self.mean + 0.3, **options)

    def density(self, u):
        slope = self.precision @ (self.mean - u)
        return self.constant - (self.mean - u) @ slope / 2, slope


def correlated(size=3, **options):
    """A Gaussian with correlated variables of different scales."""
    root = np.random.default_rng(5).standard_normal((size, size)) + np.eye(size)
    covariance = np.diag(np.logspace(-1, 1, size)) @ (root @ root.T) @ np.diag(np.logspace(-1, 1, size))
    return Gaussian(np.arange(size) - 1.0, covariance, **options)


def half_plane(**options):
    """N(0, I) of two variables of which the first cannot be evaluated below −0.5."""

    def function(u):
        return (-np.inf, u) if u[0] < -0.5 else (-(u @ u) / 2, -u)

    return KnownDensity(function, [0.2, 0.1], **options)


def funnel(width=1.0, size=3):
    """v ~ N(0, width²) and size variables x | v ~ N(0, e^v): narrow where v is small."""

    def function(u):
        v, x = u[0], u[1:]
        precision = np.exp(-v)
        square = precision * (x @ x)
        value = -((v / width) ** 2) / 2 - square / 2 - size * v / 2
        return value, np.concatenate([[-v / width**2 + square / 2 - size / 2], -precision * x])

    return KnownDensity(function, np.zeros(1 + size) + 0.1)


def banana(bend=0.5):
    """a ~ N(0, 1), b | a ~ N(bend a², 0.3²): E b = bend, var b = 2 bend² + 0.09."""

    def function(u):
        rest = (u[1] - bend * u[0] ** 2) / 0.09
        value = -(u[0] ** 2) / 2 - 0.09 * rest**2 / 2
        return value, np.array([-u[0] + 2 * bend * u[0] * rest, -rest])

    return KnownDensity(function, [0.3, 0.3])


def bimodal(distance=2.0, weight=0.3):
    """A mixture of N(distance, 1) with this weight and N(−distance, 1) in the first of two variables, the other N(0, 1)."""

    def function(u):
        logs = np.log([weight, 1 - weight]) - (u[0] - distance * np.array([1, -1])) ** 2 / 2
        value = np.logaddexp(*logs)
        slope = np.exp(logs - value) @ (distance * np.array([1, -1]) - u[0])
        return value - u[1] ** 2 / 2, np.array([slope, -u[1]])

    return KnownDensity(function, [distance, 0.1])


class GlobalState:
    """State that a sampler must restore: generators, dtype, threads, Pyro's parameter store and validation."""

    def __init__(self):
        store = pyro.get_param_store()
        self.parts = {
            "torch": torch.get_rng_state().numpy().tolist(),
            "numpy": [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],  # noqa: NPY002
            "random": random.getstate(),
            "dtype": torch.get_default_dtype(),
            "threads": torch.get_num_threads(),
            "store": {name: store[name].tolist() for name in store.keys()},  # noqa: SIM118 (a store is no dict)
            "validation": torch.distributions.Distribution._validate_args,
            "grad": torch.is_grad_enabled(),
        }

    def __eq__(self, other):
        return self.parts == other.parts
