"""Tests of `GPRegressor` with variational inference: labels, counts, classes and heavy tails."""

import copy
import pickle
import re
import signal
import threading
import warnings

import arviz
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.common.summary import hyperparameter_table
from ovkgp.estimators.regression import variational
from ovkgp.exceptions import FitWarning, InputError, OptionError, OvkgpError
from ovkgp.inference import VariationalGP
from ovkgp.inference.likelihoods import Bernoulli, Gaussian, Huber, Laplace, StudentT
from ovkgp.kernels import DecomposableKernel

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 1))
SIGNAL = 2 * np.sin(2 * X[:, 0])
LABELS = (RNG.random(60) < 1 / (1 + np.exp(-2 * SIGNAL))).astype(float)
COUNTS = RNG.poisson(np.exp(SIGNAL)).astype(float)
NEW = np.linspace(-1.8, 1.8, 9)[:, None]
TRUTH = 2 * np.sin(2 * NEW[:, 0])
QUICK = {"kernel": "independent", "num_frequencies": 10, "random_state": 0}


def fitted(likelihood, Y, **options):
    return ovkgp.GPRegressor(**QUICK | {"likelihood": likelihood} | options).fit(X, Y)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.GPRegressor("independent", **options, hyperparameters="fixed", num_frequencies=30, random_state=0)
        for options in ({"approximation": "variational"}, {"likelihood": "student_t"})
    ]
)
def test_variational_regressor_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "likelihood",
    ["epsilon_insensitive", *(pytest.param(name, marks=pytest.mark.slow) for name in ("asymmetric_huber", "log_cosh"))],
)
def test_likelihoods_of_losses_predict_the_signal_and_survive_a_file(likelihood, tmp_path):
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, 60)
    model = fitted(likelihood, 100 + 20 * (SIGNAL + noise))
    mean, std = model.predict(NEW, return_std=True)
    assert np.abs((mean - 100) / 20 - TRUTH).max() < 0.6
    assert np.all((std > 2) & (std < 20))  # that of the noise is 5.8
    lower, upper = model.predict_interval(X, 0.9)
    assert 0.8 <= np.mean((lower < 100 + 20 * (SIGNAL + noise)) & (100 + 20 * (SIGNAL + noise) < upper)) <= 1.0
    model.save(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(
        ovkgp.load(tmp_path / "model.ovkgp").predict_interval(NEW, 0.9)[0],
        model.predict_interval(NEW, 0.9)[0],
        rtol=1e-10,
    )
    assert "scale" in model.summary()


# --- predictions ----------------------------------------------------------------------------------------------------


def test_bernoulli_predicts_probabilities():
    model = fitted("bernoulli", LABELS)
    probability, std = model.predict(NEW, return_std=True)
    assert np.abs(probability - 1 / (1 + np.exp(-2 * TRUTH))).max() < 0.25
    assert np.allclose(std, np.sqrt(probability * (1 - probability)))
    latent, latent_std = model.predict(NEW, return_std=True, noise=False)
    assert np.corrcoef(latent, TRUTH)[0, 1] > 0.9 and (latent_std > 0).all()
    assert model.noise_ is None and model.approximation_ == "variational" and model.kernel_ == "independent"
    assert set(np.unique(model.sample_y(NEW, 20))) == {0.0, 1.0}
    assert np.array_equal(model.predict_quantiles(NEW), (probability > 0.5).astype(float))
    assert 0.3 < model.score(X, LABELS) < 1
    assert model.log_evidence_ == pytest.approx(model.gp_.fit_report_.log_evidence)


def test_poisson_predicts_expected_counts_and_integer_quantiles():
    model = fitted("poisson", COUNTS)
    expected = model.predict(NEW)
    assert np.abs(np.log(expected) - TRUTH).max() < 0.8
    latent, latent_std = model.predict(NEW, return_std=True, noise=False)
    assert np.allclose(expected, np.exp(latent + latent_std**2 / 2), rtol=1e-9)
    lower, upper = model.predict_interval(NEW, 0.9)
    assert np.array_equal(lower, lower.round()) and np.array_equal(upper, upper.round())
    inside = np.mean([(RNG.poisson(np.exp(TRUTH)) >= lower) & (RNG.poisson(np.exp(TRUTH)) <= upper) for _ in range(50)])
    assert inside > 0.8
    draws = model.sample_y(NEW, 400)
    assert np.abs(draws.mean(1) / expected - 1).max() < 0.5 and np.array_equal(draws, draws.round())
    assert model.predict_quantiles(NEW, [0.1, 0.9]).shape == (9, 2)


def test_softmax_predicts_class_probabilities():
    scores = np.stack([SIGNAL, -SIGNAL, np.zeros(60)], 1)
    Y = np.eye(3)[(scores + RNG.gumbel(size=scores.shape)).argmax(1)]
    Y[4] = np.nan
    model = fitted("softmax", Y, kernel="decomposable")
    probability = model.predict(NEW)
    assert np.allclose(probability.sum(1), 1) and (probability > 0).all()
    best = np.stack([TRUTH, -TRUTH, np.zeros(9)], 1).argmax(1)
    assert (probability.argmax(1) == best)[np.abs(TRUTH) > 1].all()
    assert np.array_equal(model.sample_y(NEW, 5).sum(1), np.ones((9, 5)))
    with pytest.raises(OptionError, match="class"):
        model.predict_quantiles(NEW)


def test_student_t_is_robust_to_outliers():
    y = 100 + 30 * SIGNAL + 3 * RNG.standard_normal(60)
    clean = y.copy()
    y[::10] += 400
    robust, gaussian = fitted("student_t", y), fitted("gaussian", y, approximation="exact")
    expected = 100 + 30 * TRUTH
    assert np.abs(robust.predict(NEW, noise=False) - expected).max() < 12
    assert np.abs(gaussian.predict(NEW, noise=False) - expected).max() > 20
    scale = robust.gp_.likelihood.scale.item() * robust.scaling_.output_scale[0]
    assert 1 < scale < 8 and robust.log_evidence_ > gaussian.log_evidence_
    prediction = robust.posterior_.predict(robust.scaling_.inputs(X[1::10]), noise=True)
    density = prediction.log_density(robust.scaling_.outputs(clean[1::10, None])).mean().item()
    assert density - np.log(robust.scaling_.output_scale[0]) > -5


def test_likelihood_per_output_supports_missing_entries():
    frame = pd.DataFrame({"rain": LABELS, "visitors": COUNTS, "level": 50 + 7 * SIGNAL})
    frame.loc[5, "rain"], frame.loc[9, "visitors"], frame.loc[:20, "level"] = np.nan, np.nan, np.nan
    model = fitted(["bernoulli", "poisson", "gaussian"], frame, kernel="decomposable")
    mean, std = model.predict(NEW, return_std=True)
    assert ((mean[:, 0] > 0) & (mean[:, 0] < 1)).all() and (mean[:, 1] > 0).all()
    assert np.abs(mean[:, 2] - (50 + 7 * TRUTH)).max() < 6 and (std > 0).all()
    assert model.scaling_.output_scale[:2].tolist() == [1, 1] and model.scaling_.output_offset[:2].tolist() == [0, 0]
    assert model.scaling_.output_scale[2] > 2 and model.output_names_ == ["rain", "visitors", "level"]
    text = model.summary()
    assert "bernoulli, poisson, gaussian likelihood" in text and "visitors" in text
    assert [row[:3] for row in hyperparameter_table(model) if row.parameter == "noise std"] == [
        ("noise std", "level", "")
    ]


def test_gaussian_likelihood_equals_exact_inference_with_many_inducing_points():
    Y = np.stack([SIGNAL, -SIGNAL], 1)[:40] + 0.1 * RNG.standard_normal((40, 2))
    options = {"kernel": "decomposable", "num_frequencies": 40, "hyperparameters": "evidence", "random_state": 0}
    for noise in ("shared", "full", 0.02):
        exact = ovkgp.GPRegressor(**options, approximation="exact", noise=noise).fit(X[:40], Y)
        model = ovkgp.GPRegressor(**options, approximation="variational", noise=noise).fit(X[:40], Y)
        assert model.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.1)
        assert np.abs(model.predict(NEW) - exact.predict(NEW)).max() < 0.01
        assert np.abs(model.predict(NEW, return_cov=True)[1] - exact.predict(NEW, return_cov=True)[1]).max() < 0.005
        assert np.abs(model.noise_ - exact.noise_).max() < 0.003


def test_known_noise_requires_a_gaussian_likelihood():
    y, noise = SIGNAL + 0.1, np.full(60, 0.01)
    model = ovkgp.GPRegressor(**QUICK, approximation="variational").fit(X, y, noise)
    assert model.noise_ == pytest.approx(0.01)
    with pytest.raises(InputError, match="Gaussian"):
        ovkgp.GPRegressor(**QUICK, likelihood="student_t").fit(X, y, noise)


def test_predictions_scale_with_the_units():
    y = SIGNAL + 0.1 * RNG.standard_t(3, 60)
    model, other = (fitted(StudentT(1, scale=0.2 * unit, df=4.0), unit * y + 7 * unit) for unit in (1.0, 1000.0))
    assert np.allclose(other.predict(NEW), 1000 * model.predict(NEW), rtol=1e-6)
    assert other.log_evidence_ == pytest.approx(model.log_evidence_ - 60 * np.log(1000), abs=1e-4)
    assert (other.gp_.likelihood.scale * other.scaling_.output_scale[0]).item() == pytest.approx(200)


def test_likelihood_objects_keep_fixed_parameters_and_are_not_modified():
    y = 5 * SIGNAL
    likelihood = Laplace(1, scale=2.0)
    model = fitted(likelihood, y)
    assert likelihood.scale.item() == 2.0
    assert model.gp_.likelihood.scale.item() == pytest.approx(2.0 / model.scaling_.output_scale[0])
    Y = np.stack([y, 100 * y], 1)
    model = fitted(Gaussian(2, noise=4.0), Y)
    assert np.allclose(model.noise_, 4 * np.eye(2))
    model = fitted([Huber(1, scale=1.0), Gaussian(1, noise=9.0)], Y)
    scale = model.scaling_.output_scale
    assert (model.gp_.likelihood.likelihoods[1].noise * scale[1] ** 2).item() == pytest.approx(9.0)
    assert clone(model).get_params()["likelihood"][0].scale.item() == 1.0


def test_predict_returns_covariances_for_real_outputs_only():
    Y = np.stack([SIGNAL, -SIGNAL], 1)
    model = fitted("student_t", Y + 0.1 * RNG.standard_t(4, Y.shape), kernel="decomposable")
    cov = model.predict(NEW, return_cov=True)[1]
    std = model.predict(NEW, return_std=True)[1]
    assert cov.shape == (9, 2, 2) and np.allclose(np.sqrt(cov.diagonal(axis1=1, axis2=2)), std)
    assert model.predict(NEW, return_cov="full")[1].shape == (18, 18)
    counts = fitted("poisson", np.stack([COUNTS, COUNTS], 1))
    for form in (True, "full"):
        with pytest.raises(OptionError, match="return_cov"):
            counts.predict(NEW, return_cov=form)
    assert counts.predict(NEW, return_cov=True, noise=False)[1].shape == (9, 2, 2)


def test_sample_functions_draws_latent_functions():
    model = fitted("poisson", COUNTS)
    values = model.sample_functions(300, random_state=0)(NEW)
    latent, latent_std = model.predict(NEW, return_std=True, noise=False)
    assert values.shape == (300, 9)
    assert np.abs((values.mean(0) - latent) / latent_std).max() < 0.3


# --- training -------------------------------------------------------------------------------------------------------


def test_auto_kernel_compares_evidence_lower_bounds():
    Y = np.stack([LABELS, LABELS, LABELS], 1)  # three copies of one output
    model = fitted("bernoulli", Y, kernel="auto")
    assert model.kernel_ == "decomposable" and list(model.candidates_) == ["independent", "decomposable"]
    assert model.candidates_["decomposable"] > model.candidates_["independent"] + 10
    assert "evidence lower bound − number of hyperparameters" in model.summary()


def test_training_uses_few_rows_first_and_batches_later(monkeypatch):
    calls = []
    fit = VariationalGP.fit

    def recorded(self, X, Y, noise=None, **options):
        calls.append((len(X), len(self.inducing), options.get("batch_size")))
        return fit(self, X, Y, noise, **options)

    monkeypatch.setattr(VariationalGP, "fit", recorded)
    for name, value in {
        "FIRST_ROWS": 30,
        "FIRST_POINTS": 5,
        "BATCH_ROWS": 50,
        "BATCH_SIZE": 20,
        "BATCH_STEPS": 80,
    }.items():
        monkeypatch.setattr(variational, name, value)
    model = fitted("poisson", COUNTS)
    (rows, points, no_batch), last = calls
    assert rows <= 40 and (points, no_batch) == (5, None) and last == (60, 10, 20)
    assert np.abs(np.log(model.predict(NEW)) - TRUTH).max() < 1.2


def test_training_rows_subset_conditions_on_all_rows():
    model = fitted("poisson", COUNTS, training_rows=30)
    assert model.fit_report_.num_rows <= 40 and model._num_observed.tolist() == [60]
    assert model.log_evidence_ == pytest.approx(model.gp_.elbo(*_scaled(model, COUNTS)).item(), rel=1e-9)
    best = model.gp_.log_evidence(*_scaled(model, COUNTS)).item()
    assert model.log_evidence_ == pytest.approx(best, abs=1e-4)


def _scaled(model, y):
    return model.scaling_.inputs(X), model.scaling_.outputs(y[:, None])


def test_fixed_hyperparameters_of_a_kernel_object_are_kept():
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.7, 4.0
    model = ovkgp.GPRegressor(kernel, likelihood="bernoulli", hyperparameters="fixed", num_frequencies=20).fit(
        X, LABELS
    )
    assert model.gp_.kernel.base_kernel.lengthscale.item() == pytest.approx(0.7) and model.fit_report_ is None
    assert np.abs(model.predict(NEW) - 1 / (1 + np.exp(-2 * TRUTH))).max() < 0.3
    assert "fixed" in model.to_arviz()["posterior"].attrs["method"]


def test_predictions_average_over_hyperparameter_draws():
    sampling = {"draws": 10, "max_draws": 4, "prior_draws": 0}
    model = fitted("bernoulli", LABELS, hyperparameters="laplace", sampling=sampling)
    assert len(model.posterior_) == 4 and model.noise_ is None
    assert np.abs(model.predict(NEW) - 1 / (1 + np.exp(-2 * TRUTH))).max() < 0.25
    assert "drawn by laplace" in model.summary()
    data = model.to_arviz()
    assert data["posterior"]["lengthscale"].dims == ("chain", "draw", "output")
    assert data["posterior"]["lengthscale"].shape == (1, 10, 1)
    assert set(np.unique(data["posterior_predictive"]["y"].values)) == {0.0, 1.0}
    with pytest.raises(OptionError, match="return_cov"):
        model.predict(NEW, return_cov=True)


@pytest.mark.slow
def test_to_arviz_converts_likelihood_scales_to_original_units():
    y = 1000 * SIGNAL + 100 * RNG.standard_t(3, 60)
    sampling = {"draws": 10, "max_draws": 2, "prior_draws": 0, "posterior_predictive": False}
    data = fitted("student_t", y, hyperparameters="laplace", sampling=sampling).to_arviz()
    assert 30 < float(data["posterior"]["scale"].median()) < 300 and float(data["posterior"]["df"].min()) > 2


def test_random_state_makes_fit_reproducible():
    one, two = fitted("poisson", COUNTS), fitted("poisson", COUNTS)
    assert np.array_equal(one.predict(NEW), two.predict(NEW))
    copy = pickle.loads(pickle.dumps(one))
    assert np.array_equal(copy.predict(NEW), one.predict(NEW)) and copy.log_evidence_ == one.log_evidence_


def test_interrupted_fit_keeps_a_model():
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    many = RNG.uniform(-2, 2, (400, 1))
    counts = RNG.poisson(np.exp(2 * np.sin(2 * many[:, 0])))
    timer.start()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = ovkgp.GPRegressor(likelihood="poisson", num_frequencies=150, random_state=0).fit(many, counts)
    finally:
        timer.cancel()
    assert model.fit_report_.interrupted and any(issubclass(entry.category, FitWarning) for entry in caught)
    assert np.isfinite(model.predict(NEW)).all() and np.isfinite(model.log_evidence_)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.slow
def test_to_arviz_of_a_variational_model_has_log_likelihoods(tmp_path):
    model = fitted("negative_binomial", COUNTS)
    data = model.to_arviz()
    attrs = data["posterior"].attrs
    assert attrs["method"] == "elbo" and "elpd_loo" not in attrs
    assert data["posterior"]["dispersion"].shape == (1, 1)
    assert data["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    inputs, outputs = model.scaling_.inputs(X), model.scaling_.outputs(COUNTS.reshape(-1, 1))
    refits = []
    for i in range(0, len(X), 4):
        rest = torch.arange(len(X)) != i
        without = copy.deepcopy(model.gp_).condition(inputs[rest], outputs[rest])
        refits.append(without.predict(inputs[[i]], "diag", noise=True).log_density(outputs[[i]]).item())
    found = arviz.loo(data, pointwise=True).loo_i.values[::4]
    np.testing.assert_allclose(found, refits, atol=0.25)  # importance sampling from q, with k̂ up to 0.6
    assert np.corrcoef(found, refits)[0, 1] > 0.99
    model.save(tmp_path / "counts.ovkgp")
    again = ovkgp.load(tmp_path / "counts.ovkgp")  # a file stores no rows
    assert "to_arviz(X, Y)" in again.to_arviz()["posterior"].attrs["log_likelihood"]
    given = again.to_arviz(X, COUNTS)["log_likelihood"]["y"].values
    np.testing.assert_allclose(given, data["log_likelihood"]["y"].values, atol=1e-3)


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        ("poisson", -COUNTS, "integers"),
        ("poisson", COUNTS + 0.5, "integers"),
        ("negative_binomial", COUNTS - 1e6, "integers"),
        ("bernoulli", LABELS + 1, "0 and 1"),
        ("bernoulli", np.full(60, "no"), "must hold numbers"),
        ("softmax", LABELS, "column"),
        ("softmax", np.zeros((60, 2)), "zero"),
        (["bernoulli", "poisson"], LABELS, "2 entries"),
        (Bernoulli(3), LABELS, "3 outputs"),
    ],
)
def test_fit_rejects_invalid_outputs(likelihood, y, message):
    with pytest.raises((OvkgpError, ValueError), match=message):
        fitted(likelihood, y)


def test_fit_reports_the_first_invalid_entry():
    counts = COUNTS.copy()
    counts[51] = -3
    with pytest.raises(InputError, match=re.escape("Y[51, 0] = -3")):
        fitted("poisson", counts, training_rows=20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "poisson", "approximation": "exact"}, "variational"),
        ({"likelihood": ["poisson"], "approximation": "orff"}, "variational"),
        ({"likelihood": Bernoulli(1), "approximation": "nystrom"}, "bernoulli"),
        ({"likelihood": ["poisson", "softmax"]}, "2 entries|softmax"),
        ({"likelihood": 3}, "likelihood"),
        ({"likelihood": ["poisson", 3]}, "likelihood"),
        ({"likelihood": "student_t", "noise": 0.1}, "noise"),
        ({"likelihood": "poisson", "noise": "full"}, "noise"),
        ({"likelihood": "poisson", "distributed": True}, "distributed"),
        ({"likelihood": "poisson", "num_frequencies": 0}, "num_frequencies"),
        ({"likelihood": "poisson", "num_frequencies": "many"}, "num_frequencies"),
    ],
)
def test_fit_rejects_invalid_options(options, message):
    with pytest.raises(OvkgpError, match=message):
        ovkgp.GPRegressor(**options).fit(X, COUNTS)


def test_variational_regressor_rejects_partial_fit_streams_and_checkpoints():
    model = ovkgp.GPRegressor(likelihood="poisson")
    with pytest.raises(AttributeError) as caught:
        model.partial_fit(X, COUNTS)
    assert "variational" in str(caught.value.__cause__) and not hasattr(model, "partial_fit")
    with pytest.raises(OptionError, match="variational"):
        model.fit_stream([(X, COUNTS)])
    with pytest.raises(OptionError, match="checkpoint"):
        model.fit(X, COUNTS, checkpoint="somewhere")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("likelihood", "y", "low", "high"),
    [
        ("poisson", np.zeros(60), 0, 0.2),
        ("negative_binomial", np.zeros(60), 0, 0.3),
        ("bernoulli", np.ones(60), 0.8, 1),
        ("student_t", np.full(60, 7.0), 6.9, 7.1),
        ("softmax", np.eye(2)[np.zeros(60, int)], -1e-9, 1),
    ],
)
def test_fit_accepts_constant_outputs(likelihood, y, low, high):
    model = fitted(likelihood, y)
    mean = model.predict(NEW)
    assert ((mean > low) & (mean < high)).all() or np.allclose(mean, low)
    assert np.isfinite(model.predict(NEW, return_std=True)[1]).all()


@pytest.mark.parametrize(("likelihood", "y"), [("poisson", [3.0]), ("bernoulli", [1.0]), ("laplace", [2.0])])
def test_fit_accepts_one_row(likelihood, y):
    model = ovkgp.GPRegressor(likelihood=likelihood, random_state=0).fit([[0.5]], y)
    assert np.isfinite(model.predict(NEW)).all() and np.isfinite(model.log_evidence_)


def test_field_kernel_does_not_scale_counts():
    inputs = RNG.uniform(-1, 1, (30, 2))
    counts = RNG.poisson(3.0, (30, 2))
    model = ovkgp.GPRegressor("curl_free", likelihood="poisson", num_frequencies=8, random_state=0).fit(inputs, counts)
    assert np.array_equal(model.scaling_.output_scale, np.ones(2)) and (model.predict(inputs) > 0).all()


def test_fit_accepts_a_kernel_object_with_several_outputs():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=1)
    model = ovkgp.GPRegressor(kernel, likelihood="bernoulli", num_frequencies=10, random_state=0)
    model.fit(X, np.stack([LABELS, 1 - LABELS], 1))
    assert model.kernel_ == "given" and np.corrcoef(model.predict(X).T)[0, 1] < -0.9
    assert torch.is_tensor(model.gp_.features.points) and len(model.gp_.features.points) == 10


@pytest.mark.parametrize(("likelihood", "value"), [("bernoulli", 1.0), ("poisson", 0.0)])
def test_constant_outputs_do_not_give_certain_predictions(likelihood, value):
    X = np.linspace(0, 1, 5)[:, None]
    model = ovkgp.GPRegressor(likelihood=likelihood, random_state=0).fit(X, np.full(5, value))
    expected = model.predict([[0.5], [100.0]])
    assert (np.abs(expected - value) > 0.02).all() and (np.abs(expected - value) < 0.3).all()


@pytest.mark.slow
def test_restarts_reach_the_final_training_of_a_selected_structure():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (30, 1))
    Y = np.c_[np.sin(X[:, 0]), np.cos(X[:, 0])] + 0.1 * rng.standard_normal((30, 2))
    model = ovkgp.GPRegressor(likelihood="student_t", num_frequencies=10, restarts=3, random_state=0).fit(X, Y)
    assert len(model.candidates_) > 1 and len(model.fit_report_.restarts) == 3
