"""Tests of `ovkgp.estimators.ridge.base` and `OVKRidge`: every solver, selection and weighting gives the posterior mean."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from oracles import dense
from pairwise import pairwise
from posterior_oracle import DensePosterior, noise_matrix
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.common.named_kernels import median_distance
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, FreeMatrix, GraphMatrix, HelmholtzKernel

SOLVERS = ("auto", "eigen", "closed_form", "cg", "lbfgs")


@parametrize_with_checks([ovkgp.OVKRidge()])
def test_ovk_ridge_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.OVKRidge(lam=1e-3, convention="mean", fit_intercept=True, scale="evidence"),
        ovkgp.OVKRidge(base_kernel="matern32", lam=0.1, solver="closed_form"),
    ]
)
def test_ovk_ridge_passes_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


def smooth(n=40, p=3, seed=0, missing=0.0, d=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    Y = np.column_stack([np.sin(X[:, 0] + a) + np.cos((1 + a) * X[:, -1]) for a in range(p)])
    Y += 0.1 * rng.standard_normal(Y.shape)
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


def gram(kernel, X, Z=None):
    return dense(kernel, torch.as_tensor(X), torch.as_tensor(X if Z is None else Z))


def oracle(kernel, X, Y, noise, test):
    """Return mean and latent variance at the test points by dense algebra."""
    p = Y.shape[1]
    posterior = DensePosterior(gram(kernel, X), noise_matrix(noise, *Y.shape), np.zeros(Y.shape), Y)
    cross = gram(kernel, test, X)
    variance = posterior.covariance(cross, gram(kernel, test)).diagonal().reshape(-1, p)
    return posterior.mean(cross, np.zeros((len(test), p))), variance


# --- the estimator is the posterior mean ------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", ["auto", "decomposable", "curl_free", "divergence_free", "helmholtz"])
def test_predictions_equal_dense_algebra(name, missing):
    X, Y = smooth(p=2, missing=missing)
    ridge = ovkgp.OVKRidge(name, lam=0.05).fit(X, Y)
    test = np.random.default_rng(1).uniform(-2, 2, (7, 2))
    mean, variance = oracle(ridge.gp_.kernel, X, Y, 0.05, test)
    found, std = ridge.predict(test, return_std=True)
    latent = ridge.predict(test, return_std=True, noise=False)[1]
    np.testing.assert_allclose(found, mean, atol=1e-8)
    np.testing.assert_allclose(latent**2, variance, atol=1e-8)
    np.testing.assert_allclose(std**2, variance + 0.05, atol=1e-8)


def test_ovk_ridge_with_one_output_equals_kernel_ridge():
    X, Y = smooth(p=1)
    other = KernelRidge(alpha=0.3, kernel="rbf", gamma=1 / (2 * 0.7**2)).fit(X, Y[:, 0])
    ridge = ovkgp.OVKRidge(lam=0.3, lengthscale=0.7).fit(X, Y[:, 0])
    np.testing.assert_allclose(ridge.predict(X), other.predict(X), atol=1e-9)
    np.testing.assert_allclose(ridge.dual_coef_.ravel(), other.dual_coef_, atol=1e-9)


@pytest.mark.parametrize(
    ("solver", "kernel", "missing"),
    [
        *pairwise(
            solver=[solver for solver in SOLVERS if solver != "eigen"],
            kernel=["auto", "decomposable", "curl_free"],
            missing=[0.0, 0.3],
        ),
        ("eigen", "auto", 0.0),
        ("eigen", "decomposable", 0.0),
    ],
)
def test_solvers_agree(solver, kernel, missing):
    X, Y = smooth(p=2, missing=missing)
    found = ovkgp.OVKRidge(kernel, lam=0.1, solver=solver).fit(X, Y).predict(X[:9] + 0.1, return_std=True)
    wanted = ovkgp.OVKRidge(kernel, lam=0.1, solver="closed_form").fit(X, Y).predict(X[:9] + 0.1, return_std=True)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(("kernel", "missing"), [("auto", 0.3), ("decomposable", 0.3), ("curl_free", 0.0)])
def test_eigen_solver_rejects_missing_outputs_and_field_kernels(kernel, missing):
    with pytest.raises(OptionError, match="closed_form"):
        ovkgp.OVKRidge(kernel, lam=0.1, solver="eigen").fit(*smooth(p=2, missing=missing))


def test_ovk_ridge_rejects_doubly_stochastic_descent():
    with pytest.raises(OptionError, match="ORFFRidge"):
        ovkgp.OVKRidge(solver="doubly_sgd").fit(*smooth())


# --- λ ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["decomposable", "curl_free"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_path_equals_fits_at_each_lam(kernel, missing):
    X, Y = smooth(p=2, missing=missing)
    lams = [1e-3, 0.1, 5.0]
    path = ovkgp.OVKRidge(kernel, convention="mean").fit(X, Y).path(X, Y, lams)
    means = path.predict(X[:5])
    for i, lam in enumerate(lams):
        ridge = ovkgp.OVKRidge(kernel, lam=lam, convention="mean").fit(X, Y)
        assert path.noise[i] == pytest.approx(ridge.noise_)
        np.testing.assert_allclose(means[i], ridge.predict(X[:5]), atol=1e-8)
        loo = ridge.leave_one_out(X, Y)
        assert path.loo_error[i] == pytest.approx(np.nanmean((loo.mean - Y) ** 2), rel=1e-8)
        assert path.log_evidence[i] == pytest.approx(ridge.posterior_.log_evidence, rel=1e-8)


@pytest.mark.parametrize("name", ["decomposable", "curl_free"])
def test_leave_one_out_equals_refits(name):
    X, Y = smooth(n=15, p=2, missing=0.2)
    options = {"kernel": name, "lam": 0.1, "lengthscale": 1.0, "base_kernel": "matern52"}
    ridge = ovkgp.OVKRidge(**options).fit(X, Y)
    kernel = ridge.gp_.kernel
    loo = ridge.leave_one_out(X, Y)
    for i in np.flatnonzero(np.isfinite(Y).any(1))[::3]:
        rest = np.arange(15) != i
        mean, std = ovkgp.OVKRidge(kernel, lam=0.1).fit(X[rest], Y[rest]).predict(X[[i]], return_std=True)
        observed = np.isfinite(Y[i])
        np.testing.assert_allclose(loo.mean[i, observed], mean[0, observed], atol=1e-9)
        np.testing.assert_allclose(loo.std[i, observed], std[0, observed], atol=1e-9)
    assert np.isnan(loo.mean[np.isnan(Y)]).all()
    assert loo.log_density.shape == (15,)


def test_lam_selection_minimizes_the_leave_one_out_error():
    X, Y = smooth(n=80)
    lams = np.logspace(-6, 2, 9)
    ridge = ovkgp.OVKRidge(lam=lams).fit(X, Y)
    errors = [np.mean((ovkgp.OVKRidge(lam=lam).fit(X, Y).leave_one_out(X, Y).mean - Y) ** 2) for lam in lams]
    assert ridge.lam_ == lams[np.argmin(errors)]
    assert ridge.noise_ == ridge.lam_
    np.testing.assert_allclose(ridge.path_.loo_error, errors, rtol=1e-6)
    np.testing.assert_allclose(ridge.predict(X), ovkgp.OVKRidge(lam=ridge.lam_).fit(X, Y).predict(X), atol=1e-10)


def test_lam_selection_maximizes_the_evidence():
    X, Y = smooth(n=80)
    lams = list(np.logspace(-6, 2, 9))
    ridge = ovkgp.OVKRidge(lam=lams, selection="evidence").fit(X, Y)
    evidence = [ovkgp.OVKRidge(lam=lam).fit(X, Y).posterior_.log_evidence for lam in lams]
    assert ridge.lam_ == lams[int(np.argmax(evidence))]


def test_grid_search_selects_lam():
    X, Y = smooth()
    search = GridSearchCV(ovkgp.OVKRidge(convention="mean"), {"lam": [1e-5, 1e-2, 10.0]}, cv=3).fit(X, Y)
    assert search.best_params_["lam"] < 10.0


def test_evidence_scale_changes_the_std_but_not_the_mean():
    X, Y = smooth(n=60)
    unscaled = ovkgp.OVKRidge(lam=1e-2).fit(X, 100 * Y)
    scaled = ovkgp.OVKRidge(lam=1e-2, scale="evidence").fit(X, 100 * Y)
    np.testing.assert_allclose(scaled.predict(X), unscaled.predict(X), rtol=1e-8)
    assert scaled.noise_ == unscaled.noise_ == 1e-2
    K = gram(unscaled.gp_.kernel, X)
    y = 100 * Y.ravel()
    assert scaled.scale_ == pytest.approx(y @ np.linalg.solve(K + 1e-2 * np.eye(len(K)), y) / len(y))
    steps = [scaled.scale_ * factor for factor in (0.9, 1.0, 1.1)]
    densities = [_log_density(y, s * (K + 1e-2 * np.eye(len(K)))) for s in steps]
    assert np.argmax(densities) == 1
    assert scaled.posterior_.log_evidence == pytest.approx(densities[1])
    ratio = scaled.predict(X, return_std=True)[1] / unscaled.predict(X, return_std=True)[1]
    np.testing.assert_allclose(ratio, np.sqrt(scaled.scale_), rtol=1e-6)


@pytest.mark.parametrize("metric", [None, "full", "vector"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_evidence_scale_equals_dense_algebra_for_every_noise(metric, missing):
    X, Y = smooth(n=20, p=2, missing=missing)
    metric = {None: None, "full": np.array([[1.0, 0.6], [0.6, 2.0]]), "vector": np.array([1.0, 3.0])}[metric]
    ridge = ovkgp.OVKRidge("curl_free", lam=0.1, output_metric=metric, scale="evidence").fit(X, Y)
    kernel = CurlFreeKernel(RBFKernel(), num_dims=2).double()
    kernel.base_kernel.lengthscale = torch.tensor(median_distance(X))
    noise = noise_matrix(0.1 if metric is None else 0.1 * metric, *Y.shape)
    posterior = DensePosterior(gram(kernel, X), noise, np.zeros(Y.shape), Y)
    assert ridge.scale_ == pytest.approx(
        posterior.residual @ np.linalg.solve(posterior.C, posterior.residual) / len(posterior.residual)
    )


def _log_density(y, C):
    return -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + len(y) * np.log(2 * np.pi))


# --- metric, weights, intercept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_bt_72_bt_e_24_output_metric_is_correlated_noise(missing):
    """The loss ½ (y − f)ᵀ Σ⁻¹ (y − f) has the noise nλΣ; the printed adjoint would give nλΣ⁻¹."""
    X, Y = smooth(n=12, p=2, missing=missing)
    metric, lam = np.array([[2.0, 0.9], [0.9, 0.5]]), 0.02
    ridge = ovkgp.OVKRidge(lam=lam, convention="mean", output_metric=metric).fit(X, Y)
    n = np.isfinite(Y).any(1).sum()
    wanted, _ = oracle(ridge.gp_.kernel, X, Y, n * lam * metric, X)
    printed, _ = oracle(ridge.gp_.kernel, X, Y, n * lam * np.linalg.inv(metric), X)
    np.testing.assert_allclose(ridge.predict(X), wanted, atol=1e-8)
    assert np.abs(ridge.predict(X) - printed).max() > 1e-2
    assert ridge.noise_ == pytest.approx(n * lam)


@pytest.mark.parametrize("convention", ["sum", "mean", "samples"])
def test_sample_weights_equal_repeated_rows(convention):
    X, Y = smooth(n=20, p=2)
    counts = np.random.default_rng(0).integers(0, 4, 20)
    options = {"lam": 0.01, "convention": convention, "fit_intercept": True}
    weighted = ovkgp.OVKRidge(**options).fit(X, Y, sample_weight=counts)
    repeated = ovkgp.OVKRidge(**options).fit(X.repeat(counts, 0), Y.repeat(counts, 0))
    assert weighted.noise_ == pytest.approx(repeated.noise_)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-8)
    stds = [model.predict(X, return_std=True, noise=False)[1] for model in (weighted, repeated)]
    np.testing.assert_allclose(*stds, atol=1e-7)


def test_intercept_is_the_mean_of_the_outputs():
    X, Y = smooth(n=20, p=2, missing=0.2)
    ridge = ovkgp.OVKRidge(lam=0.1, fit_intercept=True).fit(X, Y + 7.0)
    centered = ovkgp.OVKRidge(lam=0.1).fit(X, Y - np.nanmean(Y, 0))
    np.testing.assert_allclose(ridge.predict(X), centered.predict(X) + 7.0 + np.nanmean(Y, 0), atol=1e-9)
    far = ridge.predict([[1e4, 1e4]])
    np.testing.assert_allclose(far[0], 7.0 + np.nanmean(Y, 0), atol=1e-9)


def test_graph_matrix_couples_tasks():
    """BT-84: with one task observed per row, a Laplacian coupling improves each task by the data of the others."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (90, 1))
    truth = np.sin(2 * X) + np.array([[0.0, 0.1, -0.1]])
    single = np.full(truth.shape, np.nan)
    rows = np.arange(90)
    single[rows, rows % 3] = truth[rows, rows % 3] + 0.3 * rng.standard_normal(90)
    coupling = GraphMatrix(10 * (torch.ones(3, 3).double() - torch.eye(3).double()), ridge=1.0)
    options = {"lam": 0.1, "lengthscale": 0.4}
    independent = ovkgp.OVKRidge(**options).fit(X, single)
    coupled = ovkgp.OVKRidge("decomposable", output_matrix=coupling, **options).fit(X, single)
    errors = [np.mean((model.predict(X) - truth) ** 2) for model in (independent, coupled)]
    assert errors[1] < 0.8 * errors[0]


# --- kernels and options --------------------------------------------------------------------------------------------------


def test_median_distance_uses_distinct_rows_in_any_order():
    X, _ = smooth(n=50)
    rng = np.random.default_rng(0)
    repeated = rng.permutation(X.repeat(rng.integers(1, 4, 50), 0))
    assert median_distance(repeated) == median_distance(X)
    pairs = np.linalg.norm(X[:, None] - X, axis=-1)[np.triu_indices(50, 1)]
    assert median_distance(X) == pytest.approx(np.median(pairs))


def test_named_kernels_equal_those_of_the_papers():
    X, Y = smooth(p=2)
    helmholtz = ovkgp.OVKRidge("helmholtz", lengthscale=0.9).fit(X, Y).gp_.kernel
    assert isinstance(helmholtz, HelmholtzKernel)
    parts = [ovkgp.OVKRidge(name, lengthscale=0.9).fit(X, Y).gp_.kernel for name in ("curl_free", "divergence_free")]
    np.testing.assert_allclose(gram(helmholtz, X), sum(gram(part, X) for part in parts) / 2, atol=1e-12)
    np.testing.assert_allclose(gram(parts[0], X[:1]), np.eye(2) / 0.9**2, atol=1e-12)
    covariance = ovkgp.OVKRidge("decomposable").fit(X, Y).gp_.kernel.output_matrix.numpy()
    np.testing.assert_allclose(covariance, np.cov(Y.T), rtol=1e-10)
    np.testing.assert_allclose(ovkgp.OVKRidge().fit(X, Y).gp_.kernel.output_matrix.numpy(), np.eye(2))
    matern = ovkgp.OVKRidge(base_kernel="matern32", lengthscale=2.0).fit(X, Y).gp_.kernel.base_kernel
    assert isinstance(matern, MaternKernel) and matern.nu == 1.5 and matern.lengthscale.item() == 2.0


def test_fit_does_not_modify_the_kernel_object():
    X, Y = smooth(p=2)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=1)
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    ridge = ovkgp.OVKRidge(kernel, lam=0.1).fit(X, Y)
    assert all(torch.equal(before[name], value) for name, value in kernel.state_dict().items())
    assert ridge.gp_.kernel is not kernel and ridge.kernel_ == "given"
    assert clone(ridge).kernel is not None


def test_fit_accepts_frames_tensors_and_one_dimensional_targets():
    X, Y = smooth(p=2)
    frame, outputs = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(Y, columns=["u", "v"])
    ridge = ovkgp.OVKRidge(lam=0.1).fit(frame, outputs)
    assert ridge.output_names_ == ["u", "v"] and list(ridge.feature_names_in_) == ["a", "b"]
    with pytest.raises(InputError, match="order"):
        ridge.score(frame, outputs[["v", "u"]])
    as_tensors = ovkgp.OVKRidge(lam=0.1).fit(torch.from_numpy(X), torch.from_numpy(Y))
    np.testing.assert_allclose(as_tensors.predict(X), ridge.predict(frame))
    assert ovkgp.OVKRidge().fit(X, Y[:, 0]).predict(X).shape == (40,)
    assert ovkgp.OVKRidge().fit(X, Y[:, :1]).predict(X).shape == (40, 1)
    single = ovkgp.OVKRidge().fit(X.astype(np.float32), Y.astype(np.float32))
    assert single.predict(X.astype(np.float32)).dtype == np.float64


def test_ovk_ridge_can_be_pickled_and_sampled():
    X, Y = smooth()
    ridge = ovkgp.OVKRidge(lam=[0.01, 0.1]).fit(X, Y)
    again = pickle.loads(pickle.dumps(ridge))
    np.testing.assert_array_equal(again.predict(X), ridge.predict(X))
    assert ridge.sample_y(X[:4], 5).shape == (4, 3, 5)
    assert ridge.sample_functions(2, random_state=0)(X[:4]).shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kernel": "lmc"}, "decomposable"),
        ({"kernel": 3}, "kernel"),
        ({"solver": "sgd"}, "closed_form"),
        ({"selection": "aic"}, "loo"),
        ({"scale": 2.0}, "scale"),
        ({"lengthscale": "mean"}, "median"),
        ({"lengthscale": -1.0}, "lengthscale"),
        ({"lengthscale": True}, "lengthscale"),
        ({"base_kernel": "gauss"}, "rbf"),
        ({"kernel": "independent", "output_matrix": np.eye(2)}, "decomposable"),
        ({"kernel": "curl_free", "output_matrix": np.eye(2)}, "output_matrix"),
        ({"output_matrix": np.eye(3)}, r"\(2, 2\)"),
        ({"output_matrix": np.ones(2)}, r"\(2, 2\)"),
        ({"output_metric": np.eye(3)}, r"\(2, 2\)"),
        ({"output_metric": np.array([[1.0, 2.0], [2.0, 1.0]])}, "definite"),
        ({"lam": -1.0}, "lam"),
        ({"tolerance": 0.0, "solver": "cg"}, "tolerance"),
    ],
)
def test_fit_rejects_invalid_options(options, match):
    X, Y = smooth(p=2)
    with pytest.raises((OptionError, InputError), match=match):
        ovkgp.OVKRidge(**options).fit(X, Y)


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (np.ones(39), "shape"),
        (np.ones((40, 3)), "shape"),
        (-np.ones(40), "negative"),
        (np.full(40, np.nan), "finite"),
        (np.zeros(40), "zero"),
    ],
)
def test_fit_rejects_invalid_weights(weight, match):
    X, Y = smooth(p=2)
    with pytest.raises(InputError, match=match):
        ovkgp.OVKRidge().fit(X, Y, sample_weight=weight)
    with pytest.raises(OptionError, match="output_metric"):
        ovkgp.OVKRidge(output_metric=np.eye(2)).fit(X, Y, sample_weight=np.arange(40.0))


def test_fit_handles_degenerate_data():
    X, Y = smooth(p=2)
    with pytest.raises(ValueError, match="NaN"):
        ovkgp.OVKRidge().fit(np.where(X > 1.9, np.nan, X), Y)
    with pytest.raises(InputError, match="output 1"):
        ovkgp.OVKRidge().fit(X, np.column_stack([Y[:, 0], np.full(40, np.nan)]))
    with pytest.raises(InputError, match="curl_free"):
        ovkgp.OVKRidge("curl_free").fit(X, Y[:, :1])
    one = ovkgp.OVKRidge(lam=0.5).fit([[1.0, 2.0]], [[3.0, 4.0]])
    np.testing.assert_allclose(one.predict([[1.0, 2.0]]), [[2.0, 8 / 3]])
    same = ovkgp.OVKRidge(lam=0.5).fit(np.ones((4, 1)), np.arange(4.0))
    np.testing.assert_allclose(same.predict([[1.0]]), 6 / 4.5)
    constant = ovkgp.OVKRidge("decomposable", lam=0.1).fit(X, np.column_stack([Y[:, 0], np.ones(40)]))
    assert np.isfinite(constant.predict(X, return_std=True)).all()


def test_fit_restores_the_model_on_error():
    X, Y = smooth(p=2)
    ridge = ovkgp.OVKRidge(lam=0.1).fit(X, Y)
    before = ridge.predict(X)
    with pytest.raises(InputError):
        ridge.fit(X, np.full_like(Y, np.nan))
    np.testing.assert_array_equal(ridge.predict(X), before)


# --- small numbers and conflicting options ------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-9, 1e-5, 1e4])
@pytest.mark.parametrize("selection", ["loo", "evidence"])
def test_lam_selection_does_not_depend_on_units(unit, selection):
    X, Y = smooth()
    lams = np.logspace(-6, 0, 7)
    options = {"kernel": "decomposable", "selection": selection}
    unscaled = ovkgp.OVKRidge(lam=lams, **options).fit(X, Y)
    other = ovkgp.OVKRidge(lam=lams * unit**2, **options).fit(X, Y * unit)
    assert other.lam_ / unit**2 == pytest.approx(unscaled.lam_)
    np.testing.assert_allclose(other.path_.loo_error / unit**2, unscaled.path_.loo_error, rtol=1e-6)


@pytest.mark.parametrize("lam", [1e-10, 1e-13])
def test_evidence_scale_is_accurate_for_a_small_lam(lam):
    X = np.linspace(0, 6, 40)[:, None]
    ridge = ovkgp.OVKRidge(lam=lam, lengthscale=0.5, base_kernel="matern12", scale="evidence").fit(X, np.sin(X))
    C = gram(ridge._kernel, X) + lam * np.eye(40)
    wanted = np.sin(X).ravel() @ np.linalg.solve(C, np.sin(X).ravel()) / 40
    assert ridge.scale_ == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_path_evidence_is_computed_at_the_best_scale(unit):
    X, Y = smooth()
    lams = np.logspace(-6, 2, 9)
    options = {"scale": "evidence", "lengthscale": 1.0}
    ridge = ovkgp.OVKRidge(lam=lams, selection="evidence", **options).fit(X, unit * Y)
    fits = [ovkgp.OVKRidge(lam=lam, **options).fit(X, unit * Y) for lam in lams]
    np.testing.assert_allclose(ridge.path_.log_evidence, [fit.posterior_.log_evidence for fit in fits], rtol=1e-7)
    loo = [fit.leave_one_out(X, unit * Y).log_density.sum() for fit in fits]
    np.testing.assert_allclose(ridge.path_.loo_log_density, loo, rtol=1e-7)
    assert ridge.lam_ == lams[np.argmax(ridge.path_.log_evidence)]
    assert ridge.lam_ == ovkgp.OVKRidge(lam=lams, selection="evidence", **options).fit(X, Y).lam_


def test_methods_reject_weights_with_an_output_metric():
    X, Y = smooth(p=2)
    ridge = ovkgp.OVKRidge(output_metric=np.array([[1.0, 0.5], [0.5, 1.0]])).fit(X, Y)
    for method in (ridge.path, ridge.leave_one_out):
        with pytest.raises(OptionError, match="output_metric"):
            method(X, Y, sample_weight=np.arange(1.0, 41.0))


def test_path_rejects_invalid_points():
    X, Y = smooth(p=2)
    path = ovkgp.OVKRidge(lam=[0.1, 1.0]).fit(X, Y).path(X, Y)
    with pytest.raises(InputError, match="shape"):
        path.predict(X[:, :1])
    assert path.predict(torch.from_numpy(X).requires_grad_()).shape == (2, 40, 2)
    with pytest.raises(OptionError, match="predict"):
        ovkgp.OVKRidge(lam=[0.1, 1.0]).fit(X, Y).path_.predict(X)


def test_fit_does_not_modify_the_output_matrix_object():
    X, Y = smooth(p=2)
    matrix = FreeMatrix(2, 1)
    ridge = ovkgp.OVKRidge("decomposable", output_matrix=matrix).fit(X, Y)
    assert matrix.loadings.dtype == torch.float32
    assert all(part is not matrix for part in ridge.gp_.modules())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lam": ["a"]}, "lam"),
        ({"lam": [[1.0, 2.0], [3.0]]}, "lam"),
        ({"output_metric": "a"}, "output_metric"),
        ({"tolerance": "x"}, "tolerance"),
        ({"max_iter": -3}, "max_iter"),
        ({"kernel": "decomposable", "output_matrix": FreeMatrix(3, 1)}, "output_matrix"),
        ({"base_kernel": RBFKernel(), "lengthscale": 0.1}, "lengthscale"),
        ({"kernel": CurlFreeKernel(RBFKernel(), num_dims=2), "lengthscale": 0.1}, "lengthscale"),
        ({"kernel": CurlFreeKernel(RBFKernel(), num_dims=2), "base_kernel": "nonsense"}, "rbf"),
    ],
)
def test_fit_rejects_conflicting_options(options, match):
    X, Y = smooth(p=2)
    with pytest.raises((OptionError, InputError), match=match):
        ovkgp.OVKRidge(**options).fit(X, Y)


@pytest.mark.parametrize(
    "ridge",
    [
        ovkgp.ORFFRidge(num_frequencies=8, random_state=0),
        ovkgp.ManifoldRidge(num_neighbors=3),
        ovkgp.ManifoldRidge(num_neighbors=3, num_frequencies=8, random_state=0),
        ovkgp.ConstrainedORFF(num_frequencies=8, random_state=0),
    ],
    ids=lambda ridge: f"{type(ridge).__name__}-{ridge.num_frequencies}",
)
def test_ridge_estimators_do_not_depend_on_the_unit_of_the_inputs(ridge):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    Y = np.sin(X)
    expected = ridge.fit(X, Y).predict(X)
    for scale in (2.0**-1000, 2.0**500, 2.0**1000):
        np.testing.assert_allclose(ridge.fit(X * scale, Y).predict(X * scale), expected, rtol=0, atol=1e-7)
    if ridge.num_frequencies is not None:
        with pytest.raises((InputError, OptionError), match="lengthscale"):
            ridge.fit(X * 5e-324, Y)
