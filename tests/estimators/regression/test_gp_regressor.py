"""Tests of `GPRegressor`: scikit-learn's checks, shapes and units of predictions, degenerate data and errors."""

import copy
import os
import pickle
import signal
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from linear_operator import to_dense
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.datasets import make_drifters
from ovkgp.estimators.common.named_kernels import approximate, make_named_kernel
from ovkgp.estimators.common.scaling import in_original_units
from ovkgp.estimators.common.validation import Table
from ovkgp.estimators.regression.training import num_weights
from ovkgp.exceptions import FitWarning, InputError, OptionError, OvkgpError
from ovkgp.inference import hyperparameters
from ovkgp.inference.stacking.output_kernel import OutputDensity
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.kernels import DecomposableKernel, DivergenceFreeKernel, KnownMatrix
from ovkgp.kernels.fields import FieldKernel


@parametrize_with_checks([ovkgp.GPRegressor(random_state=0)])
def test_gp_regressor_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.GPRegressor(kernel="decomposable", approximation="orff", num_frequencies=30, random_state=0),
        ovkgp.GPRegressor(kernel="lmc", approximation="nystrom", num_frequencies=20, noise="full", random_state=0),
    ]
)
def test_gp_regressor_passes_scikit_learn_checks_with_features(estimator, check):
    check(estimator)


def smooth(n=60, seed=0, missing=0.0):
    """Inputs (n, 2), noisy outputs (n, 3) of different scales, and the ground truth."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 5, (n, 2))
    truth = np.c_[np.sin(X[:, 0]), 50 + 10 * np.cos(X[:, 1]), 0.01 * np.sin(X.sum(1))]
    Y = truth + 0.1 * truth.std(0) * rng.standard_normal(truth.shape)
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y, truth


@pytest.fixture(scope="module")
def fitted():
    X, Y, _ = smooth(missing=0.2)
    return ovkgp.GPRegressor(kernel="decomposable", random_state=0).fit(X, Y)


# --- predictions--------------------------------------------------------------------------------------------------------


def test_predictions_have_documented_shapes(fitted):
    X = np.random.default_rng(1).uniform(0, 5, (7, 2))
    mean, std = fitted.predict(X, return_std=True)
    assert mean.shape == std.shape == (7, 3) and mean.dtype == std.dtype == np.float64
    assert fitted.predict(X, return_cov=True)[1].shape == (7, 3, 3)
    assert fitted.predict(X, return_cov="full")[1].shape == (21, 21)
    assert fitted.sample_y(X, 5).shape == (7, 3, 5)
    draws = fitted.sample_functions(4, random_state=0)
    assert draws(X).shape == (4, 7, 3) and draws[1](X).shape == (7, 3)
    np.testing.assert_allclose(draws(X)[1], draws[1](X), rtol=1e-10)  # products of other shapes round otherwise
    np.testing.assert_array_equal(fitted.sample_y(X, 2, random_state=3), fitted.sample_y(X, 2, random_state=3))


def test_predictions_are_one_dimensional_for_one_dimensional_targets():
    X, Y, _ = smooth()
    flat = ovkgp.GPRegressor(random_state=0).fit(X, Y[:, 0])
    column = ovkgp.GPRegressor(random_state=0).fit(X, Y[:, :1])
    mean, std = flat.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == (5,)
    assert flat.sample_y(X[:5], 3).shape == (5, 3)
    assert flat.sample_functions(2)(X[:5]).shape == (2, 5)
    assert column.predict(X[:5]).shape == (5, 1)
    np.testing.assert_allclose(column.predict(X[:5])[:, 0], mean)


def test_std_agrees_with_covariances_and_noise(fitted):
    X = np.random.default_rng(2).uniform(0, 5, (6, 2))
    _, std = fitted.predict(X, return_std=True)
    _, cov = fitted.predict(X, return_cov=True)
    _, full = fitted.predict(X, return_cov="full")
    np.testing.assert_allclose(np.sqrt(np.diagonal(cov, axis1=1, axis2=2)), std)
    np.testing.assert_allclose(np.sqrt(np.diag(full)).reshape(6, 3), std)
    _, latent = fitted.predict(X, return_std=True, noise=False)
    np.testing.assert_allclose(std**2 - latent**2, np.broadcast_to(np.diag(fitted.noise_), (6, 3)))


def test_predictions_equal_the_gp_in_original_units():
    """A kernel, noise and mean in original units give the same posterior and evidence."""
    X, Y, _ = smooth(missing=0.2)
    fitted = ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(X, Y)
    scaling, gp = fitted.scaling_, fitted.gp_
    scale = torch.from_numpy(scaling.output_scale)
    kernel = DecomposableKernel(
        copy.deepcopy(gp.kernel.base_kernel),
        output_matrix=KnownMatrix(gp.kernel.output_matrix.detach() * torch.outer(scale, scale)),
    )
    kernel.base_kernel.lengthscale = gp.kernel.base_kernel.lengthscale.detach() * torch.from_numpy(scaling.input_scale)
    ours = ovkgp.inference.OperatorValuedGP(kernel, mean="constant", noise=gp.noise.detach() * scale**2)
    with torch.no_grad():
        ours.mean.constant.copy_(gp.mean.constant * scale + torch.from_numpy(scaling.output_offset))
    posterior = ours.condition(X, Y)
    prediction = posterior.predict(X[:5], noise=True)
    mean, std = fitted.predict(X[:5], return_std=True)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-7)
    np.testing.assert_allclose(prediction.std, std, rtol=1e-7)
    assert posterior.log_evidence == pytest.approx(fitted.log_evidence_, rel=1e-8)


def test_score_uses_observed_entries_only(fitted):
    X, Y, truth = smooth(missing=0.2)
    gaps = truth.copy()
    gaps[np.isnan(Y)] = np.nan
    predicted = fitted.predict(X)
    expected = [
        1 - ((gaps[s, a] - predicted[s, a]) ** 2).sum() / ((gaps[s, a] - gaps[s, a].mean()) ** 2).sum()
        for a in range(3)
        for s in [~np.isnan(gaps[:, a])]
    ]
    assert fitted.score(X, gaps) == pytest.approx(np.mean(expected))
    assert fitted.score(X, gaps) > 0.95


def test_fit_keeps_names_of_data_frames():
    X, Y, _ = smooth()
    model = ovkgp.GPRegressor(kernel="independent", random_state=0)
    model.fit(pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v", "w"]))
    assert model.output_names_ == ["u", "v", "w"]
    assert list(model.feature_names_in_) == ["east", "north"]
    assert "v" in model.summary() and model.summary() == repr(model.summary())
    frame = pd.DataFrame(X[:3], columns=["north", "east"])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame)


def test_fit_accepts_tensors(fitted):
    X, Y, _ = smooth(missing=0.2)
    again = ovkgp.GPRegressor(kernel="decomposable", random_state=0).fit(torch.tensor(X), torch.tensor(Y))
    np.testing.assert_array_equal(again.predict(torch.tensor(X)), fitted.predict(X))


def test_random_state_makes_fit_bitwise_reproducible():
    X, Y, _ = smooth(missing=0.1)
    options = dict(kernel="decomposable", approximation="orff", num_frequencies=40, random_state=3)
    one, two = (ovkgp.GPRegressor(**options).fit(X, Y).predict(X, return_std=True) for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


def test_fit_does_not_modify_the_kernel_object():
    X, Y, _ = smooth()
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=2)
    before = copy.deepcopy(kernel.state_dict())
    model = ovkgp.GPRegressor(kernel=kernel, random_state=0).fit(X, Y)
    assert model.kernel is kernel and model.gp_.kernel is not kernel
    assert all(torch.equal(value, before[name]) for name, value in kernel.state_dict().items())
    assert model.score(X, Y) > 0.9


def test_fixed_hyperparameters_of_a_kernel_object_are_in_original_units():
    X, Y, _ = smooth()
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=torch.diag(torch.tensor([1.0, 100.0, 1e-4])))
    kernel.base_kernel.lengthscale = 1.5
    model = ovkgp.GPRegressor(kernel=kernel, hyperparameters="fixed", noise=[0.01, 1.0, 1e-6]).fit(X, Y)
    gp = ovkgp.inference.OperatorValuedGP(kernel, noise=[0.01, 1.0, 1e-6])
    with torch.no_grad():
        gp.mean.constant.copy_(torch.from_numpy(Y.mean(0)))
    expected = gp.condition(X, Y).predict(X[:4], noise=True)
    mean, std = model.predict(X[:4], return_std=True)
    np.testing.assert_allclose(mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(std, expected.std, rtol=1e-9)
    assert model.fit_report_ is None


@pytest.mark.parametrize("noise", [0.04, [0.04, 1.0, 1e-6], np.diag([0.04, 1.0, 1e-6])])
def test_fixed_noise_is_in_original_units(noise):
    X, Y, _ = smooth()
    model = ovkgp.GPRegressor(kernel="decomposable", noise=noise, random_state=0).fit(X, Y)
    expected = np.diag(np.broadcast_to(noise, 3)) if np.ndim(noise) < 2 else noise
    np.testing.assert_allclose(model.noise_, expected, rtol=1e-10)


def test_known_noise_downweights_entries():
    """An entry with a huge known variance has the effect of a missing one."""
    X, Y, _ = smooth()
    noise = np.full(Y.shape, 0.01) * Y.std(0) ** 2
    perturbed, gone = Y.copy(), Y.copy()
    perturbed[10:20] += 5 * Y.std(0)
    gone[10:20] = np.nan
    noise[10:20] *= 1e12
    options = dict(kernel="independent", random_state=0)
    one = ovkgp.GPRegressor(**options).fit(X, perturbed, noise=noise)
    keep = np.r_[:10, 20:60]
    two = ovkgp.GPRegressor(**options).fit(X[keep], Y[keep], noise=noise[keep])
    truth = smooth()[2]
    assert one.score(X, truth) > 0.97 and two.score(X, truth) > 0.97
    with pytest.raises(InputError, match="noise"):
        one.fit(X, Y, noise=noise[:, 0])


# --- kernels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["independent", "decomposable", "lmc"])
@pytest.mark.parametrize("approximation", ["exact", "orff", pytest.param("nystrom", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_named_kernels_and_approximations_recover_the_functions(kernel, approximation):
    X, Y, truth = smooth(80, missing=0.15)
    model = ovkgp.GPRegressor(kernel=kernel, approximation=approximation, num_frequencies=40, random_state=0).fit(X, Y)
    assert (model.kernel_, model.approximation_) == (kernel, approximation)
    assert model.score(X, truth) > 0.95
    inside = np.abs(model.predict(X, return_std=True, noise=False)[0] - truth)
    assert np.mean(inside < 3 * model.predict(X, return_std=True)[1]) > 0.95


def vortex(n=60, seed=0, scale=(1.0, 100.0)):
    """Incompressible field of two components with different scales; inputs are stretched alike, so that it stays incompressible."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2)) * np.array(scale)
    x, y = (X / np.array(scale)).T
    bump = np.exp(-(x**2 + y**2))
    field = np.c_[-y * bump * scale[0], x * bump * scale[1]]  # ∂/∂X₁ + ∂/∂X₂ = 0 in the stretched coordinates
    return X, field + 0.02 * field.std(0) * rng.standard_normal(field.shape)


@pytest.mark.parametrize("approximation", ["exact", "orff"])
def test_divergence_free_mean_has_no_divergence_at_any_scale(approximation):
    """The scales of the components differ a hundredfold; separate scalings would destroy the property."""
    X, Y = vortex()
    model = ovkgp.GPRegressor(kernel="divergence_free", approximation=approximation, num_frequencies=60, random_state=0)
    model.fit(X, Y)
    assert np.std(Y[:, 1]) > 50 * np.std(Y[:, 0])
    h = 1e-4
    points = np.random.default_rng(1).uniform(-1, 1, (20, 2)) * np.array([1.0, 100.0])
    slopes = [
        (model.predict(points + h * e)[:, a] - model.predict(points - h * e)[:, a]) / (2 * h)
        for a, e in enumerate(np.eye(2))
    ]
    size = np.abs(slopes[0]).max()
    assert size > 0
    np.testing.assert_allclose(slopes[0] + slopes[1], 0, atol=1e-5 * size)  # differences of step 1e-4


@pytest.mark.parametrize("kernel", ["curl_free", "divergence_free", "helmholtz"])
def test_named_field_kernels_share_one_scale(kernel):
    X, Y = vortex(scale=(1.0, 1.0))
    model = ovkgp.GPRegressor(kernel=kernel, random_state=0).fit(X * [1.0, 30.0], Y)
    assert np.ptp(model.scaling_.output_scale) == np.ptp(model.scaling_.input_scale) == 0
    assert any(isinstance(part, FieldKernel) for part in model.gp_.kernel.modules())


def test_given_field_kernel_shares_one_scale_and_does_not_scale_inputs():
    X, Y = vortex(scale=(1.0, 1.0))
    kernel = ScaleKernel(DivergenceFreeKernel(RBFKernel(), num_dims=2))
    model = ovkgp.GPRegressor(kernel=kernel, random_state=0).fit(X, Y * [1, 5])
    assert np.ptp(model.scaling_.output_scale) == 0
    assert (model.scaling_.input_scale == 1).all() and (model.scaling_.input_offset == 0).all()


def functions_of_different_smoothness(X, rng):
    return np.c_[np.sin(3 * X[:, 0]), np.cos(0.7 * X[:, 0]), np.abs(X[:, 0] - 3)]


def functions_of_equal_smoothness(X, rng):
    """Independent draws of one process, which have the same smoothness."""
    K = np.exp(-0.5 * (X - X.T) ** 2)
    return np.linalg.cholesky(K + 1e-8 * np.eye(len(X))) @ rng.standard_normal((len(X), 3))


@pytest.mark.parametrize(
    "truths", [functions_of_different_smoothness, pytest.param(functions_of_equal_smoothness, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_auto_kernel_predicts_like_independent_on_independent_outputs(truths):
    """On independent outputs the default loses at most 0.02 nats per observation to independent GPs, out of sample."""
    gain = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 6, (220, 1))
        truth = truths(X, rng)
        Y = truth + np.array([0.1, 0.3, 0.2]) * rng.standard_normal(truth.shape)
        density = {}
        for kernel in ("auto", "independent"):
            model = ovkgp.GPRegressor(kernel=kernel, random_state=0).fit(X[:120], Y[:120])
            mean, std = model.predict(X[120:], return_std=True)
            density[kernel] = np.mean(-0.5 * ((Y[120:] - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi))
        gain.append(density["auto"] - density["independent"])
    assert np.mean(gain) >= -0.02, gain


def test_auto_kernel_prefers_coupled_candidates_for_coupled_outputs():
    """Outputs are copies of one function, so that missing entries of one follow from the others."""
    rng = np.random.default_rng(1)
    X = np.linspace(0, 6, 80)[:, None]
    Y = np.sin(2 * X) @ [[1.0, -2.0, 0.5]] + 0.05 * rng.standard_normal((80, 3))
    truth = np.sin(2 * X) @ [[1.0, -2.0, 0.5]]
    Y[20:60, 0] = np.nan
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    coupled = sum(score.weight for name, score in model.candidates_.items() if "full noise" in name)
    assert model.kernel_ == "auto" and len(model.candidates_) == 5 and coupled > 0.6
    alone = ovkgp.GPRegressor("independent", random_state=0).fit(X, Y)
    error, of_alone = (np.abs(one.predict(X)[20:60, 0] - truth[20:60, 0]).max() for one in (model, alone))
    assert (
        error < 0.4 and error < 0.5 * of_alone
    )  # alone 0.79; averaged independent candidates keep a third of the weight


def test_auto_approximation_uses_features_for_many_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (5200, 1)).astype(np.float32)
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(5200)
    model = ovkgp.GPRegressor(base_kernel="rbf", num_frequencies=50, training_rows=300, random_state=0).fit(X, y)
    assert model.approximation_ == "orff" and model.fit_report_.num_rows == 300
    grid = np.linspace(0, 6, 50)[:, None]
    np.testing.assert_allclose(model.predict(grid), np.sin(grid[:, 0]), atol=0.05)
    far = model.predict([[60.0]], return_std=True, noise=False)[1]
    bare = clone(model).set_params(variance="features").fit(X, y).predict([[60.0]], return_std=True, noise=False)[1]
    assert far > bare


# --- more data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["per_output", "full"])
def test_partial_fit_equals_one_pass(noise):
    X, Y, _ = smooth(90, missing=0.2)
    Y[:30] = smooth(90)[1][:30]  # the first part is complete, the later ones are not
    options = dict(kernel="decomposable", approximation="orff", num_frequencies=30, noise=noise, random_state=0)
    first = ovkgp.GPRegressor(**options).partial_fit(X[:30], Y[:30])
    rest = first.gp_.statistics(first.scaling_.inputs(X), first.scaling_.outputs(Y))
    whole = first.gp_.condition(rest, variance="guarded").predict(first.scaling_.inputs(X[:9]), "output")
    for part in (slice(60, 90), slice(30, 45), slice(45, 60)):
        first.partial_fit(X[part], Y[part])
    inner = first.posterior_.predict(first.scaling_.inputs(X[:9]), "output")
    torch.testing.assert_close(inner.mean, whole.mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(inner.cov, whole.cov, rtol=1e-8, atol=1e-10)
    assert first._num_observed.sum() == np.isfinite(Y).sum()


def test_partial_fit_continues_an_exact_fit():
    X, Y, truth = smooth(120, missing=0.1)
    for kernel in ("independent", "decomposable"):
        model = ovkgp.GPRegressor(kernel=kernel, num_frequencies=100, random_state=0).fit(X[:60], Y[:60])
        assert model.approximation_ == "exact"
        model.partial_fit(X[60:], Y[60:])
        assert model.approximation_ == "orff"
        assert model._num_observed.sum() == np.isfinite(Y).sum()
        assert model.score(X, truth) > 0.97


def test_partial_fit_rejects_other_shapes():
    X, Y, _ = smooth()
    model = ovkgp.GPRegressor(num_frequencies=10, random_state=0).partial_fit(X, Y)
    with pytest.raises(InputError, match="columns"):
        model.partial_fit(X, Y[:, :2])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :1], Y)


def test_log_evidence_does_not_depend_on_row_order_or_method():
    """From fit or from a first partial_fit, and in another order of rows: the same evidence to 1e-4."""
    X, Y, _ = smooth(80)
    options = dict(kernel="decomposable", approximation="orff", num_frequencies=50, random_state=0)
    order = np.random.default_rng(0).permutation(80)
    evidences = [
        ovkgp.GPRegressor(**options).fit(X, Y).log_evidence_,
        ovkgp.GPRegressor(**options).fit(X[order], Y[order]).log_evidence_,
        ovkgp.GPRegressor(**options).partial_fit(X, Y).log_evidence_,
    ]
    np.testing.assert_allclose(evidences, evidences[0], rtol=1e-4)


# --- scikit-learn-------------------------------------------------------------------------------------------------------


def test_gp_regressor_works_in_grid_search_and_pipelines():
    X, Y, _ = smooth(40, missing=0.1)
    search = GridSearchCV(ovkgp.GPRegressor(kernel="decomposable", random_state=0), {"rank": [1, 2]}, cv=2).fit(X, Y)
    assert search.best_score_ > 0.5
    pipeline = make_pipeline(StandardScaler(), ovkgp.GPRegressor(kernel="independent", random_state=0)).fit(X, Y)
    assert pipeline.predict(X[:2], return_std=True)[1].shape == (2, 3)
    assert cross_val_score(pipeline, X, Y, cv=2).shape == (2,)


def test_gp_regressor_can_be_pickled_and_copied(fitted):
    X = np.random.default_rng(5).uniform(0, 5, (4, 2))
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(twin.predict(X, return_std=True)[1], fitted.predict(X, return_std=True)[1])


# --- degenerate data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approximation", ["exact", "orff"])
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_predictions_do_not_depend_on_the_scale_of_the_data(scale, approximation):
    X, Y, _ = smooth(40)
    options = dict(kernel="decomposable", approximation=approximation, num_frequencies=30, random_state=0)
    unscaled = ovkgp.GPRegressor(**options).fit(X, Y).predict(X, return_std=True)
    scaled = ovkgp.GPRegressor(**options).fit(X * scale, Y / scale).predict(X * scale, return_std=True)
    np.testing.assert_allclose(scaled[0] * scale, unscaled[0], rtol=1e-4)  # training stops at slightly different points
    np.testing.assert_allclose(scaled[1] * scale, unscaled[1], rtol=1e-3)


def test_fit_accepts_float32():
    X, Y, truth = smooth()
    model = ovkgp.GPRegressor(random_state=0).fit(X.astype(np.float32), Y.astype(np.float32))
    assert model.predict(X.astype(np.float32)).dtype == np.float64
    assert model.score(X, truth) > 0.97


@pytest.mark.parametrize("approximation", ["exact", "orff", "nystrom"])
def test_fit_accepts_one_row(approximation):
    model = ovkgp.GPRegressor(approximation=approximation, num_frequencies=10, random_state=0)
    model.fit(np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]]))
    mean, std = model.predict([[1.0, 2.0], [9.0, 9.0]], return_std=True)
    np.testing.assert_allclose(mean[0], [3.0, 5.0], atol=0.5)
    assert np.isfinite(std).all() and (std > 0).all()


@pytest.mark.parametrize("approximation", ["exact", "orff", "nystrom"])
@pytest.mark.slow
def test_fit_accepts_constant_columns(approximation):
    X, Y, _ = smooth(40)
    X[:, 1], Y[:, 1] = 7.0, -3.0
    model = ovkgp.GPRegressor(approximation=approximation, num_frequencies=20, random_state=0).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean[:, 1], -3.0, atol=0.05)
    assert np.isfinite(std).all() and (std[:, 1] < 0.3).all()


@pytest.mark.parametrize("approximation", ["exact", "orff", "nystrom"])
def test_fit_accepts_duplicate_rows(approximation):
    X, Y, truth = smooth(30)
    X, Y = np.repeat(X, 3, 0), np.repeat(Y, 3, 0) + 0.01 * np.random.default_rng(0).standard_normal((90, 3)) * Y.std(0)
    model = ovkgp.GPRegressor(approximation=approximation, num_frequencies=30, random_state=0).fit(X, Y)
    _, std = model.predict(X, return_std=True)
    assert np.isfinite(std).all() and model.score(X, np.repeat(truth, 3, 0)) > 0.9


def test_summary_notes_outputs_with_few_observations():
    X, Y, _ = smooth(40)
    Y[2:, 2] = np.nan
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()
    assert "only 2 observations" in model.summary()


def test_fit_ignores_rows_without_observations():
    X, Y, _ = smooth(40)
    more = np.r_[Y, np.full((5, 3), np.nan)]
    options = dict(kernel="decomposable", random_state=0)
    one = ovkgp.GPRegressor(**options).fit(X, Y)
    two = ovkgp.GPRegressor(**options).fit(np.r_[X, X[:5]], more)
    # The inputs of the empty rows take part in the scaling of X, so that training is the same up to its tolerance.
    np.testing.assert_allclose(two.predict(X), one.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, Y: (X, np.c_[Y[:, :2], np.full(60, np.nan)]), "output 2"),
        (lambda X, Y: (np.where(X > 4, np.nan, X), Y), "NaN"),
        (lambda X, Y: (X, np.where(Y > 50, np.inf, Y)), "infinity"),
        (lambda X, Y: (X[:-1], Y), "inconsistent"),
        (lambda X, Y: (X, Y[:, :, None]), "dim"),
        (lambda X, Y: (X, None), "requires y"),
    ],
)
def test_fit_rejects_invalid_data(change, message):
    X, Y, _ = smooth()
    with pytest.raises(ValueError, match=message):
        ovkgp.GPRegressor().fit(*change(X, Y))


def test_fit_names_the_unobserved_output():
    X, Y, _ = smooth()
    frame = pd.DataFrame(Y, columns=["u", "v", "w"])
    frame["v"] = np.nan
    with pytest.raises(InputError, match="'v'"):
        ovkgp.GPRegressor().fit(X, frame)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "nonsense"}, "kernel"),
        ({"base_kernel": "nonsense"}, "base_kernel"),
        ({"approximation": "nonsense"}, "approximation"),
        ({"approximation": "exact", "likelihood": "student_t"}, "variational"),
        ({"hyperparameters": "nonsense"}, "hyperparameters"),
        ({"hyperparameters": "nuts", "sampling": 500}, "sampling"),
        ({"hyperparameters": "nuts", "sampling": {"drawz": 500}}, "'drawz'"),
        ({"hyperparameters": "nuts", "sampling": {"random_state": 0}}, "'random_state'"),
        ({"hyperparameters": "nuts", "sampling": {"max_draws": 0}}, "max_draws"),
        ({"sampling": {"draws": 500}}, "sampling"),
        ({"likelihood": "nonsense"}, "likelihood"),
        ({"noise": "nonsense"}, "noise"),
        ({"noise": -1.0}, "noise"),
        ({"variance": "nonsense"}, "variance"),
        ({"rank": 0}, "rank"),
        ({"num_frequencies": 0}, "num_frequencies"),
        ({"training_rows": 0}, "training_rows"),
        ({"kernel": "curl_free"}, "as many outputs as inputs"),
        ({"kernel": DecomposableKernel(RBFKernel(), num_outputs=2)}, "2 outputs"),
        ({"base_kernel": DecomposableKernel(RBFKernel(), num_outputs=2)}, "scalar"),
    ],
)
def test_fit_rejects_invalid_options(options, message):
    X, Y, _ = smooth()
    with pytest.raises(OvkgpError, match=message):
        ovkgp.GPRegressor(**options).fit(X, Y)


def test_methods_raise_before_fit():
    with pytest.raises(NotFittedError):
        ovkgp.GPRegressor().predict([[0.0]])
    with pytest.raises(NotFittedError):
        ovkgp.GPRegressor().summary()


def test_predict_rejects_return_std_with_return_cov(fitted):
    with pytest.raises(OptionError, match="return_cov"):
        fitted.predict([[0.0, 0.0]], return_std=True, return_cov=True)


def test_fit_restores_the_model_on_error(fitted):
    X, Y, _ = smooth(missing=0.2)
    model = copy.deepcopy(fitted)
    with pytest.raises(ValueError):
        model.fit(np.where(X > 4, np.nan, X), Y)
    np.testing.assert_array_equal(model.predict(X[:3]), fitted.predict(X[:3]))


def test_interrupted_fit_keeps_the_best_parameters(monkeypatch):
    X, Y, truth = smooth()
    calls, original = [], LogDensity.__call__

    def interrupting(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 15:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LogDensity, "__call__", interrupting)
    with pytest.warns(FitWarning, match="interrupted"):
        model = ovkgp.GPRegressor(kernel="decomposable", random_state=0).fit(X, Y)
    assert model.fit_report_.interrupted
    assert model.score(X, truth) > 0.5


def test_fit_resumes_from_a_checkpoint(tmp_path):
    X, Y, _ = smooth(40)
    path = tmp_path / "training"
    options = dict(kernel="decomposable", random_state=0)
    one = ovkgp.GPRegressor(**options).fit(X, Y, checkpoint=path)
    two = ovkgp.GPRegressor(**options).fit(X, Y, checkpoint=path)
    assert two.fit_report_.resumed
    np.testing.assert_allclose(two.predict(X), one.predict(X), rtol=1e-10)


def test_fit_is_silent_unless_verbose(capsys):
    X, Y, _ = smooth(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ovkgp.GPRegressor(kernel="independent", random_state=0).fit(X, Y)
        assert capsys.readouterr() == ("", "")
        ovkgp.GPRegressor(kernel="independent", random_state=0, verbose=1).fit(X, Y)
    assert "objective" in capsys.readouterr().err


# --- units, names and interrupts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["independent", "decomposable", "lmc", "curl_free", "divergence_free", "helmholtz"])
def test_hyperparameters_in_original_units_reproduce_the_prior(kernel):
    """A kernel with the hyperparameters in original units has the prior covariance of the model in original units."""
    X, Y = vortex(scale=(3.0, 3.0))
    model = ovkgp.GPRegressor(kernel=kernel, base_kernel="rbf", random_state=0).fit(X, 7 * Y)
    values = {
        name: torch.as_tensor(in_original_units(name, value, kernel, model.scaling_))
        for name, value in hyperparameters(model.gp_.kernel).items()
    }
    written = copy.deepcopy(model.gp_.kernel)
    terms = {
        "independent": ("0.", "1."),
        "lmc": ("component_1.", "component_2."),
        "helmholtz": ("curl_free.", "divergence_free."),
    }
    for path, part in written.named_modules():
        prefix = "".join(terms[kernel][int(step)] for step in path.split(".") if step.isdigit())
        if isinstance(part, ScaleKernel):
            part.outputscale = values[f"{prefix}outputscale"]
        elif isinstance(part, RBFKernel):
            part.lengthscale = values[f"{prefix}lengthscale"]
        elif isinstance(part, DecomposableKernel):
            part.output_module = KnownMatrix(values[f"{prefix}output_matrix"])
    points = torch.from_numpy(X[:4])
    ours = model.scaling_.cov(to_dense(model.gp_.kernel(model.scaling_.inputs(X[:4]))))
    np.testing.assert_allclose(to_dense(written(points)).detach(), ours, rtol=1e-9, atol=1e-12 * np.abs(ours).max())


def test_kernel_object_values_are_in_original_units():
    """With a frozen outputscale, a prior or a known output matrix, the data are not scaled."""
    X, Y, _ = smooth()
    frozen = ScaleKernel(RBFKernel(ard_num_dims=2))
    frozen.outputscale = 1e4
    frozen.raw_outputscale.requires_grad_(False)
    model = ovkgp.GPRegressor(kernel=frozen, random_state=0).fit(X, Y[:, 1])
    assert model.predict([[500.0, 500.0]], return_std=True, noise=False)[1] == pytest.approx(100.0, rel=1e-6)
    known = DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=torch.diag(torch.tensor([4.0, 100.0, 1e-4])))
    model = ovkgp.GPRegressor(kernel=known, random_state=0).fit(X, Y)
    std = model.predict([[500.0, 500.0]], return_std=True, noise=False)[1]
    np.testing.assert_allclose(std[0], [2.0, 10.0, 0.01], rtol=1e-5)


def test_methods_reject_reordered_output_columns():
    X, Y, _ = smooth()
    frame = pd.DataFrame(Y, columns=["u", "v", "w"])
    model = ovkgp.GPRegressor(kernel="decomposable", num_frequencies=20, random_state=0).partial_fit(X, frame)
    for call in (model.score, model.partial_fit):
        with pytest.raises(InputError, match="order"):
            call(X, frame[["v", "u", "w"]])
    assert model.score(X, Y) == model.score(X, frame)  # an array has no column names


def test_score_rejects_y_without_observations(fitted):
    with pytest.raises(InputError, match="observed"):
        fitted.score(np.zeros((2, 2)), np.full((2, 3), np.nan))


@pytest.mark.parametrize(("evaluation", "num_candidates"), [(5, 1), (110, 2)])
def test_interrupted_training_of_candidates_keeps_those_so_far(monkeypatch, evaluation, num_candidates):
    """One interrupt ends the whole fit and keeps what was trained so far."""
    X, Y, _ = smooth()
    calls, original = [], OutputDensity.__call__

    def interrupting(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == evaluation:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(OutputDensity, "__call__", interrupting)
    with pytest.warns(FitWarning, match="interrupted"):
        model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert model.fit_report_.interrupted and len(model.candidates_) == num_candidates
    assert np.isfinite(model.predict(X)).all()


def test_fit_warns_about_constant_outputs_trained_jointly():
    X, Y, _ = smooth(20)
    table = pd.DataFrame(Y, columns=["u", "still", "w"])
    table["still"] = 3.0
    with pytest.warns(FitWarning, match="'still'"):
        ovkgp.GPRegressor("decomposable", random_state=0).fit(X, table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ovkgp.GPRegressor("independent", random_state=0).fit(X, table)  # without effect on the other outputs
    assert abs(model.predict(X)[:, 1] - 3.0).max() < 1e-4  # its mean is drawn, with a tiny noise


def test_fit_rejects_the_checkpoint_of_another_model(tmp_path):
    X, Y, _ = smooth(30)
    path = tmp_path / "training"
    ovkgp.GPRegressor(kernel="decomposable", base_kernel="matern12", random_state=0).fit(X, Y, checkpoint=path)
    with pytest.raises(InputError, match="training"):
        ovkgp.GPRegressor(kernel="decomposable", base_kernel="rbf", random_state=0).fit(X, Y, checkpoint=path)


def test_training_uses_the_exact_kernel_with_many_weights():
    X, Y, truth = smooth(150, missing=0.2)
    model = ovkgp.GPRegressor(kernel="decomposable", approximation="orff", num_frequencies=400, random_state=0)
    assert (
        num_weights(
            approximate(
                make_named_kernel("decomposable", "rbf", 2, 2, 3).double(), "orff", torch.from_numpy(X), 400, 0
            ),
            Table(X, Y),
        )
        == 2400
    )
    model.fit(X, Y)
    exact = ovkgp.GPRegressor(kernel="decomposable", approximation="exact", random_state=0).fit(X, Y)
    np.testing.assert_allclose(
        model.gp_.kernel.base_kernel.lengthscale.detach(), exact.gp_.kernel.base_kernel.lengthscale.detach()
    )
    assert model.score(X, truth) > 0.97


def test_fit_treats_masked_entries_as_missing():
    X, Y, _ = smooth(40)
    mask = np.random.default_rng(0).random(Y.shape) < 0.3
    options = dict(kernel="decomposable", random_state=0)
    masked = ovkgp.GPRegressor(**options).fit(X, np.ma.masked_array(Y, mask=mask))
    gaps = ovkgp.GPRegressor(**options).fit(X, np.where(mask, np.nan, Y))
    np.testing.assert_array_equal(masked.predict(X), gaps.predict(X))


def test_function_draws_reject_inputs_of_wrong_shape(fitted):
    draws = fitted.sample_functions(2, random_state=0)
    for X in (np.zeros((3, 1)), np.zeros((3, 4)), np.zeros(3), np.zeros((3, 1, 1))):
        with pytest.raises(InputError, match="shape"):
            draws(X)


def test_partial_fit_rejects_exact_inference():
    X, Y, _ = smooth(30)
    with pytest.raises(OptionError, match="exact"):
        ovkgp.GPRegressor(approximation="exact").partial_fit(X, Y)


@pytest.mark.parametrize("base", [RBFKernel(ard_num_dims=3), RBFKernel(active_dims=[5])])
def test_fit_rejects_kernels_of_other_dimensions(base):
    X, Y, _ = smooth(30)
    with pytest.raises(InputError, match="ard_num_dims"):
        ovkgp.GPRegressor(kernel=DecomposableKernel(base, num_outputs=3)).fit(X, Y)


def test_predictions_from_one_row_scale_with_the_units():
    far = [[900.0, 900.0]]
    unscaled, scaled = (ovkgp.GPRegressor(random_state=0).fit([[1.0, 2.0]], [[3.0 * s, 5.0 * s]]) for s in (1.0, 1e6))
    ratio = scaled.predict(far, return_std=True)[1] / unscaled.predict(far, return_std=True)[1]
    np.testing.assert_allclose(ratio, 1e6, rtol=1e-4)


def test_vector_field_is_a_candidate_of_auto_with_similar_scales():
    X, Y, _ = make_drifters(60, random_state=0)
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert "helmholtz" in model.candidates_ and next(iter(model.candidates_)) != "helmholtz"
    assert np.isfinite(model.predict(X)).all() and "lengthscale" in model.summary()
    scaled = ovkgp.GPRegressor(random_state=0).fit(X, Y * [1.0, 1000.0])
    assert "helmholtz" not in scaled.candidates_


# --- optimization runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"kernel": "decomposable"}, {"likelihood": "student_t", "num_frequencies": 15}]
)
@pytest.mark.slow
def test_restarts_never_lower_the_objective(options):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, (40, 1))
    Y = np.sin(4 * X) + 0.2 * rng.standard_normal((40, 1 if options.get("likelihood") else 2))
    one, four = (ovkgp.GPRegressor(**options, restarts=k, random_state=0).fit(X, Y).fit_report_ for k in (1, 4))
    assert four.evaluations > one.evaluations and four.objective >= one.objective - 1e-3
    if options.get("kernel"):
        assert len(four.restarts) == 4 and max(four.restarts) == four.objective


def test_restarts_must_be_positive():
    with pytest.raises(ovkgp.exceptions.OptionError, match="restarts"):
        ovkgp.GPRegressor(restarts=0).fit(np.arange(4.0)[:, None], np.arange(4.0))


# --- log density ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["decomposable", "independent"])
def test_joint_log_density_is_that_of_the_predicted_normal_distribution(kernel):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((30, 2)), 100 + 7 * rng.standard_normal((30, 2)).cumsum(1)
    model = ovkgp.GPRegressor(kernel, hyperparameters="evidence", random_state=0).fit(X[:20], Y[:20])
    mean, cov = model.predict(X[20:], return_cov=True)
    expected = [scipy.stats.multivariate_normal.logpdf(y, m, c) for y, m, c in zip(Y[20:], mean, cov, strict=True)]
    np.testing.assert_allclose(model.log_density(X[20:], Y[20:]), expected, rtol=1e-8)
    half = Y[20:].copy()
    half[:, 1] = np.nan
    np.testing.assert_allclose(model.log_density(X[20:], half), model.log_density(X[20:], half, joint=False)[:, 0])


@pytest.mark.parametrize("p", [1, 2])
def test_joint_log_density_of_the_default_is_invariant_to_units(p):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 1))
    Y = np.sin(X) + rng.standard_normal((40, 1)) * 0.3 + 0.1 * rng.standard_normal((40, p))
    one, other = (ovkgp.GPRegressor(random_state=0).fit(X, scale * Y) for scale in (1.0, 50.0))
    found = one.log_density(X, Y)
    np.testing.assert_allclose(other.log_density(X, 50 * Y), found - p * np.log(50), atol=1e-5)
    entries = one.log_density(X, Y, joint=False).reshape(40, p).sum(1)
    assert found.mean() > entries.mean() + 0.2 if p == 2 else np.allclose(found, entries)


def test_joint_log_density_of_other_likelihoods_is_rejected():
    model = ovkgp.GPRegressor(likelihood="student_t", num_frequencies=5).fit(
        np.arange(8.0)[:, None], np.arange(8.0) % 3
    )
    with pytest.raises(ovkgp.exceptions.OptionError, match="not Gaussian"):
        model.log_density([[1.0]], [1.0])
    assert model.log_density([[1.0]], [1.0], joint=False).shape == (1,)


def test_long_series_are_exact():
    """Matérn kernels of one input are Markov, so that 6000 rows need neither features nor an n × n matrix."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 60, 6000))
    Y = np.c_[np.sin(t), np.cos(t)] + 0.2 * rng.standard_normal((6000, 2))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    grid = np.linspace(1, 59, 50)
    for kernel in ("independent", "decomposable"):
        model = ovkgp.GPRegressor(kernel, training_rows=1500, random_state=0).fit(t[:, None], Y)
        assert model.approximation_ == "exact"
        mean, std = model.predict(grid[:, None], return_std=True)
        np.testing.assert_allclose(mean, np.c_[np.sin(grid), np.cos(grid)], atol=0.06)
        np.testing.assert_allclose(std, 0.2, rtol=0.06)
    assert (
        ovkgp.GPRegressor("independent", base_kernel="rbf", training_rows=500, random_state=0)
        .fit(t[:, None], Y)
        .approximation_
        == "orff"
    )
