"""Tests of `ovkgp.estimators.functional.kernel_projection` and of the shared `basis_ridge`."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.functional.coordinates import collect_entries
from ovkgp.exceptions import DomainError, FitWarning, InputError, OptionError
from ovkgp.functional import BSplines, Combination, Fourier, FunctionalData
from ovkgp.inference.tasks import coordinate_posterior
from ovkgp.losses import CostSensitiveHinge, LogCosh, OneClass, Pinball, PinballEnvelope, Square

N, M, D, LAM = 9, 14, 5, 1e-2
OPTIONS = {"lengthscale": 1.3, "lam": LAM, "fit_intercept": False, "scale": "given"}


def gauss(a, b, lengthscale=1.3):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, grid, Y = rng.standard_normal((N, 3)), np.sort(rng.uniform(0, 1, M)), rng.standard_normal((N, M))
    root = rng.standard_normal((D, D + 2))
    return X, grid, Y, rng.standard_normal((4, 3)), np.array([0.3, 0.5, 0.77]), root @ root.T / D


def mask(Y, seed=1):
    return np.where(np.random.default_rng(seed).random(Y.shape) < 0.3, np.nan, Y)


def dense_posterior(X, Y, Xs, output, noise, cross_output, new_output):
    """Mean and latent variance of the Gaussian process on observed entries; noise is (n, m)."""
    observed = np.isfinite(Y).ravel()
    C = np.kron(gauss(X, X), output) + np.diag(noise.ravel())
    C, cross = C[observed][:, observed], np.kron(gauss(Xs, X), cross_output)[:, observed]
    shape = len(Xs), len(new_output)
    mean = cross @ np.linalg.solve(C, Y.ravel()[observed])
    variance = np.tile(np.diag(new_output), len(Xs)) - np.einsum("ab,ba->a", cross, np.linalg.solve(C, cross.T))
    _, logdet = np.linalg.slogdet(C)
    y = Y.ravel()[observed]
    log_density = -(y @ np.linalg.solve(C, y) + logdet + len(y) * np.log(2 * np.pi)) / 2
    return mean.reshape(shape), variance.reshape(shape), log_density


def grid_oracle(dictionary, B, X, Y, Xs, new, grid, noise):
    Phi, new_rows = dictionary(grid), dictionary(new)
    return dense_posterior(X, Y, Xs, Phi @ B @ Phi.T, noise, new_rows @ B @ Phi.T, new_rows @ B @ new_rows.T)


@parametrize_with_checks([ovkgp.KernelProjectionRegressor()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.KernelProjectionRegressor(method="plug_in", num_functions=1),
        ovkgp.KernelProjectionRegressor(loss=LogCosh(5.0), lam=[1e-3, 1e-2]),
    ]
)
@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize("rank", [2, D])
def test_kernel_projection_is_the_posterior_of_a_grid_process(data, rank):
    """BO §6.2, identities 1, 5, 6: mean, variance and evidence with noise nmλ, for any B and a dictionary that is not orthonormal."""
    X, grid, Y, Xs, new, B = data
    values, vectors = np.linalg.eigh(B)
    B = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
    dictionary = BSplines(D)
    model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **OPTIONS)
    model.fit(X, FunctionalData(Y, grid, (0, 1)))
    mean, variance, log_density = grid_oracle(dictionary, B, X, Y, Xs, new, grid, np.full((N, M), N * M * LAM))
    got, std = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got, mean, atol=1e-10)
    np.testing.assert_allclose(std**2, variance, atol=1e-10)
    np.testing.assert_allclose(model.predict(Xs, new, return_std=True)[1] ** 2, variance + N * M * LAM, atol=1e-10)
    assert model.log_evidence_ == pytest.approx(log_density, abs=1e-8)
    assert model.point_noise_ == pytest.approx(N * M * LAM)


def test_kernel_projection_is_ridge_on_least_squares_coefficients(data):
    """BO §6.2, identity 2: targets G⁻¹V, output matrix B, noise nλG⁻¹."""
    X, grid, Y, Xs, new, B = data
    dictionary = BSplines(D)
    model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **OPTIONS)
    model.fit(X, FunctionalData(Y, grid, (0, 1)))
    Phi = dictionary(grid)
    G, V = Phi.T @ Phi / M, Y @ Phi / M
    ridge = ovkgp.OVKRidge(output_matrix=B, output_metric=np.linalg.inv(G), lengthscale=1.3, lam=LAM, convention="mean")
    ridge.fit(X, np.linalg.solve(G, V.T).T)
    np.testing.assert_allclose(model.predict(Xs, new), ridge.predict(Xs) @ dictionary(new).T, atol=1e-10)


def test_kernel_projection_is_a_whitened_process(data):
    """BO §6.2, identity 3: targets G^{−½}V, output matrix G^½BG^½, noise nλ."""
    X, grid, Y, Xs, new, B = data
    dictionary = BSplines(D)
    Phi = dictionary(grid)
    values, vectors = np.linalg.eigh(Phi.T @ Phi / M)
    root, inverse = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
    Z, C = Y @ Phi / M @ inverse, root @ B @ root
    system = np.kron(gauss(X, X), C) + N * LAM * np.eye(N * D)
    u = (np.kron(gauss(Xs, X), C) @ np.linalg.solve(system, Z.ravel())).reshape(4, D)
    model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **OPTIONS)
    model.fit(X, FunctionalData(Y, grid, (0, 1)))
    np.testing.assert_allclose(model.predict(Xs, new), u @ inverse @ dictionary(new).T, atol=1e-10)


def test_kernel_projection_equals_the_function_valued_ridge_bo_e_18(data):
    """BO-E-18: ridge in the function-valued RKHS of ΦKΦ# is the same predictor, also for a redundant dictionary."""
    X, grid, Y, Xs, new, _ = data
    base = Fourier(2)
    redundant = Combination(base, np.hstack([np.eye(3), np.ones((3, 1))]))
    model = ovkgp.KernelProjectionRegressor(redundant, **OPTIONS).fit(X, FunctionalData(Y, grid, (0, 1)))
    Phi = redundant(grid)
    alpha = np.linalg.solve(np.kron(gauss(X, X), Phi @ Phi.T) + N * M * LAM * np.eye(N * M), Y.ravel()).reshape(N, M)
    expected = gauss(Xs, X) @ alpha @ Phi @ redundant(new).T
    np.testing.assert_allclose(model.predict(Xs, new), expected, atol=1e-10)


def test_kernel_projection_solves_the_discrete_sylvester_equation(data):
    """C-17: the Sylvester, Kronecker and dense solutions of G B α K + nλα = V agree (BO-61, BO-66)."""
    X, grid, Y, Xs, new, B = data
    dictionary = BSplines(D)
    Phi, K = dictionary(grid), gauss(X, X)
    G, V = Phi.T @ Phi / M, (Y @ Phi / M).T
    system = np.kron(K, G @ B) + N * LAM * np.eye(N * D)
    alpha = np.linalg.solve(system, V.ravel(order="F")).reshape((D, N), order="F")
    np.testing.assert_allclose(G @ B @ alpha @ K + N * LAM * alpha, V, atol=1e-12)
    model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **OPTIONS)
    model.fit(X, FunctionalData(Y, grid, (0, 1)))
    np.testing.assert_allclose(model.predict(Xs, new), (dictionary(new) @ B @ alpha @ gauss(X, Xs)).T, atol=1e-10)


def test_lam_conventions_of_curves(data):
    """BO §0.3: "mean" nλ, "sum" λ, "mean_halved" 2nλ in an orthonormal basis."""
    X, grid, Y, *_ = data
    for convention, noise in (("mean", N * LAM), ("samples", N * LAM), ("sum", LAM), ("mean_halved", 2 * N * LAM)):
        model = ovkgp.KernelProjectionRegressor(**(OPTIONS | {"convention": convention})).fit(X, Y, grid)
        assert model.noise_ == pytest.approx(noise)
        assert model.lam_ == pytest.approx(LAM)


@pytest.mark.parametrize("weighting", ["equal", "points"])
def test_gaps_are_exact(data, weighting):
    """BO-63: noise nλm_i of each point of curve i, or the same at all points."""
    X, grid, Y, Xs, new, B = data
    Y = mask(Y)
    counts = np.isfinite(Y).sum(1)
    model = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, curve_weighting=weighting, **OPTIONS)
    model.fit(X, FunctionalData(Y, grid, (0, 1)))
    per_curve = counts if weighting == "equal" else np.full(N, counts.mean())
    noise = np.repeat(N * LAM * per_curve, M).reshape(N, M)
    mean, variance, log_density = grid_oracle(BSplines(D), B, X, Y, Xs, new, grid, noise)
    got, std = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got, mean, atol=1e-9)
    np.testing.assert_allclose(std**2, variance, atol=1e-9)
    assert model.log_evidence_ == pytest.approx(log_density, abs=1e-7)


def test_ragged_curves_equal_gaps_on_a_common_grid(data):
    X, grid, Y, Xs, new, B = data
    Y = mask(Y)
    observed = [np.isfinite(row) for row in Y]
    ragged = FunctionalData([row[o] for row, o in zip(Y, observed, strict=True)], [grid[o] for o in observed], (0, 1))
    model = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, **OPTIONS)
    expected = model.fit(X, FunctionalData(Y, grid, (0, 1))).predict(Xs, new, return_std=True)
    got = model.fit(X, ragged).predict(Xs, new, return_std=True)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_conjugate_gradients_equal_the_dense_solution(data, monkeypatch):
    X, grid, Y, Xs, new, B = data
    curves = FunctionalData(mask(Y), grid, (0, 1))
    model = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, **OPTIONS)
    expected = model.fit(X, curves).predict(Xs, new, return_std=True)
    draws = model.sample_functions(2, random_state=0)(Xs, new)
    monkeypatch.setattr(coordinate_posterior, "MAX_DENSE_ENTRIES", 10)
    got = model.fit(X, curves).predict(Xs, new, return_std=True)
    assert not model.posterior_.is_dense
    np.testing.assert_allclose(got, expected, atol=1e-7)
    np.testing.assert_allclose(model.sample_functions(2, random_state=0)(Xs, new), draws, atol=1e-6)


def test_plug_in_equals_exact_with_the_empirical_gram(data):
    """C-23: on a common grid the estimates agree if the quadrature of the Gram matrix is exact."""
    X, _, Y, Xs, new, _ = data
    grid = (np.arange(M) + 0.5) / M  # midpoints integrate trigonometric polynomials exactly
    curves = FunctionalData(Y, grid, (0, 1))
    models = [ovkgp.KernelProjectionRegressor(Fourier(3), method=method, **OPTIONS) for method in ("exact", "plug_in")]
    exact, plug_in = (model.fit(X, curves).predict(Xs, new) for model in models)
    np.testing.assert_allclose(exact, plug_in, atol=1e-10)


def test_plug_in_warns_about_few_points(data):
    X, grid, Y, *_ = data
    sparse = FunctionalData(np.where(np.arange(M) < 4, Y, np.nan), grid, (0, 1))
    with pytest.warns(FitWarning, match="Gram"):
        ovkgp.KernelProjectionRegressor(BSplines(D), method="plug_in", **OPTIONS).fit(X, sparse)


def test_effective_rank_equals_the_full_dictionary(data):
    """C-22, C-31: eigenvectors of the Gram matrix span the dictionary, with B = I; duplicated functions change nothing else."""
    X, grid, Y, Xs, new, _ = data
    curves = FunctionalData(Y, grid, (0, 1))
    doubled = Combination(BSplines(D), np.hstack([np.eye(D)] * 2) / np.sqrt(2))
    full = ovkgp.KernelProjectionRegressor(BSplines(D), **OPTIONS).fit(X, curves)
    truncated = ovkgp.KernelProjectionRegressor(doubled, rank_threshold=1e-10, **OPTIONS).fit(X, curves)
    assert truncated.dictionary_.num_functions == D
    np.testing.assert_allclose(truncated.predict(Xs, new), full.predict(Xs, new), atol=1e-9)
    few = ovkgp.KernelProjectionRegressor(BSplines(D), rank_threshold=0.05, **OPTIONS).fit(X, curves)
    assert few.dictionary_.num_functions < D


def test_path_equals_single_fits_and_leave_one_out(data):
    """C-17: leave-one-curve-out error in closed form and by refits, with the noise of the full data."""
    X, grid, complete, *_ = data
    for Y in (complete, mask(complete)):
        curves, lams = FunctionalData(Y, grid, (0, 1)), [1e-3, 1e-2, 1e-1]
        options = OPTIONS | {"lam": lams, "convention": "sum"}
        model = ovkgp.KernelProjectionRegressor(BSplines(D), **options).fit(X, curves)
        fixed = OPTIONS | {"lam": lams[1], "convention": "sum"}
        errors = []
        for i in range(N):
            keep = np.arange(N) != i
            one = ovkgp.KernelProjectionRegressor(BSplines(D), **fixed).fit(X[keep], curves[keep])
            errors.append(one.predict(X[[i]], grid)[0] - Y[i])
        assert model.lam_ == lams[int(np.argmin(model.path_.loo_error))]
        if np.isfinite(Y).all():  # the error of z differs by the part outside of the dictionary
            whole = np.mean(np.square(errors))
            Phi = BSplines(D)(grid)
            outside = np.mean(np.square(Y - Y @ np.linalg.pinv(Phi).T @ Phi.T))
            assert model.path_.loo_error[1] * D == pytest.approx(whole - outside, rel=1e-6)
        else:
            weights = np.isfinite(Y) / np.isfinite(Y).sum(1, keepdims=True)
            _, projected = collect_entries(model.coordinates_, curves, "mean", "equal")
            whole = np.nansum(weights * np.square(errors)) / N
            assert model.path_.loo_error[1] == pytest.approx(whole - projected.outside / N, rel=1e-6)


def test_evidence_selects_lam_of_the_dense_evidence(data):
    X, grid, _, Xs, new, _ = data
    rng = np.random.default_rng(2)
    complete = np.sin(3 * X[:, :1] + 5 * grid) + 0.3 * rng.standard_normal((N, M))
    for Y in (complete, mask(complete)):
        lams = np.geomspace(1e-4, 1, 9)
        model = ovkgp.KernelProjectionRegressor(BSplines(D), **(OPTIONS | {"lam": lams, "selection": "evidence"}))
        model.fit(X, FunctionalData(Y, grid, (0, 1)))
        counts = np.isfinite(Y).sum(1)
        dense = [
            grid_oracle(BSplines(D), np.eye(D), X, Y, Xs, new, grid, np.repeat(N * lam * counts, M).reshape(N, M))[2]
            for lam in lams
        ]
        np.testing.assert_allclose(model.path_.log_evidence, dense, atol=1e-6)
        assert model.lam_ == pytest.approx(lams[int(np.argmax(dense))])


def test_scale_maximizes_the_evidence(data):
    X, grid, complete, Xs, new, _ = data
    for Y in (3 * complete, mask(3 * complete)):
        curves = FunctionalData(Y, grid, (0, 1))
        given = ovkgp.KernelProjectionRegressor(BSplines(D), **OPTIONS).fit(X, curves)
        scaled = ovkgp.KernelProjectionRegressor(BSplines(D), **(OPTIONS | {"scale": "evidence"})).fit(X, curves)
        noise = np.repeat(N * LAM * np.isfinite(Y).sum(1), M).reshape(N, M)

        def negative(scale, noise=noise, Y=Y):
            s = float(np.exp(scale[0]))
            return -grid_oracle(BSplines(D), s * np.eye(D), X, Y, Xs, new, grid, s * noise)[2]

        found = minimize(negative, [0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
        assert scaled.scale_ == pytest.approx(np.exp(found.x[0]), rel=1e-5)
        assert scaled.log_evidence_ == pytest.approx(-found.fun, abs=1e-6)
        np.testing.assert_allclose(scaled.predict(Xs), given.predict(Xs), atol=1e-10)


@pytest.mark.parametrize("gaps", [False, True])
def test_square_loss_object_equals_the_ridge(data, gaps):
    """(1/n) Σ ½‖·‖² + (λ/2)‖h‖²: noise nλ."""
    X, grid, Y, Xs, new, B = data
    curves = FunctionalData(mask(Y) if gaps else Y, grid, (0, 1))
    ridge = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, **OPTIONS).fit(X, curves)
    options = OPTIONS | {"loss": Square(), "tolerance": 1e-12, "max_iter": 20000}
    solved = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, **options).fit(X, curves)
    np.testing.assert_allclose(solved.predict(Xs, new), ridge.predict(Xs, new), atol=1e-5)
    assert solved.gap_ <= 1e-12
    with pytest.raises(OptionError, match="predictive"):
        solved.predict(Xs, return_std=True)


def test_log_cosh_loss_is_stationary_bo_e_19_bo_e_21(data):
    """BO-E-19 and BO-E-21: the gradient (1/n) B Γ K + 2λBαK of (1/n) Σ L + λ‖h‖², with the derivative of the loss, vanishes."""
    X, grid, Y, _, _, _ = data
    nu = 5.0
    options = OPTIONS | {"loss": LogCosh(nu), "convention": "mean_halved", "tolerance": 1e-12, "max_iter": 50000}
    model = ovkgp.KernelProjectionRegressor(BSplines(D), **options).fit(X, FunctionalData(Y, grid, (0, 1)))
    Phi, K = BSplines(D)(grid), gauss(X, X)
    slopes = np.tanh(nu * (model.predict(X, grid) - Y))
    Gamma = slopes @ Phi / M  # (n, d)
    alpha = -Gamma / (2 * N * LAM)
    np.testing.assert_allclose(K @ alpha @ Phi.T, model.predict(X, grid), atol=1e-4)
    assert model.gap_ <= 1e-6


def test_bands_draws_and_intercept(data):
    X, grid, Y, Xs, new, _ = data
    model = ovkgp.KernelProjectionRegressor(BSplines(D), lam=0.1).fit(X, Y + 5, grid)
    mean, std = model.predict(Xs, new, return_std=True)
    lower, upper = model.predict_interval(Xs, 0.9, grid=new)
    np.testing.assert_allclose((lower + upper) / 2, mean, atol=1e-12)
    np.testing.assert_allclose(upper - lower, 2 * 1.6448536 * std, rtol=1e-6)
    wide = model.predict_interval(Xs, 0.9, simultaneous=True, grid=new)
    assert (wide[1] - wide[0] > upper - lower).all()
    draws = model.sample_functions(400, random_state=0)
    values = draws(Xs, new)
    assert values.shape == (400, 4, 3) and len(draws) == 400
    np.testing.assert_array_equal(draws[3](Xs, new), values[3])
    latent = model.predict(Xs, new, return_std=True, noise=False)[1]
    np.testing.assert_allclose(values.std(0), latent, rtol=0.25)
    np.testing.assert_allclose(values.mean(0), mean, atol=4 * latent.max() / 20)


@pytest.mark.slow
def test_simultaneous_bands_contain_curves_of_the_posterior(data):
    X, grid, Y, Xs, *_ = data
    for curves in (Y, mask(Y)):
        model = ovkgp.KernelProjectionRegressor(BSplines(D), lam=0.1).fit(X, FunctionalData(curves, grid, (0, 1)))
        lower, upper = model.predict_interval(Xs, 0.9, simultaneous=True, noise=False)
        draws = model.sample_functions(1000, random_state=0)(Xs)
        inside = ((draws >= lower) & (draws <= upper)).all(-1).mean()
        assert 0.86 < inside < 0.94


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("options", [{}, {"loss": LogCosh(5.0)}, {"lam": [1e-2, 1e-1]}])
def test_saved_models_predict_the_same(data, tmp_path, gaps, options):
    X, grid, Y, Xs, new, B = data
    model = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, **options)
    model.fit(X, FunctionalData(mask(Y) if gaps else Y, grid, (0, 1)))
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.predict(Xs, new), model.predict(Xs, new), rtol=1e-10)
    if not options.get("loss"):
        for got, expected in zip(loaded.predict_interval(Xs), model.predict_interval(Xs), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_curves_as_inputs_are_interpolated(data):
    _, grid, Y, *_ = data
    inputs = FunctionalData(np.where(np.arange(M) == 3, np.nan, Y), grid, (0, 1))
    model = ovkgp.KernelProjectionRegressor().fit(inputs, Y, grid)
    assert model.n_features_in_ == M
    assert model.predict(inputs).shape == (N, M)
    filled = inputs.resample(grid, extrapolate=True).values
    np.testing.assert_allclose(model.predict(filled), model.predict(inputs))


def test_invalid_data_and_options_are_rejected(data):
    X, grid, Y, Xs, *_ = data
    model = ovkgp.KernelProjectionRegressor()
    with pytest.raises(InputError, match="increasing"):
        model.fit(X, Y, grid[::-1])
    with pytest.raises(InputError, match="no observed"):
        model.fit(X, np.where(np.arange(N)[:, None] == 2, np.nan, Y), grid)
    with pytest.raises(InputError, match="output_matrix"):
        ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=np.eye(D + 1)).fit(X, Y, grid)
    with pytest.raises(DomainError, match="domain"):
        model.fit(X, Y, grid).predict(Xs, [0.5, 2.0])
    with pytest.raises(OptionError, match="plug_in"):
        ovkgp.KernelProjectionRegressor(method="plug_in", loss=LogCosh(1.0)).fit(X, Y)
    with pytest.raises(InputError, match="channel"):
        model.fit(X, FunctionalData(np.stack([Y, Y], -1), grid))
    with pytest.raises(InputError, match="rank_threshold"):
        ovkgp.KernelProjectionRegressor(rank_threshold=1e9).fit(X, Y, grid)


@pytest.mark.parametrize(
    "loss", [Pinball(), PinballEnvelope(0.1), CostSensitiveHinge(), OneClass(0.1)], ids=lambda loss: loss.name
)
@pytest.mark.parametrize("kind", [ovkgp.KernelProjectionRegressor, ovkgp.FeatureProjectionRegressor])
def test_losses_of_levels_are_rejected(data, loss, kind):
    """A position on a curve is not a quantile level or a cost."""
    X, grid, Y, *_ = data
    with pytest.raises(OptionError, match="level"):
        kind(loss=loss).fit(X, Y, grid)
