"""What ArviZ reads of a regressor: in the user's units, checked against dense densities of the user's data."""

import arviz
import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal, norm
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.estimators.common.scaling import Scaling, draws_in_user_units, in_user_units
from ovkgp.estimators.regression.hyperparameters import groups_of
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.sampling.arviz_data import dataset, to_arviz_object

pytestmark = pytest.mark.filterwarnings(
    "ignore:the laplace approximation is poor",
    "ignore:the posterior is flat or bent upwards at its mode",
    "ignore:Estimated shape parameter of Pareto",
)
FEW = {"draws": 60, "max_draws": 3, "prior_draws": 8}
MIX = np.array([[1.0, 0.5], [-0.3, 2.0]])


def table(n=20, missing=0.0):
    rng = np.random.default_rng(0)
    X = rng.uniform([100, 0], [150, 50], (n, 2))
    Y = np.c_[np.sin(X[:, 0] / 10), 50 + 30 * np.cos(X[:, 1] / 10)] + rng.standard_normal((n, 2)) * [0.1, 3.0]
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


def model(**options):
    given = {"kernel": "decomposable", "base_kernel": "rbf", "random_state": 0} | options
    if given.get("hyperparameters") == "laplace":
        given["sampling"] = FEW
    return ovkgp.GPRegressor(**given)


@pytest.fixture(scope="module")
def drawn():
    return model(hyperparameters="laplace").fit(*table())


# --- a dense model in the user's units ------------------------------------------------------------------------------


class Dense:
    """The Gaussian of the observed entries at one draw, from the numbers that were exported and the user's own data."""

    def __init__(self, group, draw, X, Y):
        value = {name: group[name].values[0, draw] for name in group.data_vars}
        scaled = X / value["lengthscale"]
        K = np.exp(-0.5 * cdist(scaled, scaled, "sqeuclidean"))
        noise = value["noise"] if value["noise"].ndim == 2 else np.diag(value["noise"])
        C = np.kron(K, value["output_matrix"]) + np.kron(np.eye(len(X)), noise)
        seen = np.isfinite(Y).ravel()
        self.C, self.mean = C[np.ix_(seen, seen)], np.tile(value["mean"], len(X))[seen]
        self.y = Y.ravel()[seen]

    def left_out(self):
        inverse = np.linalg.inv(self.C)
        alpha, d = inverse @ (self.y - self.mean), np.diag(inverse)
        return norm.logpdf(self.y, self.y - alpha / d, d**-0.5)

    def log_evidence(self):
        return multivariate_normal.logpdf(self.y, self.mean, self.C)


@pytest.mark.parametrize("noise", ["per_output", "full", "shared"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_point_estimate_in_the_users_units_is_the_model(noise, missing):
    X, Y = table(missing=missing)
    fitted = model(noise=noise).fit(X, Y)
    data = fitted.to_arviz()
    dense = Dense(data["posterior"], 0, X, Y)
    assert dense.log_evidence() == pytest.approx(fitted.log_evidence_, rel=1e-9)
    pointwise = data["log_likelihood"]["y"].values.ravel()
    np.testing.assert_allclose(pointwise, dense.left_out(), rtol=1e-8, atol=1e-8)
    attrs = data["posterior"].attrs
    assert attrs["elpd_loo"] == pytest.approx(dense.left_out().sum(), rel=1e-9) and attrs["method"] == "evidence"
    assert attrs["elpd_loo_se"] == pytest.approx(np.sqrt(len(pointwise)) * pointwise.std())
    np.testing.assert_allclose(data["observed_data"]["y"].values, Y, rtol=1e-12)
    rows, outputs = np.nonzero(np.isfinite(Y))
    np.testing.assert_array_equal(data["log_likelihood"]["row"].values, rows)
    assert data["log_likelihood"]["output"].values.tolist() == [f"y{a}" for a in outputs]


def test_draws_in_the_users_units_are_models_of_the_users_data(drawn):
    X, Y = table()
    data = drawn.to_arviz()
    for draw in (0, 7, 59):
        dense = Dense(data["posterior"], draw, X, Y)
        np.testing.assert_allclose(data["log_likelihood"]["y"].values[0, draw], dense.left_out(), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(data["observed_data"]["y"].values, Y, rtol=1e-12)
    replicated = data["posterior_predictive"]["y"]
    assert replicated.dims == ("chain", "draw", "row", "output")
    spread = np.nanstd(Y, axis=0)
    assert (np.abs(replicated.values.mean((0, 1)) - Y) < spread).all()  # about the data, not about their scaled twins
    assert drawn.draws_["posterior_predictive"]["y"].values.std() < 3 < replicated.values[..., 1].std()


def test_densities_of_all_data_change_with_the_units(drawn):
    scaled, mine = drawn.draws_["posterior"].attrs, drawn.to_arviz()["posterior"].attrs
    shift = 20 * np.log(drawn.scaling_.output_scale).sum()
    for name in ("log_marginal_likelihood", "elbo"):
        assert mine[name] == pytest.approx(scaled[name] - shift)
    assert mine["khat"] == scaled["khat"] and mine["units"] == "of the data"


def test_units_that_are_powers_of_two_change_exactly_what_they_should(drawn):
    """The scaled data are the same to the bit, and so are the draws."""
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
    shift = np.log([2.0, 0.25])[np.tile([0, 1], 20)]
    densities = (data["log_likelihood"]["y"].values for data in (mine, other))
    np.testing.assert_allclose(*(next(densities) - shift, next(densities)), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(other["sample_stats"]["lp"].values, mine["sample_stats"]["lp"].values)


def test_the_draws_of_the_regressor_are_not_touched(drawn):
    before = drawn.draws_["posterior"].copy(deep=True)
    exported = drawn.to_arviz()
    for name in ("posterior", "unconstrained_posterior"):
        for variable in exported[name].data_vars:
            exported[name][variable].values[:] = -1.0
    assert drawn.draws_["posterior"].identical(before)
    assert not (drawn.draws_["unconstrained_posterior"]["mean.constant"] == -1.0).any()


# --- ArviZ itself -------------------------------------------------------------------------------------------------------


def test_arviz_reads_it(drawn, tmp_path):
    data = drawn.to_arviz()
    summary = arviz.summary(data, var_names=["lengthscale", "noise"])
    assert "noise[y1]" in summary.index and "lengthscale[x0]" in summary.index
    assert np.isfinite(arviz.loo(data).elpd_loo if hasattr(arviz.loo(data), "elpd_loo") else arviz.loo(data).elpd)
    data.to_netcdf(str(tmp_path / "draws.nc"))
    again = arviz.from_netcdf(str(tmp_path / "draws.nc"))
    np.testing.assert_array_equal(again["posterior"]["noise"].values, data["posterior"]["noise"].values)


def test_columns_keep_their_names():
    X, Y = table()
    fitted = model().fit(pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"]))
    group = fitted.to_arviz()["posterior"]
    assert group["lengthscale"]["input"].values.tolist() == ["east", "north"]
    assert group["output_matrix"]["output_bis"].values.tolist() == ["u", "v"]


def test_both_kinds_of_object_have_groups():
    group = dataset({"noise": np.ones((1, 2))}, {"noise": ("chain", "draw")})
    for kind in ("inference_data", "datatree"):
        ((name, found),) = groups_of(to_arviz_object({"posterior": group}, kind))
        assert name == "posterior" and found.identical(group)


# --- models without draws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_independent_outputs(missing):
    X, Y = table(missing=missing)
    fitted = model(kernel="independent").fit(X, Y)
    kept, given = fitted.to_arviz(), fitted.to_arviz(X, Y)
    assert kept["posterior"].attrs["elpd_loo"] == pytest.approx(given["posterior"].attrs["elpd_loo"], rel=1e-9)
    np.testing.assert_allclose(given["observed_data"]["y"].values, Y, rtol=1e-12)
    assert kept["log_likelihood"].sizes["entry"] == np.isfinite(Y).sum()
    if not missing:
        np.testing.assert_allclose(kept["observed_data"]["y"].values, Y, rtol=1e-12)


def test_features_need_the_data_for_densities():
    X, Y = table()
    fitted = model(approximation="orff", num_frequencies=20).fit(X, Y)
    bare, whole = fitted.to_arviz(), fitted.to_arviz(X, Y)
    assert (
        "log_likelihood" not in dict(groups_of(bare)) and "to_arviz(X, Y)" in bare["posterior"].attrs["log_likelihood"]
    )
    scaled = fitted.gp_.leave_one_out(fitted.scaling_.inputs(X), fitted.scaling_.outputs(Y)).total
    expected = fitted.scaling_.log_density(scaled, np.array([20, 20]))
    assert whole["posterior"].attrs["elpd_loo"] == pytest.approx(expected, rel=1e-10)
    np.testing.assert_array_equal(bare["posterior"]["noise"].values, whole["posterior"]["noise"].values)


def test_known_noise_and_fixed_hyperparameters():
    X, Y = table()
    fitted = model(hyperparameters="fixed").fit(X, Y, noise=np.full(Y.shape, [0.01, 9.0]))
    data = fitted.to_arviz()
    given = fitted.to_arviz(X, Y, np.full(Y.shape, [0.01, 9.0]))
    assert data["posterior"].attrs["method"] == "fixed"
    np.testing.assert_allclose(data["log_likelihood"]["y"].values, given["log_likelihood"]["y"].values, rtol=1e-9)


def test_refusals(drawn):
    with pytest.raises(NotFittedError):
        model().to_arviz()
    with pytest.raises(OptionError, match="takes no data"):
        drawn.to_arviz(*table())
    with pytest.raises(InputError, match="give X and Y together"):
        model(hyperparameters="fixed").fit(*table()).to_arviz(table()[0])


# --- units ------------------------------------------------------------------------------------------------------------

SCALING = Scaling(np.zeros(2), np.array([10.0, 4.0]), np.array([5.0, -1.0]), np.array([2.0, 3.0]))


def test_a_shared_noise_is_one_for_each_output_in_units_that_differ():
    np.testing.assert_allclose(in_user_units("noise", np.array(0.5), "lmc", SCALING), [2.0, 4.5])
    same = Scaling(np.zeros(1), np.ones(1), np.zeros(2), np.array([2.0, 2.0]))
    assert in_user_units("noise", np.array(0.5), "lmc", same).shape == ()
    np.testing.assert_allclose(in_user_units("noise", MIX, "lmc", SCALING), MIX * [[4, 6], [6, 9]])
    draws = draws_in_user_units("noise", np.full((3, 4), 0.5), "lmc", SCALING)
    assert draws.shape == (3, 4, 2)


def test_numbers_of_a_kernel_object_are_its_own():
    np.testing.assert_array_equal(in_user_units("lengthscale", np.array([1.0, 2.0]), "given", SCALING), [1, 2])
    np.testing.assert_array_equal(in_user_units("lengthscale", np.array([1.0, 2.0]), "lmc", SCALING), [10, 8])
    np.testing.assert_array_equal(in_user_units("mean", np.array([1.0, 2.0]), "given", SCALING), [7, 5])
    np.testing.assert_array_equal(in_user_units("0.alpha", np.array(0.7), "lmc", SCALING), 0.7)
