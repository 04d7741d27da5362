"""Tests of saved regressors that average over draws: same predictions and draws, and rejection of invalid files."""

import copy
import pickle
from functools import cache
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import xarray
from draws_cases import perturbed
from sklearn.base import clone

import ovkgp
from ovkgp.estimators.regression import gp_regressor
from ovkgp.estimators.regression.hyperparameters import groups_of
from ovkgp.estimators.storage.file import read_model, write_model
from ovkgp.estimators.storage.values import decode, encode
from ovkgp.exceptions import InputError, ModelFileError, OptionError, OvkgpError
from ovkgp.inference.posteriors import mixture
from ovkgp.inference.sampling import arviz_data
from ovkgp.inference.sampling.arviz_data import to_arviz_object

pytestmark = pytest.mark.filterwarnings(
    "ignore:The laplace approximation is poor", "ignore:The posterior is flat or convex at its mode"
)
BARE = {"draws": 60, "max_draws": 3, "prior_draws": 0, "log_likelihood": False, "posterior_predictive": False}
NEW = np.random.default_rng(1).normal(size=(5, 2))


def table(n=16):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.stack([np.sin(X.sum(1)), 3 + 2 * np.cos(X[:, 0])], 1) + 0.1 * rng.normal(size=(n, 2))


def missing(X, Y):
    Y = Y.copy()
    Y[::4, 0], Y[1::5, 1] = np.nan, np.nan
    return X, Y


def known(X, Y):
    return X, Y, 0.01 * (1 + np.arange(Y.size).reshape(Y.shape) % 3)


def frames(X, Y):
    return pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])


def flat(X, Y):
    return X, Y[:, 0]


EXACT = {
    "kronecker": ({"kernel": "decomposable", "sampling": {**BARE, "log_likelihood": True, "prior_draws": 3}}, None),
    "missing": ({"kernel": "decomposable", "noise": "full"}, missing),
    "auto, data frames": ({}, frames),
    "one-dimensional y": ({}, flat),
    "known noise": ({"kernel": "lmc"}, known),
}
FEATURES = {
    "orff": ({"kernel": "decomposable", "approximation": "orff"}, None),
    "orff, bare variance, missing": ({"kernel": "lmc", "approximation": "orff", "variance": "features"}, missing),
    "orff, independent": ({"kernel": "independent", "approximation": "orff"}, missing),
    "nystrom": ({"kernel": "decomposable", "approximation": "nystrom"}, None),
}
CASES = EXACT | FEATURES


@cache
def fitted(case):
    """Return a fitted regressor, shared by the tests and never modified."""
    options, shape = CASES[case]
    given = {"hyperparameters": "laplace", "sampling": BARE, "num_frequencies": 8, "random_state": 0} | options
    model, data = ovkgp.GPRegressor(**given), table() if shape is None else shape(*table())
    return model.fit(*data) if case == "kronecker" else fit_cheaply(model, *data)


def fit_cheaply(model, *data):
    with patch.object(gp_regressor, "draw_hyperparameters", perturbed):
        return model.fit(*data)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.ovkgp"


def through(model, path):
    model.save(path)
    return ovkgp.load(path)


def assert_same_draws(mine, yours):
    mine, yours = dict(groups_of(mine)), dict(groups_of(yours))
    assert list(mine) == list(yours)
    for name, group in mine.items():
        assert group.identical(yours[name]), name
        assert list(group.data_vars) == list(yours[name].data_vars)


def assert_same_predictions(model, other, rtol=1e-12):
    points = pd.DataFrame(NEW, columns=["east", "north"]) if hasattr(model, "feature_names_in_") else NEW
    for compute in (
        lambda m: m.predict(points, return_std=True),
        lambda m: m.predict(points, return_cov=True, noise=False),
        lambda m: (m.predict_quantiles(points, [0.1, 0.9]),),
        lambda m: (m.sample_y(points, 4, random_state=2), m.sample_functions(4, random_state=3)(NEW)),
        lambda m: (m.noise_, m.log_evidence_),
    ):
        for mine, yours in zip(compute(model), compute(other), strict=True):
            np.testing.assert_allclose(yours, mine, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_loaded_mixture_gives_same_predictions(case, path):
    model = fitted(case)
    loaded = through(model, path)
    assert vars(loaded).keys() == vars(model).keys() and loaded.get_params() == model.get_params()
    assert len(loaded.posterior_) == len(model.posterior_) == 3
    assert_same_draws(model.draws_, loaded.draws_)
    assert_same_predictions(model, loaded)
    assert str(loaded.summary()) == str(model.summary())
    assert_same_draws(model.to_arviz(), loaded.to_arviz())


def test_loaded_mixture_can_be_saved_again(path):
    for case in ("missing", "orff"):
        again = through(through(fitted(case), path), path)
        assert_same_predictions(fitted(case), again)
        assert not hasattr(again, "partial_fit")


def test_loaded_mixture_recomputes_uncached_components(path, monkeypatch):
    """Uncached components are recomputed from the data, before saving and after loading."""
    monkeypatch.setattr(mixture, "MAX_CACHED_BYTES", 1)
    for kernel, approximation in (("decomposable", "exact"), ("decomposable", "orff")):
        options = {"approximation": approximation, "num_frequencies": 8, "hyperparameters": "laplace", "sampling": BARE}
        model = fit_cheaply(ovkgp.GPRegressor(kernel, random_state=0, **options), *table())
        assert not model.posterior_.parts.are_cached
        loaded = through(model, path)
        assert not loaded.posterior_.parts.are_cached
        assert_same_predictions(model, loaded)


def test_load_supports_arviz_1_trees(path, monkeypatch):
    """With ArviZ 1.x, draws are an xarray.DataTree, and draws of a file written with ArviZ 0.x become one."""
    fitted("kronecker").save(path)
    monkeypatch.setattr(arviz_data, "_installed_kind", lambda: "datatree")
    loaded = ovkgp.load(path)
    assert isinstance(loaded.draws_, xarray.DataTree) and isinstance(loaded.to_arviz(), xarray.DataTree)
    assert_same_draws(fitted("kronecker").to_arviz(), loaded.to_arviz())
    assert str(loaded.summary()) == str(fitted("kronecker").summary())
    model = fit_cheaply(clone(loaded), *table())
    assert isinstance(model.draws_, xarray.DataTree)
    assert_same_predictions(model, through(model, path))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(NEW), model.predict(NEW))


# --- invalid files --------------------------------------------------------------------------------------------------


def test_load_rejects_modified_or_truncated_mixture(path):
    fitted("kronecker").save(path)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ModelFileError):
        ovkgp.load(path)
    fitted("kronecker").save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError):
        ovkgp.load(path)


def without_draws(tensors, header):
    for name in [name for name in tensors if name.startswith("posterior.raw.")]:
        del tensors[name]


def without_data(tensors, header):
    del tensors["posterior.data.X"]


def other_shape(tensors, header):
    name = next(name for name in tensors if name.endswith("raw_lengthscale") and name.startswith("posterior.raw."))
    tensors[name] = tensors[name][..., :1].clone()


def other_name(tensors, header):
    tensors["posterior.raw.kernel.speed"] = tensors.pop(next(n for n in tensors if n.startswith("posterior.raw.")))


def without_group(tensors, header):
    header["fitted"]["draws_"]["arviz"][0]["variables"][0].pop("dims")


def without_options(tensors, header):
    del header["posterior"]["options"]


@pytest.mark.parametrize(
    "change", [without_draws, without_data, other_shape, other_name, without_group, without_options]
)
def test_load_rejects_inconsistent_mixture(change, path):
    fitted("kronecker").save(path)
    tensors, header = read_model(path)
    change(tensors, header)
    write_model(path, tensors, header)
    with pytest.raises(OvkgpError):
        ovkgp.load(path)


def test_save_rejects_modified_features(path):
    model = copy.deepcopy(fitted("kronecker"))
    model.gp_.kernel.base_kernel.lengthscale = 3.0  # sampled: its current value is not used
    model.save(path)
    model = copy.deepcopy(fitted("orff"))
    next(model.gp_.features.buffers()).add_(1.0)
    with pytest.raises(OptionError, match="gp_ was modified"):
        model.save(path)


# --- values ---------------------------------------------------------------------------------------------------------


def test_encode_supports_inference_data_and_datatree():
    groups = {
        "posterior": xarray.Dataset(
            {
                "0.noise": (("chain", "draw", "output"), np.arange(12.0).reshape(2, 3, 2)),
                "a": (("chain", "draw"), np.ones((2, 3))),
            },
            {"output": ["u", "longer"], "chain": [0, 1], "draw": [0, 1, 2]},
            {"method": "nuts", "seconds": np.float64(1.5), "sizes": np.array([1, 2]), "interrupted": np.int64(0)},
        ),
        "sample_stats": xarray.Dataset({"diverging": (("chain", "draw"), np.array([[True, False, True]] * 2))}),
        "log_likelihood": xarray.Dataset(
            {"y": (("chain", "draw", "entry"), np.zeros((2, 3, 4)))},
            {"row": ("entry", [0, 0, 1, 1]), "output": ("entry", ["u", "v", "u", "v"])},
        ),
    }
    for kind in ("inference_data", "datatree"):
        tensors = {}
        entry = encode("draws_", to_arviz_object(groups, kind), tensors)
        found = dict(groups_of(decode(entry, tensors)))
        assert found.keys() == groups.keys()
        for name, group in groups.items():
            assert found[name].equals(group) and list(found[name].data_vars) == list(group.data_vars)
            assert found[name].coords.keys() == group.coords.keys()
        assert found["sample_stats"]["diverging"].dtype == bool
        attrs = found["posterior"].attrs
        assert attrs["method"] == "nuts" and attrs["seconds"] == 1.5 and list(attrs["sizes"]) == [1, 2]


def test_encode_accepts_dictionary_options():
    options = {"draws": 60, "guide": "normal", "target_accept": 0.9, "log_likelihood": False}
    tensors = {}
    assert decode(encode("sampling", options, tensors), tensors) == options and not tensors
    with pytest.raises(InputError, match="sampling"):
        encode("sampling", {"draws": object()}, {})
