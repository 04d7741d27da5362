"""Tests of `ORFFRidge`: all solvers, streams and parts of the data give the same estimator."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import PolynomialKernel, RBFKernel
from linear_operator import to_dense
from pairwise import pairwise
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import BlockedORFF
from ovkgp.kernels import DecomposableKernel, IndependentKernel

SOLVERS = ("auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd")


@parametrize_with_checks([ovkgp.ORFFRidge(num_frequencies=30, random_state=0)])
def test_orff_ridge_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.ORFFRidge(lam=1e-3, convention="mean", num_frequencies=30, fit_intercept=True, random_state=0),
        ovkgp.ORFFRidge(num_frequencies=20, solver="doubly_sgd", block_size=5, random_state=0),
    ]
)
def test_orff_ridge_passes_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


def smooth(n=60, p=2, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.column_stack([np.sin(X[:, 0] + a) + np.cos((1 + a) * X[:, 1]) for a in range(p)])
    Y += 0.1 * rng.standard_normal(Y.shape)
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


def features(ridge, X):
    return to_dense(ridge.gp_.features(torch.from_numpy(X))).detach().numpy()


# --- solvers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "block_size", "kernel", "missing"),
    [
        *pairwise(
            solver=[solver for solver in SOLVERS if solver != "eigen"],
            block_size=[None, 10],
            kernel=["auto", "decomposable", "curl_free"],
            missing=[0.0, 0.3],
        ),
        *pairwise(solver=["eigen"], block_size=[None, 10], kernel=["auto", "decomposable"], missing=[0.0]),
    ],
)
def test_solvers_agree(solver, block_size, kernel, missing):
    X, Y = smooth(missing=missing)
    options = {"lam": 0.1, "num_frequencies": 30, "block_size": block_size, "random_state": 0, "tolerance": 1e-10}
    ridge = ovkgp.ORFFRidge(kernel, solver=solver, **options).fit(X, Y)
    Phi, observed = features(ridge, X), np.isfinite(Y).ravel()
    A = Phi[observed].T @ Phi[observed] + 0.1 * np.eye(Phi.shape[1])
    weights = np.linalg.solve(A, Phi[observed].T @ Y.ravel()[observed])
    np.testing.assert_allclose(ridge.coef_, weights, atol=1e-6)
    test = X[:5] + 0.1
    np.testing.assert_allclose(ridge.predict(test).ravel(), features(ridge, test) @ weights, atol=1e-6)
    bare = ovkgp.ORFFRidge(kernel, solver=solver, variance="features", **options).fit(X, Y)
    variance = 0.1 * np.sum(features(bare, test) * np.linalg.solve(A, features(bare, test).T).T, 1)
    np.testing.assert_allclose(bare.predict(test, return_std=True, noise=False)[1].ravel() ** 2, variance, atol=1e-6)


@pytest.mark.parametrize("block_size", [None, 10])
@pytest.mark.parametrize(("kernel", "missing"), [("auto", 0.3), ("decomposable", 0.3), ("curl_free", 0.0)])
def test_eigen_solver_rejects_missing_outputs_and_field_kernels(kernel, missing, block_size):
    with pytest.raises(OptionError, match="closed_form"):
        ovkgp.ORFFRidge(kernel, solver="eigen", num_frequencies=30, block_size=block_size).fit(*smooth(missing=missing))


def test_id_19_one_preconditioned_full_step_is_the_closed_form():
    X, Y = smooth(missing=0.2)
    options = {"lam": 0.05, "convention": "mean", "num_frequencies": 25, "random_state": 3}
    one = ovkgp.ORFFRidge(solver="doubly_sgd", max_iter=1, **options).fit(X, Y)
    closed = ovkgp.ORFFRidge(solver="closed_form", **options).fit(X, Y)
    np.testing.assert_allclose(one.coef_, closed.coef_, atol=1e-8)


def test_bt_69_primal_and_dual_agree_unless_lam_is_numerically_zero():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (50, 1))
    y = np.sin(10 * x) + 2 * x**2 + 0.5 * rng.standard_normal((50, 1))
    options = {"num_frequencies": 50, "lengthscale": 0.3, "random_state": 0}
    residuals = [ovkgp.ORFFRidge(lam=lam, **options).fit(x, y).primal_dual_residual(x, y) for lam in (1e-2, 1e-13)]
    assert residuals[0] < 1e-9 and residuals[1] > 1e3 * residuals[0]


def test_block_size_gives_blocked_features():
    X, Y = smooth()
    ridge = ovkgp.ORFFRidge(num_frequencies=40, block_size=8, random_state=0).fit(X, Y)
    assert isinstance(ridge.gp_.features, BlockedORFF) and ridge.gp_.features.num_blocks == 5
    with pytest.raises(OptionError, match="block_size"):
        ovkgp.ORFFRidge(num_frequencies=40, block_size=7, random_state=0).fit(X, Y)


def test_guarded_variance_is_not_underestimated_far_from_the_data():
    X, Y = smooth(n=400)
    options = {"lam": 0.01, "num_frequencies": 20, "lengthscale": 0.5, "random_state": 0}
    for solver in ("auto", "cg"):
        guarded = ovkgp.ORFFRidge(solver=solver, **options).fit(X, Y)
        bare = ovkgp.ORFFRidge(solver=solver, variance="features", **options).fit(X, Y)
        far = np.array([[30.0, 30.0]])
        assert guarded.predict(far, return_std=True, noise=False)[1].min() > 0.9
        assert bare.predict(far, return_std=True, noise=False)[1].max() < 0.7
        np.testing.assert_allclose(guarded.predict(X), bare.predict(X))


def test_orff_ridge_converges_to_the_exact_kernel():
    X, Y = smooth()
    exact = ovkgp.OVKRidge(lam=0.1).fit(X, Y).predict(X)

    def error(num_frequencies, seed):
        ridge = ovkgp.ORFFRidge(lam=0.1, num_frequencies=num_frequencies, random_state=seed).fit(X, Y)
        return np.abs(ridge.predict(X) - exact).mean()

    errors = [np.mean([error(D, seed) for seed in range(3)]) for D in (20, 500)]
    assert errors[1] < errors[0] / 3


# --- λ ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_path_equals_fits_at_each_lam(missing):
    X, Y = smooth(missing=missing)
    options = {"convention": "mean", "num_frequencies": 30, "random_state": 0}
    lams = [1e-4, 1e-2, 1.0]
    path = ovkgp.ORFFRidge(lam=0.3, **options).fit(X, Y).path(X, Y, lams)
    means = path.predict(X[:5])
    for i, lam in enumerate(lams):
        ridge = ovkgp.ORFFRidge(lam=lam, **options).fit(X, Y)
        np.testing.assert_allclose(means[i], ridge.predict(X[:5]), atol=1e-8)
        assert path.loo_error[i] == pytest.approx(np.nanmean((ridge.leave_one_out(X, Y).mean - Y) ** 2), rel=1e-7)
        assert path.log_evidence[i] == pytest.approx(ridge.posterior_.log_evidence, rel=1e-8)
    chosen = ovkgp.ORFFRidge(lam=lams, **options).fit(X, Y)
    assert chosen.lam_ == lams[int(np.argmin(path.loo_error))]
    np.testing.assert_allclose(chosen.path_.loo_error, path.loo_error)


# --- streams and parts ----------------------------------------------------------------------------------------------------


def assert_same_predictions(one, other, X, atol=1e-8):
    assert one.noise_ == pytest.approx(other.noise_, rel=1e-12)
    for a, b in zip(one.predict(X, return_std=True), other.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("kernel", ["auto", "decomposable", "curl_free", "object"])
@pytest.mark.parametrize("convention", ["sum", "mean"])
def test_fit_stream_equals_fit(convention, kernel, missing):
    X, Y = smooth(missing=missing)
    if kernel == "object":
        kernel = IndependentKernel([RBFKernel().double(), RBFKernel().double()])
    options = {"lam": 0.01, "convention": convention, "num_frequencies": 30, "fit_intercept": True, "random_state": 0}
    whole = ovkgp.ORFFRidge(kernel, **options).fit(X, Y)
    chunks = [(X[i : i + 17], Y[i : i + 17]) for i in (34, 0, 51, 17)]
    streamed = ovkgp.ORFFRidge(kernel, **options).fit_stream(chunks)
    assert_same_predictions(whole, streamed, X)
    assert whole.posterior_.log_evidence == pytest.approx(streamed.posterior_.log_evidence, rel=1e-9)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("convention", ["sum", "mean", "samples"])
def test_partial_fit_equals_fit(convention, missing):
    X, Y = smooth(missing=missing)
    options = {"lam": 0.01, "convention": convention, "num_frequencies": 30, "lengthscale": 1.5, "random_state": 0}
    whole = ovkgp.ORFFRidge(**options).fit(X, Y)
    parts = ovkgp.ORFFRidge(**options)
    for rows in (slice(0, 20), slice(20, 23), slice(23, 60)):
        parts.partial_fit(X[rows], Y[rows])
    assert_same_predictions(whole, parts, X)
    assert_same_predictions(ovkgp.ORFFRidge(**options).fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:]), whole, X)


def test_partial_fit_supports_weights_if_the_noise_is_constant():
    X, Y = smooth()
    weights = np.random.default_rng(0).integers(1, 4, 60).astype(float)
    options = {"lam": 0.1, "num_frequencies": 30, "lengthscale": 1.5, "random_state": 0}
    whole = ovkgp.ORFFRidge(**options).fit(X, Y, weights)
    parts = (
        ovkgp.ORFFRidge(**options).partial_fit(X[:30], Y[:30], weights[:30]).partial_fit(X[30:], Y[30:], weights[30:])
    )
    assert_same_predictions(whole, parts, X)
    first = ovkgp.ORFFRidge(convention="mean", **options).partial_fit(X, Y, weights)
    assert_same_predictions(first, ovkgp.ORFFRidge(convention="mean", **options).fit(X, Y, weights), X)
    with pytest.raises(OptionError, match="convention"):
        first.partial_fit(X, Y, weights)


def test_partial_fit_accepts_parts_with_and_without_weights():
    X, Y = smooth()
    weights = np.r_[np.random.default_rng(0).integers(2, 4, 30), np.ones(30)].astype(float)
    options = {"lam": 0.1, "num_frequencies": 20, "lengthscale": 1.0, "random_state": 0}
    whole = ovkgp.ORFFRidge(**options).fit(X, Y, weights)
    for last in (weights[30:], None):
        parts = ovkgp.ORFFRidge(**options).partial_fit(X[:30], Y[:30], weights[:30])
        assert_same_predictions(parts.partial_fit(X[30:], Y[30:], last), whole, X)
    backwards = ovkgp.ORFFRidge(**options).partial_fit(X[30:], Y[30:], weights[30:])
    assert_same_predictions(backwards.partial_fit(X[:30], Y[:30], weights[:30]), whole, X)
    with pytest.raises(OptionError, match="sample_weight"):
        ovkgp.ORFFRidge(**options).partial_fit(X[30:], Y[30:]).partial_fit(X[:30], Y[:30], weights[:30])


def test_fit_stream_supports_an_output_metric():
    X, Y = smooth(missing=0.3)
    options = {"lam": 0.01, "convention": "mean", "num_frequencies": 20, "random_state": 0}
    options["output_metric"] = np.array([[1.0, 0.7], [0.7, 2.0]])
    whole = ovkgp.ORFFRidge(**options).fit(X, Y)
    Phi, observed = features(whole, X), np.isfinite(Y).ravel()
    N = np.kron(np.eye(60), whole.noise_ * options["output_metric"])[np.ix_(observed, observed)]
    weights = np.linalg.solve(
        np.eye(Phi.shape[1]) + Phi[observed].T @ np.linalg.solve(N, Phi[observed]),
        Phi[observed].T @ np.linalg.solve(N, Y.ravel()[observed]),
    )
    np.testing.assert_allclose(whole.coef_, weights, atol=1e-8)
    assert_same_predictions(ovkgp.ORFFRidge(**options).fit_stream([(X[:25], Y[:25]), (X[25:], Y[25:])]), whole, X)


@pytest.mark.parametrize("method", ["stream", "parts"])
def test_streaming_selects_lam_and_scale_by_evidence(method):
    X, Y = smooth(missing=0.1)
    options = {"convention": "mean", "num_frequencies": 30, "lengthscale": 1.5, "random_state": 0}
    options |= {"lam": [1e-6, 1e-3, 1.0], "selection": "evidence", "scale": "evidence"}
    whole, other = ovkgp.ORFFRidge(**options).fit(X, Y), ovkgp.ORFFRidge(**options)
    parts = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    if method == "stream":
        other.fit_stream(parts)
    else:
        for part in parts:
            other.partial_fit(*part)
    assert other.lam_ == whole.lam_ and other.scale_ == pytest.approx(whole.scale_, rel=1e-7)
    np.testing.assert_allclose(other.path_.log_evidence, whole.path_.log_evidence, rtol=1e-8)
    assert_same_predictions(whole, other, X)


def test_fit_stream_uses_the_lengthscale_of_fit():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(12_000, 3)), rng.normal(size=(12_000, 1))
    options = {"num_frequencies": 5, "random_state": 0}
    whole = ovkgp.ORFFRidge(**options).fit(X, Y)
    streamed = ovkgp.ORFFRidge(**options).fit_stream([(X[7000:], Y[7000:]), (X[:7000], Y[:7000])])
    lengthscales = [model.gp_.kernel.base_kernel.lengthscale.item() for model in (whole, streamed)]
    assert lengthscales[0] == lengthscales[1]
    assert_same_predictions(whole, streamed, X[:10])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"solver": "cg"}, "solver|partial_fit"),
        ({"lam": [0.1, 1.0]}, "evidence"),
        ({"lam": -1.0}, "lam"),
        ({"variance": "none"}, "guarded"),
        ({"num_frequencies": 0}, "num_frequencies"),
    ],
)
def test_streaming_rejects_unsupported_options(options, match):
    X, Y = smooth()
    for fit in (lambda m: m.fit_stream([(X, Y)]), lambda m: m.partial_fit(X, Y)):
        with pytest.raises((OptionError, InputError, AttributeError), match=match):
            fit(ovkgp.ORFFRidge(**options))


def test_streaming_rejects_invalid_rows():
    X, Y = smooth()
    with pytest.raises(InputError, match="Chunk 1"):
        ovkgp.ORFFRidge().fit_stream([(X, Y), (np.full_like(X, np.nan), Y)])
    with pytest.raises(InputError, match="two passes"):
        ovkgp.ORFFRidge().fit_stream(pair for pair in [(X, Y)])
    model = ovkgp.ORFFRidge(num_frequencies=20, random_state=0).partial_fit(X, Y)
    before = model.predict(X)
    with pytest.raises(InputError, match="columns"):
        model.partial_fit(X, Y[:, :1])
    np.testing.assert_array_equal(model.predict(X), before)
    without = ovkgp.ORFFRidge(num_frequencies=20, solver="cg", random_state=0).fit(X, Y).set_params(solver="auto")
    with pytest.raises(OptionError, match="solver"):
        without.partial_fit(X, Y)


def test_fit_rejects_a_kernel_without_a_spectral_pair():
    X, Y = smooth()
    kernel = DecomposableKernel(RBFKernel(active_dims=(0,)) * RBFKernel(), num_outputs=2)
    ovkgp.ORFFRidge(kernel, num_frequencies=10, random_state=0).fit(X, Y)
    with pytest.raises(ovkgp.exceptions.SpectralError):
        ovkgp.ORFFRidge(DecomposableKernel(PolynomialKernel(power=2), num_outputs=2)).fit(X, Y)


def test_orff_ridge_can_be_pickled_and_reproduced():
    X, Y = smooth()
    ridge = ovkgp.ORFFRidge(num_frequencies=20, random_state=7).fit(X, Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ridge)).predict(X), ridge.predict(X))
    np.testing.assert_array_equal(ovkgp.ORFFRidge(num_frequencies=20, random_state=7).fit(X, Y).coef_, ridge.coef_)
    assert ridge.sample_functions(2, random_state=0)(X[:4]).shape == (2, 4, 2)


@pytest.mark.parametrize("solver", SOLVERS)
def test_orff_ridge_can_be_copied_with_every_solver(solver):
    X, Y = smooth()
    ridge = ovkgp.ORFFRidge(solver=solver, num_frequencies=10, lam=0.1, random_state=0).fit(X, Y)
    for again in (copy.deepcopy(ridge), pickle.loads(pickle.dumps(ridge))):
        for one, other in zip(
            again.predict(X[:3], return_std=True), ridge.predict(X[:3], return_std=True), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_partial_fit_accepts_weighted_parts_without_an_output():
    X, Y = smooth()
    Y[30:, 1] = np.nan
    weights = np.full(60, 2.0)
    options = {"lam": 0.1, "num_frequencies": 20, "lengthscale": 1.0, "random_state": 0}
    parts = (
        ovkgp.ORFFRidge(**options).partial_fit(X[:30], Y[:30], weights[:30]).partial_fit(X[30:], Y[30:], weights[30:])
    )
    assert_same_predictions(parts, ovkgp.ORFFRidge(**options).fit(X, Y, weights), X)
    with pytest.raises(InputError, match="zero"):
        ovkgp.ORFFRidge(**options).partial_fit(X[:30], Y[:30], np.zeros(30))


def test_partial_fit_rejects_a_new_noise_with_weights():
    X, Y = smooth()
    weights = np.full(30, 2.0)
    ridge = ovkgp.ORFFRidge(lam=0.1, num_frequencies=20, random_state=0).partial_fit(X[:30], Y[:30], weights)
    with pytest.raises(OptionError, match=r"from 0\.1 to 10"):
        ridge.set_params(lam=10.0).partial_fit(X[30:], Y[30:], weights)


@pytest.mark.parametrize("unit", [1e-7, 1e3])
@pytest.mark.parametrize("scale", ["given", "evidence"])
def test_streaming_lam_selection_does_not_depend_on_units(unit, scale):
    X, Y = smooth()
    lams = np.logspace(-5, 1, 7)
    options = {"selection": "evidence", "scale": scale, "num_frequencies": 30, "random_state": 0}
    unscaled = ovkgp.ORFFRidge("decomposable", lam=lams, **options).partial_fit(X, Y)
    other = ovkgp.ORFFRidge("decomposable", lam=lams * unit**2, **options).partial_fit(X, Y * unit)
    assert other.lam_ / unit**2 == pytest.approx(unscaled.lam_)
    assert unscaled.path_.log_evidence.max() == pytest.approx(unscaled.posterior_.log_evidence, rel=1e-7)


def test_partial_fit_rejects_evidence_scale_with_independent_kernels():
    X, Y = smooth()
    kernel = IndependentKernel([RBFKernel().double(), RBFKernel().double()])
    with pytest.raises(OptionError, match="scale"):
        ovkgp.ORFFRidge(kernel, scale="evidence", num_frequencies=10).partial_fit(X, Y)
