"""Properties of all estimators: predictions do not depend on the other rows of a batch, on units, or on the type of the inputs."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

import ovkgp
from ovkgp.exceptions import InputError
from tests.estimator_cases import default_cases

rng = np.random.default_rng(0)
N = 40
X = rng.uniform(0, 1, (N, 2))
CLEAN = np.c_[np.sin(4 * X[:, 0]) + X[:, 1], np.cos(3 * X[:, 1]) - X[:, 0]]
Y = CLEAN + 0.05 * rng.standard_normal((N, 2))
GAPS = np.where(rng.uniform(size=Y.shape) < 0.2, np.nan, Y)
COUNTS = rng.poisson(np.exp(CLEAN[:, 0]))
LABELS = np.where(Y[:, 0] > np.median(Y[:, 0]), 1, 0)
POINTS = rng.uniform(0, 1, (7, 2))
GRID = np.linspace(0, 1, 9)
CURVES = CLEAN[:, :1] * np.sin(3 * GRID) + CLEAN[:, 1:] * GRID**2 + 0.05 * rng.standard_normal((N, len(GRID)))
CURVE_GAPS = np.where(rng.uniform(size=CURVES.shape) < 0.2, np.nan, CURVES)
DISTANT = {"sentinel": [999999999.0, 999999999.0], "far": [1e5, -1e5], "huge": [1e155, 0.0]}


def gp(kernel="independent", Y=Y, **options):
    return of(ovkgp.GPRegressor, Y, **{"kernel": kernel, "random_state": 0} | options)


def of(kind, Y=Y, **options):
    """Return a function that fits to X and, if these are numbers, to a Y + b."""

    def fit(X=X, a=1.0, b=0.0):
        if Y is None:
            return kind(**options).fit(X)
        return kind(**options).fit(X, a * Y + b if Y.dtype.kind == "f" else Y)

    fit.kind = kind
    return fit


ESTIMATORS = {
    "auto": gp("auto"),
    "independent, gaps": gp(Y=GAPS),
    "decomposable": gp("decomposable"),
    "decomposable, gaps": gp("decomposable", GAPS),
    "lmc": gp("lmc"),
    "helmholtz": gp("helmholtz"),
    "curl-free": gp("curl_free"),
    "rbf": gp(base_kernel="rbf"),
    "matern12": gp(base_kernel="matern12"),
    "rq": gp(base_kernel="rq"),
    "laplace kernel": gp(base_kernel="laplace"),
    "kernel object": gp(ScaleKernel(MaternKernel(2.5, ard_num_dims=2)), Y[:, 0]),
    "base kernel object": gp("decomposable", base_kernel=RBFKernel()),
    "base kernel object, field": gp("helmholtz", base_kernel=RBFKernel()),
    "orff": gp(approximation="orff", num_frequencies=50),
    "nystrom": gp("decomposable", approximation="nystrom", num_frequencies=15),
    "variational": gp(approximation="variational", num_frequencies=15),
    "student": gp(likelihood="student_t", num_frequencies=15),
    "poisson": gp(Y=COUNTS, likelihood="poisson", num_frequencies=15),
    "laplace draws": gp(hyperparameters="laplace", sampling={"draws": 20, "max_draws": 5}),
    "exact ridge": of(ovkgp.OVKRidge, lam=0.01),
    "exact ridge, field": of(ovkgp.OVKRidge, kernel="curl_free", lam=0.01),
    "exact ridge, path": of(ovkgp.OVKRidge, lam=[0.01, 0.1], solver="cg"),
    "feature ridge": of(ovkgp.ORFFRidge, lam=0.01, num_frequencies=60, random_state=0),
    "manifold ridge": of(ovkgp.ManifoldRidge, lam=0.01, random_state=0),
    "constrained": of(ovkgp.ConstrainedORFF, num_frequencies=30, random_state=0),
    "simplex": of(ovkgp.SimplexClassifier, LABELS, lam=0.01, random_state=0),
    "quantiles": of(ovkgp.InfiniteQuantileRegressor, Y[:, 0], lam=1e-3, num_tasks=6, random_state=0),
    "vector tasks": of(ovkgp.VectorTaskRegressor, np.stack([Y, 2 * Y], 1), tasks=[0.0, 1.0]),
    "curves, auto": of(ovkgp.FunctionGPRegressor, CURVES, random_state=0),
    "curves, kernel": of(ovkgp.FunctionGPRegressor, CURVES, output_basis="kernel"),
    "curves, kernel object": of(
        ovkgp.FunctionGPRegressor, CURVES, kernel=ScaleKernel(MaternKernel(2.5)), task_kernel=RBFKernel()
    ),
    "curves, gaps": of(ovkgp.FunctionGPRegressor, CURVE_GAPS, kernel="rbf", task_kernel="matern52"),
    "curves, components": of(ovkgp.FunctionGPRegressor, CURVES, output_basis="pca", random_state=0),
    "curves, features": of(ovkgp.FeatureProjectionRegressor, CURVES, random_state=0),
    "curves, robust": of(ovkgp.RobustFunctionalRegressor, CURVES),
    "curves, triple basis": of(ovkgp.TripleBasisRegressor, CURVES, input_dictionary=None, random_state=0),
    "curves, additive": of(ovkgp.KernelAdditiveRegressor, CURVES),
    "curves, kernel average": of(ovkgp.KernelCurveRegressor, CURVES, lengthscale=0.3),
    "detector, projections": of(ovkgp.RandomProjectionDetector, None, random_state=0),
    "detector, chosen projections": of(ovkgp.RandomProjectionDetector, None, lengthscale="ks", random_state=0),
    "detector, landmarks": of(ovkgp.RandomProjectionDetector, None, approximation="nystrom", random_state=0),
    "detector, features": of(ovkgp.RandomProjectionDetector, None, approximation="orff", random_state=0),
    "detector, forest": of(ovkgp.OneClassForest, None, num_trees=20, random_state=0),
}
TARGETS = {"table": Y, "labels": LABELS, "curves": CURVES, "none": None}
ESTIMATORS |= {
    name: of(kind, TARGETS[target], **options)
    for name, (kind, target, options) in default_cases(fit.kind for fit in ESTIMATORS.values()).items()
}
METHODS = ("predict", "predict_std", "predict_proba", "decision_function", "score_samples")


@cache
def fitted(name):
    return ESTIMATORS[name]()


def predict_all(estimator, points):
    """All predictions of an estimator, as arrays with one entry per row."""
    found = {}
    for method in METHODS:
        if method == "predict_std" and (estimator.has_posterior or estimator.has_predictive):
            found["mean"], found["std"] = estimator.predict(points, return_std=True)
        elif hasattr(estimator, method):
            found[method] = np.asarray(getattr(estimator, method)(points))
    return found


@pytest.mark.parametrize("distant", DISTANT)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_predictions_do_not_depend_on_other_rows(name, distant):
    estimator, batch = fitted(name), np.vstack([POINTS[:4], [DISTANT[distant]], POINTS[4:]])
    if distant == "huge":  # squares overflow: an error names the row
        with pytest.raises(InputError, match="row 4"):
            predict_all(estimator, batch)
        return
    with np.errstate(all="ignore"):
        together = predict_all(estimator, batch)
    alone = [predict_all(estimator, point[None]) for point in POINTS]
    for method, values in together.items():
        expected = np.concatenate([found[method] for found in alone])
        rest = np.delete(values, 4, axis=0)
        if rest.dtype.kind in "OU":
            assert (rest == expected).all()
            continue
        assert np.isfinite(values.astype(float)).all(), method
        np.testing.assert_allclose(rest, expected, rtol=1e-10, atol=1e-10 * max(1.0, np.abs(expected).max()))


UNITLESS = (
    "simplex",
    "GPClassifier",
    "InfiniteCostSensitiveClassifier",
    "InfiniteOneClassSVM",
    "poisson",
    "constrained",
)
UNITLESS += tuple(name for name in ESTIMATORS if "detector" in name.lower())
"""Estimators without outputs, of labels or counts, or with a given radius of the weights."""
GIVEN_INPUT_UNIT = ("exact ridge, field", "curves, additive", "curves, kernel average")
"""Estimators with a scale or lengthscale in the unit of the inputs."""
WITHOUT_INTERCEPT = ("ridge", "vector tasks", "ONORMA")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_are_equivariant_under_units(name):
    """Predictions at cx + d of a fit to cX + d and aY + b are those at x, in the other unit.

    With a given λ the prior has a given scale: then the standard deviation does not depend on the unit of Y, and the scale of
    a field kernel, ℓ⁻², depends on that of X. Few draws are exchanged by rounding: for them the factors are powers of two.
    """
    has_given_scale = "ridge" in name or name == "ONORMA"
    c, d, a = 1.0 if name in GIVEN_INPUT_UNIT else 1e3, -7.0, 1.0 if name in UNITLESS else 1e-2
    b = 0.0 if name in UNITLESS or any(word in name for word in WITHOUT_INTERCEPT) else 50.0
    if name == "laplace draws":
        c, d, a, b = 1024.0, 0.0, 1 / 64, 0.0
    expected, found = (
        predict_all(fitted(name), POINTS),
        predict_all(ESTIMATORS[name](c * X + d, a, b), c * POINTS + d),
    )
    for method, values in found.items():
        if values.dtype.kind in "OUi":
            assert (values == expected[method]).all()
            continue
        back = values / (1.0 if has_given_scale else a) if method == "std" else (values - b) / a
        scale = np.abs(expected[method]).max()
        np.testing.assert_allclose(back, expected[method], rtol=0, atol=1e-5 * scale, err_msg=method)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_frames_arrays_tensors_and_dtypes_agree(name):
    estimator = fitted(name)
    expected = predict_all(estimator, POINTS)
    single = POINTS.astype(np.float32)
    for points, reference in (
        (pd.DataFrame(POINTS), expected),
        (torch.from_numpy(POINTS), expected),
        (np.asfortranarray(POINTS), expected),
        (POINTS.tolist(), expected),
        (single, predict_all(estimator, single.astype(np.float64))),
        (np.ones((3, 2), dtype=int), predict_all(estimator, np.ones((3, 2)))),
    ):
        for method, values in predict_all(estimator, points).items():
            if values.dtype.kind in "OUi":
                assert (values == reference[method]).all()
                continue
            atol = 1e-12 * np.abs(reference[method]).max()
            np.testing.assert_allclose(values, reference[method], rtol=1e-12, atol=atol, err_msg=method)


@pytest.mark.parametrize("spread", [1e6, 1e8])
def test_training_rows_in_distant_clusters_equal_dense_algebra(spread):
    """Lengthscale .5 and clusters at 0, spread and 2 spread; columns beyond three use another formula for distances."""
    rng = np.random.default_rng(0)
    centers = spread * (np.arange(30) % 3)[:, None]
    for num_dims in (1, 5):
        X = rng.uniform(0, 1, (30, num_dims)) + centers
        y = rng.standard_normal(30)
        kernel = ScaleKernel(MaternKernel(2.5))
        kernel.base_kernel.lengthscale, kernel.outputscale = 0.5, 1.0
        options = {"hyperparameters": "fixed", "noise": 0.01}
        model = ovkgp.GPRegressor(kernel, **options).fit(X, y)
        offset = np.ravel(model.predict(X[:1] + 1e15))[0]  # far from all data the prediction is the mean

        def dense(points, X=X):
            r = np.sqrt(5 * np.square(points[:, None] - X).sum(-1)) / 0.5
            return (1 + r + r**2 / 3) * np.exp(-r)

        points = X[:6] + 2.0**-7
        expected = offset + dense(points) @ np.linalg.solve(dense(X) + 0.01 * np.eye(30), y - offset)
        np.testing.assert_allclose(np.ravel(model.predict(points)), expected, rtol=0, atol=1e-8)
