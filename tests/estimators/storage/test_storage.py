"""Saved regressors: what a loaded one says is equal to the bit, whatever its posterior; and what is no model is refused."""

import base64
import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
import zlib
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

import ovkgp
from ovkgp import GPRegressor
from ovkgp.estimators.storage import file as model_file
from ovkgp.estimators.storage.file import FORMAT_VERSION, read_model, write_model
from ovkgp.exceptions import InputError, KernelTypeError, ModelFileError, OptionError
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


def coregionalised():
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
    "kernel object, trained": ({"kernel": coregionalised(), "hyperparameters": "evidence"}, None),
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
    "orff, kernel object": ({"approximation": "orff", "kernel": coregionalised()}, None),
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
    """A fitted regressor; nobody changes it, as the tests share it."""
    options = {"hyperparameters": "fixed", "num_frequencies": 20, "random_state": 0} | CASES[case][0]
    return GPRegressor(**options).fit(*data_of(case))


def as_tables(X, Y, noise=None):
    return np.asarray(X, dtype=float), np.asarray(Y, dtype=float).reshape(len(X), -1), noise


def answers(model, X, Y, noise=None):
    """Everything a model can be asked."""
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
        "left out",
        [f.numpy() for f in model.gp_.leave_one_out(scaling.inputs(inputs), scaling.outputs(outputs), variance)],
    )


def assert_equal_answers(model, other, *data):
    for (name, mine), (_, yours) in zip(answers(model, *data), answers(other, *data), strict=True):
        mine, yours = (part if isinstance(part, tuple | list) else (part,) for part in (mine, yours))
        for left, right in zip(mine, yours, strict=True):
            assert np.shape(left) == np.shape(right) and np.array_equal(left, right, equal_nan=True), name
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
    """Saved and loaded."""
    model.save(path)
    return ovkgp.load(path, **options)


# --- equal to the bit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_model_gives_the_same_answers(case, path):
    model = fitted(case)
    loaded = through(model, path)
    assert type(loaded) is GPRegressor
    assert type(loaded.posterior_) is type(model.posterior_)
    assert_same_attributes(model, loaded)
    assert_same_options(model, loaded)
    assert_equal_answers(model, loaded, *data_of(case))


@pytest.mark.parametrize("kernel", ["lmc", "decomposable"])
@pytest.mark.parametrize("noise", ["per_output", "full", "known"])
def test_iterative_posteriors(kernel, noise, path, monkeypatch):
    monkeypatch.setattr(strategies, "DENSE_LIMIT", 20)
    X, Y = table()
    data = (X, holes(Y), variances(Y)) if noise == "known" else (X, holes(Y))
    noise = "per_output" if noise == "known" else noise
    model = GPRegressor(kernel, approximation="exact", noise=noise, hyperparameters="fixed").fit(*data)
    loaded = through(model, path)
    assert type(loaded.posterior_.solver).__name__ == "IterativeSolver"
    assert loaded.posterior_.log_evidence_error == model.posterior_.log_evidence_error > 0
    assert_equal_answers(model, loaded, *data)


def test_nothing_is_factorised_again(path, monkeypatch):
    cases = ("kronecker", "missing", "orff, full noise, missing", "orff, trained", "independent")
    for case in cases:
        fitted(case).save(path.with_name(case))

    def refused(factorise):
        def guarded(matrix, *others, **options):
            assert len(matrix) <= P, "a matrix of the size of the data was factorised"
            return factorise(matrix, *others, **options)

        return guarded

    for name in ("cholesky", "cholesky_ex", "eigh", "solve", "inv"):
        monkeypatch.setattr(torch.linalg, name, refused(getattr(torch.linalg, name)))
    monkeypatch.setattr(np.linalg, "eigh", refused(np.linalg.eigh))
    for case in cases:
        ovkgp.load(path.with_name(case))


@pytest.mark.parametrize("case", ["kronecker", "missing", "known noise, missing", "independent", "lmc", *FEATURES])
def test_partial_fit_goes_on(case, path):
    model = copy.deepcopy(fitted(case))
    loaded = through(model, path)
    for seed in (5, 6):
        for one in (model, loaded):
            one.partial_fit(*data_of(case, n=15, seed=seed))
    assert_equal_answers(model, loaded, *data_of(case))
    assert_equal_answers(model, through(loaded, path), *data_of(case))


def test_a_stream_can_be_saved_between_two_calls(path):
    options = {"kernel": "decomposable", "num_frequencies": 20, "random_state": 0}
    model, stored = GPRegressor(**options).partial_fit(*table()), GPRegressor(**options).partial_fit(*table())
    for seed in range(3):
        model.partial_fit(*table(seed=seed))
        stored = through(stored, path).partial_fit(*table(seed=seed))
    assert_equal_answers(model, stored, *table())


@pytest.mark.parametrize("view", ["potential", "stream_function", "components"])
@pytest.mark.parametrize("approximation", ["exact", "orff"])
def test_views_of_a_field(view, approximation, path):
    options = {"approximation": approximation, "num_frequencies": 20, "hyperparameters": "fixed", "random_state": 0}
    model = GPRegressor("helmholtz", **options).fit(*table())
    views = [getattr(one.posterior_, view)() for one in (model, through(model, path))]
    pairs = zip(*(one.values() if isinstance(one, dict) else [one] for one in views), strict=True)
    for mine, yours in pairs:
        mine, yours = mine.predict(NEW), yours.predict(NEW)
        assert torch.equal(mine.mean, yours.mean) and torch.equal(mine.std, yours.std)


@pytest.mark.parametrize(
    "case", ["auto, trained", "missing", "known noise", "orff", "nystrom", "curl-free", "data frames"]
)
def test_copies_and_pickles_give_the_same_answers(case):
    model = fitted(case)
    assert_equal_answers(model, copy.deepcopy(model), *data_of(case))
    assert_equal_answers(model, pickle.loads(pickle.dumps(model)), *data_of(case))


# --- what can be done with a loaded model ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_saved_again_it_is_the_same_file(case, path):
    through(fitted(case), path).save(path.with_name("again"))
    (tensors, header), (tensors_again, header_again) = read_model(path), read_model(path.with_name("again"))
    assert header == header_again
    assert same_tensors(tensors, tensors_again)


@pytest.mark.parametrize("case", ["auto, trained", "kernel object, trained", "orff, trained", "fixed noise matrix"])
def test_cloned_and_fitted_again(case, path):
    loaded = through(fitted(case), path)
    data = data_of(case)
    again = clone(loaded)
    assert not hasattr(again, "posterior_")
    assert_equal_answers(again.fit(*data), fitted(case), *data)
    assert_equal_answers(loaded.fit(*data), fitted(case), *data)


def test_the_model_behind_it_is_trained_with_the_same_priors(path):
    model = fitted("auto, trained")
    loaded = through(model, path)
    priors = [sorted(name for name, *_ in one.gp_.named_priors()) for one in (model, loaded)]
    assert priors[0] == priors[1] and any("noise_model" in name for name in priors[1])
    data = model.scaling_.inputs(table()[0]), model.scaling_.outputs(table()[1])
    evidence = [copy.deepcopy(one.gp_).fit(*data, max_iter=3).fit_report_.objective for one in (model, loaded)]
    assert evidence[0] == evidence[1]


@pytest.mark.parametrize("source", [np.random.RandomState, np.random.default_rng])
def test_a_source_of_random_numbers_is_left_out(source, path):
    model = GPRegressor("decomposable", hyperparameters="fixed", random_state=source(0)).fit(*table())
    loaded = through(model, path)
    assert loaded.random_state is None
    assert_equal_answers(model, loaded, *table())


def test_paths_may_be_strings(path):
    assert through(fitted("kronecker"), str(path)).n_outputs_ == 2


# --- kernels of one's own -------------------------------------------------------------------------------------------


class Own(RBFKernel):
    """A class that no file knows."""


class OwnPair(Kernel):
    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.num_outputs = kernel, 2

    def num_outputs_per_input(self, x, z):
        return 2

    def forward(self, x, z, diag=False, **_):
        gram = self.kernel(x, z, diag=diag)
        return gram.repeat_interleave(2, -1) if diag else torch.kron(gram.to_dense(), torch.eye(2).to(x))


def own():
    kernel = DecomposableKernel(Own(), num_outputs=2, rank=1)
    kernel.base_kernel.lengthscale = 0.8
    return kernel


def predictions(model):
    return np.concatenate([part.ravel() for part in model.predict(NEW, return_cov="full")])


@pytest.mark.parametrize("approximation", ["exact", "nystrom"])
@pytest.mark.parametrize("make", [own, lambda: OwnPair(RBFKernel())])
@pytest.mark.parametrize("hyperparameters", ["fixed", "evidence"])
def test_a_kernel_of_ones_own_is_supplied(make, approximation, hyperparameters, path):
    options = {"approximation": approximation, "num_frequencies": 10, "hyperparameters": hyperparameters}
    model = GPRegressor(make(), random_state=0, **options).fit(*table())
    supplied = make()
    with torch.no_grad():
        for parameter in supplied.parameters():
            parameter.add_(1.0)  # the values come from the file
    before = copy.deepcopy(supplied.state_dict())
    loaded = through(model, path, kernel=supplied)
    assert np.array_equal(predictions(model), predictions(loaded))
    assert same_tensors(supplied.state_dict(), before)
    assert same_tensors(loaded.kernel.state_dict(), model.kernel.state_dict())
    assert np.array_equal(predictions(loaded.fit(*table())), predictions(model))


def test_a_base_kernel_of_ones_own_is_supplied(path):
    model = GPRegressor("lmc", base_kernel=Own(), hyperparameters="fixed").fit(*table())
    loaded = through(model, path, kernel=Own())
    assert type(loaded.base_kernel) is Own and loaded.kernel == "lmc"
    assert np.array_equal(predictions(model), predictions(loaded))


def test_a_kernel_of_ones_own_must_be_supplied(path):
    GPRegressor(own(), hyperparameters="fixed").fit(*table()).save(path)
    with pytest.raises(
        OptionError, match=r"is a DecomposableKernel, which a file cannot describe: .*load\(path, kernel="
    ):
        ovkgp.load(path)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBFKernel(), "is a DecomposableKernel; got a RBFKernel"),
        (DecomposableKernel(RBFKernel(), num_outputs=3), "does not fit the stored values"),
        (DecomposableKernel(ScaleKernel(RBFKernel()), num_outputs=2), "does not fit the stored values"),
    ],
)
@pytest.mark.parametrize("needed", [True, False])
def test_another_kernel_is_refused(kernel, message, needed, path):
    GPRegressor(own() if needed else decomposable(), hyperparameters="fixed").fit(*table()).save(path)
    with pytest.raises(OptionError, match=message):
        ovkgp.load(path, kernel=kernel)


def test_a_kernel_for_a_model_without_one_is_refused(path):
    fitted("kronecker").save(path)
    with pytest.raises(OptionError, match=r"made by name \('decomposable'\): leave kernel out"):
        ovkgp.load(path, kernel=decomposable())


def test_an_unused_base_kernel_of_ones_own(path):
    model = GPRegressor(decomposable(), base_kernel=Own(), hyperparameters="fixed").fit(*table())
    with pytest.raises(KernelTypeError, match="base_kernel is a Own, which no file can describe, and is not used"):
        model.save(path)
    assert not path.exists()


def test_priors_are_warned_about_and_come_back_with_the_kernel(path):
    def make():
        return DecomposableKernel(RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)), num_outputs=2)

    model = GPRegressor(make()).fit(*table())
    with pytest.warns(UserWarning, match="the priors of the kernel are not stored") as caught:
        model.save(path)
    assert caught[0].filename == __file__
    assert not list(ovkgp.load(path).kernel.named_priors())
    loaded = ovkgp.load(path, kernel=make())
    assert np.array_equal(predictions(model), predictions(loaded))
    assert [name for name, *_ in loaded.gp_.kernel.named_priors()] == ["base_kernel.lengthscale_prior"]
    assert np.array_equal(predictions(loaded.fit(*table())), predictions(model))


def test_no_warning_without_priors(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted("kernel object, trained").save(path)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_not_fitted(path):
    with pytest.raises(NotFittedError):
        GPRegressor().save(path)
    assert not path.exists()


def test_an_option_that_no_file_can_hold(path):
    model = copy.deepcopy(fitted("kronecker")).set_params(verbose=object())
    with pytest.raises(InputError, match="verbose is a object, which a model file cannot hold"):
        model.save(path)
    assert not path.exists()


class OwnRegressor(GPRegressor):
    pass


def test_a_regressor_of_ones_own(path):
    model = OwnRegressor("decomposable", hyperparameters="fixed").fit(*table())
    with pytest.raises(InputError, match=r"can hold one of GPRegressor, OVKRidge, .*, not a OwnRegressor"):
        model.save(path)
    assert not path.exists()


@pytest.mark.parametrize("case", ["kronecker", "independent", "orff"])
def test_a_model_that_was_changed_since_is_refused(case, path):
    model = copy.deepcopy(fitted(case))
    with torch.no_grad():
        next(model.gp_.kernel.parameters()).add_(0.1)
    with pytest.raises(OptionError, match="gp_ was changed after posterior_ was made"):
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
def test_options_that_were_set_since_do_no_harm(case, changed, path):
    """They say how the next `fit` will be, and the model is still the one of the last."""
    model = copy.deepcopy(fitted(case)).set_params(**changed)
    loaded = through(model, path)
    assert_same_options(model, loaded)
    assert_equal_answers(model, loaded, *data_of(case))


@pytest.mark.parametrize("changed", [{"kernel": coregionalised()}, {"base_kernel": RBFKernel()}, {"kernel": own()}])
def test_kernel_objects_that_were_set_since_are_refused(changed, path):
    model = copy.deepcopy(fitted("kronecker")).set_params(**changed)
    with pytest.raises(OptionError, match="is not what the model was fitted with"):
        model.save(path)
    assert not path.exists()


def test_a_kernel_of_ones_own_that_was_taken_away_is_refused(path):
    model = GPRegressor(own(), hyperparameters="fixed").fit(*table()).set_params(kernel="lmc")
    with pytest.raises(KernelTypeError, match="Own cannot be stored in a model file"):
        model.save(path)
    assert not path.exists()


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        ovkgp.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        fitted("kronecker").save(tmp_path / "missing" / "model.ovkgp")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        ovkgp.load(tmp_path)


@pytest.fixture
def saved(path):
    fitted("kronecker").save(path)
    return path


def test_every_truncation_is_noticed(saved):
    data = saved.read_bytes()
    for length in [0, 1, 7, 8, 9, 500, *np.random.default_rng(0).integers(10, len(data), 40), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            ovkgp.load(saved)


def test_every_changed_byte_is_noticed(saved):
    """Half of the head, one bit each, and some of the numbers."""
    data = bytearray(saved.read_bytes())
    start, rng = 8 + int.from_bytes(data[:8], "little"), np.random.default_rng(0)
    for place in [
        *range(8),
        *rng.choice(start, start // 2, replace=False),
        *rng.integers(start, len(data), 100),
        len(data) - 1,
    ]:
        changed = data.copy()
        changed[place] ^= 1 << rng.integers(8)
        saved.write_bytes(changed)
        with pytest.raises(ModelFileError):
            ovkgp.load(saved)


def test_somebody_elses_safetensors(path):
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, {"format": "pt"}))
    with pytest.raises(ModelFileError, match="not a model written by ovkgp"):
        ovkgp.load(path)


def test_a_newer_format(saved):
    data = saved.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    metadata["format_version"] = str(FORMAT_VERSION + 1)
    saved.write_bytes(safetensors.torch.save(safetensors.torch.load_file(saved), metadata))
    with pytest.raises(ModelFileError, match="newer ovkgp"):
        ovkgp.load(saved)


FIRST = """
eNqtWA1wFOUZxsIUUGqATvmxTIonVIHl2Fvu9jY07R4/AwNpCBOr0OZw++X2u7sle7vH7l5+CCdOCdTKiA7FMkprYpXWMraDCEVoOgeGDh0cy08sBSsQ
RqdFaCRa0EyBmb7f/iT3H492Z2Dzfd/7Pe/z/uz7vsnJ8cPMp9UlCDFsIBEZSBBc81pdUYxErLnmuVqDLqwbUgwZqhZ0zQu6lqyoxREN6zpZU0FXWDIM
LMIRSApRpAsKimEd1mEk6xgEBEkXwjIy0rZQPK6pzQRUUhXBhFW1cNjECyFFlIAI1slB3WqiAiMjoWELWZDMG0pCli3tgobjqmakbTZgTcGyhSvikBqL
qzqql7GJrwg2nIPkMTfVhBFPGKZOBjaspa2R8Ai6Wmjzfosn6CKkdAPYg2dC5nkroaJEsBbXJMUwNftQOFzBVHAsN9cjwj/ztoxaANo816NII44ju1JM
IpsemqYJm0RMqEe6pDvsYK2pTWTptZdNqBE76yYsRaJWDEwHJ5OwGYnbrGxjrVW9rIYa4EeiJSQjXTeZ1NQuXmzyUOMkII6smlBEE9XQEiRqMkYaeE/D
axNYCUkZQSacRCmWzjhTkDhVR7G4jDU73kZUjagKkoMuwlfHpio6ORA/mwUyQlEBfBW3bCDnIeBoaAgc7VBFOhasW24NNQkyViJGVA8hGQuDwpbsoNkr
VF0ypEYrLUBE0cOqFrNio4aNuJzQLW52MsRUMSFjU4EoIZP7/4xO4MOaug4rTrKnGz+ItigtjatsiZyADXoh+3rtgsWFbiFNFLKil+Zzk1Uy3QnI0KTm
bPzFGsbV9kkurUw0Oz3sD85ODfAPyUtPMmkqMyQzG0A1LGIYKaYW09mIuJpgqJKOLQ1QYMwYpCdrg6SI5qU41mxdVjA1FVkHKGGodnwz/JFemzJLU6aD
Aare2hehDmhSfSLtG4TdaAuojiMNSoiBNctPYanZ/uTTYHJKlCw1YFmKqqpFNIISui4RH6SZnWlYwU8O/CqqMYEUK2x/946rrbSUFChbTnUh9YeINCIN
9IUsPZEEpIjNuhFr9aqp3/xQVTjQbL+BAWCmpGpu84I7FFWJeXUeiiYhHzzWW+CnmPuRYoePOofJ9FNL0QCfnFBbhVAfcIeT0smkiyLllvGx0NHEetGP
WE8Yeb0YV/g55PcjhvMwaK5vLh1GHBI9qJ6lPSITCuOwn6lA9RUMG2b8HCMyOCQCFvmSkQFYamNDJD6wIYB7dMgaOPBAYtmt0Q2lTXGHoJoaOmmtogGJ
ASJLWa9Fi6zqmNWUy2y/ajisYyJZR1MednUazEDDccsQ1RjSGnR3nPgF6gwuAu3NhfawlJfLj00cRxiXRNXLUayX4OVEcmi4XDTWS/mZdHZQyCFL3ZJC
KpAll463OAPPkwvoZyiOLgho9omS8Dia4rg8eHaNHIphHgdyHOWhvYUhh+CYBxHgKA9D5w9yBKpSYTQ/5c+Dx9CUz8MMlZCrCsMCn1xYgKR8Xm8BWDUi
mAWvMGgeRK+X8vkKEDXRBD0RK8mXAEf5WDPikbjbGanMSSCt5Ap0EdC8trMc5eO8Nqw9vxSZZYrkaF54DhxRwXxh+LRhBjzfBO3FHAFL8n0FQ7E0fUcq
E/H4nagEdaCSy1SZObHJ0PLhW9JLDA+gUizjLYacPguWlFGACxWT/qLY/4fQgDbQyN2JxjuNDOkKPtbWSKY4tzPBleYrH0uxfiePrS8YGAN9Uh9Kr4yA
RbFW/c43tBQrYHlaKSBRnNWos9EGqmKJNRHgKM6bRdD5jbR4OWSofM0FAsFZDTB3DCvRXMCBTkVzecEeLZEYASJ9Lz81El0RK/BrVEspaUfwCChXELTk
lkLQANLH5oWMqTFcLKW5fICQ0x67PecA6mshfUojSLoz/Jff5kYkJ3DRJGTyQoLNHqt/5EDao3ZpRgMYjCS+IYfa7HlxQU3Nd4ekyxCPMmQKTU4dYf1Z
a5jzXvTqmcgDT989przthRnfMCYEn92369SFLXdp4ZbqticXXGnMlh81LP3p51+9vmNn0wef8M7aeo8JZO6PCRzfuSX5/OaywNSHP9i2/6XbfM/HqdEz
6qTOs1e77ltxeUsnf7OL6X2rLLCqeUOw/fyLlduShzbef7k15cinXvt8/KWf9vM/PNnytZ0fzq6s3V7x1e6eNZ2VV47+Z+He2/zyR3papXf0zgkjv3n8
4XsupBx8R/7AVyb/ouP7v+ND/fK+HfPP8o4Fky/uiQyfeZHnt8f/pp0/zzt8HHxH/qUZbY1lvx8esG51VE6cvO/E9H+OCvw11D82fH5kwOHv8MlwE8hb
77GBzP09nY69Dn+Hj4OfKT82MHXcjH9s3H1vwPGPY6/D3+Hj4Dvyzv3QpzXfCzbdSJ3rTf1pevv7vL3m7XVqWJHnD7ePErsCx5f08z87kzg158W+LDv7
NjRHp1y7tvIT3nnHfnvAtcx7K+W8s+Uz1892vnxwa8um8r6U8+4+5N8Mcvxfjn5W9pua9/gRf1fG7649ws985l3vy+0fDejfNHnOPftn9fJVpz+eeOHB
K/yRdRcf3/p0D59tg9jbdGzD1Ut8wyxpT2zt2wXtbRcemrSm8m1+KH+NM58jOXqy9381euW05Yn5lZ/GNz22t+MaPzN0hnurqSvl/c7+kSeeupCaemjl
iVvl/+LvfjA559tjV3XeeG75rYnr13Xa15+ornnmqa+/+3jlLOsef93Gse8N4MzYPO6hDteyymk/6V16rkuunLXtaNt79An+3rGjd5WNvpZy3vZ+iqpG
x+e8NuXwK6a/6cNdl998bHr3L1MT1z95s8OzPfX5lAeWLVw04vCBQ0/M3vHHG6kfLSw/dt+wCYFdX15TI/78Br+ulVG3bp8fKO9+fUPPovvtPFseqLrN
9td+qY+f94Z+4eS0Pp5RNv779mjwm//A3t3XJwZGVcee+9bN4YFXguXHWg5ygfl7bkWXbSgLfHTu0sr1XUsCc6dce+NU/WG+6v0fN6oLjvFVXcuWjrl+
ItX+Z2NS99meVNu5N2f/4GA3f/PDSb9+fcse/qpb7Zl0+jN+3Dvs6abTp/i77Oe/a/s80A==
"""
"""A file of the first version, which held regressors only: deflated, in base 64."""


def test_files_of_the_first_version_are_read(path):
    path.write_bytes(zlib.decompress(base64.b64decode(FIRST)))
    X = np.arange(4.0)[:, None]
    options = {"base_kernel": "rbf", "rank": 1, "approximation": "orff", "num_frequencies": 2}
    model = GPRegressor("decomposable", **options, hyperparameters="fixed", random_state=0)
    model.fit(X, np.hstack([X, X**2]))
    loaded = ovkgp.load(path)
    assert vars(loaded).keys() == vars(model).keys()
    assert_same_options(model, loaded)
    for one in (model, loaded):
        one.partial_fit(X + 0.5, np.hstack([X, X]))
    for mine, yours in zip(model.predict(X, return_cov="full"), loaded.predict(X, return_cov="full"), strict=True):
        np.testing.assert_allclose(yours, mine, rtol=1e-9, atol=1e-12)  # it was written on another machine, perhaps


class Trap:
    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_pickle_is_refused_and_not_run(path, tmp_path):
    for write in (
        lambda: path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung"))),
        lambda: torch.save(Trap(tmp_path / "sprung"), path),
    ):
        write()
        with pytest.raises(ModelFileError, match="not a model file"):
            ovkgp.load(path)
    assert not (tmp_path / "sprung").exists()


NAMES = ("os.system", "subprocess.Popen", "builtins.eval", "Estimator", "__class__", "Kernel")


def rewritten(path, change):
    """The same file with a changed header under a checksum that fits."""
    tensors, header = read_model(path)
    change(header)
    write_model(path, tensors, header)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "place",
    [("estimator",), ("gp", "kernel", "kernel", "class"), ("gp", "features", "class"), ("posterior", "kind")],
)
def test_a_class_named_in_the_file_is_never_looked_up(place, name, path):
    fitted("orff, trained").save(path)

    def change(header):
        *way, last = place
        for step in way:
            header = header[step]
        header[last] = name

    rewritten(path, change)
    with pytest.raises((ModelFileError, KernelTypeError), match=name):
        ovkgp.load(path)


@pytest.mark.parametrize("gone", ["options", "gp", "posterior", "fitted", "orders"])
def test_a_header_without_a_part(gone, saved):
    rewritten(saved, lambda header: header.pop(gone))
    with pytest.raises(ModelFileError, match="does not describe a fitted model"):
        ovkgp.load(saved)


def test_a_header_with_an_option_that_there_is_not(saved):
    rewritten(saved, lambda header: header["options"].update(colour="red"))
    with pytest.raises(ModelFileError, match="colour"):
        ovkgp.load(saved)


@pytest.mark.parametrize("header", [{"kind": "demo"}, {"estimator": ["GPRegressor"]}, [], None])
def test_a_model_file_that_holds_no_estimator(header, path):
    write_model(path, {"weights": torch.ones(3)}, header)
    with pytest.raises(ModelFileError, match=r"does not (hold an estimator|describe a fitted model)"):
        ovkgp.load(path)


@pytest.mark.parametrize("case", ["kronecker", "missing", "orff, missing", "nystrom"])
def test_a_missing_tensor(case, path):
    fitted(case).save(path)
    tensors, header = read_model(path)
    needed = [name for name in tensors if name.startswith(("gp.", "fitted."))]
    for name in needed:
        write_model(path, {key: tensor for key, tensor in tensors.items() if key != name}, header)
        with pytest.raises((ModelFileError, OptionError)):
            ovkgp.load(path)


# --- all or nothing -------------------------------------------------------------------------------------------------


def test_a_failure_keeps_the_old_file(saved, monkeypatch):
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
from ovkgp.estimators import model_file

def die(path, data):
    with open(path, "xb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

path, points, answer = sys.argv[1:]
model = ovkgp.load(path)
np.save(answer, model.predict(np.load(points), return_cov="full")[1])
model_file._write = die
model.partial_fit(np.zeros((1, 2)), np.zeros((1, 2)))
model.save(path)
"""


def test_killed_in_the_middle_of_writing(path, tmp_path):
    """Another process loads the model, gives the same answers, adds a row, and dies while it writes."""
    model, places = fitted("orff, trained"), [tmp_path / "X.npy", tmp_path / "cov.npy"]
    model.save(path)
    np.save(places[0], NEW)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, path, *places], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert np.array_equal(np.load(places[1]), model.predict(NEW, return_cov="full")[1])
    assert path.read_bytes() == before
    assert len(list(tmp_path.glob(".model.ovkgp.*.tmp"))) == 1  # half-written, and in nobody's way
    assert_equal_answers(model, through(model, path), *data_of("orff, trained"))
