"""Tests of `ovkgp.estimators.ridge.losses`: any loss and any kernel against dense convex solvers, the mode identity, and errors (BT-70)."""

import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from oracles import dense
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp import losses
from ovkgp.estimators.common.options import CONVENTIONS
from ovkgp.estimators.common.prediction_columns import PredictionRequest
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.training.kernel_parameters import output_covariance
from ovkgp.kernels import components

SMOOTH = {
    "huber": losses.Huber(0.2),
    "epsilon_insensitive": losses.EpsilonInsensitive(0.15),
    "log_cosh": losses.LogCosh(6.0),
    "smoothed_pinball": losses.SmoothedPinball(0.1),
    "pinball_envelope": losses.PinballEnvelope(0.1),
    "envelope": losses.Envelope(losses.Pinball(), 0.2),
}
TIGHT = {"lam": 0.05, "tolerance": 1e-13}
ROBUST = ["huber", "log_cosh", "pinball", "smoothed_pinball"]


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.OVKRidge(loss="huber", tolerance=1e-6),
        ovkgp.OVKRidge(loss="epsilon_insensitive", tolerance=1e-6),
        ovkgp.OVKRidge(loss="pinball", fit_intercept=True),
        ovkgp.ORFFRidge(loss="huber", num_frequencies=20, tolerance=1e-6, random_state=0),
    ]
)
def test_ridges_with_other_losses_pass_scikit_learn_checks(estimator, check):
    check(estimator)


def smooth(n=30, p=2, seed=0, missing=0.0, outliers=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.column_stack([np.sin(X[:, 0] + a) + np.cos((1 + a) * X[:, 1]) for a in range(p)])
    Y += 0.1 * rng.standard_normal(Y.shape)
    Y[:outliers] += 15.0
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


def gram(model, X):
    """K between the entries, of the kernel or of the features of a fitted model."""
    if model.gp_.features is None:
        return dense(model.gp_.kernel, torch.as_tensor(X), torch.as_tensor(X))
    Phi = model.gp_.features(torch.as_tensor(X)).to_dense().detach().numpy()
    return Phi @ Phi.T


def minimize_primal(K, Y, noise, loss, level, weights=None):
    """argmin Σ w ℓ/σ² + ½ zᵀz with f = R z, R the symmetric root of K, by L-BFGS; f at all entries."""
    values, vectors = np.linalg.eigh(K)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    observed, y = np.isfinite(Y.ravel()), torch.from_numpy(np.nan_to_num(Y.ravel()))[None]
    theta = torch.from_numpy(np.broadcast_to(level, Y.shape).ravel().copy())
    weights = observed * (1.0 if weights is None else np.asarray(weights).ravel())

    def objective(z):
        f = torch.from_numpy(root @ z)[None]
        value, slope = (g(f, y, theta)[0].numpy() for g in (loss.value, loss.derivative))
        return weights @ value / noise + z @ z / 2, root.T @ (weights * slope) / noise + z

    found = minimize(
        objective,
        np.zeros(len(K)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-9},
    )
    return (root @ found.x).reshape(Y.shape)


def minimize_dual(K, y, low, high):
    """argmax yᵀu − ½ uᵀKu over a box, the dual of piecewise linear losses, by L-BFGS-B; f = K u."""
    found = minimize(
        lambda u: (u @ K @ u / 2 - y @ u, K @ u - y), np.zeros(len(y)), jac=True, method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)), options={"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-9},
    )  # fmt: skip
    return K @ found.x


# --- the minimizer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["decomposable", "curl_free"])
@pytest.mark.parametrize("name", SMOOTH)
def test_bt_70_fit_equals_dense_minimization_of_smooth_losses(name, kernel):
    X, Y = smooth(missing=0.2)
    model = ovkgp.OVKRidge(kernel, loss=SMOOTH[name], level=0.8, **TIGHT).fit(X, Y)
    wanted = minimize_primal(gram(model, X), Y, 0.05, SMOOTH[name], 0.8)
    np.testing.assert_allclose(model.predict(X), wanted, atol=2e-5)
    assert 0 <= model.gap_ <= 1e-13 and model.fit_report_.converged


@pytest.mark.parametrize("kernel", ["auto", "helmholtz"])
def test_pinball_fit_equals_the_box_constrained_dual_at_levels_per_output(kernel):
    X, Y = smooth()
    model = ovkgp.OVKRidge(kernel, loss="pinball", level=[0.2, 0.9], **TIGHT).fit(X, Y)
    levels = np.tile([0.2, 0.9], len(X))
    wanted = minimize_dual(gram(model, X), Y.ravel(), (levels - 1) / 0.05, levels / 0.05)
    np.testing.assert_allclose(model.predict(X).ravel(), wanted, atol=2e-5)
    fraction = (model.predict(X) - 1e-6 > Y).mean(0)
    assert fraction[0] <= 0.2 and fraction[1] >= 0.7


def test_hinge_fit_equals_the_box_constrained_dual():
    X, Y = smooth(p=1)
    labels = np.where(Y > 0.3, 1.0, -1.0)
    model = ovkgp.OVKRidge(loss=losses.CostSensitiveHinge("unit"), level=0.7, **TIGHT).fit(X, labels)
    weight = np.where(labels > 0, 0.7, 0.3).ravel() / 0.05
    wanted = minimize_dual(gram(model, X), labels.ravel(), *(np.sort([0 * weight, weight * labels.ravel()], 0)))
    np.testing.assert_allclose(model.predict(X).ravel(), wanted, atol=2e-5)
    with pytest.raises(OptionError, match="CostSensitiveHinge"):
        model.predict(X, return_std=True)
    with pytest.raises(InputError, match="Labels"):
        model.fit(X, Y)


@pytest.mark.parametrize("kernel", ["auto", "divergence_free"])
@pytest.mark.parametrize("num_frequencies", [5, 60])
def test_bt_70_orff_fit_is_a_stationary_point_of_the_risk(num_frequencies, kernel):
    """(6.9): (1/N) Σ Φ(x_i)ᵀ ∂c(Φ(x_i)θ, y_i) + λθ = 0, with λ = σ²/N."""
    X, Y = smooth(missing=0.2)
    options = {"num_frequencies": num_frequencies, "random_state": 0, **TIGHT}
    model = ovkgp.ORFFRidge(kernel, loss=losses.LogCosh(6.0), **options).fit(X, Y)
    Phi = model.gp_.features(torch.as_tensor(X)).to_dense().detach().numpy()
    theta, N = model.coef_, np.isfinite(Y).sum()
    slope = np.nan_to_num(np.tanh(6.0 * (model.predict(X) - Y))).ravel()
    np.testing.assert_allclose(Phi.T @ slope / N + 0.05 / N * theta, 0.0, atol=1e-8)
    np.testing.assert_allclose(model.predict(X).ravel(), Phi @ theta, atol=1e-10)


def test_orff_fit_equals_dense_minimization_with_its_features():
    X, Y = smooth(n=40)
    model = ovkgp.ORFFRidge("decomposable", loss=losses.Huber(0.2), num_frequencies=10, random_state=0, **TIGHT).fit(
        X, Y
    )
    wanted = minimize_primal(gram(model, X), Y, 0.05, losses.Huber(0.2), 0.5)
    np.testing.assert_allclose(model.predict(X), wanted, atol=2e-5)


@pytest.mark.parametrize("loss", ["square", losses.Square(), losses.Huber(1e6), losses.EpsilonInsensitive(0.0)])
def test_losses_that_equal_the_square_loss_give_the_ridge(loss):
    X, Y = smooth(missing=0.2)
    ridge = ovkgp.OVKRidge("decomposable", lam=0.05).fit(X, Y)
    model = ovkgp.OVKRidge("decomposable", loss=loss, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), ridge.predict(X), atol=1e-7)
    np.testing.assert_allclose(model.dual_coef_[np.isfinite(Y)], ridge.dual_coef_[np.isfinite(Y)], atol=1e-5)
    std = [one.predict(X, return_std=True, noise=False)[1] for one in (model, ridge)]
    np.testing.assert_allclose(*std, rtol=1e-3)


def test_curve_huber_bounds_the_influence_of_rows():
    X, Y = smooth(outliers=3)
    loss = losses.CurveHuber(0.3, 2, losses.Coordinates(2))
    model = ovkgp.OVKRidge(loss=loss, **TIGHT).fit(X, Y)
    residual = Y - model.predict(X)
    size = np.linalg.norm(residual, axis=1, keepdims=True)
    wanted = residual * np.minimum(1.0, 0.3 / size) / 0.05  # the score of the radial loss, BO-71
    np.testing.assert_allclose(model.dual_coef_, wanted, atol=1e-4)
    for options, data in (({"kernel": "curl_free"}, (X, Y)), ({}, smooth(missing=0.3))):
        with pytest.raises(OptionError, match="CurveHuber"):
            ovkgp.OVKRidge(loss=loss, **options).fit(*data)
    with pytest.raises(InputError, match="nodes"):
        ovkgp.OVKRidge(loss=loss).fit(*smooth(p=3))


@pytest.mark.parametrize("by_row", [True, False])
def test_sample_weights_multiply_the_loss(by_row):
    X, Y = smooth()
    weight = np.random.default_rng(1).uniform(0.5, 3.0, len(X) if by_row else Y.shape)
    model = ovkgp.OVKRidge("curl_free", loss=losses.Huber(0.2), **TIGHT).fit(X, Y, weight)
    entries = np.broadcast_to(weight[:, None] if by_row else weight, Y.shape)
    wanted = minimize_primal(gram(model, X), Y, 0.05, losses.Huber(0.2), 0.5, entries)
    np.testing.assert_allclose(model.predict(X), wanted, atol=2e-5)
    with pytest.raises(OptionError, match="sample_weight"):
        model.predict_interval(X)


# --- the mode of the posterior -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["huber", "epsilon_insensitive", "log_cosh", "smoothed_pinball"])
def test_g_03_fit_is_the_posterior_mode_in_every_convention(name, convention):
    """K⁻¹ f̂ = ∇ log p(y | f̂) of the normalized likelihood, whose scale follows from λ in each convention."""
    X, Y = smooth(missing=0.2)
    model = ovkgp.OVKRidge(
        "decomposable", lam=0.01, convention=convention, loss=SMOOTH[name], level=0.7, tolerance=1e-13
    )
    model.fit(X, Y)
    F = torch.from_numpy(model.predict(X)).requires_grad_()
    (score,) = torch.autograd.grad(model.likelihood_.log_density(torch.from_numpy(Y), F).sum(), F)
    np.testing.assert_allclose(model.dual_coef_, score.numpy(), atol=1e-4 * score.abs().max().item())
    np.testing.assert_allclose(model.predict(X).ravel(), gram(model, X) @ model.dual_coef_.ravel(), atol=1e-8)
    factor = CONVENTIONS[convention](len(X), np.isfinite(Y).sum())
    assert model.noise_ == pytest.approx(0.01 * factor)


@pytest.mark.parametrize("name", ROBUST)
def test_robust_losses_by_name_resist_outliers(name):
    X, Y = smooth(n=60, outliers=5)
    model, ridge = (ovkgp.OVKRidge(lam=0.05, loss=loss).fit(X, Y) for loss in (name, "square"))
    clean = ovkgp.OVKRidge(lam=0.05).fit(X[5:], Y[5:]).predict(X)
    error, worse = (np.abs(one.predict(X) - clean).mean() for one in (model, ridge))
    assert error < (0.3 if name == "log_cosh" else 0.15) and worse > 0.7
    (kappa,) = vars(model.loss_).values() or (None,)
    if name == "huber":
        assert 0.05 < kappa < 0.4  # 1.345 times the noise of 0.1, which the outliers hardly change


def test_insensitive_loss_is_sparse():
    X, Y = smooth()
    model = ovkgp.OVKRidge(lam=0.05, loss=losses.EpsilonInsensitive(0.2)).fit(X, Y)
    assert 0.2 < model.sparsity_ < 1.0
    assert model.sparsity_ == pytest.approx((model.dual_coef_ == 0).mean())
    inside = np.abs(Y - model.predict(X)) < 0.2 - 1e-4
    assert (model.dual_coef_[inside] == 0).all() and (
        model.dual_coef_[~inside & (np.abs(Y - model.predict(X)) > 0.2 + 1e-4)] != 0
    ).all()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((ovkgp.OVKRidge, name) for name in ("huber", "pinball")),
        *(
            pytest.param(ovkgp.OVKRidge, name, marks=pytest.mark.slow)
            for name in ("epsilon_insensitive", "log_cosh", "smoothed_pinball")
        ),
        (ovkgp.ORFFRidge, "log_cosh"),
        *(
            pytest.param(ovkgp.ORFFRidge, name, marks=pytest.mark.slow)
            for name in ("huber", "pinball", "epsilon_insensitive", "smoothed_pinball")
        ),
    ],
)
def test_intervals_and_draws_agree_with_the_standard_deviation(kind, name):
    X, Y = smooth(n=50)
    options = {} if kind is ovkgp.OVKRidge else {"num_frequencies": 15, "random_state": 0}
    model = kind("decomposable", lam=0.02, loss=name, scale="evidence", **options).fit(X, Y)
    mean, std = model.predict(X[:4], return_std=True)
    latent = model.predict(X[:4], return_std=True, noise=False)[1]
    np.testing.assert_allclose(mean, model.predict(X[:4]), atol=1e-12)
    assert (latent < std).all() and (latent > 0).all()
    lower, upper = model.predict_interval(X[:4], 0.9)
    draws = model.sample_y(X[:4], 4000, random_state=0)
    np.testing.assert_allclose(draws.std(-1), std, rtol=0.1)
    np.testing.assert_allclose(np.quantile(draws, 0.05, axis=-1), lower, atol=0.25 * std.max())
    np.testing.assert_allclose(np.quantile(draws, 0.95, axis=-1), upper, atol=0.25 * std.max())
    lower, upper = model.predict_interval(X, 0.9)
    assert 0.8 <= np.mean((lower <= Y) & (upper >= Y)) <= 1.0
    functions = model.sample_functions(40, random_state=0)(X[:4])
    assert np.abs(functions.mean(0) - mean).max() < 5 * latent.max() / np.sqrt(40)
    assert np.isfinite(model.predictive(X).log_density(Y)).all()


def test_evidence_scale_of_a_loss_that_equals_the_square_loss_is_that_of_the_ridge():
    X, Y = smooth(missing=0.2)
    ridge = ovkgp.OVKRidge(lam=0.05, scale="evidence").fit(X, Y)
    model = ovkgp.OVKRidge(lam=0.05, scale="evidence", loss=losses.Huber(1e5), tolerance=1e-12).fit(X, Y)
    assert model.scale_ == pytest.approx(ridge.scale_, rel=1e-5)
    plain = ovkgp.OVKRidge(lam=0.05, loss=losses.Huber(1e5), tolerance=1e-12).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), plain.predict(X), atol=1e-7)


def test_field_parts_add_up_with_other_losses():
    X, Y = smooth(outliers=2)
    model = ovkgp.OVKRidge("helmholtz", lam=0.05, loss="huber").fit(X, Y)
    parts = model.components(X, return_std=True)
    np.testing.assert_allclose(sum(mean for mean, _ in parts.values()), model.predict(X), atol=1e-8)
    assert all((std > 0).all() for _, std in parts.values())


def test_intercept_is_the_constant_fit_of_the_loss():
    X, Y = smooth(outliers=4)
    for loss, level, wanted in (
        ("huber", 0.5, np.quantile(Y, 0.5, axis=0, method="inverted_cdf")),
        ("pinball", 0.9, np.quantile(Y, 0.9, axis=0, method="inverted_cdf")),
        ("epsilon_insensitive", 0.5, Y.mean(0)),
    ):
        model = ovkgp.OVKRidge(loss=loss, level=level, fit_intercept=True, lam=1e6).fit(X, Y)
        np.testing.assert_allclose(model.scaling_.output_offset, wanted, rtol=1e-12)
        np.testing.assert_allclose(model.predict([[500.0, 500.0]])[0], wanted, rtol=1e-6)


# --- files, copies and reports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(ovkgp.OVKRidge("decomposable", lam=0.05, loss="huber", scale="evidence"), marks=pytest.mark.slow),
        ovkgp.OVKRidge("curl_free", lam=0.05, loss=losses.SmoothedPinball(0.1), level=[0.2, 0.8]),
        ovkgp.OVKRidge(lam=0.05, loss=losses.CurveInsensitive(0.1, 2, losses.Coordinates(2))),
        ovkgp.ORFFRidge(lam=0.05, loss="log_cosh", num_frequencies=8, random_state=0),
    ],
)
def test_models_with_other_losses_survive_copies_and_files(model, tmp_path):
    X, Y = smooth(missing=0.0 if isinstance(model.loss, losses.CurveLoss) else 0.1)
    model = clone(model).fit(X, Y)
    model.save(tmp_path / "model.ovkgp")
    for other in (ovkgp.load(tmp_path / "model.ovkgp"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(other.predict(X), model.predict(X), rtol=1e-12, atol=1e-12)
        assert (other.gap_, other.sparsity_, repr(other.loss_)) == (model.gap_, model.sparsity_, repr(model.loss_))
        if model.has_predictive:
            np.testing.assert_allclose(other.predict_interval(X)[0], model.predict_interval(X)[0], rtol=1e-7, atol=1e-7)
    text = model.summary()
    assert "duality gap" in text and "mode" in " ".join(model.describe().paragraphs)


@pytest.mark.parametrize("loss", [pytest.param("huber", marks=pytest.mark.slow), losses.PinballEnvelope(0.1)])
def test_reports_and_columns_need_no_standard_deviation(loss, tmp_path):
    X, Y = smooth()
    model = ovkgp.OVKRidge(lam=0.05, loss=loss).fit(X, Y)
    columns = model.prediction_columns(X, PredictionRequest())
    assert ("y0_std" in columns) == (loss == "huber") == model.has_predictive
    np.testing.assert_allclose(columns["y1_mean"], model.predict(X)[:, 1])
    ovkgp.plotting.write_report(model, tmp_path / "report.html", X=X + 0.01, Y=Y)
    assert "mode of the posterior" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("kind", [ovkgp.OVKRidge, ovkgp.ORFFRidge])
@pytest.mark.parametrize("missing", [False, True])
def test_default_output_matrix_ignores_outliers(kind, missing):
    """Γ of kernel="decomposable" is near that of the data without outliers, positive definite, and does not grow with their size."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 2))
    truth = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 1]), np.sin(X[:, 0]) + 0.3 * X[:, 1]])
    clean = truth + 0.1 * rng.standard_normal((60, 3))
    if missing:
        clean[rng.random(clean.shape) < 0.2] = np.nan
    expected, matrices = output_covariance(torch.from_numpy(clean)).numpy(), []
    for size in (10.0, 1000.0):
        spoiled = clean.copy()
        spoiled[:6] += size
        model = kind("decomposable", lam=0.05, loss="huber", **({"random_state": 0} if kind is ovkgp.ORFFRidge else {}))
        ((_, matrix),) = components(model.fit(X, spoiled).gp_.kernel)
        matrices.append(matrix.detach().numpy())
        assert np.abs(matrices[-1] - expected).max() < 0.15 * expected.max()
        assert np.linalg.eigvalsh(matrices[-1]).min() > 0
    np.testing.assert_allclose(matrices[1], matrices[0])
    errors = [
        np.square(ovkgp.OVKRidge(k, lam=0.05, loss="huber").fit(X, spoiled).predict(X) - truth).mean()
        for k in ("decomposable", "independent")
    ]
    assert errors[0] < 1.5 * errors[1]


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loss": "hubber"}, "loss must be .*'huber'"),
        ({"loss": 3.0}, "loss"),
        ({"loss": "huber", "solver": "cg"}, "solver"),
        ({"loss": "huber", "lam": [0.1, 1.0]}, "lam"),
        ({"loss": "huber", "output_metric": np.eye(2)}, "output_metric"),
        ({"loss": losses.PinballEnvelope(0.1), "scale": "evidence"}, "scale"),
        ({"loss": losses.OneClass(), "level": 0.5}, "OneClass"),
        ({"loss": losses.Envelope(losses.OneClass(), 0.1), "level": 0.5}, "OneClass"),
        ({"loss": "pinball", "level": 1.0}, "level"),
        ({"loss": "pinball", "level": [0.1, 0.2, 0.3]}, "level"),
    ],
)
def test_fit_rejects_invalid_options_of_losses(options, match):
    with pytest.raises((OptionError, InputError), match=match):
        ovkgp.OVKRidge(**options).fit(*smooth())


def test_methods_of_the_square_loss_reject_other_losses():
    X, Y = smooth()
    model = ovkgp.OVKRidge(lam=0.1, loss="huber").fit(X, Y)
    for method in (model.path, model.leave_one_out, model.leave_one_out_entries):
        with pytest.raises(OptionError, match="other than"):
            method(X, Y)
    with pytest.raises(OptionError, match="single entries"):
        model.log_density(X, Y)
    orff = ovkgp.ORFFRidge(loss="huber", num_frequencies=5, random_state=0)
    with pytest.raises(OptionError, match="fit_stream"):
        orff.fit_stream([(X, Y)])
    with pytest.raises(AttributeError, match="partial_fit"):
        orff.partial_fit(X, Y)
    with pytest.raises(OptionError, match="primal_dual_residual"):
        orff.fit(X, Y).primal_dual_residual(X, Y)
    assert not model.has_leave_one_out
    assert orff.reason_not_streamable({"loss": "huber"}) and not orff.reason_not_streamable({"loss": "square"})


def test_grid_search_selects_lam_and_kernel_objects_are_accepted():
    X, Y = smooth(n=40, outliers=3)
    search = GridSearchCV(ovkgp.OVKRidge(RBFKernel(), loss="huber", tolerance=1e-6), {"lam": [1e-2, 1e3]}, cv=3)
    assert search.fit(X, Y[:, :1]).best_params_["lam"] == 1e-2


def test_distributed_fit_with_a_loss_names_the_option():
    with pytest.raises(OptionError, match="distributed=True"):
        ovkgp.ORFFRidge(loss="huber", distributed=True).fit(np.ones((4, 1)), np.arange(4.0))
