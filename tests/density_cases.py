"""The posterior density of hyperparameters on its two roads, held against one another."""

import numpy as np
import pytest

from ovkgp.inference.training.log_posterior import LogPosterior

TOLERANCE = 1e-9


def assert_backends_agree(gp, *given, backend="numpy", **options):
    plain, modules = LogPosterior(gp, *given, **options), LogPosterior(gp, *given, backend="torch", **options)
    assert (plain.backend, modules.backend) == (backend, "torch")
    for seed in range(2):
        u = plain.start() + 0.4 * np.random.default_rng(seed).standard_normal(len(plain))
        (value, gradient), (other, by_other) = plain(u), modules(u)
        assert np.isfinite(other) and value == pytest.approx(other, rel=TOLERANCE)
        assert np.abs(gradient - by_other).max() <= TOLERANCE * np.abs(by_other).max()
    return plain
