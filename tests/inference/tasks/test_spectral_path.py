"""Tests of `ovkgp.inference.tasks.spectral_path`."""

from dataclasses import fields

import numpy as np
import torch

from ovkgp.inference.tasks.spectral_path import spectral_path


def test_path_of_a_spectrum_equals_dense_algebra():
    """Log density, quadratic form, and leave-one-out error and log density, with eigenvalues over fifteen decades."""
    rng, noises = np.random.default_rng(0), np.geomspace(1e-4, 10, 5)
    X, Z, t = rng.standard_normal((30, 2)), rng.standard_normal((30, 9)), 10.0 ** -np.arange(9)
    K = np.exp(-np.square(X[:, None] - X).sum(-1) / 2)
    s, U = np.linalg.eigh(K)
    path = spectral_path(*(torch.from_numpy(one) for one in (s, U, t, Z, noises)))
    for k, c in enumerate(noises):
        expected = np.zeros(4)
        for z, variance in zip(Z.T, t, strict=True):
            C = variance * K + c * np.eye(30)
            alpha, diagonal = np.linalg.solve(C, z), np.diag(np.linalg.inv(C))
            missed, constant = alpha / diagonal, 30 * np.log(2 * np.pi)
            log_evidence = -(z @ alpha + np.linalg.slogdet(C)[1] + constant) / 2
            density = -(missed @ alpha - np.log(diagonal).sum() + constant) / 2
            expected += [log_evidence, z @ alpha, np.square(missed).sum() / Z.size, density]
        np.testing.assert_allclose([getattr(path, field.name)[k] for field in fields(path)], expected, rtol=1e-6)
