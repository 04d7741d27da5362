"""Regressors that average over draws of their hyperparameters, and quantiles and intervals of all regressors."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from draws_cases import perturbed
from gpytorch.kernels import RBFKernel
from scipy.stats import norm
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.regression import gp_regressor
from ovkgp.estimators.regression.hyperparameters import MIXTURE_DRAWS, sampler_options
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.kernels import DecomposableKernel

pytestmark = pytest.mark.filterwarnings(
    "ignore:the laplace approximation is poor", "ignore:the posterior is flat or bent upwards at its mode"
)
FEW = {"draws": 60, "max_draws": 5, "prior_draws": 5}
BARE = {"draws": 60, "max_draws": 3, "prior_draws": 0, "log_likelihood": False, "posterior_predictive": False}


@pytest.fixture
def cheap(monkeypatch):
    monkeypatch.setattr(gp_regressor, "draw_hyperparameters", perturbed)


@parametrize_with_checks([ovkgp.GPRegressor("independent", hyperparameters="laplace", random_state=0)])
def test_scikit_learn_checks(estimator, check, cheap):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.GPRegressor("independent", hyperparameters="laplace", sampling=BARE, random_state=0)])
def test_scikit_learn_checks_with_the_sampler(estimator, check):
    check(estimator)


def table(n=25, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 5, (n, 2))
    Y = np.c_[np.sin(X[:, 0]), 50 + 10 * np.cos(X[:, 1])] + rng.standard_normal((n, 2)) * [0.1, 1.0]
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


NEW = table(6, seed=1)[0]


def model(**options):
    return ovkgp.GPRegressor(**{"hyperparameters": "laplace", "sampling": FEW, "random_state": 0} | options)


@pytest.fixture(scope="module")
def fitted():
    return model(kernel="decomposable").fit(*table())


# --- the mixture behind it ----------------------------------------------------------------------------------------------


def assert_is_the_mixture(fitted, X, Y, noise=None, most=5):
    """The posterior is that of the gp behind it, averaged over the draws, with all rows."""
    scaling, variance = fitted.scaling_, fitted.variance
    noise = None if noise is None else scaling.variances(noise)
    options = {"hyperparameters": fitted.draws_, "max_draws": most, "variance": variance, "noise": noise}
    posterior = fitted.gp_.condition(scaling.inputs(X), scaling.outputs(Y), **options)
    expected = posterior.predict(scaling.inputs(NEW), "output", noise=True)
    mean, cov = fitted.predict(NEW, return_cov=True)
    np.testing.assert_allclose(mean, scaling.mean(expected.mean), rtol=1e-12)
    np.testing.assert_allclose(cov, scaling.cov(expected.cov), rtol=1e-12)
    np.testing.assert_allclose(fitted.noise_, scaling.cov(posterior.noise), rtol=1e-12)
    shift = np.isfinite(Y).sum(0) @ np.log(scaling.output_scale)
    assert fitted.log_evidence_ == pytest.approx(posterior.log_evidence - shift, rel=1e-12)


def test_it_averages_over_the_draws_of_the_gp_behind_it(fitted):
    assert type(fitted.posterior_) is MixturePosterior and len(fitted.posterior_) == 5
    assert fitted.draws_["posterior"].sizes["draw"] == 60
    assert_is_the_mixture(fitted, *table())


def test_uncertainty_of_the_hyperparameters_is_added(fitted):
    """The mean over the draws of the variances is less than the variance of the mixture, by that of the means."""
    X = fitted.scaling_.inputs(NEW)
    each = [part.predict(X, "diag", noise=True) for part in fitted.posterior_.parts]
    within = torch.stack([e.variance for e in each]).mean(0)
    between = torch.stack([e.mean for e in each]).var(0, correction=0)
    std = fitted.predict(NEW, return_std=True)[1]
    np.testing.assert_allclose(std, fitted.scaling_.std((within + between).sqrt()), rtol=1e-12)
    assert (between > 0).all()


CASES = {
    "auto": ({}, {}),
    "missing": ({"kernel": "decomposable"}, {"missing": 0.3}),
    "orff": ({"kernel": "decomposable", "approximation": "orff", "num_frequencies": 20}, {}),
    "orff, independent, missing": ({"approximation": "orff", "num_frequencies": 20}, {"missing": 0.3}),
    "nystrom, bare": ({"approximation": "nystrom", "num_frequencies": 10, "variance": "features"}, {}),
    "full noise": ({"kernel": "decomposable", "noise": "full"}, {}),
    "fixed noise": ({"kernel": "independent", "noise": [0.01, 1.0]}, {}),
    "field": ({"kernel": "curl_free"}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_structures_approximations_and_missing_outputs(case, cheap):
    options, about = CASES[case]
    X, Y = table(**about)
    fitted = model(sampling=None, **options).fit(X, Y)
    assert len(fitted.posterior_) == 6
    assert_is_the_mixture(fitted, X, Y, most=MIXTURE_DRAWS)


def test_known_noise():
    X, Y = table()
    noise = np.full(Y.shape, [0.01, 1.0])
    fitted = model(kernel="decomposable", sampling=BARE).fit(X, Y, noise=noise)
    assert_is_the_mixture(fitted, X, Y, noise, most=3)
    np.testing.assert_allclose(np.diag(fitted.noise_), [0.01, 1.0])


@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_other_samplers(method):
    X, Y = table(15)
    sampling = {"draws": 60, "tune": 30, "chains": 2, "max_draws": 4, "prior_draws": 0} if method == "nuts" else BARE
    with warnings.catch_warnings(record=True) as caught:
        fitted = model(hyperparameters=method, sampling=sampling).fit(X, Y[:, 0])
    assert fitted.draws_["posterior"].attrs["method"] == method and len(fitted.posterior_) == sampling["max_draws"]
    assert fitted.predict(NEW).shape == (6,)
    assert all(issubclass(warning.category, FitWarning) for warning in caught)


def test_rows_beyond_those_of_training_are_conditioned_on(cheap):
    X, Y = table(60)
    fitted = model(kernel="decomposable", training_rows=20, sampling=None).fit(X, Y)
    assert fitted.fit_report_.num_rows == 20
    assert_is_the_mixture(fitted, X, Y, most=MIXTURE_DRAWS)


def test_many_weights_are_drawn_with_the_exact_kernel(monkeypatch):
    seen = []

    def watched(estimator, gp, rows, seed):
        seen.append((gp.features, len(rows.X)))
        return perturbed(estimator, gp, rows, seed)

    monkeypatch.setattr(gp_regressor, "draw_hyperparameters", watched)
    monkeypatch.setattr("ovkgp.estimators.regression.training.MOST_WEIGHTS", 10)
    monkeypatch.setattr("ovkgp.estimators.regression.training.DENSE_ENTRIES", 30)
    X, Y = table()
    fitted = model(kernel="lmc", approximation="orff", num_frequencies=15, sampling=None).fit(X, Y)
    assert seen == [(None, 15)] and fitted.gp_.features is not None
    assert_is_the_mixture(fitted, X, Y, most=MIXTURE_DRAWS)


# --- shapes and names ---------------------------------------------------------------------------------------------------


def test_shapes(fitted):
    mean, std = fitted.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (6, 2) and mean.dtype == np.float64
    assert fitted.predict(NEW, return_cov="full")[1].shape == (12, 12)
    assert fitted.sample_y(NEW, 4).shape == (6, 2, 4)
    assert fitted.sample_functions(3, random_state=0)(NEW).shape == (3, 6, 2)
    assert fitted.predict_quantiles(NEW).shape == fitted.predict_quantiles(NEW, 0.1).shape == (6, 2)
    assert fitted.predict_quantiles(NEW, [0.1, 0.5, 0.9]).shape == (6, 2, 3)
    lower, upper = fitted.predict_interval(NEW)
    assert lower.shape == upper.shape == (6, 2)


def test_one_dimensional_targets_stay_one_dimensional(cheap):
    X, Y = table()
    fitted = model(sampling=None).fit(X, Y[:, 0])
    assert fitted.predict(NEW).shape == fitted.predict_quantiles(NEW).shape == (6,)
    assert fitted.predict_quantiles(NEW, [0.1, 0.9]).shape == (6, 2)
    assert fitted.predict_interval(NEW)[0].shape == (6,)
    assert fitted.sample_y(NEW, 3).shape == (6, 3)


def test_data_frames_name_the_axes():
    X, Y = table()
    inputs, outputs = pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])
    fitted = model(kernel="decomposable", sampling=BARE).fit(inputs, outputs)
    group = fitted.draws_["posterior"]
    assert group["lengthscale"]["input"].values.tolist() == ["east", "north"]
    assert group["noise"]["output"].values.tolist() == ["u", "v"]


# --- quantiles and intervals --------------------------------------------------------------------------------------------


def test_quantiles_are_those_of_the_mixture(fitted):
    levels = [0.01, 0.3, 0.975]
    found = fitted.predict_quantiles(NEW, levels)
    X, scaling = fitted.scaling_.inputs(NEW), fitted.scaling_
    each = [part.predict(X, "diag", noise=True) for part in fitted.posterior_.parts]
    for j, level in enumerate(levels):
        scaled = scaling.outputs(found[..., j]).numpy()
        reached = np.mean([norm.cdf(scaled, e.mean.numpy(), e.std.numpy()) for e in each], 0)
        np.testing.assert_allclose(reached, level, rtol=1e-9)
        np.testing.assert_array_equal(found[..., j], fitted.predict_quantiles(NEW, level))
    lower, upper = fitted.predict_interval(NEW, 0.4)
    np.testing.assert_array_equal(lower, fitted.predict_quantiles(NEW, 0.3))
    np.testing.assert_array_equal(upper, fitted.predict_quantiles(NEW, 0.7))
    assert (fitted.predict_interval(NEW, noise=False)[1] < fitted.predict_interval(NEW)[1]).all()


@pytest.mark.parametrize(
    "estimator", [ovkgp.GPRegressor("decomposable", random_state=0), ovkgp.OVKRidge(lam=0.1), ovkgp.ORFFRidge(lam=0.1)]
)
@pytest.mark.parametrize("noise", [True, False])
def test_quantiles_of_gaussian_posteriors(estimator, noise):
    fitted = clone(estimator).fit(*table())
    mean, std = fitted.predict(NEW, return_std=True, noise=noise)
    found = fitted.predict_quantiles(NEW, [0.1, 0.9], noise=noise)
    np.testing.assert_allclose(found, np.stack([norm.ppf(q, mean, std) for q in (0.1, 0.9)], -1), rtol=1e-9)
    np.testing.assert_allclose(fitted.predict_quantiles(NEW, noise=noise), mean)
    for end, expected in zip(fitted.predict_interval(NEW, noise=noise), norm.interval(0.95, mean, std), strict=True):
        np.testing.assert_allclose(end, expected, rtol=1e-9)


def test_bad_levels_get_a_clear_error(fitted):
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        fitted.predict_quantiles(NEW, [0.5, 1.0])
    with pytest.raises(OptionError, match="a level or a list of levels"):
        fitted.predict_quantiles(NEW, [[0.5, 0.6]])
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        fitted.predict_interval(NEW, 95)


# --- what it cannot do, and what may go wrong -------------------------------------------------------------------------


def test_streams_and_further_rows_are_refused(fitted):
    X, Y = table()
    with pytest.raises(OptionError, match="a stream is not available with draws"):
        model().fit_stream([(X, Y)])
    with pytest.raises(OptionError, match="a stream is not available with draws"):
        model(distributed=True).fit(X, Y)
    again = copy.deepcopy(fitted).set_params(hyperparameters="evidence", sampling=None)
    for estimator in (model(), fitted, again):
        assert not hasattr(estimator, "partial_fit")  # so that nothing that looks for it, such as a search, is misled
        with pytest.raises(AttributeError, match="partial_fit") as error:
            estimator.partial_fit(X, Y)
        assert "not available with draws" in str(error.value.__cause__)
    assert hasattr(ovkgp.GPRegressor(), "partial_fit")


def test_a_fit_without_draws_forgets_those_of_the_last(fitted):
    again = copy.deepcopy(fitted).set_params(hyperparameters="evidence", sampling=None).fit(*table())
    assert not hasattr(again, "draws_") and not isinstance(again.posterior_, MixturePosterior)


def test_a_failed_sampler_loses_nothing(fitted, monkeypatch):
    def failing(*args):
        raise RuntimeError("no draws today")

    again = copy.deepcopy(fitted)
    monkeypatch.setattr(gp_regressor, "draw_hyperparameters", failing)
    with pytest.raises(RuntimeError, match="no draws"):
        again.fit(*table(seed=3))
    np.testing.assert_array_equal(again.predict(NEW), fitted.predict(NEW))


def test_ctrl_c_in_training_leaves_the_best_so_far(monkeypatch):
    fit = OperatorValuedGP.fit

    def interrupted(self, *args, **kwargs):
        fit(self, *args, **kwargs).fit_report_.interrupted = True
        return self

    monkeypatch.setattr(OperatorValuedGP, "fit", interrupted)
    with pytest.warns(FitWarning, match="no hyperparameters were drawn"):
        fitted = model(kernel="independent").fit(*table())
    assert not hasattr(fitted, "draws_") and fitted.predict(NEW, return_std=True)[1].shape == (6, 2)
    assert "training" in fitted.summary()


def test_options_of_the_sampler_are_those_that_it_has():
    assert {"draws", "tune", "chains", "guide"} <= set(sampler_options())
    assert not {"noise", "random_state", "verbose", "output_names"} & set(sampler_options())


def test_bad_inputs_are_refused(fitted):
    with pytest.raises(ValueError, match="3 features"):
        fitted.predict_quantiles(np.zeros((2, 3)))
    with pytest.raises(InputError):
        fitted.sample_functions(2)(np.zeros((2, 3)))


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_random_state_reproduces_bit_for_bit():
    first, second = (model(kernel="independent", sampling=BARE).fit(*table()) for _ in range(2))
    assert first.draws_["unconstrained_posterior"].identical(second.draws_["unconstrained_posterior"])
    np.testing.assert_array_equal(first.predict_quantiles(NEW, 0.9), second.predict_quantiles(NEW, 0.9))


def test_pickle_deepcopy_and_clone(fitted):
    for again in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(again.predict(NEW, return_std=True)[1], fitted.predict(NEW, return_std=True)[1])
    assert clone(fitted).sampling == FEW


def test_kernel_objects_keep_their_numbers(cheap):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1)
    X, Y = table()
    fitted = model(kernel=kernel, sampling=None).fit(X, Y)
    assert_is_the_mixture(fitted, X, Y, most=MIXTURE_DRAWS)
    assert "of the model" in fitted.summary()


def test_the_summary_shows_posterior_means_and_how_far_to_trust_them(fitted):
    text, group = str(fitted.summary()), fitted.to_arviz()["posterior"]
    assert "posterior mean ± standard deviation" in text
    noise = group["noise"].values
    line = next(line for line in text.splitlines() if line.strip().startswith("noise"))
    numbers = line.replace("[", " ").replace("]", " ").replace(",", " ").replace("±", " ").split()[1:]
    expected = [*noise.mean((0, 1)), *noise.std((0, 1))]
    np.testing.assert_allclose([float(number) for number in numbers], expected, rtol=1e-2)
    assert "drawn by laplace: 1 × 60 draws, predictions average over 5; Pareto k̂" in text
