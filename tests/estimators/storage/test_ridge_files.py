"""Tests of saved ridge estimators and classifiers: the same predictions for all solvers, and errors that name what cannot be stored."""

import copy
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold
from storage_cases import assert_close

import ovkgp
from ovkgp import ManifoldRidge, ORFFRidge, OVKRidge, SimplexClassifier
from ovkgp.estimators.storage.file import read_model, write_model
from ovkgp.estimators.storage.values import decode, encode
from ovkgp.exceptions import InputError, KernelTypeError, ModelFileError, OptionError
from ovkgp.kernels import (
    DecomposableKernel,
    EmpiricalMatrix,
    GraphMatrix,
    IndependentKernel,
    KnownMatrix,
    ManifoldKernel,
    MeanRegularizedMatrix,
    OutputMatrix,
    SimplexMatrix,
    neighbor_laplacian,
)

N, P = 24, 2
NEW = np.random.default_rng(1).normal(size=(5, 2))
GAMMA = np.array([[2.0, 0.5], [0.5, 1.0]])
SAMPLE = torch.from_numpy(np.random.default_rng(2).normal(size=(9, 2)))


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.stack([np.sin(X[:, 0] + X[:, 1]), 3 + np.cos(X[:, 0])], 1) + 0.1 * rng.normal(size=(n, P))


def missing(X, Y):
    Y = Y.copy()
    Y[::4, 0], Y[1::5, 1] = np.nan, np.nan
    return X, Y


def few_labels(X, Y):
    Y = Y.copy()
    Y[9:] = np.nan
    return X, Y


def frames(X, Y):
    return pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])


def flat(X, Y):
    return X, Y[:, 0]


def weights(X, Y):
    return X, Y, 1.0 + np.arange(len(X)) % 3


def entry_weights(X, Y):
    return *missing(X, Y), 1.0 + np.arange(Y.size).reshape(Y.shape) % 3


def laplacian():
    return neighbor_laplacian(table()[0], 3)


def full_penalty():
    root = np.random.default_rng(5).normal(size=(N * P, 6))
    return root @ root.T / 10


def decomposable():
    return DecomposableKernel(RBFKernel(), output_matrix=KnownMatrix(torch.from_numpy(GAMMA)))


def independent():
    return IndependentKernel([RBFKernel(ard_num_dims=2), ScaleKernel(RBFKernel(ard_num_dims=2))])


SCALED = {"scale": "evidence"}
SEVERAL = [1e-3, 1e-2, 0.1]
EXACT = {
    "auto": ({}, None),
    "one-dimensional y": ({"convention": "mean"}, flat),
    "data frames, intercept": ({"fit_intercept": True}, frames),
    "several lam": ({"lam": SEVERAL}, None),
    "several lam, reversed array": ({"lam": np.array(SEVERAL)[::-1], "selection": "evidence"}, missing),
    "eigen": ({"kernel": "decomposable", "solver": "eigen"}, None),
    "closed form": ({"kernel": "decomposable", "solver": "closed_form"}, missing),
    "conjugate gradients": ({"kernel": "decomposable", "solver": "cg"}, missing),
    "scaled": ({"kernel": "decomposable", **SCALED}, None),
    "scaled, curl-free": ({"kernel": "curl_free", "base_kernel": "matern52", **SCALED}, missing),
    "helmholtz": ({"kernel": "helmholtz"}, None),
    "divergence-free": ({"kernel": "divergence_free", "lengthscale": 0.7}, None),
    "weights": ({"convention": "mean"}, weights),
    "weights of entries": ({"kernel": "decomposable"}, entry_weights),
    "metric": ({"output_metric": GAMMA}, missing),
    "metric as a list": ({"output_metric": [1.0, 2.0], **SCALED}, None),
    "matrix array": ({"output_matrix": np.asfortranarray(GAMMA)}, None),
    "matrix list": ({"output_matrix": GAMMA.tolist()}, None),
    "matrix tensor": ({"output_matrix": torch.from_numpy(GAMMA)}, None),
    "known matrix": ({"output_matrix": KnownMatrix(torch.from_numpy(GAMMA))}, None),
    "graph": ({"output_matrix": GraphMatrix(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), ridge=0.3)}, None),
    "simplex": ({"output_matrix": SimplexMatrix(2)}, None),
    "empirical": ({"output_matrix": EmpiricalMatrix(SAMPLE, shrinkage=0.2)}, missing),
    "mean regularized": ({"output_matrix": MeanRegularizedMatrix(2, coupling=0.3)}, None),
    "kernel object": ({"kernel": decomposable(), **SCALED}, None),
    "scaled kernel object": ({"kernel": ScaleKernel(decomposable())}, missing),
    "independent outputs": ({"kernel": independent()}, missing),
    "base kernel object": ({"kernel": "decomposable", "base_kernel": RBFKernel(active_dims=(1,))}, None),
    "manifold kernel object": (
        {"kernel": ManifoldKernel(decomposable().double(), table()[0], laplacian(), learn_strength=True)},
        None,
    ),
}
FEATURES = {
    "features": ({}, None),
    "features, several lam": ({"lam": SEVERAL, "selection": "evidence", **SCALED}, None),
    "features, leave-one-out": ({"lam": tuple(SEVERAL)}, missing),
    "features, eigen": ({"solver": "eigen"}, None),
    "features, closed form": ({"solver": "closed_form", "variance": "features"}, missing),
    "features, curl-free": ({"kernel": "curl_free", **SCALED}, None),
    "features, helmholtz": ({"kernel": "helmholtz"}, missing),
    "features, data frames": ({"kernel": "decomposable", "fit_intercept": True, "convention": "mean"}, frames),
    "features, weights": ({"kernel": "decomposable"}, weights),
    "features, independent outputs": ({"kernel": independent()}, missing),
    "features, metric": ({"output_metric": GAMMA}, missing),
    "blocks": ({"block_size": 5}, None),
    "blocks, matrix": ({"block_size": 10, "output_matrix": GAMMA, **SCALED}, missing),
    "blocks, closed form": ({"block_size": 5, "kernel": "curl_free", "solver": "closed_form"}, None),
}
VIEWS = np.kron([[0.4, 0.6]], np.eye(2))
MANIFOLD = {
    "neighbors": ({}, few_labels),
    "clusters": ({"manifold": "clusters", "num_neighbors": 4}, few_labels),
    "dense penalty": ({"manifold": laplacian().toarray()}, few_labels),
    "penalty of all outputs": ({"manifold": full_penalty(), "kernel": "decomposable"}, few_labels),
    "sparse array": ({"manifold": sparse.csr_array(laplacian())}, few_labels),
    "sparse matrix": ({"manifold": sparse.coo_matrix(laplacian())}, few_labels),
    "scaled manifold": ({**SCALED, "lam_manifold": 0.3}, few_labels),
    "curl-free manifold": ({"kernel": "curl_free", **SCALED}, few_labels),
    "no penalty": ({"lam_manifold": 0.0}, few_labels),
    "manifold features": ({"num_frequencies": 10}, few_labels),
    "manifold features, scaled": ({"num_frequencies": 10, "kernel": "decomposable", **SCALED}, few_labels),
    "manifold features, dense": ({"num_frequencies": 10, "manifold": full_penalty()}, few_labels),
    "combination": ({"combination": VIEWS}, few_labels),
    "combination, scaled": ({"combination": VIEWS.tolist(), **SCALED}, few_labels),
    "combination, features": ({"combination": VIEWS, "num_frequencies": 10, **SCALED}, few_labels),
    "manifold, kernel object": ({"kernel": decomposable(), **SCALED}, few_labels),
}
CASES = {name: (OVKRidge, {"lam": 0.05} | options, shape) for name, (options, shape) in EXACT.items()}
CASES |= {
    name: (ORFFRidge, {"lam": 0.05, "num_frequencies": 20, "random_state": 0} | options, shape)
    for name, (options, shape) in FEATURES.items()
}
CASES |= {
    name: (ManifoldRidge, {"lam": 0.01, "num_neighbors": 3, "random_state": 0} | options, shape)
    for name, (options, shape) in MANIFOLD.items()
}


def data_of(case, n=N, seed=0):
    shape = CASES[case][2]
    return table(n, seed) if shape is None else shape(*table(n, seed))


@cache
def fitted(case):
    """Return a fitted ridge estimator, shared by the tests and never modified."""
    kind, options, _ = CASES[case]
    return kind(**options).fit(*data_of(case))


def points(model):
    names = getattr(model, "feature_names_in_", None)
    return NEW if names is None else pd.DataFrame(NEW, columns=names)


def predictions_by_name(model, X, y, weight=None):
    """Yield everything that a ridge estimator computes."""
    new = points(model)
    yield "mean and std", model.predict(new, return_std=True)
    yield "latent std", model.predict(new, return_std=True, noise=False)
    yield "covariance", model.predict(new, return_cov=True)
    yield "whole covariance", model.predict(new, return_cov="full")
    yield "draws", model.sample_y(new, 2, random_state=2)
    yield "score", model.score(X, y)
    yield "leave-one-out", model.leave_one_out(X, y, weight)
    lams = None if isinstance(model, ManifoldRidge) else [0.1, 0.2]
    yield "path", path_numbers(model.path(X, y, lams, weight))
    for name in ("lam_", "noise_", "scale_", "kernel_", "n_iter_", "dual_coef_", "coef_", "_scaled_noise", "_counts"):
        if not is_split(model, name):
            yield name, getattr(model, name, None)
    if hasattr(model, "path_"):
        yield "selection path", path_numbers(model.path_)


def is_split(model, name):
    """Whether outputs were fitted separately, so that there is no single coefficient vector."""
    return name in ("dual_coef_", "coef_", "n_iter_") and hasattr(model.posterior_, "parts")


def path_numbers(path):
    return [path.lam, path.noise, path.log_evidence, path.loo_error, path.loo_log_density]


def assert_equal_predictions(model, other, *data):
    for (name, mine), (_, yours) in zip(
        predictions_by_name(model, *data), predictions_by_name(other, *data), strict=True
    ):
        mine, yours = (part if isinstance(part, tuple | list) else (part,) for part in (mine, yours))
        for left, right in zip(mine, yours, strict=True):
            assert type(left) is type(right), name
            if left is None or isinstance(left, str):
                assert left == right, name
            else:
                assert_close(right, left, name)


def assert_equal_covariances(model, other):
    both = (one.predict(points(one), return_cov="full") for one in (model, other))
    for mine, yours in zip(*both, strict=True):
        assert_close(yours, mine)


def dense(value):
    """Return an option that is a matrix of any kind as an array."""
    if isinstance(value, OutputMatrix):
        return value().detach().numpy()
    if sparse.issparse(value):
        return value.toarray()
    return value.to_dense().numpy() if torch.is_tensor(value) else value


def assert_same_options(model, other):
    for name, value in model.get_params(deep=False).items():
        loaded = getattr(other, name)
        if isinstance(value, Kernel):
            assert type(loaded) is type(value) and same_tensors(loaded.state_dict(), value.state_dict())
        else:
            assert type(loaded) is type(value) and np.array_equal(dense(loaded), dense(value)), name


def same_tensors(mine, yours):
    return mine.keys() == yours.keys() and all(
        mine[name].dtype == yours[name].dtype and torch.equal(mine[name], yours[name]) for name in mine
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.ovkgp"


def through(model, path, **options):
    """Save and load a model."""
    model.save(path)
    return ovkgp.load(path, **options)


# --- predictions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_loaded_ridge_predicts_the_same(case, path):
    model = fitted(case)
    model.save(path)
    loaded = ovkgp.load(path)
    assert type(loaded) is type(model) and type(loaded.posterior_) is type(model.posterior_)
    assert vars(loaded).keys() == vars(model).keys()
    assert loaded.output_names_ == model.output_names_ and loaded._is_flat == model._is_flat
    assert same_tensors(loaded._kernel.state_dict(), model._kernel.state_dict())
    assert same_tensors(loaded.gp_.state_dict(), model.gp_.state_dict())
    assert_same_options(model, loaded)
    assert_equal_predictions(model, loaded, *data_of(case))


@pytest.mark.parametrize(
    "case", ["scaled", "several lam", "blocks", "features, curl-free", "manifold features, scaled"]
)
def test_loaded_ridge_saves_to_same_file(case, path):
    through(fitted(case), path).save(path.with_name("again"))
    (tensors, header), (tensors_again, header_again) = read_model(path), read_model(path.with_name("again"))
    assert header == header_again and same_tensors(tensors, tensors_again)


@pytest.mark.parametrize("case", ["auto", "features", "blocks", "features, independent outputs"])
def test_loaded_ridge_samples_same_functions(case, path):
    model = fitted(case)
    drawn = [one.sample_functions(2, random_state=3)(NEW) for one in (model, through(model, path))]
    assert_close(*drawn)


STREAMED = [case for case in FEATURES if CASES[case][1].get("solver", "auto") == "auto" and "leave" not in case]


@pytest.mark.parametrize("case", STREAMED)
def test_loaded_ridge_continues_partial_fit(case, path):
    model, loaded = copy.deepcopy(fitted(case)), through(fitted(case), path)
    for seed in (5, 6):
        for one in (model, loaded):
            one.partial_fit(*data_of(case, n=10, seed=seed))
    assert loaded._counts == model._counts and loaded._counts[0] > fitted(case)._counts[0]
    assert loaded.lam_ == model.lam_ and loaded.noise_ == model.noise_
    assert_equal_covariances(model, loaded)


def test_ridge_stream_can_be_saved_between_calls(path):
    options = {"lam": 0.1, "convention": "mean", "num_frequencies": 10}  # the seed is drawn once and stored
    model = ORFFRidge(**options).fit_stream([table(), table(seed=1)])
    stored = through(model, path)
    for seed in range(2, 5):
        model.partial_fit(*table(seed=seed))
        stored = through(stored, path).partial_fit(*table(seed=seed))
    assert_equal_predictions(model, stored, *table())


def test_load_does_not_depend_on_default_dtype(path):
    model, before = fitted("blocks"), torch.get_default_dtype()
    model.save(path)
    try:
        torch.set_default_dtype(torch.float64)
        loaded = ovkgp.load(path)
    finally:
        torch.set_default_dtype(before)
    assert_close(loaded.predict(NEW), model.predict(NEW))


@pytest.mark.parametrize("case", ["several lam", "scaled", "graph", "blocks", "sparse array", "neighbors"])
def test_loaded_ridge_can_be_cloned_and_refitted(case, path):
    loaded = through(fitted(case), path)
    again = clone(loaded)
    assert not hasattr(again, "posterior_")
    assert_equal_predictions(again.fit(*data_of(case)), fitted(case), *data_of(case))


@pytest.mark.parametrize("case", ["auto", "scaled", "features, curl-free", "scaled manifold"])
@pytest.mark.parametrize(
    "changed", [{"lam": 7.0}, {"kernel": "helmholtz"}, {"output_metric": [1.0, 2.0]}, {"lengthscale": 9.0}]
)
def test_save_ridge_keeps_options_changed_after_fit(case, changed, path):
    model = copy.deepcopy(fitted(case)).set_params(**changed)
    loaded = through(model, path)
    assert_same_options(model, loaded)
    assert_equal_covariances(model, loaded)


def test_load_keeps_sparse_laplacians(path):
    model = fitted("neighbors")
    loaded = through(model, path)
    assert type(loaded.manifold_) is type(model.manifold_) and (loaded.manifold_ != model.manifold_).nnz == 0
    assert loaded.gp_.kernel.penalty.is_sparse == model.gp_.kernel.penalty.is_sparse


# --- classifiers ----------------------------------------------------------------------------------------------------


def labeled_table(kind="numbers", n=30):
    X = np.random.default_rng(3).normal(size=(n, 2))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
    names = {"strings": np.array(["elm", "oak", "yew"]), "objects": np.array(["elm", "oak", "yew"], dtype=object)}
    names |= {"unsigned": np.array([2, 5, 9], dtype=np.uint32), "booleans": np.array([False, True, True])}
    return X, names.get(kind, np.array([1, 4, 8]))[y]


CLASSIFIERS = {
    "codes": ({}, "numbers"),
    "one-hot": ({"coding": "one_hot"}, "strings"),
    "two classes": ({"lam": SEVERAL}, "booleans"),
    "objects": ({"base_kernel": RBFKernel(ard_num_dims=2)}, "objects"),
    "random features": ({"num_frequencies": 20}, "unsigned"),
    "random features, one-hot": ({"num_frequencies": 20, "coding": "one_hot", "lam": SEVERAL}, "numbers"),
    "kernel object": ({"kernel": decomposable()}, "strings"),
}
WEIGHTED = ("one-hot", "random features")


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_loaded_classifier_predicts_the_same(case, path):
    options, kind = CLASSIFIERS[case]
    X, y = labeled_table(kind)
    model = SimplexClassifier(**({"lam": 0.1, "cv": 2, "random_state": 0} | options))
    model.fit(X, y, 1.0 + np.arange(len(X)) % 2 if case in WEIGHTED else None)
    loaded = through(model, path)
    assert type(loaded) is SimplexClassifier and vars(loaded).keys() == vars(model).keys()
    assert loaded.classes_.dtype == model.classes_.dtype and np.array_equal(loaded.classes_, model.classes_)
    assert vars(loaded.calibration_).keys() == vars(model.calibration_).keys()
    for name, value in vars(model.calibration_).items():
        assert type(getattr(loaded.calibration_, name)) is type(value)
        assert np.array_equal(getattr(loaded.calibration_, name), value)
    assert_same_options(model, loaded)
    assert_same_options(model.ridge_, loaded.ridge_)
    assert loaded.lam_ == model.lam_ and loaded.noise_ == model.noise_ and loaded.score(X, y) == model.score(X, y)
    for method in ("predict", "predict_proba", "decision_function", "scores"):
        found, expected = (getattr(one, method)(NEW) for one in (loaded, model))
        assert np.array_equal(found, expected) if method == "predict" else assert_close(found, expected) is None
    for found, expected in zip(loaded.scores(NEW, return_std=True), model.scores(NEW, return_std=True), strict=True):
        assert_close(found, expected)
    assert np.array_equal(clone(loaded).fit(X, y).predict_proba(NEW), clone(model).fit(X, y).predict_proba(NEW))


def test_loaded_classifier_keeps_feature_names(path):
    X, y = labeled_table()
    frame = pd.DataFrame(X, columns=["east", "north"])
    model = SimplexClassifier(cv=3).fit(frame, y)
    loaded = through(model, path)
    assert list(loaded.feature_names_in_) == ["east", "north"]
    assert_close(loaded.predict_proba(frame), model.predict_proba(frame))


# --- custom kernels -------------------------------------------------------------------------------------------------


class CustomKernel(RBFKernel):
    """Kernel class that no file can describe."""


def custom_kernel():
    kernel = DecomposableKernel(CustomKernel(), output_matrix=torch.from_numpy(GAMMA))
    kernel.base_kernel.lengthscale = 0.8
    return kernel


@pytest.mark.parametrize("scale", ["given", "evidence"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(OVKRidge, {}), (ManifoldRidge, {"num_neighbors": 3}), (ManifoldRidge, {"manifold": full_penalty()})],
)
def test_load_ridge_fills_custom_kernel(kind, options, scale, path):
    model = kind(custom_kernel(), scale=scale, **options).fit(*few_labels(*table()))
    model.save(path)
    with pytest.raises(OptionError, match=r"load\(path, kernel="):
        ovkgp.load(path)
    loaded = ovkgp.load(path, kernel=custom_kernel())
    assert same_tensors(loaded._kernel.state_dict(), model._kernel.state_dict())
    assert_equal_predictions(model, loaded, *few_labels(*table()))


def test_load_classifier_fills_custom_base_kernel(path):
    model = SimplexClassifier(base_kernel=CustomKernel(), coding="one_hot", cv=3).fit(*labeled_table())
    loaded = through(model, path, kernel=CustomKernel())
    assert type(loaded.base_kernel) is type(loaded.ridge_.base_kernel) is CustomKernel
    assert_close(loaded.predict_proba(NEW), model.predict_proba(NEW))


def test_save_ridge_rejects_kernel_changed_after_fit(path):
    model = copy.deepcopy(fitted("kernel object")).set_params(kernel=ScaleKernel(decomposable()))
    with pytest.raises(OptionError, match="changed after fitting"):
        model.save(path)
    assert not path.exists()


class CustomMatrix(OutputMatrix):
    def __init__(self):
        super().__init__(2)

    def forward(self):
        return torch.eye(2, dtype=torch.float64)


def test_save_rejects_custom_output_matrix(path):
    model = OVKRidge(output_matrix=CustomMatrix()).fit(*table())
    with pytest.raises(KernelTypeError, match=r"output_matrix is a CustomMatrix"):
        model.save(path)
    assert not path.exists()


# --- invalid models and files ---------------------------------------------------------------------------------------

BY_PRODUCTS = {
    "lbfgs": lambda: OVKRidge(solver="lbfgs"),
    "cg, curl-free": lambda: OVKRidge("curl_free", solver="cg"),
    "features, cg": lambda: ORFFRidge(solver="cg", num_frequencies=10),
    "features, lbfgs": lambda: ORFFRidge(solver="lbfgs", num_frequencies=10),
    "features, doubly_sgd": lambda: ORFFRidge(solver="doubly_sgd", num_frequencies=10),
    "classifier": lambda: SimplexClassifier(solver="lbfgs", cv=3),
}


@pytest.mark.parametrize("case", BY_PRODUCTS)
def test_save_rejects_matrix_free_posteriors(case, path):
    model = BY_PRODUCTS[case]().fit(*(labeled_table() if case == "classifier" else table()))
    with pytest.raises(OptionError, match="closed_form"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        (ORFFRidge(num_frequencies=5), "learning_rate", lambda step: 1 / (1 + step)),
        (SimplexClassifier(), "cv", KFold(3)),
        (OVKRidge(), "output_metric", pd.Series([1.0, 1.0])),
        (OVKRidge(), "output_metric", np.ones(2, dtype=complex)),
    ],
)
def test_save_names_unsupported_options(model, name, value, path):
    data = labeled_table() if isinstance(model, SimplexClassifier) else table()
    model = clone(model).fit(*data).set_params(**{name: value})
    with pytest.raises(InputError, match=name):
        model.save(path)
    assert not path.exists()


KINDS = [OVKRidge, ORFFRidge, ManifoldRidge, SimplexClassifier]


@pytest.mark.parametrize("kind", KINDS)
def test_save_rejects_unfitted_estimator(kind, path):
    with pytest.raises(NotFittedError):
        kind().save(path)


@pytest.mark.parametrize("kind", KINDS)
def test_save_rejects_subclass(kind, path):
    subclass = type("Subclass", (kind,), {})
    with pytest.raises(InputError, match="Subclass"):
        subclass().save(path)


def small(kind):
    options = {"num_frequencies": 5, "random_state": 0} if kind is ORFFRidge else {}
    return kind(**options).fit(*(labeled_table() if kind is SimplexClassifier else table()))


@pytest.mark.parametrize("kind", KINDS)
def test_load_rejects_damaged_file(kind, path):
    small(kind).save(path)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[:-1], data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError):
            ovkgp.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_load_rejects_missing_tensor_or_attribute(kind, path):
    small(kind).save(path)
    tensors, header = read_model(path)
    for name in tensors:
        write_model(path, {key: tensor for key, tensor in tensors.items() if key != name}, header)
        with pytest.raises((ModelFileError, OptionError)):
            ovkgp.load(path)
    for name in header["fitted"]:
        attributes = {key: value for key, value in header["fitted"].items() if key != name}
        write_model(path, tensors, {**header, "fitted": attributes})
        with pytest.raises(ModelFileError, match=name):
            ovkgp.load(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("os.system", "not an estimator"), ("Estimator", "not an estimator"), ("GPRegressor", "does not describe")],
)
def test_load_rejects_unknown_class_inside_classifier(name, message, path):
    small(SimplexClassifier).save(path)
    tensors, header = read_model(path)
    header["ridge_"]["estimator"] = name
    write_model(path, tensors, header)
    with pytest.raises(ModelFileError, match=message):
        ovkgp.load(path)


def test_save_and_load_do_not_warn(path):
    model = fitted("kernel object")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        through(model, path)


# --- values ---------------------------------------------------------------------------------------------------------

VALUES = {
    "reversed": np.arange(3.0)[::-1],
    "by columns": np.asfortranarray(GAMMA),
    "read-only": np.broadcast_to(np.float32(2.0), (2, 3)),
    "booleans": np.array([True, False]),
    "bytes": np.array([1, 255], dtype=np.uint8),
    "unsigned": np.array([[1, 2**40]], dtype=np.uint64),
    "strings": np.array(["a", "été"]),
    "objects": np.array(["a", 1, None], dtype=object),
    "empty": np.zeros((0, 2)),
    "tensor": torch.arange(3),
    "sparse tensor": torch.eye(3).to_sparse(),
    **{form: getattr(sparse, form)(np.diag([1.0, 0.0, 2.0])) for form in ("csr_array", "csc_matrix", "dia_array")},
}


@pytest.mark.parametrize("case", VALUES)
def test_encode_round_trip_is_exact(case, path):
    value = VALUES[case]
    tensors = {}
    write_model(path, tensors, {"entry": encode(case, value, tensors)})
    tensors, header = read_model(path)
    again = decode(header["entry"], tensors)
    assert type(again) is type(value) and again.dtype == value.dtype and again.shape == value.shape
    assert getattr(again, "layout", None) == getattr(value, "layout", None)
    assert np.array_equal(dense(again), dense(value))


@pytest.mark.parametrize("entry", [{"dtype": "M8[s]", "items": [1]}, {"dtype": "c16", "items": [1]}])
def test_decode_rejects_unsupported_dtypes(entry):
    with pytest.raises(ModelFileError, match="does not support"):
        decode(entry, {})


@pytest.mark.parametrize(
    "model",
    [
        SimplexClassifier(cv=2),
        ovkgp.InfiniteCostSensitiveClassifier(num_tasks=3, random_state=0),
        ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=0.1, num_tasks=3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_loaded_model_keeps_output_name(model, tmp_path):
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    y = (X["a"] > 0).astype(float)
    assert clone(model).fit(X.to_numpy(), y.to_numpy()).output_names_ == ["y"]
    model = clone(model).fit(X, y.rename("bought"))
    model.save(tmp_path / "model.ovkgp")
    again = ovkgp.load(tmp_path / "model.ovkgp")
    assert again.output_names_ == model.output_names_ == ["bought"]
    assert again.feature_names_in_.tolist() == ["a", "b"]
