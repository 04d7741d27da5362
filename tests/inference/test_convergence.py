"""Posteriors of random features: convergence to the exact ones (ID-6), and the variance floor far from the data.

With D frequencies the kernel is off by O(D^{−½}), and so are mean and covariance at fixed noise.
"""

import numpy as np
import pytest
import torch
from gp_cases import close, normal
from gpytorch.kernels import MaternKernel, RBFKernel

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, IndependentKernel

KERNELS = {
    "decomposable": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1),
    "curl-free": lambda: CurlFreeKernel(RBFKernel(ard_num_dims=2)),
    "independent": lambda: IndependentKernel([RBFKernel(ard_num_dims=2), MaternKernel(ard_num_dims=2)]),
}


def problem(name, missing, n=20, seed=0):
    """A kernel, and data (n, 2) in the square of side 2, p = 2."""
    generator = torch.Generator().manual_seed(seed)
    X, Y = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64), normal(generator, n, 2)
    if missing:
        Y[torch.rand(Y.shape, generator=generator) < missing] = torch.nan
    return KERNELS[name]().double(), X, Y


def slope(sizes, errors):
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


@pytest.mark.parametrize("missing", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param("decomposable", marks=pytest.mark.slow), "curl-free"])
def test_id_6_error_decays_with_root_of_num_frequencies(name, missing):
    """The slope of the root-mean-square error over 10 seeds against D, on log scales, is −½ up to 0.15."""
    kernel, X, Y = problem(name, missing)
    test = X[:4] + 0.3
    exact = OperatorValuedGP(kernel, "zero", 0.3).condition(X, Y).predict(test, "full")
    sizes, errors = (15, 45, 135, 405), []
    for num_frequencies in sizes:
        squares = []
        for seed in range(10):
            features = ORFF(kernel, num_frequencies, random_state=seed)
            found = OperatorValuedGP(kernel, "zero", 0.3, features=features).condition(X, Y).predict(test, "full")
            pairs = ((found.mean, exact.mean), (found.cov, exact.cov))
            squares.append([(a - b).square().mean().item() for a, b in pairs])
        errors.append(np.sqrt(np.mean(squares, 0)))
    by_mean, by_covariance = np.array(errors).T
    assert slope(sizes, by_mean) == pytest.approx(-0.5, abs=0.15)
    assert slope(sizes, by_covariance) == pytest.approx(-0.5, abs=0.15)
    assert by_mean[-1] < 0.15 * exact.mean.abs().max() and by_covariance[-1] < 0.15 * exact.cov.abs().max()


# --- variance floor: few features, many data ----------------------------------------------------------------------------------


def posteriors_with_few_features(name, missing, **options):
    """A posterior whose 10 frequencies are all fixed by 80 rows, as it is and guarded, and the exact kernel's prior."""
    kernel, X, Y = problem(name, missing, n=80)
    gp = OperatorValuedGP(kernel, "zero", 0.01, features=ORFF(kernel, 10, random_state=0))
    bare, guarded = (gp.condition(X, Y, variance=variance, **options) for variance in ("features", "guarded"))
    prior = kernel(X[:1], diag=True).detach().sqrt()  # (p,): stationary
    return X, bare, guarded, prior


def everywhere(X):
    """At the data, between them, and far away."""
    return torch.cat([X, X + 0.05, X[:10] + 1.0, X[:10] - 3.0, X[:10] * 20 - 100])


CASES = [(name, missing) for name in KERNELS for missing in (0.0, 0.3)]


@pytest.mark.parametrize("name, missing", CASES)
def test_guarded_variance_equals_prior_far_from_data(name, missing):
    _, bare, guarded, prior = posteriors_with_few_features(name, missing)
    far = torch.tensor([[12.0, -9.0], [-30.0, 2.0], [100.0, 100.0]], dtype=torch.float64)
    assert (bare.predict(far).std < 0.7 * prior).any()  # the reason for the variance floor
    assert (guarded.predict(far).std >= 0.95 * prior).all()
    blocks = guarded.predict(far, "output").cov.diagonal(dim1=-2, dim2=-1)
    assert (blocks.sqrt() >= 0.95 * prior).all()


@pytest.mark.parametrize("name, missing", CASES)
def test_guarded_variance_is_never_lower_at_unchanged_mean(name, missing):
    X, bare, guarded, _ = posteriors_with_few_features(name, missing)
    points = everywhere(X)
    a, b = bare.predict(points), guarded.predict(points)
    assert torch.equal(a.mean, b.mean)
    assert (b.std >= a.std * (1 - 1e-12)).all()
    assert (b.std > 1.5 * a.std).any()
    assert guarded.log_evidence == bare.log_evidence


@pytest.mark.parametrize("name, missing", CASES)
def test_guarded_covariance_is_positive_and_consistent_between_forms(name, missing):
    X, _, guarded, _ = posteriors_with_few_features(name, missing)
    points = everywhere(X)[60:]
    whole, blocks, variances = (guarded.predict(points, form) for form in ("full", "output", "diag"))
    close(whole.variance, variances.variance)
    close(blocks.variance, variances.variance)
    # a block has the correlations of the floor within a point, as the full covariance does
    inside = whole.cov.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    close(blocks.cov, inside)
    values = torch.linalg.eigvalsh(whole.cov)
    assert values[0] > -1e-9 * values[-1]
    close(whole.cov, whole.cov.mT, 1e-13)
    samples = guarded.sample(points, 5, random_state=0)
    assert torch.isfinite(samples).all()


@pytest.mark.parametrize("name", KERNELS)
def test_guarded_variance_is_nearly_unchanged_at_data(name):
    X, bare, guarded, prior = posteriors_with_few_features(name, 0.0)
    lifted = guarded.predict(X).variance - bare.predict(X).variance
    assert lifted.max() < 1e-4 * prior.max() ** 2


def test_guarded_variance_works_with_few_landmarks():
    X, bare, guarded, prior = posteriors_with_few_features("decomposable", 0.3, num_landmarks=5)
    points = everywhere(X)
    assert (guarded.predict(points).std >= bare.predict(points).std * (1 - 1e-12)).all()
    assert (guarded.predict(points[-3:]).std >= 0.95 * prior).all()


def test_exact_posterior_ignores_guarded_variance():
    kernel, X, Y = problem("decomposable", 0.3)
    gp = OperatorValuedGP(kernel, "zero", 0.1)
    a, b = (gp.condition(X, Y, variance=variance).predict(X + 1) for variance in ("features", "guarded"))
    assert torch.equal(a.std, b.std)
