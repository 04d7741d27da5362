"""Tests of `ovkgp.estimators.regression.hyperparameters`."""

import copy
import inspect
import pickle
import warnings

import arviz
import numpy as np
import pandas as pd
import pytest
import torch
from draws_cases import perturbed
from gpytorch.kernels import RBFKernel
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.common.options import check_constraints
from ovkgp.estimators.common.scaling import Scaling, draws_in_original_units, in_original_units
from ovkgp.estimators.regression import gp_regressor
from ovkgp.estimators.regression.hyperparameters import MIXTURE_DRAWS, SAMPLING_CONSTRAINTS, groups_of
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.sampling.arviz_data import make_dataset, to_arviz_object
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.sampling.svi import GUIDES
from ovkgp.kernels import DecomposableKernel, IndependentKernel

pytestmark = pytest.mark.filterwarnings(
    "ignore:The laplace approximation is poor",
    "ignore:The posterior is flat or convex at its mode",
    "ignore:Estimated shape parameter of Pareto",
)
LAPLACE_SAMPLING = {"draws": 60, "max_draws": 3, "prior_draws": 8}
MIX = np.array([[1.0, 0.5], [-0.3, 2.0]])


def table(n=20, missing=0.0):
    rng = np.random.default_rng(0)
    X = rng.uniform([100, 0], [150, 50], (n, 2))
    Y = np.c_[np.sin(X[:, 0] / 10), 50 + 30 * np.cos(X[:, 1] / 10)] + rng.standard_normal((n, 2)) * [0.1, 3.0]
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


def model(**options):
    given = {"kernel": "decomposable", "base_kernel": "rbf", "hyperparameters": "evidence", "random_state": 0} | options
    if given.get("hyperparameters") == "laplace":
        given["sampling"] = LAPLACE_SAMPLING
    return ovkgp.GPRegressor(**given)


@pytest.fixture(scope="module")
def drawn():
    return model(hyperparameters="laplace").fit(*table())


# --- dense model in original units ----------------------------------------------------------------------------------


class Dense:
    """Gaussian of the observed entries at one draw, from exported hyperparameters and data in original units."""

    def __init__(self, group, draw, X, Y):
        value = {name: group[name].values[0, draw] for name in group.data_vars}
        scaled = X / value["lengthscale"]
        K = np.exp(-0.5 * cdist(scaled, scaled, "sqeuclidean"))
        noise = value["noise"] if value["noise"].ndim == 2 else np.diag(value["noise"])
        C = np.kron(K, value["output_matrix"]) + np.kron(np.eye(len(X)), noise)
        observed = np.isfinite(Y).ravel()
        self.C, self.mean = C[np.ix_(observed, observed)], np.tile(value["mean"], len(X))[observed]
        self.y, self.rows = Y.ravel()[observed], np.repeat(np.arange(len(Y)), Y.shape[1])[observed]

    def leave_one_out(self):
        """Log density of each row with observed outputs, from the Gaussian without it."""
        found = []
        for i in np.unique(self.rows):
            own, rest = self.rows == i, self.rows != i
            gain = np.linalg.solve(self.C[np.ix_(rest, rest)], self.C[np.ix_(rest, own)]).T
            mean = self.mean[own] + gain @ (self.y - self.mean)[rest]
            covariance = self.C[np.ix_(own, own)] - gain @ self.C[np.ix_(rest, own)]
            found.append(multivariate_normal.logpdf(self.y[own], mean, covariance))
        return np.array(found)

    def log_evidence(self):
        return multivariate_normal.logpdf(self.y, self.mean, self.C)


@pytest.mark.parametrize("noise", ["per_output", "full", "shared"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_to_arviz_of_a_point_estimate_equals_the_dense_model(noise, missing):
    X, Y = table(missing=missing)
    fitted = model(noise=noise).fit(X, Y)
    data = fitted.to_arviz()
    dense = Dense(data["posterior"], 0, X, Y)
    assert dense.log_evidence() == pytest.approx(fitted.log_evidence_, rel=1e-9)
    pointwise = data["log_likelihood"]["y"].values.ravel()
    np.testing.assert_allclose(pointwise, dense.leave_one_out(), rtol=1e-8, atol=1e-8)
    attrs = data["posterior"].attrs
    assert attrs["elpd_loo"] == pytest.approx(dense.leave_one_out().sum(), rel=1e-9) and attrs["method"] == "evidence"
    assert attrs["elpd_loo_se"] == pytest.approx(np.sqrt(len(pointwise)) * pointwise.std())
    np.testing.assert_allclose(data["observed_data"]["y"].values, Y, rtol=1e-12)
    np.testing.assert_array_equal(data["log_likelihood"]["row"].values, np.flatnonzero(np.isfinite(Y).any(1)))


def test_to_arviz_of_draws_equals_dense_models_in_original_units(drawn):
    X, Y = table()
    data = drawn.to_arviz()
    for draw in (0, 7, 59):
        dense = Dense(data["posterior"], draw, X, Y)
        np.testing.assert_allclose(
            data["log_likelihood"]["y"].values[0, draw], dense.leave_one_out(), rtol=1e-8, atol=1e-8
        )
    np.testing.assert_allclose(data["observed_data"]["y"].values, Y, rtol=1e-12)
    replicated = data["posterior_predictive"]["y"]
    assert replicated.dims == ("chain", "draw", "row", "output")
    std = np.nanstd(Y, axis=0)
    assert (np.abs(replicated.values.mean((0, 1)) - Y) < std).all()  # near the data in original units
    assert drawn.draws_["posterior_predictive"]["y"].values.std() < 3 < replicated.values[..., 1].std()


def test_to_arviz_shifts_total_log_densities_by_the_units(drawn):
    scaled, mine = drawn.draws_["posterior"].attrs, drawn.to_arviz()["posterior"].attrs
    shift = 20 * np.log(drawn.scaling_.output_scale).sum()
    for name in ("log_marginal_likelihood", "elbo"):
        assert mine[name] == pytest.approx(scaled[name] - shift)
    assert mine["khat"] == scaled["khat"] and mine["units"] == "original units"


def test_to_arviz_scales_with_units_that_are_powers_of_two(drawn):
    """The scaled data are bitwise equal, and so are the draws."""
    X, Y = table()
    other = model(hyperparameters="laplace").fit(8 * X, Y * [2.0, 0.25]).to_arviz()
    mine = drawn.to_arviz()
    for name in ("posterior", "prior"):
        a, b = mine[name], other[name]
        np.testing.assert_allclose(b["lengthscale"].values, 8 * a["lengthscale"].values, rtol=1e-13)
        np.testing.assert_allclose(b["noise"].values, a["noise"].values * [4, 1 / 16], rtol=1e-13)
        np.testing.assert_allclose(b["mean"].values, a["mean"].values * [2, 0.25], rtol=1e-13)
        factors = np.outer([2, 0.25], [2, 0.25])
        np.testing.assert_allclose(b["output_matrix"].values, a["output_matrix"].values * factors, rtol=1e-13)
    shift = np.log([2.0, 0.25]).sum()
    densities = (data["log_likelihood"]["y"].values for data in (mine, other))
    np.testing.assert_allclose(*(next(densities) - shift, next(densities)), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(other["sample_stats"]["lp"].values, mine["sample_stats"]["lp"].values)


def test_to_arviz_copies_the_draws(drawn):
    before = drawn.draws_["posterior"].copy(deep=True)
    exported = drawn.to_arviz()
    for name in ("posterior", "unconstrained_posterior"):
        for variable in exported[name].data_vars:
            exported[name][variable].values[:] = -1.0
    assert drawn.draws_["posterior"].identical(before)
    assert not (drawn.draws_["unconstrained_posterior"]["mean.constant"] == -1.0).any()


# --- ArviZ objects ------------------------------------------------------------------------------------------------------


def test_to_arviz_is_readable_by_arviz(drawn, tmp_path):
    data = drawn.to_arviz()
    summary = arviz.summary(data, var_names=["lengthscale", "noise"])
    assert "noise[y1]" in summary.index and "lengthscale[x0]" in summary.index
    assert np.isfinite(arviz.loo(data).elpd_loo if hasattr(arviz.loo(data), "elpd_loo") else arviz.loo(data).elpd)
    data.to_netcdf(str(tmp_path / "draws.nc"))
    again = arviz.from_netcdf(str(tmp_path / "draws.nc"))
    np.testing.assert_array_equal(again["posterior"]["noise"].values, data["posterior"]["noise"].values)


def test_to_arviz_keeps_column_names():
    X, Y = table()
    fitted = model().fit(pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"]))
    group = fitted.to_arviz()["posterior"]
    assert group["lengthscale"]["input"].values.tolist() == ["east", "north"]
    assert group["output_matrix"]["output_bis"].values.tolist() == ["u", "v"]


def test_groups_of_supports_both_arviz_objects():
    group = make_dataset({"noise": np.ones((1, 2))}, {"noise": ("chain", "draw")})
    for kind in ("inference_data", "datatree"):
        ((name, found),) = groups_of(to_arviz_object({"posterior": group}, kind))
        assert name == "posterior" and found.identical(group)


# --- models without draws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_to_arviz_of_independent_outputs_has_the_same_densities_with_and_without_data(missing):
    X, Y = table(missing=missing)
    fitted = model(kernel="independent").fit(X, Y)
    kept, given = fitted.to_arviz(), fitted.to_arviz(X, Y)
    assert kept["posterior"].attrs["elpd_loo"] == pytest.approx(given["posterior"].attrs["elpd_loo"], rel=1e-9)
    np.testing.assert_allclose(given["observed_data"]["y"].values, Y, rtol=1e-12)
    assert kept["log_likelihood"].sizes["row"] == np.isfinite(Y).any(1).sum()
    if not missing:
        np.testing.assert_allclose(kept["observed_data"]["y"].values, Y, rtol=1e-12)


def test_to_arviz_stacks_independent_outputs():
    X, Y = table()
    fitted = model(kernel="independent").fit(
        pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])
    )
    group, scaling = fitted.to_arviz()["posterior"], fitted.scaling_
    assert set(group.data_vars) == {"lengthscale", "outputscale", "mean", "noise"}
    assert group["lengthscale"].dims == ("chain", "draw", "output", "input")
    assert group["lengthscale"].shape == (1, 1, 2, 2)
    for name in ("outputscale", "mean", "noise"):
        assert group[name].dims == ("chain", "draw", "output")
    assert group["output"].values.tolist() == ["u", "v"] and group["input"].values.tolist() == ["east", "north"]
    for a, (output, kernel) in enumerate(zip(("u", "v"), fitted.gp_.kernel.kernels, strict=True)):
        lengthscale = kernel.base_kernel.lengthscale.detach().numpy().ravel() * scaling.input_scale
        np.testing.assert_allclose(group["lengthscale"].sel(output=output).values[0, 0], lengthscale, rtol=1e-12)
        variance = kernel.outputscale.item() * scaling.output_scale[a] ** 2
        assert group["outputscale"].sel(output=output).item() == pytest.approx(variance, rel=1e-12)
        assert group["noise"].sel(output=output).item() == pytest.approx(fitted.noise_[a, a], rel=1e-12)


def test_to_arviz_stacks_draws_of_independent_outputs(perturbed_draws):
    X, Y = table()
    fitted = ovkgp.GPRegressor("independent", "rbf", hyperparameters="laplace", random_state=0).fit(X, Y)
    raw, scaling = fitted.draws_["posterior"], fitted.scaling_
    group = fitted.to_arviz()["posterior"]
    assert group["lengthscale"].dims == ("chain", "draw", "output", "input")
    assert group["lengthscale"].shape == (2, 3, 2, 2)
    for a in range(2):
        expected = raw[f"{a}.lengthscale"].values.reshape(2, 3, 2) * scaling.input_scale
        np.testing.assert_allclose(group["lengthscale"].values[:, :, a], expected, rtol=1e-12)
        expected = raw[f"{a}.outputscale"].values.reshape(2, 3) * scaling.output_scale[a] ** 2
        np.testing.assert_allclose(group["outputscale"].values[:, :, a], expected, rtol=1e-12)


def test_to_arviz_of_independent_outputs_with_different_shapes_has_prefixes():
    kernel = IndependentKernel([RBFKernel(ard_num_dims=2), RBFKernel()])
    kernel.kernels[0].lengthscale, kernel.kernels[1].lengthscale = torch.tensor([1.5, 3.5]), 2.5
    X, Y = table()
    fitted = ovkgp.GPRegressor(kernel, hyperparameters="fixed", noise=[0.01, 9.0]).fit(X, Y)
    group = fitted.to_arviz()["posterior"]
    assert group["y0.lengthscale"].dims == ("chain", "draw", "input")
    np.testing.assert_allclose(group["y0.lengthscale"].values.ravel(), [1.5, 3.5])
    assert group["y1.lengthscale"].values.ravel() == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (
            "helmholtz",
            {f"{term}.{name}" for term in ("curl_free", "divergence_free") for name in ("lengthscale", "outputscale")},
        ),
        ("lmc", {f"component_{k}.{name}" for k in (1, 2) for name in ("lengthscale", "output_matrix")}),
    ],
)
def test_to_arviz_prefixes_the_terms_of_a_sum(kernel, names):
    group = model(kernel=kernel, hyperparameters="fixed").fit(*table()).to_arviz()["posterior"]
    assert set(group.data_vars) == names | {"mean", "noise"}
    if kernel == "lmc":
        assert group["component_1.output_matrix"].dims == ("chain", "draw", "output", "output_bis")
        assert group["component_1.lengthscale"].dims == ("chain", "draw", "input")


def test_to_arviz_stacks_likelihood_parameters_that_all_outputs_have():
    X, Y = table()
    for likelihood, names in (
        (["student_t", "student_t"], {"scale": ("output",), "df": ("output",)}),
        (["student_t", "laplace"], {"scale": ("output",), "y0.df": ()}),
        (["gaussian", "laplace"], {"y0.noise": (), "y1.scale": ()}),
    ):
        fitted = model(likelihood=likelihood, hyperparameters="fixed", num_frequencies=10).fit(X, Y)
        group = fitted.to_arviz()["posterior"]
        assert set(group.data_vars) == {"lengthscale", "output_matrix", "mean", *names}
        assert {name: group[name].dims[2:] for name in names} == names
        unit, parts = fitted.scaling_.output_scale, fitted.gp_.likelihood.likelihoods
        if "scale" in names:
            expected = [part.scale.item() * unit[a] for a, part in enumerate(parts)]
            np.testing.assert_allclose(group["scale"].values.ravel(), expected, rtol=1e-12)
        else:
            assert group["y0.noise"].item() == pytest.approx(parts[0].noise.item() * unit[0] ** 2, rel=1e-12)
            assert group["y1.scale"].item() == pytest.approx(parts[1].scale.item() * unit[1], rel=1e-12)


def test_to_arviz_requires_data_for_densities_with_features():
    X, Y = table()
    fitted = model(approximation="orff", num_frequencies=20).fit(X, Y)
    bare, whole = fitted.to_arviz(), fitted.to_arviz(X, Y)
    assert (
        "log_likelihood" not in dict(groups_of(bare)) and "to_arviz(X, Y)" in bare["posterior"].attrs["log_likelihood"]
    )
    inputs, outputs = fitted.scaling_.inputs(X), fitted.scaling_.outputs(Y)
    scaled = fitted.gp_.leave_one_out(inputs, outputs, groups="rows").log_density.sum().item()
    expected = fitted.scaling_.log_density(scaled, np.array([20, 20]))
    assert whole["posterior"].attrs["elpd_loo"] == pytest.approx(expected, rel=1e-10)
    np.testing.assert_array_equal(bare["posterior"]["noise"].values, whole["posterior"]["noise"].values)


def test_to_arviz_supports_known_noise_and_fixed_hyperparameters():
    X, Y = table()
    fitted = model(hyperparameters="fixed").fit(X, Y, noise=np.full(Y.shape, [0.01, 9.0]))
    data = fitted.to_arviz()
    given = fitted.to_arviz(X, Y, np.full(Y.shape, [0.01, 9.0]))
    assert data["posterior"].attrs["method"] == "fixed"
    np.testing.assert_allclose(data["log_likelihood"]["y"].values, given["log_likelihood"]["y"].values, rtol=1e-9)


def test_to_arviz_rejects_invalid_calls(drawn):
    with pytest.raises(NotFittedError):
        model().to_arviz()
    with pytest.raises(OptionError, match="X, Y"):
        drawn.to_arviz(*table())
    with pytest.raises(InputError, match="together"):
        model(hyperparameters="fixed").fit(*table()).to_arviz(table()[0])


# --- units ------------------------------------------------------------------------------------------------------------

SCALING = Scaling(np.zeros(2), np.array([10.0, 4.0]), np.array([5.0, -1.0]), np.array([2.0, 3.0]))


def test_shared_noise_becomes_one_per_output_in_original_units():
    np.testing.assert_allclose(in_original_units("noise", np.array(0.5), "lmc", SCALING), [2.0, 4.5])
    same = Scaling(np.zeros(1), np.ones(1), np.zeros(2), np.array([2.0, 2.0]))
    assert in_original_units("noise", np.array(0.5), "lmc", same).shape == ()
    np.testing.assert_allclose(in_original_units("noise", MIX, "lmc", SCALING), MIX * [[4, 6], [6, 9]])
    draws = draws_in_original_units("noise", np.full((3, 4), 0.5), "lmc", SCALING)
    assert draws.shape == (3, 4, 2)


def test_values_of_a_kernel_object_are_not_converted():
    np.testing.assert_array_equal(in_original_units("lengthscale", np.array([1.0, 2.0]), "given", SCALING), [1, 2])
    np.testing.assert_array_equal(in_original_units("lengthscale", np.array([1.0, 2.0]), "lmc", SCALING), [10, 8])
    np.testing.assert_array_equal(in_original_units("mean", np.array([1.0, 2.0]), "given", SCALING), [7, 5])
    np.testing.assert_array_equal(in_original_units("0.alpha", np.array(0.7), "lmc", SCALING), 0.7)


MIXTURE_SAMPLING = {"draws": 60, "max_draws": 5, "prior_draws": 5}
MINIMAL_SAMPLING = {
    "draws": 60,
    "max_draws": 3,
    "prior_draws": 0,
    "log_likelihood": False,
    "posterior_predictive": False,
}


@pytest.fixture
def perturbed_draws(monkeypatch):
    monkeypatch.setattr(gp_regressor, "draw_hyperparameters", perturbed)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.GPRegressor("independent", hyperparameters="laplace", random_state=0)])
def test_sampled_regressor_passes_scikit_learn_checks(estimator, check, perturbed_draws):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [ovkgp.GPRegressor("independent", hyperparameters="laplace", sampling=MINIMAL_SAMPLING, random_state=0)]
)
def test_sampled_regressor_passes_scikit_learn_checks_with_the_sampler(estimator, check):
    check(estimator)


def small_table(n=25, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 5, (n, 2))
    Y = np.c_[np.sin(X[:, 0]), 50 + 10 * np.cos(X[:, 1])] + rng.standard_normal((n, 2)) * [0.1, 1.0]
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


NEW = small_table(6, seed=1)[0]


def sampled_model(**options):
    return ovkgp.GPRegressor(
        **{"hyperparameters": "laplace", "sampling": MIXTURE_SAMPLING, "random_state": 0} | options
    )


@pytest.fixture(scope="module")
def fitted():
    return sampled_model(kernel="decomposable").fit(*small_table())


# --- mixture over the draws ---------------------------------------------------------------------------------------------


def assert_equals_mixture(fitted, X, Y, noise=None, max_draws=5):
    """Check that predictions are those of the GP averaged over the draws, conditioned on all rows."""
    scaling, variance = fitted.scaling_, fitted.variance
    noise = None if noise is None else scaling.variances(noise)
    options = {"hyperparameters": fitted.draws_, "max_draws": max_draws, "variance": variance, "noise": noise}
    posterior = fitted.gp_.condition(scaling.inputs(X), scaling.outputs(Y), **options)
    expected = posterior.predict(scaling.inputs(NEW), "output", noise=True)
    mean, cov = fitted.predict(NEW, return_cov=True)
    np.testing.assert_allclose(mean, scaling.mean(expected.mean), rtol=1e-12)
    np.testing.assert_allclose(cov, scaling.cov(expected.cov), rtol=1e-12)
    np.testing.assert_allclose(fitted.noise_, scaling.cov(posterior.noise), rtol=1e-12)
    shift = np.isfinite(Y).sum(0) @ np.log(scaling.output_scale)
    assert fitted.log_evidence_ == pytest.approx(posterior.log_evidence - shift, rel=1e-12)


def test_predictions_average_over_hyperparameter_draws(fitted):
    assert type(fitted.posterior_) is MixturePosterior and len(fitted.posterior_) == 5
    assert fitted.draws_["posterior"].sizes["draw"] == 60
    assert_equals_mixture(fitted, *small_table())


def test_predictive_variance_includes_the_variance_of_the_means(fitted):
    """The variance of the mixture is the mean of the variances plus the variance of the means."""
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
def test_predictions_equal_the_mixture_for_all_options(case, perturbed_draws):
    options, about = CASES[case]
    X, Y = small_table(**about)
    fitted = sampled_model(sampling=None, **options).fit(X, Y)
    assert len(fitted.posterior_) == 6
    assert_equals_mixture(fitted, X, Y, max_draws=MIXTURE_DRAWS)


def test_predictions_equal_the_mixture_with_known_noise():
    X, Y = small_table()
    noise = np.full(Y.shape, [0.01, 1.0])
    fitted = sampled_model(kernel="decomposable", sampling=MINIMAL_SAMPLING).fit(X, Y, noise=noise)
    assert_equals_mixture(fitted, X, Y, noise, max_draws=3)
    np.testing.assert_allclose(np.diag(fitted.noise_), [0.01, 1.0])


@pytest.mark.parametrize("method", ["svi", "nuts"])
@pytest.mark.slow
def test_svi_and_nuts_sample_hyperparameters(method):
    X, Y = small_table(15)
    sampling = (
        {"draws": 60, "tune": 30, "chains": 2, "max_draws": 4, "prior_draws": 0}
        if method == "nuts"
        else MINIMAL_SAMPLING
    )
    with warnings.catch_warnings(record=True) as caught:
        fitted = sampled_model(hyperparameters=method, sampling=sampling).fit(X, Y[:, 0])
    assert fitted.draws_["posterior"].attrs["method"] == method and len(fitted.posterior_) == sampling["max_draws"]
    assert fitted.predict(NEW).shape == (6,)
    assert all(issubclass(warning.category, FitWarning) for warning in caught)


def test_predictions_condition_on_rows_beyond_training_rows(perturbed_draws):
    X, Y = small_table(60)
    fitted = sampled_model(kernel="decomposable", training_rows=20, sampling=None).fit(X, Y)
    assert fitted.fit_report_.num_rows == 20
    assert_equals_mixture(fitted, X, Y, max_draws=MIXTURE_DRAWS)


def test_sampling_uses_the_exact_kernel_with_many_weights(monkeypatch):
    observed = []

    def watched(estimator, gp, rows, seed):
        observed.append((gp.features, len(rows.X)))
        return perturbed(estimator, gp, rows, seed)

    monkeypatch.setattr(gp_regressor, "draw_hyperparameters", watched)
    monkeypatch.setattr("ovkgp.estimators.regression.training.MAX_WEIGHTS", 10)
    monkeypatch.setattr("ovkgp.estimators.regression.training.DENSE_ENTRIES", 30)
    X, Y = small_table()
    fitted = sampled_model(kernel="lmc", approximation="orff", num_frequencies=15, sampling=None).fit(X, Y)
    assert observed == [(None, 15)] and fitted.gp_.features is not None
    assert_equals_mixture(fitted, X, Y, max_draws=MIXTURE_DRAWS)


# --- shapes and names ---------------------------------------------------------------------------------------------------


def test_predictions_have_documented_shapes(fitted):
    mean, std = fitted.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (6, 2) and mean.dtype == np.float64
    assert fitted.predict(NEW, return_cov="full")[1].shape == (12, 12)
    assert fitted.sample_y(NEW, 4).shape == (6, 2, 4)
    assert fitted.sample_functions(3, random_state=0)(NEW).shape == (3, 6, 2)
    assert fitted.predict_quantiles(NEW).shape == fitted.predict_quantiles(NEW, 0.1).shape == (6, 2)
    assert fitted.predict_quantiles(NEW, [0.1, 0.5, 0.9]).shape == (6, 2, 3)
    lower, upper = fitted.predict_interval(NEW)
    assert lower.shape == upper.shape == (6, 2)


def test_predictions_are_one_dimensional_for_one_dimensional_targets(perturbed_draws):
    X, Y = small_table()
    fitted = sampled_model(sampling=None).fit(X, Y[:, 0])
    assert fitted.predict(NEW).shape == fitted.predict_quantiles(NEW).shape == (6,)
    assert fitted.predict_quantiles(NEW, [0.1, 0.9]).shape == (6, 2)
    assert fitted.predict_interval(NEW)[0].shape == (6,)
    assert fitted.sample_y(NEW, 3).shape == (6, 3)


def test_draws_have_the_column_names_of_data_frames():
    X, Y = small_table()
    inputs, outputs = pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])
    fitted = sampled_model(kernel="decomposable", sampling=MINIMAL_SAMPLING).fit(inputs, outputs)
    group = fitted.draws_["posterior"]
    assert group["lengthscale"]["input"].values.tolist() == ["east", "north"]
    assert group["noise"]["output"].values.tolist() == ["u", "v"]


# --- quantiles and intervals --------------------------------------------------------------------------------------------


def test_quantiles_equal_those_of_the_mixture(fitted):
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
    "estimator",
    [
        ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0),
        ovkgp.OVKRidge(lam=0.1),
        ovkgp.ORFFRidge(lam=0.1),
    ],
)
@pytest.mark.parametrize("noise", [True, False])
def test_quantiles_of_gaussian_posteriors_equal_normal_quantiles(estimator, noise):
    fitted = clone(estimator).fit(*small_table())
    mean, std = fitted.predict(NEW, return_std=True, noise=noise)
    found = fitted.predict_quantiles(NEW, [0.1, 0.9], noise=noise)
    np.testing.assert_allclose(found, np.stack([norm.ppf(q, mean, std) for q in (0.1, 0.9)], -1), rtol=1e-9)
    np.testing.assert_allclose(fitted.predict_quantiles(NEW, noise=noise), mean)
    for end, expected in zip(fitted.predict_interval(NEW, noise=noise), norm.interval(0.95, mean, std), strict=True):
        np.testing.assert_allclose(end, expected, rtol=1e-9)


def test_quantiles_and_intervals_reject_invalid_levels(fitted):
    with pytest.raises(OptionError, match="between"):
        fitted.predict_quantiles(NEW, [0.5, 1.0])
    with pytest.raises(OptionError, match="quantiles"):
        fitted.predict_quantiles(NEW, [[0.5, 0.6]])
    with pytest.raises(OptionError, match="between"):
        fitted.predict_interval(NEW, 95)


# --- errors and interrupts -------------------------------------------------------------------------------------------


def test_sampled_regressor_rejects_streams_and_partial_fit(fitted):
    X, Y = small_table()
    with pytest.raises(OptionError, match="draws"):
        sampled_model().fit_stream([(X, Y)])
    with pytest.raises(OptionError, match="draws"):
        sampled_model(distributed=True).fit(X, Y)
    again = copy.deepcopy(fitted).set_params(hyperparameters="evidence", sampling=None)
    for estimator in (sampled_model(), fitted, again):
        assert not hasattr(estimator, "partial_fit")  # so that a search does not use it
        with pytest.raises(AttributeError, match="partial_fit") as error:
            estimator.partial_fit(X, Y)
        assert "not supported with hyperparameter draws" in str(error.value.__cause__)
    assert hasattr(ovkgp.GPRegressor(), "partial_fit")


def test_fit_without_sampling_removes_earlier_draws(fitted):
    again = copy.deepcopy(fitted).set_params(hyperparameters="evidence", sampling=None).fit(*small_table())
    assert not hasattr(again, "draws_") and not isinstance(again.posterior_, MixturePosterior)


def test_fit_restores_the_model_if_the_sampler_fails(fitted, monkeypatch):
    def failing(*args):
        raise RuntimeError("sampler failed")

    again = copy.deepcopy(fitted)
    monkeypatch.setattr(gp_regressor, "draw_hyperparameters", failing)
    with pytest.raises(RuntimeError, match="sampler failed"):
        again.fit(*small_table(seed=3))
    np.testing.assert_array_equal(again.predict(NEW), fitted.predict(NEW))


def test_interrupted_training_skips_sampling(monkeypatch):
    fit = OperatorValuedGP.fit

    def interrupted(self, *args, **kwargs):
        fit(self, *args, **kwargs).fit_report_.interrupted = True
        return self

    monkeypatch.setattr(OperatorValuedGP, "fit", interrupted)
    with pytest.warns(FitWarning, match="interrupted"):
        fitted = sampled_model(kernel="independent").fit(*small_table())
    assert not hasattr(fitted, "draws_") and fitted.predict(NEW, return_std=True)[1].shape == (6, 2)
    assert "optimization" in fitted.summary()


def test_sampling_constraints_equal_the_arguments_of_the_sampler():
    parameters = inspect.signature(sample_hyperparameters).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    own = {"noise", "input_names", "output_names", "random_state", "verbose"}
    assert set(SAMPLING_CONSTRAINTS) == defaults.keys() - own | {"max_draws"}
    check_constraints({name: defaults[name] for name in defaults.keys() - own}, SAMPLING_CONSTRAINTS)
    (guide,) = SAMPLING_CONSTRAINTS["guide"]
    assert set(guide.names()) == set(GUIDES)


def test_predictions_reject_inputs_of_wrong_shape(fitted):
    with pytest.raises(ValueError, match="3 features"):
        fitted.predict_quantiles(np.zeros((2, 3)))
    with pytest.raises(InputError):
        fitted.sample_functions(2)(np.zeros((2, 3)))


# --- reproducibility---------------------------------------------------------------------------------------------------


def test_random_state_makes_draws_bitwise_reproducible():
    first, second = (
        sampled_model(kernel="independent", sampling=MINIMAL_SAMPLING).fit(*small_table()) for _ in range(2)
    )
    assert first.draws_["unconstrained_posterior"].identical(second.draws_["unconstrained_posterior"])
    np.testing.assert_array_equal(first.predict_quantiles(NEW, 0.9), second.predict_quantiles(NEW, 0.9))


def test_sampled_regressor_can_be_pickled_copied_and_cloned(fitted):
    for again in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(again.predict(NEW, return_std=True)[1], fitted.predict(NEW, return_std=True)[1])
    assert clone(fitted).sampling == MIXTURE_SAMPLING


def test_summary_of_sampled_kernel_object_is_in_original_units(perturbed_draws):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1)
    X, Y = small_table()
    fitted = sampled_model(kernel=kernel, sampling=None).fit(X, Y)
    assert_equals_mixture(fitted, X, Y, max_draws=MIXTURE_DRAWS)
    assert "hyperparameters (original units)" in fitted.summary()
    found = fitted.to_arviz()["posterior"]["output_matrix"].values.mean((0, 1))
    assert 0.05 < found[1, 1] / Y[:, 1].var() < 20


def test_summary_lists_posterior_means_and_diagnostics(fitted):
    text, group = str(fitted.summary()), fitted.to_arviz()["posterior"]
    noise = np.sqrt(group["noise"].values)
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if line.strip().startswith("parameter"))
    assert lines[header].split()[-7:] == ["mean", "sd", "5", "%", "95", "%", "R̂"]
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("noise std"))
    for a, line in enumerate(lines[first : first + 2]):
        mean, std, low, high, _ = (float(number) for number in line.split()[-5:])
        draws = noise[..., a]
        expected = [draws.mean(), draws.std(), *np.quantile(draws, [0.05, 0.95])]
        np.testing.assert_allclose([mean, std, low, high], expected, rtol=1e-3)
    assert "drawn by laplace: 1 × 60 draws; predictions average over 5 draws; Pareto k̂" in text


def test_export_of_a_mixture_has_draws_and_weights_of_its_candidates():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (25, 3))
    Y = 10 * np.c_[np.sin(X[:, 0]), X[:, 1]] + rng.standard_normal((25, 2))
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    posterior, stack = model.to_arviz()["posterior"], model.posterior_
    assert dict(zip(posterior["candidate"].values, posterior["weight"].values[0, 0], strict=True)) == pytest.approx(
        dict(zip((one.name for one in stack.candidates), stack.weights, strict=True))
    )
    assert posterior.sizes["draw"] == 32
    for candidate, part in zip(stack.candidates, stack.parts, strict=True):
        prefix = "" if candidate.name == next(iter(model.candidates_)) else f"{candidate.name}."
        noise = posterior[f"{prefix}noise"]
        assert noise.dims == ("chain", "draw", "output")
        for a, output in enumerate(part.parts):
            variances = output.noise_variances * model.scaling_.output_scale[a] ** 2
            is_copy = np.isclose(noise.values[0, :, a], variances[:, None], rtol=1e-10, atol=0)
            assert (is_copy.sum(0) == 1).all()
            assert (
                abs(is_copy.sum(1) - 32 * output.weights) < 1
            ).all()  # each draw is exported in proportion to its weight


def test_export_of_a_mixture_at_its_mode_has_one_draw():
    X = np.linspace(0, 5, 20)[:, None]
    model = ovkgp.GPRegressor(hyperparameters="evidence", random_state=0).fit(X, np.sin(X[:, 0]))
    posterior = model.to_arviz()["posterior"]
    assert posterior.sizes["draw"] == 1 and float(posterior["weight"].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.slow
def test_export_of_a_mixture_has_leave_one_out_densities_of_the_mixture(missing):
    az = pytest.importorskip("arviz")
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (25, 2))
    Y = 10 * np.c_[np.sin(X[:, 0]), X[:, 1]] + rng.standard_normal((25, 2))
    if missing:
        Y[:6, 0] = np.nan
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    data, stack = model.to_arviz(), model.posterior_
    likelihood, posterior = data["log_likelihood"]["y"], data["posterior"]
    assert likelihood.sizes["draw"] == posterior.sizes["draw"] == 32 and posterior.attrs["method"] == "laplace, mixture"
    assert not [name for name in posterior.dims if "_dim_" in name]
    parts = [-np.log(np.mean(np.exp(-likelihood.values[0]), axis=0))]
    assert posterior.attrs["elpd_loo"] == pytest.approx(float(parts[0].sum()))
    mean, std, _ = stack.leave_groups_out(torch.arange(25))
    gaussian = torch.distributions.Normal(mean, std, validate_args=False).log_prob(stack.data.Y).nansum(1).numpy()
    scales = np.isfinite(Y) @ np.log(model.scaling_.output_scale)
    assert posterior.attrs["elpd_loo"] == pytest.approx((gaussian - scales).sum(), abs=2.5)  # a mixture is not Gaussian
    loo = az.loo(data)
    assert float(getattr(loo, "elpd_loo", getattr(loo, "elpd", np.nan))) == pytest.approx(
        posterior.attrs["elpd_loo"], abs=2
    )
