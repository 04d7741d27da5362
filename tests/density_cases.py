"""The posterior density of hyperparameters with both backends, compared with each other."""

import numpy as np
import pytest

from ovkgp.inference.training.log_posterior import LogPosterior

TOLERANCE = 1e-9


def assert_backends_agree(gp, *given, backend="numpy", **options):
    numpy_lp, torch_lp = LogPosterior(gp, *given, **options), LogPosterior(gp, *given, backend="torch", **options)
    assert (numpy_lp.backend, torch_lp.backend) == (backend, "torch")
    for seed in range(2):
        u = numpy_lp.initial_point() + 0.4 * np.random.default_rng(seed).standard_normal(len(numpy_lp))
        (value, gradient), (other, by_other) = numpy_lp(u), torch_lp(u)
        assert np.isfinite(other) and value == pytest.approx(other, rel=TOLERANCE)
        assert np.abs(gradient - by_other).max() <= TOLERANCE * np.abs(by_other).max()
    return numpy_lp
