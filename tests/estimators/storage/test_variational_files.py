"""Tests of saved variational regressors: loaded models predict the same numbers."""

import numpy as np
import pytest
import torch

import ovkgp
from ovkgp.estimators.storage.kernels import blank_likelihood
from ovkgp.estimators.storage.values import decode, encode
from ovkgp.exceptions import InputError, ModelFileError, OptionError
from ovkgp.inference.likelihoods import (
    AsymmetricHuber,
    AsymmetricLaplace,
    Bernoulli,
    EpsilonInsensitive,
    Gaussian,
    Huber,
    Laplace,
    LogCosh,
    NegativeBinomial,
    Poisson,
    Softmax,
    StudentT,
    make_likelihood,
)

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (40, 2))
F = np.stack([1.5 * np.sin(2 * X[:, 0]), X[:, 1]], 1)
LABELS = (RNG.random(F.shape) < 1 / (1 + np.exp(-2 * F))).astype(float)
COUNTS = RNG.poisson(np.exp(F)).astype(float)
REAL = 100 + 30 * (F + 0.1 * RNG.standard_t(3, F.shape))
CLASSES = np.eye(2)[(F + RNG.gumbel(size=F.shape)).argmax(1)]
OPTIONS = {"num_frequencies": 6, "random_state": 0, "kernel": "decomposable"}


def save_and_load(model, folder, **options):
    model.save(folder / "model.ovkgp")
    return ovkgp.load(folder / "model.ovkgp", **options)


def assert_same(loaded, model):
    new = RNG.uniform(-2, 2, (7, 2))
    for noise in (True, False):
        for mine, yours in zip(
            model.predict(new, return_std=True, noise=noise),
            loaded.predict(new, return_std=True, noise=noise),
            strict=True,
        ):
            assert np.array_equal(mine, yours)
    assert np.array_equal(loaded.sample_y(new, 3), model.sample_y(new, 3))
    assert np.array_equal(loaded.sample_functions(2, 0)(new), model.sample_functions(2, 0)(new))
    # files of variational models hold no rows, which some notes of `summary()` need
    texts = [str(one.summary()).split("  note:")[0].rstrip() for one in (loaded, model)]
    assert loaded.log_evidence_ == model.log_evidence_ and texts[0] == texts[1]
    assert torch.equal(loaded.gp_.predict(new).mean, model.gp_.predict(new).mean)


@pytest.mark.parametrize(
    ("likelihood", "Y"),
    [
        ("bernoulli", LABELS),
        ("negative_binomial", COUNTS),
        ("student_t", REAL),
        ("gaussian", REAL),
        ("softmax", CLASSES),
        (["student_t", "gaussian"], REAL),
        ([StudentT(1, df=4.0), "laplace"], REAL),
        (Huber(2, scale=3.0, kappa=2.0), REAL),
    ],
    ids=["labels", "counts", "student_t", "gaussian", "classes", "names", "objects", "object"],
)
def test_loaded_variational_model_predicts_exactly(tmp_path, likelihood, Y):
    Y = Y.copy()
    if likelihood != "softmax":
        Y[3, 0] = np.nan
    model = ovkgp.GPRegressor(**OPTIONS, likelihood=likelihood, approximation="variational").fit(X, Y)
    loaded = save_and_load(model, tmp_path)
    assert_same(loaded, model)
    assert loaded.approximation_ == "variational" and loaded.fit_report_.message == model.fit_report_.message
    assert [name for name, *_ in loaded.gp_.named_priors()] == [name for name, *_ in model.gp_.named_priors()]


@pytest.mark.parametrize(("noise", "kernel"), [("shared", "independent"), ("full", "independent"), (4.0, "lmc")])
@pytest.mark.slow
def test_loaded_variational_model_keeps_noise_and_structure(tmp_path, noise, kernel):
    options = OPTIONS | {"kernel": kernel}
    model = ovkgp.GPRegressor(**options, approximation="variational", noise=noise).fit(X, REAL)
    loaded = save_and_load(model, tmp_path)
    assert_same(loaded, model)
    assert np.array_equal(loaded.noise_, model.noise_)


def test_loaded_variational_model_refits_to_same_predictions(tmp_path):
    model = ovkgp.GPRegressor(**OPTIONS, likelihood="poisson").fit(X, COUNTS)
    loaded = save_and_load(model, tmp_path)
    assert np.allclose(loaded.fit(X, COUNTS).predict(X), model.predict(X), rtol=1e-12)


@pytest.mark.slow
def test_loaded_variational_mixture_predicts_the_same(tmp_path):
    sampling = {"draws": 8, "max_draws": 3, "prior_draws": 0, "posterior_predictive": False}
    options = OPTIONS | {"hyperparameters": "laplace", "sampling": sampling, "likelihood": "bernoulli"}
    model = ovkgp.GPRegressor(**options).fit(X, LABELS)
    loaded = save_and_load(model, tmp_path)
    assert np.allclose(loaded.predict(X), model.predict(X), rtol=1e-12)
    assert np.allclose(loaded.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1], rtol=1e-12)
    assert loaded.noise_ is None and len(loaded.posterior_) == 3


def test_save_rejects_modified_variational_model(tmp_path):
    model = ovkgp.GPRegressor(**OPTIONS, likelihood="poisson").fit(X, COUNTS)
    model.gp_.kernel.base_kernel.lengthscale = 0.1
    with pytest.raises(OptionError, match="modified"):
        model.save(tmp_path / "model.ovkgp")


def test_load_rejects_modified_variational_file(tmp_path):
    model, path = ovkgp.GPRegressor(**OPTIONS, likelihood="poisson").fit(X, COUNTS), tmp_path / "model.ovkgp"
    model.save(path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="modified"):
        ovkgp.load(path)


@pytest.mark.parametrize(
    "likelihood",
    [
        Gaussian(2, "full"),
        Gaussian(2, torch.tensor([0.1, 0.2])),
        StudentT(2, scale=[0.5, 0.7]),
        Laplace(2),
        AsymmetricLaplace(2, tau=0.2),
        Huber(2, kappa=3.0),
        AsymmetricHuber(2, tau=0.2, kappa=0.3),
        EpsilonInsensitive(2, scale=0.4, epsilon=0.2),
        LogCosh(2, nu=4.0),
        Bernoulli(2, link="probit"),
        Poisson(2),
        NegativeBinomial(2, dispersion=0.2),
        NegativeBinomial(2),
        Softmax(2),
        make_likelihood(["gaussian", NegativeBinomial(1, dispersion=3.0)], 2),
    ],
    ids=lambda one: one.name,
)
def test_likelihood_round_trip_is_exact(likelihood):
    tensors = {}
    found = decode(encode("likelihood", likelihood, tensors), tensors)
    assert type(found) is type(likelihood)
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in likelihood.named_parameters()]
    Y, mean = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[0.3, -0.2]]).double()
    assert torch.equal(found.log_density(Y, mean), likelihood.log_density(Y, mean))


def test_encode_rejects_custom_likelihood():
    class CustomPoisson(Poisson):
        pass

    with pytest.raises(InputError, match="CustomPoisson"):
        encode("likelihood", CustomPoisson(1), {})


def test_blank_likelihood_rejects_unknown_name():
    with pytest.raises(ModelFileError, match="nonsense"):
        blank_likelihood({"name": "nonsense", "num_outputs": 1})
