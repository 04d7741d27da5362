"""Tests of `ManifoldRidge`: unlabeled rows define the manifold penalty and reduce the uncertainty."""

import numpy as np
import pytest
import scipy.sparse
import torch
from gpytorch.kernels import RBFKernel
from linear_operator import to_dense
from manifold_oracle import dual_coefficients, primal_weights
from oracles import dense
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.datasets import make_circles_and_moons, make_two_moons
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, neighbor_laplacian

LAM, LAM_M = 0.02, 0.05


@parametrize_with_checks([ovkgp.ManifoldRidge(random_state=0)])
def test_manifold_ridge_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.ManifoldRidge(num_frequencies=30, fit_intercept=True, random_state=0)])
def test_manifold_ridge_passes_scikit_learn_checks_with_features(estimator, check):
    check(estimator)


def problem(seed=0, labeled=8, n=20):
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    Y[labeled:] = np.nan
    return X, Y, rng.normal(size=(5, 2))


KERNELS = {
    "decomposable": lambda: DecomposableKernel(
        RBFKernel(), output_matrix=torch.tensor([[1.0, 0.4], [0.4, 0.7]])
    ).double(),
    "curl_free": lambda: CurlFreeKernel(RBFKernel(), num_dims=2).double(),
}


def penalty(kind, X):
    if kind == "graph":
        return neighbor_laplacian(X, 3)
    root = np.random.default_rng(5).normal(size=(2 * len(X), 6))
    return root @ root.T / 10


def expanded(M, size):
    M = M.toarray() if scipy.sparse.issparse(M) else M
    return np.kron(M, np.eye(size // len(M)))


@pytest.mark.parametrize("kind", ["graph", "full"])
@pytest.mark.parametrize("name", KERNELS)
def test_id_7_bt_e_04_exact_kernel_solves_the_dual_system(name, kind):
    X, Y, test = problem()
    kernel, M = KERNELS[name](), penalty(kind, X)
    ridge = ovkgp.ManifoldRidge(kernel, LAM, LAM_M, manifold=M).fit(X, Y)
    everything = torch.from_numpy(X)
    u = dual_coefficients(dense(kernel, everything), np.eye(2), expanded(M, 2 * len(X)), Y[:8], LAM, LAM_M)
    wanted = dense(kernel, torch.from_numpy(test), everything) @ u
    np.testing.assert_allclose(ridge.predict(test).ravel(), wanted, atol=1e-8)
    assert ridge.noise_ == pytest.approx(8 * LAM)


@pytest.mark.parametrize("kind", ["graph", "full"])
@pytest.mark.parametrize("name", KERNELS)
def test_bt_112_features_solve_the_system_of_algorithm_6(name, kind):
    X, Y, test = problem()
    M = penalty(kind, X)
    ridge = ovkgp.ManifoldRidge(KERNELS[name](), LAM, LAM_M, manifold=M, num_frequencies=15, random_state=0).fit(X, Y)
    Phi = {
        key: to_dense(ridge.gp_.features.features(torch.from_numpy(Z))).detach().numpy()
        for key, Z in (("all", X), ("test", test))
    }
    theta = primal_weights(Phi["all"][:16], Phi["all"], np.eye(2), expanded(M, 2 * len(X)), Y[:8], LAM, LAM_M)
    np.testing.assert_allclose(ridge.predict(test).ravel(), Phi["test"] @ theta, atol=1e-8)


VIEWS = np.array([[0.5, 0.0, 0.5, 0.0], [0.0, 0.3, 0.2, 0.7]])
VIEW_KERNELS = {
    "identity": lambda: DecomposableKernel(RBFKernel(), output_matrix=torch.eye(4)).double(),
    "coupled": lambda: DecomposableKernel(RBFKernel(), output_matrix=torch.eye(4) + 0.5).double(),
}


@pytest.mark.parametrize("kind", ["graph", "full"])
@pytest.mark.parametrize("name", VIEW_KERNELS)
def test_bt_115_combinations_of_latent_outputs_solve_the_dual_system(name, kind):
    X, Y, test = problem()
    kernel = VIEW_KERNELS[name]()
    root = np.random.default_rng(5).normal(size=(4 * len(X), 6))
    M = neighbor_laplacian(X, 3) if kind == "graph" else root @ root.T / 10
    ridge = ovkgp.ManifoldRidge(kernel, LAM, LAM_M, manifold=M, combination=VIEWS).fit(X, Y)
    everything = torch.from_numpy(X)
    u = dual_coefficients(dense(kernel, everything), VIEWS, expanded(M, 4 * len(X)), Y[:8], LAM, LAM_M)
    latent = (dense(kernel, torch.from_numpy(test), everything) @ u).reshape(-1, 4)
    np.testing.assert_allclose(ridge.predict(test), latent @ VIEWS.T, atol=1e-8)
    std = ridge.predict(test, return_std=True)[1]
    cov = ridge.predict(test, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(cov.diagonal(axis1=1, axis2=2)), std, atol=1e-8)
    assert ridge.sample_y(test, 3).shape == (5, 2, 3) and ridge.leave_one_out(X, Y).mean.shape == Y.shape
    assert "y1" in str(ridge.summary())


@pytest.mark.parametrize("kind", ["graph", "full"])
@pytest.mark.parametrize("name", VIEW_KERNELS)
def test_bt_115_combinations_of_latent_outputs_solve_the_system_of_algorithm_6(name, kind):
    X, Y, test = problem()
    root = np.random.default_rng(5).normal(size=(4 * len(X), 6))
    M = neighbor_laplacian(X, 3) if kind == "graph" else root @ root.T / 10
    options = {"manifold": M, "combination": VIEWS, "num_frequencies": 15, "random_state": 0}
    ridge = ovkgp.ManifoldRidge(VIEW_KERNELS[name](), LAM, LAM_M, **options).fit(X, Y)
    features = ridge.gp_.features.features
    all_rows, at_test = (to_dense(features(torch.from_numpy(Z))).detach().numpy() for Z in (X, test))
    theta = primal_weights(all_rows[:32], all_rows, VIEWS, expanded(M, 4 * len(X)), Y[:8], LAM, LAM_M)
    np.testing.assert_allclose(ridge.predict(test), (at_test @ theta).reshape(-1, 4) @ VIEWS.T, atol=1e-8)


def test_identity_combination_changes_nothing():
    X, Y, test = problem()
    for options in ({}, {"num_frequencies": 20, "random_state": 0}, {"lam_manifold": 0.0}, {"scale": "evidence"}):
        plain = ovkgp.ManifoldRidge(lengthscale=1.0, **options).fit(X, Y)
        combined = ovkgp.ManifoldRidge(lengthscale=1.0, combination=np.eye(2), **options).fit(X, Y)
        for a, b in zip(plain.predict(test, return_std=True), combined.predict(test, return_std=True), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)


def test_manifold_ridge_rejects_invalid_combination():
    X, Y, _ = problem()
    with pytest.raises(InputError, match="one row per column of y"):
        ovkgp.ManifoldRidge(combination=np.eye(3)).fit(X, Y)
    with pytest.raises(OptionError, match="output_matrix must be given"):
        ovkgp.ManifoldRidge("decomposable", combination=np.ones((2, 3))).fit(X, Y)


@pytest.mark.parametrize("num_frequencies", [None, 40])
def test_manifold_ridge_without_penalty_equals_ridge(num_frequencies):
    X, Y, test = problem()
    options = {"lam": LAM, "convention": "mean", "lengthscale": 1.0}
    manifold = ovkgp.ManifoldRidge(lam_manifold=0.0, num_frequencies=num_frequencies, random_state=0, **options).fit(
        X, Y
    )
    if num_frequencies is None:
        ridge = ovkgp.OVKRidge(**options).fit(X, Y)
    else:
        ridge = ovkgp.ORFFRidge(num_frequencies=num_frequencies, random_state=0, **options).fit(X, Y)
    for a, b in zip(manifold.predict(test, return_std=True), ridge.predict(test, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_manifold_ridge_supports_missing_outputs():
    X, Y, test = problem()
    Y[2, 0] = Y[5, 1] = np.nan
    M = neighbor_laplacian(X, 3)
    kernel = KERNELS["decomposable"]()
    ridge = ovkgp.ManifoldRidge(kernel, LAM, LAM_M, manifold=M).fit(X, Y)
    K, observed = dense(kernel, torch.from_numpy(X)), np.isfinite(Y).ravel()
    P = np.diag(observed / 8)
    u = np.linalg.solve(
        P @ K + LAM_M * np.kron(M.toarray(), np.eye(2)) @ K + LAM * np.eye(40), P @ np.nan_to_num(Y).ravel()
    )
    np.testing.assert_allclose(
        ridge.predict(test).ravel(), dense(kernel, torch.from_numpy(test), torch.from_numpy(X)) @ u, atol=1e-8
    )


@pytest.mark.parametrize("num_frequencies", [None, 200])
def test_manifold_ridge_classifies_two_moons_from_two_labels_each(num_frequencies):
    X, Y, truth = make_two_moons(200, num_labels=2, random_state=0)
    options = {"lam": 1e-3, "lengthscale": 0.3, "num_frequencies": num_frequencies, "random_state": 0}
    manifold = ovkgp.ManifoldRidge(lam_manifold=1e-2, **options).fit(X, Y)
    supervised = ovkgp.ManifoldRidge(lam_manifold=0.0, **options).fit(X, Y)
    right = [np.mean((model.predict(X) > 0) == (truth(X) > 0)) for model in (manifold, supervised)]
    assert right[0] > 0.98 and right[0] > right[1]
    std = [model.predict(X, return_std=True, noise=False)[1] for model in (manifold, supervised)]
    assert np.median(std[0]) < 0.7 * np.median(std[1])


def test_manifold_ridge_supports_clusters():
    X, Y, truth = make_two_moons(100, num_labels=1, noise=0.03, random_state=1)
    ridge = ovkgp.ManifoldRidge(
        lam=0.1, lam_manifold=0.075, lengthscale=0.3, manifold="clusters", num_neighbors=5, random_state=0
    ).fit(X, Y)
    assert np.mean((ridge.predict(X) > 0) == (truth(X) > 0)) > 0.95


def test_manifold_ridge_classifies_several_classes_by_codes():
    """Figure B.2: nested circles and two moons, with the code of the class as outputs."""
    X, Y, truth = make_circles_and_moons(300, num_labels=3, random_state=0)
    ridge = ovkgp.ManifoldRidge(lam_manifold=1e-2, lengthscale=0.2, num_neighbors=6).fit(X, Y)
    codes = np.unique(Y[np.isfinite(Y).all(1)], axis=0)
    found, wanted = ((values @ codes.T).argmax(1) for values in (ridge.predict(X), truth(X)))
    assert np.mean(found == wanted) > 0.95


def test_evidence_scale_changes_the_std_but_not_the_mean():
    X, Y, test = problem()
    for num_frequencies in (None, 30):
        options = {"lam": LAM, "lam_manifold": LAM_M, "num_frequencies": num_frequencies, "random_state": 0}
        unscaled, scaled = (
            ovkgp.ManifoldRidge(scale=scale, **options).fit(X, 30 * Y) for scale in ("given", "evidence")
        )
        np.testing.assert_allclose(scaled.predict(test), unscaled.predict(test), rtol=1e-6)
        ratio = scaled.predict(test, return_std=True)[1] / unscaled.predict(test, return_std=True)[1]
        np.testing.assert_allclose(ratio, np.sqrt(scaled.scale_), rtol=1e-6)
        assert scaled.posterior_.log_evidence > unscaled.posterior_.log_evidence


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lam_manifold": -1.0}, "lam_manifold"),
        ({"lam_manifold": np.nan}, "lam_manifold"),
        ({"lam_manifold": None}, "lam_manifold"),
        ({"lam": [0.1, 1.0]}, "lam"),
        ({"manifold": "graph"}, "neighbors"),
        ({"manifold": 3}, "matrix"),
        ({"manifold": np.eye(7)}, "20"),
        ({"manifold": -np.eye(20)}, "definite"),
        ({"num_neighbors": 0}, "num_neighbors"),
        ({"num_frequencies": 0}, "num_frequencies"),
        ({"variance": "x"}, "guarded"),
    ],
)
def test_fit_rejects_invalid_options(options, match):
    X, Y, _ = problem()
    with pytest.raises((OptionError, InputError), match=match):
        ovkgp.ManifoldRidge(**options).fit(X, Y)


def test_fit_rejects_data_without_labels():
    X, Y, _ = problem(labeled=0)
    with pytest.raises(InputError, match="observed"):
        ovkgp.ManifoldRidge().fit(X, Y)


def test_path_rejects_other_lam():
    X, Y, test = problem()
    ridge = ovkgp.ManifoldRidge(lam=LAM, lam_manifold=LAM_M).fit(X, Y)
    np.testing.assert_allclose(ridge.path(X, Y).predict(test)[0], ridge.predict(test), atol=1e-9)
    with pytest.raises(OptionError, match="path"):
        ridge.path(X, Y, [LAM, 1.0])


def test_fit_with_features_does_not_evaluate_the_exact_kernel(monkeypatch):
    X, Y, test = problem()
    wanted = ovkgp.ManifoldRidge(num_frequencies=20, random_state=0).fit(X, Y).predict(test, return_std=True)

    def fail(*_, **__):
        raise AssertionError("the exact kernel was evaluated")

    monkeypatch.setattr(ovkgp.kernels.ManifoldKernel, "forward", fail)
    found = ovkgp.ManifoldRidge(num_frequencies=20, random_state=0).fit(X, Y).predict(test, return_std=True)
    np.testing.assert_array_equal(found, wanted)


def test_kernel_strength_is_float64():
    X, Y, _ = problem()
    ridge = ovkgp.ManifoldRidge(lam=1.0, lam_manifold=0.1).fit(X, Y)
    assert ridge.gp_.kernel.strength.item() == 0.1
