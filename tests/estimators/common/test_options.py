"""Tests of `ovkgp.estimators.common.options`: allowed options, and λ as a noise variance for each objective of the papers.

The objective a Σ_ij w_ij (y_ij − f(x_i)_j)² + b ‖f‖² is minimized densely over f = K u and compared with the estimator.
"""

import numpy as np
import pytest
import scipy.sparse
import torch
from gpytorch.kernels import RBFKernel
from linear_operator import to_dense
from oracles import dense
from sklearn.utils._param_validation import Hidden

import ovkgp
from ovkgp import estimators
from ovkgp.estimators.common import options
from ovkgp.estimators.common.options import CONVENTIONS, check_constraints, check_lam, noise_of
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.kernels import DecomposableKernel

N, P, LAM = 12, 3, 0.07

ROWS = {
    # Brault's thesis: (a, b) for n rows and m outputs
    "BT (2.3)": ("mean", lambda n, m: (1 / (2 * n), LAM / 2)),
    "BT (6.1), (6.2), no half": ("mean_unhalved", lambda n, m: (1 / n, LAM / 2)),
    "BT (6.6)-(6.10), Algorithm 3": ("mean", lambda n, m: (0.5 / n, LAM / 2)),
    "BT SARCOS": ("sum", lambda n, m: (1 / (2 * n), LAM / (2 * n))),
    "BT (8.1), ORFFVAR": ("var", lambda n, m: (1 / (n - 1), LAM)),
    "BT Algorithm 4": ("mean", lambda n, m: (0.5 / n, LAM / 2)),
    "BT appendix C.2": ("sum", lambda n, m: (1.0, LAM)),
    "operalib": ("sum", lambda n, m: (1 / (2 * n * m), LAM / (2 * n * m))),
    # Lambert's thesis
    "LT chapter 2": ("mean", lambda n, m: (0.5 / n, LAM / 2)),
    "LT chapter 3, sampled; vITL": ("samples", lambda n, m: (0.5 / (n * m), LAM / 2)),
    "LT problem 4.2 as printed": ("mean_unhalved", lambda n, m: (1 / n, LAM / 2)),
    "LT 5.3 stability": ("stability", lambda n, m: (0.5 / (n * m), LAM)),
    # Bouche's thesis
    "BO KRR": ("penalty_unhalved", lambda n, m: (0.5 / n, LAM)),
    "BO KRR, by its other name": ("mean_halved", lambda n, m: (0.5 / n, LAM)),
    "BO Nyström KRR": ("mean", lambda n, m: (1 / n, LAM)),
    "BO vv-KRR": ("mean", lambda n, m: (1 / n, LAM)),
    "BO dualization, halved loss": ("penalty_unhalved", lambda n, m: (0.5 / n, LAM)),
    "BO FKRR on a grid": ("samples", lambda n, m: (1 / (n * m), LAM)),
    "BO 3BE, KAM as run": ("sum", lambda n, m: (1.0, LAM)),
    "BO KPL, FPL on a grid": ("samples", lambda n, m: (1 / (n * m), LAM)),
    "BO chapter 7 on a grid": ("samples", lambda n, m: (0.5 / (n * m), LAM / 2)),
}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 2)), rng.normal(size=(N, P)), rng.normal(size=(4, 2))


@pytest.fixture
def kernel():
    root = np.random.default_rng(1).normal(size=(P, P))
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.from_numpy(root @ root.T + np.eye(P))).double()
    kernel.base_kernel.lengthscale = 0.8
    return kernel


def gram(kernel, X, Z):
    return dense(kernel, torch.from_numpy(X), torch.from_numpy(Z))


def dense_features(feature_map, X):
    return to_dense(feature_map(torch.from_numpy(X))).detach().numpy()


def minimizer(kernel, X, Y, test, a, b, weights=None):
    """Return f̂ at the test points: the gradient −2a K W (y − K u) + 2b K u is zero at (a W K + b I) u = a W y."""
    K, cross = gram(kernel, X, X), gram(kernel, test, X)
    observed = np.isfinite(Y).ravel()
    W = np.diag(np.where(observed, 1.0 if weights is None else weights.ravel(), 0.0))
    u = np.linalg.solve(a * W @ K + b * np.eye(len(K)), a * W @ np.nan_to_num(Y).ravel())
    return (cross @ u).reshape(len(test), -1)


@pytest.mark.parametrize("row", ROWS)
def test_ovk_ridge_minimizes_the_objective_of_each_convention(row, data, kernel):
    X, Y, test = data
    convention, factors = ROWS[row]
    ridge = ovkgp.OVKRidge(kernel, lam=LAM, convention=convention).fit(X, Y)
    a, b = factors(N, P)
    assert ridge.noise_ == pytest.approx(b / a)
    np.testing.assert_allclose(ridge.predict(test), minimizer(kernel, X, Y, test, a, b), atol=1e-10)


def test_ovk_ridge_weights_entries_as_noise_n_lam_over_eta(data, kernel):
    """LT, the re-weighted row: (1/n) ΣΣ (η_ij / 2) r² + (λ/2) ‖h‖²."""
    X, Y, test = data
    eta = np.random.default_rng(2).uniform(0.2, 2, Y.shape)
    ridge = ovkgp.OVKRidge(kernel, lam=LAM, convention="mean").fit(X, Y, sample_weight=eta)
    np.testing.assert_allclose(ridge.predict(test), minimizer(kernel, X, Y, test, 0.5 / N, LAM / 2, eta), atol=1e-10)


def test_ovk_ridge_weights_rows_by_their_number_of_observations(data, kernel):
    """BO, the ridge-iter row: (1/n) Σ_i (1/m_i) ‖·‖² + λ ‖h‖² has noise n λ m_i in row i."""
    X, Y, test = data
    Y = np.where(np.random.default_rng(3).random(Y.shape) < 0.3, np.nan, Y)
    weights = np.tile(1 / np.isfinite(Y).sum(1, keepdims=True).clip(1), (1, P))
    ridge = ovkgp.OVKRidge(kernel, lam=LAM, convention="mean").fit(X, Y, sample_weight=weights)
    np.testing.assert_allclose(ridge.predict(test), minimizer(kernel, X, Y, test, 1 / N, LAM, weights), atol=1e-10)


def test_conventions_count_rows_as_entries_with_one_observed_output_per_row(data, kernel):
    """BT-84: with one output observed at each point, N of the table is the number of scalar observations."""
    X, Y, test = data
    single = np.full_like(Y, np.nan)
    single[np.arange(N), np.arange(N) % P] = Y[np.arange(N), np.arange(N) % P]
    by = {name: ovkgp.OVKRidge(kernel, lam=LAM, convention=name).fit(X, single) for name in ("mean", "samples")}
    assert by["mean"].noise_ == by["samples"].noise_ == pytest.approx(N * LAM)
    np.testing.assert_allclose(
        by["mean"].predict(test), minimizer(kernel, X, single, test, 0.5 / N, LAM / 2), atol=1e-10
    )


def test_bt_e_01_and_03_dual_solution_is_not_n_times_too_large(data, kernel):
    X, Y, _ = data
    K = gram(kernel, X, X)
    u = ovkgp.OVKRidge(kernel, lam=LAM, convention="mean").fit(X, Y).dual_coef_.ravel()
    np.testing.assert_allclose(u, np.linalg.solve(K + N * LAM * np.eye(N * P), Y.ravel()), atol=1e-10)
    printed = np.linalg.solve(K / N + LAM * np.eye(N * P), Y.ravel())
    np.testing.assert_allclose(printed, N * u, atol=1e-9)


def test_bt_e_25_algorithm_3_is_for_the_halved_loss(data, kernel):
    X, Y, test = data
    ridge = ovkgp.ORFFRidge(kernel, LAM, "mean", num_frequencies=20, random_state=0, variance="features").fit(X, Y)
    Phi = dense_features(ridge.gp_.features, X)
    theta = np.linalg.solve(Phi.T @ Phi / N + LAM * np.eye(Phi.shape[1]), Phi.T @ Y.ravel() / N)
    np.testing.assert_allclose(ridge.coef_, theta, atol=1e-10)
    np.testing.assert_allclose(
        ridge.predict(test).ravel(), dense_features(ridge.gp_.features, test) @ theta, atol=1e-10
    )


def test_bt_e_02_primal_minimizer_includes_the_outputs(data):
    X, Y, _ = data
    ridge = ovkgp.ORFFRidge(RBFKernel(), LAM, "mean", num_frequencies=15, random_state=0).fit(X, Y[:, 0])
    phi = dense_features(ridge.gp_.features, X).T
    theta = np.linalg.solve(phi @ phi.T / N + LAM * np.eye(len(phi)), phi @ Y[:, 0] / N)
    np.testing.assert_allclose(ridge.coef_, theta, atol=1e-10)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_noise_of_is_proportional_to_lam(convention):
    assert noise_of(0.2, convention, 10, 30) == pytest.approx(2 * noise_of(0.1, convention, 10, 30))


def test_noise_of_rejects_a_series_of_one_vector():
    with pytest.raises(InputError, match="2 rows"):
        noise_of(0.1, "var", 1, 3)


@pytest.mark.parametrize("lam", [0, -1.0, np.nan, np.inf, [], [1.0, 0.0], "a", None, True, [[1.0]]])
def test_check_lam_rejects_invalid_values(lam):
    with pytest.raises(OptionError, match=r"^lam must be a positive number or a list of positive numbers, got "):
        check_lam(lam)


def test_ovk_ridge_lists_conventions_for_an_unknown_one():
    with pytest.raises(OptionError, match="mean_unhalved"):
        ovkgp.OVKRidge(convention="average").fit([[0.0], [1.0]], [0.0, 1.0])


CLASSES = [getattr(estimators, name) for name in estimators.__all__]
CLASSES = [kind for kind in CLASSES if hasattr(kind, "check_options")]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_option_has_constraints_that_its_default_satisfies(kind):
    assert set(kind._parameter_constraints) == set(kind._get_param_names())
    kind().check_options()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in CLASSES for name in kind._get_param_names()])
def test_every_option_rejects_other_objects_at_fit(kind, name):
    with pytest.raises(OptionError, match=rf"^{name} must be .*, got <object"):
        kind(**{name: object()}).fit([[0.0], [1.0], [2.0]], [0, 1, 1])


@pytest.mark.parametrize(
    ("rule", "valid", "invalid"),
    [
        (options.integer(2), [2, np.int64(3)], [1, 2.0, "2", True, None]),
        (options.one_of("a", "b"), ["a", "b"], ["c", 1, None, ["a"]]),
        (options.NUMBER, [0, -1.5, np.float32(2)], [np.nan, np.inf, "1", True, [1.0], 10**400]),
        (options.POSITIVE, [1, 1e-300, torch.tensor(2.0)], [0, -1.0, np.inf, np.nan, "1", True, None]),
        (options.NONNEGATIVE, [0, 1.5], [-1e-9, np.nan]),
        (options.FRACTION, [0.5], [0, 1, np.nan]),
        (options.POSITIVES, [[0.1, 2], np.ones(2), torch.ones(2)], [[], [1, 0], [[1.0]], 1.0, ["a"], [True]]),
        (options.FRACTIONS, [[0.1, 0.9]], [[], [0.1, 1.0], [0.1, 90]]),
    ],
)
def test_rules_enforce_bounds(rule, valid, invalid):
    assert all(rule.is_satisfied_by(value) for value in valid)
    assert not any(rule.is_satisfied_by(value) for value in invalid)


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        ([options.integer()], "an integer of at least 1"),
        ([options.one_of("a")], "'a'"),
        ([options.one_of("a", "b")], "one of 'a', 'b'"),
        ([options.one_of("a"), options.POSITIVE, None], "'a', a positive number or None"),
        (["boolean", "array-like", RBFKernel, callable], "a boolean, an array, a RBFKernel or a function"),
        ([dict, Hidden(str)], "a dict"),
    ],
)
def test_message_describes_allowed_values(allowed, text):
    with pytest.raises(OptionError) as caught:
        check_constraints({"name": -1}, {"name": allowed})
    assert str(caught.value) == f"name must be {text}, got -1."


def test_message_suggests_the_nearest_name():
    with pytest.raises(
        OptionError,
        match=r"^base_kernel must be 'auto', one of 'rbf', .* or a Kernel, got 'rfb' \(did you mean 'rbf'\?\)\.$",
    ):
        ovkgp.GPRegressor(base_kernel="rfb").check_options()


def test_names_of_a_registry_may_change():
    names = ["a"]
    rule = options.names_in(lambda: names)
    assert not rule.is_satisfied_by("b")
    names.append("b")
    assert rule.is_satisfied_by("b") and str(rule) == "one of 'a', 'b'"


EVERY = [ovkgp.GPRegressor, ovkgp.OVKRidge, ovkgp.ORFFRidge, ovkgp.InfiniteQuantileRegressor, ovkgp.SimplexClassifier]


@pytest.mark.parametrize("kind", EVERY)
def test_unknown_options_are_reported_with_the_closest_name(kind):
    with pytest.raises(OptionError, match=rf"'kernal' is not an option of {kind.__name__} \(did you mean 'kernel'\?\)"):
        kind(kernal="rbf")
    with pytest.raises(OptionError, match=r"'lenghtscale' is not an option|'kernal' is not an option"):
        kind().set_params(kernal="rbf")
    assert kind().set_params(kernel="rbf").kernel == "rbf"


@pytest.mark.parametrize("kind", EVERY)
def test_kernels_of_sklearn_are_rejected_with_their_name_in_gpytorch(kind):
    from sklearn.gaussian_process.kernels import RBF, Matern, RationalQuadratic

    for kernel, name in ((RBF(), "RBFKernel"), (Matern(nu=2.5), "MaternKernel"), (RationalQuadratic(), "RQKernel")):
        with pytest.raises(OptionError, match=f"scikit-learn are not supported. Use gpytorch.kernels.{name}"):
            kind(kernel=kernel).fit(np.arange(6.0)[:, None], np.arange(6) % 2)


@pytest.mark.parametrize("kind", EVERY[:3])
def test_icm_is_decomposable(kind):
    X = np.linspace(0, 3, 12)[:, None]
    Y, options = np.hstack([np.sin(X), np.cos(X)]), {"random_state": 0} if kind is not ovkgp.OVKRidge else {}
    alias, model = (kind(kernel=name, **options).fit(X, Y) for name in ("icm", "decomposable"))
    np.testing.assert_array_equal(alias.predict(X), model.predict(X))
    assert alias.kernel == "icm" and alias.kernel_ == "decomposable"


@pytest.mark.parametrize("kind", EVERY[:3])
def test_kernels_with_other_numbers_of_outputs_are_rejected_with_a_remedy(kind):
    X, Y = np.arange(6.0)[:, None], np.ones((6, 2))
    with pytest.raises(InputError, match=r"Wrap it: DecomposableKernel\(kernel, num_outputs=2\)"):
        kind(kernel=RBFKernel()).fit(X, Y)
    with pytest.raises(InputError, match=r"got 3 outputs and 2 columns of Y. Pass one with num_outputs=2"):
        kind(kernel=DecomposableKernel(RBFKernel(), num_outputs=3)).fit(X, Y)


@pytest.mark.parametrize("kind", EVERY)
def test_sparse_inputs_are_rejected_with_a_remedy(kind):
    for X, fix in ((scipy.sparse.csr_array(np.eye(6)), "toarray"), (torch.eye(6).to_sparse(), "to_dense")):
        with pytest.raises(InputError, match=rf"X must be dense, got a sparse .*Pass X.{fix}\(\)"):
            kind().fit(X, np.arange(6) % 2)


@pytest.mark.parametrize(
    "estimator",
    [
        ovkgp.ORFFRidge(lam=1e-9, solver="lbfgs", max_iter=2, random_state=0),
        pytest.param(ovkgp.InfiniteQuantileRegressor(max_iter=2, random_state=0), marks=pytest.mark.slow),
        ovkgp.ConstrainedORFF(max_iter=2, random_state=0),
        ovkgp.InfiniteCostSensitiveClassifier(max_iter=1, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_warnings_of_unconverged_fits_name_an_option_of_the_estimator(estimator):
    X = np.random.default_rng(0).uniform(0, 1, (60, 2))
    y = np.sin(4 * X[:, 0])
    with pytest.warns(FitWarning, match="max_iter"):
        estimator.fit(X, y > 0.5 if estimator.kind == "labels" else y)
    assert "max_iter" in estimator.get_params()
