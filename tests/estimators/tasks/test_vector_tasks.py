"""Tests of `ovkgp.estimators.tasks.vector_tasks`."""

import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.datasets import angular_tasks, joint_rows, make_landmarks, radial_tasks, single_rows
from ovkgp.estimators.common.prediction_columns import PredictionRequest
from ovkgp.exceptions import InputError, ModelFileError, OptionError
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.functional_ridge_grid import GridPosterior, make_pairs
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import EpsilonInsensitive, Huber, IntegralLoss, LogCosh, Pinball, Square, TaskMeasure

N, T, D, Q, P, LAM = 9, 4, 3, 2, 3, 2e-2
FIXED = {"lengthscale": 1.3, "task_lengthscale": 0.8, "lam": LAM}


@parametrize_with_checks([ovkgp.VectorTaskRegressor()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.VectorTaskRegressor(fit_intercept=True, output_matrix=1)])
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, tasks, Y = rng.standard_normal((N, D)), rng.standard_normal((T, Q)), rng.standard_normal((N, T, P))
    return X, tasks, Y, rng.standard_normal((5, D)), rng.standard_normal((2, Q))


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


def oracle(X, tasks, Y, A, noise, Xs, new, scale=1.0):
    """Dense mean and latent std (m, T', p) on the observed entries, of s²K and noise (n, T) s²."""
    observed = np.isfinite(Y).ravel()
    K = np.kron(np.kron(gauss(X, X, 1.3), gauss(tasks, tasks, 0.8)), A)[observed][:, observed]
    C = K + np.diag(np.repeat(np.broadcast_to(noise, Y.shape[:2]).ravel(), Y.shape[-1])[observed])
    cross = np.kron(np.kron(gauss(Xs, X, 1.3), gauss(new, tasks, 0.8)), A)[:, observed]
    shape = len(Xs), len(new), Y.shape[-1]
    mean = cross @ np.linalg.solve(C, Y.ravel()[observed])
    variance = np.tile(np.diag(A), len(Xs) * len(new)) - np.einsum("ab,ba->a", cross, np.linalg.solve(C, cross.T))
    return mean.reshape(shape), np.sqrt(scale * variance.clip(0)).reshape(shape)


def some_matrix(rank=P):
    root = np.random.default_rng(3).standard_normal((P, rank))
    return root @ root.T


@pytest.mark.parametrize("rank", [1, P])
def test_mean_and_std_match_the_exact_posterior_at_any_task(data, rank):
    """G-01, G-02: order (i, j, u), noise λnT."""
    X, tasks, Y, Xs, new = data
    A = some_matrix(rank)
    model = ovkgp.VectorTaskRegressor(tasks, output_matrix=A, scale="given", **FIXED).fit(X, Y)
    mean, std = oracle(X, tasks, Y, A, LAM * N * T, Xs, new)
    got = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got[0], mean, atol=1e-8)
    np.testing.assert_allclose(got[1], std, atol=1e-7)
    noisy = model.predict(Xs, new, return_std=True)[1]
    np.testing.assert_allclose(noisy, np.sqrt(std**2 + LAM * N * T), atol=1e-7)
    assert isinstance(model.posterior_, GridPosterior)


@pytest.mark.parametrize("normalization", ["fixed", "pooled", "per_sample"])
@pytest.mark.parametrize("missing", ["vectors", "entries"])
def test_missing_vectors_and_entries_match_the_oracle_for_each_normalization(data, normalization, missing):
    """LT B-29: a mask is a deleted row."""
    X, tasks, Y, Xs, new = data
    rng = np.random.default_rng(1)
    observed = rng.uniform(size=(N, T)) < 0.7
    observed[2] = False
    Y = np.where(observed[..., None], Y, np.nan)
    if missing == "entries":
        Y[0, np.flatnonzero(observed[0])[0], 1] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, normalization=normalization, scale="given", **FIXED).fit(X, Y)
    n, counts = N - 1, observed.sum(1)  # rows without observations are dropped
    noise = {"fixed": LAM * n * T, "pooled": LAM * observed.sum(), "per_sample": LAM * n * counts[:, None]}[
        normalization
    ]
    mean, std = oracle(X, tasks, Y, np.eye(P), noise, Xs, new)
    got = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got[0], mean, atol=1e-10)
    np.testing.assert_allclose(got[1], std, atol=1e-7)


def test_lt_e_40_missing_fraction_is_one_minus_the_mean_of_the_mask(data):
    X, tasks, Y, _, _ = data
    observed = np.ones((N, T), dtype=bool)
    observed[:3, 0] = False
    model = ovkgp.VectorTaskRegressor(tasks).fit(X, np.where(observed[..., None], Y, np.nan))
    assert model.missing_ == pytest.approx(1 - observed.mean()) == pytest.approx(3 / 36)
    assert ovkgp.VectorTaskRegressor(tasks).fit(X, Y).missing_ == 0


def test_lt_102_rank_r_is_the_projection_of_the_full_solution(data):
    """LT B-28: h_r = h V_r V_rᵀ, V from the uncentered YᵀY."""
    X, tasks, Y, Xs, new = data
    full = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Y).predict(Xs, new)
    flat = Y.reshape(-1, P)
    V = np.linalg.eigh(flat.T @ flat)[1][:, -2:]
    low = ovkgp.VectorTaskRegressor(tasks, output_matrix=2, **FIXED).fit(X, Y)
    np.testing.assert_allclose(low.predict(Xs, new), full @ V @ V.T, atol=1e-10)
    assert np.linalg.matrix_rank(low.output_matrix_) == 2


def test_g_09_scale_maximizes_the_evidence_and_keeps_the_mean(data):
    X, tasks, Y, Xs, new = data
    given = ovkgp.VectorTaskRegressor(tasks, scale="given", **FIXED).fit(X, Y)
    best = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Y)
    np.testing.assert_allclose(best.predict(Xs, new), given.predict(Xs, new), atol=1e-10)
    ratio = best.predict(Xs, new, return_std=True)[1] / given.predict(Xs, new, return_std=True)[1]
    np.testing.assert_allclose(ratio, np.sqrt(best.scale_), rtol=1e-8)
    C = np.kron(gauss(X, X, 1.3), gauss(tasks, tasks, 0.8)) + LAM * N * T * np.eye(N * T)
    flat = Y.reshape(N * T, P)
    assert best.scale_ == pytest.approx((flat * np.linalg.solve(C, flat)).sum() / Y.size)
    rows, targets = make_pairs(torch.from_numpy(X), torch.from_numpy(tasks)), flat

    def evidence(scale):
        gp = clone_gp(best.gp_, scale)
        return gp.log_evidence(rows, targets).item()

    top = evidence(1.0)
    assert top == pytest.approx(best.posterior_.log_evidence)
    assert top > evidence(1.1) and top > evidence(0.9)
    objective = given.lam / 2 * (flat * np.linalg.solve(C, flat)).sum()  # min J = (λ/2) yᵀ(K + λnT)⁻¹y
    fitted = given.predict(X)
    norm = (Y - fitted).reshape(N * T, P) / (LAM * N * T)
    penalty = LAM / 2 * (norm * (fitted.reshape(N * T, P))).sum()
    assert ((Y - fitted) ** 2).sum() / (2 * N * T) + penalty == pytest.approx(objective)


def clone_gp(gp, factor):
    """Return the model with prior and noise multiplied."""
    gp = deepcopy(gp)
    gp.kernel.outputscale = gp.kernel.outputscale * factor
    gp.noise_model.log_scale += 0.5 * np.log(factor)
    return gp


@pytest.mark.parametrize(
    ("convention", "factor"),
    [("samples", 1.0), ("stability", 0.5), ("mean", T), ("sum", N * T), ("mean_unhalved", 2 * T)],
)
def test_g_11_each_convention_of_lambda_gives_the_same_function(data, convention, factor):
    """The rows of the λ table: σ² = λnT, 2λnT, λn, λ, λn/2."""
    X, tasks, Y, Xs, new = data
    reference = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Y)
    options = {**FIXED, "lam": factor * LAM, "convention": convention}
    other = ovkgp.VectorTaskRegressor(tasks, **options).fit(X, Y)
    assert other.noise_ == pytest.approx(LAM * N * T)
    np.testing.assert_allclose(other.predict(Xs, new), reference.predict(Xs, new), atol=1e-10)


def test_g_13_one_task_is_multi_output_ridge(data):
    X, _, Y, Xs, _ = data
    model = ovkgp.VectorTaskRegressor([[0.3, 0.1]], scale="given", **FIXED).fit(X, Y[:, :1])
    ridge = ovkgp.OVKRidge(lam=LAM, convention="mean", lengthscale=1.3).fit(X, Y[:, 0])
    np.testing.assert_allclose(model.predict(Xs)[:, 0], ridge.predict(Xs), atol=1e-10)
    expected = ridge.predict(Xs, return_std=True)[1]
    np.testing.assert_allclose(model.predict(Xs, return_std=True)[1][:, 0], expected, atol=1e-8)


def test_g_13_one_output_is_the_square_problem_of_task_learning(data):
    X, _, Y, Xs, _ = data
    nodes, Y = np.linspace(0, 1, T), Y[..., :1]
    model = ovkgp.VectorTaskRegressor(nodes, **FIXED).fit(X, Y)
    kernels = [RBFKernel().double().requires_grad_(False) for _ in range(2)]
    kernels[0].lengthscale, kernels[1].lengthscale = (torch.tensor(v, dtype=torch.float64) for v in (1.3, 0.8))
    inputs = KernelFactor(kernels[0], torch.from_numpy(X), cutoff=0.0)
    tasks = KernelFactor(kernels[1], torch.from_numpy(nodes)[:, None], cutoff=0.0)
    loss = IntegralLoss(Square(), TaskMeasure(nodes))
    problem = TaskProblem(inputs.anchor_rows, tasks.anchor_rows, torch.from_numpy(Y[..., 0]), loss, LAM)
    h = TaskFunction(inputs, tasks, solve_square(problem).weights)
    new = torch.tensor([0.1, 0.77]).double()
    np.testing.assert_allclose(model.predict(Xs, new)[..., 0], h(torch.from_numpy(Xs), new), atol=1e-8)


def test_g_13_joint_rows_of_one_task_are_single_rows(data):
    Y = data[2][:, :1]
    single, joint = single_rows(Y, 0), joint_rows(Y)
    assert all(np.array_equal(a, b) for a, b in zip(single, joint, strict=True))


def test_predictions_have_the_layout_of_y(data):
    X, tasks, Y, Xs, new = data
    tensor = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Y)
    flat = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Y.reshape(N, T * P))
    assert tensor.predict(Xs).shape == (5, T, P) and flat.predict(Xs).shape == (5, T * P)
    np.testing.assert_array_equal(tensor.predict(Xs).reshape(5, -1), flat.predict(Xs))
    assert flat.predict(Xs, new).shape == (5, 2, P)
    assert tensor.score(X, Y) == pytest.approx(flat.score(X, Y.reshape(N, -1)))
    columns = ovkgp.VectorTaskRegressor().fit(X, Y[:, :, 0])
    assert columns.predict(Xs).shape == (5, T) and columns.predict(Xs, [0.5, 1.5]).shape == (5, 2, 1)
    line = ovkgp.VectorTaskRegressor().fit(X, Y[:, 0, 0])
    assert line.predict(Xs).shape == (5,) and line.predict(Xs, return_std=True)[1].shape == (5,)


def test_intercept_is_the_mean_of_each_output(data):
    X, tasks, Y, _, _ = data
    shift = np.array([100.0, -50.0, 3.0])
    far = np.full((1, D), 1e3)
    model = ovkgp.VectorTaskRegressor(tasks, fit_intercept=True, **FIXED).fit(X, Y + shift)
    np.testing.assert_allclose(model.predict(far)[0], np.broadcast_to(Y.mean((0, 1)) + shift, (T, P)), atol=1e-9)


@pytest.mark.parametrize("missing", [False, True])
def test_training_by_evidence_estimates_noise_and_lam(missing):
    rng = np.random.default_rng(0)
    X, tasks = rng.uniform(-2, 2, (30, 1)), np.linspace(0, 1, 5)
    Y = np.sin(2 * X[:, :, None] + 2 * tasks[:, None]) * np.array([1.0, -0.5]) + 0.05 * rng.standard_normal((30, 5, 2))
    if missing:
        Y[:8, 2] = np.nan
    initial = ovkgp.VectorTaskRegressor(tasks, lam=1e-4).fit(X, Y)
    model = ovkgp.VectorTaskRegressor(tasks, lam=1e-4, hyperparameters="evidence").fit(X, Y)
    assert model.posterior_.log_evidence > initial.posterior_.log_evidence + 10
    assert model.fit_report_.converged
    deviation = np.sqrt(model.noise_ * model.scale_)
    assert deviation == pytest.approx(0.05, rel=0.15)
    assert model.lam_ == pytest.approx(model.noise_ / (30 * 5))
    assert model.gp_.noise.item() == pytest.approx(deviation**2)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("options", [{}, {"output_matrix": 2, "hyperparameters": "evidence"}, {"fit_intercept": True}])
def test_save_and_load_keep_predictions(tmp_path, data, missing, options):
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    if missing:
        Y[0, 1] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, **{**FIXED, **options}).fit(X, Y)
    model.save(tmp_path / "model.ovkgp")
    again = ovkgp.load(tmp_path / "model.ovkgp")
    for mine, theirs in zip(
        model.predict(Xs, new, return_std=True), again.predict(Xs, new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    np.testing.assert_allclose(again.predict(Xs), model.predict(Xs), rtol=1e-12)
    assert again.lam_ == model.lam_ and again.gp_.noise.item() == pytest.approx(model.gp_.noise.item(), rel=1e-14)
    assert again.score(X, Y) == pytest.approx(model.score(X, Y), rel=1e-12)
    clone(again).fit(X, Y)


def test_fit_does_not_modify_kernel_objects(data):
    X, tasks, Y, Xs, _ = data
    kernel, over_tasks = MaternKernel(nu=2.5), RBFKernel(ard_num_dims=Q)
    before = kernel.lengthscale.clone()
    options = {"kernel": kernel, "task_kernel": over_tasks, "hyperparameters": "evidence"}
    model = ovkgp.VectorTaskRegressor(tasks, **options).fit(X, Y)
    assert torch.equal(kernel.lengthscale, before) and model.predict(Xs).shape == (5, T, P)
    with pytest.raises(InputError, match="ard_num_dims=2"):
        ovkgp.VectorTaskRegressor(tasks, task_kernel=RBFKernel()).fit(X, Y)


def test_lt_104_predictions_are_continuous_along_tasks(data):
    """LT-104."""
    X, tasks, Y, Xs, _ = data
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Y)
    path = model.predict(Xs, radial_tasks(tasks[1], [0.999, 1.0, 1.001]))
    np.testing.assert_allclose(path[:, 1], model.predict(Xs)[:, 1], atol=1e-12)
    assert np.abs(np.diff(path, axis=1)).max() < 1e-2


@pytest.mark.parametrize(
    ("options", "y", "match"),
    [
        ({"tasks": np.zeros((T + 1, Q))}, lambda Y: Y, "second axis"),
        ({"tasks": np.zeros((5, Q))}, lambda Y: Y.reshape(N, -1), "5 tasks"),
        ({"tasks": [[np.nan, 0.0]] * T}, lambda Y: Y, "finite points"),
        ({"output_matrix": 7}, lambda Y: Y, "rank"),
        ({"output_matrix": "full"}, lambda Y: Y, "identity"),
        ({"output_matrix": -np.eye(P)}, lambda Y: Y, "semi-definite"),
        ({"output_matrix": np.eye(2)}, lambda Y: Y, r"\(3, 3\)"),
        ({"lam": [1.0, 2.0]}, lambda Y: Y, "lam"),
        ({"lam": 0.0}, lambda Y: Y, "lam"),
        ({"normalization": "mean"}, lambda Y: Y, "normalization"),
        ({"hyperparameters": "nuts"}, lambda Y: Y, "hyperparameters"),
        ({"scale": 2.0}, lambda Y: Y, "scale"),
        ({"task_lengthscale": "auto"}, lambda Y: Y, "^task_lengthscale"),
        ({}, lambda Y: Y * np.where(np.arange(T) == 1, np.nan, 1)[:, None], "observed"),
        ({}, lambda Y: Y[:-1], "inconsistent"),
    ],
)
def test_fit_rejects_invalid_options_and_data(data, options, y, match):
    X, tasks, Y, _, _ = data
    with pytest.raises((InputError, OptionError, ValueError), match=match):
        ovkgp.VectorTaskRegressor(**{"tasks": tasks, **options}).fit(X, y(Y))


def test_predict_rejects_tasks_of_another_dimension(data):
    X, tasks, Y, Xs, _ = data
    model = ovkgp.VectorTaskRegressor(tasks).fit(X, Y)
    with pytest.raises(InputError, match="column"):
        model.predict(Xs, [0.1, 0.2])


def test_landmark_experiments_have_the_published_pattern():
    """LT-142, 144, 145 on a small surrogate: far below the mean face, flat in the rank, robust to missing data."""
    faces, tasks, identities, _ = make_landmarks(30, num_landmarks=30, random_state=0)
    test = identities >= 25

    def half_error(model, rows):
        return 0.5 * ((model.predict(rows.X) - rows.Y) ** 2).sum(-1).mean()

    options = {"tasks": tasks, "lengthscale": (2 * 0.07) ** -0.5, "task_lengthscale": (2 * 0.4) ** -0.5, "lam": 2e-5}
    train, held = single_rows(faces[~test], 0), single_rows(faces[test], 0)
    single = half_error(ovkgp.VectorTaskRegressor(**options).fit(train.X, train.Y), held)
    mean_face = 0.5 * ((train.Y.mean(0) - held.Y) ** 2).sum(-1).mean()
    assert single < 0.3 * mean_face
    joint, joint_held = joint_rows(faces[~test]), joint_rows(faces[test])
    errors = {
        rank: half_error(ovkgp.VectorTaskRegressor(output_matrix=rank, **options).fit(joint.X, joint.Y), joint_held)
        for rank in (1, 5, 20, 60)
    }
    assert errors[1] > 2 * errors[5] > 3 * errors[20] and errors[20] == pytest.approx(errors[60], rel=0.1)
    observed = np.random.default_rng(0).uniform(size=train.Y.shape[:2]) > 0.4
    masked = ovkgp.VectorTaskRegressor(**options).fit(train.X, np.where(observed[..., None], train.Y, np.nan))
    assert half_error(masked, held) < 1.5 * single


# --- style transfer ---------------------------------------------------------------------------------------------------

STYLE = {"lengthscale": (2 * 0.07) ** -0.5, "task_lengthscale": (2 * 0.4) ** -0.5, "lam": 2e-5}


def half_error(found, expected):
    return 0.5 * ((found - expected) ** 2).sum(-1).mean()


@pytest.fixture(scope="module")
def faces():
    return make_landmarks(30, num_landmarks=20, random_state=0)


@pytest.mark.parametrize("walk", ["radial", "angular"])
def test_lt_104_faces_between_emotions_are_near_the_ground_truth(faces, walk):
    """Continuous traversal from neutral to happy, and from happy to surprised, at points without observations."""
    test = faces.identities >= 25
    happy, surprised = (np.arctan2(*faces.tasks[k][::-1]) for k in (4, 6))
    path = (
        radial_tasks(faces.tasks[4], np.linspace(0.1, 0.9, 5))
        if walk == "radial"
        else angular_tasks(np.linspace(happy, surprised, 7)[1:-1])
    )
    train = single_rows(faces.faces[~test], 4)
    # without an intercept, the prior mean zero, far from any face, affects predictions between the emotions
    model = ovkgp.VectorTaskRegressor(faces.tasks, fit_intercept=True, **STYLE).fit(train.X, train.Y)
    found, truth = model.predict(faces.faces[test, 4], path), faces.truth(path)[test]
    nearest = np.linalg.norm(path[:, None] - faces.tasks[None], axis=-1).argmin(1)
    without = model.predict(faces.faces[test, 4])[:, nearest]  # the best of a model of seven separate emotions
    assert half_error(found, truth) < 0.5 * half_error(without, truth)
    assert half_error(found, truth) < 0.2 * half_error(faces.truth(path)[~test].mean(0), truth)


def test_lt_101_joint_rows_predict_from_any_emotion(faces):
    test = faces.identities >= 25
    rows = joint_rows(faces.faces[~test])
    model = ovkgp.VectorTaskRegressor(faces.tasks, **STYLE).fit(rows.X, rows.Y)
    mean_face = half_error(faces.faces[~test].mean(0), faces.faces[test])
    for emotion in range(7):
        held = single_rows(faces.faces[test], emotion)
        assert half_error(model.predict(held.X), held.Y) < 0.35 * mean_face


def test_lt_103_joint_rows_drop_missing_faces(faces):
    """A missing face is neither input nor target: the fit is that of the long table of observed faces (LT B-29)."""
    few = faces.faces[:6, :4, :6].copy()
    few[1, 2], few[4, 0] = np.nan, np.nan
    tasks, rows = faces.tasks[:4], joint_rows(few)
    model = ovkgp.VectorTaskRegressor(tasks, scale="given", **FIXED).fit(rows.X, rows.Y)
    assert len(rows.X) == 22 and model.missing_ == pytest.approx(np.isnan(rows.Y).any(-1).mean())
    Xs, new = faces.faces[8:10, 0, :6], np.array([[0.2, -0.3]])
    mean, std = oracle(rows.X, tasks, rows.Y, np.eye(6), LAM * 22 * 4, Xs, new)
    got = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got[0], mean, atol=1e-8)
    np.testing.assert_allclose(got[1], std, atol=1e-6)


def test_lt_100_targets_may_omit_the_input_emotion(faces):
    train = single_rows(faces.faces[:40], 0)
    model = ovkgp.VectorTaskRegressor(faces.tasks[1:], fit_intercept=True, **STYLE).fit(train.X, train.Y[:, 1:])
    assert model.predict(train.X[:3]).shape == (3, 6, 40)
    neutral = model.predict(faces.faces[40:, 0], faces.tasks[:1])[:, 0]  # extrapolated to the omitted emotion
    assert half_error(neutral, faces.faces[40:, 0]) < half_error(train.X.mean(0), faces.faces[40:, 0])


def test_lt_102_rank_r_is_a_projection_with_missing_faces(data):
    """LT B-28 with missing vectors: V is that of the observed ones."""
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    Y[0, 1], Y[3, 2] = np.nan, np.nan
    flat = Y.reshape(-1, P)
    flat = flat[np.isfinite(flat).all(1)]
    V = np.linalg.eigh(flat.T @ flat)[1][:, -1:]
    full, low = (ovkgp.VectorTaskRegressor(tasks, output_matrix=A, **FIXED).fit(X, Y) for A in ("identity", 1))
    np.testing.assert_allclose(low.output_matrix_, V @ V.T, atol=1e-12)
    np.testing.assert_allclose(low.predict(Xs, new), full.predict(Xs, new) @ V @ V.T, atol=1e-8)


def test_repeated_task_counts_as_two_observations(data):
    X, tasks, Y, Xs, new = data
    twice, Z = np.vstack([tasks, tasks[:1]]), np.concatenate([Y, Y[:, :1] + 0.3], 1)
    model = ovkgp.VectorTaskRegressor(twice, scale="given", **FIXED).fit(X, Z)
    mean, _ = oracle(X, twice, Z, np.eye(P), LAM * N * (T + 1), Xs, new)
    np.testing.assert_allclose(model.predict(Xs, new), mean, atol=1e-8)


def test_bands_cover_new_observations():
    """Data from the prior with its noise: coverage of 90 % bands, at observed tasks and at others."""
    rng = np.random.default_rng(0)
    X, tasks, new = rng.uniform(-2, 2, (40, 2)), rng.uniform(-1, 1, (4, 2)), rng.uniform(-1, 1, (3, 2))
    K = np.kron(gauss(X, X, 1.3), gauss(*2 * (np.vstack([tasks, new]),), 0.8))
    draws = np.linalg.cholesky(K + 1e-9 * np.eye(len(K))) @ rng.standard_normal((len(K), 20))
    F, noise = 2.0 * draws.reshape(40, 7, 20), 0.3
    Y = F + noise * rng.standard_normal(F.shape)
    lam = (noise / 2.0) ** 2 / (30 * 4)
    model = ovkgp.VectorTaskRegressor(tasks, lengthscale=1.3, task_lengthscale=0.8, lam=lam).fit(X[:30], Y[:30, :4])
    assert model.scale_ == pytest.approx(4.0, rel=0.15)
    mean, std = model.predict(X[30:], np.vstack([tasks, new]), return_std=True)
    inside = np.abs(Y[30:] - mean) < 1.645 * std
    assert inside[:, :4].mean() == pytest.approx(0.9, abs=0.04) and inside[:, 4:].mean() == pytest.approx(0.9, abs=0.05)


# --- validation, files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fit_rejects_invalid_inputs(data, bad):
    X, tasks, Y, _, _ = data
    X = X.copy()
    X[1, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        ovkgp.VectorTaskRegressor(tasks).fit(X, Y)


def test_fit_rejects_infinite_targets_and_drops_empty_rows(data):
    X, tasks, Y, Xs, new = data
    Z = Y.copy()
    Z[0, 0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        ovkgp.VectorTaskRegressor(tasks).fit(X, Z)
    with pytest.raises(ValueError, match=r"NaN|observed"):
        ovkgp.VectorTaskRegressor(tasks).fit(X, np.full(Y.shape, np.nan))
    Z = Y.copy()
    Z[4] = np.nan
    empty = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(X, Z)
    without = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(np.delete(X, 4, 0), np.delete(Y, 4, 0))
    np.testing.assert_allclose(empty.predict(Xs, new), without.predict(Xs, new), atol=1e-10)
    assert empty.missing_ == pytest.approx(1 / N)


@pytest.mark.parametrize("options", [{}, {"normalization": "per_sample"}, {"output_matrix": 1}])
def test_pickle_and_copy_keep_predictions_exactly(data, options):
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    Y[0, 1] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED, **options).fit(X, Y)
    for again in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        for mine, other in zip(
            model.predict(Xs, new, return_std=True), again.predict(Xs, new, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(mine, other)


def test_save_and_load_keep_noise_per_row(tmp_path, data):
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    Y[0, 1], Y[2] = np.nan, np.nan
    model = ovkgp.VectorTaskRegressor(tasks, normalization="per_sample", kernel=MaternKernel(nu=1.5), lam=LAM).fit(X, Y)
    model.save(tmp_path / "model.ovkgp")
    again = ovkgp.load(tmp_path / "model.ovkgp")
    for mine, other in zip(
        model.predict(Xs, new, return_std=True), again.predict(Xs, new, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(mine, other)
    whole = (tmp_path / "model.ovkgp").read_bytes()
    (tmp_path / "model.ovkgp").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError):
        ovkgp.load(tmp_path / "model.ovkgp")


def test_fit_stores_names_of_data_frames(data):
    X, tasks, Y, _, _ = data
    inputs = pd.DataFrame(X, columns=["a", "b", "c"])
    outputs = pd.DataFrame(Y.reshape(N, -1), columns=[f"{j}{u}" for j in range(T) for u in range(P)])
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED).fit(inputs, outputs)
    assert list(model.feature_names_in_) == ["a", "b", "c"] and model.output_names_ == list(outputs.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(inputs[["b", "a", "c"]])


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.slow
def test_training_by_evidence_finds_short_lengthscales_of_inputs_and_tasks(missing):
    rng = np.random.default_rng(0)
    X, tasks = rng.uniform(0, 1, (50, 1)), np.linspace(-1, 1, 9)
    function = lambda x: np.sin(12 * np.pi * x) * np.cos(3 * np.pi * tasks)  # noqa: E731
    Y = function(X) + 0.1 * rng.standard_normal((50, 9))
    if missing:
        Y[:5, 2] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, hyperparameters="evidence").fit(X, Y)
    points = np.linspace(0.1, 0.9, 50)[:, None]
    assert np.mean((model.predict(points).reshape(50, 9) - function(points)) ** 2) < 0.1 * np.var(function(points))


# --- other losses ------------------------------------------------------------------------------------------------------

COUPLED = np.array([[1.0, 0.5, 0.0], [0.5, 2.0, 0.3], [0.0, 0.3, 0.7]])
LOSSES = [Huber(0.3), EpsilonInsensitive(0.4), LogCosh(2.0)]


@pytest.mark.slow
@parametrize_with_checks(
    [ovkgp.VectorTaskRegressor(loss="huber"), ovkgp.VectorTaskRegressor(loss="epsilon_insensitive")]
)
def test_scikit_learn_checks_pass_with_other_losses(estimator, check):
    check(estimator)


def dense_mode(X, tasks, Y, A, noise, loss, Xs, new):
    """argmin Σ ℓ/σ² + ½ ‖h‖² over the observed entries by L-BFGS on whitened values; its predictions (m, T', p)."""
    observed = np.isfinite(Y).ravel()
    K = np.kron(np.kron(gauss(X, X, 1.3), gauss(tasks, tasks, 0.8)), A)[observed][:, observed]
    values, vectors = np.linalg.eigh(K)
    kept = values > 1e-13 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    y = torch.from_numpy(Y.ravel()[observed])[None]

    def objective(z):
        f, zero = torch.from_numpy(root @ z)[None], torch.zeros(1, dtype=torch.float64)
        value, slope = (g(f, y, zero)[0].numpy() for g in (loss.value, loss.derivative))
        return value.sum() / noise + z @ z / 2, root.T @ slope / noise + z

    options = {"maxiter": 10**5, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-10}
    z = minimize(objective, np.zeros(root.shape[1]), jac=True, method="L-BFGS-B", options=options).x
    cross = np.kron(np.kron(gauss(Xs, X, 1.3), gauss(new, tasks, 0.8)), A)[:, observed]
    coefficients = vectors[:, kept] @ (z / np.sqrt(values[kept]))
    return (cross @ coefficients).reshape(len(Xs), len(new), Y.shape[-1])


@pytest.mark.parametrize("A", [np.eye(P), COUPLED], ids=["identity", "coupled"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_g_05_other_losses_equal_a_dense_minimization_at_any_task(data, loss, A):
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    Y[2, 1], Y[4, 2, 0] = np.nan, np.nan
    options = {"output_matrix": A, "loss": loss, "tolerance": 1e-12}
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED, **options).fit(X, Y)
    wanted = dense_mode(X, tasks, Y, A, LAM * N * T, loss, Xs, new)
    np.testing.assert_allclose(model.predict(Xs, new), wanted, atol=2e-5)
    assert 0 <= model.gap_ <= 1e-11 and model.fit_report_.converged
    assert (model.sparsity_ > 0.1) == (loss.name == "epsilon_insensitive")


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize(("convention", "factor"), [("sum", N * T), ("samples", 1.0), ("stability", 0.5)])
def test_g_03_fit_is_the_mode_of_the_normalized_likelihood(data, loss, convention, factor):
    """The coefficients are the score ∂ log p(y | h)/∂h, times the same λ in every convention."""
    X, tasks, Y, *_ = data
    options = FIXED | {"lam": LAM * factor, "convention": convention, "scale": "given", "tolerance": 1e-12}
    model = ovkgp.VectorTaskRegressor(tasks, loss=loss, **options).fit(X, Y)
    F = torch.from_numpy(model.predict(X).reshape(-1, P)).requires_grad_()
    posterior = model.posterior_
    (score,) = torch.autograd.grad(posterior.likelihood.log_density(torch.from_numpy(Y.reshape(-1, P)), F).sum(), F)
    torch.testing.assert_close(posterior.coefficients, score, rtol=0.0, atol=1e-5)
    assert model.noise_ == pytest.approx(LAM * N * T)


def test_huber_loss_resists_outliers_and_large_kappa_is_the_square_loss(faces):
    landmarks, emotions, *_ = faces
    X, Y, _ = single_rows(landmarks, task=0)
    X, Y = X[:24], Y[:24, :, :6]
    spoiled = Y.copy()
    spoiled[np.random.default_rng(0).random(Y.shape) < 0.05] += 3.0
    options = {"tasks": emotions, "lam": 2e-5}
    clean = ovkgp.VectorTaskRegressor(**options).fit(X[:18], Y[:18]).predict(X[18:])
    error = {}
    for name in ("square", "huber", "epsilon_insensitive"):
        model = ovkgp.VectorTaskRegressor(**options, loss=name).fit(X[:18], spoiled[:18])
        error[name] = np.abs(model.predict(X[18:]) - clean).mean()
    assert error["huber"] < 0.2 * error["square"] < error["epsilon_insensitive"]
    limit = ovkgp.VectorTaskRegressor(**options, loss=Huber(1e4), tolerance=1e-12).fit(X[:18], Y[:18])
    np.testing.assert_allclose(limit.predict(X[18:]), clean, atol=1e-5)


def test_standard_deviations_of_a_loss_near_the_square_loss_are_those_of_the_ridge(data):
    X, tasks, Y, Xs, new = data
    ridge = ovkgp.VectorTaskRegressor(tasks, **FIXED, output_matrix=COUPLED).fit(X, Y)
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED, output_matrix=COUPLED, loss=Huber(50.0), tolerance=1e-10).fit(
        X, Y
    )
    assert model.scale_ == pytest.approx(ridge.scale_, rel=1e-4)
    for noise in (True, False):
        found, wanted = (one.predict(Xs, new, return_std=True, noise=noise)[1] for one in (model, ridge))
        np.testing.assert_allclose(found, wanted, rtol=5e-3)
    request = PredictionRequest(quantiles=[0.1, 0.9])
    columns = [one.prediction_columns(Xs, request) for one in (model, ridge)]
    assert list(columns[0]) == list(columns[1])
    for name in columns[0]:
        np.testing.assert_allclose(columns[0][name], columns[1][name], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("missing", [False, True])
def test_save_and_load_keep_predictions_with_other_losses(tmp_path, data, missing):
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    if missing:
        Y[1, 2] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED, loss="epsilon_insensitive", fit_intercept=True).fit(X, Y)
    model.save(tmp_path / "model.ovkgp")
    for other in (ovkgp.load(tmp_path / "model.ovkgp"), pickle.loads(pickle.dumps(model))):
        assert (other.gap_, other.sparsity_, repr(other.loss_)) == (model.gap_, model.sparsity_, repr(model.loss_))
        for mine, theirs in zip(other.predict(Xs, new, True), model.predict(Xs, new, True), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)
    assert (model.training_data() is None) == missing
    assert "duality gap" in model.summary()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loss": "hubber"}, "huber"),
        ({"loss": Pinball()}, "level"),
        ({"loss": "huber", "hyperparameters": "evidence"}, "hyperparameters"),
    ],
)
def test_fit_rejects_unsupported_losses(data, options, match):
    X, tasks, Y, *_ = data
    with pytest.raises(OptionError, match=match):
        ovkgp.VectorTaskRegressor(tasks, **options).fit(X, Y)


def test_noise_per_row_has_a_mode_but_no_standard_deviation_with_other_losses(data):
    X, tasks, Y, Xs, new = data
    Y = Y.copy()
    Y[2, 1] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, **FIXED, loss=Huber(1e4), normalization="per_sample", tolerance=1e-12).fit(
        X, Y
    )
    ridge = ovkgp.VectorTaskRegressor(tasks, **FIXED, normalization="per_sample").fit(X, Y)
    np.testing.assert_allclose(model.predict(Xs, new), ridge.predict(Xs, new), atol=1e-5)
    columns = model.prediction_columns(Xs, PredictionRequest())
    assert all(name.endswith("_mean") for name in columns) and len(columns) == T * P
    with pytest.raises(OptionError, match="per_sample"):
        model.predict(Xs, new, return_std=True)


@pytest.mark.parametrize("missing", [False, True])
def test_training_by_evidence_restarts(missing):
    rng = np.random.default_rng(0)
    X, tasks = rng.uniform(0, 1, (12, 1)), np.linspace(-1, 1, 4)
    Y = np.sin(6 * X) * np.cos(tasks) + 0.1 * rng.standard_normal((12, 4))
    if missing:
        Y[:2, 1] = np.nan
    model = ovkgp.VectorTaskRegressor(tasks, hyperparameters="evidence", restarts=3).fit(X, Y)
    assert len(model.fit_report_.restarts) == 3
