"""Posteriors of hyperparameters, from the model to the ArviZ object."""

import pickle
import subprocess
import sys
import warnings
from copy import deepcopy

import arviz
import arviz_plots
import arviz_stats
import matplotlib
import numpy as np
import pytest
import torch
import xarray as xr
from gp_cases import Problem
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import LogNormalPrior, NormalPrior
from sampler_cases import GlobalState

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling import arviz_data
from ovkgp.inference.sampling.arviz_data import DrawGroups, point_arviz, to_arviz_object
from ovkgp.inference.sampling.diagnostics import effective_size
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel, IndependentKernel

GROUPS = {
    "posterior",
    "unconstrained_posterior",
    "prior",
    "sample_stats",
    "log_likelihood",
    "posterior_predictive",
    "observed_data",
}
OPTIONS = {"draws": 30, "tune": 40, "chains": 2, "prior_draws": 10, "random_state": 0}


@pytest.fixture(autouse=True)
def _quiet():
    """Short runs are warned about, rightly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        yield


DRAWS_ALONE = {"draws": 400, "tune": 100, "chains": 1, "log_likelihood": False, "posterior_predictive": False}


def shorten(monkeypatch):
    """Let SVI take a single window of steps."""
    from ovkgp.inference.sampling import svi

    monkeypatch.setattr(svi, "NUM_HALVINGS", 0)
    monkeypatch.setattr(svi, "MAX_WINDOWS_PER_STEP_SIZE", 1)


def curve(n=15, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.linspace(0, 6, n, dtype=torch.float64).unsqueeze(-1)
    return X, X.sin() + 0.2 * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def one_output():
    return OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero", noise="shared")


def two_outputs(n=12, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    X = 3 * torch.rand(n, 2, generator=generator, dtype=torch.float64)
    Y = torch.stack([X[:, 0].sin(), X.sum(1).cos()], -1)
    Y = Y + 0.1 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1)
    return OperatorValuedGP(kernel, **options), X, Y


def names_of(data):
    return set(data.groups() if hasattr(data, "_groups_all") else data.children)


# --- the three methods on one problem -------------------------------------------------------------------------------


def conjugate(p=2, n=20):
    """Kernel and noise fixed, mean ~ N(1, 0.5²) for each output: its posterior is a Gaussian in closed form."""
    X = torch.linspace(0, 4, n, dtype=torch.float64).unsqueeze(-1)
    Y = 0.5 * torch.randn(n, p, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + torch.arange(p)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.eye(p, dtype=torch.float64) + 0.5)
    gp = OperatorValuedGP(kernel, mean="constant", noise=0.2)
    gp.kernel.requires_grad_(False)
    prior = NormalPrior(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    gp.mean.register_prior("constant_prior", prior, "constant")
    K = torch.exp(-((X - X.T) ** 2) / 2 / gp.kernel.base_kernel.lengthscale.item() ** 2).numpy()
    C = np.kron(K, np.eye(p) + 0.5) + 0.2 * np.eye(n * p)
    H = np.tile(np.eye(p), (n, 1))
    precision = H.T @ np.linalg.solve(C, H) + 4 * np.eye(p)
    mean = np.linalg.solve(precision, H.T @ np.linalg.solve(C, Y.numpy().ravel()) + 4 * np.ones(p))
    return gp, X, Y, mean, np.linalg.inv(precision)


@pytest.mark.parametrize("method", ["nuts", pytest.param("svi", marks=pytest.mark.slow), "laplace"])
def test_conjugate_posterior_is_recovered(method):
    gp, X, Y, mean, covariance = conjugate()
    data = sample_hyperparameters(gp, X, Y, method, random_state=1, **DRAWS_ALONE)
    values = data["posterior"]["mean"].values
    for a in range(2):
        size, deviation = effective_size(values[..., a]), np.sqrt(covariance[a, a])
        assert abs(values[..., a].mean() - mean[a]) < 4 * deviation / np.sqrt(size)
        assert values[..., a].std() == pytest.approx(deviation, abs=4 * deviation / np.sqrt(size))
    if method != "nuts":
        assert data["posterior"].attrs["khat"] < 0.7


@pytest.mark.slow
def test_methods_agree_on_nearly_gaussian_posterior():
    X, Y = curve(n=40)
    gp = one_output()
    for module_, name, loc in ((gp.kernel.base_kernel, "lengthscale", 0.4), (gp.kernel, "outputscale", 0.0)):
        prior = LogNormalPrior(torch.tensor(loc, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64))
        module_.register_prior(f"{name}_prior", prior, name)
    logs = {}
    for method in ("nuts", "svi", "laplace"):
        data = sample_hyperparameters(gp, X, Y, method, random_state=2, **DRAWS_ALONE)
        logs[method] = {
            name: np.log(data["posterior"][name].values) for name in ("lengthscale", "outputscale", "noise")
        }
    for name, exact in logs["nuts"].items():
        for method in ("svi", "laplace"):
            # a fifth of a standard deviation is what the skewness of the posterior leaves, beside Monte-Carlo errors
            error = 4 * np.sqrt(1 / effective_size(exact) + 1 / 400)
            assert abs(logs[method][name].mean() - exact.mean()) < (0.2 + error) * exact.std()
            assert logs[method][name].std() == pytest.approx(exact.std(), rel=0.1 + error)


# --- every strategy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, options",
    [
        ("icm, rank 2", {"noise": "per_output", "missing": 0.0}),
        ("icm, rank 2", {"noise": "full", "mean": "linear"}),
        ("icm, rank 2", {"noise": "known"}),
        ("lmc", {"noise": "shared"}),
        ("independent", {"noise": "per_output"}),
        ("curl-free", {"noise": "shared"}),
        ("icm, rank 2", {"noise": "per_output", "features": "orff"}),
    ],
)
def test_all_groups_exist_with_every_strategy(name, options):
    problem = Problem(name, level=0.05, **options)
    data = sample_hyperparameters(problem.gp, problem.X, problem.Y, "laplace", noise=problem.known, **OPTIONS)
    assert names_of(data) == GROUPS
    observed = ~torch.isnan(problem.Y)
    density = data["log_likelihood"]["y"]
    rows = observed.any(1)
    assert density.shape == (1, 30, int(rows.sum())) and density.dims == ("chain", "draw", "row")
    assert np.isfinite(density.values).all()
    assert (density["row"].values == rows.nonzero().flatten().numpy()).all()
    assert data["posterior_predictive"]["y"].shape == (1, 30, *problem.Y.shape)
    np.testing.assert_array_equal(data["observed_data"]["y"].values, problem.Y.numpy())
    assert set(data["prior"].data_vars) == set(data["posterior"].data_vars)
    for variable in data["posterior"].data_vars:
        assert data["prior"][variable].dims == data["posterior"][variable].dims
        assert np.isfinite(data["posterior"][variable].values).all()
    # log_likelihood of draw 7 is that of the model with the raw parameters of draw 7, which name the posterior's values
    gp = deepcopy(problem.gp)
    raw = data["unconstrained_posterior"]
    for parameter_name, parameter in gp.named_parameters():
        if parameter_name in raw.data_vars:
            parameter.data.copy_(torch.as_tensor(raw[parameter_name].values[0, 7]))
    loo = gp.leave_one_out(problem.X, problem.Y, problem.known, groups="rows").log_density
    np.testing.assert_allclose(density.values[0, 7], loo[rows], rtol=1e-9)
    if "noise" in data["posterior"].data_vars:
        np.testing.assert_allclose(data["posterior"]["noise"].values[0, 7], gp.noise.detach(), rtol=1e-12)


@pytest.mark.parametrize("method", ["nuts", "laplace"])
def test_statistics_replace_data(method):
    _, X, Y = two_outputs(n=60)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 15, random_state=0))
    data = sample_hyperparameters(gp, gp.statistics(X, Y), method=method, **OPTIONS)
    assert {"posterior", "unconstrained_posterior", "sample_stats"} <= names_of(data)
    assert not names_of(data) & {"log_likelihood", "posterior_predictive", "observed_data"}
    assert "lengthscale" not in data["posterior"].data_vars  # statistics hold for one lengthscale
    assert {"noise", "output_matrix"} <= set(data["posterior"].data_vars)


@pytest.mark.parametrize("entries", [500, 3])
@pytest.mark.slow
def test_variational_model_of_counts_is_sampled(entries, monkeypatch):
    monkeypatch.setattr(arviz_data, "MAX_JOINT_ENTRIES", entries)
    X, _ = curve()
    Y = torch.poisson(torch.exp(X.sin() + 1), generator=torch.Generator().manual_seed(0))
    gp = VariationalGP(ScaleKernel(RBFKernel()), "poisson", inducing=6)
    data = sample_hyperparameters(gp, X, Y, "laplace", **OPTIONS)
    assert {"lengthscale", "outputscale", "mean"} == set(data["posterior"].data_vars)
    assert names_of(data) == GROUPS and data["log_likelihood"]["y"].shape == (1, 30, len(X))
    counts = data["posterior_predictive"]["y"].values
    assert (counts == counts.round()).all() and (counts >= 0).all() and 1 < counts.mean() < 6


# --- what the groups hold -------------------------------------------------------------------------------------------


def test_replicates_have_moments_of_posterior_predictive():
    X, Y = curve()
    gp = one_output()
    gp.kernel.base_kernel.lengthscale = 1.5
    raw = {name: np.repeat(p.detach().numpy()[None, None], 400, 1) for name, p in gp.named_parameters()}
    found = DrawGroups(deepcopy(gp), raw, None, X, Y).posterior_predictive(True, 0)["posterior_predictive"]["y"].values
    prediction = gp.condition(X, Y).predict(X, noise=True)
    np.testing.assert_allclose(found.mean((0, 1)), prediction.mean, atol=4 * prediction.std.max().item() / np.sqrt(400))
    np.testing.assert_allclose(found.std((0, 1)), prediction.std, rtol=0.17)


def test_replicates_use_known_noise():
    gp, X, Y = two_outputs(n=6)
    known = torch.full((6, 2), 1e-6, dtype=torch.float64)
    known[0, 0] = 25.0
    raw = {name: np.repeat(p.detach().numpy()[None, None], 200, 1) for name, p in gp.named_parameters()}
    groups = DrawGroups(gp, raw, None, X, Y, known)
    std = groups.posterior_predictive(True, 0)["posterior_predictive"]["y"].values.std((0, 1))
    assert std[0, 0] > 4 and std[1:].max() < 0.1


def test_replicates_of_large_data_use_random_functions(monkeypatch):
    gp, X, Y = two_outputs(n=8)
    raw = {name: np.repeat(p.detach().numpy()[None, None], 150, 1) for name, p in gp.named_parameters()}
    monkeypatch.setattr(arviz_data, "MAX_JOINT_ENTRIES", 3)
    found = arviz_data.draw_replicates(gp, raw, X, Y, random_state=0)
    prediction = gp.condition(X, Y).predict(X, noise=True)
    np.testing.assert_allclose(found.mean(0), prediction.mean, atol=5 * prediction.std.max().item() / np.sqrt(150))
    np.testing.assert_allclose(found.std(0), prediction.std, rtol=0.3)


def test_expensive_groups_are_omitted_with_reason(monkeypatch):
    X, Y = curve()
    monkeypatch.setattr(arviz_data, "MAX_AUTO_OPERATIONS", 10.0)
    data = sample_hyperparameters(one_output(), X, Y, "laplace", **OPTIONS)
    assert names_of(data) == GROUPS - {"log_likelihood", "posterior_predictive"}
    assert "expensive" in data["posterior"].attrs["log_likelihood"]
    data = sample_hyperparameters(one_output(), X, Y, "laplace", log_likelihood=True, **OPTIONS)
    assert "log_likelihood" in names_of(data)
    monkeypatch.setattr(arviz_data, "MAX_GROUP_VALUES", 10.0)
    with pytest.raises(OptionError, match="too many numbers"):
        sample_hyperparameters(one_output(), X, Y, "laplace", log_likelihood=True, **OPTIONS)


def test_groups_are_omitted_on_request():
    X, Y = curve()
    options = OPTIONS | {"prior_draws": 0}
    data = sample_hyperparameters(
        one_output(), X, Y, "laplace", log_likelihood=False, posterior_predictive=False, **options
    )
    assert names_of(data) == {"posterior", "unconstrained_posterior", "sample_stats", "observed_data"}


def test_rows_without_outputs_keep_their_index():
    gp, X, Y = two_outputs()
    Y[3] = torch.nan
    Y[5, 0] = torch.nan
    data = sample_hyperparameters(gp, X, Y, "laplace", output_names=["a", "b"], **OPTIONS)
    density = data["log_likelihood"]["y"]
    assert density["row"].values.tolist() == [row for row in range(12) if row != 3] and density.shape[-1] == 11
    assert data["posterior_predictive"]["y"].shape == (1, 30, 12, 2)
    assert data["posterior"]["noise"].sel(output="b").shape == (1, 30)


def test_nuts_attributes_report_diagnostics():
    X, Y = curve()
    data = sample_hyperparameters(one_output(), X, Y, "nuts", **OPTIONS)
    stats, attrs = data["sample_stats"], data["posterior"].attrs
    assert {"lp", "diverging", "acceptance_rate", "energy", "n_steps", "step_size"} == set(stats.data_vars)
    assert (
        attrs["method"] == "nuts" and attrs["interrupted"] == 0 and attrs["num_divergences"] == stats["diverging"].sum()
    )
    assert attrs["evaluations"] > 100 and attrs["seconds"] > 0 and attrs["rhat_max"] > 0.9 and attrs["ess_min"] > 1
    assert data["posterior"]["lengthscale"].shape == (2, 30)


# --- manners --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["nuts", "svi", "laplace"])
def test_sampling_is_reproducible_and_keeps_state(method, monkeypatch):
    shorten(monkeypatch)
    X, Y = curve(n=8)
    gp = one_output()
    before, state = deepcopy(gp.state_dict()), GlobalState()
    options = OPTIONS | {"draws": 10, "tune": 10}
    first = sample_hyperparameters(gp, X, Y, method, **options)
    assert GlobalState() == state
    assert all(torch.equal(value, before[name]) for name, value in gp.state_dict().items())
    assert not list(gp.named_priors())
    again = sample_hyperparameters(gp, X, Y, method, **options)
    for group in GROUPS:
        for name in first[group].data_vars:
            np.testing.assert_array_equal(first[group][name].values, again[group][name].values)
    other = sample_hyperparameters(gp, X, Y, method, **(options | {"random_state": 1}))
    assert (other["posterior"]["noise"].values != first["posterior"]["noise"].values).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gibbs"}, "method must be one of"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"chains": 1.5}, "chains must be"),
        ({"tune": -1}, "tune must be at least"),
        ({"method": "svi", "guide": "flow"}, "guide must be one of"),
        ({"target_accept": 1.0}, "target_accept"),
        ({"method": "laplace", "log_likelihood": "yes"}, "log_likelihood must be"),
    ],
)
def test_sampling_rejects_invalid_options(options, message):
    X, Y = curve()
    with pytest.raises(OptionError, match=message):
        sample_hyperparameters(one_output(), X, Y, **(OPTIONS | options))


def test_sampling_rejects_invalid_data():
    X, Y = curve()
    with pytest.raises(InputError):
        sample_hyperparameters(one_output(), X, Y[:-1], "laplace")
    with pytest.raises(InputError, match="output_names"):
        sample_hyperparameters(one_output(), X, Y, "laplace", output_names=["a", "b"], draws=5)


def test_sampling_supports_one_row_and_mixed_dtypes():
    X, Y = curve()
    data = sample_hyperparameters(one_output(), X[:1].float(), Y[:1], "laplace", **OPTIONS)
    assert data["log_likelihood"]["y"].shape == (1, 30, 1)
    assert data["posterior"]["noise"].dtype == np.float64


# --- ArviZ 0.x and 1.x ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled():
    X, Y = curve()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as monkeypatch:
        warnings.simplefilter("ignore", FitWarning)
        shorten(monkeypatch)
        return {
            method: sample_hyperparameters(one_output(), X, Y, method, **(OPTIONS | {"draws": 60}))
            for method in ("nuts", "svi", "laplace")
        }


def as_kind(data, kind):
    return to_arviz_object({name: _dataset(data[name]) for name in GROUPS}, kind)


def _dataset(group):
    return group if isinstance(group, xr.Dataset) else group.to_dataset()


@pytest.mark.parametrize("method", ["nuts", "svi", "laplace"])
def test_arviz_0_reads_draws(sampled, method, tmp_path):
    data = as_kind(sampled[method], "inference_data")
    summary = arviz.summary(data)
    assert set(summary.index) == {"lengthscale", "outputscale", "noise"}
    loo = arviz.loo(data, pointwise=True)
    assert np.isfinite(loo.elpd_loo) and loo.loo_i.shape == (15,)
    assert len(arviz.compare({"this": data, "other": as_kind(sampled["laplace"], "inference_data")})) == 2
    matplotlib.use("Agg")
    assert arviz.plot_trace(data).shape == (3, 2)
    data.to_netcdf(str(tmp_path / "draws.nc"), engine="h5netcdf")
    again = arviz.from_netcdf(str(tmp_path / "draws.nc"), engine="h5netcdf")
    _assert_same(data, again)


@pytest.mark.parametrize("method", ["nuts", "svi", "laplace"])
def test_arviz_1_reads_draws(sampled, method, tmp_path):
    data = as_kind(sampled[method], "datatree")
    summary = arviz_stats.summary(data)
    assert set(summary.index) == {"lengthscale", "outputscale", "noise"}
    loo = arviz_stats.loo(data, pointwise=True)
    assert np.isfinite(loo.elpd) and loo.elpd_i.size == 15
    assert len(arviz_stats.compare({"this": data, "other": as_kind(sampled["laplace"], "datatree")})) == 2
    matplotlib.use("Agg")
    arviz_plots.plot_trace(data, backend="matplotlib")
    data.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    _assert_same(data, xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf"))


def _assert_same(data, again):
    for group in GROUPS:
        assert _dataset(data[group]).equals(_dataset(again[group]))
    assert _dataset(data["posterior"]).attrs == pytest.approx(_dataset(again["posterior"]).attrs)


def test_loo_of_point_posterior_is_closed_form():
    gp, X, Y = two_outputs()
    data = point_arviz(gp, X, Y, output_names=["a", "b"])
    exact = gp.leave_one_out(X, Y, groups="rows")
    assert data["posterior"].attrs["elpd_loo"] == pytest.approx(exact.log_density.sum().item(), rel=1e-12)
    expected = np.sqrt(len(Y)) * exact.log_density.numpy().std()
    assert data["posterior"].attrs["elpd_loo_se"] == pytest.approx(expected, rel=1e-12)
    assert data["posterior"]["noise"].sel(output="a").shape == (1, 1)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0, 0], exact.log_density.flatten(), rtol=1e-12)
    assert names_of(data) == {"posterior", "unconstrained_posterior", "log_likelihood", "observed_data"}


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, warnings, torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.sampling import nuts
X = torch.linspace(0, 6, 15, dtype=torch.float64).unsqueeze(-1)
nuts.count_workers = lambda chains, seconds: 1
move = nuts.Chain._move
count = 0
def interrupt(self, step):  # the process sends itself SIGINT when the first chain has made 30 draws
    global count
    count += 1
    if count == 60:
        os.kill(os.getpid(), signal.SIGINT)
    return move(self, step)
nuts.Chain._move = interrupt
gp = OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    data = sample_hyperparameters(gp, X, X.sin() + 0.1 * (9 * X).cos(), draws=5000, tune=30, chains=2, random_state=0)
print(data["posterior"]["noise"].shape, data["posterior"].attrs["interrupted"],
      any("interrupted; 1 of 2 chains" in str(w.message) for w in caught))
"""


def test_sigint_returns_draws_so_far():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    assert found.returncode == 0, found.stderr
    shape, rest = found.stdout.strip().split(") ")
    draws = int(shape.split(",")[1])
    assert 28 <= draws <= 31 and rest == "1 True"


def test_groups_are_computed_when_they_are_read(monkeypatch):
    X, Y = curve()
    computed, functions = [], {name: getattr(arviz_data, name) for name in ("log_likelihoods", "draw_replicates")}
    for name, function in functions.items():

        def counted(gp, raw, *args, name=name, function=function, **options):
            computed.append((name, next(iter(raw.values())).shape[1]))
            return function(gp, raw, *args, **options)

        monkeypatch.setattr(arviz_data, name, counted)
    data = sample_hyperparameters(one_output(), X, Y, "laplace", **OPTIONS)
    assert computed == [("log_likelihoods", 1), ("draw_replicates", 1)]  # one draw, to see whether they can be computed
    repr(data), arviz.summary(data), data["log_likelihood"].sizes
    assert len(computed) == 2
    first = data["log_likelihood"]["y"].values
    assert computed[2:] == [("log_likelihoods", 30)]
    assert data["log_likelihood"]["y"].values is first or (data["log_likelihood"]["y"].values == first).all()
    assert data["posterior_predictive"]["y"].mean() and computed[3:] == [("draw_replicates", 30)]


def test_groups_do_not_depend_on_later_changes():
    X, Y = curve()
    gp = one_output()
    data, other = (sample_hyperparameters(gp, X, Y, "laplace", **OPTIONS) for _ in range(2))
    expected = {
        name: other[name].load().copy(deep=True) for name in ("prior", "log_likelihood", "posterior_predictive")
    }
    copied, sent = deepcopy(data), pickle.loads(pickle.dumps(data))
    Y += 5.0
    X *= 2.0
    gp.kernel.outputscale = 100.0
    for name, group in expected.items():
        for found in (data, copied, sent):
            assert group.equals(_dataset(found[name]))


def test_interrupt_while_a_group_is_read_keeps_draws(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    X, Y = curve()
    data = sample_hyperparameters(one_output(), X, Y, "laplace", **OPTIONS)
    with monkeypatch.context() as patched:
        patched.setattr(arviz_data, "log_likelihoods", interrupted)
        with pytest.raises(KeyboardInterrupt):
            data["log_likelihood"]["y"].to_numpy()
    assert data["posterior"]["noise"].shape == (1, 30) and np.isfinite(data["log_likelihood"]["y"].values).all()


SLOW_CASES = [pytest.param(case, marks=pytest.mark.slow) for case in ("kronecker", "known", "independent", "features")]


@pytest.mark.parametrize("case", ["missing", *SLOW_CASES])
@pytest.mark.slow
def test_replicates_have_joint_covariance_of_posterior(case):
    gp, X, Y = two_outputs(n=5)
    known = (
        torch.rand(5, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) if case == "known" else None
    )
    if case == "missing":
        Y[1] = torch.nan
        Y[3, 0] = torch.nan
    if case == "independent":
        gp = OperatorValuedGP(IndependentKernel([ScaleKernel(RBFKernel()), RBFKernel()]))
    if case == "features":
        gp = OperatorValuedGP(gp.kernel, features=ORFF(gp.kernel, 20, random_state=0))
    gp.noise_model.set(torch.tensor([0.1, 0.3], dtype=torch.float64))
    count = 1000
    raw = {name: np.repeat(p.detach().numpy()[None, None], count, 1) for name, p in gp.named_parameters()}
    prediction = gp.condition(X, Y, noise=known).predict(X, "full", noise=known is None)
    expected = prediction.cov.numpy()
    if known is not None:
        expected = expected + np.diag(known.numpy().ravel())
    found = arviz_data.draw_replicates(gp, raw, X, Y, known, random_state=0).reshape(count, -1)
    deviations = np.sqrt(expected.diagonal())
    np.testing.assert_allclose(found.mean(0), prediction.mean.flatten(), atol=4.5 * deviations.max() / np.sqrt(count))
    # entries of a sample covariance have standard errors of at most √2 σ_i σ_j / √count
    errors = (np.cov(found, rowvar=False) - expected) / np.outer(deviations, deviations)
    assert np.abs(errors).max() < 4.5 * np.sqrt(2 / count)


def test_matern_kernel_with_column_names_is_sampled():
    gp, X, Y = two_outputs()
    gp = OperatorValuedGP(DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=2, rank=1))
    data = sample_hyperparameters(gp, X, Y, "laplace", input_names=["x", "t"], **OPTIONS)
    assert data["posterior"]["lengthscale"].sel(input="t").shape == (1, 30)
    assert data["posterior"]["output_matrix"].dims == ("chain", "draw", "output", "output_bis")
