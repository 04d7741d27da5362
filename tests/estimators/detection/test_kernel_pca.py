"""Tests of `ovkgp.estimators.detection.kernel_pca`."""

import numpy as np
import pytest
from detector_cases import cancer_split, gram
from scipy.stats import spearmanr
from sklearn.decomposition import KernelPCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp import KernelPCADetector

rng = np.random.default_rng(0)
ROWS, POINTS = rng.normal(size=(40, 3)), rng.normal(scale=2.0, size=(25, 3))
UNSCALED = {"lengthscale": 1.3, "scale_inputs": False}
GAMMA = 1 / (2 * 1.3**2)


@parametrize_with_checks([KernelPCADetector(num_components=3)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([KernelPCADetector(num_components=0), KernelPCADetector(kernel="matern32", alpha=0.2)])
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize("num_components", [0, 1, 5])
def test_kt_56_score_is_the_reconstruction_error(num_components):
    """In coordinates of the space of the kernel that hold all rows and points."""
    model = KernelPCADetector(num_components=num_components, **UNSCALED).fit(ROWS)
    everything = np.vstack([ROWS, POINTS])
    values, vectors = np.linalg.eigh(gram(everything, everything, GAMMA))
    coordinates = vectors * np.sqrt(np.maximum(values, 0))
    coordinates -= coordinates[:40].mean(0)
    components = np.linalg.svd(coordinates[:40], full_matrices=False)[2][:num_components]
    points = coordinates[40:]
    expected = np.square(points - points @ components.T @ components).sum(1)
    np.testing.assert_allclose(-model.score_samples(POINTS), expected, atol=1e-9)


def test_components_equal_those_of_scikit_learn():
    model = KernelPCADetector(num_components=4, **UNSCALED).fit(ROWS)
    peer = KernelPCA(4, kernel="rbf", gamma=GAMMA).fit(ROWS)
    np.testing.assert_allclose(model.eigenvalues_, peer.eigenvalues_ / 40, rtol=1e-8)
    K = gram(POINTS, ROWS, GAMMA)
    variance = 1 - 2 * K.mean(1) + gram(ROWS, ROWS, GAMMA).mean()
    expected = variance - np.square(peer.transform(POINTS)).sum(1)
    np.testing.assert_allclose(-model.score_samples(POINTS), expected, atol=1e-9)


def test_kt_57_without_components_points_are_ordered_as_by_the_parzen_density():
    model = KernelPCADetector(num_components=0, **UNSCALED).fit(ROWS)
    assert spearmanr(model.score_samples(POINTS), gram(POINTS, ROWS, GAMMA).sum(1)).statistic == pytest.approx(1)


def test_all_components_reconstruct_the_rows():
    model = KernelPCADetector(num_components=100, **UNSCALED).fit(ROWS)
    assert model.num_components_ <= 39
    np.testing.assert_allclose(model.score_samples(ROWS), 0, atol=1e-7)


def test_equal_rows_leave_fewer_components():
    X = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 10, axis=0)
    model = KernelPCADetector(num_components=8).fit(X)
    assert model.num_components_ == 2
    assert model.predict([[9.0, 9.0]]) == -1


@pytest.mark.parametrize("num_components", [0, 10])
def test_fraction_of_flagged_rows_is_alpha(num_components):
    rates = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        model = KernelPCADetector(alpha=0.1, num_components=num_components).fit(rng.normal(size=(200, 2)))
        rates.append((model.predict(rng.normal(size=(500, 2))) == -1).mean())
    assert 0.07 < np.mean(rates) < 0.14


def test_kt_64_cancer_auc():
    """γ = .8 and 5 components, 10 splits: .918 (±.014), of the spec's own run."""
    options = {"lengthscale": 1.6**-0.5, "num_components": 5, "scale_inputs": False}
    splits = map(cancer_split, range(10))
    assert np.mean([split.auc(KernelPCADetector(**options).fit(split.training)) for split in splits]) == pytest.approx(
        0.918, abs=0.02
    )
