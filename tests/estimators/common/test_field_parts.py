"""Potential, stream function, parts, curl, divergence and transport in original units, against the predicted field itself."""

import numpy as np
import pytest

import ovkgp
from ovkgp.exceptions import InputError, KernelTypeError, SmoothnessError

rng = np.random.default_rng(0)
X = np.array([200.0, -50.0]) + 30 * rng.uniform(-1, 1, (60, 2))
CENTERED = (X - [200.0, -50.0]) / 30
FLOW = np.array([0.8, -0.3])
Y = FLOW + 0.4 * np.c_[np.cos(2 * CENTERED[:, 1]), np.sin(2 * CENTERED[:, 0])] + 0.3 * CENTERED
Y += 0.02 * rng.standard_normal(Y.shape)
GAPS = np.where(rng.uniform(size=Y.shape) < 0.2, np.nan, Y)
POINTS = np.array([200.0, -50.0]) + 25 * rng.uniform(-1, 1, (6, 2))
REFERENCE = np.array([205.0, -55.0])
STEP = 1e-3

MODELS = {
    "exact": {},
    "rbf": {"base_kernel": "rbf"},
    "orff": {"approximation": "orff", "num_frequencies": 100},
    "draws": {"hyperparameters": "laplace", "sampling": {"draws": 20, "max_draws": 4}},
}


def fit(kernel, Y=Y, **options):
    return ovkgp.GPRegressor(kernel, random_state=0, **options).fit(X, Y)


@pytest.fixture(scope="module", params=MODELS)
def helmholtz(request):
    return fit("helmholtz", GAPS, **MODELS[request.param])


def slopes(function, points):
    """Gradient (m, ..., 2) by central differences."""
    shifts = STEP * np.eye(2)
    return np.stack([(function(points + s) - function(points - s)) / (2 * STEP) for s in shifts], -1)


def rotated(gradient):
    return np.stack([gradient[:, 1], -gradient[:, 0]], 1)


def latent(model):
    return lambda points: model.predict(points, noise=False)


def test_components_add_up_to_the_prediction(helmholtz):
    parts = helmholtz.components(POINTS)
    np.testing.assert_allclose(sum(parts.values()), helmholtz.predict(POINTS, noise=False), atol=1e-9)


def test_scalars_have_the_components_as_gradients(helmholtz):
    parts = helmholtz.components(POINTS)
    curl_free = slopes(lambda points: helmholtz.potential(points, REFERENCE), POINTS)
    divergence_free = rotated(slopes(lambda points: helmholtz.stream_function(points, REFERENCE), POINTS))
    np.testing.assert_allclose(curl_free, parts["curl_free"], atol=1e-5)
    np.testing.assert_allclose(divergence_free, parts["divergence_free"], atol=1e-5)
    assert abs(helmholtz.potential([REFERENCE], REFERENCE)) < 1e-9
    assert abs(helmholtz.stream_function([REFERENCE], REFERENCE)) < 1e-9


@pytest.mark.parametrize("kernel", ["curl_free", "divergence_free"])
def test_scalar_of_one_part_has_the_whole_prediction_as_gradient(kernel):
    model = fit(kernel)
    if kernel == "curl_free":
        found = slopes(model.potential, POINTS)
    else:
        found = rotated(slopes(model.stream_function, POINTS))
    np.testing.assert_allclose(found, model.predict(POINTS, noise=False), atol=1e-5)
    vanishing = model.curl if kernel == "curl_free" else model.divergence
    assert all((values == 0).all() for values in vanishing(POINTS, return_std=True))


def test_curl_and_divergence_are_derivatives_of_the_prediction(helmholtz):
    jacobian = slopes(latent(helmholtz), POINTS)  # (m, output, input)
    np.testing.assert_allclose(helmholtz.divergence(POINTS), jacobian[:, 0, 0] + jacobian[:, 1, 1], atol=1e-6)
    np.testing.assert_allclose(helmholtz.curl(POINTS), jacobian[:, 1, 0] - jacobian[:, 0, 1], atol=1e-6)


@pytest.mark.parametrize("kind", ["curl", "divergence"])
def test_std_of_derivatives_is_that_of_difference_quotients(kind):
    model, point, h = fit("helmholtz", base_kernel="rbf"), POINTS[0], 0.3
    stencil = point + h * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    _, cov = model.predict(stencil, return_cov="full", noise=False)
    weights = np.zeros((4, 2))
    if kind == "divergence":
        weights[0, 0], weights[1, 0], weights[2, 1], weights[3, 1] = 1, -1, 1, -1
    else:
        weights[0, 1], weights[1, 1], weights[2, 0], weights[3, 0] = 1, -1, -1, 1
    weights = weights.reshape(-1) / (2 * h)
    _, std = getattr(model, kind)([point], return_std=True)
    np.testing.assert_allclose(std[0], np.sqrt(weights @ cov @ weights), rtol=2e-3)


@pytest.mark.slow
def test_std_of_derivatives_with_features_is_near_the_exact_one():
    exact = fit("helmholtz", base_kernel="rbf", hyperparameters="evidence")
    features = fit("helmholtz", base_kernel="rbf", approximation="orff", num_frequencies=1000)
    for kind in ("curl", "divergence"):
        here, there = (getattr(model, kind)(POINTS, return_std=True)[1] for model in (exact, features))
        np.testing.assert_allclose(there, here, rtol=0.35)


@pytest.mark.parametrize("kernel", ["divergence_free", "helmholtz"])
def test_transport_of_the_divergence_free_part_is_the_difference_of_the_stream_function(kernel):
    model, line = fit(kernel), np.array([[185.0, -60.0], [190.0, -45.0], [210.0, -40.0]])
    mean, std = model.transport(line, return_std=True)
    ends, ends_std = model.stream_function(line[[0, -1]], line[0], return_std=True)
    if kernel == "divergence_free":
        np.testing.assert_allclose(mean, ends[1], rtol=1e-6)
        np.testing.assert_allclose(std, ends_std[1], rtol=1e-4)
    else:
        part = model.components(np.linspace(line[0], line[1], 5))["curl_free"]
        assert np.isfinite(mean) and std > 0 and part.shape == (5, 2)


def test_transport_out_of_a_square_is_the_integral_of_the_divergence():
    model, (x, y), half = fit("helmholtz"), (200.0, -50.0), 10.0
    square = np.array([[x - half, y - half], [x + half, y - half], [x + half, y + half], [x - half, y + half]])
    outward = model.transport(np.vstack([square, square[:1]]))  # counterclockwise: the outside is on the right
    nodes, weights = np.polynomial.legendre.leggauss(12)
    grid = np.stack(np.meshgrid(x + half * nodes, y + half * nodes), -1).reshape(-1, 2)
    area = half**2 * np.outer(weights, weights).reshape(-1)
    np.testing.assert_allclose(outward, area @ model.divergence(grid), rtol=1e-5)


def test_transport_of_independent_outputs():
    model = fit("independent")
    mean, std = model.transport([[190.0, -60.0], [190.0, -40.0]], return_std=True)
    assert 0 < std < abs(mean)
    np.testing.assert_allclose(mean, 20 * model.predict([[190.0, -50.0]])[0, 0], rtol=0.2)


def test_parts_follow_a_change_of_units():
    here, there = fit("helmholtz"), ovkgp.GPRegressor("helmholtz", random_state=0).fit(1000 * X, 100 * Y)
    for kind, factor in (("potential", 1e5), ("stream_function", 1e5), ("curl", 0.1), ("divergence", 0.1)):
        options = {"reference": REFERENCE} if factor > 1 else {}
        scaled = {"reference": 1000 * REFERENCE} if factor > 1 else {}
        expected = getattr(here, kind)(POINTS, return_std=True, **options)
        found = getattr(there, kind)(1000 * POINTS, return_std=True, **scaled)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, factor * one, rtol=1e-4, atol=1e-6 * factor)


def test_parts_of_a_saved_model_are_the_same(tmp_path, helmholtz):
    helmholtz.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    for kind in ("potential", "stream_function", "curl", "divergence"):
        np.testing.assert_allclose(
            getattr(loaded, kind)(POINTS), getattr(helmholtz, kind)(POINTS), rtol=1e-9, atol=1e-9
        )
    assert "standardized" in repr(loaded.posterior_.stream_function())


def test_ridge_with_a_field_kernel_has_parts():
    model = ovkgp.OVKRidge(kernel="curl_free", lam=1e-3, fit_intercept=True, lengthscale=20.0).fit(X, Y)
    np.testing.assert_allclose(slopes(model.potential, POINTS), model.predict(POINTS), atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.potential(POINTS),
        lambda model: model.components(POINTS),
        lambda model: model.curl(POINTS),
    ],
)
def test_parts_need_a_field_kernel(call):
    with pytest.raises(KernelTypeError, match="helmholtz"):
        call(fit("independent"))


def test_invalid_arguments_are_rejected():
    model = fit("divergence_free")
    with pytest.raises(InputError, match="line"):
        model.transport([[0.0, 1.0]])
    with pytest.raises(InputError, match="reference"):
        model.stream_function(POINTS, reference=[1.0])
    with pytest.raises(KernelTypeError, match="curl_free"):
        model.potential(POINTS)
    rough = fit("helmholtz", base_kernel="matern32")
    with pytest.raises(SmoothnessError, match="four derivatives"):
        rough.curl(POINTS, return_std=True)
