"""Tests of saved regressors: loaded models predict the same to 1e-12, and invalid files are rejected."""

import copy
import dataclasses
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from storage_cases import assert_close

import ovkgp
from ovkgp import GPRegressor
from ovkgp.estimators.storage import file as model_file
from ovkgp.estimators.storage.file import FORMAT_VERSION, read_model, write_model
from ovkgp.exceptions import InputError, KernelTypeError, ModelFileError, OptionError, OvkgpError
from ovkgp.inference.algebra.kronecker_missing import MissingSolver
from ovkgp.inference.strategies import features as features_strategy
from ovkgp.inference.strategies import selection as strategies
from ovkgp.kernels import DecomposableKernel, KnownMatrix

N, P = 30, 2
NEW = np.random.default_rng(1).normal(size=(7, 2))


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    mixed = np.stack([np.sin(X[:, 0] + X[:, 1]), 3 + 2 * np.cos(X[:, 0])], 1)
    return X, mixed + 0.1 * rng.normal(size=(n, P))


def holes(Y):
    Y = Y.copy()
    Y[::4, 0], Y[1::5, 1] = np.nan, np.nan
    return Y


def variances(Y):
    return 0.01 * (1 + np.arange(Y.size).reshape(Y.shape) % 3)


def frames(X, Y):
    return pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])


def flat(X, Y):
    return X, Y[:, 0]


def one_column(X, Y):
    return X, Y[:, :1]


def known(X, Y):
    return X, Y, variances(Y)


def known_with_holes(X, Y):
    return X, holes(Y), variances(Y)


def missing(X, Y):
    return X, holes(Y)


def by_columns(X, Y):
    return np.asfortranarray(X), np.asfortranarray(Y)


def decomposable():
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1)
    kernel.base_kernel.lengthscale = torch.tensor([0.7, 1.9])
    return kernel


def coregionalized():
    return DecomposableKernel(MaternKernel(nu=1.5), output_matrix=KnownMatrix(torch.tensor([[2.0, 0.5], [0.5, 1.0]])))


SIGMA = np.array([[0.02, 0.005], [0.005, 0.03]])
EXACT = {
    "auto, trained": ({"hyperparameters": "evidence"}, None),
    "full noise, trained": ({"kernel": "decomposable", "noise": "full", "hyperparameters": "evidence"}, None),
    "independent": ({"kernel": "independent"}, missing),
    "independent, known noise": ({"kernel": "independent"}, known_with_holes),
    "one-dimensional y": ({}, flat),
    "one column": ({"hyperparameters": "evidence"}, one_column),
    "kronecker": ({"kernel": "decomposable"}, None),
    "kronecker, by columns": ({"kernel": "decomposable"}, by_columns),
    "kronecker, shared noise": ({"kernel": "decomposable", "noise": "shared"}, None),
    "missing": ({"kernel": "decomposable", "noise": "full"}, missing),
    "missing, trained, data frames": ({"hyperparameters": "evidence"}, lambda X, Y: frames(X, holes(Y))),
    "data frames": ({"kernel": "decomposable"}, frames),
    "known noise": ({"kernel": "decomposable"}, known),
    "known noise, missing": ({"kernel": "lmc"}, known_with_holes),
    "lmc": ({"kernel": "lmc", "base_kernel": "rq"}, None),
    "curl-free": ({"kernel": "curl_free"}, None),
    "divergence-free": ({"kernel": "divergence_free", "hyperparameters": "evidence"}, None),
    "helmholtz": ({"kernel": "helmholtz", "base_kernel": "rbf"}, missing),
    "kernel object": ({"kernel": decomposable()}, None),
    "kernel object, trained": ({"kernel": coregionalized(), "hyperparameters": "evidence"}, None),
    "base kernel object": ({"kernel": "lmc", "base_kernel": RBFKernel(active_dims=(1,))}, None),
    "fixed noise": ({"kernel": "decomposable", "noise": 0.02}, None),
    "fixed noises": ({"kernel": "decomposable", "noise": [0.02, 0.04]}, missing),
    "fixed noise matrix": ({"kernel": "decomposable", "noise": SIGMA}, None),
    "fixed noise tensor": ({"kernel": "decomposable", "noise": torch.from_numpy(SIGMA)}, missing),
    "options from NumPy": ({"rank": np.int64(1), "noise": np.float64(0.1), "training_rows": None}, None),
}
FEATURES = {
    "orff": ({"approximation": "orff"}, None),
    "orff, trained": ({"approximation": "orff", "hyperparameters": "evidence", "kernel": "decomposable"}, None),
    "orff, bare variance": ({"approximation": "orff", "kernel": "decomposable", "variance": "features"}, None),
    "orff, independent": ({"approximation": "orff", "kernel": "independent"}, missing),
    "orff, missing": ({"approximation": "orff", "kernel": "decomposable"}, missing),
    "orff, full noise, missing": ({"approximation": "orff", "kernel": "decomposable", "noise": "full"}, missing),
    "orff, known noise": ({"approximation": "orff", "kernel": "decomposable"}, known_with_holes),
    "orff, lmc": ({"approximation": "orff", "kernel": "lmc"}, None),
    "orff, one-dimensional y": ({"approximation": "orff"}, flat),
    "orff, curl-free": ({"approximation": "orff", "kernel": "curl_free", "base_kernel": "rbf"}, None),
    "orff, helmholtz": ({"approximation": "orff", "kernel": "helmholtz"}, None),
    "orff, data frames": ({"approximation": "orff", "kernel": "decomposable"}, frames),
    "orff, kernel object": ({"approximation": "orff", "kernel": coregionalized()}, None),
    "nystrom": ({"approximation": "nystrom", "kernel": "decomposable"}, None),
    "nystrom, independent": ({"approximation": "nystrom", "kernel": "independent"}, missing),
    "nystrom, helmholtz": ({"approximation": "nystrom", "kernel": "helmholtz", "variance": "features"}, None),
}
CASES = EXACT | FEATURES


def data_of(case, n=N, seed=0):
    shape = CASES[case][1]
    X, Y = table(n, seed)
    return (X, Y) if shape is None else shape(X, Y)


@cache
def fitted(case):
    """Return a fitted regressor, shared by the tests and never modified."""
    options = {"hyperparameters": "fixed", "num_frequencies": 20, "random_state": 0} | CASES[case][0]
    return GPRegressor(**options).fit(*data_of(case))


def as_tables(X, Y, noise=None):
    return np.asarray(X, dtype=float), np.asarray(Y, dtype=float).reshape(len(X), -1), noise


def predictions_by_name(model, X, Y, noise=None):
    """Yield everything that a model computes."""
    if hasattr(model, "feature_names_in_"):
        points = pd.DataFrame(NEW, columns=model.feature_names_in_)
    else:
        points = NEW
    yield "mean and std", model.predict(points, return_std=True)
    yield "latent std", model.predict(points, return_std=True, noise=False)
    yield "covariance", model.predict(points, return_cov=True)
    yield "whole covariance", model.predict(points, return_cov="full")
    yield "draws", model.sample_y(points, 3, random_state=2)
    yield "functions", model.sample_functions(2, random_state=3)(NEW)
    yield "score", model.score(X, Y)
    yield "noise", model.noise_
    yield "evidence", model.log_evidence_
    inputs, outputs, noise = as_tables(X, Y, noise)
    scaling = model.scaling_
    variance = None if noise is None else scaling.variances(noise)
    yield (
        "leave-one-out",
        [f.numpy() for f in model.gp_.leave_one_out(scaling.inputs(inputs), scaling.outputs(outputs), variance)],
    )


def assert_equal_predictions(model, other, *data):
    for (name, mine), (_, yours) in zip(
        predictions_by_name(model, *data), predictions_by_name(other, *data), strict=True
    ):
        mine, yours = (part if isinstance(part, tuple | list) else (part,) for part in (mine, yours))
        for left, right in zip(mine, yours, strict=True):
            assert_close(right, left, name)
    assert str(model.summary()) == str(other.summary())


def assert_same_attributes(model, other):
    assert vars(model).keys() == vars(other).keys()
    assert model.fit_report_ == other.fit_report_ == other.gp_.fit_report_
    for name in ("n_features_in_", "n_outputs_", "output_names_", "kernel_", "approximation_", "_is_flat"):
        assert getattr(model, name) == getattr(other, name) and type(getattr(model, name)) is type(getattr(other, name))
    assert list(getattr(model, "candidates_", {}).items()) == list(getattr(other, "candidates_", {}).items())
    assert np.array_equal(getattr(model, "feature_names_in_", None), getattr(other, "feature_names_in_", None))
    assert np.array_equal(model._num_observed, other._num_observed)


def assert_same_options(model, other):
    for name, value in model.get_params(deep=False).items():
        loaded = getattr(other, name)
        if isinstance(value, Kernel):
            assert type(loaded) is type(value) and same_tensors(loaded.state_dict(), value.state_dict())
        elif isinstance(value, np.ndarray | torch.Tensor):
            assert type(loaded) is type(value) and loaded.dtype == value.dtype and (loaded == value).all()
        else:
            assert loaded == value, name


def same_tensors(mine, yours):
    return mine.keys() == yours.keys() and all(bits(mine[name]) == bits(yours[name]) for name in mine)


def bits(tensor):
    return str(tensor.dtype), tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.ovkgp"


def through(model, path, **options):
    """Save and load a model."""
    model.save(path)
    return ovkgp.load(path, **options)


# --- predictions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_loaded_model_predicts_the_same(case, path):
    model = fitted(case)
    loaded = through(model, path)
    assert type(loaded) is GPRegressor
    assert type(loaded.posterior_) is type(model.posterior_)
    assert_same_attributes(model, loaded)
    assert_same_options(model, loaded)
    assert_equal_predictions(model, loaded, *data_of(case))


@pytest.mark.parametrize("kernel", ["lmc", "decomposable"])
@pytest.mark.parametrize("noise", ["per_output", "full", "known"])
def test_loaded_iterative_posterior_predicts_the_same(kernel, noise, path, monkeypatch):
    monkeypatch.setattr(strategies, "MAX_DENSE_ENTRIES", 20)
    X, Y = table()
    data = (X, holes(Y), variances(Y)) if noise == "known" else (X, holes(Y))
    noise = "per_output" if noise == "known" else noise
    model = GPRegressor(kernel, approximation="exact", noise=noise, hyperparameters="fixed").fit(*data)
    loaded = through(model, path)
    assert type(loaded.posterior_.solver).__name__ == "IterativeSolver"
    assert loaded.posterior_.log_evidence_error == model.posterior_.log_evidence_error > 0
    assert_equal_predictions(model, loaded, *data)


def test_loaded_model_with_few_missing_outputs_keeps_kronecker_products(path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(70, 2)), rng.normal(size=(70, 9))
    Y[rng.random(Y.shape) < 0.05] = np.nan
    model = GPRegressor("decomposable", noise="full", hyperparameters="fixed").fit(X, Y)
    loaded = through(model, path)
    assert type(model.posterior_.solver) is type(loaded.posterior_.solver) is MissingSolver
    assert_equal_predictions(model, loaded, X, Y)


@pytest.mark.parametrize("case", ["exact", "features", "missing", "independent"])
def test_file_of_500_random_features_has_at_most_8_megabytes(case, path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 4))
    Y = np.sin(X @ rng.normal(size=(4, 2)))
    Y[rng.random(Y.shape) < (0.1 if case == "missing" else 0.0)] = np.nan
    options = {"num_frequencies": 500, "hyperparameters": "fixed", "random_state": 0}
    kernel = "independent" if case == "independent" else "decomposable"
    approximation = "exact" if case == "exact" else "orff"
    GPRegressor(kernel, approximation=approximation, **options).fit(X, Y).save(path)
    assert path.stat().st_size < (100_000 if case == "exact" else 8 * 2**20)


def test_loaded_statistics_are_valid_on_machines_that_round_differently(path, monkeypatch):
    """The fingerprint of stored statistics is that of the machine that loads them."""
    model = fitted("orff")
    model.save(path)
    sign = features_strategy._fingerprint
    monkeypatch.setattr(features_strategy, "_fingerprint", lambda *parts: sign(*parts)[::-1])
    assert_equal_predictions(model, ovkgp.load(path), *data_of("orff"))


@pytest.mark.parametrize("case", ["kronecker", "missing", "known noise, missing", "independent", "lmc", *FEATURES])
@pytest.mark.slow
def test_loaded_model_continues_partial_fit(case, path):
    model = copy.deepcopy(fitted(case))
    loaded = through(model, path)
    for seed in (5, 6):
        for one in (model, loaded):
            one.partial_fit(*data_of(case, n=15, seed=seed))
    assert_equal_predictions(model, loaded, *data_of(case))
    assert_equal_predictions(model, through(loaded, path), *data_of(case))


def test_partial_fit_can_be_saved_between_calls(path):
    options = {"kernel": "decomposable", "num_frequencies": 20, "random_state": 0}
    model, stored = GPRegressor(**options).partial_fit(*table()), GPRegressor(**options).partial_fit(*table())
    for seed in range(3):
        model.partial_fit(*table(seed=seed))
        stored = through(stored, path).partial_fit(*table(seed=seed))
    assert_equal_predictions(model, stored, *table())


@pytest.mark.parametrize("view", ["potential", "stream_function", "components"])
@pytest.mark.parametrize("approximation", ["exact", "orff"])
def test_loaded_field_components_predict_the_same(view, approximation, path):
    options = {"approximation": approximation, "num_frequencies": 20, "hyperparameters": "fixed", "random_state": 0}
    model = GPRegressor("helmholtz", **options).fit(*table())
    views = [getattr(one.posterior_, view)() for one in (model, through(model, path))]
    pairs = zip(*(one.values() if isinstance(one, dict) else [one] for one in views), strict=True)
    for mine, yours in pairs:
        mine, yours = mine.predict(NEW), yours.predict(NEW)
        assert_close(yours.mean.numpy(), mine.mean.numpy())
        assert_close(yours.std.numpy(), mine.std.numpy())


@pytest.mark.parametrize(
    "case", ["auto, trained", "missing", "known noise", "orff", "nystrom", "curl-free", "data frames"]
)
def test_copied_and_pickled_models_predict_exactly(case):
    model = fitted(case)
    assert_equal_predictions(model, copy.deepcopy(model), *data_of(case))
    assert_equal_predictions(model, pickle.loads(pickle.dumps(model)), *data_of(case))


# --- use of a loaded model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_loaded_model_saves_to_same_file(case, path):
    through(fitted(case), path).save(path.with_name("again"))
    (tensors, header), (tensors_again, header_again) = read_model(path), read_model(path.with_name("again"))
    assert header == header_again
    assert same_tensors(tensors, tensors_again)


@pytest.mark.parametrize("case", ["auto, trained", "kernel object, trained", "orff, trained", "fixed noise matrix"])
def test_loaded_model_can_be_cloned_and_refitted(case, path):
    loaded = through(fitted(case), path)
    data = data_of(case)
    again = clone(loaded)
    assert not hasattr(again, "posterior_")
    assert_equal_predictions(again.fit(*data), fitted(case), *data)
    assert_equal_predictions(loaded.fit(*data), fitted(case), *data)


def test_loaded_gp_trains_with_same_priors(path):
    model = fitted("auto, trained")
    loaded = through(model, path)
    priors = [sorted(name for name, *_ in one.gp_.named_priors()) for one in (model, loaded)]
    assert priors[0] == priors[1] and any("noise_model" in name for name in priors[1])
    data = model.scaling_.inputs(table()[0]), model.scaling_.outputs(table()[1])
    evidence = [copy.deepcopy(one.gp_).fit(*data, max_iter=3).fit_report_.objective for one in (model, loaded)]
    assert evidence[0] == evidence[1]


@pytest.mark.parametrize("source", [np.random.RandomState, np.random.default_rng])
def test_save_omits_random_generators(source, path):
    model = GPRegressor("decomposable", hyperparameters="fixed", random_state=source(0)).fit(*table())
    loaded = through(model, path)
    assert loaded.random_state is None
    assert_equal_predictions(model, loaded, *table())


def test_save_and_load_accept_string_paths(path):
    assert through(fitted("kronecker"), str(path)).n_outputs_ == 2


# --- custom kernels -------------------------------------------------------------------------------------------------


class CustomKernel(RBFKernel):
    """Kernel class that no file can describe."""


class CustomPairKernel(Kernel):
    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.num_outputs = kernel, 2

    def num_outputs_per_input(self, x, z):
        return 2

    def forward(self, x, z, diag=False, **_):
        gram = self.kernel(x, z, diag=diag)
        return gram.repeat_interleave(2, -1) if diag else torch.kron(gram.to_dense(), torch.eye(2).to(x))


def custom_kernel():
    kernel = DecomposableKernel(CustomKernel(), num_outputs=2, rank=1)
    kernel.base_kernel.lengthscale = 0.8
    return kernel


def predictions(model):
    return np.concatenate([part.ravel() for part in model.predict(NEW, return_cov="full")])


@pytest.mark.parametrize("approximation", ["exact", "nystrom"])
@pytest.mark.parametrize("make", [custom_kernel, lambda: CustomPairKernel(RBFKernel())])
@pytest.mark.parametrize("hyperparameters", ["fixed", "evidence"])
def test_load_fills_custom_kernel(make, approximation, hyperparameters, path):
    options = {"approximation": approximation, "num_frequencies": 10, "hyperparameters": hyperparameters}
    model = GPRegressor(make(), random_state=0, **options).fit(*table())
    supplied = make()
    with torch.no_grad():
        for parameter in supplied.parameters():
            parameter.add_(1.0)  # the values come from the file
    before = copy.deepcopy(supplied.state_dict())
    loaded = through(model, path, kernel=supplied)
    assert_close(predictions(loaded), predictions(model))
    assert same_tensors(supplied.state_dict(), before)
    assert same_tensors(loaded.kernel.state_dict(), model.kernel.state_dict())
    assert np.array_equal(predictions(loaded.fit(*table())), predictions(model))


def test_load_fills_custom_base_kernel(path):
    model = GPRegressor("lmc", base_kernel=CustomKernel(), hyperparameters="fixed").fit(*table())
    loaded = through(model, path, kernel=CustomKernel())
    assert type(loaded.base_kernel) is CustomKernel and loaded.kernel == "lmc"
    assert_close(predictions(loaded), predictions(model))


def test_load_requires_custom_kernel(path):
    GPRegressor(custom_kernel(), hyperparameters="fixed").fit(*table()).save(path)
    with pytest.raises(OptionError, match=r"DecomposableKernel.*load\(path, kernel="):
        ovkgp.load(path)


@pytest.mark.parametrize(
    ("kernel", "key"),
    [
        (RBFKernel(), "DecomposableKernel.*got a RBFKernel"),
        (DecomposableKernel(RBFKernel(), num_outputs=3), "does not match"),
        (DecomposableKernel(ScaleKernel(RBFKernel()), num_outputs=2), "does not match"),
    ],
)
@pytest.mark.parametrize("needed", [True, False])
def test_load_rejects_mismatched_kernel(kernel, key, needed, path):
    GPRegressor(custom_kernel() if needed else decomposable(), hyperparameters="fixed").fit(*table()).save(path)
    with pytest.raises(OptionError, match=key):
        ovkgp.load(path, kernel=kernel)


def test_load_rejects_kernel_for_named_structure(path):
    fitted("kronecker").save(path)
    with pytest.raises(OptionError, match=r"by name \('decomposable'\)"):
        ovkgp.load(path, kernel=decomposable())


def test_save_rejects_unused_custom_base_kernel(path):
    model = GPRegressor(decomposable(), base_kernel=CustomKernel(), hyperparameters="fixed").fit(*table())
    with pytest.raises(KernelTypeError, match=r"base_kernel is a CustomKernel.*not used"):
        model.save(path)
    assert not path.exists()


def test_save_warns_about_priors_that_load_restores_with_kernel(path):
    def make():
        return DecomposableKernel(RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)), num_outputs=2)

    model = GPRegressor(make()).fit(*table())
    with pytest.warns(UserWarning, match="priors of kernel") as caught:
        model.save(path)
    assert caught[0].filename == __file__
    assert not list(ovkgp.load(path).kernel.named_priors())
    loaded = ovkgp.load(path, kernel=make())
    assert_close(predictions(loaded), predictions(model))
    assert [name for name, *_ in loaded.gp_.kernel.named_priors()] == ["base_kernel.lengthscale_prior"]
    assert np.array_equal(predictions(loaded.fit(*table())), predictions(model))


def test_save_does_not_warn_without_priors(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted("kernel object, trained").save(path)


# --- invalid models and files ---------------------------------------------------------------------------------------


def test_save_rejects_unfitted_model(path):
    with pytest.raises(NotFittedError):
        GPRegressor().save(path)
    assert not path.exists()


def test_save_rejects_unsupported_option(path):
    model = copy.deepcopy(fitted("kronecker")).set_params(verbose=object())
    with pytest.raises(InputError, match="verbose"):
        model.save(path)
    assert not path.exists()


class CustomRegressor(GPRegressor):
    pass


def test_save_rejects_custom_estimator(path):
    model = CustomRegressor("decomposable", hyperparameters="fixed").fit(*table())
    with pytest.raises(InputError, match="CustomRegressor"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize("part", ["kernel", "mean", "noise_model"])
@pytest.mark.parametrize("case", ["kronecker", "independent", "orff"])
def test_save_rejects_modified_model(case, part, path):
    model = copy.deepcopy(fitted(case))
    with torch.no_grad():
        next(getattr(model.gp_, part).parameters()).add_(0.1)
    with pytest.raises(OptionError, match="gp_ was modified"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"noise": "full"},
        {"noise": 0.3},
        {"kernel": "lmc"},
        {"kernel": "helmholtz", "rank": 7},
        {"variance": "features"},
    ],
)
@pytest.mark.parametrize("case", ["kronecker", "orff", "fixed noise matrix", "kernel object, trained"])
def test_save_keeps_options_changed_after_fit(case, changed, path):
    """Options that change after `fit` apply to the next `fit`; the stored model is that of the last."""
    model = copy.deepcopy(fitted(case)).set_params(**changed)
    loaded = through(model, path)
    assert_same_options(model, loaded)
    assert_equal_predictions(model, loaded, *data_of(case))


@pytest.mark.parametrize(
    "changed", [{"kernel": coregionalized()}, {"base_kernel": RBFKernel()}, {"kernel": custom_kernel()}]
)
def test_save_rejects_kernel_changed_after_fit(changed, path):
    model = copy.deepcopy(fitted("kronecker")).set_params(**changed)
    with pytest.raises(OptionError, match="changed after fitting"):
        model.save(path)
    assert not path.exists()


def test_save_rejects_custom_kernel_removed_after_fit(path):
    model = GPRegressor(custom_kernel(), hyperparameters="fixed").fit(*table()).set_params(kernel="lmc")
    with pytest.raises(KernelTypeError, match="CustomKernel"):
        model.save(path)
    assert not path.exists()


def test_save_and_load_reject_missing_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model file"):
        ovkgp.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no folder"):
        fitted("kronecker").save(tmp_path / "missing" / "model.ovkgp")
    with pytest.raises(IsADirectoryError, match="folder"):
        ovkgp.load(tmp_path)


@pytest.fixture
def saved(path):
    fitted("kronecker").save(path)
    return path


def test_load_rejects_truncated_file(saved):
    data = saved.read_bytes()
    for length in [0, 1, 7, 8, 9, 500, *np.random.default_rng(0).integers(10, len(data), 40), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            ovkgp.load(saved)


def test_load_rejects_changed_bytes(saved):
    """Flip one bit in half of the bytes of the header and in some of the numbers."""
    data = bytearray(saved.read_bytes())
    start, rng = 8 + int.from_bytes(data[:8], "little"), np.random.default_rng(0)
    for index in [
        *range(8),
        *rng.choice(start, start // 2, replace=False),
        *rng.integers(start, len(data), 100),
        len(data) - 1,
    ]:
        changed = data.copy()
        changed[index] ^= 1 << rng.integers(8)
        saved.write_bytes(changed)
        with pytest.raises(ModelFileError):
            ovkgp.load(saved)


def test_load_rejects_other_safetensors(path):
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, {"format": "pt"}))
    with pytest.raises(ModelFileError, match="not a model"):
        ovkgp.load(path)


def test_load_rejects_newer_format_version(saved):
    data = saved.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    metadata["format_version"] = str(FORMAT_VERSION + 1)
    saved.write_bytes(safetensors.torch.save(safetensors.torch.load_file(saved), metadata))
    with pytest.raises(ModelFileError, match="newer"):
        ovkgp.load(saved)


class Trap:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_load_rejects_pickle_without_running_it(path, tmp_path):
    for write in (
        lambda: path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung"))),
        lambda: torch.save(Trap(tmp_path / "sprung"), path),
    ):
        write()
        with pytest.raises(ModelFileError, match="not a model file"):
            ovkgp.load(path)
    assert not (tmp_path / "sprung").exists()


NAMES = ("os.system", "subprocess.Popen", "builtins.eval", "Estimator", "__class__", "Kernel")


def rewrite_header(path, change):
    """Change the header and write the file with a valid checksum."""
    tensors, header = read_model(path)
    change(header)
    write_model(path, tensors, header)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "keys",
    [("estimator",), ("gp", "kernel", "kernel", "class"), ("gp", "features", "class"), ("posterior", "kind")],
)
def test_load_rejects_unknown_class_names(keys, name, path):
    fitted("orff, trained").save(path)

    def change(header):
        *parents, last = keys
        for key in parents:
            header = header[key]
        header[last] = name

    rewrite_header(path, change)
    with pytest.raises((ModelFileError, KernelTypeError), match=name):
        ovkgp.load(path)


@pytest.mark.parametrize("gone", ["options", "gp", "posterior", "fitted", "has_statistics"])
def test_load_rejects_incomplete_header(gone, saved):
    rewrite_header(saved, lambda header: header.pop(gone))
    with pytest.raises(ModelFileError, match="does not describe"):
        ovkgp.load(saved)


def test_load_rejects_unknown_option(saved):
    rewrite_header(saved, lambda header: header["options"].update(color="red"))
    with pytest.raises(ModelFileError, match="color"):
        ovkgp.load(saved)


@pytest.mark.parametrize("header", [{"kind": "demo"}, {"estimator": ["GPRegressor"]}, [], None])
def test_load_rejects_file_without_estimator(header, path):
    write_model(path, {"weights": torch.ones(3)}, header)
    with pytest.raises(ModelFileError, match=r"not an estimator|does not describe"):
        ovkgp.load(path)


@pytest.mark.parametrize("case", ["kronecker", "missing", "orff, missing", "nystrom"])
def test_load_rejects_missing_tensor(case, path):
    fitted(case).save(path)
    tensors, header = read_model(path)
    for name in tensors:
        write_model(path, {key: tensor for key, tensor in tensors.items() if key != name}, header)
        with pytest.raises((ModelFileError, OptionError)):
            ovkgp.load(path)


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("kronecker", "gp.kernel.kernel.options.output_matrix.options.num_outputs"),
        ("kronecker", "gp.kernel.kernel.options.base_kernel.options.ard_num_dims"),
        ("orff, trained", "gp.features.options.num_frequencies"),
        ("orff, trained", "gp.features.options.num_dims"),
        ("fixed noise matrix", "fitted.n_outputs_"),
        ("kronecker", "fitted.n_features_in_"),
        ("kernel object, trained", "options.kernel.kernel.kernel.options.output_matrix.options.matrix.shape"),
    ],
)
def test_load_rejects_sizes_larger_than_the_file(case, keys, path):
    """A file of some kilobytes makes `load` allocate no gigabytes."""
    fitted(case).save(path)

    def change(header):
        *parents, last = keys.split(".")
        for key in parents:
            header = header[key]
        header[last] = [30_000, 30_000] if last == "shape" else 900_000_000

    rewrite_header(path, change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match="larger than the file"):
        ovkgp.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 500_000  # kB


# --- atomic writes --------------------------------------------------------------------------------------------------


def test_failed_save_keeps_old_file(saved, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(model_file.os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        fitted("lmc").save(saved)
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == ["model.ovkgp"]


KILLED = """
import os, signal, sys
import numpy as np
import ovkgp
from ovkgp.estimators.storage import file as model_file
from ovkgp.files import replace_file

def die(file):
    file.write(b"half a model")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

path, points, predictions = sys.argv[1:]
model = ovkgp.load(path)
np.save(predictions, model.predict(np.load(points), return_cov="full")[1])
model_file.replace_file = lambda path, write: replace_file(path, die)
model.partial_fit(np.zeros((1, 2)), np.zeros((1, 2)))
model.save(path)
"""


def test_killed_save_keeps_old_file(path, tmp_path):
    """Another process loads the model, predicts the same, adds a row, and is killed while writing."""
    model, arrays = fitted("orff, trained"), [tmp_path / "X.npy", tmp_path / "cov.npy"]
    model.save(path)
    np.save(arrays[0], NEW)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, path, *arrays], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_close(np.load(arrays[1]), model.predict(NEW, return_cov="full")[1])
    assert path.read_bytes() == before
    assert len(list(tmp_path.glob(".model.ovkgp.*.tmp"))) == 1  # the incomplete temporary file
    assert_equal_predictions(model, through(model, path), *data_of("orff, trained"))


# --- mixtures of candidates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [False, True])
def test_loaded_mixture_has_the_same_candidates_and_predictions(missing, path):
    X, Y = table()
    Y = np.array(Y, dtype=float)
    if missing:
        Y[::3, 0] = np.nan
    model = GPRegressor(random_state=0).fit(X, Y)
    loaded = through(model, path)
    assert loaded.kernel_ == "auto" and loaded.candidates_ == model.candidates_
    for form in ({"return_std": True}, {"return_cov": True}, {"return_cov": "full"}):
        for one, two in zip(model.predict(X, **form), loaded.predict(X, **form), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12 * np.abs(one).max())
    np.testing.assert_allclose(*(m.predict_quantiles(X, [0.05, 0.95]) for m in (model, loaded)), rtol=1e-10)
    assert str(loaded.summary()) == str(model.summary())
    one, two = (m.leave_one_out_entries() for m in (model, loaded))
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-10)


def test_file_with_an_unknown_candidate_is_rejected(path):
    model = GPRegressor(random_state=0).fit(*table())
    candidates = model.posterior_.candidates
    candidates[0] = dataclasses.replace(candidates[0], base="unknown")
    model.save(path)
    with pytest.raises(OvkgpError, match="unknown"):
        ovkgp.load(path)
